//! Row U28 and what belongs to it: locks of WebDAV. Who gets one, what it holds off, and what ends
//! it.

use std::fs;

use tactus_control::rights::{Grant, Paths, Right, Rights};

use crate::client::Answer;
use crate::test_server::{OTHER_TOKEN, TestServer};
use crate::uploads::{auth, is_clean, sent};

/// The body of a LOCK.
fn lockinfo(scope: &str, owner: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"utf-8\"?><D:lockinfo xmlns:D=\"DAV:\"><D:lockscope>\
         <D:{scope}/>\
         </D:lockscope><D:locktype><D:write/></D:locktype><D:owner>{owner}</D:owner></D:lockinfo>"
    )
}

fn alice(server: &TestServer, method: &str, target: &str, fields: &str, body: &[u8]) -> Answer {
    sent(&mut server.client(), method, target, &format!("{}{fields}", auth()), body)
}

fn bob(server: &TestServer, method: &str, target: &str, fields: &str, body: &[u8]) -> Answer {
    let fields = format!("Authorization: Bearer {OTHER_TOKEN}\r\n{fields}");
    sent(&mut server.client(), method, target, &fields, body)
}

/// The token of a lock that is granted, in brackets.
fn token(answer: &Answer) -> String {
    assert!(matches!(answer.status, 200 | 201), "{} {}", answer.status, answer.text());
    let token = answer.field("lock-token").expect("a lock has a token").to_owned();
    assert!(token.starts_with("<opaquelocktoken:") && token.ends_with('>'), "{token}");
    assert!(answer.text().contains(&token[1..token.len() - 1]), "{}", answer.text());
    token
}

fn lock(server: &TestServer, target: &str, fields: &str) -> String {
    let body = lockinfo("exclusive", "me");
    token(&alice(server, "LOCK", target, fields, body.as_bytes()))
}

/// Ways to change `/dir/b.mp4`, with what each answers when it may; the last replaces it.
const CHANGES: [(&str, &str, &str, &str, u16); 4] = [
    ("PUT", "/dir/b.mp4", "", "new", 204),
    (
        "PROPPATCH",
        "/dir/b.mp4",
        "",
        "<D:propertyupdate xmlns:D=\"DAV:\"><D:set><D:prop><D:getlastmodified>Sun, 06 Nov 1994 \
         08:49:37 GMT\
         </D:getlastmodified></D:prop></D:set></D:propertyupdate>",
        207,
    ),
    ("COPY", "/a.ts", "Destination: /dir/b.mp4\r\n", "", 204),
    ("MOVE", "/empty.ts", "Destination: /dir/b.mp4\r\n", "", 204),
];

#[test]
fn u28_a_locked_title_is_changed_with_its_token_only() {
    let server = TestServer::taking_uploads();
    let token = lock(&server, "/dir/b.mp4", "Timeout: Second-600\r\n");
    let before = fs::read(server.root().join("dir/b.mp4")).unwrap();
    let gone = [
        ("DELETE", "/dir/b.mp4", "", "", 204),
        ("MOVE", "/dir/b.mp4", "Destination: /dir/c.mp4\r\n", "", 201),
    ];
    for (method, target, fields, body, _) in CHANGES.into_iter().chain(gone) {
        let answer = alice(&server, method, target, fields, body.as_bytes());
        assert_eq!(answer.status, 423, "{method} {target}: {}", answer.text());
        let submitted =
            "<D:lock-token-submitted><D:href>/dir/b.mp4</D:href></D:lock-token-submitted>";
        assert!(answer.text().contains(submitted), "{}", answer.text());
    }
    // Nor what would take it along.
    for (method, target, fields) in [
        ("DELETE", "/dir/", ""),
        ("MOVE", "/dir/", "Destination: /other/\r\n"),
        ("MOVE", "/a.ts", "Destination: /dir\r\nOverwrite: T\r\n"),
    ] {
        assert_eq!(alice(&server, method, target, fields, b"").status, 423, "{method} {target}");
    }
    // Nor by tus, or with the token by another principal; a wrong token is no condition that holds.
    let path = data_encoding::BASE64.encode(b"dir/b.mp4");
    let tus =
        format!("Tus-Resumable: 1.0.0\r\nUpload-Length: 3\r\nUpload-Metadata: path {path}\r\n");
    assert_eq!(alice(&server, "POST", "/api/v1/uploads", &tus, b"").status, 423);
    let with = format!("If: ({token})\r\n");
    assert_eq!(bob(&server, "PUT", "/dir/b.mp4", &with, b"x").status, 423);
    let wrong = "If: (<opaquelocktoken:bee9fe38-6a14-4827-ae82-c18168374983>)\r\n";
    assert_eq!(alice(&server, "PUT", "/dir/b.mp4", wrong, b"x").status, 412);
    // A recording of the same name.
    let mut client = server.client();
    client.send(format!(
        "PUT /dir/b.mp4?rate=8M HTTP/1.1\r\nHost: localhost\r\n{}Transfer-Encoding: chunked\r\n\r\n\
         1\r\nx\r\n0\r\n\r\n",
        auth()
    ));
    assert_eq!(client.answer().unwrap().status, 423);
    assert_eq!(fs::read(server.root().join("dir/b.mp4")).unwrap(), before);
    // Reading needs no token, and everything else goes on beside it.
    assert_eq!(server.client().get("/dir/b.mp4?rate=max", "").status, 200);
    assert_eq!(alice(&server, "PUT", "/dir/beside.mp4", "", b"x").status, 201);
    for (method, target, fields, body, status) in CHANGES {
        let fields = format!("If: </dir/b.mp4> ({token})\r\n{fields}");
        let answer = alice(&server, method, target, &fields, body.as_bytes());
        assert_eq!(answer.status, status, "{method} {target}: {}", answer.text());
    }
    // What was replaced is gone, and its lock with it.
    assert_eq!(alice(&server, "PUT", "/dir/b.mp4", "", b"x").status, 204);
    is_clean(&server);
}

