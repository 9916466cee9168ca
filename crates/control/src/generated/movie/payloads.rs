//! Samples in packets.
//!
//! Promise: the packets of a sample are at most `PACKET_MAX` long and spread evenly over the
//! sample's duration; the marker is set as the format says. A video frame that is an access point
//! brings its parameter sets. A packet is made on demand.

use tactus_core::generated::TimedDatagram;
use tactus_core::rtp::{self, Header, LengthPrefixed, aac, ac3, h264, h265, mpeg_audio};
use tactus_core::units::{BitRate, Bytes, Nanos};
use tactus_media::movie::{Codec, OPUS_MAX, Sample, Track};

use super::TrackStream;
use crate::broker::GeneratedRate;

/// Limit of the bytes of a packet, including its RTP header: leaves room for tunnels over frames of
/// 1,500 bytes.
pub const PACKET_MAX: usize = 1400;
/// Limit of the bytes of a payload.
const PAYLOAD_MAX: usize = PACKET_MAX - rtp::HEADER;
const _: () = assert!(OPUS_MAX as usize == PAYLOAD_MAX);
/// Minimum of sample bytes in a full packet.
const FULL: u64 = PAYLOAD_MAX as u64 - 4;
/// Packets of a sample that are not full: a unit that is no video frame, the parameter sets, and
/// the end.
const PARTIAL: u64 = 3;
/// Limit of the bytes in front of the sample bytes of a packet.
const FRONT: u64 = 16;

/// Times of a sample.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    /// When its first packet is due.
    pub(crate) due: Nanos,
    /// Duration over which its packets are spread.
    pub(crate) lasts: Nanos,
    /// Its presentation time.
    pub(crate) timestamp: u32,
}

/// The peak needs of the packets of `track`, with this number of samples in the busiest second.
pub(crate) fn needs(track: &Track, samples_per_second: u32) -> GeneratedRate {
    let bytes = track.rate.0.div_ceil(8);
    let datagrams = bytes.div_ceil(FULL) + PARTIAL * u64::from(samples_per_second);
    let rate = BitRate((bytes + datagrams * FRONT) * 8);
    GeneratedRate { rate, datagrams: u32::try_from(datagrams).unwrap_or(u32::MAX) }
}

/// Limit of the bytes of all packets of a sample of `len` bytes that is an access point.
pub(crate) fn bytes_of(track: &Track, len: u32) -> Bytes {
    let sets: usize = match &track.codec {
        Codec::H264 { sets, .. } => sets.iter().map(Vec::len).sum(),
        Codec::H265 { sets, .. } => sets.iter().flatten().map(Vec::len).sum(),
        _ => 0,
    };
    let len = u64::from(len);
    Bytes(len + sets as u64 + (len.div_ceil(FULL) + PARTIAL) * FRONT)
}

/// The packets of a sample, generated one by one on demand, because a large sample has many.
pub(crate) struct Packets {
    /// The sample.
    bytes: Vec<u8>,
    /// The packet of its parameter sets, if any.
    sets: Vec<u8>,
    cuts: std::vec::IntoIter<Cut>,
    count: usize,
    /// The header of the next packet.
    header: Header,
    moment: Moment,
}

/// The content of a packet: prefix bytes and a part of the sample; or the parameter sets.
#[derive(Clone, Copy)]
enum Cut {
    Sets,
    Part { front: [u8; FRONT_MAX], front_len: u8, ends: bool, at: usize, len: usize },
}

/// Limit of prefix bytes: the headers of AAC and MPEG audio.
const FRONT_MAX: usize = 4;

impl Packets {
    /// The packets of a sample with its bytes. The first gets the sequence number `sequence`, which
    /// is advanced.
    pub(crate) fn new(
        (track, sample, bytes): (&Track, &Sample, Vec<u8>),
        sent: &TrackStream,
        sequence: &mut u16,
        moment: Moment,
    ) -> Self {
        let (mut sets, mut cuts) = (vec![], vec![]);
        each_payload(track, sample, &bytes, |front, part, ends| {
            if part.is_empty() {
                sets = front.to_vec();
                cuts.push(Cut::Sets);
                return;
            }
            let mut own = [0; FRONT_MAX];
            own[..front.len()].copy_from_slice(front);
            let at = part.as_ptr().addr() - bytes.as_ptr().addr();
            let (front, front_len, len) = (own, front.len() as u8, part.len());
            cuts.push(Cut::Part { front, front_len, ends, at, len });
        });
        // The end of an access unit, in the formats that mark it.
        let is_marked =
            matches!(track.codec, Codec::H264 { .. } | Codec::H265 { .. } | Codec::Aac { .. });
        if let (true, Some(Cut::Part { ends, .. })) = (is_marked, cuts.last_mut()) {
            *ends = true;
        }
        let header = Header {
            marker: false,
            payload_type: sent.payload_type,
            sequence: *sequence,
            timestamp: moment.timestamp,
            source: sent.session.source,
        };
        // The sequence number wraps.
        *sequence = sequence.wrapping_add(cuts.len() as u16);
        Self { bytes, sets, count: cuts.len(), cuts: cuts.into_iter(), header, moment }
    }

