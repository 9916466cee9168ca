//! Copying memory: out of the cache, and out of DRAM.

use std::hint::black_box;

use tactus_core::units::{KIB, MIB, Nanos};

use crate::clock;
use crate::report::{Floor, number};

const LONG_ENOUGH: Nanos = Nanos::from_millis(150);

/// Copies a working set that fits the second-level cache and one that fits none.
pub(super) fn measure() -> Vec<Floor> {
    let sizes = [("memcpy, 256 KiB", 256 * KIB), ("memcpy, 256 MiB", 256 * MIB)];
    sizes.map(|(name, size)| copy(name, size as usize)).into()
}

fn copy(name: &str, size: usize) -> Floor {
    // The working set is source and target together.
    let (source, mut target) = (vec![1_u8; size / 2], vec![2_u8; size / 2]);
    let start = clock::now();
    let mut copied = 0_u64;
    while clock::now().since(start) < LONG_ENOUGH {
        black_box(&mut target).copy_from_slice(black_box(&source));
        copied += source.len() as u64;
    }
    let nanos = clock::now().since(start).0 as f64;
    let (rate, cost) = (copied as f64 / nanos, nanos / copied as f64);
    let value = format!("{} GB/s = {} s/GB", number(rate), number(cost));
    Floor::new(name, value, &[("GB/s", rate), ("s/GB", cost)])
}
