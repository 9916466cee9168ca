//! The whole server: engine, catalogue, HTTP and metrics, from a configuration to its end.
//!
//! Promise: either everything runs and all addresses are bound, or an error says what to do. At the
//! end the server accepts no new connections, running deliveries may finish within the drain limit,
//! and the rest is then stopped.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use rustix::process::{Resource, Rlimit};
use rustix::thread::CpuSet;
use tactus_config::{Config, ConfigFile};
use tactus_control::broker::Broker;
use tactus_control::changes::ChangeGate;
use tactus_control::engine::{self, Engine, WritePath};
use tactus_control::pins::Pins;
use tactus_control::recording::Recorder;
use tactus_control::socket_file::UnixSocket;
use tactus_control::{indexing, placement};
use tactus_http::gate::UploadGate;
use tactus_http::settings::{Origins, PublicUrl};
use tactus_http::{
    self, Control, Counters, Hosts, Internal, Limits, Site, Store, UnixListener, Uploads,
};
use tactus_local::server::LocalServer;
use tactus_notation::Auto;
use tactus_notation::units::exact;
use tactus_playout::channels::Channels;
use tactus_playout::classes::Classes;
use tactus_playout::ingest::Recordings;
use tactus_playout::reload::Reload;
use tactus_rtsp::Rtsp;
use tactus_storage::catalogue::{self, Catalogue, CatalogueRules, Root};
use tactus_storage::store::{Manifests, Medium};
use tactus_sys::{activation, tcp};
use tokio::task::JoinSet;

use super::check::bind_error;
use super::watch::VolumeWatches;
use crate::metrics::{MetricsEndpoint, MetricsSources, PublicPages};
use crate::supervisor;

use super::signals::Signals;

/// A server whose addresses are bound and whose cores run.
pub(super) struct Server {
    engine: Engine,
    config: Config,
    catalogue: Arc<Catalogue>,
    uploads: Option<Uploads>,
    control: Control,
    recorder: Option<Recorder>,
    channels: Channels,
    classes: Classes,
    pins: Pins,
    reload: Option<Reload>,
    listeners: Vec<TcpListener>,
    /// Listeners for proxies that speak the PROXY protocol.
    proxied: Vec<TcpListener>,
    admin: Option<TcpListener>,
    unix: Vec<UnixListener>,
    admin_unix: Vec<UnixListener>,
    rtsp: Option<Rtsp>,
    rtsp_listeners: Vec<TcpListener>,
    local: Option<LocalServer>,
}

