//! Servers that move to another core: they lose nothing, whatever they are doing.

use tactus_core::units::{Nanos, SECOND};
use tactus_engine::cores::Core;
use tactus_engine::message::Outcome;
use tactus_engine::name::{Job, ServerName};

use crate::fixture::{BOTH, CYCLE, Fixture, TITLE, content};
use crate::{RATE, finished, retired};

#[test]
fn servers_that_move_to_another_core_lose_nothing_and_are_not_late() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let streams: Vec<_> = (1..4).map(|title| (title, fixture.start(title, RATE))).collect();
        fixture.write(7, 9, 0, &[5; 1000]);
        // The windows are full at first.
        fixture.pass(SECOND.times(2));
        let mut in_flight = 0;
        for _ in 0..40 {
            // Around the beginning of cycles, when the disk reads.
            fixture.pass(CYCLE + Nanos::from_micros(50));
            in_flight += fixture.at_the_device();
            fixture.hand_over();
        }
        assert!(in_flight > 0, "some move while the disk reads");
        fixture.pass(SECOND.times(12));
        for (title, stream) in streams {
            assert_eq!(fixture.received(stream), content(title, 0, TITLE.0));
            assert_eq!(finished(&fixture, stream), Some((Outcome::Complete, TITLE)));
            assert!(retired(&fixture, stream));
        }
        assert_eq!(fixture.answers.len(), 1, "the write is answered");
        assert_eq!(fixture.control.counters.links[0].underruns.value(), 0);
    }
}

#[test]
fn a_server_stays_and_serves_until_the_other_core_is_awake() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let mut other = Core::default();
        let disk = ServerName { job: Job::Disk, index: 0 };
        let migration = fixture.begin_migration(disk, &other);
        let stream = fixture.start(1, RATE);
        fixture.pass(SECOND.times(12));
        assert_eq!(finished(&fixture, stream), Some((Outcome::Complete, TITLE)));
        let soon = other.turn(fixture.now).expect("it stays awake for the server");
        assert!(soon.since(fixture.now) < Nanos::from_micros(50));
        fixture.turn();
        assert_eq!(migration.pause(), None);
        let later = fixture.now + SECOND;
        other.turn(later);
        assert_eq!(migration.pause(), Some(SECOND), "it is on its way until that core's turn");
        assert!(other.names().eq([disk]) && migration.is_left_alone());
    }
}
