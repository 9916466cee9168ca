//! Trick play: transport streams and [movies](movie) faster, backwards and slower.
//!
//! Promise: the video frames are read at a promised rate, and only the blocks that hold them. If
//! the disks have no time for all video frames, fewer are shown, down to two a second. The output
//! is a conforming stream with the numbering of its session; for a transport stream this includes
//! the continuity counters. The argument: `docs/design/trick-play.md`.

mod cut;
mod fast;
mod gather;
pub mod movie;
mod plan;
mod slow;
mod trail;

use std::fmt;
use std::sync::Arc;

use tactus_core::block_list::BlockList;
use tactus_core::datagrams::{Framing, PAYLOAD};
use tactus_core::ledger::Resource;
use tactus_core::ts::trick::{
    Multiplex, PER_SECOND_MIN, RATE_MIN, Scale, TrickOptions, choose, video_program_of,
};
use tactus_core::ts::{Count, Index, Pcr, TableCount};
use tactus_core::units::{BitRate, Bytes, MediaTime, MonoTime, Nanos, SECOND};
use tactus_storage::catalogue::OpenTitle;
use tokio::sync::Semaphore;

use crate::broker::{Broker, GeneratedRate, Interleaver, Output, Punctuality, Reading, Refusal};
use crate::generated::{
    End, FrameOutput, GeneratedSession, Lane, OutputProgress, Packetizer, SourceSpec,
};

use cut::Cutter;
use fast::FastPacketizer;
use plan::Plan;
use slow::SlowPacketizer;
use trail::Trail;

/// The scale and the start of a trick play.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TrickRequest {
    /// Speed and direction; [`Scale::PLAY`] is not a trick play.
    pub scale: Scale,
    /// The start, on the player's timeline.
    pub from: MediaTime,
}

/// The destination of the generated stream.
#[derive(Clone, Debug)]
pub struct Destination {
    /// The output.
    pub output: Output,
    /// The framing of its datagrams; for a movie, that of the generated session.
    pub framing: Framing,
    /// The channel of its frames in a connection; `None` for datagrams.
    pub channel: Option<u8>,
}

impl Destination {
    fn begin(
        self,
        broker: &Broker,
        source_spec: SourceSpec,
        needs: GeneratedRate,
        maker: impl Packetizer,
    ) -> Result<GeneratedSession, Fault> {
        let Self { output, channel, .. } = self;
        let generated = match channel {
            Some(channel) => {
                let connection = FrameOutput { output, channels: vec![channel] };
                GeneratedSession::start_in_frames(broker, source_spec, connection, &[needs], maker)
            }
            None => {
                GeneratedSession::start(broker, source_spec, vec![Lane { output, needs }], maker)
            }
        };
        generated.map_err(Fault::Refused)
    }
}

/// Why a trick play cannot start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// it has no video frames that can be shown alone
    NoVideoFrames,
    /// no room, and fewer video frames are none
    Refused(Refusal),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoVideoFrames => f.write_str("it has no video frames that can be shown alone"),
            Self::Refused(refusal) => refusal.fmt(f),
        }
    }
}

impl std::error::Error for Fault {}

/// A trick play. Dropping it ends it.
pub struct Trick {
    generated: GeneratedSession,
    course: TrickTimeline,
    trail: Trail,
    tables: Vec<TableCount>,
}

/// The state before a trick play; empty by default.
#[derive(Clone, Copy, Default, Debug)]
pub struct Continuation<'a> {
    /// Continuity counters.
    pub counts: &'a [Count],
    /// Table versions.
    pub tables: &'a [TableCount],
}

/// The state after a trick play.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TrickEnd {
    /// Number of packets sent.
    pub packets: u64,
    /// Whether its connection, if any, is usable.
    pub is_whole: bool,
    /// The continuity counters of its elementary streams; empty if nothing has left.
    pub counts: Vec<Count>,
    /// Table versions after it.
    pub tables: Vec<TableCount>,
    /// The last timestamp, in ticks of 90 kHz from the first one.
    pub ticks: u32,
    /// Payload bytes, and punctuality.
    pub sent: (u64, Punctuality),
}

/// The course of a trick play: range and scale, on the player's timeline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TrickTimeline {
    /// Speed and direction.
    pub scale: Scale,
    /// The first video frame.
    pub from: MediaTime,
    /// Delay of its display after the beginning.
    pub after: MediaTime,
    /// The position of the last video frame.
    pub last: MediaTime,
}

impl TrickTimeline {
    /// The position at `now`, for a course that began at `begin`; `None` before it has begun.
    #[must_use]
    pub fn position(&self, begin: Option<MonoTime>, now: MonoTime) -> MediaTime {
        let Some(begin) = begin else { return self.from };
        let elapsed = MediaTime((u128::from(now.since(begin).0) * 27 / 1000) as u64);
        let passed = self.scale.passed(MediaTime(elapsed.0.saturating_sub(self.after.0)));
        if self.scale.is_reverse() {
            MediaTime(self.from.0.saturating_sub(passed.0)).max(self.last)
        } else {
            MediaTime(self.from.0.saturating_add(passed.0)).min(self.last)
        }
    }
}

