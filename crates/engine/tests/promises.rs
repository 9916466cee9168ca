//! The servers together, against what they promise to streams that have nothing to do with a
//! trouble: the same whether blocks are in an arena or in the page cache.

mod stage;

#[path = "promises/block_lists.rs"]
mod block_lists;
#[path = "promises/chunked.rs"]
mod chunked;
#[path = "promises/classes.rs"]
mod classes;
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
#[path = "promises/packets.rs"]
mod packets;

#[path = "promises/planned.rs"]
mod planned;

use std::sync::Arc;

use stage::{BLOCK, BOTH, CYCLE, Memory, PLACES, Room, Stage, TITLE, content};
use tactus_core::ports::DiskFault;
use tactus_core::stagger::Tick;
use tactus_core::sums::{Sums, UNIT};
use tactus_core::units::{BitRate, Bytes, Nanos, SECOND};
use tactus_engine::message::{Command, Extent, IntakeAnswer, Outcome, Rate, Report, StreamId};

/// 2 Mbit/s: the title takes ten seconds.
const RATE: u64 = 2_097_152;
const BY_THE_CLOCK: Option<Rate> =
    Some(Rate { rate: BitRate(RATE), burst: Bytes(0), tick: Tick::Ms10 });

fn finished(stage: &Stage, stream: StreamId) -> Option<(Outcome, Bytes)> {
    stage.reports.iter().find_map(|report| match *report {
        Report::Finished { stream: which, outcome, sent } if which == stream => {
            Some((outcome, sent))
        }
        _ => None,
    })
}

fn retired(stage: &Stage, stream: StreamId) -> bool {
    let is_it =
        |report: &Report| matches!(report, Report::Retired { stream: one, .. } if *one == stream);
    stage.reports.iter().any(is_it)
}

#[test]
fn a_title_arrives_whole_in_order_and_by_its_clock() {
    for memory in BOTH {
        let mut stage = Stage::new(memory);
        let stream = stage.start(3, RATE);
        stage.pass(SECOND.times(11));
        assert_eq!(stage.received(stream), content(3, 0, TITLE.0));
        assert_eq!(finished(&stage, stream), Some((Outcome::Complete, TITLE)));
        assert!(retired(&stage, stream));
        let sends = stage.sends(stream);
        let (begin, _) = sends[0];
        let mut sent = 0;
        for (number, &(at, bytes)) in sends.iter().enumerate() {
            assert_eq!(at, begin + Nanos::from_millis(10).times(number as u64));
            sent += bytes;
            let due = RATE * (number as u64 + 1) / 800;
            assert_eq!(sent, due.min(TITLE.0));
        }
        assert_eq!(stage.control.counters.links[0].underruns.value(), 0);
    }
}

#[test]
fn a_paced_stream_begins_with_its_whole_burst() {
    // Two cycles and a tick of 262,144 bytes a second are a block, and two more are partly needed:
    // what the ledger grants for a burst of three is the stage's window of six.
    let burst = Bytes(3 * u64::from(BLOCK));
    for memory in BOTH {
        for first in [0, 100_001] {
            let mut stage = Stage::new(memory);
            let pace = Some(Rate { rate: BitRate(RATE), burst, tick: Tick::Ms10 });
            let stream = stage.start_range(1, pace, first..TITLE.0);
            stage.pass(SECOND.times(10));
            let sends = stage.sends(stream);
            let at_once = sends.iter().take_while(|(at, _)| *at == sends[0].0);
            let bytes: u64 = at_once.map(|&(_, bytes)| bytes).sum();
            assert_eq!(bytes, burst.0 + RATE / 800);
            assert_eq!(stage.control.counters.links[0].underruns.value(), 0);
            assert_eq!(stage.received(stream), content(1, first, TITLE.0 - first));
        }
    }
}

#[test]
fn a_stalled_client_never_delays_another_and_is_ended() {
    for memory in BOTH {
        let [undisturbed, disturbed] = [u64::MAX, 100_000].map(|limit| {
            let mut stage = Stage::new(memory);
            let other = stage.start(1, RATE);
            let stalled = stage.start(2, RATE);
            stage.network().limits.insert(stalled.index as i32, limit);
            stage.pass(SECOND.times(3));
            (stage, other, stalled)
        });
        let sends = undisturbed.0.sends(undisturbed.1);
        let (stage, other, stalled) = disturbed;
        assert!(sends.len() > 250 && stage.sends(other) == sends);
        let (outcome, sent) = finished(&stage, stalled).expect("it is ended after half a second");
        assert_eq!((outcome, sent), (Outcome::TooSlow, Bytes(100_000)));
        assert!(retired(&stage, stalled) && finished(&stage, other).is_none());
    }
}

