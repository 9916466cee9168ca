//! A configuration file that can be read again while the server runs.
//!
//! Promise: the comparison of two readings names each key whose meaning has changed and that needs
//! a restart. The notation of a value does not matter. Channels, the rates and priorities of
//! classes, and where servers are, may change while streams run.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use tactus_control::class::{Classes, FIXED};
use tactus_control::settings::Cores;
use tactus_notation::ConfigError;
use tactus_notation::error::Mistake;
use tactus_playout::reload::Reread;
use toml::de::DeTable;
use toml::{Table, Value};

use super::Config;

/// A step of the path to a value in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Key<'a> {
    /// A key of a table.
    Name(&'a str),
    /// An index into a list, from 0.
    Entry(usize),
}

/// A configuration and its text in the file.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    /// Its path.
    pub path: PathBuf,
    /// The checked configuration.
    pub config: Config,
    /// The written keys.
    written: Table,
    /// The text of the file.
    text: String,
}

impl ConfigFile {
    /// Reads and checks the file at `path`.
    ///
    /// # Errors
    /// The first mistake, with line and column.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let said = |message: String| ConfigError { file: path.into(), place: None, message };
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|error| said(format!("cannot be read: {error}")))?;
        let config = Config::parse(path, &text)?;
        let written = toml::from_str(&text).map_err(|error| said(error.to_string()))?;
        Ok(Self { path: path.into(), config, written, text })
    }

    /// An error at the value that `keys` lead to, or at the innermost table on the way that the
    /// file contains; none when it contains none of them.
    #[must_use]
    pub fn mistake_at(&self, keys: &[Key<'_>], message: &str) -> Option<ConfigError> {
        let whole = DeTable::parse(&self.text).ok()?;
        let (first, rest) = keys.split_first()?;
        let Key::Name(first) = first else { return None };
        let mut value = whole.get_ref().get(*first)?;
        for key in rest {
            let next = match key {
                Key::Name(name) => value.get_ref().as_table().and_then(|table| table.get(*name)),
                Key::Entry(at) => value.get_ref().as_array().and_then(|list| list.get(*at)),
            };
            let Some(next) = next else { break };
            value = next;
        }
        Some(Mistake::at(value.span(), message).in_file(&self.path, &self.text))
    }

    /// Whether the file sets `key` in `[table]`.
    #[must_use]
    pub fn says(&self, table: &str, key: &str) -> bool {
        let table = self.written.get(table).and_then(toml::Value::as_table);
        table.is_some_and(|table| table.contains_key(key))
    }

    /// Reads the file again.
    ///
    /// # Errors
    /// The first mistake, with line and column.
    pub fn reread(&self) -> Result<Reread, ConfigError> {
        let file = Self::read(&self.path)?;
        let needs_restart = self.needs_restart(&file);
        let Config { classes, channels, cores, .. } = file.config;
        Ok(Reread { classes, channels, cores, needs_restart })
    }

    /// The keys of `other` that would need a restart.
    #[must_use]
    pub fn needs_restart(&self, other: &Self) -> Vec<String> {
        let mut unlike = vec![];
        compare(&self.written, &other.written, &[], &mut unlike);
        unlike.retain(|path| {
            let is_live = |key: &String| LIVE_CORES.contains(&key.as_str());
            let is_of_cores = path[0] == "cores" && path.get(1).is_some_and(is_live);
            path[0] != "class" && path[0] != "channel" && !is_of_cores
        });
        let own = fixed(&self.config);
        let means_other = |path: &Vec<String>| {
            let mut table = self.written.clone();
            put(&mut table, Some(&other.written), path);
            let text = toml::to_string(&table).unwrap_or_default();
            // A key that is invalid without other keys has changed, too.
            Config::parse(&self.path, &text).map_or(true, |config| fixed(&config) != own)
        };
        let (mut keys, spelled): (Vec<_>, Vec<_>) = unlike.into_iter().partition(means_other);
        // No key has changed by itself, but all together have.
        if keys.is_empty() && own != fixed(&other.config) {
            keys = spelled;
        }
        let mut named: Vec<_> = keys.iter().map(|path| path.join(".")).collect();
        named.extend(classes(&self.config.classes, &other.config.classes));
        named
    }
}

/// The keys of `[cores]` that may change while streams run.
const LIVE_CORES: [&str; 3] = ["placement", "balance", "fixed"];

/// A configuration without the parts that may change while streams run.
fn fixed(config: &Config) -> Config {
    let Cores { realtime, priority, system, .. } = config.cores.clone();
    let cores = Cores { realtime, priority, system, ..Cores::default() };
    Config { classes: Classes::default(), channels: vec![], cores, ..config.clone() }
}

/// Finds the keys that are written differently; a list is one key.
fn compare(own: &Table, other: &Table, above: &[String], found: &mut Vec<Vec<String>>) {
    let names: BTreeSet<&String> = own.keys().chain(other.keys()).collect();
    for name in names {
        let path = [above, std::slice::from_ref(name)].concat();
        let nothing = Table::new();
        match (own.get(name), other.get(name)) {
            (own, other) if own == other => {}
            (Some(Value::Table(own)), Some(Value::Table(other))) => {
                compare(own, other, &path, found);
            }
            (Some(Value::Table(own)), None) => compare(own, &nothing, &path, found),
            (None, Some(Value::Table(other))) => compare(&nothing, other, &path, found),
            _ => found.push(path),
        }
    }
}

