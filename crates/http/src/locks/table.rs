//! The table of locks by their root paths, and the changes in progress.
//!
//! Promise: the cost of a lookup depends on the depth of the path and on the locks along it, not on
//! the number of all locks.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Instant;

use tactus_storage::store::Principal;

use super::change::{above, is_below};
use super::{Change, Depth, Lock, LockRequest, Scope};

#[derive(Default, Debug)]
pub(super) struct Table {
    by_path: BTreeMap<String, Vec<Lock>>,
    len: usize,
    /// No lock ends before this time.
    first_end: Option<Instant>,
    under_way: HashMap<u64, Vec<Change>>,
    changes: u64,
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn len_of(&self, principal: &Principal) -> usize {
        let all = self.by_path.values().flatten();
        all.filter(|lock| lock.request.principal == *principal).count()
    }

    /// Removes locks whose time is over.
    pub(super) fn expire(&mut self, now: Instant) {
        if self.first_end.is_some_and(|end| end <= now) {
            self.retain(|lock| lock.expires > now);
        }
    }

    fn retain(&mut self, stays: impl Fn(&Lock) -> bool) {
        self.by_path.retain(|_, locks| {
            locks.retain(&stays);
            !locks.is_empty()
        });
        self.len = self.by_path.values().map(Vec::len).sum();
        self.first_end = self.by_path.values().flatten().map(|lock| lock.expires).min();
    }

    pub(super) fn insert(&mut self, lock: Lock) {
        self.first_end = self.first_end.into_iter().chain([lock.expires]).min();
        self.len += 1;
        self.by_path.entry(lock.request.path.clone()).or_default().push(lock);
    }

    pub(super) fn remove(&mut self, root: &str, token: &str) {
        if let Some(locks) = self.by_path.get_mut(root) {
            let before = locks.len();
            locks.retain(|lock| *lock.token != *token);
            self.len -= before - locks.len();
            if locks.is_empty() {
                self.by_path.remove(root);
            }
        }
    }

    pub(super) fn prolong(&mut self, token: &Arc<str>, expires: Instant) -> Option<Lock> {
        let mut all = self.by_path.values_mut().flatten();
        let lock = all.find(|lock| lock.token == *token)?;
        lock.expires = expires;
        let lock = lock.clone();
        self.first_end = self.first_end.into_iter().chain([expires]).min();
        Some(lock)
    }

    pub(super) fn forget(&mut self, path: &str) {
        if self.len > 0 {
            self.retain(|lock| lock.request.path != path && !is_below(&lock.request.path, path));
        }
    }

    /// Whether a lock begins at `path`.
    fn is_root(&self, path: &str) -> bool {
        self.by_path.contains_key(path)
    }

    /// Whether a lock begins at a directory above `path`.
    pub(super) fn has_root_above(&self, path: &str) -> bool {
        self.len > 0 && all_above(path).any(|path| self.is_root(path))
    }

    /// The locks that cover `path`: its own, and those of infinite depth above it.
    pub(super) fn covering<'a>(&'a self, path: &'a str) -> impl Iterator<Item = &'a Lock> {
        let above = all_above(path).filter(|_| self.len > 0);
        let inherited = above.filter_map(|path| self.by_path.get(path)).flatten();
        let inherited = inherited.filter(|lock| lock.request.depth == Depth::Infinity);
        self.by_path.get(path).into_iter().flatten().chain(inherited)
    }

    /// The paths below `path` where locks begin.
    fn roots_below(&self, path: &str) -> impl Iterator<Item = &String> {
        let begin = if path.is_empty() { String::new() } else { format!("{path}/") };
        let from = self.by_path.range::<String, _>((Bound::Excluded(&begin), Bound::Unbounded));
        from.map(|(root, _)| root).take_while(move |root| root.starts_with(&begin))
    }

    /// The path of a lock that conflicts with `request` (section 6.1).
    pub(super) fn conflict(&self, request: &LockRequest) -> Option<String> {
        let excludes = |lock: &&Lock| {
            request.scope == Scope::Exclusive || lock.request.scope == Scope::Exclusive
        };
        if let Some(lock) = self.covering(&request.path).find(excludes) {
            return Some(lock.request.path.clone());
        }
        if request.depth == Depth::Zero {
            return None;
        }
        let excludes = |root: &&String| self.by_path[*root].iter().any(|lock| excludes(&lock));
        self.roots_below(&request.path).find(excludes).cloned()
    }

    /// The path of a lock that forbids `change` to a request with `tokens`. If several locks have
    /// the same path, they are shared, and the token of one of them suffices.
    pub(super) fn forbids(
        &self,
        change: &Change,
        tokens: &[String],
        principal: &Principal,
    ) -> Option<String> {
        if self.len == 0 {
            return None;
        }
        let closed = |path: &str| {
            let mut locks = self.covering(path).peekable();
            let first = locks.peek()?.request.path.clone();
            let open = locks.any(|lock| lock.is_opened_by(tokens, principal));
            (!open).then_some(first)
        };
        let own = closed(&change.path);
        let below = || self.roots_below(&change.path).find_map(|root| closed(root));
        let within = || {
            let mut guarded = change.within.iter().filter(|directory| self.is_root(directory));
            guarded.find_map(|directory| closed(directory))
        };
        own.or_else(|| change.below.then(below).flatten()).or_else(within)
    }

    /// Records the start of these changes.
    pub(super) fn begin(&mut self, changes: Vec<Change>) -> u64 {
        self.changes += 1;
        self.under_way.insert(self.changes, changes);
        self.changes
    }

    pub(super) fn end(&mut self, number: u64) {
        self.under_way.remove(&number);
    }

    /// Whether a change that a lock would cover is in progress.
    pub(super) fn is_changing(&self, root: &str, depth: Depth) -> bool {
        self.under_way.values().flatten().any(|Change { path, below, .. }| {
            let inside = match depth {
                Depth::Zero => above(path) == root,
                Depth::Infinity => is_below(path, root),
            };
            path == root || inside || (*below && is_below(root, path))
        })
    }
}

/// The directories above a path, the nearest first.
fn all_above(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(next_above(path), |path| next_above(path))
}

/// The root has no parent.
fn next_above(path: &str) -> Option<&str> {
    if path.is_empty() { None } else { Some(above(path)) }
}
