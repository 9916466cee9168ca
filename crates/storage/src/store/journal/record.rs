//! One record of the journal, in bytes.
//!
//! Promise: `read(write(x)) == x`, and arbitrary bytes give a record or an error, never a panic.

use tactus_core::sums::{UNIT, combine};

use crate::store::id::StoreId;
use crate::store::names::Precondition;
use crate::store::quotas::Principal;
use crate::store::sums::SumsState;

/// A change of an upload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::store) enum Record {
    /// The upload began.
    Created(Box<CreationRecord>),
    /// More bytes are durable.
    Advanced(WatermarkRecord),
    /// The length was declared.
    Length { id: StoreId, len: u64 },
    /// The title has its name and this entity tag.
    Named { id: StoreId, etag: String },
    /// The upload was given up or forgotten.
    Gone { id: StoreId },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::store) struct CreationRecord {
    pub(in crate::store) id: StoreId,
    pub(in crate::store) principal: Principal,
    /// None for a part of another upload.
    pub(in crate::store) path: Option<String>,
    pub(in crate::store) precondition: Precondition,
    pub(in crate::store) len: Option<u64>,
    /// The protocol's metadata, unchanged.
    pub(in crate::store) metadata: Vec<u8>,
    /// When it expires: seconds since 1970.
    pub(in crate::store) expires: u64,
}

/// All bytes below `mark` are durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::store) struct WatermarkRecord {
    pub(in crate::store) id: StoreId,
    pub(in crate::store) mark: SumsState,
    /// CRC32C of the whole units below the mark.
    pub(in crate::store) prefix: u32,
    /// The index of the first unit in `units`.
    pub(in crate::store) from: u64,
    /// The checksums of the units up to the mark.
    pub(in crate::store) units: Vec<u32>,
    pub(in crate::store) expires: u64,
}

/// Units in one record; more would not fit into a write slot. Half a gibibyte of a title.
pub(in crate::store) const UNITS_MAX: usize = 8192;

impl WatermarkRecord {
    /// The same in records that each fit into a write slot; `before` is the CRC32C of all units
    /// below `from`.
    pub(in crate::store) fn split(self, before: u32) -> Vec<Self> {
        let Self { id, mark, prefix, mut from, units, expires } = self;
        let mut parts = Vec::new();
        let mut sum = before;
        let mut chunks = units.chunks(UNITS_MAX).peekable();
        while let Some(chunk) = chunks.next_if(|chunk| chunk.len() == UNITS_MAX) {
            if chunks.peek().is_none() {
                let units = chunk.to_vec();
                parts.push(Self { id, mark, prefix, from, units, expires });
                return parts;
            }
            let combined = |sum, unit: &u32| combine(sum, *unit, UNIT);
            sum = chunk.iter().fold(sum, combined);
            let end = from + chunk.len() as u64;
            let so_far = SumsState { len: end * UNIT.0, whole: sum, partial: 0 };
            let units = chunk.to_vec();
            parts.push(Self { id, mark: so_far, prefix: sum, from, units, expires });
            from = end;
        }
        let units = chunks.next().unwrap_or_default().to_vec();
        parts.push(Self { id, mark, prefix, from, units, expires });
        parts
    }
}

impl Record {
    /// Appends the record.
    pub(in crate::store) fn write(&self, out: &mut Vec<u8>) {
        let begin = out.len();
        out.extend([0; 4]);
        match self {
            Self::Created(created) => {
                out.push(1);
                created.write(out);
            }
            Self::Advanced(WatermarkRecord { id, mark, prefix, from, units, expires }) => {
                out.push(2);
                out.extend(id.0);
                out.extend(mark.len.to_le_bytes());
                out.extend(mark.whole.to_le_bytes());
                out.extend(mark.partial.to_le_bytes());
                out.extend(prefix.to_le_bytes());
                out.extend(from.to_le_bytes());
                out.extend(expires.to_le_bytes());
                out.extend((units.len() as u32).to_le_bytes());
                out.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
            }
            Self::Length { id, len } => {
                out.push(3);
                out.extend(id.0);
                out.extend(len.to_le_bytes());
            }
            Self::Named { id, etag } => {
                out.push(4);
                out.extend(id.0);
                text(out, etag.as_bytes());
            }
            Self::Gone { id } => {
                out.push(5);
                out.extend(id.0);
            }
        }
        let len = (out.len() - begin - 4) as u32;
        out[begin..begin + 4].copy_from_slice(&len.to_le_bytes());
    }
}

