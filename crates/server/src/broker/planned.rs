//! Files that the control side itself reads: deliveries of best effort whose receiver is here.
//!
//! Promise: they are admitted, read in the time left over and cut into pieces as any download is; no
//! stream is late for them. Who stops reading stops them.

use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustix::net::sockopt::set_socket_send_buffer_size;
use tactus_core::units::{Bytes, KIB};
use tactus_engine::message::VolumeId;

use super::Broker;
use super::output::Output;
use super::spec::DeliverySpec;
use crate::catalogue::{Catalogue, OpenTitle};
use crate::store::{Busy, Pending, Reading, Source};

/// Reads files of one volume.
pub struct Planned {
    broker: Broker,
    catalogue: Arc<Catalogue>,
    volume: VolumeId,
}

/// As much as the link sends of one stream in its turn: less would cost a turn for each rest. The kernel
/// doubles it for its own use, and may give less.
const BUFFER: usize = 256 * KIB as usize;

impl Planned {
    /// Reads files of `volume`, which need not be in the catalogue.
    pub fn new(broker: Broker, catalogue: &Arc<Catalogue>, volume: VolumeId) -> Self {
        Self { broker, catalogue: Arc::clone(catalogue), volume }
    }
}

impl Source for Planned {
    fn read(&self, file: Arc<OwnedFd>, len: u64) -> Pending<Result<Reading, Busy>> {
        let (broker, volume) = (self.broker.clone(), self.volume);
        let catalogue = Arc::clone(&self.catalogue);
        Box::pin(async move {
            let busy = |error: io::Error| Busy(error.to_string());
            // Where it lies is asked of its file system, which may have to look.
            let open = move || catalogue.unnamed(volume, &file, Bytes(len));
            let opened = tokio::task::spawn_blocking(open).await;
            let title = opened.map_err(|error| Busy(error.to_string()))?.map_err(busy)?;
            broker.read(title)
        })
    }
}

impl Broker {
    /// All of a title, which is not empty, for somebody here.
    ///
    /// # Errors
    /// When there is no room for one more reader.
    pub fn read(&self, title: Arc<OpenTitle>) -> Result<Reading, Busy> {
        let len = title.len;
        self.read_first(title, len)
    }

    /// The first `len` bytes of a title that has so many, for somebody here.
    ///
    /// # Errors
    /// When there is no room for one more reader.
    pub fn read_first(&self, title: Arc<OpenTitle>, len: Bytes) -> Result<Reading, Busy> {
        let grant = self.admit(&DeliverySpec::connection(self, &title, None, len));
        let mut grant = grant.map_err(|refusal| Busy(refusal.to_string()))?;
        let (ours, engines) = pair().map_err(|error| Busy(error.to_string()))?;
        // It ends when all has been sent, when it cannot be read, or when nobody reads any more; each is
        // the end of the connection.
        tokio::spawn(async move {
            drop(grant.deliver(&title, 0..len.0, Output::connection(engines)).await);
        });
        Ok(Box::new(ours))
    }
}

/// The two ends of a way through the kernel. The engine sends to any socket.
fn pair() -> io::Result<(tokio::net::UnixStream, TcpStream)> {
    let (ours, engines) = UnixStream::pair()?;
    for end in [&ours, &engines] {
        end.set_nonblocking(true)?;
    }
    set_socket_send_buffer_size(&engines, BUFFER)?;
    Ok((tokio::net::UnixStream::from_std(ours)?, TcpStream::from(OwnedFd::from(engines))))
}
