//! `put`, `get`, `channel` and `probe` from the shell.

use std::io::{Read, Write};
use std::net::TcpListener;

use super::server::{ProgramOutput, Server, directory, program, tactus, text};
use crate::TACTUS;

#[test]
fn n14_put_reports_a_file_that_exists_and_sends_the_others() {
    let server = Server::with_uploads();
    let (a, b) = (server.file("a.ts", b"first"), server.file("b.ts", b"second"));
    let missing = server.dir.path().join("missing.ts");
    let url = server.url("/");
    assert_eq!(server.tactus(&["put", text(&a), &url]).code, 0);
    let said = server.tactus(&["put", text(&a), text(&missing), text(&b), &url]);
    assert_eq!(said.code, 1, "{said:?}");
    assert_eq!(server.stored("b.ts").as_deref(), Some(&b"second"[..]), "{said:?}");
    let line = |word: &str| said.err.lines().find(|line| line.contains(word)).map(str::to_owned);
    let there = line("a.ts: ").expect("the file is named");
    assert!(there.contains("--force"), "{there}");
    assert!(line("missing.ts: ").is_some_and(|line| line.contains("cannot be read")), "{said:?}");
    // A single file is reported in the same way.
    let said = server.tactus(&["put", text(&a), &url]);
    assert_eq!(said.code, 1);
    assert!(said.err.contains("a.ts: "), "{said:?}");
    let said = server.tactus(&["put", "--force", text(&a), text(&b), &url]);
    assert_eq!(said.code, 0, "{said:?}");
}

#[test]
fn n14_an_error_of_all_files_is_printed_once() {
    let server = Server::with_uploads();
    let (a, b) = (server.file("a.ts", b"first"), server.file("b.ts", b"second"));
    let args = ["put", text(&a), text(&b), &server.url("/")];
    let said =
        ProgramOutput::of(tactus(&args).env("TACTUS_TOKEN", "wrong-token-of-enough-letters"));
    assert_eq!(said.code, 2, "{said:?}");
    assert_eq!(said.err.matches("refused the token").count(), 1, "{said:?}");
    assert!(said.err.contains("1 more files were not sent"), "{said:?}");
}

#[test]
fn n13_put_sends_directories_with_names_of_all_kinds() {
    let server = Server::with_uploads();
    let names = ["films/größe 1/a b.ts", "films/100%.ts", "films/x#?&+;=.ts"];
    for name in names {
        server.file(name, name.as_bytes());
    }
    let films = server.dir.path().join("films");
    let said = server.tactus(&["put", text(&films), &server.url("/new/")]);
    assert_eq!(said.code, 1);
    assert!(said.err.contains("--recursive"), "{said:?}");
    let said = server.tactus(&["put", "--recursive", text(&films), &server.url("/new/")]);
    assert_eq!(said.code, 0, "{said:?}");
    for name in names {
        let stored = server.stored(&format!("new/{name}"));
        assert_eq!(stored.as_deref(), Some(name.as_bytes()), "{name}");
    }
    assert!(!said.err.contains('\u{1b}'), "no escapes without a terminal");
}

#[test]
fn n13_progress_sends_no_escapes_to_dumb_terminals_or_with_no_color() {
    let server = Server::with_uploads();
    let file = server.file("a.ts", &vec![7; 3 << 20]);
    let command = format!("'{}' put --force '{}' '{}'", TACTUS, text(&file), server.url("/"));
    // `script` provides a terminal.
    let shown = |environment: [(&str, &str); 2]| {
        let mut script = program("script");
        script.args(["-qec", &command, "/dev/null"]).env("TACTUS_TOKEN", server.token());
        let said = ProgramOutput::of(script.envs(environment));
        assert_eq!(said.code, 0, "{said:?}");
        assert!(said.out.contains("/a.ts: 3 MiB in"), "{said:?}");
        said.out.contains('\u{1b}')
    };
    assert!(shown([("TERM", "xterm"), ("NO_COLOR", "")]), "a terminal shows a bar");
    assert!(!shown([("TERM", "xterm"), ("NO_COLOR", "1")]));
    assert!(!shown([("TERM", "dumb"), ("NO_COLOR", "")]));
}

#[test]
fn n09_a_probe_shows_sizes_with_one_decimal() {
    let clip = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/clip.ts");
    let mut probe = program(TACTUS);
    let said = ProgramOutput::of(probe.args(["probe", clip]));
    assert!(said.out.contains("547.8 KiB in 2984 packets"), "{said:?}");
}

/// A server that answers each connection with the next of `answers`, and then closes its port.
fn answering(answers: Vec<Vec<u8>>) -> (u16, std::thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let server = std::thread::spawn(move || {
        let mut heads = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut head = [0; 4096];
            let read = stream.read(&mut head).expect("a request");
            heads.push(String::from_utf8_lossy(&head[..read]).to_ascii_lowercase());
            // The client may have closed the connection by now.
            drop(stream.write_all(&answer));
        }
        heads
    });
    (port, server)
}

