//! The groups that may be sent to: those of the configuration, each for one session at a time.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use crate::config::rtsp::Net;

pub(super) struct Groups {
    nets: Vec<Net>,
    taken: Mutex<HashSet<IpAddr>>,
}

/// Groups that are looked at to find a free one.
const LOOK_MAX: u128 = 1 << 16;

/// Why there is no group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NoGroup {
    /// The one that is asked for is not in the configuration, or none is.
    NotOurs,
    /// All that would do are in use.
    InUse,
}

impl Groups {
    pub(super) fn new(nets: &[Net]) -> Self {
        Self { nets: nets.to_vec(), taken: Mutex::default() }
    }

    /// A free group of the family of IPv4 or not; the one that is `wanted`, if any is.
    pub(super) fn take(&self, wanted: Option<IpAddr>, is_v4: bool) -> Result<IpAddr, NoGroup> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(wanted) = wanted {
            let ours = self.nets.iter().any(|net| net.contains(wanted));
            return match ours {
                false => Err(NoGroup::NotOurs),
                true => taken.insert(wanted).then_some(wanted).ok_or(NoGroup::InUse),
            };
        }
        let nets = self.nets.iter().filter(|net| net.first.is_ipv4() == is_v4);
        let mut any = false;
        for net in nets {
            any = true;
            let mut all = (0..net.len().min(LOOK_MAX)).filter_map(|nth| net.nth(nth));
            if let Some(group) = all.find(|group| !taken.contains(group)) {
                taken.insert(group);
                return Ok(group);
            }
        }
        Err(if any { NoGroup::InUse } else { NoGroup::NotOurs })
    }

    /// The session that was sent to it is over; of other addresses there is nothing to free.
    pub(super) fn free(&self, group: IpAddr) {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).remove(&group);
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
        assert_eq!(groups.take(Some(at("239.1.1.1")), true), Ok(at("239.1.1.1")));
        assert_eq!(groups.take(Some(at("239.1.1.1")), true), Err(NoGroup::InUse));
        assert_eq!(groups.take(Some(at("239.1.1.2")), true), Err(NoGroup::NotOurs));
        assert_eq!(groups.take(Some(at("255.255.255.255")), true), Err(NoGroup::NotOurs));
        assert_eq!(groups.take(None, true), Ok(at("239.1.1.0")));
        assert_eq!(groups.take(None, true), Err(NoGroup::InUse));
        assert_eq!(groups.take(None, false), Ok(at("ff3e::8000:0")));
        groups.free(at("239.1.1.1"));
        assert_eq!(groups.take(None, true), Ok(at("239.1.1.1")));
        assert_eq!(Groups::new(&[]).take(None, true), Err(NoGroup::NotOurs));
    }
}
