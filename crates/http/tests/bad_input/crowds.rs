//! Rows H14, H20 and R06: more of everything than there is.

use std::io::{ErrorKind, Write};
use std::sync::atomic::{AtomicUsize, Ordering};

use tactus_control::settings::ClientShare;
use tactus_core::units::{BitRate, Bytes, MIB};
use tactus_http::Abuse;
use tactus_notation::Auto;
use tactus_notation::net::Net;

use crate::client::Client;
use crate::test_server::{A_LEN, TOKEN, TestServer, content};

#[test]
fn h14_ten_thousand_requests_at_once() {
    const REQUESTS: usize = 10_000;
    let server = TestServer::new();
    let mut client = Client::connect_from(server.address, [127, 0, 0, 1].into(), Some(16 * 1024));
    // Each answer tells which request it belongs to: odd ones have another length.
    let request = |n: usize| {
        let target = if n.is_multiple_of(2) { "/a.ts" } else { "/dir/b.mp4" };
        format!("HEAD {target} HTTP/1.1\r\nHost: localhost\r\n\r\n")
    };
    let mut writer = client.socket().try_clone().unwrap();
    let written = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..REQUESTS {
                writer.write_all(request(n).as_bytes()).unwrap();
                written.fetch_add(1, Ordering::Relaxed);
            }
        });
        for n in 0..REQUESTS {
            let answer = client.answer_to("HEAD").expect("as many answers as requests");
            let len = if n.is_multiple_of(2) { A_LEN } else { 5000 };
            assert_eq!(answer.field("content-length"), Some(&*len.to_string()), "answer {n}");
        }
    });
    assert_eq!(written.load(Ordering::Relaxed), REQUESTS);
}

