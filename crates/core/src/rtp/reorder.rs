//! Packet reordering: a window over the sequence numbers (RFC 3550, appendix A.1).
//!
//! Promise: each number is delivered at most once, in rising order. The wait for a missing packet
//! is bounded by [`PATIENCE`], and by [`WINDOW`] packets or [`BUFFERED_MAX`] bytes behind it; the
//! window holds no more than that. Packets in order are not copied.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::units::{MILLISECOND, MonoTime, Nanos};

/// Packets behind a missing one: 15 ms of 100 Mbit/s in packets of seven transport packets.
pub const WINDOW: u16 = 128;
/// Bytes buffered behind a missing packet. Packets of the largest size fill it in the time in which
/// ordinary packets at a tenth of their rate fill the window.
const BUFFERED_MAX: usize = 2 << 20;
/// How long a missing packet is waited for: networks reorder within milliseconds.
const PATIENCE: Nanos = Nanos(100 * MILLISECOND.0);
/// A larger jump is no loss: the source has restarted (RFC 3550, A.1).
const DROPOUT_MAX: u16 = 3000;

/// The packets of one source.
#[derive(Debug)]
pub struct ReorderBuffer {
    /// The next number to deliver; `None` before the first packet.
    next: Option<u16>,
    /// By number, modulo [`WINDOW`].
    buffered: Box<[Option<Vec<u8>>]>,
    buffered_count: usize,
    buffered_bytes: usize,
    /// Packets that are ready to be delivered.
    ready: VecDeque<Vec<u8>>,
    /// Since when the next packet has been missing while others wait.
    missing_since: Option<MonoTime>,
    /// The number after one far out of order: if it arrives, the source has restarted.
    anew: Option<u16>,
    counts: Counts,
}

/// The counters.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Packets that never arrived, or too late.
    pub lost: u64,
    /// Packets that arrived after they had been given up, or twice.
    pub late: u64,
    /// Packets that arrived before one with a lower number.
    pub early: u64,
    /// Restarts of the numbering.
    pub restarts: u64,
}

impl Counts {
    /// Each with its label value.
    #[must_use]
    pub fn named(&self) -> [(&'static str, u64); 4] {
        [
            ("rtp_lost", self.lost),
            ("rtp_late", self.late),
            ("rtp_reordered", self.early),
            ("rtp_restarts", self.restarts),
        ]
    }
}

/// What to do with a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It is next: use its payload now.
    Now,
    /// It is buffered, or comes out of [`ReorderBuffer::poll`] at once.
    Buffered,
    /// It is dropped.
    Dropped,
}

impl Default for ReorderBuffer {
    fn default() -> Self {
        Self {
            next: None,
            buffered: (0..WINDOW).map(|_| None).collect(),
            buffered_count: 0,
            buffered_bytes: 0,
            ready: VecDeque::new(),
            missing_since: None,
            anew: None,
            counts: Counts::default(),
        }
    }
}

impl ReorderBuffer {
    /// Takes packet `sequence`. [`Self::poll`] must have been drained before.
    pub fn handle_packet(&mut self, now: MonoTime, sequence: u16, payload: &[u8]) -> Verdict {
        debug_assert!(self.ready.is_empty(), "what is ready goes first");
        let next = *self.next.get_or_insert(sequence);
        let ahead = sequence.wrapping_sub(next);
        if ahead >= DROPOUT_MAX {
            // Modulo 2^16 this includes numbers behind.
            if ahead > u16::MAX - WINDOW {
                self.counts.late += 1;
                return Verdict::Dropped;
            }
            if self.anew.replace(sequence.wrapping_add(1)) != Some(sequence) {
                self.counts.late += 1;
                return Verdict::Dropped;
            }
            self.counts.restarts += 1;
            self.give_up_all();
            self.next = Some(sequence);
            return self.handle_packet_behind(now, sequence, payload);
        }
        self.anew = None;
        if ahead == 0 && self.buffered_count == 0 {
            self.next = Some(sequence.wrapping_add(1));
            return Verdict::Now;
        }
        while sequence.wrapping_sub(self.next.unwrap_or(sequence)) >= WINDOW {
            self.step();
        }
        self.handle_packet_behind(now, sequence, payload)
    }

