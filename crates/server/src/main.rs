//! The program `tactus`: all of it is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    tactus::cli::main()
}
