//! Whether this program and its server share a processor, and what to do about it.
//!
//! Promise: where they do, neither waits awake for the other, which cannot run meanwhile. What the
//! two say about it are hints: if they are old, a request costs a wake-up more, and nothing else. A
//! thread that the kernel leaves there moves to another processor that it may use; where it may run
//! is the same afterwards.

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use tactus_core::local::{layout, processor_word};
use tactus_ring::shared::{SharedWord, Words};

/// Where the two sides run.
pub(crate) struct Neighbour {
    server: SharedWord,
    own: SharedWord,
    /// The processor that the server was last told.
    told: u64,
    /// Waits in a row on the processor of the server.
    waits: u32,
}

/// Waits in a row after which the kernel has had its chances to put the thread elsewhere. Each of
/// them ends with a wake-up, which is one.
const WAITS_MAX: u32 = 8;

impl Neighbour {
    pub(crate) fn new(words: Words) -> Self {
        Self {
            server: SharedWord::new(words.clone(), layout::SERVER_PROCESSOR),
            own: SharedWord::new(words, layout::CLIENT_PROCESSOR),
            told: 0,
            waits: 0,
        }
    }

    /// Tells the server where the calling thread is.
    pub(crate) fn tell(&mut self) {
        let here = here();
        if here != self.told {
            self.told = here;
            self.own.store(here);
        }
    }

    /// Whether the calling thread, which waits for a server that was rung for, is on its processor,
    /// as far as that is known. Moves it away after [`WAITS_MAX`] waits there.
    pub(crate) fn is_beside(&mut self) -> bool {
        if self.server.load() != here() {
            self.waits = 0;
            return false;
        }
        self.waits += 1;
        if self.waits < WAITS_MAX {
            return true;
        }
        self.waits = 0;
        leave();
        self.tell();
        self.server.load() == here()
    }
}

/// The processor of the calling thread. Never zero, which stands for a server that has not said
/// where it is.
fn here() -> u64 {
    processor_word(sched_getcpu() as u32)
}

/// Moves the calling thread to another of the processors that it may use, if there is one. It may
/// use the same ones afterwards.
fn leave() {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let mut others = allowed;
    others.unset(sched_getcpu());
    // Without another one, or where such calls are refused, it stays.
    if sched_setaffinity(None, &others).is_err() {
        return;
    }
    let mut all = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|processor| all.set(processor));
    // A thread without an affinity of its own gets all processors back, so that it may also use
    // those that come online later.
    let is_free = sched_setaffinity(None, &all).and_then(|()| sched_getaffinity(None));
    if is_free != Ok(allowed) {
        sched_setaffinity(None, &allowed).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The processors that a thread may use after it has left one of them, and whether it is
    /// elsewhere.
    fn left(allowed: CpuSet) -> (CpuSet, bool) {
        let apart = std::thread::spawn(move || {
            sched_setaffinity(None, &allowed).expect("processors that the test may use");
            let before = sched_getcpu();
            leave();
            (sched_getaffinity(None).expect("its processors"), sched_getcpu() != before)
        });
        apart.join().expect("no panic")
    }

    #[test]
    fn a_thread_that_leaves_its_processor_may_use_the_same_ones_afterwards() {
        let allowed = sched_getaffinity(None).expect("the processors of the test");
        let processors = (0..CpuSet::MAX_CPU).filter(|&processor| allowed.is_set(processor));
        let processors: Vec<_> = processors.collect();
        let mut one = CpuSet::new();
        one.set(processors[0]);
        assert_eq!(left(one), (one, false), "there is no other one");
        let mut all_but_one = allowed;
        all_but_one.unset(processors[0]);
        for some in [allowed, all_but_one].into_iter().filter(|some| some.count() > 1) {
            // The kernel may put it back at once, so it is asked more than once.
            let all: Vec<_> = (0..100).map(|_| left(some)).collect();
            assert!(all.iter().all(|(after, _)| *after == some));
            assert!(all.iter().any(|(_, has_left)| *has_left));
        }
    }
}
