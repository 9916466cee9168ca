//! What file managers send when they mount, store, rename and delete: the requests as macOS, GNOME
//! and Windows write them, in their order, with the answer that each needs.

use crate::client::Answer;
use crate::test_server::{TOKEN, TestServer};
use crate::uploads::is_clean;

/// One request, and what its answer must be. `{token}` in the fields is the token of the last LOCK.
struct Step {
    line: &'static str,
    fields: &'static str,
    body: &'static str,
    status: u16,
    /// What the answer holds, in its head or its body; with `!` in front, what it does not.
    holds: &'static [&'static str],
}

const fn step(
    line: &'static str,
    fields: &'static str,
    body: &'static str,
    status: u16,
    holds: &'static [&'static str],
) -> Step {
    Step { line, fields, body, status, holds }
}

/// Sends the steps over one connection, as such clients do.
fn play(server: &TestServer, agent: &str, steps: &[Step]) {
    let basic = data_encoding::BASE64.encode(format!("user:{TOKEN}").as_bytes());
    let (mut client, mut token) = (server.client(), String::new());
    for (number, Step { line, fields, body, status, holds }) in steps.iter().enumerate() {
        let fields = fields.replace("{token}", &token);
        let length = match *line {
            line if line.starts_with("GET") || line.starts_with("HEAD") => String::new(),
            _ => format!("Content-Length: {}\r\n", body.len()),
        };
        let head = format!(
            "{line} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: {agent}\r\nAuthorization: Basic \
             {basic}\r\n\
             {fields}{length}\r\n"
        );
        let (method, _) = line.split_once(' ').expect("a method and a target");
        client.send(&head);
        let what = format!("{agent}, step {number}: {line}");
        if fields.contains("Expect:") && *status < 300 {
            let word = client.answer_to(method).expect("a word");
            assert_eq!(word.status, 100, "{what}");
        }
        client.send(body);
        let answer: Answer =
            client.answer_to(method).unwrap_or_else(|| panic!("{what}: no answer"));
        assert_eq!(answer.status, *status, "{what}: {}", answer.text());
        let head = ["allow", "dav", "ms-author-via", "location", "etag", "content-range"];
        let head = head.map(|name| format!("{name}: {}\n", answer.field(name).unwrap_or_default()));
        let text = format!("{}\n{}", head.concat(), answer.text());
        for part in *holds {
            match part.strip_prefix('!') {
                Some(part) => assert!(!text.contains(part), "{what}: {part} is in {text}"),
                None => assert!(text.contains(part), "{what}: no {part} in {text}"),
            }
        }
        if let Some(new) = answer.field("lock-token") {
            token = new.to_owned();
        }
        if answer.closes() {
            client = server.client();
        }
    }
}

const MAC_PROPERTIES: &str = "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<D:propfind \
 xmlns:D=\"DAV:\">\n<D:prop>\n\
    <D:getlastmodified/>\n<D:getcontentlength/>\n<D:creationdate/>\n<D:resourcetype/>\n</D:prop>\n\
    </D:propfind>\n";
const MAC_LISTING: &str = "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<D:propfind \
 xmlns:D=\"DAV:\">\n<D:prop>\n\
    <D:getlastmodified/>\n<D:getcontentlength/>\n<D:creationdate/>\n<D:resourcetype/>\n\
    <A:appledoubleheader xmlns:A=\"http://www.apple.com/webdav_fs/props/\"/>\n</D:prop>\n\
    </D:propfind>\n";
const MAC_ROOM: &str = "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<D:propfind \
 xmlns:D=\"DAV:\">\n<D:prop>\n\
    <D:quota-available-bytes/>\n<D:quota-used-bytes/>\n<D:quota/>\n<D:quotaused/>\n</D:prop>\n\
    </D:propfind>\n";
