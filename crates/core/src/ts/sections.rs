//! The sections of PSI tables: checks that those of PAT and PMTs are complete and valid (ISO/IEC
//! 13818-1, 2.4.4).
//!
//! Promise: a section has at most 1,024 bytes here, whatever its length field says, and at most
//! [`PROGRAMS_MAX`] programs are followed. Only the PIDs of PMTs are parsed. Tables of another
//! PID can be followed separately. Written sections begin with a packet.

use alloc::vec::Vec;

use super::{PACKET, Packet, Pid, SYNC};

/// Programs whose PMT is followed; a stream over IP has one, a whole transponder twenty.
const PROGRAMS_MAX: usize = 64;
/// Longest section of a PAT or PMT (2.4.4.3, 2.4.4.8): three bytes and a length of 1,021.
const LENGTH_MAX: usize = 1021;
/// The table of the stream's own services (EN 300 468, table 2); others on its PID describe other
/// streams.
pub(super) const SDT_ACTUAL: u8 = 0x42;
const STUFFING: u8 = 0xff;
const PAT: Pid = Pid(0);

/// The tables of one stream.
#[derive(Clone, Debug)]
pub(super) struct Sections {
    /// The PID of a PAT or a PMT, and the received part of its section.
    tables: Vec<Table>,
}

#[derive(Clone, Debug)]
struct Table {
    pid: Pid,
    /// The received part of a section.
    part: Vec<u8>,
}

/// A packet with an invalid section.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct InvalidSection;

impl Default for Sections {
    fn default() -> Self {
        Self { tables: alloc::vec![Table { pid: PAT, part: Vec::new() }] }
    }
}

impl Sections {
    /// Only the sections of `pid`, which is not a PAT.
    pub(super) fn of(pid: Pid) -> Self {
        Self { tables: alloc::vec![Table { pid, part: Vec::new() }] }
    }

    /// Takes the next packet of the stream.
    pub(super) fn handle_packet(&mut self, packet: &Packet<'_>) -> Result<(), InvalidSection> {
        self.each_section(packet, |_, _| {})
    }

    /// The same; `each` gets the sections that this packet completes: PID and bytes.
    pub(super) fn each_section(
        &mut self,
        packet: &Packet<'_>,
        mut each: impl FnMut(Pid, &[u8]),
    ) -> Result<(), InvalidSection> {
        let pid = packet.pid();
        let Some(at) = self.tables.iter().position(|table| table.pid == pid) else { return Ok(()) };
        if !packet.has_payload() {
            return Ok(());
        }
        let table = &mut self.tables[at];
        let mut programs = None;
        let took = table.take(packet, |section| {
            if pid == PAT && section[0] == 0 {
                programs = Some(pmt_pids(section));
            }
            each(pid, section);
        });
        if took.is_err() {
            table.part.clear();
        }
        if let Some(pids) = programs {
            self.follow(&pids);
        }
        took
    }

    /// Packets of `pid` have been lost: the partial section is dropped.
    pub(super) fn handle_loss(&mut self, pid: Pid) {
        if let Some(table) = self.tables.iter_mut().find(|table| table.pid == pid) {
            table.part.clear();
        }
    }

    fn follow(&mut self, pids: &[Pid]) {
        self.tables.retain(|table| table.pid == PAT || pids.contains(&table.pid));
        for pid in pids {
            if self.tables.len() <= PROGRAMS_MAX
                && self.tables.iter().all(|table| table.pid != *pid)
            {
                self.tables.push(Table { pid: *pid, part: Vec::new() });
            }
        }
    }
}

impl Table {
    fn take(
        &mut self,
        packet: &Packet<'_>,
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), InvalidSection> {
        let payload = packet.payload();
        if !packet.starts_unit() {
            // Joined in its middle: the section will be repeated.
            return if self.part.is_empty() { Ok(()) } else { self.go_on(payload, &mut each) };
        }
        let (pointer, rest) = payload.split_first().ok_or(InvalidSection)?;
        let (before, mut rest) =
            rest.split_at_checked(usize::from(*pointer)).ok_or(InvalidSection)?;
        if !self.part.is_empty() {
            self.go_on(before, &mut each)?;
            if !self.part.is_empty() {
                return Err(InvalidSection);
            }
        }
        while rest.first().is_some_and(|&table| table != STUFFING) {
            let Some(len) = length(rest)? else {
                self.part.extend(rest);
                break;
            };
            if let Some((section, behind)) = rest.split_at_checked(len) {
                whole(section, &mut each)?;
                rest = behind;
            } else {
                self.part.extend(rest);
                break;
            }
        }
        Ok(())
    }

