//! Worlds with several real-time cores and the balancer, whose load doubles at a known time.
//!
//! Promise: no stream is late, as in all worlds; the tally has the number of moves and the time of
//! the last one.

use tactus_core::units::{BitRate, Nanos, SECOND};

use crate::run::caught;
use crate::swarm::{ClientSpec, Swarm, VolumeSpec};
use crate::title::Title;
use crate::verdict::Violation;
use crate::world::{Outcome, World};

/// A world of viewers, all servers of which fit on one core until their load doubles.
#[derive(Clone, Debug)]
pub struct Balancing {
    /// The source of all randomness.
    pub seed: u64,
    /// Cores.
    pub cores: usize,
    /// Link servers.
    pub links: usize,
    /// Viewers that come at [`BEGIN`]: 20 of them take half of a core.
    pub viewers: u64,
    /// The second in which as many viewers come again; none if they never do.
    pub doubles: Option<u64>,
    /// Length of the run in seconds.
    pub seconds: u64,
}

impl Default for Balancing {
    fn default() -> Self {
        Self { seed: 1, cores: 2, links: 2, viewers: 20, doubles: None, seconds: 40 }
    }
}

const RATE: BitRate = BitRate(8_000_000);
/// The second in which the first viewers come, when idle servers share a core.
pub const BEGIN: u64 = 20;
/// The sends of 20 viewers take 35 % of a core's time, their reads half of that. Each has 16 visits
/// a second, and in four of them a block ends, which takes a send of its own.
const WORK: Nanos = Nanos::from_micros(880);

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
            let second = if number < self.viewers { Some(BEGIN) } else { self.doubles };
            let within = Nanos(number % self.viewers * SECOND.0 / 10 / self.viewers);
            let arrives = SECOND.times(second.unwrap_or(2 * self.seconds)) + within;
            ClientSpec { arrives, ..ClientSpec::viewer(RATE, duration.times(3)) }
        };
        Swarm {
            seed: self.seed,
            duration,
            cores: self.cores,
            links: self.links,
            work: Some(WORK),
            volumes: vec![VolumeSpec::sata()],
            titles: (0..2 * self.viewers).map(|number| Title::paced(number, length)).collect(),
            clients: (0..2 * self.viewers).map(client).collect(),
            ..Swarm::quiet(duration)
        }
    }
}
