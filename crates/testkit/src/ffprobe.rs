//! The packets of a title, as ffprobe finds them.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

/// A packet of a title.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// When it is decoded, in seconds.
    pub decoded: f64,
    /// Its first byte.
    pub at: u64,
    /// The byte behind its last one.
    pub end: u64,
    /// It belongs to a video stream.
    pub is_video: bool,
    /// Decoding can begin with it.
    pub is_key: bool,
}

/// The packets of `path` whose place is known, in their order in the file. Of several audio frames
/// in one PES packet only the first has a place. In a transport stream a packet ends with its last
/// transport packet.
///
/// # Panics
///
/// If ffprobe is missing, or does not know the format.
#[must_use]
pub fn packets(path: &Path) -> Vec<Packet> {
    let fields = "packet=codec_type,dts_time,size,pos,flags";
    let out = Command::new("ffprobe")
        .args(["-v", "error", "-show_entries", fields, "-of", "compact=p=0"])
        .arg(path)
        .output()
        .expect("ffprobe is missing: install the package ffmpeg");
    let text = String::from_utf8(out.stdout).expect("text");
    let ends = transport_ends(&std::fs::read(path).expect("a title"));
    let packets = text.lines().filter_map(|line| {
        let field = |name: &str| {
            line.split('|').find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
        };
        let at = field("pos")?.parse::<u64>().ok()?;
        let end = at + field("size")?.parse::<u64>().ok()?;
        let is_video = field("codec_type") == Some("video");
        Some(Packet {
            decoded: field("dts_time")?.parse().ok()?,
            at,
            end: ends.as_ref().map_or(end, |ends| ends[&at]),
            is_video,
            is_key: is_video && field("flags")?.contains('K'),
        })
    });
    packets.collect()
}

/// Where each PES packet of a transport stream ends, by the byte at which it begins; none for other
/// formats.
fn transport_ends(bytes: &[u8]) -> Option<HashMap<u64, u64>> {
    const PACKET: usize = 188;
    let is_transport = bytes.chunks(PACKET).take(100).all(|packet| packet[0] == 0x47);
    let mut ends = HashMap::new();
    let mut begun = HashMap::new();
    for (nth, packet) in bytes.chunks_exact(PACKET).enumerate() {
        let at = (nth * PACKET) as u64;
        let pid = u16::from_be_bytes([packet[1] & 0x1f, packet[2]]);
        if packet[1] & 0x40 != 0 {
            begun.insert(pid, at);
        }
        if packet[3] & 0x10 != 0
            && let Some(begin) = begun.get(&pid)
        {
            ends.insert(*begin, at + PACKET as u64);
        }
    }
    is_transport.then_some(ends)
}
