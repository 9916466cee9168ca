//! Sound: what receivers of other people get of a channel by its session description.
//!
//! Promise: a sound device gets each sample by `tactus play`. ffmpeg and GStreamer are given
//! nothing but the description that the server answers with, and each sample that they write is
//! that of the file.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use tactus_testkit::process::{exchange, free_port, turn};
use tactus_testkit::programs::installed;
use tactus_testkit::{DISK_MODEL, content, server};

use crate::TACTUS;

/// Longer than anything takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The bytes of a stereo sample of 24 bits.
const FRAME: usize = 6;
/// The bytes of a packet.
const PACKET: usize = 48 * FRAME;

/// A stereo title of 24 bits and two seconds, and its samples as they are sent.
fn title(path: &Path) -> Vec<u8> {
    let data = content(67, 2 * 48_000 * FRAME);
    let head = [
        &b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0\x02\0"[..],
        &48_000u32.to_le_bytes(),
        &(48_000 * FRAME as u32).to_le_bytes(),
        &(FRAME as u16).to_le_bytes(),
        &24u16.to_le_bytes(),
        b"data",
        &(data.len() as u32).to_le_bytes(),
    ];
    fs::write(path, [&head.concat()[..], &data].concat()).expect("a title");
    data.chunks(3).flat_map(|sample| sample.iter().rev()).copied().collect()
}

/// A server on the same machine needs no URL: its bytes come through shared memory.
fn plays_by_the_local_library(dir: &Path, sent: &[u8]) {
    let played = dir.join("played-locally.raw");
    let device = format!("file:FILE={},FORMAT=raw", played.display());
    let socket = dir.join("local.sock");
    let play = |title: &str, device: &str, socket: &Path| {
        let mut play = Command::new(TACTUS);
        play.args(["play", title, "--device", device, "--socket"]).arg(socket);
        let done = play.output().expect("it runs");
        (done.status.code(), done.stdout, String::from_utf8_lossy(&done.stderr).into_owned())
    };
    let (code, _, told) = play("/noise.wav", &device, &socket);
    assert!(code == Some(0) && told.contains("2.000 s of sound"), "{told}");
    let played = fs::read(played).expect("what was played");
    assert!(played.chunks(3).flat_map(|sample| sample.iter().rev()).eq(sent), "{told}");
    let (code, bytes, told) = play("/noise.wav", "-", &socket);
    let title = fs::read(dir.join("titles/noise.wav")).expect("the title");
    assert!(code == Some(0) && bytes == title, "{} bytes: {told}", bytes.len());
    // Two devices get the same samples.
    let files = ["front", "rear"].map(|name| dir.join(format!("{name}.raw")));
    let mut both = Command::new(TACTUS);
    both.args(["play", "/noise.wav", "--socket"]).arg(&socket);
    for file in &files {
        both.arg("--device").arg(format!("file:FILE={},FORMAT=raw", file.display()));
    }
    let done = both.output().expect("it runs");
    let told = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && told.contains("in step"), "{told}");
    for file in files {
        let played = fs::read(file).expect("what was played");
        assert!(played.chunks(3).flat_map(|sample| sample.iter().rev()).eq(sent), "{told}");
    }
    let done = Command::new(TACTUS).args(["play", "/a.wav", "-d", "-", "-d", "null"]).output();
    assert_eq!(done.expect("it runs").status.code(), Some(2), "standard output is alone");
    for (title, socket, said) in
        [("/none.wav", &*socket, "no title"), ("/noise.wav", &dir.join("none.sock"), "see [local]")]
    {
        let (code, _, told) = play(title, "null", socket);
        assert!(code == Some(1) && told.contains(said), "{told}");
    }
}

