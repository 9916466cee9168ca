//! One transport packet: header, adaptation field, PCR (ISO/IEC 13818-1, 2.4.3).
//!
//! Promise: every result lies within the 188 bytes, whatever they are. A packet is a view; the
//! writers change only their field.

use super::{PACKET, Pcr, SYNC};
use crate::units::MediaTime;

/// A packet identifier: 13 bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Pid(pub u16);

/// A packet with its sync byte in place.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a>(&'a [u8; PACKET]);

impl Pid {
    /// Null packets.
    pub const NULL: Self = Self(0x1fff);
    /// The PID of the SDT (ETSI EN 300 468, table 1).
    pub const SDT: Self = Self(0x11);
    /// The number of PIDs.
    pub const COUNT: usize = 1 << 13;
}

impl<'a> Packet<'a> {
    /// The packet in `bytes`; `None` without the sync byte.
    pub fn read(bytes: &'a [u8; PACKET]) -> Option<Self> {
        (bytes[0] == SYNC).then_some(Self(bytes))
    }

    /// The packet at the start of `bytes`; `None` if they are too few or out of sync.
    pub fn first_of(bytes: &'a [u8]) -> Option<Self> {
        Self::read(bytes.first_chunk()?)
    }

    /// All bytes.
    pub fn bytes(&self) -> &'a [u8; PACKET] {
        self.0
    }

    /// The PID.
    pub fn pid(&self) -> Pid {
        Pid(u16::from_be_bytes([self.0[1], self.0[2]]) & 0x1fff)
    }

    /// The transport error indicator.
    pub fn has_error(&self) -> bool {
        self.0[1] & 0x80 != 0
    }

    /// A PES packet or a section starts in it.
    pub fn starts_unit(&self) -> bool {
        self.0[1] & 0x40 != 0
    }

    /// The continuity counter: 4 bits.
    pub fn continuity(&self) -> u8 {
        self.0[3] & 0x0f
    }

    /// The payload is scrambled.
    pub fn is_scrambled(&self) -> bool {
        self.0[3] & 0xc0 != 0
    }

    /// It has payload, so its counter advances.
    pub fn has_payload(&self) -> bool {
        self.0[3] & 0x10 != 0
    }

    /// The flags and fields of the adaptation field; empty without one.
    fn adaptation(&self) -> &'a [u8] {
        if self.0[3] & 0x20 == 0 {
            return &[];
        }
        self.0.get(5..5 + usize::from(self.0[4])).unwrap_or(&[])
    }

    /// Whether its adaptation field is valid (ISO/IEC 13818-1, 2.4.3.4 and 2.4.3.5), and contains
    /// the PCR that it flags.
    pub fn is_whole(&self) -> bool {
        let len = usize::from(self.0[4]);
        match self.0[3] & 0x30 {
            0x10 => true,
            0x20 => len <= PACKET - 5 && self.clock_fits(),
            0x30 => len <= PACKET - 6 && self.clock_fits(),
            // Reserved: decoders discard it.
            _ => false,
        }
    }

    fn clock_fits(&self) -> bool {
        let field = self.adaptation();
        field.first().is_none_or(|flags| flags & 0x10 == 0 || field.len() >= 7)
    }

    /// The random access indicator.
    pub fn is_random_access(&self) -> bool {
        self.adaptation().first().is_some_and(|flags| flags & 0x40 != 0)
    }

    /// The discontinuity indicator.
    pub fn is_discontinuous(&self) -> bool {
        self.adaptation().first().is_some_and(|flags| flags & 0x80 != 0)
    }

    /// The PCR.
    pub fn pcr(&self) -> Option<Pcr> {
        let [flags, field @ ..] = self.adaptation().first_chunk::<7>()?;
        if flags & 0x10 == 0 {
            return None;
        }
        // 33 bits of base, 6 reserved, 9 of extension.
        let base = u64::from(u32::from_be_bytes([field[0], field[1], field[2], field[3]])) << 1
            | u64::from(field[4] >> 7);
        let extension = u64::from(field[4] & 1) << 8 | u64::from(field[5]);
        Some(Pcr::at(MediaTime(base * 300 + extension)))
    }

    /// The offset of the payload in the packet; `PACKET` without one.
    pub fn payload_at(&self) -> usize {
        match self.0[3] & 0x30 {
            0x10 => 4,
            0x30 => (5 + usize::from(self.0[4])).min(PACKET),
            _ => PACKET,
        }
    }

    /// The payload.
    pub fn payload(&self) -> &'a [u8] {
        self.0.get(self.payload_at()..).unwrap_or(&[])
    }
}

