//! The server is killed, again and again, at any moment of its work.
//!
//! Promise: nothing of the kernel is lost, so everything acknowledged must be there, the next start
//! must be quick, and no room may be kept for nothing. Each restart goes on with what the last one
//! left: damage adds up and shows.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use tactus_core::units::{Nanos, SECOND};

use super::history::History;
use super::recorder::Recorder;
use super::server::{Program, QUOTA, Server};
use super::subject::{ClientLoad, Load, audit, delete_uploaded, deliver, look, titles};
use crate::benches::say;
use crate::random::Random;
use crate::{clock, interrupt};

/// What is to be done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) kills: u64,
    /// It must be ready again within so much.
    pub(super) ready: Duration,
    pub(super) seed: u64,
}

/// What came out.
#[derive(Clone, Debug, Default)]
pub(super) struct Killed {
    pub(super) kills: u64,
    pub(super) acks: u64,
    pub(super) deliveries: u64,
    /// From its start to its first word, each time.
    pub(super) ready: Vec<Duration>,
}

/// The server lives so long at most.
const LIFE_MAX: Nanos = SECOND.times(2);
/// Who uploads.
const CLIENTS: usize = 3;
/// Who is delivered to.
const RECEIVERS: usize = 2;
/// More than anybody does in two seconds.
const ENDLESS: ClientLoad = ClientLoad { titles: 100_000, uploads: 100_000 };
/// How long the server keeps an upload, the shortest that it can be told: nobody can end those
/// whose creation was not answered.
const EXPIRY: Nanos = SECOND.times(60);
/// Until it is surely gone when the server starts: a second more, and what the last one lived on.
const EXPIRED: Duration = Duration::from_secs(65);
const SAY_EVERY: u64 = 50;

/// Kills the server at `binary` on a volume at `root`.
pub(super) fn run(binary: &Path, root: &Path, plan: Plan) -> Result<Killed> {
    let Plan { kills, ready: ready_max, seed } = plan;
    let binary = binary.to_owned();
    let program = Program { binary, wrong: None, expiry: EXPIRY, local: false, quota: QUOTA };
    let mut random = Random::new(seed);
    let mut history = History::default();
    let mut untold = VecDeque::new();
    let mut position = 0;
    let mut outcome = Killed::default();
    let mut server = program.start(root)?;
    for number in 1..=kills {
        interrupt::check()?;
        let untold_before = history.untold();
        let recorder = Recorder::of_questions(std::mem::take(&mut history), position);
        let life = Nanos(random.next() % LIFE_MAX.0);
        outcome.deliveries += live(&mut server, life, &recorder, &mut random)?;
        position = recorder.now()?;
        history = recorder.into_history();
        outcome.acks += history.acks().len() as u64;
        untold.push_back((Instant::now(), history.untold() - untold_before));
        let gone = |(asked, _): &mut (Instant, usize)| asked.elapsed() > EXPIRED;
        while let Some((_, count)) = untold.pop_front_if(gone) {
            history.expired(count);
        }
        let started = Instant::now();
        server = program.start(root).with_context(|| format!("after kill {number}"))?;
        let ready = started.elapsed();
        let starved = server.starved()?;
        ensure!(
            ready.saturating_sub(starved) <= ready_max,
            "ready {ready:?} after kill {number}, {starved:?} without a processor"
        );
        outcome.ready.push(ready);
        // Uploads are finished now and then, and go on otherwise.
        let finish = number.is_multiple_of(4);
        let mut found = look(&server, root, &history, finish)?;
        let wrong = history.judge(position, &found).sentences();
        ensure!(wrong.is_empty(), "kill {number}, seed {seed}:\n  {}", wrong.join("\n  "));
        // Asking for an upload that is complete gives it its name, if the kill has not let it.
        found.titles = titles(root)?;
        history.settle(position, &found);
        history.finish(position, finish);
        audit(&server, root, &history).with_context(|| format!("kill {number}, seed {seed}"))?;
        delete_uploaded(&server, &found, &mut history)?;
        outcome.kills = number;
        if number.is_multiple_of(SAY_EVERY) {
            let Killed { acks, deliveries, .. } = outcome;
            say(&format!("{number} kills, {acks} acknowledgements, {deliveries} deliveries"));
        }
    }
    Ok(outcome)
}

/// Works with the server for `life`, then kills it; answers how many titles it has delivered.
fn live(
    server: &mut Server,
    life: Nanos,
    recorder: &Recorder<'_>,
    random: &mut Random,
) -> Result<u64> {
    let load = |number| {
        let mut load = Load::new(number, server.client(), recorder, random.next());
        load.tolerant = true;
        load
    };
    let loads: Vec<_> = (0..CLIENTS).map(load).collect();
    let receivers: Vec<_> = (0..RECEIVERS).map(|_| (server.client(), random.next())).collect();
    std::thread::scope(|scope| {
        let loads: Vec<_> =
            loads.into_iter().map(|mut load| scope.spawn(move || load.work(ENDLESS))).collect();
        let receive = |(client, seed)| scope.spawn(move || deliver(client, CLIENTS, seed));
        let receivers: Vec<_> = receivers.into_iter().map(receive).collect();
        clock::sleep(life);
        server.kill().context("before it was killed")?;
        for load in loads {
            load.join().map_err(|_| anyhow!("a client panicked"))??;
        }
        let mut delivered = 0;
        for receiver in receivers {
            delivered += receiver.join().map_err(|_| anyhow!("a receiver panicked"))??;
        }
        Ok(delivered)
    })
}
