//! The server of this bench: at its defaults, but for the rate of its link, with all titles read.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use tactus_core::units::{BitRate, Nanos, SECOND};

use super::clips::Clip;
use crate::benches::Fixture;
use crate::peers::{self, Server};
use crate::receiver::head::Head;
use crate::report::Report;
use crate::{clock, command, interrupt, priority};

/// The server's metrics, on its own side of the wire.
const ADMIN: &str = "127.0.0.1:8081";
/// How long all titles may take to be read, on a busy machine.
const INDEX_MAX: Nanos = SECOND.times(180);
const LOOK: Nanos = Nanos::from_millis(250);

/// A running server and its titles.
pub(super) struct TitleServer<'a> {
    fixture: &'a Fixture,
    server: Server,
}

impl<'a> TitleServer<'a> {
    /// Starts it, and waits until it has read all titles in `folder`.
    pub(super) fn start(
        fixture: &'a Fixture,
        (folder, clips): (&Path, &[Clip]),
        link: BitRate,
        report: &mut Report,
    ) -> Result<Self> {
        let place = tempfile::Builder::new().prefix("tactus-bench-vbr-").tempdir()?;
        let text = format!(
            "[http]\naddress = \"{}\"\nconnections_per_address_max = 10000\n\
             connections_max = 10000\n[admin]\naddress = \"{ADMIN}\"\n[link]\nrate = \"{} bit/s\"\n\
             [[volume]]\npath = \"{}\"\nmount = \"/\"\n",
            peers::address(&fixture.wire),
            link.0,
            folder.display(),
        );
        let file = place.path().join("tactus.toml");
        fs::write(&file, &text)?;
        report.settings.push((format!("tactus.toml, link of {link}"), text));
        let mut command = priority::on_cores("0-1", None, &fixture.tactus.to_string_lossy());
        command.arg("serve").arg("--config").arg(&file);
        let address = peers::address(&fixture.wire);
        let server = Server::start(&command, place, &fixture.wire, address)?;
        let mut titled = Self { fixture, server };
        titled.wait_until_all_are_read(clips)?;
        Ok(titled)
    }

    /// Requests each title until its answer names a peak: by then the server has read it.
    fn wait_until_all_are_read(&mut self, clips: &[Clip]) -> Result<()> {
        let deadline = clock::now() + INDEX_MAX;
        for clip in clips {
            while self.head(&clip.name)?.peak.is_none() {
                self.check()?;
                interrupt::check()?;
                if clock::now() > deadline {
                    bail!("{} has no variable rate within {INDEX_MAX}", clip.name);
                }
                clock::sleep(LOOK);
            }
        }
        Ok(())
    }

    /// The head of the answer to a request for a title.
    fn head(&self, name: &str) -> Result<Head> {
        let (side, address) =
            (self.fixture.wire.receiver_side(), peers::address(&self.fixture.wire));
        let ask = || -> Result<Head> {
            side.enter()?;
            let mut socket = TcpStream::connect(address)?;
            socket.set_read_timeout(Some(Duration::from_secs(20)))?;
            socket.write_all(format!("GET /{name} HTTP/1.1\r\nHost: bench\r\n\r\n").as_bytes())?;
            let (mut text, mut piece) = (Vec::new(), [0; 4096]);
            loop {
                let count = socket.read(&mut piece)?;
                ensure!(count > 0, "the server has closed the connection");
                text.extend_from_slice(&piece[..count]);
                if let Some(head) = Head::parse(&text).map_err(Error::msg)? {
                    return Ok(head);
                }
            }
        };
        // Its side of the wire is a thread's own.
        let asked = std::thread::scope(|scope| scope.spawn(ask).join());
        asked.map_err(|_| anyhow!("the thread that asks panicked"))?
    }

    /// Fails when the server has ended.
    pub(super) fn check(&mut self) -> Result<()> {
        self.server.check()
    }

    /// Late sends so far.
    pub(super) fn underruns(&self) -> Result<f64> {
        self.count("tactus_underruns_total")
    }

    /// Refusals so far that were for lack of `resource`, and all others.
    pub(super) fn refusals(&self, resource: &str) -> Result<[f64; 2]> {
        let own = format!("resource=\"{resource}\"");
        let mut counts = [0.0; 2];
        for line in self.metrics()?.lines() {
            let Some(rest) = line.strip_prefix("tactus_refusals_total{") else { continue };
            let value = rest.split_whitespace().last().and_then(|value| value.parse::<f64>().ok());
            counts[usize::from(!rest.contains(&own))] += value.context("a count of refusals")?;
        }
        Ok(counts)
    }

    fn count(&self, name: &str) -> Result<f64> {
        let text = self.metrics()?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let value = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        value.with_context(|| format!("the server has no metric {name}"))
    }

    fn metrics(&self) -> Result<String> {
        self.curl(&["--fail", &format!("http://{ADMIN}/metrics")])
    }

    fn curl(&self, arguments: &[&str]) -> Result<String> {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--max-time", "20"]).args(arguments);
        let text = command::finish(&mut self.fixture.wire.on_server_side(&curl))?;
        ensure!(!text.is_empty(), "curl got nothing from the server");
        Ok(text)
    }
}
