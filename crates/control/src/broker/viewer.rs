//! The client of a stream: the party that its streams count for, and the device that plays.
//!
//! Promise: two viewers count as one only if nothing in their requests tells them apart.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv6Addr};

use crate::settings::ClientShare;

/// The unit whose streams are counted together.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Party {
    /// An address, or an IPv6 network of 64 bits.
    Address(IpAddr),
    /// A principal, from any address.
    Principal(String),
    /// A user of this host, by any number of processes.
    User(u32),
}

impl Party {
    /// The party of an address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        Self::Address(match address.to_canonical() {
            IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
            v4 => v4,
        })
    }
}

/// What tells the viewers of one party apart: the player program, and the id of its session if the
/// player sends one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Device {
    agent: u64,
    session: Option<u64>,
}

impl Device {
    /// The device of a player with this name and this id of its session.
    #[must_use]
    pub fn of(agent: &[u8], session: Option<&[u8]>) -> Self {
        // Only requests of one address or principal are compared. A client that provokes a
        // collision of hashes harms only itself.
        let hash = |text: &[u8]| {
            let mut hasher = DefaultHasher::new();
            text.hash(&mut hasher);
            hasher.finish()
        };
        Self { agent: hash(agent), session: session.map(hash) }
    }

    /// Whether no other viewer has the same device: ids of sessions are random.
    pub(super) fn is_certain(self) -> bool {
        self.session.is_some()
    }
}

/// The client of a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Viewer {
    /// The party whose share is used.
    pub party: Party,
    /// The device, if its streams may succeed each other.
    pub device: Option<Device>,
    /// Its address, for people.
    pub client: String,
    /// The share that the party may hold of such streams.
    pub share: ClientShare,
}
