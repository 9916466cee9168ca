//! Channels: from the configuration and a disk to datagrams on the loopback.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tactus::catalogue::{Catalogue, CatalogueRules};
use tactus::channels::{Channels, State, Status};
use tactus::config::{Auto, Config, Sendfile};
use tactus::engine::{self, Engine};
use tactus::media::{probe, sample};
use tactus_core::rtp;
use tactus_core::units::{Bytes, MIB, SECOND};
use tactus_sys::datagrams::{Datagrams, Wanted};

/// Longer than anything takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn inbox(ip: IpAddr) -> Datagrams {
    // More than a whole title, so that a receiver without time loses nothing.
    let wanted =
        Wanted { to: SocketAddr::new(ip, 0), source: None, interface: None, buffer: 32 << 20 };
    Datagrams::open(&wanted).expect("a port")
}

/// Waits for `count` datagrams.
fn take(inbox: &mut Datagrams, count: usize) -> Vec<Vec<u8>> {
    let mut came = vec![];
    let end = Instant::now() + PATIENCE;
    while came.len() < count && Instant::now() < end {
        if inbox.receive(|datagram| came.push(datagram.bytes.to_vec())).is_err() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    assert_eq!(inbox.dropped().expect("it is counted"), 0);
    came
}

struct Stage {
    engine: Engine,
    catalogue: Arc<Catalogue>,
    config: Config,
}

fn stage(dir: &Path, way: Sendfile, channels: &str) -> Stage {
    let text = format!("[[volume]]\npath = \"{}\"\n{channels}", dir.display());
    let mut config = Config::parse(Path::new("test.toml"), &text).expect("a configuration");
    config.volumes[0].sendfile = way;
    config.memory.arena = Auto::Set(Bytes(32 * MIB));
    let rules = CatalogueRules { probe: probe::probe, ..CatalogueRules::default() };
    let catalogue = Arc::new(Catalogue::new(dir, rules).expect("a volume"));
    let engine = engine::start(&config).expect("the engine starts");
    assert_eq!(engine.volumes[0].sendfile(), way == Sendfile::On, "{:?}", engine.degraded);
    Stage { engine, catalogue, config }
}

async fn until(channels: &Channels, name: &str, is_so: impl Fn(&Status) -> bool) -> Status {
    let end = Instant::now() + PATIENCE;
    loop {
        let status = channels.one(name).expect("it is configured");
        if is_so(&status) {
            return status;
        }
        assert!(Instant::now() < end, "{status:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// What RTP packets carry, which must follow each other.
fn payload(packets: &[Vec<u8>]) -> Vec<u8> {
    let read = |bytes| rtp::Packet::read(bytes).expect("RTP");
    for pair in packets.windows(2) {
        let (one, next) = (read(&pair[0]), read(&pair[1]));
        assert_eq!(next.sequence, one.sequence.wrapping_add(1));
        assert_eq!((next.source, next.payload_type), (one.source, rtp::MP2T));
        assert!(next.timestamp.wrapping_sub(one.timestamp) < 90_000, "less than a second later");
    }
    packets.iter().flat_map(|bytes| read(bytes).payload).copied().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_title_leaves_by_its_own_clock_and_begins_again_after_its_end() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    let file = dir.path().join("loop.ts");
    let rate = sample::write_ts(&file, SECOND.times(6)).expect("a title").rate();
    let title = std::fs::read(&file).expect("a title");
    // What stands in front of the first packet, and a packet that was cut, are not sent.
    std::fs::write(&file, [b"front", &title[..], &title[..100]].concat()).expect("a title");
    for way in [Sendfile::Off, Sendfile::On] {
        let mut own = inbox(Ipv4Addr::LOCALHOST.into());
        let mut fast = inbox(Ipv4Addr::LOCALHOST.into());
        let mut once = inbox("::1".parse().expect("an address"));
        let to = |inbox: &Datagrams| inbox.address().expect("bound");
        let channels = format!(
            "[[channel]]\nname = \"own\"\ntitle = \"/loop.ts\"\nto = \"rtp://{}\"\n\
             [[channel]]\nname = \"fast\"\ntitle = \"/loop.ts\"\nto = \"udp://{}\"\nrate = \"10 Mbit/s\"\nburst = \"4 ms\"\n\
             [[channel]]\nname = \"once\"\ntitle = \"/loop.ts\"\nto = \"rtp://{}\"\nrate = \"6 Mbit/s\"\nrepeat = false\n\
             [[channel]]\nname = \"none\"\ntitle = \"/none.ts\"\nto = \"udp://127.0.0.1:9\"\n",
            to(&own),
            to(&fast),
            to(&once),
        );
        let stage = stage(dir.path(), way, &channels);
        let (channels, mut running) =
            Channels::begin(&stage.config, &stage.catalogue, &stage.engine.broker);
        let waits = until(&channels, "none", |status| status.reason.is_some()).await;
        assert_eq!(waits.state, State::Waiting);
        for name in ["fast", "once"] {
            until(&channels, name, |status| status.starts > 0).await;
        }
        let status = until(&channels, "own", |status| status.state == State::Running).await;
        assert_eq!(status.set_rate_bits_per_second, Some(rate.0));

        let all = title.len().div_ceil(1316);
        let received = tokio::task::spawn_blocking(move || {
            let fast = take(&mut fast, 2 * all + 10);
            (take(&mut own, 700), fast, take(&mut once, all))
        });
        let (own, fast, once) = received.await.expect("all have come");
        let own = payload(&own);
        assert_eq!(own, title[..own.len()]);
        assert!(payload(&once) == title, "the title once");
        let fast = fast.concat();
        assert!(fast.len() > 2 * title.len());
        assert!(fast.chunks(title.len()).all(|turn| turn == &title[..turn.len()]));
        until(&channels, "once", |status| status.state == State::Ended).await;
        running.shutdown().await;
        while !stage.engine.broker.running().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(stage.engine.counters.packets.refused.value(), 0);
    }
}
