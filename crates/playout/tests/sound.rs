//! Channels with sound: from WAVE files and a disk to RTP on the loopback.

#[path = "station/fixture.rs"]
mod fixture;
#[path = "station/until.rs"]
mod until;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use tactus_control::settings::Sendfile;
use tactus_core::rtp;
use tactus_core::sdp::Description;
use tactus_playout::channel::Channel;
use tactus_playout::channels::{Channels, OrderError, State};
use tactus_sys::udp_input::{InputOptions, UdpInput};

use fixture::{Fixture, fixture};
use until::until;

/// Longer than anything takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Samples of a channel in a millisecond.
const MILLI: usize = 48;

fn inbox() -> UdpInput {
    let to = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
    let wanted = InputOptions { to, source: None, interface: None, buffer: 32 << 20 };
    UdpInput::open(&wanted).expect("a port")
}

/// A received packet.
struct Packet {
    sequence: u16,
    timestamp: u32,
    source: u32,
    payload: Vec<u8>,
}

/// Some packets that have come.
fn take_now(inbox: &mut UdpInput) -> Vec<Packet> {
    let mut came = vec![];
    let each = |datagram: tactus_sys::udp_input::Datagram<'_>| {
        let packet = rtp::Packet::read(datagram.bytes).expect("RTP");
        assert_eq!((packet.payload_type, packet.marker), (96, false));
        let rtp::Packet { sequence, timestamp, source, payload, .. } = packet;
        came.push(Packet { sequence, timestamp, source, payload: payload.to_vec() });
    };
    // Nothing has come if it fails.
    inbox.receive(each).ok();
    assert_eq!(inbox.dropped().expect("it is counted"), 0);
    came
}

