//! admission: a full server is asked for a thousand streams more.
//!
//! Promise: the time from opening a connection to the complete head of the refusal, and the
//! lateness of the running streams before and during the storm. The server has both cores, as it
//! has by default on such a machine: its real-time side core 0, its control side core 1.

use anyhow::{Result, ensure};
use serde_json::json;
use tactus_core::units::{BitRate, Nanos, SECOND};

use super::{Fixture, say};
use crate::arrivals::Trace;
use crate::figures::windows::Span;
use crate::machine;
use crate::peers::{Peer, Tactus, Tuning};
use crate::phase;
use crate::receiver::{Answer, PlannedRequest};
use crate::report::{Report, Table, Verdict, number, spread};
use crate::run::{Extra, Scene};
use crate::spread;
use crate::titles::Titles;

const RATE: BitRate = BitRate(8_800_000);
const TITLES: usize = 200;
/// Asked for before the measured span, to fill the server: more than it can take.
const FILL: usize = 1_200;
const FILL_TIME: Nanos = SECOND.times(12);
/// For all admitted streams to begin.
const WARM_UP: Nanos = SECOND.times(8);
/// The storm.
const STORM: usize = 1_000;
const STORM_TIME: Nanos = SECOND.times(4);
const ROUNDS: usize = 3;

/// Runs it.
pub(super) fn bench(fixture: &Fixture) -> Result<Report> {
    let question =
        "a full server gets 1,000 requests more: how fast does it refuse, and who notices?";
    let mut report = fixture.report("admission", question);
    let before = fixture.seconds(20);
    let length = before + STORM_TIME + SECOND;
    let titles = Titles::lay(
        &fixture.options.data.join("cold"),
        TITLES,
        Scene::title_size(RATE, FILL_TIME, WARM_UP, length),
    )?;
    report.settings.push(("disk".into(), machine::storage(titles.root())));
    let scene = Scene {
        stagger: FILL_TIME,
        warm_up: WARM_UP,
        length,
        server_cores: "0-1",
        ..fixture.scene(&titles, RATE, FILL)
    };
    let tick = Some(Nanos::from_micros(62_500));
    let tactus =
        Tactus { label: "tick 62.5 ms".into(), tuning: Tuning { tick, ..Tuning::default() } };
    report.settings.push((tactus.name(), tactus.settings(&scene.setting())?));
    let storm_from = scene.stagger + scene.warm_up + before;
    let step = Nanos(STORM_TIME.0 / STORM as u64);
    let storm: Vec<PlannedRequest> = (0..STORM)
        .map(|place| {
            let target = tactus.target(&titles, place % TITLES, RATE);
            PlannedRequest::get(storm_from + step.times(place as u64), &target)
        })
        .collect();
    let mut rounds = Rounds::default();
    for round in 0..fixture.rounds(ROUNDS) {
        say(&format!("round {}: fill, then {STORM} requests more", round + 1));
        let extra = Extra { asks: &storm, ..Extra::default() };
        let (outcome, _) = fixture.outcome_with(&tactus, &scene, extra, &mut report)?;
        let streams = outcome.traces.iter().zip(&outcome.answers);
        let running: Vec<Trace> = streams
            .filter(|(_, answer)| answer.went_well())
            .map(|(trace, _)| trace.clone())
            .collect();
        ensure!(!running.is_empty(), "no stream was admitted: {:?}", outcome.reasons());
        let whole = outcome.measured;
        let border = whole.from + before;
        let calm = Span { from: whole.from, to: border };
        let busy = Span { from: border, to: whole.to };
        let gaps = if fixture.options.accept_noise { &[] } else { &outcome.gaps[..] };
        let calm = phase::of(&running, RATE, whole, calm, gaps)?;
        let busy = phase::of(&running, RATE, whole, busy, gaps)?;
        let refused: Vec<f64> = outcome.extra_answers.iter().filter_map(refusal_millis).collect();
        if let Some(run) = report.runs.last_mut() {
            run["calm"] = json!(calm);
            run["storm"] = json!(busy);
            run["refused"] = json!(refused.len());
        }
        rounds.admitted.push(running.len() as f64);
        rounds.refused.push(refused.len() as f64);
        rounds.p50.extend(spread::quantile(&mut refused.clone(), 0.5));
        rounds.p99.extend(spread::quantile(&mut refused.clone(), 0.99));
        rounds.late_calm.push(calm.late_p99);
        rounds.late_storm.push(busy.late_p99);
    }
    rounds.summarise(&mut report);
    report.method.push(format!(
        "{FILL} requests over {FILL_TIME} fill the server; those that it admits run on. After \
         {before} {STORM} more come within {STORM_TIME}, each on a connection of its own. A \
         refusal's time runs from the opening of the connection to its complete head."
    ));
    Ok(report)
}

/// From opening the connection to the complete head, if the answer was 503.
fn refusal_millis(answer: &Answer) -> Option<f64> {
    let head_at = answer.head_at.filter(|_| answer.status == Some(503))?;
    Some(head_at.since(answer.opened_at).0 as f64 / 1e6)
}

/// One value per round.
#[derive(Default)]
struct Rounds {
    admitted: Vec<f64>,
    refused: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
    late_calm: Vec<f64>,
    late_storm: Vec<f64>,
}

impl Rounds {
    fn summarise(&self, report: &mut Report) {
        let changes: Vec<f64> = (self.late_calm.iter().zip(&self.late_storm))
            .map(|(calm, storm)| (storm / calm - 1.0) * 100.0)
            .collect();
        let mut table = Table::new("admission", &["figure", "value"]);
        for (name, values) in [
            ("streams admitted", &self.admitted),
            ("of the storm refused with 503", &self.refused),
            ("refusal p50, ms", &self.p50),
            ("refusal p99, ms", &self.p99),
            ("lateness p99 before, ms", &self.late_calm),
            ("lateness p99 during, ms", &self.late_storm),
            ("change of lateness p99, %", &changes),
        ] {
            table.row(vec![name.into(), spread(values)]);
        }
        report.tables.push(table);
        let most = |values: &[f64]| spread::Spread::of(values).map(|all| all.max);
        report.verdicts = vec![
            Verdict {
                figure: "refusal p99, ms".into(),
                measured: spread(&self.p99),
                must: "50".into(),
                reached: most(&self.p99).map(|most| most <= 50.0),
                push: "-".into(),
                pushed: None,
            },
            Verdict {
                figure: "change of the running streams' lateness p99, %".into(),
                measured: spread(&changes),
                must: format!("< {}", number(10.0)),
                reached: most(&changes).map(|most| most < 10.0),
                push: "0".into(),
                pushed: most(&changes).map(|most| most <= 0.0),
            },
        ];
    }
}
