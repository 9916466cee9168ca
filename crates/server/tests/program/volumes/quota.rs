//! Quotas are exact, or uploads are refused, whatever the volume contains and whatever happens to
//! it.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use rustix::fs::{Mode, OFlags};

use super::fixture::Fixture;

const QUOTA: &str = "quota = \"100 kB\"\n";

fn body(len: usize) -> Vec<u8> {
    vec![7; len]
}

/// Bytes that the principal has stored by the server's count, once it is complete.
fn stored(server: &super::fixture::Server) -> u64 {
    let (status, told) = server.change("GET", "/api/v1/uploads", "", b"");
    assert_eq!(status, 200, "{told}");
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    told["volumes"][0]["stored_bytes"].as_u64().unwrap()
}

#[test]
fn s02_an_unreadable_directory_does_not_lift_the_quota() {
    let fixture = Fixture::new();
    fixture.configure_uploads(QUOTA);
    for name in ["media", "token"] {
        fixture.give(name);
    }
    let server = fixture.serve_as_nobody();
    assert_eq!(server.put("/open/a.ts", &body(60_000)).0, 201, "{}", server.log());
    server.stop();
    // The directory of fsck, which is in every file system: no title was stored there.
    fs::create_dir(fixture.path("media/lost+found")).unwrap();
    let private = fs::Permissions::from_mode(0o700);
    fs::set_permissions(fixture.path("media/lost+found"), private.clone()).unwrap();
    let server = fixture.serve_as_nobody();
    assert_eq!(server.put("/b.ts", &body(60_000)).0, 413, "the count is exact");
    assert_eq!((server.put("/b.ts", &body(30_000)).0, stored(&server)), (201, 90_000));
    server.stop();
    // Another unreadable directory may contain anything: uploads with a quota are refused until it
    // can be read.
    let hidden = fixture.path("media/open/hidden");
    fs::create_dir(&hidden).unwrap();
    fs::set_permissions(&hidden, private.clone()).unwrap();
    let server = fixture.serve_as_nobody();
    let (status, text) = server.put("/c.ts", &body(10));
    assert_eq!(status, 503, "{text}");
    assert!(text.contains("/open/hidden") && text.contains("quota"), "{text}");
    let told = server.wait_until("the condition", |server| server.condition("quota_unknown"));
    assert!(told.contains("/open/hidden"), "{told}");
    assert_eq!(server.change("DELETE", "/b.ts", "", b"").0, 204, "deleting is still allowed");
    server.stop();
    fixture.give("media/open/hidden");
    let server = fixture.serve_as_nobody();
    assert_eq!((server.put("/c.ts", &body(10)).0, stored(&server)), (201, 60_010));
    server.stop();
    // An unreadable title has a known length and an unknown owner.
    fs::write(fixture.path("media/private.ts"), body(35_000)).unwrap();
    fs::set_permissions(fixture.path("media/private.ts"), fs::Permissions::from_mode(0o600))
        .unwrap();
    let server = fixture.serve_as_nobody();
    assert_eq!(
        server.put("/d.ts", &body(10_000)).0,
        413,
        "the unreadable title may be this principal's"
    );
    assert_eq!(server.put("/d.ts", &body(1_000)).0, 201, "there is room for any owner");
    server.stop();
}

#[test]
fn s02_without_quotas_unreadable_places_refuse_no_upload() {
    let fixture = Fixture::new();
    fixture.configure_uploads("");
    for name in ["media", "token"] {
        fixture.give(name);
    }
    fs::create_dir(fixture.path("media/hidden")).unwrap();
    fs::set_permissions(fixture.path("media/hidden"), fs::Permissions::from_mode(0o700)).unwrap();
    let server = fixture.serve_as_nobody();
    assert_eq!(server.put("/a.ts", &body(10)).0, 201);
    assert_eq!(server.condition("quota_unknown"), None);
    server.stop();
}

