//! The blocks of Matroska and WebM (RFC 9559) with their times.
//!
//! Containers of elements are entered and never left: all identifiers that are read occur at one
//! place only, so a cluster of unknown size ends by itself. Damage is left behind at the next
//! cluster. A block's time is that of its presentation: in decoding order, a frame is decoded no
//! sooner than the first one behind it, or itself, is presented. By how much sooner differs from
//! frame to frame where sound lies between them, and is measured.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use tactus_core::units::MediaTime;

use super::Step;
use crate::ebml::{self, Fault, Header, id};
use crate::stairs::Stairs;

#[derive(Debug)]
pub(super) struct Matroska {
    /// Nanoseconds of a tick.
    scale: u64,
    /// The time of the cluster, in ticks.
    cluster: u64,
    /// The number of the track whose entry is read.
    track: u64,
    /// Tracks of subtitles and the like, which come when they like.
    others: Vec<u64>,
    videos: Vec<Video>,
    /// Whether the next cluster is searched.
    is_lost: bool,
}

/// Bytes of a field that is read.
const FIELD_MAX: u64 = 8;
/// Tracks that are told apart; a file has a few.
const OTHERS_MAX: usize = 256;
/// The same for tracks of video.
const VIDEOS_MAX: usize = 16;
/// Frames that are decoded before one that is shown before them: the limit of H.264 and H.265.
const REORDERED_MAX: usize = 16;
/// The flag of a block with which decoding can begin.
const KEY: u8 = 0x80;
/// The bytes of a cluster's identifier.
const CLUSTER: [u8; 4] = id::CLUSTER.to_be_bytes();

impl Default for Matroska {
    fn default() -> Self {
        let (others, videos) = (Vec::new(), Vec::new());
        Self { scale: 1_000_000, cluster: 0, track: 0, others, videos, is_lost: false }
    }
}

impl Matroska {
    /// From somewhere within a title whose ticks have `scale` nanoseconds.
    pub(super) fn within(scale: u64) -> Self {
        Self { scale, is_lost: true, ..Self::default() }
    }

    /// The same at any byte of the title.
    pub(super) fn lost(self) -> Self {
        Self { is_lost: true, ..self }
    }

    pub(super) fn step(&mut self, at: u64, bytes: &[u8], stairs: &mut Stairs) -> Step {
        if self.is_lost {
            return self.search(at, bytes, stairs);
        }
        let header = match ebml::header(bytes) {
            Ok(header) => header,
            Err(Fault::Cut) => return Step::More,
            Err(Fault::Invalid) => return self.lose(),
        };
        match (header.id, header.size) {
            (
                id::SEGMENT
                | id::CLUSTER
                | id::INFO
                | id::TRACKS
                | id::TRACK_ENTRY
                | id::BLOCK_GROUP,
                _,
            ) => Step::Skip(header.len as u64),
            (_, None) => self.lose(),
            (
                id::TIMESTAMP_SCALE | id::TIMESTAMP | id::TRACK_NUMBER | id::TRACK_TYPE,
                Some(size @ ..=FIELD_MAX),
            ) => {
                let len = header.len + size as usize;
                let Some(field) = bytes.get(header.len..len) else { return Step::More };
                self.field(header.id, ebml::unsigned(field));
                Step::Skip(len as u64)
            }
            (id::SIMPLE_BLOCK | id::BLOCK, Some(size)) => {
                self.block(at, bytes, header, size, stairs)
            }
            (_, Some(size)) => Step::Skip((header.len as u64).saturating_add(size)),
        }
    }

    fn field(&mut self, id: u32, value: u64) {
        match id {
            id::TIMESTAMP_SCALE => self.scale = value.clamp(1, 1_000_000_000),
            id::TIMESTAMP => self.cluster = value,
            id::TRACK_NUMBER => self.track = value,
            id::TRACK_TYPE if value == 1 && self.videos.len() < VIDEOS_MAX => {
                self.videos.push(Video::of(self.track));
            }
            // Video and audio; the rest is late or early as it likes.
            id::TRACK_TYPE if !matches!(value, 1 | 2) && self.others.len() < OTHERS_MAX => {
                self.others.push(self.track);
            }
            _ => {}
        }
    }

