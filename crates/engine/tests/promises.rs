//! The servers together, against what they promise to streams that have nothing to do with a
//! trouble: the same whether blocks are in an arena or in the page cache.

mod fixture;

#[path = "promises/block_lists.rs"]
mod block_lists;
#[path = "promises/chunked.rs"]
mod chunked;
#[path = "promises/classes.rs"]
mod classes;

#[path = "promises/delivery_servers.rs"]
mod delivery_servers;
#[path = "promises/frames.rs"]
mod frames;
#[path = "promises/generated.rs"]
mod generated;
#[path = "promises/generated_frames.rs"]
mod generated_frames;
#[path = "promises/hand_over.rs"]
mod hand_over;
#[path = "promises/links.rs"]
mod links;
#[path = "promises/mismatches.rs"]
mod mismatches;
#[path = "promises/packet_servers.rs"]
mod packet_servers;
#[path = "promises/packets.rs"]
mod packets;

#[path = "promises/planned.rs"]
mod planned;
#[path = "promises/smoothed.rs"]
mod smoothed;
#[path = "promises/sound.rs"]
mod sound;

use std::sync::Arc;

use fixture::{BLOCK, BOTH, CYCLE, Fixture, Memory, PLACES, Room, TITLE, content};
use tactus_core::ports::DiskFault;
use tactus_core::stagger::Tick;
use tactus_core::sums::{Sums, UNIT};
use tactus_core::units::{BitRate, Bytes, MILLISECOND, Nanos, SECOND};
use tactus_engine::message::{Command, Extent, Outcome, Pin, Rate, Report, StreamId, WriteAnswer};

/// 2 Mbit/s: the title takes ten seconds.
const RATE: u64 = 2_097_152;
const BY_THE_CLOCK: Option<Rate> =
    Some(Rate { rate: BitRate(RATE), burst: Bytes(0), tick: Tick::Ms10 });

fn finished(fixture: &Fixture, stream: StreamId) -> Option<(Outcome, Bytes)> {
    fixture.reports.iter().find_map(|report| match *report {
        Report::Finished { stream: which, outcome, sent } if which == stream => {
            Some((outcome, sent))
        }
        _ => None,
    })
}

fn retired(fixture: &Fixture, stream: StreamId) -> bool {
    let is_it =
        |report: &Report| matches!(report, Report::Retired { stream: one, .. } if *one == stream);
    fixture.reports.iter().any(is_it)
}

#[test]
fn a_title_arrives_whole_in_order_and_by_its_clock() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let stream = fixture.start(3, RATE);
        fixture.pass(SECOND.times(11));
        assert_eq!(fixture.received(stream), content(3, 0, TITLE.0));
        assert_eq!(finished(&fixture, stream), Some((Outcome::Complete, TITLE)));
        assert!(retired(&fixture, stream));
        let sends = fixture.sends(stream);
        let (begin, _) = sends[0];
        let mut sent = 0;
        for (number, &(at, bytes)) in sends.iter().enumerate() {
            assert_eq!(at, begin + Nanos::from_millis(10).times(number as u64));
            sent += bytes;
            let due = RATE * (number as u64 + 1) / 800;
            assert_eq!(sent, due.min(TITLE.0));
        }
        assert_eq!(fixture.control.counters.links[0].underruns.value(), 0);
    }
}

#[test]
fn a_tick_that_is_no_whole_number_of_slots_sends_the_same_in_every_second() {
    for memory in BOTH {
        for tick in [Tick::Ms55, Tick::Ms111] {
            let mut fixture = Fixture::new(memory);
            let pace = Some(Rate { rate: BitRate(RATE), burst: Bytes(0), tick });
            let stream = fixture.start_with(3, pace);
            fixture.pass(SECOND.times(11));
            assert_eq!(fixture.received(stream), content(3, 0, TITLE.0));
            assert_eq!(fixture.control.counters.links[0].underruns.value(), 0);
            let sends = fixture.sends(stream);
            let visits: Vec<_> = sends
                .chunk_by(|(one, _), (other, _)| one == other)
                .map(|visit| (visit[0].0, visit.iter().map(|(_, bytes)| bytes).sum::<u64>()))
                .collect();
            let each = tick.per_second() as usize;
            // The last visit is left out: it sends only the rest of the title.
            for second in visits[..visits.len() - 1].windows(each + 1) {
                assert_eq!(second[each].0.since(second[0].0), SECOND);
                assert_eq!(second[..each].iter().map(|(_, bytes)| bytes).sum::<u64>(), RATE / 8);
            }
        }
    }
}

