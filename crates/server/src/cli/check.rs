//! Checks whether `serve` could start with a configuration: opens the same files as `serve`.
//!
//! Promise: an error of the configuration that would stop `serve` is reported here, with file, line
//! and key where they are known. Nothing is written or locked: a running server with the same file
//! is not disturbed.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::Path;

use socket2::{Domain, Socket, Type};
use tactus_config::{Config, ConfigFile, Key};
use tactus_control::access::{AccessForm, AccessTo};
use tactus_control::settings::Volume;
use tactus_control::socket_file::SocketFile;
use tactus_control::{access, engine, measure};
use tactus_core::units::Bytes;
use tactus_http as http;
use tactus_http::settings::Token;
use tactus_local::server::LocalServer;
use tactus_notation::Auto;
use tactus_notation::units::exact;
use tactus_rtsp as rtsp;
use tactus_storage::store;
use tactus_sys::probe;

use super::{Failure, nested};

/// An error of the configuration, and the key that it concerns.
struct Finding<'a> {
    keys: Vec<Key<'a>>,
    message: String,
}

impl<'a> Finding<'a> {
    fn at(keys: &[Key<'a>], message: impl Into<String>) -> Self {
        Self { keys: keys.to_vec(), message: message.into() }
    }
}

/// Opens everything that `serve` opens with `config`, which was read from `file`, if any.
///
/// # Errors
/// The first problem, at its place in the file.
pub(super) fn check(config: &Config, file: Option<&ConfigFile>) -> Result<(), Failure> {
    let found = volumes(config)
        .and_then(|()| secrets(config))
        .and_then(|()| memory(config))
        .and_then(|()| classes(config))
        .and_then(|()| unix_sockets(config))
        .and_then(|()| access_log(config));
    found.map_err(|finding| failure(finding, file))
}

/// Whether this host can listen on the addresses of `config`. An address that another server uses
/// counts as an error.
///
/// # Errors
/// The first address that cannot be bound.
pub(super) fn check_addresses(config: &Config, file: Option<&ConfigFile>) -> Result<(), Failure> {
    let http = config.http.addresses.iter().map(|address| (["http", "address"], *address));
    let proxied = config.http.proxy_protocol.iter();
    let proxied = proxied.map(|address| (["http", "proxy_protocol"], *address));
    let rtsp = config.rtsp.addresses.iter().map(|address| (["rtsp", "address"], *address));
    // A default admin address that is in use is not an error: the server starts without it.
    let admin = config.admin.address.filter(|address| {
        Config::unconfigured().admin.address != Some(*address)
            || file.is_some_and(|file| file.says("admin", "address"))
    });
    let admin = admin.map(|address| (["admin", "address"], address));
    let mut others: Vec<([&str; 2], SocketAddr)> = Vec::new();
    for (key, address) in http.chain(proxied).chain(rtsp).chain(admin) {
        let wrong = match bindable(address) {
            Err(error) => Some(bind_error(address, &error)),
            Ok(()) => others.iter().find(|(_, other)| is_one_socket(*other, address)).map(
                |([table, key], other)| {
                    format!(
                        "{address} overlaps [{table}] {key} = \"{other}\", and only one can listen \
                         there; choose another port"
                    )
                },
            ),
        };
        if let Some(message) = wrong {
            return Err(failure(Finding::at(&key.map(Key::Name), message), file));
        }
        others.push((key, address));
    }
    Ok(())
}

/// Whether socket files can be created.
fn unix_sockets(config: &Config) -> Result<(), Finding<'static>> {
    let tables = [("http", &config.http.unix_sockets), ("admin", &config.admin.unix_sockets)];
    for (table, sockets) in tables {
        for (at, socket) in sockets.iter().enumerate() {
            SocketFile::check(socket).map_err(|error| {
                let keys = [Key::Name(table), Key::Name("unix_socket"), Key::Entry(at)];
                let keys = [&keys[..], &[Key::Name("path")]].concat();
                Finding::at(&keys, format!("{error:#}"))
            })?;
        }
    }
    if let Some(local) = &config.local {
        LocalServer::check(local).map_err(|error| {
            Finding::at(&[Key::Name("local"), Key::Name("path")], format!("{error:#}"))
        })?;
    }
    Ok(())
}

