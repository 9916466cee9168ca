//! Worlds whose disk is not as the model of the start says, or changes.
//!
//! Promise: a stream that is not deferred is never late, whatever the guess; only the newest are
//! deferred. The checkers of all worlds hold here too, except those for a disk that obeys.

use tactus_core::disk_model::Ratio;
use tactus_core::estimator::ModelOrigin;
use tactus_core::units::{BitRate, MonoTime, Nanos, SECOND};

use crate::device::{DiskKind, Fault, Trouble};
use crate::run::caught;
use crate::swarm::{ClientSpec, GuessSpec, Swarm, VolumeSpec};
use crate::title::Title;
use crate::verdict::Violation;
use crate::world::{Outcome, World};

/// A world with one SATA disk, which holds some 45 streams of 80 Mbit/s.
#[derive(Clone, Debug)]
pub struct Learning {
    /// The source of all randomness.
    pub seed: u64,
    /// Times of the model of the start, compared with the truth, in percent.
    pub guess: u32,
    /// The start's model comes from `tactus measure`.
    pub is_measured: bool,
    /// Reads of streams may be answered by a cache, as they are by reference.
    pub by_reference: bool,
    /// Spans in which each read takes this many times as long: from, to, factor.
    pub slow: Vec<(u64, u64, u64)>,
    /// A token bucket limits the disk to this part of its rate, in percent. It holds the bytes of
    /// 100 ms.
    pub limited: Option<u64>,
    /// Viewers, which try again when they are refused.
    pub viewers: u64,
    /// The seconds in which they arrive.
    pub arrive_within: u64,
    /// Length of the run in seconds.
    pub seconds: u64,
    /// How late a stream may be that is not deferred, in milliseconds: zero, unless the disk
    /// changes at once under full load.
    pub grace: u64,
}

impl Default for Learning {
    /// A right guess, and few viewers.
    fn default() -> Self {
        Self {
            seed: 1,
            guess: 100,
            is_measured: false,
            by_reference: false,
            slow: vec![],
            limited: None,
            viewers: 3,
            arrive_within: 5,
            seconds: 60,
            grace: 0,
        }
    }
}

const RATE: BitRate = BitRate(80_000_000);

/// Streams of this rate that the disk holds, as a thorough measurement would find.
pub const TRUTH: u64 = 45;

impl Learning {
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
        let length = SECOND.times(2 * self.seconds + 60);
        let title = |number: u64| Title::paced(number, RATE.bytes_in(length));
        let client = |number: u64| ClientSpec {
            arrives: Nanos(number * self.arrive_within * SECOND.0 / self.viewers),
            retry: SECOND.times(2),
            ..ClientSpec::viewer(RATE, duration.times(3))
        };
        let begin = MonoTime(SECOND.0);
        let fault = |&(from, to, factor): &(u64, u64, u64)| Fault {
            from: begin + SECOND.times(from),
            to: begin + SECOND.times(to),
            trouble: Trouble::Slow { factor },
        };
        let limit = self.limited.map(|percent| Fault {
            from: MonoTime(0),
            to: MonoTime(u64::MAX),
            trouble: Trouble::Limited {
                rate: BitRate(DiskKind::Sata.rate().0 / 100 * percent),
                burst: Nanos::from_millis(100),
            },
        });
        let origin = if self.is_measured { ModelOrigin::Measured } else { ModelOrigin::Guess };
        Swarm {
            seed: self.seed,
            duration,
            volumes: vec![VolumeSpec {
                faults: self.slow.iter().map(fault).chain(limit).collect(),
                guess: Some(GuessSpec {
                    ratio: Ratio::of_thousandths(self.guess * 10),
                    origin,
                    is_direct: !self.by_reference,
                }),
                ..VolumeSpec::sata()
            }],
            titles: (0..100).map(title).collect(),
            clients: (0..self.viewers).map(client).collect(),
            grace: Nanos::from_millis(self.grace),
            ..Swarm::quiet(duration)
        }
    }
}
