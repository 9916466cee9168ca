//! Titles that are written: order, errors, ends, and buffers that are still in use.

#![allow(clippy::unwrap_used, reason = "a test fails with a panic")]

#[allow(dead_code, reason = "made for more tests than these")]
mod fake;

use std::sync::atomic::Ordering;
use std::time::Duration;

use tactus_client::{Client, Options, Replace, WriteOptions, WriteRequest, Writer};

use fake::FakeServer;
use fake::building::{MEMORY_LIMIT, MEMORY_ROOM};

const DATA: usize = 1 << 20;
const ENOSPC: i32 = 28;

fn connect() -> (FakeServer, Client, Writer) {
    let server = FakeServer::start();
    let options = Options { data: DATA as u64, ..Options::default() };
    let client = Client::connect_with(&server.path, &options).unwrap();
    let writer = client.create("/one", &WriteOptions::default()).unwrap();
    (server, client, writer)
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at ^ at >> 8 ^ at >> 16) as u8).collect()
}

fn wait_until(condition: impl Fn() -> bool) {
    while !condition() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn bytes_arrive_in_order_by_copy_and_in_place_however_scarce_the_data_are() {
    let (server, client, writer) = connect();
    let all = bytes(3_000_000);
    writer.write_all(&all[..1_500_000]).unwrap();
    // All pages but two are in use elsewhere.
    let held = client.buffer(DATA - 8192).unwrap();
    writer.write_all(&all[1_500_000..1_600_000]).unwrap();
    drop(held);
    let mut next = 1_600_000;
    for len in [1, 4096, 100_000, 5] {
        let mut buffer = client.buffer(len + 3).unwrap();
        buffer[..len].copy_from_slice(&all[next..next + len]);
        client.submit_write(WriteRequest::new(&writer, buffer).len(len)).unwrap();
        next += len;
        // Behind what was submitted.
        writer.write_all(&all[next..next + 7]).unwrap();
        next += 7;
        let completion = client.wait(None).unwrap().unwrap();
        assert_eq!((completion.result, completion.buffer.len()), (Ok(len), len + 3));
    }
    writer.write_all(&all[next..]).unwrap();
    assert_eq!(writer.len(), all.len() as u64);
    writer.write_all(&[]).unwrap();
    writer.sync().unwrap();
    writer.publish_at(1234).unwrap();
    assert!(*server.control.written.lock().unwrap() == all);
    assert_eq!(*server.control.changes.lock().unwrap(), ["Sync 0", "Publish 1234"]);
    client.buffer(DATA).expect("no page is in use");
}

#[test]
fn a_failed_write_says_why_and_frees_its_pages() {
    let (server, client, writer) = connect();
    server.control.write_error.store(ENOSPC as u32, Ordering::SeqCst);
    let error = writer.write_all(&bytes(1_000_000)).unwrap_err();
    assert_eq!((error.errno(), error.message()), (ENOSPC, "the disk is full"));
    let buffer = client.buffer(4096).unwrap();
    client.submit_write(WriteRequest::new(&writer, buffer)).unwrap();
    let completion = client.wait(None).unwrap().unwrap();
    assert_eq!(completion.result.as_ref().unwrap_err().errno(), ENOSPC);
    drop(completion);
    assert_eq!(writer.publish().unwrap_err().errno(), ENOSPC);
    wait_until(|| server.control.closed.load(Ordering::SeqCst) == 1);
    assert!(server.control.changes.lock().unwrap().is_empty(), "nothing was published");
    client.buffer(DATA).expect("no page is in use");
}

#[test]
fn a_writer_that_is_dropped_or_aborted_is_ended_at_the_server() {
    let (server, client, writer) = connect();
    writer.write_all(b"abc").unwrap();
    drop(writer);
    wait_until(|| server.control.closed.load(Ordering::SeqCst) == 1);
    let writer = client.create("/one", &WriteOptions::default()).unwrap();
    writer.abort().unwrap();
    assert_eq!(server.control.closed.load(Ordering::SeqCst), 2);
    assert!(server.control.changes.lock().unwrap().is_empty(), "nothing was published");
}

#[test]
fn requests_that_cannot_be_are_refused_before_they_are_sent() {
    let (_server, client, writer) = connect();
    let other = connect();
    let refused = |request: WriteRequest<'_>| client.submit_write(request).unwrap_err().errno();
    let buffer = || client.buffer(10).unwrap();
    assert_eq!(refused(WriteRequest::new(&other.2, buffer())), 22, "another client's writer");
    assert_eq!(refused(WriteRequest::new(&writer, other.1.buffer(10).unwrap())), 22);
    assert_eq!(refused(WriteRequest::new(&writer, buffer()).len(11)), 22, "more than it has");
    assert_eq!(refused(WriteRequest::publish(&writer).modified(-1)), 22);
    assert_eq!(client.create("/missing", &WriteOptions::default()).unwrap_err().errno(), 2);
    assert_eq!((client.room(), writer.len()), (256, 0));
    client.buffer(DATA).expect("no page is in use");
    assert_eq!(writer.publish_at(-1).unwrap_err().errno(), 22);
}

#[test]
fn a_server_that_goes_ends_a_writer() {
    let (mut server, client, writer) = connect();
    server.control.hold(true);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| writer.write_all(b"abc").unwrap_err());
        server.control.wait_for_requests(1);
        server.stop();
        assert_eq!(waiting.join().unwrap().errno(), 104);
    });
    assert_eq!(writer.sync().unwrap_err().errno(), 104);
    assert_eq!(writer.publish().unwrap_err().errno(), 104);
    assert_eq!(client.remove("/one").unwrap_err().errno(), 104);
}

