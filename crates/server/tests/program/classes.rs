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

use crate::child::turn;

/// Longer than anything takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);
const MODEL: &str = "version = 1\nmeasured = \"never\"\ndevice = \"none\"\n[model]\n\
                     visit = \"50 us\"\n\
                     sweep = \"0 ns\"\nread_mib = \"400 us\"\nwrite_mib = \"900 us\"\ndepth = 8\n";
/// Set where the namespace is.
const INSIDE: &str = "TACTUS_TEST_INSIDE";

/// Runs this test again where nobody else sends; answers whether this is there.
fn is_inside(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
        assert!(up.expect("this test needs ip (iproute2)").success());
        return true;
    }
    let _turn = turn();
    let own = std::env::current_exe().expect("a path");
    let mut command = Command::new("unshare");
    command.args(["--net", "--map-root-user", "--"]).arg(own);
    command.args(["--exact", test, "--nocapture"]).env(INSIDE, "1");
    let status = command.status().expect("this test needs unshare (util-linux)");
    assert!(
        status.success(),
        "in a network namespace of its own (user namespaces must be allowed)"
    );
    false
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
