//! TR 101 290 on every output of the server: what leaves is judged by checkers of other people.
//!
//! Promise: channels over UDP and RTP, over turns and from title to title, stuffed to a constant
//! rate; RTSP over UDP, in the connection and to a group, after a pause, after a seek and at every
//! scale; what was recorded by RTSP; parts of titles over HTTP: no indicator of priority 1, 2 or 3
//! is raised, and ffmpeg decodes it. Where the rate is constant clocks are within 500 ns of their
//! bytes; where it is not, and RTP says when they were due, within two of its ticks (22 us); of a
//! file by its own clock, and of a channel through titles of several rates, nothing is reckoned.
//! RTP's M bit stands where a jump is marked, and nowhere else. `cargo test -p tactus --test
//! program conformance:: -- --nocapture` prints the table.

#[expect(dead_code, reason = "other tests of RTSP need all of it")]
#[path = "../../../rtsp/tests/rtsp/client.rs"]
mod client;
mod jumps;

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::judge::{PacketTiming, ReceivedPackets};
use crate::media_server::{SECONDS, TestServer, Titles, group_port};
use client::{Client, PATIENCE, Receiver, Reply, first_matches, payload};
use tactus_core::rtp;
use tactus_core::ts::{Indexer, PACKET};
use tactus_core::units::BitRate;
use tactus_media::sample::TS_RATE;

/// Transport packets of a datagram.
const OF_SEVEN: usize = 7 * PACKET;
/// What a title of a variable rate is stuffed to.
const STUFFED: BitRate = BitRate(6_000_000);

/// What lasts about so many seconds at `rate`, in datagrams.
fn datagrams(rate: BitRate, seconds: u64) -> usize {
    (rate.0 * seconds / 8) as usize / OF_SEVEN
}

#[test]
fn the_titles_themselves_are_clean() {
    let titles = Titles::get();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    for (name, bytes) in [("even", &titles.even), ("even, short", &titles.even_short)] {
        let heard = ReceivedPackets::plain(bytes.clone());
        heard.judge(&format!("title {name}, as it is"), PacketTiming::Even(TS_RATE));
        heard.decode(name, dir.path());
    }
    for (name, bytes) in [("film", &titles.film), ("film, short", &titles.film_short)] {
        let heard = ReceivedPackets::by_its_clock(bytes.clone());
        heard.judge(&format!("title {name}, as it is"), PacketTiming::Own);
        heard.decode(name, dir.path());
    }
}

#[test]
fn channels_are_clean_over_turns_from_title_to_title_and_stuffed() {
    let mut inboxes = [(); 6].map(|()| Receiver::new());
    let [plain, even, own, list, stuffed, stuffed_list] = inboxes.each_ref().map(|each| each.port);
    let stuff = STUFFED.0 / 1_000_000;
    let list_of = "playlist = [\"/even-short.ts\", \"/film-short.ts\"]";
    let server = TestServer::new(&format!(
        "[[channel]]\nname = \"plain\"\ntitle = \"/even-short.ts\"\n\
         to = \"udp://127.0.0.1:{plain}\"\n\
         [[channel]]\nname = \"even\"\ntitle = \"/even-short.ts\"\n\
         to = \"rtp://127.0.0.1:{even}\"\n\
         [[channel]]\nname = \"own\"\ntitle = \"/film-short.ts\"\n\
         to = \"rtp://127.0.0.1:{own}\"\n\
         [[channel]]\nname = \"list\"\n{list_of}\nto = \"rtp://127.0.0.1:{list}\"\n\
         [[channel]]\nname = \"stuffed\"\ntitle = \"/film-short.ts\"\n\
         to = \"udp://127.0.0.1:{stuffed}\"\nstuff = \"{stuff} Mbit/s\"\n\
         [[channel]]\nname = \"stuffed-list\"\n{list_of}\n\
         to = \"rtp://127.0.0.1:{stuffed_list}\"\nstuff = \"{stuff} Mbit/s\"\n",
    ));
    let titles = Titles::get();
    let (even_len, film_len) = (titles.even_short.len(), titles.film_short.len());
    // Two and a half turns; of lists two changes and the beginning of what follows.
    let turns = |len: usize| len * 5 / 2 / OF_SEVEN;
    let changes = (even_len + film_len) / OF_SEVEN + datagrams(TS_RATE, 1);
    let counts = [
        turns(even_len),
        turns(even_len),
        turns(film_len),
        changes,
        datagrams(STUFFED, 8),
        datagrams(STUFFED, 7),
    ];
    let mut heard = inboxes.iter_mut().zip(counts).map(|(inbox, count)| inbox.take(count));
    let mut next = || heard.next().expect("one of each");
    let (even, film) = (even_len / PACKET, film_len / PACKET);
    let turns = [film, 2 * film];
    let titles = [even, even + film, 2 * even + film];
    let rows = [
        (
            "channel, UDP, a loop",
            ReceivedPackets::plain(next().concat()),
            PacketTiming::Even(TS_RATE),
        ),
        ("channel, RTP, a loop", ReceivedPackets::rtp(&next()), PacketTiming::Even(TS_RATE)),
        ("channel, RTP, a loop, VBR", ReceivedPackets::rtp(&next()), PacketTiming::Stamps(&turns)),
        (
            "channel, RTP, title after title",
            ReceivedPackets::rtp(&next()),
            PacketTiming::Stamps(&titles),
        ),
        (
            "channel, UDP, stuffed to CBR",
            ReceivedPackets::plain(next().concat()),
            PacketTiming::Even(STUFFED),
        ),
        (
            "channel, RTP, list stuffed to CBR",
            ReceivedPackets::rtp(&next()),
            PacketTiming::Even(STUFFED),
        ),
    ];
    for (name, heard, law) in rows {
        heard.judge(name, law);
        heard.decode(name, server.out());
    }
}

