//! Describes titles (SDP), and maps ranges to positions in a title.

use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use tactus_control::broker::Refusal;
use tactus_control::trick;
use tactus_control::ts_packets::{self, TsPackets};
use tactus_core::datagrams::{Counting, Plan};
use tactus_core::path::{RequestPath, encode_segment};
use tactus_core::rtsp::Status;
use tactus_core::rtsp::message::Reply;
use tactus_core::rtsp::session::SessionId;
use tactus_core::rtsp::span::{self, RangeStart, Span};
use tactus_core::ts::trick::Scale;
use tactus_core::ts::{self, Index, clock_packet};
use tactus_core::units::{BitRate, MediaTime};
use tactus_storage::catalogue::{IndexState, OpenFault, OpenTitle, PathObject};

use super::{Reason, Server};

/// A transport stream that can be played.
pub(super) struct TsTitle {
    pub(super) path: RequestPath,
    pub(super) title: Arc<OpenTitle>,
    /// The reserved rate: that of the fastest part.
    pub(super) rate: BitRate,
    /// The mean rate.
    mean: BitRate,
    /// The range of complete packets, and their framing.
    pub(super) bytes: Range<u64>,
    pub(super) packets: ts::Framing,
    /// The reservation is for the fastest part, and packets leave by the PCR.
    by_clock: bool,
}

/// A position in a title.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TitlePosition {
    pub(super) at: u64,
    /// Normal play time.
    pub(super) time: MediaTime,
}

/// The range of one PLAY.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Part {
    /// `None`: from the current position.
    pub(super) from: Option<TitlePosition>,
    /// PAT and PMT that are sent first, so that receivers need not wait for the next ones.
    pub(super) front: Box<[u8]>,
    pub(super) to: TitlePosition,
}

/// A PLAY at another scale.
pub(super) struct ScaledPlay {
    pub(super) index: Arc<Index>,
    pub(super) scale: Scale,
    /// `None`: from the current position.
    pub(super) from: Option<MediaTime>,
}

/// Ticks in a second.
const TICKS: u128 = 27_000_000;

impl Server {
    /// The transport stream under `path`.
    ///
    /// # Errors
    /// The refusal to answer with.
    pub(super) async fn ts_title(&self, path: RequestPath) -> Result<TsTitle, Reply> {
        let title = match self.catalogue.find(&path).await {
            Ok(PathObject::Title(title)) if title.following.is_some() => {
                let text = "the title is still being uploaded; it can be played once it is stored";
                return Err(later(text));
            }
            Ok(PathObject::Title(title)) => title,
            Ok(PathObject::Directory(_)) => return Err(fault(OpenFault::NotFound)),
            Err(error) => return Err(fault(error)),
        };
        let kind = |text: &str| Reply::said(Status::UNSUPPORTED_MEDIA, text);
        let TsPackets { bytes, framing: packets } =
            ts_packets::find(&title).await.map_err(|text| kind(&text))?;
        let facts = self.catalogue.media(&title, &path).await.map_err(fault)?;
        let rate = facts.ok_or_else(|| kind("the title has no PCR, so its rate is unknown"))?.rate;
        if bytes.is_empty() {
            return Err(kind("the title contains no complete transport packet"));
        }
        let ts_title = TsTitle { path, title, rate, mean: rate, bytes, packets, by_clock: false };
        let block = self.broker.block_of(ts_title.title.volume);
        let peak = match self.index(&ts_title).await? {
            IndexState::Ready(index) => Plan::of(&index, ts_title.bytes.clone(), block),
            IndexState::Pending | IndexState::Never(_) => None,
        };
        Ok(match peak {
            Some((_, peak)) => TsTitle { rate: peak.max(rate), by_clock: true, ..ts_title },
            None => ts_title,
        })
    }

