//! `--check-config` opens what `serve` opens, and reports errors with exit code 2, file, line and
//! key.

use std::fs;
use std::process::Command;

use super::fixture::Fixture;
use crate::TACTUS;

const VOLUME: &str = "[[volume]]\npath = \"media\"\nmodel = \"model\"\n";
const UPLOADS: &str = "[[volume]]\npath = \"media\"\nmodel = \"model\"\nuploads = true\n";

/// Both the check and the start end with exit code 2 and a line that contains all of `said`.
fn refused(fixture: &Fixture, more: &str, said: &[&str]) {
    fixture.configure(more);
    let (code, error) = fixture.checked();
    assert_eq!(code, Some(2), "{more}: {error}");
    for part in said {
        assert!(error.contains(part), "{part:?} is not in {error:?}");
    }
    let line = said[0];
    let text = fs::read_to_string(fixture.path("tactus.toml")).unwrap();
    let at = text.lines().position(|written| written.trim_start().starts_with(line));
    let at = at.unwrap_or_else(|| panic!("no line {line}"));
    assert!(error.starts_with(&format!("tactus: tactus.toml:{}:", at + 1)), "{error}");
    let started = fixture.tactus(&["serve", "--config", "tactus.toml"]);
    assert_eq!(started.status.code(), Some(2), "{more}");
    assert_eq!(String::from_utf8_lossy(&started.stderr), error);
}

#[test]
fn s07_the_check_finds_what_serve_cannot_open_with_its_place() {
    let fixture = Fixture::new();
    fixture.configure(VOLUME);
    assert_eq!(fixture.checked(), (Some(0), String::new()));
    let principal = |key: &str| {
        format!("{UPLOADS}[[upload.principal]]\nname = \"a\"\ntoken_file = \"{key}\"\n")
    };
    let player = |key: &str| {
        format!("{VOLUME}[[rtsp.principal]]\nname = \"a\"\npassword_file = \"{key}\"\n")
    };
    fixture.secret("short", "too-short\n", 0o600);
    fixture.secret("pass", "short\n", 0o600);
    fixture.secret("words", "two words are no token\n", 0o600);
    fs::write(fixture.path("bad-model"), "version = 9\n").unwrap();
    fs::create_dir(fixture.path("directory")).unwrap();
    for (more, said) in [
        (principal("missing"), &["token_file", "cannot read", "missing"][..]),
        (principal("short"), &["token_file", "16 or more", "short"]),
        (principal("words"), &["token_file", "without spaces"]),
        (principal("directory"), &["token_file", "is a directory"]),
        (player("missing"), &["password_file", "cannot read", "missing"]),
        (player("pass"), &["password_file", "8 or more"]),
        (
            "[[volume]]\npath = \"media\"\nmodel = \"bad-model\"\n".into(),
            &["model", "tactus measure"],
        ),
        (
            "[[volume]]\npath = \"media\"\nmodel = \"no-model\"\n".into(),
            &["model", "does not exist"],
        ),
        ("[[volume]]\npath = \"media\"\nmodel = \"directory\"\n".into(), &["model", "cannot read"]),
        (format!("{VOLUME}[[class]]\nname = \"a\"\nguaranteed = \"90 Gbit/s\"\n"), &["[[class]]"]),
    ] {
        refused(&fixture, &more, said);
    }
    // Two principals: each error has its own place.
    let two = format!(
        "{UPLOADS}[[upload.principal]]\nname = \"a\"\ntoken_file = \"token\"\n\
         [[upload.principal]]\nname = \"b\"\n  token_file = \"missing\"\n"
    );
    fixture.configure(&two);
    let (code, error) = fixture.checked();
    assert!(code == Some(2) && error.contains("   ^") && error.contains("missing"), "{error}");
}

#[test]
fn s07_missing_memory_is_reported_with_its_key() {
    let fixture = Fixture::new();
    let text = "[[volume]]\npath = \"media\"\nmodel = \"model\"\n[memory]\narena = \"900 GiB\"\n";
    let written = format!("[http]\naddress = \"127.0.0.1:0\"\n{text}");
    fs::write(fixture.path("tactus.toml"), written).unwrap();
    let (code, error) = fixture.checked();
    assert_eq!(code, Some(2), "{error}");
    assert!(error.starts_with("tactus: tactus.toml:7:9: arena = \"900 GiB\""), "{error}");
    let started = fixture.tactus(&["serve", "--config", "tactus.toml"]);
    assert_eq!(started.status.code(), Some(2));
}

