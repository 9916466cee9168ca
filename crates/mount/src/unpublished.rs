//! The names of files that are being written: the server knows none of them as a title yet.
//!
//! Promise: a program finds such a file under its name before any other door does.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The names.
#[derive(Default)]
pub(crate) struct UnpublishedNames(Mutex<Vec<UnpublishedName>>);

/// One name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct UnpublishedName {
    /// The number of its directory.
    pub(crate) parent: u64,
    pub(crate) name: Box<str>,
    /// The number of its node.
    pub(crate) number: u64,
}

impl UnpublishedNames {
    /// A file is written under this name from now on.
    pub(crate) fn add(&self, parent: u64, name: &str, number: u64) {
        let mut names = self.names();
        names.retain(|known| !known.is(parent, name) && known.number != number);
        names.push(UnpublishedName { parent, name: name.into(), number });
    }

    /// The node that is written under a name.
    pub(crate) fn find(&self, parent: u64, name: &str) -> Option<u64> {
        let names = self.names();
        names.iter().find(|known| known.is(parent, name)).map(|known| known.number)
    }

    /// A file is a title now, or has lost its name.
    pub(crate) fn remove(&self, number: u64) {
        self.names().retain(|known| known.number != number);
    }

    /// Those in a directory.
    pub(crate) fn within(&self, parent: u64) -> Vec<UnpublishedName> {
        self.names().iter().filter(|known| known.parent == parent).cloned().collect()
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<UnpublishedName> {
        self.names().clone()
    }

    fn names(&self) -> MutexGuard<'_, Vec<UnpublishedName>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UnpublishedName {
    fn is(&self, parent: u64, name: &str) -> bool {
        self.parent == parent && *self.name == *name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_of_one_node_and_a_node_has_one_name() {
        let names = UnpublishedNames::default();
        names.add(1, "a", 10);
        names.add(2, "a", 20);
        assert_eq!(
            (names.find(1, "a"), names.find(2, "a"), names.find(1, "b")),
            (Some(10), Some(20), None)
        );
        names.add(1, "b", 10);
        assert_eq!((names.find(1, "a"), names.find(1, "b")), (None, Some(10)), "renamed");
        names.add(1, "b", 30);
        assert_eq!(names.find(1, "b"), Some(30), "replaced");
        assert_eq!((names.within(1).len(), names.all().len()), (1, 2));
        names.remove(30);
        assert_eq!((names.find(1, "b"), names.all().len()), (None, 1));
    }
}
