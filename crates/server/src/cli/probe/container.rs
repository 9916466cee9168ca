//! `probe` for files that are no transport streams: MP4 with its tracks, and the names of other
//! containers.
//!
//! Promise: it reads an MP4's index, or the first bytes of other files, in bounded memory. It
//! states what it found and never guesses a rate.

use std::fs::File;
use std::os::unix::fs::FileExt;

use serde_json::{Value, json};
use tactus_core::units::{Bytes, MIB};
use tactus_media::MediaFacts;
use tactus_media::facts as probe;
use tactus_media::movie::{self, MovieFault};

/// A file's container.
pub(super) struct Container {
    /// The name for programs: `mp4`, `matroska`, ...
    name: &'static str,
    /// The name for people.
    title: &'static str,
    len: u64,
    facts: Option<MediaFacts>,
    movie: Option<Movie>,
    /// What RTSP sends of it, or why it sends nothing.
    sent: Option<Result<movie::Movie, MovieFault>>,
}

/// The index of an MP4.
#[derive(Default)]
struct Movie {
    tracks: Vec<Track>,
    /// The offset of the index.
    at: u64,
    /// Whether media data precedes it.
    index_last: bool,
    fragmented: bool,
}

struct Track {
    id: u32,
    kind: [u8; 4],
    /// The type of its first sample entry.
    codec: [u8; 4],
    language: String,
}

/// Longest index that is read: the index of a day of film has about 40 MiB.
const INDEX_MAX: u64 = 128 * MIB;
/// Top-level boxes that are read.
const BOXES_MAX: usize = 64;
/// Tracks that are listed.
const TRACKS_MAX: usize = 64;

impl Container {
    /// Identifies `file`; none when its first bytes are unknown.
    pub(super) fn read(file: &File, name: &str) -> Option<Self> {
        let len = file.metadata().ok()?.len();
        let mut head = vec![0; len.min(4096) as usize];
        file.read_exact_at(&mut head, 0).ok()?;
        let (name_, title) = container_of(&head)?;
        let facts = probe(file, name);
        let movie = (name_ == "mp4").then(|| Movie::read(file, len)).flatten();
        let sent = movie.is_some().then(|| movie::Movie::read(file));
        Some(Self { name: name_, title, len, facts, movie, sent })
    }

    /// The text for people.
    pub(super) fn described(&self) -> String {
        let mut first = format!("  {}, {:.1}", self.title, Bytes(self.len));
        if let Some(facts) = &self.facts {
            first += &format!(", {:.3} s", facts.duration.0 as f64 / 1e9);
        }
        let mut lines = vec![first];
        match &self.facts {
            Some(MediaFacts { rate, peak: Some(peak), .. }) => lines.push(format!(
                "  mean rate {} bit/s; peak {} bit/s for a player that holds two seconds",
                rate.0, peak.0
            )),
            Some(facts) => lines.push(format!("  mean rate {} bit/s", facts.rate.0)),
            None => lines.push(
                "  it has no rate of its own: it is sent at ?rate=, at the rate that the player \
                 requests, or as a download"
                    .into(),
            ),
        }
        if let Some(movie) = &self.movie {
            let place = match (movie.fragmented, movie.index_last) {
                (true, _) => "fragmented: each fragment has its own index",
                (_, true) => "the index is at the end: a player must request the end first",
                (_, false) => {
                    "the index is at the beginning: playback can begin during the download"
                }
            };
            lines.push(format!("  {place}"));
            for (nth, track) in movie.tracks.iter().enumerate() {
                let (kind, codec, spoken) = (track.kind(), self.codec(track), track.spoken());
                let unsent = match self.unsent(track) {
                    Some(why) => format!("; not sent by RTSP: {why}"),
                    None => String::new(),
                };
                lines.push(format!("  track {}: {kind}, {codec}{spoken}{unsent}", nth + 1));
            }
            if let Some(Err(fault)) = &self.sent {
                lines.push(format!("  not played by RTSP: {fault}"));
            }
        }
        lines.join("\n")
    }