impl Server {
    /// Takes memory and cores, opens the volumes and binds the addresses. A reload reads `file`
    /// again, if there is one.
    pub(super) async fn open(config: Config, file: Option<ConfigFile>) -> Result<Self> {
        raise_limits();
        let mut passed = PassedSockets::take()?;
        let listeners = match passed.http.is_empty() {
            true => config.http.addresses.iter().map(|address| bind(*address)).collect(),
            false => Ok(std::mem::take(&mut passed.http)),
        };
        let listeners: Vec<_> = listeners?;
        let proxied = config.http.proxy_protocol.iter().map(|address| bind(*address));
        let proxied = proxied.collect::<Result<Vec<_>>>()?;
        let rtsp_listeners = match passed.rtsp.is_empty() {
            true => config.rtsp.addresses.iter().map(|address| bind_rtsp(*address)).collect(),
            false => Ok(std::mem::take(&mut passed.rtsp)),
        };
        let rtsp_listeners: Vec<_> = rtsp_listeners?;
        let admin = match (passed.admin, config.admin.address) {
            (Some(passed), _) => Some(passed),
            (None, Some(address)) => admin_listener(address)?,
            (None, None) => None,
        };
        let listen = |all: &[UnixSocket]| all.iter().map(UnixListener::bind).collect::<Result<_>>();
        let unix = listen(&config.http.unix_sockets)?;
        let admin_unix = listen(&config.admin.unix_sockets)?;
        let roots = config
            .volumes
            .iter()
            .map(|volume| Root { mount: volume.mount.clone(), directory: volume.path.clone() });
        let rules = CatalogueRules {
            probe: tactus_media::facts,
            sums: Manifests::look_up,
            ..CatalogueRules::default()
        };
        let catalogue = Catalogue::with_volumes(&roots.collect::<Vec<_>>(), rules)
            .context("cannot open a volume; check its path and permissions")?;
        let mut engine =
            engine::start(&config.engine()).map_err(|error| start_error(error, &config))?;
        engine.degraded.extend(too_few_files(&config, &engine));
        leave_cores_to_the_engine(&engine);
        let media = |write_path: &Option<WritePath>| {
            write_path.clone().map(|write_path| Arc::new(write_path) as Arc<dyn Medium>)
        };
        let media: Vec<_> = engine.write_paths.iter().map(media).collect();
        let uploads = Uploads::open(&config.upload_settings(), &media).await?;
        let uploads = uploads.map(|uploads| uploads.with_watchdog(engine.watchdog.clone()));
        let catalogue = Arc::new(catalogue);
        if let Err(error) = catalogue.begin_survey() {
            tracing::warn!(
                "titles are not inspected in the background: {error}; a title's rate is found at \
                 its first request"
            );
        }
        if let Some(uploads) = &uploads {
            uploads.show_unfinished(&config.volumes, &catalogue);
            uploads.read_by_plan(&engine.broker, &catalogue);
        }
        let recorder = uploads.as_ref().map(|uploads| {
            let recorder = Recorder::new(engine.broker.clone(), Arc::clone(&uploads.volumes));
            recorder.finish_left();
            recorder
        });
        let mut control = Control::default();
        if let (Some(uploads), Some(recorder)) = (&uploads, &recorder) {
            let (catalogue, volumes) = (Arc::clone(&catalogue), Arc::clone(&uploads.volumes));
            let roots = config.volumes.iter().map(|volume| volume.path.clone()).collect();
            let recordings = Recordings::new(roots, catalogue, volumes, recorder.clone());
            recordings.begin_configured(&config.recordings);
            control.recordings = Some(recordings);
        } else if !config.recordings.is_empty() {
            tracing::error!("nothing is recorded: no volume takes uploads");
        }
        let stores = uploads.as_ref().map_or(&[][..], |uploads| &uploads.volumes);
        indexing::begin(&catalogue, &engine.broker, stores);
        let channels = Channels::begin(&config.channel_settings(), &catalogue, &engine.broker);
        let pins = Pins::begin(&config.pinned, &catalogue, &engine.broker);
        let classes = Classes::new(&config.classes, &engine.broker, &engine.counters.classes);
        let reload = file.map(|file| {
            let placer = engine.placer.clone();
            Reload::new(move || file.reread(), classes.clone(), channels.clone(), placer)
        });
        control.channels = Some(channels.clone());
        control.classes = Some(classes.clone());
        control.pins = Some(pins.clone());
        control.placer = Some(engine.placer.clone());
        control.reload = reload.clone();
        let rtsp = match rtsp_listeners.is_empty() {
            true => None,
            false => Some(Rtsp::new(&config.rtsp, &catalogue, &engine.broker, recorder.clone())?),
        };
        let local = match (&config.local, &engine.local) {
            (Some(settings), Some(clients)) => {
                let gate = |uploads: &Uploads| -> Arc<dyn ChangeGate> {
                    Arc::new(UploadGate::new(uploads.clone(), Arc::clone(&catalogue)))
                };
                let (clients, gate) = (clients.clone(), uploads.as_ref().map(gate));
                let recorder = recorder.clone();
                let bound = LocalServer::bind(
                    settings,
                    clients,
                    &catalogue,
                    &engine.broker,
                    gate,
                    recorder,
                );
                Some(bound?)
            }
            _ => None,
        };
        Ok(Self {
            engine,
            config,
            catalogue,
            uploads,
            control,
            recorder,
            channels,
            classes,
            pins,
            reload,
            listeners,
            proxied,
            admin,
            unix,
            admin_unix,
            rtsp,
            rtsp_listeners,
            local,
        })
    }

