//! Consumptions of titles that ffmpeg has encoded at a variable rate, judged by the packets that
//! ffprobe finds in them.

use super::*;
use crate::index;
use std::path::{Path, PathBuf};
use std::process::Command;
use tactus_core::polyline::Polyline;
use tactus_core::smoothing::PlayerBuffer;
use tactus_core::units::Nanos;

const TICKS: u64 = 27_000_000;
const PLAYER: PlayerBuffer = PlayerBuffer {
    held: MediaTime(2 * TICKS),
    burst: MediaTime(TICKS),
    burst_max: Bytes(u64::MAX),
};

/// A packet of a title: when it is decoded, in seconds, its bytes, and whether playing can begin.
struct Packet {
    decoded: f64,
    at: u64,
    end: u64,
    is_video: bool,
    is_key: bool,
}

/// Still, noise and still again, with audio: a peak of ten times the mean.
fn clip(dir: &Path, name: &str, options: &[&str]) -> PathBuf {
    let path = dir.join(name);
    let picture = "nullsrc=s=160x120:r=25:d=12,\
                   geq=lum='if(between(T,4,7),random(1)*255,16)':cb=128:cr=128";
    let made = Command::new("ffmpeg")
        .args(["-v", "error", "-y", "-f", "lavfi", "-i", picture])
        .args(["-f", "lavfi", "-i", "sine=r=48000:d=12", "-c:v", "libx264", "-crf", "28"])
        .args(["-g", "25", "-preset", "veryfast", "-c:a", "aac", "-b:a", "64k"])
        .args(options)
        .arg(&path)
        .status()
        .expect("ffmpeg is missing: install the package ffmpeg");
    assert!(made.success());
    path
}

fn packets(path: &Path) -> Vec<Packet> {
    let fields = "packet=codec_type,dts_time,size,pos,flags";
    let out = Command::new("ffprobe")
        .args(["-v", "error", "-show_entries", fields, "-of", "compact=p=0"])
        .arg(path)
        .output()
        .expect("ffprobe comes with ffmpeg");
    let text = String::from_utf8(out.stdout).expect("text");
    let packets = text.lines().filter_map(|line| {
        let field = |name: &str| {
            line.split('|').find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
        };
        let at = field("pos")?.parse::<u64>().ok()?;
        Some(Packet {
            decoded: field("dts_time")?.parse().ok()?,
            at,
            end: at + field("size")?.parse::<u64>().ok()?,
            is_video: field("codec_type") == Some("video"),
            is_key: field("flags")?.contains('K'),
        })
    });
    packets.collect()
}

/// A player that begins a second after the first byte has each packet when it decodes it, and never
/// holds more than its buffer.
fn judge(line: &Polyline, packets: &[Packet], range: &Range<u64>, held: f64, what: &str) {
    let own: Vec<_> = packets.iter().filter(|packet| packet.at >= range.start).collect();
    let begin = own.iter().map(|packet| packet.decoded).fold(f64::MAX, f64::min);
    for packet in &own {
        let due = line.due(Bytes(packet.end - range.start), 0).0 as f64 / 1e9;
        let decoded = packet.decoded - begin + 1.0;
        assert!(due <= decoded, "{what}: {due} for {decoded}");
        assert!(decoded - due <= held, "{what}: {due} is early for {decoded}");
    }
}

#[test]
fn r01_whoever_buffers_two_seconds_has_each_packet_in_time_from_every_key_frame() {
    let dir = tempfile::tempdir().unwrap();
    // In a fragment of a second all audio lies behind all video: half a second more for tracks that
    // are not interleaved evenly, and a second for the fragment.
    for (name, options, held) in [
        ("front.mp4", &["-movflags", "+faststart"][..], 2.5),
        ("behind.mp4", &[], 2.5),
        ("fragments.mp4", &["-movflags", "frag_keyframe+empty_moov+default_base_moof"], 3.5),
    ] {
        let path = clip(dir.path(), name, options);
        let file = File::open(&path).unwrap();
        let len = file.metadata().unwrap().len();
        let consumption = of_movie(&file).unwrap();
        let packets = packets(&path);
        let starts = packets.iter().filter(|packet| packet.is_video && packet.is_key);
        let starts: Vec<_> = starts.map(|packet| packet.at).collect();
        assert!(starts.len() >= 12, "{name}");
        let mut peaks = vec![];
        for start in std::iter::once(0).chain(starts) {
            let range = start..len;
            let line = consumption.part(range.clone()).unwrap().smoothed(PLAYER);
            assert_eq!(line.len(), Bytes(len - start), "{name}");
            judge(&line, &packets, &range, held, name);
            peaks.push(line.peak(Bytes(0), Bytes(4096)));
        }
        let mean = len * 8 / 12;
        assert!(peaks[0].0 > 2 * mean, "{name}: the clip is not variable: {peaks:?}, {mean}");
    }
}

