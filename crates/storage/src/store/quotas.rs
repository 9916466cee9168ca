//! Quotas and space: stored bytes, bytes promised to open uploads, and the space that must stay
//! free.
//!
//! Promise: a granted claim can be written to its end. The sum of all claims and titles never
//! exceeds a quota, however many uploads begin at once. Stored bytes are counted on the disk when
//! the volume is opened; afterwards the store tracks its own changes.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tactus_core::units::{Bytes, MIB};

use super::fault::{UploadError, too_large};
use super::id::StoreId;

/// The owner of stored titles. Anonymous is a principal, too.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Principal(Arc<str>);

impl Principal {
    /// Longer names are cut: they are compared, not shown.
    pub const BYTES_MAX: usize = 128;

    /// The principal with this name.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let cut = (0..=name.len().min(Self::BYTES_MAX)).rev().find(|&at| name.is_char_boundary(at));
        Self(name[..cut.unwrap_or(0)].into())
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }
}

/// The limits of uploads.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of one title.
    pub title_max: Bytes,
    /// Bytes of all titles and open uploads of a principal; a principal without an entry is limited
    /// only by the disk.
    pub principal_quotas: HashMap<Principal, Bytes>,
    /// Bytes of all titles of the volume.
    pub volume_quota: Option<Bytes>,
    /// Open uploads of one principal.
    pub uploads_per_principal: u32,
    /// Open uploads of the volume.
    pub uploads_max: u32,
    /// Space that stays free, in addition to one percent of the file system.
    pub reserve_min: Bytes,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // 4 TiB: longer than any recording, with 256 MiB of checksums.
            title_max: Bytes(1 << 42),
            principal_quotas: HashMap::new(),
            volume_quota: None,
            uploads_per_principal: 100,
            uploads_max: 10_000,
            reserve_min: Bytes(256 * MIB),
        }
    }
}

impl Limits {
    /// Whether the stored bytes must be counted before the first upload.
    pub(super) fn counts_stored(&self) -> bool {
        !self.principal_quotas.is_empty() || self.volume_quota.is_some()
    }
}

/// The account of one principal, or of all.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Account {
    /// Bytes of titles.
    pub stored: u64,
    /// Bytes promised to open uploads.
    pub reserved: u64,
    /// Open uploads.
    pub uploads: u32,
}

/// The quota of a principal and its use (RFC 4331 section 3).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct QuotaUsage {
    /// Bytes that can still be stored.
    pub available: u64,
    /// Bytes of its titles and open uploads if it has a quota; else the used bytes of the file
    /// system.
    pub used: u64,
}

/// The purpose of a reservation, so that every reservation can be named in the status.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Purpose {
    /// The path of the future title; none for a part.
    pub path: Option<String>,
    /// The identifier of a resumable upload; none for an upload in one request.
    pub id: Option<StoreId>,
}

/// Reserved space.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reservation {
    /// The upload that holds it.
    pub purpose: Purpose,
    /// When it was made; the last start at the earliest.
    pub since: SystemTime,
    /// Bytes.
    pub reserved: u64,
}

#[derive(Debug)]
pub(super) struct Quotas {
    limits: Limits,
    root: Arc<OwnedFd>,
    books: Mutex<Accounts>,
}

#[derive(Default, Debug)]
struct Accounts {
    all: Account,
    each: HashMap<Principal, Account>,
    /// All claims, in the order of their beginning: at most as many as open uploads.
    claims: BTreeMap<u64, (Principal, Reservation)>,
    /// Number of claims so far.
    numbers: u64,
    /// Bytes that are promised and not yet allocated in the file system.
    unallocated: u64,
    /// Bytes of titles with an unknown principal.
    unowned: u64,
    /// A place of the volume that could not be read.
    uncounted: Option<String>,
}

