//! Titles that are read while they come in (row R05 of uploads, and P6).

use std::io::{Read, Write};
use std::time::Duration;

use tactus_control::settings::{Sendfile, UnfinishedTitles};
use tactus_core::units::MIB;

use crate::client::{Answer, Client};
use crate::test_server::{TOKEN, TestServer, content};

const LEN: usize = 6 * MIB as usize;
/// Sent before the uploader pauses: more than is read at once, and no whole number of places.
const FIRST: usize = LEN / 2 + 12_345;

fn server(sendfile: Sendfile) -> TestServer {
    TestServer::with(|plan| {
        plan.uploads = true;
        plan.unfinished = UnfinishedTitles::Visible;
        plan.sendfile = sendfile;
    })
}

fn begin(server: &TestServer, framing: &str) -> Client {
    let mut client = server.client();
    client.send(format!(
        "PUT /new.ts HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n{framing}\r\n"
    ));
    client
}

/// Asks until something of the title can be read: all but its first byte.
fn first_part(server: &TestServer) -> Answer {
    let mut client = server.client();
    for _ in 0..1000 {
        let answer = client.get("/new.ts?rate=max", "Range: bytes=1-\r\n");
        match answer.status {
            404 | 416 => std::thread::sleep(Duration::from_millis(10)),
            _ => return answer,
        }
    }
    panic!("nothing of the title could be read");
}

/// Follows a title in a connection of its own; what came, and whether it ended without an error.
fn follow(server: &TestServer) -> std::thread::JoinHandle<(Vec<u8>, bool)> {
    let mut socket = std::net::TcpStream::connect(server.address).unwrap();
    let get = b"GET /new.ts?rate=100M HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    socket.write_all(get).unwrap();
    std::thread::spawn(move || {
        let mut all = Vec::new();
        let ended = socket.read_to_end(&mut all).is_ok();
        (all, ended)
    })
}

fn split(answer: &[u8]) -> (String, &[u8]) {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
    (String::from_utf8_lossy(&answer[..end]).to_lowercase(), &answer[end + 4..])
}

#[test]
fn r05_a_title_that_comes_in_is_sent_up_to_its_durable_end_and_followed_to_its_last_byte() {
    for sendfile in [Sendfile::Off, Sendfile::Auto] {
        let (server, all) = (server(sendfile), content(LEN));
        let mut upload = begin(&server, &format!("Content-Length: {LEN}\r\n"));
        upload.send(&all[..FIRST]);
        let part = first_part(&server);
        assert_eq!(part.status, 206);
        assert!(part.body.len() < FIRST && all[1..].starts_with(&part.body));
        let range = format!("bytes 1-{}/{LEN}", part.body.len());
        assert_eq!(part.field("content-range"), Some(&*range));
        let followed = follow(&server);
        std::thread::sleep(Duration::from_millis(700));
        upload.send(&all[FIRST..]);
        assert_eq!(upload.answer_to("PUT").unwrap().status, 201);
        let (answer, _) = followed.join().unwrap();
        let (head, body) = split(&answer);
        assert!(head.contains(&format!("content-length: {LEN}")), "{head}");
        assert!(body == all, "{} bytes came", body.len());
        let whole = server.client().get("/new.ts?rate=max", "");
        assert!(whole.status == 200 && whole.body == all);
        assert_ne!(whole.field("etag"), part.field("etag"));
    }
}