#[test]
fn a_paced_stream_begins_with_its_whole_burst() {
    // Two cycles and a tick of 262,144 bytes a second are a block, and two more are partly needed:
    // what the ledger grants for a burst of three is the fixture's window of six.
    let burst = Bytes(3 * u64::from(BLOCK));
    for memory in BOTH {
        for first in [0, 100_001] {
            let mut fixture = Fixture::new(memory);
            let pace = Some(Rate { rate: BitRate(RATE), burst, tick: Tick::Ms10 });
            let stream = fixture.start_range(1, pace, first..TITLE.0);
            fixture.pass(SECOND.times(10));
            let sends = fixture.sends(stream);
            let at_once = sends.iter().take_while(|(at, _)| *at == sends[0].0);
            let bytes: u64 = at_once.clone().map(|&(_, bytes)| bytes).sum();
            assert_eq!(bytes, burst.0);
            // The first visit sends as much as all others.
            let (visit, bytes) = sends[at_once.count()];
            assert!(visit <= sends[0].0 + Tick::Ms10.span());
            assert_eq!(bytes, RATE / 800);
            assert_eq!(fixture.control.counters.links[0].underruns.value(), 0);
            assert_eq!(fixture.received(stream), content(1, first, TITLE.0 - first));
        }
    }
}

#[test]
fn r05_a_burst_does_not_wait_for_a_visit() {
    let burst = Bytes(2 * u64::from(BLOCK));
    for memory in BOTH {
        for range in [0..TITLE.0, 0..burst.0] {
            let waits = (0..10).map(|after| {
                let mut fixture = Fixture::new(memory);
                let pace = |burst| Some(Rate { rate: BitRate(RATE), burst, tick: Tick::Ms250 });
                // The new stream is visited together with this one.
                fixture.start_with(2, pace(Bytes(0)));
                fixture.pass(SECOND + MILLISECOND.times(25 * after));
                let begun = fixture.now;
                let stream = fixture.start_range(1, pace(burst), range.clone());
                fixture.pass(SECOND);
                let sends = fixture.sends(stream);
                let at_once = sends.iter().take_while(|(at, _)| *at == sends[0].0);
                assert_eq!(at_once.map(|&(_, bytes)| bytes).sum::<u64>(), burst.0);
                let is_whole = range.end == burst.0;
                let end = (Outcome::Complete, burst);
                assert_eq!(finished(&fixture, stream), is_whole.then_some(end));
                sends[0].0.since(begun)
            });
            // All of them only wait for the disk.
            assert!(
                waits.clone().all(|wait| wait < MILLISECOND.times(8)),
                "{:?}",
                Vec::from_iter(waits)
            );
        }
    }
}

#[test]
fn a_stalled_client_never_delays_another_and_is_ended() {
    for memory in BOTH {
        let [undisturbed, disturbed] = [u64::MAX, 100_000].map(|limit| {
            let mut fixture = Fixture::new(memory);
            let other = fixture.start(1, RATE);
            let stalled = fixture.start(2, RATE);
            fixture.network().limits.insert(stalled.index as i32, limit);
            fixture.pass(SECOND.times(3));
            (fixture, other, stalled)
        });
        let sends = undisturbed.0.sends(undisturbed.1);
        let (fixture, other, stalled) = disturbed;
        assert!(sends.len() > 250 && fixture.sends(other) == sends);
        let (outcome, sent) = finished(&fixture, stalled).expect("it is ended after half a second");
        assert_eq!((outcome, sent), (Outcome::TooSlow, Bytes(100_000)));
        assert!(retired(&fixture, stalled) && finished(&fixture, other).is_none());
    }
}

