//! Write locks (RFC 4918 section 6): paths that only the holder of a token may change, for a
//! limited time.
//!
//! Promise: no two locks conflict, and no lock is granted while a change of its objects is in
//! progress. Their number and lifetime are bounded ([`LockLimits`]). They are in memory and end
//! with the server. This file contains neither XML nor file access.

mod change;

mod table;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tactus_storage::store::{Principal, StoreId};
use tokio::sync::Notify;

pub(super) use change::{Change, above};

use table::Table;

/// Limits on the number of locks and their lifetime.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LockLimits {
    /// For all principals together.
    pub(super) locks_max: usize,
    /// For one principal.
    pub(super) per_principal_max: usize,
    /// The longest time without a refresh.
    pub(super) timeout_max: Duration,
}

/// The locks of a server. Clones share the same locks.
#[derive(Clone, Debug)]
pub(super) struct Locks {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    limits: LockLimits,
    table: Mutex<Table>,
    /// Wakes tasks when a change ends.
    ended: Notify,
}

/// Whether a lock can be shared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scope {
    Exclusive,
    Shared,
}

/// The objects that a lock of a directory covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Depth {
    /// The object itself; for a directory also the names of its members (section 7.4).
    Zero,
    /// All members as well.
    Infinity,
}

/// A request for a lock.
#[derive(Clone, Debug)]
pub(super) struct LockRequest {
    /// The decoded path, without outer slashes.
    pub(super) path: String,
    pub(super) is_directory: bool,
    pub(super) scope: Scope,
    pub(super) depth: Depth,
    pub(super) principal: Principal,
    /// The element `owner`, as answers repeat it.
    pub(super) owner: Option<String>,
    /// The requested lifetime; none for the longest possible one.
    pub(super) timeout: Option<Duration>,
}

/// A granted lock.
#[derive(Clone, Debug)]
pub(super) struct Lock {
    pub(super) token: Arc<str>,
    pub(super) request: Arc<LockRequest>,
    pub(super) expires: Instant,
}

/// Why a lock is not granted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum LockError {
    #[error("/{0} is locked")]
    Locked(String),
    #[error("the limit of {0} locks is reached (upload.locks_max); try again later")]
    TooMany(usize),
    #[error(
        "this principal holds {0} locks, its limit (upload.locks_per_principal_max); release some"
    )]
    TooManyOfOne(usize),
    #[error("another change under this path is still running after {} s; try again",
        CHANGE_WAIT.as_secs())]
    Busy,
}

/// Why a lock is not released.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum UnlockError {
    /// No lock of this token covers the path.
    Unknown,
    /// The lock belongs to another principal.
    NotYours,
}

/// Upper bound of the wait for a change. Most uploads get their names in less; a disk that hangs
/// takes longer.
const CHANGE_WAIT: Duration = Duration::from_secs(10);

impl Locks {
    /// A table without locks.
    pub(super) fn new(limits: LockLimits) -> Self {
        let (table, ended) = (Mutex::default(), Notify::new());
        Self { inner: Arc::new(Inner { limits, table, ended }) }
    }

    /// Grants a lock, after the changes in progress have ended.
    pub(super) async fn lock(&self, request: LockRequest) -> Result<Lock, LockError> {
        let request = Arc::new(request);
        let granted = async {
            loop {
                let mut ended = std::pin::pin!(self.inner.ended.notified());
                // From here on the notification of an end cannot be missed.
                ended.as_mut().enable();
                match self.try_lock(&request, Instant::now()) {
                    Err(LockError::Busy) => ended.await,
                    done => return done,
                }
            }
        };
        tokio::time::timeout(CHANGE_WAIT, granted).await.unwrap_or(Err(LockError::Busy))
    }

    fn try_lock(&self, request: &Arc<LockRequest>, now: Instant) -> Result<Lock, LockError> {
        let LockLimits { locks_max, per_principal_max, .. } = self.inner.limits;
        let mut table = self.table();
        table.expire(now);
        if let Some(path) = table.conflict(request) {
            return Err(LockError::Locked(path));
        }
        if table.len() >= locks_max {
            return Err(LockError::TooMany(locks_max));
        }
        if table.len_of(&request.principal) >= per_principal_max {
            return Err(LockError::TooManyOfOne(per_principal_max));
        }
        if table.is_changing(&request.path, request.depth) {
            return Err(LockError::Busy);
        }
        let (token, expires) = (token().into(), now + self.granted(request.timeout));
        let lock = Lock { token, request: Arc::clone(request), expires };
        table.insert(lock.clone());
        Ok(lock)
    }

