//! A multiplex whose null packets are left out.
//!
//! The places of its packets are counted at a constant rate, and a packet's place is its time: `place · 1504 / rate`.
//! So clocks are those of a constant rate without its stuffing being sent.

use alloc::vec::Vec;

use super::super::sections::counted_packets;
use super::super::{
    PACKET, PCR_BYTE, Packet, Pcr, Pid, Pts, clock_packet, map_pes_times, mark_discontinuous,
    pes_times, set_continuity, set_pcr, set_pes_time,
};
use super::scale::Scale;
use super::tables::VideoProgram;
use crate::units::{BitRate, MediaTime};

/// A packet, and when its first byte is due from the beginning of the multiplex.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DuePacket {
    /// Rounds down to a tick.
    pub due: MediaTime,
    /// The packet.
    pub bytes: [u8; PACKET],
}

/// The counters of the packets that came last.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Of the association table.
    pub pat: u8,
    /// Of the program's table.
    pub pmt: u8,
    /// Of what describes the services.
    pub sdt: u8,
    /// Of the video frames.
    pub video_program: u8,
}

/// Builds it, packet by packet.
#[derive(Clone, Debug)]
pub struct Multiplex {
    video_program: VideoProgram,
    rate: BitRate,
    /// The clock at its beginning.
    clock: Pcr,
    counts: Counts,
    /// The next place.
    place: u64,
    /// Packets of the tables of which the turn has come.
    tables: Vec<[u8; PACKET]>,
    tables_next: MediaTime,
    services_next: MediaTime,
    clock_next: MediaTime,
    /// Nothing has been sent of the video frames' clock.
    is_new: bool,
}

/// Where a title is slower than that, so fast is what is built of it: seven packets of tables five times a second, six
/// of services and 28 clocks are 104 kbit/s.
pub const RATE_MIN: BitRate = BitRate(256_000);
/// A clock comes at least so often: TR 101 290 (2.3) wants 100 ms, TS 101 154 (4.1.5.3) 40 ms at best.
const CLOCK_EACH: MediaTime = MediaTime(36 * 27_000);
/// Tables come at least so often: TR 101 290 (1.3 and 1.5) wants 500 ms.
const TABLES_EACH: MediaTime = MediaTime(200 * 27_000);
/// So does what describes the services: TR 101 290 (3.5) wants 2 s.
const SERVICES_EACH: MediaTime = MediaTime(1000 * 27_000);
/// But no sooner than this: 25 ms must lie between two (3.2), and what was sent before may have ended with one.
const SERVICES_FIRST: MediaTime = MediaTime(100 * 27_000);
/// What arrives is shown so much later: decoders need all of a video frame.
pub(super) const LEAD: MediaTime = MediaTime(60 * 27_000);

impl Multiplex {
    /// Nothing built yet: of `video_program`, at `rate`, with a clock that begins at `clock` and counters that go on behind
    /// `counts`.
    ///
    /// # Panics
    /// When the rate is less than [`RATE_MIN`].
    pub fn new(video_program: VideoProgram, rate: BitRate, clock: Pcr, counts: Counts) -> Self {
        assert!(rate >= RATE_MIN, "clocks and tables need their part");
        let zero = MediaTime(0);
        let services_next = if video_program.sdt.is_empty() { NEVER } else { SERVICES_FIRST };
        Self {
            video_program,
            rate,
            clock,
            counts,
            place: 0,
            tables: Vec::new(),
            tables_next: zero,
            services_next,
            clock_next: zero,
            is_new: true,
        }
    }

    /// How long it takes until a first video frame of so many packets can be shown.
    pub fn preparation(&self, packets: u64) -> MediaTime {
        place_ticks(places(packets, self.rate) + 1, self.rate)
    }

    /// The counters of the packets that came last.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The time of the next place.
    pub fn now(&self) -> MediaTime {
        place_ticks(self.place, self.rate)
    }

    /// The clock at the next place's beginning.
    pub fn clock(&self) -> Pcr {
        self.clock.after(self.now())
    }

