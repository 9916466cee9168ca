//! Clients behind a trusted proxy: each client counts by itself, the proxy not at all.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tactus_core::units::{Bytes, MIB};
use tactus_http::Abuse;
use tactus_notation::Auto;
use tactus_notation::net::Net;

use crate::client::Client;
use crate::test_server::{A_LEN, Plan, TOKEN, TestServer, content};

/// 127.0.0.1 is a proxy; addresses in 127.1.0.0/16 are not.
fn behind_a_proxy(plan: &mut Plan) {
    plan.limits.proxies.trusted = vec![Net::parse("127.0.0.1").unwrap()];
    plan.limits.abuse_score_max = 100;
    plan.uploads = true;
    // Room for a few hundred viewers.
    plan.engine.memory.arena = Auto::Set(Bytes(512 * MIB));
    plan.engine.memory.streams_max = 512;
}

fn of(client: &str) -> String {
    format!("X-Forwarded-For: {client}\r\n")
}

fn wrong_token(client: &str) -> String {
    format!("{}Authorization: Bearer this-is-no-token\r\n", of(client))
}

#[test]
fn w02_one_client_of_a_proxy_shuts_out_no_other() {
    let server = TestServer::with(behind_a_proxy);
    let mut proxy = server.client();
    for _ in 0..20 {
        assert_eq!(proxy.ask("DELETE", "/x", &wrong_token("192.0.2.66")).status, 401);
    }
    let refused = proxy.get("/a.ts?rate=max", &of("192.0.2.66"));
    assert_eq!(refused.status, 429);
    assert!(refused.text().contains("http.abuse_score_max"), "{}", refused.text());
    let wait: u64 = refused.field("retry-after").expect("when").parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    // The connection still serves other clients, and so do new ones.
    assert_eq!(proxy.get("/a.ts?rate=max", &of("192.0.2.7")).body, content(A_LEN));
    assert_eq!(server.client().get("/a.ts?rate=max", &of("192.0.2.7")).status, 200);
    assert_eq!(server.client().get("/a.ts?rate=max", "").status, 200, "the proxy itself");
    // Entries that the client adds before its own address neither help it nor harm others.
    let forged = of("192.0.2.7, 192.0.2.66");
    assert_eq!(server.client().get("/a.ts?rate=max", &forged).status, 429);
    assert_eq!(server.count(Abuse::AbuseScore), 2);
}

#[test]
fn w02_broken_requests_count_for_the_client_that_sent_them() {
    let server = TestServer::with(behind_a_proxy);
    for _ in 0..100 {
        let mut proxy = server.client();
        let sent = format!("GET /%00 HTTP/1.1\r\nHost: h\r\n{}\r\n", of("192.0.2.66"));
        proxy.send(sent);
        assert_eq!(proxy.answer().expect("an answer").status, 400);
    }
    assert_eq!(server.client().get("/dir/", &of("192.0.2.66")).status, 429);
    // Requests without a parsable head have no known client, so they do not count.
    for _ in 0..30 {
        let mut proxy = server.client();
        proxy.send("GET / HTTP/1.1\r\nHost : h\r\n\r\n");
        assert_eq!(proxy.answer().expect("an answer").status, 400);
    }
    assert_eq!(server.client().get("/dir/", &of("192.0.2.7")).status, 200);
}

#[test]
fn w02_an_untrusted_proxy_is_not_believed() {
    let server = TestServer::with(behind_a_proxy);
    for n in 0..20 {
        let mut stranger = server.client_from([0, 66]);
        let fields = wrong_token(&format!("192.0.2.{n}"));
        assert_eq!(stranger.ask("DELETE", "/x", &fields).status, 401);
    }
    let mut stranger = server.client_from([0, 66]);
    assert_eq!(stranger.answer().expect("the refusal arrives").status, 429);
    for n in 0..20 {
        assert_eq!(server.client().get("/dir/", &of(&format!("192.0.2.{n}"))).status, 200);
    }
}

