//! Memory: copies within the cache and within DRAM, and the first touch of free memory.

use std::hint::black_box;

use anyhow::{Context, Result};
use rustix::thread::{disable_transparent_huge_pages, transparent_huge_pages_are_disabled};
use tactus_core::units::{KIB, MIB, Nanos};

use crate::clock;
use crate::report::{Floor, number};
use crate::spread;

const LONG_ENOUGH: Nanos = Nanos::from_millis(150);
/// Free memory that is touched: a second where the host has to give each page.
const TOUCHED: usize = 64 * MIB as usize;
/// Timed together: the size of a block of flash.
const BLOCK: usize = 256 * KIB as usize;
const PAGE: usize = 4 * KIB as usize;

/// The first touch of free memory, page by page. A virtual machine that gives free memory to its
/// host waits here for each page, as does all that comes into its page cache from a disk.
pub(super) fn first_touch() -> Result<Vec<Floor>> {
    let were_disabled = transparent_huge_pages_are_disabled()?;
    disable_transparent_huge_pages(true)?;
    let mut blocks = touch();
    disable_transparent_huge_pages(were_disabled)?;
    let lack = "no block was touched";
    let mean = spread::mean(&blocks).context(lack)?;
    let p99 = spread::quantile(&mut blocks, 0.99).context(lack)?;
    let value = format!("mean {} us, p99 of 256 KiB {} us", number(mean), number(p99));
    let figures = [("mean, us", mean), ("p99, us", p99)];
    Ok(vec![Floor::new("first touch of 4 KiB of free memory", value, &figures)])
}

/// Microseconds for each page, block by block.
fn touch() -> Vec<f64> {
    // The allocator takes this from the kernel, which gives the pages as they are written.
    let mut memory = vec![0_u8; TOUCHED];
    let blocks = memory.chunks_mut(BLOCK).map(|block| {
        let start = clock::now();
        black_box(block).iter_mut().step_by(PAGE).for_each(|first| *first = 1);
        clock::now().since(start).0 as f64 / 1e3 / (BLOCK / PAGE) as f64
    });
    blocks.collect()
}

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
