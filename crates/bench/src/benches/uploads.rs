//! uploads: what deliveries from a spinning disk notice of clients that upload as fast as they are
//! let.
//!
//! Promise: the ancestor's experiment. Deliveries that need 42 % and 65 % of the disk's time run
//! alone, then with eight greedy uploads, on the same emulated 7200 rpm disk for every server and
//! every scheduler of the kernel. What the disk can take at most is measured in the same run.

use std::sync::Mutex;

use anyhow::Result;
use tactus_core::units::{BitRate, Bytes, MIB, Nanos, SECOND};

use super::stretches::{Kind, Load, Stretches};
use super::{Fixture, say};
use crate::disk::{self, Profile, Queue, RequestCounts};
use crate::machine;
use crate::peers::{Nginx, NginxApart, NginxStyle, Peer, Tactus, Tuning};
use crate::report::{Plot, Report, Table, Verdict, number, spread};
use crate::run::Scene;
use crate::spread::Spread;
use crate::titles::{FILLED_PERCENT, Titles};
use crate::uploader::Pace;

/// A block of a mebibyte for each stream in each cycle.
pub(super) const CYCLE: Nanos = SECOND;
const BLOCK: Bytes = Bytes(MIB);
pub(super) const RATE: BitRate = BitRate(8 * MIB);
/// Shares of the disk's time that the deliveries need by the model, in percent.
const SHARES: [u32; 2] = [42, 65];
const CALM: Nanos = SECOND.times(10);
const STAGGER: Nanos = SECOND.times(5);
const WARM_UP: Nanos = SECOND.times(5);
pub(super) const GREEDY: Kind = Kind::Put { pace: Pace::Greedy(8), size: Bytes(64 * MIB) };
const DIRECT: Kind = Kind::Direct { piece: Bytes(MIB), depth: 32 };
/// What of the disk may wait in memory to be written, for every server: at the kernel's default, a
/// fifth of the memory, the page cache would swallow all uploads of a run before the disk sees one.
pub(super) const UNWRITTEN: Bytes = Bytes(256 * MIB);
const ROUNDS: usize = 3;

/// One row.
struct Candidate {
    peer: Box<dyn Peer>,
    queue: Queue,
    load: Kind,
    role: Role,
}

/// What a row is there for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// The one that the goals are about.
    Ours,
    /// Ours with another tuning.
    OursBesides,
    /// Nobody keeps the uploads back: what they get is what can be had.
    Greedy,
    /// Something does.
    Guarded,
    /// The kernel's strictest scheduler does.
    Strict,
}

impl Candidate {
    fn name(&self) -> String {
        let kind = match self.load {
            Kind::Put { .. } => "",
            Kind::Direct { .. } => ", direct writes instead of uploads",
        };
        format!("{}, {}{kind}", self.peer.name(), self.queue)
    }
}

fn candidates() -> Vec<Candidate> {
    let tactus = |label: &str, cycle, role| {
        let tuning = Tuning { cycle: Some(cycle), ..Tuning::default() };
        let peer = Box::new(Tactus { label: label.into(), tuning });
        Candidate { peer, queue: Queue::plain("mq-deadline"), load: GREEDY, role }
    };
    let best = NginxStyle::Direct { buffer_mib: BLOCK.0 / MIB };
    let nginx = |style, scheduler, load, role| Candidate {
        peer: Box::new(Nginx(style)),
        queue: Queue::plain(scheduler),
        load,
        role,
    };
    let greedy = |scheduler| nginx(best, scheduler, GREEDY, Role::Greedy);
    let apart =
        |queue, load, role| Candidate { peer: Box::new(NginxApart(best)), queue, load, role };
    vec![
        tactus("cycle 1 s", CYCLE, Role::Ours),
        tactus("cycle 4 s", CYCLE.times(4), Role::OursBesides),
        greedy("none"),
        greedy("mq-deadline"),
        greedy("kyber"),
        greedy("bfq"),
        nginx(NginxStyle::Defaults, "mq-deadline", GREEDY, Role::Greedy),
        nginx(best, "none", DIRECT, Role::Greedy),
        apart(Queue::plain("mq-deadline"), GREEDY, Role::Guarded),
        apart(Queue::plain("bfq"), GREEDY, Role::Guarded),
        apart(Queue::strict_bfq(), GREEDY, Role::Strict),
        // It waits after each read for the same thread's next, which comes a second later: without
        // that.
        apart(Queue::strict_bfq().with("slice_idle", "0"), GREEDY, Role::Strict),
        // Not a server, but the most that this scheduler could give to one that writes as it
        // should.
        apart(Queue::strict_bfq().with("slice_idle", "0"), DIRECT, Role::Strict),
    ]
}