    /// The addresses of HTTP.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    /// Addresses for the PROXY protocol.
    pub(super) fn proxied_addresses(&self) -> Vec<SocketAddr> {
        self.proxied.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    /// The addresses of RTSP.
    pub(super) fn rtsp_addresses(&self) -> Vec<SocketAddr> {
        self.rtsp_listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    /// The address of metrics and status, if any.
    pub(super) fn admin_address(&self) -> Option<SocketAddr> {
        let own = self.admin.as_ref().and_then(|listener| listener.local_addr().ok());
        own.or_else(|| self.config.admin.on_http.then(|| self.addresses().first().copied())?)
    }

    /// The socket files of HTTP, and of metrics and status.
    pub(super) fn unix_sockets(&self) -> [Vec<PathBuf>; 2] {
        [&self.unix, &self.admin_unix]
            .map(|all| all.iter().map(|listener| listener.path().to_owned()).collect())
    }

    /// Whether the server takes uploads.
    pub(super) fn takes_uploads(&self) -> bool {
        self.uploads.as_ref().is_some_and(Uploads::may_anybody)
    }

    /// Problems that make a strict server refuse to start.
    pub(super) fn problems(&self) -> Vec<String> {
        let uploads = self.config.volumes.iter().zip(0..).filter_map(|(volume, index)| {
            let trouble = self.uploads.as_ref()?.trouble(index)?;
            volume.uploads.then(|| format!("{}: {trouble}", volume.path.display()))
        });
        let all = self.engine.degraded.iter().cloned().chain(uploads);
        let nobody = self.config.volumes.iter().any(|volume| volume.uploads)
            && !self.takes_uploads()
            && self.recorder.is_none();
        all.chain(
            nobody.then(|| "uploads are on, but no [[upload.principal]] may upload".to_owned()),
        )
        .collect()
    }

    /// Refusals of the host, with their effects.
    pub(super) fn degraded(&self) -> &[String] {
        &self.engine.degraded
    }

    /// Serves until `end`, then drains.
    pub(super) async fn serve(self, end: impl Future<Output = ()>, signals: Signals) -> Result<()> {
        let counters = Arc::new(Counters::default());
        let limits = Limits::from(&self.config.http);
        let channels = self.channels;
        let recordings = self.control.recordings.clone();
        let figures = MetricsEndpoint::new(MetricsSources {
            engine: &self.engine,
            config: &self.config,
            catalogue: Arc::clone(&self.catalogue),
            http: Arc::clone(&counters),
            classes: self.classes,
            pins: self.pins,
            recordings: recordings.clone(),
            recorder: self.recorder.clone(),
            uploads: self.uploads.clone(),
            channels: Some(channels.clone()),
            rtsp: self.rtsp.clone(),
        });
        let figures: Arc<dyn Internal> = Arc::new(figures);
        let broker = self.engine.broker.clone();
        let watching = tokio::spawn(signals.watch(self.reload));
        let uploads = self.uploads.as_ref();
        let watch = VolumeWatches::begin(&self.config, &self.catalogue, uploads, &self.engine);
        let forgetting = tokio::spawn(forget_changed(Arc::clone(&self.catalogue), broker));
        let store = Store {
            catalogue: self.catalogue,
            broker: self.engine.broker.clone(),
            rates: self.config.rate.clone(),
            listing: self.config.http.listing,
            uploads: self.uploads.clone(),
            control: self.control,
            watchdog: self.engine.watchdog.clone(),
            recorder: self.recorder,
        };
        let site = |limits: Limits, internal: Arc<dyn Internal>, store: Option<Store>| {
            Site::new(limits, Arc::clone(&counters), store, internal)
        };
        // Row C03: by default, status is served at the admin address only. The HTTP address does
        // not serve it to a local proxy either, because the proxy's clients would see it.
        let public: Arc<dyn Internal> = match self.config.admin.on_http {
            true => Arc::clone(&figures),
            false => Arc::new(PublicPages(channels.clone())),
        };
        // The admin address has no password: the check of host names is what keeps other sites'
        // pages out.
        let address = self.admin.as_ref().and_then(|listener| listener.local_addr().ok());
        let address = address.map_or(Ipv4Addr::LOCALHOST.into(), |address| address.ip());
        let hosts = Hosts::Local { named: self.config.admin.allowed_hosts.clone(), address };
        // Pages of other sites cannot read it either: `allowed_origins` and `public_url` apply only
        // to titles.
        let (origins, public_url) = (Origins::default(), PublicUrl::default());
        let limits_of_admin = Limits { hosts, origins, public: public_url, ..limits.clone() };
        let admin = site(limits_of_admin, figures, Some(store.clone()));
        let admin = Arc::new(admin.without_titles());
        let public = Arc::new(site(limits, public, Some(store)));
        let mut serving = JoinSet::new();
        for listener in self.listeners {
            serving.spawn(tactus_http::serve(listen(listener)?, Arc::clone(&public)));
        }
        for listener in self.proxied {
            serving.spawn(tactus_http::serve_proxies(listen(listener)?, Arc::clone(&public)));
        }
        if let Some(listener) = self.admin {
            serving.spawn(tactus_http::serve(listen(listener)?, Arc::clone(&admin)));
        }
        for (listeners, site) in [(self.unix, &public), (self.admin_unix, &admin)] {
            for listener in listeners {
                serving.spawn(tactus_http::serve(listener, Arc::clone(site)));
            }
        }
        for listener in self.rtsp_listeners {
            let rtsp = self.rtsp.clone().expect("who listens serves");
            serving.spawn(rtsp.serve(listen(listener)?));
        }
        let local = self.local.map(LocalServer::serve).transpose()?;
        supervisor::ready();
        end.await;
        supervisor::stopping();
        if let Some(rtsp) = &self.rtsp {
            rtsp.stop();
        }
        // Its thread waits for the engine, not this one.
        tokio::task::spawn_blocking(move || drop(local)).await?;
        for site in [&public, &admin] {
            site.stop();
        }
        let limit = Duration::from_nanos(self.config.http.drain_limit.0);
        let is_drained = drain(&mut serving, limit).await;
        watching.abort();
        // Channels close first: otherwise they would report the stop as a slow disk.
        channels.close().await;
        if let Some(rtsp) = &self.rtsp {
            rtsp.close().await;
        }
        if !is_drained {
            let broker = &self.engine.broker;
            tracing::info!("{} deliveries are ended at the drain limit", broker.streams());
            broker.stop_all();
            serving.shutdown().await;
        }
        if let Some(rtsp) = self.rtsp {
            // Closes sessions that were set up meanwhile.
            rtsp.close().await;
        }
        forgetting.abort();
        watch.end().await;
        drop((public, admin));
        if let Some(recordings) = recordings {
            recordings.close().await;
        }
        if let Some(uploads) = self.uploads {
            uploads.close().await;
        }
        // Joins the engine's cores, when no delivery can start any more.
        drop(self.engine);
        Ok(())
    }
}

/// Why the engine did not start; lack of memory is reported with its key.
fn start_error(error: std::io::Error, config: &Config) -> anyhow::Error {
    let is_memory = error.kind() == std::io::ErrorKind::OutOfMemory;
    let error = anyhow::Error::new(error).context("cannot start the engine");
    match config.memory.arena {
        Auto::Set(arena) if is_memory => error.context(format!(
            "not enough memory for [memory] arena = {:?}; write a smaller size",
            exact(arena)
        )),
        Auto::Auto if is_memory => error.context(
            "not enough memory; set a smaller [memory] arena, or a smaller [[volume]] write_share",
        ),
        _ => error,
    }
}

/// How long a deleted title may still occupy space that is no longer visible.
const FORGET_EVERY: Duration = Duration::from_secs(1);

async fn forget_changed(catalogue: Arc<Catalogue>, broker: Broker) {
    loop {
        tokio::time::sleep(FORGET_EVERY).await;
        let (catalogue, broker) = (Arc::clone(&catalogue), broker.clone());
        let forget = move || {
            catalogue.forget_changed();
            broker.forget_deleted();
            broker.forget_bad_ranges(|place| catalogue::is_version(&place.file, &place.etag));
        };
        // On a disk that hangs the task waits, and is not started again.
        if tokio::task::spawn_blocking(forget).await.is_err() {
            tracing::error!("the space of deleted titles is not released");
        }
    }
}

/// Waits up to `limit` for the tasks; returns whether all have ended.
async fn drain(serving: &mut JoinSet<()>, limit: Duration) -> bool {
    let all = async { while serving.join_next().await.is_some() {} };
    tokio::time::timeout(limit, all).await.is_ok()
}

fn listen(listener: TcpListener) -> Result<tokio::net::TcpListener> {
    listener.set_nonblocking(true)?;
    // What the host refuses, `doctor` reports.
    tcp::choose_cubic(&listener);
    Ok(tokio::net::TcpListener::from_std(listener)?)
}

fn bind(address: SocketAddr) -> Result<TcpListener> {
    listener(address)
        .map_err(|error| anyhow!("{} (--http, or [http] address)", bind_error(address, &error)))
}

fn bind_rtsp(address: SocketAddr) -> Result<TcpListener> {
    listener(address)
        .map_err(|error| anyhow!("{} (--rtsp, or [rtsp] address)", bind_error(address, &error)))
}

/// An IPv6 socket for all interfaces takes IPv4 too; on a host without IPv6 it falls back to IPv4.
fn listener(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = match TcpListener::bind(address) {
        Err(error) if address.ip() == Ipv6Addr::UNSPECIFIED && is_without_ipv6(&error) => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port()))
        }
        listener => listener,
    }?;
    // The standard library queues 128: a crowd that comes in one moment would wait for a second.
    rustix::net::listen(&listener, BACKLOG)?;
    Ok(listener)
}

