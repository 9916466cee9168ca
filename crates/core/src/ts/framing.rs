//! Packet framing: plain (188), with arrival times in front (192) or with 16 parity bytes behind
//! (204).
//!
//! Promise: sync needs `LOCK` sync bytes in a row at one distance, as in TR 101 290 (1.1); after
//! damage the walk finds the next lock. Time is linear in the bytes.

use super::{PACKET, Packet, SYNC};
use crate::units::Bytes;

/// The distance of packets in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Framing {
    /// Bytes from one packet's start to the next one's.
    pub stride: usize,
}

impl Default for Framing {
    fn default() -> Self {
        Self::PLAIN
    }
}

/// Sync bytes in a row that make a lock: TR 101 290 asks for five.
const LOCK: usize = 5;
/// Plain packets, M2TS, and DVB with Reed-Solomon bytes.
const STRIDES: [usize; 3] = [PACKET, 192, 204];

impl Framing {
    /// Plain consecutive packets.
    pub const PLAIN: Self = Self { stride: PACKET };

    /// Upper bound of strides.
    pub const STRIDE_MAX: usize = 204;

    /// Whether packets follow each other without other bytes between them.
    pub const fn is_plain(self) -> bool {
        self.stride == PACKET
    }

    /// Bytes in front of each packet: the arrival time (`TP_extra_header`) of M2TS.
    pub const fn lead(self) -> usize {
        if self.stride == 192 { 4 } else { 0 }
    }

    /// The bytes of the title that hold the first `bare` bytes of its packets.
    pub const fn framed(self, bare: Bytes) -> Bytes {
        if self.is_plain() {
            return bare;
        }
        let (whole, rest) = (bare.0 / PACKET as u64, bare.0 % PACKET as u64);
        let lead = if rest > 0 { self.lead() as u64 } else { 0 };
        Bytes(whole * self.stride as u64 + lead + rest)
    }

    /// The bytes of packets in the first `framed` bytes of the title.
    pub const fn bare(self, framed: Bytes) -> Bytes {
        if self.is_plain() {
            return framed;
        }
        let (whole, rest) = (framed.0 / self.stride as u64, framed.0 % self.stride as u64);
        let rest = rest.saturating_sub(self.lead() as u64);
        Bytes(whole * PACKET as u64 + if rest < PACKET as u64 { rest } else { PACKET as u64 })
    }

    /// Copies the packets of `parts`, which begin with the bytes in front of a packet, to `into`
    /// until it is full. Returns the number of copied bytes.
    pub fn strip<'a>(self, parts: impl Iterator<Item = &'a [u8]>, into: &mut [u8]) -> usize {
        let (mut at, mut filled) = (0, 0);
        let packet = self.lead()..self.lead() + PACKET;
        for mut part in parts {
            while !part.is_empty() && filled < into.len() {
                let limit = if at < packet.start {
                    packet.start
                } else if at < packet.end {
                    packet.end
                } else {
                    self.stride
                };
                let mut len = (limit - at).min(part.len());
                if packet.contains(&at) {
                    len = len.min(into.len() - filled);
                    into[filled..filled + len].copy_from_slice(&part[..len]);
                    filled += len;
                }
                (at, part) = ((at + len) % self.stride, &part[len..]);
            }
            if filled == into.len() {
                break;
            }
        }
        filled
    }

    /// Moves the packets of `bytes`, which begin with the bytes in front of a packet, to their
    /// beginning. Returns the number of their bytes.
    pub fn strip_in_place(self, bytes: &mut [u8]) -> usize {
        let bare = self.bare(Bytes(bytes.len() as u64)).0 as usize;
        if self.is_plain() {
            return bare;
        }
        let mut to = 0;
        while to < bare {
            let len = PACKET.min(bare - to);
            let from = to / PACKET * self.stride + self.lead();
            bytes.copy_within(from..from + len, to);
            to += len;
        }
        bare
    }

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
        fn r10_stripped_bytes_are_those_of_the_packets(
            stride in prop::sample::select(STRIDES.to_vec()),
            packets in 1usize..12,
            cut in 0usize..204,
            pieces in proptest::collection::vec(1usize..300, 1..40),
        ) {
            let framing = Framing { stride };
            let unit = |nth: usize| {
                let mut unit = alloc::vec![0xee; stride];
                unit[framing.lead()..][..PACKET].fill(nth as u8);
                unit
            };
            let mut bytes: Vec<u8> = (0..packets).flat_map(unit).collect();
            bytes.truncate(bytes.len().saturating_sub(cut));
            let all: Vec<u8> = (0..packets).flat_map(|nth| [nth as u8; PACKET]).collect();
            let bare = framing.bare(Bytes(bytes.len() as u64)).0 as usize;
            let mut rest = &bytes[..];
            let parts = pieces.iter().chain(core::iter::repeat(&512)).map_while(|&len| {
                let (part, behind) = rest.split_at(len.min(rest.len()));
                rest = behind;
                (!part.is_empty()).then_some(part)
            });
            let mut out = alloc::vec![0xee; bare];
            prop_assert_eq!(framing.strip(parts, &mut out), bare);
            prop_assert_eq!(&out[..], &all[..bare]);
            prop_assert_eq!(framing.strip_in_place(&mut bytes), bare);
            prop_assert_eq!(&bytes[..bare], &all[..bare]);
            let framed = framing.framed(Bytes(bare as u64));
            prop_assert_eq!(framing.bare(framed), Bytes(bare as u64));
            prop_assert_eq!(framing.framed(Bytes(188 * 5)), Bytes(5 * stride as u64));
        }

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
