//! The classes of the packet server's link: their places in the pacer, and their counts of sent
//! bytes.
//!
//! Promise: they exist before the first stream and after the last one, whatever their limits are
//! meanwhile. Their counters are updated once a second (sent bytes, and the part beyond the
//! guarantee), so that they add no cost to a datagram.

use std::sync::Arc;

use tactus_core::pacer::{ClassId, LINK, Pacer};
use tactus_core::units::{BitRate, Bytes, MonoTime, SECOND};

use crate::counters::ClassCounters;
use crate::message::{ClassChange, Datagrams, PacketClass};

pub(super) struct Classes {
    ids: Vec<ClassId>,
    guaranteed: Vec<Guaranteed>,
    /// The counts of each class when the running second began.
    told: Vec<Bytes>,
    counters: Arc<[ClassCounters]>,
    /// When the running second ends; `None` before the first.
    ends: Option<MonoTime>,
    /// Bytes were sent in the second before.
    is_used: bool,
}

/// The guarantee of a class in the running second.
#[derive(Clone, Copy)]
struct Guaranteed {
    rate: BitRate,
    /// When this rate began, or the second.
    since: MonoTime,
    /// The guaranteed bytes of the second before that time.
    before: Bytes,
}

impl Guaranteed {
    /// Continues at `rate`. Returns the bytes guaranteed so far.
    fn go_on(&mut self, now: MonoTime, rate: BitRate) -> Bytes {
        let so_far = self.before + self.rate.bytes_in(now.since(self.since));
        *self = Self { rate, since: now, before: Bytes(0) };
        so_far
    }
}

impl Classes {
    /// Adds `classes` to the pacer, which has room for them.
    pub(super) fn new(
        pacer: &mut Pacer,
        classes: &[PacketClass],
        counters: Arc<[ClassCounters]>,
    ) -> Self {
        let mut ids = Vec::with_capacity(classes.len());
        for PacketClass { parent, class } in classes {
            let parent = parent.map_or(LINK, |parent| ids[parent.index()]);
            ids.push(pacer.add(parent, *class).expect("there is a place for each class"));
        }
        let of = |rate| Guaranteed { rate, since: MonoTime(0), before: Bytes(0) };
        let guaranteed = classes.iter().map(|each| of(each.class.guaranteed)).collect();
        let told = vec![Bytes(0); ids.len()];
        Self { ids, guaranteed, told, counters, ends: None, is_used: false }
    }

    /// Changes the limits of a class; `at` is the pacer's time.
    pub(super) fn change(
        &mut self,
        now: MonoTime,
        at: MonoTime,
        pacer: &mut Pacer,
        ClassChange { number, to }: ClassChange,
    ) {
        let guaranteed = &mut self.guaranteed[number.index()];
        guaranteed.before = guaranteed.go_on(now, to.guaranteed);
        pacer.change(at, self.ids[number.index()], to);
    }

    /// The class above a stream.
    pub(super) fn parent_of(&self, output: &Datagrams) -> ClassId {
        output.class.map_or(LINK, |class| self.ids[class.index()])
    }

    /// Updates the counters when a second is over.
    pub(super) fn tell(&mut self, now: MonoTime, pacer: &Pacer) {
        if self.ids.is_empty() || self.ends.is_some_and(|ends| now < ends) {
            return;
        }
        self.is_used = false;
        let each = self.ids.iter().zip(&mut self.guaranteed).zip(&mut self.told);
        for (((id, guaranteed), told), counters) in each.zip(&*self.counters) {
            let all = pacer.sent(*id).expect("a class stays");
            let sent = all - std::mem::replace(told, all);
            let borrowed = sent.saturating_sub(guaranteed.go_on(now, guaranteed.rate));
            counters.bytes.set(all.0);
            counters.borrowed.add(borrowed.0);
            counters.second_bytes.set(sent.0);
            counters.second_borrowed.set(borrowed.0);
            self.is_used |= sent > Bytes(0);
        }
        self.ends = Some(MonoTime(now.0 / SECOND.0 * SECOND.0) + SECOND);
    }

    /// When the counters must be updated, while streams are open and in the second after.
    pub(super) fn poll_timeout(&self, is_open: bool) -> Option<MonoTime> {
        self.ends.filter(|_| is_open || self.is_used)
    }
}
