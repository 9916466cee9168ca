//! The block arena: memory that the kernel fills and links send from, with the access rules.
//!
//! Promise: a block is in exactly one state. It is not read while it is written, and not written
//! while it is lent. Its place is not reused before both have ended. The arena knows neither titles
//! nor the value of keeping a block.
//!
//! ```text
//!            take            filled            lend
//!    Free ---------> InKernel -----> Ready <=========> Lent (n leases)
//!      ^                |              |      give_back
//!      +---- failed ----+              |
//!      +--- emptied ----+              |
//!      +------------------- evict -----+
//! ```
//!
//! A write share is an arena in the opposite direction: its keeper takes a place and fills it
//! through a view, and the place stays InKernel until the device has read all of it and it is
//! *emptied*.
//!
//! One [`ArenaOwner`] moves blocks between states. [`View`]s, on any thread, write into blocks that
//! are InKernel and read blocks by their [`Lease`]. Each place has one word: state, a count, and
//! the generation, which grows with each use of the place. While InKernel, the count is the number
//! of writes under way, and a block cannot become Ready or Free before they have landed: memory
//! returns only with its completion. A step from a wrong state or generation stops the program, in
//! release builds too: better to stop than to send wrong bytes.
//!
//! A lost lease (dropped, not given back) keeps its block Lent for ever: a leak, never a wrong
//! byte.

use std::alloc::Layout;
use std::collections::VecDeque;
use std::ptr::NonNull;

use crate::sync::{Arc, AtomicU64, Ordering};

#[cfg(loom)]
mod watch;
mod word;

use word::{State, Word};

/// Alignment of the region and of every block: what direct transfers need.
pub const ALIGNMENT: usize = 4096;

/// One block in one generation of its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct BlockRef {
    /// Index of the place in the arena.
    pub place: u32,
    /// Counts the uses of the place.
    pub generation: u32,
}

/// The right to read one block. It cannot be copied, and must go back to the keeper.
#[must_use = "a lease that is dropped keeps its block for ever"]
#[derive(PartialEq, Eq, Debug)]
pub struct Lease {
    block: BlockRef,
    arena: u32,
    is_sole: bool,
}

impl Lease {
    /// The block.
    pub fn block(&self) -> BlockRef {
        self.block
    }

    /// Whether the block has no other lease until this one is given back.
    pub fn is_sole(&self) -> bool {
        self.is_sole
    }
}

/// Memory for an arena.
///
/// # Safety
/// `base` and `len` never change; `base` is aligned to [`ALIGNMENT`]; the `len` bytes are mapped,
/// readable, writable and initialised as long as the value lives, and no other code touches them.
#[expect(clippy::len_without_is_empty, reason = "an arena refuses an empty region")]
pub unsafe trait Region: Send + Sync {
    /// Its first byte.
    fn base(&self) -> NonNull<u8>;
    /// Its length in bytes.
    fn len(&self) -> usize;
}

/// Blocks by state, as the keeper counts them; their sum is the number of places.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Empty places.
    pub free: u32,
    /// Blocks that are being filled.
    pub in_kernel: u32,
    /// Filled blocks without a reader.
    pub ready: u32,
    /// Blocks with at least one lease.
    pub lent: u32,
}

/// Cuts `region` into blocks of `block_size` bytes; a rest smaller than a block stays unused.
///
/// # Panics
/// If `block_size` is not a positive multiple of [`ALIGNMENT`], the region is not aligned, or it
/// has no room for one block or room for 2^32 of them.
pub fn arena(region: Box<dyn Region>, block_size: u32) -> (ArenaOwner, View) {
    assert!(block_size > 0 && (block_size as usize).is_multiple_of(ALIGNMENT));
    assert!((region.base().as_ptr() as usize).is_multiple_of(ALIGNMENT));
    let places = u32::try_from(region.len() / block_size as usize).expect("at most 2^32 places");
    assert!(places > 0, "the region is smaller than a block");
    let shared = Shared::new(places, block_size, Some(region));
    (ArenaOwner::new(Arc::clone(&shared)), View { shared })
}

