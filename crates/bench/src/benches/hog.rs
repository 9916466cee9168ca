//! hog: programs that never rest, on the core of the control side; and local-hog: programs that
//! read titles through shared memory without rest, and one that writes rubbish into its memory.
//!
//! Promise: 200 streams run before the programs start and while they run; both phases are judged
//! alike. The receiver shares the programs' core but not their class: it has SCHED_FIFO.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use serde_json::json;
use tactus_core::units::{BitRate, MonoTime, Nanos, SECOND};

use super::{Fixture, RECEIVER_CORE, say};
use crate::figures::windows::Span;
use crate::hogs::Hogs;
use crate::peers::{Peer, Tactus, Tuning};
use crate::phase::{self, Phase};
use crate::programs::{Programs, Work};
use crate::report::{Report, Verdict, number, spread};
use crate::run::{Extra, Scene};
use crate::titles::Titles;
use crate::{interrupt, machine};

const RATE: BitRate = BitRate(8_800_000);
const STREAMS: usize = 200;
const BEFORE: Nanos = SECOND.times(20);
const HOGS: usize = 2;
const ROUNDS: usize = 3;
/// What counts as unchanged: a tenth, or a hundredth of a percent point of J.
const CHANGE_MAX: f64 = 0.10;
const J_STEP: f64 = 0.01;

/// Programs that run beside the streams.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Company {
    /// They only compute.
    Hogs,
    /// Clients of the library.
    Programs,
}

impl Company {
    /// The folder of the titles, and their number. The titles of programs are in memory: the disk
    /// would add more noise to the sending core than the programs do.
    fn titles(self) -> (&'static str, usize) {
        match self {
            Self::Hogs => ("cold", STREAMS),
            Self::Programs => ("hot", 16),
        }
    }
}

/// Runs `hog`.
pub(super) fn bench(fixture: &Fixture) -> Result<Report> {
    let question = "do 200 streams notice a CPU hog on the control side's core?";
    bench_beside(fixture, Company::Hogs, fixture.report("hog", question))
}

/// Runs `local-hog`.
pub(super) fn bench_programs(fixture: &Fixture) -> Result<Report> {
    let question = "do 200 streams notice four local programs in tight loops, and a hostile one?";
    bench_beside(fixture, Company::Programs, fixture.report("local-hog", question))
}

fn bench_beside(fixture: &Fixture, company: Company, mut report: Report) -> Result<Report> {
    let burning = fixture.seconds(60);
    let length = BEFORE + burning;
    let (folder, count) = company.titles();
    let titles = Titles::lay(
        &fixture.options.data.join(folder),
        count,
        Scene::title_size(RATE, SECOND, SECOND.times(2), length),
    )?;
    report.settings.push(("disk".into(), machine::storage(titles.root())));
    let cold = company == Company::Hogs;
    let scene =
        Scene { length, cold, server_cores: "0-1", ..fixture.scene(&titles, RATE, STREAMS) };
    let tick = Some(Nanos::from_micros(62_500));
    let place = tempfile::Builder::new().prefix("tactus-bench-local-").tempdir()?;
    let socket = place.path().join("local.sock");
    let local = (company == Company::Programs).then(|| socket.clone());
    let tuning = Tuning { tick, local, ..Tuning::default() };
    let tactus = Tactus { label: "tick 62.5 ms".into(), tuning };
    report.settings.push((tactus.name(), tactus.settings(&scene.setting())?));
    let (mut calm, mut hogged, mut underruns) = (Vec::new(), Vec::new(), 0);
    for round in 0..fixture.rounds(ROUNDS) {
        say(&format!("round {}: {BEFORE} of peace, then {burning} beside the others", round + 1));
        let work = Mutex::new(None);
        let others = |from: MonoTime| {
            let (from, to) = (from + BEFORE, from + length);
            match company {
                Company::Hogs => burn(from, to),
                Company::Programs => {
                    let found = read_titles(from, to, &socket, titles.target(0))?;
                    work.lock().unwrap_or_else(PoisonError::into_inner).replace(found);
                    Ok(())
                }
            }
        };
        let extra = Extra { beside: Some(&others), ..Extra::default() };
        let (outcome, figures) = fixture.outcome_with(&tactus, &scene, extra, &mut report)?;
        let whole = outcome.measured;
        let border = whole.from + BEFORE;
        let gaps = if fixture.options.accept_noise { &[] } else { &outcome.gaps[..] };
        let judge = |from, to| phase::of(&outcome.traces, RATE, whole, Span { from, to }, gaps);
        let (before, during) = (judge(whole.from, border)?, judge(border, whole.to)?);
        if let Some(run) = report.runs.last_mut() {
            run["before"] = json!(before);
            run["during"] = json!(during);
        }
        if let Some(work) = work.into_inner().unwrap_or_else(PoisonError::into_inner) {
            report.note(format!("round {}: {work}", round + 1));
        }
        calm.push(before);
        hogged.push(during);
        underruns += figures.underruns + figures.streams_failed as u64;
    }
    summarise(&calm, &hogged, underruns, &mut report);
    Ok(report)
}

/// Burns the core of the control side from `from` to `to`.
fn burn(from: MonoTime, to: MonoTime) -> Result<()> {
    interrupt::sleep_until(from)?;
    let _hogs = Hogs::start(RECEIVER_CORE, HOGS)?;
    interrupt::sleep_until(to)
}

/// Lets programs read a title from `from` to `to`.
fn read_titles(from: MonoTime, to: MonoTime, socket: &Path, title: String) -> Result<Work> {
    interrupt::sleep_until(from)?;
    let programs = Programs::start(RECEIVER_CORE, socket, title)?;
    interrupt::sleep_until(to)?;
    Ok(programs.stop())
}

fn summarise(calm: &[Phase], hogged: &[Phase], underruns: u64, report: &mut Report) {
    report.tables.push(phase::table("beside the programs", [calm, hogged]));
    let j = |phases: &[Phase]| phases.iter().map(|phase| phase.j1s.mean).collect::<Vec<_>>();
    let unchanged = calm.iter().zip(hogged).all(|(before, during)| {
        let limit = (before.j1s.mean * (1.0 + CHANGE_MAX)).max(before.j1s.mean + J_STEP);
        during.j1s.mean <= limit
    });
    let tried = !calm.is_empty();
    report.verdicts = vec![
        Verdict {
            figure: "underruns and failed streams".into(),
            measured: number(underruns as f64),
            must: "0".into(),
            reached: tried.then_some(underruns == 0),
            push: "-".into(),
            pushed: None,
        },
        Verdict {
            figure: "J over 1 s beside the programs against before, %".into(),
            measured: format!("{} against {}", spread(&j(hogged)), spread(&j(calm))),
            must: "unchanged".into(),
            reached: tried.then_some(unchanged),
            push: "-".into(),
            pushed: None,
        },
    ];
}
