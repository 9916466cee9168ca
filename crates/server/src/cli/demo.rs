//! `tactus demo`: real sample titles, a running server, and what to type next.
//!
//! Promise: one command on a fresh machine. It writes only into its own directory, and keeps what is
//! there already.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;

use anyhow::Context;

use super::{Failure, serve};
use crate::config::{Config, address};
use crate::media::demo::{self, DemoTitle};

/// Serves sample titles, to look at it
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  tactus demo
  tactus demo --http :8080 --dir /tmp/titles

The titles (about 350 MB) are laid down in --dir, by default $XDG_CACHE_HOME/tactus/demo or
~/.cache/tactus/demo, and kept for the next time.")]
pub(super) struct Demo {
    /// Address to listen on
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080", value_parser = address::parse)]
    http: SocketAddr,
    /// Where the titles are laid down
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Demo {
    pub(super) fn run(self) -> Result<(), Failure> {
        let dir = match self.dir {
            Some(dir) => dir,
            None => cache_dir().ok_or_else(|| {
                Failure::usage(
                    "there is no home directory to keep the titles in; name one with --dir",
                )
            })?,
        };
        eprintln!("Laying down the sample titles in {} ...", dir.display());
        let titles = demo::lay_down(&dir).with_context(|| {
            format!(
                "cannot lay down the titles in {}; name another place with --dir",
                dir.display()
            )
        })?;
        let mut config = Config::unconfigured();
        config.serve_only(&dir);
        config.http.addresses = vec![self.http];
        // Another server may be there; then there is none by RTSP.
        if TcpListener::bind(RTSP).is_ok() {
            config.rtsp.addresses = vec![RTSP];
        }
        let is_rtsp = !config.rtsp.addresses.is_empty();
        serve::run(config, None, |addresses, admin| {
            if let Some(address) = addresses.first() {
                print!("{}", invitation(&titles, *address, is_rtsp, admin));
            }
        })
    }
}

/// Where titles can be asked for by RTSP.
const RTSP: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8554);

/// The user's own cache directory (XDG Base Directory Specification 0.8).
fn cache_dir() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|dir| dir.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(cache.join("tactus/demo"))
}

/// What to type next.
fn invitation(
    titles: &[DemoTitle],
    address: SocketAddr,
    is_rtsp: bool,
    admin: Option<SocketAddr>,
) -> String {
    let mut text = String::from("\n");
    let name = |title: &DemoTitle| {
        title.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    };
    for title in titles {
        let minutes = title.duration.0 / 60_000_000_000;
        text += &format!("  {:18} {} for {minutes} min\n", name(title), title.rate);
    }
    if let Some(title) = titles.first() {
        let url = format!("http://{address}/{}", name(title));
        text += &format!("\n  curl -o /dev/null {url}\n  ffplay {url}\n  vlc {url}\n");
        if is_rtsp {
            text += &format!("  ffplay rtsp://{RTSP}/{}\n", name(title));
        }
        text += &format!("\n  as fast as it goes:   curl -o /dev/null '{url}?rate=max'\n");
        if let Some(admin) = admin {
            text += &format!("  what would still fit: curl http://{admin}/api/v1/capacity\n");
        }
    }
    text += "\nCtrl-C ends it.\n";
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use tactus_core::units::{BitRate, SECOND};

    #[test]
    fn the_invitation_has_a_line_for_each_player() {
        let title = DemoTitle {
            path: "/tmp/a.ts".into(),
            rate: BitRate(3_750_000),
            duration: SECOND.times(600),
        };
        let [address, admin] =
            ["127.0.0.1:8080", "127.0.0.1:9464"].map(|text| text.parse().unwrap());
        let text = invitation(&[title], address, true, Some(admin));
        assert!(text.contains("curl http://127.0.0.1:9464/api/v1/capacity"), "{text}");
        assert!(text.contains("ffplay rtsp://127.0.0.1:8554/a.ts"), "{text}");
        assert!(text.contains("a.ts") && text.contains("3.75 Mbit/s for 10 min"), "{text}");
        for player in ["curl", "ffplay", "vlc"] {
            assert!(text.lines().any(|line| line.trim().starts_with(player)), "{player}: {text}");
        }
    }
}
