//! Players and libraries that others have written play by RTSP: over UDP, and in the connection. Groups are not here: which
//! interface players join them on is the machine's routing.
//!
//! Promise: ffmpeg, GStreamer and aiortsp get every packet, decode what they get without a complaint, pause and
//! seek; what they have got is a transport stream without an error. One that is not installed fails its test by name.

use std::ffi::OsStr;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dvb_conformance::{ConformanceMonitor, Indicator};
use tactus::catalogue::{Catalogue, CatalogueRules};
use tactus::config::{Auto, Config};
use tactus::engine::{self, Engine};
use tactus::media::{probe, sample};
use tactus::rtsp::Rtsp;
use tactus_core::ts::{Continuity, Framing};
use tactus_core::units::{Bytes, MIB, SECOND};

/// How long the title is.
const SECONDS: u64 = 20;
const PICTURES_PER_SECOND: usize = 25;

/// A server of one title. One at a time: it pins its cores.
struct Stage {
    rtsp: Rtsp,
    _engine: Engine,
    address: SocketAddr,
    runtime: Option<tokio::runtime::Runtime>,
    dir: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl Stage {
    fn new() -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
        let titles = dir.path().join("titles");
        fs::create_dir(&titles).expect("a directory for titles");
        sample::write_ts(&titles.join("a.ts"), SECOND.times(SECONDS)).expect("a title");
        let text = format!("[[volume]]\npath = \"{}\"\n", titles.display());
        let mut config = Config::parse(&dir.path().join("t.toml"), &text).expect("a configuration");
        config.memory.arena = Auto::Set(Bytes(32 * MIB));
        let rules = CatalogueRules { probe: probe::probe, ..CatalogueRules::default() };
        let catalogue = Arc::new(Catalogue::new(&titles, rules).expect("a volume"));
        let engine = engine::start(&config).expect("the engine starts");
        let rtsp = Rtsp::new(&config.rtsp, &catalogue, &engine.broker).expect("it is configured");
        let runtime = tokio::runtime::Runtime::new().expect("threads");
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"));
        let listener = listener.expect("a port");
        let address = listener.local_addr().expect("bound");
        runtime.spawn(rtsp.clone().serve(listener));
        Self { rtsp, _engine: engine, address, runtime: Some(runtime), dir, _turn: turn }
    }

    fn url(&self, scheme: &str) -> String {
        format!("{scheme}://{}/a.ts", self.address)
    }

    fn out(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.block_on(self.rtsp.close());
            runtime.shutdown_timeout(Duration::from_secs(60));
        }
    }
}

/// Runs a program for at most two minutes, or until it is interrupted as by ctrl-c.
fn run<S: AsRef<OsStr>>(program: &Path, seconds: u64, args: impl IntoIterator<Item = S>) -> Output {
    let mut command = Command::new("timeout");
    command.args(["--signal=INT", "--kill-after=30", &seconds.to_string()]).arg(program).args(args);
    command.output().expect("timeout is part of coreutils")
}

fn installed(program: &str, package: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file());
    found.unwrap_or_else(|| panic!("{program} is missing: install the package {package}"))
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr))
}

/// A transport stream without an error, as far as what has not come can be left out: the packets of `seconds`.
fn judge(file: &Path, seconds: u64) {
    let bytes = fs::read(file).expect("the player has written something");
    assert!(bytes.len().is_multiple_of(188), "whole packets");
    let (mut watch, mut monitor) = (Continuity::default(), ConformanceMonitor::new());
    let mut packets = 0;
    for (at, packet) in Framing::PLAIN.packets(&bytes) {
        assert_eq!(watch.handle_packet(&packet), None, "byte {at} of {}", file.display());
        let time = Duration::from_micros(packets * 400);
        for event in monitor.feed(&bytes[at..at + 188], time) {
            // 3.10 is judged against a rate of draining that the monitor guesses.
            assert!(event.indicator == Indicator::DataDelayError, "{event:?} at {at}");
        }
        packets += 1;
    }
    // The sample has 2,500 a second.
    assert!(packets > 2500 * seconds / 2, "{packets} packets in {seconds} s");
}

#[test]
fn ffmpeg_decodes_every_frame_over_each_transport() {
    let stage = Stage::new();
    let ffmpeg = installed("ffmpeg", "ffmpeg");
    for way in ["udp", "tcp"] {
        let out = stage.out(way);
        let out = out.to_str().expect("plain names");
        let args = ["-nostdin", "-v", "error", "-rtsp_transport", way, "-i", &stage.url("rtsp")];
        let after = ["-t", "4", "-map", "0:v", "-f", "framemd5", "-y", out];
        let output = run(&ffmpeg, 120, [&args[..], &after].concat());
        assert!(output.status.success() && output.stderr.is_empty(), "{way}: {}", said(&output));
        let sums = fs::read_to_string(out).expect("sums of frames");
        let frames = sums.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(frames, 4 * PICTURES_PER_SECOND, "{way}");
    }
}

#[test]
fn gstreamer_gets_a_transport_stream_without_an_error_over_each_transport() {
    let stage = Stage::new();
    let launch = installed("gst-launch-1.0", "gstreamer1.0-tools");
    for way in ["udp", "tcp"] {
        let out = stage.out(way);
        let source = format!("location={}", stage.url("rtsp"));
        let (protocols, sink) = (format!("protocols={way}"), format!("location={}", out.display()));
        let args =
            ["-q", "rtspsrc", &source, &protocols, "!", "rtpmp2tdepay", "!", "filesink", &sink];
        let output = run(&launch, 8, args);
        // Interrupted: that is its way to end.
        assert!(output.stderr.is_empty(), "{way}: {}", said(&output));
        judge(&out, 5);
    }
}

#[test]
fn aiortsp_plays_pauses_and_seeks() {
    let stage = Stage::new();
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is in the target");
    let place = target.join("tools/clients");
    let python = place.join("python/bin/python3");
    assert!(python.is_file(), "aiortsp is missing: cargo xtask ci installs it");
    for scheme in ["rtsp", "rtspt"] {
        let (before, after) = (stage.out("before"), stage.out("after"));
        let args = [
            place.join("rtsp.py").into_os_string(),
            stage.url(scheme).into(),
            "10".into(),
            before.clone().into_os_string(),
            after.clone().into_os_string(),
        ];
        let output = run(&python, 120, args);
        assert!(output.status.success(), "{scheme}: {}", said(&output));
        judge(&before, 2);
        judge(&after, 2);
    }
}
