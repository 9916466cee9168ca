//! Shows loom each access to a block's bytes, which loom cannot see by itself: one watched cell per
//! place stands for the bytes. Only built for loom.

use crate::sync::UnsafeCell;

pub(super) struct Watch(Box<[UnsafeCell<()>]>);

// SAFETY: the cells hold nothing; loom reports accesses that the arena has not ordered.
unsafe impl Sync for Watch {}

impl Watch {
    pub(super) fn new(places: u32) -> Self {
        Self((0..places).map(|_| UnsafeCell::new(())).collect())
    }

    pub(super) fn read(&self, place: u32) {
        self.0[place as usize].with(|_| ());
    }

    pub(super) fn written(&self, place: u32) {
        self.0[place as usize].with_mut(|_| ());
    }
}
