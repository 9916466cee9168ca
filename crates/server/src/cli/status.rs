//! `tactus status`, `capacity` and `sessions`: a server's state, as tables or JSON.
//!
//! Promise: `--json` prints the server's own answer; a table has the most important figures.
//! `status` exits with 1 when the server is not ready, for scripts.

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use serde_json::Value;
use tactus_core::units::BitRate;

use super::api::{self, Kind};
use super::token::Credentials;
use super::{Failure, console};

/// The server's default admin address.
const ADMIN: &str = "http://127.0.0.1:9464/";

/// The server to query, and the output format.
#[derive(clap::Args, Debug)]
pub(super) struct Query {
    /// The server's admin address
    #[arg(default_value = ADMIN)]
    pub(super) server: String,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) credentials: Credentials,
}

/// Shows a server's state and problems
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  tactus status
  tactus status http://127.0.0.1:9464/ --json

Exit codes: 0 the server is ready; 1 it is not ready, or does not answer; 2 wrong arguments.")]
pub(super) struct Status {
    #[command(flatten)]
    query: Query,
}

/// Shows how many more streams a server has room for, and the limiting resource
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  tactus capacity
  tactus capacity --rate 8.8M
  tactus capacity http://127.0.0.1:9464/ --json

Exit codes: 0 done; 1 failed; 2 wrong arguments; 3 no room for a stream of --rate.")]
pub(super) struct Capacity {
    #[command(flatten)]
    query: Query,
    /// Only for streams of this rate, like 8.8M
    #[arg(long, value_name = "RATE")]
    rate: Option<String>,
}

/// Shows the running HTTP streams and RTSP sessions
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  tactus sessions
  tactus sessions http://127.0.0.1:9464/ --json

Exit codes: 0 done; 1 failed; 2 wrong arguments.")]
pub(super) struct Sessions {
    #[command(flatten)]
    query: Query,
}

impl Query {
    fn ask(&self, path: &'static str) -> Result<Value, Failure> {
        let what = "status at this address; use its admin address, like http://127.0.0.1:9464/";
        Kind { path, what }.all(&self.server, &self.credentials)
    }
}

impl Status {
    pub(super) fn run(self) -> Result<(), Failure> {
        let status = self.query.ask("/api/v1/status")?;
        match self.query.json {
            true => api::print(&status),
            false => console::line(summary(&status)),
        }?;
        match status["health"]["ready"].as_bool() {
            Some(false) => Err(Failure::Shown),
            _ => Ok(()),
        }
    }
}

impl Capacity {
    pub(super) fn run(self) -> Result<(), Failure> {
        let mut capacity = self.query.ask("/api/v1/capacity")?;
        if let Some(rate) = &self.rate {
            let path = format!("/api/v1/capacity?rate={}", super::client::escaped(rate));
            let what =
                "capacity at this address; use its admin address, like http://127.0.0.1:9464/";
            // Leaked: a command makes one request and then ends.
            let kind = Kind { path: path.leak(), what };
            capacity = kind.all(&self.query.server, &self.query.credentials)?;
        }
        match self.query.json {
            true => api::print(&capacity),
            false => console::line(room(&capacity)),
        }?;
        let fits = list(&capacity, "fits").map(|fits| fits["streams"].as_u64()).max().flatten();
        match (self.rate, fits) {
            (Some(_), Some(0)) => Err(Failure::Several(3)),
            _ => Ok(()),
        }
    }
}

impl Sessions {
    pub(super) fn run(self) -> Result<(), Failure> {
        let status = self.query.ask("/api/v1/status")?;
        let sessions = self.query.ask("/api/v1/sessions")?;
        match self.query.json {
            true => {
                let streams = status["streams"].clone();
                api::print(&serde_json::json!({ "streams": streams, "sessions": sessions }))
            }
            false => console::line(served(&status, &sessions)),
        }
    }
}

/// The server's state in a few lines.
fn summary(status: &Value) -> String {
    let version = text(status, "version");
    let up = Duration::from_secs(status["uptime_seconds"].as_u64().unwrap_or(0));
    let health = &status["health"];
    let is_ready = health["ready"].as_bool().unwrap_or(true);
    let word = if is_ready { "ready" } else { "NOT READY" };
    let mut out = format!("tactus {version}, up {}, {word}\n", span(up));
    for (word, key) in [("reason", "reasons"), ("warning", "warnings")] {
        for one in list(health, key).filter_map(Value::as_str) {
            out += &format!("  {word}: {one}\n");
        }
    }
    let count = |key: &str| list(status, key).count();
    let totals = &status["totals"];
    out += &format!(
        "{} streams, {} recordings, {} channels; {} underruns, {} stalls since the start\n\n",
        count("streams"),
        count("recordings"),
        count("channels"),
        totals["underruns"],
        status["stalls"]["count"],
    );
    if let wanted @ 1.. = status["indexes"]["wanted"].as_u64().unwrap_or(0) {
        let current = &status["indexes"]["current"];
        let number = |key: &str| current[key].as_u64().unwrap_or(0);
        let percent = number("read_bytes") * 100 / number("bytes").max(1);
        let now = match current["title"].as_str() {
            Some(title) => format!("; {percent} % of {title} are read"),
            None => String::new(),
        };
        out += &format!("{wanted} titles want an index{now}\n\n");
    }
    let mut table = table(&["volume", "directory", "disk", "model", "uploads", "gives up"], &[]);
    for volume in list(status, "volumes") {
        let up = if volume["up"] == true { "answers" } else { "DOWN" };
        let facts = &volume["model"];
        let model = model(text(facts, "source"), &facts["confidence"]);
        let uploads = match (&volume["uploads"], volume["uploads"]["failed"].as_str()) {
            (Value::Null, _) => "none".to_owned(),
            (_, Some(why)) => format!("FAILED: {why}"),
            (_, None) => "taken".to_owned(),
        };
        let gives_up = text(&volume["degradation"], "name");
        let (mount, path) = (text(volume, "mount"), text(volume, "path"));
        table.add_row([mount, path, up.into(), model, uploads, gives_up]);
    }
    out += &table.to_string();
    out
}