    /// The plan of `range`, with the tables of `front` before it. The continuity counters continue
    /// as `counting` says.
    pub(super) async fn plan(
        &self,
        ts_title: &TsTitle,
        range: &Range<u64>,
        front: &[u8],
        counting: Counting,
    ) -> Arc<Plan> {
        let block = self.broker.block_of(ts_title.title.volume);
        let index = match self.index(ts_title).await {
            Ok(IndexState::Ready(index)) => Some(index),
            _ => None,
        };
        let own = index.as_ref().filter(|_| ts_title.by_clock);
        let own = own.and_then(|index| Plan::of(index, range.clone(), block));
        // Bytes that leave faster than their PCR are not paced by it.
        let own = own.filter(|(plan, rate)| plan.line.is_some() || *rate == ts_title.rate);
        let (line, restamping) = own.map_or((None, None), |(plan, _)| (plan.line, plan.restamping));
        let is_moved = counting.jumps
            || counting.before.iter().any(|count| count.step != 0)
            || counting.tables.iter().any(|table| table.version != table.own);
        let restamping = is_moved.then(|| restamping.unwrap_or_default());
        let mut front = front.to_vec();
        if let Some((pid, pcr)) = restamping.as_ref().and_then(|restamping| restamping.clock)
            && counting.jumps
        {
            // No packet of the new clock comes before the discontinuity indicator (2.4.3.5).
            front.extend(clock_packet(pid, pcr));
        }
        let counting = Some(counting);
        let plan = Plan { line, restamping, counting, ..Plan::default() };
        Arc::new(plan.of_packets(ts_title.packets).with_front(&front))
    }

    /// The index of the title, if it is ready.
    async fn index(&self, ts_title: &TsTitle) -> Result<IndexState, Reply> {
        self.catalogue.index(&ts_title.title, &ts_title.path).await.map_err(fault)
    }

    /// The session description for `base` at the server's address `own`.
    pub(super) async fn describe(&self, ts_title: &TsTitle, own: IpAddr) -> Result<String, Reply> {
        let index = self.index(ts_title).await?;
        let family = if own.is_ipv4() { "IP4" } else { "IP6" };
        let any = if own.is_ipv4() { "0.0.0.0" } else { "::" };
        let range = span::write(MediaTime(0), ts_title.duration(ready(&index)));
        let version = ts_title.title.modified.0 / 1_000_000_000;
        // RFC 3551: kilobits with the overhead of IP, UDP and RTP, rounded up.
        let stride = ts_title.packets.stride as u128;
        let bare = u128::from(ts_title.mean.0) * ts::PACKET as u128 / stride;
        let wire = (bare * (1316 + 40)).div_ceil(1316 * 1000);
        let name: String = ts_title.path.name().chars().filter(|c| !c.is_control()).collect();
        Ok(format!(
            "v=0\r\no=- {id} {version} IN {family} {own}\r\ns={name}\r\nc=IN {family} {any}\r\n\
             t=0 0\r\n\
             a=tool:tactus\r\na=control:*\r\na={range}\r\n\
             m=video 0 RTP/AVP 33\r\nb=AS:{wire}\r\na=rtpmap:33 MP2T/90000\r\n\
             a=control:{TRACK}\r\n",
            id = ts_title.title.id.0,
            range = format_args!("range:{range}"),
        ))
    }

    /// The part of the title in the requested range.
    ///
    /// # Errors
    /// The refusal to answer with.
    pub(super) async fn part(&self, ts_title: &TsTitle, asked: Span) -> Result<Part, Reply> {
        let index = self.index(ts_title).await?;
        let invalid = || {
            let end = ts_title.duration(ready(&index));
            let text = format!("the title plays {}", span::write(MediaTime(0), end));
            Reply::said(Status::INVALID_RANGE, &text)
        };
        let known = || match &index {
            IndexState::Ready(index) => Ok(index),
            IndexState::Pending => Err(later("this title is being indexed; try again shortly")),
            IndexState::Never(_) => Err(invalid()),
        };
        let end = ts_title.end(ready(&index));
        let mut front = vec![];
        let from = match asked.from {
            RangeStart::Now => None,
            RangeStart::At(MediaTime(0)) => Some(ts_title.beginning()),
            RangeStart::At(time) => {
                let index = known()?;
                let entry = index.entry_at(time).filter(|_| time < index.duration());
                let entry = entry.ok_or_else(invalid)?;
                let at = index.start_of(entry).max(ts_title.bytes.start);
                front = index.plain_tables_before(entry);
                Some(TitlePosition { at, time: index.played(entry) })
            }
        };
        let to = match asked.to {
            None => end,
            Some(time) if time >= end.time => end,
            Some(time) => match known()?.entry_after(time) {
                None => end,
                Some(entry) => {
                    let index = known()?;
                    TitlePosition { at: index.start_of(entry), time: index.played(entry) }
                }
            },
        };
        // A range between two random access points starts at the one before.
        match from {
            Some(from) if from.at >= to.at => Err(invalid()),
            _ => Ok(Part { from, front: front.into(), to }),
        }
    }