    /// Builds one video frame out of `bytes`, which are packets of `stride` bytes each: those of the video frames are sent so that all
    /// of them have arrived at `due`, and it is shown a little later. Answers whether it was one; of what is
    /// scrambled, or does not begin with a video frame's time, nothing is sent.
    pub fn video_frame(
        &mut self,
        bytes: &[u8],
        stride: usize,
        due: MediaTime,
        mut send: impl FnMut(DuePacket),
    ) -> bool {
        let own = || {
            let packets = bytes.chunks(stride).filter_map(Packet::first_of);
            packets.filter(|packet| packet.pid() == self.video_program.pid && packet.has_payload())
        };
        let starts = own().next().is_some_and(|first| pes_times(&first).is_some());
        if !starts || own().any(|packet| packet.is_scrambled() || packet.has_error()) {
            return false;
        }
        let packets: Vec<[u8; PACKET]> = own().map(|packet| *packet.bytes()).collect();
        let last = place_before(due, self.rate);
        let first = last.saturating_sub(places(packets.len() as u64, self.rate));
        self.idle_until(first, &mut send);
        let shown = pts_of(self.clock.after(MediaTime(due.0.saturating_add(LEAD.0))));
        for mut packet in packets {
            set_pes_time(&mut packet, shown);
            self.packet(packet, &mut send);
        }
        true
    }

    /// Builds the next packet of a title that is shown slower, when it is one of the video frames': one that comes
    /// `passed` after the first, when the title's clock is `clock`. Its times become as much longer as the
    /// title does.
    pub fn stretch(
        &mut self,
        packet: &Packet<'_>,
        scale: Scale,
        passed: MediaTime,
        clock: Pcr,
        mut send: impl FnMut(DuePacket),
    ) {
        let is_own = packet.pid() == self.video_program.pid && packet.has_payload();
        if !is_own || packet.is_scrambled() || packet.has_error() {
            return;
        }
        let due = scale.shown(passed);
        self.idle_until(place_before(due, self.rate), &mut send);
        let here = self.clock.after(MediaTime(due.0.saturating_add(LEAD.0)));
        let mut bytes = *packet.bytes();
        map_pes_times(&mut bytes, |time| {
            let ahead = time.as_pcr().since(clock);
            // Beyond half a turn of the clock it is behind.
            if ahead.0 <= Pcr::WRAP.0 / 2 {
                pts_of(here.after(scale.shown(ahead)))
            } else {
                pts_of(here.before(scale.shown(clock.since(time.as_pcr()))))
            }
        });
        self.packet(bytes, &mut send);
    }

    /// Sends tables and clocks, and nothing else, until `due`.
    pub fn idle(&mut self, due: MediaTime, mut send: impl FnMut(DuePacket)) {
        self.idle_until(place_before(due, self.rate), &mut send);
    }

    fn idle_until(&mut self, place: u64, send: &mut impl FnMut(DuePacket)) {
        while self.place < place {
            if self.beside(send) {
                continue;
            }
            // Nobody notices the places that are left out.
            let next = self.tables_next.min(self.clock_next).min(self.services_next);
            self.place = place_before(next, self.rate).clamp(self.place + 1, place);
        }
    }

    fn packet(&mut self, mut packet: [u8; PACKET], send: &mut impl FnMut(DuePacket)) {
        while self.beside(send) {}
        self.counts.video_program = self.counts.video_program.wrapping_add(1) & 0x0f;
        set_continuity(&mut packet, self.counts.video_program);
        clear_discontinuity(&mut packet);
        if set_pcr(&mut packet, self.clock_here()) {
            self.clock_next = MediaTime(self.now().0 + CLOCK_EACH.0);
        }
        self.send(packet, send);
    }

