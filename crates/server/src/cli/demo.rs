//! `tactus demo`: real sample titles, a running server, and the next commands to try.
//!
//! Promise: one command on a fresh machine. It writes only into its own directory, and keeps
//! existing files. If the usual ports are in use, it chooses other ports, or leaves the service
//! out.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use tactus_client::{Client, Options};
use tactus_config::{Config, address};
use tactus_control::socket_file::UnixSocket;
use tactus_core::units::Nanos;
use tactus_http as http;
use tactus_local::settings::{CLIENTS, DATA_MAX, LocalSettings, TITLES_MAX};
use tactus_media::RESERVED;
use tactus_media::demo::{self, DemoTitle};

use super::{Failure, console, serve};

/// Serves sample titles, to look at it
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  tactus demo                                          then open http://127.0.0.1:8080/
  tactus demo --http :8080 --dir /tmp/titles           for the network
  tactus demo --rtsp off --uploads no                  only to be read, by HTTP

The titles (about 350 MB) are laid down in --dir, by default $XDG_CACHE_HOME/tactus/demo or
~/.cache/tactus/demo, and kept for the next time.")]
pub(super) struct Demo {
    /// Address to listen on [default: 127.0.0.1:8080, or a free port if that is in use]
    #[arg(long, value_name = "ADDR", value_parser = address::parse)]
    http: Option<SocketAddr>,
    /// Address for RTSP players, or off [default: 127.0.0.1:8554 when that is free]
    #[arg(long, value_name = "ADDR|off", value_parser = address_or_off)]
    rtsp: Option<Address>,
    /// Address for metrics and status, or off [default: 127.0.0.1:9464 when that is free]
    #[arg(long, value_name = "ADDR|off", value_parser = address_or_off)]
    admin: Option<Address>,
    /// Accept uploads, with a new token
    #[arg(long, value_name = "yes|no", num_args = 0..=1)]
    #[arg(default_value = "yes", default_missing_value = "yes", value_parser = ["yes", "no"])]
    uploads: String,
    /// Where the titles are laid down
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// An address to listen on; `None`: off.
type Address = Option<SocketAddr>;

fn address_or_off(text: &str) -> Result<Address, String> {
    match text {
        "off" => Ok(None),
        text => address::parse(text).map(Some).map_err(|error| format!("{error}; or off")),
    }
}

impl Demo {
    pub(super) fn run(self) -> Result<(), Failure> {
        let ground = serve::Bootstrap::new()?;
        let dir = match self.dir {
            Some(dir) => dir,
            None => cache_dir().ok_or_else(|| {
                Failure::usage(
                    "there is no home directory to keep the titles in; name one with --dir",
                )
            })?,
        };
        let there = demo::are_laid_down(&dir).unwrap_or(false);
        if !there {
            console::notice(format_args!("Creating the sample titles in {} ...", dir.display()));
        }
        let titles = demo::lay_down(&dir).with_context(|| {
            format!(
                "cannot create the sample titles in {}; choose another directory with --dir",
                dir.display()
            )
        })?;
        let mut config = Config::unconfigured();
        config.serve_only(&dir);
        config.rate.title.start_burst = LOOK;
        config.http.addresses = vec![self.http.unwrap_or_else(|| or_any_port(HTTP))];
        // If the port is in use, RTSP is left out.
        let rtsp = self.rtsp.unwrap_or_else(|| TcpListener::bind(RTSP).is_ok().then_some(RTSP));
        config.rtsp.addresses = rtsp.into_iter().collect();
        if let Some(admin) = self.admin {
            config.admin.address = admin;
        }
        config.local = local(&dir);
        let socket = config.local.as_ref().map(|local| local.socket.path.clone());
        let token = match self.uploads.as_str() {
            "yes" => {
                let own = serve::allow_uploads(&mut config)?;
                let token = own.map(|own| http::token_in(&own.file)).transpose()?;
                token.map(|token| String::from_utf8_lossy(&token).into_owned())
            }
            _ => None,
        };
        serve::run(ground, config, None, |served| {
            if let Some(&http) = served.http.first() {
                let rtsp = served.rtsp.first().copied();
                let program = console::program();
                let places = Endpoints { http, rtsp, admin: served.admin, socket, token, program };
                console::greeting(invitation(&titles, &places));
            }
        })
    }
}

/// Media that FFmpeg's tools analyse before they play: a start burst of this length lets them begin
/// at once. The few streams of a demo have the memory for it.
const LOOK: Nanos = Nanos(5_000_000_000);
/// The demo's default address.
const HTTP: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
/// The demo's RTSP address.
const RTSP: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8554);

/// `address`, or with a free port if that one is in use.
fn or_any_port(address: SocketAddr) -> SocketAddr {
    match TcpListener::bind(address) {
        Ok(_) => address,
        Err(_) => SocketAddr::new(address.ip(), 0),
    }
}

/// The user's own cache directory (XDG Base Directory Specification 0.8).
fn cache_dir() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|dir| dir.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(cache.join("tactus/demo"))
}

/// The demo's addresses.
struct Endpoints {
    http: SocketAddr,
    rtsp: Option<SocketAddr>,
    admin: Option<SocketAddr>,
    /// The socket for programs of this machine.
    socket: Option<PathBuf>,
    /// The token for uploads.
    token: Option<String>,
    /// The name of this program in the shell.
    program: String,
}

