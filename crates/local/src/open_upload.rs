//! A resumable upload of a program in the store.
//!
//! Promise: it is given up with the program that began it, unless the program has synced it. Then
//! it stays until it expires, and is continued by its identifier.

use std::sync::atomic::{AtomicBool, Ordering};

use tactus_storage::store::{
    Appender, Principal, ResumeError, Store, StoreId, TitleMetadata, UploadReader,
};

/// An upload that has no name yet.
pub(crate) struct OpenUpload {
    store: Store,
    id: StoreId,
    principal: Principal,
    is_synced: AtomicBool,
    is_over: AtomicBool,
}

impl OpenUpload {
    pub(crate) fn new(store: Store, id: StoreId, principal: Principal) -> Self {
        let (is_synced, is_over) = Default::default();
        Self { store, id, principal, is_synced, is_over }
    }

    /// One that an earlier program has synced.
    pub(crate) fn of_earlier(store: Store, id: StoreId, principal: Principal) -> Self {
        let open = Self::new(store, id, principal);
        open.keep();
        open
    }

    /// What a program continues it by.
    pub(crate) fn id(&self) -> String {
        self.id.to_string()
    }

    /// Gives it up; if it `keeps` what was synced, only when nothing was.
    pub(crate) async fn end(&self, keeps: bool) {
        if (keeps && self.is_synced.load(Ordering::Relaxed))
            || self.is_over.swap(true, Ordering::Relaxed)
        {
            return;
        }
        match self.store.terminate(&self.id, &self.principal).await {
            Ok(()) | Err(ResumeError::NotFound) => {}
            Err(error) => {
                let id = self.id;
                tracing::warn!(%error, %id, "an upload cannot be given up; it expires later");
            }
        }
    }

    /// It outlives its program from now on.
    pub(crate) fn keep(&self) {
        self.is_synced.store(true, Ordering::Relaxed);
    }

    /// Takes it over from the request that writes it, if there is one.
    pub(crate) async fn take_over(&self) -> Result<Appender, ResumeError> {
        let offset = self.store.status(&self.id, &self.principal)?.offset;
        match self.append(offset).await {
            // What the other request had written is durable now.
            Err(ResumeError::OffsetMismatch(offset)) => self.append(offset).await,
            taken => taken,
        }
    }

    /// Reads what is durable of it.
    pub(crate) async fn read_back(&self) -> Result<UploadReader, ResumeError> {
        self.store.read_back(&self.id, &self.principal).await
    }

    /// Continues it at `offset`, its length in the journal.
    pub(crate) async fn append(&self, offset: u64) -> Result<Appender, ResumeError> {
        self.store.append(&self.id, &self.principal, offset).await
    }

    /// Makes a title of it. All of its `len` bytes are durable.
    pub(crate) async fn finish(
        &self,
        len: u64,
        metadata: TitleMetadata,
    ) -> Result<(), ResumeError> {
        self.store.declare(&self.id, &self.principal, len).await?;
        self.store.finish_as(&self.id, &self.principal, metadata).await?;
        // The journal remembers it for a program that has not heard of its end.
        self.is_over.store(true, Ordering::Relaxed);
        Ok(())
    }
}
