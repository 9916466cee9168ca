//! The access log: one line for each request, stream or session that ends.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use rustix::process::Signal;

use crate::stage::{Server, ask, get, line};

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
    tactus::media::sample::write_ts(&film, tactus_core::units::SECOND).unwrap();
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
        said.lines().filter(|line| line.contains("sending to this address is not allowed")).count()
    };
    assert_eq!(lines(&server), 1, "one line per address and minute");
}
