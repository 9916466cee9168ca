//! Expectations of web and WebDAV clients beside the rows of U: conditions by date, directories of
//! a destination, types of linked files, and answers that arrive while a body is still being sent.

use std::fs;
use std::time::{Duration, SystemTime};

use crate::client::Answer;
use crate::test_server::{TOKEN, TestServer, content};
use crate::uploads::{auth, is_clean, put, sent};

fn dav(server: &TestServer, method: &str, target: &str, fields: &str) -> Answer {
    sent(&mut server.client(), method, target, &format!("{}{fields}", auth()), b"")
}

fn date(time: SystemTime) -> String {
    httpdate::fmt_http_date(time)
}

#[test]
fn w03_the_directory_of_a_destination_must_exist() {
    let server = TestServer::taking_uploads();
    for (method, target, to) in [
        ("MOVE", "/a.ts", "/none/a.ts"),
        ("MOVE", "/a.ts", "/none/deeper/a.ts"),
        ("MOVE", "/a.ts", "/dir/none/a.ts"),
        ("MOVE", "/a.ts", "/empty.ts/a.ts"),
        ("MOVE", "/a.ts", "http://localhost/none/a.ts"),
        ("MOVE", "/dir/", "/none/dir/"),
        ("MOVE", "/dir", "/none/dir"),
        ("COPY", "/a.ts", "/none/a.ts"),
        ("COPY", "/a.ts", "/none/deeper/a.ts"),
        ("COPY", "/a.ts", "/empty.ts/a.ts"),
        ("MKCOL", "/none/new/", "/"),
    ] {
        for overwrite in ["", "Overwrite: T\r\n", "Overwrite: F\r\n"] {
            let fields = format!("Destination: {to}\r\n{overwrite}");
            let answer = dav(&server, method, target, &fields);
            assert_eq!(answer.status, 409, "{method} {target} {to}: {}", answer.text());
        }
    }
    assert!(!server.root().join("none").exists() && !server.root().join("dir/none").exists());
    assert!(server.root().join("a.ts").exists() && server.root().join("dir/b.mp4").exists());
    assert_eq!(dav(&server, "MKCOL", "/none/", "").status, 201);
    assert_eq!(dav(&server, "MOVE", "/a.ts", "Destination: /none/a.ts\r\n").status, 201);
    is_clean(&server);
}

#[test]
fn w06_a_linked_file_has_the_type_of_the_requested_path() {
    let server = TestServer::new();
    let link = |from: &str, to: &str| {
        fs::hard_link(server.root().join(from), server.root().join(to)).unwrap();
    };
    fs::rename(server.root().join("dir/b.mp4"), server.root().join("download.part")).unwrap();
    for to in ["film.mp4", "film.mkv", "noname", "dir/film.html", "dir/x.TS"] {
        link("download.part", to);
    }
    let mut client = server.client();
    let all = [
        ("/download.part", "application/octet-stream"),
        ("/film.mp4", "video/mp4"),
        ("/film.mkv", "video/matroska"),
        ("/noname", "application/octet-stream"),
        ("/dir/film.html", "text/html; charset=utf-8"),
        ("/dir/x.TS", "video/mp2t"),
    ];
    // In both orders: neither the first nor the last name decides.
    for (target, media_type) in all.iter().chain(all.iter().rev()) {
        for method in ["GET", "HEAD"] {
            let answer = client.ask(method, &format!("{target}?rate=max"), "");
            assert_eq!(answer.field("content-type"), Some(*media_type), "{method} {target}");
        }
    }
    let found = sent(&mut server.client(), "PROPFIND", "/dir/", "Depth: 1\r\n", b"").text();
    assert!(found.contains("<D:getcontenttype>video/mp2t<"), "{found}");
}

