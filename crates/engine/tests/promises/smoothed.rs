//! Plain bytes in a connection by a plan: at a rate that follows the content.

use std::sync::Arc;

use tactus_core::datagrams::Plan;
use tactus_core::polyline::Polyline;
use tactus_core::stagger::Tick;
use tactus_core::units::{BitRate, Bytes, MediaTime, SECOND};
use tactus_engine::message::{Outcome, Rate, StreamId};

use crate::fixture::{BLOCK, BOTH, Fixture, TITLE, content};
use crate::{finished, retired};

const TICKS: u64 = 27_000_000;

/// A block at once, three seconds of one sixteenth of the title, two seconds of the rest.
fn line() -> Polyline {
    let burst = u64::from(BLOCK);
    let points = [(0, 0), (burst, 0), (burst + TITLE.0 / 16, 3 * TICKS), (TITLE.0, 5 * TICKS)];
    let points: Vec<_> = points.iter().map(|&(at, time)| (Bytes(at), MediaTime(time))).collect();
    Polyline::through(&points).expect("it ascends")
}

fn start(fixture: &mut Fixture, burst: Bytes) -> StreamId {
    let line = line();
    let rate = BitRate((TITLE.0 - u64::from(BLOCK)) * 8);
    let mut start = fixture.start_of(3, Some(Rate { rate, burst, tick: Tick::Ms10 }), 0..TITLE.0);
    start.window = 24;
    start.plan = Some(Arc::new(Plan::of_times(line)));
    fixture.begin(start)
}

#[test]
fn bytes_leave_by_their_plan_and_each_second_is_compared_with_what_was_due_in_it() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let stream = start(&mut fixture, Bytes(u64::from(BLOCK)));
        fixture.pass(SECOND.times(4));
        let deviations = fixture.control.counters.links[0].deviation.snapshot();
        assert!(deviations.count() >= 2 && deviations.max() <= 10, "{deviations:?}");
        fixture.pass(SECOND.times(3));
        assert_eq!(fixture.received(stream), content(3, 0, TITLE.0));
        assert_eq!(finished(&fixture, stream), Some((Outcome::Complete, TITLE)));
        assert!(retired(&fixture, stream));
        assert_eq!(fixture.control.counters.links[0].underruns.value(), 0);
        let sends = fixture.sends(stream);
        assert_eq!(sends[0].1, u64::from(BLOCK), "the burst");
        // The first visit sends what is due a tick later.
        let begin = sends[1].0.before(Tick::Ms10.span());
        assert!(begin <= sends[0].0);
        let mut sent = sends[0].1;
        // A visit may send twice: the end of a block, and the beginning of the next one.
        for visit in sends[1..].chunk_by(|one, next| one.0 == next.0) {
            sent += visit.iter().map(|&(_, bytes)| bytes).sum::<u64>();
            assert_eq!(Bytes(sent), line().allowed(visit[0].0.since(begin)).min(TITLE));
        }
    }
}

#[test]
fn a_plan_never_exceeds_the_burst_and_the_rate_of_its_grant() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let stream = start(&mut fixture, Bytes(1000));
        fixture.pass(SECOND.times(7));
        assert_eq!(fixture.received(stream), content(3, 0, TITLE.0));
        let rate = BitRate((TITLE.0 - u64::from(BLOCK)) * 8);
        let sends = fixture.sends(stream);
        let begin = sends[1].0.before(Tick::Ms10.span());
        let mut sent = 0;
        for &(at, bytes) in &sends {
            sent += bytes;
            assert!(at >= begin && sent <= 1000 + rate.bytes_in(at.since(begin)).0);
        }
        assert_eq!(fixture.control.counters.links[0].underruns.value(), 0);
    }
}
