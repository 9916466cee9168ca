//! The command line of `tactus-sim`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use tactus_core::units::{Nanos, SECOND};

use crate::campaign::{self, Campaign, CampaignResult};
use crate::large::LargeMachine;
use crate::packets::{self, Search};
use crate::run::{Scenario, run_twice};
use crate::speed::{self, Speed};
use crate::swarm::Mode;
use crate::world::Outcome;

/// Runs the engine of Tactus in simulated worlds, and looks for promises that it breaks.
#[derive(Parser, Debug)]
#[command(name = "tactus-sim")]
struct Arguments {
    /// Run this seed only, and print what happened.
    #[arg(long)]
    seed: Option<u64>,
    /// Simulated seconds of each world; the seed decides otherwise.
    #[arg(long, alias = "ticks")]
    duration: Option<u64>,
    /// What is promised; the seed decides otherwise.
    #[arg(long)]
    mode: Option<Mode>,
    /// Run fresh seeds for so many seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// First of the fresh seeds; by default taken from the clock.
    #[arg(long)]
    from: Option<u64>,
    /// Most fresh seeds.
    #[arg(long, default_value_t = u64::MAX)]
    seeds: u64,
    /// Threads; as many as there are cores otherwise.
    #[arg(long)]
    threads: Option<usize>,
    /// Go on after a failure, and list all.
    #[arg(long)]
    keep_going: bool,
    /// Worlds of packets, paced by classes, instead of worlds of disks.
    #[arg(long)]
    packets: bool,
    /// Measure how fast a hundred streams run for an hour.
    #[arg(long)]
    bench: bool,
    /// A machine of 64 cores, 8 disks, 4 delivery and 4 link servers, all of which move at random,
    /// and 20,000 streams, for `--duration` seconds, 600 by default: how long it takes, and the
    /// first byte that is late.
    #[arg(long)]
    large: bool,
    /// Streams of `--large`.
    #[arg(long, requires = "large")]
    streams: Option<u64>,
    /// Switch deliberate mistakes on, one after the other, for at most `--seconds` each; only that
    /// of `--with`, where it is named.
    #[cfg(feature = "mutants")]
    #[arg(long)]
    mutants: bool,
    /// Switch this deliberate mistake on, to see how a seed tells it.
    #[cfg(feature = "mutants")]
    #[arg(long, value_parser = mutant)]
    with: Option<tactus_core::mutant::Mutant>,
    /// Print every seed with its trace hash.
    #[arg(long)]
    verbose: bool,
}

impl Arguments {
    fn threads(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.unwrap_or_else(cores)
    }
}

/// Does what the command line says.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let template = Scenario {
        seed: 0,
        mode: arguments.mode,
        duration: arguments.duration.map(|seconds| SECOND.times(seconds)),
    };
    #[cfg(feature = "mutants")]
    if arguments.mutants {
        return mutants(&arguments);
    }
    #[cfg(feature = "mutants")]
    tactus_core::mutant::switch_on(arguments.with);
    if arguments.bench {
        return bench(template.duration.unwrap_or(SECOND.times(3600)));
    }
    if arguments.packets {
        return packets(&arguments);
    }
    if arguments.large {
        return large(&arguments);
    }
    match arguments.seed {
        Some(seed) => one(Scenario { seed, ..template }),
        None => many(&arguments, template),
    }
}

fn one(scenario: Scenario) -> ExitCode {
    println!("{:#?}", scenario.swarm().summary());
    match run_twice(scenario) {
        Ok(outcome) => {
            println!("{:#?}", outcome.tally);
            print_seed(scenario, &outcome);
            ExitCode::SUCCESS
        }
        Err(violation) => {
            println!("seed {} broke {violation}", scenario.seed);
            ExitCode::FAILURE
        }
    }
}

