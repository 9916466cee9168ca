//! Rows D01 to D04: live inputs over real sockets, good and bad, and what is in the titles
//! afterwards.

use std::collections::HashSet;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tactus_core::ts::{PACKET, Packet, Repeat};
use tactus_core::units::{BitRate, MediaTime};

use crate::client::Answer;
use crate::test_server::{TOKEN, TestServer};

const RECORDINGS: &str = "/api/v1/recordings";
/// Packets of a datagram, as broadcasters send them.
const SEVEN: usize = 7 * PACKET;

/// So many turns of the clip, each of 3000 packets and 1.2 s: a stream without a seam.
pub(crate) fn stream(turns: u64) -> Vec<u8> {
    let clip =
        fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/clip.ts")).unwrap();
    let repeat = Repeat::new(&clip, BitRate(3_760_000), MediaTime(32_400_000)).unwrap();
    let len = repeat.turn_len().0 as usize;
    let mut all = vec![0; len * turns as usize];
    for (turn, out) in all.chunks_mut(len).enumerate() {
        repeat.write_turn(turn as u64, out);
    }
    all
}

/// A recording over the API of a server.
pub(crate) struct Live {
    pub(crate) server: TestServer,
    name: &'static str,
    to: SocketAddr,
}

/// Someone who sends.
pub(crate) struct Sender {
    socket: UdpSocket,
    to: SocketAddr,
    sequence: u16,
    is_rtp: bool,
}

impl Live {
    /// Begins to record `from`, with more keys.
    pub(crate) fn begin(from: &str, more: Value) -> Self {
        Self::begin_in(TestServer::taking_uploads(), from, more)
    }

    pub(crate) fn begin_in(server: TestServer, from: &str, more: Value) -> Self {
        let mut keys = json!({ "name": "live", "from": from, "to": "/live/%n.ts" });
        keys.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = ask(&server, "POST", RECORDINGS, &keys.to_string());
        assert_eq!(answer.status, 201, "{}", answer.text());
        assert_eq!(answer.field("location"), Some("/api/v1/recordings/live"));
        let mut live = Self { server, name: "live", to: ([127, 0, 0, 1], 1).into() };
        live.until("it listens", |status| status["address"].is_string());
        live.to = live.status()["address"].as_str().unwrap().parse().unwrap();
        live
    }

    pub(crate) fn path(&self) -> String {
        format!("{RECORDINGS}/{}", self.name)
    }

    pub(crate) fn status(&self) -> Value {
        let answer = ask(&self.server, "GET", &self.path(), "");
        assert_eq!(answer.status, 200, "{}", answer.text());
        serde_json::from_slice(&answer.body).unwrap()
    }

    pub(crate) fn count(&self, name: &str) -> u64 {
        count(&self.status(), name)
    }

    pub(crate) fn until(&self, what: &str, holds: impl Fn(&Value) -> bool) {
        self.server.wait_until(what, |_| holds(&self.status()));
    }

    /// Waits until so many datagrams have been looked at.
    pub(crate) fn until_came(&self, datagrams: u64) {
        self.until("all has come", |status| count(status, "datagrams") >= datagrams);
    }

    pub(crate) fn sender(&self, is_rtp: bool) -> Sender {
        self.sender_from("127.0.0.1", is_rtp)
    }

    pub(crate) fn sender_from(&self, from: &str, is_rtp: bool) -> Sender {
        let socket = UdpSocket::bind((from, 0)).unwrap();
        Sender { socket, to: self.to, sequence: 65_530, is_rtp }
    }

    /// Ends it. On a busy machine its last title is still being stored when that is answered.
    pub(crate) fn stop(&self) {
        let answer = ask(&self.server, "DELETE", &self.path(), "");
        assert!(matches!(answer.status, 200 | 202), "{}", answer.text());
        self.until("it has stopped", |status| status["state"] == "stopped");
    }

    /// Ends it; its last words, and its titles in their order.
    pub(crate) fn end(self) -> (Value, Vec<Vec<u8>>) {
        self.stop();
        let status = self.status();
        let titles = titles(&self.server);
        assert_eq!(
            count(&status, "stored_bytes"),
            titles.iter().map(|t| t.len() as u64).sum::<u64>()
        );
        assert_eq!(ask(&self.server, "DELETE", &self.path(), "").status, 204);
        assert_eq!(ask(&self.server, "GET", &self.path(), "").status, 404);
        self.server.serves_others();
        (status, titles)
    }
}