fn answer(head: &str, body: &[u8]) -> Vec<u8> {
    [format!("HTTP/1.1 {head}\r\n\r\n").as_bytes(), body].concat()
}

#[test]
fn s09_get_resumes_after_interruptions_and_waits_for_room() {
    let bytes: Vec<u8> = (0..200_000u32).map(|n| (n * 7) as u8).collect();
    let whole = "200 OK\r\nETag: \"v1\"\r\nContent-Length: 200000";
    let part = |from: usize| {
        let len = 200_000 - from;
        format!(
            "206 Partial Content\r\nETag: \"v1\"\r\nContent-Length: {len}\r\n\
             Content-Range: bytes {from}-199999/200000"
        )
    };
    let refused = || answer("503 Full\r\nRetry-After: 1\r\nContent-Length: 5", b"full\n");
    let answers = || {
        vec![
            refused(),
            answer("502 Bad Gateway\r\nContent-Length: 0", b""),
            answer(whole, &bytes[..50_000]),
            Vec::new(),
            answer(&part(50_000), &bytes[50_000..120_000]),
            answer(&part(120_000), &bytes[120_000..]),
        ]
    };
    let dir = directory();
    let file = dir.path().join("a");
    let (port, server) = answering(answers());
    let url = format!("http://127.0.0.1:{port}/a");
    let said = ProgramOutput::of(&mut tactus(&["get", &url, "-o", text(&file)]));
    assert_eq!(said.code, 0, "{said:?}");
    assert!(std::fs::read(&file).expect("the file") == bytes, "bytes differ");
    assert!(said.err.contains("retrying"), "{said:?}");
    let heads = server.join().expect("no panic");
    assert!(heads[4].contains("range: bytes=50000-\r\nif-range: \"v1\"\r\n"), "{}", heads[4]);
    // To standard output, too.
    let (port, _server) = answering(answers());
    let url = format!("http://127.0.0.1:{port}/a");
    let piped = tactus(&["get", "--quiet", &url, "-o", "-"]).output().expect("timeout is there");
    assert!(piped.status.success() && piped.stdout == bytes, "{} bytes", piped.stdout.len());
}

#[test]
fn s09_get_ends_when_retries_cannot_help() {
    let dir = directory();
    let file = dir.path().join("a");
    for (answers, code, word) in [
        (vec![answer("404 Not Found\r\nContent-Length: 3", b"no\n")], 1, "no title of this name"),
        (vec![answer("503 Full\r\nContent-Length: 5", b"full\n")], 3, "full"),
        (vec![Vec::new()], 1, "broke"),
    ] {
        let (port, _server) = answering(answers);
        let url = format!("http://127.0.0.1:{port}/a");
        let args = ["get", &url, "-o", text(&file), "--wait", "0 s"];
        let said = ProgramOutput::of(&mut tactus(&args));
        assert_eq!(said.code, code, "{said:?}");
        assert!(said.err.contains(word), "{said:?}");
    }
}

#[test]
fn s09_channel_show_needs_the_same_rights_as_channel_list() {
    let server = Server::with_uploads();
    server.file("titles/a.ts", &[0; 188]);
    let base = server.url("/");
    let add = ["channel", "add", &base, "one", "--to", "udp://127.0.0.1:9", "/a.ts"];
    let said = server.tactus(&add);
    assert_eq!(said.code, 0, "{said:?}");
    // Both commands give the same result without a token, with a wrong one, and with the right one.
    for token in [None, Some("wrong-token-of-enough-letters"), Some(&*server.token())] {
        let run = |args: &[&str]| {
            let mut command = tactus(args);
            if let Some(token) = token {
                command.env("TACTUS_TOKEN", token);
            }
            ProgramOutput::of(&mut command)
        };
        let (list, show) =
            (run(&["channel", "list", &base]), run(&["channel", "show", &base, "one"]));
        assert_eq!(list.code, show.code, "{token:?}: {list:?} {show:?}");
        assert_eq!(list.code == 0, list.out.contains("one"), "{list:?}");
    }
    let show = server.tactus(&["channel", "show", &base, "one"]);
    assert!(show.code == 0 && show.out.contains("\"one\""), "{show:?}");
}

#[test]
fn n05_the_usage_of_put_says_files_and_then_a_url() {
    let help = ProgramOutput::of(&mut tactus(&["put", "--help"]));
    assert!(help.out.contains("Usage: tactus put [OPTIONS] <FILE>... <URL>"), "{help:?}");
    let page = ProgramOutput::of(&mut tactus(&["man", "put"]));
    assert!(page.code == 0 && page.out.contains("\\fIFILE...\\fR \\fIURL\\fR"), "{page:?}");
    let page = ProgramOutput::of(&mut tactus(&["man", "tactus.toml"]));
    assert!(page.out.starts_with(".TH \"TACTUS.TOML\" 5"), "{page:?}");
}
