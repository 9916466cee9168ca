//! F-05 to F-13: the disk fails, is slow, hangs, or is full.

use std::time::{Duration, Instant};

use tactus_bench::faulty::Order;
use tactus_core::units::{Bytes, MIB};

use crate::fixture::{ClientResult, Fixture, Plan, content};

const LEN: usize = 6_000_000;
/// Within it a stream is on time here: the engine, the disk and the clients are real-time where
/// that is allowed, but not what the kernel does for them.
const ON_TIME: Duration = Duration::from_millis(400);

pub(crate) fn is_whole_and_on_time(seen: &ClientResult) {
    assert!(seen.is_whole, "{} bytes after {}", seen.bytes(), seen.status);
    assert!(seen.lateness() < ON_TIME, "{:?}", seen.lateness());
}

pub(crate) fn wait_until(what: &str, limit: Duration, mut holds: impl FnMut() -> bool) -> Duration {
    let begun = Instant::now();
    loop {
        // It is looked at once more when the time is over, however long a look takes.
        let is_over = begun.elapsed() >= limit;
        if holds() {
            return begun.elapsed();
        }
        assert!(!is_over, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn f_05_a_read_error_ends_its_stream_and_no_other() {
    for sendfile in [false, true] {
        let mut fixture = Fixture::new(Plan { sendfile, ..Plan::default() });
        let (bad, good) = (fixture.store("bad.ts", LEN), fixture.store("good.ts", LEN));
        let at = fixture.disks[0].position("bad.ts", 3_000_000).expect("it is stored");
        fixture.disk().order(Order::FailReads { at, len: 4096 }).expect("the disk obeys");
        // The server inspects a title after it is stored, which leaves its sectors in the page
        // cache.
        fixture.disk().forget("bad.ts").expect("memory is given back");
        let (one, other) =
            (fixture.server.watch("bad.ts", &bad), fixture.server.watch("good.ts", &good));
        // Of the same title, but of what lies before.
        let before = fixture.server.watch_part("bad.ts", &bad[..FIRST_BAD]);
        let ended = one.seen();
        assert!(!ended.is_whole, "it cannot be read");
        assert_eq!(ended.bytes(), FIRST_BAD as u64, "all that lies before, and no more");
        is_whole_and_on_time(&other.seen());
        is_whole_and_on_time(&before.seen());
        assert_eq!(fixture.server.figure("tactus_underruns_total"), 0.0);
        let failed = "tactus_streams_ended_total{outcome=\"disk_failed\"}";
        // Two who watch a title have it held in memory, as far as it can be.
        assert!((1.0..=2.0).contains(&fixture.server.figure(failed)));

        // From now on the disk is not asked for it.
        let asked = fixture.disk().order(Order::Count).expect("it answers").failed;
        let again = fixture.server.get("bad.ts");
        assert_eq!((again.status, again.is_whole), (200, false), "it is marked");
        assert!(again.body == bad[..FIRST_BAD], "{} bytes", again.body.len());
        let beyond = format!("Range: bytes={}-\r\n", FIRST_BAD + 262_144);
        let beyond = fixture.server.ask("GET", "/bad.ts?rate=max", &beyond, b"");
        assert!(beyond.is_whole && beyond.body == bad[FIRST_BAD + 262_144..]);
        let within = "Range: bytes=3000000-3000100\r\n";
        let within = fixture.server.ask("GET", "/bad.ts?rate=max", within, b"");
        assert_eq!(within.status, 500);
        assert!(within.text().contains("store it again"), "{}", within.text());
        if !sendfile {
            // By way of the page cache the kernel reads ahead by itself.
            assert_eq!(fixture.disk().order(Order::Count).expect("it answers").failed, asked);
        }
        assert_eq!(fixture.server.figure("tactus_blocks_unreadable{volume=\"/\"}"), 1.0);
        let place = fixture.server.status()["volumes"][0]["bad_ranges"][0].clone();
        assert_eq!((&place["title"], &place["bytes"]), (&"/bad.ts".into(), &262_144.into()));
        assert_eq!(place["first_byte"], FIRST_BAD);

        // Another version has no bad ranges.
        fixture.disk().order(Order::FailReads { at: 0, len: 0 }).expect("the disk obeys");
        let new = content("new", LEN);
        assert_eq!(fixture.server.put("bad.ts", &new), 204);
        let again = fixture.server.get("bad.ts");
        assert!(again.is_whole && again.body == new);
        wait_until("the mark is gone", Duration::from_secs(20), || {
            fixture.server.figure("tactus_blocks_unreadable{volume=\"/\"}") == 0.0
        });
    }
}

/// The page cache reads far ahead of a long title, in folios of up to 2 MiB, and a bad sector
/// spoils the whole of its folio.
#[test]
fn f_05_by_way_of_the_page_cache_no_more_is_lost_than_the_block_that_cannot_be_read() {
    const FIRST_BAD: usize = 127 * 262_144;
    let mut fixture = Fixture::new(Plan { sendfile: true, ..Plan::default() });
    let bad = fixture.store("bad.ts", 40_000_000);
    let at = fixture.disks[0].position("bad.ts", FIRST_BAD as u64 + 100_000).expect("it is stored");
    fixture.disk().order(Order::FailReads { at, len: 4096 }).expect("the disk obeys");
    for known in [false, true] {
        fixture.disk().forget("bad.ts").expect("the kernel forgets");
        let ended = fixture.server.ask("GET", "/bad.ts?rate=max", "", b"");
        assert!(!ended.is_whole, "it cannot be read");
        assert!(ended.body == bad[..FIRST_BAD], "{} bytes, known {known}", ended.body.len());
        let beyond = format!("Range: bytes={}-\r\n", FIRST_BAD + 262_144);
        let beyond = fixture.server.ask("GET", "/bad.ts?rate=max", &beyond, b"");
        assert!(beyond.is_whole && beyond.body == bad[FIRST_BAD + 262_144..]);
    }
}

/// Where the block begins that holds the byte that cannot be read.
const FIRST_BAD: usize = 3_000_000 / 262_144 * 262_144;

#[test]
fn f_05_verify_names_what_cannot_be_read() {
    let mut fixture = Fixture::new(Plan::default());
    fixture.store("bad.ts", LEN);
    std::fs::write(fixture.path("not-uploaded.ts"), content("b", LEN)).expect("a file");
    fixture.settle();
    let verify = |fixture: &Fixture| {
        let ended = fixture.tactus(&["verify", "--quiet"]);
        (ended.status.code(), String::from_utf8_lossy(&ended.stdout).into_owned())
    };
    let (code, said) = verify(&fixture);
    assert!(code == Some(0) && said.contains("1 whole"), "{said}");
    for (name, first) in [("bad.ts", 45 * 65_536), ("not-uploaded.ts", 15 * 65_536)] {
        let at = fixture.disks[0].position(name, first + 4096).expect("it is stored");
        fixture.disk().order(Order::FailReads { at, len: 4096 }).expect("the disk obeys");
        let (code, said) = verify(&fixture);
        let line = format!(
            "{name}: 1 units of 64 KiB are damaged, the first at byte {first}, 1 of them cannot \
             be read"
        );
        assert!(code == Some(1) && said.contains(&line), "{said}");
    }
}

#[test]
fn f_06_a_write_error_ends_uploads_and_no_stream() {
    let mut fixture = Fixture::new(Plan::default());
    let bytes = fixture.store("a.ts", LEN);
    let watch = fixture.server.watch("a.ts", &bytes);
    fixture.disk().order(Order::FailTitleWrites(true)).expect("the disk obeys");
    let takes = "tactus_volume_takes_uploads{volume=\"/\"}";
    assert_eq!(fixture.server.figure(takes), 1.0);
    assert_eq!(fixture.server.put("b.ts", &content("b.ts", LEN)), 500, "{}", fixture.server.said());
    fixture.disk().order(Order::FailTitleWrites(false)).expect("the disk obeys");
    assert_eq!(fixture.server.figure(takes), 0.0);
    let failed = fixture.server.status()["volumes"][0]["uploads"]["failed"].clone();
    assert!(failed.as_str().is_some_and(|why| !why.is_empty()), "{failed}");
    // It is not tried again, not for another title either.
    assert_eq!(fixture.server.put("c.ts", &content("c.ts", 5000)), 503);
    is_whole_and_on_time(&watch.seen());
    assert_eq!(fixture.server.get("b.ts").status, 404);
    let again = fixture.server.get("a.ts");
    assert!(again.is_whole && again.body == bytes);
    refuses_until_checked(&mut fixture, &bytes, true);
}

#[test]
fn f_07_a_flush_that_failed_once_is_never_tried_again() {
    let mut fixture = Fixture::new(Plan::default());
    let bytes = fixture.store("a.ts", LEN);
    let failed = fixture.disk().order(Order::Count).expect("the disk answers").failed;
    fixture.disk().order(Order::FailFlush).expect("the disk obeys");
    assert_eq!(fixture.server.put("b.ts", &content("b.ts", LEN)), 500, "{}", fixture.server.said());
    assert_eq!(fixture.disk().order(Order::Count).expect("the disk answers").failed, failed + 1);
    // From now on the disk would say yes.
    for _ in 0..3 {
        assert_eq!(fixture.server.put("b.ts", &content("b.ts", LEN)), 503);
    }
    assert_eq!(fixture.server.get("b.ts").status, 404);
    // Its journal could not be written: ext4 has made itself read-only, and our mark has no room.
    refuses_until_checked(&mut fixture, &bytes, false);
}

/// After a restart the volume is served and takes nothing, until somebody has checked it.
fn refuses_until_checked(fixture: &mut Fixture, bytes: &[u8], is_marked: bool) {
    fixture.restart();
    assert_eq!(
        fixture.server.put("c.ts", &content("c.ts", 5000)),
        503,
        "{}",
        fixture.server.said()
    );
    assert!(fixture.server.get("a.ts").body == bytes);
    fixture.repair();
    assert_eq!(fixture.path(".tactus/failed").exists(), is_marked);
    if is_marked {
        assert_eq!(fixture.server.put("c.ts", &content("c.ts", 5000)), 503);
    }
    let verified = fixture.tactus(&["verify", "--clear"]);
    assert!(verified.status.success(), "{verified:?}");
    fixture.restart();
    fixture.store("c.ts", 5000);
    assert_eq!(fixture.server.get("b.ts").status, 404);
}

#[test]
fn f_08_reads_that_bring_less_or_are_interrupted_change_no_byte() {
    let mut fixture = Fixture::new(Plan { behind: true, ..Plan::default() });
    // The file behind the device is what the device shows; nothing of it changes meanwhile.
    fixture.store("a.ts", LEN);
    fixture.settle();
    let (_, name) = fixture.disks[0].behind();
    let from = fixture.disks[0].position("a.ts", 0).expect("it is stored");
    let content = fixture.disks[0].raw(from, LEN as u64).expect("it can be read");
    assert!(content.starts_with(tactus_bench::faulty::TITLE_MARK));
    let before =
        fixture.disk().order(Order::CutReads { per_thousand: 500 }).expect("it obeys").failed;
    let target = format!("/behind/{name}?rate=max");
    for (at, len) in [(0, LEN), (1, 5_000_000), (262_143, 2), (999_999, 3_000_001)] {
        let range = format!("Range: bytes={}-{}\r\n", from + at, from + at + len as u64 - 1);
        let answer = fixture.server.ask("GET", &target, &range, b"");
        assert_eq!((answer.status, answer.is_whole), (206, true), "{}", fixture.server.said());
        assert!(answer.body == content[at as usize..][..len], "{len} bytes from {at}");
    }
    let cut = fixture.disk().order(Order::CutReads { per_thousand: 0 }).expect("it obeys").failed;
    assert!(cut >= before + 10, "{cut} reads were cut, {before} before");
}

#[test]
fn f_10_p11_a_disk_that_has_become_slow_costs_what_was_begun_last_and_recovers() {
    let mut fixture = Fixture::new(Plan::default());
    let titles: Vec<_> = (0..8).map(|n| format!("{n}.ts")).collect();
    let contents: Vec<_> = titles.iter().map(|name| fixture.store(name, 2 * LEN)).collect();
    let mut watches = Vec::new();
    for (name, bytes) in titles.iter().zip(&contents) {
        watches.push(fixture.server.watch(name, bytes));
        // In this order.
        let running = watches.len() as f64;
        let begun = || fixture.server.figure("tactus_streams") >= running;
        wait_until("it is delivered", Duration::from_secs(30), begun);
    }
    let missed = "tactus_disk_cycles_missed_total{volume=\"/\"}";
    let before = fixture.server.figure(missed);
    let ended = "tactus_degradation_ended_total{volume=\"/\"}";
    let level =
        |fixture: &Fixture| fixture.server.figure("tactus_degradation_level{volume=\"/\"}") as u8;
    assert_eq!(fixture.server.figure(ended), 0.0);
    // Eight streams want 31 blocks a second: so each second takes 2.5.
    let slow = Order::Delay { per_thousand: 1000, micros: 80_000 };
    fixture.disk().order(slow).expect("the disk obeys");
    let (mut levels, mut refused) = (vec![0], [0_u8; 2]);
    wait_until("a stream is ended", Duration::from_secs(60), || {
        let now = level(&fixture);
        if levels.last() != Some(&now) {
            levels.push(now);
        }
        // What a step says is so, as long as it stands.
        for (refused, (rate, from)) in refused.iter_mut().zip([("max", 4), ("1M", 5)]) {
            let target = format!("/0.ts?rate={rate}");
            let answer = fixture.server.ask("GET", &target, "Range: bytes=0-0\r\n", b"");
            if now >= from && level(&fixture) >= from {
                assert_eq!(answer.status, 503, "{rate} at level {now}");
                assert!(answer.text().contains("slower than it was measured"), "{}", answer.text());
                *refused = now;
            }
        }
        fixture.server.figure(ended) > 0.0
    });
    assert!(fixture.server.figure(missed) > before, "the alarm");
    assert!(levels.is_sorted() && *levels.last().unwrap() >= 5, "{levels:?}");
    assert!(refused.iter().all(|&level| level >= 4), "{refused:?}");
    let status = fixture.server.status();
    assert!(status["volumes"][0]["degradation"]["ended_streams"].as_u64() > Some(0), "{status}");
    fixture.disk().order(Order::Delay { per_thousand: 0, micros: 0 }).expect("the disk obeys");
    // Whoever began first has all of it, and whoever was ended began after those: nobody else was.
    let whole: Vec<_> = watches.into_iter().map(|watch| watch.seen().is_whole).collect();
    let kept = whole.iter().take_while(|&&is_whole| is_whole).count();
    assert!(kept > 0 && kept < whole.len(), "{whole:?}");
    assert!(whole[kept..].iter().all(|&is_whole| !is_whole), "{whole:?}");
    // Without a restart.
    wait_until("nothing is given up any more", Duration::from_secs(30), || level(&fixture) == 0);
    for (name, bytes) in titles.iter().zip(&contents) {
        let again = fixture.server.get(name);
        assert!(again.is_whole && again.body == *bytes);
    }
}

#[test]
fn f_11_pauses_of_a_fifth_of_a_second_are_covered() {
    let mut fixture = Fixture::new(Plan::default());
    let titles: Vec<_> = (0..12).map(|n| format!("{n}.ts")).collect();
    let contents: Vec<_> = titles.iter().map(|name| fixture.store(name, LEN)).collect();
    fixture
        .disk()
        .order(Order::Delay { per_thousand: 10, micros: 200_000 })
        .expect("the disk obeys");
    let watch = |(name, bytes): (&String, &Vec<u8>)| fixture.server.watch(name, bytes);
    let watches: Vec<_> = titles.iter().zip(&contents).map(watch).collect();
    for watch in watches {
        is_whole_and_on_time(&watch.seen());
    }
    assert_eq!(fixture.server.figure("tactus_underruns_total"), 0.0);
}

#[test]
fn f_12_a_disk_that_hangs_hurts_nobody_else_and_is_marked_down() {
    let sizes = vec![Bytes(1024 * MIB); 2];
    let fixture = Fixture::new(Plan { sizes, ..Plan::default() });
    let hung = fixture.store("a.ts", LEN);
    let good = fixture.store("disk1/b.ts", LEN);
    let (one, other) =
        (fixture.server.watch("a.ts", &hung), fixture.server.watch("disk1/b.ts", &good));
    std::thread::sleep(Duration::from_millis(1000));
    fixture.disks[0].hang().expect("a process can be stopped");
    let is_up = |number: usize| {
        let status = fixture.server.status();
        status["volumes"][number]["up"].as_bool().expect("each volume says so")
    };
    // More than there are threads for one volume: each new request to it is on its own.
    let stuck: Vec<_> = (0..100)
        .map(|number| {
            let mut socket = fixture.server.connect();
            let head = format!("GET /never-seen-{number}/x.ts HTTP/1.1\r\nHost: localhost\r\n\r\n");
            std::io::Write::write_all(&mut socket, head.as_bytes()).expect("the head is taken");
            socket
        })
        .collect();
    // Two cycles and a second (P8) are for the engine, which is asked by others who need a
    // processor.
    wait_until("it is down", Duration::from_secs(5), || !is_up(0));
    assert!(is_up(1));
    for (method, target) in [
        ("GET", "/a.ts"),
        ("HEAD", "/a.ts"),
        ("GET", "/never-seen.ts"),
        ("GET", "/"),
        ("PUT", "/d.ts"),
    ] {
        let answer = fixture.server.ask(method, target, "", b"");
        assert_eq!(answer.status, 503, "{method} {target}: {}", answer.head);
        assert!(answer.head.contains("Retry-After: "), "{}", answer.head);
        let text = answer.text();
        assert!(method == "HEAD" || text.contains("the volume at / does not answer"), "{text}");
    }
    for _ in 0..20 {
        let begun = Instant::now();
        let answer =
            fixture.server.ask("GET", "/disk1/b.ts?rate=max", "Range: bytes=0-99\r\n", b"");
        assert_eq!((answer.status, &answer.body[..]), (206, &good[..100]));
        // Who waited for a turn of the other volume's would wait for ten.
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    }
    assert_eq!(fixture.server.put("disk1/c.ts", &content("c.ts", 500_000)), 201);
    is_whole_and_on_time(&other.seen());
    drop(stuck);
    fixture.disks[0].go_on().expect("a process can go on");
    wait_until("it is up again", Duration::from_secs(10), || is_up(0));
    assert_eq!(one.seen().status, 200);
    let again = fixture.server.get("a.ts");
    assert!(again.is_whole && again.body == hung);
}

#[test]
fn f_13_a_full_disk_refuses_before_the_body_and_keeps_its_reserve() {
    let fixture = Fixture::new(Plan { sizes: vec![Bytes(512 * MIB)], ..Plan::default() });
    let bytes = fixture.store("a.ts", LEN);
    let watch = fixture.server.watch("a.ts", &bytes);
    let filler = content("filler", 32 << 20);
    let refused = (0..16).find(|number| {
        let status = fixture.server.put(&format!("filler{number}.ts"), &filler);
        assert!(matches!(status, 201 | 507), "{status}: {}", fixture.server.said());
        status == 507
    });
    let refused = refused.expect("half a gibibyte is full some time");
    assert!(refused > 0, "nothing fitted");
    let free = rustix::fs::statvfs(fixture.path("")).expect("it is mounted");
    assert!(free.f_bavail * free.f_frsize >= 256 << 20, "the reserve: {}", free.f_bavail);
    // Before the body: the answer comes though no byte of it is sent.
    let mut socket = fixture.server.connect();
    let answer = fixture.server.ask_without_body(&mut socket, "/late.ts", 32 << 20);
    assert_eq!(answer.status, 507, "{}", answer.head);
    assert_eq!(fixture.server.ask("DELETE", "/filler0.ts", "", b"").status, 204);
    wait_until("room", Duration::from_secs(10), || fixture.server.put("b.ts", &filler) == 201);
    is_whole_and_on_time(&watch.seen());
    assert!(fixture.server.get("b.ts").body == filler);
}

#[test]
fn f_13_without_inodes_only_new_titles_are_refused() {
    let fixture = Fixture::new(Plan { sizes: vec![Bytes(512 * MIB)], ..Plan::default() });
    let bytes = fixture.store("a.ts", LEN);
    std::fs::create_dir(fixture.path("many")).expect("a directory");
    let file =
        |number: &u32| std::fs::File::create(fixture.path(&format!("many/{number}"))).is_err();
    (0..1_000_000).find(file).expect("inodes end");
    let watch = fixture.server.watch("a.ts", &bytes);
    assert_eq!(
        fixture.server.put("b.ts", &content("b.ts", 5000)),
        507,
        "{}",
        fixture.server.said()
    );
    is_whole_and_on_time(&watch.seen());
    assert_eq!(fixture.server.ask("DELETE", "/a.ts", "", b"").status, 204);
    wait_until("an inode", Duration::from_secs(10), || {
        fixture.server.put("b.ts", &content("b.ts", 5000)) == 201
    });
}

#[test]
fn f_13_on_a_disk_smaller_than_the_reserve_nothing_is_taken() {
    let fixture = Fixture::new(Plan { sizes: vec![Bytes(64 * MIB)], ..Plan::default() });
    assert_eq!(fixture.server.put("a.ts", &content("a.ts", 5000)), 507);
}
