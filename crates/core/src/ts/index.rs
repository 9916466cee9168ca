//! The index of a transport stream: the due time of each byte, random access points, programs and
//! faults. `docs/design/index.md` has the model.
//!
//! Promise: the same bytes give the same index in any pieces. Any bytes end in an index or in an
//! [`IndexFault`]. Memory is bounded ([`Indexer::MEMORY_MAX`]) and time is linear in the bytes.
//! Times are exact to the index's tolerance.

mod line;
mod progress;
mod tables;
mod video;

mod deadlines;

mod form;

use alloc::vec::Vec;
use core::fmt;

use super::framing::Framing;
use super::sections::section_packets;
use super::{
    Continuity, PACKET, PCR_BYTE, Packet, Pcr, PcrSample, Pid, Pts, SYNC, splits_pes_times,
};
use crate::units::{BitRate, MediaTime};

use deadlines::{Deadline, DeadlineBuilder};
use line::{Join, Polyline, PolylineBuilder};
use progress::PesProgress;
use tables::{LastCounts, TableWatcher};
use video::{VideoFrame, VideoFrames};

pub(super) use video::Codec;

pub use line::Run;
pub use tables::{Program, Stream, Tables};
pub use video::AccessKind;

/// An access point: a video frame without references, or audio.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// The offset of the packet that starts its PES packet.
    pub at: u64,
    /// The offset of the packet that starts the next one of its PID, or the title's end.
    pub end: u64,
    /// Its presentation time on the title's timeline; never before that of the previous one.
    pub shown: MediaTime,
    /// The earliest decoding time of the frames that begin here or later, or 0 for a title of a
    /// constant rate.
    decoded: MediaTime,
    /// Its kind.
    pub kind: AccessKind,
    counts: LastCounts,
}

/// The faults of a title.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Flaws {
    /// Bytes outside of packets.
    pub skipped_bytes: u64,
    /// Losses of sync.
    pub sync_losses: u64,
    /// Packets with the transport error indicator.
    pub marked: u64,
    /// Packets with an invalid adaptation field.
    pub malformed: u64,
    /// Invalid table sections.
    pub bad_sections: u64,
    /// Continuity errors.
    pub gaps: u64,
    /// Frames whose timestamps are split over two packets, so that they cannot be moved.
    pub split_times: u64,
    /// Scrambled packets.
    pub scrambled: u64,
}

/// The rates of a title, rounded up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rates {
    /// The slowest full second.
    pub min: BitRate,
    /// The mean between the first and last PCR: exact for a constant rate.
    pub mean: BitRate,
    /// The fastest full second.
    pub max: BitRate,
}

/// Why a title has no index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IndexFault {
    /// It has no transport packets.
    NotTransport,
    /// It has no advancing clock.
    NoClock,
    /// Its clock jumps too often.
    Restless,
}

impl fmt::Display for IndexFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotTransport => "it is not an MPEG transport stream",
            Self::NoClock => "its program has no clock that moves",
            Self::Restless => "its clock jumps too often to tell any time",
        })
    }
}

impl core::error::Error for IndexFault {}

/// The index of a title.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Index {
    stride: u16,
    len: u64,
    packets: u64,
    clock: Pid,
    flaws: Flaws,
    line: Polyline,
    accesses: Vec<Access>,
    deadlines: Vec<Deadline>,
    /// The earliest decoding time of all frames.
    decoded: MediaTime,
    tables: Vec<Tables>,
    programs: Vec<Program>,
    /// The rates, computed once, because later callers have no time for it.
    rates: Option<Rates>,
    is_constant: bool,
}

/// Builds an index incrementally.
#[derive(Clone, Debug)]
pub struct Indexer {
    /// Bytes that are not classified yet: fewer than [`LOOK`].
    carry: Vec<u8>,
    /// The offset of the next byte to parse.
    at: u64,
    framing: Option<Framing>,
    locked: bool,
    packets: u64,
    flaws: Flaws,
    continuity: Continuity,
    clock: Option<Pid>,
    /// The program number of the clock, once a PMT has named it.
    timed: Option<u16>,
    /// A PMT has moved the clock to another PID, and no PCR has arrived on it yet.
    is_moved: bool,
    /// The clock's PID has signalled a discontinuity.
    announced: bool,
    /// How far PTS and DTS have advanced since the last PCR.
    progress: PesProgress,
    /// Another clock and its first sample since the last one of the followed clock.
    other: Option<(Pid, Pcr)>,
    drawing: PolylineBuilder,
    watched: TableWatcher,
    deadlines: DeadlineBuilder,
    video_frames: Option<(Pid, VideoFrames)>,
    accesses: Vec<Access>,
    /// Video frames before the first PCR.
    early: Vec<(VideoFrame, LastCounts)>,
    /// Access points that are skipped for each kept one, to bound their number.
    thinning: Thinning,
}

