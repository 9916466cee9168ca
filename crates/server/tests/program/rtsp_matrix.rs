//! Players and libraries that others have written play by RTSP: over UDP, in the connection, and to
//! groups, as far as each of them can.
//!
//! Promise: ffmpeg, GStreamer (in RTSP 1.0 and 2.0), mpv, VLC and aiortsp get every packet and
//! decode every frame of a title, ffmpeg and mpv of a movie too; they pause, seek and change the
//! speed, and what they have got is a transport stream without an error (TR 101 290). One that is
//! not installed fails its test by name. What each of them can is the table in
//! `docs/guide/rtsp.md`.

mod net;
mod players;

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use net::Net;
use players::{run, said, script};
use tactus_testkit::programs::installed;

use crate::clients;
use crate::judge::{PacketTiming, ReceivedPackets};
use crate::media_server::{SECONDS, TestServer, Titles};

const FRAMES_PER_SECOND: usize = 25;
/// What `film-short.ts` has.
const SHORT_FRAMES: usize = 3 * FRAMES_PER_SECOND;
/// Longest that a player may take, on a machine that has no time for it.
const SECONDS_MAX: &str = "900";

/// A server in a network of its own.
struct Fixture {
    server: TestServer,
    net: Net,
}

impl Fixture {
    fn new() -> Self {
        let net = Net::new();
        Self { server: TestServer::by(&|program| net.command(program), ""), net }
    }

    fn url(&self, title: &str) -> String {
        format!("rtsp://{}/{title}", self.server.rtsp)
    }

