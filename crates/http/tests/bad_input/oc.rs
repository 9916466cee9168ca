//! Metadata for clients that compare trees: modification times, checksums, and the free quota.

use std::fs;
use std::time::{Duration, SystemTime};

use tactus_core::units::Bytes;

use crate::client::Answer;
use crate::test_server::{TOKEN, TestServer, content};
use crate::uploads::{auth, is_clean, put, sent};

fn dav(server: &TestServer, method: &str, target: &str, fields: &str, body: &str) -> Answer {
    sent(&mut server.client(), method, target, &format!("{}{fields}", auth()), body.as_bytes())
}

fn find(server: &TestServer, target: &str, properties: &str) -> String {
    let body = format!(
        "<D:propfind xmlns:D=\"DAV:\" xmlns:oc=\"http://owncloud.org/ns\" \
         xmlns:m=\"urn:schemas-microsoft-com:\"><D:prop>{properties}</D:prop></D:propfind>"
    );
    dav(server, "PROPFIND", target, "Depth: 0\r\n", &body).text()
}

fn patch(server: &TestServer, target: &str, fields: &str, properties: &str) -> Answer {
    let body = format!(
        "<D:propertyupdate xmlns:D=\"DAV:\" xmlns:oc=\"http://owncloud.org/ns\" \
         xmlns:m=\"urn:schemas-microsoft-com:\"><D:set><D:prop>{properties}</D:prop></D:set>\
         </D:propertyupdate>"
    );
    dav(server, "PROPPATCH", target, fields, &body)
}

fn modified(server: &TestServer, name: &str) -> Duration {
    let modified = fs::metadata(server.root().join(name)).unwrap().modified().unwrap();
    modified.duration_since(SystemTime::UNIX_EPOCH).unwrap()
}

const THEN: &str = "1500000000";
const THEN_DATE: &str = "Fri, 14 Jul 2017 02:40:00 GMT";

#[test]
fn w05_a_title_has_the_time_that_its_client_sends() {
    let server = TestServer::taking_uploads();
    let field = format!("X-OC-Mtime: {THEN}\r\n");
    for (target, len) in [("/new.ts", 0), ("/new.ts", 10), ("/dir/large.ts", 3_000_001)] {
        let answer = put(&server, target, &field, &content(len));
        assert!(matches!(answer.status, 201 | 204), "{}", answer.text());
        assert_eq!(answer.field("x-oc-mtime"), Some("accepted"));
        let head = server.client().ask("HEAD", &format!("{target}?rate=max"), "");
        assert_eq!(head.field("last-modified"), Some(THEN_DATE));
        assert_eq!(head.field("etag"), answer.field("etag"), "the tag includes the time");
        let found = find(&server, target, "<D:getlastmodified/>");
        assert!(found.contains(&format!("<D:getlastmodified>{THEN_DATE}<")), "{found}");
    }
    let answer = put(&server, "/part.ts", "X-OC-MTIME: 1500000000.25\r\n", b"x");
    assert_eq!(answer.status, 201);
    assert_eq!(modified(&server, "part.ts"), Duration::from_millis(1_500_000_000_250));
    // Without the field, the time is that of the upload.
    let answer = put(&server, "/new.ts", "", b"x");
    assert_eq!((answer.status, answer.field("x-oc-mtime")), (204, None));
    assert!(modified(&server, "new.ts").as_secs() > 1_600_000_000);
    for bad in ["x", "1e9", "+1", "0x10", "99999999999999999999", "1.2.3", ""] {
        let answer = put(&server, "/bad.ts", &format!("X-OC-Mtime: {bad}\r\n"), b"x");
        assert_eq!(answer.status, 400, "{bad}");
    }
    assert!(!server.root().join("bad.ts").exists());
    is_clean(&server);
}

#[test]
fn w05_times_are_set_on_copies_renames_and_directories() {
    let server = TestServer::taking_uploads();
    let field = format!("X-OC-Mtime: {THEN}\r\n");
    for (method, target, more, made) in [
        ("COPY", "/a.ts", "Destination: /copy.ts\r\n", "copy.ts"),
        ("MOVE", "/copy.ts", "Destination: /dir/moved.ts\r\n", "dir/moved.ts"),
        ("MKCOL", "/new/", "", "new"),
        ("MOVE", "/new/", "Destination: /newer/\r\n", "newer"),
    ] {
        let answer = dav(&server, method, target, &format!("{more}{field}"), "");
        assert_eq!(answer.status, 201, "{method}: {}", answer.text());
        assert_eq!(answer.field("x-oc-mtime"), Some("accepted"), "{method}");
        assert_eq!(modified(&server, made).as_secs(), 1_500_000_000, "{method}");
        if let Some(tag) = answer.field("etag") {
            let head = server.client().ask("HEAD", &format!("/{made}?rate=max"), "");
            assert_eq!(head.field("etag"), Some(tag), "{method}");
        }
    }
    // A rename alone keeps the time.
    let to = "Destination: /again.ts\r\n";
    assert_eq!(dav(&server, "MOVE", "/dir/moved.ts", to, "").status, 201);
    assert_eq!(modified(&server, "again.ts").as_secs(), 1_500_000_000);
    let bad = "Destination: /bad.ts\r\nX-OC-Mtime: soon\r\n";
    assert_eq!(dav(&server, "MOVE", "/again.ts", bad, "").status, 400);
    assert!(server.root().join("again.ts").exists());
}

