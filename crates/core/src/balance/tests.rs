//! Moves that fit, that end, that are never taken back, and that come in time.

use alloc::collections::BTreeSet;
use alloc::vec;

use proptest::prelude::*;

use super::*;
use crate::cost::{Cost, DiskLimits, OutputCost, SourceCost, WindowLimits};
use crate::disk_model::DiskModel;
use crate::ledger::{Ledger, Limits, Resource, ServerPlace};
use crate::units::{BitRate, Bytes, MILLISECOND};

const BUDGET: Nanos = Nanos::from_millis(700);

fn position(physical: u32) -> Position {
    Position { node: 0, physical, is_isolated: false, is_online: true }
}

fn cores(count: u32) -> Vec<Core> {
    let core = |at| Core { promised: Nanos(0), limit: BUDGET, position: position(at) };
    (0..count).map(core).collect()
}

fn server(core: usize, busy: u32) -> Server {
    let (promised, kept) = (Nanos(0), Nanos(0));
    Server { core, busy, peak: busy, promised, kept, mobility: Mobility::Free }
}

/// The index of the server, its core, and why.
fn proposed(cores: &[Core], servers: &[Server], mode: Mode) -> Option<(usize, usize, Reason)> {
    propose(cores, servers, mode).map(|Proposal { server, to, reason }| (server, to, reason))
}

#[test]
fn a_core_that_is_nearly_always_busy_gives_a_server_to_another() {
    let servers = [server(0, 500), server(0, 420)];
    assert_eq!(proposed(&cores(2), &servers, Mode::Pack), Some((0, 1, Reason::Busy(920))));
    let servers = [server(0, 500), server(0, 290)];
    assert_eq!(proposed(&cores(2), &servers, Mode::Pack), None, "it is not full");
    let servers = [server(0, 950), server(0, 20)];
    assert_eq!(proposed(&cores(2), &servers, Mode::Pack), None, "the other core would be as full");
}

#[test]
fn a_core_that_is_promised_gives_a_server_to_one_that_can_admit_more() {
    let mut all = cores(2);
    all[0].promised = Nanos::from_millis(600);
    let promised = |millis| Server { promised: Nanos::from_millis(millis), ..server(0, 10) };
    let servers = [promised(500), promised(100)];
    assert_eq!(proposed(&all, &servers, Mode::Steady), Some((0, 1, Reason::Promised(857))));
    all[1].limit = Nanos::from_millis(450);
    assert_eq!(proposed(&all, &servers, Mode::Steady), Some((1, 1, Reason::Promised(857))));
    all[1].promised = Nanos::from_millis(400);
    assert_eq!(proposed(&all, &servers, Mode::Steady), None);
}

#[test]
fn promises_are_spread_when_a_request_was_refused_and_packed_again_when_none_is() {
    let mut all = cores(2);
    all[0].promised = Nanos::from_millis(300);
    let promised = |millis| Server { promised: Nanos::from_millis(millis), ..server(0, 10) };
    let servers = [promised(200), promised(100)];
    assert_eq!(proposed(&all, &servers, Mode::Pack), None);
    assert_eq!(proposed(&all, &servers, Mode::Spread), Some((0, 1, Reason::Refused(428))));
    let one = [promised(300), promised(0)];
    assert_eq!(proposed(&all, &one, Mode::Spread), None, "the other core would have as much");
    let (mut now, mut at) = (MonoTime(SECOND.0), [0; 2]);
    let mut balancer = Balancer::new(2, now);
    let mut reasons = vec![];
    for look in 0..250 {
        now += SAMPLE;
        let reading = |core, millis| {
            let (promised, kept) = (Nanos::from_millis(millis), Nanos(0));
            Reading { core, busy: Nanos(0), promised, kept, mobility: Mobility::Free }
        };
        let readings = [reading(at[0], 200), reading(at[1], 100)];
        // One after five seconds.
        let proposal = balancer.look(now, &all, &readings, u64::from(look > 50));
        if let Some(Proposal { server, to, reason }) = proposal {
            at[server] = to;
            reasons.push((look, server, reason));
        }
    }
    assert_eq!(reasons, [(51, 0, Reason::Refused(428)), (152, 1, Reason::Idle)]);
}

