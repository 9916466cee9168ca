//! What a paced reader will request next, read before it does.
//!
//! Promise: a reader that goes through a title finds its bytes in memory, also if the server or its
//! disk has been slow for a part of the window. One that jumps costs what it requests and no more.
//! The bytes of one reader are bounded, and so are those of all readers of a mount.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use fuser::Errno;
use tactus_client::BitRate;

use crate::reader::Answer;

/// A title whose bytes are read in parts, in the background.
pub(crate) trait PartSource: Clone + Send + Sync + 'static {
    /// Its length in bytes, as far as it is known.
    fn len(&self) -> u64;
    /// Whether it is the same open title.
    fn is_same(&self, other: &Self) -> bool;
    /// Reads `len` bytes from `offset` on.
    fn read(&self, offset: u64, len: usize, answer: Answer);
}

/// The memory for all readers of a mount.
#[derive(Clone, Default)]
pub(crate) struct ReadAheadMemory(Arc<AtomicUsize>);

/// What is read ahead for one reader.
pub(crate) struct ReadAhead<S> {
    /// Bytes ahead, at most; 0 if there is no memory for it.
    window: usize,
    memory: ReadAheadMemory,
    state: Mutex<State<S>>,
    own: Weak<Self>,
}

struct State<S> {
    source: Option<S>,
    /// Where `bytes` begin in the title.
    start: u64,
    bytes: VecDeque<u8>,
    /// Bytes behind them that are on their way; 0 if none are.
    coming: usize,
    /// The number of the last part that was begun.
    part: u64,
    /// Where a reader that does not jump goes on.
    next: u64,
    /// Reads that wait for what is on its way.
    waiting: Vec<WaitingRead>,
}

struct WaitingRead {
    offset: u64,
    len: usize,
    answer: Answer,
}

/// A part to be read: where, and its number.
struct Part {
    offset: u64,
    len: usize,
    number: u64,
}

impl<S: PartSource> ReadAhead<S> {
    /// For a title of the rate `rate`.
    pub(crate) fn new(rate: BitRate, memory: &ReadAheadMemory) -> Arc<Self> {
        let window = u128::from(rate.0) * WINDOW.as_nanos() / 8_000_000_000;
        let window = usize::try_from(window).unwrap_or(usize::MAX).clamp(WINDOW_MIN, WINDOW_MAX);
        let window = if memory.take(window) { window } else { 0 };
        let state = State {
            source: None,
            start: 0,
            bytes: VecDeque::new(),
            coming: 0,
            part: 0,
            next: 0,
            waiting: vec![],
        };
        let memory = memory.clone();
        Arc::new_cyclic(|own| Self { window, memory, state: Mutex::new(state), own: own.clone() })
    }

    /// Reads `len` bytes of `source` from `offset` on, which are within its length.
    pub(crate) fn read(&self, source: &S, offset: u64, len: usize, answer: Answer) {
        let end = offset + len as u64;
        let mut state = self.state();
        let goes_on = std::mem::replace(&mut state.next, end) == offset;
        let is_same = state.source.as_ref().is_some_and(|known| known.is_same(source));
        // A reader by long parts reads ahead by itself.
        let is_short = len <= self.window / 2;
        if is_same && is_short && offset >= state.start {
            let ready = state.start + state.bytes.len() as u64;
            if end <= ready {
                let bytes = state.take(offset, len);
                let part = self.next_part(&mut state);
                drop(state);
                self.begin(source, part);
                return answer(Ok(&bytes));
            }
            if end <= ready + state.coming as u64 {
                state.waiting.push(WaitingRead { offset, len, answer });
                return;
            }
        }
        let mut reads = state.forget(end);
        state.source = Some(source.clone());
        let part = if goes_on && is_short { self.next_part(&mut state) } else { None };
        drop(state);
        reads.push(WaitingRead { offset, len, answer });
        for WaitingRead { offset, len, answer } in reads {
            source.read(offset, len, answer);
        }
        self.begin(source, part);
    }

    /// The next part, if there is room for it in the window and none is on its way.
    fn next_part(&self, state: &mut State<S>) -> Option<Part> {
        let part = self.window / 2;
        if state.coming > 0 || state.bytes.len() + part > self.window {
            return None;
        }
        let offset = state.start + state.bytes.len() as u64;
        let left = state.source.as_ref().map_or(0, S::len).saturating_sub(offset);
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(part);
        if len == 0 {
            return None;
        }
        state.coming = len;
        state.part += 1;
        Some(Part { offset, len, number: state.part })
    }

    fn begin(&self, source: &S, part: Option<Part>) {
        let Some(Part { offset, len, number }) = part else { return };
        let (own, again) = (self.own.clone(), source.clone());
        let come = move |bytes: Result<&[u8], Errno>| {
            if let Some(own) = own.upgrade() {
                own.come(&again, number, bytes);
            }
        };
        source.read(offset, len, Box::new(come));
    }

