//! Generated streams: from a disk through a packetizer to datagrams on the loopback.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tactus_control::broker::{GeneratedRate, Output, Reading, UdpOutput};
use tactus_control::engine::{self, Engine};
use tactus_control::generated::{End, GeneratedSession, Lane, Packetizer, SourceSpec};
use tactus_control::settings::{EngineSettings, Sendfile, Volume};
use tactus_core::generated::TimedDatagram;
use tactus_core::ledger::Resource;
use tactus_core::path::RequestPath;
use tactus_core::units::{BitRate, Bytes, MIB, Nanos};
use tactus_notation::Auto;
use tactus_storage::catalogue::{Catalogue, CatalogueRules, OpenTitle, PathObject};
use tactus_sys::packets::udp_output;
use tactus_sys::udp_input::{InputOptions, UdpInput};

/// Longer than anything takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);
const RATE: BitRate = BitRate(8_000_000);
const LEN: usize = 2_500_000;
/// One server at a time: each pins its cores.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
/// What each datagram carries of the source.
const CUT: usize = 1000;

/// Cuts the source into datagrams that go to two outputs in turn, each due when its last byte is by
/// the rate.
struct Cuts {
    bytes: VecDeque<u8>,
    generated: u64,
    has_ended: bool,
}

impl Packetizer for Cuts {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    fn end(&mut self) {
        self.has_ended = true;
    }

    fn next(&mut self) -> Option<(usize, TimedDatagram)> {
        if self.bytes.is_empty() || self.bytes.len() < CUT && !self.has_ended {
            return None;
        }
        let cut: Vec<u8> = self.bytes.drain(..self.bytes.len().min(CUT)).collect();
        let due = RATE.time_for(Bytes(CUT as u64 * self.generated));
        self.generated += 1;
        Some((self.generated as usize % 2, TimedDatagram::new(due, &cut)))
    }

    fn buffered(&self) -> usize {
        self.bytes.len()
    }
}

struct Fixture {
    engine: Engine,
    title: Arc<OpenTitle>,
    content: Vec<u8>,
    inboxes: [UdpInput; 2],
    udp_output: Arc<UdpOutput>,
    _dir: tempfile::TempDir,
}

fn fixture(sendfile: Sendfile) -> Fixture {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    let byte = |at: u32| (at.wrapping_mul(2_654_435_761) >> 24) as u8;
    let content: Vec<u8> = (0..LEN as u32).map(byte).collect();
    std::fs::write(dir.path().join("title.bin"), &content).expect("a title");
    let catalogue = Catalogue::new(dir.path(), CatalogueRules::default()).expect("a volume");
    let path = RequestPath::parse(b"/title.bin").expect("a plain path");
    let Ok(PathObject::Title(title)) = catalogue.find_blocking(&path) else {
        panic!("it is there")
    };
    let volumes = vec![Volume::new(dir.path().into())];
    let mut settings = EngineSettings { volumes, ..EngineSettings::default() };
    settings.volumes[0].sendfile = sendfile;
    settings.memory.arena = Auto::Set(Bytes(32 * MIB));
    let engine = engine::start(&settings).expect("the engine starts");
    let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let udp_output = udp_output::UdpOptions {
        from: any,
        interface: None,
        hops: None,
        dscp: 0,
        heard_here: true,
        buffer: 4 << 20,
    };
    let udp_output = UdpOutput::of(udp_output::open(&udp_output).expect("a UDP output"), None);
    Fixture { engine, title, content, inboxes: [inbox(), inbox()], udp_output, _dir: dir }
}

fn inbox() -> UdpInput {
    let to = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
    let wanted = InputOptions { to, source: None, interface: None, buffer: 32 << 20 };
    UdpInput::open(&wanted).expect("a port")
}

