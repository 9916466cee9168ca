//! The whole profile of a volume: service times by size, depth and direction, the seek curve of a
//! hard disk, and the resulting model.
//!
//! Promise: it takes about as long as the budgets of its steps, whatever the disk; each budget ends
//! with the requests that are under way.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use tactus_core::disk_model::DiskModel;
use tactus_core::units::{BitRate, Bytes, KIB, MIB, Nanos};

use super::device::{self, Disk};
use super::fit::{self, AtDepth, Point, SpinningDisk};
use super::rig::{self, Load, Order, Timing};
use super::scratch::{self, PIECE, Scratch};

/// All measurements.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Profile {
    /// The resulting model.
    pub model: DiskModel,
    /// The day and time, in the form of HTTP.
    pub measured: String,
    /// The device; `None` for file systems without one.
    pub device: Option<Disk>,
    /// The kernel's release.
    pub kernel: String,
    /// The file system's kind.
    pub file_system: String,
    /// Size of the scratch file.
    pub scratch: Bytes,
    /// Times by size, depth and direction.
    pub services: Vec<Service>,
    /// The seek curve; empty for flash.
    pub seeks: Vec<Seek>,
}

/// Random requests of one size at one depth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Service {
    /// Whether these are writes.
    pub writes: bool,
    /// Bytes of each request.
    pub size: Bytes,
    /// Requests at the device.
    pub depth: u32,
    /// Half of the requests were faster.
    pub p50: Nanos,
    /// 99 of 100 were faster.
    pub p99: Nanos,
    /// The rate of all requests together.
    pub rate: BitRate,
}

/// One point of the seek curve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seek {
    /// The distance of the seek, in thousandths of the disk.
    pub distance_thousandths: u32,
    /// Half of the reads were faster: seek, rotation and a short transfer.
    pub time: Nanos,
}

/// The effort of a measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Effort {
    /// Upper bound of the scratch file.
    pub scratch: Bytes,
    /// Time for each size and depth.
    pub each: Duration,
}

impl Default for Effort {
    fn default() -> Self {
        Self { scratch: Bytes(1024 * MIB), each: Duration::from_millis(400) }
    }
}

/// Shows the progress of a measurement.
pub trait Progress {
    /// Begins another step; `share` of the whole is done.
    fn step(&mut self, what: &str, share: f64);
}

/// Sizes of random requests.
const SIZES: [u64; 7] = [64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB, MIB, 2 * MIB, 4 * MIB];
/// Depths at which they are measured.
const DEPTHS: [u32; 6] = [1, 2, 4, 8, 16, 32];
/// Depths of writes: the engine never has more than four at a device.
const WRITE_DEPTHS: [u32; 2] = [1, 4];
/// The size at which the depth is chosen: a block on flash.
const BLOCK: u64 = 256 * KIB;
/// Visits of a measured sweep.
const SWEEPS: [u64; 4] = [4, 16, 64, 192];
/// Distances of the seek curve, in thousandths of the disk.
const DISTANCES: [u32; 8] = [1, 4, 16, 62, 125, 250, 500, 1000];
/// Upper bound of the offsets in one load.
const REQUESTS_MAX: usize = 4096;
/// A difference of this much between adjacent and distant offsets shows a hard disk: see `quick`.
const ARM_MIN: Nanos = Nanos::from_millis(2);

