//! Rights: requests beyond a principal's rights are refused by every method, and change nothing.

use std::fs;

use tactus_control::rights::Readers;
use tactus_control::rights::{Grant, Paths, Right, Rights};

use crate::client::Answer;
use crate::test_server::{OTHER_TOKEN, TOKEN, TestServer, content};
use crate::uploads::sent;

/// A server where bob has `rights` below `paths`, and alice has all rights.
fn server(rights: &[Right], paths: &[&str]) -> TestServer {
    let paths: Vec<_> = paths.iter().map(|&path| path.to_owned()).collect();
    let grant = Grant::new(rights, Paths::parse(&paths).expect("they are paths"));
    TestServer::with(|plan| {
        plan.uploads = true;
        plan.upload.principals[1].rights = Rights::new(vec![grant]);
    })
}

fn bob(server: &TestServer, method: &str, target: &str, fields: &str, body: &[u8]) -> Answer {
    let fields = format!("Authorization: Bearer {OTHER_TOKEN}\r\n{fields}");
    sent(&mut server.client(), method, target, &fields, body)
}

/// tus fields for the title `path`.
fn tus(path: &str, len: usize) -> String {
    let path = data_encoding::BASE64.encode(path.as_bytes());
    format!("Tus-Resumable: 1.0.0\r\nUpload-Length: {len}\r\nUpload-Metadata: path {path}\r\n")
}

#[test]
fn s14_a_publisher_cannot_replace_or_delete_by_any_method() {
    let server = server(&[Right::Publish], &["/"]);
    let kept = fs::read(server.root().join("a.ts")).unwrap();
    for (method, target, fields) in [
        ("PUT", "/a.ts", ""),
        ("PUT", "/a.ts", "If-Match: *\r\n"),
        ("PUT", "/a.ts?rate=8M", ""),
        ("DELETE", "/a.ts", ""),
        ("DELETE", "/dir/", ""),
        ("MOVE", "/a.ts", "Destination: /b.ts\r\n"),
        ("MOVE", "/dir/", "Destination: /other/\r\n"),
        ("COPY", "/empty.ts", "Destination: /a.ts\r\n"),
        ("PROPPATCH", "/a.ts", ""),
        ("POST", "/api/v1/reload", ""),
        ("POST", "/api/v1/channels", ""),
        ("DELETE", "/api/v1/channels/a", ""),
        ("PUT", "/api/v1/classes/a", ""),
        ("POST", "/api/v1/recordings", ""),
        ("GET", "/api/v1/recordings", ""),
        ("DELETE", "/api/v1/recordings/a", ""),
    ] {
        let answer = match target.contains("rate=") {
            true => {
                let mut client = server.client();
                client.send(format!(
                    "{method} {target} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer \
                     {OTHER_TOKEN}\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"
                ));
                client.answer_to(method).expect("an answer")
            }
            false => bob(&server, method, target, fields, b"{}"),
        };
        assert_eq!(answer.status, 403, "{method} {target}: {}", answer.text());
        assert!(answer.text().contains("no right"), "{method} {target}: {}", answer.text());
    }
    let created = bob(&server, "POST", "/api/v1/uploads", &tus("/a.ts", 1), b"");
    assert_eq!((created.status, created.text().contains("\"replace\"")), (403, true));
    // Each method publishes new titles.
    assert_eq!(bob(&server, "PUT", "/new.ts", "", b"new").status, 201);
    assert_eq!(bob(&server, "PUT", "/new.ts", "", b"newer").status, 403);
    assert_eq!(bob(&server, "MKCOL", "/made/", "", b"").status, 201);
    let created = bob(&server, "POST", "/api/v1/uploads", &tus("/made/t.ts", 1), b"");
    assert_eq!(created.status, 201, "{}", created.text());
    // Another client stores the title first.
    let mut alice = server.client();
    let auth = format!("Authorization: Bearer {TOKEN}\r\n");
    assert_eq!(sent(&mut alice, "PUT", "/made/t.ts", &auth, b"mine").status, 201);
    let more = "Tus-Resumable: 1.0.0\r\nUpload-Offset: 0\r\n\
                Content-Type: application/offset+octet-stream\r\n";
    let ended = bob(&server, "PATCH", created.field("location").unwrap(), more, b"x");
    assert_eq!(ended.status, 403, "{}", ended.text());
    assert_eq!(fs::read(server.root().join("made/t.ts")).unwrap(), b"mine");
    assert_eq!(fs::read(server.root().join("new.ts")).unwrap(), b"new");
    assert_eq!(fs::read(server.root().join("a.ts")).unwrap(), kept);
    assert!(server.root().join("dir/b.mp4").exists());
}

