//! The broker against its promises, with an engine simulated by the test.

use super::stream_table::TitleFile;
use super::*;
use std::net::{TcpListener, TcpStream};

use tactus_core::cost::{DiskLimits, SendCost, WindowLimits};
use tactus_core::datagrams::{Framing, Ip, Session};
use tactus_core::disk_model::DiskModel;
use tactus_core::ledger::Limits;
use tactus_core::polyline::Polyline;
use tactus_core::units::{KIB, MIB, MediaTime, SECOND};
use tactus_engine::message::{self, Extent, ReturnedMemory, Start, StreamId};
use tactus_ring::spsc::ring;
use tactus_storage::catalogue::{
    Catalogue, CatalogueRules, GrowingTitleSpec, GrowthPublisher, PathObject,
};

/// More than a start, two stops, a message, an extension, and a deferral with its end for each of a
/// hundred slots.
const COMMANDS: usize = 720;

struct Silent;

impl Waker for Silent {
    fn wake(&self) {}
}

struct Fixture {
    broker: Broker,
    commands: Consumer<Command>,
    /// Those to the second delivery server and further ones.
    further_commands: Vec<Consumer<Command>>,
    to_control: Producer<Report>,
    reports: Consumer<Report>,
    title: Arc<OpenTitle>,
    counters: Arc<[StreamCounters]>,
    dir: tempfile::TempDir,
}

impl Fixture {
    /// Room for `streams` of 1 Mbit/s.
    fn new(streams: u32) -> Self {
        Self::with_links(streams, 1)
    }

    /// The same with so many link servers and packet servers, each pair on a core of its own.
    fn with_links(streams: u32, links: u32) -> Self {
        Self::with_servers(streams, links, (1, Nanos(0)))
    }

    /// The same with so many delivery servers, each on a core of its own; a block takes them this
    /// time.
    fn with_servers(streams: u32, links: u32, (deliveries, block): (u32, Nanos)) -> Self {
        let cores = links.max(deliveries);
        let disk = DiskLimits {
            model: DiskModel::SLOWEST,
            cycle: SECOND,
            share_thousandths: 1000,
            block: Bytes(256 * KIB),
            blocks: 1000,
            ahead: 0,
            windows: WindowLimits::NONE,
            server: 0,
            read_per_mib: Nanos(0),
            deliver_block: block,
            per_write: Nanos(0),
            write_path: None,
        };
        let link = BitRate(1_000_000 * u64::from(streams));
        let ledger = Ledger::new(Limits {
            disks: vec![disk],
            link,
            datagrams: None,
            classes: vec![],
            cores: vec![SECOND; cores as usize],
            streams: 100,
        });
        let rings = (0..deliveries).map(|_| ring(COMMANDS));
        let (to_engine, mut further_commands): (Vec<_>, Vec<_>) = rings.unzip();
        let commands = further_commands.remove(0);
        let (to_control, reports) = ring(201);
        let counters: Arc<[_]> = (0..100).map(|_| StreamCounters::default()).collect();
        let retry_after = Duration::from_secs(1);
        let rules = BrokerRules {
            servers: ServerNumbers {
                deliveries: (0..deliveries).collect(),
                links: (0..links).collect(),
                packets: (0..links).collect(),
                file: 0,
            },
            cpus: (0..cores).collect(),
            downloads_max: 2,
            download_share: crate::settings::ClientShare::Fair,
            retry_after,
            start_burst: Nanos(0),
            behind_max: Nanos(0),
            datagram: DatagramCost::each(Nanos::from_micros(4)),
            sendfile: vec![false],
            connections: vec![SendCost {
                per_send: Nanos::from_micros(1),
                per_packet: Nanos(0),
                per_mib: Nanos(0),
            }],
            classes: vec![],
        };
        let broker = Broker::new(BrokerParts {
            ledger,
            commands: to_engine,
            class_changes: None,
            waker: Box::new(Silent),
            rules,
            counters: Arc::clone(&counters),
            degradations: Degradations::new(1),
        });
        let dir = tempfile::tempdir().expect("a directory for the title");
        std::fs::write(dir.path().join("a.ts"), vec![7; 10_000]).expect("a title");
        let title = open_title(dir.path(), "/a.ts");
        Self { broker, commands, further_commands, to_control, reports, title, counters, dir }
    }

    /// `len` bytes of an arbitrary title.
    fn admit(&self, rate: Option<Rate>, len: Bytes) -> Result<Grant, Refusal> {
        let spec = DeliverySpec::connection(&self.broker, &self.title, rate, len);
        self.broker.admit(&spec.of_any_title())
    }

