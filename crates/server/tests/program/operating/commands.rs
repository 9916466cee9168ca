//! The commands for operators.

use std::process::{Command, Output};

use super::test_server::{Server, line};
use crate::TACTUS;

fn tactus(args: &[&str]) -> Output {
    let mut command = Command::new(TACTUS);
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

/// What a command says with `--json`, and its exit code.
fn json(args: &[&str]) -> (serde_json::Value, Option<i32>) {
    let said = tactus(&[args, &["--json"]].concat());
    let value = serde_json::from_slice(&said.stdout);
    (value.unwrap_or_else(|error| panic!("{args:?}: {error}: {said:?}")), said.status.code())
}

#[test]
fn n06_reload_answers_in_json_and_its_exit_code_says_whether_all_was_done() {
    let volume = "[[volume]]\npath = \"media\"\nuploads = true\n";
    let server = Server::with(&["--uploads"], volume);
    let address = format!("http://{}/", server.http);
    let token = server.dir.path().join("media/.tactus/upload-token");
    let token = token.to_str().expect("a plain name");
    let reload = ["reload", &address, "--token-file", token];
    let (same, code) = json(&reload);
    let none = serde_json::json!([]);
    assert_eq!((&same["changed"], &same["failed"], code), (&none, &none, Some(0)), "{same}");
    let file = server.dir.path().join("tactus.toml");
    let before = std::fs::read_to_string(&file).expect("the configuration");
    // Another size of the arena needs a restart, and is named.
    std::fs::write(&file, before.replace("64 MiB", "65 MiB")).expect("another one");
    let (said, code) = json(&reload);
    assert!(said["needs_restart"].to_string().contains("arena"), "{said}");
    assert_eq!(code, Some(0));
    // A mistake changes nothing: a failure for people, and none of it on the output.
    std::fs::write(&file, before + "nonsense = 1\n").expect("another one");
    let wrong = tactus(&[&reload[..], &["--json"]].concat());
    assert_eq!((wrong.status.code(), &*out(&wrong)), (Some(1), ""), "{wrong:?}");
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("nonsense"), "{wrong:?}");
    assert_eq!(tactus(&["reload", "--json"]).status.code(), Some(2), "without a server");
}

#[test]
fn n06_verify_answers_in_json_and_fails_when_something_is_damaged() {
    let server = Server::with(&["--uploads"], "");
    let media = server.dir.path().join("media");
    let token = std::fs::read_to_string(media.join(".tactus/upload-token")).expect("it is there");
    let body = "film".repeat(50_000);
    let put = format!(
        "PUT /new.ts HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {}\r\n\
         Content-Length: {}\r\n\r\n{body}",
        token.trim(),
        body.len()
    );
    assert_eq!(super::test_server::ask(&server.http, &put).status, 201);
    let directory = media.to_str().expect("a plain name");
    let (said, code) = json(&["verify", directory]);
    assert_eq!((&said["whole"], &said["whole_bytes"]), (&1.into(), &body.len().into()), "{said}");
    assert_eq!((&said["damaged_or_unreadable"], code), (&0.into(), Some(0)), "{said}");
    let title = media.join("new.ts");
    let file = std::fs::File::options().write(true).open(&title).expect("there");
    std::os::unix::fs::FileExt::write_all_at(&file, b"X", 100_000).expect("another byte");
    let (said, code) = json(&["verify", directory]);
    assert_eq!((&said["damaged_or_unreadable"], code), (&1.into(), Some(1)), "{said}");
    assert!(
        said["wrong"][0]["path"].as_str().is_some_and(|path| path.ends_with("/new.ts")),
        "{said}"
    );
    assert!(
        said["wrong"][0]["error"].as_str().is_some_and(|why| why.contains("damaged")),
        "{said}"
    );
    assert_eq!(tactus(&["verify", "--json", "/nowhere/at/all"]).status.code(), Some(2));
}

#[test]
fn n06_measure_answers_in_json_alone_and_writes_what_it_says() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    let volume = dir.path().to_str().expect("a plain name");
    let (said, code) = json(&["measure", "--fast", "--scratch", "64 MiB", volume]);
    assert_eq!(code, Some(0));
    assert!(said["services"].as_array().is_some_and(|all| !all.is_empty()), "{said}");
    assert!(said["model"]["visit_nanoseconds"].is_u64(), "{said}");
    let model = dir.path().join(".tactus/disk-model.toml");
    assert!(std::fs::read_to_string(model).expect("it is written").contains("[model]"));
    let wrong = tactus(&["measure", "--json", "/nowhere/at/all"]);
    assert_eq!((wrong.status.code(), &*out(&wrong)), (Some(2), ""), "{wrong:?}");
}

#[test]
fn n06_recordings_are_listed_stopped_and_restarted_at_the_admin_address() {
    // Closed again: the recording opens it.
    let port = std::net::UdpSocket::bind("127.0.0.1:0").and_then(|free| free.local_addr());
    let port = port.expect("a port").port();
    let recording = format!(
        "[[recording]]\nname = \"studio\"\nfrom = \"udp://127.0.0.1:{port}\"\n\
         to = \"/studio-%n.ts\"\n\
         silence = \"1 s\"\n"
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
    assert!(warned.contains("recording studio: nothing has come"), "{warned}");
}