    /// The JSON for programs.
    pub(super) fn json(&self) -> Value {
        let mut value = json!({ "container": self.name, "bytes": self.len });
        if let Some(facts) = &self.facts {
            value["duration_seconds"] = json!((facts.duration.0 / 1_000_000) as f64 / 1e3);
            value["rate_bits_per_second"] = json!(facts.rate.0);
            if let Some(peak) = facts.peak {
                value["peak_bits_per_second"] = json!(peak.0);
            }
        }
        if let Some(movie) = &self.movie {
            value["fragmented"] = json!(movie.fragmented);
            value["index_in_front"] = json!(!movie.index_last);
            let track = |track: &Track| {
                let (kind, codec) = (track.kind(), self.codec(track));
                let mut value = json!({ "kind": kind, "codec": codec, "language": track.language });
                value["rtsp"] = json!(self.is_sent(track));
                if let Some(why) = self.unsent(track) {
                    value["rtsp_reason"] = json!(why);
                }
                value
            };
            value["tracks"] = movie.tracks.iter().map(track).collect();
        }
        value
    }
}

impl Container {
    /// Whether RTSP sends a track.
    fn is_sent(&self, track: &Track) -> bool {
        self.sent_track(track).is_some()
    }

    fn sent_track(&self, track: &Track) -> Option<&movie::Track> {
        let sent = self.sent.as_ref()?.as_ref().ok()?;
        sent.tracks.iter().find(|sent| sent.id == track.id)
    }

    /// Why RTSP sends a track of a movie that it plays not.
    fn unsent(&self, track: &Track) -> Option<&'static str> {
        let sent = self.sent.as_ref()?.as_ref().ok()?;
        sent.others.iter().find(|other| other.id == track.id).map(|other| other.why)
    }

    /// The codec with the code of its sample entry.
    fn codec(&self, track: &Track) -> String {
        match self.sent_track(track) {
            Some(sent) => format!("{} ({})", sent.codec.name(), track.code()),
            None => track.codec(),
        }
    }
}

/// The container that `head` begins.
fn container_of(head: &[u8]) -> Option<(&'static str, &'static str)> {
    let at = |offset: usize, text: &[u8]| head.get(offset..).is_some_and(|h| h.starts_with(text));
    let is_box = |kind: &&[u8; 4]| at(4, *kind);
    if [b"ftyp", b"styp", b"moov", b"moof", b"mdat", b"sidx", b"wide"].iter().any(is_box) {
        return Some(match at(8, b"qt  ") {
            true => ("mp4", "QuickTime movie"),
            false => ("mp4", "MP4"),
        });
    }
    if at(0, b"\x1aE\xdf\xa3") {
        let is_webm = head.windows(4).take(64).any(|word| word == b"webm");
        return Some(if is_webm { ("webm", "WebM") } else { ("matroska", "Matroska") });
    }
    let is_mpeg_audio =
        matches!(head, [0xff, second, third, ..] if second & 0xe6 > 0xe0 && third >> 4 != 0xf);
    Some(match () {
        () if at(0, b"RIFF") && at(8, b"WAVE") => ("wav", "WAVE audio"),
        () if at(0, b"RIFF") && at(8, b"AVI ") => ("avi", "AVI"),
        () if at(0, b"fLaC") => ("flac", "FLAC audio"),
        () if at(0, b"OggS") => ("ogg", "Ogg"),
        () if at(0, b"ID3") || is_mpeg_audio => ("mp3", "MPEG audio (MP3)"),
        () if at(0, b"FLV\x01") => ("flv", "Flash video"),
        () if at(0, b"\0\0\x01\xba") => ("mpeg-ps", "MPEG program stream"),
        () if at(0, b"#EXTM3U") => ("m3u8", "playlist (HLS or M3U)"),
        () => return None,
    })
}

