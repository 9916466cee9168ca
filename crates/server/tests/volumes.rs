//! Volumes as an operator meets them: what the check of a configuration finds, what lies in directories
//! that cannot be served, disks that are mounted late or not at all, quotas with holes in the count.
//!
//! Where a case mounts something, the server runs in a name space of its own for mounts, which goes with
//! it. They run as root, as in CI.
#![allow(clippy::unwrap_used, reason = "a case fails by panicking, also in what it calls")]

#[path = "volumes/checked.rs"]
mod checked;
#[path = "volumes/mounted.rs"]
mod mounted;
#[path = "volumes/quota.rs"]
mod quota;
#[path = "volumes/seen.rs"]
mod seen;
#[path = "volumes/stage.rs"]
mod stage;
