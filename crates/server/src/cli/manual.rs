//! `tactus completions` and `tactus man`: files that packages install beside the binary.
//!
//! Promise: each command has a page in the form of man-pages(7). So has the configuration; its page
//! is generated from the sample file.

mod commands;
mod configuration;
mod roff;

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap_complete::Shell;

use super::{Failure, console};

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
  tactus man | man -l -                read the first page
  tactus man put | man -l -            read that of a command
  tactus man tactus.toml | man -l -    read that of the configuration
  tactus man /usr/share/man/man1       write all pages: tactus.1, tactus-serve.1, ...

The page of the configuration, tactus.toml.5, goes into man5 beside a directory called man1.")]
pub(super) struct Man {
    /// A command, tactus.toml, or a directory for all pages [default: print the page of tactus]
    #[arg(value_name = "PAGE|DIR")]
    what: Option<PathBuf>,
}

impl Completions {
    pub(super) fn run(self, command: &mut clap::Command) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, command, "tactus", &mut script);
        console::bytes(&script)
    }
}

impl Man {
    pub(super) fn run(self, command: clap::Command) -> Result<(), Failure> {
        let pages = pages(command);
        let what = self.what.unwrap_or_else(|| "tactus".into());
        let named = what.to_str().filter(|_| !what.is_dir()).unwrap_or_default();
        let is_named = |page: &&Page| {
            page.file
                .strip_suffix(".1")
                .or(page.file.strip_suffix(".5"))
                .is_some_and(|name| name == named || name.strip_prefix("tactus-") == Some(named))
        };
        if let Some(page) = pages.iter().find(is_named) {
            return console::bytes(page.text.as_bytes());
        }
        for page in pages {
            let dir = place(&what, &page.file);
            std::fs::create_dir_all(&dir)
                .with_context(|| format!("cannot make {}", dir.display()))?;
            let file = dir.join(&page.file);
            std::fs::write(&file, page.text)
                .with_context(|| format!("cannot write {}", file.display()))?;
        }
        Ok(())
    }
}

/// A page and its file name.
struct Page {
    file: String,
    text: String,
}

/// All pages.
fn pages(command: clap::Command) -> Vec<Page> {
    let mut pages = commands::pages(command);
    pages.push(configuration::page());
    pages
}

/// The path of a page: in the directory of its section, if `dir` is one of a section.
fn place(dir: &Path, file: &str) -> PathBuf {
    match (dir.file_name().and_then(|name| name.to_str()), dir.parent()) {
        (Some("man1"), Some(above)) if file.ends_with(".5") => above.join("man5"),
        _ => dir.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use std::process::Command;

    fn all() -> Vec<Page> {
        pages(super::super::Cli::command())
    }

    #[test]
    fn n05_every_page_has_the_sections_of_man_pages_7_in_their_order() {
        const ORDER: [&str; 9] = [
            "NAME",
            "SYNOPSIS",
            "DESCRIPTION",
            "OPTIONS",
            "EXIT STATUS",
            "ENVIRONMENT",
            "FILES",
            "EXAMPLES",
            "SEE ALSO",
        ];
        let pages = all();
        assert!(pages.len() >= 30, "subcommands have pages of their own: {}", pages.len());
        for Page { file, text } in &pages {
            let found: Vec<_> = text.lines().filter_map(|line| line.strip_prefix(".SH ")).collect();
            let found: Vec<_> = found.iter().map(|name| name.trim_matches('"')).collect();
            let places: Vec<_> = found
                .iter()
                .map(|name| ORDER.iter().position(|known| known == name))
                .collect::<Option<_>>()
                .unwrap_or_else(|| panic!("{file}: {found:?}"));
            assert!(places.is_sorted(), "{file}: {found:?}");
            for name in ["NAME", "SYNOPSIS", "DESCRIPTION", "SEE ALSO"] {
                assert!(found.contains(&name), "{file} has no {name}");
            }
        }
    }

    #[test]
    fn n05_a_synopsis_says_the_values() {
        let pages = all();
        let synopsis = |file: &str| {
            let page = pages.iter().find(|page| page.file == file).expect(file);
            let (_, rest) = page.text.split_once(".SH SYNOPSIS\n").unwrap();
            let text = rest.split(".SH").next().unwrap().replace("\\-", "-");
            ["\\fB", "\\fI", "\\fR"].iter().fold(text, |text, font| text.replace(font, ""))
        };
        let put = synopsis("tactus-put.1");
        assert!(put.contains("FILE... URL") && put.contains("[-w | --wait TIME]"), "{put}");
        assert!(synopsis("tactus-get.1").contains("[-o | --output FILE]"));
        assert!(synopsis("tactus-channel-add.1").contains("--to URL"));
        assert!(synopsis("tactus.toml.5").contains("--config"));
        let page = &pages.iter().find(|page| page.file == "tactus.toml.5").unwrap().text;
        for key in ["connections_max", "sendfile", "start_burst", "drain_limit"] {
            assert!(page.contains(&format!("\\fB{key}\\fR")), "{key}");
        }
    }

    #[test]
    fn n05_mandoc_reports_no_errors_in_the_pages() {
        let dir = tempfile::tempdir().unwrap();
        for Page { file, text } in all() {
            std::fs::write(dir.path().join(file), text).unwrap();
        }
        let files: Vec<_> =
            std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        let mut mandoc = Command::new("mandoc");
        let judged = mandoc.args(["-T", "lint", "-W", "warning"]).args(&files).output();
        let judged = judged.expect("mandoc is missing: cargo xtask setup");
        assert!(judged.status.success(), "{}", String::from_utf8_lossy(&judged.stdout));
    }

    #[test]
    fn n05_a_page_goes_to_the_directory_of_its_section() {
        assert_eq!(place(Path::new("/m/man1"), "tactus.toml.5"), Path::new("/m/man5"));
        assert_eq!(place(Path::new("/m/man1"), "tactus.1"), Path::new("/m/man1"));
        assert_eq!(place(Path::new("pages"), "tactus.toml.5"), Path::new("pages"));
    }
}