#[test]
fn a_device_ffmpeg_and_gstreamer_get_each_sample_of_a_title() {
    let _turn = turn();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    let titles = dir.path().join("titles");
    fs::create_dir_all(titles.join(".tactus")).expect("a directory for titles");
    fs::write(titles.join(".tactus/disk-model.toml"), DISK_MODEL).expect("a model");
    let sent = title(&titles.join("noise.wav"));
    let config = dir.path().join("tactus.toml");
    let text = format!(
        "[local]\npath = \"local.sock\"\nclients_max = 1\n\
         [http]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"off\"\non_http = true\n\
         [memory]\narena = \"32 MiB\"\n[[volume]]\npath = \"{}\"\n\
         [[channel]]\nname = \"hall\"\ntitle = \"/noise.wav\"\nto = \"rtp://127.0.0.1:{}\"\n\
         format = \"aes67\"\n",
        titles.display(),
        // RTP has the even port, RTCP the next one.
        free_port() & !1,
    );
    fs::write(&config, text).expect("a configuration");
    let mut command = Command::new(TACTUS);
    server::keep_state(&mut command, dir.path()).args(["serve", "--config"]).arg(&config);
    let (_process, said) = server::start(&mut command, None, server::until("Metrics"), drop);
    let http = server::address(&said, "", "http://").expect("an address").to_owned();

    let get = |path: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        exchange(&*http, request.as_bytes())
    };
    let end = Instant::now() + PATIENCE;
    let description = loop {
        let answer = get("/api/v1/channels/hall.sdp");
        if answer.starts_with("HTTP/1.1 200") {
            break answer.split_once("\r\n\r\n").expect("a body").1.to_owned();
        }
        assert!(Instant::now() < end, "{answer}");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(description.contains("a=rtpmap:96 L24/48000/2\r\n"), "{description}");
    let live = get("/api/v1/channels/hall.ts");
    assert!(live.starts_with("HTTP/1.1 404") && live.contains("NAME.sdp"), "{live}");
    let sdp = dir.path().join("hall.sdp");
    fs::write(&sdp, description).expect("a description");

    // The sound card of this test is a file.
    let played = dir.path().join("played.raw");
    let url = format!("http://{http}/noise.wav");
    let device = format!("file:FILE={},FORMAT=raw", played.display());
    let mut play = Command::new(TACTUS);
    let done = play.args(["play", &url, "--device", &device]).output().expect("it runs");
    let told = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && told.contains("2.000 s of sound"), "{told}");
    let swapped = |bytes: &[u8]| -> Vec<u8> {
        bytes.chunks(3).flat_map(|sample| sample.iter().rev()).copied().collect()
    };
    let played = fs::read(played).expect("what was played");
    assert!(swapped(&played) == sent, "{} bytes: {told}", played.len());
    plays_by_the_local_library(dir.path(), &sent);
    for (title, device, said) in [("none.wav", "null", "no title"), ("noise.wav", "gone", "gone")] {
        let url = format!("http://{http}/{title}");
        let mut play = Command::new(TACTUS);
        let done = play.args(["play", &url, "--device", device]).output().expect("it runs");
        let told = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.code() == Some(1) && told.contains(said), "{told}");
    }

    let all = sent.repeat(4);
    let judge = |program: &str, path: &Path| {
        let got = fs::read(path).expect("what was received");
        assert!(got.len() >= 48_000 * FRAME / 2, "{program}: {} bytes", got.len());
        // Packet by packet: some are left out where the disk of this machine was late.
        let mut rest = all.chunks(PACKET);
        for packet in got.as_chunks::<PACKET>().0 {
            assert!(rest.any(|own| own == packet), "{program}: each sample is that of the title");
        }
    };
    let run = |program: &str, package: &str, arguments: &[&str]| {
        let mut command = Command::new(installed("timeout", "coreutils"));
        let done = command.arg("60").arg(installed(program, package)).args(arguments).output();
        let done = done.expect("the program runs");
        assert!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr));
    };
    let (sdp, out) = (sdp.display().to_string(), dir.path().join("ffmpeg.raw"));
    let path = out.display().to_string();
    let input = ["-nostdin", "-v", "error", "-protocol_whitelist", "file,udp,rtp", "-i", &sdp];
    let output = ["-t", "1", "-c:a", "pcm_s24be", "-f", "s24be", &path];
    run("ffmpeg", "ffmpeg", &[&input[..], &output].concat());
    judge("ffmpeg", &out);

    let out = dir.path().join("gstreamer.raw");
    let pipeline = format!(
        "filesrc location={sdp} ! sdpdemux ! rtpL24depay ! identity eos-after=1000 ! \
         filesink location={}",
        out.display()
    );
    let words: Vec<&str> = pipeline.split_whitespace().collect();
    run("gst-launch-1.0", "gstreamer1.0-tools", &[&["-q"], &*words].concat());
    judge("gstreamer", &out);
}
