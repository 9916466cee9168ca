//! The choice against the fixed cycle of four seconds, over models, memories and rates.

use super::*;
use crate::cost::{WindowLimits, WriteLimits};
use crate::disk_model::DiskModel;
use crate::units::{KIB, MIB};
use proptest::prelude::*;

const FIXED: Nanos = SECOND.times(4);
const GIB: u64 = 1024 * MIB;

/// A 7200 rpm disk: 150 MB/s, seek 1.5 ms to 16 ms, rotation 8.3 ms.
const SPINNING: DiskModel = DiskModel {
    visit: Nanos::from_micros(5_650),
    sweep: Nanos::from_micros(21_700),
    read_mib: Nanos::from_micros(6_991),
    write_mib: Nanos::from_micros(6_991),
    depth: 2,
    flush: DiskModel::ARM_FLUSH,
};

const UPLOADS: WriteLimits = WriteLimits { places: 64, place: Bytes(MIB), floor_thousandths: 50 };

fn volume(model: DiskModel) -> ArmVolume {
    let disk = DiskLimits {
        model,
        cycle: Nanos(0),
        share_thousandths: 900,
        block: Bytes(MIB),
        blocks: 0,
        ahead: 0,
        windows: WindowLimits::NONE,
        server: 0,
        read_per_mib: Nanos::from_micros(100),
        deliver_block: Nanos(0),
        per_write: Nanos::from_micros(6),
        write_path: None,
    };
    ArmVolume { disk, start_burst: SECOND, cycle: None }
}

fn any_volume() -> impl Strategy<Value = ArmVolume> {
    let model = (100u64..20_000, 1_000u64..60_000, 1_000u64..30_000);
    let model = model.prop_map(|(visit, sweep, read_mib)| DiskModel {
        visit: Nanos::from_micros(visit),
        sweep: Nanos::from_micros(sweep),
        read_mib: Nanos::from_micros(read_mib),
        ..SPINNING
    });
    let block = prop::sample::select(vec![256 * KIB, MIB, 4 * MIB]);
    (model, block, 100u32..=1000, any::<bool>(), 0u64..3000).prop_map(
        |(model, block, share_thousandths, takes_uploads, burst)| {
            let new = volume(model);
            let write_path = takes_uploads.then_some(UPLOADS);
            let disk =
                DiskLimits { block: Bytes(block), share_thousandths, write_path, ..new.disk };
            ArmVolume { disk, start_burst: Nanos::from_millis(burst), ..new }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn r08_more_memory_never_means_fewer_streams(
        volume in any_volume(), less in 1u64..8 * GIB, more in 0u64..8 * GIB,
    ) {
        let (less, more) = (Bytes(less), Bytes(less + more));
        prop_assert!(volume.choose(less).streams <= volume.choose(more).streams);
    }

    #[test]
    fn r08_what_is_chosen_fits_into_the_memory_and_the_ledger_admits_it_there(
        volume in any_volume(), memory in 1u64..8 * GIB,
    ) {
        let choice = volume.choose(Bytes(memory));
        prop_assert!(choice.memory.0 <= memory);
        prop_assert_eq!(volume.streams(TYPICAL, choice.cycle, choice.memory), choice.streams);
        prop_assert!(choice.cycle.0.is_multiple_of(SECOND.0) && choice.cycle > Nanos(0));
        let longest = if volume.disk.write_path.is_some() { 4 } else { 10 };
        prop_assert!(choice.cycle <= SECOND.times(longest));
    }

    #[test]
    fn r08_a_chosen_cycle_never_holds_fewer_streams_than_the_fixed_one(
        volume in any_volume(), memory in 1u64..8 * GIB,
    ) {
        let fixed = volume.streams(TYPICAL, FIXED, Bytes(memory));
        prop_assert!(volume.choose(Bytes(memory)).streams >= fixed);
    }

    #[test]
    fn r08_the_cycle_of_the_configuration_stays(
        volume in any_volume(), memory in 1u64..8 * GIB, seconds in 1u64..=10,
    ) {
        let cycle = SECOND.times(seconds);
        let choice = ArmVolume { cycle: Some(cycle), ..volume }.choose(Bytes(memory));
        prop_assert_eq!(choice.cycle, cycle);
        prop_assert_eq!(volume.streams(TYPICAL, cycle, choice.memory), choice.streams);
    }
}

#[test]
fn r08_other_rates_lose_next_to_nothing_to_the_fixed_cycle() {
    let volume = volume(SPINNING);
    for memory in (1..24).map(|step| Bytes(step * 192 * MIB)) {
        let cycle = volume.choose(memory).cycle;
        for kbits in [2_000, 4_000, 6_000, 15_000, 25_000, 50_000] {
            let count = |cycle| volume.streams(BitRate(kbits * 1000), cycle, memory);
            let (chosen, fixed) = (count(cycle), count(FIXED));
            assert!(
                chosen * 50 >= fixed * 49,
                "{memory} {cycle} {kbits} kbit/s: {chosen}, not {fixed}"
            );
        }
    }
}

#[test]
fn r08_a_disk_of_150_megabytes_a_second_gets_the_cycle_that_its_memory_allows() {
    let volume = volume(SPINNING);
    let chosen = |mib| {
        let CycleChoice { cycle, streams, .. } = volume.choose(Bytes(mib * MIB));
        let fixed = volume.streams(TYPICAL, FIXED, Bytes(mib * MIB));
        (cycle.0 / SECOND.0, streams, fixed)
    };
    assert_eq!(chosen(256), (1, 42, 21));
    assert_eq!(chosen(512), (2, 64, 42));
    assert_eq!(chosen(1024), (3, 90, 85));
    assert_eq!(chosen(2048), (7, 106, 96));
    assert_eq!(chosen(3072), (10, 111, 96));
    // More than it can use.
    let most = volume.choose(Bytes(64 * GIB));
    assert_eq!((most.cycle, most.streams), (SECOND.times(10), 111));
    assert!(most.memory < Bytes(4 * GIB), "{}", most.memory);
}
