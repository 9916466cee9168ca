//! `tactus channel`: looks at the channels of a server, and changes them while they are sent.

use std::io::{self, Write};

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Map, Value};
use tactus_core::units::BitRate;

use super::Failure;
use super::api::{self, Kind, Which};
use super::token::Credentials;

/// Shows, begins, changes and ends what a server sends as channels
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  tactus channel list http://127.0.0.1:8080/
  tactus channel add http://127.0.0.1:8080/ lobby --to rtp://239.1.1.1:5004 /a.ts /b.ts
  tactus channel set http://127.0.0.1:8080/ lobby /c.ts /d.ts --fill /ident.ts
  tactus channel next http://127.0.0.1:8080/ lobby                  leave the title for the next one
  tactus channel next http://127.0.0.1:8080/ lobby /news.ts         send this one next
  tactus channel remove http://127.0.0.1:8080/ lobby
  tactus channel reset http://127.0.0.1:8080/ lobby                 again as it is configured

What is changed stays so, in place of what the configuration says, until it is reset.

Exit codes: 0 done; 1 failed; 2 wrong arguments; 3 the server has no room.")]
pub(super) struct Channel {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand, Debug)]
enum What {
    /// All channels as a table
    List {
        /// Which server, like http://127.0.0.1:8080/
        server: String,
        /// As JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        credentials: Credentials,
    },
    /// All that is known of one, as JSON
    Show {
        #[command(flatten)]
        which: Which,
    },
    /// Begins one
    Add {
        #[command(flatten)]
        which: Which,
        /// Where it goes: udp://ADDRESS:PORT or rtp://ADDRESS:PORT, a group or one host
        #[arg(long, value_name = "URL")]
        to: String,
        #[command(flatten)]
        keys: Keys,
    },
    /// Changes one; what is not said stays
    Set {
        #[command(flatten)]
        which: Which,
        /// Where it goes
        #[arg(long, value_name = "URL")]
        to: Option<String>,
        #[command(flatten)]
        keys: Keys,
    },
    /// Leaves the title that is sent, or names the one that is sent next
    Next {
        #[command(flatten)]
        which: Which,
        /// The title that comes next; without it, the next one comes now
        title: Option<String>,
    },
    /// Drops what was changed: it is again as the server's configuration says
    Reset {
        #[command(flatten)]
        which: Which,
    },
    /// Ends one
    #[command(alias = "rm")]
    Remove {
        #[command(flatten)]
        which: Which,
    },
}

#[derive(clap::Args, Debug)]
struct Keys {
    /// Its titles by their paths, or one list (.m3u8, .m3u, .txt) that is stored on the server
    titles: Vec<String>,
    /// Ends after the last title, instead of beginning again
    #[arg(long)]
    once: bool,
    /// When the list begins: "20:00" each day, or "2026-11-22T20:00:00Z"
    #[arg(long, value_name = "TIME")]
    start: Option<String>,
    /// A title that has its time, like "20:00=/news.ts"; may be repeated
    #[arg(long, value_name = "TIME=TITLE")]
    at: Vec<String>,
    /// The title that is sent when there is nothing else
    #[arg(long, value_name = "TITLE")]
    fill: Option<String>,
    /// Announce it by SAP
    #[arg(long)]
    announce: bool,
    /// The server's interface that a group is sent by
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// The server's address that it comes from
    #[arg(long, value_name = "ADDRESS")]
    source: Option<String>,
    /// How many routers it may pass
    #[arg(long, value_name = "COUNT")]
    hops: Option<u8>,
    /// The class of the network, 0 to 63
    #[arg(long, value_name = "NUMBER")]
    dscp: Option<u8>,
    /// Its rate, like "8 Mbit/s" [default: what the titles' clocks say]
    #[arg(long, value_name = "RATE")]
    rate: Option<String>,
}

const CHANNELS: Kind = Kind { path: "/api/v1/channels", what: "channel of this name" };