#[test]
fn w05_a_lock_moves_nowhere_and_ends_with_what_it_locks() {
    let server = TestServer::taking_uploads();
    let token = lock(&server, "/dir/b.mp4", "Depth: 0\r\n");
    let with = format!("If: ({token})\r\n");
    let to = format!("{with}Destination: http://localhost/dir/c.mp4\r\n");
    assert_eq!(alice(&server, "MOVE", "/dir/b.mp4", &to, b"").status, 201);
    assert_eq!(alice(&server, "PUT", "/dir/c.mp4", "", b"x").status, 204, "no lock came along");
    assert_eq!(alice(&server, "PUT", "/dir/b.mp4", "", b"x").status, 201, "none stayed");
    let token = lock(&server, "/dir/", "Depth: infinity\r\n");
    assert_eq!(alice(&server, "DELETE", "/dir/", "", b"").status, 423);
    let with = format!("If: <http://localhost/dir/> ({token})\r\n");
    assert_eq!(alice(&server, "DELETE", "/dir/", &with, b"").status, 204);
    assert_eq!(alice(&server, "MKCOL", "/dir/", "", b"").status, 201);
    assert_eq!(
        alice(&server, "UNLOCK", "/dir/", &format!("Lock-Token: {token}\r\n"), b"").status,
        409
    );
}

#[test]
fn w05_a_locked_directory_guards_its_names_or_all_that_is_in_it() {
    let server = TestServer::taking_uploads();
    let names = lock(&server, "/dir", "Depth: 0\r\n");
    for (method, target, fields) in [
        ("PUT", "/dir/new.ts", ""),
        ("PUT", "/dir/far/new.ts", ""),
        ("MKCOL", "/dir/new/", ""),
        ("DELETE", "/dir/b.mp4", ""),
        ("MOVE", "/a.ts", "Destination: /dir/a.ts\r\n"),
        ("COPY", "/a.ts", "Destination: /dir/a.ts\r\n"),
        ("DELETE", "/dir/", ""),
    ] {
        let answer = alice(&server, method, target, fields, b"");
        assert_eq!(answer.status, 423, "{method} {target}: {}", answer.text());
    }
    assert_eq!(alice(&server, "PUT", "/dir/b.mp4", "", b"changed").status, 204, "no name changes");
    let body = lockinfo("exclusive", "me");
    assert_eq!(alice(&server, "LOCK", "/dir/new.ts", "", body.as_bytes()).status, 423);
    assert_eq!(alice(&server, "LOCK", "/dir/b.mp4", "Depth: 0\r\n", body.as_bytes()).status, 200);
    let with = format!("If: </dir> ({names})\r\n");
    assert_eq!(alice(&server, "PUT", "/dir/new.ts", &with, b"x").status, 201);
    assert_eq!(
        alice(&server, "UNLOCK", "/dir", &format!("Lock-Token: {names}\r\n"), b"").status,
        204
    );

    let all = alice(&server, "LOCK", "/dir/", "", body.as_bytes());
    assert_eq!(all.status, 423, "what is in it is locked already");
    assert!(all.text().contains("<D:no-conflicting-lock><D:href>/dir/b.mp4</D:href>"));
    assert_eq!(alice(&server, "MKCOL", "/tree/", "", b"").status, 201);
    let tree = lock(&server, "/tree/", "");
    assert_eq!(alice(&server, "PUT", "/tree/in/new.ts", "", b"x").status, 423);
    let with = format!("If: <http://localhost/tree/> ({tree})\r\n");
    assert_eq!(alice(&server, "PUT", "/tree/in/new.ts", &with, b"x").status, 201);
    let inner = alice(&server, "LOCK", "/tree/in/new.ts", "", body.as_bytes());
    assert_eq!(inner.status, 423);
    // A member's URL prolongs the lock that covers it.
    let refresh = format!("If: ({tree})\r\nTimeout: Second-30\r\n");
    let answer = alice(&server, "LOCK", "/tree/in/new.ts", &refresh, b"");
    assert_eq!((answer.status, answer.field("lock-token")), (200, None), "{}", answer.text());
    assert!(answer.text().contains("<D:timeout>Second-30</D:timeout>"), "{}", answer.text());
    assert!(answer.text().contains("<D:lockroot><D:href>/tree/</D:href></D:lockroot>"));
}

