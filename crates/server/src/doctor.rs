//! `doctor`: what the host gives the server, what it costs where it gives less, and how to change it.
//!
//! Promise: it changes nothing, and every finding that is not ok says what leaving it costs and the
//! exact command that changes it. Looking (`tactus_sys::probe`) and judging ([`judge`]) are apart, so
//! that each judgement is tested on facts that this host does not have.

pub mod judge;

use std::io;
use std::path::Path;

use tactus_core::units::{Bytes, Nanos};
use tactus_sys::packets::back_end::{self, BackEnd};
use tactus_sys::packets::outlet;
use tactus_sys::probe::{self, Machine, Network, Volume};

use crate::broker::UDP_BUFFER;
use crate::config::{ARENA_MAX_AUTO, Auto, Config, MODEL_FILE};
use crate::engine::{self, FLASH_BLOCK};
use crate::measure::model_file;

/// How good one thing is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it should be.
    Ok,
    /// The server works, and gives up something that is named.
    Warn,
    /// A promise cannot be kept on this host.
    Bad,
}

/// What was found about one thing.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Finding {
    /// A short fixed name, for programs.
    pub check: &'static str,
    /// How good it is.
    pub state: State,
    /// What was found.
    pub found: String,
    /// What it costs to leave it so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<&'static str>,
    /// What changes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, state: State::Ok, found: found.into(), cost: None, fix: None }
    }

    fn warn(
        check: &'static str,
        found: impl Into<String>,
        cost: &'static str,
        fix: impl Into<String>,
    ) -> Self {
        let fix = Some(fix.into());
        Self { check, state: State::Warn, found: found.into(), cost: Some(cost), fix }
    }

    fn bad(
        check: &'static str,
        found: impl Into<String>,
        cost: &'static str,
        fix: impl Into<String>,
    ) -> Self {
        Self { state: State::Bad, ..Self::warn(check, found, cost, fix) }
    }
}

/// Everything that is judged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Facts {
    /// The machine.
    pub machine: Machine,
    /// Its network.
    pub network: Network,
    /// The directory that is to be served, if one was named.
    pub volume: Option<Volume>,
    /// What its model file says, or that there is none, or what is wrong with it.
    pub model: Option<Result<String, String>>,
    /// What a datagram costs by each back end, or why it cannot be had.
    pub packets: Vec<(BackEnd, Result<Nanos, String>)>,
    /// What an outlet of datagrams may hold, where it can be found out.
    pub outlet_buffer: Option<Bytes>,
}

/// What the server wants of the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Needs {
    /// Memory for blocks, and for uploads on their way to the disk.
    pub arena: Bytes,
    /// Open files: connections, streams, blocks in the page cache, and some.
    pub descriptors: u64,
    /// Whether `[link] rate` is configured, so that the interface need not tell.
    pub link_is_set: bool,
}

impl Facts {
    /// Looks at this host, and at `dir` if there is one.
    ///
    /// # Errors
    /// When `dir` is no directory that can be entered.
    pub fn look(dir: Option<&Path>) -> io::Result<Self> {
        let volume = dir.map(probe::volume).transpose()?;
        let model = volume.as_ref().and_then(|volume| model_at(&volume.path.join(MODEL_FILE)));
        let packets = back_end::measure(&BackEnd::ALL)
            .into_iter()
            .map(|found| (found.back_end, found.single));
        let (machine, network) = (probe::machine(), probe::network());
        let outlet_buffer = outlet::granted(UDP_BUFFER).ok().map(|bytes| Bytes(bytes as u64));
        Ok(Self { machine, network, volume, model, packets: packets.collect(), outlet_buffer })
    }
}

fn model_at(path: &Path) -> Option<Result<String, String>> {
    match model_file::read(path) {
        Ok(file) => Some(Ok(format!("measured on {} on {}", file.device, file.measured))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => Some(Err(error.to_string())),
    }
}

impl Needs {
    /// What a server with `config` wants on a machine with `free` bytes of memory.
    pub fn of(config: &Config, free: Bytes) -> Self {
        let arena = match config.memory.arena {
            Auto::Set(size) => size,
            Auto::Auto => Bytes(free.0 / 4).min(ARENA_MAX_AUTO),
        };
        let taking = config.volumes.iter().filter(|volume| volume.uploads);
        let shares = taking.map(|volume| volume.write_share.0).sum::<u64>();
        Self {
            arena: Bytes(arena.0 + shares),
            descriptors: engine::open_files(config, arena.0 / FLASH_BLOCK.0),
            link_is_set: config.link.rate != Auto::Auto,
        }
    }
}
