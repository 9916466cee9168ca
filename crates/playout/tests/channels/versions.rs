//! Channels with titles of different programs, and orders that are refused. An independent parser
//! (dvb-si) counts the table versions.

use std::collections::{BTreeMap, BTreeSet};

use dvb_si::demux::SiDemux;
use tactus_playout::channels::OrderError;

use super::*;

/// Adds the CRC of a section (ISO/IEC 13818-1, annex A).
fn sealed(mut section: Vec<u8>) -> Vec<u8> {
    let sum = section.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte) << 24, |sum, _| {
            sum << 1 ^ if sum >> 31 == 1 { 0x04c1_1db7 } else { 0 }
        })
    });
    section.extend(sum.to_be_bytes());
    section
}

/// Gives the program of `title` the number `number` and its PMT the PID `pid`; both tables get
/// version 25.
fn renamed(title: &[u8], number: u16, pid: u16) -> Vec<u8> {
    const OWN: u8 = 0xc1 | 25 << 1;
    let mut title = title.to_vec();
    let mut table = None;
    for packet in title.chunks_mut(PACKET) {
        let own = u16::from_be_bytes([packet[1], packet[2]]) & 0x1fff;
        let section = &packet[5..];
        let section = if own == 0 {
            table = Some(u16::from_be_bytes([section[10], section[11]]) & 0x1fff);
            let mut section = section[..8].to_vec();
            section[5] = OWN;
            section.extend(number.to_be_bytes());
            section.extend((0xe000 | pid).to_be_bytes());
            section
        } else if Some(own) == table {
            let len = usize::from(u16::from_be_bytes([section[1], section[2]]) & 0x0fff);
            let mut section = section[..3 + len - 4].to_vec();
            section[3..5].copy_from_slice(&number.to_be_bytes());
            section[5] = OWN;
            let [high, low] = pid.to_be_bytes();
            (packet[1], packet[2]) = (packet[1] & 0xe0 | high, low);
            section
        } else {
            continue;
        };
        let section = sealed(section);
        packet[5..].fill(0xff);
        packet[5..][..section.len()].copy_from_slice(&section);
    }
    title
}

/// The tables of each PID as an independent parser sees them.
pub(crate) struct Watch {
    demux: SiDemux,
    last: BTreeMap<u16, (u8, Vec<u8>)>,
    /// Number of changes per PID.
    pub(crate) changes: BTreeMap<u16, u32>,
    /// Program numbers of the tables.
    pub(crate) numbers: BTreeSet<u16>,
}

impl Watch {
    pub(crate) fn new() -> Self {
        let demux = SiDemux::builder().emit_repeats(true).build();
        let (last, changes, numbers) = Default::default();
        Self { demux, last, changes, numbers }
    }