/// Of a volume that takes uploads.
const UPLOADS: &str =
    "uploads = true\n[[upload.principal]]\nname = \"tests\"\ntoken_file = \"token\"\n";

#[test]
fn what_was_recorded_by_rtsp_is_clean() {
    let server = TestServer::new(UPLOADS);
    let movie = server.titles().join("movie.mp4");
    for protocol in ["udp", "tcp"] {
        let mut ffmpeg = Command::new("timeout");
        ffmpeg.args(["300", "ffmpeg", "-nostdin", "-v", "error", "-re", "-i"]).arg(&movie);
        ffmpeg.args(["-c", "copy", "-f", "rtsp", "-rtsp_transport", protocol]);
        let sent = ffmpeg.arg(format!("rtsp://{}/{protocol}.ts", server.rtsp)).status();
        assert!(sent.expect("timeout is part of coreutils").success(), "{protocol}: ffmpeg sends");
        // It does not wait for the answer to its goodbye.
        let title = server.titles().join(format!("{protocol}.ts"));
        let end = Instant::now() + PATIENCE;
        while !title.exists() {
            assert!(Instant::now() < end, "{protocol}: what was recorded is no title");
            std::thread::sleep(Duration::from_millis(50));
        }
        let heard = ReceivedPackets::by_its_clock(std::fs::read(title).expect("a title"));
        let name = format!("recorded by RTSP, {protocol}");
        heard.judge(&name, PacketTiming::Own);
        heard.decode(&name, server.out());
    }
}

/// A player of `title`, whose packets come as the transport says.
struct Player {
    client: Client,
    session: String,
    reception: Reception,
    came: Vec<Vec<u8>>,
    /// The number of the first packet of each part.
    begins: Vec<u16>,
}

enum Reception {
    Datagrams(Receiver),
    /// In the connection, on channel 4.
    Frames,
}

impl Player {
    fn new(server: &TestServer, title: &str, transport: &str) -> Self {
        let mut client = Client::connect(server.rtsp, format!("rtsp://{}/{title}", server.rtsp));
        let receiver = Receiver::new();
        let ports = format!("client_port={}-{}", receiver.port, receiver.port + 1);
        let transport = transport.replace("PORTS", &ports);
        let url = format!("{}/track1", client.url);
        let fields = format!("Transport: {transport}\r\n");
        let end = Instant::now() + PATIENCE;
        let set = loop {
            let set = client.ask("SETUP", &url, &fields);
            // Its index is being made.
            if set.status != 503 || Instant::now() > end {
                break set;
            }
            std::thread::sleep(Duration::from_millis(200));
        };
        assert_eq!(set.status, 200, "{set:?} {}", set.body);
        let reception = if transport.contains("multicast") {
            let group = set.parameter("Transport", "destination").parse().expect("a group");
            Reception::Datagrams(Receiver::of_group(SocketAddr::new(group, group_port())))
        } else if transport.contains("TCP") {
            Reception::Frames
        } else {
            Reception::Datagrams(receiver)
        };
        Self { session: set.session(), client, reception, came: vec![], begins: vec![] }
    }