#[test]
fn servers_with_little_to_do_come_together_if_all_of_a_core_can() {
    let servers = [server(0, 200), server(1, 100), server(1, 50)];
    assert_eq!(proposed(&cores(2), &servers, Mode::Steady), None);
    assert_eq!(proposed(&cores(2), &servers, Mode::Pack), Some((1, 0, Reason::Idle)));
    let peak = Server { peak: 300, ..server(1, 100) };
    assert_eq!(proposed(&cores(2), &[server(0, 200), peak], Mode::Pack), None, "it had more to do");
    for mobility in [Mobility::Fixed, Mobility::Stays] {
        let other = Server { mobility, ..server(1, 50) };
        assert_eq!(
            proposed(&cores(2), &[server(0, 200), server(1, 100), other], Mode::Pack),
            Some((0, 1, Reason::Idle)),
            "the other core sleeps instead"
        );
    }
}

#[test]
fn a_core_of_the_same_node_and_one_without_a_busy_sibling_come_first() {
    let mut all = cores(5);
    all[1].position.node = 1;
    all[2].position.physical = 3;
    let servers = [server(0, 500), server(0, 420), server(3, 600)];
    let chosen = |all: &[Core]| proposed(all, &servers, Mode::Pack);
    // Core 1 is far away, core 2 is a hyper-thread beside core 3, which is busy.
    assert_eq!(chosen(&all), Some((0, 4, Reason::Busy(920))));
    all[4].position.node = 1;
    assert_eq!(chosen(&all), Some((0, 1, Reason::Busy(920))));
    all[2].position.physical = 2;
    assert_eq!(chosen(&all), Some((0, 2, Reason::Busy(920))));
    all[4].position = Position { is_isolated: true, ..position(4) };
    assert_eq!(chosen(&all), Some((0, 4, Reason::Busy(920))));
    let packs = [server(0, 100), server(1, 100)];
    assert_eq!(proposed(&all, &packs, Mode::Pack), None, "memory is far from the other node");
}

#[test]
fn the_servers_of_a_core_that_goes_offline_leave_it_unless_they_are_fixed() {
    let mut all = cores(3);
    all[0].position.is_online = false;
    let servers =
        [server(0, 10), Server { mobility: Mobility::Stays, ..server(0, 20) }, server(1, 500)];
    assert_eq!(proposed(&all, &servers, Mode::Steady), Some((0, 2, Reason::Offline)));
    let stays = [servers[1], servers[2]];
    assert_eq!(proposed(&all, &stays, Mode::Steady), Some((0, 2, Reason::Offline)));
    let fixed = [Server { mobility: Mobility::Fixed, ..servers[0] }, servers[2]];
    assert_eq!(proposed(&all, &fixed, Mode::Pack), None);
    all[1].position.is_online = false;
    all[2].position.is_online = false;
    assert_eq!(proposed(&all, &servers, Mode::Pack), None, "there is no other");
}

/// A machine whose servers use their cores as they are told.
struct Machine {
    cores: Vec<Core>,
    at: Vec<usize>,
    used: Vec<Nanos>,
    balancer: Balancer,
    now: MonoTime,
    /// The time, server, origin and reason of each move.
    moves: Vec<(MonoTime, usize, usize, Reason)>,
}

impl Machine {
    fn new(cores: Vec<Core>, at: Vec<usize>) -> Self {
        let now = MonoTime(SECOND.0);
        let balancer = Balancer::new(at.len(), now);
        let used = vec![Nanos(0); at.len()];
        Self { cores, at, used, balancer, now, moves: vec![] }
    }

    /// Lets time pass; `load` tells the thousandths that a server uses.
    fn pass(&mut self, span: Nanos, mut load: impl FnMut(usize) -> u32) {
        let end = self.now + span;
        while self.now < end {
            self.now += SAMPLE;
            for (server, used) in self.used.iter_mut().enumerate() {
                *used += Nanos(SAMPLE.0 / 1000 * u64::from(load(server)));
            }
            let readings: Vec<_> = (0..self.at.len()).map(|at| self.reading(at)).collect();
            let proposal = self.balancer.look(self.now, &self.cores, &readings, 0);
            if let Some(Proposal { server, to, reason }) = proposal {
                self.moves.push((self.now, server, self.at[server], reason));
                self.at[server] = to;
            }
        }
    }

    fn reading(&self, at: usize) -> Reading {
        let (promised, kept) = (Nanos(0), Nanos(0));
        Reading { core: self.at[at], busy: self.used[at], promised, kept, mobility: Mobility::Free }
    }
}

