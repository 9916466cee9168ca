//! Programs that build titles in memory that they map, and let them grow.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use rustix::fs::FallocateFlags;
use tactus_client::protocol::{Change, Origin};
use tactus_client::{Client, Replace};

use super::writing::{
    Site, TOKEN, content, errno, own_user, serve_volume, serve_with, serve_writers,
};
use super::*;

/// A server where this user may write, in the name of a principal with this quota.
fn serve_studio(quota: &str) -> Site {
    let local = format!("{}\nprincipal = \"studio\"\ntitles_max = \"5 MB\"", own_user());
    serve_with(&local, &format!("quota = \"{quota}\""))
}

impl Site {
    /// A request for the upload `id`, by its owner.
    fn upload(&self, method: &str, id: &str, fields: &str, body: &str) -> String {
        let head = format!(
            "{method} /api/v1/uploads/{id} HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\n\
             Tus-Resumable: 1.0.0{fields}"
        );
        self.request(&head, body)
    }
}

#[test]
fn a_title_that_is_built_in_memory_grows_in_place_and_is_at_every_door_after_publication() {
    let _turn = turn();
    let site = serve_writers();
    let client = site.connect();
    let bytes = content(3_000_003, 0);
    let mut writer = client.create_in_memory("/in/one.ts", Replace::Titles).expect("a writer");
    assert_eq!((writer.len(), writer.written_back(), writer.limit()), (0, 0, 256 << 20));
    let mut place = None;
    for len in [1, 4096, 1_000_001, 900_000, 2_500_000] {
        let before = writer.len();
        writer.grow(len).expect("room");
        assert_eq!(writer.len(), before.max(len as usize), "it never shrinks");
        assert!(writer[before..].iter().all(|&byte| byte == 0));
        assert_eq!(*place.get_or_insert(writer.as_ptr()), writer.as_ptr(), "it never moves");
        // From the end to the beginning: the order is the program's own.
        let end = writer.len();
        for at in (before..end).rev().step_by(1000) {
            let begin = at.saturating_sub(999).max(before);
            writer.bytes_mut()[begin..=at].copy_from_slice(&bytes[begin..=at]);
        }
    }
    writer.write_back(1_234_567).expect("a server");
    assert_eq!(errno(writer.write_back(1)), 22, "these bytes are final");
    assert_eq!(errno(writer.write_back(2_500_001)), 22, "there are no such bytes");
    // What is final is stored as it was.
    assert_eq!(writer.bytes_mut().len(), 2_500_000 - 1_234_567);
    writer.sync(2_000_000).expect("a disk");
    writer.sync(2_000_000).expect("a disk");
    writer.grow(3_000_003 + 77).expect("room");
    let end = writer.written_back() as usize;
    writer.bytes_mut()[2_500_000 - end..3_000_003 - end].copy_from_slice(&bytes[2_500_000..]);
    assert!(writer[..3_000_003] == bytes[..]);
    // It has no name at any door.
    let other = site.connect();
    assert_eq!(site.get("/in/one.ts").0, 404);
    assert_eq!(errno(other.stat("/in/one.ts")), 2);
    assert!(!site.dir.path().join("titles/in").exists());
    writer.publish_at(3_000_003, 1_600_000_000_000_000_000).expect("a title");

    let (status, body) = site.get("/in/one.ts");
    assert!(status == 200 && body.as_bytes() == bytes, "{status} {}", body.len());
    let title = other.open("/in/one.ts").expect("a title");
    assert_eq!(title.stat().modified, 1_600_000_000_000_000_000);
    assert!(*title.map().expect("room") == bytes[..]);
    assert!(fs::read(site.dir.path().join("titles/in/one.ts")).expect("a file") == bytes);
    let empty = client.create_in_memory("/empty.ts", Replace::Nothing).expect("a writer");
    empty.publish(0).expect("a title without bytes");
    assert_eq!(client.stat("/empty.ts").expect("a title").len, 0);
    assert_eq!(errno(client.create_in_memory("/empty.ts", Replace::Nothing)), 17);
    drop((title, client, other));
    site.wait_until_nothing_is_left();
}