impl Quotas {
    pub(super) fn new(limits: Limits, root: Arc<OwnedFd>) -> Arc<Self> {
        Arc::new(Self { limits, root, books: Mutex::default() })
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    fn books(&self) -> MutexGuard<'_, Accounts> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The account of all principals.
    pub(super) fn all(&self) -> Account {
        self.books().all
    }

    pub(super) fn of(&self, principal: &Principal) -> Account {
        self.books().each.get(principal).copied().unwrap_or_default()
    }

    /// The account of one principal and its reservations, the oldest first.
    pub(super) fn held(&self, principal: &Principal) -> (Account, Vec<Reservation>) {
        let books = self.books();
        let own = books.claims.values().filter(|(owner, _)| owner == principal);
        let held = own.map(|(_, held)| held.clone()).collect();
        (books.each.get(principal).copied().unwrap_or_default(), held)
    }

    /// Opens a claim of zero bytes for a new upload.
    pub(super) fn open(
        self: &Arc<Self>,
        principal: &Principal,
        purpose: Purpose,
    ) -> Result<Claim, UploadError> {
        let mut books = self.books();
        let Limits { uploads_per_principal, uploads_max, .. } = self.limits;
        if books.all.uploads >= uploads_max {
            return Err(UploadError::TooMany(uploads_max));
        }
        let account = books.each.entry(principal.clone()).or_default();
        if account.uploads >= uploads_per_principal {
            return Err(UploadError::TooMany(uploads_per_principal));
        }
        account.uploads += 1;
        books.all.uploads += 1;
        let number = books.enter(principal, purpose, 0);
        drop(books);
        let quotas = Arc::clone(self);
        Ok(Claim { quotas, number, principal: principal.clone(), reserved: 0, unallocated: 0 })
    }

    /// Restores the claim of an upload that was open before the start; the limits do not apply to
    /// it.
    pub(super) fn restore(
        self: &Arc<Self>,
        principal: &Principal,
        purpose: Purpose,
        reserved: u64,
        on_disk: u64,
    ) -> Claim {
        let mut books = self.books();
        let unallocated = reserved.saturating_sub(on_disk);
        for account in books.accounts(principal) {
            account.uploads += 1;
            account.reserved += reserved;
        }
        books.unallocated += unallocated;
        let number = books.enter(principal, purpose, reserved);
        drop(books);
        let quotas = Arc::clone(self);
        Claim { quotas, number, principal: principal.clone(), reserved, unallocated }
    }

    /// Adds a stored title to the count.
    pub(super) fn add_stored(&self, owner: Option<&Principal>, len: u64) {
        let mut books = self.books();
        books.all.stored += len;
        if let Some(owner) = owner {
            books.each.entry(owner.clone()).or_default().stored += len;
        }
    }

    /// Adds titles with unknown owners to the count: they count against every quota.
    pub(super) fn add_unowned(&self, len: u64) {
        let mut books = self.books();
        books.all.stored += len;
        books.unowned += len;
    }

    /// Records that `place` cannot be read: no quota can be applied from now on.
    pub(super) fn cannot_count(&self, place: String) {
        self.books().uncounted.get_or_insert(place);
    }

    /// The place that could not be read.
    pub(super) fn uncounted(&self) -> Option<String> {
        self.books().uncounted.clone()
    }

    /// Removes a title from the count. Another program may have changed its length since.
    pub(super) fn remove_stored(&self, owner: Option<&Principal>, len: u64) {
        let mut books = self.books();
        books.all.stored = books.all.stored.saturating_sub(len);
        if let Some(account) = owner.and_then(|owner| books.each.get_mut(owner)) {
            account.stored = account.stored.saturating_sub(len);
        }
        books.forget_empty(owner);
    }

    /// The space that is left for a principal; reads the free space of the file system.
    pub(super) fn room(&self, principal: &Principal) -> QuotaUsage {
        let free = self.free();
        let disk = rustix::fs::fstatvfs(&self.root).map_or(0, |stat| {
            stat.f_blocks.saturating_sub(stat.f_bfree).saturating_mul(stat.f_frsize)
        });
        let books = self.books();
        let mut room = QuotaUsage { available: free.saturating_sub(books.unallocated), used: disk };
        let own = books.each.get(principal).copied().unwrap_or_default();
        let quotas = [
            (self.limits.volume_quota, books.all),
            (self.limits.principal_quotas.get(principal).copied(), own),
        ];
        for (quota, account) in quotas {
            let Some(quota) = quota else { continue };
            let used = account.stored.saturating_add(account.reserved);
            room = QuotaUsage { available: room.available.min(quota.0.saturating_sub(used)), used };
        }
        room
    }

    /// The free space of the file system beyond the reserve; zero when it is unknown.
    fn free(&self) -> u64 {
        let Ok(stat) = rustix::fs::fstatvfs(&self.root) else { return 0 };
        let total = stat.f_blocks.saturating_mul(stat.f_frsize);
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        free.saturating_sub((total / 100).max(self.limits.reserve_min.0))
    }
}

impl Accounts {
    fn accounts(&mut self, principal: &Principal) -> [&mut Account; 2] {
        [&mut self.all, self.each.entry(principal.clone()).or_default()]
    }

