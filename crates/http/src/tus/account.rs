//! `GET /api/v1/uploads`: the stored and reserved bytes of one principal, with its uploads.
//!
//! Promise: no principal sees another's uploads. The reserved bytes and the uploads come from one
//! snapshot of each volume, so the totals match the list.

use std::time::SystemTime;

use serde::Serialize;
use tactus_engine::message::VolumeId;
use tactus_storage::catalogue::Catalogue;
use tactus_storage::store::{Principal, Reservation, Store};

use crate::response::Response;
use crate::uploads::Uploads;

/// Most uploads in the list. Further ones are counted, but not listed.
const LISTED_MAX: usize = 1000;

#[derive(Serialize)]
struct Account {
    volumes: Vec<VolumeAccount>,
}

#[derive(Serialize)]
struct VolumeAccount {
    mount: String,
    /// Bytes of titles.
    stored_bytes: u64,
    /// Reserved bytes of uploads, listed or not.
    reserved_bytes: u64,
    /// Absent where the file system's size is the only limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    quota_bytes: Option<u64>,
    open: usize,
    /// The oldest first.
    uploads: Vec<Upload>,
}

#[derive(Serialize)]
struct Upload {
    /// Absent for a part that will be joined with others.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    /// The identifier for resuming it; absent for a PUT.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    reserved_bytes: u64,
    /// Its durable bytes; absent for a PUT.
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    /// Seconds since its start, or since the start of the server.
    age_seconds: u64,
}

pub(super) fn told(uploads: &Uploads, catalogue: &Catalogue, principal: &Principal) -> Response {
    let volumes = (0..).zip(uploads.volumes.iter()).filter_map(|(at, store)| {
        let mount = catalogue.mount_of(VolumeId(at)).to_owned();
        Some(volume(store.as_ref()?, mount, principal))
    });
    let account = Account { volumes: volumes.collect() };
    Response::json(200, &account).with("Cache-Control", "no-store")
}

fn volume(store: &Store, mount: String, principal: &Principal) -> VolumeAccount {
    let (account, held) = store.held(principal);
    let quota = store.limits().principal_quotas.get(principal);
    let now = SystemTime::now();
    let listed = held.iter().take(LISTED_MAX).map(|held| upload(store, held, principal, now));
    VolumeAccount {
        mount,
        stored_bytes: account.stored,
        reserved_bytes: account.reserved,
        quota_bytes: quota.map(|quota| quota.0),
        open: held.len(),
        uploads: listed.collect(),
    }
}

fn upload(store: &Store, held: &Reservation, principal: &Principal, now: SystemTime) -> Upload {
    let id = held.purpose.id;
    let status = id.and_then(|id| store.status(&id, principal).ok());
    Upload {
        path: held.purpose.path.clone(),
        id: id.map(|id| id.to_string()),
        reserved_bytes: held.reserved,
        offset: status.map(|status| status.offset),
        // The clock may have been set back.
        age_seconds: now.duration_since(held.since).map_or(0, |age| age.as_secs()),
    }
}
