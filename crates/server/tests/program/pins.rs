//! Titles that are kept in memory: by the configuration, by command and by request.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;
use tactus_testkit::process::{exchange, turn};
use tactus_testkit::{DISK_MODEL, server};

use crate::TACTUS;

/// Longer than anything takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);
const TOKEN: &str = "an-insecure-token-of-32-characters";
const MIB: usize = 1 << 20;

#[test]
fn titles_are_kept_in_memory_by_configuration_command_and_request() {
    let _turn = turn();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    let titles = dir.path().join("titles");
    for (name, len) in [("news/a b.ts", 3), ("news/c.ts", 2), ("film.ts", 5), ("long.ts", 60)] {
        let file = titles.join(name);
        fs::create_dir_all(file.parent().expect("a directory")).expect("a directory");
        fs::write(file, vec![7; len * MIB]).expect("a title");
    }
    fs::create_dir_all(titles.join(".tactus")).expect("a directory");
    fs::write(titles.join(".tactus/disk-model.toml"), DISK_MODEL).expect("a model");
    let token = dir.path().join("token");
    fs::write(&token, TOKEN).expect("a token");
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).expect("a file of ours");
    let config = dir.path().join("tactus.toml");
    let text = "[memory]\narena = \"64 MiB\"\npinned = [\"/film.ts\"]\n\
                [[upload.principal]]\nname = \"ann\"\ntoken_file = \"token\"\n";
    fs::write(&config, text).expect("a configuration");
    let mut command = server::serve(TACTUS, dir.path());
    command.args(["--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--uploads", "--config"]);
    command.args([config, titles.clone()]);
    let (_process, said) = server::start(&mut command, None, server::until("Metrics"), drop);
    let [http, admin] = ["Serving", "Metrics"]
        .map(|first| server::address(&said, first, "http://").expect("an address").to_owned());
    let url = format!("http://{http}/");
    let pin = |words: &[&str]| -> Output {
        let (what, path) = words.split_first().expect("an action");
        let mut command = Command::new(TACTUS);
        command.args(["pin", what, &url]).args(path).arg("--token-file").arg(&token);
        command.output().expect("it starts")
    };
    let all = || -> Value {
        let output = pin(&["list", "--json"]);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
    };
    let in_memory = |path: &str, titles: u64| {
        let until = Instant::now() + PATIENCE;
        loop {
            let all = all();
            let one = all.as_array().into_iter().flatten().find(|one| one["path"] == path);
            if one.is_some_and(|one| one["titles_in_memory"] == titles) {
                return one.cloned().expect("it is there");
            }
            assert!(Instant::now() < until, "{all}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };

    assert_eq!(in_memory("film.ts", 1)["is_configured"], true);
    assert!(pin(&["add", "news/"]).status.success());
    let news = in_memory("news", 2);
    assert_eq!((&news["titles"], &news["bytes"]), (&2.into(), &(5 * MIB).into()));

    // Three quarters of the arena are 48 MiB.
    let refused = pin(&["add", "/long.ts"]);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && text.contains("does not fit"), "{refused:?}");
    assert_eq!(pin(&["add", "none.ts"]).status.code(), Some(1));
    assert_eq!(all().as_array().map(Vec::len), Some(2));

    let ask = |method: &str, path: &str, authorization: &str| {
        let head = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n");
        exchange(&http, format!("{head}{authorization}Content-Length: 0\r\n\r\n").as_bytes())
    };
    let known = format!("Authorization: Bearer {TOKEN}\r\n");
    assert!(ask("PUT", "/api/v1/pins/news/c.ts", "").starts_with("HTTP/1.1 401 "));
    assert!(ask("GET", "/api/v1/pins", "").starts_with("HTTP/1.1 401 "));
    let one = ask("PUT", "/api/v1/pins/news/a%20b.ts", &known);
    assert!(one.starts_with("HTTP/1.1 200 ") && one.contains("\"path\":\"news/a b.ts\""), "{one}");
    let open =
        "GET /api/v1/pins/news/a%20b.ts HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let one = exchange(&admin, open.as_bytes());
    assert!(one.starts_with("HTTP/1.1 200 "), "{one}");

    // A title of two pins stays until both are gone.
    assert!(pin(&["remove", "news"]).status.success());
    assert_eq!(in_memory("news/a b.ts", 1)["titles"], 1);
    assert!(ask("DELETE", "/api/v1/pins/news/a%20b.ts", &known).starts_with("HTTP/1.1 204 "));
    assert_eq!(pin(&["remove", "news/a b.ts"]).status.code(), Some(1));

    // A new version of a pinned title is read as well.
    fs::write(titles.join("new"), vec![8; 6 * MIB]).expect("a title");
    fs::rename(titles.join("new"), titles.join("film.ts")).expect("a new version");
    let until = Instant::now() + PATIENCE;
    while in_memory("film.ts", 1)["bytes"] != 6 * MIB {
        assert!(Instant::now() < until, "{}", all());
        std::thread::sleep(Duration::from_millis(200));
    }
    let film =
        exchange(&http, b"GET /film.ts?rate=max HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert!(film.ends_with(&"\u{8}".repeat(1000)) && film.len() > 6 * MIB);
}
