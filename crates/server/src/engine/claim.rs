//! Which processors real-time threads of this host's servers sit on: one claim for each.
//!
//! Promise: two servers that share a network namespace see each other's claims, whatever user they
//! run as. A claim ends with its process, however that ends: it is an abstract Unix address, which
//! the kernel releases. A claim is advice: nothing refuses to start for want of one.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::config::placement::{self, CorePlan};

/// The claim of one processor.
#[derive(Debug)]
pub(super) struct Claim {
    cpu: u32,
    /// Bound to the processor's address as long as the claim holds.
    _address: UnixDatagram,
}

impl Claim {
    /// Claims a processor.
    ///
    /// # Errors
    /// `AddrInUse` when another server has it.
    fn take(cpu: u32) -> io::Result<Self> {
        let name = format!("tactus/core/{cpu}");
        let address = SocketAddr::from_abstract_name(name)?;
        Ok(Self { cpu, _address: UnixDatagram::bind_addr(&address)? })
    }
}

/// A placement and the claims of its processors.
#[derive(Debug)]
pub(super) struct Claimed {
    pub(super) plan: Vec<CorePlan>,
    pub(super) claims: Vec<Claim>,
    /// Processors that another server has claimed before: of the plan when there were no others.
    pub(super) shared: Vec<u32>,
    /// Processors that were left to another server.
    pub(super) avoided: Vec<u32>,
}

/// Claims the processors of the operator's own plan.
pub(super) fn of_plan(plan: Vec<CorePlan>) -> Claimed {
    let (claims, shared) = claim(&plan);
    Claimed { plan, claims, shared, avoided: vec![] }
}

/// Plans for `cpus` and `volumes` by default, on processors that no other server has claimed. When
/// all are claimed, the plan is the usual one, and shared.
pub(super) fn of_default(cpus: &[u32], volumes: u16) -> Claimed {
    let mut free = cpus.to_vec();
    // Each round leaves out at least one processor.
    while !free.is_empty() {
        let plan = placement::default_placement(&free, volumes);
        let (claims, taken) = claim(&plan);
        if taken.is_empty() {
            let avoided = cpus.iter().copied().filter(|cpu| !free.contains(cpu)).collect();
            return Claimed { plan, claims, shared: taken, avoided };
        }
        free.retain(|cpu| !taken.contains(cpu));
    }
    of_plan(placement::default_placement(cpus, volumes))
}

/// The claims that could be had, and the processors that others have.
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

impl Claimed {
    /// One line for each thing that the operator should know.
    pub(super) fn notes(&self) -> Option<String> {
        if self.shared.is_empty() {
            return None;
        }
        let cores: Vec<_> = self.shared.iter().map(ToString::to_string).collect();
        Some(format!(
            "core {} is used by another Tactus server as well: each may delay the other's streams; \
             give each server its own cores by [cores] placement",
            cores.join(", ")
        ))
    }

    /// Logs which processors were left to others.
    pub(super) fn log_avoided(&self) {
        if self.avoided.is_empty() {
            return;
        }
        let used: Vec<_> = self.claims.iter().map(|claim| claim.cpu).collect();
        tracing::warn!(
            taken = ?self.avoided, ?used,
            "another Tactus server has the usual core: this one takes another"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that no server of this host asks for. Each test has its own.
    fn cpus(first: u32, count: u32) -> Vec<u32> {
        (first..first + count).collect()
    }

    #[test]
    fn s04_a_second_server_takes_another_core_and_a_third_is_warned() {
        let all = cpus(700, 2);
        let first = of_default(&all, 1);
        assert_eq!((first.plan[0].cpu, first.notes()), (701, None));
        let second = of_default(&all, 1);
        assert_eq!((second.plan[0].cpu, second.notes()), (700, None));
        assert_eq!(second.avoided, [701]);
        let third = of_default(&all, 1);
        assert_eq!(third.plan[0].cpu, 701);
        assert!(third.notes().is_some_and(|note| note.contains("core 701 is used by another")));
        drop(first);
        let again = of_default(&all, 1);
        assert_eq!((again.plan[0].cpu, again.notes()), (701, None), "a claim ends with its server");
    }

    #[test]
    fn s04_two_servers_share_a_machine_of_many_cores() {
        let all = cpus(800, 8);
        let of = |claimed: &Claimed| claimed.plan.iter().map(|core| core.cpu).collect::<Vec<_>>();
        let (first, second) = (of_default(&all, 2), of_default(&all, 2));
        assert_eq!((of(&first), of(&second)), (vec![806, 807], vec![804, 805]));
    }

    #[test]
    fn s04_a_plan_of_the_operator_is_kept_and_sharing_is_told() {
        let plan = placement::default_placement(&cpus(900, 2), 1);
        let first = of_plan(plan.clone());
        let second = of_plan(plan.clone());
        assert_eq!((first.notes(), second.plan), (None, plan));
        assert_eq!(second.shared, [901]);
    }
}