/// Each action of the control API.
const ACTIONS: [(Right, &str, &str); 7] = [
    (Right::Recordings, "GET", "/api/v1/recordings"),
    (Right::Recordings, "DELETE", "/api/v1/recordings/none"),
    (Right::Channels, "POST", "/api/v1/channels"),
    (Right::Channels, "DELETE", "/api/v1/channels/none"),
    (Right::Classes, "PUT", "/api/v1/classes/none"),
    (Right::Classes, "PATCH", "/api/v1/classes/none"),
    (Right::Reload, "POST", "/api/v1/reload"),
];

#[test]
fn s14_each_action_of_operators_needs_its_own_right_and_none_of_uploads() {
    for right in [Right::Recordings, Right::Channels, Right::Classes, Right::Reload] {
        let others = Right::ALL.map(|(other, _)| other).into_iter();
        let others: Vec<_> =
            others.filter(|other| *other != right && *other != Right::Manage).collect();
        for granted in [true, false] {
            let rights = if granted { vec![right] } else { others.clone() };
            let server = server(&rights, &["/"]);
            for (_, method, target) in ACTIONS.into_iter().filter(|(needed, ..)| *needed == right) {
                let answer = bob(&server, method, target, "", b"{}");
                let text = answer.text();
                assert_eq!(answer.status != 403, granted, "{method} {target}: {text}");
                assert!([200, 403, 404].contains(&answer.status), "{method} {target}: {text}");
                let unknown = sent(&mut server.client(), method, target, "", b"{}");
                assert_eq!(unknown.status, 401, "{method} {target}: {}", unknown.text());
            }
            // None of them stores anything.
            let stored = bob(&server, "PUT", "/new.ts", "", b"x");
            assert_eq!(stored.status == 403, granted, "{}", stored.text());
        }
    }
    let server = server(&[Right::Manage], &["/"]);
    for (right, method, target) in ACTIONS {
        let is_managed = matches!(right, Right::Classes | Right::Reload);
        let answer = bob(&server, method, target, "", b"{}");
        assert_eq!(answer.status == 404, is_managed, "{method} {target}: {}", answer.text());
    }
}

