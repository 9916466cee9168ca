//! Rows U20 to U29: WebDAV. What is asked and changed beside titles, and what is wrong with it.

use std::fs;
use std::time::{Duration, Instant};

use tactus_http::Abuse;

use crate::client::Answer;
use crate::test_server::{TestServer, content};
use crate::uploads::{auth, is_clean, put, sent};

fn dav(server: &TestServer, method: &str, target: &str, fields: &str, body: &[u8]) -> Answer {
    sent(&mut server.client(), method, target, &format!("{}{fields}", auth()), body)
}

/// A PROPFIND by nobody in particular.
fn find(server: &TestServer, target: &str, fields: &str, body: &str) -> Answer {
    sent(&mut server.client(), "PROPFIND", target, fields, body.as_bytes())
}

fn propfind(inner: &str) -> String {
    format!("<?xml version=\"1.0\"?><D:propfind xmlns:D=\"DAV:\">{inner}</D:propfind>")
}

/// What an answer of several statuses has links to.
fn links(answer: &Answer) -> Vec<String> {
    assert_eq!(answer.status, 207, "{}", answer.text());
    assert_eq!(answer.field("content-type"), Some("application/xml; charset=utf-8"));
    let text = answer.text();
    let parts = text.split("<D:href>").skip(1);
    parts.map(|part| part.split_once("</D:href>").unwrap().0.to_owned()).collect()
}

#[test]
fn what_is_there_is_told() {
    let server = TestServer::new();
    let answer = find(&server, "/", "Depth: 1\r\n", "");
    assert_eq!(links(&answer), ["/", "/dir/", "/a.ts", "/empty.ts"]);
    let answer = find(&server, "/dir", "Depth: 1\r\n", "");
    assert_eq!(links(&answer), ["/dir/", "/dir/b.mp4"]);
    let asked = propfind(
        "<D:prop><D:getcontentlength/><D:getetag/><D:resourcetype/><D:getcontenttype/>\
         <D:getlastmodified/><o:id xmlns:o=\"urn:o\"/></D:prop>",
    );
    let answer = find(&server, "/a.ts", "Depth: 0\r\n", &asked);
    assert_eq!(links(&answer), ["/a.ts"]);
    let head = server.client().ask("HEAD", "/a.ts?rate=max", "");
    let text = answer.text();
    for known in [
        format!("<D:getcontentlength>{}</D:getcontentlength>", crate::test_server::A_LEN),
        format!("<D:getetag>{}</D:getetag>", head.field("etag").unwrap().replace('"', "&quot;")),
        format!("<D:getlastmodified>{}</D:getlastmodified>", head.field("last-modified").unwrap()),
        "<D:getcontenttype>video/mp2t</D:getcontenttype>".to_owned(),
        "<D:resourcetype></D:resourcetype>".to_owned(),
        "<x:id xmlns:x=\"urn:o\"/></D:prop><D:status>HTTP/1.1 404 Not Found</D:status>".to_owned(),
    ] {
        assert!(text.contains(&known), "no {known} in {text}");
    }
    assert_eq!(find(&server, "/none.ts", "Depth: 0\r\n", "").status, 404);
    assert_eq!(find(&server, "/a.ts/", "Depth: 0\r\n", "").status, 404);
    // Nothing can be changed here, but much can be asked.
    let options = server.client().ask("OPTIONS", "/", "");
    assert_eq!(options.field("dav"), Some("1"));
    assert_eq!(dav(&server, "MKCOL", "/new/", "", b"").status, 405);
}