#[test]
fn a_failed_disk_read_ends_only_its_own_streams() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let (healthy, first, second) =
            (fixture.start(1, RATE), fixture.start(2, RATE), fixture.start(2, RATE));
        fixture.pass(SECOND);
        fixture.disk().failing.insert(2, 5);
        fixture.pass(SECOND.times(10));
        for stream in [first, second] {
            let (outcome, sent) = finished(&fixture, stream).expect("its title cannot be read");
            let Outcome::Unreadable { block, errno: 5 } = outcome else { panic!("{outcome:?}") };
            assert!(sent > Bytes(0) && sent.0 <= block * u64::from(BLOCK) && sent < TITLE);
            let received = fixture.received(stream);
            assert_eq!(received, content(2, 0, received.len() as u64));
            assert!(retired(&fixture, stream));
        }
        assert_eq!(fixture.received(healthy), content(1, 0, TITLE.0));
        assert_eq!(finished(&fixture, healthy), Some((Outcome::Complete, TITLE)));
    }
}

#[test]
fn a_stop_while_reads_are_under_way_retires_when_they_have_come_back() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        fixture.disk().holds = true;
        let stream = fixture.start(1, RATE);
        fixture.pass(CYCLE);
        fixture.command(Command::Stop(stream));
        fixture.pass(SECOND);
        // The socket is free at once; the memory that the kernel may write is not.
        assert_eq!(finished(&fixture, stream), Some((Outcome::Stopped, Bytes(0))));
        assert!(!retired(&fixture, stream));
        fixture.disk().holds = false;
        fixture.pass(CYCLE);
        assert!(retired(&fixture, stream));
        assert_eq!(fixture.control.counters.blocks[0].leased.value(), 0);
    }
}

#[test]
fn an_ended_stream_frees_its_places_without_the_disk() {
    for memory in BOTH {
        for pace in [BY_THE_CLOCK, None] {
            // Two streams fill all of it.
            let mut fixture = Fixture::with(memory, Room { places: 12, window: 6 });
            fixture.disk().holds = true;
            let first = fixture.start(1, RATE);
            let second = fixture.start_with(2, pace);
            fixture.pass(CYCLE);
            fixture.command(Command::Stop(second));
            fixture.pass(CYCLE);
            assert!(retired(&fixture, second) && finished(&fixture, first).is_none());
            let third = fixture.start(3, RATE);
            fixture.disk().holds = false;
            fixture.pass(SECOND.times(11));
            for stream in [first, third] {
                assert_eq!(finished(&fixture, stream), Some((Outcome::Complete, TITLE)));
            }
            assert!(fixture.disk().reads.iter().all(|&(title, _)| title != 2));
        }
    }
}

#[test]
fn a_block_that_was_given_up_is_read_for_whoever_comes_next() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        fixture.disk().holds = true;
        fixture.start(1, RATE);
        let gone = fixture.start(2, RATE);
        fixture.pass(CYCLE);
        // The read is dropped, and wanted again before that is known.
        fixture.push(Command::Stop(gone));
        let next = fixture.start(2, RATE);
        fixture.disk().holds = false;
        fixture.pass(SECOND.times(11));
        assert!(retired(&fixture, gone));
        assert_eq!(fixture.received(next), content(2, 0, TITLE.0));
        assert_eq!(finished(&fixture, next), Some((Outcome::Complete, TITLE)));
        assert_eq!(fixture.control.counters.blocks[0].leased.value(), 0);
    }
}

#[test]
fn a_stop_of_an_earlier_life_ends_nobody() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let stream = fixture.start(1, RATE);
        fixture.pass(CYCLE);
        fixture.command(Command::Stop(StreamId { generation: 0, ..stream }));
        fixture.pass(SECOND.times(11));
        assert_eq!(finished(&fixture, stream), Some((Outcome::Complete, TITLE)));
    }
}

