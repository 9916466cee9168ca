//! `tactus completions` and `tactus man`: what packages install beside the binary.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap_complete::Shell;

use super::Failure;

/// Prints the completions for a shell
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  tactus completions bash > /usr/share/bash-completion/completions/tactus
  tactus completions zsh  > ~/.zfunc/_tactus
  tactus completions fish > ~/.config/fish/completions/tactus.fish")]
pub(super) struct Completions {
    /// Which shell
    shell: Shell,
}

/// Writes the manual pages
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  tactus man | man -l -               read the first page
  tactus man /usr/share/man/man1      write all pages: tactus.1, tactus-serve.1, ...")]
pub(super) struct Man {
    /// Where to; without it the first page is printed
    dir: Option<PathBuf>,
}

impl Completions {
    pub(super) fn run(self, command: &mut clap::Command) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, command, "tactus", &mut script);
        print(&script)
    }
}

impl Man {
    pub(super) fn run(self, command: clap::Command) -> Result<(), Failure> {
        let Some(dir) = self.dir else {
            let mut page = Vec::new();
            clap_mangen::Man::new(command).render(&mut page).context("cannot write the page")?;
            return print(&page);
        };
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        clap_mangen::generate_to(command, &dir)
            .with_context(|| format!("cannot write to {}", dir.display()))?;
        Ok(())
    }
}

/// A reader that has seen enough (`| head`) is no failure.
fn print(bytes: &[u8]) -> Result<(), Failure> {
    match io::stdout().write_all(bytes) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(anyhow::Error::new(error).into())
        }
        _ => Ok(()),
    }
}
