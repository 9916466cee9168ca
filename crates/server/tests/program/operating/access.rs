//! The access log: one line for each request, stream or session that ends.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use rustix::process::Signal;
use tactus_core::units::SECOND;
use tactus_media::sample;

use super::test_server::{Server, ask, get, line, prepared};

#[test]
fn n11_requests_are_logged_by_default() {
    let server = Server::new("");
    let fields = "Range: bytes=0-99999\r\nUser-Agent: VLC/3.0 \"x\"\r\n";
    assert_eq!(get(&server.http, "/film.ts?rate=8M&token=secret", fields).status, 206);
    assert_eq!(get(&server.http, "/none.ts?token=secret", "").status, 404);
    let hostile =
        "GET /film.ts HTTP/1.1\r\nHost: x\r\nConnection: close\r\nUser-Agent: a\u{1b}[2J\r\n\r\n";
    ask(&server.http, hostile);
    ask(&server.http, "NONSENSE\r\n\r\n");
    let said = server.wait_for(|server| line(&server.out(), "status=206"));
    for part in [
        "protocol=http",
        "client=127.0.0.1",
        "method=GET",
        "path=/film.ts ",
        "sent_bytes=100000",
        "duration_seconds=0.",
        "rate_asked=8M",
        "rate_bits_per_second=8",
        "lateness_seconds=0.",
        "underruns=0",
        "user_agent=\"VLC/3.0 \\\"x\\\"\"",
    ] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
    let missing = server.wait_for(|server| line(&server.out(), "status=404"));
    assert!(missing.contains("path=/none.ts"), "{missing}");
    server.wait_for(|server| line(&server.out(), "status=400"));
    let all = server.out() + &server.err();
    assert!(!all.contains("secret") && !all.contains('\u{1b}'), "{all}");
}

#[test]
fn n11_records_are_json_in_a_file_that_is_reopened_at_sighup() {
    let log = "[log]\naccess = \"json\"\naccess_to = \"access.log\"\nformat = \"json\"\n";
    let mut server = Server::new(log);
    let path = server.dir.path().join("access.log");
    let moved = server.dir.path().join("access.log.1");
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    get(&server.http, "/film.ts?rate=max", "Range: bytes=0-9\r\n");
    let record = server.wait_for(|_| line(&read(&path), "/film.ts"));
    let record: serde_json::Value = serde_json::from_str(&record).expect("JSON");
    assert_eq!((record["protocol"].as_str(), record["status"].as_u64()), (Some("http"), Some(206)));
    assert_eq!(
        (record["sent_bytes"].as_u64(), record["rate_asked"].as_str()),
        (Some(10), Some("max"))
    );
    fs::rename(&path, &moved).expect("it is there");
    server.signal(Signal::HUP);
    server.wait_for(|_| path.exists().then_some(()));
    get(&server.http, "/", "");
    server.wait_for(|_| line(&read(&path), "\"path\":\"/\""));
    assert_eq!(line(&read(&moved), "\"path\":\"/\""), None);
    // The other log lines are JSON too.
    server.signal(Signal::USR1);
    let said = server.wait_for(|server| line(&server.err(), "SIGUSR1"));
    let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(said["level"], "WARN");
    // A request that the server's end interrupts is logged, too.
    let mut viewer = TcpStream::connect(&server.http).expect("a connection");
    write!(viewer, "GET /film.ts?rate=1M HTTP/1.1\r\nHost: x\r\n\r\n").expect("a request");
    viewer.read_exact(&mut [0; 100]).expect("it has begun");
    drop(viewer);
    server.wait_for(|_| line(&read(&path), "\"outcome\":\"peer_gone\""));
    assert!(server.end().success());
}

#[test]
fn n11_sessions_of_rtsp_are_logged_without_their_passwords() {
    let server = Server::with(&["--rtsp", "127.0.0.1:0"], "");
    let rtsp = server.wait_for(|server| line(&server.out(), "RTSP at rtsp://"));
    let address = rtsp.rsplit("rtsp://").next().expect("an address").trim_end_matches('/');
    let mut stream = TcpStream::connect(address).expect("a connection");
    let url = format!("rtsp://user:secret@{address}/none.ts?token=secret");
    write!(stream, "OPTIONS {url} RTSP/1.0\r\nCSeq: 1\r\n\r\n").expect("a request");
    write!(stream, "DESCRIBE {url} RTSP/1.0\r\nCSeq: 2\r\nUser-Agent: player\r\n\r\n")
        .expect("a request");
    let said = server.wait_for(|server| line(&server.out(), "protocol=rtsp"));
    for part in
        ["client=127.0.0.1", "method=DESCRIBE", "path=/none.ts", "status=4", "user_agent=player"]
    {
        assert!(said.contains(part), "{part} is not in {said}");
    }
    assert!(!server.out().contains("secret"), "{}", server.out());
}

