//! The versions of tables (ISO/IEC 13818-1, 2.4.4.5 and 2.4.4.9; EN 300 468, 5.2.3) of a stream that is put together of
//! parts: titles, turns, places of a title.
//!
//! Promise: the version of a PAT, a PMT or an SDT counts by one, modulo 32, when what the table says changes, whether the
//! title says so or only the join makes it so; a table that says the same keeps its version. Sums are moved with the
//! versions, so that a sum that was right stays right and a wrong one stays wrong. Nothing is allocated, and any bytes are
//! harmless. Tables of several sections, and those of more than [`TABLES`] programmes, pass as they are.
//!
//! A version stands near the beginning of its section, before what it tells of. A section of one packet, as nearly all are,
//! is read before it leaves. Of a longer one the first packet and, at a join, what the index knows of the rest decide;
//! where neither can, it counts as changed: a decoder then reads once more what it has.

use alloc::vec::Vec;

use super::{PACKET, Packet, Pid};

/// Tables whose versions are kept.
pub const TABLES: usize = 8;
/// PIDs of PMTs that are known.
const PMTS: usize = 16;
/// The table identifiers.
const PAT: u8 = 0;
const PMT: u8 = 2;
const SDT: u8 = super::sections::SDT_ACTUAL;
/// A PAT's or PMT's section is no longer.
const SECTION_MAX: usize = 3 + 1021;
/// As much as tells a section's version and whether it is the only one.
const HEAD: usize = 8;
const STUFFING: u8 = 0xff;
const CRC: usize = 4;

/// What is known of the table with which a part begins, where it is longer than a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ahead {
    /// Where it comes.
    pub pid: Pid,
    first: u64,
    whole: u64,
}

/// Where a table's versions are, for whoever goes on with the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableCount {
    /// Where it comes.
    pub pid: Pid,
    /// What kind of table it is.
    pub kind: u8,
    /// Of which programme, of a PMT.
    pub number: u16,
    /// As it has left.
    pub version: u8,
    /// As the title has it.
    pub own: u8,
    /// It is of what was before the last join.
    pub is_behind: bool,
    /// What it says, as a number: of its first packet, and all of it.
    pub says: [u64; 2],
}

/// The versions of one stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Versions {
    tables: [Table; TABLES],
    used: usize,
    pmts: [Pid; PMTS],
    pmts_used: usize,
    ahead: Option<Ahead>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Table {
    pid: Pid,
    kind: u8,
    number: u16,
    version: u8,
    own: u8,
    part: u32,
    /// The association table does not name it any more.
    is_over: bool,
    /// Over what its first packet has of it, and over all of it.
    first: u64,
    whole: u64,
    /// Of the section that is under way, and as it was before the last packet.
    rest: Rest,
    before: Rest,
}

/// What is to come of a section.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Rest {
    bytes: usize,
    /// By what its sum is moved.
    sum: u32,
    says: u64,
}

/// One section as far as its first packet has it.
struct Section<'a> {
    pid: Pid,
    len: usize,
    bytes: &'a mut [u8],
}

/// What happens to sections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Act {
    /// Their versions are counted.
    Count,
    /// They leave as they are, and are noted.
    Note,
}

impl Ahead {
    /// Of a section that comes on `pid`; none when one packet holds it.
    pub fn of(pid: Pid, section: &[u8]) -> Option<Self> {
        // A pointer is in front.
        let room = PACKET - 4 - 1;
        let body = section.get(..section.len().checked_sub(CRC)?)?;
        (section.len() > room).then(|| Self {
            pid,
            first: says(EMPTY, 0, &body[..room.min(body.len())]),
            whole: says(EMPTY, 0, body),
        })
    }
}

/// Makes the versions of `sections` follow those in `tables`, which then has them as well: each is all of a table, beside the
/// PID that it comes on, and together they are what a part begins with.
pub fn count_versions(tables: &mut Vec<TableCount>, sections: &mut [(Pid, &mut [u8])]) {
    /// The parts 0 and 1 are those before.
    const PART: u32 = 2;
    let mut versions = Versions::behind(tables);
    for (pid, bytes) in sections {
        let len = bytes.len();
        let is_table = matches!(bytes.first(), Some(&(PAT | PMT | SDT)));
        if is_table && (HEAD + CRC..=SECTION_MAX).contains(&len) {
            versions.section(PART, Section { pid: *pid, len, bytes }, Act::Count);
        }
    }
    *tables = versions.counts(PART).collect();
}

