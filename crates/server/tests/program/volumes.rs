//! Volumes from an operator's view: the configuration check, files that cannot be served, late or
//! missing disks, and quotas with unreadable places.
//!
//! Cases that mount something run the server in its own mount namespace, which ends with it. They
//! run as root, as in CI.
#![allow(clippy::unwrap_used, reason = "a case fails by panicking, also in what it calls")]

mod checked;
mod fixture;
mod mounted;
mod quota;
mod seen;
