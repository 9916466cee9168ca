//! Health checks for load balancers, supervisors and people.

use std::fs;
use std::process::Command;

use tactus_testkit::server::keep_state;

use super::test_server::{Server, get, line, prepared};

#[test]
fn n13_liveness_is_served_everywhere_and_readiness_at_the_admin_address() {
    let server = Server::new("");
    for address in [&server.http, &server.admin] {
        let alive = get(address, "/healthz", "");
        assert_eq!((alive.status, &*alive.body), (200, "alive\n"));
        assert!(alive.head.contains("Cache-Control: no-store"), "{}", alive.head);
    }
    let ready = get(&server.admin, "/readyz", "");
    assert_eq!(ready.status, 200, "{}", ready.body);
    assert!(ready.body.starts_with("ready\n"), "{}", ready.body);
    assert_eq!(
        get(&server.http, "/readyz", "").status,
        404,
        "its reasons contain paths of the host"
    );
    assert_eq!(server.status()["health"]["ready"], true);
}

#[test]
fn the_programs_memory_is_locked_or_the_status_says_that_it_is_not() {
    let server = Server::new("");
    let facts = fs::read_to_string(format!("/proc/{}/status", server.pid()));
    let facts = facts.expect("it runs");
    let kib = |name: &str| -> u64 {
        let line = facts.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
        number.and_then(|number| number.parse().ok()).expect("the kernel counts it")
    };
    // Below a limit, the blocks may be locked alone.
    let is_locked = kib("VmLck:") > kib("VmSize:") / 2;
    let refusals = server.status()["degraded"].to_string();
    assert_eq!(is_locked, !refusals.contains("memory is not locked"), "{facts}{refusals}");
}

#[test]
fn n13_recordings_are_listed_without_a_token_at_the_admin_address_only() {
    let server = Server::with(&["--uploads"], "");
    let shown = get(&server.admin, "/api/v1/recordings", "");
    assert_eq!((shown.status, &*shown.body), (200, "[]"));
    assert_eq!(get(&server.http, "/api/v1/recordings", "").status, 401);
    // Changes need a token there, too.
    let text = "POST /api/v1/recordings HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
                Content-Length: 2\r\n\r\n{}";
    assert_eq!(super::test_server::ask(&server.admin, text).status, 401);
    let put = "PUT /new.ts HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
               Content-Length: 1\r\n\r\nx";
    assert_eq!(
        super::test_server::ask(&server.admin, put).status,
        405,
        "uploads are not accepted there"
    );
    assert_eq!(get(&server.admin, "/film.ts", "").status, 404, "nor served");
}

#[test]
fn n08_a_directory_that_goes_away_makes_the_server_unready_with_a_reason() {
    let server = Server::new("");
    let media = server.dir.path().join("media");
    let ready = || get(&server.admin, "/readyz", "");
    fs::rename(&media, server.dir.path().join("elsewhere")).expect("it is there");
    let said = server.wait_for(|_| Some(ready()).filter(|ready| ready.status == 503));
    assert!(said.body.contains("\nreason: /: "), "{}", said.body);
    assert_eq!(server.status()["health"]["ready"], false);
    assert_eq!(get(&server.admin, "/healthz", "").status, 200, "it is still alive");
    fs::rename(server.dir.path().join("elsewhere"), &media).expect("it is there");
    server.wait_for(|_| (ready().status == 200).then_some(()));
}

/// An empty title is a warning, and with `strict` a reason.
#[test]
fn n08_empty_titles_are_reported_and_fail_the_readiness_of_a_strict_server() {
    let config = "[[volume]]\npath = \"media\"\n[server]\nstrict = true\n";
    for (text, is_strict) in [("", false), (config, true)] {
        let (dir, mut command) = prepared(&[], text);
        fs::write(dir.path().join("media/empty.ts"), b"").expect("a title");
        // A strict server does not start on a host that denies rights.
        if is_strict && !grants_all() {
            let status = command.status().expect("it ends");
            assert_eq!(status.code(), Some(1));
            continue;
        }
        let server = Server::start(dir, command);
        let found = server.wait_for(|server| {
            let ready = get(&server.admin, "/readyz", "");
            ready.body.contains("empty").then_some(ready)
        });
        let (status, word) = if is_strict { (503, "reason") } else { (200, "warning") };
        assert_eq!(found.status, status, "{}", found.body);
        assert!(line(&found.body, &format!("{word}: /")).is_some(), "{}", found.body);
    }
}

