//! Table versions (ISO/IEC 13818-1, 2.4.4.5 and 2.4.4.9; EN 300 468, 5.2.3) of a stream that is
//! joined from parts: titles, turns, positions of a title.
//!
//! Promise: the version of a PAT, PMT or SDT increases by one, modulo 32, when the content of the
//! table changes, within a title or at a join; an unchanged table keeps its version. The CRC
//! changes with the version: a valid CRC stays valid, an invalid one stays invalid. Nothing is
//! allocated, and any bytes are harmless. Tables of several sections, and those of more than
//! [`TABLES`] programs, pass unchanged.
//!
//! The version precedes the content in a section. A section of one packet, the usual case, is
//! hashed before it leaves. For a longer section the first packet decides, with the index's hash of
//! the whole at a join. If neither is enough, the version increases: a decoder then parses the same
//! table once more.

use alloc::vec::Vec;

use super::{PACKET, Packet, Pid};

/// Tables whose versions are counted: PAT, SDT and the PMTs of a whole transponder. Each takes 64
/// bytes in each stream.
pub const TABLES: usize = 32;
/// PIDs of PMTs that are followed.
const PMTS: usize = TABLES;
/// Table identifiers.
const PAT: u8 = 0;
const PMT: u8 = 2;
const SDT: u8 = super::sections::SDT_ACTUAL;
/// Longest section of a PAT or a PMT.
const SECTION_MAX: usize = 3 + 1021;
/// Bytes of a section up to its version and section numbers.
const HEAD: usize = 8;
const STUFFING: u8 = 0xff;
const CRC: usize = 4;

/// Hashes of the table at the start of a part, if it is longer than a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LongTable {
    /// The PID of the table.
    pub pid: Pid,
    first: u64,
    whole: u64,
}

/// The version of a table, from which a following part continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableCount {
    /// The PID of the table.
    pub pid: Pid,
    /// Its table identifier.
    pub kind: u8,
    /// The program number of a PMT, else 0.
    pub number: u16,
    /// The version that was sent.
    pub version: u8,
    /// The version in the title.
    pub own: u8,
    /// The table belongs to the part before the last join.
    pub is_behind: bool,
    /// Hashes of the bytes in its first packet, and of the whole table.
    pub hash: [u64; 2],
}

/// The table versions of one stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Versions {
    tables: [Table; TABLES],
    used: usize,
    pmts: [Pid; PMTS],
    pmts_used: usize,
    ahead: Option<LongTable>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Table {
    pid: Pid,
    kind: u8,
    number: u16,
    version: u8,
    own: u8,
    part: u32,
    /// The PAT no longer lists the PMT.
    is_over: bool,
    /// Hashes of the bytes in the first packet, and of the whole table.
    first: u64,
    whole: u64,
    /// The section in progress, now and before the last packet.
    rest: RemainingSection,
    before: RemainingSection,
}

/// The part of a section that is still to come.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct RemainingSection {
    bytes: u16,
    /// The change to the section's CRC.
    sum: u32,
    hash: u64,
}

/// One section, with the bytes that its first packet holds.
struct Section<'a> {
    pid: Pid,
    len: usize,
    bytes: &'a mut [u8],
}

/// How sections are handled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Handling {
    /// Versions are rewritten.
    Count,
    /// Sections pass unchanged; their versions are recorded.
    Note,
}

impl LongTable {
    /// The hashes of a section on `pid`; none when one packet holds it.
    pub fn of(pid: Pid, section: &[u8]) -> Option<Self> {
        // A pointer field precedes the section.
        let room = PACKET - 4 - 1;
        let body = section.get(..section.len().checked_sub(CRC)?)?;
        (section.len() > room).then(|| Self {
            pid,
            first: hash(EMPTY, 0, &body[..room.min(body.len())]),
            whole: hash(EMPTY, 0, body),
        })
    }
}