/// Copies one key from another table.
fn put(into: &mut Table, from: Option<&Table>, path: &[String]) {
    let [name, below @ ..] = path else { return };
    let from = from.and_then(|from| from.get(name));
    if below.is_empty() {
        match from {
            Some(value) => drop(into.insert(name.clone(), value.clone())),
            None => drop(into.remove(name)),
        }
        return;
    }
    let inner = into.entry(name.clone()).or_insert_with(|| Value::Table(Table::new()));
    if let Value::Table(inner) = inner {
        put(inner, from.and_then(Value::as_table), below);
    }
}

/// Classes that are added or removed, and their changed keys that need a restart.
fn classes(own: &Classes, other: &Classes) -> Vec<String> {
    let mut named = vec![];
    for class in &own.0 {
        let Some((_, again)) = other.find(&class.name) else {
            named.push(format!("class {:?} (removed)", class.name));
            continue;
        };
        let (keys, again) = (own.keys(class), other.keys(again));
        let unlike = FIXED.iter().filter(|&&key| keys.get(key) != again.get(key));
        named.extend(unlike.map(|key| format!("class {:?}: {key}", class.name)));
    }
    let new = other.0.iter().filter(|class| own.find(&class.name).is_none());
    named.extend(new.map(|class| format!("class {:?} (added)", class.name)));
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> ConfigFile {
        let path = Path::new("test.toml");
        let config = Config::parse(path, text).expect("it is right");
        ConfigFile {
            path: path.into(),
            config,
            written: toml::from_str(text).expect("a table"),
            text: text.into(),
        }
    }

    #[test]
    fn what_needs_a_restart_is_named_by_its_keys_and_nothing_else_is() {
        let text = "[http]\nhead_timeout = \"1 s\"\n[rate.asked]\nheadroom = \"2 %\"\n\
                    [[class]]\nname = \"a\"\nguaranteed = \"6 Mbit/s\"\n[[class]]\nname = \"b\"\n\
                    parent = \"a\"\n\
                    [[channel]]\nname = \"a\"\ntitle = \"/a.ts\"\nto = \"udp://239.1.1.1:5000\"\n\
                    class = \"b\"\n";
        let own = file(text);
        let unlike = |from: &str, to: &str| {
            assert!(text.contains(from), "{from}");
            own.needs_restart(&file(&text.replace(from, to)))
        };
        for (from, to) in [
            ("\"1 s\"", "\"1000 ms\""),
            ("[http]", "[http]\nlisting = true"),
            ("6 Mbit/s", "7 Mbit/s"),
            (
                "parent = \"a\"",
                "parent = \"a\"\npriority = 3\nshare = \"2 Mbit/s\"\nceiling = \"3 Mbit/s\"",
            ),
            ("/a.ts", "/b.ts"),
            ("[http]", "[cores]\nbalance = \"off\"\nfixed = [\"link\"]\n[http]"),
            (
                "[http]",
                "[cores]\nplacement = [{ cpu = 0, servers = [\"disk\", \"block\", \"delivery\", \
                 \"link\"] }]\n[http]",
            ),
            (
                "[[channel]]",
                "[[channel]]\nname = \"b\"\ntitle = \"/b.ts\"\nto = \"udp://239.1.1.1:5001\"\n\
                 [[channel]]",
            ),
        ] {
            assert_eq!(unlike(from, to), [""; 0], "{from} -> {to}");
        }
        for (from, to, named) in [
            ("\"1 s\"", "\"2 s\"", &["http.head_timeout"][..]),
            ("[http]\nhead_timeout = \"1 s\"\n", "", &["http.head_timeout"]),
            (
                "[http]",
                "[link]\nrate = \"1 Gbps\"\n[http]\nlisting = false",
                &["http.listing", "link.rate"],
            ),
            ("2 %", "3 %", &["rate.asked.headroom"]),
            ("[http]", "[cores]\npriority = 3\nbalance = \"off\"\n[http]", &["cores.priority"]),
            ("[http]", "[[volume]]\npath = \"/srv\"\n[http]", &["volume"]),
            ("parent = \"a\"", "burst = \"4 ms\"", &["class \"b\": parent", "class \"b\": burst"]),
            (
                "[[class]]\nname = \"b\"",
                "[[class]]\nname = \"c\"\n[[class]]\nname = \"b\"",
                &["class \"c\" (added)"],
            ),
        ] {
            assert_eq!(unlike(from, to), named, "{from} -> {to}");
        }
        let without = text
            .replace("[[class]]\nname = \"b\"\nparent = \"a\"\n", "")
            .replace("class = \"b\"\n", "");
        assert_eq!(own.needs_restart(&file(&without)), ["class \"b\" (removed)"]);
    }
}