#[test]
fn names_are_changed_as_asked() {
    let (server, client, _writer) = connect();
    client.remove("/a").unwrap();
    client.make_directory("/d").unwrap();
    client.remove_directory("/d").unwrap();
    client.rename("/a", "/b", Replace::Titles).unwrap();
    client.set_modified("/b", 5).unwrap();
    let expected = [
        "Remove { title: \"/a\" }",
        "MakeDirectory { directory: \"/d\" }",
        "RemoveDirectory { directory: \"/d\" }",
        "Rename { from: \"/a\", to: \"/b\", replace: Titles }",
        "SetModified { name: \"/b\", modified: 5 }",
    ];
    assert_eq!(*server.control.changes.lock().unwrap(), expected);
}

#[test]
fn a_title_in_memory_grows_in_place_and_its_final_bytes_are_written_back_once() {
    let server = FakeServer::start();
    let client = Client::connect(&server.path).unwrap();
    let mut writer = client.create_in_memory("/one", Replace::Titles).unwrap();
    assert_eq!((writer.len(), writer.limit(), writer.upload()), (0, MEMORY_LIMIT, "an-upload"));
    let all = bytes(700_000);
    let mut place = None;
    for len in [5, 300_000, 600_000] {
        let before = writer.len();
        writer.grow(len as u64).unwrap();
        let end = writer.written_back() as usize;
        writer.bytes_mut()[before - end..].copy_from_slice(&all[before..len]);
        assert_eq!(*place.get_or_insert(writer.as_ptr()), writer.as_ptr());
        assert!(*writer == all[..len]);
        writer.write_back(len as u64 - 3).unwrap();
        assert_eq!(writer.bytes_mut().len(), 3);
    }
    assert_eq!(writer.grow(MEMORY_ROOM + 1).unwrap_err().errno(), 12);
    assert_eq!(writer.grow(MEMORY_LIMIT + 1).unwrap_err().errno(), 12);
    assert_eq!((writer.len(), writer.written_back()), (600_000, 599_997));
    writer.grow(1).unwrap();
    assert_eq!(writer.write_back(599_996).unwrap_err().errno(), 22);
    assert_eq!(writer.write_back(600_001).unwrap_err().errno(), 22);
    client.submit_write(writer.write_back_request(599_998).unwrap()).unwrap();
    client.submit_write(writer.sync_request()).unwrap();
    assert_eq!(writer.written_back(), 599_998);
    assert_eq!(writer.write_back_request(599_997).unwrap_err().errno(), 22);
    for _ in 0..2 {
        assert_eq!(client.wait(None).unwrap().unwrap().result, Ok(0));
    }
    writer.publish_at(599_999, 7).unwrap();
    assert!(*server.control.written.lock().unwrap() == all[..599_999]);
    // What was synced outlives a writer, unless it is aborted.
    let edited = client.edit_in_memory("/one").unwrap();
    assert_eq!(&*edited, b"the older version");
    drop(edited);
    let mut resumed = client.resume_in_memory("/one", "an-upload").unwrap();
    assert_eq!((&*resumed, resumed.written_back()), (&b"what was synced"[..], 15));
    assert_eq!((resumed.bytes_mut().len(), resumed.sync(14).unwrap_err().errno()), (0, 22));
    drop(resumed);
    client.edit_in_memory("/one").unwrap().abort().unwrap();
    let expected = ["Sync 0", "Publish 7", "kept", "kept", "kept"];
    wait_until(|| server.control.changes.lock().unwrap().len() >= expected.len());
    assert_eq!(*server.control.changes.lock().unwrap(), expected);
    let mut late = client.create_in_memory("/one", Replace::Titles).unwrap();
    late.grow(10).unwrap();
    server.control.write_error.store(ENOSPC as u32, Ordering::SeqCst);
    let error = late.sync(10).unwrap_err();
    assert_eq!((error.errno(), error.message()), (ENOSPC, "the disk is full"));
}

#[test]
fn a_title_in_memory_is_built_by_its_file_alone() {
    let server = FakeServer::start();
    let client = Client::connect(&server.path).unwrap();
    let mut file = client.create_in_memory("/one", Replace::Titles).unwrap().into_file();
    assert!(file.is_empty());
    file.grow(10).unwrap();
    assert_eq!(file.grow(MEMORY_LIMIT + 1).unwrap_err().errno(), 12);
    rustix::io::pwrite(&file, b"0123456789", file.first()).unwrap();
    file.write_back(4).unwrap();
    assert_eq!(file.sync(3).unwrap_err().errno(), 22);
    assert_eq!((file.len(), file.written_back()), (10, 4));
    file.publish_at(9, 0).unwrap();
    assert_eq!(*server.control.written.lock().unwrap(), b"012345678");
    assert_eq!(server.control.changes.lock().unwrap()[0], "Publish 0");
}
