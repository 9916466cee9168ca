//! F-25, F-30, F-32: the host gives too little, or stands still.

use std::io::Write;
use std::time::Duration;

use rustix::process::{Signal, kill_process};

use crate::fixture::{Answer, Fixture, Plan, RATE};

const LEN: usize = 6_000_000;

#[test]
fn f_25_without_file_descriptors_streams_go_on_and_others_wait() {
    let fixture = Fixture::new(Plan { files: Some(256), ..Plan::default() });
    let bytes = fixture.store("a.ts", LEN);
    let other = fixture.store("b.ts", LEN);
    let watch = fixture.server.watch("a.ts", &bytes);
    let mut early = fixture.server.connect();
    // As many as it takes and the kernel keeps waiting.
    let crowd: Vec<_> = (0..240).map(|_| fixture.server.connect()).collect();
    std::thread::sleep(Duration::from_secs(1));
    // Connections do not take the descriptors with which titles are opened.
    let head = "GET /b.ts?rate=max HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    early.write_all(head.as_bytes()).expect("the head is taken");
    let answer = Answer::read(&mut early);
    assert!(answer.is_whole && answer.body == other, "{}: {}", answer.head, fixture.server.said());
    drop(crowd);
    let answer = fixture.server.get("a.ts");
    assert!(answer.is_whole && answer.body == bytes, "{}", fixture.server.said());
    let seen = watch.seen();
    assert!(seen.is_whole && seen.lateness() < Duration::from_millis(400), "{:?}", seen.lateness());
}

#[test]
fn f_30_after_five_seconds_of_standstill_nothing_comes_at_once() {
    let fixture = Fixture::new(Plan::default());
    let bytes = fixture.store("a.ts", LEN);
    let watch = fixture.server.watch("a.ts", &bytes);
    std::thread::sleep(Duration::from_millis(2500));
    kill_process(fixture.server.pid(), Signal::STOP).expect("a process can be stopped");
    std::thread::sleep(Duration::from_secs(5));
    kill_process(fixture.server.pid(), Signal::CONT).expect("a process can go on");
    let seen = watch.seen();
    assert!(seen.is_whole);
    let (last, _) = *seen.arrivals.last().expect("it came");
    assert!(last > Duration::from_millis(10_500), "nothing is caught up: {last:?}");
    // A second has sixteen ticks, and a window of one may see a seventeenth.
    let most = seen.most_within(Duration::from_secs(1));
    assert!(most * 1600 <= RATE * 17 * 105, "{most} bytes within a second");
}

#[test]
fn f_32_with_little_memory_to_lock_it_serves_and_says_so() {
    let fixture = Fixture::new(Plan { locked: Some(64 << 10), ..Plan::default() });
    let bytes = fixture.store("a.ts", LEN);
    let said = fixture.server.said();
    assert!(said.contains("memory is not locked") || said.contains("not registered"), "{said}");
    let seen = fixture.server.watch("a.ts", &bytes).seen();
    assert!(seen.is_whole && seen.lateness() < Duration::from_millis(400), "{:?}", seen.lateness());
    let answer = fixture.server.get("a.ts");
    assert!(answer.is_whole && answer.body == bytes);
}
