//! Requests: how a title is to be read and what it leaves by, from which its cost follows.

use tactus_core::cost::{Cost, OutputCost, PacedRead, Share};
use tactus_core::ledger::Ledger;
use tactus_engine::message::VolumeId;

/// What a delivery asks of the machine.
#[derive(Clone, Copy)]
pub(super) struct Request {
    /// The disk that the title lies on.
    pub(super) volume: VolumeId,
    pub(super) read: Read,
    pub(super) output: OutputCost,
}

/// How a title is read.
#[derive(Clone, Copy)]
pub(super) enum Read {
    /// By another stream.
    Elsewhere,
    /// At an exact rate. Whether the title is held is found out at admission.
    Paced(PacedRead, Share),
    /// In the time left over, for a download or for a short answer.
    BestEffort(Share, Without),
}

/// What is delivered without a rate. Each kind has places of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Without {
    Download,
    ShortAnswer,
}

impl Request {
    /// Its cost, and how many blocks it may have at once.
    pub(super) fn cost(&self, ledger: &Ledger, is_held: bool) -> (Cost, u32) {
        let disk = ledger.disk(u32::from(self.volume.0));
        let source = match self.read {
            Read::Elsewhere => disk.nothing(),
            Read::Paced(reading, share) => disk.paced(&PacedRead { is_held, ..reading }, share),
            Read::BestEffort(share, _) => disk.best_effort(share),
        };
        (Cost::stream(source.cost, self.output), source.window)
    }

    /// What it is delivered as, when it has no rate.
    pub(super) fn without_rate(&self) -> Option<Without> {
        match self.read {
            Read::BestEffort(_, kind) => Some(kind),
            Read::Elsewhere | Read::Paced(..) => None,
        }
    }
}
