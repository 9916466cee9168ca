//! `tactus measure`: profiles a volume with a progress bar and leaves its disk model there.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use tactus_control::measure::model_file;
use tactus_control::measure::profile::{self, Effort, Profile, Progress};
use tactus_control::settings::MODEL_FILE;
use tactus_core::units::{Bytes, MIB};
use tactus_notation::units;

use super::{Failure, api, console};

/// Finds out what a volume's disk can do
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  tactus measure /srv/media
  tactus measure /srv/media --scratch '8 GiB'

Measures service times by size, depth and direction, and the seek curve of a spinning disk, and
writes the disk model to DIR/.tactus/disk-model.toml, where the server finds it. Without a model the
server measures a cautious one at each start and admits less.

It takes about a minute on flash and some minutes on a spinning disk. Do it while the disk is quiet.
Titles are not touched; scratch data has no name and is gone at the end, however it ends.")]
pub(super) struct Measure {
    /// The volume's directory
    dir: PathBuf,
    /// Scratch data at most; also at most a tenth of the free space
    #[arg(long, value_name = "SIZE", default_value = "1 GiB", value_parser = units::read::<Bytes>)]
    scratch: Bytes,
    /// Show the model and write no file
    #[arg(long)]
    dry_run: bool,
    /// Print the model as JSON
    #[arg(long)]
    json: bool,
    /// A tenth of the time, with less certain figures
    #[arg(long)]
    fast: bool,
}

struct Bar(ProgressBar);

impl Progress for Bar {
    fn step(&mut self, what: &str, share: f64) {
        self.0.set_position((share * 1000.0) as u64);
        self.0.set_message(what.to_owned());
    }
}

impl Measure {
    pub(super) fn run(self) -> Result<(), Failure> {
        if !self.dir.is_dir() {
            let message = format!("{} is not a directory; name a volume's", self.dir.display());
            return Err(Failure::usage(message));
        }
        let template = "[{bar:32}] {percent:>3} %  {msg}";
        let style = ProgressStyle::with_template(template).expect("the template is well-formed");
        let bar = ProgressBar::new(1000).with_style(style.progress_chars("=> "));
        let effort = match self.fast {
            true => Effort {
                scratch: Bytes(self.scratch.0.min(128 * MIB)),
                each: Effort::default().each / 10,
            },
            false => Effort { scratch: self.scratch, ..Effort::default() },
        };
        bar.enable_steady_tick(Duration::from_millis(200));
        let result = profile::measure(&self.dir, effort, &mut Bar(bar.clone()));
        bar.finish_and_clear();
        let profile =
            result.with_context(|| format!("{} cannot be measured", self.dir.display()))?;
        if self.json {
            api::print(&as_json(&profile))?;
        } else {
            console::line(table(&profile))?;
            console::line(summary(&profile))?;
        }
        if !self.dry_run {
            let path = self.dir.join(MODEL_FILE);
            model_file::write(&path, &profile)
                .with_context(|| format!("cannot write {}", path.display()))?;
            if !self.json {
                console::line(format_args!(
                    "Written to {}; the server uses it from the next start on.",
                    path.display()
                ))?;
            }
        }
        Ok(())
    }
}

/// Times in nanoseconds, sizes in bytes, rates in bits per second.
fn as_json(profile: &Profile) -> serde_json::Value {
    let services = profile.services.iter().map(|service| {
        serde_json::json!({
            "direction": if service.writes { "write" } else { "read" },
            "bytes": service.size.0,
            "depth": service.depth,
            "p50_nanoseconds": service.p50.0,
            "p99_nanoseconds": service.p99.0,
            "rate_bits_per_second": service.rate.0,
        })
    });
    let seeks = profile.seeks.iter().map(|seek| {
        let part = seek.distance_thousandths;
        serde_json::json!({ "distance_thousandths": part, "nanoseconds": seek.time.0 })
    });
    let model = profile.model;
    serde_json::json!({
        "device": profile.device_name(),
        "file_system": profile.file_system,
        "services": services.collect::<Vec<_>>(),
        "seeks": seeks.collect::<Vec<_>>(),
        "model": {
            "visit_nanoseconds": model.visit.0,
            "sweep_nanoseconds": model.sweep.0,
            "read_mib_nanoseconds": model.read_mib.0,
            "write_mib_nanoseconds": model.write_mib.0,
            "flush_nanoseconds": model.flush.0,
            "depth": model.depth,
        },
    })
}

fn table(profile: &Profile) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["", "size", "depth", "half within", "99 % within", "rate"]);
    for service in &profile.services {
        let row = [
            if service.writes { "write".into() } else { "read".into() },
            service.size.to_string(),
            service.depth.to_string(),
            microseconds(service.p50),
            microseconds(service.p99),
            format!("{:.0} MB/s", service.rate.0 as f64 / 8e6),
        ];
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn microseconds(time: tactus_core::units::Nanos) -> String {
    format!("{} us", time.0 / 1000)
}

fn summary(profile: &Profile) -> String {
    let model = profile.model;
    let mut text = format!(
        "\n{} on {}, kernel {}\n",
        profile.device_name(),
        profile.file_system,
        profile.kernel
    );
    for seek in &profile.seeks {
        let percent = f64::from(seek.distance_thousandths) / 10.0;
        text += &format!("  seek over {percent:>5} % of the disk: {}\n", microseconds(seek.time));
    }
    let kind = if model.has_arm() { "a spinning disk" } else { "no arm" };
    text += &format!(
        "Model: {kind}; {} a visit, {} a sweep, {} for each MiB read, {} written, {} a flush, \
         depth {}",
        microseconds(model.visit),
        microseconds(model.sweep),
        microseconds(model.read_mib),
        microseconds(model.write_mib),
        microseconds(model.flush),
        model.depth
    );
    text
}
