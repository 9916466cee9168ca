//! Mistakes about names that share a flush are told by many small uploads to one directory.
//! One test, because a mistake is switched on in the whole process.

use tactus_core::mutant::{Mutant, switch_on};
use tactus_sim::small_uploads::SmallUploads;

#[test]
fn every_mutant_of_small_uploads_is_told() {
    let world = SmallUploads { viewers: 10, seconds: 8, ..SmallUploads::default() };
    assert_eq!(world.run().err().map(|violation| violation.to_string()), None);
    for mutant in Mutant::OF_SMALL_UPLOADS {
        switch_on(Some(mutant));
        let found = world.run().err().map(|violation| violation.to_string());
        switch_on(None);
        println!("{mutant:?}: {found:?}");
        assert!(found.is_some(), "{mutant:?} is not told");
    }
}