impl Channel {
    pub(super) fn run(self) -> Result<(), Failure> {
        match self.what {
            What::List { server, json, credentials } => list(&server, json, &credentials),
            What::Show { which } => {
                let answer = CHANNELS.ask(&which, "GET", "", None)?;
                api::print(&CHANNELS.read(answer, 200)?);
                Ok(())
            }
            What::Add { which, to, keys } => {
                let mut body = keys.body()?;
                if body.get("playlist").is_none() {
                    return Err(Failure::usage("name the titles that it sends"));
                }
                body.extend([
                    ("name".to_owned(), which.name.clone().into()),
                    ("to".into(), to.into()),
                ]);
                let all = Which { name: String::new(), ..which };
                let answer = CHANNELS.ask(&all, "POST", "", Some(body))?;
                CHANNELS.read(answer, 201).map(drop)
            }
            What::Set { which, to, keys } => {
                let mut body = keys.body()?;
                body.extend(to.map(|to| ("to".to_owned(), to.into())));
                if body.is_empty() {
                    return Err(Failure::usage("say what is to change"));
                }
                CHANNELS.read(CHANNELS.ask(&which, "PATCH", "", Some(body))?, 200).map(drop)
            }
            What::Next { which, title: None } => {
                CHANNELS.read(CHANNELS.ask(&which, "POST", "/skip", None)?, 202).map(drop)
            }
            What::Next { which, title: Some(title) } => {
                let body = Map::from_iter([("title".to_owned(), title.into())]);
                CHANNELS.read(CHANNELS.ask(&which, "POST", "/next", Some(body))?, 202).map(drop)
            }
            What::Reset { which } => {
                let answer = CHANNELS.ask(&which, "POST", "/reset", None)?;
                match answer.status {
                    200 | 204 => Ok(()),
                    _ => Err(CHANNELS.not_done(answer)),
                }
            }
            What::Remove { which } => {
                let answer = CHANNELS.ask(&which, "DELETE", "", None)?;
                if answer.status == 204 { Ok(()) } else { Err(CHANNELS.not_done(answer)) }
            }
        }
    }
}

impl Keys {
    /// Those that were said, in the words of the configuration.
    fn body(self) -> Result<Map<String, Value>, Failure> {
        let mut body = Map::new();
        let mut say = |key: &str, value: Option<Value>| {
            body.extend(value.map(|value| (key.to_owned(), value)));
        };
        say("playlist", (!self.titles.is_empty()).then(|| self.titles.into()));
        say("repeat", self.once.then(|| false.into()));
        say("start", self.start.map(Value::from));
        let mut timed = Vec::new();
        for text in self.at {
            let (time, title) = text.split_once('=').ok_or_else(|| {
                Failure::usage(format!(
                    "{text:?} is no time with a title; write \"20:00=/news.ts\""
                ))
            })?;
            timed.push(serde_json::json!({"time": time, "title": title}));
        }
        say("at", (!timed.is_empty()).then(|| timed.into()));
        say("fill", self.fill.map(Value::from));
        say("announce", self.announce.then(|| true.into()));
        say("interface", self.interface.map(Value::from));
        say("source", self.source.map(Value::from));
        say("hops", self.hops.map(Value::from));
        say("dscp", self.dscp.map(Value::from));
        say("rate", self.rate.map(Value::from));
        Ok(body)
    }
}

fn list(server: &str, json: bool, credentials: &Credentials) -> Result<(), Failure> {
    let all = CHANNELS.all(server, credentials)?;
    if json {
        api::print(&all);
        return Ok(());
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["name", "state", "rate", "underruns", "to", "title"]);
    for at in [2, 3] {
        table.column_mut(at).expect("there are six").set_cell_alignment(CellAlignment::Right);
    }
    for one in all.as_array().into_iter().flatten() {
        let text = |key: &str| one[key].as_str().unwrap_or_default().to_owned();
        let rate = one["set_rate_bits_per_second"].as_u64();
        let rate = rate.map_or(String::new(), |rate| BitRate(rate).to_string());
        let underruns = one["underruns"].as_u64().unwrap_or(0).to_string();
        let title = match one["reason"].as_str() {
            Some(reason) => reason.to_owned(),
            None => text("title"),
        };
        table.add_row([text("name"), text("state"), rate, underruns, text("to"), title]);
    }
    // Whoever reads it may have seen enough.
    drop(writeln!(io::stdout().lock(), "{table}"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        keys: Keys,
    }

    fn keys(words: &[&str]) -> Keys {
        Line::parse_from([&["tactus"], words].concat()).keys
    }

    #[test]
    fn what_is_said_becomes_keys_of_the_configuration() {
        let body =
            keys(&["/a.ts", "/b.ts", "--once", "--at", "20:00=/n=1.ts", "--hops", "9"]).body();
        let expected = serde_json::json!({
            "playlist": ["/a.ts", "/b.ts"], "repeat": false, "hops": 9,
            "at": [{"time": "20:00", "title": "/n=1.ts"}],
        });
        assert_eq!(Value::Object(body.unwrap()), expected);
        assert!(keys(&[]).body().unwrap().is_empty());
        assert!(matches!(keys(&["--at", "20:00"]).body(), Err(Failure::Usage(_))));
    }
}
