//! balance: streams double, grow past what one core carries, and go away again; the servers of the
//! engine follow by themselves, beside placements made by hand.
//!
//! Promise: how many streams one core carries is found out first, and all loads are parts of that.
//! All servers begin on one core. A move is counted when the server's own placement shows it, which
//! is read all the time. Every stream that was admitted is judged, and every further request that
//! was refused is counted. Placements by hand get the same load in the same round.

mod summary;

use std::net::SocketAddrV4;
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tactus_core::units::{BitRate, MonoTime, Nanos, SECOND};

use super::server_places::server_places;
use super::{Fixture, say};
use crate::figures::windows::Span;
use crate::peers::{self, Peer, TOKEN, Tactus, Tuning};
use crate::phase;
use crate::receiver::{Answer, PlannedRequest};
use crate::report::Report;
use crate::run::{self, Extra, Outcome, Scene};
use crate::titles::Titles;
use crate::{clock, interrupt, machine};
use summary::{Rounds, Run};

/// Slow streams that send often: a core's time is the limit, and not the disk or the memory.
const RATE: BitRate = BitRate(2_000_000);
const TICK: Nanos = Nanos::from_millis(25);
const TITLES: usize = 4;
const ROUNDS: usize = 3;
/// Of each core's time. So few that a receiver on the same machine keeps up with both cores.
const CPU_BUDGET: u32 = 12;
/// Requests that fill a core, and more.
const FILL: usize = 900;
const FILL_TIME: Nanos = SECOND;
/// Percent of what one core carries: from the beginning, when they double, and beyond that. One
/// core takes all servers while it is 45 % full, and gives one away from 80 % on.
const AT_FIRST: usize = 42;
const DOUBLED: usize = 42;
const BEYOND: usize = 46;
/// Before the streams double.
const BEFORE: Nanos = SECOND.times(10);
/// In which as many streams again are requested.
const STEP: Nanos = Nanos::from_millis(200);
/// From the doubling to the requests that one core does not carry.
const UNTIL_BEYOND: Nanos = SECOND.times(3);
/// From then until CPU time is counted.
const UNTIL_COSTED: Nanos = SECOND;
/// Before the end of the steady load, in which the server is filled.
const LAST: Nanos = SECOND.times(3);
/// After the last of them has gone: idle cores are given back after ten seconds.
const AFTER: Nanos = SECOND.times(15);
/// Between two looks at the placement.
const LOOK: Nanos = Nanos::from_millis(10);

/// A way to place the servers: its name, the value of `[cores] placement`, and whether they move.
struct Arrangement {
    name: &'static str,
    placement: &'static str,
    balance: bool,
}

/// The first is the balancer's; the others are those by hand.
const ARRANGEMENTS: [Arrangement; 3] = [
    Arrangement {
        name: "by the balancer",
        placement: "[{ cpu = 0, servers = [\"disk.0\", \"block.0\", \"delivery\", \"link\", \
                    \"link.1\", \"packets\", \"file\"] }, { cpu = 1, servers = [] }]",
        balance: true,
    },
    Arrangement {
        name: "by hand: a link on each core",
        placement: "[{ cpu = 0, servers = [\"disk.0\", \"block.0\", \"delivery\", \"link\", \
                    \"packets\", \"file\"] }, { cpu = 1, servers = [\"link.1\"] }]",
        balance: false,
    },
    Arrangement {
        name: "by hand: sending apart",
        placement: "[{ cpu = 0, servers = [\"disk.0\", \"block.0\", \"delivery\", \"packets\", \
                    \"file\"] }, { cpu = 1, servers = [\"link\", \"link.1\"] }]",
        balance: false,
    },
];

const ONE_CORE: &str = "[{ cpu = 0, servers = [\"disk.0\", \"block.0\", \"delivery\", \"link\", \
                        \"link.1\", \"packets\", \"file\"] }]";

/// A move that was seen: when, and where the server is then.
#[derive(Clone, Debug)]
struct Move {
    at: MonoTime,
    server: String,
    core: u64,
}

/// The times of a run, from the beginning of its measured span.
struct Times {
    /// When as many streams again are requested.
    doubles: Nanos,
    /// When those are that one core does not carry.
    beyond: Nanos,
    /// When the server is filled.
    fills: Nanos,
    /// When all of these have ended.
    falls: Nanos,
}

impl Times {
    fn new(steady: Nanos) -> Self {
        let falls = BEFORE + steady;
        Self { doubles: BEFORE, beyond: BEFORE + UNTIL_BEYOND, fills: falls - LAST, falls }
    }

    /// The part in which CPU time is counted.
    fn costed(&self) -> (Nanos, Nanos) {
        (self.beyond + STEP + UNTIL_COSTED, self.fills)
    }
}