#[test]
fn s07_foreign_addresses_and_privileged_ports_are_refused_and_used_ones_are_not() {
    let fixture = Fixture::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let check = |address: &str| {
        let text = format!("[http]\naddress = \"{address}\"\n{VOLUME}");
        fs::write(fixture.path("tactus.toml"), text).unwrap();
        fixture.checked()
    };
    let (code, error) = check("192.0.2.7:8080");
    assert_eq!(code, Some(2), "{error}");
    assert!(
        error.starts_with("tactus: tactus.toml:2:") && error.contains("no such address"),
        "{error}"
    );
    let (code, error) = check(&taken.local_addr().unwrap().to_string());
    assert_eq!(code, Some(0), "a running server uses it: {error}");
}

#[test]
fn s07_overlapping_addresses_and_those_of_proxies_are_reported() {
    let fixture = Fixture::new();
    let said = |text: &str| {
        fs::write(fixture.path("tactus.toml"), format!("{text}\n{VOLUME}")).unwrap();
        fixture.checked()
    };
    let proxied = "trusted_proxies = [\"10.0.0.1\"]\nproxy_protocol";
    for text in [
        "[http]\naddress = \"8080\"\n[admin]\naddress = \"8080\"",
        "[http]\naddress = [\"127.0.0.1:8080\", \"127.0.0.1:8080\"]",
        "[http]\naddress = \":8080\"\n[rtsp]\naddress = \"127.0.0.1:8080\"",
        "[http]\naddress = \"127.0.0.1:8080\"\n[rtsp]\naddress = \"0.0.0.0:8080\"",
        "[http]\naddress = \"[::1]:8080\"\n[rtsp]\naddress = \":8080\"",
        &format!("[http]\naddress = \"8080\"\n{proxied} = \"8080\""),
    ] {
        let (code, error) = said(text);
        assert_eq!(code, Some(2), "{text}: {error}");
        assert!(error.starts_with("tactus: tactus.toml:") && error.contains(":8080"), "{error}");
        assert!(error.contains("only one can listen there"), "{text}: {error}");
    }
    let (code, error) = said(&format!("[http]\n{proxied} = \"192.0.2.7:8081\""));
    assert!(code == Some(2) && error.contains("no such address"), "{error}");
    assert!(error.starts_with("tactus: tactus.toml:3:"), "{error}");
    for text in [
        "[http]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"",
        "[http]\naddress = [\"127.0.0.1:8080\", \"[::1]:8080\"]\n[rtsp]\naddress = \
         \"127.0.0.2:8080\"",
        "[http]\naddress = \"[::1]:8080\"\n[rtsp]\naddress = \"0.0.0.0:8080\"",
    ] {
        assert_eq!(said(text), (Some(0), String::new()), "{text}");
    }
}

#[test]
fn s09_no_volume_or_recording_uses_the_server_s_own_paths() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.path("more")).unwrap();
    for path in ["/metrics", "/healthz", "/readyz", "/api", "/api/v1", "/api/v1/films"] {
        let mounted = format!("{VOLUME}[[volume]]\npath = \"more\"\nmount = \"{path}/\"\n");
        refused(&fixture, &mounted, &["mount", "choose another name"]);
        let recorded = format!(
            "{UPLOADS}[[recording]]\nname = \"a\"\nfrom = \"udp://127.0.0.1:45998\"\nto = \
             \"{path}\"\n"
        );
        refused(&fixture, &recorded, &["to = ", "choose another name"]);
    }
    for path in ["/api/v2", "/metric", "/films/metrics", "/API/v1"] {
        fixture.configure(&format!(
            "{VOLUME}[[volume]]\npath = \"more\"\nmodel = \"model\"\nmount = \"{path}\"\n"
        ));
        assert_eq!(fixture.checked(), (Some(0), String::new()), "{path}");
    }
}