#[test]
fn w06_a_linked_film_is_paced_whatever_name_was_requested_first() {
    use tactus_core::units::SECOND;
    let server = TestServer::new();
    // The first packet lies far from the start: only the name suggests to search for it.
    let film = server.root().join("download.part");
    tactus_media::sample::write_ts(&film, SECOND).unwrap();
    let bytes = [vec![0; 8192], fs::read(&film).unwrap()].concat();
    fs::write(&film, bytes).unwrap();
    fs::hard_link(&film, server.root().join("film.ts")).unwrap();
    let rate = |target: &str| {
        let answer = server.client().ask("HEAD", target, "");
        answer.field("tactus-rate").unwrap().to_owned()
    };
    let (part, film) = (rate("/download.part"), rate("/film.ts"));
    assert!(part.contains("max") || part != film, "{part} {film}");
    assert!(!film.contains("max"), "{film}");
}

#[test]
fn w07_if_unmodified_since_is_a_precondition_of_every_change() {
    let server = TestServer::taking_uploads();
    let root = server.root();
    let modified = SystemTime::UNIX_EPOCH + Duration::from_millis(1_500_000_000_700);
    let prepare = || {
        for name in ["a.ts", "old.ts"] {
            fs::write(root.join(name), b"old").unwrap();
            fs::File::options()
                .append(true)
                .open(root.join(name))
                .unwrap()
                .set_modified(modified)
                .unwrap();
        }
        fs::create_dir_all(root.join("old")).unwrap();
        fs::File::open(root.join("old")).unwrap().set_modified(modified).unwrap();
    };
    let earlier = date(modified - Duration::from_secs(1));
    let (same, later) = (date(modified), date(modified + Duration::from_secs(1)));
    let rfc_850 = "Friday, 14-Jul-17 02:39:59 GMT";
    let to = "Destination: /to.ts\r\n";
    let of_directory = "Destination: /to/\r\n";
    for (method, target, more, done) in [
        ("PUT", "/a.ts", "", 204),
        ("DELETE", "/old.ts", "", 204),
        ("MOVE", "/old.ts", to, 201),
        ("COPY", "/old.ts", to, 201),
        ("DELETE", "/old/", "", 204),
        ("MOVE", "/old/", of_directory, 201),
    ] {
        for date in [&*earlier, "Thu, 01 Jan 1970 00:00:00 GMT", rfc_850] {
            prepare();
            let fields = format!("{more}If-Unmodified-Since: {date}\r\n");
            assert_eq!(dav(&server, method, target, &fields).status, 412, "{method} {date}");
            assert!(root.join(target.trim_matches('/')).exists(), "{method} {target}");
        }
        // An invalid date, several dates, or an entity tag beside it: the field is ignored.
        let version = dav(&server, "HEAD", target, "").field("etag").map(str::to_owned);
        let beside = version.map(|tag| format!("{earlier}\r\nIf-Match: {tag}"));
        let beside = beside.filter(|_| method == "COPY");
        for date in [&*same, &*later, "yesterday", "1500000000"]
            .into_iter()
            .map(str::to_owned)
            .chain(beside)
        {
            prepare();
            let date = match date.contains("If-Match") {
                // The version that is stored now.
                true => {
                    let head = dav(&server, "HEAD", target, "");
                    format!("{earlier}\r\nIf-Match: {}", head.field("etag").unwrap())
                }
                false => date,
            };
            let fields = format!("{more}If-Unmodified-Since: {date}\r\n");
            let answer = dav(&server, method, target, &fields);
            assert_eq!(answer.status, done, "{method} {date}: {}", answer.text());
            fs::remove_file(root.join("to.ts")).ok();
            fs::remove_dir_all(root.join("to")).ok();
        }
    }
    // A missing title has no date.
    let field = format!("If-Unmodified-Since: {earlier}\r\n");
    assert_eq!(put(&server, "/new.ts", &field, b"x").status, 201);
    assert_eq!(dav(&server, "DELETE", "/none.ts", &field).status, 404);
    is_clean(&server);
}