/// Runs it.
pub(super) fn bench(fixture: &Fixture) -> Result<Report> {
    let question = "how soon do the servers of the engine follow their load, who notices, and how \
                    good is where they go?";
    let mut report = fixture.report("balance", question);
    let steady = fixture.seconds(30);
    let times = Times::new(steady);
    let (beyond, costed) = (times.beyond, times.costed());
    ensure!(costed.0 + SECOND < costed.1, "the load must last longer: --seconds 11 or more");
    let length = times.falls + AFTER;
    let size = Scene::title_size(RATE, SECOND, SECOND.times(2), length);
    let titles = Titles::lay(&fixture.options.data.join("balance"), TITLES, size)?;
    report.settings.push(("disk".into(), machine::storage(titles.root())));
    let usual = fixture.scene(&titles, RATE, FILL);
    let scene = Scene { length, server_cores: "0-1", cold: false, ..usual };
    let carried = carried_by_one_core(&scene)?;
    let part = |percent: usize| carried * percent / 100;
    let scene = Scene { streams: part(AT_FIRST), ..scene };
    report.note(format!(
        "one core admits {carried} streams of {RATE} at a budget of {CPU_BUDGET} %; {} at first, \
         {} more at once, {} more {UNTIL_BEYOND} later, and as many as fit at the end",
        part(AT_FIRST),
        part(DOUBLED),
        part(BEYOND)
    ));
    let begin = scene.stagger + scene.warm_up;
    let asks = [
        further(&titles, begin + times.doubles, STEP, (part(DOUBLED), steady)),
        further(&titles, begin + beyond, STEP, (part(BEYOND), steady - UNTIL_BEYOND)),
        further(&titles, begin + times.fills, FILL_TIME, (FILL, LAST)),
    ];
    let counts = [asks[0].len(), asks[1].len()];
    let asks = asks.concat();
    let address = peers::address(scene.wire);
    let chosen = ARRANGEMENTS.iter().filter(|one| fixture.wants(one.name));
    let chosen: Vec<_> = chosen.collect();
    for one in &chosen {
        let tactus = peer(one.name, one.placement, one.balance);
        report.settings.push((tactus.name(), tactus.settings(&scene.setting_with_uploads())?));
    }
    let (mut calm, mut busy, mut rounds) = (vec![], vec![], Rounds::default());
    for round in 0..fixture.rounds(ROUNDS) {
        for one in &chosen {
            say(&format!("round {}, {}: {} streams at first", round + 1, one.name, scene.streams));
            let found = Mutex::new(Vec::new());
            let looks = |from: MonoTime| {
                // Of this thread alone.
                scene.wire.move_to_receiver_side()?;
                let moves = watch_until(from + length, address)?;
                *found.lock().unwrap_or_else(PoisonError::into_inner) = moves;
                Ok(())
            };
            let extra = Extra {
                asks: &asks,
                beside: Some(&looks),
                uploads: true,
                costed: Some(costed),
                ..Extra::default()
            };
            let tactus = peer(one.name, one.placement, one.balance);
            let (outcome, figures) = fixture.outcome_with(&tactus, &scene, extra, &mut report)?;
            let moves = found.into_inner().unwrap_or_else(PoisonError::into_inner);
            let whole = outcome.measured;
            let at = |span: Nanos| whole.from + span;
            let gaps = if fixture.options.accept_noise { &[] } else { &outcome.gaps[..] };
            let judge = |from, to| {
                phase::of(&outcome.traces, RATE, whole, Span { from: at(from), to: at(to) }, gaps)
            };
            let phases = [judge(Nanos(0), times.doubles)?, judge(times.doubles, times.fills)?];
            let seen = Run {
                arrangement: one.name,
                is_balanced: one.balance,
                cpu_per_gb: figures.cpu_per_gb,
                late: figures.underruns + figures.streams_failed as u64,
                ..judged(&moves, &times, &outcome, &scene, counts)
            };
            if let Some(run) = report.runs.last_mut() {
                run["before"] = json!(phases[0]);
                run["during"] = json!(phases[1]);
                run["moves"] = moves.iter().map(|one| told(one, at(times.doubles))).collect();
                run["seen"] = json!(seen);
            }
            if one.balance {
                calm.push(phases[0]);
                busy.push(phases[1]);
            }
            rounds.add(seen);
            report.keep(&fixture.options.out)?;
        }
    }
    if !calm.is_empty() {
        report.tables.push(phase::table("with more streams", [&calm, &busy]));
    }
    rounds.summarise(&mut report);
    report.method.push(format!(
        "A server with one real-time core and a budget of {CPU_BUDGET} % of it is filled first. \
         The others have two such cores. Capacity: all streams that run when {FILL} more have been \
         requested. CPU per byte: from a second after the last step of load until then."
    ));
    Ok(report)
}