    /// `len` bytes of its title.
    fn admit_title(&self, len: Bytes) -> Result<Grant, Refusal> {
        self.broker.admit(&DeliverySpec::connection(&self.broker, &self.title, RATE, len))
    }

    fn report(&mut self, report: Report) {
        self.to_control.push(report).expect("room for the report");
        self.broker.handle_reports(&mut self.reports);
    }

    fn used(&self, resource: Resource) -> u64 {
        let levels = self.broker.levels();
        levels.iter().find(|level| level.resource == resource).expect("it is listed").used
    }

    /// Simulates the engine: the title of two viewers is read and pinned.
    fn pin_title(&mut self) -> (Grant, Grant, StreamId) {
        let watch = || self.admit_title(LEN);
        let (first, second) = (watch().expect("room"), watch().expect("room"));
        let Some(Command::Pin(pin)) = self.commands.pop() else { panic!("nothing is pinned") };
        assert_eq!(pin.origin.title, self.title.id);
        self.report(Report::Pinned { stream: pin.stream });
        (first, second, pin.stream)
    }

    /// A growing title with `durable` bytes.
    fn growing(&self, durable: u64) -> (Arc<OpenTitle>, GrowthPublisher) {
        let catalogue = Catalogue::new(self.dir.path(), CatalogueRules::default());
        let catalogue = catalogue.expect("a volume");
        let file = std::fs::File::open(self.dir.path().join("a.ts")).expect("a file").into();
        let (volume, path) = (VolumeId(0), "new.ts".to_owned());
        let coming = GrowingTitleSpec { volume, path, file, declared: None, rate: None };
        let announced = catalogue.announce(coming).expect("it can be read").expect("the first one");
        announced.advance(Bytes(durable));
        (title_of(&catalogue, "/new.ts"), announced)
    }

    fn started(&mut self) -> Start {
        match self.commands.pop() {
            Some(Command::Start(start)) => start,
            other => panic!("expected a start, found {other:?}"),
        }
    }
}

fn extent_of(start: &Start) -> &Extent {
    &start.delivery.blocks().expect("blocks of a title").extent
}

fn open_title(root: &std::path::Path, path: &str) -> Arc<OpenTitle> {
    let catalogue = Catalogue::new(root, CatalogueRules::default()).expect("a volume");
    title_of(&catalogue, path)
}

fn title_of(catalogue: &Catalogue, path: &str) -> Arc<OpenTitle> {
    let path = tactus_core::path::RequestPath::parse(path.as_bytes()).expect("a plain path");
    match catalogue.find_blocking(&path).expect("the title is there") {
        PathObject::Title(title) => title,
        PathObject::Directory(_) => panic!("the title is a file"),
    }
}

const RATE: Option<Rate> =
    Some(Rate { rate: BitRate(1_000_000), burst: Bytes(0), tick: Tick::Ms62 });
/// A title's length.
const LEN: Bytes = Bytes(10_000);

fn socket() -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    TcpStream::connect(listener.local_addr().expect("bound")).expect("a connection")
}

#[tokio::test]
async fn what_does_not_fit_is_refused_by_name_and_changes_nothing() {
    let fixture = Fixture::new(2);
    let first = fixture.admit(RATE, LEN).expect("room for two");
    let second = fixture.admit(RATE, LEN).expect("room for two");
    let before = fixture.broker.levels();
    let refusal = fixture.admit(RATE, LEN).err().expect("no room for three");
    assert_eq!(refusal.resource, Resource::Link);
    assert!(refusal.message.contains("the link"), "{}", refusal.message);
    assert_eq!(fixture.broker.levels(), before);
    drop(first);
    assert!(fixture.admit(RATE, LEN).is_ok());
    drop(second);
    assert_eq!(fixture.broker.streams(), 0);
}

/// A line of two spans: seconds, and the rate in them.
fn line([first, second]: [[u64; 2]; 2]) -> Polyline {
    let bytes = first[0] * first[1] / 8;
    let (time, end) = (first[0] * 27_000_000, (first[0] + second[0]) * 27_000_000);
    let points = [(0, 0), (bytes, time), (bytes + second[0] * second[1] / 8, end)];
    let points = points.map(|(at, time)| (Bytes(at), MediaTime(time)));
    Polyline::through(&points).expect("it ascends")
}

