//! Migration: a server leaves a core and arrives at another while it runs.
//!
//! Promise: a server is on one core, or on its way to one, and nothing polls it on the way. It
//! leaves when the new core is awake and nothing of it is bound to its old core's thread. A core
//! neither waits, allocates nor locks for it.
//!
//! ```text
//! control ──Expect──► new core ── is ready: wakes ──► old core
//!    └──────Leave───► old core ───── the server ────► new core, which polls it
//! ```
//!
//! A core that has work of its own to do is not ready.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tactus_core::mutant;
use tactus_core::ports::Waker;
use tactus_core::units::{MonoTime, Nanos};
use tactus_ring::hand_over::HandOver;
use tactus_ring::spsc::{Consumer, Producer, ring};

use crate::name::ServerName;
use crate::server::Server;

/// One server's way from a core to another. Whoever made it keeps it until no core has it any more
/// ([`Self::is_left_alone`]), because cores free no memory.
pub struct Migration {
    name: ServerName,
    /// The processor of the new core.
    cpu: u32,
    wakers: MigrationWakers,
    /// The server, with the time since when it begins nothing.
    way: HandOver<(Box<dyn Server>, MonoTime)>,
    /// In ns, after the arrival; [`NOT_YET`] before.
    pause: AtomicU64,
}

/// What wakes the threads that have a part in a migration.
pub struct MigrationWakers {
    /// The old core.
    pub from: Box<dyn Waker + Sync>,
    /// The new core.
    pub to: Box<dyn Waker + Sync>,
    /// The control side, when the server has arrived.
    pub control: Box<dyn Waker + Sync>,
}

/// What a core is to do.
pub(crate) enum Order {
    /// It lets the server leave.
    Leave(Arc<Migration>),
    /// It takes the server in.
    Expect(Arc<Migration>),
}

const NOT_YET: u64 = u64::MAX;

impl Migration {
    /// A way for `name` to the core on the processor `cpu`.
    pub fn new(name: ServerName, cpu: u32, wakers: MigrationWakers) -> Arc<Self> {
        let (way, pause) = (HandOver::new(), AtomicU64::new(NOT_YET));
        Arc::new(Self { name, cpu, wakers, way, pause })
    }

    /// The server's name.
    pub fn name(&self) -> ServerName {
        self.name
    }

    /// Has it leave the core with the mailbox `from` for the one with the mailbox `to`.
    pub fn begin(self: &Arc<Self>, from: &Mailbox, to: &Mailbox) {
        to.put(Order::Expect(Arc::clone(self)));
        from.put(Order::Leave(Arc::clone(self)));
        self.wakers.to.wake();
        self.wakers.from.wake();
    }

    /// The time in which no core could poll the server: from the moment in which the old core let
    /// it go to the beginning of the turn in which the new one polled it. `None` before its
    /// arrival.
    pub fn pause(&self) -> Option<Nanos> {
        Some(self.pause.load(Ordering::Acquire)).filter(|&pause| pause != NOT_YET).map(Nanos)
    }

    /// Whether no core has a part of it.
    pub fn is_left_alone(self: &Arc<Self>) -> bool {
        self.pause().is_some() && Arc::strong_count(self) == 1
    }

    /// For the new core: tells that it is ready.
    pub(crate) fn expect(&self) {
        self.way.expect();
        self.wakers.from.wake();
    }

    /// For the new core: it has something else to do first, unless the server is ahead already.
    pub(crate) fn withdraw(&self) {
        self.way.withdraw();
    }

    /// For the old core: whether the new one is ready.
    pub(crate) fn is_expected(&self) -> bool {
        self.way.is_expected()
    }

    /// For the old core: lets the server go, or gives it back if it cannot leave yet.
    pub(crate) fn leave(
        &self,
        mut server: Box<dyn Server>,
        now: MonoTime,
    ) -> Result<(), Box<dyn Server>> {
        if !self.way.is_expected() || !server.may_leave() {
            return Err(server);
        }
        if mutant!(PortKept, false, true) {
            server.leave(self.cpu);
        }
        self.way.give((server, now)).map_err(|(server, _)| server)?;
        if mutant!(ArrivalUnwoken, false, true) {
            self.wakers.to.wake();
        }
        Ok(())
    }

    /// For the new core: whether [`Self::arrive`] finds the server.
    pub(crate) fn is_ahead(&self) -> bool {
        self.way.is_ahead()
    }

    /// For the new core: the server, and since when it begins nothing.
    pub(crate) fn arrive(&self) -> Option<(Box<dyn Server>, MonoTime)> {
        self.way.take()
    }

    /// For the new core: tells that the server is there.
    pub(crate) fn has_arrived(&self, pause: Nanos) {
        self.pause.store(pause.0, Ordering::Release);
        self.wakers.control.wake();
    }
}

/// The control side's end of the orders for one core. Clones share it.
#[derive(Clone)]
pub struct Mailbox(Arc<Mutex<Producer<Order>>>);

impl Mailbox {
    /// A mailbox, and the core's end.
    pub(crate) fn new() -> (Self, Consumer<Order>) {
        let (orders, taken) = ring(ORDERS);
        (Self(Arc::new(Mutex::new(orders))), taken)
    }

    fn put(&self, order: Order) {
        let mut orders = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let put = orders.push(order);
        assert!(put.is_ok(), "a core has at most two orders for each server of an engine");
    }
}

/// Orders for which a mailbox has room: more than an engine has servers.
const ORDERS: usize = 256;