/// Measures the volume of `dir`.
///
/// # Errors
/// When there is no room for scratch data, O_DIRECT is not supported, or the disk fails.
pub fn measure(dir: &Path, effort: Effort, watch: &mut dyn Progress) -> io::Result<Profile> {
    let device = device::of(dir);
    let file_system = tactus_sys::probe::volume(dir)?.file_system;
    let mut filled = 0;
    let (scratch, written) = Scratch::fill(dir, effort.scratch, &mut |bytes| {
        filled += bytes;
        let share = filled as f64 / effort.scratch.0.max(1) as f64;
        watch.step("writing scratch data", 0.2 * share.min(1.0));
    })?;
    let write_mib = Nanos(written.per_request().0 * MIB / PIECE);
    let mut run = Run { scratch, effort, watch, services: vec![], done: 0, seed: 1 };
    let has_arm = run.has_arm()?;
    run.reads(has_arm)?;
    run.writes()?;
    let flush = run.flush(dir)?;
    let (model, seeks) =
        if has_arm { run.arm(device.as_ref(), write_mib)? } else { (run.flash(write_mib), vec![]) };
    run.watch.step("done", 1.0);
    Ok(Profile {
        model: DiskModel { flush, ..model },
        measured: httpdate::fmt_http_date(SystemTime::now()),
        device,
        kernel: device::kernel(),
        file_system,
        scratch: run.scratch.size,
        services: run.services,
        seeks,
    })
}

struct Run<'a> {
    scratch: Scratch,
    effort: Effort,
    watch: &'a mut dyn Progress,
    services: Vec<Service>,
    done: u32,
    seed: u64,
}

