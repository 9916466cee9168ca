//! The client library against the server itself.

use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
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

/// Elsewhere it looks for each answer, here for an hour. On the processor of the server that would
/// be in vain: it sleeps, and is woken.
#[test]
fn a_program_reads_on_each_processor_and_sleeps_at_once_on_that_of_the_server() {
    let _turn = turn();
    let served = serve();
    let options = Options { spin: Duration::from_secs(3600), ..Options::default() };
    let read_on = |processor: usize| {
        let mut only = CpuSet::new();
        only.set(processor);
        sched_setaffinity(None, &only).expect("a processor that it may use");
        let before = served.metric("tactus_local_wakes_total");
        let client = Client::connect_with(&served.socket, &options).expect("a connection");
        let title = client.open(TITLE).expect("a title");
        let mut copy = vec![0; 5000];
        for offset in (0..served.bytes.len()).step_by(9973).take(200) {
            let read = title.read_at(offset as u64, &mut copy).expect("bytes");
            assert!(copy[..read] == served.bytes[offset..offset + read]);
        }
        served.metric("tactus_local_wakes_total") > before
    };
    let allowed = sched_getaffinity(None).expect("the processors of the test");
    let processors = (0..CpuSet::MAX_CPU).filter(|&processor| allowed.is_set(processor));
    // A thread for each, because the affinity is the thread's.
    let slept = processors.filter(|&processor| {
        std::thread::scope(|scope| scope.spawn(|| read_on(processor)).join().expect("no panic"))
    });
    assert_eq!(slept.count(), 1, "the file server is on one processor");
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

#[test]
fn the_file_of_a_title_is_handed_out_where_no_arm_is_moved_and_is_the_programs_own() {
    let _turn = turn();
    let served = serve();
    let client = Client::connect(&served.socket).expect("a connection");
    let [one, other] = [0, 1].map(|_| client.open_file(TITLE).expect("a file"));
    assert_eq!(one.1.len, served.bytes.len() as u64);
    assert!(one.1.file != 0 && one.1.version != 0 && one.1 == other.1);
    assert_eq!(client.stat(TITLE).map(|stat| (stat.file, stat.version)), {
        Ok((one.1.file, one.1.version))
    });
    let [mut one, other] = [one, other].map(|(file, _)| fs::File::from(file));
    let mut bytes = vec![];
    std::io::Read::read_to_end(&mut one, &mut bytes).expect("bytes");
    assert!(bytes == served.bytes);
    // A position and flags of its own, and no right to write.
    let position = |mut file: &fs::File| std::io::Seek::stream_position(&mut file);
    assert_eq!([position(&one).ok(), position(&other).ok()], [Some(3_000_001), Some(0)]);
    assert!(std::io::Write::write(&mut one, b"x").is_err());
    assert_eq!(client.open_file("/none").expect_err("no title").errno(), 2);
    assert_eq!(client.open_file("/news").expect_err("no title").errno(), 21);
    let space = client.space("/").expect("space");
    assert!(space.total > space.free && space.free >= space.available && space.available > 0);
    drop((client, served));

    let served = serve_from(&DISK_MODEL.replace("sweep = \"0 ns\"", "sweep = \"8 ms\""));
    let client = Client::connect(&served.socket).expect("a connection");
    assert_eq!(client.open_file(TITLE).expect_err("a disk with an arm").errno(), 95);
    let title = client.open(TITLE).expect("a title");
    assert_eq!(title.read_at(0, &mut bytes), Ok(served.bytes.len()));
}

#[test]
fn a_large_directory_comes_in_parts_each_entry_once() {
    let _turn = turn();
    let served = serve();
    let titles = served.socket.with_file_name("titles/many");
    let mut expected = vec![];
    for nth in 0..1_500 {
        let name = format!("{nth:04}{}", "\"\\".repeat(nth % 120));
        fs::create_dir_all(&titles).expect("a directory");
        match nth % 10 {
            0 => {
                fs::create_dir(titles.join(&name)).expect("a directory");
                expected.push(name + "/");
            }
            _ => {
                fs::write(titles.join(&name), "x").expect("a title");
                expected.push(name);
            }
        }
    }
    expected.sort_by_key(|name| (!name.ends_with('/'), name.trim_end_matches('/').to_owned()));
    let client = Client::connect(&served.socket).expect("a connection");
    let names = |entries: Vec<tactus_client::Entry>| -> Vec<_> {
        entries.into_iter().map(|entry| entry.name).collect()
    };
    assert!(names(client.list("/many").expect("a list")) == expected);
    // From any name on, also where no part has ended.
    for at in [0, 1, 149, 150, 777, 1_498] {
        let (part, _) = client.list_part("/many", Some(&expected[at])).expect("a part");
        assert_eq!(names(part).first(), expected.get(at + 1), "{at}");
    }
    assert_eq!(client.list_part("/many", Some("9999")), Ok((vec![], false)));
}