#[test]
fn a_followers_blocks_are_hits_in_an_arena_and_its_own_in_the_page_cache() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let viewer = fixture.start(1, RATE);
        fixture.pass(Nanos::from_millis(500));
        let follower = fixture.start(1, RATE);
        fixture.pass(SECOND.times(12));
        for stream in [viewer, follower] {
            assert_eq!(fixture.received(stream), content(1, 0, TITLE.0));
        }
        let blocks = TITLE.0 / u64::from(BLOCK);
        // The page cache has what the first one has read. Each sends out of its own places.
        let (reads, hits, sole) = match memory {
            Memory::Arena => (blocks, blocks, 0),
            Memory::PageCache => (2 * blocks, 0, 2 * TITLE.0),
        };
        assert_eq!(fixture.disk().reads.len() as u64, reads);
        let counters = &fixture.control.counters.blocks[0];
        assert_eq!((counters.misses.value(), counters.hits.value()), (reads, hits));
        assert_eq!(fixture.network().sole, sole);
    }
}

#[test]
fn blocks_that_several_streams_have_are_not_sent_out_of_their_places() {
    let mut fixture = Fixture::new(Memory::PageCache);
    // The second one wants each block while it is being read.
    let streams = [fixture.start(1, RATE), fixture.start(1, RATE)];
    fixture.pass(SECOND.times(11));
    for stream in streams {
        assert_eq!(fixture.received(stream), content(1, 0, TITLE.0));
        assert_eq!(finished(&fixture, stream), Some((Outcome::Complete, TITLE)));
    }
    let blocks = TITLE.0 / u64::from(BLOCK);
    assert_eq!(fixture.disk().reads.len() as u64, blocks, "each block is read once");
    assert_eq!(fixture.network().sole, 0);
    // A pinned title.
    let whole = fixture.start_of(2, None, 0..TITLE.0);
    let (stream, window) = (whole.stream, blocks as u32);
    fixture.command(Command::Pin(Pin { stream, origin: whole.origin, window }));
    fixture.pass(SECOND);
    let viewer = fixture.start(2, RATE);
    fixture.pass(SECOND.times(11));
    assert_eq!(fixture.received(viewer), content(2, 0, TITLE.0));
    assert_eq!(fixture.network().sole, 0);
}

#[test]
fn a_download_takes_only_the_time_that_streams_leave() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let stream = fixture.start(1, RATE);
        let download = fixture.start_with(2, None);
        fixture.pass(SECOND.times(11));
        assert_eq!(fixture.received(download), content(2, 0, TITLE.0));
        assert_eq!(finished(&fixture, download), Some((Outcome::Complete, TITLE)));
        assert_eq!(finished(&fixture, stream), Some((Outcome::Complete, TITLE)));
        assert_eq!(fixture.control.counters.links[0].underruns.value(), 0);
    }
}

#[test]
fn a_broken_connection_gives_everything_back() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let stream = fixture.start(1, RATE);
        fixture.pass(SECOND);
        fixture.network().broken.push(stream.index as i32);
        fixture.pass(CYCLE.times(3));
        assert!(matches!(finished(&fixture, stream), Some((Outcome::PeerGone(104), _))));
        assert!(retired(&fixture, stream));
        let counters = &fixture.control.counters.blocks[0];
        assert_eq!(counters.leased.value(), 0);
        assert!(counters.resident.value() <= u64::from(PLACES));
    }
}

#[test]
fn after_the_machine_stood_still_the_rate_is_kept_and_nothing_comes_at_once() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let stream = fixture.start(1, RATE);
        fixture.pass(SECOND.times(2));
        let before = fixture.sends(stream).len();
        fixture.stand_still(SECOND.times(5));
        fixture.pass(SECOND.times(2));
        let after = fixture.sends(stream).split_off(before);
        // One visit was due when the machine stopped; the phase may cost another tick.
        assert!(after.iter().all(|&(_, bytes)| bytes <= RATE / 800 * 2), "{after:?}");
        let bytes: u64 = after.iter().map(|&(_, bytes)| bytes).sum();
        assert!(bytes.abs_diff(RATE / 8 * 2) <= RATE / 800 * 2);
        assert_eq!(fixture.control.counters.links[0].stalls.value(), 1);
    }
}

