//! `tactus channel`: shows the channels of a server, and changes them while they are sent.

use std::str::FromStr;

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Map, Value};
use tactus_core::units::BitRate;

use super::Failure;
use super::api::{self, Kind, NamedObject, ObjectList};

/// Shows, begins, changes and ends what a server sends as channels
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  tactus channel list http://127.0.0.1:8080/
  tactus channel add http://127.0.0.1:8080/ lobby --to rtp://239.1.1.1:5004 /a.ts /b.ts
  tactus channel set http://127.0.0.1:8080/ lobby /c.ts /d.ts --fill /ident.ts
  tactus channel set http://127.0.0.1:8080/ lobby --fill off --at off --repeat
  tactus channel next http://127.0.0.1:8080/ lobby                  leave the title for the next one
  tactus channel next http://127.0.0.1:8080/ lobby /news.ts         send this one next
  tactus channel remove http://127.0.0.1:8080/ lobby
  tactus channel reset http://127.0.0.1:8080/ lobby                 again as it is configured

What is changed stays so, in place of what the configuration says, until it is reset.

Exit codes: 0 done; 1 failed; 2 wrong arguments; 3 the server has no room.")]
pub(super) struct Channel {
    #[command(subcommand)]
    what: Action,
}

#[derive(clap::Subcommand, Debug)]
enum Action {
    /// All channels as a table
    List {
        #[command(flatten)]
        list: ObjectList,
    },
    /// All that is known of one, as JSON
    Show {
        #[command(flatten)]
        which: NamedObject,
    },
    /// Begins one
    Add {
        #[command(flatten)]
        which: NamedObject,
        /// Where it goes: udp://ADDRESS:PORT or rtp://ADDRESS:PORT, a group or one host
        #[arg(long, value_name = "URL")]
        to: String,
        #[command(flatten)]
        keys: Keys,
    },
    /// Changes one; what is not said stays
    Set {
        #[command(flatten)]
        which: NamedObject,
        /// Where it goes
        #[arg(long, value_name = "URL")]
        to: Option<String>,
        #[command(flatten)]
        keys: Keys,
    },
    /// Leaves the title that is sent, or names the one that is sent next
    Next {
        #[command(flatten)]
        which: NamedObject,
        /// The title that comes next; without it, the next one comes now
        title: Option<String>,
    },
    /// Drops what was changed: it is again as the server's configuration says
    Reset {
        #[command(flatten)]
        which: NamedObject,
    },
    /// Ends one
    #[command(alias = "rm")]
    Remove {
        #[command(flatten)]
        which: NamedObject,
    },
}

#[derive(clap::Args, Debug)]
struct Keys {
    /// Its titles by their paths, or one list (.m3u8, .m3u, .txt) that is stored on the server
    titles: Vec<String>,
    /// Ends after the last title, instead of beginning again
    #[arg(long)]
    once: bool,
    /// After the last title comes the first, as without --once
    #[arg(long, conflicts_with = "once")]
    repeat: bool,
    /// When the list begins: "20:00" each day, or "2026-11-22T20:00:00Z"; or "off": at once
    #[arg(long, value_name = "TIME")]
    start: Option<KeyChange<String>>,
    /// A title that has its time, like "20:00=/news.ts"; may be repeated; or "off": none has
    #[arg(long, value_name = "TIME=TITLE")]
    at: Vec<String>,
    /// The title that is sent when there is nothing else, or "off"
    #[arg(long, value_name = "TITLE")]
    fill: Option<KeyChange<String>>,
    /// Announce it by SAP, or with "=off" not any more
    #[arg(long, value_name = "on|off", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "on", value_parser = ["on", "off"])]
    announce: Option<String>,
    /// The server's interface that a group is sent by, or "off": by the kernel's routes
    #[arg(long, value_name = "NAME")]
    interface: Option<KeyChange<String>>,
    /// The server's address that it comes from, or "off": the kernel's choice
    #[arg(long, value_name = "ADDRESS")]
    source: Option<KeyChange<String>>,
    /// How many routers it may pass
    #[arg(long, value_name = "COUNT")]
    hops: Option<u8>,
    /// The class of the link that it belongs to, or "off": none
    #[arg(long, value_name = "NAME")]
    class: Option<KeyChange<String>>,
    /// The class of the network, 0 to 63, or "off": what its class of the link says
    #[arg(long, value_name = "NUMBER")]
    dscp: Option<KeyChange<u8>>,
    /// Its rate, like "8 Mbit/s" [default: what the titles' clocks say, as with "off"]
    #[arg(long, value_name = "RATE")]
    rate: Option<KeyChange<String>>,
    /// Null packets make exactly this rate of it, like "12 Mbit/s", or "off"
    #[arg(long, value_name = "RATE")]
    stuff: Option<KeyChange<String>>,
    /// For how long datagrams may be gathered that leave together, like "4 ms", or "off": as its
    /// class allows
    #[arg(long, value_name = "TIME")]
    burst: Option<KeyChange<String>>,
    /// What it sends: "mpeg-ts", or "aes67" for sound in RTP
    #[arg(long, value_name = "FORMAT")]
    format: Option<KeyChange<String>>,
    /// The samples of its sound: "L24" or "L16"
    #[arg(long, value_name = "ENCODING")]
    encoding: Option<KeyChange<String>>,
    /// The channels of its sound, 1 to 8
    #[arg(long, value_name = "COUNT")]
    channels: Option<KeyChange<u8>>,
    /// The duration of a packet of its sound, like "1 ms" or "125 us"
    #[arg(long, value_name = "TIME")]
    packet_time: Option<KeyChange<String>>,
    /// Channels with the same name here begin together, or "off"
    #[arg(long, value_name = "NAME")]
    sync: Option<KeyChange<String>>,
}

