//! Output to closed pipes and full disks.

use std::fs::File;
use std::io::{PipeReader, pipe};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

use tactus_testkit::process::{Process, free_port};
use tactus_testkit::server::little_memory;

use super::server::{ProgramOutput, Server, directory, program, tactus, text};
use crate::TACTUS;

/// The writing end of a pipe whose reader is closed.
fn unread() -> Stdio {
    let (reader, writer): (PipeReader, _) = pipe().expect("a pipe");
    drop(reader);
    writer.into()
}

/// A device that is always full.
fn full() -> Stdio {
    File::options().write(true).open("/dev/full").expect("/dev/full is there").into()
}

#[test]
fn n10_a_server_runs_on_when_its_output_is_closed() {
    for name in ["a closed pipe", "a full disk"] {
        let output = if name == "a full disk" { full } else { unread };
        let (own, dir) = (directory(), directory());
        std::fs::write(dir.path().join("a.ts"), "title").expect("a title");
        let (http, admin) = (free_port(), free_port());
        let address = |port: u16| format!("127.0.0.1:{port}");
        let mut command = std::process::Command::new(TACTUS);
        command
            .args(["serve", text(dir.path()), "--uploads"])
            .args(["--http", &address(http), "--admin", &address(admin)])
            .args(["--config", text(&little_memory(own.path()))])
            .env("TACTUS_LOG", "debug")
            .env("XDG_STATE_HOME", dir.path().join(".tactus-state"))
            .stdin(Stdio::null())
            .stdout(output())
            .stderr(output());
        let mut server = Process(command.spawn().expect("the server starts"));
        let deadline = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(address(http)).is_err() {
            assert_eq!(server.0.try_wait().expect("it can be asked"), None, "{name}");
            assert!(Instant::now() < deadline, "{name}: the server does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        // Each request writes a line of the access log and lines of the log.
        for _ in 0..3 {
            let url = format!("http://{}/a.ts", address(http));
            let answer = ProgramOutput::of(program("curl").args(["-sS", "--fail", &url]));
            assert_eq!((answer.code, &*answer.out), (0, "title"), "{name}: {answer:?}");
        }
        assert_eq!(server.0.try_wait().expect("it can be asked"), None, "{name}");
    }
}

#[test]
fn n13_a_command_succeeds_with_a_closed_pipe_and_fails_with_a_full_disk() {
    let server = Server::with_uploads();
    server.file("titles/a.ts", &[0x47; 188]);
    let (file, base) = (server.dir.path().join("titles/a.ts"), server.url("/"));
    let commands: [&[&str]; 7] = [
        &["ls", &base],
        &["ls", "--json", &base],
        &["verify", text(&file)],
        &["man", "serve"],
        &["completions", "bash"],
        &["channel", "list", &base],
        &["recording", "list", &base],
    ];
    for words in commands {
        let run = |to: Stdio| {
            let mut command = tactus(words);
            let child = command.env("TACTUS_TOKEN", server.token()).stdout(to);
            let child = child.stderr(Stdio::piped()).spawn().expect("timeout is there");
            let ended = child.wait_with_output().expect("it ends");
            (ended.status.code(), String::from_utf8_lossy(&ended.stderr).into_owned())
        };
        assert_eq!(run(unread()), (Some(0), String::new()), "{words:?}");
        let (code, said) = run(full());
        assert_eq!(code, Some(1), "{words:?}: {said}");
        assert!(said.contains("cannot write to standard output"), "{words:?}: {said}");
        assert!(!said.contains("panicked"), "{words:?}: {said}");
    }
}
