//! hls.js in a browser, on a page of another site.

use std::process::Command;

use serde_json::Value;
use tactus_testkit::programs::installed;

use super::chain::Server;
use super::guide;
use crate::clients::script;

/// Three segments of two seconds.
const HLS: &str = "-v error -f lavfi -i testsrc2=size=320x180:rate=25 \
    -f lavfi -i sine=sample_rate=48000 -t 6 -c:v libx264 -preset ultrafast -pix_fmt yuv420p -g 50 \
    -c:a aac -f hls -hls_time 2 -hls_list_size 0";

fn play(server: &Server) -> Value {
    let playlist = server.media().join("film.m3u8");
    let mut ffmpeg = Command::new("ffmpeg");
    let made = ffmpeg.args(HLS.split_whitespace()).arg(&playlist).output();
    let made = made.expect("ffmpeg is missing: cargo xtask setup");
    assert!(made.status.success(), "{made:?}");
    let chromium = installed("chromium", "chromium");
    let mut node = Command::new("timeout");
    node.args(["--kill-after=5", "100", "node", &script("hls.mjs")]).arg(chromium);
    let ended = node.arg(format!("http://{}/film.m3u8", server.http)).output().expect("it starts");
    assert!(ended.status.success(), "{ended:?}");
    serde_json::from_slice(&ended.stdout).expect("JSON")
}

#[test]
fn w01_hls_js_plays_on_a_page_of_another_site_that_is_allowed() {
    // The page of this test has its own port.
    let shown = guide::other_sites().replace("\"https://app.example\"", "\"*\"");
    let told = play(&Server::start(&shown));
    assert_eq!(told["errors"], serde_json::json!([]), "{told}");
    assert!(told["time"].as_f64().is_some_and(|time| time > 1.0), "{told}");
    // CMCD fields make the browser send a preflight for each segment.
    let asked = told["asked"].as_array().expect("requests of segments");
    let with_data = |one: &Value| one.as_str().is_some_and(|text| text.contains("d="));
    assert!(!asked.is_empty() && asked.iter().all(with_data), "{told}");
}

#[test]
fn w01_a_page_of_a_site_that_is_not_allowed_plays_nothing() {
    let told = play(&Server::start(&guide::other_sites()));
    assert_eq!(
        (&told["time"], &told["errors"][0]),
        (&0.into(), &"manifestLoadError".into()),
        "{told}"
    );
}