/// Makes the versions of `sections` follow `tables`, and updates `tables`. Each section is a whole
/// table with its PID; together they are the tables at the start of a part.
pub fn count_versions(tables: &mut Vec<TableCount>, sections: &mut [(Pid, &mut [u8])]) {
    /// Parts 0 and 1 are the earlier ones.
    const PART: u32 = 2;
    let mut versions = Versions::behind(tables);
    for (pid, bytes) in sections {
        let len = bytes.len();
        let is_table = matches!(bytes.first(), Some(&(PAT | PMT | SDT)));
        if is_table && (HEAD + CRC..=SECTION_MAX).contains(&len) {
            versions.section(PART, Section { pid: *pid, len, bytes }, Handling::Count);
        }
    }
    *tables = versions.counts(PART).collect();
}

impl Default for Versions {
    fn default() -> Self {
        let rest = RemainingSection::default();
        let (kind, number, version, own, part) = (STUFFING, 0, 0, 0, 0);
        let pid = Pid::NULL;
        let (first, whole, before) = (0, 0, rest);
        let is_over = false;
        let none =
            Table { pid, kind, number, version, own, part, is_over, first, whole, rest, before };
        Self { tables: [none; TABLES], used: 0, pmts: [Pid::NULL; PMTS], pmts_used: 0, ahead: None }
    }
}

impl Versions {
    /// The versions of a stream that continues behind `counts`, as parts 0 and 1.
    pub(super) fn behind(counts: &[TableCount]) -> Self {
        let mut this = Self::default();
        for (place, count) in this.tables.iter_mut().zip(counts) {
            let &TableCount { pid, kind, number, version, own, is_behind, hash } = count;
            let (part, [first, whole]) = (u32::from(!is_behind), hash);
            *place = Table { pid, kind, number, version, own, part, first, whole, ..*place };
            this.used += 1;
            if kind == PMT && this.pmts_used < PMTS {
                this.pmts[this.pmts_used] = pid;
                this.pmts_used += 1;
            }
        }
        this
    }

    /// The versions of all tables; `part` is the one in progress.
    pub(super) fn counts(&self, part: u32) -> impl Iterator<Item = TableCount> {
        self.tables[..self.used].iter().map(move |table| {
            let &Table { pid, kind, number, version, own, first, whole, .. } = table;
            let (is_behind, hash) = (table.part != part || table.is_over, [first, whole]);
            TableCount { pid, kind, number, version, own, is_behind, hash }
        })
    }

    /// Begins a part; `ahead` has the hashes of its first long table.
    pub(super) fn begin_part(&mut self, ahead: Option<LongTable>) {
        self.ahead = ahead;
        for table in &mut self.tables[..self.used] {
            (table.rest, table.before) = (RemainingSection::default(), RemainingSection::default());
        }
    }

    /// Whether `pid` carries tables.
    pub(super) fn concerns(&self, pid: Pid) -> bool {
        pid == Pid(0) || pid == Pid::SDT || self.pmts[..self.pmts_used].contains(&pid)
    }

    /// Takes the next packet of a PID that carries tables. `is_repeated`: the packet repeats the
    /// one before it.
    pub(super) fn handle(
        &mut self,
        part: u32,
        bytes: &mut [u8; PACKET],
        is_repeated: bool,
        act: Handling,
    ) {
        let Some(packet) = Packet::read(bytes) else { return };
        if packet.is_scrambled() || !packet.has_payload() {
            return;
        }
        let (pid, starts, at) = (packet.pid(), packet.starts_unit(), packet.payload_at());
        let payload = &mut bytes[at..];
        if !starts {
            return self.go_on(pid, payload, is_repeated);
        }
        let Some((pointer, rest)) = payload.split_first_mut() else { return };
        let Some((before, mut rest)) = rest.split_at_mut_checked(usize::from(*pointer)) else {
            return;
        };
        self.go_on(pid, before, is_repeated);
        for table in self.tables[..self.used].iter_mut().filter(|table| table.pid == pid) {
            table.rest.bytes = 0;
        }
        while rest.len() >= HEAD && rest[0] != STUFFING {
            let len = 3 + (usize::from(rest[1] & 0x0f) << 8 | usize::from(rest[2]));
            let (bytes, behind) = rest.split_at_mut(len.min(rest.len()));
            let is_one = bytes.len() >= HEAD && bytes[6..8] == [0, 0];
            let has_sum = bytes[1] & 0x80 != 0 && (HEAD + CRC..=SECTION_MAX).contains(&len);
            let is_table = match bytes[0] {
                PAT => pid == Pid(0),
                PMT => pid != Pid(0) && pid != Pid::SDT,
                SDT => pid == Pid::SDT,
                _ => false,
            };
            if is_table && is_one && has_sum {
                if bytes[0] == PAT && bytes.len() == len && bytes[5] & 1 == 1 {
                    self.follow(part, &bytes[HEAD..len - CRC]);
                }
                self.section(part, Section { pid, len, bytes }, act);
            }
            rest = behind;
        }
    }