impl Sender {
    pub(crate) fn send(&self, bytes: &[u8]) {
        self.socket.send_to(bytes, self.to).unwrap();
    }

    /// The next datagram with `payload`.
    pub(crate) fn wrapped(&mut self, payload: &[u8]) -> Vec<u8> {
        if !self.is_rtp {
            return payload.to_vec();
        }
        let sequence = self.sequence;
        self.sequence = sequence.wrapping_add(1);
        let head = [&[0x80, 33][..], &sequence.to_be_bytes(), &[0, 0, 0, 0, 1, 2, 3, 4]].concat();
        [&head, payload].concat()
    }

    pub(crate) fn all(&mut self, stream: &[u8]) -> Vec<Vec<u8>> {
        stream.chunks(SEVEN).map(|payload| self.wrapped(payload)).collect()
    }

    /// Sends datagrams one by one, each after the one before it was counted.
    pub(crate) fn send_paced(&self, live: &Live, datagrams: &[Vec<u8>]) {
        let before = live.count("datagrams");
        for (nth, some) in datagrams.chunks(8).enumerate() {
            for datagram in some {
                self.send(datagram);
            }
            live.until_came(before + (nth * 8 + some.len()) as u64);
        }
    }

    /// Sends as fast as `live` takes it, which may be slower than the stream's own rate on a busy
    /// machine.
    pub(crate) fn send_all(&self, live: &Live, datagrams: &[Vec<u8>]) {
        let before = live.count("datagrams");
        for (nth, some) in datagrams.chunks(200).enumerate() {
            for datagram in some {
                self.send(datagram);
            }
            live.until_came(before + (nth * 200 + some.len()) as u64);
        }
    }
}