#[test]
fn load_that_doubles_and_halves_moves_a_server_within_a_second_and_packs_after_ten() {
    let mut machine = Machine::new(cores(2), vec![0; 4]);
    machine.pass(SECOND.times(600), |_| 110);
    assert_eq!(machine.moves, []);
    let doubled = machine.now;
    machine.pass(SECOND.times(600), |_| 220);
    let found = machine.moves.clone();
    assert!(
        !found.is_empty() && found.iter().all(|one| one.0.since(doubled) <= SECOND),
        "{found:?}"
    );
    assert!(machine.at.contains(&0) && machine.at.contains(&1), "{:?}", machine.at);
    let halved = machine.now;
    machine.pass(SECOND.times(600), |_| 110);
    let packed = &machine.moves[found.len()..];
    let span = |at: &(MonoTime, usize, usize, Reason)| at.0.since(halved);
    assert!(packed.iter().all(|one| one.3 == Reason::Idle), "{packed:?}");
    assert!(packed.iter().all(|one| span(one) >= CALM && span(one) <= CALM + SECOND), "{packed:?}");
    assert_eq!(machine.at.iter().collect::<BTreeSet<_>>().len(), 1);
}

#[test]
fn a_refused_move_is_not_proposed_again_at_once() {
    let (all, mut now) = (cores(2), MonoTime(SECOND.0));
    let mut balancer = Balancer::new(2, now);
    let (mut proposals, mut busy) = (0, Nanos(0));
    for _ in 0..90 {
        now += SAMPLE;
        busy += Nanos(SAMPLE.0 / 2);
        let (promised, kept) = (Nanos(0), Nanos(0));
        let reading = Reading { core: 0, busy, promised, kept, mobility: Mobility::Free };
        if let Some(proposal) = balancer.look(now, &all, &[reading; 2], 0) {
            balancer.refused(proposal.server, now);
            proposals += 1;
        }
    }
    assert_eq!(proposals, 2, "one for each server");
    assert_eq!(balancer.share(0), 500);
}

#[test]
fn a_late_look_counts_for_those_that_were_left_out() {
    let (all, mut now) = (cores(1), MonoTime(SECOND.0));
    let mut balancer = Balancer::new(1, now);
    let mut busy = Nanos(0);
    let mut look = |passed: Nanos, thousandths: u64| {
        now += passed;
        busy += Nanos(passed.0 / 1000 * thousandths);
        let (promised, kept) = (Nanos(0), Nanos(0));
        let reading = Reading { core: 0, busy, promised, kept, mobility: Mobility::Free };
        balancer.look(now, &all, &[reading], 0);
        balancer.share(0)
    };
    for _ in 0..10 {
        look(SAMPLE, 900);
    }
    assert_eq!(look(SECOND, 200), 200, "a whole second has passed");
    assert_eq!(look(SAMPLE, 300), 210);
}

#[test]
fn a_look_that_comes_too_early_changes_nothing() {
    let (all, now) = (cores(2), MonoTime(SECOND.0));
    let mut balancer = Balancer::new(0, now);
    assert_eq!(balancer.look(now + MILLISECOND, &all, &[], 0), None);
    assert_eq!(balancer.looked, now);
}

/// A ledger with one disk; costs name servers.
fn ledger(limits: &[u64], places: &[ServerPlace]) -> Ledger {
    let disk = DiskLimits {
        model: DiskModel::SLOWEST,
        cycle: SECOND,
        share_thousandths: 950,
        block: Bytes(1 << 20),
        blocks: 500,
        ahead: 0,
        windows: WindowLimits::NONE,
        server: 0,
        read_per_mib: Nanos(1),
        deliver_block: Nanos(1),
        per_write: Nanos(1),
        write_path: None,
    };
    let limits = Limits {
        disks: vec![disk],
        link: BitRate(u64::MAX / 2),
        datagrams: None,
        classes: vec![],
        cores: limits.iter().map(|&millis| Nanos::from_millis(millis)).collect(),
        streams: 1000,
    };
    Ledger::with_servers(limits, places.iter().copied())
}

fn cost(server: u32, time: Nanos) -> Cost {
    let source = SourceCost { server, cpu: time, ..SourceCost::default() };
    Cost::stream(source, OutputCost::NONE)
}

fn views(
    ledger: &Ledger,
    positions: &[Position],
    shares: &[(u32, Mobility)],
) -> (Vec<Core>, Vec<Server>) {
    let levels = ledger.levels().filter(|level| level.resource == Resource::Cpu);
    let cores = levels.zip(positions).map(|(level, &position)| Core {
        promised: Nanos(level.used),
        limit: Nanos(level.limit),
        position,
    });
    let servers = (0..).zip(shares).map(|(number, &(busy, mobility))| {
        let (ServerPlace { core, kept }, promised) = ledger.promise_of(number);
        Server { core: core as usize, busy, peak: busy, promised, kept, mobility }
    });
    (cores.collect(), servers.collect())
}

