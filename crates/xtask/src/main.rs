//! The project's own tasks: what a person or a CI machine runs on the source tree.
//!
//! Promise: `cargo xtask ci` is the whole gate, in one command, and each of its steps can be run
//! alone under its own name. Tasks that need a program which is missing install it when they may,
//! and otherwise name it. Nothing here is linked into the server.
#![forbid(unsafe_code)]

mod workspace;

mod step;

mod apart;
mod host;

mod bench;
mod clients;
mod crash;
mod deny;
mod dist;
mod mediamtx;
mod suite;
mod tidy;
mod txtime;

mod ci;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use workspace::Workspace;

/// Tasks of the Tactus source tree.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// The whole gate: sets up what it needs, then runs every step and prints a table of times
    Ci {
        /// For each commit, in ten minutes: format, lints, unit tests, tests of the engine, worlds
        #[arg(long)]
        quick: bool,
    },
    /// Installs the programs that the tests play against, or names what is missing
    Setup,
    /// Formatting, as rustfmt.toml says
    Fmt,
    /// Lints of all targets, warnings are errors
    Clippy,
    /// Rules of the house: layers, unsafe, file heads, links, rows with a test
    Tidy,
    /// Everything, debug profile
    Build,
    /// Unit and integration tests
    Test,
    /// All interleavings of the rings and the arena
    Loom,
    /// Worlds of the simulator: those that once broke a promise, and fresh ones
    Sim {
        /// How many fresh ones; without it as many as the gate
        #[arg(long)]
        worlds: Option<u32>,
    },
    /// Deliberate mistakes, nine of ten of which the simulator must find
    Mutants,
    /// Power failures at a thousand points of what was written, on each file system
    Crash {
        /// Other arguments, as `tactus-bench crash --help` lists them; without any what the gate
        /// does
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// The documentation, warnings are errors
    Doc,
    /// Licences, bans and sources of all dependencies, and advisories where they can be fetched
    Deny,
    /// Builds for release and packs an archive: target/dist/tactus-VERSION-MACHINE.tar.gz
    Dist,
    /// Datagrams with times, on a kernel that keeps them, in an emulated machine
    Txtime,
    /// Builds the server and the bench for release and runs the bench
    Bench {
        /// Name of the bench and its arguments, as `tactus-bench --help` lists them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        arguments: Vec<String>,
    },
}

fn main() -> ExitCode {
    let result = Workspace::find().and_then(|workspace| match Arguments::parse().task {
        Task::Ci { quick } => {
            let workspace = Workspace { unattended: true, ..workspace };
            if quick { ci::run_quick(&workspace) } else { ci::run_all(&workspace) }
        }
        Task::Setup => ci::run_one(&workspace, "setup"),
        Task::Fmt => ci::run_one(&workspace, "fmt"),
        Task::Clippy => ci::run_one(&workspace, "clippy"),
        Task::Tidy => ci::run_one(&workspace, "tidy"),
        Task::Build => ci::run_one(&workspace, "build"),
        Task::Test => ci::run_one(&workspace, "test"),
        Task::Loom => ci::run_one(&workspace, "loom"),
        Task::Sim { worlds: None } => ci::run_one(&workspace, "sim"),
        Task::Sim { worlds: Some(worlds) } => ci::simulate_worlds(&workspace, worlds),
        Task::Mutants => ci::run_one(&workspace, "mutants"),
        Task::Crash { arguments } if arguments.is_empty() => crash::check(&workspace).map(drop),
        Task::Crash { arguments } => crash::run_crash(&workspace, &arguments),
        Task::Doc => ci::run_one(&workspace, "doc"),
        Task::Deny => ci::run_one(&workspace, "deny"),
        Task::Dist => dist::run_dist(&workspace),
        Task::Txtime => txtime::run_txtime(&workspace),
        Task::Bench { arguments } => bench::run_bench(&workspace, &arguments),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