/// Connections that the kernel queues; it takes its own maximum if that is less.
const BACKLOG: i32 = 4096;

fn is_without_ipv6(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    [libc::EAFNOSUPPORT, libc::EADDRNOTAVAIL].into_iter().any(|no| errno == Some(no))
}

/// Another Tactus on this machine may use the default admin address. That must not stop this
/// server, so the address is left out with a message. A configured address must be available.
fn admin_listener(address: SocketAddr) -> Result<Option<TcpListener>> {
    let is_default = Config::unconfigured().admin.address == Some(address);
    match listener(address) {
        Ok(listener) => Ok(Some(listener)),
        Err(error) if is_default && error.kind() == std::io::ErrorKind::AddrInUse => Ok(None),
        Err(error) => Err(anyhow!("{} ([admin] address)", bind_error(address, &error))),
    }
}

/// Sockets passed by the supervisor, by service.
#[derive(Default)]
struct PassedSockets {
    http: Vec<TcpListener>,
    rtsp: Vec<TcpListener>,
    admin: Option<TcpListener>,
}

impl PassedSockets {
    fn take() -> Result<Self> {
        let mut passed = Self::default();
        let all = activation::take().context("cannot use the passed sockets (LISTEN_FDS)")?;
        for activation::PassedSocket { name, listener } in all {
            match name.as_str() {
                // systemd names a socket without a name `unknown`.
                "http" | "" | "unknown" => passed.http.push(listener),
                "rtsp" => passed.rtsp.push(listener),
                "admin" if passed.admin.is_none() => passed.admin = Some(listener),
                // The default name of a socket is that of its socket unit.
                name if name.ends_with(".socket") => passed.http.push(listener),
                name => anyhow::bail!(
                    "a passed socket has the unknown name {name:?}; \
                     write FileDescriptorName=http, rtsp or admin (once)"
                ),
            }
        }
        Ok(passed)
    }
}