#[tokio::test]
async fn streams_whose_peaks_lie_apart_share_a_link_that_their_peaks_would_exceed() {
    let fixture = Fixture::new(4);
    let early = line([[60, 3_000_000], [120, 500_000]]);
    let late = line([[60, 500_000], [60, 3_000_000]]);
    let admit = |line: Option<&Polyline>| {
        let rate = Some(Rate { rate: BitRate(3_000_000), ..RATE.expect("a rate") });
        let broker = &fixture.broker;
        let spec = DeliverySpec::connection(broker, &fixture.title, rate, LEN).of_any_title();
        broker.admit(&line.into_iter().fold(spec, |spec, line| spec.by_line(broker, line)))
    };
    let first = admit(Some(&early)).expect("an empty link has room");
    assert_eq!(fixture.used(Resource::Link), 3_000_000);
    assert_eq!(admit(None).err().map(|refusal| refusal.resource), Some(Resource::Link));
    assert!(admit(Some(&early)).is_err(), "both peaks come at once");
    // One peak begins where the other one ends: their seconds of lead and lag overlap.
    assert_eq!(admit(Some(&late)).err().map(|refusal| refusal.resource), Some(Resource::Link));
    let apart = line([[90, 500_000], [60, 3_000_000]]);
    let second = admit(Some(&apart)).expect("their peaks lie apart");
    drop((first, second));
    assert_eq!(fixture.used(Resource::Link), 0);
}

#[tokio::test]
async fn when_datagrams_turn_out_to_cost_less_more_streams_fit_and_none_is_counted_again() {
    let fixture = Fixture::new(100);
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    let udp_output = UdpOutput::of(socket.into(), None);
    let to = "239.1.1.1:5000".parse().expect("an address");
    let output = Output::datagrams(&udp_output, to, Nanos(0));
    let rates = [BitRate(10_528_000); 2];
    let admit = || {
        let (broker, packets) = (&fixture.broker, (Framing::Plain, &output));
        broker.admit(&DeliverySpec::datagrams(broker, &fixture.title, rates, packets, None))
    };
    // A thousand datagrams per second are all that the core can send.
    fixture.broker.count_datagrams_as(DatagramCost::each(Nanos::from_micros(600)));
    let first = admit().expect("room for one");
    let refusal = admit().err().expect("no room for two");
    assert_eq!(refusal.resource, Resource::Cpu);
    fixture.broker.count_datagrams_as(DatagramCost::each(Nanos::from_micros(100)));
    let others = [admit(), admit()];
    assert!(others.iter().all(Result::is_ok));
    // A promise at the old cost returns at the old cost.
    let before = fixture.used(Resource::Cpu);
    drop(first);
    assert_eq!(before - fixture.used(Resource::Cpu), Nanos::from_millis(600).0);
    drop(others);
    assert_eq!(fixture.used(Resource::Cpu), 0);
}

#[tokio::test]
async fn downloads_without_a_rate_are_bounded_by_number() {
    let fixture = Fixture::new(2);
    let admit = || fixture.admit(None, LEN);
    let grants: Vec<_> = (0..2).map(|_| admit().expect("two fit")).collect();
    assert_eq!(admit().err().map(|r| r.resource), Some(Resource::Streams));
    drop(grants);
    assert!(admit().is_ok());
}

#[tokio::test]
async fn a_socket_comes_back_when_its_stream_has_finished() {
    let mut fixture = Fixture::new(1);
    let mut grant = fixture.admit(RATE, LEN).expect("room");
    let title = Arc::clone(&fixture.title);
    let delivery = tokio::spawn(async move {
        let delivered = grant.deliver(&title, 10..20, None, Output::connection(socket())).await;
        (grant, delivered)
    });
    tokio::task::yield_now().await;
    let start = fixture.started();
    assert_eq!(extent_of(&start), &Extent::Range(Bytes(10)..Bytes(20)));
    let (stream, sent) = (start.stream, Bytes(10));
    fixture.report(Report::Finished { stream, outcome: Outcome::Complete, sent });
    let (grant, delivered) = delivery.await.expect("no panic");
    assert!(delivered.socket.is_some() && delivered.sent == 10);
    drop(grant);
    assert_eq!(fixture.broker.streams(), 1, "not retired yet");
    fixture.report(Report::Retired { stream, memory: ReturnedMemory::default() });
    assert_eq!(fixture.broker.streams(), 0);
}

#[tokio::test]
async fn a_request_that_goes_away_is_stopped_and_returns_its_grant_when_retired() {
    let mut fixture = Fixture::new(1);
    let mut grant = fixture.admit(RATE, LEN).expect("room");
    let title = Arc::clone(&fixture.title);
    let delivery = tokio::spawn(async move {
        grant.deliver(&title, 0..10_000, None, Output::connection(socket())).await.outcome
    });
    tokio::task::yield_now().await;
    let stream = fixture.started().stream;
    delivery.abort();
    assert!(delivery.await.is_err_and(|error| error.is_cancelled()));
    assert_eq!(fixture.commands.pop(), Some(Command::Stop(stream)));
    assert!(fixture.admit(RATE, LEN).is_err(), "the engine still sends");
    fixture.report(Report::Finished { stream, outcome: Outcome::Stopped, sent: Bytes(0) });
    assert!(fixture.admit(RATE, LEN).is_err(), "the engine still reads");
    fixture.report(Report::Retired { stream, memory: ReturnedMemory::default() });
    assert!(fixture.admit(RATE, LEN).is_ok());
}

