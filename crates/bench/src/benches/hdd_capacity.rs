//! hdd-capacity: how many streams of 8.8 Mbit/s a spinning disk holds without one underrun.
//!
//! Promise: every server gets the same emulated 7200 rpm disk, the same titles spread over it, and
//! the same virtual players; the count is found by bisection and held in three of three runs. nginx
//! is tried in every way that we know, and the best of them is the peer.

use anyhow::Result;
use serde_json::json;
use tactus_core::units::{BitRate, Nanos, SECOND};

use super::{Fixture, say};
use crate::disk::{EmulatedDisk, Profile};
use crate::interrupt;
use crate::machine;
use crate::peers::{Nginx, NginxStyle, Peer, Tactus, Tuning};
use crate::report::{Plot, Report, Table, Verdict, number};
use crate::run::{Extra, Figures, Scene};
use crate::search;
use crate::spread::Spread;
use crate::titles::Titles;

const RATE: BitRate = BitRate(8_800_000);
/// More streams than the disk can carry in one sequence: 150 MB/s at 1.1 MB/s each.
const STREAMS_MAX: usize = 136;
/// The time over which the streams of a trial are asked for.
const STAGGER: Nanos = SECOND.times(10);
const WARM_UP: Nanos = SECOND.times(2);

/// What one server holds.
struct ServerCapacity {
    name: String,
    streams: usize,
    tactus: bool,
}

/// Runs it.
pub(super) fn bench(fixture: &Fixture) -> Result<Report> {
    let question = "how many streams of 8.8 Mbit/s does a 7200 rpm disk hold without an underrun?";
    let mut report = fixture.report("hdd-capacity", question);
    let length = fixture.seconds(60);
    let mut disk = fixture.emulated(Profile::Hdd, &mut report)?;
    say("laying down the titles");
    let size = Scene::title_size(RATE, STAGGER, WARM_UP, length);
    let titles = Titles::lay_apart(disk.mount(), STREAMS_MAX, size, disk.size())?;
    disk.timed()?;
    report.settings.push(("queue".into(), machine::storage(disk.mount())));
    say(&machine::storage(disk.mount()));
    report
        .settings
        .push(("titles".into(), format!("{STREAMS_MAX} of {size}, evenly over the whole disk")));
    let mut held = Vec::new();
    let mut trials = Table::new(
        "trials",
        &[
            "server",
            "streams",
            "with underruns",
            "underruns",
            "failed",
            "payload share",
            "first byte, s",
            "mean read, KiB",
            "contiguous, %",
            "disk MB/s",
        ],
    );
    for (peer, tactus, guess) in peers() {
        if !fixture.wants(&peer.name()) {
            continue;
        }
        let scene = Scene {
            stagger: STAGGER,
            warm_up: WARM_UP,
            length,
            ..fixture.scene(&titles, RATE, STREAMS_MAX)
        };
        report.settings.push((peer.name(), peer.settings(&scene.setting())?));
        let trial = |streams| {
            let scene = Scene { streams, ..scene };
            one(fixture, peer.as_ref(), &scene, &mut disk, &mut trials, &mut report)
        };
        match search::largest(guess, STREAMS_MAX, trial) {
            Ok(streams) => held.push(ServerCapacity { name: peer.name(), streams, tactus }),
            Err(error) => {
                interrupt::check()?;
                report.note(format!("{}: {error:#}", peer.name()));
            }
        }
    }
    summarise(&held, trials, &mut report);
    report.method.push(format!(
        "A trial asks for its streams evenly over {STAGGER}, then goes on for {length}; it holds \
         when no stream fails and no player runs dry. A player starts with {} of media. The \
         answer has held in three of three trials.",
        super::START_UP
    ));
    Ok(report)
}

/// The servers, whether each is ours, and where to begin the search.
fn peers() -> Vec<(Box<dyn Peer>, bool, usize)> {
    let ours = |label: &str, cycle, guess| -> (Box<dyn Peer>, bool, usize) {
        let tuning = Tuning { cycle, ..Tuning::default() };
        (Box::new(Tactus { label: label.into(), tuning }), true, guess)
    };
    let nginx =
        |style, guess| -> (Box<dyn Peer>, bool, usize) { (Box::new(Nginx(style)), false, guess) };
    vec![
        ours("", None, 108),
        ours("cycle 4 s", Some(SECOND.times(4)), 93),
        nginx(NginxStyle::SendfileThreads, 13),
        nginx(NginxStyle::Direct { buffer_mib: 1 }, 56),
        nginx(NginxStyle::Sendfile, 4),
        nginx(NginxStyle::Direct { buffer_mib: 2 }, 56),
        nginx(NginxStyle::Buffered { buffer_mib: 2 }, 16),
        nginx(NginxStyle::Defaults, 4),
    ]
}

