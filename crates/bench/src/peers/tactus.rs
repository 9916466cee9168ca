//! Tactus itself: the release binary beside this one, with a configuration file.
//!
//! Promise: it is driven through its command line and its configuration alone, as an operator
//! would; nothing of it is linked into the bench.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::SocketAddrV4;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use tactus_core::units::{BitRate, Bytes, Nanos};

use super::{PORT, Peer, Server, Setting, TOKEN};
use crate::command;
use crate::priority;
use crate::titles::Titles;

/// What a bench may turn; `None` leaves the server's own default.
#[derive(Clone, Debug, Default)]
pub struct Tuning {
    /// How often a stream sends.
    pub tick: Option<Nanos>,
    /// Media time sent at once at the start.
    pub start_burst: Option<Nanos>,
    /// Memory for blocks.
    pub arena: Option<Bytes>,
    /// One turn of the disk.
    pub cycle: Option<Nanos>,
    /// The size of a read.
    pub block: Option<Bytes>,
    /// Requests at the device at once.
    pub depth: Option<u32>,
    /// Part of each cycle that streams may fill, in percent.
    pub disk_budget: Option<u32>,
    /// Part of each cycle that uploads get when streams want all of it, in percent.
    pub upload_floor: Option<u32>,
    /// Part of each real-time core that streams may fill, in percent.
    pub cpu_budget: Option<u32>,
    /// Where it listens; by default where every server of a bench does.
    pub port: Option<u16>,
    /// The cores of the real-time side, and the servers on each; all on the first core by default.
    pub placement: Option<String>,
    /// Whether its servers move by themselves.
    pub balance: bool,
    /// Streams beside those of the scene.
    pub further: usize,
    /// Whether blocks are sent by reference from the page cache.
    pub sendfile: Option<bool>,
    /// Where programs of the same machine connect.
    pub local: Option<PathBuf>,
    /// Leaves everything that may be left to the server's defaults, its placement too.
    pub defaults: bool,
    /// Further sections of the configuration.
    pub sections: String,
}

/// Tactus with one tuning.
#[derive(Clone, Debug)]
pub struct Tactus {
    /// What tells this tuning from the others of the same report.
    pub label: String,
    /// The tuning.
    pub tuning: Tuning,
}

impl Peer for Tactus {
    fn name(&self) -> String {
        match self.label.is_empty() {
            true => "tactus".into(),
            false => format!("tactus ({})", self.label),
        }
    }

    fn settings(&self, setting: &Setting<'_>) -> Result<String> {
        Ok(self.configuration(setting))
    }

    fn start(&self, setting: &Setting<'_>) -> Result<Server> {
        let binary = setting.tactus;
        must_exist(binary)?;
        let folder = tempfile::Builder::new().prefix("tactus-bench-tactus-").tempdir()?;
        let file = folder.path().join("tactus.toml");
        fs::write(&file, self.configuration(setting))?;
        let token = folder.path().join(TOKEN_FILE);
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(token)?
            .write_all(TOKEN.as_bytes())?;
        let mut command =
            priority::on_cores(setting.cores, setting.group, &binary.to_string_lossy());
        command.arg("serve").arg("--config").arg(&file);
        Server::start(&command, folder, setting.wire, self.address(setting))
    }

    fn target(&self, titles: &Titles, number: usize, rate: BitRate) -> String {
        format!("{}?rate={}", titles.target(number), rate.0)
    }

    fn acks_are_durable(&self) -> bool {
        true
    }
}

/// Beside the configuration: what uploads must say.
const TOKEN_FILE: &str = "ingest.token";
/// Most titles that a bench makes popular, and then some.
const TITLES_HELD: usize = 32;

impl Tactus {
    fn address(&self, setting: &Setting<'_>) -> SocketAddrV4 {
        SocketAddrV4::new(setting.wire.server_address(), self.tuning.port.unwrap_or(PORT))
    }

