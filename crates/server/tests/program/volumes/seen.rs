//! Files of a volume that cannot be served are reported: by the answer, by one log line, by the
//! status.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::fixture::Fixture;
use crate::TACTUS;

const VOLUME: &str = "[[volume]]\npath = \"media\"\nmodel = \"model\"\n";

#[test]
fn n07_an_unreadable_file_gets_403_and_one_warning_until_it_is_readable() {
    let fixture = Fixture::new();
    fixture.configure(VOLUME);
    fixture.give("media");
    fs::create_dir(fixture.path("media/dir")).unwrap();
    for name in ["private.ts", "dir/inside.ts"] {
        fs::write(fixture.path("media").join(name), "secret").unwrap();
    }
    let set = |name: &str, mode| {
        fs::set_permissions(fixture.path("media").join(name), fs::Permissions::from_mode(mode))
            .unwrap();
    };
    set("private.ts", 0o600);
    set("dir", 0o700);
    let server = fixture.serve_as_nobody();
    for _ in 0..3 {
        for path in ["/private.ts", "/dir/inside.ts", "/dir/", "/dir/missing.ts"] {
            let (status, text) = server.get(path);
            assert_eq!(status, 403, "{path}: {text}");
        }
    }
    assert_eq!(server.get("/missing.ts").0, 404);
    let log = server.log();
    let warned = log.lines().filter(|line| line.contains("WARN") && line.contains("/private.ts"));
    let single = warned.filter(|line| line.contains("subject=\"/private.ts\"")).count();
    assert_eq!(single, 1, "{log}");
    let told = server.wait_until("the survey", |server| {
        server.condition("unreadable").filter(|told| told.contains("without read permission: "))
    });
    assert!(told.contains("private.ts") || told.contains("dir"), "{told}");
    set("private.ts", 0o644);
    assert_eq!(server.get("/private.ts").0, 200);
    server.wait_until("the end", |server| {
        let all = server.status()["conditions"].to_string();
        (!all.contains("\"subject\":\"/private.ts\"")).then_some(())
    });
    server.stop();
}

#[test]
fn n07_an_unreadable_volume_is_reported_with_its_path() {
    let fixture = Fixture::new();
    fixture.configure(VOLUME);
    fs::set_permissions(fixture.path("media"), fs::Permissions::from_mode(0o700)).unwrap();
    let said = std::process::Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .args([TACTUS, "serve", "--config", "tactus.toml"])
        .current_dir(fixture.path(""))
        .env("XDG_STATE_HOME", fixture.path("state"))
        .env_remove("STATE_DIRECTORY")
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&said.stderr);
    assert_eq!(said.status.code(), Some(2), "{error}");
    assert!(error.contains("cannot read the volume") && error.contains("tactus.toml:"), "{error}");
}

#[test]
fn n08_n13_empty_titles_and_links_are_in_log_and_status() {
    let fixture = Fixture::new();
    fixture.configure(VOLUME);
    fs::write(fixture.path("media/empty.ts"), "").unwrap();
    fs::write(fixture.path("media/good.ts"), "good").unwrap();
    std::os::unix::fs::symlink("good.ts", fixture.path("media/link.ts")).unwrap();
    let server = fixture.serve();
    let empty = server.wait_until("it", |server| server.condition("empty"));
    assert!(empty.contains("/empty.ts") && empty.contains("bytes"), "{empty}");
    let links = server.wait_until("it", |server| server.condition("left_out"));
    assert!(
        links.contains("symbolic links are not followed: 1 (") && links.contains("/link.ts"),
        "{links}"
    );
    let degraded = server.status()["degraded"].to_string();
    assert!(degraded.contains("bytes") && !degraded.contains("symbolic"), "{degraded}");
    let told = |what: &str| server.log().lines().filter(|line| line.contains(what)).count();
    assert_eq!((told("symbolic links"), told("empty.ts")), (1, 1), "once: {}", server.log());
    // A title that becomes empty is reported at its next request, until it is stored again.
    fs::write(fixture.path("media/good.ts"), "").unwrap();
    assert_eq!(server.get("/good.ts").0, 200);
    let all = || server.status()["conditions"].to_string();
    assert!(all().contains("\"subject\":\"/good.ts\""), "{}", all());
    fs::write(fixture.path("media/good.ts"), "good").unwrap();
    server.wait_until("it", |_| (!all().contains("\"subject\":\"/good.ts\"")).then_some(()));
    server.stop();
}
