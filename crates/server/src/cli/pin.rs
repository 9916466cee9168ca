//! `tactus pin`: keeps titles and directories of a server in memory, and releases them.

use comfy_table::{CellAlignment, Table, presets};
use serde_json::Value;
use tactus_core::path::encode_segment;
use tactus_core::units::Bytes;

use super::Failure;
use super::api::{Kind, NamedObject, ObjectList};
use super::token::Credentials;

/// Keeps titles of a server in memory
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  tactus pin add http://127.0.0.1:8080/ news/tonight.ts
  tactus pin add http://127.0.0.1:8080/ news/
  tactus pin list http://127.0.0.1:8080/
  tactus pin remove http://127.0.0.1:8080/ news/

What is pinned is read in the time that streams leave over, and then served without the disk. A
directory is pinned with all that is or comes below it. Pins have at most three quarters of the
memory for blocks, and what does not fit is refused. They last until the server ends; what is to
stay is written as memory.pinned in the configuration.

Exit codes: 0 done; 1 failed, or refused as it does not fit; 2 wrong arguments.")]
pub(super) struct Pin {
    #[command(subcommand)]
    what: Action,
}

#[derive(clap::Subcommand, Debug)]
enum Action {
    /// All pins, and what of them is in memory
    List {
        #[command(flatten)]
        list: ObjectList,
    },
    /// Keeps a title, or all titles of a directory, in memory
    Add {
        #[command(flatten)]
        which: PinnedPath,
    },
    /// Releases a title or directory
    Remove {
        #[command(flatten)]
        which: PinnedPath,
    },
}

#[derive(clap::Args, Debug)]
struct PinnedPath {
    /// Which server, like http://127.0.0.1:8080/
    server: String,
    /// The title or directory, like films/a.ts; "/" for everything
    path: String,
    #[command(flatten)]
    credentials: Credentials,
}

const PINS: Kind = Kind { path: "/api/v1/pins", what: "title or pin at this path" };

impl Pin {
    pub(super) fn run(self) -> Result<(), Failure> {
        match self.what {
            Action::List { list } => PINS.list(&list, table)?,
            Action::Add { which } => {
                PINS.read(which.ask("PUT")?, 200)?;
            }
            Action::Remove { which } => {
                let answer = which.ask("DELETE")?;
                if answer.status != 204 {
                    return Err(PINS.not_done(answer));
                }
            }
        }
        Ok(())
    }
}

impl PinnedPath {
    fn ask(self, method: &str) -> Result<super::client::Response, Failure> {
        let Self { server, path, credentials } = self;
        let below = below(&path);
        let which = NamedObject { server, name: String::new(), credentials };
        PINS.ask(&which, method, &below, None)
    }
}

/// The path behind that of all pins.
fn below(path: &str) -> String {
    let mut below = String::new();
    for segment in path.trim_matches('/').split('/') {
        below.push('/');
        encode_segment(segment, &mut below);
    }
    below
}

fn table(all: &Value) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["path", "titles", "in memory", "size", "viewers", ""]);
    for at in 1..5 {
        table.column_mut(at).expect("it has a header").set_cell_alignment(CellAlignment::Right);
    }
    for one in all.as_array().into_iter().flatten() {
        let number = |key: &str| one[key].as_u64().unwrap_or_default();
        table.add_row([
            format!("/{}", one["path"].as_str().unwrap_or_default()),
            number("titles").to_string(),
            number("titles_in_memory").to_string(),
            Bytes(number("bytes")).to_string(),
            number("viewers").to_string(),
            one["problem"].as_str().unwrap_or_default().to_owned(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_of_a_path_is_escaped_and_everything_is_a_slash() {
        assert_eq!(below("films/a b#.ts"), "/films/a%20b%23.ts");
        assert_eq!(below("/films/"), "/films");
        assert_eq!(below("/"), "/");
    }

    #[test]
    fn a_pin_that_is_not_in_memory_says_why() {
        let all = serde_json::json!([{"path": "a.ts", "titles": 1, "bytes": 3_000_000,
            "titles_in_memory": 0, "viewers": 2, "problem": "a.ts: it does not fit"}]);
        let text = table(&all).to_string();
        assert!(text.contains("/a.ts") && text.contains("it does not fit"), "{text}");
    }
}
