//! Limits the connections, in total and for each address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

use crate::settings::RtspSettings;

pub(super) struct ConnectionLimit {
    max: usize,
    per_address_max: usize,
    taken: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    all: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// A counted connection. The count is released when this is dropped.
pub(super) struct ConnectionPermit {
    connection_limit: Arc<ConnectionLimit>,
    address: IpAddr,
}

impl ConnectionLimit {
    pub(super) fn new(settings: &RtspSettings) -> Self {
        Self {
            max: settings.connections_max as usize,
            per_address_max: settings.connections_per_address_max as usize,
            taken: Mutex::default(),
        }
    }

    pub(super) fn take(self: &Arc<Self>, address: IpAddr) -> Option<ConnectionPermit> {
        let address = network(address);
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let own = taken.by_address.get(&address).copied().unwrap_or(0);
        if taken.all >= self.max || own >= self.per_address_max {
            return None;
        }
        taken.all += 1;
        taken.by_address.insert(address, own + 1);
        Some(ConnectionPermit { connection_limit: Arc::clone(self), address })
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut taken = self.connection_limit.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.all -= 1;
        let own = taken.by_address.get_mut(&self.address).expect("it was counted");
        *own -= 1;
        if *own == 0 {
            taken.by_address.remove(&self.address);
        }
    }
}

/// The unit that is counted as one address: an IPv6 customer has a /64.
pub(super) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
        v4 => v4,
    }
}
