//! A device by its name, for whoever may not wait: its number and its MTU (netdevice(7)).
//!
//! Promise: nothing is allocated, and nothing is kept: a device that has been made anew under its name is found.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// The name, as the kernel wants it.
pub(super) struct Device {
    name: [libc::c_char; libc::IFNAMSIZ],
}

impl Device {
    /// # Errors
    /// When no device can be called so.
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

    /// Its number, asked by any socket.
    pub(super) fn index(&self, socket: &OwnedFd) -> Option<u32> {
        u32::try_from(self.ask(socket, libc::SIOCGIFINDEX)?).ok()
    }

    /// What a packet may be long on it.
    pub(super) fn mtu(&self, socket: &OwnedFd) -> Option<u32> {
        u32::try_from(self.ask(socket, libc::SIOCGIFMTU)?).ok()
    }

    /// One of the questions that are answered by a number.
    fn ask(&self, socket: &OwnedFd, question: libc::Ioctl) -> Option<i32> {
        let ifr_ifru = libc::__c_anonymous_ifr_ifru { ifru_ifindex: 0 };
        let mut request = libc::ifreq { ifr_name: self.name, ifr_ifru };
        // SAFETY: both questions read the name and write a number into the request, which outlives the call.
        let done = unsafe { libc::ioctl(socket.as_raw_fd(), question, &raw mut request) };
        // SAFETY: whichever of its numbers the kernel has written, all are an `int` at the same place.
        let number = unsafe { request.ifr_ifru.ifru_ifindex };
        (done == 0).then_some(number)
    }
}
