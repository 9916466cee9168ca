//! Viewers of HLS beside streams at a constant rate: the levels they reach, stalls, late streams.
//!
//! `cargo run -p tactus-bench --example hls_crowd -- PROGRAM DIR PLAYLIST`, and behind it
//! `[VIEWERS] [STREAMS] [SECONDS]`
//!
//! `PROGRAM` is the server, `PLAYLIST` a master playlist in `DIR`, and the streams take the largest
//! title of `DIR` at 8.8 Mbit/s. A viewer does as hls.js does by itself: it begins at the lowest
//! level, takes the highest one that seven tenths of the measured throughput carry, and keeps 30 s
//! of media. It plays from its first segment on; a segment that comes after its time is a stall.

#[path = "support/server.rs"]
mod server;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType};

use server::{Result, Server, largest, value, watch};

/// Media that a viewer keeps.
const BUFFER: f64 = 30.0;
/// The part of the throughput that hls.js takes for a higher level.
const USED: f64 = 0.7;

fn main() -> Result<()> {
    let usage = "usage: hls_crowd PROGRAM DIR PLAYLIST [VIEWERS] [STREAMS] [SECONDS]";
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next();
    let (Some(program), Some(dir), Some(playlist)) = (next(), next(), next()) else {
        return Err(usage.into());
    };
    let mut number =
        |otherwise: u64| next().map_or(Ok(otherwise), |text| text.parse().map_err(Box::new));
    let (viewers, streams, seconds) = (number(50)?, number(100)?, number(300)?);
    let dir = PathBuf::from(dir);
    let title = largest(&dir)?;
    // A page of another site may play beside the viewers.
    let config = std::env::temp_dir().join("hls_crowd.toml");
    std::fs::write(&config, "[http]\nallowed_origins = [\"*\"]\n")?;
    let config = config.to_str().ok_or("the name of the configuration")?.to_owned();
    let server = Server::start(&program, &dir, &["--config".to_owned(), config])?;
    println!("server         http://{}/{playlist}", server.http);
    for _ in 0..streams {
        watch(server.http, &title)?;
    }
    let until = Instant::now() + Duration::from_secs(seconds);
    let playing: Vec<_> = (0..viewers)
        .map(|number| {
            let (http, playlist) = (server.http, playlist.clone());
            let own = [127, 0, 1, number as u8];
            // Viewers do not all come in one moment.
            sleep(Duration::from_millis(40));
            spawn(move || play(&connect(own, http)?, http, &playlist, until))
        })
        .collect();
    let played: Result<Vec<Viewing>> =
        playing.into_iter().map(|one| one.join().map_err(|_| "a viewer failed")?).collect();
    let (played, status) = (played?, server.ask("/api/v1/status")?);
    let top = |one: &&Viewing| one.third.is_some_and(|level| level + 1 == one.levels);
    println!("viewers        {viewers}, {streams} streams of 8.8 Mbit/s, {seconds} s");
    println!("third segment  of the highest level with {}", played.iter().filter(top).count());
    println!("stalls         {}", played.iter().map(|one| one.stalls).sum::<u32>());
    println!("segments       {}", played.iter().map(|one| one.segments).sum::<u32>());
    println!("late streams   {} underruns", value(&status, "underruns"));
    Ok(())
}

/// What a viewer has seen.
#[derive(Default)]
struct Viewing {
    levels: usize,
    third: Option<usize>,
    stalls: u32,
    segments: u32,
}

/// Connects from an address of the viewer's own: the server limits the connections of each.
fn connect(own: [u8; 4], http: SocketAddr) -> Result<TcpStream> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
    rustix::net::bind(&socket, &SocketAddr::from((own, 0)))?;
    rustix::net::connect(&socket, &http)?;
    Ok(socket.into())
}

fn play(to: &TcpStream, http: SocketAddr, master: &str, until: Instant) -> Result<Viewing> {
    let mut connection = BufReader::new(to);
    let text = String::from_utf8(get(&mut connection, http, master)?)?;
    let mut levels = levels(&text)?;
    levels.sort_by_key(|level| level.0);
    let mut viewing = Viewing { levels: levels.len(), ..Viewing::default() };
    let (mut level, mut number, mut media) = (0, 0, 0.0);
    let mut lists: Vec<Option<Vec<(f64, String)>>> = vec![None; levels.len()];
    let mut began = None;
    while Instant::now() < until {
        if lists[level].is_none() {
            let text = String::from_utf8(get(&mut connection, http, &levels[level].1)?)?;
            lists[level] = Some(segments(&text)?);
        }
        let list = lists[level].as_deref().unwrap_or_default();
        // At the end of the title the viewer begins again.
        let (seconds, name) = &list[number % list.len()];
        let asked = Instant::now();
        let bytes = get(&mut connection, http, name)?.len() as f64;
        let throughput = bytes * 8.0 / asked.elapsed().as_secs_f64();
        let played = began.get_or_insert_with(Instant::now).elapsed().as_secs_f64();
        if played > media && number > 0 {
            viewing.stalls += 1;
            // It waited: what it plays from now on is later by so much.
            began = Some(Instant::now() - Duration::from_secs_f64(media));
        }
        number += 1;
        viewing.segments += 1;
        if number == 3 {
            viewing.third = Some(level);
        }
        media += seconds;
        let carried = |&(rate, _): &(u64, String)| rate as f64 <= throughput * USED;
        level = levels.iter().rposition(carried).unwrap_or(0);
        let ahead = media - began.map_or(0.0, |began| began.elapsed().as_secs_f64()) - BUFFER;
        if ahead > 0.0 {
            sleep(Duration::from_secs_f64(ahead));
        }
    }
    Ok(viewing)
}

/// Bandwidth and playlist of each level.
fn levels(master: &str) -> Result<Vec<(u64, String)>> {
    let mut lines = master.lines();
    let mut levels = vec![];
    while let Some(line) = lines.next() {
        if let Some((_, rest)) = line.split_once("BANDWIDTH=") {
            let digits = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
            levels.push((digits.parse()?, lines.next().ok_or("a level without name")?.to_owned()));
        }
    }
    if levels.is_empty() { Err("no master playlist".into()) } else { Ok(levels) }
}

/// Duration and name of each segment.
fn segments(list: &str) -> Result<Vec<(f64, String)>> {
    let mut lines = list.lines();
    let mut segments = vec![];
    while let Some(line) = lines.next() {
        if let Some(seconds) = line.strip_prefix("#EXTINF:") {
            let name = lines.next().ok_or("a segment without name")?;
            segments.push((seconds.trim_end_matches(',').parse()?, name.to_owned()));
        }
    }
    if segments.is_empty() { Err("a level without segments".into()) } else { Ok(segments) }
}

/// The body of an answer, on a connection that stays open.
fn get(connection: &mut BufReader<&TcpStream>, host: SocketAddr, name: &str) -> Result<Vec<u8>> {
    write!(connection.get_mut(), "GET /{name} HTTP/1.1\r\nHost: {host}\r\n\r\n")?;
    let (mut line, mut len, mut first) = (String::new(), 0, String::new());
    loop {
        line.clear();
        connection.read_line(&mut line)?;
        if first.is_empty() {
            first.clone_from(&line);
        }
        if let Some(text) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            len = text.trim().parse()?;
        }
        if line.trim_end().is_empty() {
            break;
        }
    }
    if !first.starts_with("HTTP/1.1 200") {
        return Err(format!("{name}: {first}").into());
    }
    let mut body = vec![0; len];
    connection.read_exact(&mut body)?;
    Ok(body)
}
