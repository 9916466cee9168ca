//! HTTP on a Unix socket, without a proxy.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use super::chain::{Server, TOKEN, content};

const HTTP: &str = "[log]\naccess = \"text\"\naccess_to = \"access.log\"\n\
    [http]\nconnections_per_address_max = 2\n\
    [[http.unix_socket]]\npath = \"/run/tactus/http.sock\"\nmode = \"0600\"\n\
    [[admin.unix_socket]]\npath = \"admin.sock\"\n";

fn curl(server: &Server, socket: &str, args: &[&str]) -> Output {
    let socket = server.socket().with_file_name(socket);
    let mut curl = Command::new("curl");
    let output = curl.args(["-sS", "--max-time", "60", "--unix-socket"]).arg(socket).args(args);
    let output = output.output().expect("curl is missing: cargo xtask setup");
    assert!(output.status.success(), "{args:?}: {output:?}");
    output
}

/// The text of all answers on a connection to the socket, on which `requests` are sent at once.
fn exchange(server: &Server, requests: &str) -> Vec<u8> {
    let mut socket = UnixStream::connect(server.socket()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    socket.write_all(requests.as_bytes()).unwrap();
    let mut answers = Vec::new();
    socket.read_to_end(&mut answers).unwrap();
    answers
}

#[test]
fn titles_are_sent_at_their_rate_and_stored_over_a_unix_socket() {
    let mut server = Server::start(HTTP);
    let bytes = content(1_200_000);
    let found = fs::symlink_metadata(server.socket()).unwrap();
    assert!(found.file_type().is_socket() && found.permissions().mode() & 0o777 == 0o600);
    // 1.2 MB at 4 Mbit/s take 2.4 s, less what is sent at once at the beginning.
    let begun = Instant::now();
    let body = curl(&server, "http.sock", &["http://localhost/a.bin?rate=4M"]).stdout;
    assert!(body == bytes && begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    let file = server.file("file", &bytes);
    let token = format!("Authorization: Bearer {TOKEN}");
    let put = ["-f", "-T", &file, "-H", &token, "http://localhost/films/put.bin"];
    curl(&server, "http.sock", &put);
    assert!(server.stored("films/put.bin").as_ref() == Some(&bytes));
    // Requests on one connection, sent without waiting: the engine gives the socket back.
    let request = |path: &str, more: &str| format!("GET {path} HTTP/1.1\r\nHost: h\r\n{more}\r\n");
    let both = request("/a.bin?rate=max", "Range: bytes=0-299999\r\n")
        + &request("/a.bin?rate=20M", "Range: bytes=5-9\r\nConnection: close\r\n");
    let answers = exchange(&server, &both);
    assert!(answers.starts_with(b"HTTP/1.1 206") && answers.ends_with(&bytes[5..10]));
    assert!(answers.windows(300_000).any(|part| part == &bytes[..300_000]));
    // Its client is the user, of whom any number of processes is one client.
    let held: Vec<_> = (0..2).map(|_| UnixStream::connect(server.socket()).unwrap()).collect();
    let refused = exchange(&server, &request("/a.bin", ""));
    let refused = String::from_utf8_lossy(&refused);
    assert!(refused.starts_with("HTTP/1.1 429"), "{refused}");
    drop(held);
    let status = curl(&server, "admin.sock", &["-f", "http://localhost/api/v1/status"]).stdout;
    assert!(status.starts_with(b"{"));
    server.terminate();
    assert!(!server.socket().exists() && !server.socket().with_file_name("admin.sock").exists());
    let log = fs::read_to_string(server.socket().with_file_name("access.log")).unwrap();
    let user = format!("unix:uid={}", rustix::process::geteuid().as_raw());
    assert!(log.lines().any(|line| line.contains(&user) && line.contains("path=/a.bin")), "{log}");
}
