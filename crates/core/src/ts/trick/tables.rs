//! The tables of the multiplex: one program with its video only.
//!
//! Promise: numbers, identifiers and descriptors are the title's own; versions differ from the
//! title's, so that receivers notice the missing streams. Service names are the title's.

use alloc::vec::Vec;

use super::super::index::{Codec, Index};
use super::super::sections::crc;
use super::super::{Access, Pid, TableCount, count_versions};

/// The video of a program, and tables that list nothing else.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VideoProgram {
    /// The video PID, which carries the PCR, too.
    pub pid: Pid,
    /// The PID of the title's own PCR.
    pub clock: Pid,
    /// The PID of the PMT.
    pub pmt_pid: Pid,
    pub(super) pat: Vec<u8>,
    pub(super) pmt: Vec<u8>,
    /// The SDT; empty if the title has none.
    pub(super) sdt: Vec<u8>,
}

impl VideoProgram {
    /// Makes the versions of these tables follow those that were sent, which `before` lists.
    #[must_use]
    pub fn behind(mut self, before: &mut Vec<TableCount>) -> Self {
        let Self { pmt_pid, pat, pmt, sdt, .. } = &mut self;
        count_versions(before, &mut [(Pid(0), pat), (*pmt_pid, pmt), (Pid::SDT, sdt)]);
        self
    }
}

/// The video of a title at one of its access points; `None` if it has no video, or its tables are
/// unknown.
pub fn video_program_of(index: &Index, access: &Access) -> Option<VideoProgram> {
    let tables = index.tables_at(access)?;
    let stream = video_stream_of(&tables.pmt)?;
    let number = tables.pmt.get(3..5)?;
    let [high, low] = tables.pmt_pid.0.to_be_bytes();
    // Transport stream, version, and the only section (2.4.4.3).
    let mut pat = alloc::vec![0, 0xb0, 0];
    pat.extend(tables.pat.get(3..5)?);
    pat.extend([next_version(*tables.pat.get(5)?), 0, 0]);
    pat.extend(number);
    pat.extend([0xe0 | high, low]);
    let mut pmt = alloc::vec![2, 0xb0, 0];
    pmt.extend(number);
    pmt.extend([next_version(*tables.pmt.get(5)?), 0, 0]);
    let [high, low] = stream.pid.0.to_be_bytes();
    pmt.extend([0xe0 | high, low]);
    pmt.extend(stream.program_info);
    pmt.extend(stream.entry);
    seal(&mut pat);
    seal(&mut pmt);
    let (clock, sdt) = (index.clock(), tables.sdt.clone());
    Some(VideoProgram { pid: stream.pid, clock, pmt_pid: tables.pmt_pid, pat, pmt, sdt })
}

struct VideoStream<'a> {
    pid: Pid,
    /// Length and descriptors of the program.
    program_info: &'a [u8],
    /// The entry of the stream in the PMT.
    entry: &'a [u8],
}

/// The first video stream (2.4.4.8).
fn video_stream_of(pmt: &[u8]) -> Option<VideoStream<'_>> {
    let body = pmt.get(..pmt.len().checked_sub(4)?)?;
    let info = 2 + length_of(body.get(10..12)?);
    let program_info = body.get(10..10 + info)?;
    let mut rest = body.get(10 + info..)?;
    while let Some(head) = rest.first_chunk::<5>() {
        let len = 5 + length_of(&head[3..5]);
        let entry = rest.get(..len)?;
        if Codec::of(head[0]).is_some_and(|codec| codec != Codec::Audio) {
            let pid = Pid(u16::from_be_bytes([head[1], head[2]]) & 0x1fff);
            return Some(VideoStream { pid, program_info, entry });
        }
        rest = &rest[len..];
    }
    None
}

fn length_of(bytes: &[u8]) -> usize {
    usize::from(u16::from_be_bytes([bytes[0], bytes[1]]) & 0x0fff)
}

/// The next version after this byte's, with the current indicator.
fn next_version(byte: u8) -> u8 {
    let version = (byte >> 1).wrapping_add(1) & 0x1f;
    0xc1 | version << 1
}

/// Writes the length of a section and appends its CRC.
fn seal(section: &mut Vec<u8>) {
    let [high, low] = (section.len() as u16 - 3 + 4).to_be_bytes();
    section[1] = 0xb0 | high & 0x0f;
    section[2] = low;
    let sum = crc(section);
    section.extend(sum.to_be_bytes());
}
