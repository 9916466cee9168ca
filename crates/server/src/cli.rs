//! The command line: commands, options, errors and exit codes.
//!
//! Promise: every error says what to do, and the exit code tells its kind. Each command has its own
//! file; this one only parses and dispatches.

mod adopt;
mod api;
mod channel;
mod check;
mod class;
mod client;
mod console;
mod demo;
mod doctor;
mod get;
mod ls;
mod manual;
mod measure;
mod mount;
mod nested;
mod pin;
mod place;
mod play;
mod probe;
mod progress;
mod put;
mod record;
mod recording;
mod reload;
mod rename;
mod retries;
mod serve;
mod server;
mod signals;
mod state;
mod status;
mod token;
mod upload_wait;
mod verify;
mod watch;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use tactus_config::LogForm;
use tracing_subscriber::EnvFilter;

use client::ClientError;

/// A constant-rate stream server
///
/// Tactus delivers titles over HTTP, RTSP, UDP and RTP, each stream at its exact rate, many at
/// once, and refuses what does not fit instead of slowing down what runs.
#[derive(Parser, Debug)]
#[command(
    name = "tactus",
    version,
    max_term_width = 100,
    after_help = "Examples:
  tactus demo                            look at it with sample titles
  tactus serve /srv/media                serve a directory on http://127.0.0.1:8080/
  tactus doctor /srv/media               see what the host could do better
  tactus get http://127.0.0.1:8080/a.ts  download a title at its rate
  tactus put a.ts http://127.0.0.1:8080/ upload it; goes on where it stopped

Exit codes: 0 done; 1 failed; 2 wrong arguments or configuration; 3 the server has no room.

Environment: TACTUS_LOG=warn|info|debug sets how much is logged to standard error."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Serve(serve::Serve),
    Demo(demo::Demo),
    Measure(measure::Measure),
    Ls(ls::Ls),
    Get(get::Get),
    Put(put::Put),
    Play(play::Play),
    Mount(mount::Mount),
    Record(record::Record),
    Recording(recording::Recording),
    Status(status::Status),
    Capacity(status::Capacity),
    Sessions(status::Sessions),
    Channel(Box<channel::Channel>),
    Class(class::Class),
    Pin(pin::Pin),
    Place(place::Place),
    Reload(reload::Reload),
    Rm(rename::Rm),
    Mv(rename::Mv),
    Verify(verify::Verify),
    Adopt(adopt::Adopt),
    Probe(probe::Probe),
    Index(probe::MakeIndex),
    Doctor(doctor::Doctor),
    Completions(manual::Completions),
    Man(manual::Man),
}

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The arguments or the configuration are wrong.
    Usage(String),
    /// A connection broke; trying again may help.
    Broken(anyhow::Error),
    /// The server has no room now.
    NoRoom(String),
    /// Something else went wrong.
    Failed(anyhow::Error),
    /// The error has been printed already.
    Shown,
    /// Errors of several files have been printed; the exit code.
    Several(u8),
}

impl Failure {
    fn usage(message: impl ToString) -> Self {
        Self::Usage(message.to_string())
    }

    fn code(&self) -> u8 {
        match self {
            Self::Failed(_) | Self::Broken(_) | Self::Shown => 1,
            Self::Usage(_) => 2,
            Self::NoRoom(_) => 3,
            Self::Several(code) => *code,
        }
    }

    /// Puts `name` in front of the message.
    fn about(self, name: &str) -> Self {
        match self {
            Self::Usage(message) => Self::Usage(format!("{name}: {message}")),
            Self::NoRoom(message) => Self::NoRoom(format!("{name}: {message}")),
            Self::Broken(error) => Self::Broken(anyhow::anyhow!("{name}: {error:#}")),
            Self::Failed(error) => Self::Failed(anyhow::anyhow!("{name}: {error:#}")),
            Self::Shown | Self::Several(_) => self,
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Usage(message) | Self::NoRoom(message) => f.write_str(message),
            Self::Failed(error) | Self::Broken(error) => write!(f, "{error:#}"),
            Self::Shown | Self::Several(_) => Ok(()),
        }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Url(_) => Self::usage(error),
            ClientError::Connect { .. } | ClientError::Broken(_) => Self::Broken(error.into()),
            ClientError::Answer(_) | ClientError::Tls { .. } | ClientError::Redirect(_) => {
                Self::Failed(error.into())
            }
        }
    }
}