    fn block(
        &mut self,
        at: u64,
        bytes: &[u8],
        header: Header,
        size: u64,
        stairs: &mut Stairs,
    ) -> Step {
        let content = &bytes[header.len..];
        let (track, len) = match ebml::number(content) {
            Ok((track, len)) => (track.unwrap_or(0), len),
            Err(Fault::Cut) => return Step::More,
            Err(Fault::Invalid) => return self.lose(),
        };
        let Some(&[high, low, flags]) = content.get(len..).and_then(|rest| rest.first_chunk())
        else {
            return Step::More;
        };
        let whole = (header.len as u64).saturating_add(size);
        if !self.others.contains(&track) {
            let relative = i16::from_be_bytes([high, low]);
            let ticks = self.cluster.saturating_add_signed(relative.into());
            let (time, end) = (ebml::time(ticks, self.scale), at.saturating_add(whole));
            stairs.add(time, end);
            if let Some(video) = self.videos.iter_mut().find(|video| video.track == track) {
                // A block of a group has no such flag.
                let is_key = header.id == id::BLOCK || flags & KEY != 0;
                video.add(VideoFrame { end, is_key }, time, stairs);
            }
        }
        Step::Skip(whole)
    }

    /// Goes on at the next cluster.
    fn search(&mut self, at: u64, bytes: &[u8], stairs: &mut Stairs) -> Step {
        match bytes.windows(CLUSTER.len()).position(|word| word == CLUSTER) {
            Some(0) => {
                self.is_lost = false;
                self.step(at, bytes, stairs)
            }
            Some(count) => Step::Skip(count as u64),
            None if bytes.len() < CLUSTER.len() => Step::More,
            None => Step::Skip((bytes.len() - CLUSTER.len() + 1) as u64),
        }
    }

    fn lose(&mut self) -> Step {
        self.is_lost = true;
        Step::Skip(1)
    }

    /// Measures the steps when all blocks have come.
    pub(super) fn finish(self, stairs: &mut Stairs) {
        let spreads = self.videos.into_iter().map(|video| video.spread(stairs));
        if let Some(spread) = spreads.max() {
            stairs.spread(spread);
        }
    }
}

/// A track of video: how much sooner than shown its frames count as needed.
#[derive(Debug)]
struct Video {
    track: u64,
    /// In decoding order.
    frames: VecDeque<VideoFrame>,
    /// When they are shown.
    times: BinaryHeap<Reverse<MediaTime>>,
    /// The least of all frames.
    least: MediaTime,
    /// The most of those with which decoding can begin.
    most: MediaTime,
}

#[derive(Clone, Copy, Debug)]
struct VideoFrame {
    /// The byte behind it.
    end: u64,
    /// Whether decoding can begin with it.
    is_key: bool,
}

impl Video {
    fn of(track: u64) -> Self {
        let (least, most) = (MediaTime(u64::MAX), MediaTime(0));
        Self { track, frames: VecDeque::new(), times: BinaryHeap::new(), least, most }
    }

    fn add(&mut self, frame: VideoFrame, shown: MediaTime, stairs: &Stairs) {
        self.frames.push_back(frame);
        self.times.push(Reverse(shown));
        if self.frames.len() > REORDERED_MAX {
            self.judge_first(stairs);
        }
    }

    /// Frames are decoded in the rhythm in which they are shown: the first one, at its distance, at
    /// the first of all times.
    fn judge_first(&mut self, stairs: &Stairs) {
        let (Some(frame), Some(Reverse(time))) = (self.frames.pop_front(), self.times.pop()) else {
            return;
        };
        let Some(needed) = stairs.time_of(frame.end) else { return };
        let sooner = MediaTime(time.0.saturating_sub(needed.0));
        self.least = self.least.min(sooner);
        if frame.is_key {
            self.most = self.most.max(sooner);
        }
    }

    /// By how much a frame may be needed sooner than as long after a key frame as it is decoded
    /// after it.
    fn spread(mut self, stairs: &Stairs) -> MediaTime {
        while !self.frames.is_empty() {
            self.judge_first(stairs);
        }
        MediaTime(self.most.0.saturating_sub(self.least.0))
    }
}
