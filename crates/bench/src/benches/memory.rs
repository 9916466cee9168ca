//! memory: is the memory of a loaded server bounded by its configuration?
//!
//! Promise: the server runs in a control group whose limit is the configured arena and 64 MiB; 200
//! cold streams and 1,000 refused requests load it. What the group held at most, and whether the
//! kernel killed anything, is its account and not the server's.

use anyhow::Result;
use serde_json::json;
use tactus_core::units::{BitRate, Bytes, MIB, Nanos, SECOND};

use super::{Fixture, say};
use crate::group::Group;
use crate::machine;
use crate::peers::{Peer, Tactus, Tuning};
use crate::receiver::PlannedRequest;
use crate::report::{Report, Table, Verdict};
use crate::run::{Extra, Scene};
use crate::titles::Titles;

const RATE: BitRate = BitRate(8_800_000);
const STREAMS: usize = 200;
const ARENA: Bytes = Bytes(512 * MIB);
/// What the server may need besides its arena: code, stacks, connections, tables.
const BESIDES: Bytes = Bytes(64 * MIB);
/// For all streams to begin.
const WARM_UP: Nanos = SECOND.times(8);
/// Requests beside the streams: more than fit.
const STORM: usize = 1_000;

/// Runs it.
pub(super) fn bench(fixture: &Fixture) -> Result<Report> {
    let question = "is the memory of a loaded server bounded by its configuration?";
    let mut report = fixture.report("memory", question);
    let titles = Titles::lay(
        &fixture.options.data.join("cold"),
        STREAMS,
        Scene::title_size(RATE, SECOND, WARM_UP, fixture.seconds(20)),
    )?;
    report.settings.push(("disk".into(), machine::storage(titles.root())));
    let scene =
        Scene { server_cores: "0-1", warm_up: WARM_UP, ..fixture.scene(&titles, RATE, STREAMS) };
    let tuning =
        Tuning { tick: Some(Nanos::from_micros(62_500)), arena: Some(ARENA), ..Tuning::default() };
    let tactus = Tactus { label: "512 MiB".into(), tuning };
    report.settings.push((tactus.name(), tactus.settings(&scene.setting())?));
    let begin = scene.stagger + scene.warm_up;
    let step = Nanos(scene.length.saturating_sub(SECOND).0 / STORM as u64);
    let storm: Vec<PlannedRequest> = (0..STORM)
        .map(|place| {
            let target = tactus.target(&titles, place % STREAMS, BitRate(1_000_000_000));
            PlannedRequest::get(begin + step.times(place as u64), &target)
        })
        .collect();
    let limit = ARENA + BESIDES;
    say(&format!("{STREAMS} streams and {STORM} requests within {limit}"));
    let group = Group::with_memory(limit)?;
    let extra = Extra { asks: &storm, group: Some(group.path()), ..Extra::default() };
    let (outcome, figures) = fixture.outcome_with(&tactus, &scene, extra, &mut report)?;
    let (peak, killed) = (group.peak()?, group.killed()?);
    let resident = outcome.memory_peak;
    if let Some(run) = report.runs.last_mut() {
        run["group_peak"] = json!(peak.0);
        run["killed"] = json!(killed);
        run["resident_peak"] = json!(resident.map(|bytes| bytes.0));
    }
    let running = outcome.answers.iter().filter(|answer| answer.went_well()).count();
    let broke = outcome.answers.iter().filter(|answer| answer.broke()).count();
    let mut table = Table::new("memory", &["figure", "value"]);
    for (name, value) in [
        ("limit: arena + 64 MiB", limit.to_string()),
        ("most that the group held, page cache and kernel included", peak.to_string()),
        ("most that the server had resident", resident.map_or("-".into(), |r| r.to_string())),
        ("processes killed for memory", killed.to_string()),
        ("streams that run", running.to_string()),
        ("streams that broke", broke.to_string()),
        ("underruns", figures.underruns.to_string()),
    ] {
        table.row(vec![name.into(), value]);
    }
    report.tables.push(table);
    let bounded = killed == 0 && resident.is_none_or(|resident| resident <= limit);
    report.verdicts.push(Verdict {
        figure: "memory bounded by configuration".into(),
        measured: format!("{} resident, {killed} killed", resident.unwrap_or_default()),
        must: format!("<= {limit}, none killed"),
        reached: Some(bounded && running > 0 && broke == 0),
        push: "-".into(),
        pushed: None,
    });
    Ok(report)
}
