//! The stage's page cache: it keeps what the real port promises to keep, and nothing else.

use std::collections::BTreeMap;

use tactus_core::ports::{FilePart, Transfer};

/// What each place refers to.
#[derive(Default)]
pub(super) struct Pages(BTreeMap<u32, Pin>);

struct Pin {
    generation: u32,
    file: i32,
    /// Where in the file the block begins, and what of it has been read.
    from: u64,
    bytes: Vec<u8>,
}

impl Pages {
    /// In a new life a place forgets what it referred to.
    pub(super) fn begin(&mut self, transfer: Transfer) {
        let Transfer { block, file, offset, at, .. } = transfer;
        let is_new = self.0.get(&block.place).is_none_or(|pin| pin.generation != block.generation);
        if is_new {
            let from = offset.0 - u64::from(at);
            let pin = Pin { generation: block.generation, file: file.0, from, bytes: vec![] };
            self.0.insert(block.place, pin);
        }
    }

    pub(super) fn pin(&mut self, transfer: Transfer, bytes: Vec<u8>) {
        let pin = self.0.get_mut(&transfer.block.place).expect("it has begun");
        assert_eq!(pin.bytes.len(), transfer.at as usize, "the stage answers in order");
        pin.bytes.extend(bytes);
    }

    /// The bytes of `part`, every one of which must be here.
    pub(super) fn bytes(&self, part: FilePart) -> Vec<u8> {
        let end = part.offset.0 + u64::from(part.len);
        let mut at = part.offset.0;
        let mut bytes = vec![];
        while at < end {
            let here = |pin: &&Pin| {
                pin.file == part.file.0
                    && (pin.from..pin.from + pin.bytes.len() as u64).contains(&at)
            };
            let pin = self.0.values().find(here);
            let pin = pin.unwrap_or_else(|| panic!("{at} of {part:?} is not in memory"));
            let rest = &pin.bytes[(at - pin.from) as usize..];
            let rest = &rest[..rest.len().min((end - at) as usize)];
            bytes.extend_from_slice(rest);
            at += rest.len() as u64;
        }
        bytes
    }
}
