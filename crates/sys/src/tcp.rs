//! The link port for plain TCP: passes due bytes to the kernel, without blocking.
//!
//! Promise: a send never blocks, and never sends more than was offered. This port does not pace.
//! The control side prepares the sockets; they are connected and non-blocking. A part of a file
//! must be in the page cache: `sendfile` reads missing parts, and blocks meanwhile.
//!
//! `sendfile` on a broken connection raises SIGPIPE, which Rust programs ignore from their start.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use tactus_core::ports::{FilePart, HeldPlace, LinkPort, SendResult, SocketHandle};
use tactus_core::units::MonoTime;

use crate::disk::pages::HeldBlocks;
use crate::file;

/// Limit of parts of one send; further ones wait for the next. Sixteen blocks of 64 KiB are more
/// than a socket's buffer takes at once; a frame of RTP is two parts, so these are 40 KiB.
pub const PARTS_MAX: usize = 64;

/// A link port whose handles are file descriptors of connected sockets.
#[derive(Clone, Default)]
pub struct TcpLink {
    /// The blocks of each volume that has some in the page cache.
    held: Box<[Option<Arc<HeldBlocks>>]>,
}

impl TcpLink {
    /// Makes the port; `held` are the blocks of each volume that are in the page cache.
    pub fn new(held: impl IntoIterator<Item = Option<Arc<HeldBlocks>>>) -> Self {
        Self { held: held.into_iter().collect() }
    }
}

impl LinkPort for TcpLink {
    fn send(&mut self, _now: MonoTime, socket: SocketHandle, parts: &[&[u8]]) -> SendResult {
        let offered: usize = parts.iter().take(PARTS_MAX).map(|part| part.len()).sum();
        assert!(offered > 0, "a send of nothing has no answer");
        let taken = match parts {
            [part] => send_one(socket, part),
            _ => send_parts(socket, parts),
        };
        match taken {
            Ok(0) => SendResult::Blocked,
            Ok(taken) => {
                assert!(taken <= offered, "the kernel takes at most what it is offered");
                SendResult::Some(u32::try_from(taken).expect("a send takes less than 2 GiB"))
            }
            Err(errno) => refused(errno),
        }
    }

    fn send_file(&mut self, _now: MonoTime, socket: SocketHandle, part: FilePart) -> SendResult {
        assert!(part.len > 0, "a send of nothing has no answer");
        let mut offset = part.offset.0 as i64;
        // SAFETY: the offset lives through the call, which moves it; wrong descriptors are errors.
        let taken =
            unsafe { libc::sendfile(socket.0, part.file.0, &raw mut offset, part.len as usize) };
        match u32::try_from(taken) {
            // The file has become shorter than the title was.
            Ok(0) => SendResult::Lost(libc::ENODATA),
            Ok(taken) => SendResult::Some(taken),
            Err(_) => match last_errno() {
                errno @ (libc::EIO | libc::ESTALE) => SendResult::Lost(errno),
                errno => refused(errno),
            },
        }
    }

    fn send_held(
        &mut self,
        now: MonoTime,
        socket: SocketHandle,
        place: HeldPlace,
        part: FilePart,
    ) -> SendResult {
        assert!(part.len > 0, "a send of nothing has no answer");
        let held = self.held.get(place.volume as usize).and_then(Option::as_ref);
        match held.and_then(|held| held.send(socket.0, place, part)) {
            Some(Ok(0)) => SendResult::Blocked,
            Some(Ok(taken)) => SendResult::Some(taken as u32),
            Some(Err(errno)) => refused(errno),
            None => self.send_file(now, socket, part),
        }
    }

    fn read(&mut self, _now: MonoTime, part: FilePart, into: &mut [u8]) -> Result<(), i32> {
        file::read_part(part, into)
    }
}

/// The meaning of a refused send for the stream.
fn refused(errno: i32) -> SendResult {
    match errno {
        // ENOBUFS and ENOMEM: the kernel is short of memory for a moment, the connection is usable.
        // EINTR: a signal came before the first byte.
        libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR => SendResult::Blocked,
        errno => SendResult::Broken(errno),
    }
}

const FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

fn send_one(socket: SocketHandle, part: &[u8]) -> Result<usize, i32> {
    // SAFETY: the slice is readable for its length; a wrong descriptor is an error and not a
    // danger.
    let taken = unsafe { libc::send(socket.0, part.as_ptr().cast(), part.len(), FLAGS) };
    usize::try_from(taken).map_err(|_| last_errno())
}