/// Accounts for `places` blocks whose bytes are elsewhere: in the kernel's page cache.
///
/// # Panics
/// If either number is zero.
pub fn elsewhere(places: u32, block_size: u32) -> ArenaOwner {
    assert!(places > 0 && block_size > 0);
    ArenaOwner::new(Shared::new(places, block_size, None))
}

/// The owner of the block states: the block server.
pub struct ArenaOwner {
    shared: Arc<Shared>,
    /// Free places. An arena reuses the last freed place first, while its cache lines are warm.
    /// Elsewhere the first freed place is reused first: its old pages stay in the page cache until
    /// then.
    free: VecDeque<u32>,
    counts: Counts,
}

impl ArenaOwner {
    fn new(shared: Arc<Shared>) -> Self {
        let places = shared.words.len() as u32;
        Self {
            shared,
            // Popped from the end: the first places are used first.
            free: (0..places).rev().collect(),
            counts: Counts { free: places, ..Counts::default() },
        }
    }

    /// Number of blocks in the arena.
    pub fn places(&self) -> u32 {
        self.shared.words.len() as u32
    }

    /// Bytes in a block.
    pub fn block_size(&self) -> u32 {
        self.shared.block_size
    }

    /// Number of blocks in each state.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Free → InKernel, in a new generation. `None` if no place is free.
    pub fn take(&mut self) -> Option<BlockRef> {
        let place = match self.shared.region {
            Some(_) => self.free.pop_back(),
            None => self.free.pop_front(),
        }?;
        // Relaxed: only this keeper writes the word of a Free place.
        let word = self.shared.word(place).load(Ordering::Relaxed);
        let taken = Word(word).taken();
        // SYNC(taken): release here, acquire in `View::begin_write`. Reads by leases of the last
        // generation come before the writes of this one.
        self.shared.word(place).store(taken.0, Ordering::Release);
        self.counts.free -= 1;
        self.counts.in_kernel += 1;
        Some(BlockRef { place, generation: taken.generation() })
    }

    /// InKernel → Ready: every write has landed, the bytes may be lent.
    ///
    /// # Panics
    /// If the block is in another state or generation, or a write is still under way.
    pub fn filled(&mut self, block: BlockRef) {
        self.step(block, State::InKernel, 0, State::Ready, 0);
        self.counts.in_kernel -= 1;
        self.counts.ready += 1;
    }

    /// InKernel → Free: the read has failed.
    ///
    /// # Panics
    /// If the block is in another state or generation, or a write is still under way.
    pub fn failed(&mut self, block: BlockRef) {
        self.emptied(block);
    }

    /// InKernel → Free: the content of a place of a write share is on the device, or given up.
    ///
    /// # Panics
    /// If the block is in another state or generation, or an access of the kernel is still under
    /// way.
    pub fn emptied(&mut self, block: BlockRef) {
        self.step(block, State::InKernel, 0, State::Free, 0);
        self.counts.in_kernel -= 1;
        self.release(block.place);
    }

    /// Ready or Lent → Lent, with one more lease.
    ///
    /// # Panics
    /// If the block is in another state or generation.
    pub fn lend(&mut self, block: BlockRef) -> Lease {
        let word = self.shared.load(block.place);
        match word.state() {
            State::Lent => {
                self.step(block, State::Lent, word.count(), State::Lent, word.count() + 1);
            }
            _ => {
                self.step(block, State::Ready, 0, State::Lent, 1);
                self.counts.ready -= 1;
                self.counts.lent += 1;
            }
        }
        Lease { block, arena: self.shared.id, is_sole: false }
    }

    /// Ready → Lent. The caller must not lend the block again until this lease is given back.
    ///
    /// # Panics
    /// If the block is in another state or generation.
    pub fn lend_solely(&mut self, block: BlockRef) -> Lease {
        self.step(block, State::Ready, 0, State::Lent, 1);
        self.counts.ready -= 1;
        self.counts.lent += 1;
        Lease { block, arena: self.shared.id, is_sole: true }
    }

