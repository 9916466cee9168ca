//! Claims of processors by the real-time threads of this host's servers: one claim per processor.
//!
//! Promise: servers in one network namespace see each other's claims, whatever user they run as. A
//! claim is an abstract Unix address, which the kernel releases when the process ends, however it
//! ends. Claims are advisory: a server starts without one too.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::placement::{self, CorePlan};

/// The claim of one processor.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) cpu: u32,
    /// Bound to the address of the processor while the claim lasts.
    _address: UnixDatagram,
}

impl Claim {
    /// Claims a processor.
    ///
    /// # Errors
    /// `AddrInUse` when another server has claimed it.
    pub(crate) fn take(cpu: u32) -> io::Result<Self> {
        let name = format!("tactus/core/{cpu}");
        let address = SocketAddr::from_abstract_name(name)?;
        Ok(Self { cpu, _address: UnixDatagram::bind_addr(&address)? })
    }
}

/// A placement with the claims of its processors.
#[derive(Debug)]
pub(crate) struct ClaimedPlan {
    pub(crate) plan: Vec<CorePlan>,
    pub(crate) claims: Vec<Claim>,
    /// Processors of the plan that another server has claimed, because none was free.
    pub(crate) shared: Vec<u32>,
    /// Processors that were left to other servers.
    pub(crate) avoided: Vec<u32>,
}

/// Claims the processors of a configured plan.
pub(crate) fn of_plan(plan: Vec<CorePlan>) -> ClaimedPlan {
    let (claims, shared) = claim(&plan);
    ClaimedPlan { plan, claims, shared, avoided: vec![] }
}

/// Plans `cpus` and `volumes` by default, on processors that no other server has claimed. If all
/// are claimed, the usual plan is used and its processors are shared.
pub(crate) fn of_default(cpus: &[u32], volumes: u16, packets_max: u16) -> ClaimedPlan {
    let mut free = cpus.to_vec();
    // Each round removes at least one processor.
    while !free.is_empty() {
        let plan = placement::default_placement(&free, volumes, packets_max);
        let (claims, taken) = claim(&plan);
        if taken.is_empty() {
            let avoided = cpus.iter().copied().filter(|cpu| !free.contains(cpu)).collect();
            return ClaimedPlan { plan, claims, shared: taken, avoided };
        }
        free.retain(|cpu| !taken.contains(cpu));
    }
    of_plan(placement::default_placement(cpus, volumes, packets_max))
}

/// The claims obtained, and the processors that other servers have claimed.
fn claim(plan: &[CorePlan]) -> (Vec<Claim>, Vec<u32>) {
    let (mut claims, mut taken) = (vec![], vec![]);
    for core in plan {
        match Claim::take(core.cpu) {
            Ok(claim) => claims.push(claim),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => taken.push(core.cpu),
            Err(error) => tracing::debug!(core = core.cpu, "no claim of the core: {error}"),
        }
    }
    (claims, taken)
}

impl ClaimedPlan {
    /// A warning about shared processors, if there are any.
    pub(crate) fn notes(&self) -> Option<String> {
        if self.shared.is_empty() {
            return None;
        }
        let cores: Vec<_> = self.shared.iter().map(ToString::to_string).collect();
        Some(format!(
            "core {} is also used by another Tactus server, and each may delay the other's \
             streams; set [cores] placement so that each server has its own cores",
            cores.join(", ")
        ))
    }

    /// Logs the processors that were left to other servers.
    pub(crate) fn log_avoided(&self) {
        if self.avoided.is_empty() {
            return;
        }
        let used: Vec<_> = self.claims.iter().map(|claim| claim.cpu).collect();
        tracing::warn!(
            taken = ?self.avoided, ?used,
            "another Tactus server uses the default core, so this one uses another core"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Processor numbers that no server of this host uses; each test has its own.
    fn cpus(first: u32, count: u32) -> Vec<u32> {
        (first..first + count).collect()
    }

    #[test]
    fn s04_a_second_server_takes_another_core_and_a_third_is_warned() {
        let all = cpus(700, 2);
        let first = of_default(&all, 1, 1);
        assert_eq!((first.plan[0].cpu, first.notes()), (701, None));
        let second = of_default(&all, 1, 1);
        assert_eq!((second.plan[0].cpu, second.notes()), (700, None));
        assert_eq!(second.avoided, [701]);
        let third = of_default(&all, 1, 1);
        assert_eq!(third.plan[0].cpu, 701);
        assert!(
            third.notes().is_some_and(|note| note.contains("core 701 is also used by another"))
        );
        drop(first);
        let again = of_default(&all, 1, 1);
        assert_eq!((again.plan[0].cpu, again.notes()), (701, None), "a claim ends with its server");
    }

    #[test]
    fn s04_two_servers_share_a_machine_of_many_cores() {
        let all = cpus(800, 8);
        let of =
            |claimed: &ClaimedPlan| claimed.plan.iter().map(|core| core.cpu).collect::<Vec<_>>();
        let (first, second) = (of_default(&all, 2, 1), of_default(&all, 2, 1));
        assert_eq!((of(&first), of(&second)), (vec![805, 806, 807], vec![803, 804]));
    }

    #[test]
    fn s04_a_configured_plan_is_kept_and_sharing_is_reported() {
        let plan = placement::default_placement(&cpus(900, 2), 1, 1);
        let first = of_plan(plan.clone());
        let second = of_plan(plan.clone());
        assert_eq!((first.notes(), second.plan), (None, plan));
        assert_eq!(second.shared, [901]);
    }
}