#[tokio::test]
async fn the_parts_of_one_grant_follow_each_other_in_one_place() {
    let mut fixture = Fixture::new(1);
    let mut grant = fixture.admit(RATE, LEN).expect("room");
    let title = Arc::clone(&fixture.title);
    let delivery = tokio::spawn(async move {
        for range in [0..10, 50..60] {
            let delivered = grant.deliver(&title, range, None, Output::connection(socket())).await;
            assert_eq!(delivered.outcome, Outcome::Complete);
        }
    });
    let mut lives = vec![];
    for _ in 0..2 {
        tokio::task::yield_now().await;
        let stream = fixture.started().stream;
        lives.push(stream.generation);
        let sent = Bytes(10);
        fixture.report(Report::Finished { stream, outcome: Outcome::Complete, sent });
        tokio::task::yield_now().await;
        assert_eq!(fixture.commands.pop(), None, "the next part waits until the place is empty");
        fixture.report(Report::Retired { stream, memory: ReturnedMemory::default() });
    }
    delivery.await.expect("both parts were delivered");
    assert_eq!(lives, [1, 2]);
    assert_eq!(fixture.broker.streams(), 0);
}

#[tokio::test]
async fn what_two_watch_is_held_and_the_third_needs_no_disk() {
    let mut fixture = Fixture::new(10);
    let (_first, _second, _) = fixture.pin_title();
    let before = fixture.used(Resource::Disk);
    let third = fixture.admit_title(LEN);
    assert!(third.is_ok());
    assert_eq!(fixture.used(Resource::Disk), before);
    assert_eq!(fixture.commands.pop(), None, "it is pinned once");
}

#[tokio::test]
async fn viewers_of_a_held_title_share_the_link_by_what_each_second_needs() {
    let mut fixture = Fixture::new(6);
    // Both have a constant rate of 1 Mbit/s.
    let (_first, _second, _) = fixture.pin_title();
    let before = fixture.used(Resource::Disk);
    let admit = |line: &Polyline| {
        let rate = Some(Rate { rate: BitRate(3_000_000), ..RATE.expect("a rate") });
        let (broker, title) = (&fixture.broker, &fixture.title);
        let spec = DeliverySpec::connection(broker, title, rate, LEN).by_line(broker, line);
        broker.admit(&spec)
    };
    let early = line([[60, 3_000_000], [120, 500_000]]);
    let _early = admit(&early).expect("an empty link has room");
    assert_eq!(admit(&early).err().map(|refusal| refusal.resource), Some(Resource::Link));
    let _late = admit(&line([[90, 500_000], [60, 3_000_000]])).expect("their peaks lie apart");
    assert_eq!(fixture.used(Resource::Disk), before);
}

#[tokio::test]
async fn r03_the_index_of_a_held_title_leaves_at_once() {
    let mut fixture = Fixture::new(100);
    let file = std::fs::File::create(fixture.dir.path().join("b.ts")).expect("a title");
    file.set_len(16 * MIB).expect("room");
    fixture.title = open_title(fixture.dir.path(), "/b.ts");
    let (_first, _second, _) = fixture.pin_title();
    let index = Bytes(8 * MIB);
    let window = |burst| {
        let rate = Some(Rate { burst, ..RATE.expect("a rate") });
        let spec = DeliverySpec::connection(&fixture.broker, &fixture.title, rate, index);
        u64::from(fixture.broker.admit(&spec).expect("room").window) * 256 * KIB
    };
    assert!(window(index) >= index.0);
    assert!(window(Bytes(0)) < index.0, "who plays relies on the held title");
}

#[tokio::test]
async fn a_held_title_that_nobody_watches_makes_room_for_others() {
    let mut fixture = Fixture::new(1000);
    let (first, second, pin) = fixture.pin_title();
    drop((first, second));
    assert_eq!(fixture.broker.pinned_titles(), 1);
    let admit = |fixture: &Fixture| fixture.admit(RATE, Bytes(1 << 40));
    let mut grants = vec![];
    let refusal = loop {
        match admit(&fixture) {
            Ok(grant) => grants.push(grant),
            Err(refusal) => break refusal,
        }
    };
    assert_eq!(fixture.broker.pinned_titles(), 0, "{refusal}");
    assert_eq!(fixture.commands.pop(), Some(Command::Stop(pin)));
    // Its slot is used again only when the engine has retired it.
    fixture.report(Report::Retired { stream: pin, memory: ReturnedMemory::default() });
    assert!(admit(&fixture).is_ok(), "{refusal}");
}

