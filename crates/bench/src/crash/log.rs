//! What a disk was told, in order, and what it holds when its power fails at one point of that.
//!
//! Promise: an image holds every write that the last flush before the cut covers, and of the later
//! ones those that were drawn; of two writes to one place that both survive, the later. It knows no
//! kernel and no file system.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::disk::exported_file::BLOCK;
use crate::random::Random;

/// The smallest thing that a disk writes whole.
pub(super) type Piece = [u8; BLOCK];

/// One write or flush.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// Pieces one after the other from `block` on, `count` of them, kept from `first` on.
    Write { block: u32, first: u32, count: u32 },
    /// All that was written before is on the medium.
    Flush,
}

/// What may be lost of the writes after the last flush.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Loss {
    /// Each write with even odds.
    Writes,
    /// Each piece of 4 KiB of each write with even odds.
    Pieces,
}

/// Where a block's content is kept: the number of a piece and one, or nothing for zeros.
type PieceNumber = u32;

/// Everything that was written, in order.
#[derive(Debug)]
pub(super) struct Log {
    events: Vec<Event>,
    /// `None` holds zeros, of which file systems write many.
    pieces: Vec<Option<Box<Piece>>>,
    now: Vec<PieceNumber>,
}

impl Log {
    /// An empty log of a disk of `blocks` blocks, all zero.
    pub(super) fn new(blocks: usize) -> Self {
        Self { events: Vec::new(), pieces: Vec::new(), now: vec![0; blocks] }
    }

    /// How many events there were.
    pub(super) fn length(&self) -> usize {
        self.events.len()
    }

    /// Appends a write of whole blocks; `false` when it lies outside or the log is full.
    pub(super) fn write(&mut self, at: u64, data: &[u8]) -> bool {
        let (pieces, rest) = data.as_chunks::<BLOCK>();
        let first_block = at as usize / BLOCK;
        let inside = first_block + pieces.len() <= self.now.len();
        let room = self.pieces.len() + pieces.len() <= PIECES_MAX;
        if !rest.is_empty() || !at.is_multiple_of(BLOCK as u64) || !inside || !room {
            return false;
        }
        let first = self.pieces.len() as u32;
        let kept = |piece: &Piece| (*piece != [0; BLOCK]).then(|| Box::new(*piece));
        self.pieces.extend(pieces.iter().map(kept));
        let event = Event::Write { block: first_block as u32, first, count: pieces.len() as u32 };
        self.events.push(event);
        apply(event, &mut self.now);
        true
    }

    /// Appends a flush.
    pub(super) fn flush(&mut self) {
        self.events.push(Event::Flush);
    }

    /// A flush has failed: of what was not on the medium, the disk has lost each write with even
    /// odds.
    pub(super) fn lose_unflushed(&mut self, random: &mut Random) {
        let from = self.last_flush(self.events.len());
        for event in &mut self.events[from..] {
            if let Event::Write { count, .. } = event
                && random.next().is_multiple_of(2)
            {
                *count = 0;
            }
        }
        self.replay();
    }

    /// Forgets all events from `length` on.
    pub(super) fn rewind(&mut self, length: usize) {
        self.events.truncate(length);
        let end = |event: &Event| match *event {
            Event::Write { first, count, .. } => first + count,
            Event::Flush => 0,
        };
        let kept = self.events.iter().map(end).max().unwrap_or(0);
        self.pieces.truncate(kept as usize);
        self.replay();
    }

    /// What a block holds now.
    pub(super) fn block(&self, block: usize) -> Option<&Piece> {
        self.piece(self.now[block])
    }

    fn piece(&self, held: PieceNumber) -> Option<&Piece> {
        self.pieces.get(held.checked_sub(1)? as usize)?.as_deref()
    }

    /// The place behind the last flush before `cut`.
    fn last_flush(&self, cut: usize) -> usize {
        let flush = |event: &Event| matches!(event, Event::Flush);
        self.events[..cut].iter().rposition(flush).map_or(0, |place| place + 1)
    }

    fn replay(&mut self) {
        self.now.fill(0);
        for event in &self.events {
            apply(*event, &mut self.now);
        }
    }
}

/// 2 GiB of content that is not zero: the memory that a log may take.
const PIECES_MAX: usize = 512 << 10;

fn apply(event: Event, held: &mut [PieceNumber]) {
    for (block, piece) in numbers(event) {
        held[block] = piece;
    }
}

/// Block and content of each piece of an event.
fn numbers(event: Event) -> impl Iterator<Item = (usize, PieceNumber)> {
    let (block, first, count) = match event {
        Event::Write { block, first, count } => (block, first, count),
        Event::Flush => (0, 0, 0),
    };
    (0..count).map(move |place| ((block + place) as usize, first + place + 1))
}

/// What the disk holds after its power has failed, and what is written on it since.
#[derive(Debug)]
pub(super) struct Image {
    /// The state at the end of the first `applied` events.
    flushed: Vec<PieceNumber>,
    applied: usize,
    survived: HashMap<usize, PieceNumber>,
    since: HashMap<usize, Box<Piece>>,
}

impl Image {
    /// The empty disk.
    pub(super) fn new(log: &Log) -> Self {
        let flushed = vec![0; log.now.len()];
        Self { flushed, applied: 0, survived: HashMap::new(), since: HashMap::new() }
    }

