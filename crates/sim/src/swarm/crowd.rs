//! The crowded server: one disk as full as the ledger allows, and many clients that seek.
//!
//! Most worlds are limited by their memory, and their disks have time to spare, which hides almost
//! any wrong order of reads. Here the disk is the limit. Slow streams with large blocks begin and
//! end all the time, each reading many cycles' worth at once; fast streams have two cycles to
//! spare; and downloads read the same titles in best-effort time.

use tactus_core::stagger::Tick;
use tactus_core::units::{BitRate, Bytes, MIB, Nanos};

use super::{ClientKind, ClientSpec, Memory, VolumeSpec};
use crate::device::{DiskKind, SPAN};
use crate::dice::Dice;
use crate::net::{Receiver, Temper};
use crate::title::{Audience, Title};

/// One disk that fills up before its memory does.
pub(super) fn draw_volume(dice: &mut Dice) -> VolumeSpec {
    let (kind, cycle) = dice.pick(&[
        (DiskKind::Spinning, 1000),
        (DiskKind::Spinning, 2000),
        (DiskKind::Sata, 50),
        (DiskKind::Sata, 100),
    ]);
    let block = 256 << 10;
    VolumeSpec {
        kind,
        cycle: Nanos::from_millis(cycle),
        block,
        places: (dice.between(128, 256) * MIB / u64::from(block)) as u32,
        best_effort_depth: dice.between(1, 4) as u32,
        share_thousandths: 950,
        memory: Memory::draw(dice),
        write_path: None,
        faults: vec![],
        guess: None,
    }
}

/// A few long titles that all clients watch.
pub(super) fn draw_titles(dice: &mut Dice) -> Vec<Title> {
    let title = |_| {
        let len = dice.spread(1_000_000_000, 40_000_000_000);
        let position = dice.below(SPAN - len) / 4096 * 4096;
        Title {
            volume: 0,
            len: Bytes(len),
            position,
            audience: Audience::Both,
            has_sums: false,
            growth: None,
        }
    };
    (0..8).map(title).collect()
}

/// Fast viewers for most of the disk, slow ones that seek, and downloads.
pub(super) fn draw_clients(
    dice: &mut Dice,
    volume: &VolumeSpec,
    duration: Nanos,
) -> Vec<ClientSpec> {
    // A spinning disk gives about a third of its long reads in blocks of this size.
    let has_arm = volume.kind == DiskKind::Spinning;
    let all = if has_arm { volume.sequential() / 3 } else { volume.sequential() };
    let viewers = dice.spread(4, 40);
    let fast = all / 1000 * dice.between(400, 900) / viewers;
    let one_block = u64::from(volume.block) * 8 * 1_000_000_000 / volume.cycle.0;
    let slow = one_block / 1000 * dice.spread(20, 500);
    let (seekers, downloads) = (dice.below(300), dice.below(40));
    let (follow, fewest) = (dice.below(1000), dice.between(1, 3));
    let client = |number: u64| {
        let mut dice = dice.fork(number);
        let (kind, rate) = match number {
            number if number < viewers => (ClientKind::Viewer, fast),
            number if number < viewers + seekers => (ClientKind::Zapper, slow),
            _ => (ClientKind::Downloader, slow),
        };
        let rate = BitRate(rate.max(64_000));
        ClientSpec {
            kind,
            volume: 0,
            rate,
            tick: Tick::for_rate(rate, Tick::Ms10),
            burst: Bytes(0),
            receiver: Receiver::new(Temper::Eager, None),
            arrives: Nanos(if kind == ClientKind::Viewer { 0 } else { dice.below(duration.0 / 3) }),
            stay: match kind {
                ClientKind::Zapper => volume.cycle.times(dice.between(fewest, 8)),
                _ => duration.times(3),
            },
            think: Nanos::from_millis(1),
            retry: volume.cycle,
            follows: dice.chance(follow),
            is_confused: false,
            datagrams: None,
            has_plans: false,
        }
    };
    (0..viewers + seekers + downloads).map(client).collect()
}
