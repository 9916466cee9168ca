//! The program of the guide is the example, and it works.

#![allow(clippy::unwrap_used, reason = "a test fails with a panic")]

#[path = "../examples/build.rs"]
#[allow(dead_code, reason = "its main function reads the command line")]
mod build_program;
#[allow(dead_code, reason = "made for more tests than these")]
mod fake;
#[path = "../examples/moments.rs"]
#[allow(dead_code, reason = "its main function reads the command line")]
mod moments_program;
#[path = "../examples/play.rs"]
#[allow(dead_code, reason = "its main function reads the command line")]
mod play;
#[path = "../examples/sum.rs"]
#[allow(dead_code, reason = "its main function reads the command line")]
mod program;
#[path = "../examples/record.rs"]
#[allow(dead_code, reason = "its main function reads the command line")]
mod record_program;
#[path = "../examples/store.rs"]
#[allow(dead_code, reason = "its main function reads the command line")]
mod store_program;

#[test]
fn the_rust_program_of_the_guide_sums_a_title() {
    let server = fake::FakeServer::start();
    let sum = (0..fake::TITLE_LEN).map(|offset| u64::from(fake::byte(0, offset))).sum::<u64>();
    assert_eq!(program::sum(server.path.to_str().unwrap(), "/one").unwrap(), sum);
    let guide = include_str!("../../../docs/guide/local-programs.md");
    let example = include_str!("../examples/sum.rs");
    assert!(guide.contains(&format!("```rust\n{example}```\n")), "examples/sum.rs has changed");
}

#[test]
fn the_rust_program_of_the_guide_stores_a_title() {
    let server = fake::FakeServer::start();
    let bytes: Vec<u8> = (0..300_000_u32).map(|at| (at ^ at >> 8) as u8).collect();
    store_program::store(server.path.to_str().unwrap(), "/one", &bytes[..]).unwrap();
    assert!(*server.control.written.lock().unwrap() == bytes);
    assert_eq!(*server.control.changes.lock().unwrap(), ["Publish 0"]);
    let guide = include_str!("../../../docs/guide/local-programs.md");
    let example = include_str!("../examples/store.rs");
    assert!(guide.contains(&format!("```rust\n{example}```\n")), "examples/store.rs has changed");
}

#[test]
fn the_rust_program_of_the_guide_plays_a_title() {
    let server = fake::FakeServer::start();
    let mut out = vec![];
    play::play(server.path.to_str().unwrap(), "/one", &mut out).unwrap();
    assert!(out == (0..fake::TITLE_LEN).map(|at| fake::byte(0, at)).collect::<Vec<_>>());
    let guide = include_str!("../../../docs/guide/local-programs.md");
    let example = include_str!("../examples/play.rs");
    assert!(guide.contains(&format!("```rust\n{example}```\n")), "examples/play.rs has changed");
}

#[test]
fn the_rust_program_of_the_guide_builds_a_title_in_memory() {
    let server = fake::FakeServer::start();
    let bytes: Vec<u8> = (0..1_500_000_u32).map(|at| (at ^ at >> 8) as u8).collect();
    build_program::build(server.path.to_str().unwrap(), "/one", &bytes[..]).unwrap();
    assert!(*server.control.written.lock().unwrap() == bytes);
    let guide = include_str!("../../../docs/guide/memory.md");
    let example = include_str!("../examples/build.rs");
    assert!(guide.contains(&format!("```rust\n{example}```\n")), "examples/build.rs has changed");
}

#[test]
fn the_rust_program_of_the_guide_records_a_title() {
    let server = fake::FakeServer::start();
    let bytes: Vec<u8> = (0..30_000_u32).map(|at| (at ^ at >> 8) as u8).collect();
    record_program::record(server.path.to_str().unwrap(), "/one", 8, &bytes[..]).unwrap();
    assert!(*server.control.written.lock().unwrap() == bytes);
    assert_eq!(*server.control.changes.lock().unwrap(), ["Record"]);
    let guide = include_str!("../../../docs/guide/local-programs.md");
    let example = include_str!("../examples/record.rs");
    assert!(guide.contains(&format!("```rust\n{example}```\n")), "examples/record.rs has changed");
}

#[test]
fn the_rust_program_of_the_guide_writes_samples_at_their_moments() {
    let server = fake::FakeServer::start();
    let (mut out, begun) = (vec![], std::time::Instant::now());
    let socket = server.path.to_str().unwrap();
    moments_program::write_at_moments(socket, "/one", 40_000, &mut out).unwrap();
    assert!(out == (0..fake::TITLE_LEN).map(|at| fake::byte(0, at)).collect::<Vec<_>>());
    // The last of 26 moments is 25 intervals behind the first.
    assert!(begun.elapsed() >= std::time::Duration::from_millis(250));
    let guide = include_str!("../../../docs/guide/local-programs.md");
    let example = include_str!("../examples/moments.rs");
    assert!(guide.contains(&format!("```rust\n{example}```\n")), "examples/moments.rs has changed");
}
