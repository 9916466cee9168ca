//! Untrusted datagrams of a live input, parsed without a socket: for fuzzing and its tests.
//!
//! Promise: the same as that of all fuzz targets, see [`crate::fuzz_targets`].

use tactus_core::ts::{PACKET, SYNC};
use tactus_core::units::{MILLISECOND, MonoTime, SECOND};

use super::reception::{IncomingDatagram, Reception};
use crate::recording::Kind;

/// Datagrams, each after its length in two bytes. The first byte selects the encapsulation and the
/// sender. The input is valid if a transport packet comes out.
pub fn datagrams(bytes: &[u8]) -> bool {
    let Some((kind, mut rest)) = bytes.split_first() else { return false };
    let kind = if kind & 1 == 0 { Kind::Udp } else { Kind::Rtp };
    let mut reception = Reception::new(kind, None, SECOND);
    let (mut now, mut out, mut came_bytes) = (MonoTime(0), 0u64, 0u64);
    let mut each = |packet: &[u8; PACKET]| {
        assert_eq!(packet[0], SYNC);
        out += 1;
    };
    while let Some((len, more)) = rest.split_first_chunk::<2>() {
        let len = usize::from(u16::from_be_bytes(*len));
        // The highest bit selects another sender.
        let port = if len & 0x8000 == 0 { 7 } else { 8 };
        let len = (len & 0x7fff).min(more.len());
        let (datagram, more) = more.split_at(len);
        rest = more;
        now += tactus_core::units::Nanos(10 * MILLISECOND.0);
        came_bytes += len as u64;
        let from = ([10, 0, 0, 1], port).into();
        let came = IncomingDatagram { now, from, bytes: datagram, is_cut: false };
        reception.handle(came, |packet, _| each(packet));
    }
    reception.end(now + SECOND, |packet, _| each(packet));
    let counts = reception.counts();
    assert_eq!(counts.received_bytes, came_bytes);
    assert_eq!(counts.ts.packets, out);
    assert!(out * PACKET as u64 + counts.ts.skipped_bytes <= came_bytes);
    out > 0
}
