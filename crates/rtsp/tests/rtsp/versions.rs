//! A title whose tables change: an independent parser (dvb-si) sees each change of a session with a
//! new version, for any seek and scale.

use super::*;
use dvb_si::demux::SiDemux;
use tactus_core::ts::PACKET;

/// Adds one to the program number in the second half of `title`, without new versions.
fn changed(title: &[u8]) -> Vec<u8> {
    let mut title = title.to_vec();
    let half = title.len() / 2 / PACKET;
    let mut table = None;
    for packet in title.chunks_mut(PACKET).skip(half) {
        let own = u16::from_be_bytes([packet[1], packet[2]]) & 0x1fff;
        if own != 0 && Some(own) != table {
            continue;
        }
        let place = if own == 0 { 5 + 8 } else { 5 + 3 };
        if own == 0 {
            table = Some(u16::from_be_bytes([packet[15], packet[16]]) & 0x1fff);
        }
        packet[place + 1] += 1;
        let len = 3 + usize::from(u16::from_be_bytes([packet[6], packet[7]]) & 0x0fff) - 4;
        let sum = packet[5..5 + len].iter().fold(u32::MAX, |sum, byte| {
            (0..8).fold(sum ^ u32::from(*byte) << 24, |sum, _| {
                sum << 1 ^ if sum >> 31 == 1 { 0x04c1_1db7 } else { 0 }
            })
        });
        packet[5 + len..][..4].copy_from_slice(&sum.to_be_bytes());
    }
    title
}

#[test]
fn p02_a_session_that_jumps_between_tables_counts_each_change() {
    let mut fixture = Fixture::new(SECOND.times(12));
    fixture.title = changed(&fixture.title);
    std::fs::write(fixture._dir.path().join("titles/b.ts"), &fixture.title).expect("a title");
    let mut client = Client::connect(fixture.address, fixture.url().replace("a.ts", "b.ts"));
    let mut receiver = Receiver::new();
    let session = client.set_up(receiver.port).session();
    let mut demux = SiDemux::builder().emit_repeats(true).build();
    let mut last: std::collections::BTreeMap<u8, (u8, Vec<u8>)> = Default::default();
    let (mut changes, mut packets) = ([0; 3], vec![]);
    let mut expected = 0;
    // Each step moves to the other half, to tables with fewer streams, or back.
    let steps = [
        ("npt=1-", ""),
        ("npt=8-", ""),
        ("npt=2-", ""),
        ("npt=9-", ""),
        ("npt=1-", "4"),
        ("npt=1-", ""),
    ];
    for (range, scale) in steps {
        let scale = if scale.is_empty() { String::new() } else { format!("Scale: {scale}\r\n") };
        let fields = format!("Session: {session}\r\nRange: {range}\r\n{scale}");
        let url = client.url.clone();
        let played = client.ask("PLAY", &url, &fields);
        assert_eq!(played.status, 200, "{played:?}");
        // Until the tables of this position have arrived.
        expected += 1;
        let end = Instant::now() + PATIENCE;
        while last.len() < 2 || changes[2] + 1 < expected {
            assert!(Instant::now() < end, "{range}: {changes:?}");
            packets.extend(receiver.take(10));
            let bytes = payload(&std::mem::take(&mut packets));
            for packet in bytes.chunks(PACKET) {
                for event in demux.feed(packet).filter(|event| event.table_id() <= 2) {
                    let (table, version) = (event.table_id(), event.version().expect("it has one"));
                    let mut says = event.bytes()[..event.bytes().len() - 4].to_vec();
                    says[5] = 0;
                    if let Some((before, said)) = last.get(&table) {
                        let changed = u8::from(*said != says);
                        assert_eq!(version, (before + changed) % 32, "table {table} at {range}");
                        changes[usize::from(table)] += u32::from(changed);
                    }
                    last.insert(table, (version, says));
                }
            }
        }
    }
    // The PAT of trick play is that of its position.
    assert_eq!((changes[2], changes[0]), (5, 4));
    assert_eq!(client.order("TEARDOWN", &session).status, 200);
}
