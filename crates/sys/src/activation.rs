//! Sockets passed by a supervisor (sd_listen_fds(3)).
//!
//! Promise: only sockets that are addressed to this process are taken, each once. They are not
//! inherited by programs that it starts. Nothing is opened here.

use std::io;
use std::net::TcpListener;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{AddressFamily, SocketType, sockopt};

/// The first passed descriptor.
const FIRST: i32 = 3;
/// Upper bound of passed descriptors: more indicate a wrong configuration.
const MOST: i32 = 64;

/// A socket and its name (`FileDescriptorName=`).
#[derive(Debug)]
pub struct PassedSocket {
    /// The name; empty if the supervisor gave none.
    pub name: String,
    /// The socket.
    pub listener: TcpListener,
}

/// The passed listening TCP sockets. Only the first call returns them.
///
/// # Errors
/// If a passed descriptor is not a listening TCP socket, or the variables are invalid.
pub fn take() -> io::Result<Vec<PassedSocket>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(vec![]);
    }
    let variable = |name| std::env::var(name).ok();
    let pid = variable("LISTEN_PID");
    let (count, names) = (variable("LISTEN_FDS"), variable("LISTEN_FDNAMES"));
    let names = announced(std::process::id(), pid.as_deref(), count.as_deref(), names.as_deref())?;
    let descriptors = (FIRST..).zip(names);
    descriptors
        .map(|(number, name)| {
            // SAFETY: by these variables the supervisor opened the descriptor for this process
            // alone. Nothing else in the program owns it, and `TAKEN` lets this run once.
            let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
            Ok(PassedSocket { name, listener: listener(descriptor)? })
        })
        .collect()
}

/// The names of the descriptors that were passed to the process `own`, in order.
fn announced(
    own: u32,
    pid: Option<&str>,
    count: Option<&str>,
    names: Option<&str>,
) -> io::Result<Vec<String>> {
    let (Some(pid), Some(count)) = (pid, count) else { return Ok(vec![]) };
    // The variables are addressed to a parent process.
    if pid.parse() != Ok(own) {
        return Ok(vec![]);
    }
    let count = count.parse().ok().filter(|count| (0..=MOST).contains(count));
    let count: i32 = count.ok_or_else(|| invalid("LISTEN_FDS is not a number from 0 to 64"))?;
    let mut names = names.unwrap_or_default().split(':').map(str::to_owned);
    Ok((0..count).map(|_| names.next().unwrap_or_default()).collect())
}

fn listener(descriptor: OwnedFd) -> io::Result<TcpListener> {
    let wrong = || invalid("a passed descriptor is no listening TCP socket");
    fcntl_setfd(&descriptor, FdFlags::CLOEXEC)?;
    let domain = sockopt::socket_domain(&descriptor).map_err(|_| wrong())?;
    let is_tcp = matches!(domain, AddressFamily::INET | AddressFamily::INET6)
        && sockopt::socket_type(&descriptor) == Ok(SocketType::STREAM);
    if !is_tcp || sockopt::socket_acceptconn(&descriptor) != Ok(true) {
        return Err(wrong());
    }
    Ok(TcpListener::from(descriptor))
}

fn invalid(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n14_only_what_was_passed_to_this_process_is_taken() {
        let names = |pid, count, names| announced(7, pid, count, names).map_err(|_| ());
        assert_eq!(names(None, Some("1"), None), Ok(vec![]));
        assert_eq!(names(Some("8"), Some("1"), None), Ok(vec![]), "for another program");
        assert_eq!(names(Some("7"), None, None), Ok(vec![]));
        assert_eq!(names(Some("7"), Some("0"), None), Ok(vec![]));
        assert_eq!(names(Some("7"), Some("1"), None), Ok(vec![String::new()]));
        let two = vec!["http".to_owned(), "admin".to_owned()];
        assert_eq!(names(Some("7"), Some("2"), Some("http:admin")), Ok(two));
        for count in ["-1", "65", "x", "", "99999999999"] {
            assert_eq!(names(Some("7"), Some(count), None), Err(()), "{count}");
        }
    }

    #[test]
    fn n14_only_a_listening_tcp_socket_is_taken() {
        let listening = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listening.local_addr().unwrap();
        let taken = listener(OwnedFd::from(listening)).unwrap();
        assert_eq!(taken.local_addr().unwrap(), address);
        let connected = std::net::TcpStream::connect(address).unwrap();
        assert!(listener(OwnedFd::from(connected)).is_err());
        let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(listener(OwnedFd::from(datagrams)).is_err());
        assert!(listener(OwnedFd::from(std::fs::File::open("/dev/null").unwrap())).is_err());
    }
}