    /// Takes the PIDs of the PMTs from a PAT's entries.
    fn follow(&mut self, part: u32, entries: &[u8]) {
        let programs = entries.as_chunks::<4>().0.iter().map(|entry| {
            let [a, b, c, d] = *entry;
            (u16::from_be_bytes([a, b]), Pid(u16::from_be_bytes([c, d]) & 0x1fff))
        });
        // Program number 0 is the network's.
        let programs = programs.filter(|&(number, _)| number != 0);
        self.pmts_used = 0;
        for ((_, pid), place) in programs.clone().zip(&mut self.pmts) {
            *place = pid;
            self.pmts_used += 1;
        }
        let own = |table: &&mut Table| table.kind == PMT && table.part == part;
        for table in self.tables[..self.used].iter_mut().filter(own) {
            table.is_over = programs.clone().all(|named| named != (table.number, table.pid));
        }
    }

    fn section(&mut self, part: u32, section: Section<'_>, act: Handling) {
        let Section { pid, len, bytes } = section;
        let kind = bytes[0];
        let number = if kind == PMT { u16::from_be_bytes([bytes[3], bytes[4]]) } else { 0 };
        let (own, is_current) = (bytes[5] >> 1 & 0x1f, bytes[5] & 1 == 1);
        let body = &bytes[..bytes.len().min(len - CRC)];
        let first = hash(EMPTY, 0, body);
        let is_all = body.len() == len - CRC;
        let ahead = self.ahead.filter(|ahead| (ahead.pid, ahead.first) == (pid, first));
        let whole = if is_all { Some(first) } else { ahead.map(|ahead| ahead.whole) };
        let new = Table {
            pid,
            kind,
            number,
            version: own,
            own,
            part,
            is_over: false,
            first,
            whole: whole.unwrap_or(0),
            rest: RemainingSection::default(),
            before: RemainingSection::default(),
        };
        let version = match act {
            Handling::Count => self.version(&new, whole, is_all),
            Handling::Note => own,
        };
        // A table that is announced but was never in force passes unchanged.
        let Some(at) = self.place(&new, is_current) else { return };
        let moved = (own ^ version) << 1;
        bytes[5] ^= moved;
        let sum = if moved == 0 { 0 } else { crc_change(moved, len - CRC - 6) };
        for (nth, byte) in bytes.iter_mut().enumerate().skip(len - CRC) {
            *byte ^= sum.to_be_bytes()[nth - (len - CRC)];
        }
        let rest = RemainingSection { bytes: (len - bytes.len()) as u16, sum, hash: first };
        let table = &mut self.tables[at];
        if is_current {
            *table = Table { version, rest, before: table.before, ..new };
        } else {
            table.rest = rest;
        }
    }