impl Run<'_> {
    fn step(&mut self, what: &str) {
        let steps = (SIZES.len() * (DEPTHS.len() + WRITE_DEPTHS.len())) as f64;
        self.watch.step(what, 0.2 + 0.7 * (f64::from(self.done) / steps).min(1.0));
        self.done += 1;
    }

    fn has_arm(&mut self) -> io::Result<bool> {
        let time = |order| -> io::Result<Nanos> {
            let offsets = self.scratch.offsets(order, 64 * KIB, 48, 5);
            let load = Load::reads(&self.scratch.file, offsets, 64 * KIB, 1);
            Ok(rig::run(&load, None)?.quantile(0.5))
        };
        let (near, far) = (time(Order::Sequential)?, time(Order::Random)?);
        Ok(far > near.times(3) && far > near + ARM_MIN)
    }

    fn reads(&mut self, has_arm: bool) -> io::Result<()> {
        // A hard disk gains nothing from deep queues, and each of its requests takes long.
        let deepest = if has_arm { 4 } else { 32 };
        for size in SIZES {
            for depth in DEPTHS.into_iter().filter(|&depth| depth <= deepest) {
                self.step(&format!("reading {} at depth {depth}", Bytes(size)));
                self.service(size, depth, false)?;
            }
        }
        Ok(())
    }

    fn writes(&mut self) -> io::Result<()> {
        for size in SIZES {
            for depth in WRITE_DEPTHS {
                self.step(&format!("writing {} at depth {depth}", Bytes(size)));
                self.service(size, depth, true)?;
            }
        }
        Ok(())
    }

    /// The planned time of a flush, from flushes of a new file with bytes in newly allocated
    /// blocks, as after an upload. Such a flush also writes the file system's journal, and takes a
    /// hundred times as long on a hard disk as a flush of bytes alone.
    fn flush(&mut self, dir: &Path) -> io::Result<Nanos> {
        self.step("flushing");
        // Earlier steps have left data to write that is not an upload's: neither this nor the first
        // flush, which may still include it, counts.
        rustix::fs::syncfs(File::open(dir)?)?;
        flush(dir)?;
        let mut times = [Nanos(0); FLUSHES];
        for time in &mut times {
            *time = flush(dir)?;
        }
        Ok(planned_flush(&mut times))
    }

    fn service(&mut self, size: u64, depth: u32, writes: bool) -> io::Result<()> {
        self.seed += 1;
        let offsets = self.scratch.offsets(Order::Random, size, REQUESTS_MAX, self.seed);
        let file = &self.scratch.file;
        let load = match writes {
            true => Load::writes(file, offsets, size, depth as usize),
            false => Load::reads(file, offsets, size, depth as usize),
        };
        let timing = rig::run(&load, Some(self.effort.each))?;
        let nanos = timing.wall.as_nanos().max(1);
        self.services.push(Service {
            writes,
            size: Bytes(size),
            depth,
            p50: timing.quantile(0.5),
            p99: timing.quantile(0.99),
            rate: BitRate((u128::from(timing.bytes) * 8_000_000_000 / nanos) as u64),
        });
        Ok(())
    }

    fn flash(&self, write_mib: Nanos) -> DiskModel {
        let reads = || self.services.iter().filter(|service| !service.writes);
        let depth = chosen_depth(reads());
        let point = |service: &Service| Point {
            visits: 1,
            bytes: service.size,
            time: service.rate.time_for(service.size),
        };
        let at_depth = reads().filter(|service| service.depth == depth && service.rate.0 > 0);
        let points: Vec<_> = at_depth.map(point).collect();
        fit::flash(&points, write_mib, depth)
    }

    /// Sweeps and the seek curve: on the whole disk if it can be read, else on the scratch file.
    fn arm(
        &mut self,
        device: Option<&Disk>,
        write_mib: Nanos,
    ) -> io::Result<(DiskModel, Vec<Seek>)> {
        let whole = device.and_then(|device| {
            let disk = rig::open_direct(&Path::new("/dev").join(&device.name)).ok()?;
            Some((disk, device.size))
        });
        let (file, span, share) = match &whole {
            Some((disk, size)) => (disk, *size, 1000),
            None => {
                let disk = device.map_or(self.scratch.size, |device| device.size);
                let share = self.scratch.size.0 as u128 * 1000 / u128::from(disk.0.max(1));
                (&self.scratch.file, self.scratch.size, share.clamp(1, 1000) as u32)
            }
        };
        let offsets = rig::offsets(Order::Sequential, self.scratch.size, MIB, 128, 0);
        let long = rig::run(
            &Load::reads(&self.scratch.file, offsets, MIB, 2),
            Some(self.effort.each * 5),
        )?;
        let mut points = vec![];
        for (index, visits) in SWEEPS.into_iter().enumerate() {
            self.watch.step(&format!("sweeping over {visits} places"), 0.9 + 0.02 * index as f64);
            points.push(sweep(file, span, visits)?);
        }
        let mut seeks = vec![];
        let mut spreads = [Nanos(0); DISTANCES.len()];
        for (distance_thousandths, spread) in DISTANCES.into_iter().zip(&mut spreads) {
            self.watch.step("following the seek curve", 0.98);
            let timing = seek(file, span, distance_thousandths)?;
            *spread = timing.spread();
            seeks.push(Seek { distance_thousandths, time: timing.quantile(0.5) });
        }
        // Two requests: the disk knows the next offset while it reads this one.
        let long_read = Point { visits: 1, bytes: Bytes(MIB), time: long.per_request() };
        // Over one distance only the rotation differs, and it is the same for all. The median is
        // without the distances in which the host paused.
        spreads.sort_unstable();
        let spread = spreads[DISTANCES.len() / 2];
        let arm = SpinningDisk { sweeps: &points, long_read, spread, span_thousandths: share };
        let model = fit::spinning(&arm, write_mib, ARM_DEPTH);
        Ok((model, seeks))
    }
}

/// The time of one flush of a new file.
fn flush(dir: &Path) -> io::Result<Nanos> {
    let fresh = scratch::fresh(dir, Bytes(FRESH))?;
    let offsets = (0..FRESH).step_by(BLOCK as usize).collect();
    rig::run(&Load::writes(&fresh, offsets, BLOCK, 4), None)?;
    let begun = Instant::now();
    fresh.sync_all()?;
    Ok(Nanos(begun.elapsed().as_nanos() as u64))
}

/// Twice the second longest time. The longest is left out, because a single pause of the machine
/// during the measurement would otherwise reserve its time in every cycle for ever. A disk that
/// pauses more often shows it twice in these flushes.
fn planned_flush(times: &mut [Nanos; FLUSHES]) -> Nanos {
    times.sort_unstable();
    times[FLUSHES - 2].times(2).max(FLUSH_MIN)
}

