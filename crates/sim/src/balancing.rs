//! Worlds with two real-time cores and the balancer, whose load doubles at a known time.
//!
//! Promise: no stream is late, as in all worlds; the tally has the number of moves and the time of
//! the last one.

use tactus_core::units::{BitRate, Nanos, SECOND};

use crate::device::DiskKind;
use crate::run::caught;
use crate::swarm::{ClientSpec, Memory, Swarm, VolumeSpec};
use crate::title::Title;
use crate::verdict::Violation;
use crate::world::{Outcome, World};

/// A world of viewers, all servers of which fit on one core until their load doubles.
#[derive(Clone, Debug)]
pub struct Balancing {
    /// The source of all randomness.
    pub seed: u64,
    /// The second in which as many viewers come again; none if they never do.
    pub doubles: Option<u64>,
    /// Length of the run in seconds.
    pub seconds: u64,
}

const RATE: BitRate = BitRate(8_000_000);
const VIEWERS: u64 = 20;
/// The second in which the first viewers come, when idle servers share a core.
pub const BEGIN: u64 = 20;
/// Of a core's time the sends of 20 viewers, 16 a second each, take two fifths.
const WORK: Nanos = Nanos::from_micros(1_100);

impl Balancing {
    /// Runs the world.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn run(&self) -> Result<Outcome, Violation> {
        let swarm = self.swarm();
        caught(move || World::new(swarm).run())
    }

    fn swarm(&self) -> Swarm {
        let duration = SECOND.times(self.seconds);
        let length = RATE.bytes_in(duration + SECOND.times(60));
        let client = |number: u64| {
            let second = if number < VIEWERS { Some(BEGIN) } else { self.doubles };
            let within = Nanos(number % VIEWERS * SECOND.0 / 10 / VIEWERS);
            let arrives = SECOND.times(second.unwrap_or(2 * self.seconds)) + within;
            ClientSpec { arrives, ..ClientSpec::viewer(RATE, duration.times(3)) }
        };
        Swarm {
            seed: self.seed,
            duration,
            cores: 2,
            links: 2,
            work: Some(WORK),
            volumes: vec![VolumeSpec {
                kind: DiskKind::Sata,
                cycle: Nanos::from_millis(250),
                block: 256 << 10,
                places: 32 * 256,
                best_effort_depth: 4,
                share_thousandths: 900,
                // Without the bytes of an arena, which would take most of the time of a run.
                memory: Memory::PageCache { ahead: 0 },
                write_path: None,
                faults: vec![],
                guess: None,
            }],
            titles: (0..2 * VIEWERS).map(|number| Title::paced(number, length)).collect(),
            clients: (0..2 * VIEWERS).map(client).collect(),
            ..Swarm::quiet(duration)
        }
    }
}
