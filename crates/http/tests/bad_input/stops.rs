//! Live inputs with the largest datagrams, and inputs that stop: received bytes are stored without
//! further packets.

use std::time::{Duration, Instant};

use serde_json::json;
use tactus_core::ts::PACKET;
use tactus_core::units::Bytes;

use crate::live::{Live, count, files, is_clean, stream};
use crate::test_server::TestServer;

#[test]
fn p01_datagrams_of_any_length_are_recorded_byte_by_byte() {
    let stream = stream(3);
    for (from, is_rtp) in [("udp://127.0.0.1:0", false), ("rtp://127.0.0.1:0", true)] {
        // Jumbo frames, and the largest UDP payload: 348 packets.
        for packets in [8, 49, 50, 348] {
            let live = Live::begin(from, json!({ "rate": "40 Mbit/s" }));
            let mut sender = live.sender(is_rtp);
            let datagrams: Vec<_> =
                stream.chunks(packets * PACKET).map(|payload| sender.wrapped(payload)).collect();
            sender.send_paced(&live, &datagrams);
            let (status, titles) = live.end();
            is_clean(&status);
            assert_eq!(count(&status, "datagrams"), datagrams.len() as u64);
            assert!(titles.concat() == stream, "{from} {packets}");
        }
    }
}

#[test]
fn p01_the_alarm_names_the_reason_for_dropped_datagrams() {
    let live = Live::begin("udp://127.0.0.1:0", json!({}));
    let sender = live.sender(false);
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        sender.send(&[7; 9400]);
        let status = live.status();
        if let Some(alarm) = status["alarms"]["input"].as_str() {
            assert!(alarm.contains("contain no MPEG transport stream"), "{alarm}");
            assert!(alarm.contains("received datagrams were dropped"), "{alarm}");
            break;
        }
        assert!(Instant::now() < end, "{status}");
        std::thread::sleep(Duration::from_millis(20));
    }
    let (status, _) = live.end();
    assert_eq!(status["alarms"], json!({}));
}

#[test]
fn p06_a_title_whose_source_stops_ends_with_the_silence() {
    let stream = stream(1);
    for (from, is_rtp) in [("udp://127.0.0.1:0", false), ("rtp://127.0.0.1:0", true)] {
        for keys in [json!({ "rotate": "1 h" }), json!({}), json!({ "rate": "40 Mbit/s" })] {
            let mut keys = keys;
            keys["silence"] = json!("2 s");
            let live = Live::begin(from, keys);
            let mut sender = live.sender(is_rtp);
            let datagrams = sender.all(&stream);
            sender.send_all(&live, &datagrams);
            let begun = Instant::now();
            live.until("it is a title", |status| count(status, "titles") == 1);
            assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
            let stored = std::fs::read(&files(&live.server)[0]).unwrap();
            assert!(stored == stream, "{} of {}", stored.len(), stream.len());
            // Later packets belong to the next title.
            let again = sender.all(&stream);
            sender.send_all(&live, &again);
            let (status, titles) = live.end();
            assert_eq!((titles.len(), count(&status, "titles")), (2, 2), "{status}");
        }
    }
}

#[test]
fn p06_a_title_whose_source_stops_ends_at_its_boundary() {
    let stream = stream(1);
    let keys = json!({ "rate": "40 Mbit/s", "rotate": "10 s", "silence": "1 h" });
    let live = Live::begin("udp://127.0.0.1:0", keys);
    let mut sender = live.sender(false);
    let datagrams = sender.all(&stream);
    sender.send_all(&live, &datagrams);
    live.until("its boundary is reached", |status| status["title"].is_null());
    live.until("all is stored", |status| count(status, "stored_bytes") == stream.len() as u64);
    let (status, titles) = live.end();
    is_clean(&status);
    assert!(titles.concat() == stream);
}

#[test]
fn p06_received_bytes_are_durable_within_five_seconds_of_the_last_byte() {
    let stream = stream(2);
    for (from, is_rtp) in [("udp://127.0.0.1:0", false), ("rtp://127.0.0.1:0", true)] {
        let live = Live::begin(from, json!({ "rate": "40 Mbit/s", "silence": "1 h" }));
        let mut sender = live.sender(is_rtp);
        let datagrams = sender.all(&stream);
        sender.send_all(&live, &datagrams);
        let last = Instant::now();
        let all = json!(stream.len());
        live.until("it is durable", |status| status["title_durable_bytes"] == all);
        println!("{from}: durable {:?} after the last byte", last.elapsed());
        assert!(last.elapsed() < Duration::from_secs(5), "{:?}", last.elapsed());
        let (status, titles) = live.end();
        is_clean(&status);
        assert!(titles.concat() == stream);
    }
}

#[test]
fn p06_where_there_is_no_room_for_a_byte_no_title_is_left() {
    let stream = stream(1);
    // With disk time of its own, and with what is left.
    for rate in ["40 Mbit/s", "2 Gbit/s"] {
        let server = TestServer::with(|plan| {
            plan.uploads = true;
            plan.upload.principals[0].quota = Some(Bytes(0));
        });
        let live = Live::begin_in(server, "udp://127.0.0.1:0", json!({ "rate": rate }));
        let mut sender = live.sender(false);
        let datagrams = sender.all(&stream);
        sender.send_all(&live, &datagrams);
        live.until("the alarm says it", |status| {
            let alarm = status["alarms"]["storage"].as_str();
            alarm.is_some_and(|alarm| alarm.contains("is not stored") && alarm.contains("quota"))
        });
        let (status, titles) = live.end();
        assert!(titles.is_empty(), "{status}");
        assert_eq!((count(&status, "titles"), count(&status, "stored_bytes")), (0, 0), "{status}");
    }
}