impl Movie {
    fn read(file: &File, len: u64) -> Option<Self> {
        let (mut movie, mut at, mut media_before) = (Self::default(), 0, false);
        for _ in 0..BOXES_MAX {
            let mut header = [0; 16];
            let have = (len - at).min(16) as usize;
            file.read_exact_at(&mut header[..have], at).ok()?;
            let (kind, size, body) = header_of(&header[..have], len - at)?;
            match &kind {
                b"mdat" => media_before = true,
                b"moof" | b"sidx" | b"styp" => movie.fragmented = true,
                b"moov" if size <= INDEX_MAX => {
                    let mut bytes = vec![0; usize::try_from(size - body).ok()?];
                    file.read_exact_at(&mut bytes, at + body).ok()?;
                    (movie.at, movie.index_last) = (at, media_before);
                    movie.add(&bytes);
                }
                _ => {}
            }
            at += size;
            if at >= len {
                break;
            }
        }
        Some(movie)
    }

    fn add(&mut self, moov: &[u8]) {
        for (kind, body) in boxes(moov) {
            match &kind {
                b"mvex" => self.fragmented = true,
                b"trak" if self.tracks.len() < TRACKS_MAX => {
                    self.tracks.extend(Track::read(body));
                }
                _ => {}
            }
        }
    }
}

impl Track {
    fn read(trak: &[u8]) -> Option<Self> {
        let mdia = child(trak, b"mdia")?;
        let kind = child(mdia, b"hdlr")?.get(8..12)?.try_into().ok()?;
        let stsd = child(child(child(mdia, b"minf")?, b"stbl")?, b"stsd")?;
        let codec = stsd.get(12..16)?.try_into().ok()?;
        let mdhd = child(mdia, b"mdhd")?;
        // ISO 639-2: three letters of five bits each, after times of 32 or 64 bits.
        let at = if mdhd.first() == Some(&1) { 32 } else { 20 };
        let word = u16::from_be_bytes(mdhd.get(at..at + 2)?.try_into().ok()?);
        let letter = |shift: u16| char::from(0x60 + (word >> shift & 31) as u8);
        let language = String::from_iter([letter(10), letter(5), letter(0)]);
        let is_told = language.bytes().all(|b| b.is_ascii_lowercase()) && language != "und";
        // The identifier follows two times.
        let tkhd = child(trak, b"tkhd")?;
        let at = if tkhd.first() == Some(&1) { 20 } else { 12 };
        let id = u32::from_be_bytes(tkhd.get(at..at + 4)?.try_into().ok()?);
        Some(Self { id, kind, codec, language: if is_told { language } else { String::new() } })
    }

    fn kind(&self) -> &'static str {
        match &self.kind {
            b"vide" => "video",
            b"soun" => "audio",
            b"text" | b"sbtl" | b"subt" | b"clcp" => "text",
            _ => "other",
        }
    }

    fn codec(&self) -> String {
        let known = match &self.codec {
            b"avc1" | b"avc3" => "H.264",
            b"hvc1" | b"hev1" => "H.265",
            b"av01" => "AV1",
            b"vp09" => "VP9",
            b"mp4a" => "AAC",
            b"ac-3" => "AC-3",
            b"ec-3" => "E-AC-3",
            b"Opus" => "Opus",
            b"fLaC" => "FLAC",
            b".mp3" => "MP3",
            b"mp4v" => "MPEG-4 video",
            b"tx3g" | b"wvtt" | b"stpp" => "subtitles",
            _ => "",
        };
        let code = self.code();
        if known.is_empty() { code } else { format!("{known} ({code})") }
    }

    /// The code of its sample entry.
    fn code(&self) -> String {
        let letters = |&byte: &u8| if byte.is_ascii_graphic() { char::from(byte) } else { '.' };
        self.codec.iter().map(letters).collect()
    }

    fn spoken(&self) -> String {
        match self.language.as_str() {
            "" => String::new(),
            language => format!(", {language}"),
        }
    }
}

