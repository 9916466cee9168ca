//! What a door costs: the processor time of its thread, and the memory that it takes.
//!
//! Promise: time is that of the thread, so that other load of the machine does not count; the least of
//! several tries counts. The bounds grow with the input, so that a short input that costs as much as
//! the longest one may is found, too.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::{Door, Thread};

/// What one knock has cost.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Cost {
    /// Of the processor.
    pub time: Duration,
    /// Most bytes that were held at once.
    pub held: u64,
    /// All bytes that were allocated.
    pub allocated: u64,
}

/// The longest that anything that strangers send may keep a control thread: no stream is served by
/// it, but every other client waits.
pub const CONTROL_TIME_MAX: Duration = Duration::from_millis(10);
/// The same for a thread of its own.
const BLOCKING_TIME_MAX: Duration = Duration::from_secs(1);
/// Builds with checks and instruments, such as those of tests and fuzzing, may take so many times as
/// long. A cost that grows with the square of the input takes hundreds of times as long.
const SLOW_BUILD: u32 = if cfg!(debug_assertions) { 40 } else { 1 };
/// The part of the time that the shortest input may take: the clock is not read for nothing.
const FLOOR_PART: u32 = 10;
/// Bytes that may be held for each byte of an input, and for none at all.
const HELD_PER_BYTE: u64 = 64;
const HELD_FLOOR: u64 = 8 << 20;
/// The same of all that is allocated.
const ALLOCATED_PER_BYTE: u64 = 512;
const ALLOCATED_FLOOR: u64 = 16 << 20;
/// Tries before an input counts as slow.
const TRIES: u32 = 3;

/// What `bytes` cost at `door`, the least of so many `tries`.
///
/// # Panics
/// When the door does.
pub fn of(door: &Door, bytes: &[u8], tries: u32) -> Cost {
    let once = || {
        let begun = thread_time();
        let memory = allocation_counter::measure(|| {
            std::hint::black_box((door.knock)(std::hint::black_box(bytes)));
        });
        let time = thread_time().saturating_sub(begun);
        Cost { time, held: memory.bytes_max, allocated: memory.bytes_total }
    };
    (0..tries).map(|_| once()).min().expect("at least one try")
}

/// Holds a door to its bounds.
///
/// # Panics
/// When the door does, or when it costs more than it may.
pub fn check(door: &Door, bytes: &[u8]) {
    let (most, len) = (most(door, bytes.len()), bytes.len());
    let mut cost = of(door, bytes, 1);
    if cost.time > most.time {
        cost = of(door, bytes, TRIES);
    }
    let name = door.name;
    assert!(cost.time <= most.time, "{name}: {len} bytes take {:?} of {:?}", cost.time, most.time);
    assert!(cost.held <= most.held, "{name}: {len} bytes hold {} of {}", cost.held, most.held);
    let (allocated, bound) = (cost.allocated, most.allocated);
    assert!(allocated <= bound, "{name}: {len} bytes allocate {allocated} of {bound}");
}

/// The most that an input of `len` bytes may cost.
fn most(door: &Door, len: usize) -> Cost {
    let all = match door.thread {
        Thread::Control => CONTROL_TIME_MAX,
        Thread::Blocking => BLOCKING_TIME_MAX,
    };
    let all = all * SLOW_BUILD;
    let part = len.min(door.bytes_max) as f64 / door.bytes_max as f64;
    let (len, floor) = (len as u64, all / FLOOR_PART);
    Cost {
        time: floor + (all - floor).mul_f64(part),
        held: HELD_FLOOR + len * HELD_PER_BYTE,
        allocated: ALLOCATED_FLOOR + len * ALLOCATED_PER_BYTE,
    }
}

fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
