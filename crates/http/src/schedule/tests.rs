//! The renewal of a stream beside a real ledger, in simulated time.

use super::*;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::pin;

use tactus_control::broker::{
    BrokerParts, BrokerRules, DatagramCost, Degradations, Device, Party, ServerNumbers,
};
use tactus_control::settings::ClientShare;
use tactus_core::cost::{DiskLimits, SendCost, WindowLimits};
use tactus_core::disk_model::DiskModel;
use tactus_core::ledger::{Ledger, Limits, Resource};
use tactus_core::ports::Waker;
use tactus_core::smoothing::{Consumption, Shape};
use tactus_core::stagger::Tick;
use tactus_core::units::{BitRate, KIB, MIB, MediaTime, Nanos, SECOND};
use tactus_engine::counters::StreamCounters;
use tactus_engine::message::{Command, Rate};
use tactus_media::MediaKind;
use tactus_ring::spsc::{Consumer, ring};
use tactus_storage::catalogue::{CatalogueRules, IndexOutcome, PathObject};
use tokio::time::timeout;

use crate::settings::RateClass;
use tactus_notation::units::Percent;

/// Ten seconds of the title have 1 Mbit/s, and the next ten 7 Mbit/s.
const LEN: Bytes = Bytes(10_000_000);
const MEAN: BitRate = BitRate(4_000_000);
/// Bytes sent by the time at which the title has an index.
const SENT: u64 = 500_000;

struct Silent;

impl Waker for Silent {
    fn wake(&self) {}
}

struct Fixture {
    catalogue: Arc<Catalogue>,
    broker: Broker,
    title: Arc<OpenTitle>,
    renewal: Renewal,
    viewer: Viewer,
    _commands: Consumer<Command>,
    _dir: tempfile::TempDir,
}

impl Fixture {
    /// A title of a variable rate without an index, and a server with this link.
    fn new(link: BitRate) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = std::fs::File::create(dir.path().join("a.mkv")).unwrap();
        file.set_len(LEN.0).unwrap();
        let rules = CatalogueRules::default();
        let catalogue = Arc::new(Catalogue::new(dir.path(), rules).unwrap());
        let path = RequestPath::parse(b"/a.mkv").unwrap();
        let Ok(PathObject::Title(title)) = catalogue.find_blocking(&path) else { panic!() };
        let class = RateClass {
            headroom: Percent(0),
            ceiling: BitRate(100_000_000),
            start_burst: SECOND,
            tick: Tick::Ms250,
            client_share: ClientShare::All,
        };
        let limits = RateLimits {
            default: None,
            min: BitRate(1),
            player_buffer: SECOND.times(2),
            segment_multiple: 1,
            segment_max: Nanos(0),
            title: class,
            asked: class,
            cmcd: class,
        };
        let media = MediaFacts {
            kind: MediaKind::Matroska,
            rate: MEAN,
            peak: None,
            duration: SECOND.times(20),
            head: Bytes(0),
        };
        let pace = Pace::Paced { rate: MEAN, burst: MEAN.bytes_in(SECOND), tick: Tick::Ms250 };
        let (broker, commands) = broker(link);
        Self {
            catalogue,
            broker,
            title,
            renewal: Renewal { path, media, pace, limits, reason: RenewalReason::Index },
            viewer: Viewer {
                party: Party::of(IpAddr::V4(Ipv4Addr::LOCALHOST)),
                device: None,
                client: String::new(),
                share: ClientShare::All,
            },
            _commands: commands,
            _dir: dir,
        }
    }

    fn admit(&self, rate: BitRate) -> Grant {
        let rate = Rate { rate, burst: Bytes(0), tick: Tick::Ms250 };
        let spec = DeliverySpec::connection(&self.broker, &self.title, Some(rate), LEN);
        self.broker.admit(&spec.of_any_title()).unwrap()
    }

    /// The stream that begins without an index. It has sent some bytes.
    fn stream(&self) -> Grant {
        let grant = self.admit(MEAN);
        self.broker.counters_of(grant.slot()).unwrap().bytes.add(SENT);
        grant
    }

    fn make_index(&self) {
        let seconds = |seconds: u64| MediaTime(seconds * 27_000_000);
        let points = [(0, 0), (10, LEN.0 / 8), (20, LEN.0)];
        let points = points.map(|(at, bytes)| (seconds(at), Bytes(bytes)));
        let made = Consumption::new(Shape::Lines, points.into_iter());
        let stat = rustix::fs::fstat(&self.title.file).unwrap();
        let id = Some(self.title.id);
        self.catalogue.keep_consumption(&self.title, id, &stat, made);
        self.catalogue.handle_index_end(IndexOutcome::Made);
    }

    async fn rest(&self, slot: u32) -> Rest {
        let from = (&self.catalogue, &self.broker);
        self.renewal.rest(from, &self.title, 0..LEN.0, slot, &self.viewer).await
    }

    fn refused(&self) -> u64 {
        self.broker.refusals().of(Resource::Link)
    }
}