/// Stalls from just above the limit that moves clocks up to 21 s.
#[test]
fn s04_a_stall_is_counted_as_lateness_of_each_stream_and_of_its_core() {
    for memory in BOTH {
        for stall in [300, 1_000, 5_000, 21_000].map(Nanos::from_millis) {
            let mut fixture = Fixture::new(memory);
            let streams = [fixture.start(1, RATE), fixture.start(2, RATE)];
            fixture.pass(SECOND);
            let counters = fixture.control.counters.clone();
            let core = &counters.cores[0];
            assert_eq!((core.stalls.value(), counters.links[0].stalled_streams.value()), (0, 0));
            fixture.stand_still(stall);
            // The core's next turn was due within a tick.
            let at_least = stall.saturating_sub(Nanos::from_millis(12));
            let is_told = |value: u64| value >= at_least.0 && value <= stall.0;
            assert_eq!(core.stalls.value(), 1);
            assert!(is_told(core.stalled.value()) && is_told(core.longest.value()));
            assert_eq!(counters.links[0].stalled_streams.value(), 2);
            assert!(is_told(counters.links[0].lateness.snapshot().max()));
            for stream in streams {
                let one = &counters.streams[stream.index as usize];
                assert_eq!(one.stalls.value(), 1);
                assert!(is_told(one.stalled.value()), "{:?}", one.stalled);
                assert!(is_told(one.lateness_max.value()));
            }
            fixture.pass(SECOND);
            assert_eq!(core.stalls.value(), 1, "the turns after it are on time");
        }
    }
}

#[test]
fn s04_a_core_without_work_does_not_stall() {
    let mut fixture = Fixture::new(BOTH[0]);
    fixture.stand_still(SECOND.times(30));
    fixture.pass(SECOND);
    assert_eq!(fixture.control.counters.cores[0].stalls.value(), 0);
}

#[test]
fn what_a_slow_disk_has_not_brought_is_not_owed_at_once() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let stream = fixture.start(1, RATE);
        fixture.pass(SECOND);
        fixture.disk().holds = true;
        fixture.pass(SECOND.times(2));
        let before = fixture.sends(stream).len();
        assert!(fixture.control.counters.links[0].underruns.value() > 0);
        fixture.disk().holds = false;
        fixture.pass(CYCLE.times(3));
        let underruns = fixture.control.counters.links[0].underruns.value();
        fixture.pass(SECOND);
        assert_eq!(fixture.control.counters.links[0].underruns.value(), underruns, "on time again");
        let after = fixture.sends(stream).split_off(before);
        assert!(after.iter().all(|&(_, bytes)| bytes <= RATE / 800 + 1), "{after:?}");
    }
}

#[test]
fn what_a_place_counts_ends_with_its_stream() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let stream = fixture.start(1, RATE);
        fixture.pass(SECOND.times(2));
        fixture.disk().holds = true;
        fixture.pass(SECOND);
        let counters = std::sync::Arc::clone(&fixture.control.counters.streams);
        let place = &counters[stream.index as usize];
        let counted = || [&place.bytes, &place.underruns, &place.second_bytes, &place.rate];
        assert!(counted().iter().all(|counter| counter.value() > 0));
        fixture.disk().holds = false;
        fixture.command(Command::Stop(stream));
        fixture.pass(CYCLE);
        assert!(retired(&fixture, stream));
        assert!(counted().iter().all(|counter| counter.value() == 0));
    }
}

#[test]
fn a_range_begins_and_ends_where_it_was_asked_to() {
    for memory in BOTH {
        for pace in [BY_THE_CLOCK, None] {
            let mut fixture = Fixture::new(memory);
            // From within one block to within another.
            let range = 100_001..1_200_003;
            let stream = fixture.start_range(4, pace, range.clone());
            fixture.pass(SECOND.times(6));
            let len = range.end - range.start;
            assert_eq!(fixture.received(stream), content(4, range.start, len));
            assert_eq!(finished(&fixture, stream), Some((Outcome::Complete, Bytes(len))));
        }
    }
}

