//! The packets of a title as ffprobe finds them, and what a player makes of their arrival.
//!
//! Promise: a player begins when its buffer's media are there and shows each packet at its decoding
//! time. It stands still whenever a packet is not there then, and goes on with that packet.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use tactus_core::units::MonoTime;

use crate::arrivals::Trace;
use crate::command;

/// A packet of a title.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    /// When it is decoded, in seconds.
    pub(super) decoded: f64,
    /// Its first byte.
    pub(super) at: u64,
    /// The byte behind its last one.
    pub(super) end: u64,
    /// A video frame with which decoding can begin.
    pub(super) is_key: bool,
}

/// What a player met, in seconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Play {
    /// From the request to the first picture.
    pub(super) began_after: f64,
    /// How long it stood still in all.
    pub(super) stood: f64,
    /// The packet for which it stood still longest.
    pub(super) worst: Option<LatePacket>,
}

/// A packet for which a player stood still, in seconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct LatePacket {
    /// The byte behind its last one.
    pub(super) end: u64,
    /// From the request to its last byte.
    pub(super) came_after: f64,
    /// How long the player stood still for it.
    pub(super) wait: f64,
}

/// Shorter waits are those of the receiver, not of the server.
const WAIT_MIN: f64 = 0.005;
/// The length of a packet of a transport stream.
pub(super) const TRANSPORT: u64 = 188;

/// The packets of `path` whose place is known, in order of their decoding. In a transport stream a
/// packet ends with its last transport packet.
pub(super) fn packets(path: &Path) -> Result<Vec<Packet>> {
    let fields = "packet=codec_type,dts_time,size,pos,flags";
    let mut ffprobe = Command::new("ffprobe");
    ffprobe.args(["-v", "error", "-show_entries", fields, "-of", "compact=p=0"]).arg(path);
    let text = command::finish(&mut ffprobe)?;
    let ends = transport_ends(&fs::read(path)?);
    let packet = |line: &str| {
        let field = |name: &str| {
            line.split('|').find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
        };
        let at = field("pos")?.parse::<u64>().ok()?;
        let end = at + field("size")?.parse::<u64>().ok()?;
        let is_key = field("codec_type") == Some("video") && field("flags")?.contains('K');
        let end = ends.as_ref().map_or(Some(end), |ends| ends.get(&at).copied())?;
        Some(Packet { decoded: field("dts_time")?.parse().ok()?, at, end, is_key })
    };
    let mut found: Vec<Packet> = text.lines().filter_map(packet).collect();
    ensure!(!found.is_empty(), "ffprobe finds no packets in {}", path.display());
    found.sort_by(|one, other| one.decoded.total_cmp(&other.decoded));
    Ok(found)
}

/// Where each PES packet of a transport stream ends, by the byte at which it begins; none for other
/// formats.
fn transport_ends(bytes: &[u8]) -> Option<HashMap<u64, u64>> {
    let is_transport = bytes.chunks(TRANSPORT as usize).take(100).all(|packet| packet[0] == 0x47);
    let (mut ends, mut begun) = (HashMap::new(), HashMap::new());
    for (nth, packet) in bytes.chunks_exact(TRANSPORT as usize).enumerate() {
        let at = nth as u64 * TRANSPORT;
        let pid = u16::from_be_bytes([packet[1] & 0x1f, packet[2]]);
        if packet[1] & 0x40 != 0 {
            begun.insert(pid, at);
        }
        if packet[3] & 0x10 != 0
            && let Some(begin) = begun.get(&pid)
        {
            ends.insert(*begin, at + TRANSPORT);
        }
    }
    is_transport.then_some(ends)
}