#[test]
fn n11_uploads_are_logged_with_their_principal() {
    let server = Server::with(&["--uploads"], "");
    let file = server.dir.path().join("media/.tactus/upload-token");
    let token = fs::read_to_string(file).expect("it is made at the start");
    let token = token.trim();
    let put = format!(
        "PUT /new.ts HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\
         Content-Length: 4\r\n\r\nfilm"
    );
    assert_eq!(ask(&server.http, &put).status, 201);
    let said = server.wait_for(|server| line(&server.out(), "protocol=upload"));
    for part in ["method=PUT", "path=/new.ts", "status=201", "received_bytes=4", "principal=local"]
    {
        assert!(said.contains(part), "{part} is not in {said}");
    }
    // It is printed once, when it is created, and never in a record.
    let records =
        server.out().lines().filter(|line| line.contains("protocol=")).collect::<String>();
    assert!(!records.contains(token), "{records}");
}

#[test]
fn n11_what_a_body_announced_is_not_what_was_received() {
    let server = Server::with(&["--uploads"], "");
    let file = server.dir.path().join("media/.tactus/upload-token");
    let token = fs::read_to_string(file).expect("it is made at the start");
    let token = token.trim();
    let send = |name: &str, fields: &str, body: &[u8]| {
        let mut stream = TcpStream::connect(&server.http).expect("a connection");
        write!(stream, "PUT /{name} HTTP/1.1\r\nHost: x\r\n{fields}\r\n").expect("a request");
        stream.write_all(body).expect("a part of a body");
        stream
    };
    let record = |name: &str| {
        let part = format!("path=/{name} ");
        server.wait_for(|server| line(&server.out(), &part))
    };
    let auth = format!("Authorization: Bearer {token}\r\n");
    // The client goes away in the middle.
    drop(send("cut.ts", &format!("{auth}Content-Length: 1000000\r\n"), &[0x47; 1000]));
    let said = record("cut.ts");
    assert!(said.contains("received_bytes=1000 "), "{said}");
    // In pieces nothing is announced.
    let chunks = b"3\r\nfil\r\n1\r\nm\r\n0\r\n\r\n";
    let fields = format!("{auth}Transfer-Encoding: chunked\r\nConnection: close\r\n");
    let mut chunked = send("chunked.ts", &fields, chunks);
    chunked.read_to_end(&mut vec![]).expect("an answer");
    let said = record("chunked.ts");
    assert!(said.contains("status=201") && said.contains("received_bytes=4 "), "{said}");
    // What nobody may upload is not counted as if it had come.
    let fields = "Content-Length: 9000000\r\nConnection: close\r\n";
    let mut refused = send("refused.ts", fields, b"");
    refused.read_exact(&mut [0; 12]).expect("an answer");
    drop(refused);
    let said = record("refused.ts");
    assert!(said.contains("status=401") && !said.contains("received_bytes="), "{said}");
}

/// A player on one connection, which carries the media as well.
struct Player {
    stream: TcpStream,
    url: String,
    sequence: u32,
    session: String,
}

impl Player {
    fn new(address: &str, title: &str) -> Self {
        let stream = TcpStream::connect(address).expect("a connection");
        let (url, session) = (format!("rtsp://{address}/{title}"), String::new());
        Self { stream, url, sequence: 0, session }
    }

    fn ask(&mut self, method: &str, below: &str, fields: &str) {
        self.sequence += 1;
        let Self { stream, url, sequence, session } = self;
        let text =
            format!("{method} {url}{below} RTSP/1.0\r\nCSeq: {sequence}\r\n{session}{fields}\r\n");
        stream.write_all(text.as_bytes()).expect("a request");
        // Frames come between the answers.
        let mark = format!("CSeq: {sequence}\r\n");
        let mut seen = vec![];
        while !seen.ends_with(b"\r\n\r\n") || !String::from_utf8_lossy(&seen).contains(&mark) {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("an answer");
            seen.push(byte[0]);
        }
        let seen = String::from_utf8_lossy(&seen).into_owned();
        let answer = seen.rsplit("RTSP/1.0 ").next().expect("a status");
        assert!(answer.starts_with("200"), "{method}: {seen}");
        if let Some((_, rest)) = seen.split_once("Session: ") {
            let id = rest.split([';', '\r']).next().expect("a name");
            self.session = format!("Session: {id}\r\n");
        }
    }