#[test]
fn a_part_is_offered_only_while_its_blocks_are_leased() {
    for pace in [BY_THE_CLOCK, None] {
        // With one place more than what is being sent, what is given back is filled anew at once;
        // the fixture stops when a part is offered that no place refers to any more, or not yet.
        let room = Room { places: 2, window: 2 };
        let mut fixture = Fixture::with(Memory::PageCache, room);
        let stream = fixture.start_with(1, pace);
        fixture.pass(SECOND.times(11));
        assert_eq!(fixture.received(stream), content(1, 0, TITLE.0));
        assert_eq!(finished(&fixture, stream), Some((Outcome::Complete, TITLE)));
        assert_eq!(fixture.network().sole, TITLE.0);
        assert_eq!(fixture.disk().reads.len() as u64, TITLE.0 / u64::from(BLOCK));
    }
}

#[test]
fn a_file_that_has_lost_its_bytes_ends_its_own_streams_and_every_lease_comes_back() {
    let mut fixture = Fixture::new(Memory::PageCache);
    let (healthy, paced) = (fixture.start(1, RATE), fixture.start(2, RATE));
    fixture.pass(SECOND);
    fixture.network().lost.insert(2, 61);
    let download = fixture.start_with(2, None);
    fixture.pass(CYCLE.times(3));
    for stream in [paced, download] {
        let (outcome, sent) = finished(&fixture, stream).expect("its file has been cut");
        assert_eq!(outcome, Outcome::DiskFailed(61));
        assert_eq!(fixture.received(stream), content(2, 0, sent.0));
        assert!(retired(&fixture, stream));
    }
    assert_eq!(fixture.control.counters.deliveries[0].disk_failed.value(), 2);
    fixture.pass(SECOND.times(10));
    assert_eq!(finished(&fixture, healthy), Some((Outcome::Complete, TITLE)));
    assert!(retired(&fixture, healthy));
    assert_eq!(fixture.control.counters.blocks[0].leased.value(), 0);
}

/// What the title was when it was stored.
fn sums(title: i32) -> Arc<Sums> {
    let bytes = content(title, 0, TITLE.0);
    let units = bytes.chunks(UNIT.0 as usize).map(crc32c::crc32c).collect();
    Arc::new(Sums::new(TITLE, units).expect("one for each unit"))
}

fn start_with_sums(
    fixture: &mut Fixture,
    title: i32,
    pace: Option<Rate>,
    sums: &Arc<Sums>,
) -> StreamId {
    let mut start = fixture.start_of(title, pace, 0..TITLE.0);
    start.origin.sums = Some(Arc::clone(sums));
    let stream = start.stream;
    fixture.begin(start);
    stream
}

#[test]
fn what_is_not_what_was_stored_is_found_before_it_is_sent() {
    for memory in BOTH {
        for pace in [BY_THE_CLOCK, None] {
            let mut fixture = Fixture::new(memory);
            let (good, bad) = (sums(1), sums(2));
            fixture.disk().damaged.push(2);
            let whole = start_with_sums(&mut fixture, 1, pace, &good);
            let damaged = start_with_sums(&mut fixture, 2, pace, &bad);
            fixture.pass(SECOND.times(12));
            assert_eq!(finished(&fixture, whole), Some((Outcome::Complete, TITLE)));
            let outcome = Outcome::Damaged { block: 0 };
            assert_eq!(finished(&fixture, damaged), Some((outcome, Bytes(0))));
            assert!(fixture.control.counters.blocks[0].damaged.value() > 0);
            // What was lent to a real-time thread is freed by the control side.
            assert_eq!((Arc::strong_count(&good), Arc::strong_count(&bad)), (2, 2));
            fixture.reports.clear();
            assert_eq!((Arc::strong_count(&good), Arc::strong_count(&bad)), (1, 1));
        }
    }
}

#[test]
fn a_block_in_memory_that_nobody_has_compared_is_compared_before_it_is_lent() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        fixture.disk().damaged.push(2);
        let careless = fixture.start_with(2, BY_THE_CLOCK);
        fixture.pass(SECOND);
        let careful = start_with_sums(&mut fixture, 2, BY_THE_CLOCK, &sums(2));
        fixture.pass(SECOND.times(11));
        assert_eq!(finished(&fixture, careless), Some((Outcome::Complete, TITLE)));
        let outcome = Outcome::Damaged { block: 0 };
        assert_eq!(finished(&fixture, careful), Some((outcome, Bytes(0))));
        assert_eq!(fixture.control.counters.blocks[0].leased.value(), 0);
    }
}