#[test]
fn w07_an_upload_in_parts_holds_the_date_until_its_end() {
    let server = TestServer::taking_uploads();
    let path = "/api/v1/uploads?path=/a.ts";
    let fields = |date: &str| {
        format!("Tus-Resumable: 1.0.0\r\nUpload-Length: 3\r\nIf-Unmodified-Since: {date}\r\n")
    };
    let old = fields("Thu, 01 Jan 1970 00:00:00 GMT");
    assert_eq!(dav(&server, "POST", path, &old).status, 412);
    let now = fields(&date(SystemTime::now() + Duration::from_secs(60)));
    let answer = dav(&server, "POST", path, &now);
    assert_eq!(answer.status, 201);
    let url = answer.field("location").unwrap().to_owned();
    let later = SystemTime::now() + Duration::from_secs(3600);
    fs::File::options()
        .append(true)
        .open(server.root().join("a.ts"))
        .unwrap()
        .set_modified(later)
        .unwrap();
    let fields = "Tus-Resumable: 1.0.0\r\nUpload-Offset: 0\r\n\
                  Content-Type: application/offset+octet-stream\r\n";
    let fields = format!("{}{fields}", auth());
    let answer = sent(&mut server.client(), "PATCH", &url, &fields, b"new");
    assert_eq!(answer.status, 412, "{}", answer.text());
}

/// Sends all of a body before it reads, as clients of neon do: cadaver, davfs2, litmus.
fn refused_while_sending(server: &TestServer, head: &str, body: &[u8]) -> Answer {
    let mut client = server.client();
    client.send(head);
    for part in body.chunks(100_000) {
        use std::io::Write;
        client.socket().write_all(part).expect("the whole body is read");
    }
    let answer = client.answer_to("PUT").expect("the answer arrives");
    assert!(answer.closes());
    client.socket().shutdown(std::net::Shutdown::Write).unwrap();
    client.is_closed();
    answer
}

#[test]
fn w12_a_refusal_arrives_though_the_body_is_sent_first() {
    let server = TestServer::taking_uploads();
    let body = content(3_000_000);
    let len = format!("Content-Length: {}\r\n", body.len());
    let chunked = "Transfer-Encoding: chunked\r\n";
    let coded: Vec<u8> = body
        .chunks(100_000)
        .flat_map(|part| [format!("{:x}\r\n", part.len()).as_bytes(), part, b"\r\n"].concat())
        .chain(*b"0\r\n\r\n")
        .collect();
    let wrong = "Authorization: Bearer not-the-right-token\r\n".to_owned();
    let right = |more: &str| format!("Authorization: Bearer {TOKEN}\r\n{more}");
    for (target, fields, status) in [
        ("/new.ts", String::new(), 401),
        ("/new.ts", wrong, 401),
        ("/a.ts", right("If-None-Match: *\r\n"), 412),
        ("/.tactus/x", right(""), 403),
        ("/new.ts", right("Content-Encoding: gzip\r\n"), 415),
        ("/dir/", right(""), 409),
    ] {
        for (framing, body) in [(&*len, &body), (chunked, &coded)] {
            let head = format!("PUT {target} HTTP/1.1\r\nHost: localhost\r\n{fields}{framing}\r\n");
            let answer = refused_while_sending(&server, &head, body);
            assert_eq!(answer.status, status, "{target} {fields}");
        }
    }
    // The client's next upload is accepted.
    assert_eq!(put(&server, "/new.ts", "", &body).status, 201);
    is_clean(&server);
    let closed = TestServer::new();
    for (framing, body) in [(&*len, &body), (chunked, &coded)] {
        let head = format!("PUT /new.ts HTTP/1.1\r\nHost: localhost\r\n{framing}\r\n");
        assert!(matches!(refused_while_sending(&closed, &head, body).status, 405 | 413));
    }
}

