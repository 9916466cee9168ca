//! What a supervisor is told: that the server is ready, and that it ends (sd_notify(3)).
//!
//! Promise: telling never blocks and never fails the server. Without `NOTIFY_SOCKET` nothing is told.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Says that all addresses are bound and the cores run.
pub(crate) fn ready() {
    tell("READY=1");
}

/// Says that no new request is taken.
pub(crate) fn stopping() {
    tell("STOPPING=1");
}

fn tell(state: &str) {
    let Ok(path) = std::env::var("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(&path, state) {
        tracing::debug!("the supervisor is not told {state}: {error}");
    }
}

fn send(path: &str, state: &str) -> std::io::Result<()> {
    let address = match path.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(path)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n14_a_supervisor_is_told_by_a_path_or_an_abstract_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let by_path = UnixDatagram::bind(&path).unwrap();
        let name = format!("tactus-test-{}", std::process::id());
        let abstract_address = SocketAddr::from_abstract_name(&name).unwrap();
        let by_name = UnixDatagram::bind_addr(&abstract_address).unwrap();
        for (socket, to) in
            [(by_path, path.to_str().unwrap().to_owned()), (by_name, format!("@{name}"))]
        {
            send(&to, "READY=1").unwrap();
            let mut told = [0; 64];
            let len = socket.recv(&mut told).unwrap();
            assert_eq!(&told[..len], b"READY=1");
        }
        assert!(send("/nowhere/at/all", "READY=1").is_err());
    }
}