    fn play(&mut self, fields: &str) -> Reply {
        let url = self.client.url.clone();
        let fields = format!("Session: {}\r\n{fields}", self.session);
        let end = Instant::now() + PATIENCE;
        loop {
            let reply = self.client.ask("PLAY", &url, &fields);
            // The times of its video frames are being found out.
            if reply.status != 503 || Instant::now() > end {
                assert_eq!(reply.status, 200, "{reply:?} {}", reply.body);
                self.begins.push(reply.parameter("RTP-Info", "seq").parse().expect("a number"));
                return reply;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn take(&mut self, count: usize) {
        match &mut self.reception {
            Reception::Datagrams(receiver) => self.came.extend(receiver.take(count)),
            Reception::Frames => self.came.extend(self.client.frames(4, count)),
        }
    }

    fn pause(&mut self) {
        let session = self.session.clone();
        assert_eq!(self.client.order("PAUSE", &session).status, 200);
        match &mut self.reception {
            Reception::Datagrams(receiver) => self.came.extend(receiver.rest()),
            Reception::Frames => self.came.append(&mut self.client.kept),
        }
    }

    /// Takes until nothing comes for two seconds.
    fn take_rest(&mut self) {
        let Reception::Datagrams(receiver) = &mut self.reception else {
            panic!("datagrams come to an end")
        };
        let mut quiet = 0;
        while quiet < 20 {
            let more = receiver.rest();
            quiet = if more.is_empty() { quiet + 1 } else { 0 };
            self.came.extend(more);
        }
    }

    /// What has come since the answer `reply`, whose numbers the first of it has.
    fn since(&self, reply: &Reply) -> Vec<Vec<u8>> {
        let first = reply.parameter("RTP-Info", "seq").parse::<u16>().expect("a number");
        let sequence = |bytes: &Vec<u8>| rtp::Packet::read(bytes).expect("RTP").sequence;
        let at = self.came.iter().position(|bytes| sequence(bytes) == first);
        let part = self.came[at.expect("the packet that was named")..].to_vec();
        first_matches(reply, &part[0]);
        part
    }

    fn end(mut self) {
        if let Reception::Frames = self.reception {
            self.client.kept.clear();
        }
        let session = self.session.clone();
        assert_eq!(self.client.order("TEARDOWN", &session).status, 200);
    }
}

/// The transports to a player.
const TRANSPORTS: [(&str, &str); 3] = [
    ("UDP", "RTP/AVP;unicast;PORTS"),
    ("TCP", "RTP/AVP/TCP;unicast;interleaved=4-5"),
    ("multicast", "RTP/AVP;multicast"),
];

#[test]
fn rtsp_is_clean_over_each_transport_over_a_pause_and_after_a_seek() {
    let server = TestServer::new("");
    for (protocol, transport) in TRANSPORTS {
        let mut player = Player::new(&server, "even.ts", transport);
        let played = player.play("Range: npt=0-\r\n");
        player.take(datagrams(TS_RATE, 3));
        player.pause();
        player.play("");
        player.take(datagrams(TS_RATE, 2));
        player.pause();
        let whole = player.since(&played);
        assert!(payload(&whole) == Titles::get().even[..payload(&whole).len()], "its own bytes");
        let heard = ReceivedPackets::rtp(&whole);
        let name = format!("RTSP, {protocol}, over a pause");
        heard.judge(&name, PacketTiming::Even(TS_RATE));
        heard.decode(&name, server.out());

        player.came.clear();
        let sought = player.play("Range: npt=9.3-\r\n");
        player.take(datagrams(TS_RATE, 3));
        player.pause();
        let heard = ReceivedPackets::rtp(&player.since(&sought));
        let name = format!("RTSP, {protocol}, after a seek");
        heard.judge(&name, PacketTiming::Even(TS_RATE));
        heard.decode(&name, server.out());
        player.end();
    }
}

#[test]
fn rtsp_of_a_variable_rate_is_clean_by_datagrams() {
    let server = TestServer::new("");
    for (protocol, transport) in [TRANSPORTS[0], TRANSPORTS[2]] {
        let mut player = Player::new(&server, "film.ts", transport);
        let played = player.play("Range: npt=0-\r\n");
        player.take(datagrams(BitRate(1_000_000), 4));
        player.pause();
        let heard = ReceivedPackets::rtp(&player.since(&played));
        heard.judge(&format!("RTSP, {protocol}, VBR"), PacketTiming::Stamps(&[]));
        heard.decode(protocol, server.out());
        player.came.clear();
        let sought = player.play("Range: npt=9.3-\r\n");
        player.take(datagrams(BitRate(1_000_000), 4));
        player.pause();
        let heard = ReceivedPackets::rtp(&player.since(&sought));
        let name = format!("RTSP, {protocol}, VBR, after a seek");
        heard.judge(&name, PacketTiming::Stamps(&[]));
        heard.decode(&name, server.out());
        player.end();
    }
}

#[test]
fn every_scale_is_clean() {
    let server = TestServer::new("");
    let mut player = Player::new(&server, "even.ts", TRANSPORTS[0].1);
    // Half as fast has places for all packets of the title's fastest second.
    let mut indexer = Indexer::default();
    indexer.add(&Titles::get().even);
    let index = indexer.finish().expect("it is a title");
    let fastest = index.rates().expect("it has a clock").max;
    for (scale, from) in [
        ("2", SECONDS - 8),
        ("4", 4),
        ("8", 0),
        ("16", 0),
        ("-1", 5),
        ("-2", 8),
        ("-4", SECONDS - 2),
        ("-8", SECONDS - 1),
        ("-16", SECONDS - 1),
        ("0.5", SECONDS - 3),
    ] {
        player.came.clear();
        let shown = player.play(&format!("Scale: {scale}\r\nRange: npt={from}-\r\n"));
        assert_eq!(shown.field("Scale").parse::<f64>(), scale.parse(), "{shown:?}");
        player.take(10);
        player.take_rest();
        let heard = ReceivedPackets::rtp(&player.since(&shown));
        let name = format!("RTSP, UDP, Scale: {scale}");
        heard.judge(&name, PacketTiming::Places(if scale == "0.5" { fastest } else { TS_RATE }));
        heard.decode(&name, server.out());
    }
    player.end();
}

#[test]
fn scales_in_frames_of_the_connection_are_clean() {
    let server = TestServer::new("");
    let mut player = Player::new(&server, "even.ts", TRANSPORTS[1].1);
    for (scale, from, count) in [("4", 4, 400), ("-2", 16, 200), ("16", 0, 200)] {
        player.came.clear();
        let shown = player.play(&format!("Scale: {scale}\r\nRange: npt={from}-\r\n"));
        assert_eq!(shown.field("Scale").parse::<f64>(), scale.parse(), "{shown:?}");
        player.take(count);
        player.pause();
        let heard = ReceivedPackets::rtp(&player.since(&shown));
        let name = format!("RTSP, TCP, Scale: {scale}");
        heard.judge(&name, PacketTiming::Places(TS_RATE));
        heard.decode(&name, server.out());
    }
    player.end();
}

#[test]
fn parts_over_http_are_clean() {
    let server = TestServer::new("");
    let part = |title: &str| {
        let file = server.out().join("part.ts");
        let url = format!("http://{}/{title}?start=9.3&end=15&rate=20M", server.http);
        let end = Instant::now() + PATIENCE;
        loop {
            let mut curl = Command::new("curl");
            curl.args(["-sS", "--max-time", "300", "-w", "%{http_code}", "-o"]);
            let said = curl.arg(&file).arg(&url).output().expect("curl is installed");
            let status = String::from_utf8_lossy(&said.stdout).into_owned();
            // Its index is being made.
            if status != "503" || Instant::now() > end {
                assert_eq!(status, "200", "{title}");
                return std::fs::read(&file).expect("it has come");
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    };
    let heard = ReceivedPackets::plain(part("even.ts"));
    heard.judge("HTTP, ?start=", PacketTiming::Even(TS_RATE));
    heard.decode("HTTP, ?start=", server.out());
    let heard = ReceivedPackets::by_its_clock(part("film.ts"));
    heard.judge("HTTP, ?start=, VBR", PacketTiming::Own);
    heard.decode("HTTP, ?start=, VBR", server.out());
    assert!(heard.bytes().len() < Titles::get().film.len() / 2, "a part");
}
