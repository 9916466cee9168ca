//! Reads at moments: their reservation, and their cost in the ledger.

use tactus_core::timed::TimedReads;

use super::*;

/// What a read, a MiB and a block cost by `tactus-bench stages`: run time of the real-time thread.
const MEASURED_READ: Nanos = Nanos::from_micros(98);
const MEASURED_MIB: Nanos = Nanos::from_micros(138);
const MEASURED_BLOCK: Nanos = Nanos::from_micros(165);

#[test]
fn reads_at_moments_are_promised_once_and_return() {
    let fixture = Fixture::new(100);
    let millis = Nanos::from_millis;
    let reads = TimedReads { interval: millis(500), tolerance: Nanos(0), len: Bytes(4096) };
    let admit = |is_in_memory| fixture.broker.admit_timed(&fixture.title, &reads, is_in_memory);
    let mut grants = vec![];
    let refusal = loop {
        match admit(false) {
            Ok(grant) => grants.push(grant),
            Err(refusal) => break refusal,
        }
    };
    assert_eq!(refusal.resource, Resource::Disk);
    assert_eq!(fixture.broker.refusals().of(Resource::Disk), 1);
    assert!(!grants.is_empty() && fixture.used(Resource::Arena) > 0);
    assert!(grants.iter().all(|grant| grant.ahead() == grant.reserve.ahead));
    // A read from memory reserves no disk time, so a full disk does not refuse it.
    let in_memory = admit(true).expect("time of a core");
    assert!(in_memory.ahead() < grants[0].ahead());
    drop(grants);
    assert_eq!((fixture.used(Resource::Disk), fixture.used(Resource::Arena)), (0, 0));
    assert!(fixture.used(Resource::Cpu) > 0);
    drop(in_memory);
    assert_eq!(fixture.used(Resource::Cpu), 0);
}

/// What these reads cost a core by `tactus-bench stages`, as run time of its thread: a core that
/// were promised more of them would have no time left.
#[test]
fn a_core_is_promised_as_many_reads_at_moments_as_it_has_time_for() {
    let measured = |reads: &TimedReads| {
        let copy = Nanos(MEASURED_MIB.0 * reads.len.0 / MIB);
        Nanos(SECOND.0 / reads.interval.0 * (MEASURED_READ + copy).0)
    };
    for (interval, len) in [(2, 4 * KIB), (10, 4 * KIB), (10, 256 * KIB)] {
        let fixture = Fixture::new(100);
        let interval = Nanos::from_millis(interval);
        let reads = TimedReads { interval, tolerance: Nanos(0), len: Bytes(len) };
        let mut grants = vec![];
        let refusal = loop {
            match fixture.broker.admit_timed(&fixture.title, &reads, true) {
                Ok(grant) => grants.push(grant),
                Err(refusal) => break refusal,
            }
        };
        assert_eq!(refusal.resource, Resource::Cpu);
        let busy = measured(&reads).times(grants.len() as u64);
        // The ledger refuses no read before three quarters of the core are used.
        let (least, most) = (Nanos(SECOND.0 * 3 / 4), SECOND);
        assert!((least..=most).contains(&busy), "{busy} of a second, every {interval} {len} bytes");
    }
}

/// The same for blocks that are read for them.
#[test]
fn a_read_at_a_moment_counts_the_turns_for_its_blocks() {
    let fixture = Fixture::new(100);
    let interval = SECOND.times(10);
    let reads = TimedReads { interval, tolerance: Nanos(0), len: Bytes(4096) };
    let used = |is_in_memory| {
        let grant = fixture.broker.admit_timed(&fixture.title, &reads, is_in_memory);
        let used = fixture.used(Resource::Cpu);
        drop(grant.expect("room for one"));
        Nanos(used)
    };
    // The title is shorter than a block, and the disk's bytes cost nothing here.
    assert!(used(false) >= used(true) + MEASURED_BLOCK, "{} {}", used(false), used(true));
}