/// Plays what `trace` brought of the bytes from `start` on, which were requested at `asked`.
/// `packets` are in order of their decoding. `None` if it ends before the last packet.
pub(super) fn play(
    packets: &[Packet],
    start: u64,
    trace: &Trace,
    asked: MonoTime,
    buffer: f64,
) -> Option<Play> {
    let came = |packet: &Packet| {
        let nth = trace.steps().partition_point(|step| step.after < packet.end - start);
        Some(trace.steps().get(nth)?.at.since(asked).0 as f64 / 1e9)
    };
    let own = || packets.iter().filter(|packet| packet.at >= start);
    let first = own().next()?.decoded;
    let (mut began_after, mut stood) = (0.0_f64, 0.0);
    let mut worst: Option<LatePacket> = None;
    for packet in own().filter(|packet| packet.decoded - first <= buffer) {
        began_after = began_after.max(came(packet)?);
    }
    for packet in own() {
        let wait = came(packet)? - (began_after + stood + packet.decoded - first);
        if wait > WAIT_MIN {
            stood += wait;
            if worst.is_none_or(|worst| worst.wait < wait) {
                worst = Some(LatePacket { end: packet.end, came_after: came(packet)?, wait });
            }
        }
    }
    Some(Play { began_after, stood, worst })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tactus_core::units::MILLISECOND;

    fn packet(decoded: f64, at: u64) -> Packet {
        Packet { decoded, at, end: at + 100, is_key: true }
    }

    fn trace(arrivals: &[(u64, u32)]) -> Trace {
        let mut trace = Trace::default();
        for &(millis, bytes) in arrivals {
            trace.push(MonoTime(0) + MILLISECOND.times(millis), bytes);
        }
        trace
    }

    /// One packet a second.
    fn four() -> [Packet; 4] {
        [0, 1, 2, 3].map(|nth| packet(10.0 + nth as f64, nth * 100))
    }

    #[test]
    fn it_begins_with_its_buffer_and_shows_each_packet_at_its_time() {
        let on_time = trace(&[(100, 100), (500, 100), (1_500, 100), (2_500, 100)]);
        let play = |buffer| play(&four(), 0, &on_time, MonoTime(0), buffer).unwrap();
        assert_eq!(play(1.0), Play { began_after: 0.5, stood: 0.0, worst: None });
        // It begins at 0.1 and needs the last one at 3.1.
        assert_eq!(play(0.5), Play { began_after: 0.1, stood: 0.0, worst: None });
    }

    #[test]
    fn it_stands_still_until_a_late_packet_comes_and_is_later_from_then_on() {
        let late = trace(&[(0, 100), (500, 100), (3_000, 100), (3_900, 100)]);
        let play = play(&four(), 0, &late, MonoTime(0), 1.0).unwrap();
        // The third is due at 2.5 and the fourth at 3.5, or at 4.0 after the wait.
        let worst = Some(LatePacket { end: 300, came_after: 3.0, wait: 0.5 });
        assert_eq!(play, Play { began_after: 0.5, stood: 0.5, worst });
    }

    #[test]
    fn from_the_middle_only_the_packets_behind_count_and_none_may_be_missing() {
        let rest = trace(&[(100, 200)]);
        let from = |start| play(&four(), start, &rest, MonoTime(0), 2.0);
        assert_eq!(from(200), Some(Play { began_after: 0.1, stood: 0.0, worst: None }));
        assert_eq!(from(100), None);
    }

    #[test]
    fn a_frame_of_a_transport_stream_ends_with_its_last_packet() {
        let transport = |pid: u8, begins: bool| {
            let mut bytes = [0xff; TRANSPORT as usize];
            bytes[..4].copy_from_slice(&[0x47, u8::from(begins) << 6, pid, 0x10]);
            bytes
        };
        let bytes = [(1, true), (2, true), (1, false), (1, true), (2, false)];
        let bytes = bytes.map(|(pid, begins)| transport(pid, begins)).concat();
        let ends = transport_ends(&bytes).unwrap();
        assert_eq!((ends[&0], ends[&TRANSPORT]), (3 * TRANSPORT, 5 * TRANSPORT));
        assert_eq!(ends[&(3 * TRANSPORT)], 4 * TRANSPORT);
        assert_eq!(transport_ends(b"\x1a\x45\xdf\xa3"), None);
    }
}
