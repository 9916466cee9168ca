//! The program of the guide is the example, and it works.

#![allow(clippy::unwrap_used, reason = "a test fails with a panic")]

#[allow(dead_code, reason = "made for more tests than these")]
mod fake;
#[path = "../examples/sum.rs"]
#[allow(dead_code, reason = "its main function reads the command line")]
mod program;

#[test]
fn the_rust_program_of_the_guide_sums_a_title() {
    let server = fake::FakeServer::start();
    let sum = (0..fake::TITLE_LEN).map(|offset| u64::from(fake::byte(0, offset))).sum::<u64>();
    assert_eq!(program::sum(server.path.to_str().unwrap(), "/one").unwrap(), sum);
    let guide = include_str!("../../../docs/guide/local-programs.md");
    let example = include_str!("../examples/sum.rs");
    assert!(guide.contains(&format!("```rust\n{example}```\n")), "examples/sum.rs has changed");
}
