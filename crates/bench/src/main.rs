//! The command line of the bench.

use anyhow::Result;
use clap::Parser;
use tactus_bench::benches::{self, Bench, Options};
use tactus_bench::interrupt;

/// Measures Tactus against its peers and against the limits of the machine.
#[derive(Parser)]
#[command(version, about)]
struct Cli {
    /// What to measure.
    bench: Bench,
    #[command(flatten)]
    options: Options,
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    interrupt::listen()?;
    benches::run_bench(cli.bench, cli.options)
}
