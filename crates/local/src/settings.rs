//! The settings of local clients: `[local]`.

use tactus_control::rights::Rights;
use tactus_control::socket_file::UnixSocket;
use tactus_core::units::{Bytes, MIB};

/// Where local clients connect, and who may.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LocalSettings {
    /// The socket file.
    pub socket: UnixSocket,
    /// Most clients at once.
    pub clients: u16,
    /// Most data that one client may share.
    pub data_max: Bytes,
    /// Most memory of titles that clients have mapped or build.
    pub titles_max: Bytes,
    /// Users that may connect, by name or number, besides root and the server's own.
    pub users: Vec<String>,
    /// Groups whose members may connect, by name or number.
    pub groups: Vec<String>,
    /// Who may write, if anybody may.
    pub writing: Option<WriteSettings>,
}

/// Which programs may write, and as whom.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WriteSettings {
    /// Users whose programs may write, by name or number; they may connect, too.
    pub users: Vec<String>,
    /// Groups whose members may write, by name or number; they may connect, too.
    pub groups: Vec<String>,
    /// The principal that owns what they write.
    pub principal: String,
    /// What they may change.
    pub rights: Rights,
}

/// Clients at once by default.
pub const CLIENTS: u16 = 8;

/// Titles in memory by default.
pub const TITLES_MAX: Bytes = Bytes(256 * MIB);

/// Data of one client by default.
pub const DATA_MAX: Bytes = Bytes(64 * MIB);

/// The principal that owns what programs write, by default.
pub const PRINCIPAL: &str = "local";
