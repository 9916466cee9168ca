//! From disk to socket through the real servers, without HTTP.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tactus_control::broker::{DeliverySpec, Output};
use tactus_control::engine::{self, Engine};
use tactus_control::placement::{CorePlan, ServerName};
use tactus_control::placer::{MoveCause, PlaceError};
use tactus_control::settings::{EngineSettings, Sendfile, Volume};
use tactus_core::path::RequestPath;
use tactus_core::stagger::Tick;
use tactus_core::units::{BitRate, Bytes, MIB};
use tactus_engine::message::{Outcome, Rate};
use tactus_notation::Auto;
use tactus_storage::catalogue::{Catalogue, CatalogueRules, OpenTitle, PathObject};

struct Fixture {
    engine: Engine,
    title: Arc<OpenTitle>,
    content: Vec<u8>,
    _dir: tempfile::TempDir,
}

/// Blocks in the arena, and in the page cache.
const SENDFILE: [Sendfile; 2] = [Sendfile::Off, Sendfile::On];

fn fixture(sendfile: Sendfile, len: usize) -> Fixture {
    fixture_with(sendfile, len, Auto::Auto)
}

/// An engine of one volume.
fn settings(volume: &Path, placement: Auto<Vec<CorePlan>>) -> EngineSettings {
    // Of flash, also when other programs keep the disk so busy that it seems to have an arm.
    let block = Auto::Set(engine::FLASH_BLOCK);
    let volumes = vec![Volume { block, ..Volume::new(volume.into()) }];
    let mut settings = EngineSettings { volumes, ..EngineSettings::default() };
    // So few blocks that an ordinary user may have pipes for all of them.
    settings.memory.arena = Auto::Set(Bytes(32 * MIB));
    settings.cores.placement = placement;
    settings.cores.system = volume.join("system");
    settings
}

fn fixture_with(sendfile: Sendfile, len: usize, placement: Auto<Vec<CorePlan>>) -> Fixture {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    let byte = |at: u32| (at.wrapping_mul(2_654_435_761) >> 24) as u8;
    let content: Vec<u8> = (0..len as u32).map(byte).collect();
    std::fs::write(dir.path().join("title.ts"), &content).expect("a title");
    let title = open(dir.path(), "/title.ts");
    let mut settings = settings(dir.path(), placement);
    settings.volumes[0].sendfile = sendfile;
    let engine = engine::start(&settings).expect("the engine starts");
    assert_eq!(engine.volumes[0].sendfile(), sendfile == Sendfile::On, "{:?}", engine.degraded);
    Fixture { engine, title, content, _dir: dir }
}

fn open(root: &Path, path: &str) -> Arc<OpenTitle> {
    let catalogue = Catalogue::new(root, CatalogueRules::default()).expect("a volume");
    let path = RequestPath::parse(path.as_bytes()).expect("a plain path");
    match catalogue.find_blocking(&path).expect("the title is there") {
        PathObject::Title(title) => title,
        PathObject::Directory(_) => panic!("the title is a file"),
    }
}

fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("a connection");
    let (server, _) = listener.accept().expect("the same connection");
    server.set_nonblocking(true).expect("non-blocking");
    (server, client)
}

fn at(rate: u64) -> Option<Rate> {
    Some(Rate { rate: BitRate(rate), burst: Bytes(0), tick: Tick::Ms62 })
}

async fn deliver(fixture: &Fixture, rate: Option<Rate>, first: usize, end: usize) {
    let broker = fixture.engine.broker.clone();
    let spec = DeliverySpec::connection(&broker, &fixture.title, rate, Bytes((end - first) as u64));
    let mut grant = broker.admit(&spec.of_any_title()).expect("an empty server has room");
    let (server, mut client) = connection();
    let len = end - first;
    let received = tokio::task::spawn_blocking(move || {
        let mut bytes = vec![0; len];
        client.read_exact(&mut bytes).expect("all bytes arrive");
        bytes
    });
    let range = first as u64..end as u64;
    let delivered = grant.deliver(&fixture.title, range, None, Output::connection(server)).await;
    assert_eq!(delivered.outcome, Outcome::Complete);
    assert_eq!(delivered.sent, len as u64);
    assert!(received.await.expect("no panic") == fixture.content[first..end], "bytes differ");
}