    /// Parses packets. A table that differs from the one before it on its PID must have the next
    /// version, an equal one the same version.
    pub(crate) fn take(&mut self, packets: &[u8]) {
        let Self { demux, last, changes, numbers } = self;
        for packet in packets.chunks(PACKET) {
            for event in demux.feed(packet).filter(|event| event.table_id() <= 2) {
                assert!(event.crc_ok());
                let (pid, version) = (event.pid().value(), event.version().expect("it has one"));
                let mut says = event.bytes()[..event.bytes().len() - 4].to_vec();
                assert_eq!(says[5] & 1, 1, "the table is in force");
                says[5] = 0;
                if event.table_id() == 2 {
                    numbers.insert(u16::from_be_bytes([says[3], says[4]]));
                }
                if let Some((before, said)) = last.get(&pid) {
                    let changed = u8::from(*said != says);
                    assert_eq!(version, (before + changed) % 32, "PID {pid}");
                    *changes.entry(pid).or_default() += u32::from(changed);
                }
                last.insert(pid, (version, says));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p02_over_twenty_titles_of_other_programs_each_change_of_tables_counts() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    let title = marked(dir.path(), "a.ts", 1, 1);
    let mut names = vec![];
    for nth in 0..22u16 {
        let name = format!("t{nth}.ts");
        let own = renamed(&title, 100 + nth, 0x1000 + nth % 3);
        let half = own.len() / 2 / PACKET * PACKET;
        // One title changes in its middle, without a new version.
        let own = match nth {
            7 => [&own[..half], &renamed(&title, 300, 0x1001)[half..]].concat(),
            _ => own,
        };
        std::fs::write(dir.path().join(&name), own).expect("a title");
        names.push(format!("\"/{name}\""));
    }
    let mut heard = inbox(Ipv4Addr::LOCALHOST.into());
    let to = heard.address().expect("bound");
    let fixture = fixture(dir.path(), Sendfile::Off, "");
    let channels = fixture.begin();
    // A second of a title takes an eighth of a second.
    let text = format!(
        "name = \"x\"\nto = \"udp://{to}\"\nrate = \"30 Mbit/s\"\nplaylist = [{}]\n",
        names.join(", ")
    );
    assert_eq!(channels.set(Channel::parse(&text).expect("a channel")).await, Ok(true));
    let watch = tokio::task::spawn_blocking(move || {
        let mut watch = Watch::new();
        let end = Instant::now() + PATIENCE;
        while watch.numbers.len() < 23 {
            assert!(Instant::now() < end, "{:?}", watch.numbers);
            watch.take(&take(&mut heard, 50).concat());
        }
        watch
    });
    let watch = watch.await.expect("all have come");
    // At twenty-two joins and within one title; the version wraps, because it begins at 25.
    assert!(watch.changes[&0] >= 22, "{:?}", watch.changes);
    assert!(watch.changes.values().sum::<u32>() >= 40, "{:?}", watch.changes);
    channels.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn n12_titles_that_cannot_be_sent_are_refused_before_any_change() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    marked(dir.path(), "a.ts", 6, 1);
    marked(dir.path(), "b.ts", 6, 2);
    sample::write_mp4(&dir.path().join("film.mp4"), SECOND.times(2)).expect("a movie");
    std::fs::create_dir(dir.path().join("more")).expect("a directory");
    std::fs::write(dir.path().join("list.m3u8"), "missing.ts\nb.ts\n").expect("a list");
    let fixture = fixture(dir.path(), Sendfile::Off, "");
    let channels = fixture.begin();
    let channel = |keys: &str| {
        let text = format!("name = \"x\"\nto = \"udp://127.0.0.1:9\"\n{keys}\n");
        Channel::parse(&text).expect("a channel")
    };
    let before = channel("playlist = [\"/missing.ts\", \"/a.ts\"]");
    assert_eq!(channels.set(before.clone()).await, Ok(true));
    until(&channels, "x", |status| status.state == State::Running).await;
    for (keys, title) in [
        ("playlist = [\"/missing.ts\", \"/a.ts\"]", "/a.ts"),
        ("playlist = [\"/missing.ts\"]\nfill = \"/b.ts\"", "/b.ts"),
        ("title = \"/missing.ts\"\nat = [{ time = \"20:00\", title = \"/b.ts\" }]", "/b.ts"),
        ("playlist = \"/list.m3u8\"", "/b.ts"),
        ("title = \"/film.mp4\"\nfill = \"/a.ts\"", "/a.ts"),
    ] {
        let wanted = channel(&format!("{keys}\nstuff = \"100 kbit/s\""));
        let refused = channels.set(wanted).await;
        let Err(OrderError::Title(why)) = refused else { panic!("{keys}: {refused:?}") };
        assert!(why.starts_with(&format!("{title}: ")) && why.contains("fastest second"), "{why}");
        assert!(why.contains("100 kbit/s"), "{why}");
        assert_eq!(channels.configured("x").as_ref(), Some(&before));
    }
    for (title, cause) in [
        ("/missing.ts", "no title has this name"),
        ("/film.mp4", "not an MPEG transport stream"),
        ("/more", "directory"),
        ("/a b.ts", "not a path"),
        ("/../a.ts", "not a path"),
    ] {
        let refused = channels.request_title("x", title.into()).await;
        let Err(OrderError::Title(why)) = refused else { panic!("{title}: {refused:?}") };
        assert!(why.starts_with(&format!("{title}: ")) && why.contains(cause), "{why}");
    }
    let status = channels.one("x").expect("it is there");
    assert_eq!((status.state, status.title.as_str()), (State::Running, "/a.ts"));
    assert_eq!(channels.request_title("x", "/b.ts".into()).await, Ok(()));
    let enough = channel("playlist = [\"/missing.ts\", \"/a.ts\"]\nstuff = \"9 Mbit/s\"");
    assert_eq!(channels.set(enough).await, Ok(false));
    channels.close().await;
}