    /// The version that `new` gets. `whole` is the hash of the whole table, if known. `is_all`: the
    /// first packet holds the whole table.
    fn version(&self, new: &Table, whole: Option<u64>, is_all: bool) -> u8 {
        let tables = &self.tables[..self.used];
        let next = |table: &Table| (table.version + 1) & 0x1f;
        let exact = tables.iter().find(|table| table.is_of(new));
        if let Some(here) = exact.filter(|table| table.is_in(new.part)) {
            let is_same = match is_all {
                true => whole == Some(here.whole),
                false => (here.first, here.own) == (new.first, new.own),
            };
            return if is_same { here.version } else { next(here) };
        }
        let is_before = |table: &&Table| table.kind == new.kind && !table.is_in(new.part);
        let before = || tables.iter().filter(is_before);
        let last = before().map(|table| table.part).max();
        let is_same = |table: &Table| table.number == new.number && whole == Some(table.whole);
        let is_kept = |table: &&Table| Some(table.part) == last && !table.is_over && is_same(table);
        if let Some(kept) = exact.filter(is_kept) {
            return kept.version;
        }
        let akin = |table: &&Table| table.pid == new.pid || table.number == new.number;
        // Several may belong to one part; the last one written is the newest.
        match before().filter(akin).max_by_key(|table| (table.part, !table.is_over)) {
            Some(recent) if is_same(recent) => recent.version,
            Some(recent) => next(recent),
            None => before().max_by_key(|table| (table.part, !table.is_over)).map_or(new.own, next),
        }
    }

    /// The slot for `new`; none when the table is full, or `new` is only announced.
    fn place(&mut self, new: &Table, is_current: bool) -> Option<usize> {
        let tables = &self.tables[..self.used];
        let exact = tables.iter().position(|table| table.is_of(new));
        if exact.is_some() || !is_current {
            return exact;
        }
        if self.used < TABLES {
            self.used += 1;
            return Some(self.used - 1);
        }
        let oldest = (0..TABLES).min_by_key(|&at| self.tables[at].part);
        oldest.filter(|&at| self.tables[at].part != new.part)
    }

    /// Continues a section of `pid` with `bytes`.
    fn go_on(&mut self, pid: Pid, bytes: &mut [u8], is_repeated: bool) {
        let goes_on = |table: &&mut Table| {
            let rest = if is_repeated { table.before } else { table.rest };
            table.pid == pid && rest.bytes > 0
        };
        let Some(table) = self.tables[..self.used].iter_mut().find(goes_on) else { return };
        let mut rest = if is_repeated { table.before } else { table.rest };
        table.before = rest;
        for byte in bytes.iter_mut().take(usize::from(rest.bytes)) {
            match usize::from(rest.bytes) {
                left @ 0..=CRC => *byte ^= rest.sum.to_be_bytes()[CRC - left],
                _ => rest.hash = hash(rest.hash, HEAD, core::slice::from_ref(byte)),
            }
            rest.bytes -= 1;
        }
        table.rest = rest;
        if rest.bytes == 0 {
            table.whole = rest.hash;
        }
    }
}

impl Table {
    /// Whether the table is in force in `part`, the part in progress.
    fn is_in(&self, part: u32) -> bool {
        self.part == part && !self.is_over
    }

    fn is_of(&self, other: &Self) -> bool {
        (self.pid, self.kind, self.number) == (other.pid, other.kind, other.number)
    }
}

const _: () = assert!(size_of::<Table>() <= 64, "there are many of them in each stream");

/// The hash of no bytes (FNV-1a).
const EMPTY: u64 = 0xcbf2_9ce4_8422_2325;

/// Continues the hash `before` over `bytes`, which begin at byte `from` of the section. The version
/// and the current/next indicator are left out.
fn hash(before: u64, from: usize, bytes: &[u8]) -> u64 {
    bytes.iter().zip(from..).fold(before, |sum, (&byte, at)| {
        let byte = if at == 5 { byte & 0xc0 } else { byte };
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The change to a section's CRC (annex A) when a byte changes by `moved` and `behind` bytes follow
/// it, the CRC not counted: CRCs are linear.
fn crc_change(moved: u8, behind: usize) -> u32 {
    let step = |sum: u32, byte: u8| sum << 8 ^ CRCS[usize::from((sum >> 24) as u8 ^ byte)];
    (0..behind).fold(step(0, moved), |sum, _| step(sum, 0))
}

const CRCS: [u32; 256] = {
    let mut sums = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut sum = (byte as u32) << 24;
        let mut bit = 0;
        while bit < 8 {
            sum = sum << 1 ^ if sum >> 31 == 1 { 0x04c1_1db7 } else { 0 };
            bit += 1;
        }
        sums[byte] = sum;
        byte += 1;
    }
    sums
};

#[cfg(test)]
mod tests;
