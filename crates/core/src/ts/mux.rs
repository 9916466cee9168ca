//! Multiplexes frames into a transport stream of one program (ISO/IEC 13818-1, 2.4).
//!
//! Promise: counters and tables are valid. Tables precede each random access point and are repeated
//! at least each [`TABLES_EACH`], the PCR each [`CLOCK_EACH`] of frame times, the SDT each
//! [`SERVICES_EACH`]. Each frame arrives [`AHEAD`] before it is decoded. There is no stuffing: the
//! rate is that of the frames.

use alloc::string::String;
use alloc::vec::Vec;

use super::pes::write_timestamp;
use super::sections::{SDT_ACTUAL, counted_packets, crc};
use super::{PACKET, Pid, Pts, SYNC};
use crate::rtp::gather::Frame;
use crate::sdp::MEDIA_MAX;

/// The codec of a stream (table 2-34).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// H.264.
    H264,
    /// H.265.
    H265,
    /// AAC as ADTS.
    Aac,
}

/// Packetizes the frames of one program.
#[derive(Clone, Debug)]
pub struct Muxer {
    streams: Vec<Stream>,
    pat: Vec<u8>,
    pmt: Vec<u8>,
    sdt: Vec<u8>,
    /// The last continuity counters of PAT, PMT and SDT.
    counters: [u8; 3],
    /// The stream that carries the PCR.
    clock: usize,
    /// Ticks of 90 kHz: the last PCR, tables and SDT.
    clock_at: Option<u64>,
    tables_at: Option<u64>,
    services_at: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    content: Content,
    pid: u16,
    /// The stream id of its PES packets.
    id: u8,
    counter: u8,
}

/// Presentation and decoding time of a frame, in ticks of 90 kHz from the beginning, which never
/// wrap here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Times {
    /// The presentation time.
    pub shown: u64,
    /// The decoding time.
    pub decoded: u64,
}

/// Ticks of 90 kHz from the arrival of a frame to its decoding.
pub const AHEAD: u64 = 90_000 / 2;
/// DVB requires tables each 100 ms and the PCR each 40 (TS 101 154, TR 101 290).
const TABLES_EACH: u64 = 9_000 - 900;
const CLOCK_EACH: u64 = 3_600 - 400;
/// DVB requires the SDT each 2 s (TR 101 290, 3.5).
const SERVICES_EACH: u64 = 90_000;
/// Bytes of a service name: the whole section fits in one packet.
const NAME_MAX: usize = 128;
const PMT_PID: Pid = Pid(0x1000);
const FIRST_PID: u16 = 0x100;
/// Service descriptor: EN 300 468, 6.1 and 6.2.33.3.
const SERVICE: u8 = 0x48;
const TELEVISION: u8 = 0x01;
const RADIO: u8 = 0x0a;
/// The first byte of a text, which selects its encoding (annex A).
const UTF_8: u8 = 0x15;
/// An unassigned network for temporary use (TS 101 162).
const PRIVATE_NETWORK: u16 = 0xff01;

impl Content {
    const fn stream_type(self) -> u8 {
        match self {
            Self::H264 => 0x1b,
            Self::H265 => 0x24,
            Self::Aac => 0x0f,
        }
    }

    const fn is_video(self) -> bool {
        !matches!(self, Self::Aac)
    }
}

impl Muxer {
    /// A program of these streams with the service name `name`, truncated to the available room.
    ///
    /// # Panics
    /// If there are none, or more than a table can list here.
    pub fn new(contents: &[Content], name: &str) -> Self {
        assert!((1..=MEDIA_MAX).contains(&contents.len()), "a few streams");
        let (mut video_frames, mut audio) = (0xe0, 0xc0);
        let streams = contents.iter().zip(FIRST_PID..).map(|(&content, pid)| {
            let id = if content.is_video() { &mut video_frames } else { &mut audio };
            *id += 1;
            Stream { content, pid, id: *id - 1, counter: 0 }
        });
        let streams: Vec<_> = streams.collect();
        let clock = contents.iter().position(|content| content.is_video()).unwrap_or(0);
        // The only section of the only version (2.4.4.3, 2.4.4.8).
        let [high, low] = PMT_PID.0.to_be_bytes();
        let pat = sealed(&[0, 0xb0, 0, 0, 1, 0xc1, 0, 0, 0, 1, 0xe0 | high, low]);
        let [high, low] = streams[clock].pid.to_be_bytes();
        let mut pmt = Vec::from([2, 0xb0, 0, 0, 1, 0xc1, 0, 0, 0xe0 | high, low, 0xf0, 0]);
        for stream in &streams {
            let [high, low] = stream.pid.to_be_bytes();
            pmt.extend([stream.content.stream_type(), 0xe0 | high, low, 0xf0, 0]);
        }
        let pmt = sealed(&pmt);
        let sdt = services(contents[clock], name);
        let (clock_at, tables_at, services_at) = (None, None, None);
        Self { streams, pat, pmt, sdt, counters: [0; 3], clock, clock_at, tables_at, services_at }
    }