/// How many deliveries take `share` percent of the disk's time when each cycle is one sweep.
pub(super) fn streams_for(share: u32) -> u32 {
    let span = FILLED_PERCENT as f64 / 100.0;
    let room = CYCLE.times(u64::from(share)).0 / 100;
    let fits = |streams: &u32| disk::sweep(*streams, span, BLOCK).0 <= room;
    (1..).take_while(fits).last().unwrap_or(1)
}

/// Runs it.
pub(super) fn bench(fixture: &Fixture) -> Result<Report> {
    let question = "what do deliveries from a 7200 rpm disk notice of greedy uploads?";
    let mut report = fixture.report("uploads", question);
    let busy = fixture.seconds(60);
    let length = CALM + busy;
    let mut disk = fixture.emulated(Profile::Hdd, &mut report)?;
    disk.limit_unwritten(UNWRITTEN)?;
    say("laying down the titles");
    let size = Scene::title_size(RATE, STAGGER, WARM_UP, length);
    let most = SHARES.map(streams_for).into_iter().max().unwrap_or(1) as usize;
    let titles = Titles::lay_apart(disk.mount(), most, size, disk.size())?;
    titles.make_room()?;
    disk.timed()?;
    report.settings.push(("queue".into(), machine::storage(disk.mount())));
    report.settings.push(("titles".into(), format!("{most} of {size}, evenly over the disk")));
    let device = disk.device().to_owned();
    let all = candidates();
    for share in SHARES {
        let streams = streams_for(share) as usize;
        let wanted = &fixture.options.streams;
        if !wanted.is_empty() && !wanted.contains(&streams) {
            continue;
        }
        say(&format!("{share} % of the disk's time: {streams} deliveries"));
        let scene = Scene {
            stagger: STAGGER,
            warm_up: WARM_UP,
            length,
            server_cores: "0-1",
            ..fixture.scene(&titles, RATE, streams)
        };
        let names: Vec<String> = all.iter().map(Candidate::name).collect();
        for candidate in &all {
            let text = candidate.peer.settings(&scene.setting_with_uploads())?;
            report.settings.push((format!("{share} %: {}", candidate.name()), text));
        }
        let runs = fixture.take_turns(
            &names,
            fixture.rounds(ROUNDS),
            &mut report,
            |place, round, report| {
                let Candidate { peer, queue, load, .. } = &all[place];
                disk.set_queue(queue)?;
                let load = Load { kind: *load, calm: CALM, patience: Nanos::ZERO, beside: None };
                let disk = Mutex::new(&mut disk);
                let disk = Some(&disk);
                let result =
                    Stretches::run(fixture, peer.as_ref(), &scene, &load, CYCLE, disk, report)?;
                let run = Run::of(place, round, result);
                say(&run.say());
                Ok(run)
            },
        )?;
        summarise(share, streams, &all, &runs, &mut report);
    }
    report.method.push(method(&device, busy));
    Ok(report)
}

/// One run, in figures.
struct Run {
    place: usize,
    round: usize,
    /// Missed cycles of the stretch with uploads, and all.
    missed: (usize, usize),
    late: usize,
    j_calm: f64,
    j: f64,
    j_over_time: Vec<(f64, f64)>,
    df: f64,
    /// MB/s of uploads: taken from the clients and written to the disk, whichever is less.
    rate: f64,
    taken: f64,
    acked: usize,
    unacked: Vec<String>,
    reads: f64,
    writes: f64,
    flushes: f64,
}

impl Run {
    fn of(place: usize, round: usize, found: Stretches) -> Self {
        let taken = found.taken();
        let written = found.written().unwrap_or(f64::NAN);
        Self {
            place,
            round,
            missed: found.missed,
            late: found.late,
            j_calm: found.calm.j1s.mean,
            j: found.busy.j1s.mean,
            df: found.busy.df.p99,
            // Direct writes have no client.
            rate: if found.harvest.uploads.is_empty() { written } else { written.min(taken) },
            taken,
            acked: found.harvest.acks().len(),
            unacked: found.harvest.reasons(),
            reads: found.disk_share(|asked: &RequestCounts| asked.read_time),
            writes: found.disk_share(|asked: &RequestCounts| asked.write_time),
            flushes: found.disk_share(|asked: &RequestCounts| asked.flush_time),
            j_over_time: found.j,
        }
    }

    fn say(&self) -> String {
        format!(
            "missed {} of {}, late streams {}, J {} % before and {} % with {} MB/s of uploads \
             (taken {}); disk time: reads {} %, writes {} %, flushes {} %; {} acknowledged, {:?}",
            self.missed.0,
            self.missed.1,
            self.late,
            number(self.j_calm),
            number(self.j),
            number(self.rate),
            number(self.taken),
            number(self.reads),
            number(self.writes),
            number(self.flushes),
            self.acked,
            self.unacked,
        )
    }
}

