//! Restamps a stream that is joined from turns, titles and tables: continuity counters, clocks and
//! table versions become those of one stream.
//!
//! Promise: a join causes no continuity error. Clocks, and the times in PES headers with them, are
//! moved by the given amount, to a tick of 90 kHz. Table versions count changes, as in `versions`.
//! Nothing else of a packet changes, nothing is allocated, and any 188 bytes are harmless.
//!
//! A part's counters are not known in advance. The first packet of a PID in a part sets the offset
//! of its counter: it follows the last sent counter. Nothing more is stored.

use super::versions::{Handling, LongTable, TableCount, Versions};
use super::{
    PACKET, Packet, Pcr, Pid, SYNC, add_to_pes_times, mark_discontinuous, pes_times,
    set_continuity, set_pcr,
};
use crate::units::MediaTime;

/// PIDs whose continuity counters are tracked. A new PID replaces one of the earliest part. If a
/// single part has more PIDs, the others have a continuity error at a join.
pub const PIDS: usize = 64;

/// A timestamp further from the PCR than this belongs to another clock: before or after a jump.
const NEAR: u64 = 10 * 27_000_000;

/// The offset of clocks from one byte of a range on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunTimes {
    /// The packet with the first PCR after a jump.
    pub at: u64,
    /// Modulo the wrap.
    pub moved: MediaTime,
}

/// The clock values of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moment {
    /// The PID whose PCR is set instead of moved, and its value.
    pub pcr: Option<(Pid, Pcr)>,
    /// The offset of all other times, modulo the wrap.
    pub moved: MediaTime,
    /// The offset on the other side of the nearest jump, for timestamps of that clock.
    pub beyond: Option<MediaTime>,
    /// Clocks are not continuous with the part before: the first PCR of each in this part is marked
    /// (`discontinuity_indicator`, 2.4.3.5).
    pub breaks: bool,
}

/// Restamps one stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Restamper {
    counters: [Counter; PIDS],
    used: usize,
    versions: Versions,
    /// The number of the part.
    part: u32,
    /// Packets of PIDs beyond [`PIDS`].
    missed: u64,
}

/// The counter of a PID, from which a later part continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Count {
    /// The PID.
    pub pid: Pid,
    /// The last sent counter.
    pub last: u8,
    /// Its offset.
    pub step: u8,
    /// It belongs to the part before the last join: its next packet does not follow it.
    pub is_behind: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Counter {
    pid: Pid,
    /// The last sent counter.
    last: u8,
    /// The offset of counters in this part.
    step: u8,
    part: u32,
    /// Its next PCR is of another clock; checked in part `checked`.
    breaks: bool,
    checked: u32,
    /// The PID carries tables: each of its packets is parsed.
    is_table: bool,
}

impl Counter {
    /// The counter of a PID that first appears in `part`.
    fn of(pid: Pid, part: u32) -> Self {
        Self { pid, last: 0, step: 0, part, breaks: false, checked: part, is_table: false }
    }
}

impl Default for Restamper {
    fn default() -> Self {
        let nobody = Counter::of(Pid::NULL, 0);
        let versions = Versions::default();
        Self { counters: [nobody; PIDS], used: 0, versions, part: 0, missed: 0 }
    }
}

impl Restamper {
    /// Continues from `counts` and `tables`; PIDs beyond [`PIDS`] are dropped.
    pub fn behind(counts: &[Count], tables: &[TableCount]) -> Self {
        let versions = Versions::behind(tables);
        let mut this = Self { part: 1, versions, ..Self::default() };
        for (place, count) in this.counters.iter_mut().zip(counts) {
            let &Count { pid, last, step, is_behind } = count;
            *place = Counter { last, step, part: u32::from(!is_behind), ..Counter::of(pid, 1) };
            this.used += 1;
        }
        this
    }

    /// The counters of all PIDs.
    pub fn counts(&self) -> impl Iterator<Item = Count> {
        let of = |counter: &Counter| {
            let Counter { pid, last, step, part, .. } = *counter;
            Count { pid, last, step, is_behind: part != self.part }
        };
        self.counters[..self.used].iter().map(of)
    }

    /// The versions of all tables.
    pub fn tables(&self) -> impl Iterator<Item = TableCount> {
        self.versions.counts(self.part)
    }

