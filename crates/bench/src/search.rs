//! The largest count that holds, found with few trials.
//!
//! Promise: the answer was tried and held `CONFIRMATIONS` times; the next larger count that was
//! tried did not. It assumes that what holds for a count holds for every smaller one, and gives way
//! by one where chance says otherwise.

use anyhow::Result;

/// How often the answer must hold.
const CONFIRMATIONS: usize = 3;

/// Finds the largest count in `0..=most` for which `hold` answers true, starting at `guess`: first
/// in steps that double, then by halves. A good guess costs one trial beyond it.
pub fn largest(
    guess: usize,
    most: usize,
    mut hold: impl FnMut(usize) -> Result<bool>,
) -> Result<usize> {
    let (mut held, mut failed) = (0, most + 1);
    let mut next = guess.clamp(1, most);
    let mut step = 1;
    while failed - held > 1 {
        if hold(next)? {
            held = next;
        } else {
            failed = next;
        }
        next = match (held, failed > most) {
            (0, _) => failed.saturating_sub(step).max(1),
            (_, true) => (held + step).min(most),
            (_, false) => held + (failed - held) / 2,
        };
        step *= 2;
    }
    // One trial has held already, unless the count is lowered.
    let mut needed = CONFIRMATIONS - 1;
    while held > 0 {
        let mut all = true;
        for _ in 0..needed {
            all = all && hold(held)?;
        }
        if all {
            break;
        }
        (held, needed) = (held - 1, CONFIRMATIONS);
    }
    Ok(held)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(guess: usize, most: usize, truth: usize) -> (usize, usize) {
        let mut trials = 0;
        let found = largest(guess, most, |count| {
            trials += 1;
            Ok(count <= truth)
        });
        (found.unwrap(), trials)
    }

    #[test]
    fn every_capacity_is_found_from_every_guess() {
        for truth in 0..=40 {
            for guess in [1, 8, 40] {
                assert_eq!(find(guess, 40, truth).0, truth);
            }
        }
        assert_eq!(find(8, 40, 1_000).0, 40);
    }

    #[test]
    fn few_trials_suffice() {
        for (guess, truth, most) in
            [(8, 97, 17), (97, 97, 4), (96, 97, 6), (98, 97, 4), (56, 3, 15)]
        {
            let (found, trials) = find(guess, 128, truth);
            assert_eq!(found, truth);
            assert!(trials <= most, "{trials} trials from {guess} to {truth}");
        }
    }

    #[test]
    fn a_count_that_holds_only_now_and_then_is_not_the_answer() {
        let mut trials = 0;
        let found = largest(20, 100, |count| {
            trials += 1;
            Ok(count <= 18 || (count <= 20 && trials % 2 == 1))
        });
        assert_eq!(found.unwrap(), 18);
    }
}
