//! Behind each proxy of the guide, everything works as with direct clients, and each client counts
//! by itself.

use std::process::Stdio;
use std::time::{Duration, Instant};

use tactus_testkit::process::free_port;

use super::chain::{Proxy, Server, TOKEN, ask, begin, content};
use super::guide::{self, GuideExample};

/// Clients of the proxy; the proxy itself has 127.0.0.1.
const VIEWER: &str = "127.0.0.2";
const ATTACKER: &str = "127.0.0.66";

struct Chain {
    server: Server,
    port: u16,
    /// The prefix that the proxy removes.
    prefix: &'static str,
    _proxy: Proxy,
}

impl Chain {
    fn new(shown: &GuideExample) -> Self {
        let port = free_port();
        let prefix = if shown.server.contains("/media/") { "/media" } else { "" };
        let text = shown.server.replace("//tv.example/", &format!("//tv.example:{port}/"));
        let server = Server::start(&text);
        let proxy = Proxy::start(shown, &server, port);
        Self { server, port, prefix, _proxy: proxy }
    }

    fn url(&self, path: &str) -> String {
        format!("http://tv.example:{}{}{path}", self.port, self.prefix)
    }

    /// Sends a request with the token for uploads.
    fn ask(&self, args: &[&str], path: &str) -> super::chain::Answer {
        let token = format!("Authorization: Bearer {TOKEN}");
        ask(VIEWER, self.port, &[&["-H", &token], args].concat(), &self.url(path))
    }

    fn plays_and_stores(&self) {
        let bytes = content(1_200_000);
        let part = self.ask(&["-r", "100000-299999"], "/a.bin?rate=max");
        assert_eq!((part.status, &part.body[..]), (206, &bytes[100_000..300_000]));
        assert_eq!(part.field("content-range"), Some("bytes 100000-299999/1200000"));
        // Uploads: in one request, by tus, and as the page of a directory sends them.
        let file = self.server.file("file", &bytes);
        let put = self.ask(&["-T", &file], "/films/put.ts");
        assert_eq!(put.status, 201, "{}", put.text());
        let location = format!("{}/films/put.ts", self.prefix);
        assert!(put.field("location").is_some_and(|place| place.ends_with(&location)), "{put:?}");
        let chunked = self.ask(&["-T", &file, "-H", "Transfer-Encoding: chunked"], "/c.bin");
        assert_eq!(chunked.status, 201, "{}", chunked.text());
        let origin = format!("Origin: http://tv.example:{}", self.port);
        let page = self.ask(&["-T", &file, "-H", &origin], "/page.bin");
        assert_eq!(page.status, 201, "{}", page.text());
        let evil = self.ask(&["-T", &file, "-H", "Origin: http://evil.example"], "/evil.bin");
        assert_eq!(evil.status, 403, "a page of another site");
        let length = format!("Upload-Length: {}", bytes.len());
        let tus = ["-X", "POST", "-H", "Tus-Resumable: 1.0.0", "-H", &length];
        let made = self.ask(&tus, "/api/v1/uploads?path=/films/tus.bin");
        let place = made.field("location").expect("the upload's URL").to_owned();
        let below = format!("{}/api/v1/uploads/", self.prefix);
        let path = place.find(&below).map(|at| &place[at + self.prefix.len()..]);
        let data = format!("@{file}");
        let patch = ["-X", "PATCH", "-H", "Tus-Resumable: 1.0.0", "-H", "Upload-Offset: 0", "-H"];
        let patch = [&patch[..], &["Content-Type: application/offset+octet-stream"]].concat();
        let patch = [&patch[..], &["--data-binary", &data]].concat();
        let patched = self.ask(&patch, path.expect("a URL behind the proxy"));
        assert_eq!(patched.status, 204, "{}", patched.text());
        for name in ["films/put.ts", "c.bin", "page.bin", "films/tus.bin"] {
            assert!(self.server.stored(name).as_ref() == Some(&bytes), "{name}");
        }
    }

