//! `tactus reload`: makes a server read its configuration again.

use super::api::{self, Kind, NamedObject};
use super::token::Credentials;
use super::{Failure, console};

/// Has a server read its configuration again
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  tactus reload http://127.0.0.1:8080/

Rates and priorities of classes, and channels, are then as the file says, and no other stream
notices. All else that differs is listed: it needs a restart. A file with a mistake changes
nothing. SIGHUP does the same.

Exit codes: 0 done; 1 failed, or nothing was changed; 2 wrong arguments.")]
pub(super) struct Reload {
    /// Which server, like http://127.0.0.1:8080/
    server: String,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    credentials: Credentials,
}

const RELOAD: Kind = Kind { path: "/api/v1/reload", what: "configuration file" };

impl Reload {
    pub(super) fn run(self) -> Result<(), Failure> {
        let which =
            NamedObject { server: self.server, name: String::new(), credentials: self.credentials };
        let said = RELOAD.read(RELOAD.ask(&which, "POST", "", None)?, 200)?;
        let list =
            |key: &str| said[key].as_array().into_iter().flatten().filter_map(|one| one.as_str());
        if self.json {
            api::print(&said)?;
        } else {
            for (what, key) in [("changed", "changed"), ("needs a restart", "needs_restart")] {
                for one in list(key) {
                    console::line(format_args!("{what}: {one}"))?;
                }
            }
        }
        let failed: Vec<_> = list("failed").collect();
        match failed.is_empty() {
            true => Ok(()),
            false => Err(anyhow::anyhow!("{}", failed.join("; ")).into()),
        }
    }
}
