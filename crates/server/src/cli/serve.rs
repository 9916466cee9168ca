//! `tactus serve`: reads the configuration, opens the server, prints its addresses, and serves
//! until it is stopped.
//!
//! Promise: the first line on standard output is `Serving DIR at http://ADDRESS/` (`at unix:PATH`
//! when only socket files are configured). It is printed when the addresses are bound; programs may
//! wait for it. Each refusal of the host is one line on standard error. SIGTERM and SIGINT drain; a
//! second signal ends at once; SIGHUP reads the configuration again.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context;
use tactus_config::{Config, ConfigFile, address};
use tactus_control::access;
use tactus_control::rights::Rights;
use tactus_control::settings::Volume;
use tactus_http as http;
use tactus_http::settings::{Principal, Token};
use tactus_storage::store::{IdentityMismatch, KnownIdentities};
use tokio::signal::unix::{SignalKind, signal};

use super::server::Server;
use super::signals::Signals;
use super::{Failure, check, console, state, token};

/// Serves a directory
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  tactus serve /srv/media                              on http://127.0.0.1:8080/
  tactus serve /srv/media --http :8080                 open to the network
  tactus serve /srv/media --rtsp :8554                 for players of RTSP too
  tactus serve /srv/media --uploads                    take uploads, with a token
  tactus serve --config /etc/tactus.toml               as configured
  tactus serve --config tactus.toml --check-config     only check the file

Every title is sent at its own rate. Clients may request another: ?rate=8.8M, ?rate=max.
Streams beyond the capacity are refused with 503, over RTSP with 453. GET /api/v1/capacity at the
admin address shows the remaining capacity.

ADDR is 127.0.0.1:8080, [::1]:8080, localhost:8080 or 8080 for this machine only, :8080 for all
interfaces.

SIGTERM or SIGINT: no new requests; running deliveries may finish within `drain_limit`
(10 s by default); a second signal ends at once.
SIGHUP: the server reloads classes, channels and the placement on cores from the configuration file,
and reopens the access log. Without --config it only reopens the access log.

Sockets passed by systemd are used for http, rtsp and admin, by their names.

Exit codes: 0 ended by a signal; 1 it could not start or failed; 2 wrong arguments or \
                        configuration.")]
pub(super) struct Serve {
    /// The directory; replaces the volumes of the configuration
    dir: Option<PathBuf>,
    /// Configuration file (TOML)
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address to listen on; may be repeated; port 0 takes a free one [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR", value_parser = address::parse)]
    http: Vec<SocketAddr>,
    /// Address to listen on for RTSP; may be repeated; players know port 8554 [default: none]
    #[arg(long, value_name = "ADDR", value_parser = address::parse)]
    rtsp: Vec<SocketAddr>,
    /// Address of metrics and status, or "off" [default: 127.0.0.1:9464]
    #[arg(long, value_name = "ADDR", value_parser = admin)]
    admin: Option<AdminAddress>,
    /// Take uploads, with a token of their own; it is printed when it is made
    #[arg(long)]
    uploads: bool,
    /// Refuse to start with a degraded host or configuration, instead of serving with less
    #[arg(long)]
    strict: bool,
    /// Check the configuration and end
    #[arg(long)]
    check_config: bool,
}

impl Serve {
    pub(super) fn run(self) -> Result<(), Failure> {
        let ground = Bootstrap::new()?;
        let (mut config, file) = self.configured()?;
        if self.check_config {
            if self.uploads {
                let own = token::place(&first(&config).path);
                if own.exists() {
                    http::token_in(&own).map_err(|error| Failure::usage(format!("{error:#}")))?;
                }
                config.volumes.iter_mut().for_each(|volume| volume.uploads = true);
            }
            check::check(&config, file.as_ref())?;
            check::check_addresses(&config, file.as_ref())?;
            return console::line("the configuration is valid");
        }
        config.state = state::directory();
        let takes = self.uploads || config.volumes.iter().any(|volume| volume.uploads);
        if takes && config.state.is_none() {
            console::notice(format_args!(
                "tactus: neither HOME nor XDG_STATE_HOME is set, so the identities of volumes are \
                 not kept: if a disk is not mounted at the next start, uploads go to the disk \
                 below it"
            ));
        }
        if self.uploads && file.is_none() {
            accept_recreated(&config);
        }
        let own = match self.uploads {
            true => allow_uploads(&mut config)?,
            false => None,
        };
        check::check(&config, file.as_ref())?;
        run(ground, config, file, |_| {
            if let Some(own) = own {
                console::greeting(invitation(&own));
            }
        })
    }

