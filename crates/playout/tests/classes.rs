//! Classes of the link: from the configuration to shares of datagrams, in a network namespace of
//! its own.

#[path = "station/until.rs"]
mod until;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tactus_control::broker::ClassUse;
use tactus_control::class::Class;
use tactus_control::engine;
use tactus_control::settings::{EngineSettings, Volume};
use tactus_core::units::{BitRate, Bytes, MIB, SECOND};
use tactus_media::{probe, sample};
use tactus_notation::Auto;
use tactus_playout::channel::Channel;
use tactus_playout::channels::{ChannelSettings, Channels, State};
use tactus_storage::catalogue::{Catalogue, CatalogueRules};
use tactus_sys::udp_input::{InputOptions, UdpInput};
use tactus_testkit::{DISK_MODEL, namespace};

use until::until;

/// Longer than anything takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A port that keeps what comes while nobody looks.
fn inbox() -> UdpInput {
    let to = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let wanted = InputOptions { to, source: None, interface: None, buffer: 64 << 20 };
    UdpInput::open(&wanted).expect("a port")
}

/// A title of which each packet ends in `mark`.
fn marked(dir: &Path, mark: u8) {
    let file = dir.join(format!("{mark}.ts"));
    sample::write_ts(&file, SECOND.times(3)).expect("a title");
    let mut title = std::fs::read(&file).expect("a title");
    title.chunks_mut(188).for_each(|packet| packet[187] = mark);
    std::fs::write(&file, &title).expect("a title");
}

