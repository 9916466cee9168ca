//! `tactus class`: shows the classes of a server's link, and changes them while streams run.

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Map, Value};
use tactus_core::units::BitRate;

use super::Failure;
use super::api::{self, Kind, NamedObject, ObjectList};

/// Shows and changes the parts of a server's link
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  tactus class list http://127.0.0.1:8080/
  tactus class set http://127.0.0.1:8080/ gold --guaranteed '80 Mbit/s' --ceiling '120 Mbit/s'
  tactus class set http://127.0.0.1:8080/ gold --ceiling off --priority 1
  tactus class show http://127.0.0.1:8080/ gold

A change is in force at once, and takes from no stream what it has been promised. It lasts until
the server ends or reads its configuration again; what is to stay is written there.

Exit codes: 0 done; 1 failed, or refused as what is promised would not fit; 2 wrong arguments.")]
pub(super) struct Class {
    #[command(subcommand)]
    what: Action,
}

#[derive(clap::Subcommand, Debug)]
enum Action {
    /// All classes as a tree
    List {
        #[command(flatten)]
        list: ObjectList,
    },
    /// All that is known of one, as JSON
    Show {
        #[command(flatten)]
        which: NamedObject,
    },
    /// Changes one; what is not said stays
    Set {
        #[command(flatten)]
        which: NamedObject,
        #[command(flatten)]
        keys: Keys,
    },
}

#[derive(clap::Args, Debug)]
struct Keys {
    /// What it has whatever others ask for, like "80 Mbit/s"
    #[arg(long, visible_alias = "rate", value_name = "RATE")]
    guaranteed: Option<String>,
    /// What it never exceeds, or "off"
    #[arg(long, value_name = "RATE")]
    ceiling: Option<String>,
    /// Which siblings have first what others do not use, 0 to 7; 0 is first
    #[arg(long, value_name = "NUMBER")]
    priority: Option<u8>,
    /// Its part of that, against siblings of the same priority
    #[arg(long, value_name = "RATE")]
    share: Option<String>,
}

const CLASSES: Kind = Kind { path: "/api/v1/classes", what: "class of this name" };

impl Class {
    pub(super) fn run(self) -> Result<(), Failure> {
        match self.what {
            Action::List { list } => CLASSES.list(&list, table)?,
            Action::Show { which } => {
                let all = CLASSES.all(&which.server, &which.credentials)?;
                let all = all.as_array().into_iter().flatten();
                let one = all.into_iter().find(|one| one["name"] == which.name.as_str());
                let text = "the server has no class of this name";
                api::print(one.ok_or_else(|| anyhow::anyhow!(text))?)?;
            }
            Action::Set { which, keys } => {
                let body = keys.body();
                if body.is_empty() {
                    return Err(Failure::usage("no change was given; see --help"));
                }
                CLASSES.read(CLASSES.ask(&which, "PATCH", "", Some(body))?, 200)?;
            }
        }
        Ok(())
    }
}

impl Keys {
    /// The given keys, as in the configuration.
    fn body(self) -> Map<String, Value> {
        let all = [
            ("guaranteed", self.guaranteed.map(Value::from)),
            ("ceiling", self.ceiling.map(Value::from)),
            ("priority", self.priority.map(Value::from)),
            ("share", self.share.map(Value::from)),
        ];
        all.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
    }
}

/// The classes as a tree.
fn table(all: &Value) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let header =
        ["name", "guaranteed", "ceiling", "priority", "promised", "sends", "borrowed", "streams"];
    table.set_header(header);
    for at in 1..header.len() {
        table.column_mut(at).expect("it has a header").set_cell_alignment(CellAlignment::Right);
    }
    let all: Vec<&Value> = all.as_array().into_iter().flatten().collect();
    for (depth, one) in tree(&all) {
        let rate = |key: &str| {
            let rate = one[key].as_u64().map(|rate| BitRate(rate).to_string());
            rate.unwrap_or_else(|| "-".into())
        };
        let changed = if one["changed"] == true { " *" } else { "" };
        let name = one["name"].as_str().unwrap_or_default();
        let number = |key: &str| one[key].as_u64().unwrap_or(0).to_string();
        table.add_row([
            format!("{}{name}{changed}", "  ".repeat(depth)),
            rate("guaranteed_bits_per_second"),
            rate("ceiling_bits_per_second"),
            number("priority"),
            rate("promised_bits_per_second"),
            rate("real_rate_bits_per_second"),
            rate("borrowed_bits_per_second"),
            number("streams"),
        ]);
    }
    table
}

/// Each class after its parent, with its depth. The input has parents first.
fn tree<'a>(all: &[&'a Value]) -> Vec<(usize, &'a Value)> {
    let mut rows: Vec<(usize, &Value)> = vec![];
    for &one in all {
        let parent = rows
            .iter()
            .position(|(_, row)| !one["parent"].is_null() && row["name"] == one["parent"]);
        let depth = parent.map_or(0, |at| rows[at].0 + 1);
        // After all classes below the same parent.
        let from = parent.map_or(rows.len(), |at| at + 1);
        let len = rows[from..].iter().take_while(|(other, _)| *other >= depth).count();
        rows.insert(from + len, (depth, one));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct CommandLine {
        #[command(flatten)]
        keys: Keys,
    }

    #[test]
    fn what_is_said_becomes_keys_of_the_configuration() {
        let body =
            |words: &[&str]| CommandLine::parse_from([&["tactus"], words].concat()).keys.body();
        let expected =
            serde_json::json!({"guaranteed": "8 Mbit/s", "ceiling": "off", "priority": 3});
        let words = ["--rate", "8 Mbit/s", "--ceiling", "off", "--priority", "3"];
        assert_eq!(Value::Object(body(&words)), expected);
        assert!(body(&[]).is_empty());
    }

    #[test]
    fn classes_stand_below_their_parents() {
        let all = serde_json::json!([
            {"name": "a"}, {"name": "b"}, {"name": "a1", "parent": "a"},
            {"name": "b1", "parent": "b"}, {"name": "a2", "parent": "a"},
            {"name": "a11", "parent": "a1"},
        ]);
        let all: Vec<&Value> = all.as_array().unwrap().iter().collect();
        let rows: Vec<_> = tree(&all)
            .into_iter()
            .map(|(depth, one)| (depth, one["name"].as_str().unwrap()))
            .collect();
        assert_eq!(rows, [(0, "a"), (1, "a1"), (2, "a11"), (1, "a2"), (0, "b"), (1, "b1")]);
    }
}