#[test]
fn a_variable_transport_stream_has_the_demand_of_its_clock() {
    let dir = tempfile::tempdir().unwrap();
    let path = clip(dir.path(), "title.ts", &["-muxdelay", "0.2"]);
    let file = File::open(&path).unwrap();
    let (index, _) = index::make(&file, |_, _| {}).unwrap();
    assert!(!index.is_constant());
    let packets = packets(&path);
    let starts = index.accesses().iter().map(|access| access.at);
    for start in std::iter::once(0).chain(starts) {
        let range = start..index.len();
        let line = of_index(&index, &range).unwrap().smoothed(PLAYER);
        assert_eq!(line.len(), Bytes(range.end - range.start));
        judge(&line, &packets, &range, 2.5, "a transport stream");
    }
}

#[test]
fn r03_bytes_behind_the_media_are_needed_at_no_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = clip(dir.path(), "behind.mp4", &[]);
    let len = std::fs::metadata(&path).unwrap().len();
    let consumption = of_movie(&File::open(&path).unwrap()).unwrap();
    assert!(consumption.part(consumption.len().0..len).is_none(), "the index");
    let tail = consumption.part(consumption.len().0 - 1..len).unwrap();
    assert_eq!(tail.len(), Bytes(len - consumption.len().0 + 1));
}

#[test]
fn r07_fragments_have_a_rate_without_a_stated_duration() {
    let dir = tempfile::tempdir().unwrap();
    let flags = ["-movflags", "frag_keyframe+empty_moov+default_base_moof"];
    let path = clip(dir.path(), "fragments.mp4", &flags);
    let file = File::open(&path).unwrap();
    assert!(crate::probe::probe(&file, "fragments.mp4").is_none());
    let facts = crate::facts(&file, "fragments.mp4").unwrap();
    let (len, seconds) = (file.metadata().unwrap().len(), facts.duration.0 as f64 / 1e9);
    assert!((11.5..=12.1).contains(&seconds), "{seconds}");
    assert!(facts.rate.0.abs_diff((len as f64 * 8.0 / seconds) as u64) < 1000, "{facts:?}");
}

#[test]
fn tracks_one_after_the_other_have_no_demand() {
    // Two tracks of 32 MiB each, whose samples lie in two runs.
    let mut slots = Slots::new(1 << 40);
    for track in 0..2 {
        for nth in 0..320 {
            slots.add(nth * 10 * SLOT.0, (track * 320 + nth) * 100_000, 100_000).unwrap();
        }
    }
    assert!(slots.consumption().is_none());
}

#[test]
fn the_number_of_points_is_bounded_and_each_is_early() {
    let count = POINTS_MAX as u64 * 3;
    let mut slots = Slots::new(1 << 40);
    for nth in 0..count {
        slots.add(nth * SLOT.0, nth * 10, 10).unwrap();
    }
    let consumption = slots.consumption().unwrap();
    assert!(consumption.points() <= POINTS_MAX);
    assert_eq!(consumption.len(), Bytes(count * 10));
    let line = consumption.smoothed(PLAYER);
    for nth in (0..count).step_by(10_007) {
        let due = line.due(Bytes(nth * 10 + 10), 0);
        assert!(due <= Nanos((nth + 100) * 10_000_000), "{nth}: {due}");
    }
}

#[test]
fn cut_and_hostile_movies() {
    let dir = tempfile::tempdir().unwrap();
    let path = clip(dir.path(), "front.mp4", &["-movflags", "+faststart"]);
    let bytes = std::fs::read(&path).unwrap();
    let made = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        of_movie(&File::open(&path).unwrap())
    };
    let half = made(&bytes[..bytes.len() / 2]).unwrap();
    assert!(half.len().0 <= bytes.len() as u64 / 2, "samples behind the cut are not waited for");
    assert!(made(&bytes[..1000]).is_none() && made(b"").is_none());
    let index = bytes.windows(4).position(|kind| kind == b"stsz").unwrap();
    for at in index..index + 40 {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0xff;
        // Whatever it is, it ends.
        drop(made(&damaged));
    }
}