#[test]
fn s14_two_principals_have_two_tokens() {
    use sha2::Digest;
    let fixture = Fixture::new();
    fixture.secret("copy", &format!("{}\n", super::fixture::TOKEN), 0o600);
    let principal = |name: &str, token: &str| {
        format!("[[upload.principal]]\nname = \"{name}\"\n{token}\nrights = [\"publish\"]\n")
    };
    let digest = data_encoding::HEXLOWER.encode(&sha2::Sha256::digest(super::fixture::TOKEN));
    let (file, copy) = ("token_file = \"token\"", "token_file = \"copy\"");
    let digest = format!("token_sha256 = \"{digest}\"");
    for (one, other) in [(file, file), (file, copy), (copy, &*digest), (&*digest, file)] {
        let more = format!("{UPLOADS}{}{}", principal("ann", one), principal("bob", other));
        fixture.configure(&more);
        let (code, error) = fixture.checked();
        assert_eq!(code, Some(2), "{error}");
        assert!(error.contains("\"bob\" and \"ann\" have the same token"), "{error}");
        let text = fs::read_to_string(fixture.path("tactus.toml")).unwrap();
        let last = text.lines().count() - 1;
        assert!(error.starts_with(&format!("tactus: tactus.toml:{last}:")), "{error}");
        assert_eq!(fixture.tactus(&["serve", "--config", "tactus.toml"]).status.code(), Some(2));
    }
}

#[test]
fn s07_an_access_log_that_cannot_be_written_is_found_by_the_check() {
    let fixture = Fixture::new();
    fixture.give("media");
    rustix::fs::mkfifoat(rustix::fs::CWD, fixture.path("pipe"), rustix::fs::Mode::RWXU).unwrap();
    let key = "access_to";
    refused(&fixture, &format!("{VOLUME}[log]\n{key} = \"pipe\"\n"), &[key, "nobody reads"]);
    fixture.configure(&format!("{VOLUME}[log]\n{key} = \"new.log\"\n"));
    let (code, error) = fixture.checked();
    assert_eq!(code, Some(0), "{error}");
    assert!(!fixture.path("new.log").exists(), "a check makes nothing");
}

#[test]
fn n07_a_privileged_port_is_refused_with_the_capability_that_it_needs() {
    let fixture = Fixture::new();
    fixture.give("media");
    let text = format!("[http]\naddress = \"0.0.0.0:80\"\n[admin]\naddress = \"off\"\n{VOLUME}");
    fs::write(fixture.path("tactus.toml"), text).unwrap();
    // In its own network namespace, where no setting of the host counts.
    let said = Command::new("unshare")
        .args(["--net", "setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .args([TACTUS, "serve", "--config", "tactus.toml"])
        .current_dir(fixture.path(""))
        .env("XDG_STATE_HOME", fixture.path("state"))
        .env_remove("STATE_DIRECTORY")
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&said.stderr);
    assert_eq!(said.status.code(), Some(1), "{error}");
    assert!(error.contains("0.0.0.0:80") && error.contains("CAP_NET_BIND_SERVICE"), "{error}");
    assert!(!error.contains("another server"), "{error}");
}

#[test]
fn s08_secrets_that_others_can_use_are_refused_by_check_start_and_clients() {
    let fixture = Fixture::new();
    let uploads = format!("{UPLOADS}[[upload.principal]]\nname = \"a\"\ntoken_file = \"token\"\n");
    let players = format!("{VOLUME}[[rtsp.principal]]\nname = \"a\"\npassword_file = \"token\"\n");
    for mode in [0o666, 0o644, 0o640, 0o602] {
        fixture.secret("token", super::fixture::TOKEN, mode);
        let said = format!("has mode {mode:04o}");
        refused(&fixture, &uploads, &["token_file", &said, "chmod 600"]);
        refused(&fixture, &players, &["password_file", &said, "chmod 600"]);
        let token = ["rm", "http://127.0.0.1:9/a", "--token-file", "token"];
        let client = fixture.tactus(&token);
        assert_eq!(client.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&client.stderr).contains(&said));
    }
    fixture.secret("token", super::fixture::TOKEN, 0o600);
    fixture.give("token");
    refused(&fixture, &uploads, &["token_file", "belongs to user 65534", "chown 0"]);
    // The token that --uploads creates is private, and stays so.
    fs::create_dir_all(fixture.path("media/.tactus")).unwrap();
    fixture.secret("media/.tactus/upload-token", super::fixture::TOKEN, 0o644);
    let said = fixture.tactus(&["serve", "media", "--uploads", "--check-config"]);
    assert_eq!(said.status.code(), Some(2), "{}", String::from_utf8_lossy(&said.stderr));
}