#[test]
fn directories_are_made_moved_and_deleted() {
    let server = TestServer::taking_uploads();
    let answer = dav(&server, "MKCOL", "/f%20ilms/", "", b"");
    assert_eq!((answer.status, answer.field("location")), (201, Some("/f%20ilms/")));
    assert_eq!(
        dav(&server, "MKCOL", "/f%20ilms/in", "", b"").status,
        201,
        "without the slash, too"
    );
    assert_eq!(put(&server, "/f%20ilms/in/a.ts", "", &content(300_000)).status, 201);
    assert_eq!(put(&server, "/f%20ilms/b.ts", "", &content(5)).status, 201);
    let stored = server.store().usage().stored;
    let to = "Destination: /films/\r\n";
    let answer = dav(&server, "MOVE", "/f%20ilms/", to, b"");
    assert_eq!((answer.status, answer.field("etag")), (201, None));
    assert_eq!(find(&server, "/f%20ilms/", "Depth: 0\r\n", "").status, 404);
    let answer = find(&server, "/films/", "Depth: 1\r\n", "");
    assert_eq!(links(&answer), ["/films/", "/films/in/", "/films/b.ts"]);
    assert_eq!(server.client().get("/films/in/a.ts?rate=max", "").body, content(300_000));
    assert_eq!(server.store().usage().stored, stored);
    assert_eq!(dav(&server, "DELETE", "/films/", "", b"").status, 204);
    assert_eq!(dav(&server, "DELETE", "/films/", "", b"").status, 404);
    server.wait_until("the trash is empty, and its titles count no more", |server| {
        let trash = fs::read_dir(server.root().join(".tactus/trash")).unwrap().count();
        (trash, server.store().usage().stored) == (0, stored - 300_005)
    });
    // What is made anew under the old name is durable anew, and another.
    assert_eq!(put(&server, "/films/in/a.ts", "", b"new").status, 201);
    is_clean(&server);
}

#[test]
fn titles_are_copied_when_the_disk_has_time_for_it() {
    let server = TestServer::taking_uploads();
    let body = content(3_000_001);
    let tag = put(&server, "/b.ts", "", &body).field("etag").unwrap().to_owned();
    let copy = |target: &str, to: &str, more: &str| {
        dav(&server, "COPY", target, &format!("Destination: {to}\r\n{more}"), b"")
    };
    let read = || server.engine.counters.disks[0].best_effort_bytes.value();
    let before = read();
    let answer = copy("/b.ts", "/dir/c.ts", &format!("If-Match: {tag}\r\n"));
    assert_eq!((answer.status, answer.field("location")), (201, Some("/dir/c.ts")));
    assert!(read() - before >= body.len() as u64, "{} by plan", read() - before);
    assert!(fs::read(server.root().join("dir/c.ts")).unwrap() == body);
    assert_eq!(server.client().ask("HEAD", "/b.ts?rate=max", "").field("etag"), Some(&*tag));
    for (target, to, more, status) in [
        ("/empty.ts", "/empty-too.ts", "", 201),
        ("/b.ts", "/dir/c.ts", "Overwrite: F\r\n", 412),
        ("/b.ts", "/d.ts", "If-Match: \"x\"\r\n", 412),
        ("/empty.ts", "/dir/c.ts", "", 204),
        ("/b.ts", "/b.ts", "", 403),
        ("/b.ts", "/none/d.ts", "", 409),
        ("/b.ts", "/dir", "", 409),
        ("/b.ts", "/dir/", "", 409),
        ("/dir/", "/dir2/", "", 403),
        ("/none.ts", "/d.ts", "", 404),
        ("/b.ts", "/.tactus/d.ts", "", 403),
        ("/b.ts", "http://other.example/d.ts", "", 502),
        ("/b.ts", "/d.ts", "If: (<urn:x>)\r\n", 412),
    ] {
        let answer = copy(target, to, more);
        assert_eq!(answer.status, status, "{target} {to} {more}: {}", answer.text());
    }
    let to = "Destination: /d.ts\r\n";
    assert_eq!(sent(&mut server.client(), "COPY", "/b.ts", to, b"").status, 401);
    is_clean(&server);
    assert_eq!(fs::read(server.root().join("dir/c.ts")).unwrap(), b"");
}

#[test]
fn u20_whole_trees_are_not_listed() {
    let server = TestServer::new();
    for fields in ["", "Depth: infinity\r\n", "Depth: Infinity\r\n"] {
        let answer = find(&server, "/", fields, "");
        assert_eq!(answer.status, 403);
        assert!(answer.text().contains("<D:propfind-finite-depth/>"));
    }
    for fields in ["Depth: 2\r\n", "Depth: 1,noroot\r\n", "Depth:\r\n", "Depth: 1\r\nDepth: 1\r\n"]
    {
        assert_eq!(find(&server, "/", fields, "").status, 400, "{fields}");
    }
}