/// The new value of a key, or its removal, which is `null` in the API.
#[derive(Clone, Debug)]
enum KeyChange<T> {
    Clear,
    Set(T),
}

impl<T: FromStr> FromStr for KeyChange<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, T::Err> {
        if text == OFF { Ok(Self::Clear) } else { text.parse().map(Self::Set) }
    }
}

impl<T: Into<Value>> From<KeyChange<T>> for Value {
    fn from(said: KeyChange<T>) -> Self {
        match said {
            KeyChange::Clear => Self::Null,
            KeyChange::Set(value) => value.into(),
        }
    }
}

const OFF: &str = "off";

const CHANNELS: Kind = Kind { path: "/api/v1/channels", what: "channel of this name" };

impl Channel {
    pub(super) fn run(self) -> Result<(), Failure> {
        match self.what {
            Action::List { list } => CHANNELS.list(&list, table),
            Action::Show { which } => {
                let answer = CHANNELS.ask(&which, "GET", "", None)?;
                api::print(&CHANNELS.read(answer, 200)?)
            }
            Action::Add { which, to, keys } => {
                let mut body = keys.body()?;
                // A new channel has no keys to remove.
                body.retain(|_, value| !value.is_null());
                if body.get("playlist").is_none() {
                    return Err(Failure::usage("name at least one title for the channel"));
                }
                body.extend([
                    ("name".to_owned(), which.name.clone().into()),
                    ("to".into(), to.into()),
                ]);
                let all = NamedObject { name: String::new(), ..which };
                let answer = CHANNELS.ask(&all, "POST", "", Some(body))?;
                CHANNELS.read(answer, 201).map(drop)
            }
            Action::Set { which, to, keys } => {
                let mut body = keys.body()?;
                body.extend(to.map(|to| ("to".to_owned(), to.into())));
                if body.is_empty() {
                    return Err(Failure::usage("no change was given; see --help"));
                }
                CHANNELS.read(CHANNELS.ask(&which, "PATCH", "", Some(body))?, 200).map(drop)
            }
            Action::Next { which, title: None } => {
                CHANNELS.read(CHANNELS.ask(&which, "POST", "/skip", None)?, 202).map(drop)
            }
            Action::Next { which, title: Some(title) } => {
                let body = Map::from_iter([("title".to_owned(), title.into())]);
                CHANNELS.read(CHANNELS.ask(&which, "POST", "/next", Some(body))?, 202).map(drop)
            }
            Action::Reset { which } => {
                let answer = CHANNELS.ask(&which, "POST", "/reset", None)?;
                match answer.status {
                    200 | 204 => Ok(()),
                    _ => Err(CHANNELS.not_done(answer)),
                }
            }
            Action::Remove { which } => {
                let answer = CHANNELS.ask(&which, "DELETE", "", None)?;
                if answer.status == 204 { Ok(()) } else { Err(CHANNELS.not_done(answer)) }
            }
        }
    }
}