    /// Holds a packet within the window.
    fn handle_packet_behind(&mut self, now: MonoTime, sequence: u16, payload: &[u8]) -> Verdict {
        let slot = &mut self.buffered[usize::from(sequence % WINDOW)];
        if slot.is_some() {
            self.counts.late += 1;
            return Verdict::Dropped;
        }
        *slot = Some(payload.to_vec());
        self.buffered_count += 1;
        self.buffered_bytes += payload.len();
        if self.next != Some(sequence) {
            self.counts.early += 1;
            self.missing_since.get_or_insert(now);
        }
        while self.buffered_bytes > BUFFERED_MAX {
            self.step();
        }
        Verdict::Buffered
    }

    /// The next deliverable payload.
    pub fn poll(&mut self, now: MonoTime) -> Option<Vec<u8>> {
        if let Some(payload) = self.ready.pop_front() {
            return Some(payload);
        }
        if self.buffered_count == 0 {
            self.missing_since = None;
            return None;
        }
        let next = self.next?;
        if self.buffered[usize::from(next % WINDOW)].is_none() {
            let since = *self.missing_since.get_or_insert(now);
            if now.since(since) < PATIENCE {
                return None;
            }
            while self.ready.is_empty() {
                self.step();
            }
        } else {
            self.step();
        }
        // The wait for the next missing packet starts now.
        self.missing_since = None;
        self.ready.pop_front()
    }

    /// When a missing packet is given up.
    pub fn poll_timeout(&self) -> Option<MonoTime> {
        self.missing_since.map(|since| since + PATIENCE)
    }

    /// Ends the stream: all buffered packets become deliverable.
    pub fn handle_end(&mut self) {
        self.give_up_all();
    }

    /// The counters.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Moves on by one number.
    fn step(&mut self) {
        let Some(next) = self.next else { return };
        match self.buffered[usize::from(next % WINDOW)].take() {
            Some(payload) => {
                self.buffered_count -= 1;
                self.buffered_bytes -= payload.len();
                self.ready.push_back(payload);
            }
            None => self.counts.lost += 1,
        }
        self.next = Some(next.wrapping_add(1));
    }