#[test]
fn a_failed_disk_read_ends_only_its_own_streams() {
    for memory in BOTH {
        let mut stage = Stage::new(memory);
        let (healthy, first, second) =
            (stage.start(1, RATE), stage.start(2, RATE), stage.start(2, RATE));
        stage.pass(SECOND);
        stage.disk().failing.insert(2, 5);
        stage.pass(SECOND.times(10));
        for stream in [first, second] {
            let (outcome, sent) = finished(&stage, stream).expect("its title cannot be read");
            let Outcome::Unreadable { block, errno: 5 } = outcome else { panic!("{outcome:?}") };
            assert!(sent > Bytes(0) && sent.0 <= block * u64::from(BLOCK) && sent < TITLE);
            let received = stage.received(stream);
            assert_eq!(received, content(2, 0, received.len() as u64));
            assert!(retired(&stage, stream));
        }
        assert_eq!(stage.received(healthy), content(1, 0, TITLE.0));
        assert_eq!(finished(&stage, healthy), Some((Outcome::Complete, TITLE)));
    }
}

#[test]
fn a_stop_while_reads_are_under_way_retires_when_they_have_come_back() {
    for memory in BOTH {
        let mut stage = Stage::new(memory);
        stage.disk().holds = true;
        let stream = stage.start(1, RATE);
        stage.pass(CYCLE);
        stage.command(Command::Stop(stream));
        stage.pass(SECOND);
        // The socket is free at once; the memory that the kernel may write is not.
        assert_eq!(finished(&stage, stream), Some((Outcome::Stopped, Bytes(0))));
        assert!(!retired(&stage, stream));
        stage.disk().holds = false;
        stage.pass(CYCLE);
        assert!(retired(&stage, stream));
        assert_eq!(stage.control.counters.blocks[0].leased.value(), 0);
    }
}

#[test]
fn an_ended_stream_frees_its_places_without_the_disk() {
    for memory in BOTH {
        for pace in [BY_THE_CLOCK, None] {
            // Two streams fill all of it.
            let mut stage = Stage::with(memory, Room { places: 12, window: 6 });
            stage.disk().holds = true;
            let first = stage.start(1, RATE);
            let second = stage.start_with(2, pace);
            stage.pass(CYCLE);
            stage.command(Command::Stop(second));
            stage.pass(CYCLE);
            assert!(retired(&stage, second) && finished(&stage, first).is_none());
            let third = stage.start(3, RATE);
            stage.disk().holds = false;
            stage.pass(SECOND.times(11));
            for stream in [first, third] {
                assert_eq!(finished(&stage, stream), Some((Outcome::Complete, TITLE)));
            }
            assert!(stage.disk().reads.iter().all(|&(title, _)| title != 2));
        }
    }
}

#[test]
fn a_block_that_was_given_up_is_read_for_whoever_comes_next() {
    for memory in BOTH {
        let mut stage = Stage::new(memory);
        stage.disk().holds = true;
        stage.start(1, RATE);
        let gone = stage.start(2, RATE);
        stage.pass(CYCLE);
        // The read is dropped, and wanted again before that is known.
        stage.control.commands.push(Command::Stop(gone)).expect("room for a command");
        let next = stage.start(2, RATE);
        stage.disk().holds = false;
        stage.pass(SECOND.times(11));
        assert!(retired(&stage, gone));
        assert_eq!(stage.received(next), content(2, 0, TITLE.0));
        assert_eq!(finished(&stage, next), Some((Outcome::Complete, TITLE)));
        assert_eq!(stage.control.counters.blocks[0].leased.value(), 0);
    }
}

#[test]
fn a_stop_of_an_earlier_life_ends_nobody() {
    for memory in BOTH {
        let mut stage = Stage::new(memory);
        let stream = stage.start(1, RATE);
        stage.pass(CYCLE);
        stage.command(Command::Stop(StreamId { generation: 0, ..stream }));
        stage.pass(SECOND.times(11));
        assert_eq!(finished(&stage, stream), Some((Outcome::Complete, TITLE)));
    }
}

