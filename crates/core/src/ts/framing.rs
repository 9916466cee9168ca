//! Packet framing: plain (188), with arrival times in front (192) or with 16 parity bytes behind
//! (204).
//!
//! Promise: sync needs `LOCK` sync bytes in a row at one distance, as in TR 101 290 (1.1); after
//! damage the walk finds the next lock. Time is linear in the bytes.

use super::{PACKET, Packet, SYNC};

/// The distance of packets in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Framing {
    /// Bytes from one packet's start to the next one's.
    pub stride: usize,
}

/// Sync bytes in a row that make a lock: TR 101 290 asks for five.
const LOCK: usize = 5;
/// Plain packets, M2TS, and DVB with Reed-Solomon bytes.
const STRIDES: [usize; 3] = [PACKET, 192, 204];

impl Framing {
    /// Plain consecutive packets.
    pub const PLAIN: Self = Self { stride: PACKET };

    /// The framing of `bytes` if a lock starts within the first `reach` of them.
    pub fn find(bytes: &[u8], reach: usize) -> Option<Self> {
        (0..bytes.len().min(reach)).filter(|&at| bytes[at] == SYNC).find_map(|at| {
            STRIDES.iter().map(|&stride| Self { stride }).find(|f| f.locks(bytes, at))
        })
    }

    /// The packets of `bytes`, each with its offset.
    pub fn packets(self, bytes: &[u8]) -> Packets<'_> {
        Packets { bytes, framing: self, at: 0, locked: false }
    }

    /// Whether `bytes` begin with packets in a row.
    pub(super) fn locks_at_start(self, bytes: &[u8]) -> bool {
        self.locks(bytes, 0)
    }

    fn locks(self, bytes: &[u8], at: usize) -> bool {
        (0..LOCK).all(|nth| bytes.get(at + nth * self.stride) == Some(&SYNC))
    }
}

/// An iterator over packets that resynchronises after damage.
#[derive(Clone, Debug)]
pub struct Packets<'a> {
    bytes: &'a [u8],
    framing: Framing,
    at: usize,
    locked: bool,
}

impl<'a> Iterator for Packets<'a> {
    type Item = (usize, Packet<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let rest = self.bytes.get(self.at..)?;
            if !self.locked {
                self.at +=
                    (0..rest.len()).find(|&skip| self.framing.locks(self.bytes, self.at + skip))?;
                self.locked = true;
                continue;
            }
            let at = self.at;
            if let Some(packet) = Packet::first_of(rest) {
                self.at += self.framing.stride;
                return Some((at, packet));
            }
            if rest.len() < PACKET {
                return None;
            }
            self.locked = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::packet::tests::packet;
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn stream(before: usize, stride: usize, packets: u8) -> Vec<u8> {
        let mut bytes = alloc::vec![0u8; before];
        for count in 0..packets {
            bytes.extend(packet(256, count, None));
            bytes.resize(before + (usize::from(count) + 1) * stride, 0);
        }
        bytes
    }

    #[test]
    fn all_three_framings_are_found_behind_leading_bytes() {
        for (before, stride) in [(0, 188), (4, 192), (77, 204), (300, 188)] {
            let bytes = stream(before, stride, 12);
            let framing = Framing::find(&bytes, bytes.len()).unwrap();
            assert_eq!(framing.stride, stride);
            let places: Vec<_> = framing.packets(&bytes).map(|(at, _)| at).collect();
            assert_eq!(places, (0..12).map(|nth| before + nth * stride).collect::<Vec<_>>());
        }
    }

    #[test]
    fn four_sync_bytes_are_not_enough() {
        assert!(Framing::find(&stream(0, 188, 4), usize::MAX).is_none());
        assert!(Framing::find(&stream(0, 188, 5), usize::MAX).is_some());
        assert!(Framing::find(&stream(50, 188, 9), 50).is_none(), "the lock lies out of reach");
    }

    #[test]
    fn damage_costs_what_it_hits_and_no_more() {
        let mut bytes = stream(0, 188, 20);
        bytes.splice(188 * 7 + 5..188 * 7 + 5, [1, 2, 3]);
        let counts: Vec<_> =
            Framing::PLAIN.packets(&bytes).map(|(_, packet)| packet.continuity()).collect();
        assert_eq!(counts, (0..20).map(|count| count & 0x0f).collect::<Vec<u8>>());
    }

    proptest! {
        #[test]
        fn garbage_ends_the_walk(
            bytes in proptest::collection::vec(prop_oneof![Just(SYNC), any::<u8>()], 0..3000),
        ) {
            if let Some(framing) = Framing::find(&bytes, bytes.len()) {
                let mut last = None;
                for (at, _) in framing.packets(&bytes) {
                    prop_assert!(last.is_none_or(|last| at > last) && at + PACKET <= bytes.len());
                    last = Some(at);
                }
            }
        }
    }
}
