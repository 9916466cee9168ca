//! The speed of a world: a hundred television streams for an hour, in seconds of one core.
//!
//! The target is a thousand times real time. All checkers are on, as in every world. The content
//! has stamps every 64 KiB, so the figure measures the engine and the checkers, not the memory.

use std::time::{Duration, Instant};

use tactus_core::units::{BitRate, Nanos, SECOND};

use crate::device::DiskKind;
use crate::run::caught;
use crate::swarm::{ClientSpec, Memory, Swarm, VolumeSpec};
use crate::title::Title;
use crate::verdict::Violation;
use crate::world::{Outcome, World};

/// The result of the speed run.
#[derive(Clone, Copy, Debug)]
pub struct Speed {
    /// The outcome.
    pub outcome: Outcome,
    /// Wall time.
    pub wall: Duration,
    /// CPU time; `None` if the system does not report it.
    pub busy: Option<Duration>,
}

/// Streams of the speed run.
pub const STREAMS: u64 = 100;
/// Television, and the rate of most figures in the benchmarks.
const RATE: BitRate = BitRate(8_800_000);

/// Runs [`STREAMS`] streams for `duration`.
///
/// # Errors
/// The first broken invariant.
pub fn measure(duration: Nanos) -> Result<Speed, Violation> {
    timed(swarm(duration))
}

/// Runs a world with the clock of the machine beside it.
pub(crate) fn timed(swarm: Swarm) -> Result<Speed, Violation> {
    let (begin, busy_before) = (Instant::now(), time_on_core());
    let outcome = caught(move || World::new(swarm).run())?;
    let busy = time_on_core().zip(busy_before).map(|(after, before)| after - before);
    Ok(Speed { outcome, wall: begin.elapsed(), busy })
}

fn swarm(duration: Nanos) -> Swarm {
    let length = duration + SECOND.times(60);
    let title = |number: u64| Title::paced(number, RATE.bytes_in(length));
    let client = |number: u64| ClientSpec {
        arrives: Nanos(number * SECOND.0 / STREAMS),
        follows: true,
        ..ClientSpec::viewer(RATE, duration.times(3))
    };
    Swarm {
        seed: 0,
        duration,
        streams: STREAMS as u32,
        volumes: vec![VolumeSpec {
            kind: DiskKind::Nvme,
            cycle: Nanos::from_millis(250),
            block: 256 << 10,
            places: 6 * STREAMS as u32,
            best_effort_depth: 4,
            share_thousandths: 900,
            memory: Memory::Arena,
            write_path: None,
            faults: vec![],
            guess: None,
        }],
        titles: (0..STREAMS).map(title).collect(),
        clients: (0..STREAMS).map(client).collect(),
        behind_max: SECOND.times(10),
        ..Swarm::quiet(duration)
    }
}

/// CPU time of this thread.
fn time_on_core() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}