#[test]
fn a_followers_blocks_are_hits() {
    for memory in BOTH {
        let mut stage = Stage::new(memory);
        let viewer = stage.start(1, RATE);
        stage.pass(Nanos::from_millis(500));
        let follower = stage.start(1, RATE);
        stage.pass(SECOND.times(12));
        for stream in [viewer, follower] {
            assert_eq!(stage.received(stream), content(1, 0, TITLE.0));
        }
        let blocks = TITLE.0 / u64::from(BLOCK);
        assert_eq!(stage.disk().reads.len() as u64, blocks, "each block is read once");
        let counters = &stage.control.counters.blocks[0];
        assert_eq!((counters.misses.value(), counters.hits.value()), (blocks, blocks));
    }
}

#[test]
fn a_download_takes_only_the_time_that_streams_leave() {
    for memory in BOTH {
        let mut stage = Stage::new(memory);
        let stream = stage.start(1, RATE);
        let download = stage.start_with(2, None);
        stage.pass(SECOND.times(11));
        assert_eq!(stage.received(download), content(2, 0, TITLE.0));
        assert_eq!(finished(&stage, download), Some((Outcome::Complete, TITLE)));
        assert_eq!(finished(&stage, stream), Some((Outcome::Complete, TITLE)));
        assert_eq!(stage.control.counters.links[0].underruns.value(), 0);
    }
}

#[test]
fn a_broken_connection_gives_everything_back() {
    for memory in BOTH {
        let mut stage = Stage::new(memory);
        let stream = stage.start(1, RATE);
        stage.pass(SECOND);
        stage.network().broken.push(stream.index as i32);
        stage.pass(CYCLE.times(3));
        assert!(matches!(finished(&stage, stream), Some((Outcome::PeerGone(104), _))));
        assert!(retired(&stage, stream));
        let counters = &stage.control.counters.blocks[0];
        assert_eq!(counters.leased.value(), 0);
        assert!(counters.resident.value() <= u64::from(PLACES));
    }
}

#[test]
fn after_the_machine_stood_still_the_rate_is_kept_and_nothing_comes_at_once() {
    for memory in BOTH {
        let mut stage = Stage::new(memory);
        let stream = stage.start(1, RATE);
        stage.pass(SECOND.times(2));
        let before = stage.sends(stream).len();
        stage.stand_still(SECOND.times(5));
        stage.pass(SECOND.times(2));
        let after = stage.sends(stream).split_off(before);
        // One visit was due when the machine stopped; the phase may cost another tick.
        assert!(after.iter().all(|&(_, bytes)| bytes <= RATE / 800 * 2), "{after:?}");
        let bytes: u64 = after.iter().map(|&(_, bytes)| bytes).sum();
        assert!(bytes.abs_diff(RATE / 8 * 2) <= RATE / 800 * 2);
        assert_eq!(stage.control.counters.links[0].stalls.value(), 1);
    }
}

/// Stalls from just above the limit that moves clocks up to 21 s.
#[test]
fn s04_a_stall_is_counted_as_lateness_of_each_stream_and_of_its_core() {
    for memory in BOTH {
        for stall in [300, 1_000, 5_000, 21_000].map(Nanos::from_millis) {
            let mut stage = Stage::new(memory);
            let streams = [stage.start(1, RATE), stage.start(2, RATE)];
            stage.pass(SECOND);
            let counters = stage.control.counters.clone();
            let core = &counters.cores[0];
            assert_eq!((core.stalls.value(), counters.links[0].stalled_streams.value()), (0, 0));
            stage.stand_still(stall);
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
            stage.pass(SECOND);
            assert_eq!(core.stalls.value(), 1, "the turns after it are on time");
        }
    }
}

#[test]
fn s04_a_core_without_work_does_not_stall() {
    let mut stage = Stage::new(BOTH[0]);
    stage.stand_still(SECOND.times(30));
    stage.pass(SECOND);
    assert_eq!(stage.control.counters.cores[0].stalls.value(), 0);
}

