//! The trace of a run, as one number: two runs with equal hashes had the same events at the same
//! times.

use crate::dice::mix;

/// A running hash of all events. It need not be cryptographic.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Trace(u64);

impl Trace {
    #[inline]
    pub(crate) const fn note(&mut self, what: u64) {
        self.0 = (self.0.rotate_left(23) ^ what).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    #[inline]
    pub(crate) const fn note_all<const N: usize>(&mut self, what: [u64; N]) {
        let mut at = 0;
        while at < N {
            self.note(what[at]);
            at += 1;
        }
    }

    pub(crate) const fn hash(self) -> u64 {
        mix(self.0)
    }
}
