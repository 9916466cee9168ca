//! What a server is to its core: something to poll, with a next deadline.

use tactus_core::units::MonoTime;

/// A state machine with one job. It is polled by the core that it sits on, and by nobody else; it
/// never waits, and it is a value: moving it to another core moves all of its state.
pub trait Server: Send {
    /// Does what can be done at `now`. Says whether anything was done: then others may have work.
    fn poll(&mut self, now: MonoTime) -> bool;

    /// When it must be polled again even if nobody sends it anything.
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