#[test]
fn a_title_of_unknown_length_ends_with_its_connection_and_a_broken_one_by_a_reset() {
    let chunk =
        |bytes: &[u8]| [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
    for breaks in [false, true] {
        let (server, all) = (server(Sendfile::Off), content(LEN));
        let mut upload = begin(&server, "Transfer-Encoding: chunked\r\n");
        upload.send(chunk(&all[..FIRST]));
        let part = first_part(&server);
        let range = format!("bytes 1-{}/*", part.body.len());
        assert_eq!((part.status, part.field("content-range")), (206, Some(&*range)));
        let followed = follow(&server);
        std::thread::sleep(Duration::from_millis(700));
        if !breaks {
            upload.send(chunk(&all[FIRST..]));
            upload.send("0\r\n\r\n");
            assert_eq!(upload.answer_to("PUT").unwrap().status, 201);
        }
        drop(upload);
        let (answer, ended) = followed.join().unwrap();
        let (head, body) = split(&answer);
        assert!(!head.contains("content-length") && head.contains("connection: close"), "{head}");
        assert!(all.starts_with(body), "{} bytes came", body.len());
        assert_eq!((ended, body.len() == LEN), (!breaks, !breaks));
        let status = server.client().get("/new.ts", "").status;
        assert_eq!(status, if breaks { 404 } else { 200 });
    }
}

#[test]
fn p6_a_title_that_comes_in_is_hidden_by_what_has_its_name_and_everywhere_else_by_default() {
    let server = server(Sendfile::Off);
    let before = server.client().get("/a.ts?rate=max", "");
    let mut upload = server.client();
    upload.send(format!(
        "PUT /a.ts HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\
         Content-Length: {LEN}\r\n\r\n"
    ));
    upload.send(&content(LEN)[..FIRST]);
    std::thread::sleep(Duration::from_millis(700));
    let meanwhile = server.client().get("/a.ts?rate=max", "");
    assert_eq!((meanwhile.status, &meanwhile.body), (200, &before.body));
    let hidden = TestServer::taking_uploads();
    let mut upload = begin(&hidden, &format!("Content-Length: {LEN}\r\n"));
    upload.send(&content(LEN)[..FIRST]);
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(hidden.client().get("/new.ts", "").status, 404);
}

#[test]
fn an_upload_by_tus_is_read_as_far_as_the_journal_has_it_also_between_its_requests() {
    let (server, all) = (server(Sendfile::Off), content(LEN));
    let tus = |method: &str, target: &str, fields: &str, body: &[u8]| {
        let mut client = server.client();
        let len = body.len();
        client.send(format!(
            "{method} {target} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\
             Tus-Resumable: 1.0.0\r\n{fields}Content-Length: {len}\r\n\r\n"
        ));
        client.send(body);
        client.answer_to(method).unwrap()
    };
    let created =
        tus("POST", "/api/v1/uploads?path=/new.ts", &format!("Upload-Length: {LEN}\r\n"), b"");
    assert_eq!(created.status, 201, "{}", created.text());
    let url = created.field("location").unwrap().to_owned();
    let patch = |from: usize, to: usize| {
        let fields =
            format!("Content-Type: application/offset+octet-stream\r\nUpload-Offset: {from}\r\n");
        tus("PATCH", &url, &fields, &all[from..to]).status
    };
    assert_eq!(patch(0, FIRST), 204);
    let part = server.client().get("/new.ts?rate=max", "Range: bytes=10-\r\n");
    assert_eq!(part.field("content-range"), Some(&*format!("bytes 10-{}/{LEN}", FIRST - 1)));
    assert!(part.status == 206 && part.body == all[10..FIRST]);
    let followed = follow(&server);
    assert_eq!(patch(FIRST, FIRST + 7), 204);
    assert_eq!(patch(FIRST + 7, LEN), 204);
    let (answer, ended) = followed.join().unwrap();
    let (_, body) = split(&answer);
    assert!(ended && body == all, "{} bytes came", body.len());
}

#[test]
fn p6_a_title_that_can_be_read_while_it_comes_in_is_never_gone_when_it_gets_its_name() {
    let (server, bytes) = (server(Sendfile::Off), content(200_000));
    for round in 0..30 {
        let path = format!("/round-{round}.ts");
        let mut upload = server.client();
        upload.send(format!(
            "PUT {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\
             Content-Length: {}\r\n\r\n",
            bytes.len()
        ));
        upload.send(&bytes[..1]);
        let mut reader = server.client();
        while reader.ask("HEAD", &path, "").status == 404 {}
        upload.send(&bytes[1..]);
        for _ in 0..200 {
            assert_eq!(reader.ask("HEAD", &path, "").status, 200);
        }
        assert_eq!(upload.answer_to("PUT").unwrap().status, 201);
        assert_eq!(reader.ask("HEAD", &path, "").status, 200);
    }
}
