//! The configured multicast groups, each for one session at a time.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tactus_notation::net::Net;

pub(super) struct Groups {
    nets: Vec<Net>,
    taken: Arc<Mutex<HashSet<IpAddr>>>,
}

/// A group in use by a session; released when dropped, after the last packet.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) address: IpAddr,
    taken: Arc<Mutex<HashSet<IpAddr>>>,
}

/// Groups that are tried to find a free one.
const LOOK_MAX: u128 = 1 << 16;

/// Why there is no group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NoGroup {
    /// The requested group is not configured, or no group is.
    NotOurs,
    /// All suitable groups are in use.
    InUse,
}

impl Groups {
    pub(super) fn new(nets: &[Net]) -> Self {
        Self { nets: nets.to_vec(), taken: Arc::default() }
    }

    /// A free group of this address family: the `wanted` one, if any.
    pub(super) fn take(&self, wanted: Option<IpAddr>, is_v4: bool) -> Result<Group, NoGroup> {
        let group = |address| Group { address, taken: Arc::clone(&self.taken) };
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(wanted) = wanted {
            let ours = self.nets.iter().any(|net| net.contains(wanted));
            return match ours {
                false => Err(NoGroup::NotOurs),
                true => taken.insert(wanted).then(|| group(wanted)).ok_or(NoGroup::InUse),
            };
        }
        let nets = self.nets.iter().filter(|net| net.first.is_ipv4() == is_v4);
        let mut any = false;
        for net in nets {
            any = true;
            let mut all = (0..net.len().min(LOOK_MAX)).filter_map(|nth| net.nth(nth));
            if let Some(free) = all.find(|address| !taken.contains(address)) {
                taken.insert(free);
                return Ok(group(free));
            }
        }
        Err(if any { NoGroup::InUse } else { NoGroup::NotOurs })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s10_groups_are_those_of_the_plan_each_for_one() {
        let plan = ["239.1.1.0/31", "ff3e::8000:0/127"].map(|text| Net::parse(text).unwrap());
        let groups = Groups::new(&plan);
        let at = |text: &str| text.parse::<IpAddr>().unwrap();
        let mut held = vec![];
        let mut take = |wanted, is_v4| {
            let group = groups.take(wanted, is_v4)?;
            let address = group.address;
            held.push(group);
            Ok(address)
        };
        assert_eq!(take(Some(at("239.1.1.1")), true), Ok(at("239.1.1.1")));
        assert_eq!(take(Some(at("239.1.1.1")), true), Err(NoGroup::InUse));
        assert_eq!(take(Some(at("239.1.1.2")), true), Err(NoGroup::NotOurs));
        assert_eq!(take(Some(at("255.255.255.255")), true), Err(NoGroup::NotOurs));
        assert_eq!(take(None, true), Ok(at("239.1.1.0")));
        assert_eq!(take(None, true), Err(NoGroup::InUse));
        assert_eq!(take(None, false), Ok(at("ff3e::8000:0")));
        held.retain(|group| group.address != at("239.1.1.1"));
        let again = groups.take(None, true).expect("it is free again");
        assert_eq!(again.address, at("239.1.1.1"));
        assert_eq!(Groups::new(&[]).take(None, true).err(), Some(NoGroup::NotOurs));
    }
}