    /// Continues the section with `more`.
    fn go_on(&mut self, more: &[u8], each: &mut impl FnMut(&[u8])) -> Result<(), InvalidSection> {
        let before = self.part.len();
        // A packet is shorter than the longest section.
        self.part.extend(more);
        let Some(len) = length(&self.part)? else { return Ok(()) };
        if self.part.len() < len {
            return Ok(());
        }
        // After the end of a section, a packet without a new one has only stuffing.
        let rest = &more[len.saturating_sub(before).min(more.len())..];
        if rest.iter().any(|&byte| byte != STUFFING) {
            return Err(InvalidSection);
        }
        let section = core::mem::take(&mut self.part);
        whole(&section[..len], each)
    }
}

/// The length of the section at the start of `bytes`, once it has arrived.
fn length(bytes: &[u8]) -> Result<Option<usize>, InvalidSection> {
    let [_, high, low, ..] = *bytes else { return Ok(None) };
    let len = usize::from(u16::from_be_bytes([high & 0x0f, low]));
    if len > LENGTH_MAX { Err(InvalidSection) } else { Ok(Some(3 + len)) }
}

/// Handles a complete section; the CRC must match if there is one.
fn whole(section: &[u8], each: &mut impl FnMut(&[u8])) -> Result<(), InvalidSection> {
    // section_syntax_indicator: PAT and PMT have it.
    if section.get(1).is_some_and(|flags| flags & 0x80 != 0) {
        if section.len() < 12 || crc(section) != 0 {
            return Err(InvalidSection);
        }
        each(section);
    }
    Ok(())
}

/// The PIDs of the PMTs in a PAT's section.
fn pmt_pids(section: &[u8]) -> Vec<Pid> {
    let entries = &section[8..section.len() - 4];
    let programs = entries.chunks_exact(4).filter(|entry| entry[..2] != [0, 0]);
    let pids = programs.map(|entry| Pid(u16::from_be_bytes([entry[2], entry[3]]) & 0x1fff));
    pids.take(PROGRAMS_MAX).collect()
}

/// Appends the packets of `section` to `into`, `stride` bytes each; the last one has the continuity
/// count `last`.
pub(super) fn section_packets(
    section: &[u8],
    pid: Pid,
    last: u8,
    stride: usize,
    into: &mut Vec<u8>,
) {
    let room = PACKET - 4;
    // The pointer field: the section begins at once.
    let bytes: Vec<u8> = core::iter::once(0).chain(section.iter().copied()).collect();
    let count = bytes.len().div_ceil(room);
    for (nth, part) in bytes.chunks(room).enumerate() {
        let before = (count - 1 - nth) as u8;
        let starts = if nth == 0 { 0x40 } else { 0 };
        // Arrival times (192) are zero, and so is parity (204).
        into.extend(core::iter::repeat_n(0, if stride == 192 { 4 } else { 0 }));
        let [high, low] = pid.0.to_be_bytes();
        let counter = last.wrapping_sub(before) & 0x0f;
        into.extend([SYNC, high & 0x1f | starts, low, 0x10 | counter]);
        into.extend(part);
        into.extend(core::iter::repeat_n(0xff, room - part.len()));
        into.extend(core::iter::repeat_n(0, if stride == 204 { 16 } else { 0 }));
    }
}

/// The packets of `section` that continue after `count`, which becomes that of the last one.
pub(super) fn counted_packets(section: &[u8], pid: Pid, count: &mut u8, into: &mut Vec<u8>) {
    let more = (section.len() + 1).div_ceil(PACKET - 4) as u8;
    *count = (*count + more) & 0x0f;
    section_packets(section, pid, *count, PACKET, into);
}

/// The CRC of annex A; zero over a section with its CRC.
pub(super) fn crc(bytes: &[u8]) -> u32 {
    bytes.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte) << 24, |crc, _| {
            crc << 1 ^ if crc >> 31 == 1 { 0x04c1_1db7 } else { 0 }
        })
    })
}
