//! Disks that are missing at the start, mounted later, or replaced by others.

use std::fs;

use super::fixture::{Fixture, Server, is_there};

const SERVE: &str = "--config tactus.toml";
const MOUNT: &str = "mount -t tmpfs none media";

/// A volume on its own disk that has been served once. The disk and its contents end with the
/// server.
fn served_once(fixture: &Fixture) {
    fixture.configure_uploads("");
    let server = fixture.serve_after(MOUNT, SERVE);
    assert_eq!(server.put("/a.ts", b"title").0, 201);
    server.stop();
    assert!(!is_there(&fixture.path("media/.tactus")), "the disk ended with its mount");
}

#[test]
fn s13_an_empty_mount_point_accepts_no_uploads_by_any_method_until_it_is_adopted() {
    let fixture = Fixture::new();
    served_once(&fixture);
    fs::write(fixture.path("media/below.ts"), "below").unwrap();
    for (how, uploads) in
        [(SERVE, false), ("media --http 127.0.0.1:0 --admin 127.0.0.1:0 --uploads", true)]
    {
        let server = fixture.serve_after("true", how);
        let (status, text) = server.put("/a.ts", b"title");
        assert!(matches!(status, 401 | 405 | 503), "{status} {text}");
        assert_eq!(status == 503, !uploads, "{status} {text}");
        for (method, fields) in [
            ("DELETE", ""),
            ("MKCOL", ""),
            ("MOVE", "Destination: /b.ts\r\n"),
            ("COPY", "Destination: /b.ts\r\n"),
        ] {
            let (status, _) = server.change(method, "/below.ts", fields, b"");
            assert!(matches!(status, 401 | 405 | 503), "{method}: {status}");
        }
        let tus = "Tus-Resumable: 1.0.0\r\nUpload-Length: 1\r\nUpload-Metadata: path L2EudHM=\r\n";
        let (status, _) = server.change("POST", "/api/v1/uploads", tus, b"");
        assert!(matches!(status, 401 | 405 | 503), "{status}");
        assert_eq!(server.get("/below.ts"), (200, "below".into()), "its files are still served");
        let told = server.wait_until("the condition", |server| server.condition("uploads_refused"));
        assert!(told.contains("tactus adopt") && told.contains("missing"), "{told}");
        assert!(!server.status()["degraded"].as_array().unwrap().is_empty());
        if !uploads {
            // The advice for a server without principals would be wrong here.
            assert!(!server.log().contains("no principal may upload"), "{}", server.log());
            let lines: Vec<_> = server
                .log()
                .lines()
                .filter(|line| line.contains("ERROR"))
                .map(str::to_owned)
                .collect();
            assert_eq!(lines.len(), 1, "one clear line: {lines:?}");
        }
        server.stop();
        assert!(
            !is_there(&fixture.path("media/a.ts")) && !is_there(&fixture.path("media/.tactus"))
        );
    }
    let said = fixture.tactus(&["adopt", "media"]);
    assert!(said.status.success(), "{said:?}");
    let server = fixture.serve();
    assert_eq!(server.put("/a.ts", b"title").0, 201, "{}", server.log());
    server.stop();
}

#[test]
fn s13_a_recreated_directory_is_accepted_on_the_command_line_only() {
    let fixture = Fixture::new();
    let how = "media --http 127.0.0.1:0 --admin 127.0.0.1:0 --uploads";
    let put = |server: &Server| {
        let token = fs::read_to_string(fixture.path("media/.tactus/upload-token")).unwrap();
        let fields = format!("Authorization: Bearer {}\r\n", token.trim());
        server.ask("PUT", "/a.ts", &fields, b"title").0
    };
    for _ in 0..2 {
        let server = fixture.serve_after("true", how);
        assert_eq!(put(&server), 201, "{}", server.log());
        server.stop();
        fs::remove_dir_all(fixture.path("media")).unwrap();
        fs::create_dir(fixture.path("media")).unwrap();
    }
    fixture.configure_uploads("");
    let server = fixture.serve();
    assert_eq!(
        server.put("/a.ts", b"title").0,
        503,
        "a configured directory is the expected volume or is refused"
    );
    server.stop();
}

