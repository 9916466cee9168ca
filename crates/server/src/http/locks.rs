//! Write locks (RFC 4918 section 6): which paths only the holder of a token may change, and until
//! when.
//!
//! Promise: no two locks contradict each other, and none is granted while a change of what it
//! covers is under way. Their number and lifetime are bounded ([`LockLimits`]). They are in memory
//! and end with the server. This file knows paths and tokens, but neither XML nor files.

mod change;

mod table;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::store::{Principal, StoreId};

pub(super) use change::{Change, above};

use table::Table;

/// How many locks there may be, and for how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LockLimits {
    /// Of all principals together.
    pub(super) locks_max: usize,
    /// Of one principal.
    pub(super) per_principal_max: usize,
    /// The longest time without a refresh.
    pub(super) timeout_max: Duration,
}

/// The locks of a server. Clones are the same ones.
#[derive(Clone, Debug)]
pub(super) struct Locks {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    limits: LockLimits,
    table: Mutex<Table>,
    /// A change has ended.
    ended: Notify,
}

/// Who may share a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scope {
    Exclusive,
    Shared,
}

/// What a lock of a directory covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Depth {
    /// The thing itself; of a directory also which names are in it (section 7.4).
    Zero,
    /// All that is in it as well.
    Infinity,
}

/// A lock that is asked for.
#[derive(Clone, Debug)]
pub(super) struct LockRequest {
    /// The decoded path, without outer slashes.
    pub(super) path: String,
    pub(super) is_directory: bool,
    pub(super) scope: Scope,
    pub(super) depth: Depth,
    pub(super) principal: Principal,
    /// The element `owner` as it is told again.
    pub(super) owner: Option<String>,
    /// What the client asks for; none: as long as possible.
    pub(super) timeout: Option<Duration>,
}

/// A lock that is held.
#[derive(Clone, Debug)]
pub(super) struct Lock {
    pub(super) token: Arc<str>,
    pub(super) wish: Arc<LockRequest>,
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

/// Why a lock is not given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum UnlockError {
    /// No lock of this token covers the path.
    Unknown,
    /// It is another principal's.
    NotYours,
}

/// Longer than most uploads need to get their names; a disk that hangs takes longer.
const CHANGE_WAIT: Duration = Duration::from_secs(10);

impl Locks {
    /// No lock yet.
    pub(super) fn new(limits: LockLimits) -> Self {
        let (table, ended) = (Mutex::default(), Notify::new());
        Self { inner: Arc::new(Inner { limits, table, ended }) }
    }

    /// Grants a lock, when the changes that are under way have ended.
    pub(super) async fn lock(&self, wish: LockRequest) -> Result<Lock, LockError> {
        let wish = Arc::new(wish);
        let granted = async {
            loop {
                let mut ended = std::pin::pin!(self.inner.ended.notified());
                // From here on no end is missed.
                ended.as_mut().enable();
                match self.try_lock(&wish, Instant::now()) {
                    Err(LockError::Busy) => ended.await,
                    done => return done,
                }
            }
        };
        tokio::time::timeout(CHANGE_WAIT, granted).await.unwrap_or(Err(LockError::Busy))
    }

    fn try_lock(&self, wish: &Arc<LockRequest>, now: Instant) -> Result<Lock, LockError> {
        let LockLimits { locks_max, per_principal_max, .. } = self.inner.limits;
        let mut table = self.table();
        table.expire(now);
        if let Some(path) = table.conflict(wish) {
            return Err(LockError::Locked(path));
        }
        if table.len() >= locks_max {
            return Err(LockError::TooMany(locks_max));
        }
        if table.len_of(&wish.principal) >= per_principal_max {
            return Err(LockError::TooManyOfOne(per_principal_max));
        }
        if table.is_changing(&wish.path, wish.depth) {
            return Err(LockError::Busy);
        }
        let (token, expires) = (token().into(), now + self.granted(wish.timeout));
        let lock = Lock { token, wish: Arc::clone(wish), expires };
        table.insert(lock.clone());
        Ok(lock)
    }

    /// Prolongs the first of the locks with these tokens that covers `path` and is the principal's.
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

    /// Gives a lock that covers `path` back; `any` also one of another principal.
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
        if lock.wish.principal != *principal && !any {
            return Err(UnlockError::NotYours);
        }
        let root = lock.wish.path.clone();
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

    /// Whether a lock begins at a directory above `path`, which may guard the names in it.
    pub(super) fn guard_names_above(&self, path: &str) -> bool {
        let mut table = self.table();
        table.expire(Instant::now());
        table.has_root_above(path)
    }

    /// The path of a lock that forbids one of `changes` to who has sent `tokens`; none when all may
    /// be.
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

    /// The same, and until what is returned is dropped no lock is granted that covers one of
    /// `changes`.
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

    /// Ends all locks of what was at `path` and below it, as it is gone (RFC 4918 sections 7.7,
    /// 9.6).
    pub(super) fn forget(&self, path: &str) {
        self.table().forget(path);
    }

    fn granted(&self, timeout: Option<Duration>) -> Duration {
        let most = self.inner.limits.timeout_max;
        timeout.map_or(most, |timeout| timeout.clamp(TIMEOUT_MIN, most))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Each change of the table is one step.
        self.inner.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A shorter one would end before its answer arrives.
const TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// A change between the last look at the locks and its end.
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
    /// Seconds until it ends, rounded up.
    pub(super) fn seconds_left(&self) -> u64 {
        let left = self.expires.saturating_duration_since(Instant::now());
        left.as_nanos().div_ceil(1_000_000_000) as u64
    }

    /// Whether its token is among `tokens`, and sent by its own principal (section 6.4).
    fn is_opened_by(&self, tokens: &[String], principal: &Principal) -> bool {
        self.wish.principal == *principal && tokens.iter().any(|token| **token == *self.token)
    }
}

/// A token that nobody can guess (RFC 4918 appendix C): a random UUID.
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