    /// Takes a lease back. True if it was the last one and the block became Ready.
    ///
    /// # Panics
    /// If the lease belongs to another arena.
    pub fn give_back(&mut self, lease: Lease) -> bool {
        assert_eq!(lease.arena, self.shared.id, "a lease of another arena");
        let count = self.shared.load(lease.block.place).count();
        if count > 1 {
            self.step(lease.block, State::Lent, count, State::Lent, count - 1);
            return false;
        }
        self.step(lease.block, State::Lent, count, State::Ready, 0);
        self.counts.lent -= 1;
        self.counts.ready += 1;
        true
    }

    /// Ready → Free: the place may be reused.
    ///
    /// # Panics
    /// If the block is in another state or generation: a lent block cannot be evicted.
    pub fn evict(&mut self, block: BlockRef) {
        self.step(block, State::Ready, 0, State::Free, 0);
        self.counts.ready -= 1;
        self.release(block.place);
    }

    fn release(&mut self, place: u32) {
        self.counts.free += 1;
        self.free.push_back(place);
    }

    /// Moves one block, or stops the program if the block is not in the expected state.
    fn step(&self, block: BlockRef, from: State, count: u32, to: State, new_count: u32) {
        let before = Word::new(from, count, block.generation);
        let after = Word::new(to, new_count, block.generation);
        // SYNC(landed): acquire here, release in `View::end_write`.
        // SYNC(lent): release here, acquire in `View::bytes`.
        let swapped = self.shared.word(block.place).compare_exchange(
            before.0,
            after.0,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        if let Err(found) = swapped {
            panic!("{block:?} to {to:?}: is {:?}, should be {before:?}", Word(found));
        }
    }
}

/// Access to the bytes of blocks, from any thread.
#[derive(Clone)]
pub struct View {
    shared: Arc<Shared>,
}

impl View {
    /// Bytes in a block.
    pub fn block_size(&self) -> u32 {
        self.shared.block_size
    }

    /// Number of blocks in the arena.
    pub fn places(&self) -> u32 {
        self.shared.words.len() as u32
    }

    /// The whole region, for registration with the kernel: first byte and length.
    pub fn region(&self) -> (NonNull<u8>, usize) {
        let region = self.shared.region();
        (region.base(), region.len())
    }

    /// The bytes of a lent block. Bytes beyond the last filled one are old or zero.
    ///
    /// # Panics
    /// If the lease belongs to another arena.
    pub fn bytes<'a>(&'a self, lease: &'a Lease) -> &'a [u8] {
        assert_eq!(lease.arena, self.shared.id, "a lease of another arena");
        let block = lease.block;
        // SYNC(lent): acquire here, release in `ArenaOwner::step`.
        let word = self.shared.load(block.place);
        assert!(word.state() == State::Lent && word.generation() == block.generation, "{word:?}");
        #[cfg(loom)]
        self.shared.watch.read(block.place);
        let start = self.shared.start_of(block.place);
        // SAFETY: the block lies in the region (`start_of`), which is initialised and lives as long
        // as `self`. It stays Lent, hence unwritten, until its lease is given back, and the lease
        // is borrowed as long as the slice.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), self.shared.block_size as usize) }
    }

    /// The target of a kernel write of `len` bytes, from `at` in the block on; for a place of a
    /// write share, the source of a kernel read. The access counts as under way, and the block
    /// cannot leave InKernel, until [`View::landed`].
    ///
    /// # Panics
    /// If the block is not InKernel in this generation, a [`View::fill`] is under way on it, or the
    /// range is not within it.
    #[must_use = "the block stays in the kernel until the write has landed"]
    pub fn target(&self, block: BlockRef, at: u32, len: u32) -> NonNull<u8> {
        let offset = self.shared.range(at, len as usize);
        self.begin_write(block, |count| (count < EXCLUSIVE - 1).then_some(count + 1));
        let start = self.shared.start_of(block.place);
        // SAFETY: `range` has checked that the offset lies in the block.
        unsafe { start.add(offset) }
    }