    /// The due time of the next packet; `None` after the last.
    pub(crate) fn due(&self) -> Option<Nanos> {
        let nth = self.count - self.cuts.len();
        let after = u128::from(self.moment.lasts.0) * nth as u128;
        (nth < self.count).then(|| Nanos(self.moment.due.0 + (after / self.count as u128) as u64))
    }
}

impl Iterator for Packets {
    type Item = TimedDatagram;

    fn next(&mut self) -> Option<TimedDatagram> {
        let due = self.due()?;
        let cut = self.cuts.next()?;
        // Sets are followed by the frame that they belong to, unless it is empty.
        let marker = match &cut {
            Cut::Sets => self.cuts.len() == 0,
            Cut::Part { ends, .. } => *ends,
        };
        let header = Header { marker, ..self.header }.write();
        self.header.sequence = self.header.sequence.wrapping_add(1);
        Some(match &cut {
            Cut::Sets => TimedDatagram::of_parts(due, &[&header, &self.sets]),
            Cut::Part { front, front_len, at, len, .. } => {
                let front = &front[..usize::from(*front_len)];
                TimedDatagram::of_parts(due, &[&header, front, &self.bytes[*at..*at + *len]])
            }
        })
    }
}

/// Gives `take` each payload of a sample, in two parts, and whether it ends a frame whose end its
/// format marks in the middle of a sample.
fn each_payload(
    track: &Track,
    sample: &Sample,
    bytes: &[u8],
    mut take: impl FnMut(&[u8], &[u8], bool),
) {
    match &track.codec {
        Codec::H264 { sets, width, .. } => {
            let units = || LengthPrefixed::new(bytes, *width);
            if sample.is_sync && !units().any(h264::is_parameter_set) {
                let header = h264::aggregation_header(sets.iter().map(|set| &set[..]));
                take_sets(&[header], sets.iter(), &mut take);
            }
            for unit in units() {
                let parts = h264::payloads(unit, PAYLOAD_MAX);
                parts.for_each(|part| take(part.front(), part.bytes, false));
            }
        }
        Codec::H265 { sets, width } => {
            let units = || LengthPrefixed::new(bytes, *width).filter(|unit| unit.len() >= 2);
            if sample.is_sync && !units().any(h265::is_parameter_set) {
                let sets = sets.iter().flatten();
                let header = h265::aggregation_header(sets.clone().map(|set| &set[..]));
                take_sets(&header, sets, &mut take);
            }
            for unit in units() {
                let parts = h265::payloads(unit, PAYLOAD_MAX);
                parts.for_each(|part| take(part.front(), part.bytes, false));
            }
        }
        Codec::Aac { .. } => {
            if let Some((front, parts)) = aac::payloads(bytes, PAYLOAD_MAX) {
                parts.for_each(|part| take(&front, part, false));
            }
        }
        Codec::Ac3 { .. } => {
            let parts = ac3::payloads(bytes, PAYLOAD_MAX);
            parts.for_each(|part| take(&part.front, part.bytes, part.ends));
        }
        Codec::Eac3 { .. } => {
            let parts = ac3::enhanced_payloads(bytes, PAYLOAD_MAX);
            parts.for_each(|part| take(&part.front, part.bytes, part.ends));
        }
        // Neither marks ends: a marker begins sound after silence (RFC 3551, section 4.1).
        Codec::Opus { .. } => {
            if bytes.len() <= PAYLOAD_MAX {
                take(&[], bytes, false);
            }
        }
        Codec::MpegAudio => {
            let parts = mpeg_audio::payloads(bytes, PAYLOAD_MAX);
            parts.for_each(|(front, part)| take(&front, part, false));
        }
    }
}

/// Parameter sets in one packet, if there are any and they fit. A receiver that joins here can
/// begin to decode; for other receivers they are redundant.
fn take_sets<'a>(
    header: &[u8],
    sets: impl Iterator<Item = &'a Vec<u8>>,
    take: &mut impl FnMut(&[u8], &[u8], bool),
) {
    let mut packet = header.to_vec();
    for set in sets {
        packet.extend((set.len() as u16).to_be_bytes());
        packet.extend(set);
    }
    if packet.len() > header.len() && packet.len() <= PAYLOAD_MAX {
        take(&packet, &[], false);
    }
}

/// Units of H.264 from the payloads of one access unit, without the parameter sets in front.
#[cfg(test)]
pub(crate) fn units_of<'a>(payloads: impl Iterator<Item = &'a [u8]>) -> Vec<Vec<u8>> {
    let mut units: Vec<Vec<u8>> = vec![];
    for bytes in payloads {
        match bytes[0] & 0x1f {
            24 => {}
            28 => {
                if bytes[1] & 0x80 != 0 {
                    units.push(vec![bytes[0] & 0xe0 | bytes[1] & 0x1f]);
                }
                units.last_mut().unwrap().extend(&bytes[2..]);
            }
            _ => units.push(bytes.to_vec()),
        }
    }
    units
}