fn summarise(share: u32, streams: usize, all: &[Candidate], runs: &[Run], report: &mut Report) {
    let title = format!("{streams} deliveries, {share} % of the disk's time, with greedy uploads");
    let of = |place: usize| runs.iter().filter(move |run| run.place == place);
    let mut table = Table::new(
        &title,
        &[
            "server, scheduler",
            "durable",
            "missed cycles",
            "late streams",
            "J 1 s alone, %",
            "J 1 s with uploads, %",
            "DF p99, ms",
            "uploads, MB/s",
            "of the greedy maximum, %",
            "taken, MB/s",
            "reads, % of disk time",
            "writes, %",
            "flushes, %",
        ],
    );
    for (place, candidate) in all.iter().enumerate() {
        if of(place).next().is_none() {
            continue;
        }
        let cell = |value: fn(&Run) -> f64| spread(&of(place).map(value).collect::<Vec<_>>());
        let (missed, cycles) = missed(runs, place);
        let durable = match candidate.load {
            Kind::Put { .. } if candidate.peer.acks_are_durable() => "yes",
            Kind::Put { .. } => "no",
            Kind::Direct { .. } => "-",
        };
        table.row(vec![
            candidate.name(),
            durable.into(),
            format!("{missed} of {cycles}"),
            cell(|run| run.late as f64),
            cell(|run| run.j_calm),
            cell(|run| run.j),
            cell(|run| run.df),
            cell(|run| run.rate),
            spread(&shares(all, runs, place)),
            cell(|run| run.taken),
            cell(|run| run.reads),
            cell(|run| run.writes),
            cell(|run| run.flushes),
        ]);
    }
    report.tables.push(table);
    let shown = |candidate: &Candidate| match candidate.role {
        Role::Ours => true,
        Role::Greedy => matches!(candidate.load, Kind::Put { .. }),
        Role::OursBesides | Role::Guarded | Role::Strict => false,
    };
    let first_round = runs.iter().filter(|run| run.round == 0 && shown(&all[run.place]));
    report.plots.push(Plot::Lines {
        title: format!("J of each second; uploads begin at {CALM} ({share} % of the disk's time)"),
        axes: ("seconds".into(), "J, %".into()),
        lines: first_round.map(|run| (all[run.place].name(), run.j_over_time.clone())).collect(),
        mark: None,
    });
    report.plots.push(Plot::Bars {
        title: format!("uploads, MB/s ({share} % of the disk's time for deliveries)"),
        bars: (0..all.len())
            .filter_map(|place| {
                let rates: Vec<f64> = of(place).map(|run| run.rate).collect();
                Some((all[place].name(), Spread::of(&rates)?))
            })
            .collect(),
        mark: None,
    });
    judge(share, all, runs, report);
}

fn judge(share: u32, all: &[Candidate], runs: &[Run], report: &mut Report) {
    let ours = all.iter().position(|candidate| candidate.role == Role::Ours);
    let Some(ours) = ours else { return };
    let (lost, cycles) = missed(runs, ours);
    let kept = (cycles > 0).then_some(lost == 0);
    let j: Vec<f64> = runs.iter().filter(|run| run.place == ours).map(|run| run.j).collect();
    let most = Spread::of(&j).map(|all| all.max);
    report.verdicts.extend([
        Verdict {
            figure: format!("missed cycles with uploads, deliveries at {share} %"),
            measured: format!("{lost} of {cycles}"),
            must: "0".into(),
            reached: kept,
            push: "-".into(),
            pushed: None,
        },
        Verdict {
            figure: format!("J over 1 s with uploads, deliveries at {share} %"),
            measured: format!("{} %", spread(&j)),
            must: "0.1 %".into(),
            reached: most.map(|most| most <= 0.1),
            push: "0.01 %".into(),
            pushed: most.map(|most| most <= 0.01),
        },
    ]);
    // Where deliveries need 65 % of the disk there are not 65 % left.
    if share == SHARES[0] {
        let shares = shares(all, runs, ours);
        let least = Spread::of(&shares).map(|all| all.min);
        report.verdicts.push(Verdict {
            figure: format!("uploads as a share of the greedy maximum, deliveries at {share} %"),
            measured: format!("{} %", spread(&shares)),
            must: "65 % without a miss".into(),
            reached: least.zip(kept).map(|(least, kept)| kept && least >= 65.0),
            push: "85 %".into(),
            pushed: least.zip(kept).map(|(least, kept)| kept && least >= 85.0),
        });
    }
    let guarded = [Role::Guarded, Role::Strict];
    for (name, roles, goals) in [
        ("bfq, strict and real-time", &guarded[1..], [1.2, 1.5]),
        ("the kernel's best guard of all", &guarded[..], [1.0, 1.2]),
    ] {
        let theirs: Vec<usize> = (0..all.len())
            .filter(|place| roles.contains(&all[*place].role))
            .filter(|place| matches!(missed(runs, *place), (0, 1..)))
            .collect();
        let best =
            |round| theirs.iter().filter_map(|place| rate(runs, *place, round)).reduce(f64::max);
        let ratios: Vec<f64> = rounds(runs)
            .filter_map(|round| Some(rate(runs, ours, round)? / best(round)?))
            .collect();
        let least = Spread::of(&ratios).map(|all| all.min);
        let against = |goal| least.zip(kept).map(|(least, kept)| kept && least >= goal);
        report.verdicts.push(Verdict {
            figure: format!(
                "uploads against {name}, where it misses nothing, deliveries at {share} %"
            ),
            measured: match theirs.is_empty() {
                true => "it missed cycles, or was not run".into(),
                false => format!("{}x", spread(&ratios)),
            },
            must: format!("{}x", goals[0]),
            reached: against(goals[0]),
            push: format!("{}x", goals[1]),
            pushed: against(goals[1]),
        });
    }
}

