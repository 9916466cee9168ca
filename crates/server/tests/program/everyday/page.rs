//! The page of the demo in a real browser: Chromium.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Instant;

use tactus_testkit::programs::installed;

use super::server::{ProgramOutput, Server, directory, program, text};
use crate::clients;

/// The demo, with its address and its token.
fn demo() -> (Server, String, String) {
    let dir = directory();
    let titles = dir.path().join("titles");
    let args = [
        "demo",
        "--dir",
        text(&titles),
        "--http",
        "127.0.0.1:0",
        "--rtsp",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
        "--uploads",
    ];
    let server = Server::start(dir, &args, "Ctrl-C");
    let link = server.said.iter().find_map(|line| line.trim().split_once("#token="));
    let (page, token) = link.expect("the output has the link with the token");
    let (page, token) = (page.to_owned(), token.to_owned());
    (server, page, token)
}

/// The output of the driver, by name.
fn browse(server: &Server, page: &str, token: &str) -> HashMap<String, String> {
    let driver = clients::script("browse.mjs");
    let chromium = installed("chromium", "chromium");
    let file = server.file("to-drop.bin", &[7; 300_000]);
    let mut node = program("node");
    node.args([&driver, &chromium, page, token, text(&file)]);
    // The file for a new screenshot for the README, if wanted.
    node.args(std::env::var("TACTUS_SCREENSHOT").ok());
    let said = ProgramOutput::of(&mut node);
    assert_eq!(said.code, 0, "{said:?}");
    // The 404 is intended, but browsers log it as an error.
    let complaints: Vec<_> = said.err.lines().filter(|line| !line.contains("404")).collect();
    assert!(complaints.is_empty(), "{complaints:?}");
    let pair = |line: &str| line.split_once(": ").map(|(name, value)| (name.into(), value.into()));
    said.out.lines().filter_map(pair).collect()
}

/// The line of the output that plays a title by the library for programs, without the player.
fn plays_by_the_local_library(server: &Server) {
    let at = server.said.iter().position(|line| line.contains(" play /"));
    let at = at.expect("the output has a line that plays a title by the library");
    let [first, second] = [&server.said[at], &server.said[at + 1]].map(|line| line.trim());
    let line = format!("{}{second}", first.trim_end_matches('\\'));
    let line = line.strip_suffix("ffplay -").expect("a player").to_owned() + "head -c 200000";
    let played = Command::new("sh").args(["-c", &line]).output().expect("a shell").stdout;
    let bytes = server.stored("tactus-demo.ts").expect("the title");
    assert!(played == bytes[..200_000], "{} bytes by: {line}", played.len());
}

#[test]
fn n02_w09_the_page_sorts_filters_takes_dropped_files_and_plays_mp4_and_ts() {
    let (server, page, token) = demo();
    plays_by_the_local_library(&server);
    let told = browse(&server, &page, &token);
    let is = |name: &str, value: &str| {
        assert_eq!(told.get(name).map(String::as_str), Some(value), "{name}: {told:?}");
    };
    is("address", "clean");
    is("rates", "all");
    is("listed", "tactus-demo.mp4 tactus-demo.ts");
    is("by size", "tactus-demo.ts tactus-demo.mp4");
    is("by size, smallest first", "tactus-demo.mp4 tactus-demo.ts");
    is("sorted", "ascending");
    is("filtered", "tactus-demo.mp4");
    is("count", "1 of 2");
    is("after the drop", "dropped & <b>.bin tactus-demo.mp4 tactus-demo.ts");
    is("kept", "true");
    is("watched tactus-demo.mp4", "640x360");
    is("watched tactus-demo.ts", "1280x720");
    is("list", "tactus-demo.m3u");
    is("closed", "true");
    is("back", "/");
    assert!(
        told["title"].ends_with("Tactus") && told["title"].starts_with("127.0.0.1"),
        "{told:?}"
    );
    assert!(told["nothing"].starts_with("404 Not found"), "{told:?}");
    assert!(server.stored("dropped & <b>.bin").is_some_and(|stored| stored == [7; 300_000]));
}

#[test]
fn n01_the_demo_shows_its_titles_and_uses_the_given_addresses() {
    let (server, page, token) = demo();
    let said = server.said.join("\n");
    for word in ["tactus-demo.mp4", "ffplay rtsp://127.0.0.1:", "/metrics", "curl", "vlc"] {
        assert!(said.contains(word), "{word} is not in {said}");
    }
    assert!(page.starts_with("http://127.0.0.1:") && token.len() >= 32);
    let log = std::fs::read_to_string(server.dir.path().join("log")).expect("a log");
    assert!(log.contains("Creating"), "{log}");
    assert!(!log.contains(&token));
    // Rates and durations are listed before any title was played.
    for _ in 0..2000 {
        let html = server.ask("/", "Accept: text/html\r\n");
        if html.contains("Mbit/s<td data-v=600000>10:00") {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    panic!("no rate after ten seconds: {}", server.ask("/", ""));
}

#[test]
fn n04_the_demo_sends_at_once_what_ffmpeg_analyses_before_playback() {
    let (server, page, _) = demo();
    let said = server.said.join("\n");
    assert!(said.contains("tactus-demo.ts"), "{said}");
    // Five seconds of media. With a start burst of one second they would take four seconds.
    let bytes = 3_750_000 / 8 * 5;
    let address = page.trim_start_matches("http://").trim_end_matches('/').to_owned();
    let mut stream = TcpStream::connect(&address).expect("a connection");
    let request = format!("GET /tactus-demo.ts HTTP/1.1\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("a request");
    let begun = Instant::now();
    let mut got = vec![0; bytes];
    stream.read_exact(&mut got).expect("the beginning of the title");
    let taken = begun.elapsed();
    assert!(taken.as_millis() < 3500, "five seconds of media took {taken:?}");
    // The same with ffprobe.
    let mut ffprobe = program("ffprobe");
    ffprobe.args(["-v", "error", "-show_entries", "stream=codec_name", "-of", "csv=p=0"]);
    let said = ProgramOutput::of(ffprobe.arg(format!("{page}tactus-demo.ts")));
    assert!(said.code == 0 && said.out.contains("h264"), "{said:?}");
}

#[test]
fn n09_the_start_shows_the_source_of_the_address_and_the_whole_path_of_the_volume() {
    let dir = directory();
    let config = "[http]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"off\"\n\
                  [[volume]]\npath = \"films\"\n";
    let file = dir.path().join("tactus.toml");
    std::fs::create_dir(dir.path().join("films")).expect("a directory");
    std::fs::write(&file, config).expect("a file");
    let path = text(&file).to_owned();
    let server = Server::start(dir, &["serve", "--config", &path], "Only this machine");
    let said = server.said.join("\n");
    assert!(
        said.contains(&format!("[http] address in {path}")) && !said.contains("--http"),
        "{said}"
    );
    let films = server.dir.path().join("films");
    assert!(said.contains(&format!("Serving {} at", text(&films))), "{said}");
    // For a missing title, browsers get a page, programs a line.
    let page = server.ask("/nothing.ts", "Accept: text/html,*/*;q=0.8\r\n");
    assert!(page.starts_with("HTTP/1.1 404") && page.contains("<a href=\"./\">"), "{page}");
    let line = server.ask("/nothing.ts", "Accept: */*\r\n");
    assert!(line.ends_with("\r\n\r\nno title has this name\n"), "{line}");
}