/// Waits for `count` packets.
fn take(inbox: &mut UdpInput, count: usize) -> Vec<Packet> {
    let mut came = vec![];
    let end = Instant::now() + PATIENCE;
    while came.len() < count && Instant::now() < end {
        let before = came.len();
        came.extend(take_now(inbox));
        if came.len() == before {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    came.truncate(count);
    came
}

/// All that has come.
fn drain(inbox: &mut UdpInput) -> Vec<Packet> {
    let mut came = vec![];
    loop {
        let some = take_now(inbox);
        if some.is_empty() {
            return came;
        }
        came.extend(some);
    }
}

/// Packets of one session follow each other by `samples`, or by whole packets more: some are left
/// out if a disk was late, and all come later if this machine stood still.
fn assert_one_session(packets: &[Packet], samples: u32) {
    for pair in packets.windows(2) {
        let numbers = u32::from(pair[1].sequence.wrapping_sub(pair[0].sequence));
        let step = pair[1].timestamp.wrapping_sub(pair[0].timestamp);
        assert!(numbers > 0 && step.is_multiple_of(samples), "{numbers}: {step}");
        assert!(step / samples >= numbers, "{numbers}: {step}");
        assert_eq!(pair[1].source, pair[0].source);
    }
}

/// Each packet has the next samples of `all`, or those of a later packet. Returns how many are left
/// out.
fn left_out(packets: &[Packet], all: &[u8]) -> usize {
    let mut rest = all.chunks(packets[0].payload.len());
    let mut left_out = 0;
    for packet in packets {
        left_out += rest.position(|own| own == packet.payload).expect("samples of the title");
    }
    left_out
}

impl Fixture {
    /// Ends the channels, so that another engine may begin.
    async fn end(self, channels: &Channels) {
        channels.close().await;
        while !self.engine.broker.running().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(self.engine.counters.packets[0].refused.value(), 0);
    }
}

/// A file of samples that differ everywhere, and these samples.
fn wave(path: &Path, rate: u32, channels: u16, width: u16, frames: usize) -> Vec<u8> {
    let len = frames * usize::from(channels * width);
    let seed = path.as_os_str().len() as u64;
    let data = tactus_testkit::content(seed, len);
    let frame = channels * width;
    let head = [
        &b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0"[..],
        &channels.to_le_bytes(),
        &rate.to_le_bytes(),
        &(rate * u32::from(frame)).to_le_bytes(),
        &frame.to_le_bytes(),
        &(width * 8).to_le_bytes(),
        b"data",
        &(len as u32).to_le_bytes(),
    ];
    std::fs::write(path, [&head.concat()[..], &data].concat()).expect("a title");
    data
}

/// Samples as they leave, with silence up to the end of a packet.
fn sent(data: &[u8], width: usize, wire: usize, packet: usize) -> Vec<u8> {
    let sample = |bytes: &[u8]| {
        let mut bytes: Vec<u8> = bytes.iter().rev().copied().collect();
        bytes.resize(wire, 0);
        bytes
    };
    let mut bytes: Vec<u8> = data.chunks(width).flat_map(sample).collect();
    bytes.resize(bytes.len().next_multiple_of(packet), 0);
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn sound_leaves_with_every_sample_and_each_title_in_whole_packets() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    let file = |name: &str| dir.path().join(name);
    let first = wave(&file("first.wav"), 48_000, 2, 3, MILLI * 700 + 17);
    let other = wave(&file("other.wav"), 48_000, 2, 2, MILLI * 300);
    let eight = wave(&file("eight.wav"), 48_000, 8, 2, MILLI * 500);
    for sendfile in [Sendfile::Off, Sendfile::On] {
        let (mut list, mut wide) = (inbox(), inbox());
        let channels = format!(
            "[[channel]]\nname = \"list\"\nplaylist = [\"/first.wav\", \"/other.wav\"]\n\
             to = \"rtp://{}\"\nformat = \"aes67\"\nrepeat = false\n\
             [[channel]]\nname = \"wide\"\ntitle = \"/eight.wav\"\nto = \"rtp://{}\"\n\
             format = \"aes67\"\nencoding = \"L16\"\nchannels = 8\npacket_time = \"125 us\"\n",
            list.address().expect("bound"),
            wide.address().expect("bound"),
        );
        let fixture = fixture(dir.path(), sendfile, &channels);
        let channels = fixture.begin();
        let ended = until(&channels, "list", |status| status.state == State::Ended).await;
        assert_eq!((ended.starts, ended.skips), (2, 0), "{ended:?}");
        // A turn and a half, without a seam.
        let received = tokio::task::spawn_blocking(move || {
            (drain(&mut list), take(&mut wide, 500 * 8 * 3 / 2))
        });
        let (list, wide) = received.await.expect("all have come");
        let both = [sent(&first, 3, 3, 288), sent(&other, 2, 3, 288)].concat();
        let turns = sent(&eight, 2, 2, 6 * 16).repeat(3);
        assert_one_session(&list, 48);
        assert_one_session(&wide, 6);
        let gone = left_out(&list, &both);
        assert_eq!(list.len() + gone, 701 + 300, "{sendfile:?}");
        let gone = gone + left_out(&wide, &turns);
        let underruns = fixture.engine.counters.packets[0].underruns.value();
        assert!(gone == 0 || underruns > 0, "{sendfile:?}: {gone} left out");
        fixture.end(&channels).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn channels_of_one_sync_begin_with_the_same_sample_of_one_media_clock() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    wave(&dir.path().join("two.wav"), 48_000, 2, 3, MILLI * 200);
    wave(&dir.path().join("eight.wav"), 48_000, 8, 3, MILLI * 200);
    let mut inboxes = [(); 3].map(|()| inbox());
    let [one, other, short] = [0, 1, 2].map(|nth| inboxes[nth].address().expect("bound"));
    let channels = format!(
        "[[channel]]\nname = \"one\"\ntitle = \"/two.wav\"\nto = \"rtp://{one}\"\n\
         format = \"aes67\"\nsync = \"hall\"\n\
         [[channel]]\nname = \"other\"\ntitle = \"/eight.wav\"\nto = \"rtp://{other}\"\n\
         format = \"aes67\"\nchannels = 8\nsync = \"hall\"\n\
         [[channel]]\nname = \"short\"\ntitle = \"/two.wav\"\nto = \"rtp://{short}\"\n\
         format = \"aes67\"\npacket_time = \"333 us\"\nsync = \"hall\"\n",
    );
    let fixture = fixture(dir.path(), Sendfile::Off, &channels);
    let channels = fixture.begin();
    let received =
        tokio::task::spawn_blocking(move || inboxes.each_mut().map(|inbox| take(inbox, 400)));
    let [one, other, short] = received.await.expect("all have come");
    let begin = one[0].timestamp;
    assert_eq!([other[0].timestamp, short[0].timestamp], [begin, begin]);
    assert_one_session(&one, 48);
    assert_one_session(&other, 48);
    assert_one_session(&short, 16);
    let described = channels.description("other").expect("it is sent");
    let described = Description::read(&described).expect("a description");
    let media = &described.media[0];
    assert_eq!(media.encoding(), Some("L24/48000/8"));
    assert_eq!(media.attribute("ptime"), Some("1"));
    assert_eq!(media.attribute("mediaclk"), Some("direct=0"));
    assert_eq!(channels.m3u(), "#EXTM3U\n", "an address is not enough for a receiver");
    fixture.end(&channels).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn titles_that_are_no_sound_of_the_channel_are_told_with_the_reason() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    let file = |name: &str| dir.path().join(name);
    wave(&file("good.wav"), 48_000, 2, 2, MILLI * 100);
    wave(&file("slow.wav"), 44_100, 2, 2, MILLI * 100);
    wave(&file("byte.wav"), 48_000, 2, 1, MILLI * 100);
    wave(&file("three.wav"), 48_000, 3, 2, MILLI * 100);
    wave(&file("nine.wav"), 48_000, 9, 2, MILLI * 100);
    wave(&file("cut.wav"), 48_000, 2, 2, MILLI * 100);
    let whole = std::fs::read(file("cut.wav")).expect("a title");
    std::fs::write(file("cut.wav"), &whole[..whole.len() - 100]).expect("a title");
    std::fs::write(file("text.wav"), "no sound at all").expect("a title");
    let mut heard = inbox();
    let text = |name: &str, title: &str, to: &str| {
        format!(
            "name = \"{name}\"\nplaylist = [\"{title}\", \"/good.wav\"]\nto = \"rtp://{to}\"\n\
             format = \"aes67\"\n"
        )
    };
    let to = heard.address().expect("bound").to_string();
    let fixture = fixture(dir.path(), Sendfile::Off, &text("a", "/cut.wav", &to));
    let channels = fixture.begin();
    let status = until(&channels, "a", |status| status.skipped.is_some()).await;
    let skipped = status.skipped.expect("it cannot be sent");
    assert!(skipped.contains("cut.wav: the file is cut off: its header states 19200"), "{skipped}");
    let heard = tokio::task::spawn_blocking(move || take(&mut heard, 10)).await.expect("it came");
    assert_eq!(heard.len(), 10, "the next one is sent");
    for (title, said) in [
        ("/slow.wav", "44100 Hz instead of 48000 Hz"),
        ("/byte.wav", "8 bits instead of 16 or 24"),
        ("/three.wav", "set `channels = 3`"),
        ("/nine.wav", "9 channels of sound, and a stream holds 8"),
        ("/cut.wav", "is cut off"),
        ("/text.wav", "not a WAVE file"),
    ] {
        let other = Channel::parse(&text("b", title, "127.0.0.1:9")).expect("a channel");
        match channels.set(other).await {
            Err(OrderError::Title(why)) => assert!(why.contains(said), "{title}: {why}"),
            other => panic!("{title}: {other:?}"),
        }
        match channels.request_title("a", title.into()).await {
            Err(OrderError::Title(why)) => assert!(why.contains(said), "{title}: {why}"),
            other => panic!("{title}: {other:?}"),
        }
    }
    fixture.end(&channels).await;
}
