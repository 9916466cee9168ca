//! The arena against its promises.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

const BLOCK: u32 = 4096;

fn small(places: u32) -> (ArenaOwner, View) {
    arena(Box::new(HeapRegion::new((places * BLOCK) as usize)), BLOCK)
}

/// Whether `act` stopped the program.
fn stops<R>(act: impl FnOnce() -> R) -> bool {
    catch_unwind(AssertUnwindSafe(|| {
        act();
    }))
    .is_err()
}

#[test]
fn a_block_goes_round_and_comes_back_in_a_new_life() {
    let (mut keeper, view) = small(2);
    assert_eq!(keeper.counts(), Counts { free: 2, ..Counts::default() });
    let block = keeper.take().unwrap();
    view.fill(block, 0, &[7; 4096]);
    keeper.filled(block);
    let first = keeper.lend(block);
    let second = keeper.lend(block);
    assert_eq!(keeper.counts(), Counts { free: 1, lent: 1, ..Counts::default() });
    assert_eq!(view.bytes(&first), [7; 4096]);
    assert!(!keeper.give_back(first));
    assert_eq!(view.bytes(&second), [7; 4096]);
    assert!(keeper.give_back(second));
    keeper.evict(block);
    let again = keeper.take().unwrap();
    assert_eq!(again.place, block.place, "the place freed last is taken first");
    assert_eq!(again.generation, block.generation + 1);
    keeper.failed(again);
    assert_eq!(keeper.counts(), Counts { free: 2, ..Counts::default() });
}

#[test]
fn a_place_of_a_write_share_is_free_when_the_device_has_read_all_of_it() {
    let (mut keeper, view) = small(1);
    let block = keeper.take().unwrap();
    view.fill(block, 0, &[7; 4096]);
    let mut copied = [0; 100];
    view.copy_out(block, 4000 - 4, &mut copied);
    assert_eq!(copied, [7; 100]);
    let (first, second) = (view.target(block, 0, 2048), view.target(block, 2048, 2048));
    for target in [first, second] {
        // SAFETY: the place is InKernel, and only read until both accesses have landed.
        assert_eq!(unsafe { target.read() }, 7);
    }
    // SAFETY: there is no kernel here.
    unsafe { view.landed(block) };
    assert!(stops(|| keeper.emptied(block)), "one piece is still being read");
    // SAFETY: as above.
    unsafe { view.landed(block) };
    keeper.emptied(block);
    assert_eq!(keeper.counts(), Counts { free: 1, ..Counts::default() });
}

#[test]
fn a_place_that_is_being_filled_is_nobody_elses() {
    let (mut keeper, view) = small(1);
    let block = keeper.take().unwrap();
    let mut filling = view.filling(block);
    filling.bytes()[4095] = 9;
    assert!(stops(|| drop(view.filling(block))), "it is being filled");
    assert!(stops(|| view.fill(block, 0, &[1])), "it is being filled");
    assert!(stops(|| _ = view.target(block, 0, 4096)), "it is being filled");
    assert!(stops(|| keeper.emptied(block)), "it is being filled");
    drop(filling);
    let target = view.target(block, 4095, 1);
    // SAFETY: the place is InKernel, and only read until the access has landed.
    assert_eq!(unsafe { target.read() }, 9);
    assert!(stops(|| drop(view.filling(block))), "the device reads it");
    // SAFETY: there is no kernel here.
    unsafe { view.landed(block) };
    keeper.emptied(block);
    assert!(stops(|| drop(view.filling(block))), "it is free");
}

#[test]
fn a_rest_smaller_than_a_block_is_not_used() {
    let (mut keeper, view) = arena(Box::new(HeapRegion::new(2 * 4096 + 512)), BLOCK);
    assert_eq!((keeper.places(), view.places()), (2, 2));
    assert!(keeper.take().is_some() && keeper.take().is_some());
    assert_eq!(keeper.take(), None, "an arena does not grow");
}

#[test]
fn every_step_from_a_wrong_state_stops_the_program() {
    // Each block is brought into one state; then every step that the state does not allow is tried.
    type Transition = fn(&mut ArenaOwner, BlockRef);
    let reached: [(&str, Transition); 4] = [
        ("free", |keeper, block| keeper.failed(block)),
        ("in kernel", |_, _| ()),
        ("ready", |keeper, block| keeper.filled(block)),
        ("lent", |keeper, block| {
            keeper.filled(block);
            drop(keeper.lend(block));
        }),
    ];
    type Step = fn(&mut ArenaOwner, &View, BlockRef);
    let steps: [(&str, &[&str], Step); 6] = [
        ("filled", &["in kernel"], |keeper, _, block| keeper.filled(block)),
        ("failed", &["in kernel"], |keeper, _, block| keeper.failed(block)),
        ("lend", &["ready", "lent"], |keeper, _, block| drop(keeper.lend(block))),
        ("evict", &["ready"], |keeper, _, block| keeper.evict(block)),
        ("fill", &["in kernel"], |_, view, block| view.fill(block, 0, &[1])),
        ("target", &["in kernel"], |_, view, block| {
            let _target = view.target(block, 0, 1);
        }),
    ];
    for (state, bring) in reached {
        for (step, allowed, act) in steps {
            let (mut keeper, view) = small(1);
            let block = keeper.take().unwrap();
            bring(&mut keeper, block);
            let stopped = stops(|| act(&mut keeper, &view, block));
            assert_eq!(stopped, !allowed.contains(&state), "{step} on a block that is {state}");
        }
    }
}

