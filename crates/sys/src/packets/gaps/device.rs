//! A device by its name, for callers that must not block: its number and its MTU (netdevice(7)).
//!
//! Promise: it allocates and keeps nothing, so a device that was created again under its name is
//! found.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// The name, in the form of the kernel.
pub(super) struct Device {
    name: [libc::c_char; libc::IFNAMSIZ],
}

impl Device {
    /// # Errors
    /// If the name is not valid for a device.
    pub(super) fn named(name: &str) -> io::Result<Self> {
        let mut own = [0; libc::IFNAMSIZ];
        if name.len() >= own.len() {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        for (to, &from) in own.iter_mut().zip(name.as_bytes()) {
            *to = from as libc::c_char;
        }
        Ok(Self { name: own })
    }

    /// Its number, queried by any socket.
    pub(super) fn index(&self, socket: &OwnedFd) -> Option<u32> {
        u32::try_from(self.ask(socket, libc::SIOCGIFINDEX)?).ok()
    }

    /// Its MTU.
    pub(super) fn mtu(&self, socket: &OwnedFd) -> Option<u32> {
        u32::try_from(self.ask(socket, libc::SIOCGIFMTU)?).ok()
    }

    /// A query with a number as the answer.
    fn ask(&self, socket: &OwnedFd, question: libc::Ioctl) -> Option<i32> {
        let ifr_ifru = libc::__c_anonymous_ifr_ifru { ifru_ifindex: 0 };
        let mut request = libc::ifreq { ifr_name: self.name, ifr_ifru };
        // SAFETY: both queries read the name and write a number into the request, which outlives
        // the call.
        let done = unsafe { libc::ioctl(socket.as_raw_fd(), question, &raw mut request) };
        // SAFETY: whichever number the kernel has written, each is an `int` at the same place.
        let number = unsafe { request.ifr_ifru.ifru_ifindex };
        (done == 0).then_some(number)
    }
}