impl CreationRecord {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.id.0);
        text(out, self.principal.name().as_bytes());
        out.push(u8::from(self.path.is_some()));
        text(out, self.path.as_deref().unwrap_or_default().as_bytes());
        match &self.precondition {
            Precondition::Any => out.push(0),
            Precondition::CreateOnly => out.push(1),
            Precondition::Exists => out.push(2),
            Precondition::Match(tags) => {
                out.push(3);
                strings(out, tags);
            }
            Precondition::UnmodifiedSince(second) => {
                out.push(4);
                out.extend(second.to_le_bytes());
            }
            Precondition::Unless { tags, exists, unmodified_since } => {
                out.push(5);
                out.push(u8::from(*exists));
                out.push(u8::from(unmodified_since.is_some()));
                out.extend(unmodified_since.unwrap_or_default().to_le_bytes());
                strings(out, tags);
            }
        }
        out.push(u8::from(self.len.is_some()));
        out.extend(self.len.unwrap_or_default().to_le_bytes());
        text(out, &self.metadata);
        out.extend(self.expires.to_le_bytes());
    }

    fn read(reader: &mut Reader) -> Option<Self> {
        let (id, principal) = (reader.id()?, Principal::new(&reader.string()?));
        let has_path = reader.flag()?;
        let path = reader.string()?;
        let precondition = match reader.u8()? {
            0 => Precondition::Any,
            1 => Precondition::CreateOnly,
            2 => Precondition::Exists,
            3 => Precondition::Match(reader.strings()?),
            4 => Precondition::UnmodifiedSince(reader.u64()?.cast_signed()),
            5 => {
                let (exists, is_dated) = (reader.flag()?, reader.flag()?);
                let second = reader.u64()?.cast_signed();
                let unmodified_since = is_dated.then_some(second);
                Precondition::Unless { tags: reader.strings()?, exists, unmodified_since }
            }
            _ => return None,
        };
        let has_len = reader.flag()?;
        let len = reader.u64()?;
        Some(Self {
            id,
            principal,
            path: has_path.then_some(path),
            precondition,
            len: has_len.then_some(len),
            metadata: reader.bytes()?.to_vec(),
            expires: reader.u64()?,
        })
    }
}

fn strings(out: &mut Vec<u8>, strings: &[String]) {
    out.extend((strings.len() as u32).to_le_bytes());
    for string in strings {
        text(out, string.as_bytes());
    }
}

fn text(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u32).to_le_bytes());
    out.extend(bytes);
}

/// Reads fields; a field beyond the end is none.
pub(in crate::store) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(in crate::store) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// All records up to the end, or to the first invalid one.
    pub(in crate::store) fn records(mut self) -> impl Iterator<Item = Record> + 'a {
        std::iter::from_fn(move || self.record())
    }

    fn record(&mut self) -> Option<Record> {
        let mut reader = Reader(self.bytes()?);
        let record = match reader.u8()? {
            1 => Record::Created(Box::new(CreationRecord::read(&mut reader)?)),
            2 => {
                let id = reader.id()?;
                let (len, whole, partial) = (reader.u64()?, reader.u32()?, reader.u32()?);
                let mark = SumsState { len, whole, partial };
                let (prefix, from, expires) = (reader.u32()?, reader.u64()?, reader.u64()?);
                let count = reader.u32()? as usize;
                let bytes = reader.take(count.checked_mul(4)?)?;
                let unit = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four"));
                let units = bytes.chunks_exact(4).map(unit).collect();
                Record::Advanced(WatermarkRecord { id, mark, prefix, from, units, expires })
            }
            3 => Record::Length { id: reader.id()?, len: reader.u64()? },
            4 => Record::Named { id: reader.id()?, etag: reader.string()? },
            5 => Record::Gone { id: reader.id()? },
            _ => return None,
        };
        reader.0.is_empty().then_some(record)
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn flag(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    pub(in crate::store) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(in crate::store) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn id(&mut self) -> Option<StoreId> {
        self.array().map(StoreId)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        self.take(len as usize)
    }

    fn strings(&mut self) -> Option<Vec<String>> {
        let count = self.u32()?;
        (0..count).map(|_| self.string()).collect()
    }

    fn string(&mut self) -> Option<String> {
        std::str::from_utf8(self.bytes()?).ok().map(str::to_owned)
    }
}
