//! Every check of `rtsp-check` of the server beside it: none fails, and none is left out.
//!
//! It needs ffmpeg; what is missing is named.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longer than anything takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Of the title: seeks go to its middle.
const SECONDS: u32 = 30;
/// Knowing the disk beforehand it measures nothing at its start.
const MODEL: &str = "version = 1\nmeasured = \"never\"\ndevice = \"none\"\n\
                     probes = false\n[model]\n\
                     visit = \"50 us\"\n\
                     sweep = \"0 ns\"\nread_mib = \"400 us\"\nwrite_mib = \"900 us\"\ndepth = 8\n";

fn bench() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_tactus-bench"))
}

/// What a program has said, which must end well.
fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program} is needed: {error}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// A server of one title, which `anna` may record beside.
struct Fixture {
    server: Child,
    address: String,
    folder: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder on a disk");
        let titles = folder.path().join("titles");
        fs::create_dir(&titles).expect("a directory for titles");
        let video = format!("testsrc2=size=320x240:rate=25:duration={SECONDS}");
        let title = titles.join("a.ts").display().to_string();
        let coding = ["-c:v", "libx264", "-preset", "ultrafast", "-g", "25", "-b:v", "1M"];
        let input = ["-v", "error", "-f", "lavfi", "-i", &video];
        said("ffmpeg", &[&input[..], &coding, &["-muxrate", "2M", &title]].concat());
        fs::write(folder.path().join("model"), MODEL).expect("a model");
        fs::write(folder.path().join("password"), "correct-horse").expect("a password");
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(folder.path().join("password"), private).expect("a file of ours");
        let text = format!(
            "[http]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"off\"\n[memory]\n\
             arena = \"64 MiB\"\n\
             [[volume]]\npath = \"{}\"\nmodel = \"model\"\nuploads = true\n\
             [rtsp]\naddress = \"127.0.0.1:0\"\nrecorders = \"principals\"\n\
             [[rtsp.principal]]\nname = \"anna\"\npassword_file = \"password\"\nrecords = true\n",
            titles.display()
        );
        let file = folder.path().join("tactus.toml");
        fs::write(&file, text).expect("a configuration");
        let tactus = bench().with_file_name("tactus");
        assert!(tactus.exists(), "{} is missing: cargo build -p tactus", tactus.display());
        let log = folder.path().join("log");
        let output = File::create(&log).expect("a log");
        let mut command = Command::new(tactus);
        command.env("XDG_STATE_HOME", folder.path().join("state")).env_remove("STATE_DIRECTORY");
        command.arg("serve").arg("--config").arg(&file).stdin(Stdio::null());
        command.stdout(output.try_clone().expect("a handle")).stderr(output);
        let server = command.spawn().expect("the server starts");
        let mut fixture = Self { server, address: String::new(), folder };
        let begun = Instant::now();
        loop {
            let said = fs::read_to_string(&log).expect("a log");
            let place = said.lines().find_map(|line| line.split_once("RTSP at rtsp://"));
            if let Some((_, address)) = place {
                fixture.address = address.trim_end_matches('/').to_owned();
                return fixture;
            }
            let ended = fixture.server.try_wait().expect("its state");
            assert!(ended.is_none() && begun.elapsed() < PATIENCE, "{ended:?}: {said}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join("titles").join(name)
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        drop(self.server.kill());
        drop(self.server.wait());
    }
}

/// Begins to check; what is printed is one JSON object.
fn check(arguments: &[&str]) -> Child {
    let mut command = Command::new(bench());
    command.args(["rtsp-check", "--json"]).args(arguments).stdout(Stdio::piped());
    command.spawn().expect("it runs")
}

/// All have passed; how many there were.
fn all_passed(checks: Child) -> usize {
    let output = checks.wait_with_output().expect("it ends");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a report");
    let all = report["checks"].as_array().expect("checks");
    let other: Vec<_> = all.iter().filter(|check| check["verdict"] != "passed").collect();
    assert!(other.is_empty() && output.status.success(), "{other:#?}");
    all.len()
}

/// Video frames that a decoder makes of a title.
fn video_frames(title: &Path) -> String {
    let title = title.display().to_string();
    let count = ["-count_frames", "-show_entries", "stream=nb_read_frames", "-of", "csv=p=0"];
    let said = said("ffprobe", &[&["-v", "error"], &count[..], &[&title]].concat());
    // Said once more with the program that it is of.
    said.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn no_check_fails_here() {
    let fixture = Fixture::new();
    let address = &fixture.address;
    let playing = check(&[&format!("rtsp://{address}/a.ts")]);
    let recording = check(&["--record", &format!("rtsp://anna:correct-horse@{address}/{{}}.ts")]);
    let (playing, recording) = (all_passed(playing), all_passed(recording));
    let named = said(&bench().display().to_string(), &["rtsp-check", "--list"]);
    // But for those that wait for time-outs, which are not named either.
    assert_eq!(playing + recording, named.lines().count());
    // What was sent for two seconds is there, each video frame of it.
    for name in ["record-udp.ts", "record-tcp.ts"] {
        assert_eq!(video_frames(&fixture.file(name)), "50", "{name}");
    }
}
