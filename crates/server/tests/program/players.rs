//! Real players play the sample titles through the real server.
//!
//! Promise: curl, ffmpeg, ffprobe, VLC and GStreamer get every byte and decode every frame without
//! a complaint, as from the file itself. A player that is not installed fails its test by name.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU64, Ordering};

use dvb_conformance::{ConformanceMonitor, Indicator};
use tactus_core::ts::{Continuity, Framing, Indexer};
use tactus_core::units::{Nanos, SECOND};
use tactus_media::sample;
use tactus_testkit::process::{Process, turn};
use tactus_testkit::programs::installed;
use tactus_testkit::server;

use crate::TACTUS;

/// Enough for a slow machine; what hangs ends here.
const PLAYER_SECONDS_MAX: &str = "120";
/// Titles of six seconds come in one, and even a disk that was measured beside other work has room.
const FAST: &str = "rate=20M";

const TS: Title = Title { name: "sample.ts", video_frames: 150, width: 1280, audio: 250 };
/// Four turns of 1.92 s; the first of 360 audio frames is the encoder's priming.
const MP4: Title = Title { name: "sample.mp4", video_frames: 192, width: 640, audio: 360 };

struct Title {
    name: &'static str,
    video_frames: usize,
    width: usize,
    /// Frames of 1152 (Layer II) or 1024 samples (AAC).
    audio: usize,
}

/// A running server, and the directory that it serves. One at a time: it pins its cores.
struct TestServer {
    _server: Process,
    base: String,
    /// The URL of its metrics.
    figures: String,
    dir: tempfile::TempDir,
    /// How often its metrics were asked for.
    looks: AtomicU64,
    _turn: MutexGuard<'static, ()>,
}

impl TestServer {
    fn new() -> Self {
        let turn = turn();
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
        // Some players run as another user.
        open_to_all(dir.path());
        let titles = dir.path().join("titles");
        fs::create_dir(&titles).expect("a directory for titles");
        sample::write_ts(&titles.join(TS.name), SECOND.times(6)).expect("a title");
        sample::write_mp4(&titles.join(MP4.name), SECOND.times(6)).expect("a title");
        // A disk that was measured while the machine had no time may be too slow for `FAST`.
        let fits = |base: &str| {
            let what = format!("{base}/{}?{FAST}", TS.name);
            let args = ["-sS", "-r", "0-0", "-o", "/dev/null", "-w", "%{http_code}", &what];
            run("curl", "curl", args).out != "503"
        };
        let mut tries = 0;
        let (server, base, figures) = loop {
            let (server, base, figures) = start(&titles);
            tries += 1;
            if fits(&base) || tries == 5 {
                break (server, base, figures);
            }
        };
        // One look: whether it fits.
        Self { _server: server, base, figures, dir, looks: AtomicU64::new(1), _turn: turn }
    }

    fn url(&self, title: &Title) -> String {
        format!("{}/{}?{FAST}", self.base, title.name)
    }

    fn file(&self, title: &Title) -> PathBuf {
        self.dir.path().join("titles").join(title.name)
    }

    fn bytes(&self, title: &Title) -> Vec<u8> {
        fs::read(self.file(title)).expect("a title")
    }

    /// Requests that the server has understood, this one not among them.
    fn requests(&self) -> u64 {
        let metrics = run("curl", "curl", ["-sS", "--fail", &self.figures]).out;
        let name = "tactus_http_requests_total ";
        let count = metrics.lines().find_map(|line| line.strip_prefix(name)?.parse::<u64>().ok());
        // Each look is a request itself.
        let looks = self.looks.fetch_add(1, Ordering::Relaxed);
        count.expect("the server counts requests") - looks - 1
    }

    /// A place for what a player writes, whoever it runs as.
    fn out(&self, name: &str) -> PathBuf {
        let dir = self.dir.path().join("out");
        if !dir.exists() {
            fs::create_dir(&dir).expect("a directory for players");
            open_to_all(&dir);
        }
        dir.join(name)
    }
}