#[test]
fn h14_who_does_not_take_answers_is_not_read() {
    const BYTES_MAX: usize = 256 << 20;
    let server = TestServer::new();
    let client = Client::connect_from(server.address, [127, 0, 0, 1].into(), Some(16 * 1024));
    let mut socket = client.socket();
    socket.set_write_timeout(Some(std::time::Duration::from_secs(1))).unwrap();
    let requests = "HEAD /a.ts HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(1000);
    let mut sent = 0;
    loop {
        match socket.write(requests.as_bytes()) {
            Ok(taken) => sent += taken,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
        assert!(sent < BYTES_MAX, "the server reads on without end");
    }
    server.serves_others();
}

#[test]
fn h20_ten_thousand_connections_from_one_address() {
    const CONNECTIONS: usize = 10_000;
    let server = TestServer::new();
    let mut welcome: Vec<_> = (0..100).map(|_| server.client()).collect();
    // The books are kept in the order of arrival, so none of these can come before the first.
    for refused in 1..=CONNECTIONS - 100 {
        let mut client = server.client();
        if refused % 1000 == 1 {
            let answer = client.answer().expect("the refusal arrives");
            assert_eq!((answer.status, answer.field("retry-after")), (429, Some("5")));
            assert!(
                answer.text().contains("http.connections_per_address_max"),
                "{}",
                answer.text()
            );
        } else {
            client.rest();
        }
        assert_eq!(server.count(Abuse::PerIpLimit), refused as u64);
    }
    server.serves_others();
    for client in &mut welcome {
        assert_eq!(client.ask("HEAD", "/a.ts", "").status, 200);
    }
    drop(welcome);
    server.wait_until("all are gone", |server| server.counters.connections_open() == 0);
    assert_eq!(server.client().ask("HEAD", "/a.ts", "").status, 200, "there is room again");
}

#[test]
fn one_connection_too_many_is_told_so() {
    let server = TestServer::with(|plan| plan.limits.connections_max = 10);
    let kept: Vec<_> = (0..10).map(|_| server.client()).collect();
    let mut client = server.client();
    let answer = client.answer().unwrap();
    assert_eq!((answer.status, answer.field("retry-after").is_some()), (503, true));
    client.is_closed();
    assert_eq!(server.count(Abuse::ConnectionLimit), 1);
    drop(kept);
    server.wait_until("all are gone", |server| server.counters.connections_open() == 0);
    server.serves_others();
}

#[test]
fn an_address_with_a_full_score_is_refused_for_a_while() {
    let server = TestServer::with(|plan| plan.limits.abuse_score_max = 100);
    // Five framing conflicts of twenty points.
    for _ in 0..5 {
        let mut client = server.client();
        client.send("GET / HTTP/1.1\r\nHost: h\r\nContent-Length: x\r\n\r\n");
        assert_eq!(client.answer().unwrap().status, 400);
        client.is_closed();
    }
    let mut client = server.client();
    let answer = client.answer().expect("the refusal arrives");
    assert_eq!((answer.status, answer.text().contains("http.abuse_score_max")), (429, true));
    let wait: u64 = answer.field("retry-after").expect("when").parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    client.is_closed();
    assert_eq!(server.count(Abuse::AbuseScore), 1);
    server.serves_others();
}

#[test]
fn r06_a_thousand_seeks_at_once() {
    const CLIENTS: usize = 1000;
    let server = TestServer::with(|plan| {
        plan.engine.memory.streams_max = 8;
        plan.limits.connections_per_address_max = CLIENTS + 100;
    });
    // Streams that last fill the table. (Holding their title in memory may take a place of it.)
    let mut streams = Vec::new();
    loop {
        let mut stream = server.client();
        stream.send("GET /a.ts?rate=100k HTTP/1.1\r\nHost: localhost\r\n\r\n");
        match stream.head().unwrap().status {
            200 => streams.push(stream),
            status => break assert_eq!(status, 503),
        }
    }
    assert!((6..=8).contains(&streams.len()), "{} streams fit", streams.len());
    let a = content(A_LEN);
    let ask = |client: &mut Client, n: usize| {
        let at = n * 7919 % A_LEN;
        let target = "/a.ts?rate=8.8M";
        let answer = client.get(target, &format!("Range: bytes={at}-{at}\r\n"));
        match answer.status {
            206 => assert_eq!(answer.body, a[at..=at]),
            503 => {
                assert!(answer.field("retry-after").is_some(), "no Retry-After");
                assert!(answer.text().contains("\"resource\":\"streams\""), "{}", answer.text());
            }
            status => panic!("{status}"),
        }
        answer.status
    };
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| server.client()).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        assert_eq!(ask(client, n), 503, "each costs a place, and there is none");
    }
    assert_eq!(server.engine.broker.running().len(), streams.len(), "the streams go on");
    drop(streams);
    server.wait_until("there is room", |server| server.engine.broker.running().is_empty());
    // Now some find room and some do not; nobody gets anything else.
    let served = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for (share, clients) in clients.chunks_mut(CLIENTS / 20).enumerate() {
            let (ask, served) = (&ask, &served);
            scope.spawn(move || {
                for (n, client) in clients.iter_mut().enumerate() {
                    let status = ask(client, share * 1000 + n);
                    served.fetch_add(usize::from(status == 206), Ordering::Relaxed);
                }
            });
        }
    });
    assert!(served.load(Ordering::Relaxed) > 0, "nobody was served");
}