fn send_parts(socket: SocketHandle, parts: &[&[u8]]) -> Result<usize, i32> {
    let mut vectors = [const { MaybeUninit::<libc::iovec>::uninit() }; PARTS_MAX];
    let count = parts.len().min(PARTS_MAX);
    for (vector, part) in vectors.iter_mut().zip(parts) {
        vector
            .write(libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
    }
    // SAFETY: `msghdr` is plain data, for which zero means absent.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.as_mut_ptr().cast();
    message.msg_iovlen = count;
    // SAFETY: the first `count` vectors were written above, and describe slices that live through
    // the call, which only reads them.
    let taken = unsafe { libc::sendmsg(socket.0, &raw const message, FLAGS) };
    usize::try_from(taken).map_err(|_| last_errno())
}

fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Settings of a socket for paced delivery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Preparation {
    /// Approximate limit of unsent bytes in the kernel: two ticks' worth, so that a slow peer is
    /// noticed early and few bytes delay a change of rate.
    pub not_sent_max: Option<u32>,
    /// Size of the send buffer in bytes, as requested. The kernel doubles it for its own use and
    /// stops tuning it. `None` leaves it to the kernel.
    pub send_buffer: Option<u32>,
}

/// The optional settings that a socket got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AppliedOptions {
    /// Whether cubic is its congestion control. bbr would pace a second time.
    pub cubic: bool,
}

/// Prepares a connected socket for paced delivery: no delay for small segments, little unsent data
/// in the kernel, and a congestion control that does not pace. `SO_MAX_PACING_RATE` is left unset:
/// Tactus paces.
///
/// # Errors
/// If it is not a TCP socket.
pub fn prepare(socket: impl AsFd, wanted: Preparation) -> io::Result<AppliedOptions> {
    let socket = socket.as_fd();
    rustix::net::sockopt::set_tcp_nodelay(socket, true)?;
    if let Some(limit) = wanted.not_sent_max {
        set_option(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, limit)?;
    }
    if let Some(size) = wanted.send_buffer {
        rustix::net::sockopt::set_socket_send_buffer_size(socket, size as usize)?;
    }
    Ok(AppliedOptions { cubic: choose_cubic(socket) })
}

/// Has all connections of a listener begin with cubic; returns whether the host allows it. On a
/// host whose default is bbr, [`prepare`] comes too late for a connection: the kernel does not
/// forget that bbr has asked it to pace, and sets a timer for each send.
pub fn choose_cubic(socket: impl AsFd) -> bool {
    rustix::net::sockopt::set_tcp_congestion(socket, CONGESTION_CONTROL).is_ok()
}

/// It does not pace.
const CONGESTION_CONTROL: &str = "cubic";