#[derive(Clone, Copy, Debug)]
struct Thinning {
    every: u64,
    seen: u64,
}

/// Bytes needed for a lock: five packets of the longest kind (TR 101 290, 1.1).
const LOOK: usize = 4 * 204 + PACKET;
/// The search range of the first lock.
const REACH: u64 = 64 << 10;
/// Upper bound of access points; beyond it every second one is dropped. Nine hours at two a second.
const ACCESSES_MAX: usize = 1 << 16;
/// Seconds whose rates are computed: three days. An invalid clock that jumps may claim centuries.
const SECONDS_MAX: u64 = 1 << 18;
/// Upper bound of video frames before the first PCR.
const EARLY_MAX: usize = 16;
/// The followed clock is given up if only another clock arrives for this long.
const CLOCK_GONE: MediaTime = MediaTime(27_000_000);
/// A video frame is presented within this time after its bytes; otherwise its timestamp belongs to
/// another clock.
const SHOWN_MAX: u64 = 10 * 27_000_000;
/// Without video any audio frame is an access point; two a second are enough.
const AUDIO_EACH: u64 = 27_000_000 / 2;
const SECOND: u64 = 27_000_000;
/// The end of an unfinished video frame.
const OPEN: u64 = u64::MAX;

impl Default for Indexer {
    fn default() -> Self {
        Self {
            carry: Vec::new(),
            at: 0,
            framing: None,
            locked: false,
            packets: 0,
            flaws: Flaws::default(),
            continuity: Continuity::default(),
            clock: None,
            timed: None,
            is_moved: false,
            announced: false,
            progress: PesProgress::default(),
            other: None,
            drawing: PolylineBuilder::default(),
            watched: TableWatcher::default(),
            deadlines: DeadlineBuilder::default(),
            video_frames: None,
            accesses: Vec::new(),
            early: Vec::new(),
            thinning: Thinning { every: 1, seen: 0 },
        }
    }
}

impl Indexer {
    /// Upper bound of an indexer's memory, and of an index's: points, deadlines and the beginnings
    /// of frames, access points, runs, tables, counters.
    pub const MEMORY_MAX: usize = line::POINTS_MAX * size_of::<line::Point>()
        + 2 * deadlines::DEADLINES_MAX * size_of::<Deadline>()
        + ACCESSES_MAX * size_of::<Access>()
        + line::RUNS_MAX * size_of::<Run>()
        + (512 << 10);

    /// Bytes so far.
    pub fn len(&self) -> u64 {
        self.at + self.carry.len() as u64
    }

    /// Whether no byte has been added.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether no index is possible any more.
    pub fn is_hopeless(&self) -> bool {
        self.framing.is_none() && self.at > REACH || self.drawing.is_restless()
    }

    /// Adds the next bytes of the title.
    pub fn add(&mut self, mut bytes: &[u8]) {
        if !self.carry.is_empty() {
            // Enough bytes to classify the carried ones.
            let before = self.carry.len();
            let (now, _) = bytes.split_at(bytes.len().min(LOOK));
            let mut carry = core::mem::take(&mut self.carry);
            carry.extend(now);
            let used = self.walk(&carry, false);
            if let Some(of_new) = used.checked_sub(before) {
                carry.clear();
                self.carry = carry;
                bytes = &bytes[of_new..];
            } else {
                carry.drain(..used);
                self.carry = carry;
                return;
            }
        }
        let used = self.walk(bytes, false);
        self.carry.extend(&bytes[used..]);
    }