    /// Records the counter and the table versions of a packet that leaves unchanged.
    pub fn watch(&mut self, bytes: &[u8; PACKET]) {
        let Some(packet) = Packet::read(bytes) else { return };
        let (pid, count) = (packet.pid(), packet.continuity());
        if pid == Pid::NULL || packet.has_error() || !packet.is_whole() {
            return;
        }
        match self.counter(pid) {
            Some((counter, part)) => {
                (counter.last, counter.step, counter.part) = (count, 0, part);
            }
            None => self.missed += 1,
        }
        if self.versions.concerns(pid) {
            self.versions.handle(self.part, &mut { *bytes }, false, Handling::Note);
        }
    }

    /// Begins a part that does not continue the last one: a new turn, another title, another
    /// position. `ahead` is the hash of its first table, if that is longer than a packet.
    pub fn join(&mut self, ahead: Option<LongTable>) {
        self.part += 1;
        self.versions.begin_part(ahead);
    }

    /// Reads the memory that the next packets need. The caller does this for many streams first, so
    /// that their cache misses overlap. The number has no meaning.
    pub(crate) fn look_up(&self) -> u64 {
        u64::from(self.counters[0].part ^ self.counters[4].part) ^ self.used as u64 ^ self.missed
    }

    /// Packets whose counters could not be tracked.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Restamps the next packet of the stream. Bytes without a sync byte are left alone.
    pub fn restamp(&mut self, bytes: &mut [u8; PACKET], moment: &Moment) {
        if !self.restamp_plain(bytes) {
            self.restamp_any(bytes, moment);
        }
    }

    /// The fast path: a null packet, or one with payload only, of a PID known in this part, which
    /// is more than nine of ten packets. False, and nothing is done, for others.
    #[inline]
    pub(crate) fn restamp_plain(&mut self, bytes: &mut [u8; PACKET]) -> bool {
        let [SYNC, high @ 0..0x20, low, flags] = bytes[..4] else { return false };
        if flags & 0x30 != 0x10 {
            return false;
        }
        let pid = Pid(u16::from_be_bytes([high, low]));
        // It has no counter. A title of constant rate may be null packets by half.
        if pid == Pid::NULL {
            return true;
        }
        let part = self.part;
        let mut counters = self.counters[..self.used].iter_mut();
        let Some(counter) = counters.find(|counter| counter.pid == pid) else { return false };
        if counter.part != part || counter.checked != part || counter.is_table {
            return false;
        }
        counter.last = flags.wrapping_add(counter.step) & 0x0f;
        bytes[3] = flags & 0xf0 | counter.last;
        true
    }

    fn restamp_any(&mut self, bytes: &mut [u8; PACKET], moment: &Moment) {
        let Some(packet) = Packet::read(bytes) else { return };
        let pid = packet.pid();
        if pid == Pid::NULL || packet.has_error() || !packet.is_whole() {
            return;
        }
        let (count, has_payload) = (packet.continuity(), packet.has_payload());
        let own = packet.pcr();
        let starts = packet.starts_unit() && !packet.is_scrambled();
        let is_table = self.versions.concerns(pid);
        let (mut is_marked, mut is_repeated) = (false, false);
        match self.counter(pid) {
            Some((counter, part)) => {
                let before = counter.part;
                if counter.checked != part {
                    (counter.checked, counter.breaks) = (part, moment.breaks);
                }
                if counter.part != part {
                    let due = counter.last.wrapping_add(u8::from(has_payload));
                    counter.step = due.wrapping_sub(count) & 0x0f;
                    // A packet without payload does not advance the counter (2.4.3.3): the inserted
                    // PCR packet is one, and says nothing about the title's counters.
                    if has_payload {
                        counter.part = part;
                    }
                }
                is_marked = own.is_some() && core::mem::take(&mut counter.breaks);
                let last = count.wrapping_add(counter.step) & 0x0f;
                is_repeated = counter.is_table && counter.part == before && last == counter.last;
                counter.is_table = is_table;
                counter.last = count.wrapping_add(counter.step) & 0x0f;
                if counter.step != 0 {
                    set_continuity(bytes, counter.last);
                }
            }
            None => self.missed += 1,
        }
        if let Some(own) = own {
            let law = moment.pcr.filter(|&(clock, _)| clock == pid);
            let pcr = law.map_or(own.after(moment.moved), |(_, law)| law);
            if pcr != own {
                set_pcr(bytes, pcr);
            }
            if is_marked {
                mark_discontinuous(bytes);
            }
        }
        if is_table {
            self.versions.handle(self.part, bytes, is_repeated, Handling::Count);
        } else if starts {
            Self::stamp_header(bytes, moment);
        }
    }