/// A broker in front of no engine, in which only the link is short.
fn broker(link: BitRate) -> (Broker, Consumer<Command>) {
    let ledger = Ledger::new(Limits {
        disks: vec![DiskLimits {
            model: DiskModel::SLOWEST,
            cycle: SECOND,
            share_thousandths: 1000,
            block: Bytes(256 * KIB),
            blocks: (1024 * MIB / (256 * KIB)) as u32,
            ahead: 0,
            windows: WindowLimits::NONE,
            server: 0,
            read_per_mib: Nanos(0),
            deliver_block: Nanos(0),
            per_write: Nanos(0),
            write_path: None,
        }],
        link,
        datagrams: None,
        classes: vec![],
        cores: vec![SECOND],
        streams: 8,
    });
    let (to_engine, commands) = ring(64);
    let broker = Broker::new(BrokerParts {
        ledger,
        commands: vec![to_engine],
        class_changes: None,
        waker: Box::new(Silent),
        rules: BrokerRules {
            servers: ServerNumbers {
                deliveries: vec![0],
                links: vec![0],
                packets: vec![0],
                file: 0,
            },
            cpus: vec![0],
            downloads_max: 2,
            download_share: ClientShare::All,
            retry_after: Duration::from_secs(1),
            start_burst: Nanos(0),
            behind_max: Nanos(0),
            datagram: DatagramCost::each(Nanos(1)),
            sendfile: vec![false],
            connections: vec![SendCost {
                per_send: Nanos(0),
                per_packet: Nanos(0),
                per_mib: Nanos(0),
            }],
            classes: vec![],
        },
        counters: (0..8).map(|_| StreamCounters::default()).collect(),
        degradations: Degradations::default(),
    });
    (broker, commands)
}

#[tokio::test(start_paused = true)]
async fn r01_the_rest_of_a_stream_is_admitted_beside_it_when_the_index_is_made() {
    let fixture = Fixture::new(BitRate(40_000_000));
    let stream = fixture.stream();
    let mut rest = pin!(fixture.rest(stream.slot()));
    assert!(timeout(Duration::from_secs(5), &mut rest).await.is_err(), "there is no index yet");
    fixture.make_index();
    let rest = timeout(Duration::from_secs(1), rest).await.expect("there is room");
    assert_ne!(rest.grant.slot(), stream.slot());
    assert_eq!((rest.first, fixture.broker.streams()), (SENT, 2), "both have a promise");
    // The stream is interrupted some bytes later: the rest of them has the same times.
    let later = SENT + 1_000_000;
    let (whole, behind) = (rest.plan(SENT).unwrap(), rest.plan(later).unwrap());
    let [whole, behind] = [whole, behind].map(|plan| plan.line.clone().unwrap());
    assert_eq!(behind.len(), Bytes(LEN.0 - later));
    let due = |line: &Polyline, at: u64| line.due(Bytes(at), 0).0;
    let shift = due(&whole, 5_000_000) - due(&behind, 4_000_000);
    // Rates are whole numbers of bits in a second.
    assert!((due(&whole, 8_000_000) - due(&behind, 7_000_000)).abs_diff(shift) < 100);
    assert!(rest.plan(LEN.0).is_none(), "all has been sent");
}

