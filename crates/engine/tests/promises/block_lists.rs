//! Streams of blocks in an order of their own: forwards with gaps, or backwards.

use tactus_core::block_list::BlockList;
use tactus_core::stagger::Tick;
use tactus_core::units::{BitRate, Bytes, Nanos, SECOND};
use tactus_engine::message::{Command, Extent, Outcome, Rate, Report, StreamId};

use crate::finished;
use crate::fixture::{BLOCK, BOTH, CYCLE, Fixture, content};

/// Two blocks a second.
const RATE: u64 = 16 * BLOCK as u64;
const PACED: Option<Rate> = Some(Rate { rate: BitRate(RATE), burst: Bytes(0), tick: Tick::Ms10 });
/// Thirty-nine blocks and a half.
const LEN: u64 = 79 * BLOCK as u64 / 2;

fn block_list(blocks: &[u32]) -> BlockList {
    BlockList::new(blocks.into(), Bytes(LEN), Bytes(u64::from(BLOCK))).expect("the title has them")
}

fn start(fixture: &mut Fixture, title: i32, blocks: &[u32]) -> StreamId {
    let block_list = block_list(blocks);
    let mut start = fixture.start_of(title, PACED, 0..block_list.len().0);
    let stream = start.stream;
    start.origin.len = Bytes(LEN);
    start.extent = Extent::List(block_list);
    fixture.begin(start);
    stream
}

/// What such a stream sends.
fn sent_of(title: i32, blocks: &[u32]) -> Vec<u8> {
    let block = u64::from(BLOCK);
    let starts = blocks.iter().map(|&each| u64::from(each) * block);
    starts.flat_map(|from| content(title, from, block.min(LEN - from))).collect()
}

fn retired_with(fixture: &Fixture, stream: StreamId) -> Option<BlockList> {
    fixture.reports.iter().find_map(|report| match report {
        Report::Retired { stream: which, memory } if *which == stream => memory.block_list.clone(),
        _ => None,
    })
}

const BACKWARDS: [u32; 11] = [39, 38, 36, 32, 31, 30, 12, 8, 4, 1, 0];
const FORWARDS: [u32; 11] = [0, 4, 5, 6, 7, 16, 20, 24, 37, 38, 39];
const ANYHOW: [u32; 11] = [3, 39, 3, 4, 5, 3, 20, 21, 22, 2, 1];

#[test]
fn an_block_list_is_sent_stop_by_stop_by_its_clock_and_nothing_else_is_read() {
    for memory in BOTH {
        for blocks in [BACKWARDS, FORWARDS, ANYHOW] {
            let mut fixture = Fixture::new(memory);
            let stream = start(&mut fixture, 3, &blocks);
            fixture.pass(SECOND.times(7));
            let sent = sent_of(3, &blocks);
            assert!(fixture.received(stream) == sent, "{blocks:?}");
            let len = Bytes(sent.len() as u64);
            assert_eq!(finished(&fixture, stream), Some((Outcome::Complete, len)));
            assert_eq!(retired_with(&fixture, stream), Some(block_list(&blocks)));
            let sends = fixture.sends(stream);
            let begin = sends[0].0;
            let mut sum = 0;
            for (number, &(at, bytes)) in (0u64..).zip(&sends) {
                assert_eq!(at, begin + Nanos::from_millis(10).times(number));
                sum += bytes;
                assert_eq!(sum, (RATE * (number + 1) / 800).min(len.0));
            }
            let disk = fixture.disk();
            let is_wanted =
                |&(_, offset): &(i32, u64)| blocks.contains(&((offset / u64::from(BLOCK)) as u32));
            assert!(disk.reads.iter().all(is_wanted));
            drop(disk);
            let counters = &fixture.control.counters;
            assert_eq!(counters.links[0].underruns.value(), 0);
            assert_eq!(counters.blocks[0].leased.value(), 0);
        }
    }
}

#[test]
fn an_block_list_and_a_stream_of_the_same_title_share_what_they_read() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        let all: Vec<u32> = (0..40).collect();
        let streams = [start(&mut fixture, 1, &all), start(&mut fixture, 1, &all)];
        let plain = fixture.start_of(1, PACED, 0..LEN);
        let plain = {
            let mut plain = plain;
            plain.origin.len = Bytes(LEN);
            let stream = plain.stream;
            fixture.begin(plain);
            stream
        };
        fixture.pass(SECOND.times(21));
        for stream in streams.into_iter().chain([plain]) {
            assert!(fixture.received(stream) == content(1, 0, LEN));
        }
        assert_eq!(fixture.disk().reads.len(), 40);
    }
}

#[test]
fn a_stop_on_the_way_gives_the_block_list_back() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        fixture.disk().holds = true;
        let stream = start(&mut fixture, 1, &BACKWARDS);
        fixture.pass(CYCLE);
        fixture.command(Command::Stop(stream));
        fixture.pass(SECOND);
        assert_eq!(finished(&fixture, stream), Some((Outcome::Stopped, Bytes(0))));
        assert_eq!(retired_with(&fixture, stream), None, "the kernel may still write its blocks");
        fixture.disk().holds = false;
        fixture.pass(SECOND);
        assert_eq!(retired_with(&fixture, stream), Some(block_list(&BACKWARDS)));
        assert_eq!(fixture.control.counters.blocks[0].leased.value(), 0);
    }
}

#[test]
fn a_block_that_cannot_be_read_is_named_by_its_number_in_the_title() {
    for memory in BOTH {
        let mut fixture = Fixture::new(memory);
        fixture.disk().failing.insert(2, 5);
        let stream = start(&mut fixture, 2, &BACKWARDS);
        fixture.pass(SECOND);
        let (outcome, sent) = finished(&fixture, stream).expect("its title cannot be read");
        let Outcome::Unreadable { block, errno: 5 } = outcome else { panic!("{outcome:?}") };
        // What it begins with is read in one sweep.
        assert!(BACKWARDS[..6].contains(&(block as u32)) && sent == Bytes(0), "{block}");
        assert!(retired_with(&fixture, stream).is_some());
    }
}