#[test]
fn w05_a_lock_where_nothing_is_makes_an_empty_title() {
    let server = TestServer::taking_uploads();
    let body = lockinfo("exclusive", "<D:href>mailto:me@example.com</D:href>");
    let answer = alice(&server, "LOCK", "/new%20film.ts", "Timeout: Infinite\r\n", body.as_bytes());
    assert_eq!((answer.status, answer.field("location")), (201, Some("/new%20film.ts")));
    let token = token(&answer);
    for part in [
        "<D:lockscope><D:exclusive/></D:lockscope>",
        "<D:depth>infinity</D:depth>",
        "<D:owner><D:href>mailto:me@example.com</D:href></D:owner>",
        "<D:timeout>Second-3600</D:timeout>",
        "<D:lockroot><D:href>/new%20film.ts</D:href></D:lockroot>",
    ] {
        assert!(answer.text().contains(part), "no {part} in {}", answer.text());
    }
    assert_eq!(fs::read(server.root().join("new film.ts")).unwrap(), b"");
    assert_eq!(alice(&server, "PUT", "/new%20film.ts", "", b"x").status, 423);
    let with = format!("If: ({token})\r\n");
    assert_eq!(alice(&server, "PUT", "/new%20film.ts", &with, b"all of it").status, 204);
    let wrong = "Lock-Token: <opaquelocktoken:bee9fe38-6a14-4827-ae82-c18168374983>\r\n";
    assert_eq!(alice(&server, "UNLOCK", "/new%20film.ts", wrong, b"").status, 409);
    assert_eq!(alice(&server, "UNLOCK", "/new%20film.ts", "", b"").status, 400);
    let own = format!("Lock-Token: {token}\r\n");
    assert_eq!(alice(&server, "UNLOCK", "/new%20film.ts", &own, b"").status, 204);
    assert_eq!(alice(&server, "UNLOCK", "/new%20film.ts", &own, b"").status, 409);
    assert_eq!(fs::read(server.root().join("new film.ts")).unwrap(), b"all of it");
    // No directory is made by it, neither the title's nor itself.
    for target in ["/none/new.ts", "/none/", "/a.ts/x.ts"] {
        let answer = alice(&server, "LOCK", target, "", body.as_bytes());
        assert_eq!(answer.status, 409, "{target}: {}", answer.text());
    }
    is_clean(&server);
}

