//! The listening end of a Unix socket.

use std::io;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::net::SocketType;
use tactus_control::socket_file::{SocketFile, UnixSocket};
use tokio::net::UnixStream;

use super::{Client, Credentials, Peer};

/// A listening Unix socket with its file.
#[derive(Debug)]
pub struct UnixListener {
    listener: tokio::net::UnixListener,
    file: SocketFile,
}

impl UnixListener {
    /// Creates the socket file and listens.
    ///
    /// # Errors
    /// As [`SocketFile::bind`].
    ///
    /// # Panics
    /// Outside the runtime.
    pub fn bind(wanted: &UnixSocket) -> Result<Self> {
        let (file, socket) = SocketFile::bind(wanted, SocketType::STREAM)?;
        let listener = tokio::net::UnixListener::from_std(socket.into());
        let listener = listener.context("cannot wait for connections of a socket file")?;
        Ok(Self { listener, file })
    }

    /// The path of its file.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    pub(super) async fn accept(&self) -> io::Result<(UnixStream, Client)> {
        let (socket, _) = self.listener.accept().await?;
        let peer = socket.peer_cred()?;
        let (pid, uid, gid) = (peer.pid().unwrap_or(0), peer.uid(), peer.gid());
        Ok((socket, Client { peer: Peer::Process(Credentials { pid, uid, gid }), port: None }))
    }
}