fn bench(duration: Nanos) -> ExitCode {
    let speed = match speed::measure(duration) {
        Ok(speed) => speed,
        Err(violation) => {
            println!("the swarm of the speed run broke {violation}");
            return ExitCode::FAILURE;
        }
    };
    let Speed { outcome, wall, busy } = speed;
    let simulated = duration.0 as f64 / SECOND.0 as f64;
    let tally = outcome.tally;
    println!(
        "{} streams for {simulated} s: {} turns, {} sends, {} MB, {} underruns",
        speed::STREAMS,
        tally.turns,
        tally.sends,
        tally.bytes / 1_000_000,
        tally.underruns,
    );
    for (name, took) in [("on the wall", Some(wall)), ("of one core", busy)] {
        if let Some(took) = took.map(|took| took.as_secs_f64()) {
            let ratio = simulated / took;
            println!("{took:.2} s {name}: {ratio:.0} times as fast as real time (bar: 1000)");
        }
    }
    ExitCode::SUCCESS
}

fn large(arguments: &Arguments) -> ExitCode {
    let usual = LargeMachine::default();
    let machine = LargeMachine {
        seed: arguments.seed.unwrap_or(usual.seed),
        streams: arguments.streams.unwrap_or(usual.streams),
        seconds: arguments.duration.unwrap_or(usual.seconds),
        ..usual
    };
    let Speed { outcome, wall, busy } = match machine.measure() {
        Ok(speed) => speed,
        Err(violation) => {
            println!("{machine:?} broke {violation}");
            return ExitCode::FAILURE;
        }
    };
    let tally = outcome.tally;
    println!(
        "{} cores, {} disks, {} delivery and {} link servers for {} s: {} streams at most, {} \
         moves, {} sends, {} GB, {} MB of uploads, {} titles to their end, {} refused, {} \
         underruns, no late byte",
        machine.cores,
        machine.volumes,
        machine.deliveries,
        machine.links,
        machine.seconds,
        tally.streams_max,
        tally.moves,
        tally.sends,
        tally.bytes / 1_000_000_000,
        tally.written / 1_000_000,
        tally.completed,
        tally.refused,
        tally.underruns,
    );
    for (name, took) in [("on the wall", Some(wall)), ("of one core", busy)] {
        if let Some(took) = took {
            println!("{:.0} s {name}", took.as_secs_f64());
        }
    }
    ExitCode::SUCCESS
}

/// A mistake by its name.
#[cfg(feature = "mutants")]
fn mutant(name: &str) -> Result<tactus_core::mutant::Mutant, String> {
    use tactus_core::mutant::Mutant;

    let of_packets = Mutant::OF_THE_PACER.into_iter().chain(Mutant::OF_DATAGRAMS);
    let mut all = Mutant::ALL.into_iter().chain(of_packets);
    all.find(|mutant| format!("{mutant:?}") == name).ok_or_else(|| format!("no mutant {name}"))
}