    /// Ends a write that [`View::target`] began.
    ///
    /// # Safety
    /// The kernel has completed the write of that target, or never received it.
    ///
    /// # Panics
    /// If no such write is under way on the block.
    pub unsafe fn landed(&self, block: BlockRef) {
        self.end_write(block, |count| if count == EXCLUSIVE { None } else { count.checked_sub(1) });
    }

    /// Copies `bytes` into a block that is InKernel, from `at` on: for the simulator and for data
    /// that do not come from a device.
    ///
    /// # Panics
    /// As [`View::target`], and if any other write is under way on the block.
    pub fn fill(&self, block: BlockRef, at: u32, bytes: &[u8]) {
        let offset = self.shared.range(at, bytes.len());
        self.begin_write(block, |count| (count == 0).then_some(EXCLUSIVE));
        #[cfg(loom)]
        self.shared.watch.written(block.place);
        let start = self.shared.start_of(block.place);
        // SAFETY: `range` has checked that the bytes fit in the block from this offset on.
        let target = unsafe { start.add(offset) };
        // SAFETY: this call has the block alone while its count is EXCLUSIVE, so no lease and no
        // other write exists; `bytes` cannot overlap it, as a slice of the block would need a
        // lease.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target.as_ptr(), bytes.len()) };
        self.end_write(block, |count| (count == EXCLUSIVE).then_some(0));
    }

    /// Copies the content of a place of a write share from `at` on: the device's side for the
    /// simulator.
    ///
    /// # Panics
    /// As [`View::fill`].
    pub fn copy_out(&self, block: BlockRef, at: u32, into: &mut [u8]) {
        let offset = self.shared.range(at, into.len());
        self.begin_write(block, |count| (count == 0).then_some(EXCLUSIVE));
        #[cfg(loom)]
        self.shared.watch.read(block.place);
        let start = self.shared.start_of(block.place);
        // SAFETY: `range` has checked that the bytes lie in the block from this offset on.
        let source = unsafe { start.add(offset) };
        // SAFETY: this call has the block alone while its count is EXCLUSIVE, so nothing writes it;
        // it is initialised, and `into` cannot overlap it, as a slice of the block would need a
        // lease.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), into.as_mut_ptr(), into.len()) };
        self.end_write(block, |count| (count == EXCLUSIVE).then_some(0));
    }

    /// Exclusive access to a block that is InKernel, to fill it in place: for bytes that come from
    /// a socket. The access ends when it is dropped.
    ///
    /// # Panics
    /// As [`View::target`], and if any other write is under way on the block.
    pub fn filling(&self, block: BlockRef) -> KernelBlock {
        self.begin_write(block, |count| (count == 0).then_some(EXCLUSIVE));
        KernelBlock { view: self.clone(), block }
    }

    fn begin_write(&self, block: BlockRef, count: impl Fn(u32) -> Option<u32>) {
        // SYNC(taken): acquire here, release in `ArenaOwner::take`.
        self.recount(block, Ordering::Acquire, count);
    }

    fn end_write(&self, block: BlockRef, count: impl Fn(u32) -> Option<u32>) {
        // SYNC(landed): release here, acquire in `ArenaOwner::step`.
        self.recount(block, Ordering::Release, count);
    }

