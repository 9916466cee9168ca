//! small-acks: a full server, and a hundred small uploads a second that all want to be safe.
//!
//! Promise: as many streams as Tactus admits run on a flash disk; then 100 uploads of 64 KiB a
//! second come, each at its instant and on a connection of its own. Acknowledgements are timed from
//! that instant. nginx gets as many streams; its acknowledgement promises nothing, which the table
//! says.

use std::sync::Mutex;

use anyhow::{Result, ensure};
use tactus_core::units::{BitRate, Bytes, KIB, MILLISECOND, Nanos, SECOND};

use super::stretches::{Disk, Kind, Load, Stretches};
use super::{Fixture, FlashDisk, say};
use crate::disk::Profile;
use crate::machine;
use crate::peers::{Nginx, NginxStyle, Peer, Tactus, Tuning};
use crate::report::{Report, Table, Verdict, number, spread};
use crate::run::Scene;
use crate::spread::Spread;
use crate::titles::Titles;
use crate::uploader::Pace;

const RATE: BitRate = BitRate(8_800_000);
const TITLES: usize = 200;
/// Asked for, to fill the server: more than the machine's own disk or core can take.
const FILL: usize = 1_200;
/// The same on an emulated disk, whose daemon wants its part of the cores.
const FILL_EMULATED: usize = 400;
/// What a hundred uploads of 64 KiB a second need of the emulated SATA disk, whose writes take ten
/// times as long as reads: 13 % of its time for the bytes, 3 % for the file system's own, and 10 %
/// for the flushes. Who promises that much says so in the configuration.
const SATA_FLOOR: u32 = 25;
const FILL_TIME: Nanos = SECOND.times(8);
const WARM_UP: Nanos = SECOND.times(5);
const CALM: Nanos = SECOND.times(10);
const SMALL: Kind = Kind::Put { pace: Pace::Every(MILLISECOND.times(10)), size: Bytes(64 * KIB) };
/// What is not acknowledged by then counts as never.
const PATIENCE: Nanos = SECOND.times(10);
/// The grid on which cycles are missed: the disk cycle on flash.
const CYCLE: Nanos = Nanos::from_millis(250);
const ROUNDS: usize = 3;

/// Runs it.
pub(super) fn bench(fixture: &Fixture) -> Result<Report> {
    let question = "a full server gets 100 uploads of 64 KiB a second: who waits for what?";
    let mut report = fixture.report("small-acks", question);
    let length = CALM + fixture.seconds(60);
    let size = Scene::title_size(RATE, FILL_TIME, WARM_UP, length);
    if fixture.stands_on(FlashDisk::Own) {
        let titles = Titles::lay(&fixture.options.data.join("cold"), TITLES, size)?;
        let (name, fill) = ("own disk", FILL);
        let volume = Volume { name, titles: &titles, fill, floor: None, disk: None };
        on_disk(fixture, volume, length, &mut report)?;
    }
    for profile in fixture.emulated_flash() {
        let mut disk = fixture.emulated(profile, &mut report)?;
        let titles = Titles::lay(disk.mount(), TITLES, size)?;
        disk.timed()?;
        let name = format!("emulated {profile:?}");
        let floor = (profile == Profile::Sata).then_some(SATA_FLOOR);
        let disk = Mutex::new(&mut disk);
        let (name, fill) = (name.as_str(), FILL_EMULATED);
        let volume = Volume { name, titles: &titles, fill, floor, disk: Some(&disk) };
        on_disk(fixture, volume, length, &mut report)?;
    }
    report.method.push(format!(
        "Streams are asked for over {FILL_TIME}; those that Tactus admits run on, and nginx gets \
         as many. After {CALM} an upload of 64 KiB begins every 10 ms on a connection of its own. \
         Its acknowledgement is timed from that instant to the complete head of the answer; one \
         that has not come {PATIENCE} after the end counts as missing. A stream is late when its \
         player, which starts with {} of media, stood still after the warm-up, or when it broke.",
        super::START_UP
    ));
    Ok(report)
}

/// One run, in figures.
struct Run {
    place: usize,
    streams: usize,
    late: usize,
    missed: (usize, usize),
    begun: usize,
    unacked: usize,
    ack: [f64; 3],
    late_calm: f64,
    late_busy: f64,
    j: f64,
    flushes: f64,
}

impl Run {
    fn of(place: usize, found: &Stretches) -> Self {
        Self {
            place,
            streams: found.streams,
            late: found.late,
            missed: found.missed,
            begun: found.harvest.uploads.len(),
            unacked: found.harvest.unacked(),
            ack: [0.5, 0.99, 1.0].map(|q| found.harvest.ack(q)),
            late_calm: found.calm.late_p99,
            late_busy: found.busy.late_p99,
            j: found.busy.j1s.mean,
            flushes: found
                .asked
                .map_or(f64::NAN, |(asked, span)| asked.flushes as f64 / span.0 as f64 * 1e9),
        }
    }
}

/// A disk, and what is asked of it.
struct Volume<'a> {
    name: &'a str,
    titles: &'a Titles,
    fill: usize,
    /// What Tactus keeps for uploads, in percent, where that is not its default.
    floor: Option<u32>,
    disk: Disk<'a>,
}