/// Runs the command line.
pub fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Serve(serve) => serve.run(),
        Command::Demo(demo) => demo.run(),
        Command::Measure(measure) => measure.run(),
        Command::Ls(ls) => ls.run(),
        Command::Get(get) => get.run(),
        Command::Put(put) => put.run(),
        Command::Play(play) => play.run(),
        Command::Mount(mount) => mount.run(),
        Command::Record(record) => record.run(),
        Command::Recording(recording) => recording.run(),
        Command::Status(status) => status.run(),
        Command::Capacity(capacity) => capacity.run(),
        Command::Sessions(sessions) => sessions.run(),
        Command::Channel(channel) => channel.run(),
        Command::Class(class) => class.run(),
        Command::Pin(pin) => pin.run(),
        Command::Place(place) => place.run(),
        Command::Reload(reload) => reload.run(),
        Command::Rm(rm) => rm.run(),
        Command::Mv(mv) => mv.run(),
        Command::Verify(verify) => verify.run(),
        Command::Adopt(adopt) => adopt.run(),
        Command::Probe(probe) => probe.run(),
        Command::Index(index) => index.run(),
        Command::Doctor(doctor) => doctor.run(),
        Command::Completions(completions) => completions.run(&mut Cli::command()),
        Command::Man(man) => man.run(Cli::command()),
    };
    let Err(failure) = result else { return ExitCode::SUCCESS };
    match &failure {
        Failure::Shown | Failure::Several(_) => {}
        failure => console::notice(format_args!("tactus: {failure}")),
    }
    ExitCode::from(failure.code())
}

/// Logs go to standard error, where the journal collects them and people see them.
fn log(form: LogForm) {
    let wanted = std::env::var_os("TACTUS_LOG").unwrap_or_default();
    let filter = filter(&wanted.to_string_lossy()).unwrap_or_else(|refused| {
        console::notice(format_args!("tactus: {refused}"));
        EnvFilter::new(LEVEL)
    });
    // Colours are for terminals, not for files and journals.
    let is_seen = progress::takes_escapes();
    let logger = tracing_subscriber::fmt().with_env_filter(filter);
    // By default the logger reports a failed write with `eprintln!`, which panics for the same
    // reason.
    let logger = logger.with_ansi(is_seen).with_writer(std::io::stderr).log_internal_errors(false);
    // A second logger, as in a test, is not needed.
    drop(match form {
        LogForm::Text => logger.try_init(),
        LogForm::Json => logger.json().flatten_event(true).try_init(),
    });
}

/// The default level.
const LEVEL: &str = "warn";

/// The filter for a value of `TACTUS_LOG`: a level, or levels of modules like
/// `warn,tactus_http=debug`.
///
/// # Errors
/// A message when a part is not a level. The logger would take it for a module, and hide all
/// warnings.
fn filter(wanted: &str) -> Result<EnvFilter, String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let parts = || wanted.split(',').map(str::trim).filter(|part| !part.is_empty());
    let is_level = |part: &str| LEVELS.iter().any(|level| level.eq_ignore_ascii_case(part));
    let is_known = |part: &str| {
        is_level(part.rsplit_once('=').map_or(part, |(_, level)| level)) || part.contains("::")
    };
    let refused = || {
        format!(
            "TACTUS_LOG={wanted:?} is not a level; {LEVEL:?} is used; write one of {}",
            LEVELS.join(", ")
        )
    };
    if parts().next().is_none() {
        return Ok(EnvFilter::new(LEVEL));
    }
    if !parts().all(is_known) {
        return Err(refused());
    }
    EnvFilter::try_new(wanted).map_err(|_| refused())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn n11_a_level_that_is_none_hides_no_warning() {
        for (wanted, shown) in [
            ("", "warn"),
            ("  ", "warn"),
            ("info", "info"),
            ("WARN", "warn"),
            ("off", "off"),
            ("warn,tactus_http=debug", "tactus_http=debug,warn"),
        ] {
            assert_eq!(
                filter(wanted).map(|filter| filter.to_string()),
                Ok(shown.into()),
                "{wanted}"
            );
        }
        for wanted in ["verbose", "warning", "3", "info,loud", "x=y=z", "tactus=loud", "\u{fffd}"] {
            let refused = filter(wanted).expect_err(wanted);
            assert!(refused.contains(wanted) && refused.contains("error, warn, info"), "{refused}");
        }
    }

    #[test]
    fn every_command_shows_examples() {
        for command in Cli::command().get_subcommands() {
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(after.contains("Example"), "{} shows none", command.get_name());
        }
    }
}
