//! The index of a transport stream: when each byte is due, where decoders can begin, what programs
//! there are, and what is wrong with it. `docs/design/index.md` has the model.
//!
//! Promise: the same bytes give the same index, however they are cut; any bytes end in an index or
//! in an [`IndexFault`]; memory is bounded ([`Indexer::MEMORY_MAX`]) and time is linear in the
//! bytes. Times are exact to the index's own tolerance.

mod line;
mod progress;
mod tables;
mod video;

mod form;

use alloc::vec::Vec;
use core::fmt;

use super::framing::Framing;
use super::sections::section_packets;
use super::{
    Continuity, PACKET, PCR_BYTE, Packet, Pcr, PcrSample, Pid, Pts, SYNC, splits_pes_times,
};
use crate::units::{BitRate, MediaTime};

use line::{Drawing, Join, Line};
use progress::PesProgress;
use tables::{LastCounts, TableWatcher};
use video::{VideoFrame, VideoFrames};

pub(super) use video::Codec;

pub use line::Run;
pub use tables::{Program, Stream, Tables};
pub use video::AccessKind;

/// Where a decoder can begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// The packet with which its PES packet begins.
    pub at: u64,
    /// The packet with which the next one of its PID begins, or the title's end.
    pub end: u64,
    /// When it is shown, on the title's line of time; never before the one in front of it.
    pub shown: MediaTime,
    /// What can be done with it.
    pub kind: AccessKind,
    counts: LastCounts,
}

/// What is wrong with a title.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Flaws {
    /// Bytes that belong to no packet.
    pub skipped_bytes: u64,
    /// Times that the lock was lost.
    pub sync_losses: u64,
    /// Packets that their sender had marked as damaged.
    pub marked: u64,
    /// Packets whose adaptation field does not fit.
    pub malformed: u64,
    /// Sections of tables that do not fit.
    pub bad_sections: u64,
    /// Breaks of the continuity counters.
    pub gaps: u64,
    /// Frames whose timestamps are split over two packets, so that they cannot be moved.
    pub split_times: u64,
    /// Packets whose payload is scrambled.
    pub scrambled: u64,
}

/// Rates of a title, rounded up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rates {
    /// Of the slowest whole second.
    pub min: BitRate,
    /// Of all that lies between the clock's samples: exact for a constant rate.
    pub mean: BitRate,
    /// Of the fastest whole second.
    pub max: BitRate,
}

/// Why a title has no index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IndexFault {
    /// There are no transport packets in it.
    NotTransport,
    /// It has no clock that moves.
    NoClock,
    /// Its clock jumps so often that it is none.
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

/// What has been found out about a title.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Index {
    stride: u16,
    len: u64,
    packets: u64,
    clock: Pid,
    flaws: Flaws,
    line: Line,
    accesses: Vec<Access>,
    tables: Vec<Tables>,
    programs: Vec<Program>,
    /// The rates, computed once, because later callers have no time for it.
    rates: Option<Rates>,
    is_constant: bool,
}

/// Makes an index of bytes as they come.
#[derive(Clone, Debug)]
pub struct Indexer {
    /// Bytes of which it is not known yet what they are: fewer than [`LOOK`].
    carry: Vec<u8>,
    /// Where the next byte lies that has not been looked at.
    at: u64,
    framing: Option<Framing>,
    locked: bool,
    packets: u64,
    flaws: Flaws,
    continuity: Continuity,
    clock: Option<Pid>,
    /// The number of the program that the clock belongs to, once a PMT has named it.
    timed: Option<u16>,
    /// A PMT has moved the clock to another PID, and no PCR has come on it yet.
    is_moved: bool,
    /// The clock's PID has announced a jump.
    announced: bool,
    /// How far PTS and DTS have advanced since the last PCR.
    progress: PesProgress,
    /// Another clock, and its first sample since the last one of ours.
    other: Option<(Pid, Pcr)>,
    drawing: Drawing,
    watched: TableWatcher,
    video_frames: Option<(Pid, VideoFrames)>,
    accesses: Vec<Access>,
    /// Video frames that came before the clock did.
    early: Vec<(VideoFrame, LastCounts)>,
    /// Accesses that are passed over for one that is kept, since there were too many.
    thinning: Thinning,
}

