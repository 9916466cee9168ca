//! Deleting and renaming titles (W10).

use std::sync::Arc;

use super::Store;
use super::fault::{ChangeError, UploadError};
use super::names::{Changed, Names, Precondition, TitleName};
use super::publish::Finished;
use tactus_core::units::Bytes;

impl Store {
    /// Takes a title's name away; its blocks follow in the background, when the last reader is done.
    /// Goes on to its end also when nobody waits any more.
    ///
    /// # Errors
    /// When the title is not, or not surely, gone.
    pub async fn delete(&self, path: &str, precondition: Precondition) -> Result<(), ChangeError> {
        let name = TitleName::new(path)?;
        let discard = move |names: &Names| names.discard(&name, &precondition);
        self.change(discard).await.map(drop)
    }

    /// Gives the title `from` the name `to`, when both preconditions hold. Directories of the new name
    /// are made. Goes on to its end also when nobody waits any more.
    ///
    /// # Errors
    /// When the title has not, or not surely, the new name.
    pub async fn rename(
        &self,
        from: &str,
        source: Precondition,
        to: &str,
        target: Precondition,
    ) -> Result<Finished, ChangeError> {
        let (from, to) = (TitleName::new(from)?, TitleName::new(to)?);
        self.change(move |names| names.rename(&from, &source, &to, &target)).await
    }

    async fn change(
        &self,
        change: impl FnOnce(&Names) -> Result<Option<Changed>, UploadError> + Send + 'static,
    ) -> Result<Finished, ChangeError> {
        let inner = Arc::clone(&self.inner);
        inner.writable()?;
        inner.counted().await;
        let work = tokio::spawn(async move {
            let names = Arc::clone(&inner.names);
            let changed =
                inner.blocking(move || Ok(change(&names))).await.map_err(ChangeError::Io)?;
            let changed = changed.map_err(|error| inner.change_failed(error))?;
            let changed = changed.ok_or(ChangeError::NotFound)?;
            let (etag, created) = (changed.etag.clone(), changed.created);
            inner.settle(changed).await?;
            Ok(Finished { etag, created, len: Bytes::ZERO })
        });
        let stopped = |_| ChangeError::Io(std::io::Error::other("the server stops"));
        work.await.map_err(stopped)?
    }
}