impl Fixture {
    fn start(&self, rate: BitRate) -> Result<GeneratedSession, tactus_control::broker::Refusal> {
        let outputs = self.inboxes.iter().map(|inbox| {
            let to = inbox.address().expect("bound");
            let output = Output::datagrams(&self.udp_output, to, Nanos(0));
            Lane { output, needs: GeneratedRate { rate: BitRate(rate.0 / 2), datagrams: 500 } }
        });
        let source_spec = SourceSpec {
            title: Arc::clone(&self.title),
            reading: Reading {
                range: 0..LEN as u64,
                block_list: None,
                rate,
                burst: Bytes(200_000),
            },
            ready: Bytes(300_000),
            buffer_max: Bytes(600_000),
            session: None,
        };
        let cuts = Cuts { bytes: VecDeque::new(), generated: 0, has_ended: false };
        GeneratedSession::start(&self.engine.broker, source_spec, outputs.collect(), cuts)
    }

    async fn is_empty_again(&self, before: &[tactus_core::ledger::Level]) {
        let end = Instant::now() + PATIENCE;
        while self.engine.broker.levels() != before || !self.engine.broker.running().is_empty() {
            assert!(Instant::now() < end, "{:?}", self.engine.broker.levels());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_made_of_a_title_leaves_whole_in_order_and_on_time() {
    let _turn = TURN.lock().await;
    for sendfile in [Sendfile::Off, Sendfile::On] {
        let mut fixture = fixture(sendfile);
        let before = fixture.engine.broker.levels();
        let began = Instant::now();
        let generated = fixture.start(RATE).expect("an empty server has room");
        assert!(fixture.start(BitRate(1_000_000_000_000)).is_err());
        let ended = tokio::time::timeout(PATIENCE, generated.ended()).await.expect("it ends");
        assert_eq!((ended.why, ended.packets), (End::Complete, vec![1250, 1250]));
        // Nothing is early, so all of it takes its time.
        assert!(began.elapsed() >= Duration::from_nanos(RATE.time_for(Bytes(LEN as u64 - 1000)).0));
        assert!(generated.begin().is_some());
        let came = fixture.inboxes.each_mut().map(|inbox| {
            let mut came = VecDeque::new();
            while inbox.receive(|datagram| came.push_back(datagram.bytes.to_vec())).is_ok() {}
            assert_eq!(inbox.dropped().expect("it is counted"), 0);
            came
        });
        let [mut even, mut odd] = came;
        let mut all = vec![];
        while let Some(next) = odd.pop_front() {
            all.extend(next);
            all.extend(even.pop_front().unwrap_or_default());
        }
        assert!(all == fixture.content, "{} bytes came", all.len());
        drop(generated);
        fixture.is_empty_again(&before).await;
        assert_eq!(fixture.engine.counters.packets[0].refused.value(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_dropped_gives_everything_back() {
    let _turn = TURN.lock().await;
    let fixture = fixture(Sendfile::Off);
    let before = fixture.engine.broker.levels();
    for wait in [0, 1, 20, 400] {
        let generated = fixture.start(RATE).expect("room, as all of the one before came back");
        assert_eq!(generated.slots().len(), 2);
        let link = |levels: Vec<tactus_core::ledger::Level>| {
            levels.iter().find(|level| level.resource == Resource::Link).expect("listed").used
        };
        // Eight bits of each byte, and the headers of a thousand datagrams; and not the source.
        assert_eq!(link(fixture.engine.broker.levels()), RATE.0 + 1000 * 66 * 8);
        tokio::time::sleep(Duration::from_millis(wait)).await;
        drop(generated);
        fixture.is_empty_again(&before).await;
        let left_before = fixture.engine.counters.packets[0].datagrams.value();
        // One that is stopped says how far it has come.
        let generated = fixture.start(RATE).expect("room, as all of the one before came back");
        while generated.begin().is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::sleep(Duration::from_millis(wait)).await;
        let ended = generated.stop().await;
        assert_eq!(ended.why, End::Stopped);
        let left = fixture.engine.counters.packets[0].datagrams.value();
        assert_eq!(ended.packets.iter().sum::<u64>() + left_before, left);
        fixture.is_empty_again(&before).await;
    }
}