#[test]
fn w12_reading_a_refused_body_is_bounded() {
    let server = TestServer::with(|plan| {
        plan.uploads = true;
        plan.limits.linger_body_bytes_max = 1 << 20;
        plan.limits.linger_body_silence = Duration::from_millis(300);
    });
    let head = "PUT /new.ts HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n";
    let mut client = server.client();
    client.send(head);
    let part = vec![0; 65_536];
    let mut taken = 0_usize;
    while std::io::Write::write_all(&mut client.socket(), &part).is_ok() {
        taken += part.len();
        assert!(taken < 100 << 20, "the reading is unbounded");
    }
    // A client that stays silent is disconnected.
    let mut silent = server.client();
    silent.send(head);
    assert_eq!(silent.answer_to("PUT").map(|answer| answer.status), Some(401));
    silent.is_closed();
    server.serves_others();
}

#[test]
fn w08_a_directory_of_any_size_is_listed_whole_sorted_and_in_pages() {
    let server = TestServer::new();
    let many = server.root().join("many");
    fs::create_dir(&many).unwrap();
    let mut expected: Vec<String> =
        (0..20_500).map(|n| format!("{n}-{}.ts", "ö".repeat(9))).collect();
    for name in &expected {
        fs::File::create(many.join(name)).unwrap();
    }
    expected.sort();
    for name in ["sub", "1sub"] {
        fs::create_dir(many.join(name)).unwrap();
    }
    expected.splice(0..0, ["1sub".to_owned(), "sub".to_owned()]);
    let names = |json: &serde_json::Value| -> Vec<String> {
        let entries = json["entries"].as_array().unwrap();
        entries.iter().map(|entry| entry["name"].as_str().unwrap().to_owned()).collect()
    };
    let mut client = server.client();
    let answer = client.get("/many/?format=json", "");
    assert_eq!(
        answer.field("transfer-encoding"),
        Some("chunked"),
        "it is sent while the directory is read"
    );
    let json: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    assert!(json["complete"] == true && json.get("next").is_none());
    assert!(names(&json) == expected);
    // The connection stays usable after it, also for HEAD.
    assert_eq!(client.ask("HEAD", "/many/", "").status, 200);
    let page = client.get("/many/", "").text();
    assert_eq!(page.matches("<td><a href=").count(), expected.len() + 1);
    let found = client.ask("PROPFIND", "/many/", "Depth: 1\r\n").text();
    assert_eq!(found.matches("<D:response>").count(), expected.len() + 1);
    assert!(found.ends_with("</D:response>\n</D:multistatus>\n"));
    // In pages of any size, each with its length.
    for limit in [1_000, 9_999] {
        let (mut all, mut query) = (Vec::new(), format!("?format=json&limit={limit}"));
        loop {
            let answer = client.get(&format!("/many/{query}"), "");
            assert_eq!((answer.status, answer.field("transfer-encoding")), (200, None));
            let json: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
            let page = names(&json);
            assert!(page.len() <= limit);
            all.extend(page);
            match json.get("next") {
                Some(next) => {
                    assert_eq!(json["complete"], false);
                    let next = next.as_str().unwrap();
                    assert_eq!(answer.field("link"), Some(&*format!("<{next}>; rel=\"next\"")));
                    query = next.to_owned();
                }
                None => {
                    assert_eq!(json["complete"], true);
                    break;
                }
            }
        }
        assert!(all == expected, "{limit}");
    }
    for bad in ["limit=0", "limit=x", "limit=10001", "limit=", "after=%zz"] {
        assert_eq!(client.get(&format!("/many/?format=json&{bad}"), "").status, 400, "{bad}");
    }
    // HTTP/1.0 has no chunks: the content ends with the connection.
    let mut old = server.client();
    old.send(
        "GET /many/?format=json HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n",
    );
    let head = old.head().unwrap();
    assert!(head.field("transfer-encoding").is_none() && head.closes());
    let json: serde_json::Value = serde_json::from_slice(&old.rest()).unwrap();
    assert!(names(&json) == expected);
}