#[test]
fn s02_no_method_creates_too_long_a_path_and_the_quota_holds_after_a_restart() {
    let fixture = Fixture::new();
    fixture.configure_uploads(QUOTA);
    let server = fixture.serve();
    // Names of 200 letters: 19 of them are a path of 3,800 bytes.
    let deep = |first: &str, count: usize| {
        let mut path = format!("/{first}");
        (1..count).for_each(|_| path.push_str(&format!("/{}", "d".repeat(200))));
        path
    };
    for first in ["a", "b", "c"] {
        let path = format!("{}/title.ts", deep(first, 19));
        assert_eq!(server.put(&path, &body(20_000)).0, 201);
    }
    let (inner, outer) = (deep("b", 2), deep("a", 19));
    for (from, to) in [
        ("/b/".to_owned(), format!("{outer}/b/")),
        (format!("{inner}/"), format!("{outer}/{}/", "e".repeat(200))),
    ] {
        let fields = format!("Destination: {to}\r\nOverwrite: T\r\n");
        let (status, text) = server.change("MOVE", &from, &fields, b"");
        assert_eq!(status, 400, "{text}");
    }
    let too_deep = format!("{}/{}", deep("a", 21), "x".repeat(100));
    for (method, path, fields) in [
        ("PUT", too_deep.clone(), String::new()),
        ("MKCOL", format!("{too_deep}/"), String::new()),
        ("COPY", format!("{outer}/title.ts"), format!("Destination: {too_deep}\r\n")),
        ("MOVE", format!("{outer}/title.ts"), format!("Destination: {too_deep}\r\n")),
    ] {
        let (status, text) = server.change(method, &path, &fields, b"");
        assert!(matches!(status, 400 | 414), "{method}: {status} {text}");
    }
    // A move that makes no path too long succeeds.
    let shorter = server.change("MOVE", "/b/", "Destination: /longer-name/\r\n", b"");
    assert_eq!(shorter.0, 201, "{}", shorter.1);
    server.stop();
    // Other programs may create longer paths: their files count at any depth.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut below = rustix::fs::open(fixture.path("media/c"), flags, Mode::empty()).unwrap();
    let name = "f".repeat(250);
    for _ in 0..40 {
        rustix::fs::mkdirat(&below, &name, Mode::RWXU).unwrap();
        below = rustix::fs::openat(&below, &name, flags, Mode::empty()).unwrap();
    }
    let moved = fixture.path("media/longer-name");
    rustix::fs::renameat(rustix::fs::CWD, &moved, &below, "b").unwrap();
    let server = fixture.serve();
    assert_eq!(server.put("/d.ts", &body(50_000)).0, 413, "all three are counted");
    assert_eq!((server.put("/d.ts", &body(40_000)).0, stored(&server)), (201, 100_000));
    server.stop();
}

#[test]
fn s02_n08_a_volume_that_becomes_read_only_refuses_and_is_exact_again_afterwards() {
    let fixture = Fixture::new();
    fixture.configure_uploads(QUOTA);
    fs::create_dir(fixture.path("disk")).unwrap();
    let mount = "mount --bind disk media";
    let server = fixture.serve_after(mount, "--config tactus.toml");
    assert_eq!(server.put("/a.ts", &body(60_000)).0, 201);
    // As when a device fails: the file system becomes read-only.
    let media = fixture.path("media").display().to_string();
    server.shell(&format!("mount --bind {media} {media}; mount -o remount,bind,ro {media}"));
    let told = server.wait_until("the condition", |server| server.condition("read_only"));
    assert!(told.contains("read-only"), "{told}");
    let degraded = server.status()["degraded"].to_string();
    assert!(degraded.contains("read-only"), "{degraded}");
    server.stop();
    // A server that starts on a read-only file system serves it and reports it.
    let server = fixture
        .serve_after(&format!("{mount}; mount -o remount,bind,ro media"), "--config tactus.toml");
    assert_eq!(server.put("/b.ts", &body(10)).0, 503);
    assert_eq!(server.get("/a.ts").0, 200);
    assert!(
        server.wait_until("it", |server| server.condition("uploads_refused")).contains("read-only")
    );
    server.stop();
    let server = fixture.serve_after(mount, "--config tactus.toml");
    assert_eq!(server.put("/b.ts", &body(60_000)).0, 413);
    assert_eq!((server.put("/b.ts", &body(40_000)).0, stored(&server)), (201, 100_000));
    server.stop();
}

#[test]
fn s02_a_file_with_hard_links_counts_once_until_its_last_name_is_gone() {
    let fixture = Fixture::new();
    fixture.configure_uploads(QUOTA);
    let server = fixture.serve();
    let path = |name: &str| fixture.path("media").join(name);
    let link = |from: &str, to: &str| fs::hard_link(path(from), path(to)).unwrap();
    assert_eq!(server.put("/a.ts", &body(60_000)).0, 201);
    fs::create_dir(path("d")).unwrap();
    for name in ["b.ts", "c.ts", "d/e.ts", "d/f.ts"] {
        link("a.ts", name);
    }
    assert_eq!(server.change("DELETE", "/b.ts", "", b"").0, 204);
    assert_eq!(stored(&server), 60_000, "it has other names");
    assert_eq!(server.put("/x.ts", &body(60_000)).0, 413, "so nothing is free");
    // A replaced name, and all names in a directory.
    assert_eq!(server.put("/c.ts", &body(10)).0, 204);
    assert_eq!(server.change("DELETE", "/d/", "", b"").0, 204);
    server.wait_until("the directory", |_| {
        let trash = fs::read_dir(path(".tactus/trash")).unwrap();
        (trash.count() == 0).then_some(())
    });
    assert_eq!(stored(&server), 60_010);
    server.stop();
    link("a.ts", "g.ts");
    let server = fixture.serve();
    assert_eq!(server.put("/y.ts", &body(50_000)).0, 413, "it is counted once at the start");
    assert_eq!(stored(&server), 60_010);
    // Both at once: the last of them frees the room.
    for name in ["/a.ts", "/g.ts"] {
        assert_eq!(server.change("DELETE", name, "", b"").0, 204);
    }
    server.wait_until("the room", |server| (stored(server) == 10).then_some(()));
    assert_eq!(server.put("/y.ts", &body(90_000)).0, 201);
    server.stop();
}