/// One address takes as many downloads as it gets, and reads none of them.
#[test]
fn s10_one_address_leaves_downloads_rates_and_short_answers_to_others() {
    let server = TestServer::with(|plan| {
        plan.uploads = true;
        plan.engine.best_effort.streams_max = Auto::Set(8);
        plan.engine.best_effort.client_share = ClientShare::Fair;
        plan.rate.asked.client_share = ClientShare::Fair;
        plan.engine.link.rate = Auto::Set(BitRate(100_000_000));
    });
    std::fs::write(server.root().join("big.bin"), content(20_000_000)).unwrap();
    let begin = |last: [u8; 2], target: &str, fields: &str| {
        let from = [127, 1, last[0], last[1]].into();
        let mut client = Client::connect_from(server.address, from, Some(16 * 1024));
        client.send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n"));
        let head = client.head().expect("an answer");
        (client, head)
    };
    let fill = |last, target: &str, fields: &str| {
        let mut kept = Vec::new();
        loop {
            let (mut client, head) = begin(last, target, fields);
            match head.status {
                200 => kept.push(client),
                503 => {
                    let len = head.field("content-length").unwrap().parse().unwrap();
                    return (kept, client.bytes(len));
                }
                status => panic!("{status}"),
            }
        }
    };
    // Downloads: half of all places; the refusal names the share.
    let (downloads, said) = fill([0, 66], "/big.bin?rate=max", "");
    assert_eq!(downloads.len(), 4);
    assert!(said.contains("this address") && said.contains("client_share"), "{said}");
    assert_eq!(begin([0, 7], "/big.bin?rate=max", "").1.status, 200, "another address");
    let token = format!("Authorization: Bearer {TOKEN}\r\n");
    assert_eq!(
        begin([0, 66], "/big.bin?rate=max", &token).1.status,
        200,
        "a principal has its own share"
    );
    // Short answers and pages need no place of a download.
    for target in ["/dir/b.mp4?rate=max", "/dir/", "/dir/?format=json", "/empty.ts?rate=max"] {
        assert_eq!(begin([0, 8], target, "").1.status, 200, "{target}");
        assert_eq!(begin([0, 66], target, "").1.status, 200, "{target}");
    }
    // Rates: half of the link, with many streams or with one.
    let (streams, said) = fill([1, 66], "/big.bin?rate=10M", "");
    // 90 Mbit/s are reservable; one address gets half.
    assert_eq!(streams.len(), 4);
    assert!(said.contains("this address would hold"), "{said}");
    assert!(said.contains("of link; its share is"), "the resource is named: {said}");
    assert_eq!(begin([1, 67], "/big.bin?rate=60M", "").1.status, 503, "a single stream too");
    assert_eq!(begin([1, 7], "/big.bin?rate=10M", "").1.status, 200, "another address");
    // Released shares are free again.
    drop((downloads, streams));
    // A share returns when the engine has retired the stream, which is after its end.
    server.wait_until("the share is free", |_| {
        begin([0, 66], "/big.bin?rate=max", "").1.status == 200
    });
}

#[test]
fn r06_as_many_downloads_are_served_as_half_of_the_memory_holds() {
    let server = TestServer::with(|plan| {
        plan.engine.best_effort.streams_max = Auto::Auto;
        plan.engine.best_effort.client_share = ClientShare::All;
        // 72 downloads of three blocks of 256 KiB have half of it.
        plan.engine.memory.arena = Auto::Set(Bytes(108 * MIB));
    });
    std::fs::write(server.root().join("big.bin"), content(20_000_000)).unwrap();
    let begin = || {
        let mut client =
            Client::connect_from(server.address, [127, 0, 0, 1].into(), Some(16 * 1024));
        client.send("GET /big.bin HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let status = client.head().expect("an answer").status;
        (client, status)
    };
    let downloads: Vec<_> = (0..73).map(|_| begin()).collect();
    let statuses: Vec<_> = downloads.iter().map(|(_, status)| *status).collect();
    assert_eq!(statuses[..72], [200; 72]);
    assert_eq!(statuses[72], 503);
}

#[test]
fn s10_behind_a_trusted_proxy_each_client_has_its_share() {
    let server = TestServer::with(|plan| {
        plan.limits.proxies.trusted = vec![Net::parse("127.0.0.1").unwrap()];
        plan.engine.best_effort.streams_max = Auto::Set(6);
        plan.engine.best_effort.client_share = ClientShare::Fair;
    });
    std::fs::write(server.root().join("big.bin"), content(20_000_000)).unwrap();
    let begin = |of: &str| {
        let mut proxy =
            Client::connect_from(server.address, [127, 0, 0, 1].into(), Some(16 * 1024));
        let fields = format!("X-Forwarded-For: {of}\r\n");
        proxy.send(format!("GET /big.bin?rate=max HTTP/1.1\r\nHost: h\r\n{fields}\r\n"));
        let head = proxy.head().expect("an answer");
        (proxy, head.status)
    };
    let kept: Vec<_> = (0..4).map(|_| begin("192.0.2.66")).collect();
    let statuses: Vec<_> = kept.iter().map(|(_, status)| *status).collect();
    assert_eq!(statuses, [200, 200, 200, 503]);
    assert_eq!(begin("192.0.2.7").1, 200);
}