    fn give_up_all(&mut self) {
        while self.buffered_count > 0 {
            self.step();
        }
        self.missing_since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(millis: u64) -> MonoTime {
        MonoTime(millis * MILLISECOND.0)
    }

    /// Feeds numbers at one moment; returns the delivered ones, including those at the end.
    fn through(order: &mut ReorderBuffer, numbers: &[u16]) -> Vec<u16> {
        let mut out = Vec::new();
        let number = |payload: &[u8]| u16::from_be_bytes([payload[0], payload[1]]);
        for sequence in numbers {
            if order.handle_packet(at(1), *sequence, &sequence.to_be_bytes()) == Verdict::Now {
                out.push(*sequence);
            }
            while let Some(payload) = order.poll(at(1)) {
                out.push(number(&payload));
            }
        }
        order.handle_end();
        while let Some(payload) = order.poll(at(1)) {
            out.push(number(&payload));
        }
        out
    }

    #[test]
    fn what_is_shuffled_comes_out_in_order_across_the_wrap() {
        let mut order = ReorderBuffer::default();
        let came = through(&mut order, &[65533, 65535, 65534, 1, 0, 2, 2, 5, 3, 4]);
        assert_eq!(came, [65533, 65534, 65535, 0, 1, 2, 3, 4, 5]);
        assert_eq!(order.counts(), Counts { lost: 0, late: 1, early: 3, restarts: 0 });
    }

    #[test]
    fn a_missing_packet_is_given_up_in_time_and_is_not_wanted_afterwards() {
        let mut order = ReorderBuffer::default();
        assert_eq!(order.handle_packet(at(0), 7, b"7"), Verdict::Now);
        assert_eq!(order.handle_packet(at(10), 9, b"9"), Verdict::Buffered);
        assert_eq!(order.poll(at(10)), None);
        assert_eq!(order.poll_timeout(), Some(at(110)));
        assert_eq!(order.poll(at(109)), None);
        assert_eq!(order.poll(at(110)).as_deref(), Some(&b"9"[..]));
        assert_eq!(order.poll(at(110)), None);
        assert_eq!(order.poll_timeout(), None);
        assert_eq!(order.handle_packet(at(111), 8, b"8"), Verdict::Dropped);
        assert_eq!(order.counts(), Counts { lost: 1, late: 1, early: 1, restarts: 0 });
    }

    #[test]
    fn a_full_window_does_not_wait() {
        let mut order = ReorderBuffer::default();
        let numbers: Vec<u16> = [0].into_iter().chain(2..400).collect();
        assert_eq!(through(&mut order, &numbers), numbers);
        assert_eq!(order.counts().lost, 1);
    }

    #[test]
    fn one_wild_number_is_dropped_and_two_in_a_row_begin_anew() {
        let mut order = ReorderBuffer::default();
        assert_eq!(through(&mut order, &[10, 30_000, 11, 12]), [10, 11, 12]);
        assert_eq!(through(&mut order, &[40_000, 40_001, 40_002]), [40_001, 40_002]);
        assert_eq!(order.counts(), Counts { lost: 0, late: 2, early: 0, restarts: 1 });
    }

    proptest! {
        #[test]
        fn numbers_only_rise_and_all_are_accounted_for(
            first: u16, moves in proptest::collection::vec((0u16..40, any::<bool>()), 1..600),
        ) {
            // Each packet arrives, is lost, or is moved back by some places.
            let mut numbers: Vec<(usize, u16)> = Vec::new();
            for (nth, (delay, comes)) in moves.iter().enumerate() {
                if *comes || nth == 0 {
                    let delay = if nth == 0 { 0 } else { usize::from(*delay) };
                    numbers.push((nth + delay, first.wrapping_add(nth as u16)));
                }
            }
            numbers.sort_by_key(|(place, _)| *place);
            let sent: Vec<u16> = numbers.iter().map(|(_, number)| *number).collect();
            let mut order = ReorderBuffer::default();
            let out = through(&mut order, &sent);
            let offset = |number: &u16| number.wrapping_sub(first);
            prop_assert!(out.windows(2).all(|pair| offset(&pair[0]) < offset(&pair[1])));
            prop_assert_eq!(out.len(), sent.len(), "nothing was moved further than the window");
            let last = out.last().map_or(0, offset);
            prop_assert_eq!(order.counts().lost, u64::from(last) + 1 - out.len() as u64);
        }

        #[test]
        fn no_numbers_are_hostile_enough(
            numbers in proptest::collection::vec(any::<u16>(), 0..300),
        ) {
            let mut order = ReorderBuffer::default();
            let out = through(&mut order, &numbers);
            prop_assert!(out.len() <= numbers.len());
            prop_assert_eq!(order.buffered_count, 0);
        }
    }

    #[test]
    fn p01_the_largest_packets_are_held_within_bounds_too() {
        let mut order = ReorderBuffer::default();
        assert_eq!(order.handle_packet(MonoTime(0), 0, &[1]), Verdict::Now);
        let large = alloc::vec![7; 65_507 - 12];
        let mut out = 0;
        for sequence in 2..120 {
            let verdict = order.handle_packet(MonoTime(0), sequence, &large);
            out += u32::from(verdict == Verdict::Now);
            assert!(order.buffered_bytes <= BUFFERED_MAX, "{}", order.buffered_bytes);
            while order.poll(MonoTime(0)).is_some() {
                out += 1;
            }
        }
        // The window waited for the missing packet until it was full.
        assert_eq!((out, order.counts().lost), (118, 1));
        assert_eq!((order.buffered_bytes, order.buffered_count), (0, 0));
    }
}