/// Waits for the end of all streams. Fails unless all that they had is free again.
async fn all_is_returned(fixture: &Fixture) {
    let Engine { broker, counters, .. } = &fixture.engine;
    while broker.streams() > 0 {
        tokio::task::yield_now().await;
    }
    assert!(broker.levels().iter().all(|level| level.used == 0));
    // The block server counts the last return a moment after the report of the stream's end.
    let is_leased = || counters.blocks[0].leased.value() > 0;
    for _ in 0..500 {
        if !is_leased() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(!is_leased(), "a block is leased by no stream");
}

#[tokio::test]
async fn bytes_arrive_as_they_lie_on_the_disk() {
    for sendfile in SENDFILE {
        let fixture = fixture(sendfile, 3_000_001);
        let ends = [3_000_001, 1, 3_000_001, 262_145, 2_900_000];
        for (first, end) in [0, 0, 3_000_000, 262_143, 100_000].into_iter().zip(ends) {
            deliver(&fixture, None, first, end).await;
            deliver(&fixture, at(80_000_000), first, end).await;
        }
    }
}

#[tokio::test]
async fn all_resources_are_back_when_all_streams_have_ended() {
    for sendfile in SENDFILE {
        let fixture = fixture(sendfile, 1_000_000);
        for _ in 0..20 {
            deliver(&fixture, at(100_000_000), 0, 1_000_000).await;
        }
        all_is_returned(&fixture).await;
    }
}

#[test]
fn a_placement_without_the_file_server_has_it_with_the_blocks_and_one_without_another_is_refused() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    let cpus = tactus_sys::thread::allowed_cores().expect("the cores");
    let start = |names: &[&str]| {
        let servers = names.iter().map(|name| name.parse().expect("a server")).collect();
        let plan = vec![CorePlan { cpu: cpus[0], servers }];
        engine::start(&settings(dir.path(), Auto::Set(plan)))
    };
    let engine = start(&["disk", "block", "delivery", "link"]).expect("it starts");
    assert_eq!(engine.placer.placement()[0].servers.len(), 6);
    let moved = engine.placer.place("file", cpus[0]).expect("it is there");
    assert_eq!((moved.core, moved.pause_us), (cpus[0], 0));
    drop(engine);
    let refused = start(&["disk", "block", "link"]).err().expect("delivery is missing");
    assert_eq!(
        refused.to_string(),
        "[cores] placement: `delivery` has no core; add it to the servers of one"
    );
}

#[test]
fn memory_for_few_blocks_is_the_reason_that_is_given_for_copies() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    let mut settings = settings(dir.path(), Auto::Auto);
    settings.memory.arena = Auto::Set(Bytes(8 * MIB));
    settings.volumes[0].sendfile = Sendfile::On;
    let engine = engine::start(&settings).expect("the engine starts");
    assert!(!engine.volumes[0].sendfile());
    let reasons = engine.degraded.join("; ");
    assert!(
        reasons.contains("its memory holds 32 blocks of 256 KiB, and 64 are needed"),
        "{reasons}"
    );
}