fn positions() -> impl Strategy<Value = Position> {
    (0..2u32, 0..3u32, any::<bool>(), prop::bool::weighted(0.9)).prop_map(
        |(node, physical, is_isolated, is_online)| {
            let physical = physical + 3 * node;
            Position { node, physical, is_isolated, is_online }
        },
    )
}

fn mobilities() -> impl Strategy<Value = Mobility> {
    prop_oneof![8 => Just(Mobility::Free), 1 => Just(Mobility::Stays), 1 => Just(Mobility::Fixed)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn the_ledger_has_room_for_every_proposal_and_the_proposals_end(
        machine in prop::collection::vec((positions(), 200..1000u64), 2..6),
        servers in prop::collection::vec((0..6usize, 0..600u32, mobilities(), 0..150u64), 1..9),
        promises in prop::collection::vec((0..9usize, 1..300u64), 0..30),
        mode in prop_oneof![Just(Mode::Steady), Just(Mode::Pack), Just(Mode::Spread)],
    ) {
        let positions: Vec<_> = machine.iter().map(|one| one.0).collect();
        let limits: Vec<_> = machine.iter().map(|one| one.1).collect();
        let place = |&(core, _, _, kept): &(usize, u32, Mobility, u64)| {
            ServerPlace { core: (core % limits.len()) as u32, kept: Nanos::from_millis(kept / 8) }
        };
        let places: Vec<_> = servers.iter().map(place).collect();
        let mut ledger = ledger(&limits, &places);
        for (server, millis) in promises {
            let server = (server % servers.len()) as u32;
            // One that does not fit changes nothing.
            ledger.admit(cost(server, Nanos::from_millis(millis))).ok();
        }
        let shares: Vec<_> = servers.iter().map(|one| (one.1, one.2)).collect();
        let mut seen = BTreeSet::new();
        loop {
            let at: Vec<_> = (0..shares.len() as u32).map(|one| ledger.core_of(one)).collect();
            prop_assert!(seen.insert(at), "a placement came twice");
            let (cores, servers) = views(&ledger, &positions, &shares);
            let Some(proposal) = propose(&cores, &servers, mode) else { break };
            let Proposal { server, to, reason } = proposal;
            prop_assert!(cores[to].position.is_online && servers[server].core != to);
            let may = match servers[server].mobility {
                Mobility::Free => true,
                Mobility::Stays => reason == Reason::Offline,
                Mobility::Fixed => false,
            };
            prop_assert!(may, "{:?} moves because of {:?}", servers[server], reason);
            prop_assert_eq!(ledger.move_server(server as u32, to as u32), Ok(()));
        }
    }
}

proptest! {
    // Each is minutes of a machine's time.
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn noise_moves_no_server_to_and_fro(
        loads in prop::collection::vec(0..400u32, 2..7),
        at in prop::collection::vec(0..3usize, 7),
        count in 2..4u32,
        seed in any::<u64>(),
    ) {
        let at: Vec<_> = at.iter().take(loads.len()).map(|at| at % count as usize).collect();
        let mut machine = Machine::new(cores(count), at.clone());
        let mut dice = seed;
        let mut noise = |load: u32| {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // A tenth up and a tenth down.
            load * (900 + (dice >> 33) as u32 % 201) / 1000
        };
        let mut seen = BTreeSet::from([at]);
        for _ in 0..400 {
            let before = machine.moves.len();
            machine.pass(SAMPLE.times(5), |server| noise(loads[server]));
            if machine.moves.len() > before {
                prop_assert!(seen.insert(machine.at.clone()), "{:?}", machine.moves);
            }
        }
    }

    #[test]
    fn a_step_of_load_is_followed_within_a_second(
        loads in prop::collection::vec((0..250u32, 1..4u32), 2..7),
    ) {
        let mut machine = Machine::new(cores(2), vec![0; loads.len()]);
        machine.pass(SECOND.times(40), |server| loads[server].0);
        let (stepped, before) = (machine.now, machine.moves.len());
        machine.pass(SECOND.times(60), |server| loads[server].0 * loads[server].1);
        let after = &machine.moves[before..];
        prop_assert!(after.iter().all(|one| one.0.since(stepped) <= SECOND), "{after:?}");
    }
}