    /// A part has come, or cannot be read.
    fn come(&self, source: &S, number: u64, bytes: Result<&[u8], Errno>) {
        let mut state = self.state();
        if number != state.part || state.coming == 0 {
            // The reader has jumped meanwhile.
            return;
        }
        state.coming = 0;
        match bytes {
            Ok(bytes) => state.bytes.extend(bytes),
            Err(_) => state.bytes.clear(),
        }
        let mut answers = vec![];
        for WaitingRead { offset, len, answer } in std::mem::take(&mut state.waiting) {
            let end = state.start + state.bytes.len() as u64;
            let is_ready = offset >= state.start && offset + len as u64 <= end;
            let found = is_ready.then(|| state.take(offset, len));
            answers.push((offset, len, found, answer));
        }
        let part = if bytes.is_ok() { self.next_part(&mut state) } else { None };
        drop(state);
        self.begin(source, part);
        for (offset, len, found, answer) in answers {
            match found {
                Some(bytes) => answer(Ok(&bytes)),
                // It is told why there are none.
                None => source.read(offset, len, answer),
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S> State<S> {
    /// Drops what was read ahead, also what is on its way: the next part begins at `start`. Returns
    /// the reads that waited for it.
    fn forget(&mut self, start: u64) -> Vec<WaitingRead> {
        self.bytes.clear();
        (self.start, self.coming) = (start, 0);
        std::mem::take(&mut self.waiting)
    }

    /// Takes bytes out, and drops those before them.
    fn take(&mut self, offset: u64, len: usize) -> Vec<u8> {
        let skipped = (offset - self.start) as usize;
        self.start = offset + len as u64;
        self.bytes.drain(..skipped + len).skip(skipped).collect()
    }
}

impl<S> Drop for ReadAhead<S> {
    fn drop(&mut self) {
        self.memory.0.fetch_sub(self.window, Ordering::Relaxed);
    }
}

impl ReadAheadMemory {
    fn take(&self, bytes: usize) -> bool {
        let add = |taken: usize| (taken + bytes <= MEMORY_MAX).then_some(taken + bytes);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }
}

/// How far ahead of a reader bytes are read: as long as a server or a disk is slow beside much
/// other work.
const WINDOW: Duration = Duration::from_millis(500);

/// Bounds of a window, in bytes. A part of it is half as long.
const WINDOW_MIN: usize = 64 << 10;
const WINDOW_MAX: usize = 2 << 20;

/// Bytes of all windows of a mount. A reader beyond it reads nothing ahead.
const MEMORY_MAX: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads that wait until the test answers them.
    #[derive(Clone, Default)]
    struct Disk(Arc<Mutex<Vec<(u64, usize, Answer)>>>);

    const LEN: u64 = 1_000_000;
    /// A window of 500,000 bytes.
    const RATE: BitRate = BitRate(8_000_000);

    impl PartSource for Disk {
        fn len(&self) -> u64 {
            LEN
        }

        fn is_same(&self, other: &Self) -> bool {
            Arc::ptr_eq(&self.0, &other.0)
        }

        fn read(&self, offset: u64, len: usize, answer: Answer) {
            self.0.lock().unwrap().push((offset, len, answer));
        }
    }

    impl Disk {
        /// What is to be read.
        fn parts(&self) -> Vec<(u64, usize)> {
            self.0.lock().unwrap().iter().map(|&(offset, len, _)| (offset, len)).collect()
        }

        /// Ends the first read of the list.
        fn end(&self, is_error: bool) {
            let (offset, len, answer) = self.0.lock().unwrap().remove(0);
            let bytes: Vec<u8> = (offset..offset + len as u64).map(byte).collect();
            answer(if is_error { Err(Errno::EIO) } else { Ok(&bytes) });
        }
    }

    fn byte(at: u64) -> u8 {
        (at ^ at >> 8 ^ at >> 16) as u8
    }

    type Outcomes = Arc<Mutex<Vec<(u64, Result<(), Errno>)>>>;

    fn read(ahead: &ReadAhead<Disk>, disk: &Disk, offset: u64, len: usize, outcomes: &Outcomes) {
        let outcomes = Arc::clone(outcomes);
        let answer = move |bytes: Result<&[u8], Errno>| {
            if let Ok(bytes) = bytes {
                assert!(bytes.iter().copied().eq((offset..offset + len as u64).map(byte)));
            }
            outcomes.lock().unwrap().push((offset, bytes.map(drop)));
        };
        ahead.read(disk, offset, len, Box::new(answer));
    }

    fn taken(outcomes: &Outcomes) -> Vec<(u64, Result<(), Errno>)> {
        std::mem::take(&mut outcomes.lock().unwrap())
    }

    #[test]
    fn a_reader_that_goes_on_finds_its_bytes_and_the_next_part_is_on_its_way() {
        let (ahead, disk, outcomes) = start();
        read(&ahead, &disk, 0, 100_000, &outcomes);
        assert_eq!(disk.parts(), [(0, 100_000), (100_000, 250_000)]);
        disk.end(false);
        assert_eq!(taken(&outcomes), [(0, Ok(()))]);
        // It waits for the part that is on its way, and does not read it again.
        read(&ahead, &disk, 100_000, 100_000, &outcomes);
        assert_eq!((disk.parts().len(), taken(&outcomes).len()), (1, 0));
        disk.end(false);
        assert_eq!(taken(&outcomes), [(100_000, Ok(()))]);
        assert_eq!(disk.parts(), [(350_000, 250_000)], "the next one");
        // The disk is slow: what has come is enough.
        read(&ahead, &disk, 200_000, 150_000, &outcomes);
        assert_eq!(taken(&outcomes), [(200_000, Ok(()))]);
        disk.end(false);
        for offset in (350_000..LEN).step_by(50_000) {
            read(&ahead, &disk, offset, 50_000, &outcomes);
            while !disk.parts().is_empty() {
                disk.end(false);
            }
            assert_eq!(taken(&outcomes), [(offset, Ok(()))]);
        }
        assert!(disk.parts().is_empty(), "nothing behind the end");
    }

    #[test]
    fn a_reader_that_jumps_costs_its_own_reads_only() {
        let (ahead, disk, outcomes) = start();
        for offset in [900_000, 100, 500_000, 499_000] {
            read(&ahead, &disk, offset, 100, &outcomes);
            assert_eq!(disk.parts(), [(offset, 100)]);
            disk.end(false);
            assert_eq!(taken(&outcomes), [(offset, Ok(()))]);
        }
        // From here on it goes on, and then jumps away from a part that is on its way.
        read(&ahead, &disk, 499_100, 100, &outcomes);
        assert_eq!(disk.parts(), [(499_100, 100), (499_200, 250_000)]);
        disk.end(false);
        read(&ahead, &disk, 10, 10, &outcomes);
        disk.end(false);
        read(&ahead, &disk, 499_200, 10, &outcomes);
        assert_eq!(disk.parts(), [(10, 10), (499_200, 10)], "the part was forgotten");
        disk.end(false);
        disk.end(false);
        assert_eq!(taken(&outcomes).len(), 3);
        // Long reads are not cut.
        read(&ahead, &disk, 0, 300_000, &outcomes);
        read(&ahead, &disk, 300_000, 300_000, &outcomes);
        assert_eq!(disk.parts(), [(0, 300_000), (300_000, 300_000)]);
    }

    #[test]
    fn what_cannot_be_read_ahead_is_an_error_for_those_who_request_it() {
        let (ahead, disk, outcomes) = start();
        read(&ahead, &disk, 0, 1000, &outcomes);
        disk.end(false);
        read(&ahead, &disk, 1000, 1000, &outcomes);
        disk.end(true);
        assert_eq!(taken(&outcomes), [(0, Ok(()))]);
        assert_eq!(disk.parts(), [(1000, 1000)], "once more, alone");
        disk.end(true);
        assert_eq!(taken(&outcomes), [(1000, Err(Errno::EIO))]);
        // Another open title begins anew.
        let other = Disk::default();
        read(&ahead, &other, 2000, 1000, &outcomes);
        assert_eq!(other.parts(), [(2000, 1000), (3000, 250_000)]);
    }

    #[test]
    fn the_memory_of_all_readers_is_bounded() {
        let memory = ReadAheadMemory::default();
        let fast = BitRate(u64::MAX);
        let all: Vec<_> = (0..40).map(|_| ReadAhead::<Disk>::new(fast, &memory)).collect();
        let bytes: usize = all.iter().map(|ahead| ahead.window).sum();
        assert_eq!(bytes, MEMORY_MAX);
        let last = all.last().expect("one");
        let (disk, outcomes) = (Disk::default(), Outcomes::default());
        read(last, &disk, 0, 10, &outcomes);
        assert_eq!(disk.parts(), [(0, 10)], "nothing is read ahead");
        drop(all);
        assert_eq!(ReadAhead::<Disk>::new(fast, &memory).window, WINDOW_MAX);
    }

    fn start() -> (Arc<ReadAhead<Disk>>, Disk, Outcomes) {
        let ahead = ReadAhead::new(RATE, &ReadAheadMemory::default());
        (ahead, Disk::default(), Outcomes::default())
    }
}