#[tokio::test]
async fn a_title_that_cannot_be_read_is_not_pinned() {
    let mut fixture = Fixture::new(10);
    let watch = |fixture: &Fixture| fixture.admit_title(Bytes(9));
    let _grants = (watch(&fixture).expect("room"), watch(&fixture).expect("room"));
    let Some(Command::Pin(pin)) = fixture.commands.pop() else { panic!("nothing is pinned") };
    let before = fixture.used(Resource::Arena);
    let (stream, outcome) = (pin.stream, Outcome::Unreadable { block: 3, errno: 5 });
    fixture.report(Report::Finished { stream, outcome, sent: Bytes(0) });
    fixture.report(Report::Retired { stream, memory: ReturnedMemory::default() });
    assert_eq!(fixture.used(Resource::Arena), before - u64::from(pin.window));
    assert_eq!(fixture.broker.pinned_titles(), 0);
}

/// Follows `title` without a rate. Also returns the grant, when the delivery has ended.
fn follow(
    fixture: &Fixture,
    title: &Arc<OpenTitle>,
) -> tokio::task::JoinHandle<(Grant, DeliveryResult)> {
    let (broker, title) = (fixture.broker.clone(), Arc::clone(title));
    tokio::spawn(async move {
        let spec = DeliverySpec::connection(&broker, &title, None, title.len);
        let mut grant = broker.admit(&spec).expect("room");
        let delivered = grant.follow(&title, 0, Output::connection(socket())).await;
        (grant, delivered)
    })
}

#[tokio::test(start_paused = true)]
async fn who_follows_a_title_hears_of_each_byte_once_it_is_there_and_ends_with_it() {
    let mut fixture = Fixture::new(1);
    let (title, announced) = fixture.growing(4096);
    let following = follow(&fixture, &title);
    tokio::task::yield_now().await;
    let start = fixture.started();
    assert_eq!(extent_of(&start), &Extent::Growing(Bytes(0)..Bytes(4096)));
    assert_eq!(start.delivery.blocks().map(|blocks| &blocks.origin.sums), Some(&None));
    announced.advance(Bytes(8192));
    tokio::task::yield_now().await;
    let (stream, end) = (start.stream, Bytes(8192));
    assert_eq!(fixture.commands.pop(), Some(Command::Extend { stream, end, is_whole: false }));
    announced.complete(Bytes(10_000));
    tokio::task::yield_now().await;
    let end = Bytes(10_000);
    assert_eq!(fixture.commands.pop(), Some(Command::Extend { stream, end, is_whole: true }));
    fixture.report(Report::Finished { stream, outcome: Outcome::Complete, sent: end });
    let (_, delivered) = following.await.expect("no panic");
    assert!(delivered.socket.is_some() && delivered.outcome == Outcome::Complete);
}

#[tokio::test(start_paused = true)]
async fn who_has_not_had_all_that_is_there_is_never_sent_away_and_then_after_a_minute() {
    let mut fixture = Fixture::new(1);
    let (title, announced) = fixture.growing(4096);
    let following = follow(&fixture, &title);
    tokio::task::yield_now().await;
    let stream = fixture.started().stream;
    let counter = &fixture.counters[stream.index as usize].bytes;
    counter.set(4095);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(fixture.commands.pop(), None, "it is still being sent");
    counter.set(4096);
    tokio::time::sleep(Duration::from_secs(50)).await;
    assert_eq!(fixture.commands.pop(), None, "more may come");
    tokio::time::sleep(Duration::from_secs(20)).await;
    let end = Bytes(4096);
    assert_eq!(fixture.commands.pop(), Some(Command::Extend { stream, end, is_whole: true }));
    fixture.report(Report::Finished { stream, outcome: Outcome::Complete, sent: end });
    let (_, delivered) = following.await.expect("no panic");
    // The title has not ended; the broken connection shows it.
    assert!(delivered.socket.is_none() && delivered.outcome == Outcome::Stopped);
    drop(announced);
}

#[tokio::test(start_paused = true)]
async fn of_a_title_that_was_given_up_all_is_sent_that_was_there() {
    let mut fixture = Fixture::new(1);
    let (title, announced) = fixture.growing(4096);
    let following = follow(&fixture, &title);
    tokio::task::yield_now().await;
    let stream = fixture.started().stream;
    drop(announced);
    tokio::task::yield_now().await;
    let end = Bytes(4096);
    assert_eq!(fixture.commands.pop(), Some(Command::Extend { stream, end, is_whole: true }));
    fixture.report(Report::Finished { stream, outcome: Outcome::Complete, sent: end });
    let (_, delivered) = following.await.expect("no panic");
    assert!(delivered.socket.is_none() && delivered.sent == 4096);
}