/// Video frames in a second, from the highest: more video frames look no better, and each one costs
/// a seek of the disk.
const PER_SECOND: [u32; 4] = [8, 5, 3, PER_SECOND_MIN];

impl Trick {
    /// Admits the trick play and begins. Continuity counters and table versions continue those in
    /// `before`.
    ///
    /// # Errors
    /// [`Fault`] gives the reason; nothing has changed.
    ///
    /// # Panics
    /// Outside of an executor, and for growing titles. It may take long; see [`started`].
    pub fn start(
        broker: &Broker,
        title: &Arc<OpenTitle>,
        index: &Arc<Index>,
        wanted: TrickRequest,
        destination: Destination,
        before: Continuation<'_>,
    ) -> Result<Self, Fault> {
        assert!(title.following.is_none(), "only what is whole is shown so");
        if wanted.scale == Scale::SLOW {
            return Self::slow(broker, title, index, wanted, destination, before);
        }
        as_many_as_fit(|per_second| {
            let source = (title, index);
            Self::fast(broker, source, wanted, per_second, destination.clone(), before)
        })
    }

    fn fast(
        broker: &Broker,
        (title, index): (&Arc<OpenTitle>, &Arc<Index>),
        wanted: TrickRequest,
        per_second: u32,
        destination: Destination,
        before: Continuation<'_>,
    ) -> Result<Self, Fault> {
        let TrickRequest { scale, from } = wanted;
        let rate = rate_of(index);
        let origin = index.origin();
        let options = TrickOptions { scale, from: line(origin, from), per_second, rate };
        let choices = choose(index.accesses(), index.stride(), options);
        let (first, last) = choices.first().zip(choices.last()).ok_or(Fault::NoVideoFrames)?;
        let (first, last) = (*first, *last);
        let access = index.accesses().iter().find(|access| access.at == first.at);
        let video_program = access
            .and_then(|access| video_program_of(index, access))
            .ok_or(Fault::NoVideoFrames)?;
        let mut tables = before.tables.to_vec();
        let video_program = video_program.behind(&mut tables);
        let block = broker.block_of(title.volume);
        let plan = Plan::new(choices, block, title.len);
        let block_list = BlockList::new(plan.stops.as_slice().into(), title.len, block)
            .map_err(|_| Fault::NoVideoFrames)?;
        let trail = Trail::new(&video_program, before.counts);
        let multiplex = Multiplex::new(video_program, rate, CLOCK, trail.counts());
        let packets = (first.end - first.at).div_ceil(index.stride() as u64);
        let after = multiplex.preparation(packets);
        let source_spec = SourceSpec {
            title: Arc::clone(title),
            reading: Reading {
                range: 0..block_list.len().0,
                block_list: Some(block_list),
                rate: plan.rate,
                burst: plan.ready,
            },
            ready: plan.ready.min(plan.len()),
            buffer_max: plan.buffer_max,
            session: None,
        };
        let (framing, cutter) =
            (destination.framing, Cutter::new(destination.framing, rate, trail.clone()));
        let maker = FastPacketizer::new(multiplex, plan, index.stride(), after, cutter);
        let generated = destination.begin(broker, source_spec, needs_of(rate, framing), maker)?;
        let played = |shown: MediaTime| MediaTime(shown.0.saturating_sub(origin.0));
        let (from, last) = (played(first.shown), played(last.shown));
        Ok(Self { generated, course: TrickTimeline { scale, from, after, last }, trail, tables })
    }

    fn slow(
        broker: &Broker,
        title: &Arc<OpenTitle>,
        index: &Arc<Index>,
        wanted: TrickRequest,
        destination: Destination,
        before: Continuation<'_>,
    ) -> Result<Self, Fault> {
        let TrickRequest { scale, from } = wanted;
        let access = *index.entry_at(from).ok_or(Fault::NoVideoFrames)?;
        let mut tables = before.tables.to_vec();
        let video_program =
            video_program_of(index, &access).ok_or(Fault::NoVideoFrames)?.behind(&mut tables);
        // The peak of the title still fits: at half speed it takes twice as long.
        let rate = index.rates().map_or(RATE_MIN, |rates| rates.max).max(rate_of(index));
        let trail = Trail::new(&video_program, before.counts);
        let multiplex = Multiplex::new(video_program, rate, CLOCK, trail.counts());
        let needs = slow::needs(index, &access, scale);
        let pace = plan::Pace::of(&needs);
        let source_spec = SourceSpec {
            title: Arc::clone(title),
            reading: Reading {
                range: access.at..title.len.0,
                block_list: None,
                rate: pace.rate,
                burst: pace.ready,
            },
            ready: pace.ready.min(Bytes(title.len.0 - access.at)),
            buffer_max: Bytes(pace.ready.0 * 2),
            session: None,
        };
        let (framing, cutter) =
            (destination.framing, Cutter::new(destination.framing, rate, trail.clone()));
        let maker = SlowPacketizer::new(multiplex, Arc::clone(index), access.at, scale, cutter);
        let generated = destination.begin(broker, source_spec, needs_of(rate, framing), maker)?;
        // The delay between a video frame's bytes and its display is doubled, too.
        let ahead = MediaTime(access.shown.0.saturating_sub(index.time_at(access.at).0));
        let after = scale.shown(ahead);
        let last = MediaTime(index.duration().0.saturating_sub(index.origin().0));
        let from = index.played(&access);
        Ok(Self { generated, course: TrickTimeline { scale, from, after, last }, trail, tables })
    }