#[test]
fn s06_volumes_inside_each_other_are_refused_through_links_and_bind_mounts() {
    let fixture = Fixture::new();
    for name in ["media/films", "other", "bound"] {
        fs::create_dir_all(fixture.path(name)).unwrap();
    }
    std::os::unix::fs::symlink(fixture.path("media/films"), fixture.path("link")).unwrap();
    let two = |first: (&str, bool), second: (&str, bool)| {
        let one = |(path, uploads): (&str, bool), mount: &str| {
            format!(
                "[[volume]]\n  path = \"{path}\"\nmount = \"/{mount}/\"\nmodel = \"model\"\n\
                 uploads = {uploads}\n"
            )
        };
        format!("{}{}", one(first, "a"), one(second, "b"))
    };
    for inner in ["media/films", "link", "media"] {
        fixture.configure(&two(("media", true), (inner, true)));
        let (code, error) = fixture.checked();
        assert_eq!(code, Some(2), "{inner}: {error}");
        assert!(
            error.contains("lies inside the volume") && error.contains("tactus.toml:"),
            "{error}"
        );
        assert!(error.contains(&format!("path = \"{inner}\"")), "{error}");
    }
    for (first, second) in
        [(("media", true), ("media/films", false)), (("media", true), ("other", true))]
    {
        fixture.configure(&two(first, second));
        assert_eq!(fixture.checked(), (Some(0), String::new()));
    }
    let within = |mounting: &str| {
        let program = TACTUS;
        let script = format!("{mounting} && {program} serve --config tactus.toml --check-config");
        let said = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", &script])
            .current_dir(fixture.path(""))
            .env("XDG_STATE_HOME", fixture.path("state"))
            .env_remove("STATE_DIRECTORY")
            .output()
            .unwrap();
        (said.status.code(), String::from_utf8_lossy(&said.stderr).into_owned())
    };
    fixture.configure(&two(("media", true), ("bound", true)));
    let (code, error) = within("mount --bind media/films bound");
    assert!(code == Some(2) && error.contains("lies inside"), "{error}");
    // A disk that is mounted there is another location.
    fixture.configure(&two(("media", true), ("media/films", true)));
    let (code, error) = within("mount -t tmpfs none media/films");
    assert_eq!(code, Some(0), "{error}");
}

#[test]
fn s14_a_manager_needs_no_volume_that_takes_uploads() {
    let fixture = Fixture::new();
    let config = |rights: &str| {
        format!("{VOLUME}[[upload.principal]]\nname = \"a\"\ntoken_file = \"token\"\n{rights}")
    };
    fixture.configure(&config("rights = [\"channels\", \"manage\"]\n"));
    assert_eq!(fixture.checked(), (Some(0), String::new()));
    let server = fixture.serve();
    let channel = br#"{"title": "/a.ts", "to": "udp://127.0.0.1:5000"}"#;
    assert_eq!(server.change("PUT", "/api/v1/channels/lobby", "", channel).0, 201);
    assert_eq!(server.change("DELETE", "/api/v1/channels/lobby", "", b"").0, 204);
    assert_eq!(server.change("POST", "/api/v1/reload", "", b"").0, 200);
    assert_eq!(server.put("/a.ts", b"a").0, 403, "no right, and no writable volume");
    assert_eq!(server.ask("PUT", "/api/v1/channels/lobby", "", channel).0, 401);
    server.stop();
    for rights in ["", "rights = [\"publish\"]\n", "rights = [\"manage\", \"delete\"]\n"] {
        fixture.configure(&config(rights));
        let (code, error) = fixture.checked();
        assert!(code == Some(2) && error.contains("no volume accepts uploads"), "{error}");
    }
    fixture.configure(&config("rights = [\"fly\"]\n"));
    assert_eq!(fixture.checked().0, Some(2), "the right does not exist");
}
