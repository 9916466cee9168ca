//! Consumptions of titles that ffmpeg has encoded at a variable rate, judged by the packets that
//! ffprobe finds in them.

use super::*;
use crate::index;
use std::path::{Path, PathBuf};
use std::process::Command;
use tactus_core::polyline::Polyline;
use tactus_core::units::Nanos;
use tactus_testkit::ffprobe::{Packet, packets};

const TICKS: u64 = 27_000_000;

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

/// The same frames in another container.
fn remuxed(from: &Path, name: &str, options: &[&str]) -> PathBuf {
    let path = from.with_file_name(name);
    let mut command = Command::new("ffmpeg");
    command.args(["-v", "error", "-y", "-i"]).arg(from).args(["-c", "copy"]).args(options);
    assert!(command.arg(&path).status().expect("it was found").success());
    path
}

/// Encodes the frames of a clip for WebM.
#[rustfmt::skip]
const WEBM: &[&str] = &[
    "-c:v", "libvpx", "-crf", "20", "-b:v", "2M", "-deadline", "realtime",
    "-cpu-used", "8", "-g", "25", "-c:a", "libopus",
];

/// Bytes come up to a sixteenth of a second after they are due.
const LATE: MediaTime = MediaTime(TICKS / 16);
/// From the beginning, a player waits until its buffer is full. When it seeks, the burst fills it.
const PLAYERS: [PlayerBuffer; 2] = [
    PlayerBuffer { late: LATE, ..PLAYER },
    PlayerBuffer { late: LATE, burst: PLAYER.held, ..PLAYER },
];

/// The schedule for [`PLAYER`]. Those for [`PLAYERS`] bring each packet before it is decoded, and
/// never more than `held` before.
fn judged(
    consumption: &Consumption,
    packets: &[Packet],
    range: &Range<u64>,
    held: f64,
    what: &str,
) -> Polyline {
    for player in PLAYERS {
        let line = consumption.smoothed(player);
        let begins = seconds(player.held) - seconds(player.burst);
        for (due, came, decoded) in arrivals(&line, packets, range) {
            let decoded = decoded + begins;
            // ffprobe prints whole microseconds.
            assert!(came <= decoded + 2e-6, "{what}: {came} for {decoded}");
            assert!(decoded - due <= held, "{what}: {due} is early for {decoded}");
        }
    }
    consumption.smoothed(PLAYER)
}

/// The same for a title whose frames come one by one: a player never waits that begins as soon as
/// its buffer is full, however early these bytes come and however late all others.
fn judged_by_frames(
    consumption: &Consumption,
    packets: &[Packet],
    range: &Range<u64>,
    held: f64,
    what: &str,
) -> Polyline {
    for player in PLAYERS {
        let line = consumption.smoothed(player);
        let buffered = |&(_, _, decoded): &(f64, f64, f64)| decoded <= seconds(player.held);
        let begun = arrivals(&line, packets, range).filter(buffered).map(|(due, ..)| due);
        let begun = begun.fold(0.0, f64::max);
        for (_, came, decoded) in arrivals(&line, packets, range) {
            let decoded = decoded + begun;
            // Matroska has milliseconds.
            assert!(came <= decoded + 1e-3, "{what}: {came} for {decoded}, begun {begun}");
        }
    }
    judged(consumption, packets, range, held, what)
}

/// When each packet of a range is due, when it comes at the latest, and when it is decoded, from
/// the first one on.
fn arrivals<'a>(
    line: &'a Polyline,
    packets: &'a [Packet],
    range: &Range<u64>,
) -> impl Iterator<Item = (f64, f64, f64)> + use<'a> {
    let begin = range.start;
    let own = packets.iter().filter(move |packet| packet.at >= begin);
    let first = own.clone().map(|packet| packet.decoded).fold(f64::MAX, f64::min);
    own.map(move |packet| {
        let end = Bytes(packet.end - begin);
        let due = line.due(end, line.hint(end)).0 as f64 / 1e9;
        // The burst comes at once.
        let came = if due > 1e-6 { due + seconds(LATE) } else { 0.0 };
        (due, came, packet.decoded - first)
    })
}

fn seconds(time: MediaTime) -> f64 {
    time.0 as f64 / TICKS as f64
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
            let part = consumption.part(range.clone()).unwrap();
            let line = judged_by_frames(&part, &packets, &range, held, name);
            assert_eq!(line.len(), Bytes(len - start), "{name}");
            peaks.push(line.peak(Bytes(0), Bytes(4096)));
        }
        let mean = len * 8 / 12;
        assert!(peaks[0].0 > 2 * mean, "{name}: the clip is not variable: {peaks:?}, {mean}");
    }
}