#[test]
fn what_a_slow_disk_has_not_brought_is_not_owed_at_once() {
    for memory in BOTH {
        let mut stage = Stage::new(memory);
        let stream = stage.start(1, RATE);
        stage.pass(SECOND);
        stage.disk().holds = true;
        stage.pass(SECOND.times(2));
        let before = stage.sends(stream).len();
        assert!(stage.control.counters.links[0].underruns.value() > 0);
        stage.disk().holds = false;
        stage.pass(CYCLE.times(3));
        let underruns = stage.control.counters.links[0].underruns.value();
        stage.pass(SECOND);
        assert_eq!(stage.control.counters.links[0].underruns.value(), underruns, "on time again");
        let after = stage.sends(stream).split_off(before);
        assert!(after.iter().all(|&(_, bytes)| bytes <= RATE / 800 + 1), "{after:?}");
    }
}

#[test]
fn what_a_place_counts_ends_with_its_stream() {
    for memory in BOTH {
        let mut stage = Stage::new(memory);
        let stream = stage.start(1, RATE);
        stage.pass(SECOND.times(2));
        stage.disk().holds = true;
        stage.pass(SECOND);
        let counters = std::sync::Arc::clone(&stage.control.counters.streams);
        let place = &counters[stream.index as usize];
        let counted = || [&place.bytes, &place.underruns, &place.second_bytes, &place.rate];
        assert!(counted().iter().all(|counter| counter.value() > 0));
        stage.disk().holds = false;
        stage.command(Command::Stop(stream));
        stage.pass(CYCLE);
        assert!(retired(&stage, stream));
        assert!(counted().iter().all(|counter| counter.value() == 0));
    }
}

#[test]
fn a_range_begins_and_ends_where_it_was_asked_to() {
    for memory in BOTH {
        for pace in [BY_THE_CLOCK, None] {
            let mut stage = Stage::new(memory);
            // From within one block to within another.
            let range = 100_001..1_200_003;
            let stream = stage.start_range(4, pace, range.clone());
            stage.pass(SECOND.times(6));
            let len = range.end - range.start;
            assert_eq!(stage.received(stream), content(4, range.start, len));
            assert_eq!(finished(&stage, stream), Some((Outcome::Complete, Bytes(len))));
        }
    }
}

#[test]
fn a_part_is_offered_only_while_its_blocks_are_leased() {
    for pace in [BY_THE_CLOCK, None] {
        // With one place more than what is being sent, what is given back is filled anew at once;
        // the stage stops when a part is offered that no place refers to any more, or not yet.
        let room = Room { places: 2, window: 2 };
        let mut stage = Stage::with(Memory::PageCache, room);
        let stream = stage.start_with(1, pace);
        stage.pass(SECOND.times(11));
        assert_eq!(stage.received(stream), content(1, 0, TITLE.0));
        assert_eq!(finished(&stage, stream), Some((Outcome::Complete, TITLE)));
        let evictions = stage.control.counters.blocks[0].evictions.value();
        assert_eq!(evictions, TITLE.0 / u64::from(BLOCK) - u64::from(room.places));
    }
}

#[test]
fn a_file_that_has_lost_its_bytes_ends_its_own_streams_and_every_lease_comes_back() {
    let mut stage = Stage::new(Memory::PageCache);
    let (healthy, paced) = (stage.start(1, RATE), stage.start(2, RATE));
    stage.pass(SECOND);
    stage.network().lost.insert(2, 61);
    let download = stage.start_with(2, None);
    stage.pass(CYCLE.times(3));
    for stream in [paced, download] {
        let (outcome, sent) = finished(&stage, stream).expect("its file has been cut");
        assert_eq!(outcome, Outcome::DiskFailed(61));
        assert_eq!(stage.received(stream), content(2, 0, sent.0));
        assert!(retired(&stage, stream));
    }
    assert_eq!(stage.control.counters.delivery.disk_failed.value(), 2);
    stage.pass(SECOND.times(10));
    assert_eq!(finished(&stage, healthy), Some((Outcome::Complete, TITLE)));
    assert!(retired(&stage, healthy));
    assert_eq!(stage.control.counters.blocks[0].leased.value(), 0);
}

/// What the title was when it was stored.
fn sums(title: i32) -> Arc<Sums> {
    let bytes = content(title, 0, TITLE.0);
    let units = bytes.chunks(UNIT.0 as usize).map(crc32c::crc32c).collect();
    Arc::new(Sums::new(TITLE, units).expect("one for each unit"))
}

fn start_with_sums(
    stage: &mut Stage,
    title: i32,
    pace: Option<Rate>,
    sums: &Arc<Sums>,
) -> StreamId {
    let mut start = stage.start_of(title, pace, 0..TITLE.0);
    start.origin.sums = Some(Arc::clone(sums));
    let stream = start.stream;
    stage.begin(start);
    stream
}

