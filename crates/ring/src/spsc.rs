//! A bounded ring from one thread to one other: for servers and the control side.
//!
//! Promise: every pushed value is popped exactly once, in order, or dropped with the ring. Neither
//! side ever waits or allocates. The ring wakes no thread: [`crate::token`] does.
//!
//! ```text
//!            head (consumer's)          tail (producer's)
//!              v                          v
//!    | free  | full | full | full | full | free | free |
//! ```
//!
//! Positions increase without end and wrap with `usize`; full is `tail - head == capacity`. Each
//! side keeps a stale copy of the other's position and reloads it only when the copy says full or
//! empty, so the two cache lines move once per batch and not once per value.
//!
//! The slots lie in chunks. The producer takes the chunk that was emptied last, so a ring touches
//! memory for the most values that it has held, not for its capacity. That memory stays in the
//! caches, and a real-time thread rarely causes a page fault.

use std::mem::MaybeUninit;

use crate::sync::{Arc, AtomicUsize, CachePadded, Ordering, UnsafeCell};

/// Makes a ring for exactly `capacity` values: a wrong calculation of the capacity shows at once,
/// even if the power of two of its slots has more room.
///
/// # Panics
/// If `capacity` is zero or its power of two does not fit.
pub fn ring<T: Send>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    ring_of_chunks(capacity, CHUNK)
}

/// Values of a chunk.
const CHUNK: usize = 64;

/// The same with chunks of at most `chunk` values, a power of two.
fn ring_of_chunks<T: Send>(capacity: usize, chunk: usize) -> (Producer<T>, Consumer<T>) {
    assert!(capacity > 0, "a ring holds at least one value");
    let slots = capacity.checked_next_power_of_two().expect("the capacity fits in memory");
    let chunk = chunk.min(slots);
    // The values of a full ring may begin and end within a chunk.
    let chunks = slots / chunk + 1;
    let shared = Arc::new(Shared {
        head: CachePadded(AtomicUsize::new(0)),
        tail: CachePadded(AtomicUsize::new(0)),
        chunk_bits: chunk.trailing_zeros(),
        order: (0..chunks.next_power_of_two()).map(|_| UnsafeCell::new(0)).collect(),
        slots: (0..chunks * chunk).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect(),
    });
    let spare = (0..chunks).rev().map(|nth| nth * chunk).collect();
    let producer = Producer {
        shared: Arc::clone(&shared),
        capacity,
        tail: 0,
        head_seen: 0,
        spare,
        taken_back: 0,
    };
    (producer, Consumer { shared, head: 0, tail_seen: 0 })
}

/// The side that pushes.
pub struct Producer<T> {
    shared: Arc<Shared<T>>,
    /// At most the number of slots.
    capacity: usize,
    /// Next position to fill; the shared one, which only this side writes.
    tail: usize,
    /// The consumer's position at the last load: never beyond the true one.
    head_seen: usize,
    /// Chunks without values, by their first slots; the one emptied last is at the end.
    spare: Vec<usize>,
    /// The chunks of all earlier positions are spare again.
    taken_back: usize,
}

/// The side that pops.
pub struct Consumer<T> {
    shared: Arc<Shared<T>>,
    /// Next position to empty; the shared one, except within a [`Drain`].
    head: usize,
    /// The producer's position at the last load: never beyond the true one.
    tail_seen: usize,
}

/// Keeps the memory of a ring alive, without access: see [`Producer::keep`].
pub struct Keep<T> {
    _shared: Arc<Shared<T>>,
}

impl<T: Send> Producer<T> {
    /// Appends `value`.
    ///
    /// # Errors
    /// Returns `value` if the ring is full.
    pub fn push(&mut self, value: T) -> Result<(), T> {
        if self.room() == 0 {
            return Err(value);
        }
        self.write(value);
        self.publish();
        Ok(())
    }

    /// Pushes from `values` until the ring is full or they end, and publishes them together. Takes
    /// no value that it cannot push. Returns their number.
    pub fn push_all(&mut self, values: &mut impl Iterator<Item = T>) -> usize {
        let mut batch = Batch { producer: self, pushed: 0 };
        while batch.producer.room() > 0
            && let Some(value) = values.next()
        {
            batch.producer.write(value);
            batch.pushed += 1;
        }
        batch.pushed
    }