#[test]
fn w08_pages_continue_after_names_with_any_characters() {
    let server = TestServer::new();
    let odd =
        ["a&b=c.ts", "a+b.ts", "a%26.ts", "a#?.ts", "a;b,c.ts", "ä ö.ts", "'\"<>.ts", "\\.ts"];
    for name in odd {
        fs::write(server.root().join("dir").join(name), b"x").unwrap();
        fs::create_dir(server.root().join("dir").join(format!("{name}.d"))).unwrap();
    }
    let (mut all, mut query) = (Vec::new(), "?format=json&limit=1".to_owned());
    loop {
        let json = server.client().get(&format!("/dir/{query}"), "").text();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        all.push(json["entries"][0]["name"].as_str().unwrap().to_owned());
        match json.get("next") {
            Some(next) => query = next.as_str().unwrap().to_owned(),
            None => break,
        }
    }
    let mut expected: Vec<_> = odd.iter().map(|name| format!("{name}.d")).collect();
    expected.sort();
    let mut titles: Vec<_> = odd.iter().map(|name| (*name).to_owned()).collect();
    titles.push("b.mp4".to_owned());
    titles.sort();
    expected.extend(titles);
    assert_eq!(all, expected);
}

/// The result that RFC 9110 section 13.2.2 requires for an existing title with `tag`, or for a
/// missing one.
fn holds(tag: Option<&str>, fields: (Option<&str>, Option<&str>, Option<bool>)) -> bool {
    let (if_match, if_none_match, is_unmodified) = fields;
    let has = |list: &str, weakly: bool| {
        let Some(tag) = tag else { return false };
        list == "*"
            || list.split(", ").any(|one| {
                one == tag || (weakly && one.strip_prefix("W/").is_some_and(|one| one == tag))
            })
    };
    let first = match if_match {
        Some(list) => has(list, false),
        None => is_unmodified.is_none_or(|is_unmodified| is_unmodified || tag.is_none()),
    };
    first && !if_none_match.is_some_and(|list| has(list, true))
}

#[test]
fn w07_all_combinations_of_preconditions_are_evaluated_in_their_order() {
    let server = TestServer::taking_uploads();
    let mut client = server.client();
    let mut ask = |method: &str, target: &str, fields: &str| {
        client.ask(method, target, &format!("{}{fields}Content-Length: 0\r\n", auth()))
    };
    let (earlier, later) = ("Thu, 01 Jan 1970 00:00:00 GMT", "Sun Nov  6 08:49:37 2089");
    for (method, target, step) in
        [("PUT", "/x.ts", 1), ("PUT", "/none.ts", 5), ("COPY", "/x.ts", 7)]
    {
        for n in (0..5 * 5 * 3).step_by(step) {
            let is_there = target == "/x.ts";
            let tag = is_there.then(|| {
                assert!(ask("PUT", "/x.ts", "").status < 300);
                ask("HEAD", "/x.ts", "").field("etag").unwrap().to_owned()
            });
            let own = tag.clone().unwrap_or("\"gone\"".into());
            let (weak, among) = (format!("W/{own}"), format!("\"a,b\", {own}"));
            let lists = [None, Some("*"), Some(&*weak), Some(&*among), Some("\"x\"")];
            let (wanted, unwanted) = (lists[n % 5], lists[n / 5 % 5]);
            let date = [None, Some(earlier), Some(later)][n / 25];
            let line = |name: &str, value: Option<&str>| {
                value.map(|value| format!("{name}: {value}\r\n")).unwrap_or_default()
            };
            let fields = line("If-None-Match", unwanted)
                + &line("If-Unmodified-Since", date)
                + &line("If-Match", wanted);
            let answer = ask(method, target, &format!("{fields}Destination: /to.ts\r\n"));
            let expected =
                holds(tag.as_deref(), (wanted, unwanted, date.map(|date| date == later)));
            let is_done = (200..300).contains(&answer.status);
            assert!(is_done || answer.status == 412, "{method} {target} {fields}{}", answer.text());
            assert_eq!(is_done, expected, "{method} {target} {fields}");
            if is_done {
                drop(fs::remove_file(server.root().join("none.ts")));
            }
        }
    }
    is_clean(&server);
}

