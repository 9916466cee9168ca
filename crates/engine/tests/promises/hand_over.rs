//! Servers that leave their core: they begin nothing, and lose nothing.

use tactus_core::units::{Nanos, SECOND};
use tactus_engine::message::Outcome;

use crate::stage::{BOTH, CYCLE, Stage, TITLE, content};
use crate::{RATE, finished, retired};

#[test]
fn servers_that_move_to_another_core_lose_nothing_and_are_not_late() {
    for memory in BOTH {
        let mut stage = Stage::new(memory);
        let streams: Vec<_> = (1..4).map(|title| (title, stage.start(title, RATE))).collect();
        stage.write(7, 9, 0, &[5; 1000]);
        // The windows are full at first.
        stage.pass(SECOND.times(2));
        let mut waited = Nanos(0);
        for _ in 0..40 {
            // Around the beginning of cycles, when the disk reads.
            stage.pass(CYCLE + Nanos::from_micros(50));
            waited = waited.max(stage.hand_over());
            assert_eq!(stage.at_the_device(), 0);
        }
        stage.pass(SECOND.times(12));
        for (title, stream) in streams {
            assert_eq!(stage.received(stream), content(title, 0, TITLE.0));
            assert_eq!(finished(&stage, stream), Some((Outcome::Complete, TITLE)));
            assert!(retired(&stage, stream));
        }
        assert_eq!(stage.answers.len(), 1, "the write is answered");
        assert!(Nanos(0) < waited && waited < CYCLE, "a device ends what it has begun: {waited:?}");
        assert_eq!(stage.control.counters.links[0].underruns.value(), 0);
    }
}

#[test]
fn a_quiesced_disk_server_begins_nothing_until_it_goes_on() {
    for memory in BOTH {
        let mut stage = Stage::new(memory);
        assert_eq!(stage.hand_over(), Nanos(0), "an idle core can be left at once");
        assert!(stage.core.quiesce());
        let stream = stage.start(1, RATE);
        stage.pass(SECOND);
        assert_eq!((stage.at_the_device(), stage.received(stream).len()), (0, 0));
        stage.hand_over();
        stage.pass(SECOND.times(12));
        assert_eq!(finished(&stage, stream), Some((Outcome::Complete, TITLE)));
    }
}