    /// Ends the title.
    ///
    /// # Errors
    /// If the bytes give no index.
    pub fn finish(mut self) -> Result<Index, IndexFault> {
        let len = self.len();
        let carry = core::mem::take(&mut self.carry);
        self.walk(&carry, true);
        let framing = self.framing.ok_or(IndexFault::NotTransport)?;
        if self.drawing.is_restless() {
            return Err(IndexFault::Restless);
        }
        let (line, lead) = self.drawing.finish(len).ok_or(IndexFault::NoClock)?;
        let mut shown_last = MediaTime(0);
        for access in &mut self.accesses {
            if access.end == OPEN {
                access.end = len;
            }
            access.shown = MediaTime(access.shown.0.saturating_add(lead.0)).max(shown_last);
            shown_last = access.shown;
        }
        let begins = core::iter::once(0).chain(self.accesses.iter().map(|access| access.at));
        let (deadlines, decoded) = self.deadlines.finish(lead, begins);
        for (access, decoded) in self.accesses.iter_mut().zip(&decoded[1..]) {
            access.decoded = *decoded;
        }
        let index = Index {
            rates: None,
            is_constant: false,
            stride: framing.stride as u16,
            len,
            packets: self.packets,
            clock: self.clock.ok_or(IndexFault::NoClock)?,
            flaws: self.flaws,
            line,
            accesses: self.accesses,
            deadlines,
            decoded: decoded[0],
            tables: self.watched.tables,
            programs: self.watched.programs.into_iter().map(|(program, _)| program).collect(),
        };
        Ok(index.with_rates().without_idle_deadlines())
    }

    /// Parses as much of `bytes` as possible and returns the number of parsed bytes; all of them at
    /// the `end`.
    fn walk(&mut self, bytes: &[u8], end: bool) -> usize {
        let mut used = 0;
        while let Some(rest) = bytes.get(used..).filter(|rest| !rest.is_empty()) {
            let count = match self.framing.filter(|_| self.locked) {
                Some(framing) => {
                    if rest.len() < if end { PACKET } else { framing.stride } {
                        if end {
                            self.flaws.skipped_bytes += rest.len() as u64;
                            return bytes.len();
                        }
                        return used;
                    }
                    match Packet::first_of(rest) {
                        Some(packet) => {
                            self.packet(&packet);
                            framing.stride.min(rest.len())
                        }
                        None => {
                            self.flaws.sync_losses += 1;
                            self.locked = false;
                            0
                        }
                    }
                }
                None if rest.len() < LOOK && !end => return used,
                None if self.is_hopeless() => rest.len(),
                None => {
                    // A lock that needs more bytes may begin after this.
                    let sure = if end { rest.len() } else { rest.len() - LOOK + 1 };
                    let skip = self.lock(rest, sure);
                    self.flaws.skipped_bytes += skip as u64;
                    skip
                }
            };
            used += count;
            self.at += count as u64;
        }
        used
    }

    /// Searches a lock that begins in the first `sure` of `bytes`. Returns its offset, or how many
    /// bytes to skip.
    fn lock(&mut self, bytes: &[u8], sure: usize) -> usize {
        let sure = match self.framing {
            Some(_) => sure,
            None => usize::try_from(REACH + 1 - self.at).map_or(sure, |reach| sure.min(reach)),
        };
        for (at, _) in bytes[..sure].iter().enumerate().filter(|(_, byte)| **byte == SYNC) {
            let window = &bytes[at..];
            let found = match self.framing {
                Some(framing) => framing.locks_at_start(window).then_some(framing),
                None => Framing::find(window, 1),
            };
            if found.is_some() {
                self.framing = found;
                self.locked = true;
                return at;
            }
        }
        sure
    }