impl Keys {
    /// The given keys, as in the configuration.
    fn body(self) -> Result<Map<String, Value>, Failure> {
        let mut body = Map::new();
        let mut say = |key: &str, value: Option<Value>| {
            body.extend(value.map(|value| (key.to_owned(), value)));
        };
        say("playlist", (!self.titles.is_empty()).then(|| self.titles.into()));
        say("repeat", (self.once || self.repeat).then(|| self.repeat.into()));
        say("start", self.start.map(Value::from));
        let none_has_its_time = self.at == [OFF];
        say("at", none_has_its_time.then_some(Value::Null));
        let mut timed = Vec::new();
        for text in self.at.into_iter().filter(|_| !none_has_its_time) {
            let (time, title) = text.split_once('=').ok_or_else(|| {
                Failure::usage(format!(
                    "{text:?} is not a time with a title; write \"20:00=/news.ts\""
                ))
            })?;
            timed.push(serde_json::json!({"time": time, "title": title}));
        }
        say("at", (!timed.is_empty()).then(|| timed.into()));
        say("fill", self.fill.map(Value::from));
        say("announce", self.announce.map(|said| (said != OFF).into()));
        say("interface", self.interface.map(Value::from));
        say("source", self.source.map(Value::from));
        say("hops", self.hops.map(Value::from));
        say("class", self.class.map(Value::from));
        say("dscp", self.dscp.map(Value::from));
        say("rate", self.rate.map(Value::from));
        say("stuff", self.stuff.map(Value::from));
        say("format", self.format.map(Value::from));
        say("encoding", self.encoding.map(Value::from));
        say("channels", self.channels.map(Value::from));
        say("packet_time", self.packet_time.map(Value::from));
        say("sync", self.sync.map(Value::from));
        say("burst", self.burst.map(Value::from));
        Ok(body)
    }
}

fn table(all: &Value) -> Table {
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
    table
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use tactus_playout::channel::Channel;

    use super::*;

    #[derive(clap::Parser)]
    struct CommandLine {
        #[command(flatten)]
        keys: Keys,
    }

    fn keys(words: &[&str]) -> Keys {
        CommandLine::parse_from([&["tactus"], words].concat()).keys
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

    #[test]
    fn every_key_of_a_channel_can_be_said_and_be_taken_back() {
        let said = keys(&[
            "/a.ts",
            "--once",
            "--start",
            "20:00:00",
            "--at",
            "21:00:00=/n.ts",
            "--fill",
            "/i.ts",
            "--announce",
            "--interface",
            "lo",
            "--source",
            "127.0.0.1",
            "--hops",
            "9",
            "--class",
            "gold",
            "--dscp",
            "34",
            "--rate",
            "9 Mbit/s",
            "--stuff",
            "10 Mbit/s",
            "--burst",
            "4 ms",
            "--sync",
            "hall",
        ]);
        let mut said = said.body().unwrap();
        said.extend([("name".into(), "a".into()), ("to".into(), "udp://239.1.1.1:5000".into())]);
        let channel = Channel::parse(&toml::to_string(&said).unwrap()).unwrap();
        // All keys of a channel with transport streams.
        assert_eq!(channel.keys(), said);
        let sound = ["--format", "aes67", "--encoding", "L16", "--channels", "8"];
        let said = keys(&[&sound[..], &["--packet-time", "125 us"]].concat()).body().unwrap();
        let expected = serde_json::json!({
            "format": "aes67", "encoding": "L16", "channels": 8, "packet_time": "125 us",
        });
        assert_eq!(Value::Object(said), expected);

        let back = keys(&[
            "--repeat",
            "--start",
            "off",
            "--at",
            "off",
            "--fill",
            "off",
            "--announce=off",
            "--interface",
            "off",
            "--source",
            "off",
            "--class",
            "off",
            "--dscp",
            "off",
            "--rate",
            "off",
            "--stuff",
            "off",
            "--burst",
            "off",
            "--format",
            "off",
            "--encoding",
            "off",
            "--channels",
            "off",
            "--packet-time",
            "off",
            "--sync",
            "off",
        ]);
        let expected = serde_json::json!({
            "repeat": true, "start": null, "at": null, "fill": null, "announce": false,
            "interface": null, "source": null, "class": null, "dscp": null,
            "rate": null, "stuff": null, "burst": null, "format": null, "encoding": null,
            "channels": null, "packet_time": null, "sync": null,
        });
        assert_eq!(Value::Object(back.body().unwrap()), expected);
        for words in [&["--once", "--repeat"][..], &["--announce=maybe"], &["--dscp", "300"]] {
            assert!(
                CommandLine::try_parse_from([&["tactus"], words].concat()).is_err(),
                "{words:?}"
            );
        }
        // A title is not the value of the option.
        assert_eq!(keys(&["--announce", "/a.ts"]).titles, ["/a.ts"]);
        assert!(matches!(
            keys(&["--at", "off", "--at", "20:00=/n.ts"]).body(),
            Err(Failure::Usage(_))
        ));
    }
}
