//! Notifications to the supervisor: the server is ready, the server stops (sd_notify(3)).
//!
//! Promise: a notification never blocks and never fails the server. Without `NOTIFY_SOCKET` nothing
//! is sent.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// All addresses are bound and the cores run.
pub(crate) fn ready() {
    tell("READY=1");
}

/// No new requests are accepted.
pub(crate) fn stopping() {
    tell("STOPPING=1");
}

fn tell(state: &str) {
    let Ok(path) = std::env::var("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(&path, state) {
        tracing::debug!("cannot notify the supervisor of {state}: {error}");
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
    fn n14_a_supervisor_is_notified_by_path_or_abstract_name() {
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