    /// The same at another scale: it goes on to the end of the title, or to its beginning.
    ///
    /// # Errors
    /// The refusal to answer with.
    pub(super) async fn shown(
        &self,
        ts_title: &TsTitle,
        asked: Span,
        scale: Scale,
    ) -> Result<ScaledPlay, Reply> {
        let text = match self.index(ts_title).await? {
            IndexState::Ready(index) => {
                let from = match asked.from {
                    RangeStart::Now => None,
                    RangeStart::At(time) => Some(time),
                };
                if from.is_none_or(|from| from <= index.duration()) {
                    return Ok(ScaledPlay { index, scale, from });
                }
                format!("the title plays {}", span::write(MediaTime(0), index.duration()))
            }
            IndexState::Pending => {
                let text = "this title is being indexed; try again shortly";
                return Err(later(text));
            }
            IndexState::Never(why) => format!("{why}; only normal speed is available"),
        };
        Err(Reply::said(Status::INVALID_RANGE, &text))
    }

    /// The answer when a title cannot be shown at the requested scale.
    pub(super) fn not_shown(&self, fault: &trick::Fault) -> Reply {
        match fault {
            trick::Fault::NoVideoFrames => {
                Reply::said(Status::UNSUPPORTED_MEDIA, &fault.to_string())
            }
            trick::Fault::Refused(refusal) => self.no_room(refusal),
        }
    }

    /// The answer when a resource is short.
    pub(super) fn no_room(&self, refusal: &Refusal) -> Reply {
        self.counters.refuse(Reason::Room);
        let again = refusal.retry_after.as_secs().max(1).to_string();
        Reply::said(Status::NOT_ENOUGH_BANDWIDTH, &refusal.message).with("Retry-After", again)
    }

    /// The duration of a session's title.
    pub(super) async fn length(&self, id: SessionId) -> Option<MediaTime> {
        if let Some(session) = self.play_session(id) {
            return Some(session.movie_title().length());
        }
        let ts_title = self.streams().get(&id).map(|handle| Arc::clone(&handle.ts_title))?;
        let index = self.index(&ts_title).await.ok();
        Some(ts_title.duration(index.as_ref().and_then(ready)))
    }

    /// The normal play time of byte `at`.
    pub(super) async fn place(&self, ts_title: &TsTitle, at: u64) -> TitlePosition {
        let index = self.index(ts_title).await.ok();
        let time = match index.as_ref().and_then(ready) {
            Some(index) => {
                let first = index.time_at(ts_title.bytes.start);
                MediaTime(index.time_at(at).0.saturating_sub(first.0))
            }
            None => ts_title.by_rate(at),
        };
        TitlePosition { at, time }
    }
}

/// The control name of the only medium.
pub(super) const TRACK: &str = "track1";

impl TsTitle {
    pub(super) fn beginning(&self) -> TitlePosition {
        TitlePosition { at: self.bytes.start, time: MediaTime(0) }
    }

    fn end(&self, index: Option<&Index>) -> TitlePosition {
        TitlePosition { at: self.bytes.end, time: self.duration(index) }
    }

    fn duration(&self, index: Option<&Index>) -> MediaTime {
        index.map_or_else(|| self.by_rate(self.bytes.end), Index::duration)
    }

    /// The time of byte `at` by the rate alone. Rounds down.
    fn by_rate(&self, at: u64) -> MediaTime {
        let bits = u128::from(at - self.bytes.start) * 8;
        MediaTime((bits * TICKS / u128::from(self.mean.0.max(1))) as u64)
    }

    /// Its path for logs and the status.
    pub(super) fn shown(&self) -> String {
        shown(&self.path)
    }
}

/// A path for logs and the status.
pub(super) fn shown(path: &RequestPath) -> String {
    let mut text = String::new();
    for segment in path.segments() {
        text.push('/');
        encode_segment(segment, &mut text);
    }
    text
}

fn ready(indexed: &IndexState) -> Option<&Index> {
    match indexed {
        IndexState::Ready(index) => Some(index),
        IndexState::Pending | IndexState::Never(_) => None,
    }
}

/// Value of Retry-After in seconds.
const AGAIN: &str = "5";

pub(super) fn later(text: &str) -> Reply {
    Reply::said(Status::UNAVAILABLE, text).with("Retry-After", AGAIN)
}

pub(super) fn fault(fault: OpenFault) -> Reply {
    match fault {
        OpenFault::NotFound => Reply::said(Status::NOT_FOUND, &fault.to_string()),
        OpenFault::Denied => Reply::said(Status::FORBIDDEN, &fault.to_string()),
        OpenFault::Busy => later(&fault.to_string()),
        OpenFault::Failed(_) | OpenFault::Damaged(_) => {
            Reply::said(Status::INTERNAL, &fault.to_string())
        }
    }
}