    fn packet(&mut self, packet: &Packet<'_>) {
        let at = self.at;
        self.packets += 1;
        if packet.has_error() {
            self.flaws.marked += 1;
            return;
        }
        if !packet.is_whole() {
            self.flaws.malformed += 1;
            return;
        }
        let pid = packet.pid();
        if pid == Pid::NULL {
            return;
        }
        if self.continuity.handle_packet(packet).is_some() {
            self.flaws.gaps += 1;
        }
        if splits_pes_times(packet) {
            self.flaws.split_times += 1;
        }
        if packet.is_scrambled() {
            self.flaws.scrambled += 1;
        }
        self.progress.handle_packet(packet);
        let clock = self.clock;
        if let Some(pcr) = packet.pcr() {
            self.sample(pid, PcrSample { at: at + PCR_BYTE, pcr }, packet.is_discontinuous());
        } else if Some(pid) == self.clock {
            self.announced |= packet.is_discontinuous();
        }
        match self.watched.handle_packet(at, packet, self.clock) {
            Ok(changed) => {
                if changed || clock != self.clock {
                    self.follow_clock();
                    if clock != self.clock {
                        self.watched.keep_with(at, packet, self.clock);
                    }
                    self.watch_video_frames();
                    if let Some((program, _)) = self.watched.timing(self.clock) {
                        self.deadlines.follow(program);
                    }
                }
            }
            Err(()) => self.flaws.bad_sections += 1,
        }
        self.deadlines.handle_packet(at, packet, self.drawing.last());
        let found = match &mut self.video_frames {
            Some((wanted, video_frames)) if *wanted == pid => {
                video_frames.handle_packet(at, packet)
            }
            _ => None,
        };
        let is_own = self.video_frames.as_ref().is_some_and(|(wanted, _)| *wanted == pid);
        let begins = is_own && packet.starts_unit() && packet.has_payload();
        if begins {
            self.end_access(at);
        }
        if let Some(video_frame) = found {
            self.access(video_frame, self.watched.counts);
            // The previous frame may be identified only now.
            if begins {
                self.end_access(at);
            }
        }
    }

    /// A video PES packet starts at byte `at`: the one before has ended.
    fn end_access(&mut self, at: u64) {
        let early =
            self.early.last_mut().map(|(video_frame, _)| (video_frame.at, &mut video_frame.end));
        let last = self.accesses.last_mut().map(|access| (access.at, &mut access.end));
        for (begins, end) in early.into_iter().chain(last) {
            if *end == OPEN && begins < at {
                *end = at;
            }
        }
    }

    /// If the PMT of the clock's program names another PCR PID, the clock moves to that PID.
    fn follow_clock(&mut self) {
        if self.clock.is_none() {
            return;
        }
        if let Some((program, _)) = self.watched.timing(self.clock) {
            self.timed = Some(program.number);
            return;
        }
        let Some(timed) = self.timed else { return };
        let mut programs = self.watched.programs.iter().map(|(program, _)| program);
        let own = programs.clone().find(|program| program.number == timed);
        let next = own.or_else(|| programs.next()).filter(|next| next.clock != Pid::NULL);
        if let Some(next) = next {
            (self.clock, self.timed, self.is_moved) = (Some(next.clock), Some(next.number), true);
            self.other = None;
        }
    }

    /// Handles the next PCR of the clock's PID.
    fn draw(&mut self, sample: PcrSample, announced: bool) {
        let is_announced = announced || core::mem::take(&mut self.announced);
        let is_moved = core::mem::take(&mut self.is_moved);
        let span = self.drawing.last().map_or(MediaTime(0), |(_, last)| sample.pcr.since(last));
        let join = match is_announced {
            // PCRs were missing while the decoding times advanced by as much.
            _ if span > line::GAP_MAX && self.progress.advanced_by(span) => Join::Gap,
            // The discontinuity concerns the new PID; the program's clock continues.
            true if is_moved && span <= line::GAP_MAX => Join::None,
            true => Join::Announced,
            false => Join::None,
        };
        self.drawing.handle_sample(sample, join);
        self.progress.handle_sample();
        self.other = None;
    }

    fn sample(&mut self, pid: Pid, sample: PcrSample, announced: bool) {
        match self.clock {
            Some(clock) if clock == pid => self.draw(sample, announced),
            None => {
                self.clock = Some(pid);
                self.draw(sample, announced);
                for (video_frame, counts) in core::mem::take(&mut self.early) {
                    self.access(video_frame, counts);
                }
            }
            Some(_) => match self.other {
                Some((other, first)) if other == pid => {
                    let span = sample.pcr.since(first);
                    if span > CLOCK_GONE && span < MediaTime(2 * CLOCK_GONE.0) {
                        // The PIDs of PCRs are decisive, whatever the tables say.
                        (self.clock, self.timed) = (Some(pid), None);
                        self.draw(sample, true);
                    } else if span > CLOCK_GONE {
                        self.other = Some((pid, sample.pcr));
                    }
                }
                Some(_) => {}
                None => self.other = Some((pid, sample.pcr)),
            },
        }
    }

