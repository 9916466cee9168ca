//! The core of each server of a running Tactus, as `tactus place list` shows it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// The name and the processor of each server, core by core.
pub(super) fn server_places(address: SocketAddr, token: &str) -> Result<Vec<(String, u64)>> {
    let all = exchange(address, token, "GET /api/v1/placement", "")?;
    let of_core = |core: &Value| {
        let cpu = core["cpu"].as_u64().unwrap_or_default();
        let servers = core["servers"].as_array().cloned().unwrap_or_default();
        servers.into_iter().filter_map(move |name| Some((name.as_str()?.to_owned(), cpu)))
    };
    Ok(all.as_array().context("no list of cores")?.iter().flat_map(of_core).collect())
}

/// Sends a request with the method and target `line` to the control API, and returns its answer.
pub(super) fn exchange(address: SocketAddr, token: &str, line: &str, body: &str) -> Result<Value> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(
        stream,
        "{line} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no answer")?;
    ensure!(head.starts_with("HTTP/1.1 200"), "{answer}");
    Ok(serde_json::from_str(body)?)
}