#[test]
fn u28_locks_that_are_not_granted() {
    let server = TestServer::taking_uploads();
    let good = lockinfo("exclusive", "me");
    for (target, fields, body, status) in [
        ("/a.ts", "Depth: 1\r\n", &*good, 400),
        ("/a.ts", "", "", 400),
        ("/a.ts", "", "<D:lockinfo xmlns:D=\"DAV:\"/>", 400),
        ("/a.ts", "", "x", 400),
        ("/a.ts", "If: (x)\r\n", &*good, 400),
        ("/a.ts", "If: (<urn:x>)\r\n", &*good, 412),
        ("/a.ts", "If: (<urn:x>)\r\n", "", 412),
        ("/a.ts", "If-None-Match: *\r\n", &*good, 412),
        ("/a.ts", "If-Match: \"x\"\r\n", &*good, 412),
        ("/a.ts/", "", &*good, 409),
        ("/.tactus/x", "", &*good, 403),
        ("/api/v1/x", "", &*good, 403),
        ("/a.ts", "", &*lockinfo("exclusive", &"x".repeat(3000)), 400),
    ] {
        let answer = alice(&server, "LOCK", target, fields, body.as_bytes());
        assert_eq!(answer.status, status, "{target} {fields} {body}: {}", answer.text());
        assert_eq!(answer.field("lock-token"), None);
    }
    assert_eq!(sent(&mut server.client(), "LOCK", "/a.ts", "", good.as_bytes()).status, 401);
    assert_eq!(sent(&mut server.client(), "UNLOCK", "/a.ts", "", b"").status, 401);
    assert_eq!(
        alice(&server, "PUT", "/a.ts", "If: (<urn:x>)\r\nIf: (<urn:y>)\r\n", b"").status,
        400
    );
    let open = TestServer::new();
    let answer = sent(&mut open.client(), "LOCK", "/a.ts", "", good.as_bytes());
    assert_eq!(answer.status, 405, "where nothing can be changed, nothing is locked");
}

#[test]
fn w05_shared_locks_are_held_together_and_against_others() {
    let server = TestServer::taking_uploads();
    let shared = lockinfo("shared", "us");
    let one = token(&alice(&server, "LOCK", "/a.ts", "", shared.as_bytes()));
    let two = token(&bob(&server, "LOCK", "/a.ts", "", shared.as_bytes()));
    let alone = lockinfo("exclusive", "me");
    assert_eq!(alice(&server, "LOCK", "/a.ts", "", alone.as_bytes()).status, 423);
    assert_eq!(alice(&server, "PUT", "/a.ts", "", b"x").status, 423);
    assert_eq!(alice(&server, "PUT", "/a.ts", &format!("If: ({one})\r\n"), b"x").status, 204);
    assert_eq!(bob(&server, "PUT", "/a.ts", &format!("If: ({two})\r\n"), b"y").status, 204);
    // Each sees both locks, and only its own token; who has none sees nothing.
    let asked = "<D:propfind xmlns:D=\"DAV:\"><D:prop><D:lockdiscovery/><D:supportedlock/>\
     </D:prop></D:propfind>";
    let depth = "Depth: 0\r\n";
    for (answer, own, other) in [
        (alice(&server, "PROPFIND", "/a.ts", depth, asked.as_bytes()), &one, &two),
        (bob(&server, "PROPFIND", "/a.ts", depth, asked.as_bytes()), &two, &one),
    ] {
        let text = answer.text();
        assert_eq!(text.matches("<D:activelock>").count(), 2, "{text}");
        assert!(
            text.contains(&own[1..own.len() - 1]) && !text.contains(&other[1..other.len() - 1])
        );
        assert!(text.contains("<D:lockentry><D:lockscope><D:exclusive/></D:lockscope>"), "{text}");
        assert!(!text.contains("HTTP/1.1 404"), "{text}");
    }
    let listed = alice(&server, "PROPFIND", "/", "Depth: 1\r\n", asked.as_bytes()).text();
    assert_eq!(listed.matches("<D:activelock>").count(), 2, "of its own title alone: {listed}");
    let nobody = sent(&mut server.client(), "PROPFIND", "/a.ts", depth, asked.as_bytes()).text();
    assert!(nobody.contains("<D:lockdiscovery></D:lockdiscovery>") && !nobody.contains("active"));
    // One cannot end the other's; who manages everything can.
    let of = |token: &str| format!("Lock-Token: {token}\r\n");
    assert_eq!(alice(&server, "UNLOCK", "/a.ts", &of(&two), b"").status, 204, "alice manages");
    let read_only = TestServer::new();
    let answer = sent(&mut read_only.client(), "PROPFIND", "/a.ts", depth, asked.as_bytes()).text();
    assert!(answer.contains("<D:lockdiscovery/><D:supportedlock/></D:prop><D:status>HTTP/1.1 404"));
}

