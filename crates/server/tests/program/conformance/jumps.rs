//! Where an output goes on elsewhere: seeks and scales of a session, a channel that is changed
//! while it is sent.
//!
//! Promise: what one receiver hears over all of it raises no indicator: counters run on, and each
//! jump of the clock, and no other place, is marked. The time that passes until the other place has
//! been read is nobody's: no packet is sent in it.

use std::io::Write;
use std::process::Stdio;

use dvb_conformance::Indicator;

use super::*;

/// What a receiver of all of it has heard. What describes the service (SDT) has its times in each
/// title: those of another one, or of another place, may come less than 25 ms later.
fn heard(packets: &[Vec<u8>], begins: &[u16]) -> ReceivedPackets {
    ReceivedPackets::rtp_from(packets, begins).excusing(Indicator::SiMinGapError)
}

#[test]
fn a_session_that_jumps_while_it_is_played_and_in_a_pause_is_clean() {
    let server = TestServer::new("");
    for (protocol, transport) in TRANSPORTS {
        for (title, rate, law) in [
            ("even.ts", TS_RATE, PacketTiming::Even(TS_RATE)),
            ("film.ts", BitRate(1_000_000), PacketTiming::Stamps(&[])),
        ] {
            let mut player = Player::new(&server, title, transport);
            let first = player.play("Range: npt=0-\r\n");
            player.take(datagrams(rate, 2));
            // Forwards without a pause, backwards in one, and on from there, which is no jump.
            player.play("Range: npt=9.3-\r\n");
            player.take(datagrams(rate, 2));
            player.pause();
            player.play("Range: npt=4-\r\n");
            player.take(datagrams(rate, 2));
            player.pause();
            player.play("");
            player.take(datagrams(rate, 1));
            player.pause();
            let heard = heard(&player.since(&first), &player.begins);
            assert_eq!(heard.jumps(), 2, "{protocol} {title}");
            heard.judge(&format!("RTSP, {protocol}, jumps, {title}"), law);
            player.end();
        }
    }
}

#[test]
fn a_session_is_clean_over_changes_of_its_scale() {
    let server = TestServer::new("");
    for (protocol, transport) in &TRANSPORTS[..2] {
        let mut player = Player::new(&server, "even.ts", transport);
        let first = player.play("Range: npt=4-\r\n");
        player.take(datagrams(TS_RATE, 2));
        for (scale, count) in [("4", 150), ("1", 300), ("-2", 60), ("2", 60), ("1", 300)] {
            let shown = player.play(&format!("Scale: {scale}\r\n"));
            assert_eq!(shown.field("Scale").parse::<f64>(), scale.parse(), "{shown:?}");
            player.take(count);
        }
        player.pause();
        let heard = heard(&player.since(&first), &player.begins);
        assert_eq!(heard.jumps(), 5, "{protocol}: one for each");
        heard.judge(
            &format!("RTSP, {protocol}, Scale: 1, 4, 1, -2, 2, 1"),
            PacketTiming::Places(TS_RATE),
        );
        player.end();
    }
}

/// What `/api/v1/channels` answers with 2xx.
fn order(server: &TestServer, method: &str, path: &str, body: &str) -> String {
    let mut curl = Command::new("curl");
    curl.args([
        "-sS",
        "--max-time",
        "300",
        "--fail-with-body",
        "-X",
        method,
        "--data-binary",
        "@-",
    ]);
    curl.args(["-H", &format!("Authorization: Bearer {}", crate::media_server::TOKEN)]);
    curl.args(["-H", "Content-Type: application/json"]);
    curl.arg(format!("http://{}/api/v1/channels/{path}", server.http));
    curl.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut curl = curl.spawn().expect("curl is installed");
    curl.stdin.take().expect("a pipe").write_all(body.as_bytes()).expect("it reads");
    let said = curl.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.status.success(), "{method} {path} {body}: {text}");
    text
}

#[test]
fn a_channel_that_is_changed_while_it_is_sent_is_clean() {
    let mut inbox = Receiver::new();
    let server = TestServer::new(&format!(
        "{UPLOADS}[[channel]]\nname = \"live\"\nplaylist = [\"/even-short.ts\", \"/even.ts\"]\n\
         to = \"rtp://127.0.0.1:{}\"\n",
        inbox.port
    ));
    let lists = [
        r#"["/even.ts", "/even-short.ts"]"#,
        r#"["/even-short.ts"]"#,
        r#"["/film-short.ts", "/even-short.ts"]"#,
        r#"["/even-short.ts", "/even-short.ts"]"#,
    ];
    let mut came = inbox.take(datagrams(TS_RATE, 1));
    // At any place of titles that last less than three seconds: near the end too, where the next
    // one waits already.
    for nth in 0..24 {
        let list = lists[nth % lists.len()];
        order(&server, "PATCH", "live", &format!("{{\"playlist\": {list}}}"));
        match nth % 3 {
            0 => drop(order(&server, "POST", "live/skip", "")),
            1 => drop(order(&server, "POST", "live/next", r#"{"title": "/even-short.ts"}"#)),
            _ => {}
        }
        // So many packets are no whole part of any title.
        came.extend(inbox.take(97 + 61 * (nth % 7)));
    }
    let heard = heard(&came, &[]);
    assert_eq!(heard.jumps(), 0, "one clock, whatever was ordered");
    heard.judge("channel, RTP, changed live", PacketTiming::Own);
}

#[test]
fn a_channel_that_fills_in_and_one_that_was_to_send_once_are_clean_when_they_are_changed() {
    let mut fills = Receiver::new();
    let mut once = Receiver::new();
    let server = TestServer::new(&format!(
        "{UPLOADS}[[channel]]\nname = \"fills\"\ntitle = \"/later.ts\"\n\
         fill = \"/even-short.ts\"\n\
         to = \"rtp://127.0.0.1:{}\"\n\
         [[channel]]\nname = \"once\"\ntitle = \"/even.ts\"\nrepeat = false\n\
         to = \"rtp://127.0.0.1:{}\"\n",
        fills.port, once.port
    ));
    let mut filled = fills.take(datagrams(TS_RATE, 4));
    let mut sent = once.take(datagrams(TS_RATE, 1));
    let list = r#"{"title": null, "repeat": null, "playlist": ["/even-short.ts", "/even.ts"]}"#;
    order(&server, "PATCH", "once", list);
    order(&server, "POST", "once/skip", "");
    std::fs::write(server.titles().join("new"), &Titles::get().even_short).expect("room");
    std::fs::rename(server.titles().join("new"), server.titles().join("later.ts")).expect("a name");
    sent.extend(once.take(datagrams(TS_RATE, 5)));
    // It is looked for each five seconds.
    let end = Instant::now() + PATIENCE;
    while !order(&server, "GET", "fills", "").contains("\"title\":\"/later.ts\"") {
        assert!(Instant::now() < end, "it is never sent");
        filled.extend(fills.take(100));
    }
    filled.extend(fills.take(datagrams(TS_RATE, 3)));
    filled.extend(fills.rest());
    let filled = heard(&filled, &[]);
    assert_eq!(filled.jumps(), 0, "one clock");
    filled.judge("channel, RTP, a fill-in and what it is for", PacketTiming::Own);
    let heard = heard(&sent, &[]);
    // What was to leave alone left as it was: nobody knows its clock, but its counters.
    assert_eq!(heard.jumps(), 1, "it is marked");
    heard.judge("channel, RTP, once, changed live", PacketTiming::Own);
}