/// Where a disk's model comes from, and the evidence for it.
fn model(source: String, confidence: &Value) -> String {
    let percent = 100.0 * confidence.as_f64().unwrap_or(0.0);
    format!("{source}, {percent:.0} % sure")
}

/// The remaining capacity.
fn room(capacity: &Value) -> String {
    let head = ["volume", "rate", "streams", "ends with", "recordings", "disk model"];
    let mut fits = table(&head, &[1, 2, 4]);
    for one in list(capacity, "fits") {
        let count = |key: &str| one[key].as_u64().map_or(String::new(), |count| count.to_string());
        let (streams, recordings) = (count("streams"), count("recordings"));
        let rate = rate(&one["rate_bits_per_second"]);
        let (volume, ends) = (text(one, "volume"), text(one, "ends_with"));
        let model = model(text(one, "model"), &one["confidence"]);
        fits.add_row([volume, rate, streams, ends, recordings, model]);
    }
    let mut used = table(&["resource", "volume", "promised"], &[2]);
    for one in list(capacity, "resources") {
        let number = |key: &str| one[key].as_f64().unwrap_or(0.0);
        let share = 100.0 * number("used") / number("limit").max(1.0);
        used.add_row([text(one, "resource"), text(one, "volume"), format!("{share:.1} %")]);
    }
    format!("{} streams run; there is room for\n\n{fits}\n\n{used}", capacity["streams"])
}

fn served(status: &Value, sessions: &Value) -> String {
    let head = ["by", "client", "title", "set", "real", "sent", "late", "underruns"];
    let mut all = table(&head, &[3, 4, 5, 6, 7]);
    let bytes = |one: &Value| {
        let bytes = one["sent_bytes"].as_u64().unwrap_or(0);
        format!("{:.1} MB", bytes as f64 / 1e6)
    };
    let underruns = |one: &Value| one["underruns"].as_u64().unwrap_or(0).to_string();
    for one in list(status, "streams") {
        let late = one["lateness_max_seconds"].as_f64().unwrap_or(0.0);
        all.add_row([
            "http".to_owned(),
            text(one, "client"),
            text(one, "title"),
            rate(&one["set_rate_bits_per_second"]),
            rate(&one["real_rate_bits_per_second"]),
            bytes(one),
            format!("{:.1} ms", late * 1e3),
            underruns(one),
        ]);
    }
    for one in sessions.as_array().into_iter().flatten() {
        let state = text(one, "state");
        all.add_row([
            "rtsp".to_owned(),
            text(one, "to"),
            text(one, "title"),
            rate(&one["set_rate_bits_per_second"]),
            state,
            bytes(one),
            String::new(),
            underruns(one),
        ]);
    }
    all.to_string()
}

pub(super) fn table(head: &[&str], right: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(head.iter().copied());
    for &at in right {
        if let Some(column) = table.column_mut(at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

pub(super) fn text(one: &Value, key: &str) -> String {
    one[key].as_str().unwrap_or_default().to_owned()
}

pub(super) fn rate(bits: &Value) -> String {
    bits.as_u64().map_or(String::new(), |bits| BitRate(bits).to_string())
}

fn list<'a>(of: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    of[key].as_array().into_iter().flatten()
}

/// `3 d 4 h`, `5 min 6 s`: the two largest units.
fn span(length: Duration) -> String {
    let seconds = length.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, minutes) => format!("{minutes} min {} s", seconds % 60),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n06_the_summary_begins_with_the_problems() {
        let status = serde_json::json!({
            "version": "0.1.0", "uptime_seconds": 3_725,
            "health": {
                "ready": false,
                "reasons": ["volume /: its disk does not respond"],
                "warnings": ["w"],
            },
            "streams": [{}], "totals": {"underruns": 2}, "stalls": {"count": 1},
            "indexes": {
                "wanted": 3,
                "current": {"title": "/a.ts", "read_bytes": 1, "bytes": 4},
            },
            "volumes": [{"mount": "/", "path": "/srv", "up": false, "model": {"measured": true}}],
        });
        let shown = summary(&status);
        let lines: Vec<_> = shown.lines().collect();
        assert_eq!(lines[0], "tactus 0.1.0, up 1 h 2 min, NOT READY");
        assert_eq!(lines[1], "  reason: volume /: its disk does not respond");
        assert_eq!(lines[2], "  warning: w");
        assert!(lines[3].starts_with("1 streams, 0 recordings, 0 channels; 2 underruns, 1 stalls"));
        assert!(shown.contains("DOWN"), "{shown}");
        assert!(shown.contains("3 titles want an index; 25 % of /a.ts are read"), "{shown}");
        let capacity = serde_json::json!({
            "streams": 1,
            "fits": [{
                "volume": "/",
                "rate_bits_per_second": 8_800_000,
                "streams": 7,
                "ends_with": "disk",
            }],
            "resources": [{"resource": "cpu", "used": 1, "limit": 4}],
        });
        let shown = room(&capacity);
        assert!(shown.contains("disk") && shown.contains("25.0 %"), "{shown}");
    }
}