#[test]
fn w02_requests_at_once_are_limited_by_client_and_connections_of_the_proxy_are_not() {
    const VIEWERS: usize = 101;
    let server = TestServer::with(|plan| {
        behind_a_proxy(plan);
        plan.limits.connections_per_address_max = 2;
    });
    let begin = |client: &str| {
        let mut proxy = server.client();
        proxy.send(format!("GET /a.ts?rate=100k HTTP/1.1\r\nHost: h\r\n{}\r\n", of(client)));
        let head = proxy.head().expect("an answer");
        (proxy, head)
    };
    let viewers: Vec<_> = (0..VIEWERS).map(|n| begin(&format!("192.0.2.{n}"))).collect();
    let statuses: Vec<_> = viewers.iter().map(|(_, head)| head.status).collect();
    assert!(
        statuses.iter().all(|status| *status == 200),
        "each one is a different client: {statuses:?}"
    );
    let (second, head) = begin("192.0.2.0");
    assert_eq!(head.status, 200);
    let (_, head) = begin("192.0.2.0");
    assert_eq!((head.status, head.field("retry-after")), (429, Some("5")));
    assert_eq!(server.count(Abuse::PerIpLimit), 1);
    // A finished request releases its permit.
    drop((second, viewers));
    server
        .wait_until("all connections are closed", |server| server.counters.connections_open() == 0);
    assert_eq!(begin("192.0.2.0").1.status, 200);
}

#[test]
fn w02_streams_are_shown_with_their_client() {
    let server = TestServer::with(behind_a_proxy);
    let mut proxy = server.client();
    let fields = of("192.0.2.7:4711");
    proxy.send(format!("GET /a.ts?rate=100k HTTP/1.1\r\nHost: h\r\n{fields}\r\n"));
    assert_eq!(proxy.head().expect("an answer").status, 200);
    server.wait_until("it runs", |server| !server.engine.broker.running().is_empty());
    let running = server.engine.broker.running();
    assert_eq!(running[0].client.as_deref(), Some("192.0.2.7:4711"));
}

fn version_2(command: u8, source: [u8; 4]) -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
    header.extend([command, 0x11, 0, 12]);
    header.extend(source);
    header.extend([127, 0, 0, 1, 0x12, 0x67, 0, 80]);
    header
}

#[test]
fn w02_the_proxy_protocol_names_the_client_of_a_connection() {
    let server = TestServer::with(|plan| {
        behind_a_proxy(plan);
        plan.limits.connections_per_address_max = 3;
    });
    let ask = |header: &[u8], method: &str, fields: &str| {
        let mut proxy = Client::connect(server.proxied);
        // In pieces, as a network may deliver it.
        for piece in header.chunks(7) {
            proxy.send(piece);
        }
        let answer = proxy.ask(method, "/dir/", fields);
        (proxy, answer.status)
    };
    let line = b"PROXY TCP4 192.0.2.66 127.0.0.1 4711 80\r\n";
    for header in [&line[..], &version_2(0x21, [192, 0, 2, 66])] {
        let token = "Authorization: Bearer this-is-no-token\r\n";
        (0..10).for_each(|_| assert_eq!(ask(header, "DELETE", token).1, 401));
    }
    assert_eq!(ask(line, "GET", "").1, 429, "both versions count for its score");
    assert_eq!(ask(&version_2(0x21, [192, 0, 2, 7]), "GET", "").1, 200);
    // The proxy itself speaks as LOCAL or UNKNOWN, without limit.
    let kept: Vec<_> = (0..5).map(|_| ask(&version_2(0x20, [192, 0, 2, 66]), "GET", "")).collect();
    assert!(kept.iter().all(|(_, status)| *status == 200));
    assert_eq!(
        ask(b"PROXY UNKNOWN\r\n", "GET", &of("192.0.2.66")).1,
        429,
        "and names the client in a field"
    );
    // Connections of one client count as direct ones do.
    let header = version_2(0x21, [192, 0, 2, 8]);
    let kept: Vec<_> = (0..3).map(|_| ask(&header, "GET", "")).collect();
    assert!(kept.iter().all(|(_, status)| *status == 200));
    assert_eq!(ask(&header, "GET", "").1, 429);
}