    /// Number of values that can be pushed now.
    pub fn free(&mut self) -> usize {
        // SYNC(emptied): acquire here, release in `Consumer::publish`.
        self.head_seen = self.shared.head.0.load(Ordering::Acquire);
        self.capacity - self.tail.wrapping_sub(self.head_seen)
    }

    /// Keeps the ring's memory alive, so that neither side frees it.
    pub fn keep(&self) -> Keep<T> {
        Keep { _shared: Arc::clone(&self.shared) }
    }

    /// Limit of the values in the ring.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Free slots by the copy, or by a fresh load if the copy says there are none.
    #[inline]
    fn room(&mut self) -> usize {
        match self.capacity - self.tail.wrapping_sub(self.head_seen) {
            0 => self.free(),
            room => room,
        }
    }

    /// Fills the slot at `tail`, which `room` has found free.
    #[inline]
    fn write(&mut self, value: T) {
        debug_assert!(self.tail.wrapping_sub(self.head_seen) < self.capacity);
        if self.shared.in_chunk(self.tail) == 0 {
            self.begin_chunk();
        }
        self.shared.slot(self.tail).with_mut(|slot| {
            // SAFETY: the chunk was spare when its first position began, and each position has a
            // slot of its own in it, so this slot is empty, and it is ours until SYNC(filled)
            // publishes it. Writing a `MaybeUninit` drops nothing.
            unsafe { slot.write(MaybeUninit::new(value)) }
        });
        self.tail = self.tail.wrapping_add(1);
    }

    /// Takes a chunk for the positions from `tail` on.
    fn begin_chunk(&mut self) {
        self.free();
        let chunk = 1 << self.shared.chunk_bits;
        while self.head_seen.wrapping_sub(self.taken_back) >= chunk {
            self.spare.push(self.shared.first_slot(self.taken_back));
            self.taken_back = self.taken_back.wrapping_add(chunk);
        }
        let first = self.spare.pop().expect("a ring with room has a spare chunk");
        self.shared.order_of(self.tail).with_mut(|order| {
            // SAFETY: there are as many entries as chunks, so the chunk of the earlier positions of
            // this one is spare again: by SYNC(emptied) the consumer has passed them, and it reads
            // the entry again only after SYNC(filled).
            unsafe { order.write(first) }
        });
    }

    #[inline]
    fn publish(&mut self) {
        // SYNC(filled): release here, acquire in `Consumer::look`.
        self.shared.tail.0.store(self.tail, Ordering::Release);
    }
}

impl<T: Send> Consumer<T> {
    /// Takes the oldest value.
    pub fn pop(&mut self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let value = self.read();
        self.publish();
        Some(value)
    }

    /// Takes the values that are there now, oldest first, and frees all their slots together when
    /// the iterator is dropped. Values not taken stay.
    pub fn drain(&mut self) -> Drain<'_, T> {
        let left = self.len();
        Drain { consumer: self, left }
    }

    /// A reference to the value `nth` behind the oldest, among those seen by [`Self::len`].
    pub fn peek(&self, nth: usize) -> Option<&T>
    where
        T: Sync,
    {
        if nth >= self.tail_seen.wrapping_sub(self.head) {
            return None;
        }
        let value = self.shared.slot(self.head.wrapping_add(nth)).with(|slot| {
            // SAFETY: `head <= position < tail`, so SYNC(filled) has published a value here, and
            // the producer does not write the slot before `head` has passed it, for which this side
            // must be borrowed mutably.
            unsafe { &*slot.cast::<T>() }
        });
        Some(value)
    }

    /// Drops the oldest value in place.
    ///
    /// # Panics
    /// If there is none.
    pub fn discard(&mut self) {
        assert!(!self.is_empty(), "only what is there is discarded");
        self.shared.slot(self.head).with_mut(|slot| {
            // SAFETY: `head < tail`: published and not popped; `head` moves on, so it is dropped
            // once, and the slot is ours until SYNC(emptied) gives it back.
            unsafe { slot.cast::<T>().drop_in_place() }
        });
        self.head = self.head.wrapping_add(1);
        self.publish();
    }

    /// Whether nothing is there to pop.
    pub fn is_empty(&mut self) -> bool {
        // The copy alone only proves that there is a value, never that there is none.
        self.head == self.tail_seen && self.head == self.look()
    }

    /// Number of values that can be popped now.
    pub fn len(&mut self) -> usize {
        self.look().wrapping_sub(self.head)
    }

    #[inline]
    fn look(&mut self) -> usize {
        // SYNC(filled): acquire here, release in `Producer::publish`.
        self.tail_seen = self.shared.tail.0.load(Ordering::Acquire);
        self.tail_seen
    }

    /// Empties the slot at `head`, which was found full.
    #[inline]
    fn read(&mut self) -> T {
        assert!(self.head != self.tail_seen, "reading a slot that was not published");
        let value = self.shared.slot(self.head).with(|slot| {
            // SAFETY: `head < tail`, so SYNC(filled) has published a value here; `head` moves on,
            // so it is read once, and the slot is ours until SYNC(emptied) gives it back.
            unsafe { slot.cast::<T>().read() }
        });
        self.head = self.head.wrapping_add(1);
        value
    }

    #[inline]
    fn publish(&mut self) {
        // SYNC(emptied): release here, acquire in `Producer::free`.
        self.shared.head.0.store(self.head, Ordering::Release);
    }
}