fn on_disk(
    fixture: &Fixture,
    volume: Volume<'_>,
    length: Nanos,
    report: &mut Report,
) -> Result<()> {
    let Volume { name: disk_name, titles, fill, floor, disk } = volume;
    report.settings.push((disk_name.into(), machine::storage(titles.root())));
    let fill = fixture.options.streams.first().copied().unwrap_or(fill);
    let scene = Scene {
        stagger: FILL_TIME,
        warm_up: WARM_UP,
        length,
        server_cores: "0-1",
        ..fixture.scene(titles, RATE, fill)
    };
    let tick = Some(Nanos::from_micros(62_500));
    let ours: usize = 0;
    let tactus = |floor: Option<u32>| {
        let label = floor.map_or("tick 62.5 ms".into(), |percent| format!("floor {percent} %"));
        let tuning = Tuning { tick, upload_floor: floor, ..Tuning::default() };
        Box::new(Tactus { label, tuning }) as Box<dyn Peer>
    };
    let mut peers = vec![
        tactus(floor),
        Box::new(Nginx(NginxStyle::SendfileThreads)),
        Box::new(Nginx(NginxStyle::Defaults)),
    ];
    if floor.is_some() {
        peers.push(tactus(None));
    }
    for peer in &peers {
        let name = format!("{disk_name}: {}", peer.name());
        report.settings.push((name, peer.settings(&scene.setting_with_uploads())?));
    }
    let load = Load { kind: SMALL, calm: CALM, patience: PATIENCE, beside: None };
    let names: Vec<String> = peers.iter().map(|peer| peer.name()).collect();
    // The two nginx stand behind the first Tactus.
    const NGINX_END: usize = 3;
    let mut admitted = fill;
    let rounds = fixture.rounds(ROUNDS);
    let runs = fixture.take_turns(&names, rounds, report, |place, _, report| {
        // Others refuse nothing: they get what ours has admitted.
        let is_tactus = place == ours || place >= NGINX_END;
        let streams = if is_tactus { fill } else { admitted };
        let scene = Scene { streams, ..scene };
        let peer = peers[place].as_ref();
        let found = Stretches::run(fixture, peer, &scene, &load, CYCLE, disk, report)?;
        ensure!(found.streams > 0, "no stream was admitted");
        if place == ours {
            admitted = found.streams;
        }
        let run = Run::of(place, &found);
        say(&format!(
            "{} streams, {} late; {} uploads, {} without acknowledgement ({:?}); p50 {} p99 {} \
             max {} ms",
            run.streams,
            run.late,
            run.begun,
            run.unacked,
            found.harvest.reasons(),
            number(run.ack[0]),
            number(run.ack[1]),
            number(run.ack[2]),
        ));
        Ok(run)
    })?;
    summarise(disk_name, &peers, &runs, report);
    judge(disk_name, &runs, ours, report);
    Ok(())
}

fn summarise(disk_name: &str, peers: &[Box<dyn Peer>], runs: &[Run], report: &mut Report) {
    let mut table = Table::new(
        &format!("100 uploads of 64 KiB a second, {disk_name}"),
        &[
            "server",
            "durable",
            "streams",
            "late",
            "missed cycles",
            "uploads",
            "without ack",
            "ack p50, ms",
            "p99, ms",
            "max, ms",
            "lateness p99 alone, ms",
            "with uploads, ms",
            "J 1 s, %",
            "flushes/s",
        ],
    );
    for (place, peer) in peers.iter().enumerate() {
        let of = || runs.iter().filter(move |run| run.place == place);
        if of().next().is_none() {
            continue;
        }
        let cell = |value: &dyn Fn(&Run) -> f64| spread(&of().map(value).collect::<Vec<_>>());
        let sum = |value: fn(&Run) -> usize| of().map(value).sum::<usize>().to_string();
        table.row(vec![
            peer.name(),
            if peer.acks_are_durable() { "yes" } else { "no" }.into(),
            cell(&|run| run.streams as f64),
            sum(|run| run.late),
            format!("{} of {}", sum(|run| run.missed.0), sum(|run| run.missed.1)),
            sum(|run| run.begun),
            sum(|run| run.unacked),
            cell(&|run| run.ack[0]),
            cell(&|run| run.ack[1]),
            cell(&|run| run.ack[2]),
            cell(&|run| run.late_calm),
            cell(&|run| run.late_busy),
            cell(&|run| run.j),
            cell(&|run| run.flushes),
        ]);
    }
    report.tables.push(table);
}

fn judge(disk_name: &str, runs: &[Run], ours: usize, report: &mut Report) {
    let ours: Vec<&Run> = runs.iter().filter(|run| run.place == ours).collect();
    let sum = |value: fn(&Run) -> usize| ours.iter().map(|run| value(run)).sum::<usize>();
    let (late, missing) = (sum(|run| run.late), sum(|run| run.unacked));
    let p99: Vec<f64> = ours.iter().map(|run| run.ack[1]).collect();
    let most = Spread::of(&p99).map(|all| all.max);
    let tried = !ours.is_empty();
    report.verdicts.extend([
        Verdict {
            figure: format!("late streams, {disk_name}"),
            measured: number(late as f64),
            must: "0".into(),
            reached: tried.then_some(late == 0),
            push: "-".into(),
            pushed: None,
        },
        Verdict {
            figure: format!("durable acknowledgement p99, {disk_name}"),
            measured: format!("{} ms, {missing} missing", spread(&p99)),
            must: "1,000 ms".into(),
            reached: most.map(|most| missing == 0 && most <= 1_000.0),
            push: "250 ms".into(),
            pushed: most.map(|most| missing == 0 && most <= 250.0),
        },
    ]);
}
