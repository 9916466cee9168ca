//! Good input, so that the cases cannot pass by refusing everything.

use std::fs::File;
use std::time::{Duration, Instant};

use tactus_core::units::{BitRate, Nanos, SECOND};
use tactus_media::{probe, sample};

use crate::client::Client;
use crate::test_server::{A_LEN, TestServer, content};

#[test]
fn titles_are_served_whole_in_parts_and_again_on_one_connection() {
    let server = TestServer::new();
    let a = content(A_LEN);
    let mut client = server.client();
    let answer = client.get("/a.ts?rate=max", "");
    assert_eq!(answer.status, 200);
    assert!(answer.body == a, "the bytes differ");
    for (name, value) in [
        ("content-type", "video/mp2t"),
        ("accept-ranges", "bytes"),
        ("server", "tactus"),
        ("x-content-type-options", "nosniff"),
        ("tactus-rate", "max"),
    ] {
        assert_eq!(answer.field(name), Some(value), "{name}");
    }
    assert!(answer.field("content-disposition").is_none());
    for name in ["date", "last-modified", "etag"] {
        assert!(answer.field(name).is_some(), "{name}");
    }
    let part = client.get("/a.ts?rate=100M", "Range: bytes=1000-1999\r\n");
    assert_eq!((part.status, part.body.as_slice()), (206, &a[1000..2000]));
    assert_eq!(part.field("content-range"), Some(&*format!("bytes 1000-1999/{A_LEN}")));
    assert_eq!(part.field("tactus-rate"), Some("100000000"));
    let suffix = client.get("/a.ts?rate=max", "Range: bytes=-7\r\n");
    assert_eq!((suffix.status, suffix.body.as_slice()), (206, &a[A_LEN - 7..]));
    let typed = client.get("/dir/b.mp4", "");
    assert_eq!(typed.field("content-type"), Some("video/mp4"));
}

#[test]
fn head_equals_get_without_its_content_and_without_admission() {
    let server = TestServer::with(|plan| {
        plan.engine.best_effort.streams_max = tactus_notation::Auto::Set(0)
    });
    let mut client = server.client();
    let refused = client.get("/a.ts?rate=max", "");
    assert_eq!((refused.status, refused.field("retry-after").is_some()), (503, true));
    assert!(refused.text().contains("\"resource\":\"streams\""), "{}", refused.text());
    let head = client.ask("HEAD", "/a.ts?rate=max", "Range: bytes=0-1\r\n");
    assert_eq!(head.status, 200, "a range means something for GET only");
    assert_eq!(head.field("content-length"), Some(&*A_LEN.to_string()));
    assert_eq!(client.get("/empty.ts", "").body, b"", "an empty title needs nothing");
}

#[test]
fn preconditions_are_honoured() {
    let server = TestServer::new();
    let mut client = server.client();
    let head = client.ask("HEAD", "/a.ts", "");
    let (tag, date) = (head.field("etag").unwrap(), head.field("last-modified").unwrap());
    let mut status = |fields: String| {
        let answer = client.get("/a.ts?rate=max", &format!("Range: bytes=0-1\r\n{fields}\r\n"));
        if answer.status == 304 {
            assert_eq!(answer.field("etag"), Some(tag));
            assert_eq!(answer.field("content-length"), None);
        }
        answer.status
    };
    assert_eq!(status(format!("If-None-Match: {tag}")), 304);
    assert_eq!(status(format!("If-Modified-Since: {date}")), 304);
    assert_eq!(status("If-None-Match: \"x\"".into()), 206);
    assert_eq!(status(format!("If-Match: {tag}")), 206);
    assert_eq!(status("If-Match: \"x\"".into()), 412);
    assert_eq!(status("If-Unmodified-Since: Thu, 01 Jan 1970 00:00:00 GMT".into()), 412);
    assert_eq!(status(format!("If-Range: {tag}")), 206);
}

#[test]
fn the_index_of_a_movie_does_not_wait_for_the_movies_rate() {
    const SLOW: u64 = 32_000;
    let server = TestServer::with(|plan| {
        sample::write_mp4(&plan.root.join("film.mp4"), SECOND.times(60)).unwrap();
        plan.rate.title.ceiling = BitRate(SLOW);
        plan.rate.title.start_burst = Nanos(0);
    });
    let film = File::open(server.root().join("film.mp4")).unwrap();
    let head = probe::probe(&film, "film.mp4").unwrap().head.0;
    let mut client = server.client();
    let begun = Instant::now();
    let index = client.get("/film.mp4", &format!("Range: bytes=0-{}\r\n", head - 1));
    let took = begun.elapsed();
    assert_eq!((index.status, index.body.len() as u64), (206, head));
    assert_eq!(index.field("tactus-rate"), Some("32000"));
    let at_the_rate = Duration::from_millis(head * 8000 / SLOW);
    assert!(took < at_the_rate / 2, "{took:?}, and {at_the_rate:?} at the rate");
}