    /// Registers a claim and returns its number.
    fn enter(&mut self, principal: &Principal, purpose: Purpose, reserved: u64) -> u64 {
        let held = Reservation { purpose, since: SystemTime::now(), reserved };
        self.numbers += 1;
        self.claims.insert(self.numbers, (principal.clone(), held));
        self.numbers
    }

    fn rewrite(&mut self, number: u64, reserved: u64) {
        let (_, held) = self.claims.get_mut(&number).expect("a claim is named until it is dropped");
        held.reserved = reserved;
    }

    fn forget_empty(&mut self, principal: Option<&Principal>) {
        if let Some(principal) = principal
            && self.each.get(principal) == Some(&Account::default())
        {
            self.each.remove(principal);
        }
    }
}

/// The claim of one open upload. Dropping it releases the claim.
#[derive(Debug)]
pub(super) struct Claim {
    quotas: Arc<Quotas>,
    number: u64,
    principal: Principal,
    reserved: u64,
    unallocated: u64,
}

impl Claim {
    pub(super) fn principal(&self) -> &Principal {
        &self.principal
    }

    pub(super) fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Raises the claim to `bytes` in all; the claim does not change when they do not fit.
    pub(super) fn grow(&mut self, bytes: u64) -> Result<(), UploadError> {
        let Limits { title_max, ref principal_quotas, volume_quota, .. } = self.quotas.limits;
        let principal_quota = principal_quotas.get(&self.principal).copied();
        if bytes > title_max.0 {
            return Err(too_large(title_max));
        }
        let more = bytes.saturating_sub(self.reserved);
        let mut books = self.quotas.books();
        let (unallocated, unowned) = (books.unallocated, books.unowned);
        let has_quota = principal_quota.is_some() || volume_quota.is_some();
        if has_quota && let Some(place) = &books.uncounted {
            return Err(UploadError::Uncounted(place.clone()));
        }
        let [all, own] = books.accounts(&self.principal);
        // The sum of all includes the unowned bytes already.
        let owned = [(&*own, unowned, principal_quota), (&*all, 0, volume_quota)];
        for (account, unowned, quota) in owned {
            let used = account.stored.saturating_add(account.reserved).saturating_add(unowned);
            if let Some(quota) = quota
                && used.saturating_add(more) > quota.0
            {
                return Err(UploadError::QuotaExceeded(quota.0.saturating_sub(used)));
            }
        }
        // Under the same lock: only one of two concurrent claims gets the last space.
        if unallocated.saturating_add(more) > self.quotas.free() {
            return Err(UploadError::NoSpace);
        }
        all.reserved += more;
        own.reserved += more;
        books.unallocated += more;
        books.rewrite(self.number, self.reserved + more);
        drop(books);
        self.reserved += more;
        self.unallocated += more;
        Ok(())
    }

    /// Lowers the claim to `bytes`.
    pub(super) fn shrink(&mut self, bytes: u64) {
        let less = self.reserved.saturating_sub(bytes);
        let freed = less.min(self.unallocated);
        let mut books = self.quotas.books();
        for account in books.accounts(&self.principal) {
            account.reserved -= less;
        }
        books.unallocated -= freed;
        books.rewrite(self.number, self.reserved - less);
        drop(books);
        self.reserved -= less;
        self.unallocated -= freed;
    }

    /// Records that the file system has allocated the whole claim: its free space now accounts for
    /// it.
    pub(super) fn allocated(&mut self) {
        self.quotas.books().unallocated -= self.unallocated;
        self.unallocated = 0;
    }

    /// Records that `bytes` of the claim are allocated.
    pub(super) fn on_disk(&mut self, bytes: u64) {
        let unallocated = self.reserved.saturating_sub(bytes).min(self.unallocated);
        self.quotas.books().unallocated -= self.unallocated - unallocated;
        self.unallocated = unallocated;
    }

    /// Records that the upload has become a title of `len` bytes.
    pub(super) fn stored(self, len: u64) {
        // Stored first: meanwhile the bytes count twice rather than not at all.
        self.quotas.add_stored(Some(&self.principal), len);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.shrink(0);
        let mut books = self.quotas.books();
        for account in books.accounts(&self.principal) {
            account.uploads -= 1;
        }
        books.claims.remove(&self.number);
        books.forget_empty(Some(&self.principal));
    }
}