    fn configuration(&self, setting: &Setting<'_>) -> String {
        let tuning = &self.tuning;
        let connections = setting.streams + 4_096;
        let first = setting.cores.chars().take_while(char::is_ascii_digit).collect::<String>();
        let all = r#"["disk.0", "block", "delivery", "link"]"#;
        let placement = tuning
            .placement
            .clone()
            .unwrap_or_else(|| format!("[{{ cpu = {first}, servers = {all} }}]"));
        let mut text = format!(
            "[http]\n\
             address = \"{}\"\n\
             connections_max = {connections}\n\
             connections_per_address_max = {connections}\n\n\
             [admin]\n\
             address = \"off\"\n\n\
             [link]\n\
             rate = \"100 Gbit/s\"\n",
            self.address(setting),
        );
        if !tuning.defaults {
            // Titles that are held take places of the table too.
            let streams = setting.streams.max(64) + TITLES_HELD + tuning.further;
            text.push_str(&format!("\n[cores]\nplacement = {placement}\n"));
            // Older binaries, against which this one is measured, have one core and no such key.
            if tuning.placement.is_some() && !tuning.balance {
                text.push_str("balance = \"off\"\n");
            }
            text.push_str(&format!("\n[memory]\nstreams_max = {streams}\n"));
        }
        let bytes = |size: Bytes| format!("\"{} B\"", size.0);
        let nanos = |span: Nanos| format!("\"{} ns\"", span.0);
        let percent = |share: u32| format!("\"{share} %\"");
        let mut section = |head: &str, keys: &[(&str, Option<String>)]| {
            text.push_str(head);
            for (key, value) in keys {
                if let Some(value) = value {
                    text.push_str(&format!("{key} = {value}\n"));
                }
            }
        };
        let head = if tuning.defaults && tuning.arena.is_some() { "\n[memory]\n" } else { "" };
        section(head, &[("arena", tuning.arena.map(bytes))]);
        section("\n[cpu]\n", &[("budget", tuning.cpu_budget.map(percent))]);
        section(
            "\n[rate.asked]\n",
            &[
                ("tick", tuning.tick.map(nanos)),
                ("start_burst", tuning.start_burst.map(nanos)),
                // All clients of a bench share one address.
                ("client_share", Some(percent(100))),
            ],
        );
        section("\n[best_effort]\n", &[("client_share", Some(percent(100)))]);
        let path = format!("\"{}\"", setting.titles.root().display());
        section(
            "\n[[volume]]\n",
            &[
                ("path", Some(path)),
                ("mount", Some("\"/\"".into())),
                (
                    "sendfile",
                    tuning.sendfile.map(|on| if on { "\"on\"" } else { "\"off\"" }.into()),
                ),
                ("cycle", tuning.cycle.map(nanos)),
                ("block", tuning.block.map(bytes)),
                ("depth", tuning.depth.map(|depth| depth.to_string())),
                ("budget", tuning.disk_budget.map(percent)),
                ("upload_floor", tuning.upload_floor.map(percent)),
                ("uploads", setting.uploads.then(|| "true".into())),
            ],
        );
        if let Some(local) = &tuning.local {
            text.push_str(&format!("\n[local]\npath = \"{}\"\n", local.display()));
        }
        text.push_str(&tuning.sections);
        if setting.uploads {
            text.push_str(&format!(
                "\n[upload]\nopen_per_principal_max = 10000\n\n\
                 [[upload.principal]]\nname = \"bench\"\ntoken_file = \"{TOKEN_FILE}\"\n"
            ));
        }
        text
    }
}

/// Lets Tactus measure the empty volume `root`, as an operator does with a new disk; the model
/// stays on the volume, where the server finds it.
pub fn measure_volume(binary: &Path, root: &Path, fast: bool) -> Result<()> {
    must_exist(binary)?;
    let mut measure = Command::new(binary);
    measure.arg("measure").arg(root).args(fast.then_some("--fast"));
    command::finish(&mut measure).map(drop)
}

fn must_exist(binary: &Path) -> Result<()> {
    ensure!(
        binary.is_file(),
        "{} is missing: build it with `cargo build --release -p tactus`",
        binary.display()
    );
    Ok(())
}
