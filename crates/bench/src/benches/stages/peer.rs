//! Request and response by iceoryx2: a program by itself (`crates/bench/peers/iceoryx2`), because
//! its build needs more than that of the bench.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

use super::ways::Sample;
use super::{CORE, SERVER_CORE};

/// The running program.
pub(super) struct Peer {
    process: Child,
    asked: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts `program`, whose server reads from `title`.
    pub(super) fn start(program: &Path, title: &Path) -> Result<Self> {
        let mut command = Command::new(program);
        command.arg(title).args([CORE.to_string(), SERVER_CORE.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().with_context(|| program.display().to_string())?;
        let asked = process.stdin.take().context("its input")?;
        let answers = BufReader::new(process.stdout.take().context("its output")?);
        Ok(Self { process, asked, answers })
    }

    /// Has it read parts of `size` for `span`.
    pub(super) fn measure(&mut self, size: u64, span: Duration) -> Result<Sample> {
        writeln!(self.asked, "{size} {}", span.as_millis())?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        let mut words = line.split_whitespace();
        let mut next = || words.next().context("the peer has ended");
        Ok(Sample {
            p50: next()?.parse()?,
            p999: next()?.parse()?,
            cpu: next()?.parse()?,
            requests: next()?.parse()?,
        })
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}