#[test]
fn u21_no_body_is_expanded_or_guessed() {
    let server = TestServer::new();
    let bomb = format!(
        "<!DOCTYPE a [<!ENTITY b \"{}\">]>{}",
        "&lol;".repeat(9),
        propfind("<D:prop><a>&b;</a></D:prop>")
    );
    let outside = "<!DOCTYPE a SYSTEM \"file:///etc/passwd\"><a/>";
    let many = propfind(&format!("<D:prop>{}</D:prop>", "<a/>".repeat(65)));
    let deep = "<a>".repeat(10_000);
    for body in [&*bomb, outside, "x", "<a/>", &propfind("<D:prop>"), &propfind(""), &many, &deep] {
        let mut client = server.client();
        let answer = sent(&mut client, "PROPFIND", "/", "Depth: 1\r\n", body.as_bytes());
        assert_eq!(answer.status, 400, "{body}");
        // The connection goes on behind the body.
        assert_eq!(client.get("/dir/b.mp4?rate=max", "").status, 200);
    }
    let long = propfind(&" ".repeat(70_000));
    let answer = find(&server, "/", "Depth: 1\r\n", &long);
    assert!(answer.status == 413 && answer.closes());
    let mut client = server.client();
    client.send(
        "PROPFIND / HTTP/1.1\r\nHost: localhost\r\nDepth: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    );
    // As much again is read over.
    for _ in 0..140 {
        client.send(format!("400\r\n{}\r\n", " ".repeat(1024)));
    }
    assert_eq!(client.answer().unwrap().status, 413);
    server.serves_others();
}

#[test]
fn u22_who_has_no_token_sees_the_page_and_no_more() {
    let server = TestServer::taking_uploads();
    fs::write(server.root().join(".hidden.ts"), b"x").unwrap();
    let shown = links(&find(&server, "/", "Depth: 1\r\n", ""));
    assert_eq!(shown, ["/", "/dir/", "/a.ts", "/empty.ts"]);
    // Who may delete everything may see it; what is the server's own, nobody.
    let all = links(&dav(&server, "PROPFIND", "/", "Depth: 1\r\n", b""));
    assert_eq!(all, ["/", "/dir/", "/.hidden.ts", "/a.ts", "/empty.ts"]);
    assert_eq!(dav(&server, "PROPFIND", "/.tactus/", "Depth: 1\r\n", b"").status, 404);
    let wrong = "Authorization: Bearer not-the-right-one\r\nDepth: 1\r\n";
    assert_eq!(find(&server, "/", wrong, "").status, 401);
    assert_eq!(server.count(Abuse::WrongToken), 1);

    let closed = TestServer::with(|plan| (plan.uploads, plan.listing) = (true, false));
    let answer = find(&closed, "/dir/", "Depth: 1\r\n", "");
    assert!(answer.status == 401 && answer.field("www-authenticate").is_some());
    assert_eq!(find(&closed, "/a.ts", "Depth: 0\r\n", "").status, 207, "as it can be got");
    assert_eq!(dav(&closed, "PROPFIND", "/dir/", "Depth: 1\r\n", b"").status, 207);
    let silent = TestServer::with(|plan| plan.listing = false);
    let answer = find(&silent, "/", "Depth: 1\r\n", "");
    assert_eq!((answer.status, answer.field("allow")), (405, Some("GET, HEAD, OPTIONS")));
    assert_eq!(silent.client().ask("OPTIONS", "/", "").field("dav"), None);
}

#[test]
fn u23_a_listing_is_whole_or_none() {
    let server = TestServer::new();
    let many = server.root().join("many");
    fs::create_dir(&many).unwrap();
    for number in 0..10_001 {
        fs::File::create(many.join(format!("{number}.ts"))).unwrap();
    }
    assert_eq!(links(&find(&server, "/many/", "Depth: 1\r\n", "")).len(), 10_002);
    assert_eq!(links(&find(&server, "/many/", "Depth: 0\r\n", "")).len(), 1);
    // The answer repeats the requested names for each entry.
    let names: String = (0..9).map(|n| format!("<a{n}{}/>", "a".repeat(1_000))).collect();
    let long = propfind(&format!("<D:prop>{names}</D:prop>"));
    assert_eq!(find(&server, "/many/", "Depth: 1\r\n", &long).status, 507);
}

#[test]
fn u24_directories_that_are_not_made() {
    let server = TestServer::taking_uploads();
    for (target, fields, body, status) in [
        ("/dir/", "", "", 405),
        ("/dir", "", "", 405),
        ("/a.ts", "", "", 405),
        ("/", "", "", 405),
        ("/none/new/", "", "", 409),
        ("/a.ts/new/", "", "", 409),
        ("/new/", "Content-Type: application/xml\r\n", "<mkcol/>", 415),
        ("/.tactus/new/", "", "", 403),
        ("/dir/.tactus-mine/", "", "", 403),
        ("/../new/", "", "", 400),
        ("/new//", "", "", 400),
        ("/new/", "If: (<urn:uuid:181d4fae>)\r\n", "", 412),
    ] {
        let answer = dav(&server, "MKCOL", target, fields, body.as_bytes());
        assert_eq!(answer.status, status, "{target} {fields}: {}", answer.text());
    }
    assert_eq!(sent(&mut server.client(), "MKCOL", "/new/", "", b"").status, 401);
    assert!(!server.root().join("new").exists());
}

#[test]
fn u25_a_directory_goes_as_a_whole_or_stays() {
    let server = TestServer::taking_uploads();
    for (target, fields, status) in [
        ("/", "", 403),
        ("/dir/", "Depth: 0\r\n", 400),
        ("/dir/", "If-Match: \"x\"\r\n", 412),
        ("/dir/", "If: (<urn:uuid:181d4fae>)\r\n", 412),
        ("/a.ts/", "", 404),
        ("/.tactus/", "", 403),
    ] {
        assert_eq!(dav(&server, "DELETE", target, fields, b"").status, status, "{target} {fields}");
    }
    assert_eq!(sent(&mut server.client(), "DELETE", "/dir/", "", b"").status, 401);
    assert!(server.root().join("dir/b.mp4").exists());
    // Deeper than any path can say, and with things in it that are no titles.
    let mut deep = server.root().join("dir");
    for _ in 0..14 {
        deep = deep.join("d".repeat(250));
        fs::create_dir(&deep).unwrap();
        fs::write(deep.join("x.ts"), b"x").unwrap();
    }
    std::os::unix::fs::symlink("/etc", server.root().join("dir/link")).unwrap();
    for number in 0..200 {
        fs::create_dir(server.root().join(format!("dir/{number}"))).unwrap();
    }
    assert_eq!(dav(&server, "DELETE", "/dir/", "Depth: infinity\r\n", b"").status, 204);
    server.wait_until("nothing is left of it", |server| {
        fs::read_dir(server.root().join(".tactus/trash")).unwrap().count() == 0
    });
    assert!(fs::metadata("/etc/passwd").is_ok(), "a link is not followed");
}

#[test]
fn u26_directories_that_are_not_moved() {
    let server = TestServer::taking_uploads();
    assert_eq!(put(&server, "/other/in/c.ts", "", b"c").status, 201);
    let to = |to: &str, more: &str| format!("Destination: {to}\r\n{more}");
    for (target, fields, status) in [
        ("/dir/", to("/dir/", ""), 403),
        ("/dir/", to("/dir/in/", ""), 403),
        ("/other/in/", to("/other/", "Overwrite: T\r\n"), 403),
        ("/other/in/c.ts", to("/other", "Overwrite: T\r\n"), 403),
        ("/dir/", to("/other/", "Overwrite: F\r\n"), 412),
        ("/dir/", to("/other/", ""), 409),
        ("/a.ts", to("/other", ""), 409),
        ("/a.ts", to("/other/", ""), 409),
        ("/dir/", to("/a.ts", ""), 409),
        ("/dir/", to("/new/", "Depth: 0\r\n"), 400),
        ("/dir/", to("/.tactus/", ""), 403),
        ("/", to("/new/", ""), 403),
    ] {
        let answer = dav(&server, "MOVE", target, &fields, b"");
        assert_eq!(answer.status, status, "{target} {fields}: {}", answer.text());
    }
    assert!(
        server.root().join("dir/b.mp4").exists() && server.root().join("other/in/c.ts").exists()
    );
    // Who says so replaces all of it, in one step.
    let over = to("/other/", "Overwrite: T\r\n");
    assert_eq!(dav(&server, "MOVE", "/dir/", &over, b"").status, 204);
    assert!(server.root().join("other/b.mp4").exists() && !server.root().join("other/in").exists());
    assert!(!server.root().join("dir").exists());
    let over = to("/other", "Overwrite: T\r\n");
    assert_eq!(dav(&server, "MOVE", "/a.ts", &over, b"").status, 204);
    assert!(server.root().join("other").is_file() && !server.root().join("a.ts").exists());
    server.wait_until("what was replaced is gone", |server| {
        fs::read_dir(server.root().join(".tactus/trash")).unwrap().count() == 0
    });
}

#[test]
fn u27_no_property_is_set() {
    let server = TestServer::taking_uploads();
    let body = "<D:propertyupdate xmlns:D=\"DAV:\"><D:set><D:prop><w:Win32FileAttributes \
                xmlns:w=\"urn:schemas-microsoft-com:\">20</w:Win32FileAttributes><D:getetag>x</D:\
                getetag></D:prop></D:set></D:propertyupdate>";
    let answer = dav(&server, "PROPPATCH", "/a.ts", "", body.as_bytes());
    assert_eq!(links(&answer), ["/a.ts"]);
    let text = answer.text();
    assert!(text.contains("<x:Win32FileAttributes xmlns:x=\"urn:schemas-microsoft-com:\"/>"));
    assert!(text.contains("403 Forbidden") && !text.contains("200 OK"), "{text}");
    assert_eq!(dav(&server, "PROPPATCH", "/none.ts", "", body.as_bytes()).status, 404);
    assert_eq!(dav(&server, "PROPPATCH", "/a.ts", "", b"").status, 400);
    assert_eq!(sent(&mut server.client(), "PROPPATCH", "/a.ts", "", body.as_bytes()).status, 401);
}

/// The largest XML bodies with nested elements and namespace declarations. They once cost a control
/// thread ten seconds each.
#[test]
fn s01_a_body_with_thousands_of_namespaces_is_refused_at_once() {
    let server = TestServer::taking_uploads();
    let declared = |n: usize| format!("<a xmlns:p{n}=\"u\" xmlns:q{n}=\"u\" xmlns:r{n}=\"u\">");
    let nested: String = (0..900).map(declared).collect();
    let (nested, ends) = (nested, "</a>".repeat(900));
    let within = |root: &str, inner: &str| {
        let inner = format!("<D:{inner}><D:prop>{nested}{ends}</D:prop></D:{inner}>");
        format!("<D:{root} xmlns:D=\"DAV:\">{inner}</D:{root}>")
    };
    let begun = Instant::now();
    for (method, root, inner, status) in [
        ("PROPFIND", "propfind", "include", 400),
        ("PROPPATCH", "propertyupdate", "set", 400),
        ("LOCK", "lockinfo", "owner", 400),
    ] {
        let body = within(root, inner);
        assert!(body.len() > 45_000, "{}", body.len());
        assert_eq!(dav(&server, method, "/a.ts", "Depth: 0\r\n", body.as_bytes()).status, status);
    }
    // Usually milliseconds; more in an unoptimised build on a busy machine.
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
}

#[test]
fn u29_whatever_things_are_called_the_answer_is_xml() {
    let server = TestServer::new();
    for name in ["<&>\"'.ts", "\u{fffe}.ts", "größe ü.ts", "a]]>b.ts", "100%.ts"] {
        fs::write(server.root().join("dir").join(name), b"x").unwrap();
    }
    let answer = find(&server, "/dir/", "Depth: 1\r\n", &propfind("<D:allprop/>"));
    let links = links(&answer);
    assert_eq!(links.len(), 7);
    let text = answer.text();
    let mut reader = quick_xml::Reader::from_str(&text);
    while reader.read_event().unwrap() != quick_xml::events::Event::Eof {}
    assert!(text.contains("<D:displayname>&lt;&amp;&gt;&quot;'.ts</D:displayname>"), "{text}");
    for link in &links[1..] {
        let link = link.replace("&amp;", "&");
        assert_eq!(server.client().get(&format!("{link}?rate=max"), "").status, 200, "{link}");
    }
}