#[test]
fn r01_a_transport_stream_has_each_packet_in_time_from_every_access_point() {
    let dir = tempfile::tempdir().unwrap();
    let clip = clip(dir.path(), "clip.mp4", &[]);
    for (name, options) in [
        ("short.ts", &["-muxdelay", "0.2"][..]),
        ("long.ts", &["-muxdelay", "0.7"]),
        // The time stamps wrap in the middle.
        ("wrap.ts", &["-output_ts_offset", "95437"]),
        ("blu-ray.m2ts", &["-mpegts_m2ts_mode", "1"]),
    ] {
        let path = remuxed(&clip, name, options);
        let (index, _) = index::make(&File::open(&path).unwrap(), |_, _| {}).unwrap();
        assert!(!index.is_constant());
        assert!(index.deadlines().count() > 30, "{name}");
        let packets = packets(&path);
        let starts = index.accesses().iter().map(|access| index.start_of(access));
        for start in std::iter::once(0).chain(starts) {
            let range = start..index.len();
            let consumption = of_index(&index, &range).unwrap();
            // ffprobe does not say where the frames of m2ts end.
            let judge = if name.ends_with(".ts") { judged_by_frames } else { judged };
            let line = judge(&consumption, &packets, &range, 2.5, name);
            assert_eq!(line.len(), Bytes(range.end - range.start));
        }
    }
}

#[test]
fn a_title_whose_times_are_unreadable_has_the_consumption_of_its_clock() {
    let dir = tempfile::tempdir().unwrap();
    let path = clip(dir.path(), "title.ts", &["-muxdelay", "0.2"]);
    let packets = packets(&path);
    let mut bytes = std::fs::read(&path).unwrap();
    // Video and audio are scrambled.
    for packet in bytes.chunks_exact_mut(188).filter(|packet| packet[1] & 0x1f == 1) {
        packet[3] |= 0x80;
    }
    std::fs::write(&path, bytes).unwrap();
    let (index, _) = index::make(&File::open(&path).unwrap(), |_, _| {}).unwrap();
    let range = 0..index.len();
    let consumption = of_index(&index, &range).unwrap();
    judged(&consumption, &packets, &range, 2.5, "a scrambled transport stream");
}

#[test]
fn r06_matroska_has_each_packet_in_time_from_every_key_frame() {
    let dir = tempfile::tempdir().unwrap();
    let frames = clip(dir.path(), "clip.mp4", &[]);
    for (name, options) in [
        ("behind.mkv", &[][..]),
        ("front.mkv", &["-cues_to_front", "1"]),
        // Clusters of unknown size, without cues and without a duration.
        ("live.mkv", &["-f", "matroska", "-live", "1"]),
        ("title.webm", WEBM),
        // Half a second of sound in each frame, so few frames of video have sound close behind.
        ("sparse.mkv", &["-c:a", "flac", "-ar", "8000", "-frame_size", "3840"]),
    ] {
        let path = remuxed(&frames, name, options);
        let file = File::open(&path).unwrap();
        let len = file.metadata().unwrap().len();
        let facts = crate::facts(&file, name).unwrap();
        assert_eq!(facts.kind, MediaKind::Matroska);
        assert!((11.8..12.2).contains(&(facts.duration.0 as f64 / 1e9)), "{name}: {facts:?}");
        assert!(facts.rate.0.abs_diff(len * 8 / 12) < len * 8 / 12 / 50, "{name}: {facts:?}");
        let consumption = of_frames(&file, MediaKind::Matroska).unwrap();
        let packets = packets(&path);
        let keys = packets.iter().filter(|packet| packet.is_video && packet.is_key);
        let starts: Vec<_> = keys.map(|packet| packet.at).collect();
        assert!(starts.len() >= 12, "{name}");
        let mut peaks = vec![];
        for start in std::iter::once(0).chain(starts) {
            let range = start..len;
            let part = consumption.part(range.clone()).unwrap();
            // ffprobe does not say when the first two frames of a title are decoded.
            let judge = if start == 0 { judged } else { judged_by_frames };
            let line = judge(&part, &packets, &range, 2.5, name);
            assert_eq!(line.len(), Bytes(len - start), "{name}");
            peaks.push(line.peak(Bytes(0), Bytes(4096)));
        }
        assert!(peaks[0].0 > 3 * len * 8 / 12 / 2, "{name} is not variable: {peaks:?}");
    }
}

