//! nginx: at its defaults, and at the best settings that we know.
//!
//! Promise: the whole configuration is written here, so nothing of the host's own leaks in. Its
//! `limit_rate` counts bytes per second; it keeps the average by bursts on whole seconds. Uploads
//! are its WebDAV module's PUT: the body goes through the page cache into a file beside its place,
//! which is renamed; nothing is flushed before the answer.

use std::fs;
use std::net::SocketAddrV4;
use std::path::Path;

use anyhow::Result;
use tactus_core::units::BitRate;

use super::{PORT, PORT_BESIDE, Peer, Server, Setting, UPLOADS, address};
use crate::priority::{self, DiskClass};
use crate::titles::Titles;

/// How it reads and sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NginxStyle {
    /// As its own documentation ships it: sendfile, one worker, nothing tuned.
    Defaults,
    /// sendfile in the worker itself: the least CPU.
    Sendfile,
    /// sendfile in a thread pool: a cold read blocks a pool thread and not the worker.
    SendfileThreads,
    /// O_DIRECT reads of a mebibyte or two in a thread pool, then a copying send.
    Direct {
        /// The size of each of its two output buffers.
        buffer_mib: u64,
    },
    /// Buffered reads of a mebibyte or two in a thread pool, then a copying send.
    Buffered {
        /// The size of each of its two output buffers.
        buffer_mib: u64,
    },
}

/// nginx in one style.
#[derive(Clone, Copy, Debug)]
pub struct Nginx(pub NginxStyle);

impl Peer for Nginx {
    fn name(&self) -> String {
        match self.0 {
            NginxStyle::Defaults => "nginx (defaults)".into(),
            NginxStyle::Sendfile => "nginx (sendfile)".into(),
            NginxStyle::SendfileThreads => "nginx (sendfile, aio threads)".into(),
            NginxStyle::Direct { buffer_mib } => format!("nginx (directio, {buffer_mib} MiB)"),
            NginxStyle::Buffered { buffer_mib } => {
                format!("nginx (aio threads, {buffer_mib} MiB buffers)")
            }
        }
    }

    fn settings(&self, setting: &Setting<'_>) -> Result<String> {
        Ok(self.configuration(Path::new("DIR"), setting, &self.only(setting)))
    }

    fn start(&self, setting: &Setting<'_>) -> Result<Server> {
        self.start_one(setting, &self.only(setting))
    }

    fn target(&self, titles: &Titles, number: usize, _rate: BitRate) -> String {
        titles.target(number)
    }

    fn acks_are_durable(&self) -> bool {
        false
    }
}

/// nginx as one sets it up who wants deliveries to come first: one instance that delivers, with its
/// reads in the real-time class of the I/O scheduler, and another that takes uploads.
#[derive(Clone, Copy, Debug)]
pub struct NginxApart(pub NginxStyle);

impl NginxApart {
    const DELIVERS: Instance =
        Instance { port: PORT, delivers: true, takes: false, class: Some(DiskClass::RealTime) };
    const TAKES: Instance =
        Instance { port: PORT_BESIDE, delivers: false, takes: true, class: None };
}

impl Peer for NginxApart {
    fn name(&self) -> String {
        let name = Nginx(self.0).name();
        format!("{}, real-time reads)", name.trim_end_matches(')'))
    }

    fn settings(&self, setting: &Setting<'_>) -> Result<String> {
        let of = |instance| Nginx(self.0).configuration(Path::new("DIR"), setting, &instance);
        Ok(format!(
            "{:?} at the I/O scheduler:\n{}\nbest effort:\n{}",
            DiskClass::RealTime,
            of(Self::DELIVERS),
            of(Self::TAKES)
        ))
    }

    fn start(&self, setting: &Setting<'_>) -> Result<Server> {
        let takes = Nginx(self.0).start_one(setting, &Self::TAKES)?;
        Ok(Nginx(self.0).start_one(setting, &Self::DELIVERS)?.beside(takes))
    }

    fn target(&self, titles: &Titles, number: usize, _rate: BitRate) -> String {
        titles.target(number)
    }

    fn upload_port(&self) -> u16 {
        PORT_BESIDE
    }

    fn acks_are_durable(&self) -> bool {
        false
    }
}

/// What one instance does.
#[derive(Clone, Copy, Debug)]
struct Instance {
    port: u16,
    delivers: bool,
    takes: bool,
    /// Its class at the I/O scheduler, if it has one of its own.
    class: Option<DiskClass>,
}

