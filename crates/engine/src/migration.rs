//! Migration: a server leaves a core and arrives at another while it runs.
//!
//! Promise: a server is on one core, or on its way to one, and nothing polls it on the way. It
//! leaves when nothing of it is bound to its core's thread. A core neither waits nor allocates for
//! it: what another thread is in the way of it tries again.
//!
//! ```text
//! control ──Leave──► old core: quiesce ──Arrive──► new core
//!                        └─► control: resume ──Arrive──┘   if that may wait
//! ```

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use tactus_core::ports::Waker;
use tactus_core::units::{MonoTime, Nanos};

use crate::name::ServerName;
use crate::server::Server;

/// One server's way from a core to another. Whoever made it keeps it until no core has it any more
/// ([`Self::is_left_alone`]), because cores free no memory.
pub struct Migration {
    name: ServerName,
    to: Mailbox,
    /// The processor of the new core.
    cpu: u32,
    passage: Passage,
    /// Wakes the new core and the control side.
    waker: Box<dyn Waker + Sync>,
    stage: Mutex<TransitState>,
    /// In ns, after the arrival; [`NOT_YET`] before.
    pause: AtomicU64,
}

/// Who calls [`Server::resume`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Passage {
    /// The old core: it takes no time.
    Direct,
    /// The control side: it may wait.
    ByControl,
}

/// Where a server is on its way.
enum TransitState {
    /// On its old core.
    Staying,
    /// It waits for the control side; with the time since when it begins nothing more.
    Left(Box<dyn Server>, MonoTime),
    /// With the control side.
    AtControl(MonoTime),
    /// It waits for its new core.
    Ahead(Box<dyn Server>, MonoTime),
    Arrived,
}

/// What a core is to do.
#[derive(Clone)]
pub(crate) enum Order {
    /// It lets the server leave.
    Leave(Arc<Migration>),
    /// It takes the server in.
    Arrive(Arc<Migration>),
}

const NOT_YET: u64 = u64::MAX;

impl Migration {
    /// A way for `name` to the core with the mailbox `to` on the processor `cpu`. `waker` wakes
    /// that core, and the control side.
    pub fn new(
        name: ServerName,
        (to, cpu): (Mailbox, u32),
        passage: Passage,
        waker: Box<dyn Waker + Sync>,
    ) -> Arc<Self> {
        let (stage, pause) = (Mutex::new(TransitState::Staying), AtomicU64::new(NOT_YET));
        Arc::new(Self { name, to, cpu, passage, waker, stage, pause })
    }

    /// The server's name.
    pub fn name(&self) -> ServerName {
        self.name
    }

    /// Has it leave the core with the mailbox `from`, which must be woken then.
    pub fn begin(self: &Arc<Self>, from: &Mailbox) {
        from.put(Order::Leave(Arc::clone(self)));
    }

    /// For the control side: takes the server if it has left and [`Passage::ByControl`] was chosen.
    pub fn take(&self) -> Option<Box<dyn Server>> {
        let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        let TransitState::Left(_, since) = *stage else { return None };
        match std::mem::replace(&mut *stage, TransitState::AtControl(since)) {
            TransitState::Left(server, _) => Some(server),
            _ => None,
        }
    }

    /// For the control side: lets a server that was taken and resumed go on to its new core, or to
    /// the core `back`, which must be woken then.
    ///
    /// # Panics
    /// If it was not taken.
    pub fn go_on(self: &Arc<Self>, server: Box<dyn Server>, back: Option<&Mailbox>) {
        let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        let TransitState::AtControl(since) = *stage else { panic!("{} was not taken", self.name) };
        *stage = TransitState::Ahead(server, since);
        drop(stage);
        back.unwrap_or(&self.to).put(Order::Arrive(Arc::clone(self)));
        self.waker.wake();
    }

    /// The time in which the server began nothing; `None` before its arrival.
    pub fn pause(&self) -> Option<Nanos> {
        Some(self.pause.load(Ordering::Acquire)).filter(|&pause| pause != NOT_YET).map(Nanos)
    }

    /// Whether no core has a part of it.
    pub fn is_left_alone(self: &Arc<Self>) -> bool {
        self.pause().is_some() && Arc::strong_count(self) == 1
    }

    /// For the old core: takes over a quiesced server. Gives it back if another thread is in the
    /// way, or it cannot leave.
    pub(crate) fn leave(
        self: &Arc<Self>,
        mut server: Box<dyn Server>,
        since: MonoTime,
    ) -> Result<(), Box<dyn Server>> {
        let Some(mut stage) = try_lock(&self.stage) else { return Err(server) };
        let is_direct = self.passage == Passage::Direct;
        let Some(mut orders) = try_lock(&self.to.0.orders) else { return Err(server) };
        if is_direct && server.resume(self.cpu).is_err() {
            return Err(server);
        }
        *stage = match self.passage {
            Passage::Direct => TransitState::Ahead(server, since),
            Passage::ByControl => TransitState::Left(server, since),
        };
        if is_direct {
            orders.push(Order::Arrive(Arc::clone(self)));
            self.to.0.has_orders.store(true, Ordering::Release);
        }
        drop((stage, orders));
        self.waker.wake();
        Ok(())
    }

    /// For the new core: the server, and when it began nothing more; `None` if another thread is in
    /// the way.
    pub(crate) fn arrive(&self) -> Option<(Box<dyn Server>, MonoTime)> {
        let mut stage = try_lock(&self.stage)?;
        match std::mem::replace(&mut *stage, TransitState::Arrived) {
            TransitState::Ahead(server, since) => Some((server, since)),
            other => {
                *stage = other;
                None
            }
        }
    }

    /// For the new core: tells that the server is there.
    pub(crate) fn has_arrived(&self, pause: Nanos) {
        self.pause.store(pause.0, Ordering::Release);
        self.waker.wake();
    }
}

/// The orders for one core. Clones share them.
#[derive(Clone)]
pub struct Mailbox(Arc<Shared>);

struct Shared {
    has_orders: AtomicBool,
    orders: Mutex<Vec<Order>>,
}

impl Default for Mailbox {
    fn default() -> Self {
        let orders = Mutex::new(Vec::with_capacity(ORDERS));
        Self(Arc::new(Shared { has_orders: AtomicBool::new(false), orders }))
    }
}

impl Mailbox {
    fn put(&self, order: Order) {
        self.0.orders.lock().unwrap_or_else(PoisonError::into_inner).push(order);
        self.0.has_orders.store(true, Ordering::Release);
    }

    /// Whether [`Self::try_take`] may find an order.
    pub(crate) fn has_orders(&self) -> bool {
        self.0.has_orders.load(Ordering::Acquire)
    }

    /// An order, without waiting; `None` also if another thread is in the way.
    pub(crate) fn try_take(&self) -> Option<Order> {
        let mut orders = try_lock(&self.0.orders)?;
        let order = orders.pop();
        self.0.has_orders.store(!orders.is_empty(), Ordering::Release);
        order
    }
}

/// Orders for which a mailbox has room without an allocation: more than an engine has servers.
const ORDERS: usize = 256;

fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