const MAC_LOCK: &str = "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<D:lockinfo xmlns:D=\"DAV:\">\n\
    <D:lockscope><D:exclusive/></D:lockscope>\n<D:locktype><D:write/></D:locktype>\n<D:owner>\n\
    <D:href>http://www.apple.com/webdav_fs/</D:href>\n</D:owner>\n</D:lockinfo>\n";
const MAC_FIELDS: &str = "Depth: 0\r\nContent-Type: text/xml\r\n";

/// Who mounts is asked for a password while a user is there to answer; a guest has none.
#[test]
fn w05_file_managers_ask_for_a_password_when_they_mount() {
    let server = TestServer::taking_uploads();
    let options = |server: &TestServer, agent: &str, more: &str| {
        let fields = format!("User-Agent: {agent}\r\n{more}");
        server.client().ask("OPTIONS", "/", &fields)
    };
    for agent in ["gvfs/1.50.3", "WebDAVFS/3.0.0 (03008000) Darwin/21.6.0", "WebDAVLib/1.3"] {
        let answer = options(&server, agent, "");
        assert_eq!(answer.status, 401, "{agent}");
        assert!(answer.field("www-authenticate").expect("a challenge").contains("Basic"));
        let guest = data_encoding::BASE64.encode(b"guest:");
        let guest = format!("Authorization: Basic {guest}\r\n");
        assert_eq!(options(&server, agent, &guest).status, 204, "{agent}");
        let fields = format!("User-Agent: {agent}\r\nDepth: 1\r\n{guest}");
        let listed = server.client().ask("PROPFIND", "/", &fields);
        assert!(listed.status == 207 && listed.text().contains("/a.ts"), "{}", listed.text());
        assert_eq!(server.client().ask("DELETE", "/a.ts", &guest).status, 401);
        // Where nothing can be stored nobody is asked.
        assert_eq!(options(&TestServer::new(), agent, "").status, 204, "{agent}");
    }
    for agent in ["curl/7.88.1", "davfs2/1.6.1 neon/0.32.2", "Microsoft-WebDAV-MiniRedir/10.0", ""]
    {
        assert_eq!(options(&server, agent, "").status, 204, "{agent}");
    }
}