    /// The power fails after the first `cut` events. Cuts in ascending order cost only what lies
    /// between them.
    pub(super) fn cut(&mut self, log: &Log, cut: usize, loss: Loss, random: &mut Random) {
        let flush = log.last_flush(cut);
        if flush < self.applied {
            self.flushed.fill(0);
            self.applied = 0;
        }
        for event in &log.events[self.applied..flush] {
            apply(*event, &mut self.flushed);
        }
        self.applied = flush;
        self.survived.clear();
        self.since.clear();
        let mut lucky = || random.next() >> 63 == 0;
        for event in &log.events[flush..cut] {
            match loss {
                Loss::Writes if lucky() => self.survived.extend(numbers(*event)),
                Loss::Writes => {}
                Loss::Pieces => self.survived.extend(numbers(*event).filter(|_| lucky())),
            }
        }
    }

    /// Writes whole blocks on the image; `false` when they lie outside.
    pub(super) fn write(&mut self, at: u64, data: &[u8]) -> bool {
        let first = at as usize / BLOCK;
        let (pieces, rest) = data.as_chunks::<BLOCK>();
        if !rest.is_empty()
            || !at.is_multiple_of(BLOCK as u64)
            || first + pieces.len() > self.flushed.len()
        {
            return false;
        }
        for (place, piece) in pieces.iter().enumerate() {
            self.since.insert(first + place, Box::new(*piece));
        }
        true
    }

    /// What a block holds.
    pub(super) fn block<'a>(&'a self, log: &'a Log, block: usize) -> Option<&'a Piece> {
        if let Some(piece) = self.since.get(&block) {
            return Some(piece);
        }
        log.piece(self.survived.get(&block).copied().unwrap_or(self.flushed[block]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: usize = 8;

    fn write(log: &mut Log, block: u64, bytes: &[u8]) {
        let data: Vec<u8> = bytes.iter().flat_map(|byte| [*byte; BLOCK]).collect();
        assert!(log.write(block * BLOCK as u64, &data));
    }

    /// The first byte of each block.
    fn content(image: &Image, log: &Log) -> Vec<u8> {
        (0..BLOCKS).map(|block| image.block(log, block).map_or(0, |piece| piece[0])).collect()
    }

    /// Every content that some hundred seeds give.
    fn contents(log: &Log, cut: usize, loss: Loss) -> Vec<Vec<u8>> {
        let mut image = Image::new(log);
        let mut all: Vec<_> = (0..400)
            .map(|seed| {
                image.cut(log, cut, loss, &mut Random::new(seed));
                content(&image, log)
            })
            .collect();
        all.sort();
        all.dedup();
        all
    }

    #[test]
    fn what_is_flushed_survives_and_of_the_rest_any_part() {
        let mut log = Log::new(BLOCKS);
        write(&mut log, 0, &[1, 1]);
        log.flush();
        write(&mut log, 1, &[2, 2]);
        write(&mut log, 2, &[3]);
        write(&mut log, 7, &[9]); // behind the cut
        let cases = [[1, 1, 0], [1, 1, 3], [1, 2, 2], [1, 2, 3]];
        let found = contents(&log, 4, Loss::Writes);
        assert_eq!(found, cases.map(|case| [&case[..], &[0; 5]].concat()));
        let torn = [[1, 1, 0], [1, 1, 2], [1, 1, 3], [1, 2, 0], [1, 2, 2], [1, 2, 3]];
        let found = contents(&log, 4, Loss::Pieces);
        assert_eq!(found, torn.map(|case| [&case[..], &[0; 5]].concat()));
        assert_eq!(contents(&log, 2, Loss::Pieces).len(), 1, "nothing to lose after a flush");
    }

    #[test]
    fn an_earlier_cut_after_a_later_one_is_as_if_it_came_first() {
        let mut log = Log::new(BLOCKS);
        for byte in 1..6 {
            write(&mut log, u64::from(byte), &[byte]);
            log.flush();
        }
        let mut image = Image::new(&log);
        image.cut(&log, 10, Loss::Writes, &mut Random::new(1));
        assert_eq!(content(&image, &log), [0, 1, 2, 3, 4, 5, 0, 0]);
        assert!(image.write(0, &[7; BLOCK]));
        assert_eq!(content(&image, &log), [7, 1, 2, 3, 4, 5, 0, 0]);
        image.cut(&log, 4, Loss::Writes, &mut Random::new(1));
        assert_eq!(content(&image, &log), [0, 1, 2, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn rewound_is_as_never_written() {
        let mut log = Log::new(BLOCKS);
        write(&mut log, 0, &[1, 2]);
        let mark = log.length();
        write(&mut log, 1, &[3]);
        log.rewind(mark);
        assert_eq!(log.block(1).map(|piece| piece[0]), Some(2));
        write(&mut log, 2, &[4]);
        assert_eq!(log.block(2).map(|piece| piece[0]), Some(4));
        assert_eq!(log.length(), mark + 1);
    }

    #[test]
    fn a_failed_flush_loses_a_part_of_what_it_did_not_cover() {
        let mut halves = 0;
        for seed in 0..100 {
            let mut log = Log::new(BLOCKS);
            write(&mut log, 0, &[1]);
            log.flush();
            write(&mut log, 0, &[2]);
            log.lose_unflushed(&mut Random::new(seed));
            let now = log.block(0).map(|piece| piece[0]);
            assert!(matches!(now, Some(1 | 2)));
            halves += usize::from(now == Some(1));
        }
        assert!((30..70).contains(&halves), "{halves} of 100");
    }

    #[test]
    fn what_lies_outside_or_across_blocks_is_refused() {
        let mut log = Log::new(BLOCKS);
        assert!(!log.write(512, &[1; BLOCK]));
        assert!(!log.write(0, &[1; 512]));
        assert!(!log.write(7 * BLOCK as u64, &[1; 2 * BLOCK]));
        assert!(!Image::new(&log).write(7 * BLOCK as u64, &[1; 2 * BLOCK]));
        assert_eq!(log.length(), 0);
    }
}
