//! The cost of an entry point: the processor time of its thread, and its memory.
//!
//! Promise: the time is the thread's own, so other load of the machine does not count; the lowest
//! of several measurements counts. The limits grow with the input, so that a short input that costs
//! as much as the longest may cost is found too.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::{Target, Thread};

/// The cost of one run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Cost {
    /// Processor time.
    pub time: Duration,
    /// Most bytes allocated at one time.
    pub held: u64,
    /// Sum of all allocated bytes.
    pub allocated: u64,
}

/// Longest time that one input may keep a control thread: streams are not affected, but every other
/// client waits.
pub const CONTROL_TIME_MAX: Duration = Duration::from_millis(10);
/// Longest time on a blocking thread.
const BLOCKING_TIME_MAX: Duration = Duration::from_secs(1);
/// Builds with checks and instrumentation, as for tests and fuzzing, are slower by up to this
/// factor. A cost that grows with the square of the input takes hundreds of times as long.
const SLOW_BUILD: u32 = if cfg!(debug_assertions) {
    40
} else if cfg!(instrumented) {
    8
} else {
    1
};
/// The part of the time that the shortest input may take: reading the clock has a cost too.
const FLOOR_PART: u32 = 10;
/// Bytes held at one time, per byte of input and for an empty input.
const HELD_PER_BYTE: u64 = 64;
const HELD_FLOOR: u64 = 8 << 20;
/// Bytes allocated in all, per byte of input and for an empty input.
const ALLOCATED_PER_BYTE: u64 = 512;
const ALLOCATED_FLOOR: u64 = 16 << 20;
/// Measurements before an input counts as slow.
const TRIES: u32 = 3;

/// The cost of `bytes` at `target`: the lowest of `tries` measurements.
///
/// # Panics
/// When the entry point panics.
pub fn of(target: &Target, bytes: &[u8], tries: u32) -> Cost {
    let once = || {
        let begun = thread_time();
        let memory = allocation_counter::measure(|| {
            std::hint::black_box((target.run)(std::hint::black_box(bytes)));
        });
        let time = thread_time().saturating_sub(begun);
        Cost { time, held: memory.bytes_max, allocated: memory.bytes_total }
    };
    (0..tries).map(|_| once()).min().expect("at least one try")
}

/// Checks an entry point against its limits.
///
/// # Panics
/// When the entry point panics, or exceeds its limits.
pub fn check(target: &Target, bytes: &[u8]) {
    let (most, len) = (most(target, bytes.len()), bytes.len());
    let mut cost = of(target, bytes, 1);
    if cost.time > most.time {
        cost = of(target, bytes, TRIES);
    }
    let name = target.name;
    assert!(cost.time <= most.time, "{name}: {len} bytes take {:?} of {:?}", cost.time, most.time);
    assert!(cost.held <= most.held, "{name}: {len} bytes hold {} of {}", cost.held, most.held);
    let (allocated, bound) = (cost.allocated, most.allocated);
    assert!(allocated <= bound, "{name}: {len} bytes allocate {allocated} of {bound}");
}

/// Highest cost of an input of `len` bytes.
fn most(target: &Target, len: usize) -> Cost {
    let all = match target.thread {
        Thread::Control => CONTROL_TIME_MAX,
        Thread::Blocking => BLOCKING_TIME_MAX,
    };
    let all = all * SLOW_BUILD;
    let part = len.min(target.bytes_max) as f64 / target.bytes_max as f64;
    let (len, floor) = (len as u64, all / FLOOR_PART);
    Cost {
        time: floor + (all - floor).mul_f64(part),
        held: HELD_FLOOR + len * HELD_PER_BYTE,
        allocated: ALLOCATED_FLOOR + len * ALLOCATED_PER_BYTE,
    }
}

/// The processor time of this thread.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