/// A warning when the limit of open files is below the need of all connections and streams.
fn too_few_files(config: &Config, engine: &Engine) -> Option<String> {
    let blocks = engine.volumes.iter().map(|volume| volume.arena().0 / volume.block().0).sum();
    let needed = engine::open_files(&config.engine(), blocks);
    let limit = rustix::process::getrlimit(Resource::Nofile).current?;
    (limit < needed).then(|| {
        format!(
            "the limit of open files is {limit}, but all connections and streams need {needed}: \
             run `ulimit -n {needed}` before the start, or set LimitNOFILE={needed} in the unit"
        )
    })
}

/// Raises the limits of open files and locked memory as far as this process may.
fn raise_limits() {
    for resource in [Resource::Nofile, Resource::Memlock] {
        let limit = rustix::process::getrlimit(resource);
        let raised = Rlimit { current: limit.maximum, ..limit };
        if let Err(error) = rustix::process::setrlimit(resource, raised) {
            tracing::debug!("the limit of {resource:?} stays as it is: {error}");
        }
    }
}

/// Keeps the control side's threads, which inherit this, off the cores that send.
fn leave_cores_to_the_engine(engine: &Engine) {
    let Ok(cpus) = tactus_sys::thread::allowed_cores() else { return };
    let mut set = CpuSet::new();
    for cpu in placement::control_cpus(&cpus, &engine.placement) {
        set.set(cpu as usize);
    }
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        tracing::debug!("the control side may run on all cores: {error}");
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpStream};

    use super::*;

    #[test]
    fn a_crowd_that_comes_in_one_moment_is_queued() {
        let listener = listener((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        let connect = || TcpStream::connect_timeout(&address, Duration::from_secs(5));
        let crowd: io::Result<Vec<TcpStream>> = (0..400).map(|_| connect()).collect();
        assert_eq!(crowd.unwrap().len(), 400);
    }
}
