//! `tactus ls`: a directory of a server as a table.

use comfy_table::{CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};
use tactus_core::units::{BitRate, Bytes};

use super::client::{self, Url};
use super::{Failure, console};

/// Lists a directory of a server
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  tactus ls http://127.0.0.1:8080/
  tactus ls http://127.0.0.1:8080/films/ --rates
  tactus ls http://127.0.0.1:8080/ --json

A rate is shown once the server has found it; --rates asks for each title, so that it looks.

Exit codes: 0 done; 1 failed; 2 wrong arguments.")]
pub(super) struct Ls {
    /// Which directory, like http://127.0.0.1:8080/
    url: String,
    /// Ask for each title's rate
    #[arg(short, long)]
    rates: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

#[derive(Deserialize)]
struct Listing {
    entries: Vec<Entry>,
    #[serde(default = "whole")]
    complete: bool,
    /// The query of the next page.
    #[serde(default)]
    next: Option<String>,
    #[serde(default)]
    not_listed: u64,
}

fn whole() -> bool {
    true
}

#[derive(Deserialize, Serialize)]
struct Entry {
    name: String,
    href: String,
    #[serde(rename = "type")]
    kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rate_bits_per_second: Option<u64>,
    /// The highest rate, of a title of a variable rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    peak_bits_per_second: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    duration_seconds: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    modified: Option<String>,
}

/// Largest page: 10,000 entries with names of at most 255 bytes, which appear twice and take up to
/// three bytes for each byte, and some figures.
const LISTING_MAX: u64 = 24 << 20;

/// Entries per page.
const PAGE: &str = "10000";

impl Ls {
    pub(super) fn run(self) -> Result<(), Failure> {
        let mut url = Url::parse(&self.url).map_err(Failure::usage)?;
        if !url.path.ends_with('/') {
            url.path.push('/');
        }
        let mut listing = self.page(&url.clone().with_query("limit", PAGE))?;
        while let Some(next) = listing.next.take() {
            let query = next.trim_start_matches('?').to_owned();
            let page = self.page(&Url { query, ..url.clone() })?;
            listing.entries.extend(page.entries);
            (listing.complete, listing.next) = (page.complete, page.next);
        }
        if self.rates {
            for entry in listing.entries.iter_mut().filter(|entry| entry.kind == "title") {
                ask_rate(&url, entry)?;
            }
        }
        let shown = match self.json {
            true => serde_json::to_string_pretty(&listing.entries).map_err(anyhow::Error::from)?,
            false => table(&listing.entries).trim_fmt(),
        };
        console::line(shown)?;
        if !listing.complete {
            console::notice("tactus: there are more entries than the server lists");
        }
        if listing.not_listed > 0 {
            let count = listing.not_listed;
            console::notice(format_args!(
                "tactus: {count} names are not listed, as no URL path can express them; see the \
                 server's log"
            ));
        }
        Ok(())
    }

    fn page(&self, url: &Url) -> Result<Listing, Failure> {
        let response = client::fetch("GET", url, &[("Accept", "application/json")])?;
        if response.status != 200 {
            return Err(super::get::refused(response));
        }
        let text = response.into_text(LISTING_MAX)?;
        let listing = serde_json::from_str(&text)
            .map_err(|error| anyhow::anyhow!("{} is not a Tactus listing: {error}", self.url))?;
        Ok(listing)
    }
}

/// Sends HEAD for a title, which makes the server determine its rate.
fn ask_rate(directory: &Url, entry: &mut Entry) -> Result<(), Failure> {
    let path = format!("{}{}", directory.path, entry.href);
    let response = client::fetch("HEAD", &Url { path, ..directory.clone() }, &[])?;
    let Some(value) = response.field("tactus-rate") else { return Ok(()) };
    let (rate, parameters) = value.split_once(';').unwrap_or((value, ""));
    let parameter = |name: &str| {
        let mut all = parameters.split(';').filter_map(|one| one.trim().split_once('='));
        all.find(|&(key, _)| key == name).and_then(|(_, value)| value.parse::<u64>().ok())
    };
    let rate = parameter("mean").or_else(|| rate.parse().ok());
    if let (Some(rate), Some(bytes)) = (rate, entry.bytes) {
        entry.rate_bits_per_second = Some(rate);
        entry.peak_bits_per_second = parameter("peak");
        entry.duration_seconds = Some(bytes as f64 * 8.0 / rate.max(1) as f64);
    }
    Ok(())
}

fn table(entries: &[Entry]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["name", "size", "rate", "peak", "length", "modified"]);
    for entry in entries {
        let slash = if entry.kind == "directory" { "/" } else { "" };
        table.add_row([
            format!("{}{slash}", printable(&entry.name)),
            entry.bytes.map(|bytes| format!("{:.1}", Bytes(bytes))).unwrap_or_default(),
            entry
                .rate_bits_per_second
                .map(|rate| format!("{:.2}", BitRate(rate)))
                .unwrap_or_default(),
            entry
                .peak_bits_per_second
                .map(|rate| format!("{:.2}", BitRate(rate)))
                .unwrap_or_default(),
            entry.duration_seconds.map(duration).unwrap_or_default(),
            entry.modified.clone().unwrap_or_default(),
        ]);
    }
    for column in table.column_iter_mut().skip(1).take(4) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Removes control characters, with which a name could control the terminal.
fn printable(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

fn duration(seconds: f64) -> String {
    let seconds = seconds as u64;
    match seconds / 3600 {
        0 => format!("{}:{:02}", seconds / 60, seconds % 60),
        hours => format!("{hours}:{:02}:{:02}", seconds / 60 % 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_cannot_steer_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\r"), "a\u{fffd}[2Jb\u{fffd}");
    }

    #[test]
    fn lengths_are_short() {
        assert_eq!(duration(59.9), "0:59");
        assert_eq!(duration(3_661.0), "1:01:01");
    }
}
