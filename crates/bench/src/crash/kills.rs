//! The server is killed, again and again, at any moment of its work.
//!
//! Promise: nothing of the kernel is lost, so everything acknowledged must be there, and the next
//! start must be quick. In the end nothing is reserved for nobody. Each restart goes on with what the last one left: damage adds up and shows.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use tactus_core::units::{Nanos, SECOND};

use super::history::History;
use super::recorder::Recorder;
use super::server::Server;
use super::subject::{Acts, Load, delete_uploaded, fill_quota, look, titles};
use crate::benches::say;
use crate::random::Random;
use crate::{clock, interrupt};

/// What came out.
#[derive(Clone, Debug, Default)]
pub(super) struct Killed {
    pub(super) kills: u64,
    pub(super) acks: u64,
    pub(super) ready_max: Duration,
}

/// The server lives so long at most.
const LIFE_MAX: Nanos = SECOND.times(2);
/// It must be ready again within so much.
const READY: Duration = Duration::from_secs(2);
const CLIENTS: usize = 3;
/// More than anybody does in two seconds.
const ENDLESS: Acts = Acts { titles: 100_000, uploads: 100_000 };
const SAY_EVERY: u64 = 50;

/// Kills the server at `binary` so many times on a volume at `root`.
pub(super) fn run(binary: &Path, root: &Path, kills: u64, seed: u64) -> Result<Killed> {
    let mut random = Random::new(seed);
    let mut history = History::default();
    let mut position = 0;
    let mut outcome = Killed::default();
    let mut server = Server::start(binary, root)?;
    for number in 1..=kills {
        interrupt::check()?;
        let recorder = Recorder::of_questions(std::mem::take(&mut history), position);
        let life = Nanos(random.next() % LIFE_MAX.0);
        std::thread::scope(|scope| -> Result<()> {
            let work = |number| {
                let mut load = Load::new(number, server.client(), &recorder, random.next());
                load.tolerant = true;
                scope.spawn(move || load.work(ENDLESS))
            };
            let workers: Vec<_> = (0..CLIENTS).map(work).collect();
            clock::sleep(life);
            server.kill().context("before it was killed")?;
            for worker in workers {
                worker.join().map_err(|_| anyhow!("a client panicked"))??;
            }
            Ok(())
        })?;
        position = recorder.now()?;
        history = recorder.into_history();
        outcome.acks += history.acks().len() as u64;
        let started = Instant::now();
        server = Server::start(binary, root).with_context(|| format!("after kill {number}"))?;
        let ready = started.elapsed();
        outcome.ready_max = outcome.ready_max.max(ready);
        ensure!(ready <= READY, "ready {ready:?} after kill {number}");
        // Uploads are finished now and then, and go on otherwise.
        let finish = number.is_multiple_of(4);
        let mut found = look(&server, root, &history, finish)?;
        let wrong = history.judge(position, &found).sentences();
        ensure!(wrong.is_empty(), "kill {number}, seed {seed}:\n  {}", wrong.join("\n  "));
        // Asking for an upload that is complete gives it its name, if the kill has not let it.
        found.titles = titles(root)?;
        history.settle(position, &found);
        history.finish(position, finish);
        delete_uploaded(&server, &found, &mut history)?;
        outcome.kills = number;
        if number.is_multiple_of(SAY_EVERY) {
            say(&format!("{number} kills, {} acknowledgements", outcome.acks));
        }
    }
    fill_quota(&server, root, &history)?;
    Ok(outcome)
}