/// Mounts, lists, creates a file with its AppleDouble companion, writes, renames, deletes.
#[test]
fn w05_the_finder_of_macos_mounts_for_writing_and_does_its_work() {
    let server = TestServer::taking_uploads();
    let lock = "Depth: 0\r\nTimeout: Second-600\r\nContent-Type: text/xml\r\n";
    play(
        &server,
        "WebDAVFS/3.0.0 (03008000) Darwin/21.6.0 (x86_64)",
        &[
            // Without class 2 it mounts read-only.
            step(
                "OPTIONS /",
                "Accept: */*\r\n",
                "",
                204,
                &["dav: 1, 2", "LOCK", "UNLOCK", "PROPFIND"],
            ),
            step(
                "PROPFIND /",
                MAC_FIELDS,
                MAC_PROPERTIES,
                207,
                &["<D:collection/>", "creationdate"],
            ),
            step(
                "PROPFIND /",
                MAC_FIELDS,
                MAC_ROOM,
                207,
                &["<D:quota-available-bytes>", "<D:quota-used-bytes>", "<D:quota/><D:quotaused/>"],
            ),
            step("PROPFIND /.metadata_never_index", MAC_FIELDS, MAC_PROPERTIES, 404, &[]),
            step("PROPFIND /.hidden", MAC_FIELDS, MAC_PROPERTIES, 404, &[]),
            step("PROPFIND /._.", MAC_FIELDS, MAC_PROPERTIES, 404, &[]),
            step(
                "PROPFIND /",
                "Depth: 1\r\nContent-Type: text/xml\r\n",
                MAC_LISTING,
                207,
                &["/a.ts</D:href>", "/dir/</D:href>", "appledoubleheader"],
            ),
            // A file appears in four steps: empty, locked, written, unlocked.
            step("PROPFIND /film.ts", MAC_FIELDS, MAC_PROPERTIES, 404, &[]),
            step("PUT /film.ts", "", "", 201, &["location: /film.ts", "etag: \""]),
            step(
                "PROPFIND /film.ts",
                MAC_FIELDS,
                MAC_PROPERTIES,
                207,
                &[">0</D:getcontentlength>"],
            ),
            step(
                "LOCK /film.ts",
                lock,
                MAC_LOCK,
                200,
                &["http://www.apple.com/webdav_fs/", "Second-600", "<D:depth>0</D:depth>"],
            ),
            step(
                "PUT /film.ts",
                "If: ({token})\r\nX-Expected-Entity-Length: 9\r\n",
                "the bytes",
                204,
                &[],
            ),
            step(
                "PROPFIND /film.ts",
                MAC_FIELDS,
                MAC_PROPERTIES,
                207,
                &[">9</D:getcontentlength>"],
            ),
            step(
                "LOCK /film.ts",
                "If: ({token})\r\nTimeout: Second-600\r\n",
                "",
                200,
                &["Second-600"],
            ),
            step("UNLOCK /film.ts", "Lock-Token: {token}\r\n", "", 204, &[]),
            // Its attributes, in a file of their own.
            step("PROPFIND /._film.ts", MAC_FIELDS, MAC_PROPERTIES, 404, &[]),
            step("PUT /._film.ts", "", "", 201, &[]),
            step("LOCK /._film.ts", lock, MAC_LOCK, 200, &[]),
            step(
                "PUT /._film.ts",
                "If: ({token})\r\n",
                "\0\u{5}\u{16}\u{7}\0\u{2}\0\0Mac OS X",
                204,
                &[],
            ),
            step("UNLOCK /._film.ts", "Lock-Token: {token}\r\n", "", 204, &[]),
            step("GET /._film.ts", "Range: bytes=0-3\r\n", "", 206, &["bytes 0-3/16"]),
            step("PUT /.DS_Store", "", "Bud1", 201, &[]),
            step("GET /.DS_Store", "", "", 200, &["Bud1"]),
            step(
                "PROPFIND /",
                "Depth: 1\r\nContent-Type: text/xml\r\n",
                MAC_LISTING,
                207,
                &["/.DS_Store</D:href>", "/._film.ts</D:href>", "/film.ts</D:href>", "!/.tactus"],
            ),
            step("MKCOL /untitled%20folder/", "", "", 201, &[]),
            step(
                "MOVE /untitled%20folder/",
                "Destination: http://localhost/gr%C3%B6%C3%9Fe/\r\nOverwrite: F\r\n",
                "",
                201,
                &["location: /gr%C3%B6%C3%9Fe"],
            ),
            step(
                "MOVE /film.ts",
                "Destination: http://localhost/gro%CC%88%C3%9Fe%20%26%20x.ts\r\nOverwrite: T\r\n",
                "",
                201,
                &[],
            ),
            step(
                "MOVE /._film.ts",
                "Destination: http://localhost/._x.ts\r\nOverwrite: T\r\n",
                "",
                201,
                &[],
            ),
            step("DELETE /._x.ts", "", "", 204, &[]),
            step("DELETE /gro%CC%88%C3%9Fe%20%26%20x.ts", "", "", 204, &[]),
            step("DELETE /gr%C3%B6%C3%9Fe/", "", "", 204, &[]),
            step("DELETE /.DS_Store", "", "", 204, &[]),
        ],
    );
    is_clean(&server);
}

const GNOME_LISTING: &str = "<?xml version=\"1.0\" encoding=\"utf-8\" ?>\n <D:propfind \
 xmlns:D=\"DAV:\">\n  \
    <D:prop>\n<D:creationdate/>\n<D:displayname/>\n<D:getcontentlength/>\n<D:getcontenttype/>\n\
    <D:getetag/>\n\
    <D:getlastmodified/>\n<D:resourcetype/>\n</D:prop>\n </D:propfind>";
