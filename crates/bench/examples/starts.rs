//! Starts a server several times on one directory, and prints what it admits after a minute.
//!
//! `cargo run -p tactus-bench --example starts -- PROGRAM DIR [STARTS] [STREAMS] [SECONDS]`
//!
//! `PROGRAM` is the server, and `STREAMS` viewers take the largest title of `DIR` at 8.8 Mbit/s. It
//! shows how far admission depends on the moment of the start, beside other users of the disk.

#[path = "support/server.rs"]
mod server;

use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use server::{RATE, Result, Server, after, largest, value, watch};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next();
    let usage = "usage: starts PROGRAM DIR [STARTS] [STREAMS] [SECONDS]";
    let (program, dir) = (next().ok_or(usage)?, PathBuf::from(next().ok_or(usage)?));
    let mut number =
        |otherwise: u64| next().map_or(Ok(otherwise), |text| text.parse().map_err(Box::new));
    let (starts, streams, seconds) = (number(10)?, number(20)?, number(60)?);
    let title = largest(&dir)?;
    let mut found = vec![];
    println!("start  at once  after {seconds} s  model    sure  time  late  ends with");
    for start in 1..=starts {
        let server = Server::start(&program, &dir, &[])?;
        let (first, _) = capacity(&server)?;
        for _ in 0..streams {
            watch(server.http, &title)?;
        }
        sleep(Duration::from_secs(seconds));
        let (after, told) = capacity(&server)?;
        let status = server.ask("/api/v1/status")?;
        let (model, sure) = (text(&told, "model"), value(&told, "confidence"));
        let short = text(&told, "ends_with");
        let (time, late) = (value(&status, "time_ratio"), value(&status, "underruns"));
        println!(
            "{start:5}  {first:7}  {after:10}  {model:7}  {sure:4}  {time:4}  {late:4}  {short}"
        );
        found.push(after);
    }
    let (least, most) = (found.iter().min().ok_or(usage)?, found.iter().max().ok_or(usage)?);
    let spread = 100.0 * (*most as f64 / (*least).max(1) as f64 - 1.0);
    println!("{least} to {most} streams: the most are {spread:.1} % above the least");
    Ok(())
}

/// Streams that run and that would be admitted, and the answer.
fn capacity(server: &Server) -> Result<(u64, String)> {
    let answer = server.ask(&format!("/api/v1/capacity?rate={RATE}"))?;
    let running: u64 = value(&answer, "streams").parse()?;
    let fits = answer.split_once("\"fits\"").ok_or("no figures of the capacity")?.1;
    let room: u64 = value(fits, "streams").parse()?;
    Ok((running + room, fits.to_owned()))
}

fn text(json: &str, key: &str) -> String {
    after(json, key).trim_start_matches('"').split('"').next().unwrap_or_default().to_owned()
}
