//! The disk without a server: direct reads in a ring, and the latency of a single one.
//!
//! Promise: measured by fio with registered buffers, on the same file and file system as the
//! titles.

use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::command;
use crate::report::{Floor, number};
use crate::titles::Titles;

const SECONDS: &str = "0.7";

/// Random direct reads at several depths.
pub(super) fn measure(file: &Titles) -> Result<Vec<Floor>> {
    file.chill()?;
    let mut floors = Vec::new();
    for (block, depth) in [("256k", 4), ("256k", 16)] {
        let job = read(file, block, depth)?;
        let bytes = field(&job, "/read/io_bytes")?;
        let seconds = field(&job, "/read/runtime")? / 1e3;
        let busy = (field(&job, "/usr_cpu")? + field(&job, "/sys_cpu")?) / 100.0 * seconds;
        let (rate, cost) = (bytes / seconds / 1e9, busy * 1e9 / bytes);
        floors.push(Floor::new(
            &format!("direct reads of 256 KiB, depth {depth}"),
            format!("{} GB/s, {} s/GB", number(rate), number(cost)),
            &[("GB/s", rate), ("s/GB", cost)],
        ));
    }
    let job = read(file, "128k", 1)?;
    let micros = |share: &str| {
        Ok::<_, anyhow::Error>(field(&job, &format!("/read/clat_ns/percentile/{share}"))? / 1e3)
    };
    let (p50, p99) = (micros("50.000000")?, micros("99.000000")?);
    floors.push(Floor::new(
        "one direct read of 128 KiB",
        format!("p50 {} us, p99 {} us", number(p50), number(p99)),
        &[("p50, us", p50), ("p99, us", p99)],
    ));
    Ok(floors)
}

fn read(file: &Titles, block: &str, depth: u32) -> Result<Value> {
    let mut fio = Command::new("fio");
    fio.args(["--name=floor", "--rw=randread", "--direct=1", "--ioengine=io_uring"]);
    fio.args(["--fixedbufs", "--registerfiles", "--time_based", "--output-format=json"]);
    fio.args(["--randrepeat=1", "--norandommap", "--thread", "--cpus_allowed=0"]);
    fio.arg(format!("--runtime={SECONDS}"));
    fio.arg(format!("--bs={block}")).arg(format!("--iodepth={depth}"));
    let path = file.root().join(file.target(0).trim_start_matches('/'));
    fio.arg(format!("--filename={}", path.display()));
    let printed = command::finish(&mut fio)?;
    // fio may print warnings before the object.
    let start = printed.find('{').context("fio printed no JSON")?;
    let all: Value = serde_json::from_str(&printed[start..])?;
    Ok(all.pointer("/jobs/0").context("fio reports no job")?.clone())
}

fn field(job: &Value, pointer: &str) -> Result<f64> {
    job.pointer(pointer)
        .and_then(Value::as_f64)
        .with_context(|| format!("fio reports no {pointer}"))
}