    /// The name that players have for a transport, and the address to ask: by IPv6 there are no
    /// groups here.
    fn transports(&self, names: [&'static str; 3]) -> Vec<(String, &'static str, SocketAddr)> {
        let [udp, tcp, group] = names;
        let (four, six) = (self.server.rtsp, self.server.rtsp_six);
        let all = [(udp, four), (tcp, four), (group, four), (udp, six), (tcp, six)];
        all.map(|(transport_name, at)| {
            (format!("{transport_name}, {}", at.ip()), transport_name, at)
        })
        .into()
    }

    fn out(&self, name: &str) -> String {
        self.server.out().join(name).to_str().expect("a plain name").to_owned()
    }

    /// A player beside it, which is ended when it takes too long.
    fn player(&self, program: &str) -> Command {
        let mut command = self.net.command("timeout");
        command.args(["--kill-after=30", SECONDS_MAX, program]);
        command
    }

    /// A transport stream without an error, of at least so many seconds of the film.
    fn judge(&self, name: &str, file: &str, seconds: usize) {
        let bytes = fs::read(file).expect("the player has written something");
        let film = Titles::get().film.len() / SECONDS as usize;
        assert!(bytes.len() > seconds * film / 3, "{name}: {} bytes in {seconds} s", bytes.len());
        ReceivedPackets::by_its_clock(bytes).judge(name, PacketTiming::Own);
    }
}

/// Sums of the decoded video frames.
fn sums(ffmpeg: Command, before: &[&str], input: &str) -> Vec<String> {
    let (sums, complaint) = sums_and_complaint(ffmpeg, before, input, &[]);
    assert_eq!(complaint, "", "{before:?} {input}");
    sums
}

/// The same with what is said of them.
fn sums_and_complaint(
    mut ffmpeg: Command,
    before: &[&str],
    input: &str,
    after: &[&str],
) -> (Vec<String>, String) {
    ffmpeg.args(["-nostdin", "-v", "error"]).args(before).args(["-i", input, "-map", "0:v"]);
    let output =
        run(ffmpeg, [after, &["-fps_mode", "passthrough", "-f", "framemd5", "-"]].concat());
    assert!(output.status.success(), "{before:?}: {}", said(&output));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let sums = lines.filter_map(|line| Some(line.rsplit_once(',')?.1.trim().to_owned()));
    (sums.collect(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn ffmpeg_decodes_every_frame_and_seeks_over_each_transport() {
    let fixture = Fixture::new();
    let ffmpeg = installed("ffmpeg", "ffmpeg");
    let file =
        |title: &str| fixture.server.titles().join(title).to_str().expect("plain").to_owned();
    let of_file = |title: &str| sums(Command::new(&ffmpeg), &[], &file(title));
    let (short, film) = (of_file("film-short.ts"), of_file("film.ts"));
    assert_eq!(short.len(), SHORT_FRAMES);
    for (name, transport_name, at) in fixture.transports(["udp", "tcp", "udp_multicast"]) {
        let transport = ["-rtsp_transport", transport_name];
        let url = |title: &str| format!("rtsp://{at}/{title}");
        let came = sums(fixture.player(&ffmpeg), &transport, &url("film-short.ts"));
        // Of what comes last it does not know that it is whole; it is shown last but one.
        assert!(came.len() + 1 >= short.len(), "{name}: {} of {}", came.len(), short.len());
        let but_two = short.len() - 2;
        assert!(came[..but_two] == short[..but_two], "{name}: video frames as in the file");
        assert!(came.iter().all(|sum| short.contains(sum)), "{name}: video frames as in the file");
        let there = [&transport[..], &["-ss", "9.3"]].concat();
        let (came, _) =
            sums_and_complaint(fixture.player(&ffmpeg), &there, &url("film.ts"), &["-t", "3"]);
        // It begins to play, and complains of the video frame that its seek cuts.
        let [.., last] = &came[..] else { panic!("{name}: nothing has come") };
        let end = 1 + film.iter().position(|sum| sum == last).expect("it is of the title");
        let own = FRAMES_PER_SECOND.min(came.len());
        assert!(film[..end].ends_with(&came[came.len() - own..]), "{name}: as in the file");
        assert!(own == FRAMES_PER_SECOND && end > 9 * FRAMES_PER_SECOND, "{name}: {end}");
    }
}

#[test]
fn gstreamer_plays_pauses_seeks_and_goes_faster_over_each_transport() {
    gstreamer_plays("1-0");
}

#[test]
fn gstreamer_plays_pauses_seeks_and_goes_faster_in_two() {
    gstreamer_plays("2-0");
}

fn gstreamer_plays(version: &str) {
    let fixture = Fixture::new();
    installed("gst-launch-1.0", "gstreamer1.0-tools");
    for (name, transport_name, at) in fixture.transports(["udp", "tcp", "udp-mcast"]) {
        let parts = ["before", "after", "fast"].map(|name| fixture.out(name));
        let (url, script) = (format!("rtsp://{at}/film.ts"), script("gst.py"));
        let parts = parts.each_ref().map(String::as_str);
        let args = [&[&script, version, &url, transport_name, "9.3"][..], &parts].concat();
        // The one of Debian, which has its bindings.
        let output = run(fixture.player("/usr/bin/python3"), args);
        assert!(output.status.success(), "{name} (package python3-gst-1.0): {}", said(&output));
        fixture.judge(&format!("GStreamer, {name}, over a pause"), parts[0], 4);
        fixture.judge(&format!("GStreamer, {name}, after a seek"), parts[1], 2);
        fixture.judge(&format!("GStreamer, {name}, Scale"), parts[2], 0);
    }
}

#[test]
fn gstreamer_plays_pauses_seeks_and_goes_faster_in_movies_over_each_transport() {
    gstreamer_plays_movies("1-0");
}

#[test]
fn gstreamer_does_so_too_in_two() {
    gstreamer_plays_movies("2-0");
}

fn gstreamer_plays_movies(version: &str) {
    let fixture = Fixture::new();
    installed("gst-launch-1.0", "gstreamer1.0-tools");
    for (name, transport_name, at) in fixture.transports(["udp", "tcp", "udp-mcast"]) {
        let (url, script) = (format!("rtsp://{at}/movie.mp4"), script("gst.py"));
        let output = run(
            fixture.player("/usr/bin/python3"),
            [&script, version, &url, transport_name, "9.3"],
        );
        assert!(output.status.success(), "{name} (package python3-gst-1.0): {}", said(&output));
    }
}

#[test]
fn gstreamer_gets_every_byte_to_the_end_in_both_versions() {
    let fixture = Fixture::new();
    installed("gst-launch-1.0", "gstreamer1.0-tools");
    let (script, titles) = (script("gst_whole.py"), Titles::get());
    for (title, bytes) in
        [("even-short.ts", &titles.even_short), ("film-short.ts", &titles.film_short)]
    {
        for (name, transport_name, at) in fixture.transports(["udp", "tcp", "udp-mcast"]) {
            for version in ["1-0", "2-0"] {
                let (url, out) = (format!("rtsp://{at}/{title}"), fixture.out("whole"));
                let args = [&script, version, &url, transport_name, &out];
                let output = run(fixture.player("/usr/bin/python3"), args);
                let name = format!("{title} by {name} in {version}");
                assert!(output.status.success(), "{name}: {}", said(&output));
                let came = fs::read(&out).expect("it has written something");
                assert!(came == *bytes, "{name}: {} of {} bytes", came.len(), bytes.len());
            }
        }
    }
}

#[test]
fn mpv_decodes_every_frame_pauses_and_seeks_over_each_transport() {
    mpv_plays("film.ts", &["udp", "tcp", "udp_multicast"]);
}

#[test]
fn mpv_plays_movies_so_too() {
    mpv_plays("movie.mp4", &["udp", "tcp"]);
}

fn mpv_plays(title: &str, transports: &[&str]) {
    let fixture = Fixture::new();
    let mpv = installed("mpv", "mpv");
    for transport_name in transports {
        let dir = fixture.out(transport_name);
        let fixed = ["--no-config", "--ao=null", "--msg-level=all=error"];
        let transport = format!("--rtsp-transport={transport_name}");
        let whole = [
            "--vo=image",
            "--vo-image-format=png",
            // They are counted, not kept.
            "--vo-image-png-compression=0",
            "--vo-image-png-filter=0",
            "--untimed",
            &format!("--frames={SHORT_FRAMES}"),
            &format!("--vo-image-outdir={dir}"),
            &transport,
            &fixture.url(title),
        ];
        let output = run(fixture.player(&mpv), [&fixed[..], &whole].concat());
        assert!(output.status.success(), "{transport_name}: {}", said(&output));
        let came = fs::read_dir(&dir).expect("video frames").count();
        assert_eq!(came, SHORT_FRAMES, "{transport_name}");

        let script = format!("--script={}", script("mpv.lua"));
        let steps = ["--vo=null", "--msg-level=mpv=info", &transport, &script, &fixture.url(title)];
        let output = run(fixture.player(&mpv), [&fixed[..2], &steps].concat());
        assert!(output.status.success(), "{transport_name}: {}", said(&output));
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        let at = |step: &str| -> f64 {
            let place = told
                .rfind(&format!("{step} "))
                .unwrap_or_else(|| panic!("{transport_name}: {told}"));
            let value = told[place..].split_whitespace().nth(1).expect("a time");
            value.parse().expect("a time")
        };
        assert!(at("paused") - at("played") < 0.2, "{transport_name}: {told}");
        assert!(at("again") > at("paused") + 1.0, "{transport_name}: {told}");
        assert!(at("elsewhere") > 10.0, "{transport_name}: {told}");
    }
}

#[test]
fn ffmpeg_decodes_every_frame_of_a_movie() {
    let fixture = Fixture::new();
    let ffmpeg = installed("ffmpeg", "ffmpeg");
    fixture.server.add_hevc();
    // By H.264 and by H.265.
    for title in ["movie.mp4", "hevc.mp4"] {
        let file = fixture.server.titles().join(title);
        let film = sums(Command::new(&ffmpeg), &[], file.to_str().expect("a plain name"));
        let count = 10 * FRAMES_PER_SECOND;
        assert!(film.len() > count);
        let transports = fixture.transports(["udp", "tcp", "udp_multicast"]).into_iter();
        for (name, transport_name, at) in
            transports.filter(|(_, transport_name, _)| *transport_name != "udp_multicast")
        {
            let (transport, url) =
                (["-rtsp_transport", transport_name], format!("rtsp://{at}/{title}"));
            let frames = ["-frames:v", &count.to_string()];
            let (came, _) = sums_and_complaint(fixture.player(&ffmpeg), &transport, &url, &frames);
            let same = came.iter().zip(&film).take_while(|(came, own)| came == own).count();
            assert_eq!((came.len(), same), (count, count), "{title}, {name}: as in the file");
        }
    }
}

/// Debian builds VLC without live555 (its bug 981439); what plays here is its module for SAT>IP,
/// over UDP.
#[test]
fn vlc_gets_every_byte_over_udp() {
    let fixture = Fixture::new();
    installed("cvlc", "vlc-bin");
    let home = fixture.out("home");
    fs::create_dir(&home).expect("a directory");
    open_to_all(fixture.server.out());
    open_to_all(Path::new(&home));
    let dump = format!("{home}/dump.ts");
    let play = [
        "cvlc",
        "-I",
        "dummy",
        "--no-media-library",
        "--ignore-config",
        "--demux",
        "dump",
        "--demuxdump-file",
        &dump,
        &fixture.url("film-short.ts"),
    ];
    let own = format!("HOME={home}");
    // It refuses to run as root, and does not end by itself: it waits for more.
    let as_nobody = ["-u", "nobody", "--", "env", &own];
    let mut vlc = match rustix::process::getuid().is_root() {
        true => fixture.player("runuser"),
        false => fixture.player("env"),
    };
    let skipped = if rustix::process::getuid().is_root() { 0 } else { 4 };
    let mut vlc = vlc.args(&as_nobody[skipped..]).args(play).spawn().expect("timeout is there");
    let film = &Titles::get().film_short;
    let end = std::time::Instant::now() + std::time::Duration::from_secs(300);
    while fs::metadata(&dump).map_or(0, |facts| facts.len()) < film.len() as u64 {
        assert!(std::time::Instant::now() < end, "it has got {:?}", fs::metadata(&dump));
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    // timeout passes it on.
    let pid = rustix::process::Pid::from_child(&vlc);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs until then");
    vlc.wait().expect("it was started");
    assert!(fs::read(&dump).expect("a dump") == *film, "every byte");
}

fn open_to_all(dir: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).expect("a directory of ours");
}

#[test]
fn aiortsp_plays_pauses_seeks_and_goes_faster() {
    let fixture = Fixture::new();
    let place = clients::directory();
    let python = place.join("python/bin/python3");
    assert!(python.is_file(), "aiortsp is missing: cargo xtask ci installs it");
    let python = python.to_str().expect("a plain name");
    for (transport_name, scheme) in [("udp", "rtsp"), ("tcp", "rtspt")] {
        let parts = ["before", "after", "fast"].map(|name| fixture.out(name));
        let (url, script) = (fixture.url("film.ts").replace("rtsp", scheme), script("rtsp.py"));
        let args = [&[&script, &url, "9.3"][..], &parts.each_ref().map(String::as_str)];
        let output = run(fixture.player(python), args.concat());
        assert!(output.status.success(), "{transport_name}: {}", said(&output));
        fixture.judge(&format!("aiortsp, {transport_name}, before a pause"), &parts[0], 2);
        fixture.judge(&format!("aiortsp, {transport_name}, after a seek"), &parts[1], 2);
        fixture.judge(&format!("aiortsp, {transport_name}, Scale"), &parts[2], 0);
    }
}
