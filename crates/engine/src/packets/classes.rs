//! The classes of the packet server's link: where in the pacer each is, and what it has sent.
//!
//! Promise: they are there before the first stream and after the last; what a class has sent, and what of it was
//! more than its guarantee, is told once a second, so that a datagram costs no more with them.

use std::sync::Arc;

use tactus_core::pacer::{ClassId, LINK, Pacer};
use tactus_core::units::{BitRate, Bytes, MonoTime, SECOND};

use crate::counters::ClassCounters;
use crate::message::{Datagrams, PacketClass};

pub(super) struct Classes {
    ids: Vec<ClassId>,
    guaranteed: Vec<BitRate>,
    /// What each had sent when the running second began.
    told: Vec<Bytes>,
    counters: Arc<[ClassCounters]>,
    /// When the running second began, and when it ends; none before the first.
    since: MonoTime,
    ends: Option<MonoTime>,
    /// Something was sent in the second before.
    is_used: bool,
}

impl Classes {
    /// Puts `classes` into the pacer, which has room for them.
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
        let guaranteed = classes.iter().map(|each| each.class.guaranteed).collect();
        let told = vec![Bytes(0); ids.len()];
        let (since, ends) = (MonoTime(0), None);
        Self { ids, guaranteed, told, counters, since, ends, is_used: false }
    }

    /// The class above a stream.
    pub(super) fn parent_of(&self, sink: &Datagrams) -> ClassId {
        sink.class.map_or(LINK, |class| self.ids[class.index()])
    }

    /// Tells what each has sent, when a second is over.
    pub(super) fn tell(&mut self, now: MonoTime, pacer: &Pacer) {
        if self.ids.is_empty() || self.ends.is_some_and(|ends| now < ends) {
            return;
        }
        self.is_used = false;
        let span = now.since(self.since);
        let each = self.ids.iter().zip(&self.guaranteed).zip(&mut self.told);
        for (((id, guaranteed), told), counters) in each.zip(&*self.counters) {
            let all = pacer.sent(*id).expect("a class stays");
            let sent = all - std::mem::replace(told, all);
            let borrowed = sent.saturating_sub(guaranteed.bytes_in(span));
            counters.bytes.set(all.0);
            counters.borrowed.add(borrowed.0);
            counters.second_bytes.set(sent.0);
            counters.second_borrowed.set(borrowed.0);
            self.is_used |= sent > Bytes(0);
        }
        self.since = now;
        self.ends = Some(MonoTime(now.0 / SECOND.0 * SECOND.0) + SECOND);
    }

    /// When there is something to tell, while streams are open and in the second after.
    pub(super) fn poll_timeout(&self, is_open: bool) -> Option<MonoTime> {
        self.ends.filter(|_| is_open || self.is_used)
    }
}