/// Silence, noise and silence again.
fn silence_and_noise(dir: &Path) -> PathBuf {
    let path = dir.join("source.wav");
    let noise = "aevalsrc='if(between(t,8,14),random(0)-random(1),sin(t*3000)/9)':s=44100:d=24";
    let made = Command::new("ffmpeg")
        .args(["-v", "error", "-y", "-f", "lavfi", "-i", noise])
        .arg(&path)
        .status()
        .expect("ffmpeg is missing: install the package ffmpeg");
    assert!(made.success());
    path
}

fn sound(source: &Path, name: &str, options: &[&str]) -> PathBuf {
    let path = source.with_file_name(name);
    let made = Command::new("ffmpeg")
        .args(["-v", "error", "-y", "-i"])
        .arg(source)
        .args(options)
        .arg(&path)
        .status()
        .expect("ffmpeg is missing: install the package ffmpeg");
    assert!(made.success(), "{name}");
    path
}

#[test]
fn r06_sound_of_a_variable_rate_has_each_packet_in_time_from_any_of_them() {
    let dir = tempfile::tempdir().unwrap();
    let source = silence_and_noise(dir.path());
    let mp3 = MediaKind::Mp3 { is_constant: false };
    for (name, options, kind) in [
        ("title.mp3", &["-c:a", "libmp3lame", "-q:a", "2"][..], mp3),
        ("bare.mp3", &["-q:a", "2", "-write_xing", "0", "-id3v2_version", "0"], mp3),
        ("title.flac", &[], MediaKind::Flac),
        ("vorbis.ogg", &["-c:a", "libvorbis"], MediaKind::Ogg),
        ("title.opus", &["-c:a", "libopus", "-b:a", "64k"], MediaKind::Ogg),
        ("flac.ogg", &["-c:a", "flac"], MediaKind::Ogg),
    ] {
        let path = sound(&source, name, options);
        let file = File::open(&path).unwrap();
        let len = file.metadata().unwrap().len();
        let facts = crate::facts(&file, name).unwrap();
        assert_eq!(facts.kind, kind, "{name}");
        let seconds = facts.duration.0 as f64 / 1e9;
        // Without a table the rates of a few places stand for all.
        let bounds = if name == "bare.mp3" { 16.0..36.0 } else { 23.9..24.2 };
        assert!(bounds.contains(&seconds), "{name}: {facts:?}");
        let consumption = of_frames(&file, kind).unwrap();
        let packets = packets(&path);
        assert!(packets.len() > 200, "{name}");
        let starts = packets.iter().step_by(packets.len() / 10).map(|packet| packet.at);
        for start in std::iter::once(0).chain(starts) {
            let range = start..len;
            let part = consumption.part(range.clone()).unwrap();
            let line = judged(&part, &packets, &range, 2.5 + PAGE, name);
            assert_eq!(line.len(), Bytes(len - start), "{name}");
        }
        let peak = consumption.smoothed(PLAYER).peak(Bytes(0), Bytes(4096)).0;
        assert!(peak > len * 8 / 24 * 5 / 4, "{name} is not variable: {peak} of {}", len / 3);
    }
}

/// The packets of a page of Ogg are needed at the time of the first one.
const PAGE: f64 = 1.0;

#[test]
fn r06_sound_of_a_constant_rate_has_exactly_this_rate() {
    let dir = tempfile::tempdir().unwrap();
    let source = silence_and_noise(dir.path());
    let mp3 = MediaKind::Mp3 { is_constant: true };
    for (name, options, kind, rate) in [
        ("title.mp3", &["-b:a", "128k"][..], mp3, 128_000),
        ("bare.mp3", &["-b:a", "320k", "-write_xing", "0"], mp3, 320_000),
        ("title.mp2", &["-b:a", "192k"], mp3, 192_000),
        ("low.mp3", &["-ar", "22050", "-ac", "1", "-b:a", "32k"], mp3, 32_000),
        ("title.wav", &[], MediaKind::Wave, 44_100 * 16),
        ("long.wav", &["-rf64", "always", "-ac", "2"], MediaKind::Wave, 44_100 * 32),
    ] {
        let path = sound(&source, name, options);
        let file = File::open(&path).unwrap();
        let facts = crate::facts(&file, name).unwrap();
        assert_eq!((facts.kind, facts.peak), (kind, None), "{name}");
        assert!(facts.rate.0.abs_diff(rate) <= rate / 200, "{name}: {facts:?}");
        assert!(of_frames(&file, kind).is_none());
    }
}

