//! HLS with several levels: hls.js in a browser, and the rates of segments and playlists.
//!
//! Promise: a player that measures how fast segments come reaches the highest level with the third
//! segment, and does not wait. Segments and playlists take no slot of a download.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::MutexGuard;

use serde_json::Value;
use tactus_testkit::process::{Process, exchange, turn};
use tactus_testkit::programs::installed;
use tactus_testkit::{DISK_MODEL, server};

use crate::TACTUS;
use crate::clients::script;

/// Three levels with segments of four seconds. Noise makes each as large as its rate says.
const LEVELS: &str = "-v error -f lavfi -i \
    testsrc2=size=320x180:rate=25,noise=alls=30:allf=t -f lavfi -i sine=sample_rate=48000 -t 16 \
    -filter_complex [0:v]split=3[a][b][c] \
    -map [a] -map 1:a -map [b] -map 1:a -map [c] -map 1:a -c:v libx264 -preset ultrafast \
    -pix_fmt yuv420p -g 100 -keyint_min 100 -sc_threshold 0 \
    -b:v:0 300k -maxrate:v:0 300k -bufsize:v:0 300k \
    -b:v:1 900k -maxrate:v:1 900k -bufsize:v:1 900k \
    -b:v:2 2400k -maxrate:v:2 2400k -bufsize:v:2 2400k \
    -c:a aac -b:a 64k -f hls -hls_time 4 -hls_list_size 0 -master_pl_name film.m3u8";

struct HlsServer {
    _process: Process,
    http: String,
    dir: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl HlsServer {
    fn new(config: &str) -> Self {
        let turn = turn();
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
        let titles = dir.path().join("titles");
        fs::create_dir_all(titles.join(".tactus")).expect("a directory for titles");
        fs::write(titles.join(".tactus/disk-model.toml"), DISK_MODEL).expect("a model");
        let text = format!(
            "[http]\nallowed_origins = [\"*\"]\n[link]\nrate = \"1 Gbit/s\"\n\
             [memory]\narena = \"64 MiB\"\n{config}"
        );
        let path = dir.path().join("tactus.toml");
        fs::write(&path, text).expect("a configuration");
        let mut command = server::serve(TACTUS, dir.path());
        command.args(["--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config"]);
        command.args([path, titles]);
        let (process, said) = server::start(&mut command, None, server::until("Metrics"), drop);
        let http = server::address(&said, "Serving", "http://").expect("told").to_owned();
        Self { _process: process, http, dir, _turn: turn }
    }

    fn titles(&self) -> std::path::PathBuf {
        self.dir.path().join("titles")
    }

    /// The rate that a HEAD names.
    fn rate_of(&self, target: &str, fields: &str) -> String {
        let request =
            format!("HEAD /{target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{fields}\r\n");
        let answer = exchange(&self.http, request.as_bytes());
        let line = answer.lines().find_map(|line| line.strip_prefix("Tactus-Rate: "));
        line.unwrap_or_else(|| panic!("{answer}")).to_owned()
    }
}

fn encode(titles: &Path, kind: &str) {
    let mut ffmpeg = Command::new("ffmpeg");
    ffmpeg.args(LEVELS.split_whitespace()).args(["-hls_segment_type", kind]);
    ffmpeg.args(["-var_stream_map", "v:0,a:0 v:1,a:1 v:2,a:2"]).arg(titles.join("v%v.m3u8"));
    let made = ffmpeg.current_dir(titles).output();
    let made = made.expect("ffmpeg is missing: install the package ffmpeg");
    assert!(made.status.success(), "{made:?}");
}

/// What hls.js says after this many seconds of the title.
fn play(server: &HlsServer, seconds: u32) -> Value {
    let chromium = installed("chromium", "chromium");
    let mut node = Command::new("timeout");
    node.args(["--kill-after=5", "420", "node", &script("levels.mjs")]).arg(chromium);
    node.arg(format!("http://{}/film.m3u8", server.http)).arg(seconds.to_string());
    let ended = node.output().expect("it starts");
    assert!(ended.status.success(), "{ended:?}");
    serde_json::from_slice(&ended.stdout).expect("JSON")
}

fn reaches_the_top(kind: &str) {
    let server = HlsServer::new("");
    encode(&server.titles(), kind);
    let told = play(&server, 4);
    println!("{kind}: {told}");
    assert_eq!((&told["errors"], &told["stalls"]), (&serde_json::json!([]), &0.into()), "{told}");
    let levels = told["levels"].as_array().expect("segments");
    let third = levels.iter().rfind(|one| one[0] == 2);
    assert_eq!(third.map(|one| &one[1]), Some(&2.into()), "{told}");
}

#[test]
fn r02_hls_js_is_at_the_highest_level_with_the_third_segment_of_transport_streams() {
    reaches_the_top("mpegts");
}

#[test]
fn r02_hls_js_is_at_the_highest_level_with_the_third_segment_of_fragments() {
    reaches_the_top("fmp4");
}

#[test]
fn r02_what_a_playlist_names_has_a_multiple_of_its_rate() {
    let server = HlsServer::new("[rate]\nsegment_multiple = 4\nsegment_max = \"0 s\"\n");
    let titles = server.titles();
    for name in ["0.m4s", "alone.m4s", "long.m4s"] {
        fs::write(titles.join(name), vec![7; 500_000]).expect("a title");
    }
    let list = "#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXTINF:4,\n0.m4s\n#EXTINF:400,\nlong.m4s\n";
    fs::write(titles.join("list.m3u8"), list).expect("a playlist");
    assert_eq!(server.rate_of("0.m4s", ""), "4000000");
    assert_eq!(server.rate_of("alone.m4s", ""), "max");
    assert_eq!(server.rate_of("long.m4s", ""), "max", "no segment plays for minutes");
    assert_eq!(server.rate_of("0.m4s", "CMCD-Status: rtp=7000\r\n"), "7000000");
    assert_eq!(server.rate_of("0.m4s?CMCD=bl%3D1%2Crtp%3D7000", ""), "7000000");
    assert_eq!(server.rate_of("0.m4s?rate=1M", ""), "1000000");
}

#[test]
fn r02_segments_and_playlists_take_no_slot_of_a_download() {
    let server = HlsServer::new("[best_effort]\nstreams_max = 1\n");
    let titles = server.titles();
    fs::write(titles.join("0.m4s"), vec![7; 2_000_000]).expect("a title");
    fs::write(titles.join("big.bin"), vec![7; 20_000_000]).expect("a title");
    let long = "# a comment of a playlist\n".repeat(100_000);
    fs::write(titles.join("list.m3u8"), format!("#EXTM3U\n#EXTINF:4,\n0.m4s\n{long}"))
        .expect("a playlist");
    let begin = |name: &str| {
        use std::io::{Read, Write};
        let mut socket = std::net::TcpStream::connect(&server.http).expect("a connection");
        let request = format!("GET /{name} HTTP/1.1\r\nHost: x\r\n\r\n");
        socket.write_all(request.as_bytes()).expect("the server reads");
        let mut head = [0; 12];
        socket.read_exact(&mut head).expect("an answer");
        (String::from_utf8_lossy(&head).into_owned(), socket)
    };
    let (first, second) = (begin("big.bin"), begin("big.bin"));
    assert_eq!((&*first.0, &*second.0), ("HTTP/1.1 200", "HTTP/1.1 503"));
    let others: Vec<_> = ["0.m4s", "list.m3u8", "0.m4s"].into_iter().map(begin).collect();
    assert!(others.iter().all(|(head, _)| head == "HTTP/1.1 200"), "{others:?}");
}