#[test]
fn memory_quota_or_space_that_is_not_there_is_refused_and_the_title_can_be_completed() {
    let _turn = turn();
    let site = serve_studio("4 MB");
    let client = site.connect();
    let mut writer = client.create_in_memory("/a.ts", Replace::Titles).expect("a writer");
    writer.grow(3_000_000).expect("room");
    writer.bytes_mut().copy_from_slice(&content(3_000_000, 0));
    let error = writer.grow(4_000_001).expect_err("more than the quota");
    assert!(error.errno() == 122 && error.message().contains("quota"), "{error}");
    let error = writer.grow(5_000_001).expect_err("more than titles_max");
    assert!(error.errno() == 12 && error.message().contains("titles_max"), "{error}");
    assert_eq!(errno(writer.grow(u64::MAX)), 12);
    // One budget for all titles in memory, and one quota.
    let mut other = client.create_in_memory("/b.ts", Replace::Titles).expect("a writer");
    let error = other.grow(2_000_001).expect_err("titles_max is in use");
    assert!(error.message().starts_with("1.907 MiB are left"), "{error}");
    assert_eq!(errno(other.grow(1_000_001)), 122);
    other.grow(1_000_000).expect("the rest of the quota");
    drop(other);
    writer.publish(3_000_000).expect("a title");
    assert_eq!(site.get("/a.ts").1.as_bytes(), content(3_000_000, 0));
    // Both are back.
    let mut all = client.create_in_memory("/a.ts", Replace::Titles).expect("a writer");
    all.grow(1_000_000).expect("the rest of the quota");
    assert_eq!(errno(all.grow(1_000_001)), 122, "the older version is there until the end");
    all.abort().expect("a server");
    client.remove("/a.ts").expect("a title");
    let mut all = client.create_in_memory("/a.ts", Replace::Titles).expect("a writer");
    let until = Instant::now() + PATIENCE;
    // What is removed counts a moment longer.
    while all.grow(4_000_000).is_err() {
        assert!(Instant::now() < until, "the quota is not back");
        std::thread::sleep(Duration::from_millis(10));
    }
    drop((all, client));
    site.wait_until_nothing_is_left();
}

#[test]
fn the_next_version_of_a_title_begins_with_its_bytes_and_replaces_no_other_version() {
    let _turn = turn();
    let site = serve_writers();
    let client = site.connect();
    let old = content(1_000_000, 0);
    site.store(&client, "/a.ts", &old).expect("a title");
    let reader = client.open("/a.ts").expect("a title");
    let mut writer = client.edit_in_memory("/a.ts").expect("a writer");
    assert!(*writer == old[..]);
    writer.grow(1_500_000).expect("room");
    writer.bytes_mut()[10..15].copy_from_slice(b"hello");
    writer.bytes_mut()[1_000_000..].copy_from_slice(&content(500_000, 3));
    let new = writer.to_vec();
    assert_eq!(site.get("/a.ts").1.as_bytes(), old, "the old version until the end");
    writer.publish(1_500_000).expect("a title");
    assert!(site.get("/a.ts").1.as_bytes() == new);
    let mut copy = vec![0; old.len() + 1];
    assert_eq!(reader.read_at(0, &mut copy), Ok(old.len()));
    assert!(copy[..old.len()] == old[..], "its reader keeps the old version");

    let mut late = client.edit_in_memory("/a.ts").expect("a writer");
    site.store(&client, "/a.ts", b"another").expect("a title");
    late.bytes_mut()[0] = b'x';
    let error = late.publish(1_500_000).expect_err("another version");
    assert_eq!(error.errno(), 116, "{error}");
    assert_eq!(site.get("/a.ts").1, "another");
    assert_eq!(errno(client.edit_in_memory("/none.ts")), 2);
    assert_eq!(errno(client.edit_in_memory("/")), 21);
    drop((reader, client));
    site.wait_until_nothing_is_left();
}