/// Missed cycles of all rounds, and all cycles.
fn missed(runs: &[Run], place: usize) -> (usize, usize) {
    let all = runs.iter().filter(|run| run.place == place).map(|run| run.missed);
    all.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

fn rounds(runs: &[Run]) -> impl Iterator<Item = usize> {
    0..runs.iter().map(|run| run.round + 1).max().unwrap_or(0)
}

fn rate(runs: &[Run], place: usize, round: usize) -> Option<f64> {
    let mut found = runs.iter().filter(|run| run.place == place && run.round == round);
    found.next().map(|run| run.rate)
}

/// The uploads of `place` as a percentage of the greedy maximum of the same round: the most of any
/// row with unlimited uploads.
fn shares(all: &[Candidate], runs: &[Run], place: usize) -> Vec<f64> {
    let greedy = |round| {
        let places = (0..all.len()).filter(|place| all[*place].role == Role::Greedy);
        places.filter_map(|place| rate(runs, place, round)).reduce(f64::max)
    };
    rounds(runs)
        .filter_map(|round| Some(rate(runs, place, round)? / greedy(round)? * 100.0))
        .collect()
}

fn method(device: &str, busy: Nanos) -> String {
    format!(
        "Deliveries of a mebibyte a second run alone for {CALM}, then for {busy} with eight \
         clients that upload titles of 64 MiB as fast as they are taken. Their number is the \
         largest whose sweep of one block each takes the share of a {CYCLE} cycle by the disk's \
         model. A cycle is missed when the player of at least one delivery, which starts with {} \
         of media, has nothing to show in it; rounds add up. Uploads in MB/s are what the clients \
         could send or what the disk wrote, whichever is less. The greedy maximum is the most \
         that any row without protection got in the same round; direct writes of a mebibyte, 32 \
         at once, are one of them. At most {UNWRITTEN} of {device} wait in memory to be written.",
        super::START_UP
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deliveries_take_their_share_of_the_disk() {
        assert_eq!(SHARES.map(streams_for), [27, 44]);
    }

    #[test]
    fn the_greedy_maximum_is_that_of_the_same_round_and_of_nobody_who_is_kept_back() {
        let all = candidates();
        let run = |place: usize, round, rate| Run {
            place,
            round,
            rate,
            missed: (0, 60),
            late: 0,
            j_calm: 0.0,
            j: 0.0,
            j_over_time: Vec::new(),
            df: 0.0,
            taken: rate,
            acked: 1,
            unacked: Vec::new(),
            reads: 0.0,
            writes: 0.0,
            flushes: 0.0,
        };
        let find = |role| all.iter().position(|candidate| candidate.role == role).unwrap();
        let (ours, greedy, strict) = (find(Role::Ours), find(Role::Greedy), find(Role::Strict));
        let direct = |candidate: &Candidate| matches!(candidate.load, Kind::Direct { .. });
        let reference = all.iter().position(direct).unwrap();
        let runs = [
            run(ours, 0, 60.0),
            run(greedy, 0, 80.0),
            run(strict, 0, 500.0),
            run(reference, 0, 100.0),
            run(ours, 1, 60.0),
            run(greedy, 1, 120.0),
            run(ours, 2, 60.0),
        ];
        assert_eq!(shares(&all, &runs, ours), [60.0, 50.0]);
        assert_eq!(missed(&runs, ours), (0, 180));
    }
}