#[test]
fn w07_directories_are_created_moved_and_deleted_under_conditions_too() {
    let server = TestServer::taking_uploads();
    let to = "Destination: /to/\r\n";
    for (method, target, fields, status) in [
        ("MKCOL", "/new/", "If-Match: *\r\n", 412),
        ("MKCOL", "/new/", "If-Match: \"x\"\r\n", 412),
        ("MKCOL", "/new/", "If-None-Match: *\r\n", 201),
        ("MKCOL", "/newer/", "If-None-Match: \"x\"\r\n", 201),
        ("MOVE", "/new/", "If-Match: \"x\"\r\n", 412),
        ("MOVE", "/new/", "If-None-Match: *\r\n", 412),
        ("DELETE", "/new/", "If-Match: \"x\"\r\n", 412),
        ("DELETE", "/new/", "If-None-Match: *\r\n", 412),
        ("PUT", "/a.ts", "If-None-Match: x\r\n", 400),
        ("MOVE", "/new/", "If-Match: *\r\n", 201),
        ("DELETE", "/to/", "If-None-Match: \"x\"\r\n", 204),
    ] {
        let answer = dav(&server, method, target, &format!("{to}{fields}"));
        assert_eq!(answer.status, status, "{method} {target} {fields}: {}", answer.text());
    }
}

#[test]
fn w01_a_page_may_read_why_its_connection_is_refused() {
    use tactus_http::settings::Origins;
    let these = ["https://app.example", "https://b.example"].map(str::to_owned).to_vec();
    for (origins, told) in [
        (Origins::List(these), Some("https://app.example")),
        (Origins::Any, Some("*")),
        (Origins::None, None),
    ] {
        let server = TestServer::with(|plan| {
            plan.limits.connections_per_address_max = 1;
            plan.limits.origins = origins;
        });
        let mut first = server.client();
        assert_eq!(first.ask("HEAD", "/a.ts", "").status, 200);
        let long = format!("X-Long: {}\r\n", "x".repeat(2000));
        let answer =
            server.client().get("/a.ts", &format!("{long}oRIGIN: https://app.example\r\n"));
        assert_eq!((answer.status, answer.field("retry-after")), (429, Some("5")));
        assert_eq!(answer.field("access-control-allow-origin"), told);
        let stranger = server.client().get("/a.ts", "Origin: https://evil.example\r\n");
        let told = told.filter(|told| *told == "*");
        assert_eq!((stranger.status, stranger.field("access-control-allow-origin")), (429, told));
        // A silent client gets the answer too.
        assert_eq!(server.client().answer().expect("an answer").status, 429);
    }
}

#[test]
fn w01_whatever_a_browser_would_run_is_in_a_sandbox() {
    let server = TestServer::taking_uploads();
    let script = b"<x xmlns:h='http://www.w3.org/1999/xhtml'><h:script>alert(1)</h:script></x>";
    for name in
        ["x.html", "x.HTM", "x.svg", "x.xml", "x.mpd", "x.ttml", "dir/x.xspf", "x.ts", "x.txt", "x"]
    {
        assert_eq!(put(&server, &format!("/{name}"), "", script).status, 201, "{name}");
        for method in ["GET", "HEAD"] {
            let answer = server.client().ask(method, &format!("/{name}?rate=max"), "");
            assert_eq!(answer.status, 200);
            let is_active = !["x.ts", "x.txt", "x"].contains(&name);
            let policy = answer.field("content-security-policy");
            assert_eq!(policy, is_active.then_some("sandbox"), "{method} {name}");
            assert_eq!(answer.field("x-content-type-options"), Some("nosniff"), "{name}");
        }
        let part = server.client().get(&format!("/{name}?rate=max"), "Range: bytes=0-3\r\n");
        let whole = server.client().ask("HEAD", &format!("/{name}?rate=max"), "");
        let policy = |answer: &Answer| answer.field("content-security-policy").map(str::to_owned);
        assert_eq!((part.status, policy(&part)), (206, policy(&whole)), "{name}");
    }
}