#[test]
fn s14_who_may_store_nothing_locks_nothing() {
    let grants = |rights: &[Right], paths: &[&str]| {
        let paths: Vec<_> = paths.iter().map(|&path| path.to_owned()).collect();
        let grant = Grant::new(rights, Paths::parse(&paths).expect("they are paths"));
        TestServer::with(|plan| {
            plan.uploads = true;
            plan.upload.principals[1].rights = Rights::new(vec![grant]);
        })
    };
    let body = lockinfo("exclusive", "me");
    let of =
        |server: &TestServer, target: &str| bob(server, "LOCK", target, "", body.as_bytes()).status;
    let reader = grants(&[Right::Read, Right::Delete, Right::Manage], &["/"]);
    assert_eq!(
        (of(&reader, "/a.ts"), of(&reader, "/new.ts"), of(&reader, "/dir/")),
        (403, 403, 403)
    );
    let publisher = grants(&[Right::Publish], &["/dir/"]);
    assert_eq!((of(&publisher, "/a.ts"), of(&publisher, "/")), (403, 403));
    assert_eq!((of(&publisher, "/dir/b.mp4"), of(&publisher, "/dir/new.mp4")), (403, 201));
    let replacer = grants(&[Right::Replace], &["/"]);
    assert_eq!((of(&replacer, "/a.ts"), of(&replacer, "/new.ts")), (200, 403));
    // Another's lock is not given back without the right to manage.
    let server = grants(&[Right::Publish, Right::Replace], &["/"]);
    let token = lock(&server, "/a.ts", "");
    let own = format!("Lock-Token: {token}\r\n");
    assert_eq!(bob(&server, "UNLOCK", "/a.ts", &own, b"").status, 403);
    assert_eq!(bob(&server, "LOCK", "/a.ts", &format!("If: ({token})\r\n"), b"").status, 412);
    assert_eq!(alice(&server, "UNLOCK", "/a.ts", &own, b"").status, 204);
}

#[test]
fn w05_there_are_as_many_locks_as_the_configuration_says() {
    let server = TestServer::with(|plan| {
        plan.uploads = true;
        plan.upload.locks_max = 3;
        plan.upload.locks_per_principal_max = 2;
    });
    let body = lockinfo("exclusive", "me");
    let shared = lockinfo("shared", "me");
    lock(&server, "/a.ts", "Depth: 0\r\n");
    lock(&server, "/dir/b.mp4", "");
    let answer = alice(&server, "LOCK", "/empty.ts", "", body.as_bytes());
    assert_eq!((answer.status, answer.field("retry-after")), (503, Some("60")));
    assert!(answer.text().contains("upload.locks_per_principal_max"), "{}", answer.text());
    assert_eq!(bob(&server, "LOCK", "/empty.ts", "", shared.as_bytes()).status, 200);
    let answer = bob(&server, "LOCK", "/empty.ts", "", shared.as_bytes());
    assert!(
        answer.status == 503 && answer.text().contains("upload.locks_max"),
        "{}",
        answer.text()
    );
    assert_eq!(bob(&server, "LOCK", "/new.ts", "", body.as_bytes()).status, 503);
    assert!(!server.root().join("new.ts").exists());
}

/// The examples of RFC 4918 section 10.4, on a title with a lock and an entity tag.
#[test]
fn w05_if_is_evaluated_as_webdav_says() {
    let server = TestServer::taking_uploads();
    let token = lock(&server, "/a.ts", "");
    let tag = || {
        let head = server.client().ask("HEAD", "/a.ts?rate=max", "");
        head.field("etag").unwrap().to_owned()
    };
    for (lists, status) in [
        ("({t} [{e}])", 204),
        ("({t} [\"x\"])", 412),
        ("({t} [\"x\"]) ([{e}])", 204),
        ("([{e}])", 423),
        ("({t} [W/{e}])", 412),
        ("(Not {t})", 412),
        ("({t}) (Not <DAV:no-lock>)", 204),
        ("(<urn:x>) (Not <DAV:no-lock>)", 423),
        ("({t} Not <DAV:no-lock>)", 204),
        ("({t} Not [\"x\"])", 204),
        ("</a.ts> ({t})", 204),
        ("<http://localhost/a.ts> ({t} [{e}])", 204),
        ("<http://elsewhere/a.ts> ({t})", 412),
        ("</dir/b.mp4> ({t})", 412),
        ("</dir/b.mp4> (Not {t})", 204),
        ("</none.ts> ([{e}]) </a.ts> ({t})", 204),
    ] {
        let lists = lists.replace("{t}", &token).replace("{e}", &tag());
        let answer = alice(&server, "PUT", "/a.ts", &format!("If: {lists}\r\n"), b"x");
        assert_eq!(answer.status, status, "{lists}: {}", answer.text());
    }
}
