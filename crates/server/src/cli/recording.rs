//! `tactus recording`: lists, stops and restarts recordings of live inputs.

use serde_json::Value;

use super::api::{self, Kind, NamedObject};
use super::status::{self, Query, rate, text};
use super::{Failure, console};

/// Lists, stops and restarts recordings
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  tactus recording list
  tactus recording show http://127.0.0.1:9464/ studio
  tactus recording stop http://127.0.0.1:8080/ studio --token-file token
  tactus recording start http://127.0.0.1:8080/ studio --token-file token

Reading needs no token at the admin address; changes need one at every address. A new
recording begins with `tactus record`.

Exit codes: 0 done; 1 failed; 2 wrong arguments.")]
pub(super) struct Recording {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand, Debug)]
enum Action {
    /// Lists all recordings
    List {
        #[command(flatten)]
        query: Query,
    },
    /// Shows one recording as JSON
    Show {
        #[command(flatten)]
        which: NamedObject,
    },
    /// Stops a recording; its last title is stored
    Stop {
        #[command(flatten)]
        which: NamedObject,
        /// Print the answer as JSON
        #[arg(long)]
        json: bool,
    },
    /// Restarts a stopped recording
    Start {
        #[command(flatten)]
        which: NamedObject,
        /// Print the answer as JSON
        #[arg(long)]
        json: bool,
    },
}

const RECORDINGS: Kind = Kind { path: "/api/v1/recordings", what: "recording of this name" };

impl Recording {
    pub(super) fn run(self) -> Result<(), Failure> {
        match self.action {
            Action::List { query } => {
                let all = RECORDINGS.all(&query.server, &query.credentials)?;
                if query.json { api::print(&all) } else { console::line(table(&all)) }?;
            }
            Action::Show { which } => {
                api::print(&RECORDINGS.read(RECORDINGS.ask(&which, "GET", "", None)?, 200)?)?;
            }
            Action::Stop { which, json } => {
                let is_stopped = |one: &Value| one["state"] == "stopped";
                let now = RECORDINGS.read(RECORDINGS.ask(&which, "GET", "", None)?, 200)?;
                // DELETE on a stopped recording would remove it.
                let answer = match is_stopped(&now) {
                    true => now,
                    false => {
                        let answer = RECORDINGS.ask(&which, "DELETE", "", None)?;
                        let expected = if answer.status == 202 { 202 } else { 200 };
                        RECORDINGS.read(answer, expected)?
                    }
                };
                show(&answer, json)?;
            }
            Action::Start { which, json } => {
                show(&RECORDINGS.read(RECORDINGS.ask(&which, "POST", "", None)?, 200)?, json)?;
            }
        }
        Ok(())
    }
}

fn show(one: &Value, json: bool) -> Result<(), Failure> {
    match json {
        true => api::print(one),
        false => console::line(format_args!("{}: {}", text(one, "name"), text(one, "state"))),
    }
}

fn table(all: &Value) -> String {
    let mut table =
        status::table(&["name", "state", "rate", "from", "to", "last title", "alarms"], &[2]);
    for one in all.as_array().into_iter().flatten() {
        let alarms = one["alarms"].as_object().into_iter().flatten();
        let alarms: Vec<_> = alarms.filter_map(|(_, what)| what.as_str()).collect();
        table.add_row([
            text(one, "name"),
            text(one, "state"),
            rate(&one["measured_rate_bits_per_second"]),
            text(one, "from"),
            text(one, "to"),
            text(one, "last_title"),
            alarms.join("; "),
        ]);
    }
    table.to_string()
}