#[test]
fn the_rate_in_force_is_said() {
    let server = TestServer::with(|plan| {
        plan.rate.default = Some(BitRate(40_000_000));
    });
    let mut client = server.client();
    let mut rate = |target: &str, fields: &str| {
        let answer = client.ask("HEAD", target, fields);
        (answer.status, answer.field("tactus-rate").map(str::to_owned))
    };
    let said = |rate: &str| (200, Some(rate.to_owned()));
    assert_eq!(rate("/a.ts?rate=8.8M", ""), said("8800000"));
    assert_eq!(rate("/a.ts?rate=8.8M", "CMCD-Status: rtp=10000\r\n"), said("8800000"));
    assert_eq!(rate("/a.ts?rate=max", ""), said("max"));
    assert_eq!(rate("/a.ts", "CMCD-Status: rtp=10000\r\n"), said("10000000"));
    assert_eq!(rate("/a.ts", "CMCD-Session: sid=\"x\",rtp=2000\r\n"), said("2000000"));
    assert_eq!(rate("/a.ts?CMCD=bl%3D100%2Crtp%3D3000", ""), said("3000000"));
    assert_eq!(rate("/a.ts", "CMCD-Status: rtp=\"x\r\n"), said("40000000"));
    assert_eq!(rate("/a.ts", ""), said("40000000"));
    assert_eq!(rate("/a.ts?rate=fast", "").0, 400);
    assert!(client.get("/a.ts?rate=8,8M", "").text().contains("rate=8.8M"), "it says how");
}

#[test]
fn directories_are_listed_for_people_and_programs() {
    let server = TestServer::new();
    std::fs::write(server.root().join("<b>&.ts"), b"x").unwrap();
    let mut client = server.client();
    let page = client.get("/", "");
    assert_eq!(page.field("content-type"), Some("text/html; charset=utf-8"));
    assert!(page.field("content-security-policy").unwrap().starts_with("default-src 'none'"));
    assert!(page.text().contains("&lt;b&gt;&amp;.ts") && !page.text().contains("<b>"));
    let json = client.get("/", "Accept: application/json\r\n");
    let value: serde_json::Value = serde_json::from_slice(&json.body).unwrap();
    let names: Vec<_> =
        value["entries"].as_array().unwrap().iter().map(|e| e["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["dir", "<b>&.ts", "a.ts", "empty.ts"]);
    let away = client.get("/dir?x=y", "");
    assert_eq!((away.status, away.field("location")), (301, Some("/dir/?x=y")));
    assert!(client.get("/dir/?format=json", "").text().contains("b.mp4"));
}

#[test]
fn what_the_server_says_about_itself_comes_from_elsewhere() {
    let server = TestServer::new();
    let mut client = server.client();
    assert_eq!(client.get("/api/v1/echo?x", "").text(), "x\n");
    assert_eq!(client.get("/api/v1/other", "").status, 404);
}

#[test]
fn http_1_0_is_answered_and_closed_unless_it_asks_otherwise() {
    let server = TestServer::new();
    let mut client = server.client();
    client.send("GET /dir/b.mp4 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    let answer = client.answer().unwrap();
    assert_eq!((answer.status, answer.field("connection")), (200, Some("keep-alive")));
    client.send("GET /dir/b.mp4 HTTP/1.0\r\n\r\n");
    let answer = client.answer().unwrap();
    assert!(answer.status == 200 && answer.closes());
    client.is_closed();
}

#[test]
fn an_absolute_target_and_an_empty_line_before_a_request_are_understood() {
    let server = TestServer::new();
    let mut client: Client = server.client();
    client.send("\r\nGET http://any.example/dir/b.mp4 HTTP/1.1\r\nHost: other\r\n\r\n");
    assert_eq!(client.answer().unwrap().status, 200);
    let allow = Some("GET, HEAD, OPTIONS, PROPFIND");
    assert_eq!(client.ask("OPTIONS", "*", "").field("allow"), allow);
}