/// The next commands to try.
fn invitation(titles: &[DemoTitle], places: &Endpoints) -> String {
    let mut text = String::from("\n");
    let name = |title: &DemoTitle| {
        title.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    };
    for title in titles {
        let minutes = title.duration.0 / 60_000_000_000;
        text += &format!("  {:18} {:.2} for {minutes} min\n", name(title), title.rate);
    }
    let base = format!("http://{}", reachable(places.http));
    text += "\nIn the browser: play, sort, filter";
    match &places.token {
        // In the fragment: browsers do not send it, so it is in no log.
        Some(token) => text += &format!(", upload\n  {base}/#token={token}\n"),
        None => text += &format!("\n  {base}/\n"),
    }
    text += "\nIn a player:\n";
    for title in titles {
        text += &format!("  ffplay {base}/{}\n", name(title));
    }
    if let Some(title) = titles.first() {
        text += &format!("  vlc {base}/{}\n", name(title));
        if let Some(rtsp) = places.rtsp {
            text += &format!("  ffplay rtsp://{}/{}\n", reachable(rtsp), name(title));
        }
        let url = format!("{base}/{}", name(title));
        text += "\nIn the shell:\n";
        text += &format!("  curl -o /dev/null {url}                 at its own rate\n");
        text += &format!("  curl -o /dev/null '{url}?rate=max'      as fast as possible\n");
    }
    if let Some(admin) = places.admin {
        text += &format!("  curl http://{admin}/api/v1/capacity      room for more streams\n");
    }
    if let Some(token) = &places.token {
        let program = &places.program;
        text += &format!("  TACTUS_TOKEN={token} \\\n    {program} put FILE {base}/\n");
    }
    if let Some((socket, title)) = places.socket.as_ref().zip(titles.first()) {
        let (program, socket) = (&places.program, quoted(socket));
        text += "\nThrough shared memory, by the library for programs of this machine:\n";
        text += &format!(
            "  {program} play /{} --socket {socket} \\\n    --device - | ffplay -\n",
            name(title)
        );
    }
    text += "\nCtrl-C ends it.\n";
    text
}

/// The socket for programs of this machine, in the directory of the titles. None if a path there is
/// longer than the kernel takes, or another server uses it.
fn local(dir: &Path) -> Option<LocalSettings> {
    // A directory of its own: a server locks that of its socket, and its volume's own directory.
    let own = std::path::absolute(dir).ok()?.join(RESERVED).join("local");
    let path = own.join("socket");
    if path.as_os_str().len() > SOCKET_PATH_MAX || is_in_use(&path) {
        return None;
    }
    std::fs::create_dir_all(own).ok()?;
    let socket = UnixSocket { path, mode: 0o600, owner: None, group: None };
    Some(LocalSettings {
        socket,
        clients: CLIENTS,
        data_max: DATA_MAX,
        titles_max: TITLES_MAX,
        users: vec![],
        groups: vec![],
        writing: None,
    })
}

/// Whether a server listens there.
fn is_in_use(socket: &Path) -> bool {
    let options = Options { patience: Some(Duration::from_secs(1)), ..Options::default() };
    match Client::connect_with(socket, &options) {
        Ok(_) => true,
        Err(error) => ![libc::ENOENT, libc::ECONNREFUSED].contains(&error.errno()),
    }
}

/// Most bytes of a path: `sun_path` of unix(7) has 108, with the zero at its end.
const SOCKET_PATH_MAX: usize = 107;

/// A path as a word of the shell.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |character: char| character.is_alphanumeric() || "/._-".contains(character);
    if text.chars().all(is_plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// The loopback address for an address that means all interfaces.
fn reachable(address: SocketAddr) -> SocketAddr {
    match address.ip().is_unspecified() {
        true => SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), address.port()),
        false => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tactus_core::units::{BitRate, SECOND};

    fn text(rtsp: bool, token: bool) -> String {
        let title = |name: &str, rate| DemoTitle {
            path: name.into(),
            rate: BitRate(rate),
            duration: SECOND.times(600),
        };
        let titles = [title("/tmp/a.ts", 3_750_000), title("/tmp/a.mp4", 1_169_123)];
        let places = Endpoints {
            http: "0.0.0.0:8080".parse().unwrap(),
            rtsp: rtsp.then_some(RTSP),
            admin: "127.0.0.1:9464".parse().ok(),
            socket: rtsp.then(|| "/tmp/a b/local.sock".into()),
            token: token.then(|| "secret".to_owned()),
            program: "target/first/tactus".to_owned(),
        };
        invitation(&titles, &places)
    }

    #[test]
    fn n01_the_invitation_has_the_page_each_title_and_a_line_for_each_player() {
        let text = text(true, true);
        for line in [
            "  http://127.0.0.1:8080/#token=secret",
            "  ffplay http://127.0.0.1:8080/a.ts",
            "  ffplay http://127.0.0.1:8080/a.mp4",
            "  vlc http://127.0.0.1:8080/a.ts",
            "  ffplay rtsp://127.0.0.1:8554/a.ts",
            "    target/first/tactus put FILE http://127.0.0.1:8080/",
            "  target/first/tactus play /a.ts --socket '/tmp/a b/local.sock' \\",
            "    --device - | ffplay -",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
        }
        assert!(text.contains("3.75 Mbit/s for 10 min") && text.contains("1.17 Mbit/s"), "{text}");
        assert!(text.lines().any(|line| line.starts_with("  curl -o /dev/null http://")), "{text}");
    }

    #[test]
    fn n01_the_invitation_omits_services_that_are_off() {
        let text = text(false, false);
        assert!(
            !text.contains("play /")
                && !text.contains("rtsp:")
                && !text.contains("TOKEN")
                && !text.contains("upload")
        );
        assert!(text.contains("\n  http://127.0.0.1:8080/\n"), "{text}");
        assert_eq!(address_or_off("off"), Ok(None));
        assert!(address_or_off("here").is_err());
    }
}
