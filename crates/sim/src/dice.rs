//! The only source of randomness: everything random in a world comes from its seed, through here.
//!
//! Promise: equal seeds give equal numbers on every machine. Each user has dice of its own
//! (`fork`), so the number of its draws does not change the numbers of the others. Not for secrets.

/// A stream of numbers: splitmix64 (Steele, Lea and Flood, 2014), a counter and a mix.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

/// The odd constant that splitmix64 counts by: 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Splitmix64's finaliser: every bit of the input changes half of the output's.
pub(crate) const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

impl Dice {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(mix(seed ^ GOLDEN))
    }

    /// Dice for one of many: equal for equal labels, whatever was drawn before.
    pub(crate) const fn fork(&self, label: u64) -> Self {
        Self(mix(self.0 ^ mix(label.wrapping_add(GOLDEN))))
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// A number from 0 to `below` - 1.
    pub(crate) const fn below(&mut self, below: u64) -> u64 {
        // The high half of the product: the bias is below 2^-32 for what is drawn here.
        ((self.next() as u128 * below as u128) >> 64) as u64
    }

    /// A number from `from` to `to`, both included.
    pub(crate) const fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    /// True `permille` times in a thousand.
    pub(crate) const fn chance(&mut self, permille: u64) -> bool {
        self.below(1000) < permille
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// A number from `from` to `to` whose logarithm is evenly spread: as many from 10 to 20 as from
    /// 1000 to 2000.
    pub(crate) fn spread(&mut self, from: u64, to: u64) -> u64 {
        assert!(0 < from && from <= to);
        let octaves = u64::from((to / from).ilog2());
        let low = from << self.below(octaves + 1);
        self.between(low, low.saturating_mul(2).min(to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_numbers_and_forks_do_not_disturb_each_other() {
        let (mut one, mut two) = (Dice::new(7), Dice::new(7));
        let forks = (one.fork(3), two.fork(3));
        assert_eq!(one.next(), two.next());
        let (mut one, mut two) = forks;
        assert_eq!(one.next(), two.next());
        assert_ne!(Dice::new(7).next(), Dice::new(8).next());
    }

    #[test]
    fn numbers_stay_within_their_bounds() {
        let mut dice = Dice::new(1);
        for _ in 0..10_000 {
            assert!((5..=9).contains(&dice.between(5, 9)));
            assert!((64_000..=200_000_000).contains(&dice.spread(64_000, 200_000_000)));
        }
    }
}
