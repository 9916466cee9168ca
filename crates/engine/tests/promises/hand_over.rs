//! Servers that leave their core: they begin nothing, and lose nothing.

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
        let mut waited = Nanos(0);
        for _ in 0..40 {
            // Around the beginning of cycles, when the disk reads.
            fixture.pass(CYCLE + Nanos::from_micros(50));
            waited = waited.max(fixture.hand_over());
            assert_eq!(fixture.at_the_device(), 0);
        }
        fixture.pass(SECOND.times(12));
        for (title, stream) in streams {
            assert_eq!(fixture.received(stream), content(title, 0, TITLE.0));
            assert_eq!(finished(&fixture, stream), Some((Outcome::Complete, TITLE)));
            assert!(retired(&fixture, stream));
        }
        assert_eq!(fixture.answers.len(), 1, "the write is answered");
        assert!(Nanos(0) < waited && waited < CYCLE, "a device ends what it has begun: {waited:?}");
        assert_eq!(fixture.control.counters.links[0].underruns.value(), 0);
    }
}

#[test]
fn a_disk_server_that_leaves_begins_nothing_until_it_has_arrived() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        assert_eq!(fixture.hand_over(), Nanos(0), "an idle core can be left at once");
        let disk = ServerName { job: Job::Disk, index: 0 };
        let migration = fixture.begin_migration(disk, &Core::default());
        let stream = fixture.start(1, RATE);
        fixture.pass(SECOND);
        assert_eq!((fixture.at_the_device(), fixture.received(stream).len()), (0, 0));
        let mut server = migration.take().expect("an idle server leaves at once");
        server.resume(0).expect("the ports stay");
        migration.go_on(server, Some(&fixture.core.mailbox()));
        fixture.pass(SECOND.times(12));
        assert_eq!(finished(&fixture, stream), Some((Outcome::Complete, TITLE)));
    }
}
