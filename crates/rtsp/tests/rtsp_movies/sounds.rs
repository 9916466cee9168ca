//! R9: movies with several audio tracks, of all codecs that RTP carries, and with others.

use super::*;
use tactus_core::rtp::Packet;

/// Each audio track: encoder, its options, and its language.
const SOUNDS: [(&str, &[&str], &str); 7] = [
    ("aac", &["-ac", "2"], "eng"),
    ("ac3", &["-ac", "6", "-b:a", "640k"], "deu"),
    ("libopus", &["-ac", "2", "-ar", "48000"], "fra"),
    ("libmp3lame", &["-ac", "2", "-ar", "44100", "-b:a", "320k"], "und"),
    ("eac3", &["-ac", "2", "-b:a", "192k"], "gsw"),
    ("flac", &["-ac", "2"], "ita"),
    ("mp2", &["-ac", "1"], "spa"),
];

/// A movie of two seconds with H.264, all of these, and subtitles.
fn movie(file: &Path) {
    let subtitles = file.with_extension("srt");
    std::fs::write(&subtitles, "1\n00:00:00,000 --> 00:00:01,000\nA word.\n").expect("a file");
    let mut all: Vec<String> = ["-v", "error", "-y", "-f", "lavfi", "-i"].map(String::from).into();
    let mut add = |more: &[&str]| all.extend(more.iter().map(|&one| one.to_owned()));
    add(&["testsrc2=size=320x240:rate=25:duration=2", "-f", "lavfi", "-i"]);
    add(&["sine=frequency=440:sample_rate=48000:duration=2", "-i"]);
    add(&[subtitles.to_str().expect("a plain path"), "-map", "0:v"]);
    SOUNDS.iter().for_each(|_| add(&["-map", "1:a"]));
    add(&["-map", "2:s", "-c:v", "libx264", "-preset", "ultrafast", "-g", "25", "-bf", "0"]);
    add(&["-c:s", "mov_text", "-strict", "experimental"]);
    for (nth, (encoder, options, language)) in SOUNDS.iter().enumerate() {
        add(&[&format!("-c:a:{nth}"), encoder, &format!("-metadata:s:a:{nth}")]);
        add(&[&format!("language={language}")]);
        for option in options.chunks(2) {
            let name = option[0].trim_end_matches(":a");
            add(&[&format!("{name}:a:{nth}"), option[1]]);
        }
    }
    add(&["-movflags", "faststart", file.to_str().expect("a plain path")]);
    said("ffmpeg", "ffmpeg", &all.iter().map(String::as_str).collect::<Vec<_>>());
}