/// One trial; a run in which the machine stood still is made again.
fn one(
    fixture: &Fixture,
    peer: &dyn Peer,
    scene: &Scene<'_>,
    disk: &mut EmulatedDisk,
    trials: &mut Table,
    report: &mut Report,
) -> Result<bool> {
    say(&format!("{}: {} streams", peer.name(), scene.streams));
    let before = disk.timed()?;
    let holds = |figures: &Figures| figures.underruns == 0 && figures.streams_failed == 0;
    // A refusal is not the machine's doing either.
    let settled = |figures: &Figures| holds(figures) || figures.streams_failed > 0;
    let (outcome, figures) =
        fixture.outcome_unless(peer, scene, Extra::default(), settled, report)?;
    let after = disk.asked()?;
    let (reads, bytes) = (after.reads - before.reads, after.read_bytes - before.read_bytes);
    let contiguous = (after.contiguous - before.contiguous) as f64 / reads.max(1) as f64;
    let wall = outcome.stopped_at.since(outcome.measured.from) + scene.stagger + scene.warm_up;
    trials.row(vec![
        peer.name(),
        scene.streams.to_string(),
        figures.streams_underrun.to_string(),
        figures.underruns.to_string(),
        figures.streams_failed.to_string(),
        number(figures.payload_share),
        number(figures.first_byte.1),
        number(bytes as f64 / reads.max(1) as f64 / 1024.0),
        number(contiguous * 100.0),
        number(bytes as f64 / wall.0 as f64 * 1e3),
    ]);
    say(&trials.rows.last().map_or(String::new(), |row| row.join("  ")));
    disk.check_read_ahead()?;
    if let Some(run) = report.runs.last_mut() {
        run["disk"] = json!({ "before": before, "after": after });
    }
    Ok(holds(&figures))
}

fn summarise(held: &[ServerCapacity], trials: Table, report: &mut Report) {
    let best = held.iter().filter(|held| !held.tactus).max_by_key(|held| held.streams);
    let reference = held.iter().find(|held| held.name.contains("sendfile, aio threads"));
    let ratio = |streams: usize, base: Option<&ServerCapacity>| {
        base.filter(|base| base.streams > 0).map(|base| streams as f64 / base.streams as f64)
    };
    let mut table = Table::new(
        "streams of 8.8 Mbit/s held without an underrun",
        &[
            "server",
            "streams",
            "against nginx at its best",
            "against nginx (sendfile, aio threads)",
        ],
    );
    for server in held {
        let cell = |base| ratio(server.streams, base).map_or("-".into(), |r| format!("{r:.2}x"));
        table.row(vec![
            server.name.clone(),
            server.streams.to_string(),
            cell(best),
            cell(reference),
        ]);
    }
    report.plots.push(Plot::Bars {
        title: "streams held".into(),
        bars: held
            .iter()
            .filter_map(|held| Some((held.name.clone(), Spread::of(&[held.streams as f64])?)))
            .collect(),
        mark: None,
    });
    // The first one: the server's own choice of cycle and memory.
    let ours = held.iter().find(|held| held.tactus);
    let mut judge = |name: &str, base| {
        let found = ours.and_then(|ours| ratio(ours.streams, base));
        report.verdicts.push(Verdict {
            figure: format!("streams held against {name}"),
            measured: found.map_or("-".into(), |ratio| format!("{ratio:.2}x")),
            must: "5.25x".into(),
            reached: found.map(|ratio| ratio >= 5.25),
            push: "11x".into(),
            pushed: found.map(|ratio| ratio >= 11.0),
        });
    };
    judge("nginx (sendfile, aio threads)", reference);
    judge("nginx at its best", best);
    report.verdicts.push(Verdict {
        figure: "streams held".into(),
        measured: ours.map_or("-".into(), |ours| ours.streams.to_string()),
        must: "100".into(),
        reached: ours.map(|ours| ours.streams >= 100),
        push: "110".into(),
        pushed: ours.map(|ours| ours.streams >= 110),
    });
    report.tables.extend([table, trials]);
}