    /// Extends the first lock of these tokens that covers `path` and belongs to the principal.
    pub(super) fn refresh(
        &self,
        path: &str,
        tokens: &[String],
        principal: &Principal,
        timeout: Option<Duration>,
    ) -> Option<Lock> {
        let now = Instant::now();
        let expires = now + self.granted(timeout);
        let mut table = self.table();
        table.expire(now);
        let covering = table.covering(path).find(|lock| lock.is_opened_by(tokens, principal));
        let token = Arc::clone(&covering?.token);
        table.prolong(&token, expires)
    }

    /// Releases a lock that covers `path`; with `any` also that of another principal.
    pub(super) fn unlock(
        &self,
        path: &str,
        token: &str,
        principal: &Principal,
        any: bool,
    ) -> Result<(), UnlockError> {
        let mut table = self.table();
        table.expire(Instant::now());
        let lock = table.covering(path).find(|lock| *lock.token == *token);
        let lock = lock.ok_or(UnlockError::Unknown)?;
        if lock.request.principal != *principal && !any {
            return Err(UnlockError::NotYours);
        }
        let root = lock.request.path.clone();
        table.remove(&root, token);
        Ok(())
    }

    /// Whether a lock with this token covers `path`.
    pub(super) fn has(&self, path: &str, token: &str) -> bool {
        let mut table = self.table();
        table.expire(Instant::now());
        table.covering(path).any(|lock| *lock.token == *token)
    }

    /// All locks that cover `path`.
    pub(super) fn covering(&self, path: &str) -> Vec<Lock> {
        let mut table = self.table();
        table.expire(Instant::now());
        table.covering(path).cloned().collect()
    }

    /// Whether a lock begins at a directory above `path`, because such a lock may cover the names
    /// in it.
    pub(super) fn guard_names_above(&self, path: &str) -> bool {
        let mut table = self.table();
        table.expire(Instant::now());
        table.has_root_above(path)
    }

    /// The path of a lock that forbids one of `changes` to a request with `tokens`; none if all
    /// changes are allowed.
    pub(super) fn forbids(
        &self,
        changes: &[Change],
        tokens: &[String],
        principal: &Principal,
    ) -> Option<String> {
        let mut table = self.table();
        table.expire(Instant::now());
        changes.iter().find_map(|change| table.forbids(change, tokens, principal))
    }

    /// As [`Self::forbids`]; if all changes are allowed, no lock that covers one of them is granted
    /// until the returned guard is dropped.
    pub(super) fn begin(
        &self,
        changes: &[Change],
        tokens: &[String],
        principal: &Principal,
    ) -> Result<ChangeGuard, String> {
        let mut table = self.table();
        table.expire(Instant::now());
        match changes.iter().find_map(|change| table.forbids(change, tokens, principal)) {
            Some(path) => Err(path),
            None => Ok(ChangeGuard { locks: self.clone(), number: table.begin(changes.to_vec()) }),
        }
    }

    /// Ends all locks at `path` and below it, because the objects are gone (RFC 4918 sections 7.7,
    /// 9.6).
    pub(super) fn forget(&self, path: &str) {
        self.table().forget(path);
    }

    fn granted(&self, timeout: Option<Duration>) -> Duration {
        let most = self.inner.limits.timeout_max;
        timeout.map_or(most, |timeout| timeout.clamp(TIMEOUT_MIN, most))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Each change of the table is one step, so the table stays valid after a panic.
        self.inner.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Shortest lifetime: a shorter lock would end before its answer arrives.
const TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// A change in progress, between the last check of the locks and its end.
#[derive(Debug)]
#[must_use]
pub(super) struct ChangeGuard {
    locks: Locks,
    number: u64,
}

impl Drop for ChangeGuard {
    fn drop(&mut self) {
        self.locks.table().end(self.number);
        self.locks.inner.ended.notify_waiters();
    }
}

impl Lock {
    /// Seconds until its end, rounded up.
    pub(super) fn seconds_left(&self) -> u64 {
        let left = self.expires.saturating_duration_since(Instant::now());
        left.as_nanos().div_ceil(1_000_000_000) as u64
    }

    /// Whether its token is among `tokens`, and the request is from its own principal (section
    /// 6.4).
    fn is_opened_by(&self, tokens: &[String], principal: &Principal) -> bool {
        self.request.principal == *principal && tokens.iter().any(|token| **token == *self.token)
    }
}

/// An unpredictable token (RFC 4918 appendix C): a random UUID.
fn token() -> String {
    let digits = StoreId::random().to_string();
    let part = |range| &digits[range];
    format!(
        "opaquelocktoken:{}-{}-4{}-a{}-{}",
        part(0..8),
        part(8..12),
        part(13..16),
        part(17..20),
        part(20..32)
    )
}

#[cfg(test)]
mod tests;
