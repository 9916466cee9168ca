//! Rows A01 to A08: what a path may name. A03, a race, is a case of the catalogue alone.

use std::os::unix::fs::symlink;

use rustix::fs::{CWD, FileType, Mode};
use tactus::http::Abuse;

use crate::house::House;

fn refused(house: &House, target: &str) {
    let mut client = house.client();
    let answer = client.get(target, "");
    assert_eq!(answer.status, 400, "{target}: {}", answer.text());
    assert!(answer.closes(), "{target}");
    client.is_closed();
}

fn not_found(house: &House, target: &str) {
    let answer = house.client().get(target, "");
    assert_eq!(answer.status, 404, "{target}: {}", answer.text());
}

#[test]
fn a01_paths_that_would_need_a_repair() {
    let house = House::new();
    std::fs::write(house.outside().join("secret"), b"secret").unwrap();
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
        refused(&house, target);
    }
    assert_eq!(house.count(Abuse::BadPath), targets.len() as u64);
    house.serves_others();
}

#[test]
fn a02_links() {
    let house = House::new();
    let secret = house.outside().join("secret");
    std::fs::write(&secret, b"secret").unwrap();
    symlink(&secret, house.root().join("absolute")).unwrap();
    symlink("../secret", house.root().join("relative")).unwrap();
    symlink(house.outside(), house.root().join("out")).unwrap();
    symlink("a.ts", house.root().join("inner")).unwrap();
    for target in ["/absolute", "/relative", "/out/secret", "/out/", "/inner"] {
        not_found(&house, target);
    }
    let listing = house.client().get("/?format=json", "").text();
    for name in ["absolute", "relative", "out", "inner"] {
        assert!(!listing.contains(&format!("\"{name}\"")), "{name} is listed");
    }
}

#[test]
fn a04_what_is_no_file() {
    let house = House::new();
    rustix::fs::mknodat(CWD, house.root().join("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(house.root().join("socket")).unwrap();
    for target in ["/fifo", "/socket", "/fifo/"] {
        not_found(&house, target);
    }
    assert_eq!(house.client().get("/dir", "").status, 301);
    house.serves_others();
}

#[test]
fn a05_long_names_and_characters_that_deceive() {
    let house = House::new();
    refused(&house, &format!("/{}", "n".repeat(256)));
    refused(&house, &"/d".repeat(2049));
    refused(&house, "/a%0d%0aSet-Cookie:%20x");
    refused(&house, "/a%7f");
    refused(&house, "/a%C2%85");
    refused(&house, "/photo%E2%80%AEgpj.ts");
    refused(&house, "/a%E2%81%A6b");
    assert_eq!(house.count(Abuse::BadPath), 7);
    not_found(&house, &format!("/{}", "n".repeat(255)));
}

#[test]
fn a06_twins() {
    let house = House::new();
    let twins = [
        ("caf\u{e9}.ts", "/caf%C3%A9.ts", "composed"),
        ("cafe\u{301}.ts", "/cafe%CC%81.ts", "decomposed"),
        ("Case.ts", "/Case.ts", "upper"),
        ("case.ts", "/case.ts", "lower"),
    ];
    for (name, _, content) in twins {
        std::fs::write(house.root().join(name), content).unwrap();
    }
    let mut client = house.client();
    for (_, target, content) in twins {
        assert_eq!(client.get(target, "").text(), content);
    }
}

#[test]
fn a07_reserved_names() {
    let house = House::new();
    std::fs::create_dir_all(house.root().join(".tactus")).unwrap();
    std::fs::write(house.root().join(".tactus/upload"), b"half").unwrap();
    std::fs::write(house.root().join("dir/.tactus-trash"), b"gone").unwrap();
    for target in ["/.tactus/upload", "/.tactus", "/.tactus/", "/dir/.tactus-trash", "/.TACTUS/"] {
        not_found(&house, target);
    }
    assert!(!house.client().get("/?format=json", "").text().contains("tactus"));
}

#[test]
fn a08_other_mounts() {
    let house = House::with(|plan| plan.root = "/".into());
    assert!(std::fs::read("/proc/version").is_ok(), "the case needs /proc");
    for target in ["/proc/version", "/proc/", "/proc/self/root/etc/passwd"] {
        not_found(&house, target);
    }
    assert_eq!(house.client().get("/usr/", "").status, 200, "what is no mount is there");
}
