//! nginx: at its defaults, and at the best settings that we know.
//!
//! Promise: the whole configuration is written here, so nothing of the host's own leaks in. Its
//! `limit_rate` counts bytes per second; it keeps the average by bursts on whole seconds.

use std::fs;
use std::path::Path;

use anyhow::Result;
use tactus_core::units::BitRate;

use super::{PORT, Peer, Server, Setting, address};
use crate::priority;
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
        Ok(self.configuration(Path::new("DIR"), setting))
    }

    fn start(&self, setting: &Setting<'_>) -> Result<Server> {
        let folder = tempfile::Builder::new().prefix("tactus-bench-nginx-").tempdir()?;
        let file = folder.path().join("nginx.conf");
        fs::write(&file, self.configuration(folder.path(), setting))?;
        let mut command = priority::on_cores(setting.cores, setting.group, "nginx");
        command.arg("-p").arg(folder.path()).arg("-c").arg(&file);
        command.arg("-e").arg(folder.path().join("error.log"));
        Server::start(&command, folder, setting.wire, address(setting.wire))
    }

    fn target(&self, titles: &Titles, number: usize, _rate: BitRate) -> String {
        titles.target(number)
    }
}

impl Nginx {
    fn configuration(&self, folder: &Path, setting: &Setting<'_>) -> String {
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
            .map(|kind| format!("    {kind}_temp_path {folder}/{kind};\n"))
            .concat();
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
                     listen {PORT} backlog=8192;\n        \
                     root {root};\n        \
                     limit_rate {bytes_per_second};\n    \
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
