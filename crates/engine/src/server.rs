//! A server, as its core sees it: a state machine to poll, with a next deadline.
//!
//! Promise: a server may move to another core between two polls; it loses nothing.

use tactus_core::units::MonoTime;

/// A state machine with one job. Only its core polls it. It never waits. It is a value: moving it
/// to another core moves all of its state.
pub trait Server: Send {
    /// Does the work that is possible at `now`. Returns whether anything was done: then other
    /// servers may have work.
    fn poll(&mut self, now: MonoTime) -> bool;

    /// When it must be polled again even without new messages.
    fn poll_timeout(&self, now: MonoTime) -> Option<MonoTime>;

    /// Whether [`Self::leave`] may be called now. Once true it stays true until the next poll.
    fn may_leave(&mut self) -> bool {
        true
    }

    /// Frees it of the thread of its core, which calls this: another thread polls it next. Threads
    /// of its own follow it to `cpu`, the processor of its new core. Never waits.
    fn leave(&mut self, _cpu: u32) {}
}

impl<S: Server + ?Sized> Server for Box<S> {
    fn poll(&mut self, now: MonoTime) -> bool {
        (**self).poll(now)
    }

    fn poll_timeout(&self, now: MonoTime) -> Option<MonoTime> {
        (**self).poll_timeout(now)
    }

    fn may_leave(&mut self) -> bool {
        (**self).may_leave()
    }

    fn leave(&mut self, cpu: u32) {
        (**self).leave(cpu);
    }
}