    fn set_up(&mut self) {
        let transport = "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\n";
        self.ask("SETUP", "/track1", transport);
    }

    fn takes(&mut self, bytes: usize) {
        self.stream.read_exact(&mut vec![0; bytes]).expect("media");
    }
}

#[test]
fn n11_each_play_by_rtsp_leaves_a_record_of_movies_and_at_other_scales_too() {
    let (dir, command) = prepared(&["--rtsp", "127.0.0.1:0"], "");
    let media = dir.path().join("media");
    let length = SECOND.times(20);
    sample::write_mp4(&media.join("movie.mp4"), length).expect("a movie");
    let server = Server::start(dir, command);
    let rtsp = server.wait_for(|server| line(&server.out(), "RTSP at rtsp://"));
    let address = rtsp.rsplit("rtsp://").next().expect("an address").trim_end_matches('/');
    let mut player = Player::new(address, "movie.mp4");
    player.set_up();
    // Each PLAY that another one or a pause ends, at each scale; and the last one, to the end of
    // the title.
    player.ask("PLAY", "", "Range: npt=0-\r\n");
    player.takes(5000);
    player.ask("PLAY", "", "Scale: 4\r\nRange: npt=2-\r\n");
    player.takes(1000);
    player.ask("PAUSE", "", "");
    player.ask("PLAY", "", "Range: npt=19-\r\n");
    let mut rest = player.stream.try_clone().expect("a handle");
    let rest = std::thread::spawn(move || std::io::copy(&mut rest, &mut std::io::sink()));
    let of = |outcome: &str| {
        let said = server.wait_for(|server| {
            let out = server.out();
            let mut lines = out.lines().filter(|line| line.contains("method=play "));
            lines.find(|line| line.contains(outcome)).map(str::to_owned)
        });
        for part in
            ["protocol=rtsp", "path=/movie.mp4", "name=", "duration_seconds=", "underruns=0"]
        {
            assert!(said.contains(part), "{part} is not in {said}");
        }
        let sent = said.split("sent_bytes=").nth(1).and_then(|rest| rest.split(' ').next());
        assert!(
            sent.and_then(|sent| sent.parse::<u64>().ok()).is_some_and(|sent| sent > 0),
            "{said}"
        );
    };
    of("outcome=complete");
    of("outcome=stopped");
    player.stream.shutdown(std::net::Shutdown::Both).expect("it is there");
    rest.join().expect("it does not panic").ok();
    server.wait_for(|server| line(&server.out(), "method=session "));
    let out = server.out();
    let plays = out.lines().filter(|line| line.contains("method=play ")).count();
    assert_eq!(plays, 3, "one for each PLAY: {out}");
}

#[test]
fn n11_nothing_is_logged_where_it_is_off() {
    let server = Server::new("[log]\naccess = \"off\"\n");
    get(&server.http, "/film.ts?rate=max", "Range: bytes=0-9\r\n");
    let metrics = get(&server.admin, "/metrics", "").body;
    assert!(metrics.contains("\ntactus_access_log_dropped_total 0"), "{metrics}");
    assert!(!server.out().contains("protocol="), "{}", server.out());
}

/// Sends one RTSP request; returns the status line of the answer.
fn rtsp(address: &str, request: &str) -> String {
    use std::io::{BufRead, BufReader, Write};
    let mut stream = std::net::TcpStream::connect(address).expect("it listens");
    stream.write_all(request.as_bytes()).expect("it is taken");
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).expect("an answer");
    line
}

#[test]
fn s12_an_rtsp_client_cannot_fill_the_log() {
    let server = Server::with(&["--rtsp", "127.0.0.1:0"], "");
    let said = server.wait_for(|server| line(&server.out(), "RTSP at rtsp://"));
    let address = said.rsplit("rtsp://").next().expect("an address").trim_end_matches('/');
    let film = server.dir.path().join("media/real.ts");
    tactus_media::sample::write_ts(&film, tactus_core::units::SECOND).unwrap();
    for n in 0..40 {
        let request = format!(
            "SETUP rtsp://{address}/real.ts RTSP/1.0\r\nCSeq: {n}\r\n\
             Transport: RTP/AVP;unicast;destination=198.51.100.{n};client_port=5004-5005\r\n\r\n"
        );
        let answer = rtsp(address, &request);
        assert!(answer.contains(" 403 ") || answer.contains(" 461 "), "{answer}");
    }
    let lines = |server: &Server| {
        let said = std::fs::read_to_string(server.dir.path().join("err")).unwrap();
        said.lines().filter(|line| line.contains("destination address is not permitted")).count()
    };
    assert_eq!(lines(&server), 1, "one line per address and minute");
}