    fn configured(&self) -> Result<(Config, Option<ConfigFile>), Failure> {
        let file = self.config.as_deref().map(ConfigFile::read);
        let file = file.transpose().map_err(Failure::usage)?;
        let mut config = match &file {
            Some(file) => file.config.clone(),
            None => Config::unconfigured(),
        };
        if let Some(dir) = &self.dir {
            if !dir.is_dir() {
                let message =
                    format!("{} is not a directory; name one that is there", dir.display());
                return Err(Failure::usage(message));
            }
            config.serve_only(dir);
        }
        if config.volumes.is_empty() {
            let message =
                "nothing to serve; name a directory, or a [[volume]] in the configuration";
            return Err(Failure::usage(message));
        }
        if !self.http.is_empty() {
            config.http.addresses.clone_from(&self.http);
        }
        if !self.rtsp.is_empty() {
            config.rtsp.addresses.clone_from(&self.rtsp);
        }
        config.strict |= self.strict;
        if let Some(AdminAddress(address)) = self.admin {
            config.admin.address = address;
        }
        Ok((config, file))
    }
}

/// An address, or `None` for "off".
#[derive(Clone, Copy, Debug)]
struct AdminAddress(Option<SocketAddr>);

fn admin(text: &str) -> Result<AdminAddress, String> {
    match text {
        "off" => Ok(AdminAddress(None)),
        _ => address::parse(text).map(|address| AdminAddress(Some(address))),
    }
}

/// Permits uploads to the first volume with the volume's own token.
pub(super) fn allow_uploads(config: &mut Config) -> Result<Option<token::ServerToken>, Failure> {
    for volume in &mut config.volumes {
        volume.uploads = true;
    }
    // Nothing is created in a directory that holds the wrong volume, not even a token.
    let known = config.state.as_deref().map(KnownIdentities::within);
    if let Some(Err(lost)) = known.map(|known| known.check(&first(config).path)) {
        console::notice(format_args!("tactus: {lost}"));
        return Ok(None);
    }
    let own =
        token::own(&first(config).path).map_err(|error| Failure::usage(format!("{error:#}")))?;
    let name = OWN_PRINCIPAL.to_owned();
    if config.upload.principals.iter().any(|principal| principal.name == name) {
        let message =
            format!("the configuration has a principal {name:?}, which is --uploads' own");
        return Err(Failure::usage(message));
    }
    let token = Token::File(own.file.clone());
    config.upload.principals.push(Principal { name, token, quota: None, rights: Rights::all() });
    Ok(Some(own))
}

/// Accepts a directory of the command line that was emptied or created again as a new volume: its
/// disk is not missing.
fn accept_recreated(config: &Config) {
    let path = &first(config).path;
    let Some(known) = config.state.as_deref().map(KnownIdentities::within) else { return };
    if matches!(known.check(path), Err(IdentityMismatch::Gone { .. })) && known.is_same_mount(path)
    {
        match known.forget(path) {
            Ok(_) => console::notice(format_args!(
                "tactus: {} was created anew: it is treated as a new volume",
                path.display()
            )),
            Err(error) => console::notice(format_args!(
                "tactus: cannot read the stored identity of {}: {error}",
                path.display()
            )),
        }
    }
}

fn first(config: &Config) -> &Volume {
    config.volumes.first().expect("there is something to serve")
}

/// The principal with the token of `--uploads`.
const OWN_PRINCIPAL: &str = "local";

/// The text about the use of the token.
fn invitation(own: &token::ServerToken) -> String {
    let file = own.file.display();
    match &own.made {
        Some(token) => format!("Uploads with the token {token}\n  which is kept in {file}\n"),
        None => format!("Uploads with the token in {file}\n"),
    }
}

/// The runtime and signal handlers, which a server needs before it has a configuration.
pub(super) struct Bootstrap {
    runtime: tokio::runtime::Runtime,
    signals: Signals,
}

impl Bootstrap {
    /// Starts threads and installs signal handlers: from now on SIGHUP does not end the program.
    pub(super) fn new() -> Result<Self, Failure> {
        let runtime = tokio::runtime::Runtime::new().context("cannot start threads")?;
        let signals = {
            let _within = runtime.enter();
            Signals::take()?
        };
        Ok(Self { runtime, signals })
    }
}

/// Serves `config`, which a reload reads again from `file`. `greet` is called with the addresses
/// once they are bound and printed.
pub(super) fn run(
    ground: Bootstrap,
    config: Config,
    file: Option<ConfigFile>,
    greet: impl FnOnce(&Endpoints),
) -> Result<(), Failure> {
    super::log(config.log.form);
    let Bootstrap { runtime, signals } = ground;
    let volumes = config.volumes.clone();
    let says = |file: &&ConfigFile| {
        file.says("http", "address") && file.config.http.addresses == config.http.addresses
    };
    let opened_by = file.as_ref().filter(says).map(|file| file.path.clone());
    access::start(config.log.access, &config.log.access_to)
        .context("cannot open the access log; change [log] access_to")?;
    let (strict, has_principals) = (config.strict, !config.upload.principals.is_empty());
    let server = runtime.block_on(Server::open(config, file))?;
    let [unix, admin_unix] = server.unix_sockets();
    let served = Endpoints {
        http: server.addresses(),
        proxied: server.proxied_addresses(),
        rtsp: server.rtsp_addresses(),
        admin: server.admin_address(),
        unix,
        admin_unix,
    };
    // Whoever reads the addresses may end the program from then on.
    let end = {
        let _within = runtime.enter();
        self::signals()?
    };
    announce(&volumes, &served, opened_by.as_deref());
    // With principals the cause is a volume, which the log has named.
    let wants_uploads = volumes.iter().any(|volume| volume.uploads);
    if wants_uploads && !has_principals && !server.takes_uploads() {
        console::notice(
            "tactus: no principal may upload: add an [[upload.principal]], or use \
            --uploads",
        );
    }
    for refused in server.degraded() {
        console::notice(format_args!("tactus: {refused}"));
    }
    let problems = server.problems();
    if strict && !problems.is_empty() {
        let message = format!("not started, because `strict` is set: {}", problems.join("; "));
        return Err(Failure::Failed(anyhow::anyhow!(message)));
    }
    if !server.degraded().is_empty() {
        let dir = volumes.first().map(|volume| volume.path.display().to_string());
        console::notice(format_args!(
            "tactus: `{} doctor {}` says what to change",
            console::program(),
            dir.unwrap_or_default()
        ));
    }
    greet(&served);
    runtime.block_on(server.serve(end, signals))?;
    access::close();
    // Pending name lookups are not awaited.
    runtime.shutdown_background();
    Ok(())
}

/// The addresses of all services.
pub(super) struct Endpoints {
    pub(super) http: Vec<SocketAddr>,
    pub(super) proxied: Vec<SocketAddr>,
    pub(super) rtsp: Vec<SocketAddr>,
    pub(super) admin: Option<SocketAddr>,
    unix: Vec<PathBuf>,
    admin_unix: Vec<PathBuf>,
}

/// Prints the addresses of all services. `file` is the configuration file that sets them.
fn announce(volumes: &[Volume], served: &Endpoints, file: Option<&Path>) {
    let addresses = &served.http;
    let line = |text: String| console::greeting(format_args!("{text}\n"));
    let dirs: Vec<_> = volumes.iter().map(|volume| shown(&volume.path)).collect();
    for address in addresses {
        line(format!("Serving {} at http://{address}/", dirs.join(", ")));
    }
    for path in &served.unix {
        line(format!("Serving {} at unix:{}", dirs.join(", "), path.display()));
    }
    for address in &served.proxied {
        line(format!("PROXY protocol at http://{address}/"));
    }
    for address in &served.rtsp {
        line(format!("RTSP at rtsp://{address}/"));
    }
    match served.admin {
        Some(address) => line(format!("Metrics and status at http://{address}/metrics")),
        None if !served.admin_unix.is_empty() => {}
        None => line("Metrics and status are not served: [admin] address is off or in use".into()),
    }
    for path in &served.admin_unix {
        line(format!("Metrics and status at unix:{}", path.display()));
    }
    if addresses.iter().all(|address| address.ip().is_loopback()) {
        let how = match file {
            Some(file) => format!("[http] address in {} says so", file.display()),
            None => "use --http :8080 to open it to the network".into(),
        };
        line(format!("Only this machine can connect; {how}"));
    }
}

fn shown(path: &Path) -> String {
    path.canonicalize().unwrap_or_else(|_| path.into()).display().to_string()
}

/// Ends with the first SIGTERM or SIGINT; a second one ends the program.
pub(super) fn signals() -> anyhow::Result<impl Future<Output = ()>> {
    let mut term = signal(SignalKind::terminate()).context("cannot receive signals")?;
    let mut int = signal(SignalKind::interrupt()).context("cannot receive signals")?;
    Ok(async move {
        tokio::select! { _ = term.recv() => {} _ = int.recv() => {} }
        tokio::spawn(async move {
            tokio::select! { _ = term.recv() => {} _ = int.recv() => {} }
            std::process::exit(1);
        });
    })
}
