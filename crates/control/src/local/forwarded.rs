//! Requests of a local client that the control side carries out: those of writers.
//!
//! Promise: each request is answered once, even if it is dropped. The bytes of a client are copied
//! once, and used in the copy.

use std::fmt;
use std::sync::Arc;

use tactus_core::local::Request;
use tactus_engine::message::{ClientId, LocalCommand};
use tactus_ring::shared::SharedBytes;
use tokio::sync::mpsc::UnboundedReceiver;

use super::LocalClients;

/// The requests of one client, in the order of its ring.
pub struct ForwardedRequests {
    requests: UnboundedReceiver<ForwardedRequest>,
    data: Arc<SharedBytes>,
}

/// A request under way. Dropped without an answer, it is answered with `EBADF`: no writer has it.
pub struct ForwardedRequest {
    clients: LocalClients,
    client: ClientId,
    place: u16,
    request: Request,
    is_answered: bool,
}

impl ForwardedRequests {
    pub(super) fn new(requests: UnboundedReceiver<ForwardedRequest>, data: SharedBytes) -> Self {
        Self { requests, data: Arc::new(data) }
    }

    /// The data of the client, where the bytes of its requests lie.
    #[must_use]
    pub fn data(&self) -> Arc<SharedBytes> {
        Arc::clone(&self.data)
    }

    /// Waits for the next request. `None` when the client has been detached.
    pub async fn next(&mut self) -> Option<ForwardedRequest> {
        self.requests.recv().await
    }
}

impl ForwardedRequest {
    pub(super) fn new(
        clients: LocalClients,
        client: ClientId,
        place: u16,
        request: Request,
    ) -> Self {
        Self { clients, client, place, request, is_answered: false }
    }

    /// What the client has asked for. The range of its bytes lies within the data.
    #[must_use]
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// Answers with the number of bytes, or with an error number.
    pub fn answer(mut self, result: Result<u32, u32>) {
        self.send(result);
    }

    fn send(&mut self, result: Result<u32, u32>) {
        self.is_answered = true;
        let (client, place) = (self.client, self.place);
        self.clients.send(LocalCommand::Answer { client, place, result });
    }
}

impl Drop for ForwardedRequest {
    fn drop(&mut self) {
        if !self.is_answered {
            self.send(Err(EBADF));
        }
    }
}

impl fmt::Debug for ForwardedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForwardedRequest").field("request", &self.request).finish_non_exhaustive()
    }
}

const EBADF: u32 = 9;