/// Mutants that must be found: nine of ten.
#[cfg(feature = "mutants")]
fn mutants(arguments: &Arguments) -> ExitCode {
    use crate::hunt;
    use tactus_core::mutant::Mutant;

    let lasts = Duration::from_secs(arguments.seconds);
    let threads = arguments.threads();
    let wanted = |mutant: &Mutant| arguments.with.is_none_or(|with| with == *mutant);
    let of = |all: &'static [Mutant]| all.iter().copied().filter(wanted);
    let disks = of(&Mutant::ALL).map(|mutant| hunt::hunt(mutant, lasts, threads));
    let packets =
        of(&Mutant::OF_THE_PACER).map(|mutant| hunt::hunt_packets(mutant, lasts, threads));
    let datagrams =
        of(&Mutant::OF_DATAGRAMS).map(|mutant| hunt::hunt_datagrams(mutant, lasts, threads));
    let hunts: Vec<_> = disks.chain(packets).chain(datagrams).collect();
    let found = hunts.iter().filter(|hunted| hunted.found.is_some()).count();
    print!("{}", hunt::table(&hunts));
    println!("{found} of {} found", hunts.len());
    if found * 10 >= hunts.len() * 9 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn packets(arguments: &Arguments) -> ExitCode {
    let first = arguments.seed.or(arguments.from).unwrap_or_else(seed_of_the_clock);
    let search = Search {
        first,
        seeds_max: if arguments.seed.is_some() { 1 } else { arguments.seeds },
        lasts: Duration::from_secs(arguments.seconds),
        threads: arguments.threads(),
    };
    println!("worlds of packets from seed {first} on");
    let found = packets::search(&search);
    println!(
        "{} worlds, each twice: {} packets of {} streams in {:.1} s simulated; {:.2} operations \
         for each packet",
        found.worlds,
        found.tally.packets,
        found.tally.streams,
        found.tally.simulated.0 as f64 / SECOND.0 as f64,
        found.tally.steps as f64 / found.tally.packets.max(1) as f64,
    );
    let Some((seed, violation)) = found.failure else { return ExitCode::SUCCESS };
    println!("\nseed {seed} broke {violation}");
    println!("  again: cargo run --release -p tactus-sim -- --packets --seed {seed}");
    ExitCode::FAILURE
}

fn many(arguments: &Arguments, template: Scenario) -> ExitCode {
    let campaign = Campaign {
        first: arguments.from.unwrap_or_else(seed_of_the_clock),
        among: None,
        template,
        lasts: Duration::from_secs(arguments.seconds),
        seeds_max: arguments.seeds,
        runs: 2,
        stop_at_first: !arguments.keep_going,
        threads: arguments.threads(),
    };
    println!("seeds from {} on, for {} s", campaign.first, arguments.seconds);
    let found = campaign::run(&campaign, &|scenario, outcome| {
        if arguments.verbose {
            print_seed(scenario, outcome);
        }
    });
    print_found(&found);
    if found.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn print_seed(scenario: Scenario, outcome: &Outcome) {
    println!("seed {} {:?} trace {:016x}", scenario.seed, scenario.mode(), outcome.trace);
}

fn print_found(found: &CampaignResult) {
    let tally = &found.tally;
    println!(
        "{} worlds, each twice: {} s simulated in {:.1} s; {} streams begun, {} refused, at most \
         {} at once; {} titles pinned, {} streams of them; {} GB in {} sends; {} servers moved, \
         {} of them by the balancer; {} underruns in worlds with faults; {} MB of uploads in {} \
         files, {} acknowledgements, {} failed, {} recordings; {} followed a growing title, {} a \
         plan; {} blocks damaged; {} datagrams; {} local programs, {} killed with requests under \
         way, {} broken off, {} reads, {} of them at promised moments, {} requests under way in a \
         move",
        found.worlds,
        tally.simulated.0 / SECOND.0,
        found.took.as_secs_f64(),
        tally.started,
        tally.refused,
        tally.streams_max,
        tally.pinned,
        tally.resident,
        tally.bytes / 1_000_000_000,
        tally.sends,
        tally.moves,
        tally.balanced,
        tally.underruns,
        tally.written / 1_000_000,
        tally.uploads,
        tally.acks,
        tally.uploads_failed,
        tally.recordings,
        tally.followers,
        tally.planned,
        tally.damaged,
        tally.datagrams,
        tally.programs,
        tally.killed,
        tally.broken_off,
        tally.reads,
        tally.moments,
        tally.carried,
    );
    for (scenario, violation) in &found.failures {
        println!("\nseed {} ({:?}) broke {violation}", scenario.seed, scenario.mode());
        println!("  again: {}", scenario.command());
    }
}

/// A seed from the clock.
fn seed_of_the_clock() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    // Six digits of microseconds and the minute: short enough to type.
    since.map_or(1, |since| (since.as_micros() % 1_000_000_000_000) as u64)
}