impl Nginx {
    /// The only instance: it does everything.
    fn only(&self, setting: &Setting<'_>) -> Instance {
        Instance { port: PORT, delivers: true, takes: setting.uploads, class: None }
    }

    fn start_one(&self, setting: &Setting<'_>, instance: &Instance) -> Result<Server> {
        let folder = tempfile::Builder::new().prefix("tactus-bench-nginx-").tempdir()?;
        let file = folder.path().join("nginx.conf");
        fs::write(&file, self.configuration(folder.path(), setting, instance))?;
        let mut command = priority::on_cores(setting.cores, setting.group, "nginx");
        if let Some(class) = instance.class {
            command = priority::with_disk_class(class, &command);
        }
        command.arg("-p").arg(folder.path()).arg("-c").arg(&file);
        command.arg("-e").arg(folder.path().join("error.log"));
        let address = SocketAddrV4::new(*address(setting.wire).ip(), instance.port);
        Server::start(&command, folder, setting.wire, address)
    }

    fn configuration(&self, folder: &Path, setting: &Setting<'_>, instance: &Instance) -> String {
        let folder = folder.display();
        let root = setting.titles.root().display();
        let bytes_per_second = setting.rate.0 / 8;
        let connections = setting.streams + 1_024;
        let files = 2 * connections + 1_024;
        let style = self.style();
        let tuned = match self.0 {
            NginxStyle::Defaults => String::new(),
            _ => format!(
                "worker_priority -20;\n{}",
                match self.0 {
                    NginxStyle::Sendfile => "",
                    _ => "thread_pool default threads=64 max_queue=65536;\n",
                }
            ),
        };
        let events = match self.0 {
            NginxStyle::Defaults => "",
            _ => " multi_accept on; use epoll;",
        };
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| match kind {
                // On the volume itself: elsewhere every upload would be copied once more.
                "client_body" if instance.takes => {
                    format!("    {kind}_temp_path {root}/{UPLOADS}/.{kind};\n")
                }
                _ => format!("    {kind}_temp_path {folder}/{kind};\n"),
            })
            .concat();
        let buffer = match self.0 {
            NginxStyle::Defaults => "",
            _ => "            client_body_buffer_size 1m;\n",
        };
        let mut locations = String::new();
        if instance.takes {
            locations.push_str(&format!(
                "        location /{UPLOADS}/ {{\n            dav_methods PUT;\n            \
                 client_max_body_size 0;\n{buffer}        }}\n"
            ));
        }
        if !instance.delivers {
            locations.push_str("        location / { return 404; }\n");
        }
        let port = instance.port;
        format!(
            "user root;\n\
             daemon off;\n\
             pid {folder}/nginx.pid;\n\
             error_log {folder}/error.log warn;\n\
             worker_processes 1;\n\
             worker_rlimit_nofile {files};\n\
             {tuned}\
             events {{ worker_connections {connections};{events} }}\n\
             http {{\n\
             {temporary}\
             {style}    \
                 server {{\n        \
                     listen {port} backlog=8192;\n        \
                     root {root};\n        \
                     limit_rate {bytes_per_second};\n\
                 {locations}    \
                 }}\n\
             }}\n"
        )
    }

    /// The lines of the `http` block in which the styles differ.
    fn style(&self) -> String {
        const TUNED: &str = "    access_log off;\n    tcp_nopush on;\n    tcp_nodelay on;\n    \
             keepalive_timeout 75s;\n    open_file_cache max=20000 inactive=600s;\n    \
             open_file_cache_valid 600s;\n    reset_timedout_connection on;\n";
        match self.0 {
            NginxStyle::Defaults => {
                "    access_log off;\n    sendfile on;\n    keepalive_timeout 65;\n".into()
            }
            NginxStyle::Sendfile => format!("{TUNED}    sendfile on;\n"),
            NginxStyle::SendfileThreads => {
                format!("{TUNED}    sendfile on;\n    aio threads;\n")
            }
            NginxStyle::Direct { buffer_mib } => format!(
                "{TUNED}    sendfile off;\n    aio threads;\n    directio 512k;\n    \
                 directio_alignment 4k;\n    output_buffers 2 {buffer_mib}m;\n"
            ),
            NginxStyle::Buffered { buffer_mib } => format!(
                "{TUNED}    sendfile off;\n    aio threads;\n    output_buffers 2 {buffer_mib}m;\n"
            ),
        }
    }
}
