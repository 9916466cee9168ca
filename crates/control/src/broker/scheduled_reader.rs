//! Planned reads of the control side: best-effort deliveries to a reader in this process.
//!
//! Promise: they are admitted, read in best-effort time and cut into pieces like any download. They
//! make no stream late. Dropping the reader stops them.

use std::io;
use std::net::TcpStream;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustix::net::sockopt::set_socket_send_buffer_size;
use tactus_core::units::{Bytes, KIB};
use tactus_engine::message::VolumeId;
use tactus_storage::catalogue::{Catalogue, OpenTitle};
use tactus_storage::store::{Busy, Pending, Reading, Source};

use super::Broker;
use super::output::Output;
use super::spec::DeliverySpec;

/// Reads files of one volume.
pub struct ScheduledReader {
    broker: Broker,
    catalogue: Arc<Catalogue>,
    volume: VolumeId,
}

/// The best-effort turn budget of the link for one stream: a smaller buffer would need a further
/// turn for each rest. The kernel doubles the size for its own use, and may give less.
const BUFFER: usize = 256 * KIB as usize;

impl ScheduledReader {
    /// Reads files of `volume`, which need not be in the catalogue.
    pub fn new(broker: Broker, catalogue: &Arc<Catalogue>, volume: VolumeId) -> Self {
        Self { broker, catalogue: Arc::clone(catalogue), volume }
    }
}

impl Source for ScheduledReader {
    fn read(&self, file: Arc<OwnedFd>, len: u64) -> Pending<Result<Reading, Busy>> {
        let (broker, volume) = (self.broker.clone(), self.volume);
        let catalogue = Arc::clone(&self.catalogue);
        Box::pin(async move {
            let busy = |error: io::Error| Busy(error.to_string());
            // The position on the disk comes from the file system, which may block.
            let open = move || catalogue.unnamed(volume, &file, Bytes(len));
            let opened = tokio::task::spawn_blocking(open).await;
            let title = opened.map_err(|error| Busy(error.to_string()))?.map_err(busy)?;
            broker.read(title)
        })
    }
}

impl Broker {
    /// Reads a whole title, which is not empty, for a reader in this process.
    ///
    /// # Errors
    /// If there is no room for another reader.
    pub fn read(&self, title: Arc<OpenTitle>) -> Result<Reading, Busy> {
        let len = title.len;
        self.read_first(title, len)
    }

    /// Reads the first `len` bytes of a title that is at least as long, for a reader in this
    /// process.
    ///
    /// # Errors
    /// If there is no room for another reader.
    pub fn read_first(&self, title: Arc<OpenTitle>, len: Bytes) -> Result<Reading, Busy> {
        self.read_range(title, 0..len.0)
    }

    /// Reads `range` of a title, at least one byte of it, for a reader in this process.
    ///
    /// # Errors
    /// If there is no room for another reader.
    pub fn read_range(&self, title: Arc<OpenTitle>, range: Range<u64>) -> Result<Reading, Busy> {
        let len = Bytes(range.end - range.start);
        let grant = self.admit(&DeliverySpec::connection(self, &title, None, len));
        let mut grant = grant.map_err(|refusal| Busy(refusal.to_string()))?;
        let (ours, engines) = pair().map_err(|error| Busy(error.to_string()))?;
        // The read ends if all bytes are sent, the title cannot be read, or the reader is dropped.
        // Each of them ends the connection.
        tokio::spawn(async move {
            drop(grant.deliver(&title, range, None, Output::connection(engines)).await);
        });
        Ok(Box::new(ours))
    }
}

/// The two ends of a connection through the kernel. The engine sends to any socket.
fn pair() -> io::Result<(tokio::net::UnixStream, TcpStream)> {
    let (ours, engines) = UnixStream::pair()?;
    for end in [&ours, &engines] {
        end.set_nonblocking(true)?;
    }
    set_socket_send_buffer_size(&engines, BUFFER)?;
    Ok((tokio::net::UnixStream::from_std(ours)?, TcpStream::from(OwnedFd::from(engines))))
}