#[tokio::test(start_paused = true)]
async fn growing_titles_leave_the_engine_room_for_what_cannot_wait() {
    let mut fixture = Fixture::new(1);
    let (title, announced) = fixture.growing(4096);
    let _following = follow(&fixture, &title);
    tokio::task::yield_now().await;
    for end in 1..500 {
        announced.advance(Bytes(4096 + end));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut told = 0; // The start is one of them.
    while fixture.commands.pop().is_some() {
        told += 1;
    }
    assert!(told > 2 && COMMANDS - told >= 5 * 100, "{told}");
}

#[tokio::test]
async fn texts_between_frames_go_one_at_a_time_and_come_back_when_the_stream_has_ended() {
    let mut fixture = Fixture::new(2);
    let (broker, title) = (fixture.broker.clone(), Arc::clone(&fixture.title));
    let spec = DeliverySpec::interleaved(&broker, &title, BitRate(1_000_000), Ip::V4);
    let mut grant = broker.admit(&spec).expect("room");
    assert!(fixture.used(Resource::Link) > 1_000_000);
    let session = Session { source: 1, sequence: 2, timestamp: 3 };
    let blocks = |range: Range<u64>| Source::Blocks {
        extent: Extent::Range(Bytes(range.start)..Bytes(range.end)),
        framing: Framing::Rtp(session),
        plan: None,
    };
    let started = grant.start(&title, blocks(0..5000), Output::channel(socket(), 2)).await;
    let mut framed = started.expect("it begins");
    let interleaver = framed.interleaver();
    let Start { stream, delivery } = fixture.started();
    assert_eq!(delivery.framing(), Some(Framing::Rtp(session)));
    let message::Output::Connection(connection) = delivery.output() else {
        panic!("no connection")
    };
    assert_eq!(connection.channel, 2);
    let text = |text: &str| text.as_bytes().into();
    let [first, second, third] = ["one", "two", "three"].map(|each| interleaver.send(text(each)));
    let asked = Command::Interleave { stream, message: text("one") };
    assert_eq!(fixture.commands.pop(), Some(asked));
    assert_eq!(fixture.commands.pop(), None);
    fixture.report(Report::Interleaved { stream, message: text("one"), is_sent: true });
    assert_eq!(first.await, Ok(()));
    assert_eq!(fixture.commands.pop(), Some(Command::Interleave { stream, message: text("two") }));
    framed.stop();
    assert_eq!(fixture.commands.pop(), Some(Command::Stop(stream)));
    fixture.report(Report::Interleaved { stream, message: text("two"), is_sent: false });
    assert_eq!((second.await, third.await), (Err(text("two")), Err(text("three"))));
    let sent = Bytes(1316);
    fixture.report(Report::Finished { stream, outcome: Outcome::Stopped, sent });
    let delivered = framed.ended().await;
    assert!(delivered.socket.is_some() && delivered.sent == 1316);
    // The stream has ended.
    assert_eq!(interleaver.send(text("four")).await, Err(text("four")));
    framed.stop();
    assert_eq!(fixture.commands.pop(), None);
    fixture.report(Report::Retired { stream, memory: ReturnedMemory::default() });
    // The same grant continues. A connection in the middle of a frame is not returned.
    let started = grant.start(&title, blocks(1316..5000), Output::channel(socket(), 2)).await;
    let mut framed = started.expect("it begins");
    let interleaver = framed.interleaver();
    let stream = fixture.started().stream;
    let lost = interleaver.send(text("five"));
    fixture.report(Report::Interleaved { stream, message: text("five"), is_sent: false });
    fixture.report(Report::Finished { stream, outcome: Outcome::TooSlow, sent });
    assert_eq!(lost.await, Err(text("five")));
    assert!(framed.ended().await.socket.is_none());
    fixture.report(Report::Retired { stream, memory: ReturnedMemory::default() });
    drop(grant);
    assert_eq!(fixture.used(Resource::Link), 0);
}

#[test]
fn downloads_are_spread_over_the_link_servers() {
    let fixture = Fixture::with_links(2, 2);
    let admit = || fixture.admit(None, LEN).expect("room for two downloads");
    let (first, second) = (admit(), admit());
    assert_eq!([first.servers.sender, second.servers.sender], [0, 1]);
    drop(first);
    assert_eq!(admit().servers.sender, 0, "where the first one was");
    drop(second);
    assert_eq!(admit().servers.sender, 0, "both are idle again");
}

#[test]
fn link_servers_on_one_core_share_deliveries_and_one_leaves_with_its_half() {
    let fixture = Fixture::with_links(100, 2);
    fixture.broker.move_server(1, 0, "link.1 on core 0").expect("an idle core has room");
    let grants: Vec<_> = (0..6).map(|_| fixture.admit(RATE, LEN).expect("room for all")).collect();
    let sent_by = |sender| grants.iter().filter(|grant| grant.servers.sender == sender).count();
    assert_eq!([0, 1].map(sent_by), [3, 3]);
    let promised = || {
        let levels = fixture.broker.levels().into_iter();
        let cores = levels.filter(|level| level.resource == Resource::Cpu);
        cores.map(|level| level.used).collect::<Vec<_>>()
    };
    let together = promised();
    assert!(together[0] > 0 && together[1] == 0, "{together:?}");
    fixture.broker.move_server(1, 1, "link.1 on core 1").expect("an idle core has room");
    assert_eq!(promised(), [together[0] / 2; 2]);
}

/// Time for a block; each stream has one in a second, so ten fill a core.
const SLOW_BLOCK: Nanos = Nanos::from_millis(100);

#[test]
fn deliveries_are_spread_over_the_delivery_servers_and_admitted_by_the_time_of_both_cores() {
    let admitted = |deliveries| {
        let fixture = Fixture::with_servers(100, 1, (deliveries, SLOW_BLOCK));
        let room = fixture.broker.room_for(VolumeId(0), BitRate(1_000_000), Tick::Ms62);
        let grants: Vec<_> = std::iter::from_fn(|| fixture.admit(RATE, LEN).ok()).collect();
        let of = |server| grants.iter().filter(|one| one.servers.delivery.0 == server).count();
        let counts = (0..deliveries as u16).map(of).collect::<Vec<_>>();
        assert_eq!(grants.len(), counts.iter().sum::<usize>());
        assert_eq!(grants.len(), room as usize);
        let refusal = fixture.admit(RATE, LEN).err().expect("both cores are full");
        assert_eq!(refusal.resource, Resource::Cpu);
        drop(grants);
        assert_eq!(fixture.used(Resource::Cpu), 0);
        counts
    };
    // The link server takes some time of the first core.
    assert_eq!((admitted(1), admitted(2)), (vec![9], vec![9, 10]));
}

#[test]
fn a_delivery_server_that_moves_takes_the_promises_of_its_streams_along() {
    let fixture = Fixture::with_servers(100, 1, (2, SLOW_BLOCK));
    fixture.broker.move_server(1, 0, "delivery.1 on core 0").expect("an idle core has room");
    let grants: Vec<_> = (0..6).map(|_| fixture.admit(RATE, LEN).expect("room for all")).collect();
    let with = |server| grants.iter().filter(|one| one.servers.delivery.0 == server).count();
    assert_eq!([0, 1].map(with), [3, 3]);
    fixture.broker.move_server(1, 1, "delivery.1 on core 1").expect("an idle core has room");
    let levels = fixture.broker.levels().into_iter();
    let cores = levels.filter(|level| level.resource == Resource::Cpu).map(|level| level.used);
    let cores: Vec<_> = cores.collect();
    assert_eq!(cores[1], SLOW_BLOCK.times(3).0);
    assert!(cores[0] > cores[1], "with the link server: {cores:?}");
}

#[tokio::test]
async fn each_stream_is_commanded_at_its_delivery_server_and_its_slot_may_have_another_one_next() {
    let mut fixture = Fixture::with_servers(100, 1, (2, SLOW_BLOCK));
    let mut first = fixture.admit(RATE, LEN).expect("room");
    let mut second = fixture.admit(RATE, LEN).expect("room");
    let start = |grant: &mut Grant, fixture: &Fixture| {
        let output = Output::connection(socket());
        grant.start_now(&fixture.title, Source::range(0..1000), output).expect("it starts")
    };
    let [one, two] = [&mut first, &mut second].map(|grant| start(grant, &fixture).stream());
    assert_eq!([one.server.0, two.server.0], [0, 1]);
    let started = |command| match command {
        Some(Command::Start(start)) => start.stream,
        other => panic!("{other:?} is no start"),
    };
    assert_eq!(started(fixture.commands.pop()), one);
    assert_eq!(started(fixture.further_commands[0].pop()), two);
    drop(first);
    assert_eq!(fixture.commands.pop(), Some(Command::Stop(one)));
    drop(second);
    assert_eq!(fixture.further_commands[0].pop(), Some(Command::Stop(two)));
    for stream in [two, one] {
        let (outcome, sent) = (Outcome::Stopped, Bytes(0));
        fixture.report(Report::Finished { stream, outcome, sent });
        fixture.report(Report::Retired { stream, memory: ReturnedMemory::default() });
    }
    // The slot that was given back last is used first, now by the other server.
    let mut again = fixture.admit(RATE, LEN).expect("room");
    let next = start(&mut again, &fixture).stream();
    assert_eq!((next.index, next.server.0), (one.index, 0));
    let mut other = fixture.admit(RATE, LEN).expect("room");
    let other = start(&mut other, &fixture).stream();
    assert_eq!((other.index, other.server.0), (two.index, 1));
}

#[tokio::test]
async fn datagrams_are_spread_over_the_packet_servers_and_a_successor_stays() {
    let fixture = Fixture::with_servers(100, 2, (2, SLOW_BLOCK));
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    let udp_output = UdpOutput::of(socket.into(), None);
    let to = "239.1.1.1:5000".parse().expect("an address");
    let admit = |after| {
        let output = Output::datagrams_after(&udp_output, to, Nanos(0), after);
        let (broker, packets) = (&fixture.broker, (Framing::Plain, &output));
        let rates = [BitRate(8_000_000); 2];
        let spec = DeliverySpec::datagrams(broker, &fixture.title, rates, packets, None);
        (broker.admit(&spec).expect("room for all"), output)
    };
    let ((first, _), (mut second, output)) = (admit(None), admit(None));
    let of = |grant: &Grant| (grant.servers.sender, grant.servers.delivery.0);
    assert_eq!([of(&first), of(&second)], [(0, 0), (1, 1)]);
    let source = Source::Blocks {
        extent: Extent::Range(Bytes(0)..Bytes(1000)),
        framing: Framing::Plain,
        plan: None,
    };
    let running = second.start_now(&fixture.title, source, output).expect("it starts");
    drop(first);
    // The other core has more free time.
    let (successor, _) = admit(Some(running.stream()));
    assert_eq!(of(&successor), (1, 1), "the packet server that knows its numbers");
    assert_eq!(of(&admit(None).0), (0, 0));
}

#[path = "tests/keeping.rs"]
mod keeping;

#[path = "tests/succession.rs"]
mod succession;
#[path = "tests/timed.rs"]
mod timed;

#[test]
fn r08_sends_leave_the_sequence_alone_by_which_the_kernel_reads_ahead() {
    let fixture = Fixture::new(1);
    let rules = BrokerRules { sendfile: vec![true], ..fixture.broker.rules().clone() };
    let open = || TitleFile::open(&fixture.title, &rules).expect("it opens");
    let opened = (open(), open());
    let (first, second) = (opened.0.origin(), opened.1.origin());
    // The kernel keeps the sequence in the open file: each delivery reads by one of its own.
    let files = [first.file, second.file, first.sent_file];
    assert!(files.iter().enumerate().all(|(at, file)| !files[..at].contains(file)), "{files:?}");
    assert_eq!(first.sent_file, second.sent_file, "one for all sends of the title");
    for file in files {
        let facts = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", file.0));
        let flags = facts.expect("it is open");
        let flags = flags.lines().find_map(|line| line.strip_prefix("flags:")).expect("its flags");
        let flags = i32::from_str_radix(flags.trim(), 8).expect("octal");
        assert_eq!(flags & libc::O_DIRECT, 0, "past the page cache");
    }
}

#[test]
fn a_core_is_emptied_as_a_whole_or_not_at_all() {
    let fixture = Fixture::with_links(10, 3);
    let broker = &fixture.broker;
    let name = |server: u32| format!("server {server}");
    let cores = || {
        let servers = broker.promises(3).servers.into_iter();
        servers.map(|(place, _)| place.core).collect::<Vec<_>>()
    };
    let (places, time) = broker.empty_core((2, &[0, 1]), &[2], name).expect("there is room");
    assert_eq!((places, time, cores()), (vec![0], SECOND, vec![0, 1, 0]));
    // Core 2 is closed, so the servers of core 0 have no other one.
    let refused = broker.empty_core((0, &[2]), &[0, 2], name).map(drop).expect_err("no core");
    assert!(refused.message.contains("no room for server"), "{}", refused.message);
    assert_eq!((cores(), broker.promises(3).cores[0]), (vec![0, 1, 0], (Nanos(0), SECOND)));
    broker.open_core(2, time);
    let (places, _) = broker.empty_core((0, &[1, 2]), &[0, 2], name).expect("there is room");
    assert_eq!((places, cores()), (vec![1, 1], vec![1, 1, 1]));
    assert_eq!(broker.levels().iter().filter(|one| one.resource == Resource::Cpu).count(), 2);
}
