//! `doctor`: the properties of the host, the cost of each shortcoming, and its remedy.
//!
//! Promise: it changes nothing; of a disk without a model it reads for a moment, as a start does,
//! with scratch data where no title is large enough. Every finding that is not ok states the cost
//! of leaving it and the exact command that changes it. Probing (`tactus_sys::probe`) and judging
//! ([`judge`]) are apart, so that each judgement is tested on facts that this host does not have.

pub mod judge;

use std::io;
use std::path::Path;

use tactus_config::Config;
use tactus_control::broker::UDP_BUFFER;
use tactus_control::engine::{self, BlockMemory, FLASH_BLOCK};
use tactus_control::measure::model_file;
use tactus_control::settings::{ARENA_MAX_AUTO, MODEL_FILE};
use tactus_core::units::{Bytes, Nanos};
use tactus_notation::Auto;
use tactus_sys::memory::Memory;
use tactus_sys::packets::back_end::{self, BackEnd};
use tactus_sys::packets::udp_output;
use tactus_sys::probe::{self, Machine, Network, Volume};

/// The state of one checked property.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it should be.
    Ok,
    /// The server works, with a named restriction.
    Warn,
    /// A promise cannot be kept on this host.
    Bad,
}

/// The result of one check.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Finding {
    /// A short fixed name, for programs.
    pub check: &'static str,
    /// Its state.
    pub state: State,
    /// What was found.
    pub found: String,
    /// The cost of leaving it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<&'static str>,
    /// The command that changes it.
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

/// All facts to judge.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Facts {
    /// The machine.
    pub machine: Machine,
    /// Its network.
    pub network: Network,
    /// The directory to serve, if one was named.
    pub volume: Option<Volume>,
    /// The device and date in its model file, none without a file, or the file's error.
    pub model: Option<Result<String, String>>,
    /// The cost of a datagram with each back end, or why the back end is unavailable.
    pub packets: Vec<(BackEnd, Result<Nanos, String>)>,
    /// The buffer of a UDP output, if it can be determined.
    pub udp_output_buffer: Option<Bytes>,
}

/// The server's needs on this host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Requirements {
    /// Memory for blocks, and for uploads under way.
    pub arena: Bytes,
    /// Open files: connections, streams, blocks in the page cache, and a reserve.
    pub descriptors: u64,
    /// Blocks that are sent by reference from the page cache; pipes hold the references.
    pub cached: Bytes,
    /// Whether a disk has an arm.
    pub has_arm: bool,
    /// Whether `[link] rate` is configured, so that the speed of the interface is not needed.
    pub link_is_set: bool,
}

impl Facts {
    /// Probes this host, and `dir` if there is one.
    ///
    /// # Errors
    /// When `dir` is not an accessible directory.
    pub fn look(dir: Option<&Path>) -> io::Result<Self> {
        let volume = dir.map(probe::volume).transpose()?;
        let model = volume.as_ref().and_then(|volume| model_at(&volume.path.join(MODEL_FILE)));
        let packets = back_end::measure(&BackEnd::ALL)
            .into_iter()
            .map(|found| (found.back_end, found.single));
        let (machine, network) = (probe::machine(), probe::network());
        let udp_output_buffer =
            udp_output::granted(UDP_BUFFER).ok().map(|bytes| Bytes(bytes as u64));
        Ok(Self { machine, network, volume, model, packets: packets.collect(), udp_output_buffer })
    }
}

fn model_at(path: &Path) -> Option<Result<String, String>> {
    match model_file::read(path) {
        Ok(file) => Some(Ok(format!("measured on {} on {}", file.device, file.measured))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => Some(Err(error.to_string())),
    }
}

impl Requirements {
    /// The needs of a server with `config` on a machine with this `memory`.
    pub fn of(config: &Config, memory: Memory) -> Self {
        let settings = config.engine();
        let blocks = match engine::block_memory(&settings, memory) {
            Ok(blocks) if !config.volumes.is_empty() => blocks,
            // No volume is known; the findings name one that is not accessible.
            Ok(_) | Err(_) => {
                let arena = match config.memory.arena {
                    Auto::Set(size) => size,
                    Auto::Auto => Bytes(memory.room() / 4).min(ARENA_MAX_AUTO),
                };
                let cached_blocks = arena.0 / FLASH_BLOCK.0;
                BlockMemory { arena, cached_blocks, cached: arena, has_arm: false }
            }
        };
        let taking = config.volumes.iter().filter(|volume| volume.uploads);
        let shares = taking.map(|volume| volume.write_share.0).sum::<u64>();
        Self {
            arena: Bytes(blocks.arena.0 + shares),
            descriptors: engine::open_files(&settings, blocks.cached_blocks),
            cached: blocks.cached,
            has_arm: blocks.has_arm,
            link_is_set: config.link.rate != Auto::Auto,
        }
    }
}

#[cfg(test)]
mod tests;
