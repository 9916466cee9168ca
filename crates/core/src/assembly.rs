//! Assembly of incoming RTP media into one transport stream: a transport stream is passed on, and
//! video and audio are multiplexed.
//!
//! Promise: frames keep their relative times as given by sender reports, and leave in decoding
//! order. Lost packets are counted. Waiting is limited to four seconds and 16 MiB of frames. This
//! module gets packets and times, and uses no sockets.

mod announced;
mod decoding;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::rtp::gather::{Frame, Gather, Kind};
use crate::rtp::rtcp::{self, NtpTime, Reception};
use crate::rtp::{self, Packet, Receipt, ReorderBuffer, Verdict};
use crate::ts::{AHEAD, Content, Muxer, Resync, Times};
use crate::units::{MonoTime, Nanos, SECOND};

pub use announced::{Coding, Track, UnsupportedAnnouncement, tracks};
use decoding::Decoding;

/// Limit of the wait for all media and their reports at the beginning: senders report in the first
/// seconds.
const WAIT_MAX: Nanos = SECOND.times(4);
/// Limit of the bytes of waiting frames.
const QUEUED_MAX: usize = 16 << 20;
/// Number of video frames inspected before the first one leaves, to measure their reordering.
const LOOK: usize = 20;
/// In ticks of 90 kHz: a medium that lags the others by this much is not waited for.
const LAG_MAX: u64 = 90_000;
/// In ticks of 90 kHz: the earliest decoding time of the first frame; the clock begins earlier.
const BEGIN: i64 = 90_000 + AHEAD as i64;

/// Counts over all media.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Accepted packets.
    pub packets: u64,
    /// Lost packets.
    pub lost: u64,
    /// Packets that are malformed, or of another sender.
    pub refused: u64,
    /// Dropped frames and units.
    pub broken: u64,
    /// Frames that left.
    pub frames: u64,
}

/// The assembly of one stream.
#[derive(Debug)]
pub struct Assembly {
    assembler: Assembler,
    counts: Counts,
}

#[derive(Debug)]
enum Assembler {
    TransportStream(Box<TransportStream>),
    Elementary(Box<Elementary>),
}

/// A medium that is a transport stream.
#[derive(Debug)]
struct TransportStream {
    source: Source,
    resync: Resync,
    out: Vec<u8>,
}

#[derive(Debug)]
struct Elementary {
    media: Vec<Medium>,
    muxer: Muxer,
    /// When the first packet came.
    since: Option<MonoTime>,
    /// The offsets between the media are known.
    has_begun: bool,
    out: Vec<u8>,
    frames: u64,
}

/// Packets of one sender, in order.
#[derive(Debug)]
struct Source {
    payload_type: u8,
    locked: Option<u32>,
    order: ReorderBuffer,
    receipt: Receipt,
}

#[derive(Debug)]
struct Medium {
    source: Source,
    gather: Gather,
    clock: u32,
    /// When the first packet came.
    came: Option<MonoTime>,
    /// The first timestamp, and the last one with its distance.
    times: Option<(u32, u32, i64)>,
    /// A sender report: its time, and its timestamp.
    report: Option<(NtpTime, u32)>,
    /// In ticks of 90 kHz: added to the distance from the first timestamp.
    offset: i64,
    decoding: Option<Decoding>,
    /// By their distance from the first timestamp, in ticks of 90 kHz.
    queued: VecDeque<(i64, Frame)>,
    queued_bytes: usize,
    /// The next frame, and its decoding time.
    next: Option<Times>,
}

impl Assembly {
    /// An assembly of these media. A multiplex made here gets the service name `name`.
    ///
    /// # Panics
    /// If there are none: [`tracks`] returns at least one.
    pub fn new(tracks: &[Track], name: &str) -> Self {
        let assembler = match tracks {
            [track @ Track { coding: Coding::Whole, .. }] => {
                Assembler::TransportStream(Box::new(TransportStream {
                    source: Source::new(track),
                    resync: Resync::default(),
                    out: Vec::new(),
                }))
            }
            _ => Assembler::Elementary(Box::new(Elementary::new(tracks, name))),
        };
        Self { assembler, counts: Counts::default() }
    }