/// A stream from the beginning of a title of which only `len` is there yet.
fn growing(fixture: &mut Fixture, title: i32, pace: Option<Rate>, len: Bytes) -> StreamId {
    let mut start = fixture.start_of(title, pace, 0..len.0);
    let stream = start.stream;
    start.extent = Extent::Growing(Bytes(0)..len);
    start.origin.len = len;
    fixture.begin(start);
    stream
}

#[test]
fn a_stream_of_a_growing_title_waits_at_its_end_and_is_never_late() {
    // A title of 16 blocks and a half that grows a quarter as fast as it is watched.
    let whole = Bytes(u64::from(BLOCK) * 33 / 2);
    for memory in BOTH {
        for pace in [BY_THE_CLOCK, None] {
            let mut fixture = Fixture::new(memory);
            let mut len = Bytes(1);
            let stream = growing(&mut fixture, 1, pace, len);
            while len < whole {
                fixture.pass(Nanos::from_millis(250));
                len = Bytes((len.0 + RATE / 8 / 16).min(whole.0));
                let is_whole = len == whole;
                fixture.command(Command::Extend { stream, end: len, is_whole });
                let there = if is_whole { len.0 } else { len.0 - len.0 % u64::from(BLOCK) };
                assert!(fixture.received(stream).len() as u64 <= there);
            }
            fixture.pass(SECOND.times(2));
            assert_eq!(fixture.received(stream), content(1, 0, whole.0));
            assert_eq!(finished(&fixture, stream), Some((Outcome::Complete, whole)));
            assert!(retired(&fixture, stream));
            let counters = &fixture.control.counters;
            assert_eq!(counters.links[0].underruns.value(), 0);
            assert_eq!(counters.deliveries[0].too_slow.value(), 0);
            assert_eq!(counters.disks[0].cycles_missed.value(), 0);
        }
    }
}

#[test]
fn a_stalled_peer_of_a_growing_title_is_ended_like_any_other() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let stream = growing(&mut fixture, 1, BY_THE_CLOCK, Bytes(TITLE.0 - 1));
        fixture.network().limits.insert(stream.index as i32, 100_000);
        fixture.pass(SECOND.times(3));
        assert_eq!(finished(&fixture, stream), Some((Outcome::TooSlow, Bytes(100_000))));
        assert!(retired(&fixture, stream));
    }
}

#[test]
fn a_stream_behind_the_end_of_a_growing_title_does_not_notice_that_it_grows() {
    for memory in BOTH {
        let [still, grown] = [false, true].map(|grows| {
            let mut fixture = Fixture::new(memory);
            let stream = match grows {
                false => fixture.start(1, RATE),
                true => growing(&mut fixture, 1, BY_THE_CLOCK, Bytes(TITLE.0 / 2)),
            };
            fixture.pass(SECOND);
            if grows {
                let end = Bytes(TITLE.0 / 2 + 1);
                fixture.command(Command::Extend { stream, end, is_whole: false });
                fixture.pass(SECOND);
                fixture.command(Command::Extend { stream, end: TITLE, is_whole: true });
            } else {
                fixture.pass(SECOND);
            }
            fixture.pass(SECOND.times(9));
            assert_eq!(finished(&fixture, stream), Some((Outcome::Complete, TITLE)));
            fixture.sends(stream)
        });
        assert_eq!(still, grown);
    }
}

#[test]
fn a_block_of_a_growing_title_is_read_again_when_more_of_it_is_wanted() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        // A range up to what is there now, in the middle of a block.
        let there = u64::from(BLOCK) / 2;
        let mut start = fixture.start_of(1, BY_THE_CLOCK, 0..there);
        start.origin.len = Bytes(there);
        let first = start.stream;
        fixture.begin(start);
        fixture.pass(Nanos::from_millis(50));
        let second = fixture.start(1, RATE);
        fixture.pass(SECOND.times(11));
        assert_eq!(fixture.received(first), content(1, 0, there));
        assert_eq!(fixture.received(second), content(1, 0, TITLE.0));
        let first_block = fixture.disk().reads.iter().filter(|&&(_, offset)| offset == 0).count();
        assert_eq!(first_block, 2);
        assert_eq!(fixture.control.counters.blocks[0].leased.value(), 0);
    }
}

