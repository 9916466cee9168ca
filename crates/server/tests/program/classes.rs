//! Classes of the link by configuration, commands and requests, in a network namespace of its own.

mod live;
mod reload;
mod served;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tactus_core::units::SECOND;
use tactus_media::sample;
use tactus_sys::udp_input::{InputOptions, UdpInput};
use tactus_testkit::namespace;
use tactus_testkit::process::turn;

/// Longer than anything takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// Runs this test again where nobody else sends; answers whether this is there.
fn is_inside(test: &str) -> bool {
    let _turn = turn();
    let is_inside = namespace::is_inside(test);
    if is_inside {
        let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
        assert!(up.expect("this test needs ip (iproute2)").success());
    }
    is_inside
}

/// A port that keeps what comes while nobody looks.
fn inbox() -> UdpInput {
    let to = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let wanted = InputOptions { to, source: None, interface: None, buffer: 64 << 20 };
    UdpInput::open(&wanted).expect("a port")
}

/// A title of which each packet ends in `mark`.
fn marked(dir: &Path, mark: u8) {
    let file = dir.join(format!("{mark}.ts"));
    sample::write_ts(&file, SECOND.times(3)).expect("a title");
    let mut title = std::fs::read(&file).expect("a title");
    title.chunks_mut(188).for_each(|packet| packet[187] = mark);
    std::fs::write(&file, &title).expect("a title");
}