#[test]
fn a_reference_from_an_earlier_life_stops_the_program() {
    let (mut keeper, view) = small(1);
    let old = keeper.take().unwrap();
    keeper.failed(old);
    let new = keeper.take().unwrap();
    assert!(stops(|| view.fill(old, 0, &[1])));
    assert!(stops(|| view.target(old, 0, 1)));
    assert!(stops(|| keeper.filled(old)));
    keeper.filled(new);
    assert!(stops(|| keeper.lend(old)));
    assert!(stops(|| keeper.evict(old)));
}

#[test]
fn a_lease_of_another_arena_opens_nothing() {
    let (mut keeper, _) = small(1);
    let (mut other_keeper, other_view) = small(1);
    let blocks = [&mut keeper, &mut other_keeper].map(|keeper| {
        let block = keeper.take().unwrap();
        keeper.filled(block);
        block
    });
    assert_eq!(blocks[0], blocks[1]);
    let lease = keeper.lend(blocks[0]);
    let other_lease = other_keeper.lend(blocks[1]);
    assert!(stops(|| other_view.bytes(&lease).len()));
    assert!(stops(|| other_keeper.give_back(lease)));
    assert!(other_keeper.give_back(other_lease));
}

#[test]
fn a_block_stays_in_the_kernel_until_every_write_has_landed() {
    let (mut keeper, view) = small(1);
    let block = keeper.take().unwrap();
    let first = view.target(block, 0, 1024);
    let second = view.target(block, 1024, 3072);
    assert_eq!(second.as_ptr() as usize - first.as_ptr() as usize, 1024);
    assert!(stops(|| keeper.filled(block)));
    assert!(stops(|| view.fill(block, 0, &[1])), "a copy needs the block for itself");
    // SAFETY: no kernel has received these writes.
    unsafe { view.landed(block) };
    assert!(stops(|| keeper.failed(block)));
    // SAFETY: as above.
    unsafe { view.landed(block) };
    // SAFETY: as above.
    assert!(stops(|| unsafe { view.landed(block) }), "only what is under way can land");
    keeper.filled(block);
}

#[test]
fn nothing_reaches_beyond_its_block() {
    let (mut keeper, view) = small(2);
    let block = keeper.take().unwrap();
    assert!(stops(|| view.fill(block, 1, &[0; 4096])));
    assert!(stops(|| view.target(block, 4096, 1)));
    assert!(stops(|| view.target(block, u32::MAX, u32::MAX)));
    view.fill(block, 4096, &[]);
    keeper.filled(block);
}

#[test]
fn counts_agree_with_a_model_over_many_lives() {
    let (mut keeper, view) = small(5);
    let (mut in_kernel, mut ready, mut leases) = (Vec::new(), Vec::new(), Vec::new());
    let mut step = 1_u32;
    for round in 0..20_000_u32 {
        step = step.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let pick = |len: usize| (step >> 8) as usize % len;
        match step >> 29 {
            0 | 1 => match keeper.take() {
                Some(block) => {
                    view.fill(block, 0, &round.to_le_bytes());
                    in_kernel.push((block, round));
                }
                None => assert_eq!(keeper.counts().free, 0),
            },
            2 if !in_kernel.is_empty() => {
                let (block, written) = in_kernel.swap_remove(pick(in_kernel.len()));
                keeper.filled(block);
                ready.push((block, written));
            }
            3 if !in_kernel.is_empty() => {
                keeper.failed(in_kernel.swap_remove(pick(in_kernel.len())).0);
            }
            4 | 5 if !ready.is_empty() => {
                let (block, written) = ready[pick(ready.len())];
                leases.push((keeper.lend(block), written));
            }
            6 if !leases.is_empty() => {
                let (lease, written) = leases.swap_remove(pick(leases.len()));
                assert_eq!(view.bytes(&lease)[..4], written.to_le_bytes());
                let block = lease.block();
                let others = leases.iter().any(|(other, _)| other.block() == block);
                assert_eq!(keeper.give_back(lease), !others);
            }
            7 if !ready.is_empty() => {
                let at = pick(ready.len());
                let block = ready[at].0;
                if !leases.iter().any(|(lease, _)| lease.block() == block) {
                    keeper.evict(ready.swap_remove(at).0);
                }
            }
            _ => (),
        }
        let lent = ready
            .iter()
            .filter(|(block, _)| leases.iter().any(|(lease, _)| lease.block() == *block));
        let lent = lent.count() as u32;
        let expected = Counts {
            free: 5 - in_kernel.len() as u32 - ready.len() as u32,
            in_kernel: in_kernel.len() as u32,
            ready: ready.len() as u32 - lent,
            lent,
        };
        assert_eq!(keeper.counts(), expected);
    }
}

#[test]
fn of_blocks_elsewhere_the_place_freed_first_is_taken_first() {
    let mut keeper = elsewhere(2, 4096);
    let blocks = [keeper.take().unwrap(), keeper.take().unwrap()];
    for block in blocks {
        keeper.failed(block);
    }
    let again = [keeper.take().unwrap(), keeper.take().unwrap()];
    assert_eq!(again.map(|block| block.place), blocks.map(|block| block.place));
}

#[test]
fn a_sole_lease_says_so_and_is_the_first_of_its_block() {
    let (mut keeper, _) = small(1);
    let block = keeper.take().unwrap();
    assert!(stops(|| drop(keeper.lend_solely(block))), "it is still being filled");
    keeper.filled(block);
    let lease = keeper.lend_solely(block);
    assert!(lease.is_sole());
    assert_eq!(keeper.counts().lent, 1);
    assert!(stops(|| drop(keeper.lend_solely(block))), "it is lent");
    assert!(keeper.give_back(lease));
    let other = keeper.lend(block);
    assert!(!other.is_sole());
    assert!(keeper.give_back(other));
}