    fn stamp_header(bytes: &mut [u8; PACKET], moment: &Moment) {
        let by = match (moment.beyond, moment.pcr) {
            (Some(beyond), Some((_, now))) => {
                let times = Packet::read(bytes).and_then(|packet| pes_times(&packet));
                let Some(times) = times else { return };
                let off = |by| {
                    let shown = times.shown.as_pcr().after(by);
                    shown.since(now).0.min(now.since(shown).0)
                };
                let is_beyond = off(moment.moved) > NEAR && off(beyond) < off(moment.moved);
                if is_beyond { beyond } else { moment.moved }
            }
            _ => moment.moved,
        };
        if by.0 != 0 {
            add_to_pes_times(bytes, by);
        }
    }

    /// The counter of a PID and the current part; `None` if there are too many.
    fn counter(&mut self, pid: Pid) -> Option<(&mut Counter, u32)> {
        let part = self.part;
        let known = self.counters[..self.used].iter().position(|counter| counter.pid == pid);
        let at = match known {
            Some(at) => at,
            None if self.used < PIDS => {
                // No packet of it was sent: its own counters are used.
                self.counters[self.used] = Counter::of(pid, part);
                self.used += 1;
                self.used - 1
            }
            None => {
                let earliest = (0..PIDS).min_by_key(|&at| self.counters[at].part)?;
                if self.counters[earliest].part == part {
                    return None;
                }
                self.counters[earliest] = Counter::of(pid, part);
                earliest
            }
        };
        Some((&mut self.counters[at], part))
    }
}

/// A null packet of 188 bytes (2.4.1).
pub const NULL_PACKET: [u8; PACKET] = {
    let mut bytes = [0xff; PACKET];
    let head = [SYNC, 0x1f, 0xff, 0x10];
    let mut at = 0;
    while at < head.len() {
        bytes[at] = head[at];
        at += 1;
    }
    bytes
};

#[cfg(test)]
mod tests {
    use super::super::packet::tests::packet;
    use super::super::{Continuity, Pts};
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const STILL: Moment = Moment { pcr: None, moved: MediaTime(0), beyond: None, breaks: false };

    /// One packet: its PID, whether it has payload, whether it is repeated.
    type Kind = (u16, bool, bool);

    /// Packets with continuous counters, each PID beginning at any value.
    fn multiplex(kinds: &[Kind], begin: u8) -> Vec<[u8; PACKET]> {
        let mut counts = [begin; 64];
        let mut out = Vec::new();
        for &(pid, has_payload, twice) in kinds {
            let count = &mut counts[usize::from(pid)];
            *count = count.wrapping_add(u8::from(has_payload));
            let mut bytes = packet(pid, count.wrapping_add(pid as u8), None);
            if !has_payload {
                bytes[3] = bytes[3] & 0x0f | 0x20;
                bytes[4..6].copy_from_slice(&[183, 0]);
            }
            out.push(bytes);
            if twice && has_payload {
                out.push(bytes);
            }
        }
        out
    }

    fn kinds() -> impl Strategy<Value = Vec<Kind>> {
        proptest::collection::vec((0u16..31, any::<bool>(), any::<bool>()), 1..200)
    }