impl Default for Versions {
    fn default() -> Self {
        let rest = Rest::default();
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
    /// Those of a stream that goes on behind `counts`, in parts 0 and 1.
    pub(super) fn behind(counts: &[TableCount]) -> Self {
        let mut this = Self::default();
        for (place, count) in this.tables.iter_mut().zip(counts) {
            let &TableCount { pid, kind, number, version, own, is_behind, says } = count;
            let (part, [first, whole]) = (u32::from(!is_behind), says);
            *place = Table { pid, kind, number, version, own, part, first, whole, ..*place };
            this.used += 1;
            if kind == PMT && this.pmts_used < PMTS {
                this.pmts[this.pmts_used] = pid;
                this.pmts_used += 1;
            }
        }
        this
    }

    /// Where they are; `part` is the one that is under way.
    pub(super) fn counts(&self, part: u32) -> impl Iterator<Item = TableCount> {
        self.tables[..self.used].iter().map(move |table| {
            let &Table { pid, kind, number, version, own, first, whole, .. } = table;
            let (is_behind, says) = (table.part != part || table.is_over, [first, whole]);
            TableCount { pid, kind, number, version, own, is_behind, says }
        })
    }

    /// What is known of the part that begins.
    pub(super) fn begin_part(&mut self, ahead: Option<Ahead>) {
        self.ahead = ahead;
        for table in &mut self.tables[..self.used] {
            (table.rest, table.before) = (Rest::default(), Rest::default());
        }
    }

    /// Whether tables come on `pid`.
    pub(super) fn concerns(&self, pid: Pid) -> bool {
        pid == Pid(0) || pid == Pid::SDT || self.pmts[..self.pmts_used].contains(&pid)
    }

    /// Takes the next packet, of a PID that tables come on; `is_repeated` when it is the one before once more.
    pub(super) fn handle(
        &mut self,
        part: u32,
        bytes: &mut [u8; PACKET],
        is_repeated: bool,
        act: Act,
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

    /// The PMTs are where a PAT's entries say.
    fn follow(&mut self, part: u32, entries: &[u8]) {
        let programmes = entries.as_chunks::<4>().0.iter().map(|entry| {
            let [a, b, c, d] = *entry;
            (u16::from_be_bytes([a, b]), Pid(u16::from_be_bytes([c, d]) & 0x1fff))
        });
        // Number 0 is the network's.
        let programmes = programmes.filter(|&(number, _)| number != 0);
        self.pmts_used = 0;
        for ((_, pid), place) in programmes.clone().zip(&mut self.pmts) {
            *place = pid;
            self.pmts_used += 1;
        }
        let own = |table: &&mut Table| table.kind == PMT && table.part == part;
        for table in self.tables[..self.used].iter_mut().filter(own) {
            table.is_over = programmes.clone().all(|named| named != (table.number, table.pid));
        }
    }

    fn section(&mut self, part: u32, section: Section<'_>, act: Act) {
        let Section { pid, len, bytes } = section;
        let kind = bytes[0];
        let number = if kind == PMT { u16::from_be_bytes([bytes[3], bytes[4]]) } else { 0 };
        let (own, is_current) = (bytes[5] >> 1 & 0x1f, bytes[5] & 1 == 1);
        let body = &bytes[..bytes.len().min(len - CRC)];
        let first = says(EMPTY, 0, body);
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
            rest: Rest::default(),
            before: Rest::default(),
        };
        let version = match act {
            Act::Count => self.version(&new, whole, is_all),
            Act::Note => own,
        };
        // What is only announced, and was never in force, passes as it is.
        let Some(at) = self.place(&new, is_current) else { return };
        let moved = (own ^ version) << 1;
        bytes[5] ^= moved;
        let sum = if moved == 0 { 0 } else { sum_of(moved, len - CRC - 6) };
        for (nth, byte) in bytes.iter_mut().enumerate().skip(len - CRC) {
            *byte ^= sum.to_be_bytes()[nth - (len - CRC)];
        }
        let rest = Rest { bytes: len - bytes.len(), sum, says: first };
        let table = &mut self.tables[at];
        if is_current {
            *table = Table { version, rest, before: table.before, ..new };
        } else {
            table.rest = rest;
        }
    }

    /// What the version of `new` is to be, all of which is `whole` as far as that is known; it `is_all` in its first packet.
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
        // Several may be of the same part; the last one written is the newest.
        match before().filter(akin).max_by_key(|table| (table.part, !table.is_over)) {
            Some(recent) if is_same(recent) => recent.version,
            Some(recent) => next(recent),
            None => before().max_by_key(|table| (table.part, !table.is_over)).map_or(new.own, next),
        }
    }

    /// Where `new` is kept; none when there is no room for it, or it is only announced.
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

    /// A section of `pid` goes on with `bytes`.
    fn go_on(&mut self, pid: Pid, bytes: &mut [u8], is_repeated: bool) {
        let goes_on = |table: &&mut Table| {
            let rest = if is_repeated { table.before } else { table.rest };
            table.pid == pid && rest.bytes > 0
        };
        let Some(table) = self.tables[..self.used].iter_mut().find(goes_on) else { return };
        let mut rest = if is_repeated { table.before } else { table.rest };
        table.before = rest;
        let len = rest.bytes.min(bytes.len());
        for byte in &mut bytes[..len] {
            match rest.bytes.checked_sub(CRC + 1) {
                Some(_) => rest.says = says(rest.says, HEAD, core::slice::from_ref(byte)),
                None => *byte ^= rest.sum.to_be_bytes()[CRC - rest.bytes],
            }
            rest.bytes -= 1;
        }
        table.rest = rest;
        if rest.bytes == 0 {
            table.whole = rest.says;
        }
    }
}

impl Table {
    /// Whether it is in force in `part`, which is under way.
    fn is_in(&self, part: u32) -> bool {
        self.part == part && !self.is_over
    }

    fn is_of(&self, other: &Self) -> bool {
        (self.pid, self.kind, self.number) == (other.pid, other.kind, other.number)
    }
}

/// A number over nothing (FNV-1a).
const EMPTY: u64 = 0xcbf2_9ce4_8422_2325;

/// A number over `bytes`, which are those of a section from byte `from` on, and all before them: without its version, and
/// whether it is in force.
fn says(before: u64, from: usize, bytes: &[u8]) -> u64 {
    bytes.iter().zip(from..).fold(before, |sum, (&byte, at)| {
        let byte = if at == 5 { byte & 0xc0 } else { byte };
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// How the sum of a section changes (annex A) when the byte with so many behind it, the sum not counted, is changed by
/// `moved`: sums are linear.
fn sum_of(moved: u8, behind: usize) -> u32 {
    let step = |sum: u32, byte: u8| sum << 8 ^ SUMS[usize::from((sum >> 24) as u8 ^ byte)];
    (0..behind).fold(step(0, moved), |sum, _| step(sum, 0))
}

const SUMS: [u32; 256] = {
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
