//! Who writes to an upload: one request at a time, the newest.
//!
//! Promise: a newer request tells the older one to end, and waits for it, not for ever; what belongs to
//! whoever writes is handed from one to the next.

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

/// The open uploads, and who writes to each.
#[derive(Default, Debug)]
pub(in super::super) struct Sessions(Mutex<HashMap<StoreId, Arc<Session>>>);

#[derive(Debug)]
pub(in super::super) struct Session {
    pub(super) turn: Arc<tokio::sync::Mutex<WriterState>>,
    /// Counts the requests; the last one has the word.
    pub(super) newest: watch::Sender<u64>,
}

/// What belongs to whoever writes.
#[derive(Debug)]
pub(super) struct WriterState {
    pub(super) claim: Option<Claim>,
    /// Whether the blocks that are claimed have been set aside since the start.
    pub(super) set_aside: bool,
    /// The bytes since the last whole sector, and where they end.
    pub(super) tail: Option<(u64, Vec<u8>)>,
    /// Who reads it meanwhile is told here, also between two requests.
    pub(super) announced: Option<Arc<GrowthPublisher>>,
}

impl Sessions {
    /// Adds an open upload.
    pub(in super::super) fn add(&self, id: StoreId, claim: Claim, set_aside: bool) {
        let hold = WriterState { claim: Some(claim), set_aside, tail: None, announced: None };
        let turn = Arc::new(tokio::sync::Mutex::new(hold));
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
    /// Waits until nobody writes, after telling whoever does to end.
    pub(super) async fn take_over(
        &self,
    ) -> Result<(OwnedMutexGuard<WriterState>, RequestGeneration), ResumeError> {
        let mut own = 0;
        self.newest.send_modify(|newest| {
            *newest += 1;
            own = *newest;
        });
        let hold = self.wait().await?;
        let newest = RequestGeneration { own, newest: self.newest.subscribe() };
        if newest.is_over() { Err(ResumeError::Superseded) } else { Ok((hold, newest)) }
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
        // Without a sender the upload is gone: over, too.
        self.newest.wait_for(|newest| *newest != own).await.ok();
    }
}
