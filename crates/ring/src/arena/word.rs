//! One place's state, count and generation, packed so that they change together.
//!
//! Promise: `Word::new(s, c, g)` returns `s`, `c` and `g`. It allows any change; the arena decides
//! which changes are valid.

/// The state of a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Free = 0,
    InKernel = 1,
    Ready = 2,
    Lent = 3,
}

/// Generation in the upper half; below it the count (30 bits) and the state (2 bits).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Word(pub(super) u64);

const STATE_BITS: u32 = 2;
const GENERATION_SHIFT: u32 = 32;

impl Word {
    /// Limit of the leases or writes of one block at a time.
    pub(super) const COUNT_MAX: u32 = u32::MAX >> STATE_BITS;
    /// The word of a place that has never been used.
    pub(super) const FIRST: Self = Self(0);

    pub(super) const fn new(state: State, count: u32, generation: u32) -> Self {
        assert!(count <= Self::COUNT_MAX, "more leases than a block can count");
        let low = (count << STATE_BITS) | state as u32;
        Self(((generation as u64) << GENERATION_SHIFT) | low as u64)
    }

    /// The next generation of a Free place.
    ///
    /// # Panics
    /// If the place is not Free: the keeper's list of free places would be wrong.
    pub(super) fn taken(self) -> Self {
        assert!(self.state() == State::Free && self.count() == 0, "{self:?} is not free");
        // A generation returns after 2^32 uses of one place. No reference lasts that long: a lease
        // or a write in the kernel keeps its block from being freed even once.
        Self::new(State::InKernel, 0, self.generation().wrapping_add(1))
    }

    pub(super) const fn state(self) -> State {
        match self.0 & ((1 << STATE_BITS) - 1) {
            0 => State::Free,
            1 => State::InKernel,
            2 => State::Ready,
            _ => State::Lent,
        }
    }

    pub(super) const fn count(self) -> u32 {
        (self.0 as u32) >> STATE_BITS
    }

    pub(super) const fn generation(self) -> u32 {
        (self.0 >> GENERATION_SHIFT) as u32
    }
}

impl std::fmt::Debug for Word {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} x {} in life {}", self.state(), self.count(), self.generation())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_gives_back_what_was_packed() {
        for state in [State::Free, State::InKernel, State::Ready, State::Lent] {
            for count in [0, 1, Word::COUNT_MAX - 1, Word::COUNT_MAX] {
                for generation in [0, 1, u32::MAX] {
                    let word = Word::new(state, count, generation);
                    assert_eq!((word.state(), word.count()), (state, count));
                    assert_eq!(word.generation(), generation);
                }
            }
        }
    }

    #[test]
    fn generations_wrap_without_touching_the_state() {
        let last = Word::new(State::Free, 0, u32::MAX);
        assert_eq!(last.taken(), Word::new(State::InKernel, 0, 0));
    }
}
