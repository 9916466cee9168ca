//! The servers that are compared: Tactus and nginx, driven alike.
//!
//! Promise: each gets the same titles, cores, namespaces and file limits; what differs is its
//! settings, which the report prints in full.

mod nginx;
mod plain_sender;
mod process;
mod tactus;

use std::net::SocketAddrV4;
use std::path::Path;

use anyhow::Result;
use tactus_core::units::BitRate;

use crate::netns::Wire;
use crate::titles::Titles;

pub use nginx::{Nginx, NginxApart, NginxStyle};
pub use plain_sender::PlainSender;
pub use process::Server;
pub use tactus::{Tactus, Tuning, measure_volume};

/// What every server is told.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    /// The wire whose server side it lives on.
    pub wire: &'a Wire,
    /// What it serves.
    pub titles: &'a Titles,
    /// The rate of every stream.
    pub rate: BitRate,
    /// The cores that it may use, as a list such as `0` or `0-1`.
    pub cores: &'a str,
    /// How many streams at most.
    pub streams: usize,
    /// The binary of Tactus.
    pub tactus: &'a Path,
    /// A group of processes (a directory of the control group file system) that it joins first.
    pub group: Option<&'a Path>,
    /// Whether it takes uploads below `UPLOADS`.
    pub uploads: bool,
}

/// A server under test.
pub trait Peer {
    /// What the report calls it.
    fn name(&self) -> String;

    /// Its settings in full, as text.
    fn settings(&self, setting: &Setting<'_>) -> Result<String>;

    /// Starts it; it answers when this returns.
    fn start(&self, setting: &Setting<'_>) -> Result<Server>;

    /// The target of a request for title `number` at the rate.
    fn target(&self, titles: &Titles, number: usize, rate: BitRate) -> String;

    /// The port on which it takes uploads.
    fn upload_port(&self) -> u16 {
        PORT
    }

    /// Whether an upload that it has acknowledged survives a loss of power.
    fn acks_are_durable(&self) -> bool;
}

/// The directory below a server's root that takes uploads.
pub const UPLOADS: &str = "uploads";
/// What uploads say to be let in.
pub const TOKEN: &str = "a-bench-may-upload-here";

/// The port on which every server listens.
pub const PORT: u16 = 8080;

/// Where a second process of a server listens.
const PORT_BESIDE: u16 = 8081;

/// Where a server on `wire` listens.
pub fn address(wire: &Wire) -> SocketAddrV4 {
    SocketAddrV4::new(wire.server_address(), PORT)
}