    proptest! {
        #[test]
        fn whatever_is_joined_no_counter_breaks_and_no_other_byte_changes(
            parts in proptest::collection::vec((kinds(), any::<u8>()), 1..12),
        ) {
            let mut restamper = Restamper::default();
            let mut watch = Continuity::default();
            for (nth, (kinds, begin)) in parts.iter().enumerate() {
                if nth > 0 {
                    restamper.join(None);
                }
                for before in multiplex(kinds, *begin) {
                    let mut bytes = before;
                    restamper.restamp(&mut bytes, &STILL);
                    prop_assert_eq!(watch.handle_packet(&Packet::read(&bytes).unwrap()), None);
                    set_continuity(&mut bytes, before[3]);
                    prop_assert_eq!(bytes, before);
                }
            }
            prop_assert_eq!(restamper.missed(), 0);
        }

        #[test]
        fn another_one_goes_on_where_one_has_ended(
            parts in proptest::collection::vec((kinds(), any::<u8>()), 3..4),
            watched in 0usize..200,
        ) {
            let mut watch = Continuity::default();
            let mut first = Restamper::default();
            let left = multiplex(&parts[0].0, parts[0].1);
            let watched = watched.min(left.len());
            for bytes in &left[..watched] {
                first.watch(bytes);
                prop_assert_eq!(watch.handle_packet(&Packet::read(bytes).unwrap()), None);
            }
            // Unchanged from then on: the join is invisible.
            let counts: Vec<_> = first.counts().collect();
            let mut second = Restamper::behind(&counts, &[]);
            for before in &left[watched..] {
                let mut bytes = *before;
                second.restamp(&mut bytes, &STILL);
                prop_assert_eq!(&bytes, before);
                prop_assert_eq!(watch.handle_packet(&Packet::read(&bytes).unwrap()), None);
            }
            // At another position, and from there one more, whose counters have the same offset.
            second.join(None);
            let (kinds, begin) = &parts[1];
            let elsewhere = multiplex(kinds, *begin);
            for (nth, before) in elsewhere.iter().enumerate() {
                if nth == elsewhere.len() / 2 {
                    let counts: Vec<_> = second.counts().collect();
                    second = Restamper::behind(&counts, &[]);
                }
                let mut bytes = *before;
                second.restamp(&mut bytes, &STILL);
                prop_assert_eq!(watch.handle_packet(&Packet::read(&bytes).unwrap()), None);
            }
        }

        #[test]
        fn null_packets_leave_as_they_are_in_every_part(
            kinds in kinds(), begin: u8, count in 0u8..16, joins in 0usize..3,
        ) {
            let mut restamper = Restamper::default();
            for mut bytes in multiplex(&kinds, begin) {
                restamper.restamp(&mut bytes, &STILL);
            }
            (0..joins).for_each(|_| restamper.join(None));
            let before = (restamper, { let mut null = NULL_PACKET; null[3] |= count; null });
            let mut null = before.1;
            prop_assert!(restamper.restamp_plain(&mut null));
            prop_assert_eq!((restamper, null), before);
        }

        #[test]
        fn the_first_part_leaves_as_it_is(kinds in kinds(), begin: u8) {
            let mut restamper = Restamper::default();
            for before in multiplex(&kinds, begin) {
                let mut bytes = before;
                restamper.restamp(&mut bytes, &STILL);
                prop_assert_eq!(bytes, before);
            }
        }

        #[test]
        fn clocks_are_set_or_moved_across_the_wrap(
            own in 0u64..Pcr::WRAP.0, law in 0u64..Pcr::WRAP.0, moved in 0u64..Pcr::WRAP.0,
        ) {
            let (own, law) = (Pcr::at(MediaTime(own)), Pcr::at(MediaTime(law)));
            let moment = Moment { pcr: Some((Pid(256), law)), moved: MediaTime(moved), ..STILL };
            for (pid, due) in [(256, law), (257, own.after(MediaTime(moved)))] {
                let mut bytes = packet(pid, 3, Some(own));
                Restamper::default().restamp(&mut bytes, &moment);
                prop_assert_eq!(bytes, packet(pid, 3, Some(due)));
            }
        }

        #[test]
        fn the_short_way_does_what_the_long_one_does(
            packets in proptest::collection::vec((0u16..5, 0u8..=255, 0u8..=255, 0u8..20), 1..200),
        ) {
            let (mut short, mut long) = (Restamper::default(), Restamper::default());
            for (pid, flags, field, other) in packets {
                let mut bytes = packet(pid, 0, None);
                bytes[3] = flags;
                bytes[4] = field;
                match other {
                    0 => bytes[0] = 0,
                    1 => bytes[1] |= 0x80,
                    2 => bytes[1] |= 0x40,
                    3 => bytes[1] |= 0x1f,
                    4 => (short.join(None), long.join(None)).1,
                    _ => bytes[3] = flags & 0xdf | 0x10,
                }
                let mut expected = bytes;
                short.restamp(&mut bytes, &STILL);
                long.restamp_any(&mut expected, &STILL);
                prop_assert_eq!(bytes, expected);
                prop_assert_eq!(short, long);
            }
        }

        #[test]
        fn no_packets_are_hostile_enough(
            tails in proptest::collection::vec(
                proptest::collection::vec(any::<u8>(), PACKET - 1),
                1..40,
            ),
            moved in 0u64..Pcr::WRAP.0,
            beyond in proptest::option::of(0u64..Pcr::WRAP.0),
        ) {
            let pcr = Some((Pid(3), Pcr::at(MediaTime(5))));
            let moment = Moment {
                pcr,
                moved: MediaTime(moved),
                beyond: beyond.map(MediaTime),
                breaks: true,
            };
            let mut restamper = Restamper::default();
            for tail in tails {
                let mut bytes = [SYNC; PACKET];
                bytes[1..].copy_from_slice(&tail);
                restamper.restamp(&mut bytes, &moment);
                restamper.join(None);
            }
        }
    }

