//! Accepts local clients.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags, SocketType};
use tactus_control::broker::Broker;
use tactus_control::changes::ChangeGate;
use tactus_control::local::LocalClients;
use tactus_control::recording::Recorder;
use tactus_control::socket_file::SocketFile;
use tactus_storage::catalogue::Catalogue;
use tokio::runtime::Handle;

use crate::budget::MemoryBudget;
use crate::changes::Changes;
use crate::errno::{EACCES, EAGAIN};
use crate::peer::{Admitted, Peer};
use crate::session::{self, Shared};
use crate::settings::LocalSettings;
use crate::titles::MappedTitles;

/// The listening socket of local clients.
pub struct LocalServer {
    file: SocketFile,
    listener: Arc<OwnedFd>,
    admitted: Admitted,
    shared: Shared,
    /// Connections, attached or not.
    connections: Arc<AtomicUsize>,
    connections_max: usize,
}

impl LocalServer {
    /// Listens. Programs that may write change titles through `gate`, if there is one, and record
    /// by `recorder`, if there is one.
    ///
    /// # Errors
    /// When the socket file cannot be made, or a name is unknown.
    ///
    /// # Panics
    /// Outside the runtime.
    pub fn bind(
        settings: &LocalSettings,
        clients: LocalClients,
        catalogue: &Arc<Catalogue>,
        broker: &Broker,
        gate: Option<Arc<dyn ChangeGate>>,
        recorder: Option<Recorder>,
    ) -> Result<Self> {
        let admitted = Admitted::of(settings).context("[local]")?;
        let (file, listener) = SocketFile::bind(&settings.socket, SocketType::SEQPACKET)?;
        let budget = MemoryBudget::new(settings.titles_max);
        let mapped = MappedTitles::new(clients.clone(), broker.clone(), budget.clone());
        let shared = Shared {
            clients,
            mapped,
            budget,
            catalogue: Arc::clone(catalogue),
            changes: settings.writing.as_ref().map(|own| Arc::new(Changes::new(own, gate))),
            broker: broker.clone(),
            recorder,
            data_max: settings.data_max,
            runtime: Handle::current(),
        };
        let connections_max = usize::from(settings.clients) + WAITING_MAX;
        let connections = Arc::default();
        Ok(Self {
            file,
            listener: Arc::new(listener),
            admitted,
            shared,
            connections,
            connections_max,
        })
    }

    /// Checks that [`Self::bind`] would work now, apart from a server that listens there.
    ///
    /// # Errors
    /// As [`Self::bind`].
    pub fn check(settings: &LocalSettings) -> Result<()> {
        Admitted::of(settings)?;
        SocketFile::check(&settings.socket)
    }

    /// The path of its file.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Accepts clients until what it returns is dropped.
    ///
    /// # Errors
    /// If there is no thread for it.
    pub fn serve(self) -> Result<Serving> {
        let (listener, clients) = (Arc::clone(&self.listener), self.shared.clients.clone());
        let thread = std::thread::Builder::new().name("tactus-local".to_owned());
        let accepting = thread.spawn(move || self.accept()).context("cannot serve [local]")?;
        Ok(Serving { listener, accepting: Some(accepting), clients })
    }

    fn accept(&self) {
        loop {
            let mut ready = [PollFd::new(&self.listener, PollFlags::IN)];
            rustix::event::poll(&mut ready, None).ok();
            // Shut down. A call that does not block would not say so, but that nobody waits.
            if ready[0].revents().contains(PollFlags::HUP) {
                return;
            }
            match rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC) {
                Ok(connection) => self.begin(connection),
                Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => {}
                Err(error) => {
                    tracing::warn!("cannot accept a local client: {error}");
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }

    /// Gives a connection a thread, if its process may connect.
    fn begin(&self, connection: OwnedFd) {
        let Ok(peer) = Peer::of(&connection) else { return };
        let refuse = |errno, message: &str| {
            tracing::info!(
                pid = peer.pid,
                uid = peer.uid.as_raw(),
                "local client refused: {message}"
            );
            session::refuse(&connection, errno, message).ok();
        };
        if !self.admitted.admits(&peer) {
            return refuse(EACCES, "this user may not connect; see [local] users and groups");
        }
        let place = Place(Arc::clone(&self.connections));
        if place.0.fetch_add(1, Ordering::Relaxed) >= self.connections_max {
            return refuse(EAGAIN, "too many programs are connecting");
        }
        let mut shared = self.shared.clone();
        shared.changes.take_if(|_| !self.admitted.may_write(&peer));
        let body = move || {
            let _place = place;
            if let Err(error) = session::serve(connection, &peer, &shared) {
                tracing::info!(pid = peer.pid, "local client: {error}");
            }
        };
        if let Err(error) = std::thread::Builder::new().name("tactus-local".to_owned()).spawn(body)
        {
            tracing::warn!("no thread for a local client: {error}");
        }
    }
}

/// A server that accepts clients. Dropping it ends them.
pub struct Serving {
    listener: Arc<OwnedFd>,
    accepting: Option<JoinHandle<()>>,
    clients: LocalClients,
}

impl Drop for Serving {
    fn drop(&mut self) {
        rustix::net::shutdown(&*self.listener, Shutdown::Both).ok();
        if self.accepting.take().is_some_and(|accepting| accepting.join().is_err()) {
            tracing::error!("the thread that accepts local clients has panicked");
        }
        self.clients.cut_all();
    }
}

/// A place among the connections.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Connections beside the clients that are attached: those that have not said hello.
const WAITING_MAX: usize = 16;
/// Pause after a failure to accept.
const PAUSE: Duration = Duration::from_millis(100);
