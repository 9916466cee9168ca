//! `tactus place`: shows on which cores the servers of an engine are, moves them, and adds and
//! removes cores.

use comfy_table::{Table, presets};
use serde_json::{Map, Value};

use super::api::{Kind, NamedObject, ObjectList};
use super::token::Credentials;
use super::{Failure, console};

/// Shows on which cores a server's parts are, and moves them while they run
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  tactus place list http://127.0.0.1:8080/
  tactus place move http://127.0.0.1:8080/ disk.0 --core 1
  tactus place release http://127.0.0.1:8080/ disk.0
  tactus place add http://127.0.0.1:8080/ --core 2
  tactus place remove http://127.0.0.1:8080/ --core 2

The parts are those of [cores] placement: disk.0 and block.0 of the first volume, delivery, link,
packets and file, and where it names several of them delivery.1, link.1 and so on. A part goes to
any core that has a real-time thread: those that the configuration or the default names, and those
that were added. It takes its promises along, so it moves only where there is time for all of them,
and streams go on meanwhile.

add starts a real-time thread on a processor; the time of this core can be promised from then on.
remove moves all parts of a core to others and ends its thread; what does not fit there keeps the
core. Both last until the configuration is reloaded with another placement, or the server ends.

The server moves parts by itself when a core has too much to do, or so little that it can sleep
([cores] balance). A part that was moved by command stays there until it is released, the
configuration is reloaded with another placement, or the server ends; what is to stay for longer is
written in the configuration. list shows which part of each core's time was used in the last second.

Exit codes: 0 done; 1 failed, or refused as it does not fit; 2 wrong arguments.")]
pub(super) struct Place {
    #[command(subcommand)]
    what: Action,
}

#[derive(clap::Subcommand, Debug)]
enum Action {
    /// Each core with what is on it, and how busy it is
    List {
        #[command(flatten)]
        list: ObjectList,
    },
    /// Lets a part move by itself again that was moved by command
    Release {
        #[command(flatten)]
        which: NamedObject,
    },
    /// Starts a real-time thread on another processor
    Add(OneCore),
    /// Moves all parts of a core to others, and ends its real-time thread
    Remove(OneCore),
    /// Moves a part to another core, where it stays
    Move {
        /// Which server, like http://127.0.0.1:8080/
        server: String,
        /// The part, like disk.0 or link
        part: String,
        /// The number of the core's processor, as in /proc/cpuinfo
        #[arg(long)]
        core: u32,
        #[command(flatten)]
        credentials: Credentials,
    },
}

#[derive(clap::Args, Debug)]
struct OneCore {
    /// Which server, like http://127.0.0.1:8080/
    server: String,
    /// The number of the core's processor, as in /proc/cpuinfo
    #[arg(long)]
    core: u32,
    #[command(flatten)]
    credentials: Credentials,
}

impl OneCore {
    fn ask(self, method: &str) -> Result<Value, Failure> {
        let Self { server, core, credentials } = self;
        let which = NamedObject { server, name: core.to_string(), credentials };
        CORES.read(CORES.ask(&which, method, "", None)?, 200)
    }
}

const CORES: Kind = Kind { path: "/api/v1/placement/cores", what: "such core" };

pub(super) const PLACEMENT: Kind = Kind { path: "/api/v1/placement", what: "part with this name" };

impl Place {
    pub(super) fn run(self) -> Result<(), Failure> {
        match self.what {
            Action::List { list } => PLACEMENT.list(&list, table),
            Action::Release { which } => {
                let said = PLACEMENT.read(PLACEMENT.ask(&which, "DELETE", "", None)?, 200)?;
                let part = said["server"].as_str().unwrap_or_default();
                console::line(format_args!(
                    "{part} is on core {}, and may move by itself",
                    said["core"]
                ))
            }
            Action::Add(core) => console::line(added(&core.ask("PUT")?)),
            Action::Remove(core) => console::line(removed(&core.ask("DELETE")?)),
            Action::Move { server, part, core, credentials } => {
                let which = NamedObject { server, name: part, credentials };
                let body = Map::from_iter([("core".to_owned(), Value::from(core))]);
                let moved = PLACEMENT.read(PLACEMENT.ask(&which, "PUT", "", Some(body))?, 200)?;
                console::line(told(&moved))
            }
        }
    }
}