#[test]
fn w05_times_are_set_by_proppatch() {
    let server = TestServer::taking_uploads();
    let body = fs::read(server.root().join("a.ts")).unwrap();
    for (target, name) in [("/a.ts", "a.ts"), ("/dir/", "dir")] {
        for (property, seconds) in [
            ("<D:lastmodified>1400000000</D:lastmodified>", 1_400_000_000),
            ("<D:getlastmodified>Fri, 14 Jul 2017 02:40:00 GMT</D:getlastmodified>", 1_500_000_000),
            (
                "<m:Win32CreationTime>Fri, 14 Jul 2017 02:40:00 GMT</m:Win32CreationTime>\
                 <m:Win32LastAccessTime>Fri, 14 Jul 2017 02:40:00 GMT</m:Win32LastAccessTime>\
                 <m:Win32LastModifiedTime>Thu, 06 Nov 2014 08:49:37 GMT</m:Win32LastModifiedTime>\
                 <m:Win32FileAttributes>00000020</m:Win32FileAttributes>",
                1_415_263_777,
            ),
        ] {
            let answer = patch(&server, target, "", property);
            assert_eq!(answer.status, 207);
            let text = answer.text();
            assert!(text.contains("200 OK") && !text.contains("403"), "{text}");
            assert_eq!(modified(&server, name).as_secs(), seconds, "{property}");
        }
        let found = find(&server, target, "<m:Win32LastModifiedTime/>");
        assert!(found.contains(">Thu, 06 Nov 2014 08:49:37 GMT</x:Win32LastModified"), "{found}");
    }
    assert!(server.client().get("/a.ts?rate=max", "").body == body);
    // All properties are set, or none.
    for other in [
        "<D:getetag>x</D:getetag>",
        "<oc:checksums><oc:checksum>SHA1:00</oc:checksum></oc:checksums>",
        "<D:getlastmodified>yesterday</D:getlastmodified>",
        "<m:Win32FileAttributes>many</m:Win32FileAttributes>",
    ] {
        let both = format!("<D:lastmodified>1300000000</D:lastmodified>{other}");
        let text = patch(&server, "/a.ts", "", &both).text();
        assert!(text.contains("403 Forbidden") && !text.contains("200 OK"), "{text}");
        assert!(text.contains("<D:lastmodified/></D:prop><D:status>HTTP/1.1 424"), "{text}");
        assert_eq!(modified(&server, "a.ts").as_secs(), 1_415_263_777);
    }
    let set = "<D:lastmodified>1300000000</D:lastmodified>";
    for fields in ["If-Match: \"x\"\r\n", "If-Unmodified-Since: Thu, 01 Jan 1970 00:00:00 GMT\r\n"]
    {
        assert_eq!(patch(&server, "/a.ts", fields, set).status, 412, "{fields}");
    }
    assert_eq!(patch(&server, "/none.ts", "", set).status, 404);
}

const SHA1_OF_ABC: &str = "SHA1:a9993e364706816aba3e25717850c26c9cd0d89d";
const MD5_OF_ABC: &str = "MD5:900150983cd24fb0d6963f7d28e17f72";

