//! The refusal of a stream without room.
//!
//! Promise: it names the short resource, and the class of the stream if it has one.

use std::fmt;
use std::time::Duration;

use tactus_core::classes::ClassNumber;
use tactus_core::ledger::{Rejection, Resource};
use tactus_core::units::{BitRate, Nanos};

use super::BrokerRules;
use super::shares::Excess;
use super::viewer::{Party, Viewer};

/// Why a delivery was not admitted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The short resource.
    pub resource: Resource,
    /// When to try again.
    pub retry_after: Duration,
    /// One sentence for people.
    pub message: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Refusal {}

/// Refused requests, by short resource.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Refusals([u64; RESOURCES.len()]);

/// Every resource, in listing order.
pub const RESOURCES: [Resource; 9] = [
    Resource::Disk,
    Resource::Arena,
    Resource::ReadAhead,
    Resource::WriteShare,
    Resource::Link,
    Resource::Datagrams,
    Resource::Class,
    Resource::Cpu,
    Resource::Streams,
];

fn place(resource: Resource) -> usize {
    RESOURCES.iter().position(|&each| each == resource).expect("all are listed")
}

impl Refusals {
    /// The number of refused requests of each resource.
    pub fn iter(&self) -> impl Iterator<Item = (Resource, u64)> {
        RESOURCES.into_iter().zip(self.0)
    }

    /// The number of requests refused for `resource`.
    pub fn of(&self, resource: Resource) -> u64 {
        self.0[place(resource)]
    }

    pub(super) fn count(&mut self, resource: Resource) {
        self.0[place(resource)] += 1;
    }
}

/// The class of a stream, for people.
pub(super) fn in_class(class: Option<ClassNumber>, rules: &BrokerRules) -> String {
    let name = class.and_then(|class| rules.classes.get(class.index()));
    name.map(|name| format!(" in the class {name:?}")).unwrap_or_default()
}

/// What a request lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shortage {
    /// The disk is slower than it was measured.
    SlowDisk,
    /// The client would exceed its share.
    Share(ShareExceeded),
    /// A resource has no room.
    Room(Rejection),
}

impl Shortage {
    pub(super) fn resource(&self) -> Resource {
        match self {
            Self::SlowDisk => Resource::Disk,
            Self::Share(exceeded) => exceeded.resource,
            Self::Room(short) => short.resource,
        }
    }
}

/// The refusal of a stream `what`, for its client.
pub(super) fn refusal(
    shortage: Shortage,
    viewer: Option<&Viewer>,
    what: &str,
    rules: &BrokerRules,
) -> Refusal {
    match shortage {
        Shortage::SlowDisk => {
            let message = format!("no room for {what}: the disk is slower than it was measured");
            Refusal { resource: Resource::Disk, retry_after: rules.retry_after, message }
        }
        Shortage::Share(over) => {
            let viewer = viewer.expect("only the share of a viewer is checked");
            beyond_share(over, viewer, what, rules)
        }
        Shortage::Room(short) => no_room(short, what, rules),
    }
}

/// More of a resource than the share of one client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ShareExceeded {
    pub(super) resource: Resource,
    pub(super) over: Excess,
}

/// The refusal of a client that would exceed its share.
fn beyond_share(over: ShareExceeded, viewer: &Viewer, what: &str, rules: &BrokerRules) -> Refusal {
    let ShareExceeded { resource, over: Excess { needed, share } } = over;
    let (needed, share, key) = match resource {
        Resource::Link => {
            (BitRate(needed).to_string(), BitRate(share).to_string(), "rate.*.client_share")
        }
        Resource::Disk | Resource::Cpu => {
            (Nanos(needed).to_string(), Nanos(share).to_string(), "rate.*.client_share")
        }
        _ => (format!("{needed} streams"), format!("{share} streams"), "client_share"),
    };
    let whose = match &viewer.party {
        Party::Address(_) => "this address",
        Party::Principal(_) => "this principal",
        Party::User(_) => "this user of the host",
    };
    let message = format!(
        "no room for {what}: {whose} would hold {needed} of {resource}; its share is {share} \
         ({key})"
    );
    Refusal { resource, retry_after: rules.retry_after, message }
}

fn no_room(short: Rejection, what: &str, rules: &BrokerRules) -> Refusal {
    let Rejection { resource, number, needed, limit, class } = short;
    let name = class.and_then(|class| rules.classes.get(class.index()));
    let of_class = format!("the class {:?}", name.map_or("", |name| name));
    let core = rules.cpus.get(number as usize).copied().unwrap_or(number);
    let of_core = format!("each second of core {core}");
    let (name, needed, limit) = match resource {
        Resource::Class => (&*of_class, BitRate(needed).to_string(), BitRate(limit).to_string()),
        Resource::Disk => ("the disk's cycle", Nanos(needed).to_string(), Nanos(limit).to_string()),
        Resource::Cpu => (&*of_core, Nanos(needed).to_string(), Nanos(limit).to_string()),
        Resource::Link => ("the link", BitRate(needed).to_string(), BitRate(limit).to_string()),
        Resource::Datagrams => {
            ("the link of datagrams", BitRate(needed).to_string(), BitRate(limit).to_string())
        }
        Resource::Arena => ("memory", format!("{needed} blocks"), format!("{limit} blocks")),
        Resource::ReadAhead => {
            ("memory for read-ahead", format!("{needed} blocks"), format!("{limit} blocks"))
        }
        Resource::WriteShare => {
            ("the write share", format!("{needed} places"), format!("{limit} places"))
        }
        Resource::Streams => ("the table", format!("{needed} streams"), format!("{limit} streams")),
    };
    let message = format!("no room for {what}: {needed} of {name} would be promised, of {limit}");
    Refusal { resource, retry_after: rules.retry_after, message }
}