#[test]
fn what_was_synced_outlives_its_writer_and_can_be_completed_over_http() {
    let _turn = turn();
    let site = serve_studio("6 MB");
    let client = site.connect();
    let bytes = String::from_utf8(content(1_500_007, 0)).expect("text");
    let mut writer = client.create_in_memory("/a.ts", Replace::Titles).expect("a writer");
    writer.grow(2_000_000).expect("room");
    writer.bytes_mut()[..1_500_007].copy_from_slice(bytes.as_bytes());
    writer.sync(1_000_003).expect("a disk");
    writer.write_back(1_200_000).expect("a server");
    let id = writer.upload().to_owned();
    let head = site.upload("HEAD", &id, "", "");
    assert!(
        head.starts_with("HTTP/1.1 200") && head.contains("Upload-Offset: 1000003\r\n"),
        "{head}"
    );
    drop(writer);
    let fields = "\r\nContent-Type: application/offset+octet-stream\r\n\
                  Upload-Offset: 1000003\r\nUpload-Length: 1500007";
    let answer = site.upload("PATCH", &id, fields, &bytes[1_000_003..]);
    assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
    assert!(site.get("/a.ts").1 == bytes);
    drop(client);
    site.wait_until_nothing_is_left();
}

#[test]
fn a_title_that_grows_is_visible_as_far_as_it_was_synced_where_the_volume_shows_it() {
    let _turn = turn();
    let volume = "[[volume]]\npath = \"titles\"\nuploads = true\nunfinished = \"visible\"\n";
    let site = serve_volume(&own_user(), "", volume);
    let (client, other) = (site.connect(), site.connect());
    let bytes = content(1_000_000, 0);
    let mut writer = client.create_in_memory("/a.ts", Replace::Titles).expect("a writer");
    writer.grow(1_000_000).expect("room");
    writer.bytes_mut().copy_from_slice(&bytes);
    for end in [300_001, 700_000] {
        // The program goes on while the disk takes the bytes.
        client.submit_write(writer.write_back_request(end).expect("bytes")).expect("room");
        client.submit_write(writer.sync_request()).expect("room");
        while let Some(completion) = client.wait(None).expect("a wait") {
            completion.result.expect("a disk");
        }
        let stat = other.stat("/a.ts").expect("a title");
        assert_eq!((stat.len, stat.grows), (end, true));
        let title = other.open("/a.ts").expect("a title");
        let mut copy = vec![0; 1_000_000];
        assert_eq!(title.read_at(0, &mut copy), Ok(end as usize));
        assert!(copy[..end as usize] == bytes[..end as usize]);
    }
    writer.publish(1_000_000).expect("a title");
    let stat = other.stat("/a.ts").expect("a title");
    assert_eq!((stat.len, stat.grows), (1_000_000, false));
}