fn told(moved: &Value) -> String {
    let [from, core, pause] = ["from", "core", "pause_us"].map(|key| moved[key].as_u64());
    let part = moved["server"].as_str().unwrap_or_default();
    let core = core.unwrap_or_default();
    if from == Some(core) {
        return format!("{part} is on core {core} already");
    }
    let (from, pause) = (from.unwrap_or_default(), pause.unwrap_or_default());
    format!("{part} moved from core {from} to core {core}; it began nothing for {pause} us")
}

fn added(said: &Value) -> String {
    let core = &said["core"];
    if said["was_there"] == true {
        return format!("core {core} has a real-time thread already");
    }
    match said["real_time"] == true {
        true => format!("core {core} has a real-time thread"),
        false => format!(
            "core {core} has a thread without real-time priority, so half of its time is promised"
        ),
    }
}

fn removed(said: &Value) -> String {
    let moved = said["moved"].as_array().into_iter().flatten().map(told);
    let ended = format!("core {} has no real-time thread any more", said["core"]);
    moved.chain([ended]).collect::<Vec<_>>().join("\n")
}

fn table(all: &Value) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["core", "busy", "parts"]);
    for one in all.as_array().into_iter().flatten() {
        let parts: Vec<_> = one["parts"].as_array().into_iter().flatten().map(described).collect();
        let busy = match one["online"].as_bool() {
            Some(false) => "offline".to_owned(),
            _ => percent(&one["busy_ratio"]),
        };
        table.add_row([one["cpu"].to_string(), busy, parts.join(", ")]);
    }
    table
}

/// A part with what it uses of its core, and why it stays there.
fn described(part: &Value) -> String {
    let name = part["name"].as_str().unwrap_or_default();
    let busy = percent(&part["busy_ratio"]);
    match part["stays"].as_str() {
        None => format!("{name} {busy}"),
        Some(why) => format!("{name} {busy} ({why})"),
    }
}

fn percent(ratio: &Value) -> String {
    format!("{:.1} %", 100.0 * ratio.as_f64().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_tells_where_from_and_for_how_long() {
        let moved = serde_json::json!({"server": "link", "from": 0, "core": 1, "pause_us": 83});
        assert_eq!(told(&moved), "link moved from core 0 to core 1; it began nothing for 83 us");
        let stays = serde_json::json!({"server": "link", "from": 1, "core": 1, "pause_us": 0});
        assert_eq!(told(&stays), "link is on core 1 already");
    }

    #[test]
    fn a_core_that_comes_or_goes_is_told_with_the_parts_that_moved() {
        let came = |real_time: bool, was_there: bool| {
            added(&serde_json::json!({
                "core": 3, "real_time": real_time, "was_there": was_there
            }))
        };
        assert_eq!(came(true, false), "core 3 has a real-time thread");
        assert!(came(false, false).contains("half of its time"));
        assert_eq!(came(true, true), "core 3 has a real-time thread already");
        let gone = serde_json::json!({"core": 3, "moved": [
            {"server": "link", "from": 3, "core": 1, "pause_us": 2},
        ]});
        assert_eq!(
            removed(&gone),
            "link moved from core 3 to core 1; it began nothing for 2 us\n\
             core 3 has no real-time thread any more"
        );
    }

    #[test]
    fn each_core_is_shown_with_its_parts() {
        let all = serde_json::json!([
            {"cpu": 1, "online": true, "busy_ratio": 0.424, "parts": [
                {"name": "disk.0", "busy_ratio": 0.02, "stays": "fixed"},
                {"name": "link", "busy_ratio": 0.404},
            ]},
            {"cpu": 0, "online": false, "busy_ratio": 0.0, "parts": []},
        ]);
        let text = table(&all).to_string();
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<_> = text.lines().map(words).collect();
        let wanted = ["core busy parts", "1 42.4 % disk.0 2.0 % (fixed), link 40.4 %", "0 offline"];
        assert_eq!(lines, wanted);
    }
}