#[test]
fn what_is_not_what_was_stored_is_found_before_it_is_sent() {
    for memory in BOTH {
        for pace in [BY_THE_CLOCK, None] {
            let mut stage = Stage::new(memory);
            let (good, bad) = (sums(1), sums(2));
            stage.disk().damaged.push(2);
            let whole = start_with_sums(&mut stage, 1, pace, &good);
            let damaged = start_with_sums(&mut stage, 2, pace, &bad);
            stage.pass(SECOND.times(12));
            assert_eq!(finished(&stage, whole), Some((Outcome::Complete, TITLE)));
            let outcome = Outcome::Damaged { block: 0 };
            assert_eq!(finished(&stage, damaged), Some((outcome, Bytes(0))));
            assert!(stage.control.counters.blocks[0].damaged.value() > 0);
            // What was lent to a real-time thread is freed by the control side.
            assert_eq!((Arc::strong_count(&good), Arc::strong_count(&bad)), (2, 2));
            stage.reports.clear();
            assert_eq!((Arc::strong_count(&good), Arc::strong_count(&bad)), (1, 1));
        }
    }
}

#[test]
fn a_block_in_memory_that_nobody_has_compared_is_compared_before_it_is_lent() {
    for memory in BOTH {
        let mut stage = Stage::new(memory);
        stage.disk().damaged.push(2);
        let careless = stage.start_with(2, BY_THE_CLOCK);
        stage.pass(SECOND);
        let careful = start_with_sums(&mut stage, 2, BY_THE_CLOCK, &sums(2));
        stage.pass(SECOND.times(11));
        assert_eq!(finished(&stage, careless), Some((Outcome::Complete, TITLE)));
        let outcome = Outcome::Damaged { block: 0 };
        assert_eq!(finished(&stage, careful), Some((outcome, Bytes(0))));
        assert_eq!(stage.control.counters.blocks[0].leased.value(), 0);
    }
}

/// A stream from the beginning of a title of which only `len` is there yet.
fn growing(stage: &mut Stage, title: i32, pace: Option<Rate>, len: Bytes) -> StreamId {
    let mut start = stage.start_of(title, pace, 0..len.0);
    let stream = start.stream;
    start.extent = Extent::Growing(Bytes(0)..len);
    start.origin.len = len;
    stage.begin(start);
    stream
}

#[test]
fn a_stream_of_a_growing_title_waits_at_its_end_and_is_never_late() {
    // A title of 16 blocks and a half that grows a quarter as fast as it is watched.
    let whole = Bytes(u64::from(BLOCK) * 33 / 2);
    for memory in BOTH {
        for pace in [BY_THE_CLOCK, None] {
            let mut stage = Stage::new(memory);
            let mut len = Bytes(1);
            let stream = growing(&mut stage, 1, pace, len);
            while len < whole {
                stage.pass(Nanos::from_millis(250));
                len = Bytes((len.0 + RATE / 8 / 16).min(whole.0));
                let is_whole = len == whole;
                stage.command(Command::Extend { stream, end: len, is_whole });
                let there = if is_whole { len.0 } else { len.0 - len.0 % u64::from(BLOCK) };
                assert!(stage.received(stream).len() as u64 <= there);
            }
            stage.pass(SECOND.times(2));
            assert_eq!(stage.received(stream), content(1, 0, whole.0));
            assert_eq!(finished(&stage, stream), Some((Outcome::Complete, whole)));
            assert!(retired(&stage, stream));
            let counters = &stage.control.counters;
            assert_eq!(counters.links[0].underruns.value(), 0);
            assert_eq!(counters.delivery.too_slow.value(), 0);
            assert_eq!(counters.disks[0].cycles_missed.value(), 0);
        }
    }
}

#[test]
fn a_stalled_peer_of_a_growing_title_is_ended_like_any_other() {
    for memory in BOTH {
        let mut stage = Stage::new(memory);
        let stream = growing(&mut stage, 1, BY_THE_CLOCK, Bytes(TITLE.0 - 1));
        stage.network().limits.insert(stream.index as i32, 100_000);
        stage.pass(SECOND.times(3));
        assert_eq!(finished(&stage, stream), Some((Outcome::TooSlow, Bytes(100_000))));
        assert!(retired(&stage, stream));
    }
}