    /// Appends a frame of stream `nth` to `out`. Frames must be in decoding order.
    pub fn write(&mut self, nth: usize, times: Times, frame: &Frame, out: &mut Vec<u8>) {
        let now = times.decoded.saturating_sub(AHEAD);
        let is_video_frame = self.streams[nth].content.is_video();
        let due = |last: Option<u64>, each| last.is_none_or(|last| now >= last + each);
        if frame.begins && is_video_frame || due(self.tables_at, TABLES_EACH) {
            self.tables_at = Some(now);
            let [pat, pmt, _] = &mut self.counters;
            counted_packets(&self.pat, Pid(0), pat, out);
            counted_packets(&self.pmt, PMT_PID, pmt, out);
        }
        if due(self.services_at, SERVICES_EACH) {
            self.services_at = Some(now);
            let [.., sdt] = &mut self.counters;
            counted_packets(&self.sdt, Pid::SDT, sdt, out);
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

    /// A packet with a PCR only, which does not advance its counter.
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

/// Writes one packet with as much of `bytes` as fits, and returns the rest.
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
    // An adaptation field with a length only takes one byte.
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

/// The PCR field: 33 bits, 6 reserved, 9 of zero extension.
fn clock_field(now: u64) -> [u8; 6] {
    let base = now % Pts::WRAP;
    let [.., a, b, c, d, e] = (base << 7 | 0x7e).to_be_bytes();
    [a, b, c, d, e, 0]
}

/// The PES header of a frame (2.4.3.6).
fn pes_head(id: u8, times: Times, len: usize) -> Vec<u8> {
    let both = times.decoded != times.shown;
    let stamps = if both { 10 } else { 5 };
    // The length of video may be unbounded; that of audio may not.
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
    write_timestamp(&mut field, Pts::at(time));
    field
}

/// The SDT of the only service (EN 300 468, 5.2.3, 6.2.33): video, or audio alone.
fn services(content: Content, name: &str) -> Vec<u8> {
    // Bytes below 32 and from 128 to 159 would be control codes.
    let mut name: String = name.chars().filter(|one| !one.is_control()).collect();
    name.truncate(name.floor_char_boundary(NAME_MAX));
    // Without the first byte the text would be Latin (annex A).
    let text = if name.is_empty() { Vec::new() } else { [&[UTF_8], name.as_bytes()].concat() };
    let kind = if content.is_video() { TELEVISION } else { RADIO };
    let front = [SERVICE, 3 + text.len() as u8, kind, 0, text.len() as u8];
    let descriptor = [&front[..], &text].concat();
    let network = PRIVATE_NETWORK.to_be_bytes();
    // Running, not scrambled, without event information.
    let service = [0, 1, 0xfc, 0x80, descriptor.len() as u8];
    let head = [SDT_ACTUAL, 0xf0, 0, 0, 1, 0xc1, 0, 0, network[0], network[1], 0xff];
    sealed(&[&head[..], &service, &descriptor].concat())
}

/// A section with its length and its CRC.
pub(super) fn sealed(section: &[u8]) -> Vec<u8> {
    let mut section = section.to_vec();
    let len = section.len() - 3 + 4;
    section[1] = section[1] & 0xf0 | (len >> 8) as u8;
    section[2] = len as u8;
    let sum = crc(&section);
    section.extend(sum.to_be_bytes());
    section
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_has_the_name_that_fits_in_one_packet() {
        let long = "\u{e4}".repeat(300);
        let names = [
            ("", ""),
            ("Evening news", "Evening news"),
            ("\u{1f}two\r\n\u{8a}lines", "twolines"),
            (&long, &long[..NAME_MAX]),
        ];
        for (name, shown) in names {
            for (content, kind) in [(Content::H265, TELEVISION), (Content::Aac, RADIO)] {
                let section = services(content, name);
                assert!(section.len() <= PACKET - 5, "{name:?}: it fits in one packet");
                assert_eq!(crc(&section), 0, "{name:?}: the sum is right");
                assert_eq!(service(&section), (kind, shown), "{name:?}");
            }
        }
    }

    /// The kind and the name of the only service (EN 300 468, 5.2.3, 6.2.33).
    fn service(section: &[u8]) -> (u8, &str) {
        let loop_of_services = &section[11..section.len() - 4];
        let descriptors = &loop_of_services[5..];
        assert_eq!(usize::from(loop_of_services[4]), descriptors.len());
        let [SERVICE, len, kind, 0, name_len, name @ ..] = descriptors else {
            panic!("no service")
        };
        assert_eq!((usize::from(*len), usize::from(*name_len)), (3 + name.len(), name.len()));
        let name = name.split_first().map_or(&[][..], |(how, name)| {
            assert_eq!(*how, UTF_8);
            name
        });
        (*kind, str::from_utf8(name).expect("whole letters"))
    }
}
