//! Signals without a meaning for the server do not end it.

use std::process::Command;

use rustix::process::Signal;
use tactus_testkit::server::keep_state;

use super::test_server::{Server, get, line, prepared};

#[test]
fn n10_sighup_without_a_configuration_file_is_logged_and_ignored() {
    let mut server = Server::without_file();
    server.signal(Signal::HUP);
    let said = server.wait_for(|server| line(&server.err(), "SIGHUP"));
    assert!(said.contains("SIGHUP has no effect") && said.contains("--config"), "{said}");
    assert!(server.is_running());
    assert_eq!(get(&server.http, "/film.ts?rate=max", "Range: bytes=0-99\r\n").status, 206);
    assert!(server.end().success());
}

#[test]
fn n10_other_signals_are_ignored() {
    let mut server = Server::new("");
    for (signal, name) in [
        (Signal::USR1, "SIGUSR1"),
        (Signal::USR2, "SIGUSR2"),
        (Signal::ALARM, "SIGALRM"),
        (Signal::IO, "SIGIO"),
    ] {
        server.signal(signal);
        let said = server.wait_for(|server| line(&server.err(), name));
        assert!(said.contains("ignored"), "{said}");
    }
    for signal in [Signal::PIPE, Signal::HUP, Signal::HUP] {
        server.signal(signal);
    }
    assert_eq!(get(&server.http, "/film.ts?rate=max", "Range: bytes=0-99\r\n").status, 206);
    assert!(server.is_running());
    assert!(server.end().success());
}

/// The signal is sent as soon as the program is known to have begun.
#[test]
fn n10_sighup_before_the_configuration_is_loaded_is_ignored() {
    let (dir, command) = prepared(&[], "");
    let fifo = dir.path().join("late.toml");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, 0o600.into()).expect("a pipe with a name");
    let mut late = Command::new(command.get_program());
    keep_state(&mut late, dir.path());
    late.args(["serve", "--http", "127.0.0.1:0", "--config"]).arg(&fifo);
    late.arg(dir.path().join("media"));
    let errors = std::fs::File::create(dir.path().join("err")).expect("a file");
    let output = std::fs::File::create(dir.path().join("out")).expect("a file");
    let child = late.stdout(output).stderr(errors).spawn().expect("it starts");
    // Opening succeeds when the program waits for its configuration.
    let pipe = std::fs::OpenOptions::new().write(true).open(&fifo).expect("it is read");
    let pid = rustix::process::Pid::from_child(&child);
    for _ in 0..3 {
        rustix::process::kill_process(pid, Signal::HUP).expect("it runs");
    }
    let text = "[admin]\naddress = \"127.0.0.1:0\"\n[memory]\narena = \"64 MiB\"\n";
    std::io::Write::write_all(&mut &pipe, text.as_bytes()).expect("it is read");
    drop(pipe);
    let mut server = Server::of(dir, child);
    // The reload reads the pipe again, so it needs another writer.
    let again = std::fs::OpenOptions::new().write(true).open(&fifo);
    drop(again.map(|mut again| std::io::Write::write_all(&mut again, text.as_bytes())));
    assert!(server.is_running());
    assert!(server.end().success());
}
