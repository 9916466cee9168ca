//! `tactus-sim`: the simulator's command line.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    tactus_sim::command::main()
}