#[test]
fn w02_the_proxy_protocol_is_accepted_only_at_configured_addresses_from_trusted_proxies() {
    let server = TestServer::with(behind_a_proxy);
    // Without the header, and with a malformed one.
    for start in [&b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"[..], b"PROXY TCP4 1.2.3 127.0.0.1 1 2\r\n"]
    {
        let mut proxy = Client::connect(server.proxied);
        proxy.send(start);
        assert_eq!(proxy.answer().expect("the refusal arrives").status, 400);
        proxy.is_closed();
    }
    // From an untrusted peer.
    let mut stranger = Client::connect_from(server.proxied, [127, 1, 0, 9].into(), None);
    stranger.send("PROXY TCP4 192.0.2.7 127.0.0.1 4711 80\r\n");
    assert_eq!(stranger.answer().expect("the refusal arrives").status, 403);
    // At an address without the PROXY protocol.
    for header in [b"PROXY TCP4 192.0.2.7 127.0.0.1 4711 80\r\n".to_vec(), version_2(0x21, [1; 4])]
    {
        let mut proxy = server.client();
        proxy.send([&header[..], b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"].concat());
        assert_eq!(proxy.answer().expect("the refusal arrives").status, 400);
    }
    // A silent peer is disconnected after a while.
    server.serves_others();
}

#[test]
fn w03_paths_in_answers_have_the_public_prefix() {
    let server = TestServer::with(|plan| {
        behind_a_proxy(plan);
        plan.limits.public =
            tactus_http::settings::PublicUrl::parse("https://tv.example/media/").unwrap();
    });
    let auth = format!("{}Authorization: Bearer {TOKEN}\r\n", of("192.0.2.7"));
    let mut proxy = server.client();
    let redirect = proxy.get("/dir", &of("192.0.2.7"));
    assert_eq!((redirect.status, redirect.field("location")), (301, Some("/media/dir/")));
    assert!(redirect.text().contains("https://tv.example/media/dir/"));
    let put = proxy.ask("PUT", "/n.ts", &format!("{auth}Content-Length: 0\r\n"));
    assert_eq!((put.status, put.field("location")), (201, Some("/media/n.ts")));
    let tus = format!("{auth}Tus-Resumable: 1.0.0\r\nUpload-Length: 3\r\n");
    let made = proxy.ask("POST", "/api/v1/uploads?path=/t.ts", &tus);
    let url = made.field("location").expect("the upload's URL").to_owned();
    assert!(url.starts_with("/media/api/v1/uploads/"), "{url}");
    let found = proxy.ask("PROPFIND", "/dir/", &format!("{}Depth: 1\r\n", of("192.0.2.7")));
    assert!(found.text().contains("<D:href>/media/dir/b.mp4</D:href>"), "{}", found.text());
    let to = |to: &str| format!("{auth}Destination: {to}\r\n");
    let moved = proxy.ask("MOVE", "/n.ts", &to("https://tv.example/media/m.ts"));
    assert_eq!((moved.status, moved.field("location")), (201, Some("/media/m.ts")));
    assert_eq!(proxy.ask("COPY", "/m.ts", &to("/media/dir/c.ts")).status, 201);
    assert_eq!(proxy.ask("MOVE", "/m.ts", &to("https://tv.example/m.ts")).status, 502);
    assert_eq!(proxy.ask("MOVE", "/m.ts", &to("https://evil.example/media/m2.ts")).status, 502);
    let page = format!("{auth}Origin: https://tv.example\r\nContent-Length: 0\r\n");
    assert_eq!(proxy.ask("PUT", "/p.ts", &page).status, 201);
    // Direct clients get paths without the prefix.
    let direct = server.client_from([0, 9]).get("/dir", "");
    assert_eq!(direct.field("location"), Some("/dir/"));
}

#[test]
fn w03_parts_of_an_upload_are_named_by_their_public_urls() {
    let server = TestServer::with(|plan| {
        behind_a_proxy(plan);
        plan.limits.public =
            tactus_http::settings::PublicUrl::parse("https://tv.example/my%20media/").unwrap();
    });
    let fields =
        format!("{}Authorization: Bearer {TOKEN}\r\nTus-Resumable: 1.0.0\r\n", of("192.0.2.7"));
    let mut proxy = server.client();
    let part = "Upload-Length: 3\r\nUpload-Concat: partial\r\nContent-Length: 3\r\n\
                Content-Type: application/offset+octet-stream\r\n";
    let mut urls = Vec::new();
    for text in ["abc", "def"] {
        let head = "POST /api/v1/uploads?path=/whole.ts HTTP/1.1\r\nHost: localhost\r\n";
        proxy.send(format!("{head}{fields}{part}\r\n{text}"));
        let made = proxy.answer().expect("an answer");
        assert_eq!(made.status, 201, "{}", made.text());
        urls.push(made.field("location").expect("its URL").to_owned());
    }
    assert!(urls.iter().all(|url| url.starts_with("/my%20media/api/v1/uploads/")), "{urls:?}");
    let [first, second] = &urls[..] else { panic!("{urls:?}") };
    let bare = |url: &str| url.strip_prefix("/my%20media").expect("the prefix").to_owned();
    for (n, list) in [
        format!("{first} HTTPS://tv.example{second}"),
        format!("http://tv.example{first} {}", bare(second)),
        format!("{} {}", bare(first), bare(second)),
    ]
    .into_iter()
    .enumerate()
    {
        let whole = format!("{fields}Upload-Concat: final;{list}\r\n");
        let made = proxy.ask("POST", &format!("/api/v1/uploads?path=/whole{n}.ts"), &whole);
        assert_eq!(made.status, 201, "{list}: {}", made.text());
        let read = proxy.get(&format!("/whole{n}.ts?rate=max"), "");
        assert_eq!(read.body, b"abcdef", "{list}");
    }
    let elsewhere = format!("{fields}Upload-Concat: final;/other{}\r\n", bare(first));
    let made = proxy.ask("POST", "/api/v1/uploads?path=/x.ts", &elsewhere);
    assert_eq!(made.status, 400, "{}", made.text());
}

/// Twenty attackers and two hundred viewers through one proxy, for a few seconds.
#[test]
fn w02_attackers_behind_a_proxy_cost_its_viewers_nothing() {
    const VIEWERS: usize = 200;
    const ATTACKERS: usize = 20;
    const SPAN: Duration = Duration::from_secs(3);
    let server = TestServer::with(behind_a_proxy);
    let (sent, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let is_over = AtomicBool::new(false);
    let late = std::thread::scope(|scope| {
        for attacker in 0..ATTACKERS {
            let (server, sent, refused, is_over) = (&server, &sent, &refused, &is_over);
            scope.spawn(move || {
                let mut proxy = server.client();
                let fields = wrong_token(&format!("198.51.100.{attacker}"));
                let begun = Instant::now();
                let mut next = begun;
                while !is_over.load(Ordering::Relaxed) {
                    // Each sends ten requests per second.
                    next += Duration::from_millis(100);
                    std::thread::sleep(next.saturating_duration_since(Instant::now()));
                    let status = proxy.ask("DELETE", "/x", &fields).status;
                    sent.fetch_add(1, Ordering::Relaxed);
                    refused.fetch_add(usize::from(status == 429), Ordering::Relaxed);
                }
            });
        }
        // The attack begins before the first viewer.
        server.wait_until("there are attacks", |_| sent.load(Ordering::Relaxed) >= 2 * ATTACKERS);
        let begun = Instant::now();
        let mut viewers: Vec<_> = (0..VIEWERS)
            .map(|n| {
                let mut proxy = server.client();
                let fields = of(&format!("192.0.2.{n}"));
                let target = format!("/a.ts?rate=200k&viewer={n}");
                proxy.send(format!("GET {target} HTTP/1.1\r\nHost: h\r\n{fields}\r\n"));
                assert_eq!(proxy.head().expect("an answer").status, 200, "viewer {n} is refused");
                proxy
            })
            .collect();
        std::thread::sleep(SPAN.saturating_sub(begun.elapsed()));
        let underruns = server.engine.counters.links[0].underruns.value();
        is_over.store(true, Ordering::Relaxed);
        for viewer in &mut viewers {
            viewer.socket().shutdown(std::net::Shutdown::Both).unwrap();
        }
        underruns
    });
    assert_eq!(late, 0, "streams are late");
    let (sent, refused) = (sent.load(Ordering::Relaxed), refused.load(Ordering::Relaxed));
    assert!(refused > 0, "none of {sent} requests was refused for its score");
}