#[test]
fn w05_checksums_are_verified_stored_and_listed() {
    let server = TestServer::taking_uploads();
    let told = |target: &str| {
        let found = find(&server, target, "<oc:checksums/>");
        let part = found.split_once("<oc:checksum>").map(|(_, rest)| rest.to_owned());
        part.map(|rest| rest.split_once('<').unwrap().0.to_owned())
    };
    for sums in [SHA1_OF_ABC.to_owned(), format!("{SHA1_OF_ABC} {MD5_OF_ABC}")] {
        let field = format!("OC-Checksum: {sums}\r\nX-OC-Mtime: {THEN}\r\n");
        assert!(matches!(put(&server, "/abc.ts", &field, b"abc").status, 201 | 204));
        // The other algorithm is computed for clients that support only that one.
        assert_eq!(told("/abc.ts"), Some(format!("{SHA1_OF_ABC} {MD5_OF_ABC}")), "{sums}");
    }
    let both = told("/abc.ts");
    // Copies have them too, and a new time keeps them.
    let to = |to: &str| format!("Destination: {to}\r\n");
    assert_eq!(dav(&server, "COPY", "/abc.ts", &to("/copy.ts"), "").status, 201);
    assert_eq!(dav(&server, "MOVE", "/abc.ts", &to("/moved.ts"), "").status, 201);
    assert_eq!((told("/copy.ts"), told("/moved.ts")), (both.clone(), both.clone()));
    let set = format!(
        "<D:lastmodified>1300000000</D:lastmodified>\
         <oc:checksums><oc:checksum>{SHA1_OF_ABC}</oc:checksum></oc:checksums>"
    );
    let text = patch(&server, "/moved.ts", "", &set).text();
    assert!(text.contains("200 OK") && !text.contains("403"), "{text}");
    assert_eq!(told("/moved.ts"), both);
    // Listings contain them too, if they are requested.
    let body = "<D:propfind xmlns:D=\"DAV:\"><D:prop><checksums \
                xmlns=\"http://owncloud.org/ns\"/></D:prop></D:propfind>";
    let listed = dav(&server, "PROPFIND", "/", "Depth: 1\r\n", body).text();
    assert_eq!(listed.matches(SHA1_OF_ABC).count(), 2, "{listed}");
    let all = dav(&server, "PROPFIND", "/", "Depth: 1\r\n", "").text();
    assert!(!all.contains("checksum"));
    // A change by another program invalidates them.
    fs::write(server.root().join("moved.ts"), b"abd").unwrap();
    assert_eq!(told("/moved.ts"), None);
    // A body with another checksum is not stored.
    for (field, status) in [
        ("SHA1:a9993e364706816aba3e25717850c26c9cd0d89e", 400),
        ("MD5:900150983cd24fb0d6963f7d28e17f73", 400),
        ("SHA1:zz", 400),
        ("SHA1", 400),
        ("WHIRLPOOL:00", 201),
    ] {
        let answer = put(&server, "/wrong.ts", &format!("OC-Checksum: {field}\r\n"), b"abc");
        assert_eq!(answer.status, status, "{field}: {}", answer.text());
    }
    assert_eq!(told("/wrong.ts"), None);
    assert_eq!(
        put(&server, "/copy.ts", "OC-Checksum: MD5:00000000000000000000000000000000\r\n", b"x")
            .status,
        400
    );
    assert_eq!(fs::read(server.root().join("copy.ts")).unwrap(), b"abc");
    is_clean(&server);
}

#[test]
fn w05_quotas_are_listed_for_principals_that_may_store() {
    let of = |server: &TestServer, target: &str, token: &str| -> Option<(u64, u64)> {
        let body = "<D:propfind xmlns:D=\"DAV:\"><D:prop><D:quota-available-bytes/>\
                    <D:quota-used-bytes/></D:prop></D:propfind>";
        let fields = match token {
            "" => "Depth: 0\r\n".to_owned(),
            token => format!("Depth: 0\r\nAuthorization: Bearer {token}\r\n"),
        };
        let answer = sent(&mut server.client(), "PROPFIND", target, &fields, body.as_bytes());
        let text = answer.text();
        let number = |name: &str| {
            let rest = text.split_once(&format!("<D:{name}>"))?.1;
            rest.split_once('<')?.0.parse().ok()
        };
        Some((number("quota-available-bytes")?, number("quota-used-bytes")?))
    };
    let server = TestServer::with(|plan| {
        plan.uploads = true;
        plan.upload.principals[0].quota = Some(Bytes(1_000_000));
    });
    assert_eq!(of(&server, "/", TOKEN), Some((1_000_000, 0)));
    assert_eq!(put(&server, "/mine.ts", "", &content(300_000)).status, 201);
    assert_eq!(of(&server, "/", TOKEN), Some((700_000, 300_000)));
    assert_eq!(of(&server, "/dir/", TOKEN), Some((700_000, 300_000)));
    assert_eq!(of(&server, "/mine.ts", TOKEN), None);
    // Clients of neon (davfs2, cadaver) send a token only after a 401.
    let body = "<D:propfind xmlns:D=\"DAV:\"><D:prop><D:quota-used-bytes/></D:prop></D:propfind>";
    let answer = sent(&mut server.client(), "PROPFIND", "/", "Depth: 0\r\n", body.as_bytes());
    assert!(answer.status == 401 && answer.field("www-authenticate").is_some());
    let closed = TestServer::new();
    let answer = sent(&mut closed.client(), "PROPFIND", "/", "Depth: 0\r\n", body.as_bytes());
    assert_eq!(answer.status, 207, "no quota where nothing can be stored");
    assert_eq!(dav(&server, "DELETE", "/mine.ts", "", "").status, 204);
    server.wait_until("the title no longer counts", |server| {
        of(server, "/", TOKEN) == Some((1_000_000, 0))
    });
    // Without a quota the disk is the limit.
    let other = crate::test_server::OTHER_TOKEN;
    let (available, used) = of(&server, "/", other).unwrap();
    let disk = rustix::fs::statvfs(server.root()).unwrap();
    let whole = disk.f_blocks * disk.f_frsize;
    assert!(available > 0 && available <= disk.f_bavail * disk.f_frsize, "{available}");
    assert!(used > 0 && used + available <= whole, "{used} {available} {whole}");
    // They are not included in allprop.
    let all = dav(&server, "PROPFIND", "/", "Depth: 0\r\n", "").text();
    assert!(!all.contains("quota"), "{all}");
}