/// The type, size and header length of the box at the start of `bytes`, of which `left` remain in
/// the file.
fn header_of(bytes: &[u8], left: u64) -> Option<([u8; 4], u64, u64)> {
    let size = u64::from(u32::from_be_bytes(bytes.get(..4)?.try_into().ok()?));
    let kind = bytes.get(4..8)?.try_into().ok()?;
    let (size, header) = match size {
        0 => (left, 8),
        1 => (u64::from_be_bytes(bytes.get(8..16)?.try_into().ok()?), 16),
        size => (size, 8),
    };
    (size >= header && size <= left).then_some((kind, size, header))
}

fn boxes(mut bytes: &[u8]) -> impl Iterator<Item = ([u8; 4], &[u8])> {
    std::iter::from_fn(move || {
        let (kind, size, header) = header_of(bytes, bytes.len() as u64)?;
        let (this, rest) = bytes.split_at(size as usize);
        bytes = rest;
        Some((kind, &this[header as usize..]))
    })
}

fn child<'a>(within: &'a [u8], kind: &[u8; 4]) -> Option<&'a [u8]> {
    boxes(within).find(|(found, _)| found == kind).map(|(_, body)| body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn read(name: &str, bytes: &[u8]) -> Option<Container> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        Container::read(&file, name)
    }

    #[test]
    fn n13_probe_names_containers_by_their_first_bytes() {
        for (bytes, name) in [
            (&b"\x1aE\xdf\xa3\x9fB\x86\x81\x01B\x82\x88matroska"[..], "matroska"),
            (b"\x1aE\xdf\xa3\x9fB\x86\x81\x01B\x82\x84webm", "webm"),
            (b"RIFF\x24\0\0\0WAVEfmt ", "wav"),
            (b"fLaC\0\0\0\x22", "flac"),
            (b"OggS\0\x02", "ogg"),
            (b"ID3\x04\0\0", "mp3"),
            (b"\xff\xfb\x90\x64", "mp3"),
            (b"#EXTM3U\n", "m3u8"),
        ] {
            let found = read("x", bytes).map(|found| found.json()["container"].clone());
            assert_eq!(found, Some(name.into()));
        }
        for bytes in [&b""[..], b"hello", b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x47"] {
            assert!(read("x", bytes).is_none(), "{bytes:?}");
        }
    }

    #[test]
    fn n13_r09_probe_tells_the_tracks_of_a_movie_and_which_rtsp_does_not_send() {
        let clip = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/clip.mp4"));
        let clip = clip.unwrap();
        let found = read("clip.mp4", &clip).unwrap();
        let json = found.json();
        assert_eq!(json["tracks"][0]["codec"], "H.264 (avc1)");
        assert_eq!(json["tracks"][1]["kind"], "audio");
        assert_eq!(json["rate_bits_per_second"], found.facts.unwrap().rate.0);
        assert!(found.described().contains("track 2: audio, AAC (mp4a)"), "{}", found.described());
        assert!(json["tracks"][1]["rtsp"] == true && json["tracks"][1]["rtsp_reason"].is_null());
        // Another codec in the sample entry of the audio.
        let mut other = clip.clone();
        let at = other.windows(4).rposition(|kind| kind == b"mp4a").unwrap();
        other[at..at + 4].copy_from_slice(b"alac");
        let other = read("clip.mp4", &other).unwrap();
        let told = "track 2: audio, alac; not sent by RTSP: RTSP does not carry it";
        assert!(other.described().contains(told), "{}", other.described());
        assert_eq!(other.json()["tracks"][1]["rtsp"], false);
        // A file cut anywhere gives fewer facts and no failure.
        for cut in (0..clip.len().min(20_000)).step_by(97) {
            read("clip.mp4", &clip[..cut]);
        }
        let fragment = [&b"\0\0\0\x10ftypiso5\0\0\0\0"[..], b"\0\0\0\x08moof", b"\0\0\0\x08mdat"];
        let found = read("x.mp4", &fragment.concat()).unwrap();
        assert!(found.json()["fragmented"] == true && found.described().contains("fragmented"));
    }
}
