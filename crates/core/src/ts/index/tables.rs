//! The programs of a title, and the tables that a player needs in front of a part of it.
//!
//! Promise: at most [`PROGRAMS_MAX`] programs of [`STREAMS_MAX`] streams and [`TABLES_MAX`]
//! versions of tables are kept. Returned sections are unchanged and have a valid CRC.

use alloc::vec::Vec;

use super::super::sections::{SDT_ACTUAL, Sections};
use super::super::{Packet, Pid};

/// Programs whose streams are listed.
pub(super) const PROGRAMS_MAX: usize = 64;
/// Streams of a program that are listed.
pub(super) const STREAMS_MAX: usize = 32;
/// Versions of the tables; parts after more changes begin without tables.
pub(super) const TABLES_MAX: usize = 16;
const PAT: Pid = Pid(0);

/// One program in its latest version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    /// The program number.
    pub number: u16,
    /// The PID of its PMT.
    pub table: Pid,
    /// Its PCR PID.
    pub clock: Pid,
    /// Its streams.
    pub streams: Vec<Stream>,
}

/// One elementary stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stream {
    /// Its PID.
    pub pid: Pid,
    /// The stream type (ISO/IEC 13818-1, table 2-34).
    pub kind: u8,
}

/// The tables from one position of the title on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tables {
    /// The offset of the packet that completed them.
    pub at: u64,
    /// The section of the PAT.
    pub pat: Vec<u8>,
    /// The PID of the PMT.
    pub pmt_pid: Pid,
    /// The section of the indexed program's PMT.
    pub pmt: Vec<u8>,
    /// The first section of the SDT while these tables were in force; empty if there was none, or
    /// it is one of several.
    pub sdt: Vec<u8>,
}

/// The last continuity counts of packets with tables.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct LastCounts {
    pub(super) pat: u8,
    pub(super) pmt: u8,
}

impl Program {
    /// The name of the stream type for people.
    #[must_use]
    pub fn kind_name(kind: u8) -> &'static str {
        match kind {
            0x01 => "MPEG-1 video",
            0x02 => "MPEG-2 video",
            0x03 | 0x04 => "MPEG audio",
            0x06 => "private data",
            0x0f => "AAC",
            0x10 => "MPEG-4 video",
            0x11 => "AAC (LATM)",
            0x15 => "metadata",
            0x1b => "H.264",
            0x24 => "H.265",
            0x33 => "H.266",
            0x42 => "AVS",
            0x81 => "AC-3",
            0x86 => "splice information",
            0x87 => "E-AC-3",
            _ => "other",
        }
    }
}

/// Follows the tables of a title.
#[derive(Clone, Debug)]
pub(super) struct TableWatcher {
    sections: Sections,
    /// Faults of these are no faults of the title's own tables.
    services: Sections,
    pat: Vec<u8>,
    sdt: Vec<u8>,
    /// By program: its PMT as received.
    pub(super) programs: Vec<(Program, Vec<u8>)>,
    pub(super) tables: Vec<Tables>,
    pub(super) counts: LastCounts,
    /// More versions than are kept.
    lost: bool,
}

impl Default for TableWatcher {
    fn default() -> Self {
        Self {
            sections: Sections::default(),
            services: Sections::of(Pid::SDT),
            pat: Vec::new(),
            sdt: Vec::new(),
            programs: Vec::new(),
            tables: Vec::new(),
            counts: LastCounts::default(),
            lost: false,
        }
    }
}

impl TableWatcher {
    /// Takes the next packet, at byte `at`; `clock` is the PID of the followed clock. Returns
    /// whether a table has changed; an error is an invalid section.
    pub(super) fn handle_packet(
        &mut self,
        at: u64,
        packet: &Packet<'_>,
        clock: Option<Pid>,
    ) -> Result<bool, ()> {
        let pid = packet.pid();
        if pid == Pid::SDT {
            self.take_services(packet);
            return Ok(false);
        }
        if packet.has_payload() {
            if pid == PAT {
                self.counts.pat = packet.continuity();
            } else if self.tables.last().is_some_and(|tables| tables.pmt_pid == pid) {
                self.counts.pmt = packet.continuity();
            }
        }
        let Self { sections, pat, programs, .. } = self;
        let mut changed = false;
        let fits = sections.each_section(packet, |pid, section| {
            changed |= match (pid, section[0]) {
                (PAT, 0) => take_pat(pat, programs, section),
                (_, 2) => take_pmt(programs, pid, section),
                _ => false,
            };
        });
        if changed {
            self.keep(at, clock);
            if self.tables.last().is_some_and(|tables| tables.pmt_pid == pid) {
                self.counts.pmt = packet.continuity();
            }
        }
        fits.map(|()| changed).map_err(|_| ())
    }

    fn take_services(&mut self, packet: &Packet<'_>) {
        let Self { services, sdt, .. } = self;
        let fits = services.each_section(packet, |_, section| {
            let is_whole = section[6..8] == [0, 0];
            if section[0] == SDT_ACTUAL && is_current(section) && is_whole {
                sdt.clear();
                sdt.extend(section);
            }
        });
        if fits.is_err() {
            return;
        }
        // It may follow the tables that it belongs to.
        if let Some(last) = self.tables.last_mut().filter(|last| last.sdt.is_empty()) {
            last.sdt.clone_from(&self.sdt);
        }
    }

