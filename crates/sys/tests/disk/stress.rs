//! The kernel-memory rule under chance: ports come and go with reads in flight, over one arena.
//!
//! Every completed read is compared with the file. What was in flight when a port went is taken
//! again at once, filled with a pattern and lent through the next port's life: a late write by the
//! kernel would show in it. `TACTUS_STRESS_READS` sets how many reads (20,000 by default),
//! `TACTUS_STRESS_SEED` the seed.

use tactus_core::ports::{DiskPort, Transfer};
use tactus_ring::arena::Lease;
use tactus_sys::clock;

use crate::fixture::{BLOCK, Fixture, METHODS, block_of, mix};

const PLACES: u32 = 48;
const DEPTH: u32 = 24;
const PATTERN: u8 = 0xA5;

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0) % bound
    }
}

#[test]
fn ports_that_go_with_reads_in_flight_leave_memory_and_contents_right() {
    let reads = from_environment("TACTUS_STRESS_READS", 20_000);
    let seed = from_environment("TACTUS_STRESS_SEED", u64::from(std::process::id()));
    println!("seed {seed}");
    let mut chance = Chance(mix(seed));
    let mut fixture = Fixture::new(PLACES, (8 << 20) + 1234);
    let (mut submitted, mut completed, mut abandoned) = (0, 0, 0);
    let mut patterned = Vec::new();
    while submitted < reads {
        let mut device = fixture.open(METHODS[chance.below(3) as usize], DEPTH);
        let mut running: Vec<Transfer> = Vec::new();
        for _ in 0..chance.below(16) {
            for _ in 0..chance.below(12) {
                if running.len() as u32 == DEPTH {
                    break;
                }
                let transfer = any_transfer(&mut fixture, &mut chance);
                device.submit(clock::now(), transfer).unwrap();
                running.push(transfer);
                submitted += 1;
            }
            if chance.below(4) > 0 {
                device.kick(clock::now());
            }
            // Some turns have the patience to see completions; the others leave early.
            let mut patience = u64::from(chance.below(6) == 0) * 1000;
            for _ in 0..chance.below(20) {
                let completion = loop {
                    match device.poll_completion(clock::now()) {
                        None if patience > 0 && device.in_flight() > 0 => patience -= 1,
                        ended => break ended,
                    }
                    std::thread::yield_now();
                };
                let Some(completion) = completion else { break };
                let known = running.iter().position(|it| *it == completion.transfer);
                running.swap_remove(known.expect("each transfer completes once"));
                fixture.check(completion);
                completed += 1;
            }
            assert_eq!(device.in_flight() as usize, running.len());
        }
        drop(device);
        abandoned += running.len();
        for lease in patterned.drain(..) {
            check_pattern(&mut fixture, lease);
        }
        patterned.extend(running.into_iter().map(|transfer| take_again(&mut fixture, transfer)));
    }
    for lease in patterned.drain(..) {
        check_pattern(&mut fixture, lease);
    }
    assert_eq!(fixture.keeper.counts().free, PLACES, "every block came back");
    println!("{submitted} reads: {completed} completed and compared, {abandoned} abandoned");
    assert!(completed > 0 && abandoned > 0);
    assert_eq!(submitted, completed + abandoned as u64);
}

fn any_transfer(fixture: &mut Fixture, chance: &mut Chance) -> Transfer {
    let sectors = u64::from(BLOCK) / 4096;
    let at = chance.below(sectors);
    let len = 1 + chance.below(sectors - at);
    // Up to and beyond the end of the file.
    let offset = chance.below(fixture.file_len / 4096 + 3);
    let mut transfer = fixture.transfer(offset * 4096, (len * 4096) as u32);
    transfer.at = (at * 4096) as u32;
    transfer
}

/// Frees the block of a transfer whose port is gone, and lends it with the pattern.
fn take_again(fixture: &mut Fixture, transfer: Transfer) -> Lease {
    // Stops the program if the kernel still has it.
    fixture.keeper.failed(block_of(transfer));
    let block = fixture.keeper.take().unwrap();
    assert_eq!(block.place, transfer.block.place);
    fixture.view.fill(block, 0, &[PATTERN; BLOCK as usize]);
    fixture.keeper.filled(block);
    fixture.keeper.lend(block)
}

fn check_pattern(fixture: &mut Fixture, lease: Lease) {
    assert!(fixture.view.bytes(&lease) == [PATTERN; BLOCK as usize], "a late write by the kernel");
    fixture.free(lease);
}
