//! Saves changes of channels over restarts.
//!
//! Promise: a change over the API overrides the configuration of that channel after a restart,
//! until it is reset. The configuration file is the operator's and is never written. After a power
//! failure the file has the state before or after the last change, never a part of it.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fs, iter};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tactus_control::class::Classes;
use tactus_media::RESERVED;

use crate::channel::Channel;

/// What the channels start with.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ChannelSettings {
    /// The configured channels.
    pub channels: Vec<Channel>,
    /// The classes of the link.
    pub classes: Classes,
    /// The directory of the first writable volume, where changes are saved.
    pub volume: Option<PathBuf>,
}

/// The saved changes and the configuration that they override.
pub(super) struct SavedChanges {
    /// `None` without a writable volume; then nothing can be changed.
    file: Option<PathBuf>,
    configured: Mutex<Vec<Channel>>,
    changed: Mutex<Changes>,
}

/// The keys of channels by name; `None` for a channel that was ended.
type Changes = BTreeMap<String, Option<Map<String, Value>>>;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedFile {
    version: u32,
    channels: Changes,
}

const VERSION: u32 = 1;
/// In the first writable volume.
const FILE: &str = "channels.json";

impl SavedChanges {
    /// Reads the changes. An unreadable file is set aside and logged.
    pub(super) fn open(settings: &ChannelSettings) -> Self {
        let file = settings.volume.as_ref().map(|volume| volume.join(RESERVED).join(FILE));
        let changed = match file.as_deref().map(read) {
            None => Changes::new(),
            Some(Ok(changed)) => changed,
            Some(Err(error)) => {
                let file = file.as_deref().unwrap_or(Path::new(FILE));
                let aside = file.with_extension("json.bad");
                let moved = fs::rename(file, &aside);
                tracing::error!(
                    file = %file.display(), %error, is_aside = moved.is_ok(),
                    "cannot read the saved changes of channels; every channel starts as configured"
                );
                Changes::new()
            }
        };
        let configured = Mutex::new(settings.channels.clone());
        Self { file, configured, changed: Mutex::new(changed) }
    }

    /// The effective channels: the configured ones with their changes, and new ones.
    pub(super) fn channels(&self) -> Vec<Channel> {
        let changed = self.changed();
        let configured = self.configurations();
        let mut all: Vec<Channel> = vec![];
        let is_new = |name: &&String| !configured.iter().any(|own| own.name == **name);
        let names = configured.iter().map(|own| &own.name);
        for name in names.chain(changed.keys().filter(is_new)) {
            let configured = configured.iter().find(|own| own.name == *name);
            let channel = match changed.get(name) {
                None => configured.cloned(),
                Some(None) => None,
                Some(Some(keys)) => match parse(keys) {
                    Ok(channel) => Some(channel),
                    Err(error) => {
                        tracing::error!(
                            channel = name,
                            error,
                            "the saved change of this channel \
                            is invalid and is ignored"
                        );
                        configured.cloned()
                    }
                },
            };
            if changed.contains_key(name) && configured.is_some() {
                tracing::info!(
                    channel = name,
                    "a saved change overrides the configuration of this channel; `tactus channel \
                    reset` removes it"
                );
            }
            let Some(channel) = channel else { continue };
            match all.iter().find(|other| other.to.to == channel.to.to) {
                None => all.push(channel),
                Some(other) => tracing::error!(
                    channel = name,
                    other = other.name,
                    "this channel is not sent: another channel sends to the same address"
                ),
            }
        }
        all
    }

    /// Whether a channel differs from its configuration.
    pub(super) fn is_changed(&self, name: &str) -> bool {
        self.changed().contains_key(name)
    }

    /// The configuration of a channel.
    pub(super) fn configured(&self, name: &str) -> Option<Channel> {
        self.configurations().iter().find(|own| own.name == name).cloned()
    }

    /// Saves the state of a channel (`None`: ended). Returns when it is durable.
    ///
    /// # Errors
    /// If it cannot be written. The change is active until the server ends.
    pub(super) fn keep(&self, name: &str, channel: Option<&Channel>) -> io::Result<()> {
        let mut changed = self.changed();
        if channel == self.configured(name).as_ref() {
            changed.remove(name);
        } else {
            changed.insert(name.to_owned(), channel.map(Channel::keys));
        }
        let Some(file) = &self.file else { return Ok(()) };
        let written = SavedFile { version: VERSION, channels: changed.clone() };
        drop(changed);
        write(file, &written)
    }