    /// Selects the video stream of the clock's program, or its audio if it has no video.
    fn watch_video_frames(&mut self) {
        let Some((program, _)) = self.watched.timing(self.clock) else { return };
        let codecs = || {
            program.streams.iter().filter_map(|stream| Some((stream.pid, Codec::of(stream.kind)?)))
        };
        let chosen = codecs().find(|(_, codec)| *codec != Codec::Audio).or_else(|| codecs().next());
        let Some((pid, codec)) = chosen else { return };
        if !self
            .video_frames
            .as_ref()
            .is_some_and(|(known, video_frames)| (*known, video_frames.codec()) == (pid, codec))
        {
            self.video_frames = Some((pid, VideoFrames::new(codec)));
        }
    }

    fn access(&mut self, video_frame: VideoFrame, counts: LastCounts) {
        let Some((time, pcr)) = self.drawing.last() else {
            if self.early.len() < EARLY_MAX {
                self.early.push((video_frame, counts));
            }
            return;
        };
        let shown = video_frame.shown.and_then(|shown| moved(time, pcr, shown)).unwrap_or(time);
        let is_audio = self
            .video_frames
            .as_ref()
            .is_some_and(|(_, video_frames)| video_frames.codec() == Codec::Audio);
        if is_audio
            && let Some(last) = self.accesses.last()
            && shown.0.saturating_sub(last.shown.0) < AUDIO_EACH
        {
            return;
        }
        self.thinning.seen += 1;
        if !self.thinning.seen.is_multiple_of(self.thinning.every) {
            return;
        }
        let VideoFrame { at, end, kind, .. } = video_frame;
        let decoded = MediaTime(0);
        self.accesses.push(Access { at, end, shown, decoded, kind, counts });
        if self.accesses.len() == ACCESSES_MAX {
            let mut nth = 0usize;
            self.accesses.retain(|_| {
                nth += 1;
                !nth.is_multiple_of(2)
            });
            self.thinning.every = self.thinning.every.saturating_mul(2);
        }
    }
}

/// The time of `shown` if the clock is `pcr` at `time`; `None` if it belongs to another clock.
fn moved(time: MediaTime, pcr: Pcr, shown: Pts) -> Option<MediaTime> {
    let ahead = shown.as_pcr().since(pcr).0;
    let behind = pcr.since(shown.as_pcr()).0;
    if ahead <= SHOWN_MAX {
        Some(MediaTime(time.0 + ahead))
    } else if behind <= SHOWN_MAX {
        Some(MediaTime(time.0.saturating_sub(behind)))
    } else {
        None
    }
}

impl Index {
    /// The size of the title.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Always false: an index has at least some packets.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes from packet to packet.
    pub fn stride(&self) -> usize {
        usize::from(self.stride)
    }

    /// The number of packets.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// The PID of the followed clock: the first one in the title, or its successor.
    pub fn clock(&self) -> Pid {
        self.clock
    }

    /// The faults of the title.
    pub fn flaws(&self) -> Flaws {
        self.flaws
    }

    /// The largest deviation of a PCR from the index's times, in ticks of 27 MHz.
    pub fn tolerance(&self) -> MediaTime {
        MediaTime(self.line.tolerance + 1)
    }

    /// The duration: the due time of the byte after the last one.
    pub fn duration(&self) -> MediaTime {
        self.line.points.last().map_or(MediaTime(0), |last| MediaTime(last.time))
    }

