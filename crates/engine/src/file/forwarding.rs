//! Requests of writers: the control side carries them out, because names, quotas and the write path
//! belong to it. Nothing is copied here.
//!
//! Promise: a request is forwarded once, in the order of the ring, and its result is the answer.

use tactus_core::local::{Operation, Request};

use super::FileServer;
use super::client::Progress;
use crate::message::{ClientId, LocalReport};

impl FileServer {
    /// Hands a request that waits at `at` to the control side.
    pub(super) fn forward(&mut self, index: u16, at: usize, request: Request) {
        let client = self.row(index).client.id;
        self.report(LocalReport::Forwarded { client, place: at as u16, request });
    }

    /// The control side has carried a request out, or refuses it.
    pub(super) fn end_forwarded(&mut self, client: ClientId, at: usize, result: Result<u32, u32>) {
        let entry = self.clients[usize::from(client.index)].as_mut();
        // A client that was detached has nobody who waits.
        let Some(entry) = entry.filter(|entry| entry.client.id == client) else { return };
        let pending = entry.pending[at].as_mut().expect("a forwarded request waits for its end");
        pending.progress = Progress::Done(result);
        if let (Operation::Write, Ok(bytes)) = (pending.request.operation, result) {
            self.counters.written.add(u64::from(bytes));
        }
    }
}