/// Flushes that are measured.
const FLUSHES: usize = 48;
/// Bytes that are written before each flush.
const FRESH: u64 = MIB;
/// Least planned time of a flush: a volatile file system needs no time at all.
const FLUSH_MIN: Nanos = Nanos::from_micros(100);

/// Requests at a hard disk: one is being read, one is known.
const ARM_DEPTH: u32 = 2;

fn chosen_depth<'a>(reads: impl Iterator<Item = &'a Service>) -> u32 {
    let blocks = reads.filter(|service| service.size == Bytes(BLOCK) && service.rate.0 > 0);
    let at: Vec<_> =
        blocks.map(|s| AtDepth { depth: s.depth, per_request: s.rate.time_for(s.size) }).collect();
    fit::depth(&at)
}

/// The mean of several sweeps with `visits` visits.
fn sweep(file: &File, span: Bytes, visits: u64) -> io::Result<Point> {
    let rounds = (SWEEP_PLACES / visits).clamp(2, 16);
    let mut time = Nanos(0);
    for seed in 0..rounds {
        let offsets = rig::offsets(Order::Sweep, span, LOOK, visits as usize, 100 + seed);
        let timing = rig::run(&Load::reads(file, offsets, LOOK, ARM_DEPTH as usize), None)?;
        time += Nanos(timing.wall.as_nanos() as u64);
    }
    Ok(Point { visits, bytes: Bytes(visits * LOOK), time: Nanos(time.0 / rounds) })
}

/// Visits of all sweeps of one length together: two to four seconds.
const SWEEP_PLACES: u64 = 256;

/// Reads that alternate over a distance. Both ends move downwards, so that the disk's read-ahead
/// covers none of them.
fn seek(file: &File, span: Bytes, distance_thousandths: u32) -> io::Result<Timing> {
    let step = MIB;
    let room = span.0.saturating_sub(LOOK + SEEKS * step);
    let distance =
        (u128::from(room) * u128::from(distance_thousandths) / 1000) as u64 / 4096 * 4096;
    let offsets = (0..SEEKS).rev().flat_map(|index| [index * step, index * step + distance]);
    rig::run(&Load::reads(file, offsets.collect(), LOOK, 1), Some(Duration::from_secs(1)))
}

const LOOK: u64 = 64 * KIB;
const SEEKS: u64 = 16;

impl Profile {
    /// The device's name, or `unknown`.
    pub fn device_name(&self) -> &str {
        self.device.as_ref().map_or("unknown", |device| device.name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Steps(Vec<f64>);

    impl Progress for Steps {
        fn step(&mut self, _: &str, share: f64) {
            self.0.push(share);
        }
    }

    #[test]
    fn one_pause_is_not_planned_for_but_two_are() {
        let usual = Nanos::from_millis(10);
        let mut times = [usual; FLUSHES];
        times[7] = Nanos::from_millis(650);
        assert_eq!(planned_flush(&mut times.clone()), Nanos::from_millis(20));
        times[30] = Nanos::from_millis(100);
        assert_eq!(planned_flush(&mut times), Nanos::from_millis(200));
        assert_eq!(planned_flush(&mut [Nanos(0); FLUSHES]), FLUSH_MIN);
    }

    #[test]
    fn a_whole_profile_covers_all_sizes_and_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let mut steps = Steps(vec![]);
        let effort = Effort { scratch: Bytes(32 * MIB), each: Duration::from_millis(2) };
        let profile = measure(dir.path(), effort, &mut steps).unwrap();
        for size in SIZES {
            let of_size = |writes| {
                profile.services.iter().filter(move |s| s.size.0 == size && s.writes == writes)
            };
            assert!(of_size(false).count() >= 3 && of_size(true).count() == 2);
        }
        assert!(profile.services.iter().all(|s| s.rate.0 > 0 && s.p50 <= s.p99));
        assert!(profile.model.read_mib > Nanos(0) && profile.model.write_mib > Nanos(0));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(steps.0.is_sorted() && steps.0.last() == Some(&1.0), "{:?}", steps.0);
    }
}