    /// Changes the number of writes under way on an InKernel block. Repeats only if another write
    /// began or landed meanwhile; their number is limited by the transfers in flight.
    fn recount(&self, block: BlockRef, order: Ordering, count: impl Fn(u32) -> Option<u32>) {
        let changed =
            self.shared.word(block.place).fetch_update(order, Ordering::Relaxed, |found| {
                let word = Word(found);
                let here = word.state() == State::InKernel && word.generation() == block.generation;
                let count = count(word.count()).filter(|_| here)?;
                Some(Word::new(State::InKernel, count, block.generation).0)
            });
        if let Err(found) = changed {
            panic!("a write of {block:?}: is {:?}", Word(found));
        }
    }
}

/// The bytes of a block that is InKernel. Until it is dropped no other code has access to them, and
/// the block stays InKernel.
pub struct KernelBlock {
    view: View,
    block: BlockRef,
}

impl KernelBlock {
    /// All of the block. Its initial content is old or zero.
    pub fn bytes(&mut self) -> &mut [u8] {
        let Shared { block_size, .. } = *self.view.shared;
        #[cfg(loom)]
        self.view.shared.watch.written(self.block.place);
        let start = self.view.shared.start_of(self.block.place);
        // SAFETY: the block lies in the region (`start_of`), which is initialised and lives as long
        // as the view. Its count is EXCLUSIVE as long as `self` lives, so no lease, no kernel and
        // no other write touches it, and the slice borrows `self`.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), block_size as usize) }
    }
}

impl Drop for KernelBlock {
    fn drop(&mut self) {
        self.view.end_write(self.block, |count| (count == EXCLUSIVE).then_some(0));
    }
}

/// The count of an InKernel block during a [`View::fill`] or [`KernelBlock`].
const EXCLUSIVE: u32 = Word::COUNT_MAX;

struct Shared {
    /// Identifies the arena of a lease.
    id: u32,
    block_size: u32,
    words: Box<[AtomicU64]>,
    #[cfg(loom)]
    watch: watch::Watch,
    /// `None` if the bytes are elsewhere; then there is no view.
    region: Option<Box<dyn Region>>,
}

impl Shared {
    fn new(places: u32, block_size: u32, region: Option<Box<dyn Region>>) -> Arc<Self> {
        Arc::new(Self {
            id: fresh_id(),
            block_size,
            words: (0..places).map(|_| AtomicU64::new(Word::FIRST.0)).collect(),
            #[cfg(loom)]
            watch: watch::Watch::new(places),
            region,
        })
    }

    fn region(&self) -> &dyn Region {
        self.region.as_deref().expect("views are made of arenas with memory only")
    }

    fn word(&self, place: u32) -> &AtomicU64 {
        &self.words[place as usize]
    }

    fn load(&self, place: u32) -> Word {
        Word(self.word(place).load(Ordering::Acquire))
    }

    fn start_of(&self, place: u32) -> NonNull<u8> {
        assert!((place as usize) < self.words.len());
        let offset = place as usize * self.block_size as usize;
        // SAFETY: `place < places` and `places * block_size <= region.len()` by construction.
        unsafe { self.region().base().add(offset) }
    }

    /// Checks that `len` bytes from `at` on are within a block.
    fn range(&self, at: u32, len: usize) -> usize {
        let at = at as usize;
        let end = at.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.block_size as usize), "{len} bytes at {at}");
        at
    }
}

fn fresh_id() -> u32 {
    // Plain atomic also under loom: it orders nothing, it only counts arenas.
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(1);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

/// Ordinary zeroed memory, for tests and the simulator.
pub struct HeapRegion {
    base: NonNull<u8>,
    layout: Layout,
}

impl HeapRegion {
    /// At least `len` bytes, aligned to [`ALIGNMENT`].
    ///
    /// # Panics
    /// If `len` is zero or memory is short.
    pub fn new(len: usize) -> Self {
        assert!(len > 0, "a region holds at least one block");
        let layout = Layout::from_size_align(len, ALIGNMENT).expect("the length fits in memory");
        // SAFETY: the layout is not empty.
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        let base = NonNull::new(base).unwrap_or_else(|| std::alloc::handle_alloc_error(layout));
        Self { base, layout }
    }
}

// SAFETY: allocated zeroed and aligned by `new`, freed by `drop` only, and private.
unsafe impl Region for HeapRegion {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn len(&self) -> usize {
        self.layout.size()
    }
}

// SAFETY: it owns its memory, like a `Box<[u8]>`.
unsafe impl Send for HeapRegion {}
// SAFETY: it hands out addresses, never references.
unsafe impl Sync for HeapRegion {}

impl Drop for HeapRegion {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { std::alloc::dealloc(self.base.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
#[cfg(loom)]
mod loom_tests;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