#[derive(Clone, Copy, Debug)]
struct Thinning {
    every: u64,
    seen: u64,
}

/// A lock needs so many bytes: five packets of the longest kind (TR 101 290, 1.1).
const LOOK: usize = 4 * 204 + PACKET;
/// How far into a title the first lock may lie.
const REACH: u64 = 64 << 10;
/// Accesses that are kept; of more, every second one goes. Nine hours at two a second.
const ACCESSES_MAX: usize = 1 << 16;
/// Seconds whose rates are computed: three days. An invalid clock that jumps may claim centuries.
const SECONDS_MAX: u64 = 1 << 18;
/// Video frames that may come before the clock.
const EARLY_MAX: usize = 16;
/// The clock has gone when another one has come for so long instead.
const CLOCK_GONE: MediaTime = MediaTime(27_000_000);
/// A video frame is shown within this of when its bytes come, or its timestamp is of another clock.
const SHOWN_MAX: u64 = 10 * 27_000_000;
/// Without video frames any audio will do, but two a second are enough.
const SOUND_EACH: u64 = 27_000_000 / 2;
const SECOND: u64 = 27_000_000;
/// The end of a video frame that has not ended.
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
            drawing: Drawing::default(),
            watched: TableWatcher::default(),
            video_frames: None,
            accesses: Vec::new(),
            early: Vec::new(),
            thinning: Thinning { every: 1, seen: 0 },
        }
    }
}

impl Indexer {
    /// What one takes at most, and a finished index as well: points, accesses, runs, tables,
    /// counters.
    pub const MEMORY_MAX: usize = line::POINTS_MAX * size_of::<line::Point>()
        + ACCESSES_MAX * size_of::<Access>()
        + line::RUNS_MAX * size_of::<Run>()
        + (512 << 10);

    /// Bytes so far.
    pub fn len(&self) -> u64 {
        self.at + self.carry.len() as u64
    }

    /// Nothing has come yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What comes makes no difference any more: there will be no index.
    pub fn is_hopeless(&self) -> bool {
        self.framing.is_none() && self.at > REACH || self.drawing.is_restless()
    }

    /// Takes the next bytes of the title.
    pub fn add(&mut self, mut bytes: &[u8]) {
        if !self.carry.is_empty() {
            // As much as decides what the carried bytes are.
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

    /// All bytes have come.
    ///
    /// # Errors
    /// When they make no index.
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
            tables: self.watched.tables,
            programs: self.watched.programs.into_iter().map(|(program, _)| program).collect(),
        };
        Ok(index.with_rates())
    }

    /// Takes what can be taken of `bytes`, and tells how many of them; all of them at the `end`.
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
                    // Behind that there may be the beginning of a lock that needs more bytes.
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

    /// Looks for a lock that begins in the first `sure` of `bytes`: where it is, or how many may be
    /// skipped.
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
                }
            }
            Err(()) => self.flaws.bad_sections += 1,
        }
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
            // It may be the one before that is known only now.
            if begins {
                self.end_access(at);
            }
        }
    }

    /// A PES packet of the video frames begins at byte `at`: the one before has ended.
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

    /// When the PMT of the clock's program names another PCR PID, the clock moves to that PID.
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
            // The PCR was absent, while the decoding times advanced by as much.
            _ if span > line::GAP_MAX && self.progress.advanced_by(span) => Join::Gap,
            // The discontinuity concerns the new PID; the program's clock goes on.
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

    /// Looks at the video frames of the program that the clock is of, or at its audio when it has
    /// none.
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
            && shown.0.saturating_sub(last.shown.0) < SOUND_EACH
        {
            return;
        }
        self.thinning.seen += 1;
        if !self.thinning.seen.is_multiple_of(self.thinning.every) {
            return;
        }
        let VideoFrame { at, end, kind, .. } = video_frame;
        self.accesses.push(Access { at, end, shown, kind, counts });
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

