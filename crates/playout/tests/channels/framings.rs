//! R10: channels with titles whose packets have arrival times in front (M2TS) or parity behind.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn r10_packets_of_192_and_204_bytes_repeat_as_one_clean_stream_of_plain_packets() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    let file = dir.path().join("a.ts");
    sample::write_ts(&file, SECOND.times(2)).expect("a title");
    let title = std::fs::read(&file).expect("a title");
    for (stride, lead, sendfile) in [(192, 4, Sendfile::Off), (204, 0, Sendfile::On)] {
        let unit = |(nth, packet): (usize, &[u8])| {
            let between = vec![nth as u8; stride - PACKET];
            [&between[..lead], packet, &between[lead..]].concat()
        };
        let framed: Vec<u8> = title.chunks(PACKET).enumerate().flat_map(unit).collect();
        std::fs::write(&file, framed).expect("a title");
        let (mut own, mut filled) =
            (inbox(Ipv4Addr::LOCALHOST.into()), inbox(Ipv4Addr::LOCALHOST.into()));
        let to = |inbox: &UdpInput| inbox.address().expect("bound");
        let channels = format!(
            "[[channel]]\nname = \"own\"\ntitle = \"/a.ts\"\nto = \"rtp://{}\"\n\
             [[channel]]\nname = \"filled\"\ntitle = \"/a.ts\"\nto = \"udp://{}\"\n\
             stuff = \"6 Mbit/s\"\nburst = \"4 ms\"\n",
            to(&own),
            to(&filled),
        );
        let fixture = fixture(dir.path(), sendfile, &channels);
        let channels = fixture.begin();
        for name in ["own", "filled"] {
            until(&channels, name, |status| status.state == State::Running).await;
        }
        // A turn and a part of the next one.
        let datagrams = title.len() / 1316 * 3 / 2;
        let received = tokio::task::spawn_blocking(move || {
            (take(&mut own, datagrams), take(&mut filled, datagrams * 6 / 4))
        });
        let (own, filled) = received.await.expect("all have come");
        let own = payload(&own);
        assert_same(&own, &title);
        let rate = sample::TS_RATE.0;
        assert!(error_of(&assert_whole(&own), rate) <= 14, "{stride}: PCR within 500 ns");
        let filled = filled.concat();
        assert!(error_of(&assert_whole(&filled), 6_000_000) <= 14, "{stride}: PCR within 500 ns");
        assert_same(&without_nulls(&filled), &without_nulls(&title));
        channels.close().await;
        while !fixture.engine.broker.running().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(fixture.engine.counters.packets[0].refused.value(), 0);
    }
}

fn without_nulls(packets: &[u8]) -> Vec<u8> {
    let own = packets.chunks(PACKET).filter(|packet| packet[1..3] != [0x1f, 0xff]);
    own.flatten().copied().collect()
}