    /// Takes an RTP packet of medium `nth`. Returns whether it is valid.
    pub fn handle_packet(&mut self, now: MonoTime, nth: usize, datagram: &[u8]) -> bool {
        let taken = match &mut self.assembler {
            Assembler::TransportStream(whole) => whole.handle(now, datagram),
            Assembler::Elementary(parts) => parts.handle(now, nth, datagram),
        };
        self.counts.packets += u64::from(taken);
        self.counts.refused += u64::from(!taken);
        taken
    }

    /// Takes an RTCP packet of medium `nth`. Returns whether it is well-formed.
    pub fn handle_report(&mut self, now: MonoTime, nth: usize, datagram: &[u8]) -> bool {
        let Ok(packets) = rtcp::read(datagram) else { return false };
        for packet in packets {
            let rtcp::Packet::Sender { source, info, .. } = packet else { continue };
            let Some(known) = self.source(nth) else { continue };
            if known.locked.is_some_and(|locked| locked != source) {
                continue;
            }
            known.receipt.handle_sender(now, source, info.time);
            if let Assembler::Elementary(parts) = &mut self.assembler {
                parts.media[nth].report.get_or_insert((info.time, info.timestamp));
            }
        }
        true
    }

    /// The receiver report of medium `nth` for its sender; `None` if nothing has come since the
    /// last report.
    pub fn report(&mut self, now: MonoTime, nth: usize) -> Option<Reception> {
        self.source(nth)?.receipt.report(now)
    }

    fn source(&mut self, nth: usize) -> Option<&mut Source> {
        match &mut self.assembler {
            Assembler::TransportStream(whole) => (nth == 0).then_some(&mut whole.source),
            Assembler::Elementary(parts) => Some(&mut parts.media.get_mut(nth)?.source),
        }
    }

    /// Appends the transport packets that need not wait any more at `now` to `out`.
    pub fn poll(&mut self, now: MonoTime, out: &mut Vec<u8>) {
        match &mut self.assembler {
            Assembler::TransportStream(whole) => whole.poll(now, out),
            Assembler::Elementary(parts) => parts.poll(now, false, out),
        }
    }

    /// Ends the input; appends all remaining packets to `out`.
    pub fn handle_end(&mut self, now: MonoTime, out: &mut Vec<u8>) {
        match &mut self.assembler {
            Assembler::TransportStream(whole) => {
                whole.source.order.handle_end();
                whole.poll(now, out);
            }
            Assembler::Elementary(parts) => {
                parts.end(now);
                parts.poll(now, true, out);
            }
        }
    }

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        let mut counts = self.counts;
        match &self.assembler {
            Assembler::TransportStream(whole) => counts.lost = whole.source.order.counts().lost,
            Assembler::Elementary(parts) => {
                counts.lost = parts.media.iter().map(|one| one.source.order.counts().lost).sum();
                counts.broken = parts.media.iter().map(|one| one.gather.broken()).sum();
                counts.frames = parts.frames;
            }
        }
        counts
    }
}

impl Source {
    fn new(track: &Track) -> Self {
        let (payload_type, receipt) = (track.payload_type, Receipt::new(track.clock));
        Self { payload_type, locked: None, order: ReorderBuffer::default(), receipt }
    }

    /// The packet, if it belongs to this sender.
    fn read<'a>(&mut self, now: MonoTime, datagram: &'a [u8]) -> Option<Packet<'a>> {
        let packet = Packet::read(datagram).ok()?;
        let is_ours = packet.payload_type == self.payload_type
            && *self.locked.get_or_insert(packet.source) == packet.source;
        if !is_ours {
            return None;
        }
        self.receipt.handle_packet(now, &packet);
        Some(packet)
    }
}

impl TransportStream {
    fn handle(&mut self, now: MonoTime, datagram: &[u8]) -> bool {
        let Some(packet) = self.source.read(now, datagram) else { return false };
        self.drain(now);
        let Self { source, resync, out } = self;
        if source.order.handle_packet(now, packet.sequence, packet.payload) == Verdict::Now {
            resync.handle(packet.payload, |packet, _| out.extend(packet));
        }
        self.drain(now);
        true
    }

    fn drain(&mut self, now: MonoTime) {
        let Self { source, resync, out } = self;
        while let Some(payload) = source.order.poll(now) {
            resync.handle(&payload, |packet, _| out.extend(packet));
        }
    }

