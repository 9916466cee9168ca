//! Deleting and renaming (W10), and making directories.

use std::sync::Arc;

use tactus_core::units::WallTime;

use super::Store;
use super::fault::{ChangeError, UploadError};
use super::names::{AnyName, NameChange, Names, Precondition, ReplacePolicy, TitleName};

/// A completed rename.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RenameResult {
    /// Whether the new name was free before.
    pub created: bool,
    /// The title's entity tag; a directory has none.
    pub etag: Option<String>,
}

impl Store {
    /// Removes a title's name (W10). Its blocks are freed in the background, after the last reader
    /// has finished. The operation completes even when the caller stops waiting.
    ///
    /// # Errors
    /// When the title is not, or not certainly, removed.
    pub async fn delete(&self, path: &str, precondition: Precondition) -> Result<(), ChangeError> {
        let name = TitleName::new(path)?;
        let discard = move |names: &Names| names.discard(&name, &precondition);
        self.change(discard).await.map(drop)
    }

    /// Removes the name of a title, or of a directory with its contents; a path that ends with a
    /// slash names a directory. The blocks are freed in the background. The operation completes
    /// even when the caller stops waiting.
    ///
    /// # Errors
    /// When it is not, or not certainly, removed.
    pub async fn remove(&self, path: &str, precondition: Precondition) -> Result<(), ChangeError> {
        let name = AnyName::new(path)?;
        let remove = move |names: &Names| names.remove(&name, &precondition);
        self.change(remove).await.map(drop)
    }

    /// Removes an empty directory. The operation completes even when the caller stops waiting.
    ///
    /// # Errors
    /// When it is not, or not certainly, removed; `NameFault::NotEmpty` when it has contents.
    pub async fn remove_empty_directory(&self, path: &str) -> Result<(), ChangeError> {
        let name = AnyName::new(path)?;
        self.change(move |names| names.remove_empty_directory(&name)).await.map(drop)
    }

    /// Makes a directory in an existing one. The operation completes even when the caller stops
    /// waiting.
    ///
    /// # Errors
    /// When it is not, or not certainly, made; `Exists` when the name is in use.
    pub async fn make_directory(&self, path: &str) -> Result<(), ChangeError> {
        let name = AnyName::new(path)?;
        self.change(move |names| names.make_directory(&name).map(Some)).await.map(drop)
    }

    /// Renames the title or directory `from` to `to`, if the precondition holds. The directory of
    /// the new name must exist. The operation completes even when the caller stops waiting.
    ///
    /// # Errors
    /// When it does not, or not certainly, have the new name.
    pub async fn rename(
        &self,
        from: &str,
        source: Precondition,
        to: &str,
        over: ReplacePolicy,
    ) -> Result<RenameResult, ChangeError> {
        let (from, to) = (AnyName::new(from)?, AnyName::new(to)?);
        self.change(move |names| names.rename(&from, &source, &to, over)).await
    }

    /// Sets the modification time of the title or directory `path`; returns its new entity tag. The
    /// operation completes even when the caller stops waiting.
    ///
    /// # Errors
    /// When it does not, or not certainly, have the new time.
    pub async fn set_modified(
        &self,
        path: &str,
        precondition: Precondition,
        modified: WallTime,
    ) -> Result<RenameResult, ChangeError> {
        let name = AnyName::new(path)?;
        self.change(move |names| names.set_modified(&name, &precondition, modified)).await
    }

    async fn change(
        &self,
        change: impl FnOnce(&Names) -> Result<Option<NameChange>, UploadError> + Send + 'static,
    ) -> Result<RenameResult, ChangeError> {
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
            Ok(RenameResult { created, etag })
        });
        let stopped = |_| ChangeError::Io(super::medium::stopped());
        work.await.map_err(stopped)?
    }
}