pub(crate) fn ask(server: &TestServer, method: &str, target: &str, body: &str) -> Answer {
    let mut client = server.client();
    client.send(format!(
        "{method} {target} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    client.answer_to(method).expect("an answer")
}

pub(crate) fn count(status: &Value, name: &str) -> u64 {
    status["counts"][name].as_u64().unwrap_or_else(|| panic!("{name} in {status}"))
}

pub(crate) fn files(server: &TestServer) -> Vec<PathBuf> {
    let Ok(listed) = fs::read_dir(server.root().join("live")) else { return Vec::new() };
    let mut files: Vec<_> = listed.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

pub(crate) fn titles(server: &TestServer) -> Vec<Vec<u8>> {
    files(server).iter().map(|file| fs::read(file).unwrap()).collect()
}

/// Nothing was wrong with what came.
pub(crate) fn is_clean(status: &Value) {
    for name in [
        "src_refused",
        "socket_dropped",
        "too_long",
        "not_ts",
        "rtp_bad",
        "rtp_lost",
        "rtp_late",
        "sync_losses",
        "skipped_bytes",
        "malformed",
        "bad_sections",
        "continuity_gaps",
        "clock_jumps",
        "write_gaps",
        "write_gap_bytes",
        "titles_failed",
    ] {
        assert_eq!(count(status, name), 0, "{name} in {status}");
    }
    assert_eq!(status["alarms"], json!({}));
}

#[test]
fn a_stream_by_udp_and_by_rtp_is_recorded_byte_by_byte() {
    let stream = stream(3);
    for (from, is_rtp) in
        [("udp://127.0.0.1:0", false), ("rtp://127.0.0.1:0", true), ("rtp://[::1]:0", true)]
    {
        let live = Live::begin(from, json!({}));
        let ip = live.to.ip().to_string();
        let mut sender = live.sender_from(&ip, is_rtp);
        let datagrams = sender.all(&stream);
        sender.send_all(&live, &datagrams);
        live.until("its rate is known", |status| status["rate_bits_per_second"].is_u64());
        let (status, titles) = live.end();
        is_clean(&status);
        assert_eq!(status["measured_rate_bits_per_second"], 3_760_000);
        assert!(titles.concat() == stream && titles.len() == 1, "{from}");
    }
}

#[test]
fn titles_are_cut_at_video_frames_and_the_oldest_go() {
    let stream = stream(8);
    let keys = json!({ "rate": "40 Mbit/s", "rotate": "500 kB", "keep_titles": 3 });
    let live = Live::begin("rtp://127.0.0.1:0", keys);
    let mut sender = live.sender(true);
    // No faster than titles are stored: else they would grow on.
    for (nth, turn) in stream.chunks(stream.len() / 8).enumerate() {
        let datagrams = sender.all(turn);
        sender.send_all(&live, &datagrams);
        live.until("the one before is stored", |status| count(status, "titles") + 1 >= nth as u64);
    }
    live.until("the oldest have gone", |status| count(status, "titles_removed") >= 4);
    live.stop();
    let status = live.status();
    is_clean(&status);
    // One video frame a turn: titles of 500 kB end with their turn, unless that takes seconds to
    // come.
    let (made, removed) = (count(&status, "titles"), count(&status, "titles_removed"));
    assert!((7..=9).contains(&made), "{status}");
    assert_eq!(count(&status, "stored_bytes"), stream.len() as u64);
    let titles = titles(&live.server);
    assert_eq!(titles.len() as u64, made - removed);
    assert!(titles.len() <= 3);
    let joined = titles.concat();
    assert!(stream.ends_with(&joined), "the last titles are the end of the stream");
    for title in &titles {
        let first = Packet::first_of(title).unwrap();
        assert!(first.pid().0 == 0 && first.starts_unit(), "a PAT begins it");
    }
    // Counted on, not from the beginning.
    let last = |server: &TestServer| files(server).pop().unwrap();
    assert!(last(&live.server).ends_with(format!("{made:04}.ts")));
    assert_eq!(ask(&live.server, "POST", &live.path(), "").status, 200);
    live.until("it listens again", |status| status["address"].is_string());
    let to = live.status()["address"].as_str().unwrap().parse().unwrap();
    let datagrams = sender.all(&stream[..SEVEN * 50]);
    Sender { to, ..sender }.send_all(&live, &datagrams);
    live.stop();
    assert!(last(&live.server).ends_with(format!("{:04}.ts", made + 1)));
}

#[test]
fn what_is_shuffled_is_put_in_order_and_what_is_lost_is_counted() {
    let stream = stream(3);
    let live = Live::begin("rtp://127.0.0.1:0", json!({ "rate": "40 Mbit/s" }));
    let mut sender = live.sender(true);
    let datagrams = sender.all(&stream);
    let mut sent = datagrams.clone();
    // Neighbours change places, one comes 20 places late, one comes twice, and two never.
    for at in (5..sent.len() - 5).step_by(50) {
        sent.swap(at, at + 1);
    }
    let late = sent.remove(300);
    sent.insert(320, late);
    sent.insert(330, sent[329].clone());
    let missing = [sent.remove(700), sent.remove(900)];
    sender.send_all(&live, &sent);
    let (status, titles) = live.end();
    let expected: Vec<u8> = datagrams
        .iter()
        .filter(|datagram| !missing.contains(datagram))
        .flat_map(|datagram| datagram[12..].to_vec())
        .collect();
    assert!(titles.concat() == expected);
    assert_eq!((count(&status, "rtp_lost"), count(&status, "rtp_late")), (2, 1));
    // A datagram may hold stuffing only, whose counters do not count.
    assert!(count(&status, "rtp_reordered") >= 20, "{status}");
    assert!(count(&status, "continuity_gaps") >= 1, "{status}");
    assert!(!status["gaps_by_pid"].as_object().unwrap().is_empty());
}

#[test]
fn a_group_is_joined_for_one_source_and_recorded() {
    let stream = stream(2);
    let keys = json!({ "rate": "40 Mbit/s", "interface": "lo" });
    let from = "udp://232.1.2.3:0?source=127.0.0.1";
    let live = Live::begin(from, keys);
    assert_eq!(live.status()["from"], from);
    let by_loopback = |mut sender: Sender| {
        let own = match sender.socket.local_addr().unwrap() {
            SocketAddr::V4(own) => *own.ip(),
            SocketAddr::V6(_) => Ipv4Addr::LOCALHOST,
        };
        rustix::net::sockopt::set_ip_multicast_if(&sender.socket, &own).unwrap();
        sender.to = live.to;
        sender
    };
    let mut sender = by_loopback(live.sender(false));
    let stranger = by_loopback(live.sender_from("127.0.0.2", false));
    for _ in 0..50 {
        stranger.send(&stream[..SEVEN]);
    }
    let datagrams = sender.all(&stream);
    sender.send_all(&live, &datagrams);
    let (status, titles) = live.end();
    // Strangers are kept out by the kernel: they are not even counted.
    is_clean(&status);
    assert_eq!(count(&status, "datagrams"), datagrams.len() as u64);
    assert!(titles.concat() == stream);
}

#[test]
fn ffmpeg_sends_by_udp_and_rtp_and_what_it_sent_is_recorded() {
    let directory = tempfile::tempdir().unwrap();
    let input = directory.path().join("input.ts");
    fs::write(&input, stream(3)).unwrap();
    for (from, format) in [("udp://127.0.0.1:0", "mpegts"), ("rtp://127.0.0.1:0", "rtp_mpegts")] {
        let live = Live::begin(from, json!({ "rate": "20 Mbit/s" }));
        // The same bytes into a file: by the same muxer, from the same input.
        let copy = directory.path().join(format!("{format}.ts"));
        let to = match format {
            "mpegts" => format!("udp://{}?pkt_size=1316", live.to),
            _ => format!("rtp://{}", live.to),
        };
        let mut ffmpeg = Command::new("ffmpeg");
        ffmpeg.args(["-nostdin", "-v", "error", "-re", "-i"]).arg(&input);
        ffmpeg.args(["-c", "copy", "-f", format, &to]);
        let ended = ffmpeg.status().unwrap_or_else(|error| panic!("ffmpeg is needed: {error}"));
        assert!(ended.success());
        live.until("something has come", |status| count(status, "packets") > 1000);
        std::thread::sleep(Duration::from_millis(200));
        let (status, titles) = live.end();
        assert_eq!((count(&status, "rtp_bad"), count(&status, "sync_losses")), (0, 0), "{status}");
        assert_eq!(
            (count(&status, "rtp_lost"), count(&status, "continuity_gaps")),
            (0, 0),
            "{status}"
        );
        fs::write(&copy, titles.concat()).unwrap();
        // Every video frame and every audio that went in came out.
        let sums = |file: &Path| {
            let mut ffmpeg = Command::new("ffmpeg");
            ffmpeg.args(["-nostdin", "-v", "error", "-i"]).arg(file);
            ffmpeg.args(["-map", "0:v", "-f", "framehash", "-hash", "md5", "-"]);
            let said = ffmpeg.output().unwrap();
            let text = String::from_utf8(said.stdout).unwrap();
            let frames = text.lines().filter(|line| !line.starts_with('#'));
            frames.filter_map(|line| line.rsplit(',').next().map(str::to_owned)).collect::<Vec<_>>()
        };
        let (sent, came) = (sums(&input), sums(&copy));
        assert_eq!(sent.len(), 90);
        // Its RTP muxer does not send what it still holds at its end.
        let whole = if format == "mpegts" { 90 } else { 85 };
        let differ = sent.iter().zip(&came).position(|(sent, came)| sent != came);
        assert!(differ.unwrap_or(came.len()) >= whole, "{format}: {} from {differ:?}", came.len());
    }
}

#[test]
fn d01_another_source_gets_nothing_into_a_title() {
    let stream = stream(2);
    for (from, is_rtp) in
        [("udp://127.0.0.1:0", false), ("rtp://127.0.0.1:0?source=127.0.0.1", true)]
    {
        let live = Live::begin(from, json!({ "rate": "40 Mbit/s" }));
        let mut sender = live.sender(is_rtp);
        let mut stranger = live.sender_from("127.0.0.9", is_rtp);
        let datagrams = sender.all(&stream);
        let evil = vec![0x47; SEVEN];
        sender.send_all(&live, &datagrams[..100]);
        for some in datagrams[100..].chunks(100) {
            let datagram = stranger.wrapped(&evil);
            stranger.send_all(&live, &vec![datagram; 20]);
            sender.send_all(&live, some);
        }
        let refused = (datagrams.len() - 100).div_ceil(100) as u64 * 20;
        let (status, titles) = live.end();
        assert_eq!(count(&status, "src_refused"), refused, "{from}");
        assert!(titles.concat() == stream, "{from}");
    }
}

#[test]
fn d02_a_flood_is_dropped_in_the_socket_and_costs_nobody_else_anything() {
    let rate = 4_000_000u64;
    let live = Live::begin("udp://127.0.0.1:0", json!({ "rate": "4 Mbit/s" }));
    let stream = stream(8);
    let sender = live.sender(false);
    // 4.5 MB at once are 9 s of this rate: what is neither allowed at once nor fits into the kernel
    // goes.
    let read_before = std::time::Instant::now();
    for datagram in stream.chunks(SEVEN) {
        sender.send(datagram);
    }
    live.until("the kernel has dropped some", |status| count(status, "socket_dropped") > 0);
    live.server.serves_others();
    let status = live.status();
    let seconds = read_before.elapsed().as_secs() + 1;
    let allowed = rate / 8 * 2 * (seconds + 1) + 256 * 1024 + 32 * SEVEN as u64;
    assert!(count(&status, "received_bytes") <= allowed, "{status}");
    let came = count(&status, "datagrams") + count(&status, "socket_dropped");
    assert!(came <= stream.len().div_ceil(SEVEN) as u64);
    let (status, titles) = live.end();
    // What was taken is whole, and all is accounted for.
    let packets: HashSet<_> = stream.chunks(PACKET).collect();
    assert!(titles.concat().chunks(PACKET).all(|packet| packets.contains(&packet)));
    let all = count(&status, "datagrams") + count(&status, "socket_dropped");
    assert_eq!(all, stream.len().div_ceil(SEVEN) as u64, "{status}");
}

#[test]
fn d03_rtp_that_breaks_the_rules_is_dropped_and_the_recording_goes_on() {
    let stream = stream(1);
    let live = Live::begin("rtp://127.0.0.1:0", json!({ "rate": "40 Mbit/s" }));
    let mut sender = live.sender(true);
    let datagrams = sender.all(&stream);
    sender.send_all(&live, &datagrams[..100]);
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = datagrams[100].clone();
        change(&mut bytes);
        bytes
    };
    let bad = [
        with(&|bytes| bytes.truncate(11)),
        with(&|bytes| bytes.clear()),
        // Version 1; fifteen sources and an extension that end behind it; padding of all and of
        // nothing.
        with(&|bytes| bytes[0] = 0x40),
        with(&|bytes| {
            bytes[0] = 0x8f;
            bytes.truncate(40);
        }),
        with(&|bytes| {
            bytes[0] = 0x90;
            bytes[14..16].copy_from_slice(&[0xff, 0xff]);
        }),
        with(&|bytes| {
            bytes[0] = 0xa0;
            bytes.truncate(100);
            bytes[99] = 255;
        }),
        with(&|bytes| {
            bytes[0] = 0xa0;
            *bytes.last_mut().unwrap() = 0;
        }),
        with(&|bytes| bytes[1] = 96),
    ];
    sender.send_all(&live, &bad);
    assert_eq!(live.count("rtp_bad"), bad.len() as u64);
    // Another SSRC from the same address: one packet of it changes nothing.
    sender.send_all(&live, &[with(&|bytes| bytes[8] = 9)]);
    sender.send_all(&live, &datagrams[100..]);
    let (status, titles) = live.end();
    assert!(titles.concat() == stream);
    assert_eq!((count(&status, "rtp_bad"), count(&status, "src_refused")), (8, 1));
}

#[test]
fn d04_a_damaged_stream_is_recorded_without_what_is_damaged() {
    let mut stream = stream(3);
    let mut expected: Vec<u8> = Vec::new();
    let mut packets = stream.chunks_exact_mut(PACKET).enumerate();
    for (nth, packet) in &mut packets {
        let kept = match nth {
            // Sync bytes that are none, in the middle of a datagram and at its beginning.
            1000 | 1400 => {
                packet[0] = 0x48;
                false
            }
            // An adaptation field longer than its packet.
            2000 => {
                packet[3] = packet[3] & 0x0f | 0x20;
                packet[4] = 184;
                false
            }
            // A PAT whose section is longer than any.
            2500 => {
                packet[..8].copy_from_slice(&[0x47, 0x40, 0, 0x10, 0, 0, 0xbf, 0xff]);
                false
            }
            // A clock that jumps: kept.
            4000..4100 => {
                let pcr = tactus_core::ts::Pcr::at(MediaTime(27_000_000 * 3600));
                let packet: &mut [u8; PACKET] = (&mut *packet).try_into().unwrap();
                tactus_core::ts::set_pcr(packet, pcr);
                true
            }
            _ => true,
        };
        if kept {
            expected.extend(&*packet);
        }
    }
    let live = Live::begin("udp://127.0.0.1:0", json!({ "rate": "40 Mbit/s" }));
    let mut sender = live.sender(false);
    let datagrams = sender.all(&stream);
    sender.send_all(&live, &datagrams);
    let (status, titles) = live.end();
    let got = titles.concat();
    assert!(got == expected, "{} bytes of {}: {status}", got.len(), expected.len());
    assert_eq!((count(&status, "sync_losses"), count(&status, "skipped_bytes")), (2, 2 * 188));
    assert_eq!((count(&status, "malformed"), count(&status, "bad_sections")), (1, 1));
    assert!(count(&status, "clock_jumps") >= 1 && count(&status, "continuity_gaps") >= 2);
}

#[test]
fn who_may_not_record_is_told_so_and_mistakes_are_answered_with_what_to_write() {
    let server = TestServer::taking_uploads();
    let good = json!({ "name": "a", "from": "udp://127.0.0.1:0", "to": "/live/%n.ts" }).to_string();
    let mut client = server.client();
    let len = good.len();
    client.send(format!(
        "POST {RECORDINGS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len}\r\n\r\n{good}"
    ));
    assert_eq!(client.answer_to("POST").unwrap().status, 401);
    assert_eq!(server.client().get(RECORDINGS, "").status, 401);
    let post = |body: &str| ask(&server, "POST", RECORDINGS, body);
    assert_eq!(post("{").status, 400);
    assert_eq!(post(&good.replace("udp:", "ftp:")).status, 400);
    assert_eq!(post(&"x".repeat(70_000)).status, 413);
    assert_eq!(ask(&server, "PUT", RECORDINGS, "").status, 405);
    assert_eq!(ask(&server, "POST", &format!("{RECORDINGS}/b"), "").status, 404);
    assert_eq!(post(&good).status, 201);
    assert_eq!(post(&good).status, 409);
    let same = post(&good.replace("\"a\"", "\"b\""));
    assert!(same.status == 409 && same.text().contains("same `to`"), "{}", same.text());
    let list: Value = serde_json::from_slice(&ask(&server, "GET", RECORDINGS, "").body).unwrap();
    assert_eq!(list[0]["state"], "waiting");
    assert_eq!(ask(&server, "DELETE", &format!("{RECORDINGS}/a"), "").status, 200);
    assert!(files(&server).is_empty(), "nothing came, so there is no title");
}

#[test]
fn an_input_that_stops_is_told_and_its_source_may_be_another_afterwards() {
    let stream = stream(1);
    let live = Live::begin("udp://127.0.0.1:0", json!({ "rate": "40 Mbit/s", "silence": "1 s" }));
    let mut sender = live.sender(false);
    let datagrams = sender.all(&stream);
    sender.send_all(&live, &datagrams[..200]);
    live.until("it is silent", |status| status["state"] == "silent");
    assert!(live.status()["alarms"]["silence"].is_string());
    let other = live.sender_from("127.0.0.2", false);
    other.send_all(&live, &datagrams[200..]);
    live.until("it goes on", |status| {
        status["state"] == "recording" && status["alarms"] == json!({})
    });
    let (status, titles) = live.end();
    is_clean(&status);
    assert!(titles.concat() == stream);
}

#[test]
fn a_quota_that_is_used_up_ends_a_title_that_is_stored_all_the_same() {
    let quota = 1_500_000u64;
    let server = TestServer::with(|plan| {
        plan.uploads = true;
        plan.upload.principals[0].quota = Some(tactus_core::units::Bytes(quota));
    });
    let stream = stream(6);
    let live = Live::begin_in(server, "udp://127.0.0.1:0", json!({ "rate": "40 Mbit/s" }));
    let mut sender = live.sender(false);
    let datagrams = sender.all(&stream);
    sender.send_all(&live, &datagrams);
    live.until("somebody should look", |status| status["alarms"]["storage"].is_string());
    let (status, titles) = live.end();
    let stored = titles.concat();
    assert!(stored.len() as u64 <= quota && stored.len() > 1_000_000, "{}", stored.len());
    assert!(stream.starts_with(&stored));
    let lost = count(&status, "write_gap_bytes");
    assert_eq!(lost + stored.len() as u64, stream.len() as u64, "{status}");
}
