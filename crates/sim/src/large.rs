//! A large machine: many cores, disks, links and streams, and servers that move at random all the
//! time.
//!
//! Promise: as in all worlds, it stops at the first byte that is early, late, lost or sent twice.
//! Every server begins on a random core. Streams begin at random places of titles. At the end of a
//! title another client gets the place: there are a few more clients than places for streams.

use tactus_core::units::{BitRate, Bytes, MIB, MILLISECOND, Nanos, SECOND};

use crate::device::{DiskKind, SPAN};
use crate::net::UdpOutputSpec;
use crate::speed::{self, Speed};
use crate::swarm::{
    ClientSpec, DatagramSpec, Memory, MomentSpec, ProgramSpec, Swarm, UploadSpec, VolumeSpec,
    WritePathSpec,
};
use crate::title::{Audience, Title};
use crate::verdict::Violation;

/// A world on such a machine.
#[derive(Clone, Debug)]
pub struct LargeMachine {
    /// The source of all randomness.
    pub seed: u64,
    /// Real-time cores.
    pub cores: usize,
    /// Delivery servers.
    pub deliveries: usize,
    /// Link servers, and packet servers if there are datagrams.
    pub links: usize,
    /// NVMe disks.
    pub volumes: usize,
    /// Streams to connections, of 4 Mbit/s in ticks of 62.5 ms.
    pub streams: u64,
    /// Streams of datagrams beside them, of 1 Mbit/s.
    pub datagrams: u64,
    /// Clients that upload one file after the other, on each volume.
    pub uploads: u64,
    /// Local programs, one of four of which writes anything into its memory.
    pub programs: u64,
    /// Time from one move to the next, on average.
    pub every: Nanos,
    /// Length of the run in seconds.
    pub seconds: u64,
}

impl Default for LargeMachine {
    fn default() -> Self {
        Self {
            seed: 1,
            cores: 64,
            deliveries: 4,
            links: 4,
            volumes: 8,
            streams: 20_000,
            datagrams: 0,
            uploads: 1,
            programs: 0,
            every: Nanos::from_millis(10),
            seconds: 600,
        }
    }
}

const RATE: BitRate = BitRate(4_000_000);
const DATAGRAM_RATE: BitRate = BitRate(1_000_000);
const TITLES_PER_VOLUME: u64 = 64;
/// Blocks of memory for each stream; its window is four at this rate.
const PLACES_PER_STREAM: u64 = 6;
/// All streams begin within this time.
const ARRIVALS: Nanos = SECOND.times(5);
/// A core's turn is late by up to this.
const LATENESS: Nanos = Nanos::from_micros(100);
const UPLOAD_PLACE: u32 = 256 << 10;

impl LargeMachine {
    /// Runs the world, with the time that it takes.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn measure(&self) -> Result<Speed, Violation> {
        speed::timed(self.swarm())
    }

    fn swarm(&self) -> Swarm {
        let duration = SECOND.times(self.seconds);
        let all = self.streams + self.datagrams;
        let titles = TITLES_PER_VOLUME * self.volumes as u64;
        Swarm {
            seed: self.seed,
            duration,
            cores: self.cores,
            deliveries: self.deliveries,
            links: self.links,
            packet_servers: if self.datagrams > 0 { self.links } else { 0 },
            scattered: true,
            moves: Some(self.every),
            lateness: LATENESS,
            streams: all as u32,
            volumes: (0..self.volumes).map(|_| self.volume()).collect(),
            titles: (0..titles + self.titles_of_programs())
                .map(|number| self.title(number))
                .collect(),
            clients: (0..self.clients()).map(|number| self.client(number)).collect(),
            uploads: (0..self.uploads * self.volumes as u64)
                .map(|number| self.upload(number))
                .collect(),
            programs: (0..self.programs).map(Self::program).collect(),
            udp_outputs: vec![
                UdpOutputSpec::default();
                if self.datagrams > 0 { self.links } else { 0 }
            ],
            ..Swarm::quiet(duration)
        }
    }

    fn volume(&self) -> VolumeSpec {
        let streams = (self.streams + self.datagrams).div_ceil(self.volumes as u64);
        VolumeSpec {
            kind: DiskKind::Nvme,
            cycle: Nanos::from_millis(250),
            block: 256 << 10,
            places: (streams * PLACES_PER_STREAM) as u32,
            best_effort_depth: 4,
            share_thousandths: 900,
            // The bytes of an arena would take most of the time.
            memory: Memory::PageCache { ahead: 0 },
            write_path: (self.uploads > 0).then_some(WritePathSpec {
                places: 8,
                place: UPLOAD_PLACE,
                floor_thousandths: 50,
            }),
            faults: vec![],
            guess: None,
        }
    }

    /// One on each volume, behind those that only streams use.
    fn titles_of_programs(&self) -> u64 {
        if self.programs > 0 { self.volumes as u64 } else { 0 }
    }

    /// Titles are four times as long as the run, evenly spread over their disk.
    fn title(&self, number: u64) -> Title {
        let of_volume = number / self.volumes as u64;
        let is_for_all = of_volume >= TITLES_PER_VOLUME;
        Title {
            volume: number as usize % self.volumes,
            position: SPAN / TITLES_PER_VOLUME / MIB * MIB * (of_volume % TITLES_PER_VOLUME),
            audience: if is_for_all { Audience::Both } else { Audience::Paced },
            ..Title::paced(number, RATE.bytes_in(SECOND.times(4 * self.seconds)))
        }
    }

    /// Three percent more than places.
    fn clients(&self) -> u64 {
        (self.streams + self.datagrams) * 103 / 100
    }

    fn client(&self, number: u64) -> ClientSpec {
        let is_datagrams = (self.streams..self.streams + self.datagrams).contains(&number);
        let datagrams = DatagramSpec {
            udp_output: number as usize % self.links,
            is_rtp: number.is_multiple_of(2),
            is_v6: number.is_multiple_of(3),
            burst: Nanos(0),
            repeats: false,
        };
        let rate = if is_datagrams { DATAGRAM_RATE } else { RATE };
        ClientSpec {
            volume: number as usize % self.volumes,
            arrives: Nanos(number * ARRIVALS.0 / self.clients()),
            datagrams: is_datagrams.then_some(datagrams),
            ..ClientSpec::viewer(rate, SECOND.times(3 * self.seconds))
        }
    }

    fn program(number: u64) -> ProgramSpec {
        let is_liar = number % 4 == 3;
        let tolerance_thousandths = 500;
        let moments = MomentSpec { ahead: 6, tolerance_thousandths, len: Bytes(8192) };
        ProgramSpec {
            is_liar,
            arrives: ARRIVALS,
            lives: SECOND.times(2),
            rests: Nanos::from_millis(10),
            think: Nanos::from_millis(2),
            depth: 6,
            len_max: 16_384,
            looks: number.is_multiple_of(2).then_some(MILLISECOND),
            moments: (!is_liar).then_some(moments),
        }
    }

    fn upload(&self, number: u64) -> UploadSpec {
        UploadSpec {
            volume: number as usize % self.volumes,
            arrives: ARRIVALS,
            place: UPLOAD_PLACE,
            len_max: 4 * MIB,
            chunk: MIB,
            think: Nanos::from_millis(250),
            record: None,
            has_name: false,
            lasts: SECOND.times(self.seconds),
        }
    }
}
