//! A multiplex without its null packets.
//!
//! Positions count at a constant rate, and the position of a packet is its time: `place · 1504 /
//! rate`. The clocks are thus those of a constant rate, without sending its stuffing.

use alloc::vec::Vec;

use super::super::sections::counted_packets;
use super::super::{
    PACKET, PCR_BYTE, Packet, Pcr, Pid, Pts, clock_packet, map_pes_times, mark_discontinuous,
    pes_times, set_continuity, set_pcr, set_pes_time,
};
use super::scale::Scale;
use super::tables::VideoProgram;
use crate::units::{BitRate, MediaTime};

/// A packet, and the due time of its first byte from the beginning of the multiplex.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DuePacket {
    /// Rounds down to a tick.
    pub due: MediaTime,
    /// The packet.
    pub bytes: [u8; PACKET],
}

/// The last continuity counters.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// The PAT.
    pub pat: u8,
    /// The PMT.
    pub pmt: u8,
    /// The SDT.
    pub sdt: u8,
    /// The video.
    pub video_program: u8,
}

/// Builds the multiplex packet by packet.
#[derive(Clone, Debug)]
pub struct Multiplex {
    video_program: VideoProgram,
    rate: BitRate,
    /// The PCR at its beginning.
    clock: Pcr,
    counts: Counts,
    /// The next position.
    place: u64,
    /// Queued packets of tables.
    tables: Vec<[u8; PACKET]>,
    tables_next: MediaTime,
    services_next: MediaTime,
    clock_next: MediaTime,
    /// No packet with the video's PCR has been sent.
    is_new: bool,
}

/// The smallest rate of the result, also for slower titles: seven packets of tables five times a
/// second, six of the SDT and 28 PCRs are 104 kbit/s.
pub const RATE_MIN: BitRate = BitRate(256_000);
/// Interval of PCRs: TR 101 290 (2.3) requires 100 ms, TS 101 154 (4.1.5.3) 40 ms at best.
const CLOCK_EACH: MediaTime = MediaTime(36 * 27_000);
/// Interval of tables: TR 101 290 (1.3 and 1.5) requires 500 ms.
const TABLES_EACH: MediaTime = MediaTime(200 * 27_000);
/// Interval of the SDT: TR 101 290 (3.5) requires 2 s.
const SERVICES_EACH: MediaTime = MediaTime(1000 * 27_000);
/// The first SDT comes no sooner: 25 ms must lie between two (3.2), and the previous part may have
/// ended with one.
const SERVICES_FIRST: MediaTime = MediaTime(100 * 27_000);
/// The time from arrival to presentation: decoders need the whole frame.
pub(super) const LEAD: MediaTime = MediaTime(60 * 27_000);

impl Multiplex {
    /// An empty multiplex of `video_program` at `rate`; its clock begins at `clock` and its
    /// counters continue from `counts`.
    ///
    /// # Panics
    /// If the rate is less than [`RATE_MIN`].
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

    /// How long it takes until a first frame of so many packets can be presented.
    pub fn preparation(&self, packets: u64) -> MediaTime {
        place_ticks(places(packets, self.rate) + 1, self.rate)
    }

    /// The last continuity counters.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The time of the next position.
    pub fn now(&self) -> MediaTime {
        place_ticks(self.place, self.rate)
    }

    /// The PCR at the next position.
    pub fn clock(&self) -> Pcr {
        self.clock.after(self.now())
    }

    /// Builds one frame out of `bytes`, which are packets of `stride` bytes: the video packets are
    /// sent so that all of them have arrived at `due`, and the frame is presented a little later.
    /// False if there was no frame: scrambled packets, or packets that do not begin with a
    /// timestamp, are not sent.
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

    /// Builds the next packet of a slower title if it is a video packet: it comes `passed` after
    /// the first, when the title's clock is `clock`. Its timestamps are stretched.
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
            // Beyond half a wrap it is behind.
            if ahead.0 <= Pcr::WRAP.0 / 2 {
                pts_of(here.after(scale.shown(ahead)))
            } else {
                pts_of(here.before(scale.shown(clock.since(time.as_pcr()))))
            }
        });
        self.packet(bytes, &mut send);
    }

    /// Sends only tables and PCRs until `due`.
    pub fn idle(&mut self, due: MediaTime, mut send: impl FnMut(DuePacket)) {
        self.idle_until(place_before(due, self.rate), &mut send);
    }

    fn idle_until(&mut self, place: u64, send: &mut impl FnMut(DuePacket)) {
        while self.place < place {
            if self.beside(send) {
                continue;
            }
            // Skipped positions are invisible.
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

    /// Sends tables and PCRs if they are due.
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

    /// Queues packets of tables.
    fn line_up(&mut self, packets: &[u8]) {
        let chunks = packets.as_chunks::<PACKET>().0;
        self.tables = chunks.iter().rev().copied().collect();
    }

    /// A packet with a PCR only, which does not advance its counter (2.4.3.3).
    fn clock_packet(&mut self) -> [u8; PACKET] {
        let mut packet = clock_packet(self.video_program.pid, self.clock_here());
        set_continuity(&mut packet, self.counts.video_program);
        if core::mem::take(&mut self.is_new) {
            mark_discontinuous(&mut packet);
        }
        packet
    }

    /// The PCR at the position's PCR byte.
    fn clock_here(&self) -> Pcr {
        self.clock.after(byte_ticks(self.place * PACKET as u64 + PCR_BYTE, self.rate))
    }

    fn send(&mut self, bytes: [u8; PACKET], send: &mut impl FnMut(DuePacket)) {
        send(DuePacket { due: self.now(), bytes });
        self.place += 1;
    }
}

/// Positions for a frame of so many packets, with tables and PCRs. As these take less than half of
/// all positions (see [`RATE_MIN`]), twice the frame and 32 is enough.
fn places(packets: u64, rate: BitRate) -> u64 {
    packets + beside(place_ticks(2 * packets + 32, rate))
}

/// Upper bound of table and PCR packets within `span`: of each kind one more than fits.
pub(super) fn beside(span: MediaTime) -> u64 {
    span.0 / CLOCK_EACH.0
        + 1
        + TABLES_MAX * (span.0 / TABLES_EACH.0 + 1)
        + SECTION_MAX * (span.0 / SERVICES_EACH.0 + 1)
}

/// Upper bound of packets of a section: it has at most 1,024 bytes.
const SECTION_MAX: u64 = 6;
/// Upper bound of packets of the tables: one section each; the PAT of one program fits one packet.
const TABLES_MAX: u64 = 1 + SECTION_MAX;
/// Later than any title.
const NEVER: MediaTime = MediaTime(u64::MAX);

/// The time of a position. Rounds down to a tick.
pub(super) fn place_ticks(place: u64, rate: BitRate) -> MediaTime {
    byte_ticks(place.saturating_mul(PACKET as u64), rate)
}

fn byte_ticks(byte: u64, rate: BitRate) -> MediaTime {
    let ticks = u128::from(byte) * 8 * 27_000_000 / u128::from(rate.0);
    MediaTime(u64::try_from(ticks).unwrap_or(u64::MAX))
}

/// The last position that has passed by `time`.
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