/// Whether two addresses cannot both be bound.
fn is_one_socket(one: SocketAddr, other: SocketAddr) -> bool {
    let covers = |one: IpAddr, other: IpAddr| {
        // A socket bound to `[::]` accepts IPv4 as well.
        one == other || one == Ipv6Addr::UNSPECIFIED || (one.is_unspecified() && other.is_ipv4())
    };
    let (first, second) = (one.ip(), other.ip());
    one.port() == other.port()
        && one.port() != 0
        && (covers(first, second) || covers(second, first))
}

/// Whether the access log can be opened, or created where it does not exist.
fn access_log(config: &Config) -> Result<(), Finding<'static>> {
    let AccessTo::File(path) = &config.log.access_to else { return Ok(()) };
    if config.log.access == AccessForm::Off {
        return Ok(());
    }
    access::check(path).map_err(|error| {
        let message =
            format!("the access log {} cannot be written: {error}; change it", path.display());
        Finding::at(&[Key::Name("log"), Key::Name("access_to")], message)
    })
}

/// Why `address` cannot be bound, and what to do.
pub(super) fn bind_error(address: SocketAddr, error: &std::io::Error) -> String {
    use std::io::ErrorKind::{AddrInUse, AddrNotAvailable, PermissionDenied};
    let advice = match error.kind() {
        PermissionDenied if address.port() < FREE_PORTS => {
            "ports below 1024 need the capability CAP_NET_BIND_SERVICE: grant it \
             (`AmbientCapabilities=CAP_NET_BIND_SERVICE` in a unit of systemd, `setcap \
             cap_net_bind_service=+ep` on the program), or choose a port from 1024 on"
        }
        AddrInUse => "another server listens there; stop it, or choose another address",
        AddrNotAvailable => "this host has no such address; choose one that `ip address` shows",
        _ => "choose another address",
    };
    format!("cannot listen on {address}: {error}; {advice}")
}

/// Lowest port that needs no privilege (the default of `net.ipv4.ip_unprivileged_port_start`).
const FREE_PORTS: u16 = 1024;

fn bindable(address: SocketAddr) -> std::io::Result<()> {
    let bind = || {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())
    };
    match bind() {
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => Ok(()),
        // On a host without IPv6, `[::]` falls back to IPv4.
        Err(error)
            if address.ip() == Ipv6Addr::UNSPECIFIED
                && [libc::EAFNOSUPPORT, libc::EADDRNOTAVAIL]
                    .map(Some)
                    .contains(&error.raw_os_error()) =>
        {
            Ok(())
        }
        bound => bound,
    }
}

/// Converts a finding to an error, placed in the file where the key is written.
fn failure(finding: Finding<'_>, file: Option<&ConfigFile>) -> Failure {
    match file.and_then(|file| file.mistake_at(&finding.keys, &finding.message)) {
        Some(error) => Failure::usage(error),
        None => Failure::usage(finding.message),
    }
}

