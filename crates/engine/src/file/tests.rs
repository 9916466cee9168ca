//! What one program can take of a turn.

use tactus_core::local::RING_SLOTS;
use tactus_core::units::MonoTime;

use super::fixture::Fixture;

/// A client could write requests that are refused as fast as the server takes them: a turn checks
/// that it ends. No ring of the doorbell follows for what it leaves.
#[test]
fn l03_requests_have_an_end_in_each_turn_and_none_is_forgotten() {
    // While the server may stay awake, and while it sleeps.
    for now in [1_000_000_000, 1_009_000_000] {
        let mut fixture = Fixture::new();
        let mut program = fixture.attach(0);
        fixture.turn();
        fixture.now = MonoTime(now);
        for token in 0..u64::from(RING_SLOTS) {
            assert_eq!(program.requests.push(&[token, 99, 0, 0, 0, 0, 0, 0]), Ok(true));
        }
        let (mut answered, mut turns) = (0, 0);
        while answered < RING_SLOTS {
            let next = fixture.turn();
            turns += 1;
            while program.answers.pop().expect("an honest server").is_some() {
                answered += 1;
            }
            if answered < RING_SLOTS {
                fixture.now = next.expect("a turn that follows by itself");
            }
        }
        assert!(turns >= 4, "{turns} turns");
        assert!(fixture.broken.is_empty());
    }
}

#[test]
fn reads_of_two_programs_come_with_their_bytes_from_memory_and_from_the_page_cache() {
    let mut fixture = Fixture::new();
    let mut programs = [fixture.attach(0), fixture.attach(1)];
    for program in &programs {
        for handle in 0..3 {
            fixture.open(program.id, handle);
        }
        fixture.map(program.id, 2);
    }
    for nth in 0..300 {
        for program in &mut programs {
            program.read(&mut fixture, nth % 3);
        }
    }
    for program in &programs {
        fixture.detach(program.id);
    }
    fixture.run(8, |fixture| (fixture.detached.len() == 2).then_some(()));
    fixture.turn();
    assert_eq!(fixture.lent(), 0);
}
