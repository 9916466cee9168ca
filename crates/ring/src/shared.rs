//! Rings and bytes in memory that another process shares.
//!
//! Promise: whatever the other process writes there, this one reads it once, into its own memory,
//! and stays in bounds. Positions are this side's own variables; a position of the other side that
//! cannot be is [`Broken`]. Between two honest sides every message arrives once, in order, and a
//! side that has gone to sleep is rung for.
//!
//! ```text
//!    pushed (producer's)      taken (consumer's)      slots
//!        word                     word                capacity x W words
//! ```
//!
//! Nothing here trusts the other side, so all words are atomics; the bytes of the data are only
//! copied, and never looked at twice.

#[cfg(not(loom))]
mod bytes;

mod byte_ring;

#[cfg(not(loom))]
use std::ptr::NonNull;

#[cfg(not(loom))]
use crate::arena::{HeapRegion, Region};
use crate::sync::{Arc, AtomicU64, Ordering, fence};

#[cfg(not(loom))]
pub use byte_ring::ByteWriter;
pub use byte_ring::{ByteReader, ByteRingLayout, SharedWord};
#[cfg(not(loom))]
pub use bytes::SharedBytes;

/// A mapping that another process has, too.
///
/// # Safety
/// `base` and `len` never change; `base` is aligned to a page; the `len` bytes are mapped, readable
/// and writable as long as the value lives, and cannot be taken away by the other process. In this
/// process they are touched through this module only.
#[cfg(not(loom))]
#[expect(clippy::len_without_is_empty, reason = "a mapping is not empty")]
pub unsafe trait SharedMemory: Send + Sync {
    /// Its first byte.
    fn base(&self) -> NonNull<u8>;
    /// Its length in bytes.
    fn len(&self) -> usize;
}

// SAFETY: its own memory, aligned to a page, freed by `drop` only. No process shares it:
// both sides are tests of this one, which touch it through this module.
#[cfg(not(loom))]
unsafe impl SharedMemory for HeapRegion {
    fn base(&self) -> NonNull<u8> {
        Region::base(self)
    }

    fn len(&self) -> usize {
        Region::len(self)
    }
}

/// The words of a mapping.
#[derive(Clone)]
pub struct Words {
    #[cfg(not(loom))]
    mapping: bytes::Range,
    #[cfg(loom)]
    words: Arc<Vec<AtomicU64>>,
}

impl Words {
    /// The words of `memory`.
    #[cfg(not(loom))]
    pub fn new(memory: Arc<dyn SharedMemory>) -> Self {
        Self { mapping: bytes::Range::of(memory, 0) }
    }

    #[cfg(all(test, loom))]
    fn zeroed(count: usize) -> Self {
        Self { words: Arc::new((0..count).map(|_| AtomicU64::new(0)).collect()) }
    }

    #[cfg(not(loom))]
    #[inline]
    fn at(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "words are aligned");
        let word = self.mapping.address(offset as u64, 8);
        // SAFETY: in bounds, mapped as long as `self` lives, aligned because the base is aligned to
        // a page, and this process touches it by atomics only.
        unsafe { AtomicU64::from_ptr(word.cast()) }
    }

    #[cfg(loom)]
    fn at(&self, offset: usize) -> &AtomicU64 {
        &self.words[offset / 8]
    }
}

/// Where the parts of a ring lie in the memory, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingLayout {
    /// The number of pushed messages.
    pub pushed: usize,
    /// The number of taken messages.
    pub taken: usize,
    /// The slots.
    pub slots: usize,
    /// The number of slots, a power of two.
    pub capacity: u32,
}

impl RingLayout {
    /// A ring of `capacity` slots, with the number of pushed messages, the number of taken ones and
    /// the slots at these places.
    pub const fn new([pushed, taken, slots]: [usize; 3], capacity: u32) -> Self {
        Self { pushed, taken, slots, capacity }
    }

    #[inline]
    fn slot(&self, position: u64, words: usize) -> usize {
        self.slots + (position as usize & (self.capacity as usize - 1)) * words * 8
    }
}

/// The other side has written a position that cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Broken;

/// The side that pushes messages of `W` words.
pub struct Sender<const W: usize> {
    words: Words,
    layout: RingLayout,
    pushed: u64,
    /// The other side's position at the last load.
    taken: u64,
}

/// The side that takes messages of `W` words.
pub struct Receiver<const W: usize> {
    words: Words,
    layout: RingLayout,
    taken: u64,
    /// The other side's position at the last load.
    pushed: u64,
}

impl<const W: usize> Sender<W> {
    /// The pushing side of a new ring, all of whose words are zero.
    ///
    /// # Panics
    /// If the layout is not one of the memory.
    pub fn new(words: Words, layout: RingLayout) -> Self {
        check::<W>(&words, layout);
        Self { words, layout, pushed: 0, taken: 0 }
    }

