//! Rows H01, H02 and H16 to H18: clients that take their time.

use std::time::Duration;

use tactus::http::Abuse;
use tactus_core::units::{BitRate, Nanos};

use crate::client::Client;
use crate::house::House;

/// Stands for the ten seconds of the rows: the bound is a number, the answer is the promise.
const SOON: Duration = Duration::from_millis(300);

#[test]
fn h01_slow_heads() {
    let house = House::with(|plan| plan.limits.head_time = Duration::from_secs(2));
    // Each begins at once, so that none counts as silent.
    let begin = |n: u16| {
        let mut client = house.client_from((n / 50 + 1).to_be_bytes());
        client.send("G");
        client
    };
    let mut clients: Vec<_> = (0..1000).map(begin).collect();
    for client in &mut clients {
        client.send("E");
    }
    house.serves_others();
    for client in &mut clients {
        let answer = client.answer().expect("an answer before the close");
        assert!(answer.status == 408 && answer.closes());
    }
    assert_eq!(house.count(Abuse::SlowHeader), 1000);
    drop(clients);
    house.wait_until("all are gone", |house| house.counters.connections_open() == 0);
}

#[test]
fn h02_silent_connections() {
    let house = House::with(|plan| plan.limits.head_time = SOON);
    let mut clients: Vec<_> = (0..20).map(|_| house.client()).collect();
    for client in &mut clients {
        client.is_closed();
    }
    assert_eq!((house.count(Abuse::IdleNew), house.count(Abuse::SlowHeader)), (20, 0));
}

#[test]
fn a_kept_connection_may_be_silent_for_its_own_time_and_is_no_abuse() {
    let house = House::with(|plan| {
        plan.limits.head_time = Duration::from_secs(20);
        plan.limits.keep_alive_time = SOON;
    });
    let mut client = house.client();
    assert_eq!(client.get("/dir/b.mp4", "").status, 200);
    client.is_closed();
    assert!(house.counters.abuses().all(|(_, count)| count == 0));
    // A head that has begun has the head's time, whatever the silence before it may last.
    let house = House::with(|plan| plan.limits.head_time = SOON);
    let mut client = house.client();
    assert_eq!(client.get("/dir/b.mp4", "").status, 200);
    client.send("GET /");
    assert_eq!(client.answer().unwrap().status, 408);
}

#[test]
fn h16_slow_bodies() {
    let house = House::with(|plan| {
        plan.limits.body_time = SOON;
        plan.limits.body_bytes_min = 1000;
    });
    for framing in ["Content-Length: 60000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\nea60\r\n"] {
        let mut client = house.client();
        client.send(format!("GET /dir/b.mp4 HTTP/1.1\r\nHost: localhost\r\n{framing}"));
        client.send([b'x'; 999]);
        let answer = client.answer().unwrap();
        assert!(answer.status == 408 && answer.closes());
        client.is_closed();
    }
    assert_eq!(house.count(Abuse::SlowBody), 2);
}

/// Long enough that no socket buffer holds it.
const LONG: usize = 48 << 20;

fn slow_reader(house: &House, target: &str) {
    std::fs::write(house.root().join("long.ts"), crate::house::content(LONG)).unwrap();
    let mut slow = Client::connect_from(house.address, [127, 0, 0, 1].into(), Some(16 * 1024));
    slow.send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    assert_eq!(slow.head().unwrap().status, 200);
    house.wait_until("it is counted", |house| house.count(Abuse::SlowReader) == 1);
    assert!(slow.rest().len() < LONG, "the connection was closed before the end");
    house.wait_until("its room is free again", |house| house.engine.broker.streams() == 0);
    house.serves_others();
}

#[test]
fn h17_slow_readers_of_paced_streams() {
    let house = House::with(|plan| plan.config.slow_reader.behind_max = Nanos::from_millis(500));
    slow_reader(&house, "/long.ts?rate=100M");
}

#[test]
fn h18_slow_readers_of_plain_downloads() {
    let house = House::with(|plan| {
        plan.config.slow_reader.download_window = Nanos::from_millis(500);
        plan.config.slow_reader.download_rate_min = BitRate(32 * 1024);
    });
    slow_reader(&house, "/long.ts?rate=max");
}