/// Takes datagrams of all channels until there are `count`; the marks of those, in order.
fn take(inbox: &mut UdpInput, count: usize) -> Vec<u8> {
    let mut marks = vec![];
    let end = Instant::now() + PATIENCE;
    while marks.len() < count {
        assert!(Instant::now() < end, "only {} have come", marks.len());
        if inbox.receive(|datagram| marks.push(datagram.bytes[187])).is_err() {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    marks
}

const CLASSES: [&str; 2] = [
    r#"
name = "house"
guaranteed = "16 Mbit/s"
ceiling = "20 Mbit/s"
oversubscribe = true
"#,
    r#"
name = "gold"
guaranteed = "45 Mbit/s"
ceiling = "50 Mbit/s"
burst = "4 ms"
"#,
];

#[tokio::test(flavor = "multi_thread")]
async fn channels_share_what_their_class_may_have_and_are_refused_by_its_name() {
    if !namespace::is_inside("channels_share_what_their_class_may_have_and_are_refused_by_its_name")
    {
        return;
    }
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
    assert!(up.expect("this test needs ip (iproute2)").success());
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    std::fs::create_dir(dir.path().join(".tactus")).expect("a directory of the server's own");
    std::fs::write(dir.path().join(".tactus/disk-model.toml"), DISK_MODEL).expect("a model");
    let mut inbox = inbox();
    let port = inbox.address().expect("bound").port();
    let rates = [8, 8, 8, 4, 4];
    let channel = |nth: u8, rate: u64, class: &str| {
        format!(
            "name = \"c{nth}\"\ntitle = \"/{nth}.ts\"\nrate = \"{rate} Mbit/s\"\n\
             to = \"udp://127.0.0.{nth}:{port}\"\n{class}"
        )
    };
    let of = |nth: u8, rate: u64, class: &str| {
        Channel::parse(&channel(nth, rate, class)).expect("a channel")
    };
    let mut settings = ChannelSettings::default();
    for class in CLASSES {
        let class = Class::parse(class, &settings.classes).expect("a class");
        settings.classes.0.push(class);
    }
    for (nth, rate) in (1..).zip(rates) {
        marked(dir.path(), nth);
        settings.channels.push(of(nth, rate, "class = \"house\"\n"));
    }
    let mut engine = EngineSettings {
        volumes: vec![Volume::new(dir.path().into())],
        classes: settings.classes.clone(),
        sends_datagrams: true,
        ..EngineSettings::default()
    };
    engine.link.rate = Auto::Set(BitRate(100_000_000));
    engine.memory.arena = Auto::Set(Bytes(64 * MIB));
    let rules = CatalogueRules { probe: probe::probe, ..CatalogueRules::default() };
    let catalogue = Arc::new(Catalogue::new(dir.path(), rules).expect("a volume"));
    let engine = engine::start(&engine).expect("the engine starts");
    let counters = &engine.counters;
    let channels = Channels::begin(&settings, &catalogue, &engine.broker);
    for nth in 1..=5 {
        until(&channels, &format!("c{nth}"), |status| status.sent_bytes > 0).await;
    }
    // A class has its guarantee from the start, and an over-subscribed one its ceiling: 90 - 20 -
    // 45 are left to those without a class.
    marked(dir.path(), 6);
    marked(dir.path(), 7);
    channels.set(of(6, 25, "")).await.expect("it is taken");
    let other = until(&channels, "c6", |status| status.reason.is_some()).await;
    let reason = other.reason.expect("it waits");
    assert!(other.state == State::Waiting && reason.contains("of the link"), "{reason}");
    channels.remove("c6").await.expect("it was there");
    channels.set(of(7, 60, "class = \"gold\"\n")).await.expect("it is taken");
    let large = until(&channels, "c7", |status| status.reason.is_some()).await;
    let reason = large.reason.expect("it waits");
    assert!(reason.contains("of the class \"gold\" would be promised, of 50 Mbit/s"), "{reason}");
    channels.remove("c7").await.expect("it was there");
    let unknown = channels.set(of(6, 1, "class = \"silver\"\n")).await.expect_err("unknown");
    assert!(unknown.to_string().contains("no class \"silver\", but house, gold"), "{unknown}");
    let long = channels.set(of(6, 1, "class = \"gold\"\nburst = \"5 ms\"\n")).await;
    assert!(long.expect_err("too long").to_string().contains("allows bursts of at most 4 ms"));

    // Shares by the order in which datagrams have left: over each 1,800 of them, which is a second
    // of the class, within a hundredth, and a datagram at each end. What came while they joined
    // does not count, nor a second in which a disk of a busy machine had nothing for one of them,
    // its network took nothing, or it stood still.
    while inbox.receive(|_| ()).is_ok() {}
    let packets = Arc::clone(&counters.packets[0]);
    let (windows, inbox) = tokio::task::spawn_blocking(move || {
        take(&mut inbox, 900);
        let mut windows = vec![];
        let end = Instant::now() + PATIENCE;
        let troubles = || [&packets.underruns, &packets.stalls, &packets.full].map(|it| it.value());
        let mut before = troubles();
        while windows.len() < 3 {
            assert!(Instant::now() < end, "three seconds without trouble: {before:?}");
            let window = take(&mut inbox, 1800);
            let after = troubles();
            if before == after {
                windows.push(window);
            }
            before = after;
        }
        (windows, inbox)
    })
    .await
    .expect("they have come");
    assert_eq!(inbox.dropped().expect("it is counted"), 0);
    let asked: u64 = rates.iter().sum();
    for window in windows {
        for (nth, rate) in (1..).zip(rates) {
            let sent = window.iter().filter(|&&mark| mark == nth).count() as u64;
            let off = (sent * asked).abs_diff(1800 * rate);
            assert!(off * 100 <= 1800 * rate + 200 * asked, "{nth}: {sent} of 1800");
        }
    }
    // Of its own class one has what it asks for, and is gathered as long as the class allows.
    let before = (counters.packets[0].datagrams.value(), counters.packets[0].messages.value());
    // Only what turns that came late found due, on a busy machine, is gathered where no burst is
    // allowed.
    assert!((before.0 - before.1) * 10 < before.0, "{before:?}");
    channels.set(of(6, 40, "class = \"gold\"\n")).await.expect("it is taken");
    until(&channels, "c6", |status| status.sent_bytes > 4_000_000).await;
    let gold = (counters.packets[0].datagrams.value(), counters.packets[0].messages.value());
    let (datagrams, messages) = (gold.0 - before.0, gold.1 - before.1);
    assert!(messages * 3 < datagrams * 2, "{datagrams} datagrams in {messages} messages");
    let end = Instant::now() + PATIENCE;
    while counters.classes[1].second_bytes.value() == 0 {
        assert!(Instant::now() < end, "a second passes");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let streams: Vec<_> = engine.broker.classes().iter().map(|class| class.streams).collect();
    assert_eq!(streams, [5, 1]);
    assert_eq!(counters.classes[1].borrowed.value(), 0, "it is guaranteed");
    assert!(counters.classes[0].borrowed.value() > 0, "a fifth of its ceiling is borrowed");
    channels.close().await;
    // The engine returns what a stream was promised after its last datagram.
    let nothing = ClassUse { promised: BitRate(0), streams: 0 };
    let end = Instant::now() + PATIENCE;
    while engine.broker.classes().iter().any(|&class| class != nothing) {
        assert!(Instant::now() < end, "{:?} are promised", engine.broker.classes());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