/// A server of `titles`, its address, and the URL of its metrics.
fn start(titles: &Path) -> (Process, String, String) {
    let dir = titles.parent().expect("it is in a directory");
    let mut command = server::serve(TACTUS, dir);
    command.arg(titles).args(["--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config"]);
    command.arg(server::little_memory(dir));
    let (process, said) = server::start(&mut command, None, server::until("Metrics"), drop);
    let url = |first, path| {
        let address = server::address(&said, first, "http://").expect("an address");
        format!("http://{address}{path}")
    };
    (process, url("Serving", ""), url("Metrics", "/metrics"))
}

/// What a player wrote to standard output and to standard error.
struct PlayerOutput {
    out: String,
    err: String,
}

/// Runs `program` with `args` to its end, which has to be a good one.
fn run<S: AsRef<OsStr>>(
    program: &str,
    package: &str,
    args: impl IntoIterator<Item = S>,
) -> PlayerOutput {
    tried(program, package, args).unwrap_or_else(|failure| panic!("{failure}"))
}

/// Runs `program` with `args` to its end; a bad one is told in words.
fn tried<S: AsRef<OsStr>>(
    program: &str,
    package: &str,
    args: impl IntoIterator<Item = S>,
) -> Result<PlayerOutput, String> {
    installed(program, package);
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", PLAYER_SECONDS_MAX, program]).args(args).stdin(Stdio::null());
    let ended = command.output().expect("timeout is part of coreutils");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = PlayerOutput { out: text(&ended.stdout), err: text(&ended.stderr) };
    match ended.status.success() {
        true => Ok(said),
        false => Err(format!("{command:?}: {}\n{}\n{}", ended.status, said.out, said.err)),
    }
}

fn ffmpeg(before: &[&str], input: &str, after: &[&str]) -> String {
    let args = [&["-nostdin", "-v", "error", "-xerror"], before, &["-i", input], after].concat();
    let said = run("ffmpeg", "ffmpeg", args);
    assert_eq!(said.err, "", "ffmpeg complains about {input}");
    said.out
}

fn open_to_all(dir: &Path) {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).expect("a directory of ours");
}

fn text(path: &Path) -> &str {
    path.to_str().expect("plain names")
}

fn size(path: &Path) -> usize {
    fs::metadata(path).map_or(0, |facts| facts.len() as usize)
}

#[test]
fn curl_gets_every_byte_of_the_whole_and_of_ranges() {
    let server = TestServer::new();
    for title in [&TS, &MP4] {
        let (url, whole) = (server.url(title), server.bytes(title));
        let got = server.out(title.name);
        let curl = |more: &[&str]| {
            run("curl", "curl", [&["-sS", "--fail", "-o", text(&got)], more, &[&url]].concat());
            fs::read(&got).unwrap()
        };
        assert!(curl(&[]) == whole, "{}", title.name);
        assert!(curl(&["--range", "1000-200000"]) == whole[1000..=200_000], "{}", title.name);
        assert!(curl(&["--range", "-187"]) == whole[whole.len() - 187..], "{}", title.name);
        // A download that was cut goes on where it ended.
        fs::write(&got, &whole[..300_001]).unwrap();
        assert!(curl(&["--continue-at", "-"]) == whole, "{}", title.name);
    }
}

#[test]
fn the_stream_arrives_without_a_continuity_error() {
    let server = TestServer::new();
    let got = server.out("stream");
    run("curl", "curl", ["-sS", "--fail", "-o", text(&got), &server.url(&TS)]);
    let got = fs::read(got).unwrap();
    let (mut watch, mut monitor) = (Continuity::default(), ConformanceMonitor::new());
    let mut packets = 0;
    for (at, packet) in Framing::PLAIN.packets(&got) {
        assert_eq!(watch.handle_packet(&packet), None, "byte {at}");
        let time = std::time::Duration::from_micros(packets * 400);
        for event in monitor.feed(&got[at..at + 188], time) {
            // 3.10 is judged against a rate of draining that the monitor guesses.
            assert!(event.indicator == Indicator::DataDelayError, "{event:?}");
        }
        packets += 1;
    }
    assert_eq!(packets, 6 * 2500);
}

