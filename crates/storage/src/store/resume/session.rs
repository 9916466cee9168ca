//! The writers of uploads: one request at a time, the newest.
//!
//! Promise: a newer request ends the older one, and waits for it for a bounded time. The state of
//! the writer passes from one request to the next.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{OwnedMutexGuard, watch};

use crate::catalogue::GrowthPublisher;
use crate::store::fault::ResumeError;
use crate::store::id::StoreId;
use crate::store::lock;
use crate::store::quotas::Claim;

/// How long a newer request waits for an older one.
const TURN_WAIT: Duration = Duration::from_secs(2);

/// The open uploads, and the writer of each.
#[derive(Default, Debug)]
pub(in super::super) struct Sessions(Mutex<HashMap<StoreId, Arc<Session>>>);

#[derive(Debug)]
pub(in super::super) struct Session {
    pub(super) turn: Arc<tokio::sync::Mutex<WriterState>>,
    /// Counts the requests; the newest one may write.
    pub(super) newest: watch::Sender<u64>,
}

/// The state that passes from one writer to the next.
#[derive(Debug)]
pub(super) struct WriterState {
    pub(super) claim: Option<Claim>,
    /// Whether the claimed blocks have been allocated since the start.
    pub(super) set_aside: bool,
    /// The bytes since the last whole sector, and where they end.
    pub(super) tail: Option<(u64, Vec<u8>)>,
    /// Advances the readers of the growing title, also between two requests.
    pub(super) announced: Option<Arc<GrowthPublisher>>,
}

impl Sessions {
    /// Adds an open upload.
    pub(in super::super) fn add(&self, id: StoreId, claim: Claim, set_aside: bool) {
        let writer = WriterState { claim: Some(claim), set_aside, tail: None, announced: None };
        let turn = Arc::new(tokio::sync::Mutex::new(writer));
        let session = Session { turn, newest: watch::channel(0).0 };
        lock(&self.0).insert(id, Arc::new(session));
    }

    pub(in super::super) fn find(&self, id: &StoreId) -> Option<Arc<Session>> {
        lock(&self.0).get(id).cloned()
    }

    pub(super) fn remove(&self, id: &StoreId) {
        lock(&self.0).remove(id);
    }
}

impl Session {
    /// Ends the present writer, if there is one, and waits for it.
    pub(super) async fn take_over(
        &self,
    ) -> Result<(OwnedMutexGuard<WriterState>, RequestGeneration), ResumeError> {
        let mut own = 0;
        self.newest.send_modify(|newest| {
            *newest += 1;
            own = *newest;
        });
        let writer = self.wait().await?;
        let newest = RequestGeneration { own, newest: self.newest.subscribe() };
        if newest.is_over() { Err(ResumeError::Superseded) } else { Ok((writer, newest)) }
    }

    pub(super) async fn wait(&self) -> Result<OwnedMutexGuard<WriterState>, ResumeError> {
        let turn = Arc::clone(&self.turn).lock_owned();
        tokio::time::timeout(TURN_WAIT, turn).await.map_err(|_| ResumeError::Locked)
    }
}

/// Whether a request is still the newest for its upload.
#[derive(Clone, Debug)]
pub(super) struct RequestGeneration {
    own: u64,
    pub(super) newest: watch::Receiver<u64>,
}

impl RequestGeneration {
    pub(super) fn is_over(&self) -> bool {
        *self.newest.borrow() != self.own
    }

    pub(super) async fn over(&mut self) {
        let own = self.own;
        // Without a sender the upload is gone, which also ends the request.
        self.newest.wait_for(|newest| *newest != own).await.ok();
    }
}