#[test]
fn a_stream_behind_the_end_of_a_growing_title_does_not_notice_that_it_grows() {
    for memory in BOTH {
        let [still, grown] = [false, true].map(|grows| {
            let mut stage = Stage::new(memory);
            let stream = match grows {
                false => stage.start(1, RATE),
                true => growing(&mut stage, 1, BY_THE_CLOCK, Bytes(TITLE.0 / 2)),
            };
            stage.pass(SECOND);
            if grows {
                let end = Bytes(TITLE.0 / 2 + 1);
                stage.command(Command::Extend { stream, end, is_whole: false });
                stage.pass(SECOND);
                stage.command(Command::Extend { stream, end: TITLE, is_whole: true });
            } else {
                stage.pass(SECOND);
            }
            stage.pass(SECOND.times(9));
            assert_eq!(finished(&stage, stream), Some((Outcome::Complete, TITLE)));
            stage.sends(stream)
        });
        assert_eq!(still, grown);
    }
}

#[test]
fn a_block_of_a_growing_title_is_read_again_when_more_of_it_is_wanted() {
    for memory in BOTH {
        let mut stage = Stage::new(memory);
        // A range up to what is there now, in the middle of a block.
        let there = u64::from(BLOCK) / 2;
        let mut start = stage.start_of(1, BY_THE_CLOCK, 0..there);
        start.origin.len = Bytes(there);
        let first = start.stream;
        stage.begin(start);
        stage.pass(Nanos::from_millis(50));
        let second = stage.start(1, RATE);
        stage.pass(SECOND.times(11));
        assert_eq!(stage.received(first), content(1, 0, there));
        assert_eq!(stage.received(second), content(1, 0, TITLE.0));
        let first_block = stage.disk().reads.iter().filter(|&&(_, offset)| offset == 0).count();
        assert_eq!(first_block, 2);
        assert_eq!(stage.control.counters.blocks[0].leased.value(), 0);
    }
}

fn answers(stage: &Stage) -> Vec<IntakeAnswer> {
    stage.answers.iter().map(|&(_, answer)| answer).collect()
}

#[test]
fn what_is_written_lands_whole_and_each_request_is_answered_once() {
    let mut stage = Stage::new(Memory::Arena);
    let block = u64::from(BLOCK);
    let stream = stage.start(1, RATE);
    for place in 0..8 {
        stage.write(
            place,
            70,
            u64::from(place) * block,
            &content(70, u64::from(place) * block, block),
        );
    }
    stage.pass(SECOND);
    let mut written: Vec<_> = stage.disk().written[&70].clone();
    written.sort();
    let bytes: Vec<u8> = written.into_iter().flat_map(|(_, bytes)| bytes).collect();
    assert!(bytes == content(70, 0, 8 * block));
    let expected: Vec<_> =
        (0..8).map(|token| IntakeAnswer::Written { token, result: Ok(()) }).collect();
    assert_eq!(answers(&stage), expected);
    let counters = &stage.control.counters.disks[0];
    assert_eq!((counters.writes.value(), counters.written_bytes.value()), (8, 8 * block));
    stage.pass(SECOND.times(10));
    assert_eq!(finished(&stage, stream), Some((Outcome::Complete, TITLE)));
    assert_eq!(stage.control.counters.links[0].underruns.value(), 0);
}

#[test]
fn a_flush_is_answered_after_the_device_and_a_failed_one_is_never_tried_again() {
    let mut stage = Stage::new(Memory::Arena);
    stage.pass(Nanos::from_millis(20));
    stage.disk().flushes_fail = 1;
    let begun = stage.now;
    stage.sync(7, 70);
    assert!(answers(&stage).is_empty(), "nothing is answered before the device has");
    stage.pass(SECOND);
    assert_eq!(answers(&stage), [IntakeAnswer::Synced { token: 7, result: Err(DiskFault(5)) }]);
    assert!(stage.answers[0].0 >= begun + Nanos::from_millis(3));
    assert_eq!(stage.disk().flushed.len(), 1);
    // Another one is another one.
    for token in 8..11 {
        stage.sync(token, 70);
    }
    stage.pass(SECOND);
    let later: Vec<_> =
        (8..11).map(|token| IntakeAnswer::Synced { token, result: Ok(()) }).collect();
    assert_eq!(answers(&stage)[1..], later);
    let counters = &stage.control.counters.disks[0];
    assert_eq!((counters.syncs.value(), counters.sync_faults.value()), (4, 1));
}