fn volumes(config: &Config) -> Result<(), Finding<'_>> {
    for (at, volume) in config.volumes.iter().enumerate() {
        let path = [Key::Name("volume"), Key::Entry(at), Key::Name("path")];
        if let Err(error) = std::fs::read_dir(&volume.path) {
            let message = format!("cannot read the volume {}: {error}", volume.path.display());
            return Err(Finding::at(&path, message));
        }
        model(volume, at)?;
        if volume.uploads
            && let Err(error) = store::check(&volume.path)
        {
            let keys = [Key::Name("volume"), Key::Entry(at), Key::Name("uploads")];
            return Err(Finding::at(&keys, error.to_string()));
        }
    }
    let writable: Vec<_> =
        (0..).zip(&config.volumes).filter(|(_, volume)| volume.uploads).collect();
    let roots: Vec<&Path> = writable.iter().map(|(_, volume)| &*volume.path).collect();
    if let Some((outer, inner)) = nested::nested(&roots) {
        let path = [Key::Name("volume"), Key::Entry(writable[inner].0), Key::Name("path")];
        let message = format!(
            "{} lies inside the volume {}, and both take uploads: each would change the other's \
             titles; set `uploads` for one of them only, or mount the missing disk",
            roots[inner].display(),
            roots[outer].display()
        );
        return Err(Finding::at(&path, message));
    }
    Ok(())
}

fn model(volume: &Volume, at: usize) -> Result<(), Finding<'_>> {
    let keys = [Key::Name("volume"), Key::Entry(at), Key::Name("model")];
    measure::check_model(volume).map_err(|error| Finding::at(&keys, error.to_string()))
}

fn secrets(config: &Config) -> Result<(), Finding<'_>> {
    let mut known: Vec<([u8; 32], &str)> = Vec::new();
    for (at, principal) in config.upload.principals.iter().enumerate() {
        let key = match &principal.token {
            Token::File(_) => "token_file",
            Token::Sha256(_) => "token_sha256",
        };
        let keys = ["upload", "principal"].map(Key::Name);
        let keys = [&keys[..], &[Key::Entry(at), Key::Name(key)]].concat();
        let digest = http::digest_of(&principal.token);
        let digest = digest.map_err(|error| Finding::at(&keys, format!("{error:#}")))?;
        if let Some((_, other)) = known.iter().find(|(known, _)| *known == digest) {
            return Err(Finding::at(&keys, http::same_token(&principal.name, other)));
        }
        known.push((digest, &principal.name));
    }
    for (at, principal) in config.rtsp.principals.iter().enumerate() {
        if let Err(error) = rtsp::password_in(&principal.password) {
            let keys = ["rtsp", "principal"].map(Key::Name);
            let keys = [&keys[..], &[Key::Entry(at), Key::Name("password_file")]].concat();
            return Err(Finding::at(&keys, format!("{error:#}")));
        }
    }
    Ok(())
}

/// Memory that is allocated at the start must be available.
fn memory(config: &Config) -> Result<(), Finding<'_>> {
    let memory = probe::machine().memory;
    let most = memory.total.min(memory.limit.unwrap_or(u64::MAX));
    let writing = config.volumes.iter().filter(|volume| volume.uploads);
    let shares: u64 = writing.map(|volume| volume.write_share.0).sum();
    let Auto::Set(arena) = config.memory.arena else {
        if shares > most && most > 0 {
            let keys = [Key::Name("volume"), Key::Entry(0), Key::Name("write_share")];
            let message = format!(
                "write_share: uploads would use {} of memory, but {} are available; write a \
                 smaller size",
                exact(Bytes(shares)),
                exact(Bytes(most))
            );
            return Err(Finding::at(&keys, message));
        }
        return Ok(());
    };
    if most == 0 || arena.0.saturating_add(shares) <= most {
        return Ok(());
    }
    let besides = match shares {
        0 => String::new(),
        shares => format!(", with {} for uploads", exact(Bytes(shares))),
    };
    let message = format!(
        "arena = {:?}{besides} exceeds the available memory, {}; write a smaller size, or \"auto\"",
        exact(arena),
        exact(Bytes(most))
    );
    Err(Finding::at(&["memory", "arena"].map(Key::Name), message))
}

fn classes(config: &Config) -> Result<(), Finding<'_>> {
    let found = engine::check_classes(&config.engine());
    found.map_err(|error| Finding::at(&["class"].map(Key::Name), error.to_string()))
}