const GNOME_ROOM: &str = "<?xml version=\"1.0\" encoding=\"utf-8\" ?>\n<D:propfind \
 xmlns:D=\"DAV:\"><D:prop>\
    <D:quota-available-bytes/><D:quota-used-bytes/></D:prop></D:propfind>";

/// Browses, creates without a look back, replaces, renames without overwriting, copies, deletes.
#[test]
fn w05_gnome_files_browses_stores_renames_and_deletes() {
    let server = TestServer::taking_uploads();
    let depth = "Depth: 0\r\nApply-To-Redirect-Ref: T\r\nContent-Type: application/xml\r\n";
    let below = "Depth: 1\r\nApply-To-Redirect-Ref: T\r\nContent-Type: application/xml\r\n";
    play(
        &server,
        "gvfs/1.50.3",
        &[
            step("OPTIONS /", "Accept-Language: de\r\n", "", 204, &["dav: 1"]),
            step("PROPFIND /", depth, GNOME_LISTING, 207, &["<D:collection/>"]),
            step("PROPFIND /", depth, GNOME_ROOM, 207, &["<D:quota-available-bytes>"]),
            step(
                "PROPFIND /",
                below,
                GNOME_LISTING,
                207,
                &["/a.ts</D:href>", "video/mp2t", "getetag"],
            ),
            step("PROPFIND /dir/", below, GNOME_LISTING, 207, &["/dir/b.mp4</D:href>"]),
            step("HEAD /new%20film.ts", "", "", 404, &[]),
            step(
                "PUT /new%20film.ts",
                "If-None-Match: *\r\nExpect: 100-continue\r\n",
                "first",
                201,
                &["location: /new%20film.ts"],
            ),
            step(
                "PUT /new%20film.ts",
                "If-None-Match: *\r\nExpect: 100-continue\r\n",
                "",
                412,
                &[],
            ),
            step("PUT /new%20film.ts", "Expect: 100-continue\r\n", "second", 204, &[]),
            step("MKCOL /Unbenannter%20Ordner", "", "", 201, &[]),
            step("MKCOL /Unbenannter%20Ordner", "", "", 405, &[]),
            step(
                "MOVE /new%20film.ts",
                "Destination: http://localhost/a.ts\r\nOverwrite: F\r\n",
                "",
                412,
                &[],
            ),
            step(
                "MOVE /new%20film.ts",
                "Destination: http://localhost/Unbenannter%20Ordner/b%3B%23.ts\r\nOverwrite: F\r\n",
                "",
                201,
                &["/Unbenannter%20Ordner/b"],
            ),
            step(
                "COPY /Unbenannter%20Ordner/b%3B%23.ts",
                "Destination: http://localhost/copy.ts\r\nOverwrite: F\r\n",
                "",
                201,
                &[],
            ),
            step("GET /copy.ts?rate=max", "", "", 200, &["second"]),
            step("DELETE /Unbenannter%20Ordner/b%3B%23.ts", "", "", 204, &[]),
            step("DELETE /Unbenannter%20Ordner", "", "", 204, &[]),
            step("DELETE /copy.ts", "", "", 204, &[]),
            step("PROPFIND /copy.ts", depth, GNOME_LISTING, 404, &[]),
        ],
    );
    is_clean(&server);
}

const WINDOWS_LOCK: &str = "<?xml version=\"1.0\" encoding=\"utf-8\" ?><D:lockinfo \
 xmlns:D=\"DAV:\">\
    <D:lockscope><D:exclusive/></D:lockscope><D:locktype><D:write/></D:locktype>\
    <D:owner><D:href>DESKTOP-1\\user</D:href></D:owner></D:lockinfo>";
