//! A server that only sends evenly, a lower bound of the CPU time of all that do.

use std::path::Path;

use anyhow::{Context, Result};
use tactus_core::units::BitRate;

use super::{Peer, Server, Setting, address};
use crate::priority;
use crate::titles::Titles;

/// The server, with this number of sends per stream and second.
#[derive(Clone, Copy, Debug)]
pub struct PlainSender(pub u64);

impl Peer for PlainSender {
    fn name(&self) -> String {
        format!("sendfile {} times a second", self.0)
    }

    fn settings(&self, _setting: &Setting<'_>) -> Result<String> {
        Ok("a real-time thread on the last core; nothing else".into())
    }

    fn start(&self, setting: &Setting<'_>) -> Result<Server> {
        let folder = tempfile::Builder::new().prefix("tactus-bench-plain-").tempdir()?;
        let own = std::env::current_exe()?;
        let own = own.to_str().context("the name of the bench is text")?;
        let mut command = priority::on_cores(setting.cores, setting.group, own);
        let address = address(setting.wire);
        command.arg("plain-sender").arg("--root").arg::<&Path>(setting.titles.root());
        command.args(["--listen", &address.to_string()]);
        command.args(["--rate", &setting.rate.0.to_string(), "--sends", &self.0.to_string()]);
        command.args(["--core", &(priority::cores() - 1).to_string()]);
        Server::start(&command, folder, setting.wire, address)
    }

    fn target(&self, titles: &Titles, number: usize, _rate: BitRate) -> String {
        titles.target(number)
    }

    fn acks_are_durable(&self) -> bool {
        false
    }
}