#[test]
fn s13_another_disk_in_place_of_the_expected_one_accepts_no_uploads() {
    let fixture = Fixture::new();
    served_once(&fixture);
    let other = format!(
        "{MOUNT}; mkdir media/.tactus; echo 00112233445566778899aabbccddeeff > media/.tactus/volume"
    );
    let server = fixture.serve_after(&other, SERVE);
    assert_eq!(server.put("/a.ts", b"title").0, 503);
    let told = server.wait_until("the condition", |server| server.condition("uploads_refused"));
    assert!(told.contains("another volume"), "{told}");
    server.stop();
}

#[test]
fn s13_n13_a_disk_that_is_mounted_later_is_served_without_a_restart() {
    let fixture = Fixture::new();
    fixture.configure("[[volume]]\npath = \"media\"\nmodel = \"model\"\n");
    fs::write(fixture.path("media/below.ts"), "below").unwrap();
    let server = fixture.serve_after("true", SERVE);
    assert_eq!(server.get("/below.ts").0, 200);
    server.shell(
        &format!("{MOUNT}; echo film > media/film.ts")
            .replace("media", &fixture.path("media").display().to_string()),
    );
    server.wait_until("the disk", |server| (server.get("/film.ts").0 == 200).then_some(()));
    assert_eq!(server.get("/film.ts").1, "film\n");
    assert_eq!(server.get("/below.ts").0, 404, "the mount hides it");
    let (_, page) = server.ask("GET", "/", "Accept: application/json\r\n", b"");
    assert!(page.contains("film.ts") && !page.contains("below.ts"), "{page}");
    server.stop();
}

#[test]
fn s13_nothing_is_stored_below_a_disk_that_is_mounted_over_the_volume() {
    let fixture = Fixture::new();
    fixture.configure_uploads("");
    let server = fixture.serve_after("true", SERVE);
    assert_eq!(server.put("/a.ts", b"title").0, 201, "no disk is expected");
    let media = fixture.path("media").display().to_string();
    server.shell(&format!("mount -t tmpfs none {media}"));
    let told = server.wait_until("the condition", |server| server.condition("uploads_refused"));
    assert!(told.contains("mounted over"), "{told}");
    assert_eq!(server.put("/b.ts", b"title").0, 503);
    assert!(server.condition("volume_missing").is_some());
    assert_eq!(server.get("/a.ts").0, 200, "the open volume is still served");
    server.stop();
}

#[test]
fn s13_the_expected_disk_mounted_late_is_served_and_its_uploads_need_a_restart() {
    let fixture = Fixture::new();
    fixture.configure_uploads("");
    // A disk that outlives the server: a directory that is bind-mounted.
    fs::create_dir(fixture.path("disk")).unwrap();
    let bind = "mount --bind disk media";
    let server = fixture.serve_after(bind, SERVE);
    assert_eq!(server.put("/a.ts", b"title").0, 201);
    server.stop();
    let server = fixture.serve_after("true", SERVE);
    assert_eq!((server.get("/a.ts").0, server.put("/b.ts", b"b").0), (404, 503));
    let (disk, media) = (fixture.path("disk"), fixture.path("media"));
    server.shell(&format!("mount --bind {} {}", disk.display(), media.display()));
    server.wait_until("the disk", |server| (server.get("/a.ts").0 == 200).then_some(()));
    let told = server.wait_until("the word", |server| {
        server.condition("uploads_refused").filter(|told| told.contains("restart"))
    });
    assert!(!told.contains("adopt"), "{told}");
    server.stop();
    let server = fixture.serve_after(bind, SERVE);
    assert_eq!(server.put("/b.ts", b"b").0, 201);
    assert_eq!(server.condition("uploads_refused"), None);
    server.stop();
}