    fn speaks_webdav_and_redirects(&self) {
        let found = self.ask(&["-X", "PROPFIND", "-H", "Depth: 1"], "/");
        assert_eq!(found.status, 207);
        let href = format!("<D:href>{}/films/</D:href>", self.prefix);
        assert!(found.text().contains(&href), "{}", found.text());
        for (method, to) in [("MOVE", "/films/moved.bin"), ("COPY", "/copied.bin")] {
            let from = if method == "MOVE" { "/page.bin" } else { "/films/moved.bin" };
            let destination = format!("Destination: {}", self.url(to));
            let done = self.ask(&["-X", method, "-H", &destination], from);
            assert_eq!(done.status, 201, "{method}: {}", done.text());
            assert!(self.server.stored(&to[1..]).is_some(), "{method} went elsewhere");
        }
        assert!(!self.server.media().join("media").exists(), "the prefix is no directory");
        let redirect = self.ask(&[], "/films");
        let location = redirect.field("location").expect("where it is").to_owned();
        assert_eq!(redirect.status, 301);
        assert!(location.ends_with(&format!("{}/films/", self.prefix)), "{location}");
        let page = self.ask(&[], "/films/").text();
        assert!(
            page.contains("src=\"../api/v1/upload.js\"") && !page.contains("href=\"/\""),
            "{page}"
        );
        assert_eq!(self.ask(&[], "/films/../api/v1/upload.js").status, 200);
        let list = self.ask(&[], "/films/?format=m3u").text();
        assert!(list.contains(&format!("\n{}\n", self.url("/films/put.ts"))), "{list}");
    }

    /// A client that guesses tokens is refused, and no other client.
    fn clients_are_their_own(&self) {
        let url = self.url("/x");
        let mut curl = begin(ATTACKER, self.port);
        curl.args(["-o", "/dev/null", "-w", "%{http_code} ", "-X", "DELETE"]);
        curl.args(["-H", "Authorization: Bearer this-is-no-token", "--globoff"]);
        curl.args((0..22).flat_map(|_| [url.as_str(), "-o", "/dev/null"]));
        let said = curl.output().expect("curl is missing: cargo xtask setup");
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        let statuses: Vec<_> = said.split_whitespace().collect();
        assert!(statuses[..20].iter().all(|status| *status == "401"), "{said}");
        let refused = ask(ATTACKER, self.port, &[], &self.url("/films/"));
        assert_eq!(refused.status, 429, "{said}");
        assert!(refused.field("retry-after").is_some());
        assert!(refused.text().contains("http.abuse_score_max"), "{}", refused.text());
        assert_eq!(ask(VIEWER, self.port, &[], &self.url("/films/")).status, 200);
        let log = self.server.log();
        let warnings: Vec<_> =
            log.lines().filter(|line| line.contains("from this address are refused")).collect();
        assert!(warnings.len() == 1 && warnings[0].contains(ATTACKER), "{log}");
    }

    fn shows_its_clients(&self) {
        let mut curl = begin(VIEWER, self.port);
        curl.args(["-o", "/dev/null", &self.url("/a.bin?rate=400k")]);
        let mut viewer = curl.stderr(Stdio::null()).spawn().expect("curl starts");
        let end = Instant::now() + Duration::from_secs(10);
        let client = loop {
            let status = self.server.status();
            match status["streams"][0]["client"].as_str() {
                Some(client) => break client.to_owned(),
                None => assert!(Instant::now() < end, "no stream: {status}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        viewer.kill().unwrap();
        viewer.wait().unwrap();
        let ip = client.split(':').next();
        assert_eq!(ip, Some(VIEWER), "{client}");
    }
}

fn tried(program: &str, ways: usize) {
    let shown: Vec<_> = guide::all().into_iter().filter(|shown| shown.program == program).collect();
    assert_eq!(shown.len(), ways, "the guide shows it in so many ways");
    for shown in shown {
        let chain = Chain::new(&shown);
        chain.plays_and_stores();
        chain.speaks_webdav_and_redirects();
        chain.shows_its_clients();
        chain.clients_are_their_own();
    }
}

#[test]
fn w02_w03_behind_nginx_everything_works_and_clients_are_their_own() {
    tried("nginx", 3);
}

#[test]
fn w02_w03_behind_haproxy_everything_works_and_clients_are_their_own() {
    tried("haproxy", 2);
}

#[test]
fn w02_w03_behind_caddy_everything_works_and_clients_are_their_own() {
    tried("caddy", 2);
}

#[test]
fn w02_haproxy_speaks_version_1_of_the_proxy_protocol_too() {
    let shown = guide::all().into_iter().find(|shown| shown.proxy.contains("send-proxy-v2"));
    let mut shown = shown.expect("the guide shows the PROXY protocol");
    shown.proxy = shown.proxy.replace("send-proxy-v2", "send-proxy");
    let chain = Chain::new(&shown);
    chain.shows_its_clients();
    chain.clients_are_their_own();
}