#[tokio::test(start_paused = true)]
async fn r01_on_a_full_server_a_stream_keeps_its_rate_until_there_is_room_for_its_rest() {
    let fixture = Fixture::new(BitRate(12_000_000));
    let (stream, other) = (fixture.stream(), fixture.admit(BitRate(5_000_000)));
    fixture.make_index();
    let mut rest = pin!(fixture.rest(stream.slot()));
    assert!(timeout(Duration::from_secs(5), &mut rest).await.is_err());
    assert_eq!((fixture.refused(), fixture.broker.streams()), (1, 2), "its promise stays");
    drop(other);
    // The next attempt, ten seconds after the first one.
    assert!(timeout(Duration::from_secs(4), &mut rest).await.is_err());
    fixture.broker.counters_of(stream.slot()).unwrap().bytes.add(SENT);
    let rest = timeout(Duration::from_secs(2), rest).await.expect("there is room");
    assert_eq!((rest.first, fixture.broker.streams()), (2 * SENT, 2));
    assert_eq!(fixture.refused(), 1);
}

#[tokio::test(start_paused = true)]
async fn r01_admission_of_a_rest_is_tried_sixty_times_in_ten_minutes() {
    let fixture = Fixture::new(BitRate(12_000_000));
    let (stream, _other) = (fixture.stream(), fixture.admit(BitRate(5_000_000)));
    fixture.make_index();
    let mut rest = pin!(fixture.rest(stream.slot()));
    assert!(timeout(Duration::from_secs(605), &mut rest).await.is_err());
    assert_eq!(fixture.refused(), 60);
    assert!(timeout(Duration::from_secs(3600), &mut rest).await.is_err());
    assert_eq!((fixture.refused(), fixture.broker.streams()), (60, 2));
}

#[tokio::test(start_paused = true)]
async fn r05_a_viewer_without_a_rate_has_one_again_when_there_is_room() {
    let mut fixture = Fixture::new(BitRate(12_000_000));
    fixture.renewal.reason = RenewalReason::Room;
    fixture.make_index();
    let other = fixture.admit(BitRate(10_000_000));
    let spec = DeliverySpec::connection(&fixture.broker, &fixture.title, None, LEN);
    let stream = fixture.broker.admit(&spec.of_any_title()).unwrap();
    fixture.broker.counters_of(stream.slot()).unwrap().bytes.add(SENT);
    let mut rest = pin!(fixture.rest(stream.slot()));
    assert!(timeout(Duration::from_secs(31), &mut rest).await.is_err());
    assert_eq!((fixture.refused(), fixture.broker.streams()), (0, 2), "no request was refused");
    drop(other);
    let rest = timeout(Duration::from_secs(2), rest).await.expect("there is room");
    assert_eq!((rest.first, fixture.broker.streams()), (SENT, 2));
    assert!(rest.plan(SENT).is_some());
}

#[tokio::test(start_paused = true)]
async fn r05_a_viewer_without_a_rate_has_the_room_of_its_stream_before_when_that_ends() {
    let mut fixture = Fixture::new(BitRate(12_000_000));
    fixture.renewal.reason = RenewalReason::OwnRoom;
    fixture.viewer.device = Some(Device::of(b"chromium", None));
    fixture.make_index();
    let _other = fixture.admit(BitRate(3_000_000));
    let of = |rate: Option<BitRate>| {
        let rate = rate.map(|rate| Rate { rate, burst: Bytes(0), tick: Tick::Ms250 });
        let spec = DeliverySpec::connection(&fixture.broker, &fixture.title, rate, LEN);
        spec.of_any_title().within_share(&fixture.viewer)
    };
    let before = fixture.broker.admit(&of(Some(BitRate(8_000_000)))).unwrap();
    let stream = fixture.broker.admit(&of(None)).unwrap();
    fixture.broker.counters_of(stream.slot()).unwrap().bytes.add(SENT);
    let mut rest = pin!(fixture.rest(stream.slot()));
    assert!(timeout(Duration::from_secs(31), &mut rest).await.is_err(), "it is still open");
    before.vacate().await;
    let rest = timeout(Duration::from_millis(200), rest).await.expect("its room is kept for it");
    assert_eq!((rest.first, fixture.broker.streams()), (SENT, 3));
    assert_eq!(fixture.refused(), 0);
}