/// Publishes the written values even if the caller's iterator panics.
struct Batch<'a, T: Send> {
    producer: &'a mut Producer<T>,
    pushed: usize,
}

impl<T: Send> Drop for Batch<'_, T> {
    fn drop(&mut self) {
        if self.pushed > 0 {
            self.producer.publish();
        }
    }
}

/// Values on their way out of a ring; see [`Consumer::drain`].
pub struct Drain<'a, T: Send> {
    consumer: &'a mut Consumer<T>,
    left: usize,
}

impl<T: Send> Iterator for Drain<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.left = self.left.checked_sub(1)?;
        Some(self.consumer.read())
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<T: Send> Drop for Drain<'_, T> {
    fn drop(&mut self) {
        self.consumer.publish();
    }
}

struct Shared<T> {
    head: CachePadded<AtomicUsize>,
    tail: CachePadded<AtomicUsize>,
    /// A chunk has two to the power of this slots.
    chunk_bits: u32,
    /// The first slot of each chunk that holds values, in the order of their positions. At least as
    /// long as there are chunks, and a power of two.
    order: Box<[UnsafeCell<usize>]>,
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
}

// SAFETY: a slot is touched by one side at a time, handed over by SYNC(filled) and SYNC(emptied);
// values cross threads, hence `T: Send`. No reference to a `T` is ever shared. An entry of `order`
// is written by the producer while the consumer has no position of its chunk, and handed over with
// the first of them.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: as above; owning it means owning the values in it.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T> Shared<T> {
    /// The slot of a position between `head` and `tail`, whose chunk has been taken.
    #[inline]
    fn slot(&self, position: usize) -> &UnsafeCell<MaybeUninit<T>> {
        &self.slots[self.first_slot(position) + self.in_chunk(position)]
    }

    /// The place of a position in its chunk.
    #[inline]
    fn in_chunk(&self, position: usize) -> usize {
        position & ((1 << self.chunk_bits) - 1)
    }

    /// The first slot of the chunk of such a position.
    #[inline]
    fn first_slot(&self, position: usize) -> usize {
        self.order_of(position).with(|order| {
            // SAFETY: the producer wrote the entry before SYNC(filled) published the position. It
            // overwrites the entry only after SYNC(emptied) of all positions of the chunk. Its own
            // reads are on the thread of its writes.
            unsafe { order.read() }
        })
    }

    #[inline]
    fn order_of(&self, position: usize) -> &UnsafeCell<usize> {
        // The length is a power of two, so the mask is in bounds for any position.
        &self.order[(position >> self.chunk_bits) & (self.order.len() - 1)]
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // Both sides are dropped: `Arc` has ordered their last accesses before this.
        let tail = self.tail.0.load(Ordering::Relaxed);
        let mut head = self.head.0.load(Ordering::Relaxed);
        while head != tail {
            self.slot(head).with_mut(|slot| {
                // SAFETY: `head <= position < tail`: published, never popped, and both sides are
                // dropped.
                unsafe { slot.cast::<T>().drop_in_place() }
            });
            head = head.wrapping_add(1);
        }
    }
}

#[cfg(test)]
#[cfg(loom)]
mod loom_tests;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