fn peer(label: &str, placement: &str, balance: bool) -> Tactus {
    let tuning = Tuning {
        tick: Some(TICK),
        placement: Some(placement.into()),
        cpu_budget: Some(CPU_BUDGET),
        balance,
        further: 3 * FILL,
        ..Tuning::default()
    };
    Tactus { label: label.into(), tuning }
}

/// How many of the streams a server with one real-time core admits.
fn carried_by_one_core(scene: &Scene<'_>) -> Result<usize> {
    say("filling one core");
    let warm_up = SECOND;
    let scene = Scene { stagger: FILL_TIME, warm_up, length: SECOND.times(2), ..*scene };
    let extra = Extra { uploads: true, ..Extra::default() };
    let outcome = run::run_with(&peer("one core", ONE_CORE, false), &scene, extra)?;
    let admitted = outcome.answers.iter().filter(|answer| answer.accepted()).count();
    let reasons = outcome.reasons();
    ensure!((100..FILL).contains(&admitted), "one core admits {admitted} of {FILL}: {reasons:?}");
    Ok(admitted)
}

/// `count` further streams requested within `step`; each plays for `span`. Each has a player of its
/// own: the next request of the same player may be a seek, which is not refused at once.
fn further(
    titles: &Titles,
    asked: Nanos,
    step: Nanos,
    (count, span): (usize, Nanos),
) -> Vec<PlannedRequest> {
    let last = RATE.bytes_in(span).0 - 1;
    let request = |number: usize| {
        let after = asked + Nanos(step.0 * number as u64 / count as u64);
        let target = format!("{}?rate={}", titles.target(number % titles.count()), RATE.0);
        let text = format!(
            "GET {target} HTTP/1.1\r\nHost: bench\r\nUser-Agent: player/{}\r\n\
             Range: bytes=0-{last}\r\n\r\n",
            after.0
        );
        PlannedRequest { after, request: text.into_bytes(), from: None }
    };
    (0..count).map(request).collect()
}

/// Notes each move until `until`.
fn watch_until(until: MonoTime, address: SocketAddrV4) -> Result<Vec<Move>> {
    let (mut moves, mut known) = (vec![], server_places(address.into(), TOKEN)?);
    while clock::now() < until {
        interrupt::check()?;
        clock::sleep(LOOK);
        let now = server_places(address.into(), TOKEN)?;
        for (server, core) in now.iter().filter(|one| !known.contains(one)) {
            moves.push(Move { at: clock::now(), server: server.clone(), core: *core });
        }
        known = now;
    }
    Ok(moves)
}

fn told(one: &Move, from: MonoTime) -> Value {
    let seconds = (one.at.0 as f64 - from.0 as f64) / 1e9;
    json!({ "server": one.server, "core": one.core, "seconds": seconds })
}

/// What moves and further requests say; `counts` of those requests double the load and go beyond.
fn judged(
    moves: &[Move],
    times: &Times,
    outcome: &Outcome,
    scene: &Scene<'_>,
    counts: [usize; 2],
) -> Run {
    let at = |span: Nanos| outcome.measured.from + span;
    let seconds = |since: MonoTime, at: MonoTime| at.since(since).0 as f64 / 1e9;
    let asked = at(times.doubles) + STEP;
    let during = |one: &&Move| one.at >= at(times.doubles) && one.at < at(times.fills);
    let (first, later): (Vec<_>, Vec<_>) =
        moves.iter().filter(during).partition(|one| one.at < asked + SECOND);
    let back = moves.iter().rfind(|one| one.at >= at(times.falls));
    let (steps, fill) = outcome.extra_answers.split_at(counts.iter().sum());
    let refused = |answers: &[Answer]| answers.iter().filter(|one| !one.went_well()).count();
    let (doubling, beyond) = steps.split_at(counts[0]);
    let plays = outcome.extra_plays(scene);
    // Of those that fill the server only an end before the time counts: they are over too soon for
    // a player's buffer.
    let late: u64 = plays[..steps.len()].iter().map(|play| play.count).sum();
    let broke = fill.iter().filter(|answer| answer.broke()).count();
    let running = scene.streams - outcome.failed() + steps.len() - refused(steps);
    Run {
        settled: first.last().map(|one| seconds(asked, one.at)),
        later: later.len(),
        together: back.map(|one| seconds(at(times.falls), one.at)),
        refused: refused(doubling),
        refused_beyond: refused(beyond),
        further_late: late + broke as u64,
        // Another one may have got the place of one that broke.
        capacity: running + fill.iter().filter(|answer| answer.went_well()).count(),
        ..Run::default()
    }
}
