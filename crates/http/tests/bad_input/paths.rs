//! Rows A01 to A08: what a path may name. A03, a race, is a case of the catalogue alone.

use std::os::unix::fs::symlink;

use rustix::fs::{CWD, FileType, Mode};
use tactus_http::Abuse;

use crate::test_server::TestServer;

fn refused(server: &TestServer, target: &str) {
    let mut client = server.client();
    let answer = client.get(target, "");
    assert_eq!(answer.status, 400, "{target}: {}", answer.text());
    assert!(answer.closes(), "{target}");
    client.is_closed();
}

fn not_found(server: &TestServer, target: &str) {
    let answer = server.client().get(target, "");
    assert_eq!(answer.status, 404, "{target}: {}", answer.text());
}

#[test]
fn a01_paths_that_would_need_a_repair() {
    let server = TestServer::new();
    std::fs::write(server.outside().join("secret"), b"secret").unwrap();
    let targets = [
        "/../secret",
        "/dir/../../secret",
        "/dir/../a.ts",
        "/%2e%2e%2fsecret",
        "/%2e%2e/secret",
        "/..%5csecret",
        "/%252e%252e/secret",
        "//a.ts",
        "/dir//b.mp4",
        "/./a.ts",
        "/%c0%ae%c0%ae/secret",
        "/%c0%af",
        "/a.ts%00",
        "/%00",
        "/a%",
        "http://localhost/../secret",
    ];
    for target in targets {
        refused(&server, target);
    }
    assert_eq!(server.count(Abuse::BadPath), targets.len() as u64);
    server.serves_others();
}

/// Names that look like a second encoding or like a Windows path, and their links.
const ODD_NAMES: [(&str, &str); 8] = [
    ("100%20.ts", "/dir/100%2520.ts"),
    ("a%2Fb.ts", "/dir/a%252Fb.ts"),
    ("%41.ts", "/dir/%2541.ts"),
    ("%252e.ts", "/dir/%25252e.ts"),
    ("a\\b.ts", "/dir/a%5Cb.ts"),
    ("C:\\films\\x.ts", "/dir/C%3A%5Cfilms%5Cx.ts"),
    ("\\", "/dir/%5C"),
    ("% %.ts", "/dir/%25%20%25.ts"),
];

#[test]
fn w04_names_are_decoded_exactly_once() {
    let server = TestServer::new();
    for (name, _) in ODD_NAMES {
        std::fs::write(server.root().join("dir").join(name), name).unwrap();
    }
    // Names that a second decoding would give.
    std::fs::write(server.root().join("dir/100 .ts"), b"other").unwrap();
    std::fs::write(server.root().join("dir/A.ts"), b"other").unwrap();
    let mut client = server.client();
    for (name, link) in ODD_NAMES {
        let answer = client.get(&format!("{link}?rate=max"), "");
        assert_eq!((answer.status, answer.text().as_str()), (200, name), "{link}");
    }
    let json = server.client().get("/dir/?format=json", "").text();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let page = server.client().get("/dir/", "").text();
    let found = server.client().ask("PROPFIND", "/dir/", "Depth: 1\r\n").text();
    for (name, link) in ODD_NAMES {
        let entries = json["entries"].as_array().unwrap();
        let entry = entries.iter().find(|entry| entry["name"] == name).expect(name);
        assert_eq!(format!("/dir/{}", entry["href"].as_str().unwrap()), link);
        assert!(page.contains(&format!("href=\"{}\"", &link[5..])), "{link}");
        assert!(found.contains(&format!("<D:href>{link}</D:href>")), "{link}");
    }
    assert_eq!(json["not_listed"], 0);
    assert_eq!(server.count(Abuse::BadPath), 0, "none of them adds to the abuse score");
}

#[test]
fn w04_odd_names_are_stored_moved_copied_and_deleted() {
    use crate::uploads::{auth, put, sent};
    let server = TestServer::taking_uploads();
    for (name, link) in ODD_NAMES {
        assert_eq!(put(&server, link, "", name.as_bytes()).status, 201, "{link}");
        let read = |name: &str| std::fs::read(server.root().join(name)).ok();
        assert_eq!(read(&format!("dir/{name}")).as_deref(), Some(name.as_bytes()));
        let to = link.replace("/dir/", "/");
        let fields = format!("{}Destination: http://localhost{to}\r\n", auth());
        let ask = |method: &str, target: &str, fields: &str| {
            sent(&mut server.client(), method, target, fields, b"").status
        };
        assert_eq!(ask("COPY", link, &fields), 201, "{link}");
        assert_eq!(ask("MOVE", link, &fields), 204, "{link}");
        assert_eq!(read(name).as_deref(), Some(name.as_bytes()));
        assert_eq!(ask("DELETE", &to, &auth()), 204, "{link}");
        let directory = format!("{link}/");
        assert_eq!(ask("MKCOL", &directory, &auth()), 201, "{link}");
        assert!(server.root().join("dir").join(name).is_dir());
    }
}