#[test]
fn s14_rights_hold_below_their_paths_only() {
    let all = Right::OF_PATHS;
    let server = server(&all, &["/live/"]);
    assert_eq!(bob(&server, "MKCOL", "/live/", "", b"").status, 201);
    assert_eq!(bob(&server, "PUT", "/live/a.ts", "", b"a").status, 201);
    assert_eq!(bob(&server, "PUT", "/live/a.ts", "", b"b").status, 204);
    for (method, target, fields) in [
        ("PUT", "/b.ts", ""),
        ("PUT", "/livestream/b.ts", ""),
        ("PUT", "/dir/b.mp4", ""),
        ("MKCOL", "/livestream/", ""),
        ("DELETE", "/a.ts", ""),
        ("DELETE", "/", ""),
        ("DELETE", "/dir/", ""),
        ("MOVE", "/a.ts", "Destination: /live/c.ts\r\n"),
        ("MOVE", "/live/a.ts", "Destination: /c.ts\r\n"),
        ("MOVE", "/live/a.ts", "Destination: /a.ts\r\nOverwrite: T\r\n"),
        ("COPY", "/live/a.ts", "Destination: /c.ts\r\n"),
        ("POST", "/api/v1/reload", ""),
        ("POST", "/api/v1/channels", ""),
    ] {
        let answer = bob(&server, method, target, fields, b"");
        assert_eq!(answer.status, 403, "{method} {target}: {}", answer.text());
    }
    for path in ["/b.ts", "/livestream/b.ts"] {
        let answer = bob(&server, "POST", "/api/v1/uploads", &tus(path, 1), b"");
        assert_eq!(answer.status, 403, "{path}: {}", answer.text());
    }
    let recording = |to: &str| {
        let body = format!(
            "{{\"name\": \"r\", \"from\": \"udp://127.0.0.1:1\", \"to\": \"{to}\", \
             \"rotate\": \"1 h\"}}"
        );
        bob(&server, "POST", "/api/v1/recordings", "", body.as_bytes())
    };
    for to in ["/x-%n.ts", "/live-%n.ts", "/livestream/%n.ts", "/%Y/live/%n.ts"] {
        let answer = recording(to);
        assert_eq!(answer.status, 403, "{to}: {}", answer.text());
    }
    // A copy needs the right to read its source.
    let copied = bob(&server, "COPY", "/a.ts", "Destination: /live/c.ts\r\n", b"");
    assert_eq!(copied.status, 201, "{}", copied.text());
    assert_eq!(bob(&server, "MOVE", "/live/c.ts", "Destination: /live/d.ts\r\n", b"").status, 201);
    assert_eq!(bob(&server, "DELETE", "/live/d.ts", "", b"").status, 204);
}

#[test]
fn s14_a_move_needs_the_rights_to_replace_and_to_delete() {
    let server = server(&[Right::Publish, Right::Delete], &["/"]);
    assert_eq!(bob(&server, "PUT", "/b.ts", "", b"b").status, 201);
    for overwrite in ["", "Overwrite: T\r\n"] {
        let fields = format!("Destination: /a.ts\r\n{overwrite}");
        let answer = bob(&server, "MOVE", "/b.ts", &fields, b"");
        assert_eq!(answer.status, 403, "{}", answer.text());
    }
    let taken = bob(&server, "MOVE", "/b.ts", "Destination: /a.ts\r\nOverwrite: F\r\n", b"");
    assert_eq!(taken.status, 412, "the request forbids overwriting: {}", taken.text());
    drop(server);
    let server = self::server(&[Right::Publish, Right::Delete, Right::Replace], &["/b/", "/a.ts"]);
    assert_eq!(bob(&server, "PUT", "/b/b.ts", "", b"b").status, 201);
    assert_eq!(bob(&server, "MOVE", "/b/b.ts", "Destination: /a.ts\r\n", b"").status, 204);
    assert_eq!(fs::read(server.root().join("a.ts")).unwrap(), b"b");
}

#[test]
fn s14_where_only_principals_read_each_read_needs_the_right() {
    let server = TestServer::with(|plan| {
        plan.uploads = true;
        plan.readers = Readers::Principals;
        let dir = Paths::parse(&["/dir/".to_owned()]).unwrap();
        plan.upload.principals[1].rights = Rights::new(vec![Grant::new(&[Right::Read], dir)]);
    });
    for (method, target) in [
        ("GET", "/a.ts"),
        ("HEAD", "/a.ts"),
        ("GET", "/a.ts?rate=max"),
        ("GET", "/a.ts?start=0"),
        ("GET", "/"),
        ("GET", "/dir/"),
        ("GET", "/missing.ts"),
        ("GET", "/api/v1/titles/a.ts"),
        ("PROPFIND", "/"),
        ("PROPFIND", "/a.ts"),
    ] {
        let fields = "Depth: 0\r\n";
        let nobody = server.client().ask(method, target, fields);
        assert_eq!(nobody.status, 401, "{method} {target}");
        assert!(nobody.field("www-authenticate").is_some(), "a browser prompts for the token");
        let bobs = format!("{fields}Authorization: Bearer {OTHER_TOKEN}\r\n");
        let there = target.starts_with("/dir/");
        let answer = server.client().ask(method, target, &bobs);
        assert_eq!(answer.status == 403, !there, "{method} {target}: {}", answer.status);
    }
    let bobs = format!("Authorization: Bearer {OTHER_TOKEN}\r\n");
    let read = server.client().get("/dir/b.mp4?rate=max", &bobs);
    assert_eq!((read.status, read.body), (200, content(5000)));
    let listed = server.client().ask("PROPFIND", "/dir/", &format!("{bobs}Depth: 1\r\n"));
    assert_eq!(listed.status, 207, "{}", listed.text());
    // A title must not be copied to a readable place without the right to read it.
    let alice = format!("Authorization: Bearer {TOKEN}\r\n");
    assert_eq!(server.client().get("/a.ts?rate=max", &alice).status, 200);
    let taken = bob(&server, "COPY", "/a.ts", "Destination: /dir/a.ts\r\n", b"");
    assert_eq!(taken.status, 403, "{}", taken.text());
}