    /// The number of messages that can be pushed now.
    ///
    /// # Errors
    /// [`Broken`] if the other side claims to have taken what was never pushed.
    pub fn free(&mut self) -> Result<u32, Broken> {
        // SYNC(shared slot emptied): acquire here, release in `Receiver::pop`.
        let taken = self.words.at(self.layout.taken).load(Ordering::Acquire);
        let capacity = u64::from(self.layout.capacity);
        // Positions only grow: whoever goes back lies as well.
        let is_possible = self.pushed.wrapping_sub(taken) <= self.pushed.wrapping_sub(self.taken);
        if !is_possible {
            return Err(Broken);
        }
        self.taken = taken;
        Ok((capacity - self.pushed.wrapping_sub(taken)) as u32)
    }

    /// Appends a message. Returns whether there was room.
    ///
    /// # Errors
    /// As [`Self::free`].
    pub fn push(&mut self, message: &[u64; W]) -> Result<bool, Broken> {
        let in_ring = self.pushed.wrapping_sub(self.taken);
        if in_ring >= u64::from(self.layout.capacity) && self.free()? == 0 {
            return Ok(false);
        }
        let slot = self.layout.slot(self.pushed, W);
        for (at, word) in message.iter().enumerate() {
            self.words.at(slot + at * 8).store(*word, Ordering::Relaxed);
        }
        self.pushed = self.pushed.wrapping_add(1);
        // SYNC(shared slot filled): release here, acquire in `Receiver::pop`.
        self.words.at(self.layout.pushed).store(self.pushed, Ordering::Release);
        Ok(true)
    }
}

impl<const W: usize> Receiver<W> {
    /// The taking side of a new ring, all of whose words are zero.
    ///
    /// # Panics
    /// If the layout is not one of the memory.
    pub fn new(words: Words, layout: RingLayout) -> Self {
        check::<W>(&words, layout);
        Self { words, layout, taken: 0, pushed: 0 }
    }

    /// Takes a copy of the oldest message.
    ///
    /// # Errors
    /// [`Broken`] if the other side claims more messages than there are slots.
    pub fn pop(&mut self) -> Result<Option<[u64; W]>, Broken> {
        if self.taken == self.pushed {
            // SYNC(shared slot filled): acquire here, release in `Sender::push`.
            let pushed = self.words.at(self.layout.pushed).load(Ordering::Acquire);
            if pushed.wrapping_sub(self.taken) > u64::from(self.layout.capacity) {
                return Err(Broken);
            }
            self.pushed = pushed;
            if self.taken == pushed {
                return Ok(None);
            }
        }
        let slot = self.layout.slot(self.taken, W);
        let message =
            std::array::from_fn(|at| self.words.at(slot + at * 8).load(Ordering::Relaxed));
        self.taken = self.taken.wrapping_add(1);
        // SYNC(shared slot emptied): release here, acquire in `Sender::free`.
        self.words.at(self.layout.taken).store(self.taken, Ordering::Release);
        Ok(Some(message))
    }
}

fn check<const W: usize>(words: &Words, layout: RingLayout) {
    assert!(layout.capacity.is_power_of_two());
    // Each panics if the offset is not one of the memory.
    words.at(layout.pushed);
    words.at(layout.taken);
    words.at(layout.slot(u64::from(layout.capacity) - 1, W) + (W - 1) * 8);
    words.at(layout.slots);
}

/// Says whether one side sleeps, so that the other one rings only then.
pub struct SleepMark {
    words: Words,
    at: usize,
}

impl SleepMark {
    /// The mark in the word at this offset.
    ///
    /// # Panics
    /// If the offset is not one of the memory.
    pub fn new(words: Words, at: usize) -> Self {
        words.at(at);
        Self { words, at }
    }

    /// Before sleep: from now on the other side rings. The caller must look once more for messages
    /// that were pushed before.
    pub fn set(&self) {
        self.words.at(self.at).store(1, Ordering::Relaxed);
        // SYNC(sleep): with the fence in `must_ring`, either the sleeper sees the message or the
        // other side sees the mark.
        fence(Ordering::SeqCst);
    }

    /// Whether it is set: the other side takes it to ring.
    pub fn is_set(&self) -> bool {
        self.words.at(self.at).load(Ordering::Relaxed) != 0
    }

    /// Awake again.
    pub fn clear(&self) {
        self.words.at(self.at).store(0, Ordering::Relaxed);
    }

    /// After a push, on the other side: whether the sleeper must be rung for. Says so once for each
    /// sleep.
    pub fn must_ring(&self) -> bool {
        // SYNC(sleep): see `set`.
        fence(Ordering::SeqCst);
        let mark = self.words.at(self.at);
        mark.load(Ordering::Relaxed) != 0 && mark.swap(0, Ordering::Relaxed) != 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod loom_tests;
