//! Mistakes about the end of a cycle are told by a full spinning disk on which many streams begin.
//! One test, because a mistake is switched on in the whole process.

use tactus_core::mutant::{Mutant, switch_on};
use tactus_sim::spinning::Spinning;

#[test]
fn r08_every_mutant_of_full_disks_is_told() {
    let filled = Spinning { memory: 1024, ..Spinning::default() };
    let seeking = Spinning { viewers: 110, zappers: 40, ..Spinning::default() };
    let told = || {
        let late = [&filled, &seeking].into_iter().find_map(|world| world.run().err());
        late.map(|violation| violation.to_string())
    };
    assert_eq!(told(), None, "without a mistake the streams are on time");
    for mutant in Mutant::OF_FULL_DISKS {
        switch_on(Some(mutant));
        let found = told();
        switch_on(None);
        println!("{mutant:?}: {found:?}");
        assert!(found.is_some(), "{mutant:?} is not told");
    }
}