/// A source that has never said anything, and one that has stopped: both are in the list of
/// conditions.
#[test]
fn n08_a_silent_source_of_a_recording_is_a_condition_of_the_status() {
    // Closed again: the recording opens it.
    let port = std::net::UdpSocket::bind("127.0.0.1:0").and_then(|free| free.local_addr());
    let port = port.expect("a port").port();
    let config = format!(
        "[[volume]]\npath = \"media\"\nuploads = true\n\
         [[recording]]\nname = \"studio\"\nfrom = \"udp://127.0.0.1:{port}\"\n\
         to = \"/studio-%n.ts\"\n\
         silence = \"1 s\"\n"
    );
    let server = Server::with(&["--uploads"], &config);
    let silent = |server: &Server| -> Option<serde_json::Value> {
        let status = server.status();
        let all = status["conditions"].as_array().expect("a list");
        let found = all.iter().find(|one| {
            let said = one["message"].as_str().unwrap_or_default();
            one["kind"] == "live_input" && said.starts_with("nothing has come")
        });
        found.cloned()
    };
    let is_told = |server: &Server| {
        let found = server.wait_for(|server| silent(server));
        assert_eq!(
            (&found["subject"], &found["severity"]),
            (&"recording studio".into(), &"warning".into())
        );
        assert!(found["seconds"].is_u64(), "{found}");
        let status = server.status();
        let degraded = status["degraded"].to_string();
        assert!(degraded.contains("recording studio: nothing has come"), "{degraded}");
        let ready = get(&server.admin, "/readyz", "");
        assert_eq!(ready.status, 200, "{}", ready.body);
        assert!(
            ready.body.contains("\nwarning: recording studio: nothing has come"),
            "{}",
            ready.body
        );
    };
    is_told(&server);
    // It ends when something comes, and is there again when that has stopped.
    let sender = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    let mut packet = [0xff; 188];
    packet[..4].copy_from_slice(&[0x47, 0x1f, 0xff, 0x10]);
    server.wait_for(|server| {
        sender.send_to(&packet.repeat(7), ("127.0.0.1", port)).expect("it leaves");
        silent(server).is_none().then_some(())
    });
    is_told(&server);
}

fn grants_all() -> bool {
    let server = Server::beside_others(&[], "");
    let degraded = server.status()["degraded"].as_array().map_or(0, Vec::len);
    degraded == 0
}

#[test]
fn n08_a_strict_server_refuses_a_degraded_start_with_the_reason() {
    // With a low limit of open files a plain server starts, with one line of warning (n14).
    for (more, starts) in [(&[][..], true), (&["--strict"], false)] {
        let (dir, command) = prepared(more, "");
        let mut limited = Command::new("sh");
        keep_state(&mut limited, dir.path());
        let serve: Vec<_> = command.get_args().map(|arg| arg.to_owned()).collect();
        limited.args(["-c", "ulimit -n 400; exec \"$0\" \"$@\""]).arg(command.get_program());
        limited.args(serve);
        limited.stdout(fs::File::create(dir.path().join("out")).expect("a file"));
        limited.stderr(fs::File::create(dir.path().join("err")).expect("a file"));
        let part = "the limit of open files is 400";
        if starts {
            let server = Server::start(dir, limited);
            let said = server.err();
            assert_eq!(said.lines().filter(|line| line.contains(part)).count(), 1, "{said}");
            assert!(said.contains("LimitNOFILE="), "{said}");
            assert!(server.status()["degraded"].to_string().contains(part));
        } else {
            let status = limited.status().expect("it ends");
            let said = fs::read_to_string(dir.path().join("err")).expect("its errors");
            assert_eq!(status.code(), Some(1), "{said}");
            assert!(said.contains("`strict` is set") && said.contains(part), "{said}");
        }
    }
}

#[test]
fn n14_the_shortage_of_open_files_is_one_line_at_the_start() {
    let (dir, command) = prepared(&[], "");
    let mut limited = Command::new("sh");
    keep_state(&mut limited, dir.path());
    limited.args(["-c", "ulimit -n 500; exec \"$0\" \"$@\""]).arg(command.get_program());
    limited.args(command.get_args());
    limited.stdout(fs::File::create(dir.path().join("out")).expect("a file"));
    limited.stderr(fs::File::create(dir.path().join("err")).expect("a file"));
    let server = Server::start(dir, limited);
    let said = server.err();
    let about = said.lines().filter(|line| line.contains("the limit of open files is 500"));
    assert_eq!(about.count(), 1, "{said}");
}