#[test]
fn w04_names_that_no_path_can_express_are_counted_and_reported() {
    use std::os::unix::ffi::OsStrExt;
    let server = TestServer::new();
    let root = server.root().join("dir");
    for name in [&b"latin-\xe9.ts"[..], b"line\n.ts", b"%2e%2e", b"a\\..\\x", b"\xe2\x80\xae.ts"] {
        std::fs::write(root.join(std::ffi::OsStr::from_bytes(name)), b"x").unwrap();
    }
    let json = server.client().get("/dir/?format=json", "").text();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((json["entries"].as_array().unwrap().len(), &json["not_listed"]), (1, &5.into()));
    assert!(server.client().get("/dir/", "").text().contains("5 names cannot be shown"));
    let found = server.client().ask("PROPFIND", "/dir/", "Depth: 1\r\n").text();
    assert!(found.contains("<D:responsedescription>5 names"), "{found}");
    assert_eq!(server.client().ask("PROPFIND", "/dir/", "Depth: 0\r\n").status, 207);
}

#[test]
fn a02_links() {
    let server = TestServer::new();
    let secret = server.outside().join("secret");
    std::fs::write(&secret, b"secret").unwrap();
    symlink(&secret, server.root().join("absolute")).unwrap();
    symlink("../secret", server.root().join("relative")).unwrap();
    symlink(server.outside(), server.root().join("out")).unwrap();
    symlink("a.ts", server.root().join("inner")).unwrap();
    for target in ["/absolute", "/relative", "/out/secret", "/out/", "/inner"] {
        not_found(&server, target);
    }
    let listing = server.client().get("/?format=json", "").text();
    for name in ["absolute", "relative", "out", "inner"] {
        assert!(!listing.contains(&format!("\"{name}\"")), "{name} is listed");
    }
}

#[test]
fn a04_what_is_no_file() {
    let server = TestServer::new();
    rustix::fs::mknodat(CWD, server.root().join("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(server.root().join("socket")).unwrap();
    for target in ["/fifo", "/socket", "/fifo/"] {
        not_found(&server, target);
    }
    assert_eq!(server.client().get("/dir", "").status, 301);
    server.serves_others();
}

#[test]
fn a05_long_names_and_characters_that_deceive() {
    let server = TestServer::new();
    refused(&server, &format!("/{}", "n".repeat(256)));
    refused(&server, &"/d".repeat(2049));
    refused(&server, "/a%0d%0aSet-Cookie:%20x");
    refused(&server, "/a%7f");
    refused(&server, "/a%C2%85");
    refused(&server, "/photo%E2%80%AEgpj.ts");
    refused(&server, "/a%E2%81%A6b");
    assert_eq!(server.count(Abuse::BadPath), 7);
    not_found(&server, &format!("/{}", "n".repeat(255)));
}

#[test]
fn a06_twins() {
    let server = TestServer::new();
    let twins = [
        ("caf\u{e9}.ts", "/caf%C3%A9.ts", "composed"),
        ("cafe\u{301}.ts", "/cafe%CC%81.ts", "decomposed"),
        ("Case.ts", "/Case.ts", "upper"),
        ("case.ts", "/case.ts", "lower"),
    ];
    for (name, _, content) in twins {
        std::fs::write(server.root().join(name), content).unwrap();
    }
    let mut client = server.client();
    for (_, target, content) in twins {
        assert_eq!(client.get(target, "").text(), content);
    }
}

#[test]
fn a07_reserved_names() {
    let server = TestServer::new();
    std::fs::create_dir_all(server.root().join(".tactus")).unwrap();
    std::fs::write(server.root().join(".tactus/upload"), b"half").unwrap();
    std::fs::write(server.root().join("dir/.tactus-trash"), b"gone").unwrap();
    for target in ["/.tactus/upload", "/.tactus", "/.tactus/", "/dir/.tactus-trash", "/.TACTUS/"] {
        not_found(&server, target);
    }
    assert!(!server.client().get("/?format=json", "").text().contains("tactus"));
}

#[test]
fn a08_other_mounts() {
    let server = TestServer::with(|plan| plan.root = "/".into());
    assert!(std::fs::read("/proc/version").is_ok(), "the case needs /proc");
    for target in ["/proc/version", "/proc/", "/proc/self/root/etc/passwd"] {
        not_found(&server, target);
    }
    assert_eq!(server.client().get("/usr/", "").status, 200, "what is no mount is there");
}
