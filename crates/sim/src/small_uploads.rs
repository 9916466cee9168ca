//! Worlds with a disk full of viewers, and many small uploads to one directory.
//!
//! Promise: no stream is ever late, as in all worlds; an acknowledged name survives a power cut;
//! the tally has the times until the acknowledgements.

use tactus_core::units::{BitRate, KIB, MIB, Nanos, SECOND};

use crate::run::caught;
use crate::swarm::{ClientSpec, Swarm, UploadSpec, VolumeSpec, WritePathSpec};
use crate::title::Title;
use crate::verdict::Violation;
use crate::world::{Outcome, World};

/// A world with one SATA disk.
#[derive(Clone, Debug)]
pub struct SmallUploads {
    /// The source of all randomness.
    pub seed: u64,
    /// Viewers, which try again when they are refused.
    pub viewers: u64,
    /// Clients that upload one file after the other.
    pub uploaders: u64,
    /// The time between an acknowledgement and the next file of a client, on average.
    pub think: Nanos,
    /// Part of each cycle that uploads get if they need it, in thousandths.
    pub floor_thousandths: u32,
    /// Length of the run in seconds.
    pub seconds: u64,
}

impl Default for SmallUploads {
    /// More viewers than the disk has room for, and uploads that need nearly all of their floor.
    fn default() -> Self {
        Self {
            seed: 1,
            viewers: 60,
            uploaders: 100,
            think: Nanos::from_millis(500),
            floor_thousandths: 150,
            seconds: 20,
        }
    }
}

const RATE: BitRate = BitRate(80_000_000);
/// An upload: the disk of the simulator needs 1 ms for it.
const FILE: u64 = 512 * KIB;
/// The memory for writes.
const WRITE_SHARE: u64 = 64 * MIB;

impl SmallUploads {
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
        let length = RATE.bytes_in(duration.times(4));
        let client = |number: u64| ClientSpec {
            arrives: Nanos(number * SECOND.0 / self.viewers),
            retry: SECOND.times(2),
            ..ClientSpec::viewer(RATE, duration.times(3))
        };
        let uploader = |number: u64| UploadSpec {
            volume: 0,
            arrives: SECOND.times(4) + Nanos(number * self.think.0 / self.uploaders),
            place: FILE as u32,
            len_max: FILE,
            chunk: FILE,
            think: self.think,
            record: None,
            lasts: duration,
            has_name: true,
        };
        Swarm {
            seed: self.seed,
            duration,
            volumes: vec![VolumeSpec {
                write_path: Some(WritePathSpec {
                    places: (WRITE_SHARE / FILE) as u32,
                    place: FILE as u32,
                    floor_thousandths: self.floor_thousandths,
                }),
                ..VolumeSpec::sata()
            }],
            titles: (0..100).map(|number| Title::paced(number, length)).collect(),
            clients: (0..self.viewers).map(client).collect(),
            uploads: (0..self.uploaders).map(uploader).collect(),
            ..Swarm::quiet(duration)
        }
    }
}