    /// Bytes and their times, ascending; times in between are interpolated linearly. The first is
    /// byte 0 at time 0, the last the title's end.
    pub fn points(&self) -> impl ExactSizeIterator<Item = (u64, MediaTime)> + '_ {
        self.line.points.iter().map(|point| (point.at, MediaTime(point.time)))
    }

    /// The ranges without a jump of the clock; at least one.
    pub fn runs(&self) -> &[Run] {
        &self.line.runs
    }

    /// The due time of byte `at`, from the title's beginning. Rounds down to a tick.
    pub fn time_at(&self, at: u64) -> MediaTime {
        self.line.time_at(at)
    }

    /// The first byte that is due at `time` or later.
    pub fn position_at(&self, time: MediaTime) -> u64 {
        self.line.position_at(time)
    }

    /// The stream's own clock at byte `at`.
    pub fn pcr_at(&self, at: u64) -> Pcr {
        let time = self.time_at(at);
        let nth = self.line.runs.partition_point(|run| run.at <= at).saturating_sub(1);
        let run = self.line.runs[nth];
        match time.0.checked_sub(run.time.0) {
            Some(span) => run.pcr.after(MediaTime(span)),
            None => run.pcr.before(MediaTime(run.time.0 - time.0)),
        }
    }

    /// The access points, ascending.
    pub fn accesses(&self) -> &[Access] {
        &self.accesses
    }

    /// The bytes up to which a player needs the title, each with its time, ascending: the decoding
    /// times of the frames of the clock's program. Empty for a title of a constant rate, and for
    /// one whose program is unknown.
    pub fn deadlines(&self) -> impl DoubleEndedIterator<Item = (u64, MediaTime)> + '_ {
        self.deadlines.iter().map(|deadline| (deadline.at, MediaTime(deadline.time)))
    }

    /// The earliest decoding time of the frames that begin at byte `at` or later. Known for the
    /// title's beginning and for access points.
    pub fn decoded_from(&self, at: u64) -> Option<MediaTime> {
        if at == 0 {
            return Some(self.decoded);
        }
        let nth = self.accesses.partition_point(|access| self.start_of(access) < at);
        let access = self.accesses.get(nth).filter(|access| self.start_of(access) == at);
        access.map(|access| access.decoded)
    }

    /// The programs in their latest version.
    pub fn programs(&self) -> &[Program] {
        &self.programs
    }

    /// The presentation time of the first video frame: zero of normal play time.
    pub fn origin(&self) -> MediaTime {
        self.accesses.first().map_or(MediaTime(0), |first| first.shown)
    }

    /// The access point for playing from `time` (normal play time): the last entry at or before it,
    /// or the first one.
    pub fn entry_at(&self, time: MediaTime) -> Option<&Access> {
        let time = MediaTime(self.origin().0.saturating_add(time.0));
        let after = self.accesses.partition_point(|access| access.shown <= time);
        let mut before = self.accesses[..after].iter().rev();
        before
            .find(|access| access.kind == AccessKind::Entry)
            .or_else(|| self.accesses.iter().find(|access| access.kind == AccessKind::Entry))
    }

    /// The first entry presented at `time` (normal play time) or later.
    pub fn entry_after(&self, time: MediaTime) -> Option<&Access> {
        let time = MediaTime(self.origin().0.saturating_add(time.0));
        let from = self.accesses.partition_point(|access| access.shown < time);
        self.accesses[from..].iter().find(|access| access.kind == AccessKind::Entry)
    }

    /// The normal play time of an access point.
    pub fn played(&self, access: &Access) -> MediaTime {
        MediaTime(access.shown.0.saturating_sub(self.origin().0))
    }

    /// The offset of the packet of `access` in the file, with its arrival time if it has one.
    pub fn start_of(&self, access: &Access) -> u64 {
        access.at.saturating_sub(if self.stride == 192 { 4 } else { 0 })
    }

    /// The packets of the tables in force at `access`, framed as the title, with continuity
    /// counters that precede the title's. Empty if the tables are unknown.
    pub fn tables_before(&self, access: &Access) -> Vec<u8> {
        self.tables_framed(access, self.stride())
    }

    /// The same in plain packets, whatever the framing of the title.
    pub fn plain_tables_before(&self, access: &Access) -> Vec<u8> {
        self.tables_framed(access, PACKET)
    }

    fn tables_framed(&self, access: &Access, stride: usize) -> Vec<u8> {
        let mut out = Vec::new();
        if let Some(tables) = self.tables_at(access) {
            section_packets(&tables.pat, Pid(0), access.counts.pat, stride, &mut out);
            let pmt = access.counts.pmt;
            section_packets(&tables.pmt, tables.pmt_pid, pmt, stride, &mut out);
        }
        out
    }

    /// The tables in force at `access`, if known.
    pub fn tables_at(&self, access: &Access) -> Option<&Tables> {
        let after = self.tables.partition_point(|tables| tables.at <= access.at);
        let tables = after.checked_sub(1).map(|nth| &self.tables[nth])?;
        (!tables.pat.is_empty() && !tables.pmt.is_empty()).then_some(tables)
    }

    /// The tables in force at byte `at`, or the first tables after it.
    pub fn tables_near(&self, at: u64) -> Option<&Tables> {
        let after = self.tables.partition_point(|tables| tables.at <= at);
        self.tables.get(after.saturating_sub(1)).filter(|tables| !tables.pmt.is_empty())
    }

    /// The PCR PID in force at byte `at`.
    pub fn clock_at(&self, at: u64) -> Pid {
        let named = self.tables_near(at).and_then(|tables| tables::clock_of(&tables.pmt));
        named.unwrap_or(self.clock)
    }

    /// Whether the rate is constant: every sample of each run lies on one line, and the lines
    /// agree.
    pub fn is_constant(&self) -> bool {
        self.is_constant
    }

    /// The rates; `None` for a title without duration. Minimum and maximum cover the first three
    /// days.
    pub fn rates(&self) -> Option<Rates> {
        self.rates
    }

    /// A title of a constant rate leaves by its clock.
    fn without_idle_deadlines(mut self) -> Self {
        if self.is_constant && self.line.runs.len() == 1 {
            (self.deadlines, self.decoded) = (Vec::new(), MediaTime(0));
            self.accesses.iter_mut().for_each(|access| access.decoded = MediaTime(0));
        }
        self
    }

    fn with_rates(mut self) -> Self {
        self.rates = self.work_out_rates();
        self.is_constant = self.work_out_constancy();
        self
    }

    fn work_out_constancy(&self) -> bool {
        let Some(Rates { min, max, .. }) = self.rates else { return false };
        let before = |at: u64| self.line.points.partition_point(|point| point.at < at);
        let inner = |run: &[Run]| {
            let (from, to) = (run[0].at, run.get(1).map_or(self.len, |next| next.at));
            before(to).saturating_sub(before(from))
        };
        let mut runs: Vec<&[Run]> = self.line.runs.windows(2).collect();
        runs.extend(self.line.runs.last().map(core::slice::from_ref));
        // Full seconds are cut at bytes: a few bits of difference are rounding.
        runs.iter().all(|run| inner(run) <= 2) && max.0 - min.0 <= 16 + max.0 / 10_000
    }

    fn work_out_rates(&self) -> Option<Rates> {
        let (mut bytes, mut ticks) = (0u64, 0u64);
        for (nth, run) in self.line.runs.iter().enumerate() {
            // From its first sample to its last: the point before the next run's first.
            let next = self.line.runs.get(nth + 1).map_or(self.len, |next| next.at);
            let behind = self.line.points.partition_point(|point| point.at < next);
            let last = self.line.points[..behind].last()?;
            bytes = bytes.saturating_add(last.at.saturating_sub(run.at));
            ticks = ticks.saturating_add(last.time.saturating_sub(run.time.0));
        }
        // The samples are whole ticks: the least rate that they permit.
        let mean = rate(bytes, ticks.checked_add(1).filter(|_| ticks > 0)?);
        let (mut min, mut max) = (mean, mean);
        let seconds = (self.duration().0 / SECOND).min(SECONDS_MAX);
        let mut from = 0;
        for second in 1..=seconds {
            let to = self.position_at(MediaTime(second * SECOND));
            let rate = rate(to - from, SECOND);
            min = if second == 1 { rate } else { min.min(rate) };
            max = if second == 1 { rate } else { max.max(rate) };
            from = to;
        }
        Some(Rates { min, mean, max })
    }

    /// Bytes in memory.
    pub fn size(&self) -> usize {
        size_of::<Self>()
            + self.line.points.len() * size_of::<line::Point>()
            + self.line.runs.len() * size_of::<Run>()
            + self.accesses.len() * size_of::<Access>()
            + self.deadlines.len() * size_of::<Deadline>()
            + self
                .tables
                .iter()
                .map(|tables| tables.pat.len() + tables.pmt.len() + tables.sdt.len() + 88)
                .sum::<usize>()
            + self.programs.iter().map(|one| one.streams.len() * 4 + 40).sum::<usize>()
    }
}

/// Rounds up.
fn rate(bytes: u64, ticks: u64) -> BitRate {
    let rate = (u128::from(bytes) * 8 * u128::from(SECOND)).div_ceil(u128::from(ticks));
    BitRate(u64::try_from(rate).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