    fn poll(&mut self, now: MonoTime, out: &mut Vec<u8>) {
        self.drain(now);
        out.append(&mut self.out);
    }
}

impl Elementary {
    fn new(tracks: &[Track], name: &str) -> Self {
        let content = |track: &Track| match &track.coding {
            Coding::Parts(Gather::VideoFrames(units)) if units.kind() == Kind::H265 => {
                Content::H265
            }
            Coding::Parts(Gather::VideoFrames(_)) => Content::H264,
            Coding::Parts(Gather::Audio(_)) => Content::Aac,
            Coding::Whole => unreachable!("a transport stream is alone"),
        };
        let contents: Vec<_> = tracks.iter().map(content).collect();
        let medium = |track: &Track| {
            let Coding::Parts(gather) = &track.coding else { unreachable!("as above") };
            let decoding = gather.is_video().then(|| Decoding::new(track.is_in_order));
            Medium {
                source: Source::new(track),
                gather: gather.clone(),
                clock: track.clock,
                came: None,
                times: None,
                report: None,
                offset: 0,
                decoding,
                queued: VecDeque::new(),
                queued_bytes: 0,
                next: None,
            }
        };
        Self {
            media: tracks.iter().map(medium).collect(),
            muxer: Muxer::new(&contents, name),
            since: None,
            has_begun: false,
            out: Vec::new(),
            frames: 0,
        }
    }

    fn handle(&mut self, now: MonoTime, nth: usize, datagram: &[u8]) -> bool {
        let Some(medium) = self.media.get_mut(nth) else { return false };
        let Some(packet) = medium.source.read(now, datagram) else { return false };
        self.since.get_or_insert(now);
        medium.came.get_or_insert(now);
        medium.drain(now);
        // The whole packet is kept if it must wait: its payload is not enough.
        let verdict = medium.source.order.handle_packet(now, packet.sequence, datagram);
        if verdict == Verdict::Now {
            medium.take(&packet);
        }
        medium.drain(now);
        true
    }

    fn end(&mut self, now: MonoTime) {
        for medium in &mut self.media {
            medium.source.order.handle_end();
            medium.drain(now);
            let Medium { gather, times, clock, queued, queued_bytes, .. } = medium;
            gather.handle_end(|frame| enqueue(times, *clock, queued, queued_bytes, frame));
        }
    }

    fn poll(&mut self, now: MonoTime, is_end: bool, out: &mut Vec<u8>) {
        for medium in &mut self.media {
            medium.drain(now);
        }
        if !self.has_begun {
            if !self.may_begin(now, is_end) {
                return;
            }
            self.begin();
        }
        while let Some(nth) = self.next(is_end) {
            let medium = &mut self.media[nth];
            let times = medium.next.take().expect("it was asked for");
            let (_, frame) = medium.queued.pop_front().expect("its time is known");
            medium.queued_bytes -= frame.data.len();
            self.muxer.write(nth, times, &frame, &mut self.out);
            self.frames += 1;
        }
        out.append(&mut self.out);
    }

    /// Whether all needed information has come, or the wait has ended.
    fn may_begin(&self, now: MonoTime, is_end: bool) -> bool {
        let Some(since) = self.since else { return false };
        let queued: usize = self.media.iter().map(|medium| medium.queued_bytes).sum();
        let is_known = |medium: &Medium| {
            let looked = medium.decoding.is_none() || medium.queued.len() >= LOOK;
            !medium.queued.is_empty()
                && looked
                && (medium.report.is_some() || self.media.len() == 1)
        };
        is_end
            || now.since(since) >= WAIT_MAX
            || queued >= QUEUED_MAX
            || self.media.iter().all(is_known)
    }

