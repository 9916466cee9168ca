//! Recordings: bytes in order by copy and in place, waits, ends and errors.

#![allow(clippy::unwrap_used, reason = "a test fails with a panic")]

#[allow(dead_code, reason = "made for more tests than these")]
mod fake;

use std::io::Write;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use tactus_client::{BitRate, Client, RecordingOptions};

use fake::FakeServer;

const ENOSPC: i32 = 28;

fn options() -> RecordingOptions {
    RecordingOptions::new(BitRate(8_000_000))
}

#[test]
fn bytes_arrive_in_order_by_copy_and_in_place() {
    let server = FakeServer::start();
    let client = Client::connect(&server.path).unwrap();
    let bytes: Vec<u8> = (0..50_001_u32).map(|at| (at ^ at >> 8) as u8).collect();
    let mut recording = client.record("/one", &options()).unwrap();
    assert_eq!((recording.rate(), recording.len()), (BitRate(8_000_000), 0));
    assert!(recording.is_empty());
    recording.write_all(&bytes[..20_000]).unwrap();
    let mut done = 20_000;
    while done < 40_000 {
        let space = recording.wait(None).unwrap();
        let len = space.len().min(777).min(40_000 - done);
        space[..len].copy_from_slice(&bytes[done..done + len]);
        recording.commit(len);
        done += len;
    }
    Write::write_all(&mut recording, &bytes[done..]).unwrap();
    assert_eq!(recording.write(&[]), Ok(0));
    assert_eq!(recording.len(), 50_001);
    assert!(recording.overruns() > 0, "the ring is small");
    assert_eq!(recording.finish(), Ok(50_001));
    assert!(*server.control.written.lock().unwrap() == bytes);
    assert_eq!(*server.control.changes.lock().unwrap(), ["Record"]);
}

#[test]
fn a_full_ring_is_waited_for_with_a_limit_and_by_the_descriptor() {
    let server = FakeServer::start();
    let client = Client::connect(&server.path).unwrap();
    let mut recording = client.record("/one", &options()).unwrap();
    server.control.hold(true);
    std::thread::sleep(Duration::from_millis(20));
    while !recording.space().unwrap().is_empty() {
        let room = recording.room();
        recording.commit(room.min(1000));
    }
    assert!(recording.wait(Some(Duration::from_millis(1))).unwrap().is_empty());
    assert!(client.arm().unwrap(), "there is nothing new");
    server.control.hold(false);
    poll(&mut [PollFd::new(&client, PollFlags::IN)], None).unwrap();
    client.disarm();
    assert!(!recording.space().unwrap().is_empty());
    assert_eq!(recording.finish(), Ok(fake::ROOM as u64));
}

#[test]
#[should_panic(expected = "only bytes that there is room for")]
fn more_than_there_is_room_for_is_a_mistake_of_the_program() {
    let server = FakeServer::start();
    let client = Client::connect(&server.path).unwrap();
    client.record("/one", &options()).unwrap().commit(fake::ROOM + 1);
}

#[test]
fn a_recording_that_is_refused_or_ends_early_says_why() {
    let mut server = FakeServer::start();
    let client = Client::connect(&server.path).unwrap();
    let slow = RecordingOptions::new(BitRate(1));
    assert_eq!(client.record("/one", &slow).unwrap_err().message(), "no room for 1 bit/s");
    assert_eq!(client.record("/missing", &options()).unwrap_err().errno(), 2);

    let mut recording = client.record("/one", &options()).unwrap();
    server.control.write_error.store(ENOSPC as u32, Ordering::SeqCst);
    let error = loop {
        if let Err(error) = recording.write_all(&[0; 10_000]) {
            break error;
        }
    };
    assert_eq!((error.errno(), error.message()), (ENOSPC, "the disk is full"));
    assert_eq!(recording.space().unwrap_err().errno(), ENOSPC);
    assert_eq!(recording.finish().unwrap_err().errno(), ENOSPC);

    server.control.write_error.store(0, Ordering::SeqCst);
    server.control.hold(true);
    let mut recording = client.record("/one", &options()).unwrap();
    let ends = std::thread::spawn(move || recording.write_all(&[0; 10_000]).unwrap_err().errno());
    std::thread::sleep(Duration::from_millis(20));
    server.stop();
    assert_eq!(ends.join().unwrap(), 104, "a server that has gone");
}
