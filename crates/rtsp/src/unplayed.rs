//! Limits the link rate that each address reserves by sessions that are set up and not played yet.
//!
//! Promise: an address without a playing session reserves at most [`PART`] of the link, or one
//! session. Playing sessions do not count.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tactus_core::units::BitRate;

use super::connection_limit::network;

/// Unplayed sessions of one address may reserve one part in this number of the link. Players set up
/// a few tracks and titles and play them at once.
const PART: u64 = 10;

pub(super) struct UnplayedQuota {
    max: BitRate,
    held: Mutex<HashMap<IpAddr, u64>>,
}

/// The reservation of one session; released when dropped.
pub(super) struct UnplayedReservation {
    unplayed: Arc<UnplayedQuota>,
    address: IpAddr,
    rate: BitRate,
}

impl UnplayedQuota {
    /// Limits for a link of this rate.
    pub(super) fn new(link: BitRate) -> Arc<Self> {
        Arc::new(Self { max: BitRate(link.0 / PART), held: Mutex::default() })
    }

    /// Reserves `rate` for a session, if the address may; the first session always may.
    pub(super) fn take(
        self: &Arc<Self>,
        address: IpAddr,
        rate: BitRate,
    ) -> Option<UnplayedReservation> {
        let address = network(address);
        let mut held = self.held();
        let own = held.get(&address).copied().unwrap_or(0);
        if own > 0 && own.saturating_add(rate.0) > self.max.0 {
            return None;
        }
        held.insert(address, own.saturating_add(rate.0));
        drop(held);
        Some(UnplayedReservation { unplayed: Arc::clone(self), address, rate })
    }

    fn held(&self) -> MutexGuard<'_, HashMap<IpAddr, u64>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for UnplayedReservation {
    fn drop(&mut self) {
        let mut held = self.unplayed.held();
        let own = held.get_mut(&self.address).expect("it was counted");
        *own = own.saturating_sub(self.rate.0);
        if *own == 0 {
            held.remove(&self.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p07_an_address_holds_a_tenth_of_the_link_or_one_session_and_others_are_free() {
        let unplayed = UnplayedQuota::new(BitRate(1_000_000_000));
        let [one, other] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
        let rate = BitRate(30_000_000);
        let mut held: Vec<_> = (0..3000).filter_map(|_| unplayed.take(one, rate)).collect();
        assert_eq!(held.len(), 3);
        assert!(unplayed.take(other, BitRate(900_000_000)).is_some(), "one is always taken");
        held.pop();
        assert!(unplayed.take(one, rate).is_some() && unplayed.take(one, rate).is_some());
        drop(held);
        assert!(unplayed.held().is_empty());
        // An IPv6 network counts as one address.
        let [a, b] = ["2001:db8::1", "2001:db8::2"].map(|text| text.parse().unwrap());
        let _held = unplayed.take(a, BitRate(100_000_000)).unwrap();
        assert!(unplayed.take(b, rate).is_none());
    }
}
