//! The needs of a server, by the disks that it serves.

use super::*;
use tactus_core::units::MIB;

const GIB: u64 = 1024 * MIB;

/// A disk of 7200 rpm, and a flash disk.
const SPINNING: [&str; 5] = ["5.65 ms", "21.7 ms", "6.67 ms", "6.67 ms", "2"];
const FLASH: [&str; 5] = ["100 us", "0 us", "400 us", "500 us", "16"];

/// Needs with a disk of this model and this much free memory.
fn needs(model: [&str; 5], free: Bytes) -> Requirements {
    let dir = tempfile::tempdir().expect("a directory");
    let [visit, sweep, read_mib, write_mib, depth] = model;
    let text = format!(
        "version = 1\nmeasured = \"today\"\ndevice = \"x\"\n[model]\nvisit = \"{visit}\"\n\
         sweep = \"{sweep}\"\nread_mib = \"{read_mib}\"\nwrite_mib = \"{write_mib}\"\n\
         depth = {depth}\n[uploads]\nflush = \"30 ms\"\n"
    );
    let mut config = Config::unconfigured();
    config.serve_only(dir.path());
    config.volumes[0].model = dir.path().join("model.toml");
    std::fs::write(&config.volumes[0].model, text).expect("a model file");
    let memory = Memory { total: 64 * GIB, available: free.0, limit: None, left: None };
    Requirements::of(&config, memory)
}

#[test]
fn r08_the_arena_of_a_spinning_disk_is_what_its_streams_need_and_the_free_memory_allows() {
    let flash = needs(FLASH, Bytes(64 * GIB));
    // The read-ahead of this host's disk decides whether its blocks are sent by reference.
    let expected = if flash.cached > Bytes(0) { 2 * GIB } else { GIB };
    assert_eq!(flash.arena, Bytes(expected));
    assert!(!flash.has_arm);
    let spinning = needs(SPINNING, Bytes(64 * GIB));
    assert!((2 * GIB..4 * GIB).contains(&spinning.arena.0), "{spinning:?}");
    for spare in [GIB, 6 * GIB] {
        let most = Bytes(spare / 4);
        let arena = needs(SPINNING, Bytes(spare)).arena;
        assert!(arena <= most && arena.0 + 64 * MIB > most.0, "{arena} of {most}");
    }
    // Its blocks are not in the page cache, so they need no open files and no pipes.
    assert!(spinning.has_arm && spinning.cached == Bytes(0), "{spinning:?}");
    assert!(spinning.descriptors <= flash.descriptors, "{spinning:?} {flash:?}");
}