/// Sizes and hashes of the packets of one stream.
fn packets_of(options: &[&str], map: &str, input: &str) -> Vec<String> {
    let copied = ["-map", map, "-c", "copy", "-f", "framemd5", "-"];
    let all = [&["-v", "error", "-nostdin"], options, &["-i", input], &copied].concat();
    let told = said("ffmpeg", "ffmpeg", &all);
    let lines = told.lines().filter(|line| !line.starts_with('#'));
    // Stream, times, duration, then these two; side data behind them.
    let part = |line: &str| {
        let columns: Vec<_> = line.split(',').map(str::trim).collect();
        format!("{} {}", columns[4], columns[5])
    };
    lines.map(part).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn r09_every_audio_track_is_described_with_its_language_and_carried_as_it_is() {
    let _turn = TURN.lock().await;
    let fixture = stage_of(DISK_MODEL, movie).await;
    let names: Vec<_> = fixture.movie.tracks.iter().map(|track| track.codec.name()).collect();
    let carried = ["H.264", "AAC", "AC-3", "Opus", "MPEG audio", "E-AC-3", "MPEG audio"];
    assert_eq!(names, carried);

    let mut client = Client::new(&fixture);
    let described = client.ask("DESCRIBE", &fixture.url, "").0;
    let body = described.split("\r\n\r\n").nth(1).expect("a description").to_owned();
    for line in [
        "i=not sent: audio FLAC (it), RTSP does not carry it; \
         text timed text, RTSP does not carry it",
        "a=rtpmap:98 ac3/48000/6",
        "a=rtpmap:99 opus/48000/2",
        "a=fmtp:99 sprop-stereo=1",
        "m=audio 0 RTP/AVP 14",
        "a=rtpmap:14 MPA/90000",
        "a=rtpmap:101 eac3/48000/2",
    ] {
        assert!(body.lines().any(|each| each == line), "{line}: {body}");
    }
    let languages: Vec<_> = body.lines().filter_map(|line| line.strip_prefix("a=lang:")).collect();
    assert_eq!(languages, ["en", "de", "fr", "gsw", "es"]);
    drop(client);

    let probes = TRANSPORTS.map(|transport| {
        let url = fixture.url.clone();
        tokio::task::spawn_blocking(move || {
            let show = ["-v", "error", "-rtsp_transport", transport, "-of", "csv=p=0"];
            let entries = ["-show_entries", "stream=codec_name:stream_tags=language"];
            said("ffprobe", "ffmpeg", &[&show[..], &entries, &[&url]].concat())
        })
    });
    // The tracks that this player knows: each by its number among the audio tracks.
    let file = fixture.file.display().to_string();
    let plays = [("0:a:0", "udp"), ("0:a:1", "tcp"), ("0:a:2", "udp"), ("0:a:3", "tcp")];
    let plays = plays.map(|(map, transport)| {
        let (url, file) = (fixture.url.clone(), file.clone());
        let play = tokio::task::spawn_blocking(move || {
            let came = packets_of(&["-rtsp_transport", transport], map, &url);
            (packets_of(&[], map, &file), came)
        });
        (map, play)
    });
    for probe in probes {
        let told = probe.await.expect("it ends");
        let told: Vec<_> = told.lines().map(str::trim).collect();
        // This version of ffprobe knows no E-AC-3 in RTP.
        let expected = ["h264", "aac,en", "ac3,de", "opus,fr", "mp3", "unknown,gsw", "mp2,es"];
        assert_eq!(told, expected);
    }
    for (map, play) in plays {
        let (own, came) = play.await.expect("it ends");
        assert!(own.len() > 30, "{map}: {}", own.len());
        // What comes before the first report of a stream may be left out by the player.
        assert!(came.len() <= own.len() && came.len() + 3 >= own.len(), "{map}: {}", came.len());
        assert!(own.windows(came.len()).any(|part| part == came), "{map}: other packets");
    }
}

/// The packets of one track, which is set up alone.
async fn packets(fixture: &Fixture, number: usize) -> Vec<Vec<u8>> {
    let url = fixture.url.clone();
    let mut client = Client::new(fixture);
    let setup = "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\n";
    let (head, _) = client.ask("SETUP", &format!("{url}/track{number}"), setup);
    let session = field(&head, "Session");
    let session = session.split(';').next().expect("a name");
    let (head, _) = client.ask("PLAY", &url, &format!("Session: {session}\r\n"));
    assert!(head.starts_with("RTSP/1.0 200"), "{head}");
    let mut packets = vec![];
    loop {
        match client.frame() {
            (0, packet) => packets.push(packet),
            (_, report) => {
                let mut parts = rtcp::read(&report).expect("a report");
                if parts.any(|part| matches!(part, rtcp::Packet::Bye { .. })) {
                    return packets;
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn r09_enhanced_ac3_and_parts_of_frames_are_reassembled_by_the_rules() {
    let _turn = TURN.lock().await;
    let fixture = stage_of(DISK_MODEL, movie).await;
    let bytes = std::fs::read(&fixture.file).expect("a movie");
    // E-AC-3 of one packet each, and AC-3 of 2,560 bytes in two parts each.
    for (number, fragments) in [(6, 1u8), (3, 2)] {
        let track = &fixture.movie.tracks[number - 1];
        let came = packets(&fixture, number).await;
        let expected = track.samples().len() * usize::from(fragments);
        assert_eq!(came.len(), expected, "track {number}");
        for (sample, parts) in track.samples().iter().zip(came.chunks(fragments.into())) {
            let own = &bytes[sample.at as usize..][..sample.len as usize];
            let mut frame: Vec<u8> = vec![];
            for (nth, part) in parts.iter().enumerate() {
                let packet = Packet::read(part).expect("RTP");
                let kind = match (fragments, nth) {
                    (1, _) => 0,
                    // Less than five eighths.
                    (_, 0) if packet.payload.len() * 8 < own.len() * 5 => 2,
                    (_, 0) => 1,
                    _ => 3,
                };
                assert_eq!(packet.payload[..2], [kind, fragments]);
                assert_eq!(packet.marker, nth + 1 == usize::from(fragments));
                frame.extend(&packet.payload[2..]);
            }
            assert!(frame == own, "track {number}");
        }
    }
}