#[test]
fn an_engine_that_stops_gives_up_its_moves_and_answers_at_once() {
    let plan = two_links();
    let [first, second] = &plan[..] else { return println!("skipped: there is one processor") };
    let cpus = [first.cpu, second.cpu];
    let fixture = fixture_with(Sendfile::Off, 1_000, Auto::Set(plan));
    let placer = fixture.engine.placer.clone();
    let mover = placer.clone();
    let moving = std::thread::spawn(move || {
        for core in cpus.into_iter().cycle() {
            match mover.place("link", core) {
                Ok(_) | Err(PlaceError::Busy) => {}
                Err(error) => return error,
            }
        }
        unreachable!("a circle of cores has no end")
    });
    let moves = || placer.totals().by_cause().map(|(_, count)| count).sum::<u64>();
    while moves() < 10 {
        std::thread::yield_now();
    }
    let begun = std::time::Instant::now();
    drop(fixture);
    // A move that cores have not ended was answered after five seconds.
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    let error = moving.join().expect("no panic");
    assert!(matches!(error, PlaceError::Stopping(_)), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
}

/// Two link servers: the first with all other servers, the second on another core if there is one.
fn two_links() -> Vec<CorePlan> {
    with_second("link.1")
}

/// All servers, and a second one of a kind on another core if there is one.
fn with_second(second: &str) -> Vec<CorePlan> {
    let cpus = tactus_sys::thread::allowed_cores().expect("the cores");
    let named = |name: &str| -> ServerName { name.parse().expect("a server") };
    let first = ["disk", "block", "delivery", "link", "packets", "file"].map(named).to_vec();
    let second = vec![named(second)];
    match cpus[..] {
        [.., other, last] => {
            vec![CorePlan { cpu: last, servers: first }, CorePlan { cpu: other, servers: second }]
        }
        [only] => vec![CorePlan { cpu: only, servers: [first, second].concat() }],
        [] => unreachable!("a process runs somewhere"),
    }
}

#[tokio::test]
async fn two_link_servers_share_the_streams_and_the_cores() {
    const LEN: usize = 1_000_000;
    for sendfile in SENDFILE {
        let plan = two_links();
        let cores = plan.len();
        let fixture = fixture_with(sendfile, LEN, Auto::Set(plan));
        let all = (0..3).map(|_| deliver(&fixture, at(8_000_000), 0, LEN));
        futures::future::join_all(all).await;
        let sent: Vec<_> =
            fixture.engine.counters.links.iter().map(|link| link.bytes.value()).collect();
        assert_eq!((sent.len(), sent.iter().sum::<u64>()), (2, 3 * LEN as u64));
        assert!(cores == 1 || sent.iter().all(|&bytes| bytes > 0), "{sent:?}");
        all_is_returned(&fixture).await;
    }
}

#[tokio::test]
async fn two_delivery_servers_share_the_streams_and_lose_nothing_while_each_moves() {
    const LEN: usize = 2_000_000;
    for sendfile in SENDFILE {
        let plan = with_second("delivery.1");
        let cpus: Vec<_> = plan.iter().map(|core| core.cpu).collect();
        let fixture = fixture_with(sendfile, LEN, Auto::Set(plan));
        let placer = fixture.engine.placer.clone();
        let moving = tokio::task::spawn_blocking(move || {
            let names = ["delivery", "delivery.1"].into_iter().cycle();
            for (nth, name) in names.take(40).enumerate() {
                match placer.place(name, cpus[nth / 2 % cpus.len()]) {
                    Ok(_) | Err(PlaceError::Busy) => {}
                    Err(error) => panic!("{error}"),
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        // By reference, each of them has memory for a window that the disk reads ahead.
        let all = (0..3).map(|_| deliver(&fixture, at(8_000_000), 0, LEN));
        futures::future::join_all(all).await;
        moving.await.expect("no panic");
        let deliveries = &fixture.engine.counters.deliveries;
        let started: Vec<_> = deliveries.iter().map(|server| server.started.value()).collect();
        assert_eq!((started.len(), started.iter().sum::<u64>()), (2, 3));
        assert!(started.iter().all(|&count| count > 0), "{started:?}");
        all_is_returned(&fixture).await;
    }
}

#[tokio::test]
async fn the_servers_of_a_processor_that_goes_offline_move_to_another_core_and_streams_go_on() {
    const LEN: usize = 4_000_000;
    let plan = two_links();
    let [first, second] = &plan[..] else { return println!("skipped: there is one processor") };
    let (gone, other) = (first.cpu, second.cpu);
    let fixture = fixture_with(Sendfile::Off, LEN, Auto::Set(plan.clone()));
    let system = fixture._dir.path().join("system/cpu");
    let online = |text: String| {
        std::fs::create_dir_all(&system).expect("a directory");
        // As a whole: the engine reads it at any time.
        std::fs::write(system.join("new"), text).expect("a file");
        std::fs::rename(system.join("new"), system.join("online")).expect("a file");
    };
    let placer = fixture.engine.placer.clone();
    let all_on = async |cpu: u32| {
        loop {
            let placement = placer.placement();
            let rest = placement.iter().filter(|core| core.cpu != cpu);
            let left = rest.map(|core| core.servers.len()).sum::<usize>();
            // A move is noted after it is done.
            if left == 0 && placer.moves().len() >= 6 {
                return placement;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let stream = deliver(&fixture, at(8_000_000), 0, LEN);
    let moved = async {
        // The file is there before it is opened, and written as sysfs has it.
        online(format!("{other}\n"));
        all_on(other).await
    };
    let ((), placement) = tokio::join!(stream, moved);
    let core = |cpu| placement.iter().find(|core| core.cpu == cpu).expect("a core");
    assert!(!core(gone).online && core(other).online, "{placement:?}");
    let moves = placer.moves();
    let because = format!("core {gone} is offline");
    assert!(moves.len() == 6 && moves.iter().all(|one| one.reason == because), "{moves:?}");
    assert!(placer.totals().by_cause().any(|total| total == (MoveCause::Offline, 6)));
}