#[test]
fn s14_a_recording_that_deletes_titles_needs_the_right_to_delete() {
    let begin = |server: &TestServer, name: &str, more: &str| {
        let body = format!(
            "{{\"name\": \"{name}\", \"from\": \"udp://127.0.0.1:0\", \"to\": \
             \"/live/{name}-%n.ts\"{more}}}"
        );
        bob(server, "POST", "/api/v1/recordings", "", body.replace(":0\"", ":45999\"").as_bytes())
    };
    let keeps = [", \"keep_titles\": 1", ", \"keep_size\": \"1 MiB\"", ", \"keep_age\": \"1 h\""];
    let records = self::server(&[Right::Recordings], &["/live/"]);
    for keep in keeps {
        let answer = begin(&records, "a", keep);
        assert_eq!(answer.status, 403, "{keep}: {}", answer.text());
        assert!(answer.text().contains("\"delete\""), "{}", answer.text());
    }
    let deletes = self::server(&[Right::Recordings, Right::Delete], &["/live/"]);
    for (server, more) in [(&records, ""), (&deletes, keeps[0])] {
        let answer = begin(server, "a", more);
        assert_eq!(answer.status, 201, "{}", answer.text());
        assert_eq!(bob(server, "DELETE", "/api/v1/recordings/a", "", b"").status, 200);
        // Restarting it needs the rights that beginning it needs.
        assert_eq!(bob(server, "POST", "/api/v1/recordings/a", "", b"").status, 200);
    }
}

#[test]
fn s14_a_move_takes_nothing_to_where_it_may_be_read() {
    let paths = |path: &str| Paths::parse(&[path.to_owned()]).unwrap();
    let server = TestServer::with(|plan| {
        plan.uploads = true;
        plan.readers = Readers::Principals;
        plan.upload.principals[1].rights = Rights::new(vec![
            Grant::new(&[Right::Publish, Right::Delete], paths("/")),
            Grant::new(&[Right::Read], paths("/dir/")),
        ]);
    });
    let answer = bob(&server, "MOVE", "/a.ts", "Destination: /dir/a.ts\r\n", b"");
    assert_eq!(answer.status, 403, "{}", answer.text());
    assert!(answer.text().contains("\"read\"") && server.root().join("a.ts").exists());
    fs::create_dir(server.root().join("secret")).unwrap();
    let answer = bob(&server, "MOVE", "/secret/", "Destination: /dir/open/\r\n", b"");
    assert_eq!(answer.status, 403, "{}", answer.text());
    // Where it cannot read either, and within what it can read, nothing is lost.
    for (from, to) in [("/a.ts", "/b.ts"), ("/dir/b.mp4", "/dir/c.mp4"), ("/dir/c.mp4", "/c.mp4")] {
        let answer = bob(&server, "MOVE", from, &format!("Destination: {to}\r\n"), b"");
        assert_eq!(answer.status, 201, "{from}: {}", answer.text());
    }
}