    /// Sends what comes beside the video frames, if it is its turn.
    fn beside(&mut self, send: &mut impl FnMut(DuePacket)) -> bool {
        let now = self.now();
        if let Some(packet) = self.tables.pop() {
            self.send(packet, send);
            return true;
        }
        if now >= self.tables_next {
            self.tables_next = MediaTime(now.0 + TABLES_EACH.0);
            let mut packets = Vec::new();
            let VideoProgram { pat, pmt, pmt_pid, .. } = &self.video_program;
            counted_packets(pat, Pid(0), &mut self.counts.pat, &mut packets);
            counted_packets(pmt, *pmt_pid, &mut self.counts.pmt, &mut packets);
            self.line_up(&packets);
            return self.beside(send);
        }
        if now >= self.services_next {
            self.services_next = MediaTime(now.0 + SERVICES_EACH.0);
            let mut packets = Vec::new();
            counted_packets(&self.video_program.sdt, Pid::SDT, &mut self.counts.sdt, &mut packets);
            self.line_up(&packets);
            return self.beside(send);
        }
        if now >= self.clock_next {
            self.clock_next = MediaTime(now.0 + CLOCK_EACH.0);
            let packet = self.clock_packet();
            self.send(packet, send);
            return true;
        }
        false
    }

    /// These come next, one by one.
    fn line_up(&mut self, packets: &[u8]) {
        let chunks = packets.as_chunks::<PACKET>().0;
        self.tables = chunks.iter().rev().copied().collect();
    }

    /// A packet that carries the clock and nothing else, and counts nothing (2.4.3.3).
    fn clock_packet(&mut self) -> [u8; PACKET] {
        let mut packet = clock_packet(self.video_program.pid, self.clock_here());
        set_continuity(&mut packet, self.counts.video_program);
        if core::mem::take(&mut self.is_new) {
            mark_discontinuous(&mut packet);
        }
        packet
    }

    /// The clock at the place's clock byte.
    fn clock_here(&self) -> Pcr {
        self.clock.after(byte_ticks(self.place * PACKET as u64 + PCR_BYTE, self.rate))
    }

    fn send(&mut self, bytes: [u8; PACKET], send: &mut impl FnMut(DuePacket)) {
        send(DuePacket { due: self.now(), bytes });
        self.place += 1;
    }
}

/// Places for a video frame of so many packets, and for what comes beside it. With clocks and tables taking less than
/// half of all places, as [`RATE_MIN`] has it, the span of twice the video frame and 32 is enough.
fn places(packets: u64, rate: BitRate) -> u64 {
    packets + beside(place_ticks(2 * packets + 32, rate))
}

/// Packets that come beside video frames within `span`, at most: of each kind one more than times it fits in.
pub(super) fn beside(span: MediaTime) -> u64 {
    span.0 / CLOCK_EACH.0
        + 1
        + TABLES_MAX * (span.0 / TABLES_EACH.0 + 1)
        + SECTION_MAX * (span.0 / SERVICES_EACH.0 + 1)
}

/// Packets of a section at most: it has at most 1,024 bytes.
const SECTION_MAX: u64 = 6;
/// Packets of the tables at most: one section each, that of one program in one packet.
const TABLES_MAX: u64 = 1 + SECTION_MAX;
/// Later than any title.
const NEVER: MediaTime = MediaTime(u64::MAX);

/// The time of a place. Rounds down to a tick.
pub(super) fn place_ticks(place: u64, rate: BitRate) -> MediaTime {
    byte_ticks(place.saturating_mul(PACKET as u64), rate)
}

fn byte_ticks(byte: u64, rate: BitRate) -> MediaTime {
    let ticks = u128::from(byte) * 8 * 27_000_000 / u128::from(rate.0);
    MediaTime(u64::try_from(ticks).unwrap_or(u64::MAX))
}

/// The last place that has passed by `time`.
fn place_before(time: MediaTime, rate: BitRate) -> u64 {
    let places = u128::from(time.0) * u128::from(rate.0) / (27_000_000 * 8 * PACKET as u128);
    u64::try_from(places).unwrap_or(u64::MAX)
}

/// Rounds down.
fn pts_of(clock: Pcr) -> Pts {
    Pts::at(clock.ticks().0 / Pts::TICK)
}

fn clear_discontinuity(packet: &mut [u8; PACKET]) {
    if packet[3] & 0x20 != 0 && packet[4] > 0 {
        packet[5] &= 0x7f;
    }
}