#[test]
fn r06_cues_are_an_estimate_until_all_blocks_are_known() {
    let dir = tempfile::tempdir().unwrap();
    let frames = clip(dir.path(), "clip.mp4", &[]);
    for (name, options) in [("behind.mkv", &[][..]), ("front.mkv", &["-cues_to_front", "1"][..])] {
        let path = remuxed(&frames, name, options);
        let file = File::open(&path).unwrap();
        let len = file.metadata().unwrap().len();
        let (exact, estimate) = (
            of_frames(&file, MediaKind::Matroska).unwrap(),
            estimate(&file, MediaKind::Matroska).unwrap(),
        );
        assert_eq!(estimate.len(), Bytes(len));
        assert!(estimate.points() >= 12, "{name}: {}", estimate.points());
        let peak = |of: &Consumption| of.smoothed(PLAYER).peak(Bytes(0), Bytes(4096)).0;
        let (exact, estimate) = (peak(&exact), peak(&estimate));
        assert!(estimate.abs_diff(exact) < exact / 2, "{name}: {estimate} for {exact}");
    }
}

/// The least peak rate, in bits per second, of any schedule for the true packets of a range: bounds
/// from when each is decoded, and every pair of them.
fn least_peak(packets: &[Packet], range: &Range<u64>, player: PlayerBuffer) -> f64 {
    let mut own: Vec<_> = packets.iter().filter(|packet| packet.at >= range.start).collect();
    own.sort_by(|one, other| one.decoded.total_cmp(&other.decoded));
    let first = own[0].decoded;
    // Bytes needed from each time on, from the range's beginning.
    let mut needed: Vec<(f64, u64)> = Vec::new();
    for packet in own {
        let reached = needed.last().map_or(0, |last| last.1).max(packet.end - range.start);
        needed.push((packet.decoded - first, reached));
    }
    let (burst, held) = (seconds(player.burst), seconds(player.held));
    let at = |time: f64| {
        let nth = needed.partition_point(|&(needed, _)| needed <= time);
        nth.checked_sub(1).map_or(0, |nth| needed[nth].1)
    };
    // At the start, and just before each later step, no more may be sent.
    let steps = needed.iter().map(|step| step.0 - burst).filter(|&time| time > 0.0);
    let upper = steps.map(|time| (time, at(time + burst - 1e-6)));
    let upper: Vec<_> = std::iter::once((0.0, at(burst))).chain(upper).collect();
    let mut least = 0.0f64;
    for &(time, bytes) in &needed {
        let time = time + held - burst;
        for &(from, may) in upper.iter().take_while(|&&(from, _)| from < time) {
            least = least.max(bytes.saturating_sub(may) as f64 * 8.0 / (time - from));
        }
    }
    least
}

#[test]
fn r01_the_peak_is_within_a_fiftieth_of_the_least_possible() {
    let dir = tempfile::tempdir().unwrap();
    let clip = clip(dir.path(), "clip.mp4", &[]);
    for (name, options) in [
        ("short.ts", &["-muxdelay", "0.2"][..]),
        ("long.ts", &["-muxdelay", "0.7"]),
        ("front.mp4", &["-movflags", "+faststart"]),
        ("fragments.mp4", &["-movflags", "frag_keyframe+empty_moov+default_base_moof"]),
        ("behind.mkv", &[]),
        ("front.mkv", &["-cues_to_front", "1"]),
        ("live.mkv", &["-f", "matroska", "-live", "1"]),
        ("title.webm", WEBM),
    ] {
        let path = remuxed(&clip, name, options);
        let file = File::open(&path).unwrap();
        let len = file.metadata().unwrap().len();
        let packets = packets(&path);
        let keys = packets.iter().filter(|packet| packet.is_key).map(|packet| packet.at);
        let made = index::make(&file, |_, _| {});
        let whole = of_movie(&file).or_else(|| of_frames(&file, MediaKind::Matroska));
        let mut worst = 0.0f64;
        for start in std::iter::once(0).chain(keys) {
            let range = start..len;
            let consumption = match &made {
                Ok((index, _)) => of_index(index, &range),
                Err(_) => whole.as_ref().unwrap().part(range.clone()),
            };
            let line = consumption.unwrap().smoothed(PLAYER);
            if line.duration() <= MediaTime(1) {
                // All of it is sent at once.
                continue;
            }
            let own = packets.iter().filter(|packet| packet.at >= start);
            let own = own.map(|packet| packet.decoded);
            let (first, last) = own.fold((f64::MAX, 0.0f64), |(first, last), decoded| {
                (first.min(decoded), last.max(decoded))
            });
            let mean = (len - start) as f64 * 8.0 / (last - first).max(1.0);
            let least = least_peak(&packets, &range, PLAYER).max(mean);
            let peak = line.rates().map(|rate| rate.0).max().unwrap_or(0);
            worst = worst.max(peak as f64 / least);
        }
        println!("{name}: {worst:.4} of the least possible peak");
        assert!(worst <= 1.02, "{name}: {worst}");
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