const WINDOWS_TIMES: &str = "<?xml version=\"1.0\" encoding=\"utf-8\" ?><D:propertyupdate \
 xmlns:D=\"DAV:\" \
    xmlns:Z=\"urn:schemas-microsoft-com:\"><D:set><D:prop>\
    <Z:Win32CreationTime>Mon, 01 Jan 2024 00:00:00 GMT</Z:Win32CreationTime>\
    <Z:Win32LastAccessTime>Mon, 01 Jan 2024 00:00:00 GMT</Z:Win32LastAccessTime>\
    <Z:Win32LastModifiedTime>Tue, 02 Jan 2024 03:04:05 GMT</Z:Win32LastModifiedTime>\
    <Z:Win32FileAttributes>00000020</Z:Win32FileAttributes></D:prop></D:set></D:propertyupdate>";

/// Maps a drive, copies a file with its times, renames, deletes.
#[test]
fn w05_windows_maps_a_drive_and_copies_a_file_with_its_times() {
    let server = TestServer::taking_uploads();
    let patch = "If: ({token})\r\ntranslate: f\r\nContent-Type: text/xml; charset=\"utf-8\"\r\n";
    play(
        &server,
        "Microsoft-WebDAV-MiniRedir/10.0.19045",
        &[
            step("OPTIONS /", "translate: f\r\n", "", 204, &["dav: 1, 2", "ms-author-via: DAV"]),
            step("PROPFIND /", "Depth: 0\r\ntranslate: f\r\n", "", 207, &["<D:supportedlock>"]),
            step(
                "PROPFIND /",
                "Depth: 1\r\ntranslate: f\r\n",
                "",
                207,
                &["/a.ts</D:href>", "200 OK"],
            ),
            step("PROPFIND /desktop.ini", "Depth: 0\r\ntranslate: f\r\n", "", 404, &[]),
            step("PROPFIND /film.ts", "Depth: 0\r\ntranslate: f\r\n", "", 404, &[]),
            step("PUT /film.ts", "translate: f\r\n", "", 201, &[]),
            step(
                "LOCK /film.ts",
                "Timeout: Second-3600\r\ntranslate: f\r\nContent-Type: text/xml; \
                 charset=\"utf-8\"\r\n",
                WINDOWS_LOCK,
                200,
                &["DESKTOP-1\\user", "Second-3600"],
            ),
            // All four times at once, or the copy is said to have failed.
            step("PROPPATCH /film.ts", patch, WINDOWS_TIMES, 207, &["200 OK", "!403", "!424"]),
            step("HEAD /film.ts", "translate: f\r\n", "", 200, &["etag: \""]),
            step("PUT /film.ts", "If: ({token})\r\ntranslate: f\r\n", "content", 204, &[]),
            step("PROPPATCH /film.ts", patch, WINDOWS_TIMES, 207, &["200 OK", "!403", "!424"]),
            step(
                "LOCK /film.ts",
                "If: ({token})\r\nTimeout: Second-3600\r\ntranslate: f\r\n",
                "",
                200,
                &[],
            ),
            step("UNLOCK /film.ts", "Lock-Token: {token}\r\ntranslate: f\r\n", "", 204, &[]),
            step(
                "PROPFIND /film.ts",
                "Depth: 0\r\ntranslate: f\r\n",
                "",
                207,
                &[
                    ">7</D:getcontentlength>",
                    "Tue, 02 Jan 2024 03:04:05 GMT",
                    "<D:lockdiscovery></D:lockdiscovery>",
                ],
            ),
            step("MKCOL /New%20folder", "translate: f\r\n", "", 201, &[]),
            step(
                "MOVE /New%20folder",
                "Destination: http://localhost/films\r\nOverwrite: F\r\ntranslate: f\r\n",
                "",
                201,
                &[],
            ),
            step(
                "MOVE /film.ts",
                "Destination: http://localhost/films/film.ts\r\nOverwrite: F\r\ntranslate: f\r\n",
                "",
                201,
                &[],
            ),
            step("GET /films/film.ts?rate=max", "translate: f\r\n", "", 200, &["content"]),
            step("DELETE /films/film.ts", "translate: f\r\n", "", 204, &[]),
            step("DELETE /films", "translate: f\r\n", "", 204, &[]),
        ],
    );
    is_clean(&server);
}