fn answers(fixture: &Fixture) -> Vec<WriteAnswer> {
    fixture.answers.iter().map(|&(_, answer)| answer).collect()
}

#[test]
fn what_is_written_lands_whole_and_each_request_is_answered_once() {
    let mut fixture = Fixture::new(Memory::Arena);
    let block = u64::from(BLOCK);
    let stream = fixture.start(1, RATE);
    for place in 0..8 {
        fixture.write(
            place,
            70,
            u64::from(place) * block,
            &content(70, u64::from(place) * block, block),
        );
    }
    fixture.pass(SECOND);
    let mut written: Vec<_> = fixture.disk().written[&70].clone();
    written.sort();
    let bytes: Vec<u8> = written.into_iter().flat_map(|(_, bytes)| bytes).collect();
    assert!(bytes == content(70, 0, 8 * block));
    let expected: Vec<_> =
        (0..8).map(|token| WriteAnswer::Written { token, result: Ok(()) }).collect();
    assert_eq!(answers(&fixture), expected);
    let counters = &fixture.control.counters.disks[0];
    assert_eq!((counters.writes.value(), counters.written_bytes.value()), (8, 8 * block));
    fixture.pass(SECOND.times(10));
    assert_eq!(finished(&fixture, stream), Some((Outcome::Complete, TITLE)));
    assert_eq!(fixture.control.counters.links[0].underruns.value(), 0);
}

#[test]
fn a_flush_is_answered_after_the_device_and_a_failed_one_is_never_tried_again() {
    let mut fixture = Fixture::new(Memory::Arena);
    fixture.pass(Nanos::from_millis(20));
    fixture.disk().flushes_fail = 1;
    let begun = fixture.now;
    fixture.sync(7, 70);
    assert!(answers(&fixture).is_empty(), "nothing is answered before the device has");
    fixture.pass(SECOND);
    assert_eq!(answers(&fixture), [WriteAnswer::Synced { token: 7, result: Err(DiskFault(5)) }]);
    assert!(fixture.answers[0].0 >= begun + Nanos::from_millis(3));
    assert_eq!(fixture.disk().flushed.len(), 1);
    // Later requests need another one.
    for token in 8..11 {
        fixture.sync(token, 70);
    }
    fixture.pass(SECOND);
    let later: Vec<_> =
        (8..11).map(|token| WriteAnswer::Synced { token, result: Ok(()) }).collect();
    assert_eq!(answers(&fixture)[1..], later);
    let counters = &fixture.control.counters.disks[0];
    // The last two waited together.
    assert_eq!((counters.syncs.value(), counters.sync_faults.value()), (3, 1));
}

#[test]
fn requests_share_a_flush_of_their_file_that_waits_and_none_that_has_begun() {
    let mut fixture = Fixture::new(Memory::Arena);
    fixture.pass(Nanos::from_millis(20));
    for (token, file) in [(1, 70), (2, 70), (3, 71), (4, 70)] {
        fixture.sync(token, file);
    }
    assert_eq!(fixture.disk().flushed.len(), 1, "the first has begun before the others came");
    fixture.pass(Nanos::from_millis(4));
    assert_eq!(answers(&fixture), [WriteAnswer::Synced { token: 1, result: Ok(()) }]);
    // The shared one fails, with one answer for each request.
    fixture.disk().flushes_fail = 1;
    fixture.pass(SECOND);
    let failed = Err(DiskFault(5));
    let later = [(2, failed), (4, failed), (3, Ok(()))];
    let later = later.map(|(token, result)| WriteAnswer::Synced { token, result });
    assert_eq!(answers(&fixture)[1..], later);
    let files: Vec<_> = fixture.disk().flushed.iter().map(|&(_, file)| file).collect();
    assert_eq!(files, [70, 70, 71]);
}
