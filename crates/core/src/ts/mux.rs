//! Frames into a transport stream: one programme, its tables, its clock (ISO/IEC 13818-1, 2.4).
//!
//! Promise: counters and tables are right; tables come before each picture that a decoder can begin with and at least each
//! [`TABLES_EACH`], the clock each [`CLOCK_EACH`] of frames' times, and each frame is there [`AHEAD`] before it is
//! decoded. It stuffs nothing: the rate is that of the frames.

use alloc::vec::Vec;

use super::pes::write_stamp;
use super::sections::crc;
use super::{PACKET, Pts, SYNC};
use crate::rtp::gather::Frame;
use crate::sdp::MEDIA_MAX;

/// What a stream of the programme is (table 2-34).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// H.264.
    H264,
    /// H.265.
    H265,
    /// AAC as ADTS.
    Aac,
}

/// Frames of one programme become packets.
#[derive(Clone, Debug)]
pub struct Muxer {
    streams: Vec<Stream>,
    pat: Vec<u8>,
    pmt: Vec<u8>,
    /// Counters of PAT and PMT.
    counters: [u8; 2],
    /// The stream that the clock comes with.
    clock: usize,
    /// Ticks of 90 kHz: when the clock and the tables came last.
    clock_at: Option<u64>,
    tables_at: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    content: Content,
    pid: u16,
    /// The number in front of its PES packets.
    id: u8,
    counter: u8,
}

/// When a frame is shown and decoded, in ticks of 90 kHz from the beginning on, which never wrap here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Times {
    /// Shown.
    pub shown: u64,
    /// Decoded.
    pub decoded: u64,
}

/// Of 90 kHz: how long before it is decoded a frame begins to come.
pub const AHEAD: u64 = 90_000 / 2;
/// DVB wants tables each 100 ms and the clock each 40 (TS 101 154, TR 101 290).
const TABLES_EACH: u64 = 9_000 - 900;
const CLOCK_EACH: u64 = 3_600 - 400;
const PMT_PID: u16 = 0x1000;
const FIRST_PID: u16 = 0x100;

impl Content {
    const fn stream_type(self) -> u8 {
        match self {
            Self::H264 => 0x1b,
            Self::H265 => 0x24,
            Self::Aac => 0x0f,
        }
    }

    const fn is_pictures(self) -> bool {
        !matches!(self, Self::Aac)
    }
}

impl Muxer {
    /// A programme of these.
    ///
    /// # Panics
    /// When there are none, or more than a table can name here.
    pub fn new(contents: &[Content]) -> Self {
        assert!((1..=MEDIA_MAX).contains(&contents.len()), "a few streams");
        let (mut pictures, mut sound) = (0xe0, 0xc0);
        let streams = contents.iter().zip(FIRST_PID..).map(|(&content, pid)| {
            let id = if content.is_pictures() { &mut pictures } else { &mut sound };
            *id += 1;
            Stream { content, pid, id: *id - 1, counter: 0 }
        });
        let streams: Vec<_> = streams.collect();
        let clock = contents.iter().position(|content| content.is_pictures()).unwrap_or(0);
        // The only section of the only version (2.4.4.3, 2.4.4.8).
        let [high, low] = PMT_PID.to_be_bytes();
        let pat = sealed(&[0, 0xb0, 0, 0, 1, 0xc1, 0, 0, 0, 1, 0xe0 | high, low]);
        let [high, low] = streams[clock].pid.to_be_bytes();
        let mut pmt = Vec::from([2, 0xb0, 0, 0, 1, 0xc1, 0, 0, 0xe0 | high, low, 0xf0, 0]);
        for stream in &streams {
            let [high, low] = stream.pid.to_be_bytes();
            pmt.extend([stream.content.stream_type(), 0xe0 | high, low, 0xf0, 0]);
        }
        let pmt = sealed(&pmt);
        Self { streams, pat, pmt, counters: [0; 2], clock, clock_at: None, tables_at: None }
    }

    /// Writes a frame of stream `nth` behind `out`. Frames come in the order in which they are decoded.
    pub fn write(&mut self, nth: usize, times: Times, frame: &Frame, out: &mut Vec<u8>) {
        let now = times.decoded.saturating_sub(AHEAD);
        let is_picture = self.streams[nth].content.is_pictures();
        let due = |last: Option<u64>, each| last.is_none_or(|last| now >= last + each);
        if frame.begins && is_picture || due(self.tables_at, TABLES_EACH) {
            self.tables_at = Some(now);
            self.write_tables(out);
        }
        let mut clock = None;
        let is_newer = self.clock_at.is_none_or(|last| now > last);
        if is_newer && (nth == self.clock || due(self.clock_at, CLOCK_EACH)) {
            self.clock_at = Some(now);
            match nth == self.clock {
                true => clock = Some(now),
                false => self.write_clock(now, out),
            }
        }
        let stream = &mut self.streams[nth];
        let head = pes_head(stream.id, times, frame.data.len());
        let mut rest = [&head[..], &frame.data].concat();
        let mut is_first = true;
        let mut bytes = &mut rest[..];
        while !bytes.is_empty() {
            let clock = clock.take();
            let marks = u8::from(is_first && frame.begins) << 6;
            bytes = write_packet(stream, (is_first, marks, clock), bytes, out);
            is_first = false;
        }
    }