    /// Fixes the offsets between the media: by the reports, or, if one has none, by arrival times.
    fn begin(&mut self) {
        self.has_begun = true;
        let by_reports = self.media.iter().filter(|medium| medium.came.is_some());
        let by_reports = by_reports.clone().all(|medium| medium.report.is_some());
        let since = self.since.expect("something has come");
        let first_report = self.media.iter().find_map(|medium| medium.report);
        for medium in &mut self.media {
            let Some((first, ..)) = medium.times else { continue };
            medium.offset = match (medium.report, first_report) {
                (Some((at, timestamp)), Some((zero, _))) if by_reports => {
                    let ahead = i64::from(first.wrapping_sub(timestamp) as i32);
                    ntp_ticks(at, zero) + ticks(ahead, medium.clock)
                }
                _ => {
                    let came = medium.came.unwrap_or(since);
                    (came.since(since).0 * 9 / 100_000) as i64
                }
            };
        }
        let all = self.media.iter().filter(|medium| medium.times.is_some());
        let least = |medium: &Medium| {
            medium.queued.iter().map(|(at, _)| at + medium.offset).min().unwrap_or(medium.offset)
        };
        let first = all.map(least).min().unwrap_or(0);
        for medium in &mut self.media {
            medium.offset += BEGIN - first;
            if let Some(decoding) = &mut medium.decoding {
                let shown = medium.queued.iter().take(4 * LOOK);
                let shown: Vec<_> = shown.map(|(at, _)| at + medium.offset).collect();
                decoding.begin(&shown);
            }
        }
    }

    /// The medium whose frame is decoded next; `None` while a frame that may be earlier is waited
    /// for.
    fn next(&mut self, is_end: bool) -> Option<usize> {
        for medium in &mut self.media {
            if medium.next.is_none()
                && let Some((at, _)) = medium.queued.front()
            {
                let shown = (at + medium.offset).max(0);
                let decoded = match &mut medium.decoding {
                    Some(decoding) => decoding.decoded(shown),
                    None => shown,
                };
                let [shown, decoded] = [shown, decoded].map(i64::unsigned_abs);
                medium.next = Some(Times { shown, decoded });
            }
        }
        let decoded = |medium: &Medium| medium.next.map(|times| times.decoded);
        let first = self.media.iter().enumerate();
        let (at, nth) = first.filter_map(|(nth, one)| Some((decoded(one)?, nth))).min()?;
        let is_waited_for = self.media.iter().any(|medium| medium.next.is_none());
        if !is_end && is_waited_for {
            // The progress of the other media.
            let newest = self.media.iter().filter_map(Medium::newest).max().unwrap_or(0);
            let queued: usize = self.media.iter().map(|medium| medium.queued_bytes).sum();
            if newest.saturating_sub(at) < LAG_MAX && queued < QUEUED_MAX {
                return None;
            }
        }
        Some(nth)
    }
}

impl Medium {
    fn drain(&mut self, now: MonoTime) {
        while let Some(datagram) = self.source.order.poll(now) {
            if let Ok(packet) = rtp::Packet::read(&datagram) {
                self.take(&packet);
            }
        }
    }

    fn take(&mut self, packet: &Packet<'_>) {
        let Self { gather, times, clock, queued, queued_bytes, .. } = self;
        // The time of a packet counts even if its frame may be broken: distances are measured
        // between neighbours.
        times.get_or_insert((packet.timestamp, packet.timestamp, 0));
        gather.handle(packet, |frame| enqueue(times, *clock, queued, queued_bytes, frame));
    }

    fn newest(&self) -> Option<u64> {
        let (at, _) = self.queued.back()?;
        Some((at + self.offset).max(0).unsigned_abs())
    }
}

fn enqueue(
    times: &mut Option<(u32, u32, i64)>,
    clock: u32,
    queued: &mut VecDeque<(i64, Frame)>,
    queued_bytes: &mut usize,
    frame: Frame,
) {
    let (_, last, distance) = times.get_or_insert((frame.timestamp, frame.timestamp, 0));
    *distance += i64::from(frame.timestamp.wrapping_sub(*last) as i32);
    *last = frame.timestamp;
    *queued_bytes += frame.data.len();
    queued.push_back((ticks(*distance, clock), frame));
}

/// In ticks of 90 kHz, rounded down.
fn ticks(count: i64, clock: u32) -> i64 {
    (i128::from(count) * 90_000).div_euclid(i128::from(clock)) as i64
}

/// From `zero` to `at` in ticks of 90 kHz.
fn ntp_ticks(at: NtpTime, zero: NtpTime) -> i64 {
    let span = at.0.wrapping_sub(zero.0) as i64;
    ((i128::from(span) * 90_000) >> 32) as i64
}

#[cfg(test)]
mod tests;
