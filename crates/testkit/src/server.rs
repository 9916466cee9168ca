//! `tactus serve` as a process.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::process::Process;

/// `program serve`, which keeps its state in `directory/state`. Its standard output is read by
/// [`start`].
#[must_use]
pub fn serve(program: &str, directory: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg("serve");
    keep_state(&mut command, directory);
    command
}

/// Lets a server that is started by `command` keep its state in `directory/state`.
pub fn keep_state<'a>(command: &'a mut Command, directory: &Path) -> &'a mut Command {
    command.env("XDG_STATE_HOME", directory.join("state")).env_remove("STATE_DIRECTORY")
}

/// A configuration in `directory` by which a server takes little memory: a start clears all that it
/// takes, which is most of the time of a short test.
///
/// # Panics
///
/// If it cannot be written.
#[must_use]
pub fn little_memory(directory: &Path) -> PathBuf {
    let file = directory.join("little-memory.toml");
    fs::write(&file, "[memory]\narena = \"64 MiB\"\n").expect("a configuration");
    file
}

/// Starts a server and returns its output up to the line with which `is_all` holds. `follow` gets
/// the later lines. Its standard error goes to the end of the file `log`, if there is one.
///
/// # Panics
///
/// If the server ends before that line; the message has the log.
pub fn start(
    command: &mut Command,
    log: Option<&Path>,
    is_all: impl Fn(&[String]) -> bool,
    follow: impl FnMut(String) + Send + 'static,
) -> (Process, Vec<String>) {
    if let Some(log) = log {
        let file = File::options().create(true).append(true).open(log);
        command.stderr(file.expect("a log"));
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut process = Process(command.spawn().expect("the server starts"));
    let output = process.0.stdout.take().expect("a pipe");
    let mut lines = BufReader::new(output).lines().map_while(Result::ok);
    let mut said = Vec::new();
    while !is_all(&said) {
        let Some(line) = lines.next() else {
            let log = log.and_then(|log| fs::read_to_string(log).ok()).unwrap_or_default();
            panic!("the server does not start: {said:?}\n{log}");
        };
        said.push(line);
    }
    std::thread::spawn(move || lines.for_each(follow));
    (process, said)
}

/// Holds when the last line begins with `first`.
pub fn until(first: &str) -> impl Fn(&[String]) -> bool {
    move |said| said.last().is_some_and(|line| line.trim_start().starts_with(first))
}

/// The `HOST:PORT` behind `scheme` in a line that begins with `first`.
#[must_use]
pub fn address<'a>(said: &'a [String], first: &str, scheme: &str) -> Option<&'a str> {
    let lines = said.iter().filter(|line| line.starts_with(first));
    let mut urls = lines.filter_map(|line| Some(line.split_once(scheme)?.1));
    urls.next()?.split(['/', ' ']).next()
}
