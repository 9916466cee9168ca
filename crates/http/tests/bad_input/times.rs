//! Parts of titles by time, and what is told of titles: good ones, and files that are none.

use std::fs;

use serde_json::Value;
use tactus_core::ts::{Continuity, Framing};
use tactus_core::units::SECOND;
use tactus_media::sample;

use crate::client::Answer;
use crate::test_server::TestServer;

/// A server with 20 seconds of the sample: an entry about each two seconds, at 3.76 Mbit/s.
fn server() -> TestServer {
    TestServer::with(|plan| {
        sample::write_ts(&plan.root.join("film.ts"), SECOND.times(20)).unwrap();
    })
}

fn facts(answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{}", answer.text());
    serde_json::from_str(&answer.text()).unwrap()
}

#[test]
fn a_part_by_time_is_a_title_of_its_own() {
    let server = server();
    let mut client = server.client();
    let whole = fs::read(server.root().join("film.ts")).unwrap();
    let answer = client.get("/film.ts?start=7.5&end=12&rate=max", "Range: bytes=0-1\r\n");
    assert_eq!(answer.status, 200, "of a part there are no ranges: {}", answer.text());
    assert_eq!(answer.field("accept-ranges"), Some("none"));
    let start: f64 = answer.field("tactus-start").unwrap().parse().unwrap();
    assert!(start <= 7.5 && start > 4.0, "{start}");
    let part = &answer.body;
    assert_eq!(part.len() % 188, 0);
    // The two tables, then bytes of the title.
    let content = &part[2 * 188..];
    assert!(whole.windows(content.len()).step_by(188).any(|window| window == content));
    let mut watch = Continuity::default();
    let packets: Vec<_> = Framing::PLAIN.packets(part).map(|(_, packet)| packet).collect();
    assert!(packets.iter().all(|packet| watch.handle_packet(packet).is_none()));
    assert_eq!(packets[0].pid().0, 0);
    assert!(packets[2].starts_unit(), "a picture begins");

    fs::write(server.root().join("part.ts"), part).unwrap();
    let told = facts(&client.get("/api/v1/titles/part.ts", ""));
    let lasts = told["duration_seconds"].as_f64().unwrap();
    assert!(lasts >= 12.0 - 7.5 && lasts < 12.0 - start + 3.0, "{lasts} from {start}");

    let head = client.ask("HEAD", "/film.ts?start=7.5&end=12&rate=max", "");
    assert_eq!(head.field("content-length"), Some(&*part.len().to_string()));
    let all = client.get("/film.ts?start=0&rate=max", "");
    assert!(all.body.ends_with(&whole[whole.len() / 2..]), "to the end");
}

#[test]
fn what_is_known_of_a_title_is_told() {
    let server = server();
    let told = facts(&server.client().get("/api/v1/titles/film.ts", ""));
    assert_eq!(told["rate_bits_per_second"]["mean"], 3_760_000);
    assert_eq!(told["constant"], true);
    assert_eq!(told["flaws"]["continuity_gaps"], 0);
    assert!((told["duration_seconds"].as_f64().unwrap() - 20.0).abs() < 0.5, "{told}");
    assert!(told["random_access"]["entries"].as_u64().unwrap() >= 5, "{told}");
    assert_eq!(told["programs"].as_array().unwrap().len(), 1);
}

#[test]
fn times_that_are_none_are_refused() {
    let server = server();
    let mut client = server.client();
    for query in ["start=", "start=x", "start=-1", "start=1&start=2", "start=3&end=2", "end=0"] {
        let answer = client.get(&format!("/film.ts?{query}"), "");
        assert_eq!(answer.status, 400, "{query}");
    }
    for query in ["start=21", "start=99999999999", "start=5000000:00:00"] {
        assert_eq!(client.get(&format!("/film.ts?{query}"), "").status, 416, "{query}");
    }
    for path in ["", "nothing.ts", "dir", ".tactus/index", "..%2f..%2fetc%2fpasswd"] {
        let answer = client.get(&format!("/api/v1/titles/{path}"), "");
        assert!(matches!(answer.status, 400 | 404), "{path}: {}", answer.status);
    }
    server.serves_others();
}

#[test]
fn files_without_times_are_said_to_have_none() {
    let server = server();
    let whole = fs::read(server.root().join("film.ts")).unwrap();
    let bad: [(&str, &[u8]); 4] = [
        ("nothing.ts", b""),
        ("page.ts", b"<html>no film</html>"),
        ("sync.ts", &[0x47; 700]),
        ("short.ts", &whole[..4 * 188]),
    ];
    let mut client = server.client();
    for (name, bytes) in bad {
        fs::write(server.root().join(name), bytes).unwrap();
        for what in [format!("/{name}?start=1"), format!("/api/v1/titles/{name}")] {
            let answer = client.get(&what, "");
            assert_eq!(answer.status, 422, "{what}");
            assert!(answer.text().contains("not an MPEG transport stream"), "{}", answer.text());
        }
    }
    // Not whole, and not plain: as good as they are.
    let m2ts: Vec<u8> = whole.chunks(188).flat_map(|one| [&[0; 4], one].concat()).collect();
    let mut damaged = whole.clone();
    damaged.drain(1_000_000..1_000_500);
    let good: [(&str, &[u8], u64, u64); 3] = [
        ("cut.ts", &whole[..whole.len() / 2 + 50], 188, 0),
        ("damaged.ts", &damaged, 188, 1),
        ("film.m2ts", &m2ts, 192, 0),
    ];
    for (name, bytes, stride, losses) in good {
        fs::write(server.root().join(name), bytes).unwrap();
        let told = facts(&client.get(&format!("/api/v1/titles/{name}"), ""));
        assert_eq!(told["packet_bytes"], stride, "{name}");
        assert_eq!(told["flaws"]["sync_losses"], losses, "{name}");
        let part = client.get(&format!("/{name}?start=4&rate=max"), "");
        assert_eq!(part.status, 200, "{name}");
        let framing = Framing::find(&part.body, 5).unwrap();
        assert_eq!(framing.stride as u64, stride);
    }
    server.serves_others();
}
