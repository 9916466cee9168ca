//! A server, as its core sees it: a state machine to poll, with a next deadline.
//!
//! Promise: a server that has been quiesced may move to another core; it loses nothing.

use tactus_core::units::MonoTime;

/// A state machine with one job. Only its core polls it. It never waits. It is a value: moving it
/// to another core moves all of its state.
pub trait Server: Send {
    /// Does the work that is possible at `now`. Returns whether anything was done: then other
    /// servers may have work.
    fn poll(&mut self, now: MonoTime) -> bool;

    /// When it must be polled again even without new messages.
    fn poll_timeout(&self, now: MonoTime) -> Option<MonoTime>;

    /// Begins nothing more that is bound to the thread of its core. Returns whether nothing of it
    /// is left, so that the server may leave the core; it is polled until then.
    fn quiesce(&mut self) -> bool {
        true
    }

    /// Ends [`Self::quiesce`]: any thread may poll it next. Threads of its own follow it to `cpu`,
    /// the processor of its new core. Called by a thread that may wait.
    ///
    /// # Errors
    /// The error number of a port that cannot leave its thread. The server goes on, but only on its
    /// old core.
    fn resume(&mut self, _cpu: u32) -> Result<(), i32> {
        Ok(())
    }
}

impl<S: Server + ?Sized> Server for Box<S> {
    fn poll(&mut self, now: MonoTime) -> bool {
        (**self).poll(now)
    }

    fn poll_timeout(&self, now: MonoTime) -> Option<MonoTime> {
        (**self).poll_timeout(now)
    }

    fn quiesce(&mut self) -> bool {
        (**self).quiesce()
    }

    fn resume(&mut self, cpu: u32) -> Result<(), i32> {
        (**self).resume(cpu)
    }
}