    /// Replaces the configuration.
    pub(super) fn configure(&self, channels: Vec<Channel>) {
        *self.configurations() = channels;
    }

    fn configurations(&self) -> MutexGuard<'_, Vec<Channel>> {
        // Replaced as a whole. Lock order: after `changed`.
        self.configured.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) -> MutexGuard<'_, Changes> {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn parse(keys: &Map<String, Value>) -> Result<Channel, String> {
    let text = toml::to_string(keys).map_err(|error| error.to_string())?;
    Channel::parse(&text).map_err(|error| error.to_string())
}

fn read(file: &Path) -> io::Result<Changes> {
    let text = match fs::read(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Changes::new()),
        read => read?,
    };
    let written: SavedFile = serde_json::from_slice(&text)?;
    match written.version {
        VERSION => Ok(written.channels),
        other => Err(io::Error::other(format!(
            "the file has version {other}; this program reads \
            version {VERSION}"
        ))),
    }
}

/// Writes a temporary file, syncs it, renames it and syncs the directory.
fn write(file: &Path, written: &SavedFile) -> io::Result<()> {
    let dir = file.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(dir)?;
    let new = file.with_extension("json.new");
    let mut text = serde_json::to_vec_pretty(written)?;
    text.extend(iter::once(b'\n'));
    let mut to = fs::File::create(&new)?;
    to.write_all(&text)?;
    to.sync_all()?;
    fs::rename(&new, file)?;
    fs::File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channel(name: &str, port: u16, title: &str) -> Channel {
        let text =
            format!("name = \"{name}\"\ntitle = \"{title}\"\nto = \"udp://239.1.1.1:{port}\"\n");
        Channel::parse(&text).unwrap()
    }

    fn settings(dir: &Path) -> ChannelSettings {
        let channels = vec![channel("a", 1, "/a.ts"), channel("b", 2, "/b.ts")];
        ChannelSettings { channels, volume: Some(dir.into()), ..ChannelSettings::default() }
    }

    #[test]
    fn changes_are_in_force_after_a_start_until_they_are_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let settings = settings(dir.path());
        let names = |kept: &SavedChanges| -> Vec<String> {
            kept.channels().into_iter().map(|channel| channel.name).collect()
        };
        let kept = SavedChanges::open(&settings);
        assert_eq!((names(&kept), kept.is_changed("a")), (vec!["a".into(), "b".into()], false));
        kept.keep("a", Some(&channel("a", 1, "/other.ts"))).unwrap();
        kept.keep("b", None).unwrap();
        kept.keep("c", Some(&channel("c", 3, "/c.ts"))).unwrap();
        let again = SavedChanges::open(&settings);
        assert_eq!(again.channels(), [channel("a", 1, "/other.ts"), channel("c", 3, "/c.ts")]);
        assert!(again.is_changed("a") && again.is_changed("b") && again.is_changed("c"));
        // Back to the configuration, which has no such channel.
        for name in ["a", "b", "c"] {
            again.keep(name, again.configured(name).as_ref()).unwrap();
        }
        let last = SavedChanges::open(&settings);
        assert_eq!(last.channels(), settings.channels);
        assert!(!last.is_changed("c"));
    }

    #[test]
    fn two_never_go_to_one_address_and_a_file_that_makes_no_sense_is_put_aside() {
        let dir = tempfile::tempdir().unwrap();
        let settings = settings(dir.path());
        let kept = SavedChanges::open(&settings);
        kept.keep("c", Some(&channel("c", 2, "/c.ts"))).unwrap();
        assert_eq!(
            SavedChanges::open(&settings).channels(),
            settings.channels,
            "the configured one stays"
        );
        let file = dir.path().join(".tactus/channels.json");
        for text in ["", "{", "{\"version\": 2, \"channels\": {}}", "[]"] {
            fs::write(&file, text).unwrap();
            assert_eq!(SavedChanges::open(&settings).channels(), settings.channels);
            assert!(!file.exists() && file.with_extension("json.bad").exists());
        }
        // An invalid change does not affect the others.
        let text = r#"{"version": 1, "channels": {"a": {"name": "a"}, "c": null}}"#;
        fs::write(&file, text).unwrap();
        assert_eq!(SavedChanges::open(&settings).channels(), settings.channels);
    }
}
