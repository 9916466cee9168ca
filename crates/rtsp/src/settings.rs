//! The settings of the RTSP server: addresses, permissions and groups.
//!
//! Promise: without an entry here, packets go to no group and to no address other than the
//! client's.

use std::net::SocketAddr;
use std::path::PathBuf;

use tactus_control::rights::{Paths, Readers};
use tactus_core::classes::ClassNumber;
use tactus_core::units::{BitRate, Nanos};
use tactus_notation::net::Net;

/// What the RTSP server starts with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RtspSettings {
    /// Listening addresses; without any, RTSP is off.
    pub addresses: Vec<SocketAddr>,
    /// Who may play.
    pub readers: Readers,
    /// Permitted multicast groups.
    pub groups: Vec<Net>,
    /// The port of RTP in a group; that of RTCP is the next.
    pub group_port: u16,
    /// The name of the interface for groups.
    pub interface: Option<String>,
    /// The hop limit of packets to a group.
    pub hops: u8,
    /// The class of the link for datagrams.
    pub class: Option<ClassNumber>,
    /// The DSCP, six bits.
    pub dscp: u8,
    /// How long the first of several datagrams may wait for the last of them.
    pub burst: Nanos,
    /// Most connections at once.
    pub connections_max: u32,
    /// Most connections from one address at once.
    pub connections_per_address_max: u32,
    /// Most sessions at once, of all clients together.
    pub sessions_max: u32,
    /// Who may record.
    pub recorders: Recorders,
    /// The reserved rate of a recording whose announcement has no rate.
    pub record_rate: BitRate,
    /// Most recordings at once.
    pub recordings_max: u32,
    /// Whether a recording may replace a title.
    pub overwrite: bool,
    /// The principals.
    pub principals: Vec<Principal>,
}

impl Default for RtspSettings {
    fn default() -> Self {
        Self {
            addresses: vec![],
            readers: Readers::default(),
            groups: vec![],
            group_port: 5004,
            interface: None,
            hops: 1,
            class: None,
            dscp: 0,
            burst: Nanos(0),
            connections_max: 10_000,
            connections_per_address_max: 100,
            // The default limit of streams, and as many sessions that wait.
            sessions_max: 16_384,
            recorders: Recorders::default(),
            record_rate: BitRate(20_000_000),
            recordings_max: 16,
            overwrite: false,
            principals: vec![],
        }
    }
}

/// Who may record (ANNOUNCE and RECORD).
#[derive(serde::Deserialize, Clone, Copy, PartialEq, Eq, Default, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Recorders {
    /// No client.
    #[default]
    Nobody,
    /// Principals with the right to record.
    Principals,
    /// Every client.
    Anyone,
}

/// A principal with a password.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Principal {
    /// Its name in logs, and its user name in players.
    pub name: String,
    /// The file that holds its password.
    pub password: PathBuf,
    /// Permitted destinations besides its own address.
    pub destinations: Vec<Net>,
    /// Whether it may record, where principals may.
    pub records: bool,
    /// Where it may play (if only principals may) and record.
    pub paths: Paths,
}