/// Writes the continuity counter of the packet in `bytes`.
pub fn set_continuity(bytes: &mut [u8; PACKET], count: u8) {
    bytes[3] = bytes[3] & 0xf0 | count & 0x0f;
}

/// Overwrites the PCR of the packet in `bytes`; false if it has none.
pub fn set_pcr(bytes: &mut [u8; PACKET], pcr: Pcr) -> bool {
    if Packet::read(bytes).and_then(|packet| packet.pcr()).is_none() {
        return false;
    }
    let (base, extension) = (pcr.ticks().0 / 300, pcr.ticks().0 % 300);
    let high = (base >> 1) as u32;
    bytes[6..10].copy_from_slice(&high.to_be_bytes());
    // The six reserved bits are ones.
    bytes[10] = ((base & 1) << 7) as u8 | 0x7e | (extension >> 8) as u8;
    bytes[11] = extension as u8;
    true
}

/// Sets the discontinuity indicator; false if the packet in `bytes` has no adaptation field.
pub fn mark_discontinuous(bytes: &mut [u8; PACKET]) -> bool {
    let has_flags = bytes[3] & 0x20 != 0 && bytes[4] > 0;
    if has_flags {
        bytes[5] |= 0x80;
    }
    has_flags
}

/// A packet of `pid` with a PCR only, which does not advance its counter (2.4.3.3).
pub fn clock_packet(pid: Pid, pcr: Pcr) -> [u8; PACKET] {
    let mut bytes = [0xff; PACKET];
    let [high, low] = pid.0.to_be_bytes();
    bytes[..6].copy_from_slice(&[SYNC, high, low, 0x20, (PACKET - 5) as u8, 0x10]);
    set_pcr(&mut bytes, pcr);
    bytes
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A packet of `pid` with a counter, payload and, if wanted, a PCR.
    pub(crate) fn packet(pid: u16, count: u8, pcr: Option<Pcr>) -> [u8; PACKET] {
        let mut bytes = [0xff; PACKET];
        let [high, low] = pid.to_be_bytes();
        bytes[..4].copy_from_slice(&[SYNC, high, low, 0x10 | count & 0x0f]);
        if let Some(pcr) = pcr {
            bytes[3] |= 0x20;
            bytes[4..12].copy_from_slice(&[7, 0x10, 0, 0, 0, 0, 0, 0]);
            assert!(set_pcr(&mut bytes, pcr));
        }
        bytes
    }

    #[test]
    fn a_known_packet_reads_as_its_muxer_meant_it() {
        // The third packet of the demo's clip: PID 256, unit start, random access, PCR 18933032.
        let mut bytes = [0; PACKET];
        bytes[..12].copy_from_slice(&[
            0x47, 0x41, 0x00, 0x30, 0x07, 0x50, 0x00, 0x00, 0x7b, 0x43, 0x7e, 0x84,
        ]);
        let packet = Packet::read(&bytes).unwrap();
        assert_eq!(packet.pid(), Pid(256));
        assert!(packet.starts_unit() && packet.has_payload() && !packet.is_discontinuous());
        assert_eq!(packet.pcr(), Some(Pcr::at(MediaTime(0x7b43 * 2 * 300 + 0x84))));
        assert_eq!(packet.payload_at(), 12);
    }

    #[test]
    fn bytes_without_sync_are_no_packet() {
        assert!(Packet::read(&[0x48; PACKET]).is_none());
        assert!(Packet::first_of(&[SYNC; PACKET - 1]).is_none());
    }

    proptest! {
        #[test]
        fn a_written_clock_and_counter_read_back(
            ticks in 0u64..Pcr::WRAP.0, pid in 0u16..0x2000, count in 0u8..16,
        ) {
            let pcr = Pcr::at(MediaTime(ticks));
            let bytes = packet(pid, count, Some(pcr));
            let read = Packet::read(&bytes).unwrap();
            prop_assert_eq!(read.pcr(), Some(pcr));
            prop_assert_eq!(read.pid(), Pid(pid));
            prop_assert_eq!(read.continuity(), count);
        }

        #[test]
        fn no_packet_is_hostile_enough(
            mut bytes in proptest::collection::vec(any::<u8>(), PACKET),
        ) {
            bytes[0] = SYNC;
            let packet = Packet::first_of(&bytes).unwrap();
            prop_assert!(packet.payload().len() <= PACKET - 4);
            prop_assert_eq!(packet.payload().len(), PACKET - packet.payload_at());
            let _seen = (packet.pcr(), packet.pid(), packet.is_discontinuous(), packet.has_error());
        }
    }
}
