//! Rows H01, H02 and H16 to H18: clients that take their time.

use std::time::Duration;

use tactus_core::units::{BitRate, Nanos};
use tactus_http::Abuse;

use crate::client::Client;
use crate::test_server::TestServer;

/// Stands for the ten seconds of the rows: the bound is a number, the answer is the promise.
const SOON: Duration = Duration::from_millis(300);

#[test]
fn h01_slow_heads() {
    let server = TestServer::with(|plan| plan.limits.head_time = Duration::from_secs(2));
    // Each begins at once, so that none counts as silent.
    let begin = |n: u16| {
        let mut client = server.client_from((n / 50 + 1).to_be_bytes());
        client.send("G");
        client
    };
    let mut clients: Vec<_> = (0..1000).map(begin).collect();
    for client in &mut clients {
        client.send("E");
    }
    server.serves_others();
    for client in &mut clients {
        let answer = client.answer().expect("an answer before the close");
        assert!(answer.status == 408 && answer.closes());
    }
    assert_eq!(server.count(Abuse::SlowHeader), 1000);
    drop(clients);
    server.wait_until("all are gone", |server| server.counters.connections_open() == 0);
}

#[test]
fn h02_silent_connections() {
    let server = TestServer::with(|plan| plan.limits.head_time = SOON);
    let mut clients: Vec<_> = (0..20).map(|_| server.client()).collect();
    for client in &mut clients {
        client.is_closed();
    }
    assert_eq!((server.count(Abuse::IdleNew), server.count(Abuse::SlowHeader)), (20, 0));
}

#[test]
fn a_kept_connection_may_be_silent_for_its_own_time_and_is_no_abuse() {
    let server = TestServer::with(|plan| {
        plan.limits.head_time = Duration::from_secs(20);
        plan.limits.keep_alive_time = SOON;
    });
    let mut client = server.client();
    assert_eq!(client.get("/dir/b.mp4", "").status, 200);
    client.is_closed();
    assert!(server.counters.abuses().all(|(_, count)| count == 0));
    // A head that has begun has the head's time, whatever the silence before it may last.
    let server = TestServer::with(|plan| plan.limits.head_time = SOON);
    let mut client = server.client();
    assert_eq!(client.get("/dir/b.mp4", "").status, 200);
    client.send("GET /");
    assert_eq!(client.answer().unwrap().status, 408);
}

#[test]
fn h16_slow_bodies() {
    let server = TestServer::with(|plan| {
        plan.limits.body_time = SOON;
        plan.limits.body_bytes_min = 1000;
    });
    for framing in ["Content-Length: 60000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\nea60\r\n"] {
        let mut client = server.client();
        client.send(format!("GET /dir/b.mp4 HTTP/1.1\r\nHost: localhost\r\n{framing}"));
        client.send([b'x'; 999]);
        let answer = client.answer().unwrap();
        assert!(answer.status == 408 && answer.closes());
        client.is_closed();
    }
    assert_eq!(server.count(Abuse::SlowBody), 2);
}

/// Long enough that no socket buffer holds it.
const LONG: usize = 48 << 20;

fn slow_reader(server: &TestServer, target: &str) {
    std::fs::write(server.root().join("long.ts"), crate::test_server::content(LONG)).unwrap();
    let mut slow = Client::connect_from(server.address, [127, 0, 0, 1].into(), Some(16 * 1024));
    slow.send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    assert_eq!(slow.head().unwrap().status, 200);
    server.wait_until("it is counted", |server| server.count(Abuse::SlowReader) == 1);
    assert!(slow.rest().len() < LONG, "the connection was closed before the end");
    server.wait_until("its room is free again", |server| server.engine.broker.streams() == 0);
    server.serves_others();
}

#[test]
fn h17_slow_readers_of_paced_streams() {
    let server =
        TestServer::with(|plan| plan.engine.slow_reader.behind_max = Nanos::from_millis(500));
    slow_reader(&server, "/long.ts?rate=100M");
}

#[test]
fn h18_slow_readers_of_plain_downloads() {
    let server = TestServer::with(|plan| {
        plan.engine.slow_reader.download_window = Nanos::from_millis(500);
        plan.engine.slow_reader.download_rate_min = BitRate(32 * 1024);
    });
    slow_reader(&server, "/long.ts?rate=max");
}
