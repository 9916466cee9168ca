//! Worlds of packets keep their promises.

use tactus_sim::packets;

#[test]
fn worlds_of_packets_keep_every_promise() {
    let mut streams_max = 0;
    // The last two are of nearly two thousand streams.
    for seed in (1..=12).chain([36, 67]) {
        let tally =
            packets::run(seed).unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
        streams_max = tally.streams.max(streams_max);
    }
    assert!(streams_max > 1_000, "{streams_max}");
}