    #[test]
    fn times_that_belong_beyond_a_jump_are_moved_with_what_is_there() {
        let mut bytes = packet(256, 0, None);
        bytes[1] |= 0x40;
        bytes[4..13].copy_from_slice(&[0, 0, 1, 0xe0, 0, 0, 0x80, 0x80, 5]);
        bytes[13..18].copy_from_slice(&[0x21, 0, 1, 0, 1]);
        let before = pes_times(&Packet::read(&bytes).unwrap()).unwrap();
        assert_eq!(before.shown, Pts::at(0));
        // The PCR is at an hour, and so is a clock moved by an hour.
        let hour = MediaTime(3600 * 27_000_000);
        let now = Some((Pid(256), Pcr::at(hour)));
        let shown = |moment: Moment| {
            let mut bytes = bytes;
            Restamper::default().restamp(&mut bytes, &moment);
            pes_times(&Packet::read(&bytes).unwrap()).unwrap().shown
        };
        let still = Moment { pcr: now, ..STILL };
        assert_eq!(shown(still), Pts::at(0));
        assert_eq!(shown(Moment { beyond: Some(hour), ..still }), Pts::at(3600 * 90_000));
        let own = Moment { moved: hour, beyond: Some(MediaTime(0)), ..still };
        assert_eq!(shown(own), Pts::at(3600 * 90_000));
    }

    #[test]
    fn a_clock_that_does_not_run_on_is_marked_once_in_each_part() {
        let mut restamper = Restamper::default();
        let mut marks = Vec::new();
        for (nth, breaks) in [false, true, true, false].into_iter().enumerate() {
            for count in 0..4u8 {
                let pcr = (count % 2 == 1).then_some(Pcr::at(MediaTime(9)));
                let mut bytes = packet(256, count, pcr);
                restamper.restamp(&mut bytes, &Moment { breaks, ..STILL });
                if Packet::read(&bytes).unwrap().is_discontinuous() {
                    marks.push((nth, count));
                }
            }
            restamper.join(None);
        }
        assert_eq!(marks, [(1, 1), (2, 1)]);
    }

    #[test]
    fn more_streams_than_there_is_room_for_are_counted() {
        let mut restamper = Restamper::default();
        for pid in 0..PIDS as u16 + 8 {
            restamper.restamp(&mut packet(pid, 0, None), &STILL);
        }
        assert_eq!(restamper.missed(), 8);
    }

    #[test]
    fn p02_titles_with_pids_of_their_own_make_room_for_each_other() {
        let mut restamper = Restamper::default();
        let mut last = [None; 2048];
        // Two hundred titles of ten PIDs each, each three times in a row; PID 0 is in all.
        for title in 0..200u16 {
            for begin in [3, 9, 14] {
                for count in 0..4 {
                    for pid in [0].into_iter().chain((1..10).map(|nth| 10 * title + nth)) {
                        let mut bytes = packet(pid, begin + count, None);
                        restamper.restamp(&mut bytes, &STILL);
                        let left = bytes[3] & 0x0f;
                        let before = last[usize::from(pid)].replace(left);
                        assert!(
                            before.is_none_or(|before: u8| before.wrapping_add(1) & 15 == left)
                        );
                    }
                }
                restamper.join(None);
            }
        }
        assert_eq!(restamper.missed(), 0);
    }
}
