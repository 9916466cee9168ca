//! The gate of changes by other protocols: they meet the same volumes and locks as a request.
//!
//! Promise: what WebDAV has locked, no program of the machine changes.

use std::sync::Arc;

use tactus_control::api_path::{API_PATH, is_api_path};
use tactus_control::changes::{
    ChangeGate, ChangeGuard, ChangeKind, ChangeRefusal, PathChange, StorePlace,
};
use tactus_core::path::RequestPath;
use tactus_storage::catalogue::Catalogue;
use tactus_storage::store::{Pending, Principal};

use super::locking;
use super::locks::Change;
use super::uploads::Uploads;

/// The gate of a server.
#[derive(Clone, Debug)]
pub struct UploadGate {
    uploads: Uploads,
    catalogue: Arc<Catalogue>,
}

impl UploadGate {
    /// The gate to the volumes of `uploads`, with the locks of their clients.
    #[must_use]
    pub fn new(uploads: Uploads, catalogue: Arc<Catalogue>) -> Self {
        Self { uploads, catalogue }
    }

    async fn change(&self, change: &PathChange) -> Result<Change, ChangeRefusal> {
        let path = &change.path;
        let takes_away = matches!(change.kind, ChangeKind::Vanish | ChangeKind::Replace);
        if takes_away && self.catalogue.holds_volumes(path) {
            return Err(ChangeRefusal::HoldsVolume);
        }
        let makes = change.kind == ChangeKind::Make;
        if makes && (path.name().is_empty() || self.catalogue.holds_mount(path)) {
            return Err(ChangeRefusal::InUse);
        }
        Ok(match change.kind {
            ChangeKind::Store => self.storing(path).await?,
            ChangeKind::Replace => Change { below: true, ..self.storing(path).await? },
            ChangeKind::Vanish => Change::vanishing(path.name()),
            ChangeKind::Make => Change::appearing(path.name()),
            ChangeKind::Set => Change::of(path.name()),
        })
    }

    async fn storing(&self, path: &RequestPath) -> Result<Change, ChangeRefusal> {
        let change = locking::storing(&self.uploads, &self.catalogue, path).await;
        let failed = |_| ChangeRefusal::Failed(format!("/{} cannot be looked at", path.name()));
        change.map_err(failed)
    }
}

impl ChangeGate for UploadGate {
    fn place(&self, path: &RequestPath) -> Result<StorePlace, ChangeRefusal> {
        if is_api_path(path.name()) {
            return Err(ChangeRefusal::Reserved(API_PATH));
        }
        let (store, volume, path) = self.uploads.store_at(&self.catalogue, path)?;
        Ok(StorePlace { store: store.clone(), path, volume: volume.0 })
    }

    fn begin(
        &self,
        principal: &Principal,
        changes: Vec<PathChange>,
    ) -> Pending<Result<ChangeGuard, ChangeRefusal>> {
        let (gate, principal) = (self.clone(), principal.clone());
        Box::pin(async move {
            let mut all = Vec::with_capacity(changes.len());
            for change in &changes {
                all.push(gate.change(change).await?);
            }
            // A token belongs to the client that got it; other protocols have none.
            let begun = gate.uploads.locks.begin(&all, &[], &principal);
            begun.map(ChangeGuard::new).map_err(ChangeRefusal::Locked)
        })
    }

    fn forget(&self, path: &RequestPath) {
        self.uploads.locks.forget(path.name());
    }
}
