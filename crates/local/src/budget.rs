//! Memory with a limit: of the titles that programs have mapped, all together (`[local]
//! titles_max`), or of the rings of one program (`data_max`).
//!
//! Promise: shares are given while there is room, and come back when they are dropped.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tactus_core::units::Bytes;

/// Memory that can be taken in shares. Clones are one budget.
#[derive(Clone)]
pub(crate) struct MemoryBudget(Arc<Account>);

struct Account {
    limit: Bytes,
    used: Mutex<u64>,
}

/// A part of the budget.
pub(crate) struct MemoryShare {
    account: Arc<Account>,
    len: u64,
}

impl MemoryBudget {
    pub(crate) fn new(limit: Bytes) -> Self {
        Self(Arc::new(Account { limit, used: Mutex::new(0) }))
    }

    /// The most that one share can have.
    pub(crate) fn limit(&self) -> Bytes {
        self.0.limit
    }

    /// A share without bytes.
    pub(crate) fn share(&self) -> MemoryShare {
        MemoryShare { account: Arc::clone(&self.0), len: 0 }
    }
}

impl Account {
    fn used(&self) -> MutexGuard<'_, u64> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemoryShare {
    /// The number of its bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// What is left of the budget.
    pub(crate) fn left(&self) -> Bytes {
        Bytes(self.account.limit.0.saturating_sub(*self.account.used()))
    }

    /// Has `len` bytes from now on.
    ///
    /// # Errors
    /// What is left of the budget, if that is too little. Nothing has changed then.
    pub(crate) fn resize(&mut self, len: u64) -> Result<(), Bytes> {
        let mut used = self.account.used();
        let left = self.account.limit.0.saturating_sub(*used);
        if len.saturating_sub(self.len) > left {
            return Err(Bytes(left));
        }
        *used = *used - self.len + len;
        self.len = len;
        Ok(())
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        *self.account.used() -= self.len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_fit_into_the_limit_and_come_back() {
        let budget = MemoryBudget::new(Bytes(100));
        let (mut one, mut other) = (budget.share(), budget.share());
        assert_eq!(one.resize(60), Ok(()));
        assert_eq!(other.resize(41), Err(Bytes(40)));
        assert_eq!((other.len(), other.resize(40)), (0, Ok(())));
        assert_eq!(one.resize(61), Err(Bytes(0)));
        assert_eq!(one.resize(u64::MAX), Err(Bytes(0)));
        assert_eq!((one.resize(10), other.resize(90)), (Ok(()), Ok(())));
        drop(other);
        assert_eq!(one.resize(100), Ok(()));
    }
}
