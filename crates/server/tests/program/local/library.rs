//! The client library against the server itself.

use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, poll};
use tactus_client::{Client, Nanos, Options, ReadRequest, now};

use super::*;

#[test]
fn the_library_reads_titles_by_copy_in_place_at_a_time_and_by_an_event_loop() {
    let _turn = turn();
    let served = serve();
    let bytes = &served.bytes;
    for spin in [Options::default().spin, Duration::ZERO] {
        let options = Options { spin, ..Options::default() };
        let client = Client::connect_with(&served.socket, &options).expect("a connection");
        let names = client.list("/news").expect("a list");
        assert_eq!((names.len(), names[0].name.as_str()), (1, "a b#.ts"));
        assert_eq!(client.open("/none").expect_err("no title").errno(), 2);
        let title = client.open(TITLE).expect("a title");
        assert_eq!(title.len(), bytes.len() as u64);

        let mut copy = vec![0; bytes.len() + 1];
        assert_eq!(title.read_at(0, &mut copy), Ok(bytes.len()));
        assert!(copy[..bytes.len()] == bytes[..]);
        assert_eq!(title.read_at(2_999_990, &mut copy), Ok(11));

        // More than the server has under way at once, in whatever order they come.
        let mut requested = std::collections::BTreeMap::new();
        for nth in 0..200_usize {
            let (offset, len) = (nth * 14_999, 1 + nth * 100);
            let buffer = client.buffer(len).expect("room");
            let request = ReadRequest::new(&title, offset as u64, buffer);
            requested.insert(client.submit(request).expect("room").number(), (offset, len));
        }
        while !requested.is_empty() {
            let Some(completion) = client.poll() else {
                if client.arm().expect("a server") {
                    let mut fd = [PollFd::from_borrowed_fd(client.as_fd(), PollFlags::IN)];
                    poll(&mut fd, None).expect("a descriptor to wait for");
                    client.disarm();
                }
                continue;
            };
            let (offset, len) = requested.remove(&completion.token.number()).expect("its own");
            let expected = &bytes[offset..bytes.len().min(offset + len)];
            assert!(completion.bytes().expect("bytes") == expected, "{offset} {len}");
        }

        let when = now() + Nanos::from_millis(20);
        let request = ReadRequest::new(&title, 5, client.buffer(4096).expect("room"));
        client.submit(request.at(when)).expect("room");
        let completion = client.wait(None).expect("a wait").expect("a completion");
        assert!(completion.bytes().expect("bytes") == &bytes[5..4101]);
        assert!(completion.at >= when);
    }
    served.wait_until_nobody_is_left();
}

#[test]
fn the_library_learns_that_the_server_was_killed() {
    let _turn = turn();
    let served = serve();
    let client = Client::connect(&served.socket).expect("a connection");
    let title = client.open(TITLE).expect("a title");
    let never = now() + Nanos::from_millis(3_600_000);
    let request = ReadRequest::new(&title, 0, client.buffer(4096).expect("room"));
    client.submit(request.at(never)).expect("room");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| client.wait(None).expect("a wait").expect("a completion"));
        std::thread::sleep(Duration::from_millis(50));
        drop(served);
        let result = waiting.join().expect("it has waited").result;
        assert_eq!(result.expect_err("no server").errno(), 104);
    });
    assert_eq!(title.read_at(0, &mut [0]).expect_err("no server").errno(), 104);
    assert_eq!(client.stat("/").expect_err("no server").errno(), 104);
}

#[test]
fn a_title_in_memory_is_mapped_and_its_memory_comes_back() {
    let _turn = turn();
    let served = serve();
    let bytes = &served.bytes;
    let client = Client::connect(&served.socket).expect("a connection");
    let title = client.open(TITLE).expect("a title");
    let map = title.map().expect("room");
    assert!(*map == bytes[..]);
    // Reads by requests are copies from there.
    let mut copy = vec![0; bytes.len() + 1];
    assert_eq!(title.read_at(0, &mut copy), Ok(bytes.len()));
    assert!(copy[..bytes.len()] == bytes[..]);
    assert_eq!(title.read_at(2_999_990, &mut copy), Ok(11));

    // One memory for all programs that map it.
    let second = Client::connect(&served.socket).expect("a connection");
    let same = second.open(TITLE).expect("a title");
    assert!(*same.map().expect("the same memory") == bytes[..]);
    let other = second.open(OTHER).expect("a title");
    let refused = other.map().expect_err("more than titles_max");
    assert_eq!(refused.errno(), 12, "{refused}");
    drop(map);
    drop((title, client));
    assert!(*same.map().expect("the other program has it open") == bytes[..]);
    drop(same);
    let until = Instant::now() + PATIENCE;
    let map = loop {
        match other.map() {
            Ok(map) => break map,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(map.iter().all(|&byte| byte == 7) && map.len() == 2_500_000);
    drop(map);
    drop((other, second));
    // The catalogue may keep its own descriptors of titles.
    while served.left().1 > 0 {
        assert!(Instant::now() < until, "{} mappings are left", served.left().1);
        std::thread::sleep(Duration::from_millis(5));
    }
}