    /// The program with the PCR PID `clock`: the first one of several; the first of all before the
    /// first PCR.
    pub(super) fn timing(&self, clock: Option<Pid>) -> Option<&(Program, Vec<u8>)> {
        let goes_by = |program: &Program| clock.is_none_or(|clock| program.clock == clock);
        self.programs.iter().find(|(program, _)| goes_by(program))
    }

    /// Like [`Self::keep`], where `packet` completed the tables in force.
    pub(super) fn keep_with(&mut self, at: u64, packet: &Packet<'_>, clock: Option<Pid>) {
        self.keep(at, clock);
        let is_table = |tables: &Tables| tables.pmt_pid == packet.pid();
        if packet.has_payload() && self.tables.last().is_some_and(is_table) {
            self.counts.pmt = packet.continuity();
        }
    }

    /// The tables are these from byte `at` on.
    pub(super) fn keep(&mut self, at: u64, clock: Option<Pid>) {
        let Some((program, pmt)) = self.timing(clock) else { return };
        let tables = Tables {
            at,
            pat: self.pat.clone(),
            pmt_pid: program.table,
            pmt: pmt.clone(),
            sdt: self.sdt.clone(),
        };
        let is_new = self.tables.last().is_none_or(|last| {
            (&last.pat, last.pmt_pid, &last.pmt) != (&tables.pat, tables.pmt_pid, &tables.pmt)
        });
        if !is_new || self.lost {
            return;
        }
        if self.tables.len() == TABLES_MAX {
            self.lost = true;
            // Parts after this position have no tables.
            let (pat, pmt, sdt) = (Vec::new(), Vec::new(), Vec::new());
            self.tables.push(Tables { at, pat, pmt_pid: PAT, pmt, sdt });
        } else {
            self.tables.push(tables);
        }
    }
}

/// Whether the table is in force now.
fn is_current(section: &[u8]) -> bool {
    section[5] & 1 == 1
}

fn take_pat(pat: &mut Vec<u8>, programs: &mut Vec<(Program, Vec<u8>)>, new: &[u8]) -> bool {
    // One of several sections is not the whole table.
    if !is_current(new) || pat == new || new[7] != 0 {
        return false;
    }
    pat.clear();
    pat.extend(new);
    programs.retain(|(program, _)| {
        programs_of(new).any(|(number, pid)| (number, pid) == (program.number, program.table))
    });
    true
}

fn programs_of(pat: &[u8]) -> impl Iterator<Item = (u16, Pid)> {
    let entries = pat.get(8..pat.len().saturating_sub(4)).unwrap_or(&[]).chunks_exact(4);
    entries.filter_map(|entry| {
        let number = u16::from_be_bytes([entry[0], entry[1]]);
        (number != 0).then_some((number, pid_of(entry[2], entry[3])))
    })
}

fn take_pmt(programs: &mut Vec<(Program, Vec<u8>)>, table: Pid, new: &[u8]) -> bool {
    let Some(program) = program_of(table, new).filter(|_| is_current(new)) else {
        return false;
    };
    let known = programs
        .iter()
        .position(|(known, _)| (known.number, known.table) == (program.number, program.table));
    match known {
        Some(at) if programs[at].1 == new => return false,
        Some(at) => programs[at] = (program, new.to_vec()),
        None if programs.len() < PROGRAMS_MAX => programs.push((program, new.to_vec())),
        None => return false,
    }
    true
}

/// Parses a PMT (2.4.4.8).
fn program_of(table: Pid, section: &[u8]) -> Option<Program> {
    let body = section.get(..section.len().checked_sub(4)?)?;
    let [_, _, _, high, low, _, _, _, clock_high, clock_low, info_high, info_low] =
        *body.first_chunk()?;
    let mut rest = body.get(12 + length_of(info_high, info_low)..)?;
    let mut streams = Vec::new();
    while let Some((&[kind, pid_high, pid_low, len_high, len_low], more)) = rest.split_first_chunk()
    {
        if streams.len() == STREAMS_MAX {
            break;
        }
        streams.push(Stream { pid: pid_of(pid_high, pid_low), kind });
        rest = more.get(length_of(len_high, len_low)..)?;
    }
    let number = u16::from_be_bytes([high, low]);
    Some(Program { number, table, clock: pid_of(clock_high, clock_low), streams })
}

/// The PCR PID of a PMT; `None` if it names none.
pub(super) fn clock_of(pmt: &[u8]) -> Option<Pid> {
    let &[high, low] = pmt.get(8..10)?.first_chunk()?;
    Some(pid_of(high, low)).filter(|&clock| clock != Pid::NULL)
}

fn pid_of(high: u8, low: u8) -> Pid {
    Pid(u16::from_be_bytes([high, low]) & 0x1fff)
}

fn length_of(high: u8, low: u8) -> usize {
    usize::from(u16::from_be_bytes([high, low]) & 0x0fff)
}