/// The time at which `shown` comes, when the clock is `pcr` at `time`; none when it is of another
/// clock.
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
    /// Bytes of the title.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// An index is of some packets at least.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes from packet to packet.
    pub fn stride(&self) -> usize {
        usize::from(self.stride)
    }

    /// Packets of the title.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Whose clock it goes by: the first one in the title, and another one where that has gone.
    pub fn clock(&self) -> Pid {
        self.clock
    }

    /// What is wrong with the title.
    pub fn flaws(&self) -> Flaws {
        self.flaws
    }

    /// How far a sample of the clock may lie off the index's times, in ticks of 27 MHz.
    pub fn tolerance(&self) -> MediaTime {
        MediaTime(self.line.tolerance + 1)
    }

    /// How long it lasts: when the byte behind its last one would be due.
    pub fn duration(&self) -> MediaTime {
        self.line.points.last().map_or(MediaTime(0), |last| MediaTime(last.time))
    }

    /// Bytes and their times, ascending; between two of them time passes evenly. The first is byte
    /// 0 at time 0, the last the title's end.
    pub fn points(&self) -> impl ExactSizeIterator<Item = (u64, MediaTime)> + '_ {
        self.line.points.iter().map(|point| (point.at, MediaTime(point.time)))
    }

    /// The stretches in which the clock runs without a jump; at least one.
    pub fn runs(&self) -> &[Run] {
        &self.line.runs
    }

    /// When byte `at` is due, from the title's beginning. Rounds down to a tick.
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

    /// Where decoders can begin, ascending.
    pub fn accesses(&self) -> &[Access] {
        &self.accesses
    }

    /// The programs, as their newest tables have them.
    pub fn programs(&self) -> &[Program] {
        &self.programs
    }

    /// When the first video frame is shown: where a player's time begins.
    pub fn origin(&self) -> MediaTime {
        self.accesses.first().map_or(MediaTime(0), |first| first.shown)
    }

    /// Where to begin so that what is shown at `time` of the player's time can be seen: the last
    /// entry at or before it, or the first one.
    pub fn entry_at(&self, time: MediaTime) -> Option<&Access> {
        let time = MediaTime(self.origin().0.saturating_add(time.0));
        let after = self.accesses.partition_point(|access| access.shown <= time);
        let mut before = self.accesses[..after].iter().rev();
        before
            .find(|access| access.kind == AccessKind::Entry)
            .or_else(|| self.accesses.iter().find(|access| access.kind == AccessKind::Entry))
    }

    /// The first entry that is shown at `time` of the player's time or later.
    pub fn entry_after(&self, time: MediaTime) -> Option<&Access> {
        let time = MediaTime(self.origin().0.saturating_add(time.0));
        let from = self.accesses.partition_point(|access| access.shown < time);
        self.accesses[from..].iter().find(|access| access.kind == AccessKind::Entry)
    }

    /// An entry's time for a player.
    pub fn played(&self, access: &Access) -> MediaTime {
        MediaTime(access.shown.0.saturating_sub(self.origin().0))
    }

    /// Where the packet of `access` begins in the file: with its arrival time, where it has one.
    pub fn start_of(&self, access: &Access) -> u64 {
        access.at.saturating_sub(if self.stride == 192 { 4 } else { 0 })
    }

    /// The packets of the tables in force at `access`, framed as the title is, with the counts of
    /// the packets that came last: sent in front of it they break no counter. Empty when they are
    /// not known.
    pub fn tables_before(&self, access: &Access) -> Vec<u8> {
        let mut out = Vec::new();
        if let Some(tables) = self.tables_at(access) {
            section_packets(&tables.pat, Pid(0), access.counts.pat, self.stride(), &mut out);
            let pmt = access.counts.pmt;
            section_packets(&tables.pmt, tables.pmt_pid, pmt, self.stride(), &mut out);
        }
        out
    }

    /// The tables in force at `access`, when they are known.
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

    /// Whether the rate is one and the same all along: every sample of each run lies on one line,
    /// and these lines agree.
    pub fn is_constant(&self) -> bool {
        self.is_constant
    }

    /// The rates; none for a title without duration. Minimum and maximum cover the first
    /// three days.
    pub fn rates(&self) -> Option<Rates> {
        self.rates
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
        // A whole second is cut at bytes: some bits more or less are no other rate.
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
        // The samples are whole ticks: the least rate that they allow.
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

    /// Bytes that it takes in memory.
    pub fn size(&self) -> usize {
        size_of::<Self>()
            + self.line.points.len() * size_of::<line::Point>()
            + self.line.runs.len() * size_of::<Run>()
            + self.accesses.len() * size_of::<Access>()
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
