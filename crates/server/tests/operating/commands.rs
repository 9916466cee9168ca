//! The commands for operators.

use std::process::{Command, Output};

use crate::stage::{Server, line};

fn tactus(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tactus"));
    command.args(args).env_remove("TACTUS_TOKEN").output().expect("it runs")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn n06_status_capacity_and_sessions_print_tables_and_json() {
    let server = Server::new("");
    let admin = format!("http://{}/", server.admin);
    let shown = tactus(&["status", &admin]);
    assert!(shown.status.success(), "{shown:?}");
    assert!(out(&shown).contains("ready") && out(&shown).contains("0 streams"), "{shown:?}");
    let shown = tactus(&["capacity", &admin, "--rate", "1M"]);
    assert!(out(&shown).contains("ends with") && out(&shown).contains("1 Mbit/s"), "{shown:?}");
    assert_eq!(tactus(&["capacity", &admin, "--rate", "900G"]).status.code(), Some(3));
    assert_eq!(tactus(&["capacity", &admin, "--rate", "fast"]).status.code(), Some(2));
    assert!(tactus(&["sessions", &admin]).status.success());
    for command in ["status", "capacity", "sessions"] {
        let json = tactus(&[command, &admin, "--json"]);
        let value: serde_json::Value = serde_json::from_str(&out(&json)).expect("JSON");
        assert!(value.is_object(), "{command}");
    }
    // A public address has no status, and the command names the admin address.
    let wrong = tactus(&["status", &format!("http://{}/", server.http)]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("admin address"), "{wrong:?}");
    assert_eq!(tactus(&["status", "http://127.0.0.1:1/"]).status.code(), Some(1));
}

#[test]
fn n06_recordings_are_listed_stopped_and_restarted_at_the_admin_address() {
    let port = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    let port = port.local_addr().expect("bound").port();
    let recording = format!(
        "[[recording]]\nname = \"studio\"\nfrom = \"udp://127.0.0.1:{port}\"\n\
         to = \"/studio-%n.ts\"\n"
    );
    let server = Server::with(
        &["--uploads"],
        &format!("[[volume]]\npath = \"media\"\nuploads = true\n{recording}"),
    );
    let admin = format!("http://{}/", server.admin);
    let file = server.dir.path().join("media/.tactus/upload-token");
    let token = file.to_str().expect("a plain name");
    let listed = tactus(&["recording", "list", &admin]);
    assert!(line(&out(&listed), "studio").is_some(), "{listed:?}");
    let json = tactus(&["recording", "list", &admin, "--json"]);
    let all: serde_json::Value = serde_json::from_str(&out(&json)).expect("JSON");
    assert_eq!(all[0]["name"], "studio");
    let refused = tactus(&["recording", "stop", &admin, "studio"]);
    assert_ne!(refused.status.code(), Some(0), "a change needs a token");
    let change = |verb| tactus(&["recording", verb, &admin, "studio", "--token-file", token]);
    for (verb, state) in [("stop", "stopped"), ("stop", "stopped"), ("start", "")] {
        let done = change(verb);
        assert!(done.status.success(), "{verb}: {done:?}");
        assert!(out(&done).starts_with("studio: ") && out(&done).contains(state), "{done:?}");
    }
    // A silent source is a warning (n08).
    let warned = server.wait_for(|server| {
        let health = &server.status()["health"];
        health["warnings"].to_string().contains("recording studio").then(|| health.to_string())
    });
    assert!(warned.contains("recording studio"), "{warned}");
}