fn set_option(socket: i32, level: i32, name: i32, value: u32) -> io::Result<()> {
    let len = size_of::<u32>() as libc::socklen_t;
    // SAFETY: the value lives through the call, which reads `len` bytes of it.
    match unsafe { libc::setsockopt(socket, level, name, (&raw const value).cast(), len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use tactus_core::ports::FileHandle;
    use tactus_core::units::Bytes;

    const NOW: MonoTime = MonoTime(0);

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (ours, listener.accept().unwrap().0)
    }

    fn handle(socket: &TcpStream) -> SocketHandle {
        SocketHandle(socket.as_raw_fd())
    }

    #[test]
    fn parts_arrive_in_order_and_whole() {
        let (ours, mut peer) = pair();
        let mut link = TcpLink::default();
        assert_eq!(link.send(NOW, handle(&ours), &[b"one"]), SendResult::Some(3));
        assert_eq!(link.send(NOW, handle(&ours), &[b"", b" two", b" three"]), SendResult::Some(10));
        let many: Vec<&[u8]> = vec![b"x"; PARTS_MAX + 3];
        assert_eq!(link.send(NOW, handle(&ours), &many), SendResult::Some(PARTS_MAX as u32));
        drop(ours);
        let mut got = String::new();
        peer.read_to_string(&mut got).unwrap();
        assert_eq!(got, format!("one two three{}", "x".repeat(PARTS_MAX)));
    }

    #[test]
    fn a_peer_that_does_not_read_blocks_and_nothing_is_lost() {
        let (ours, mut peer) = pair();
        let wanted = Preparation { not_sent_max: Some(65_536), send_buffer: Some(32_768) };
        prepare(&ours, wanted).unwrap();
        let mut link = TcpLink::default();
        let data: Vec<u8> = (0..1_000_000_u32).map(|at| (at % 251) as u8).collect();
        let mut sent = 0;
        let mut blocked = 0;
        let mut got = Vec::new();
        peer.set_nonblocking(true).unwrap();
        // A blocking socket must also return at once.
        while sent < data.len() {
            let end = data.len().min(sent + 100_000);
            let middle = sent + (end - sent) / 2;
            match link.send(NOW, handle(&ours), &[&data[sent..middle], &data[middle..end]]) {
                SendResult::Some(taken) => sent += taken as usize,
                SendResult::Blocked => {
                    blocked += 1;
                    // Room comes with the acknowledgement, a moment after the last byte was read:
                    // until then there is nothing to read, and the read is repeated.
                    let mut some = [0; 50_000];
                    match peer.read(&mut some) {
                        Ok(read) => got.extend_from_slice(&some[..read]),
                        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
                    }
                }
                SendResult::Broken(errno) | SendResult::Lost(errno) => panic!("errno {errno}"),
            }
        }
        drop(ours);
        peer.set_nonblocking(false).unwrap();
        peer.read_to_end(&mut got).unwrap();
        assert!(blocked > 0, "the buffers are smaller than the data");
        assert!(got == data);
    }

    #[test]
    fn a_part_of_a_file_arrives_and_one_that_is_not_there_is_lost() {
        let (ours, mut peer) = pair();
        ours.set_nonblocking(true).unwrap();
        let mut title = tempfile();
        let data: Vec<u8> = (0..300_000_u32).map(|at| (at % 253) as u8).collect();
        title.write_all(&data).unwrap();
        let file = FileHandle(title.as_raw_fd());
        let mut link = TcpLink::default();
        let mut send = |offset, len| {
            link.send_file(NOW, handle(&ours), FilePart { file, offset: Bytes(offset), len })
        };
        assert_eq!(send(100_001, 50_000), SendResult::Some(50_000));
        assert_eq!(send(299_990, 50_000), SendResult::Some(10));
        assert_eq!(send(300_000, 1), SendResult::Lost(libc::ENODATA));
        let mut blocked = 0;
        let whole = std::iter::repeat_with(|| send(0, 300_000)).take(1000);
        let more: u64 = whole
            .map_while(|sent| match sent {
                SendResult::Some(taken) => Some(u64::from(taken)),
                SendResult::Blocked => {
                    blocked += 1;
                    None
                }
                other => panic!("{other:?}"),
            })
            .sum();
        assert_eq!(blocked, 1, "a peer that does not read fills its buffers");
        drop(ours);
        let mut got = Vec::new();
        peer.read_to_end(&mut got).unwrap();
        assert!(got.starts_with(&[&data[100_001..150_001], &data[299_990..]].concat()));
        assert_eq!(got.len() as u64, 50_010 + more);
    }

    fn tempfile() -> File {
        let path = std::env::temp_dir().join(format!("tactus-tcp-{}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file
    }

    #[test]
    fn a_peer_that_is_gone_is_reported_without_a_signal() {
        let (ours, peer) = pair();
        drop(peer);
        let mut link = TcpLink::default();
        let broken = (0..1000).find_map(|_| match link.send(NOW, handle(&ours), &[b"data"]) {
            SendResult::Broken(errno) => Some(errno),
            _ => None,
        });
        assert!(matches!(broken, Some(libc::EPIPE | libc::ECONNRESET)), "{broken:?}");
        assert_eq!(link.send(NOW, SocketHandle(-1), &[b"data"]), SendResult::Broken(libc::EBADF));
    }

    /// Reno stands for a host whose default is another.
    #[test]
    fn connections_begin_with_the_congestion_control_of_their_listener() {
        use rustix::net::sockopt::{set_tcp_congestion, tcp_congestion};
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        set_tcp_congestion(&listener, "reno").unwrap();
        let begins_with = || {
            let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (ours, _) = listener.accept().unwrap();
            drop(peer);
            tcp_congestion(&ours).unwrap()
        };
        assert_eq!(begins_with(), "reno");
        if choose_cubic(&listener) {
            assert_eq!(begins_with(), "cubic");
        } else {
            println!("skipped: this host does not allow cubic");
        }
    }

    #[test]
    fn a_prepared_socket_holds_little_unsent_data() {
        let (ours, _peer) = pair();
        let wanted = Preparation { not_sent_max: Some(16_384), send_buffer: None };
        prepare(&ours, wanted).unwrap();
        assert!(ours.nodelay().unwrap());
        let mut value = 0_u32;
        let mut len = size_of::<u32>() as libc::socklen_t;
        // SAFETY: value and length live through the call, which writes at most `len` bytes.
        let asked = unsafe {
            libc::getsockopt(
                ours.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_NOTSENT_LOWAT,
                (&raw mut value).cast(),
                &raw mut len,
            )
        };
        assert_eq!((asked, value), (0, 16_384));
        let not_tcp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(prepare(&not_tcp, wanted).is_err());
    }
}
