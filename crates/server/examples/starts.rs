//! Starts a server several times on one directory, and prints what it admits after a minute.
//!
//! `cargo run -p tactus --example starts -- PROGRAM DIR [STARTS] [STREAMS] [SECONDS]`
//!
//! `PROGRAM` is the server, and `STREAMS` viewers take the largest title of `DIR` at 8.8 Mbit/s. It
//! shows how far admission depends on the moment of the start, beside other users of the disk.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{sleep, spawn};
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const RATE: u64 = 8_800_000;

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
    println!("start  at once  after {seconds} s  model    sure  time  late");
    for start in 1..=starts {
        let server = Server::start(&program, &dir)?;
        let (first, _) = server.capacity()?;
        for _ in 0..streams {
            watch(server.http, &title)?;
        }
        sleep(Duration::from_secs(seconds));
        let (after, told) = server.capacity()?;
        let status = server.ask("/api/v1/status")?;
        let (model, sure) = (text(&told, "model"), value(&told, "confidence"));
        let (time, late) = (value(&status, "time_ratio"), value(&status, "underruns"));
        println!("{start:5}  {first:7}  {after:10}  {model:7}  {sure:4}  {time:4}  {late:4}");
        found.push(after);
    }
    let (least, most) = (found.iter().min().ok_or(usage)?, found.iter().max().ok_or(usage)?);
    let spread = 100.0 * (*most as f64 / (*least).max(1) as f64 - 1.0);
    println!("{least} to {most} streams: the most are {spread:.1} % above the least");
    Ok(())
}

/// A running server.
struct Server {
    child: Child,
    http: SocketAddr,
    admin: SocketAddr,
}

impl Server {
    fn start(program: &str, dir: &Path) -> Result<Self> {
        let free = || TcpListener::bind("127.0.0.1:0")?.local_addr();
        let (http, admin) = (free()?, free()?);
        let child = Command::new(program)
            .arg("serve")
            .arg(dir)
            .args(["--http", &http.to_string(), "--admin", &admin.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let server = Self { child, http, admin };
        for _ in 0..300 {
            if server.ask("/readyz").is_ok_and(|answer| answer.starts_with("HTTP/1.1 200")) {
                return Ok(server);
            }
            sleep(Duration::from_millis(100));
        }
        Err("the server does not become ready".into())
    }

    fn ask(&self, path: &str) -> Result<String> {
        let mut socket = TcpStream::connect(self.admin)?;
        let host = self.admin;
        write!(socket, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// Streams that run and that would be admitted, and the answer.
    fn capacity(&self) -> Result<(u64, String)> {
        let answer = self.ask(&format!("/api/v1/capacity?rate={RATE}"))?;
        let running: u64 = value(&answer, "streams").parse()?;
        let fits = answer.split_once("\"fits\"").ok_or("no figures of the capacity")?.1;
        let room: u64 = value(fits, "streams").parse()?;
        Ok((running + room, fits.to_owned()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Takes a title until the server ends, from anywhere in it.
fn watch(http: SocketAddr, title: &str) -> Result<()> {
    let mut socket = TcpStream::connect(http)?;
    write!(socket, "GET /{title}?rate={RATE} HTTP/1.1\r\nHost: {http}\r\n\r\n")?;
    spawn(move || {
        let mut bytes = [0; 65_536];
        while socket.read(&mut bytes).is_ok_and(|count| count > 0) {}
    });
    Ok(())
}

fn largest(dir: &Path) -> Result<String> {
    let entries = std::fs::read_dir(dir)?.filter_map(std::result::Result::ok);
    let files = entries.filter_map(|entry| {
        let meta = entry.metadata().ok().filter(std::fs::Metadata::is_file)?;
        Some((meta.len(), entry.file_name().into_string().ok()?))
    });
    Ok(files.max().ok_or("the directory has no title")?.1)
}

/// The text after the first `"key":` of a JSON answer.
fn after<'a>(json: &'a str, key: &str) -> &'a str {
    json.split_once(&format!("\"{key}\":")).map_or("", |(_, rest)| rest.trim_start())
}

fn value(json: &str, key: &str) -> String {
    let end = |c: char| !c.is_ascii_digit() && c != '.';
    after(json, key).split(end).next().unwrap_or_default().to_owned()
}

fn text(json: &str, key: &str) -> String {
    after(json, key).trim_start_matches('"').split('"').next().unwrap_or_default().to_owned()
}
