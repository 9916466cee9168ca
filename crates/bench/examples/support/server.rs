//! A server for an example, and viewers at a constant rate.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::{sleep, spawn};
use std::time::Duration;

/// An example ends with any error.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The rate of each viewer.
pub(crate) const RATE: u64 = 8_800_000;

/// A running server.
pub(crate) struct Server {
    child: Child,
    /// Where titles are served.
    pub(crate) http: SocketAddr,
    admin: SocketAddr,
}

impl Server {
    /// Starts `program` with `dir` and more arguments, and waits until it is ready.
    pub(crate) fn start(program: &str, dir: &Path, arguments: &[String]) -> Result<Self> {
        let free = || TcpListener::bind("127.0.0.1:0")?.local_addr();
        let (http, admin) = (free()?, free()?);
        let child = Command::new(program)
            .arg("serve")
            .arg(dir)
            .args(["--http", &http.to_string(), "--admin", &admin.to_string()])
            .args(arguments)
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

    /// The answer of the control API.
    pub(crate) fn ask(&self, path: &str) -> Result<String> {
        let mut socket = TcpStream::connect(self.admin)?;
        let host = self.admin;
        write!(socket, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer)?;
        Ok(answer)
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
pub(crate) fn watch(http: SocketAddr, title: &str) -> Result<()> {
    let mut socket = TcpStream::connect(http)?;
    write!(socket, "GET /{title}?rate={RATE} HTTP/1.1\r\nHost: {http}\r\n\r\n")?;
    spawn(move || {
        let mut bytes = [0; 65_536];
        while socket.read(&mut bytes).is_ok_and(|count| count > 0) {}
    });
    Ok(())
}

/// The name of the largest title.
pub(crate) fn largest(dir: &Path) -> Result<String> {
    let entries = std::fs::read_dir(dir)?.filter_map(std::result::Result::ok);
    let files = entries.filter_map(|entry| {
        let meta = entry.metadata().ok().filter(std::fs::Metadata::is_file)?;
        Some((meta.len(), entry.file_name().into_string().ok()?))
    });
    Ok(files.max().ok_or("the directory has no title")?.1)
}

/// The text after the first `"key":` of a JSON answer.
pub(crate) fn after<'a>(json: &'a str, key: &str) -> &'a str {
    json.split_once(&format!("\"{key}\":")).map_or("", |(_, rest)| rest.trim_start())
}

/// The number after the first `"key":` of a JSON answer.
pub(crate) fn value(json: &str, key: &str) -> String {
    let end = |c: char| !c.is_ascii_digit() && c != '.';
    after(json, key).split(end).next().unwrap_or_default().to_owned()
}