    fn write_tables(&mut self, out: &mut Vec<u8>) {
        let [pat, pmt] = &mut self.counters;
        for (pid, section, counter) in [(0, &self.pat, pat), (PMT_PID, &self.pmt, pmt)] {
            let [high, low] = u16::to_be_bytes(pid);
            let begin = out.len();
            out.extend([SYNC, 0x40 | high, low, 0x10 | *counter, 0]);
            out.extend(section);
            out.resize(begin + PACKET, 0xff);
            *counter = (*counter + 1) & 0x0f;
        }
    }

    /// A packet of the clock and nothing else, which its counter does not count.
    fn write_clock(&self, now: u64, out: &mut Vec<u8>) {
        let stream = &self.streams[self.clock];
        let [high, low] = stream.pid.to_be_bytes();
        let begin = out.len();
        let counter = stream.counter.wrapping_sub(1) & 0x0f;
        out.extend([SYNC, high, low, 0x20 | counter, (PACKET - 5) as u8, 0x10]);
        out.extend(clock_field(now));
        out.resize(begin + PACKET, 0xff);
    }
}

/// One packet with as much of `bytes` as fits, and what is left.
fn write_packet<'a>(
    stream: &mut Stream,
    (is_first, marks, clock): (bool, u8, Option<u64>),
    bytes: &'a mut [u8],
    out: &mut Vec<u8>,
) -> &'a mut [u8] {
    let mut field = Vec::new();
    if marks != 0 || clock.is_some() {
        field.push(marks | u8::from(clock.is_some()) << 4);
        field.extend(clock.map(clock_field).into_iter().flatten());
    }
    // A field of nothing but its length takes one byte.
    let has_field = !field.is_empty() || bytes.len() < PACKET - 4;
    let own = if has_field { 1 + field.len() } else { 0 };
    let count = bytes.len().min(PACKET - 4 - own);
    let stuffing = PACKET - 4 - own - count;
    if stuffing > 0 && field.is_empty() {
        field.push(0);
    }
    let [high, low] = stream.pid.to_be_bytes();
    let begin = out.len();
    out.extend([SYNC, u8::from(is_first) << 6 | high, low]);
    out.push(if has_field { 0x30 } else { 0x10 } | stream.counter);
    if has_field {
        out.push((PACKET - 5 - count) as u8);
        out.extend(&field);
        out.resize(begin + PACKET - count, 0xff);
    }
    let (taken, rest) = bytes.split_at_mut(count);
    out.extend(&*taken);
    stream.counter = (stream.counter + 1) & 0x0f;
    rest
}

/// The clock as its field has it: 33 bits, 6 reserved, 9 of nothing.
fn clock_field(now: u64) -> [u8; 6] {
    let base = now % Pts::WRAP;
    let [.., a, b, c, d, e] = (base << 7 | 0x7e).to_be_bytes();
    [a, b, c, d, e, 0]
}

/// What stands in front of a frame (2.4.3.6).
fn pes_head(id: u8, times: Times, len: usize) -> Vec<u8> {
    let both = times.decoded != times.shown;
    let stamps = if both { 10 } else { 5 };
    // Pictures may be of any length; sound is not.
    let len = u16::try_from(3 + stamps + len).ok().filter(|_| id < 0xe0).unwrap_or(0);
    let [high, low] = len.to_be_bytes();
    let mut head = Vec::with_capacity(19);
    let flags = if both { 0xc0 } else { 0x80 };
    head.extend([0, 0, 1, id, high, low, 0x84, flags, stamps as u8]);
    head.extend(stamp(if both { 3 } else { 2 }, times.shown));
    if both {
        head.extend(stamp(1, times.decoded));
    }
    head
}

fn stamp(kind: u8, time: u64) -> [u8; 5] {
    let mut field = [kind << 4, 0, 0, 0, 0];
    write_stamp(&mut field, Pts::at(time));
    field
}

/// A section with its length and its sum.
pub(super) fn sealed(section: &[u8]) -> Vec<u8> {
    let mut section = section.to_vec();
    let len = section.len() - 3 + 4;
    section[1] = 0xb0 | (len >> 8) as u8;
    section[2] = len as u8;
    let sum = crc(&section);
    section.extend(sum.to_be_bytes());
    section
}
