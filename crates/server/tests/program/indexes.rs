//! Indexes of titles that the server finds by itself.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use tactus_core::units::Nanos;
use tactus_media::{RESERVED, sample};
use tactus_testkit::process::turn;
use tactus_testkit::server;

use crate::TACTUS;

#[test]
fn r06_r12_titles_are_indexed_from_the_start_on_and_the_status_shows_how_many() {
    let _turn = turn();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    let titles = dir.path().join("titles");
    fs::create_dir_all(titles.join(RESERVED)).expect("a directory for titles");
    for name in ["a.ts", "b.ts"] {
        sample::write_ts(&titles.join(name), Nanos::from_millis(20_000)).expect("a title");
        // Shorter titles are indexed when they are requested.
        let title = fs::OpenOptions::new().write(true).open(titles.join(name)).expect("a title");
        title.set_len(8 << 20).expect("room on the disk");
    }
    // Twenty seconds of which two are noise.
    let noise = "testsrc=s=320x240:r=25:d=20,noise=alls=100:allf=t:enable='between(t,5,7)'";
    let mut encode = Command::new("ffmpeg");
    encode.args(["-nostdin", "-v", "error", "-f", "lavfi", "-i", noise, "-c:v", "mjpeg"]);
    encode.args(["-q:v", "1", "-huffman", "default"]).arg(titles.join("c.mkv"));
    assert!(encode.status().expect("ffmpeg is missing: install the package ffmpeg").success());
    assert!(fs::metadata(titles.join("c.mkv")).expect("a title").len() >= 8 << 20);
    let mut command = server::serve(TACTUS, dir.path());
    command.arg(&titles).args(["--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config"]);
    command.arg(server::little_memory(dir.path()));
    let (_server, said) = server::start(&mut command, None, server::until("Metrics"), drop);
    let line = said.last().expect("its addresses");
    let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next());
    let admin = format!("http://{}/", address.expect("a host and a port"));
    let begun = Instant::now();
    loop {
        let shown = Command::new(TACTUS).args(["status", "--json", &admin]).output();
        let shown = String::from_utf8(shown.expect("the program runs").stdout).expect("text");
        let status: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
        let indexes = &status["indexes"];
        if indexes["made"] == 3 && indexes["wanted"] == 0 {
            assert_eq!((&indexes["failed"], &indexes["without"]), (&0.into(), &0.into()));
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{shown}");
        std::thread::sleep(Duration::from_millis(50));
    }
    let stored = fs::read_dir(titles.join(RESERVED).join("index")).expect("indexes");
    assert!(stored.count() > 0);
}