#[test]
fn another_program_goes_on_with_what_was_synced_and_the_first_one_ends() {
    let _turn = turn();
    let site = serve_studio("6 MB");
    let client = site.connect();
    let bytes = content(3_000_000, 0);
    let mut first = client.create_in_memory("/a.ts", Replace::Titles).expect("a writer");
    first.grow(2_000_000).expect("room");
    first.bytes_mut().copy_from_slice(&bytes[..2_000_000]);
    first.sync(1_000_003).expect("a disk");
    first.write_back(1_200_000).expect("a server");
    let id = first.upload().to_owned();
    let other = site.connect();
    assert_eq!(errno(other.resume_in_memory("/a.ts", &id[1..])), 2);
    assert_eq!(errno(other.resume_in_memory("/b.ts", &id)), 2, "another title");
    let mut second = other.resume_in_memory("/a.ts", &id).expect("an upload");
    // The first one has made durable what it had.
    assert_eq!((second.written_back(), second.len()), (1_200_000, 1_200_000));
    assert!(*second == bytes[..1_200_000]);
    let until = Instant::now() + PATIENCE;
    while first.sync(1_300_000).is_ok() {
        assert!(Instant::now() < until, "two programs build one title");
    }
    assert!(*first == bytes[..2_000_000], "it has its bytes");
    drop(first);
    second.grow(3_000_000).expect("room");
    second.bytes_mut().copy_from_slice(&bytes[1_200_000..]);
    second.sync(2_500_001).expect("a disk");
    drop(second);
    // The server hears of its end on another connection.
    let until = Instant::now() + PATIENCE;
    let third = loop {
        match client.resume_in_memory("/a.ts", &id) {
            Ok(third) => break third,
            Err(error) => assert!(error.errno() == 12 && Instant::now() < until, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(*third == bytes[..2_500_001]);
    third.publish(2_500_001).expect("a title");
    assert!(site.get("/a.ts").1.as_bytes() == &bytes[..2_500_001]);
    assert_eq!(errno(client.resume_in_memory("/a.ts", &id)), 114, "it is published");
    // Descriptors of what was read stay with its blocks; names do not.
    let uploads = site.dir.path().join("titles/.tactus/uploads");
    assert_eq!(fs::read_dir(uploads).expect("a directory").count(), 0);
}

/// Not a test of its own: a program that builds until it is killed, for the test below.
#[test]
fn child_that_builds() {
    let Some(socket) = std::env::var_os("TACTUS_TEST_BUILDER") else { return };
    let syncs = std::env::var_os("TACTUS_TEST_SYNCS").is_some();
    let client = Client::connect(socket).expect("a connection");
    let mut writer = client.create_in_memory("/killed.ts", Replace::Titles).expect("a writer");
    writer.grow(4_000_000).expect("room");
    if syncs {
        writer.sync(1_000_000).expect("a disk");
    }
    println!("built {}", writer.upload());
    // Written while it is written back.
    let mut seed = 1_u64;
    for end in (1_100_000..4_000_000).step_by(100_000) {
        for _ in 0..1000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let rest = writer.bytes_mut();
            let at = (seed >> 33) as usize % rest.len();
            rest[at] = seed as u8;
        }
        writer.write_back(end).expect("a server");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(PATIENCE);
}

#[test]
fn a_program_that_is_killed_leaves_what_it_has_synced_and_nothing_else() {
    let _turn = turn();
    let site = serve_studio("6 MB");
    for turn in 0..10 {
        let syncs = turn % 2 == 1;
        let mut command = Command::new(std::env::current_exe().expect("a path"));
        command.args(["--exact", "local::building::child_that_builds", "--nocapture"]);
        command.env("TACTUS_TEST_BUILDER", &site.socket).stdout(Stdio::piped());
        if syncs {
            command.env("TACTUS_TEST_SYNCS", "1");
        }
        let mut child = Process(command.spawn().expect("a program"));
        let mut lines = BufReader::new(child.0.stdout.take().expect("a pipe")).lines();
        let said = lines.find_map(|line| {
            let line = line.expect("text");
            line.split_once("built ").map(|(_, id)| id.to_owned())
        });
        let id = said.expect("it has built");
        std::thread::sleep(Duration::from_millis(turn * 11));
        child.kill();
        if syncs {
            let until = Instant::now() + PATIENCE;
            // Its end is seen, and the upload can be given up by its owner.
            while !site.upload("DELETE", &id, "", "").starts_with("HTTP/1.1 204") {
                assert!(Instant::now() < until, "the upload is not there");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        site.wait_until_nothing_is_left();
        let head = site.upload("HEAD", &id, "", "");
        assert!(head.starts_with("HTTP/1.1 404"), "{head}");
        assert_eq!(site.get("/killed.ts").0, 404);
    }
    // All memory and all of the quota.
    let client = site.connect();
    let mut all = client.create_in_memory("/all.ts", Replace::Titles).expect("a writer");
    all.grow(5_000_000).expect("all of it");
}

#[test]
fn a_program_that_lies_about_its_memory_harms_its_own_title_only() {
    let _turn = turn();
    let site = serve_writers();
    let mut client = Raw::connect(&site.socket);
    let create = |title: &str| Message::CreateInMemory {
        title: title.into(),
        replace: Replace::Titles,
        origin: Origin::Nothing,
    };
    let build = |client: &Raw, title: &str| {
        let (reply, mut files) = client.ask_for_files(&create(title));
        let Reply::CreatedInMemory { writer, first, .. } = reply else { panic!("{reply:?}") };
        (writer, first, files.pop().expect("memory"))
    };
    let result = |client: &mut Raw, operation, handle, value, at| {
        let (len, when) = (0, MonoTime(0));
        let request = Request { token: 3, operation, handle, offset: Bytes(value), len, at, when };
        client.push(&request.encode());
        client.answer().result
    };
    use Operation::{Grow, Publish, Sync, Write, WriteBack};
    assert_eq!(result(&mut client, Grow, 0, 1, 0), Err(9), "no writer");
    let (writer, first, memory) = build(&client, "/a.ts");
    assert_eq!(result(&mut client, WriteBack, writer, 1, 0), Err(22), "no bytes");
    assert_eq!(result(&mut client, Grow, writer, 100_000, 8), Err(22));
    assert_eq!(result(&mut client, Grow, writer, i64::MAX as u64, 0), Err(12));
    assert_eq!(result(&mut client, Grow, writer, 100_000, 0), Ok(0));
    assert_eq!(result(&mut client, Grow, writer, 5, 0), Ok(0), "it does not shrink");
    let write = Request {
        token: 3,
        operation: Write,
        handle: writer,
        offset: Bytes(0),
        len: 5,
        at: 0,
        when: MonoTime(0),
    };
    client.push(&write.encode());
    assert_eq!(client.answer().result, Err(22), "its bytes come out of its memory");
    assert!(rustix::fs::ftruncate(&memory, 0).is_err(), "it cannot be cut");
    // Longer than the server has made it, with pages that it does not count, and with holes.
    rustix::fs::ftruncate(&memory, 1 << 30).expect("it can be longer");
    rustix::io::pwrite(&memory, &content(200_000, 0), first).expect("room");
    let holes = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&memory, holes, first + 10_000, 50_000).expect("pages");
    assert_eq!(result(&mut client, WriteBack, writer, 100_001, 0), Err(22), "not its bytes");
    assert_eq!(result(&mut client, WriteBack, writer, 100_000, 0), Ok(0));
    assert_eq!(result(&mut client, WriteBack, writer, 99_999, 0), Err(22), "they are final");
    // Final bytes that are changed, and bytes that change while they are taken.
    assert_eq!(result(&mut client, Grow, writer, 3_000_000, 0), Ok(0));
    std::thread::scope(|scope| {
        let changing = scope.spawn(|| {
            for turn in 0..400 {
                let bytes = vec![b'a' + (turn % 26) as u8; 100_000];
                rustix::io::pwrite(&memory, &bytes, first + turn % 29 * 100_000).expect("pages");
            }
        });
        while !changing.is_finished() {
            assert_eq!(result(&mut client, Sync, writer, 0, 0), Ok(0));
            assert_eq!(result(&mut client, WriteBack, writer, 1_500_000, 0), Ok(0));
        }
    });
    assert_eq!(result(&mut client, WriteBack, writer, 3_000_000, 0), Ok(0));
    assert_eq!(result(&mut client, Publish, writer, 0, 0), Ok(0));
    assert_eq!(result(&mut client, Grow, writer, 4_000_000, 0), Err(9), "it is published");
    // The checksums are those of the bytes that were stored, whatever these are.
    let (status, body) = site.get("/a.ts");
    assert_eq!((status, body.len()), (200, 3_000_000));
    assert_eq!(body.as_bytes()[..4096], content(4096, 0), "as they were when they were final");
    // The pages are gone when the writer has ended, although the program keeps the file.
    let abandon = Change::Abandon { writer, keeps: true }.into();
    assert_eq!(client.ask(&abandon), Reply::Closed);
    assert_eq!(rustix::fs::fstat(&memory).expect("a file").st_blocks, 0);
    let (other, ..) = build(&client, "/b.ts");
    assert_eq!(result(&mut client, Grow, other, 256 << 20, 0), Err(27), "more than object_max");
    assert_eq!(result(&mut client, Grow, other, 90_000_000, 0), Ok(0));
    let (title, replace) = ("/c.ts".into(), Replace::Titles);
    let create_plain = Change::Create { title, len: None, replace }.into();
    let Reply::Created { writer: plain } = client.ask(&create_plain) else { panic!("no writer") };
    assert_eq!(result(&mut client, Grow, plain, 1, 0), Err(22), "it is not in memory");
    assert_eq!(result(&mut client, WriteBack, plain, 0, 0), Err(22));
    drop(client);
    site.wait_until_nothing_is_left();
}