/// The title's own rate: no `?rate=` here.
#[test]
fn a_title_is_offered_at_the_rate_that_is_its_own() {
    let server = TestServer::new();
    for (title, mean) in [(&TS, 3_760_000), (&MP4, 1_138_000)] {
        let url = format!("{}/{}", server.base, title.name);
        let head = run("curl", "curl", ["-sS", "--fail", "--head", &url]).out;
        let value = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("tactus-rate").then(|| value.trim())
        });
        let value =
            value.unwrap_or_else(|| panic!("a paced stream, and its rate in the head:\n{head}"));
        // A constant rate by itself, or that of the first second with the mean and the peak.
        let stated = value.split(';').find_map(|one| one.trim().strip_prefix("mean="));
        let rate: u64 = stated.unwrap_or(value).parse().expect("a number");
        // What the operator adds for head-room is configuration; the default is small.
        assert!(rate >= mean && rate <= mean * 5 / 4, "{}: {value}", title.name);
    }
}

#[test]
fn ffmpeg_decodes_every_frame_as_from_the_file() {
    let server = TestServer::new();
    for title in [&TS, &MP4] {
        let frames = |input: &str, before: &[&str]| {
            let sums = ffmpeg(before, input, &["-map", "0", "-f", "framemd5", "-"]);
            sums.lines()
                .filter(|line| !line.starts_with('#'))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let local = frames(text(&server.file(title)), &[]);
        let of = |stream: &str| local.iter().filter(|line| line.starts_with(stream)).count();
        assert_eq!(of("0,"), title.video_frames, "{}", title.name);
        assert!(title.audio - of("1,") <= 1, "{}: {} audio frames", title.name, of("1,"));
        assert_eq!(frames(&server.url(title), &[]), local, "{}", title.name);
        if title.name == MP4.name {
            // The index says where to go on: ranges from the middle. (A stream has no index;
            // players then start within a group of pictures and complain, as they do about the
            // file.)
            let there = ["-ss", "3.2"];
            let middle = frames(text(&server.file(title)), &there);
            assert!(!middle.is_empty() && middle.len() < local.len());
            assert_eq!(frames(&server.url(title), &there), middle, "from the middle");
        }
    }
}

#[test]
fn ffprobe_reads_the_streams_and_their_durations() {
    let server = TestServer::new();
    for (title, duration) in [(&TS, Nanos(6_000_000_000)), (&MP4, Nanos(7_680_000_000))] {
        let facts = |input: &str| {
            let show = "stream=codec_name,duration,width,sample_rate";
            let ask = ["-v", "error", "-show_entries", show, "-of", "flat", input];
            let said = run("ffprobe", "ffmpeg", ask);
            assert_eq!(said.err, "", "{input}");
            said.out
        };
        let told = facts(&server.url(title));
        assert_eq!(told, facts(text(&server.file(title))));
        let holds = |line: &str| assert!(told.contains(line), "{line} is not in\n{told}");
        holds(&format!(
            "streams.stream.0.duration=\"{}.{:06}\"",
            duration.0 / SECOND.0,
            duration.0 % SECOND.0 / 1000
        ));
        holds(&format!("streams.stream.0.width={}", title.width));
        holds("streams.stream.0.codec_name=\"h264\"");
        holds("streams.stream.1.sample_rate=\"48000\"");
    }
}

/// Starts of VLC before its test gives up. On a busy machine VLC now and then crashes, or quits,
/// before it has opened its input; more than twice in a row is no accident.
const VLC_STARTS_MAX: usize = 3;

/// Runs VLC, which is to write `made`. Only a start is tried again, and only when VLC had not asked
/// the server for anything: whatever comes after its first request has to be right.
fn vlc(server: &TestServer, home: &Path, made: &Path, args: &[&str]) -> PlayerOutput {
    let mut failures = Vec::new();
    for _ in 0..VLC_STARTS_MAX {
        let before = server.requests();
        let played = tried_vlc(home, args);
        let (asked, wrote) = (server.requests() - before, made.exists());
        match played {
            Ok(said) if wrote => return said,
            Ok(said) => failures.push(format!("VLC wrote nothing: {}", said.err)),
            Err(failure) => failures.push(failure),
        }
        assert!(asked == 0 && !wrote, "VLC began, and failed: {failures:#?}");
    }
    panic!("VLC never began: {failures:#?}");
}

/// VLC refuses to run as root, so then it runs as nobody.
fn tried_vlc(home: &Path, args: &[&str]) -> Result<PlayerOutput, String> {
    let home = format!("HOME={}", text(home));
    let vlc = ["cvlc", "-I", "dummy", "--no-media-library", "--ignore-config", "-v"];
    let play = [&["env", &home][..], &vlc, args, &["vlc://quit"]].concat();
    let found = run("id", "coreutils", ["-u"]).out;
    // `run` looks for the program that it starts; the player behind it is looked for here.
    run(
        "sh",
        "dash",
        ["-c", "command -v cvlc || { echo install the package vlc-bin >&2; exit 1; }"],
    );
    match found.trim() {
        "0" => tried("runuser", "util-linux", [&["-u", "nobody", "--"], &play[..]].concat()),
        _ => tried("env", "coreutils", &play[1..]),
    }
}

#[test]
fn vlc_gets_every_byte_and_decodes_without_a_complaint() {
    let server = TestServer::new();
    let home = server.out("home");
    fs::create_dir(&home).unwrap();
    open_to_all(&home);
    for title in [&TS, &MP4] {
        let dump = server.out(&format!("{}.dump", title.name));
        let to_dump = ["--demux", "dump", "--demuxdump-file", text(&dump), &server.url(title)];
        vlc(&server, &home, &dump, &to_dump);
        assert!(fs::read(&dump).unwrap() == server.bytes(title), "{}", title.name);

        let decoded = |input: &str, name: &str| {
            let out = server.out(name);
            let video_frame = "vcodec=mp2v,vb=2000,width=320,height=180,acodec=mpga,ab=128";
            let chain =
                format!("#transcode{{{video_frame}}}:std{{access=file,mux=ts,dst={}}}", text(&out));
            let said = vlc(&server, &home, &out, &["--sout", &chain, input]);
            let complaint = ["discontinuity", "corrupt", "lost sync", "cannot decode"];
            let complains = |line: &&str| complaint.iter().any(|word| line.contains(word));
            assert_eq!(said.err.lines().find(complains), None, "VLC complains about {input}");
            let ask = ["-v", "quiet", "-count_frames", "-select_streams", "v"];
            let show = ["-show_entries", "stream=nb_read_frames", "-of", "default=nw=1:nk=1"];
            let count = run("ffprobe", "ffmpeg", [&ask[..], &show, &[text(&out)]].concat()).out;
            count.lines().next().and_then(|count| count.trim().parse::<usize>().ok()).unwrap()
        };
        // VLC's transcoder starts its chain anew when audio joins, and leaves out up to half a
        // second of video frames while it does; from a file it does the same.
        let video_frames = decoded(&server.url(title), &format!("{}.ts", title.name));
        assert!(
            video_frames * 5 >= title.video_frames * 4,
            "{}: {video_frames} video frames",
            title.name
        );
    }
}

fn gstreamer(pipeline: &str) {
    for (element, package) in [
        ("souphttpsrc", "gstreamer1.0-plugins-good"),
        ("qtdemux", "gstreamer1.0-plugins-good"),
        ("tsdemux", "gstreamer1.0-plugins-bad"),
        ("h264parse", "gstreamer1.0-plugins-bad"),
        ("avdec_h264", "gstreamer1.0-libav"),
        ("videoscale", "gstreamer1.0-plugins-base"),
    ] {
        let known = Command::new("gst-inspect-1.0").args(["--exists", element]).status();
        assert!(
            known.is_ok_and(|known| known.success()),
            "GStreamer's {element} is missing: install the packages gstreamer1.0-tools and \
             {package}"
        );
    }
    let said = run("gst-launch-1.0", "gstreamer1.0-tools", [&["-q"], &*words(pipeline)].concat());
    assert!(!said.err.contains("ERROR") && !said.err.contains("WARN"), "{}", said.err);
}

fn words(pipeline: &str) -> Vec<&str> {
    pipeline.split_whitespace().collect()
}

#[test]
fn gstreamer_gets_every_byte_and_decodes_every_frame() {
    let server = TestServer::new();
    for (title, demux, parse, decode, frame) in [
        (&TS, "tsdemux", "mpegaudioparse", "avdec_mp2float", 1152),
        (&MP4, "qtdemux", "aacparse", "avdec_aac", 1024),
    ] {
        let url = server.url(title);
        let got = server.out(title.name);
        gstreamer(&format!("souphttpsrc location={url} ! filesink location={}", text(&got)));
        assert!(fs::read(&got).unwrap() == server.bytes(title), "{}", title.name);

        let (video_frames, audio) = (server.out("pictures"), server.out("audio"));
        let queue = "queue max-size-time=0 max-size-bytes=0 max-size-buffers=0";
        gstreamer(&format!(
            "souphttpsrc location={url} ! {demux} name=d \
             d. ! {queue} ! h264parse ! avdec_h264 ! videoscale \
                ! video/x-raw,width=64,height=36,format=I420 ! filesink location={} \
             d. ! {queue} ! {parse} ! {decode} ! audioconvert \
                ! audio/x-raw,format=S16LE,channels=2,layout=interleaved ! filesink location={}",
            text(&video_frames),
            text(&audio)
        ));
        assert_eq!(size(&video_frames), title.video_frames * 64 * 36 * 3 / 2, "{}", title.name);
        // Decoders leave out the encoder's delay: less than one frame, or exactly the priming one.
        let missing = (title.audio * frame * 4).checked_sub(size(&audio));
        assert!(missing.is_some_and(|missing| missing <= frame * 4), "{}: {missing:?}", title.name);
    }
}

/// Titles of eight seconds, as ffmpeg makes them: how their video frames are coded, and at which
/// rate.
const CODED: [(&str, &[&str]); 5] = [
    (
        "MPEG-2, constant",
        &["-c:v", "mpeg2video", "-b:v", "2M", "-maxrate", "2M", "-bufsize", "1M", "-muxrate", "3M"],
    ),
    ("MPEG-2, variable", &["-c:v", "mpeg2video", "-q:v", "5", "-g", "15"]),
    ("H.264", &["-c:v", "libx264", "-preset", "ultrafast", "-g", "25", "-bf", "2"]),
    (
        "H.264, open groups",
        &[
            "-c:v",
            "libx264",
            "-preset",
            "veryfast",
            "-x264-params",
            "open-gop=1:keyint=25:scenecut=0",
        ],
    ),
    (
        "H.265",
        &["-c:v", "libx265", "-preset", "ultrafast", "-x265-params", "keyint=25:log-level=none"],
    ),
];

#[test]
fn an_index_finds_the_key_frames_that_ffprobe_finds() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    let path = dir.path().join("coded.ts");
    for (name, coded) in CODED {
        let more = [&["-y", "-threads", "1"], coded, &["-f", "mpegts", text(&path)]].concat();
        let video_frame = "testsrc2=size=320x240:rate=25:duration=8";
        ffmpeg(&["-f", "lavfi"], video_frame, &more);
        let entries = "packet=pts,flags";
        let args = ["-v", "error", "-select_streams", "v", "-show_entries", entries];
        let args = [&args[..], &["-of", "csv=p=0", text(&path)]].concat();
        let said = run("ffprobe", "ffmpeg", args).out;
        let keys: Vec<u64> = said
            .lines()
            .filter_map(|line| line.split_once(','))
            .filter(|(_, flags)| flags.starts_with('K'))
            .map(|(time, _)| time.parse().expect("ticks of 90 kHz"))
            .collect();
        let keys: Vec<_> = keys.iter().map(|time| time - keys[0]).collect();

        let mut indexer = Indexer::default();
        indexer.add(&fs::read(&path).expect("a title"));
        let index = indexer.finish().expect("an index");
        let found = index.accesses().iter().map(|access| (index.played(access).0 + 150) / 300);
        assert_eq!(found.collect::<Vec<_>>(), keys, "{name}");
        assert!(keys.len() >= 7, "{name}: {keys:?}");
        assert_eq!(index.is_constant(), name.ends_with("constant"), "{name}: {:?}", index.rates());
    }
}
