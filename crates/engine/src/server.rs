//! A server, as its core sees it: a state machine to poll, with a next deadline.

use tactus_core::units::MonoTime;

/// A state machine with one job. Only its core polls it. It never waits. It is a value: moving it
/// to another core moves all of its state.
pub trait Server: Send {
    /// Does the work that is possible at `now`. Returns whether anything was done: then other
    /// servers may have work.
    fn poll(&mut self, now: MonoTime) -> bool;

    /// When it must be polled again even without new messages.
    fn poll_timeout(&self, now: MonoTime) -> Option<MonoTime>;
}

impl<S: Server + ?Sized> Server for Box<S> {
    fn poll(&mut self, now: MonoTime) -> bool {
        (**self).poll(now)
    }

    fn poll_timeout(&self, now: MonoTime) -> Option<MonoTime> {
        (**self).poll_timeout(now)
    }
}