    /// Its scale.
    #[must_use]
    pub fn scale(&self) -> Scale {
        self.course.scale
    }

    /// Its range, on the player's timeline.
    #[must_use]
    pub fn span(&self) -> (MediaTime, MediaTime) {
        (self.course.from, self.course.last)
    }

    /// The position at `now`, on the player's timeline.
    #[must_use]
    pub fn position(&self, now: MonoTime) -> MediaTime {
        self.course.position(self.generated.begin(), now)
    }

    /// The packets sent so far; `None` before it has begun.
    #[must_use]
    pub fn gone(&self) -> Option<OutputProgress> {
        self.generated.gone(0)
    }

    /// The sender of messages between frames.
    #[must_use]
    pub fn interleaver(&self) -> Option<&Interleaver> {
        self.generated.interleaver()
    }

    /// Releases the frames, after the messages sent so far.
    pub fn go(&self) {
        self.generated.go();
    }

    /// Waits for its end.
    pub async fn ended(&self) -> End {
        self.generated.ended().await.why
    }

    /// Ends it, if it has not ended.
    pub async fn stop(self) -> TrickEnd {
        let packets = self.generated.stop().await.packets[0];
        let sent = self.generated.sent();
        let (counts, ticks) = self.trail.behind(packets);
        let tables = if packets > 0 { self.tables } else { vec![] };
        TrickEnd { packets, is_whole: !self.generated.is_cut(), counts, tables, ticks, sent }
    }
}

/// Starts a trick play with `start` on a thread for long work: choosing and planning video frames
/// takes time that grows with the title. Few run at once. `None` if the server ends.
pub async fn started<T: Send + 'static>(start: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    /// A plan of the largest title takes a second of processor time.
    static TURNS: Semaphore = Semaphore::const_new(2);
    let turn = TURNS.acquire().await.ok()?;
    let started = tokio::task::spawn_blocking(move || {
        let started = start();
        drop(turn);
        started
    });
    started.await.ok()
}

/// Retries with fewer video frames in a second while the reads are refused for lack of room.
fn as_many_as_fit<T>(mut start: impl FnMut(u32) -> Result<T, Fault>) -> Result<T, Fault> {
    let mut refused = None;
    for per_second in PER_SECOND {
        match start(per_second) {
            // Fewer video frames need less disk time and fewer of the resources that depend on it.
            Err(Fault::Refused(refusal)) if is_of_reading(refusal.resource) => {
                refused = Some(refusal);
            }
            done => return done,
        }
    }
    Err(Fault::Refused(refused.expect("each number of video frames was refused")))
}

/// Initial clock of every generated multiplex. A discontinuity is signalled to receivers of an
/// earlier clock.
const CLOCK: Pcr = Pcr::at(MediaTime(27_000_000));

/// The title's own rate, by its time stamps.
fn rate_of(index: &Index) -> BitRate {
    index.rates().map_or(RATE_MIN, |rates| rates.mean).max(RATE_MIN)
}

/// A player's time on the title's timeline.
fn line(origin: MediaTime, played: MediaTime) -> MediaTime {
    MediaTime(origin.0.saturating_add(played.0))
}

/// Whether fewer video frames need less of a resource.
fn is_of_reading(resource: Resource) -> bool {
    matches!(resource, Resource::Disk | Resource::Arena | Resource::ReadAhead | Resource::Cpu)
}

/// The needs of the datagrams of a multiplex: full ones, and a partial one for each clock, table
/// and video frame.
fn needs_of(rate: BitRate, framing: Framing) -> GeneratedRate {
    let whole = rate.bytes_in(SECOND).0.div_ceil(PAYLOAD.0);
    let datagrams = whole + PARTIAL;
    let rate = BitRate(rate.0 + datagrams * framing.header().0 * 8);
    GeneratedRate { rate, datagrams: u32::try_from(datagrams).unwrap_or(u32::MAX) }
}

/// Partial datagrams in a second: 28 clocks, five tables, one service description, eight video
/// frames.
const PARTIAL: u64 = 2 * (28 + 5 + 1 + 8);

/// Rounds up: nothing leaves early.
fn nanos(time: MediaTime) -> Nanos {
    Nanos((u128::from(time.0) * 1000).div_ceil(27) as u64)
}
