//! Invariants by name, and the end of a world that breaks one.
//!
//! A checker that finds a broken invariant stops the world at once, at any place: in a port inside
//! a server's turn, or at the end. The run that started the world catches it.

use std::fmt;

/// The invariants that are watched, numbered as in `docs/design/simulation.md`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Invariant {
    /// 1: what is admitted fits each disk's cycle.
    AdmittedFitsCycle,
    /// 2: no stream's buffer is empty at its deadline while the disks obey their models.
    NeverEmpty,
    /// 3: no byte leaves before it is due.
    NeverEarly,
    /// 3: no byte leaves later than a tick after it is due.
    NeverLate,
    /// 4: the bytes sent are the title's, in order, without gap or repeat.
    RightBytes,
    /// 5: nothing leaves that has not been compared with its checksum, where that is known.
    ComparedBeforeSent,
    /// 6: real-time reads come before best-effort ones, which end within the cycle.
    RealTimeFirst,
    /// 6: a sweep goes from the lowest place to the highest.
    SweepInOrder,
    /// 7: over any ten cycles uploads that wait get their floor.
    UploadsGetTheirFloor,
    /// 8, 9: what is acknowledged is there after an immediate power cut.
    AckIsDurable,
    /// 11: a block is in one state; its place is not used again while the kernel writes it.
    OneStatePerBlock,
    /// 12: each transfer has one completion, and none is left over.
    OneCompletionEach,
    /// 13, and every other assertion that the engine itself makes.
    Assertion,
    /// 14: a turn allocates nothing.
    NoAllocation,
    /// 15: the ledger is the sum of what lives, and zero when nothing does.
    LedgerIsTheSum,
    /// In no second a stream sends more than was promised for it.
    WithinEnvelope,
    /// 17: a refused request changes nothing.
    RefusalChangesNothing,
    /// 18: uploads are kept back only while the disk has something to do that comes before them.
    NoNeedlessDegradation,
    /// 19: a fault of one disk is not felt by the streams of another.
    FaultsStayAtHome,
    /// 20: after a flush has failed nothing is acknowledged that needed it.
    FailureIsFinal,
    /// 21: a turn does a bounded amount of work.
    BoundedTurn,
    /// 22: after a pause nothing is sent faster than before.
    NoBurstAfterPause,
    /// 24: what is sent by reference is in memory, so that no send waits for a disk.
    SendsNeverWait,
    /// 25: when all have ended nothing is left: no block, transfer, socket or timer.
    NothingLeft,
    /// A stream ends for a true reason, once, with its socket unused from then on.
    TrueOutcome,
    /// A peer that takes its bytes too slowly is ended after a bound.
    SlowPeersEnd,
    /// Streams begin, those that are asked to stop do, and servers that are to move arrive, within
    /// a bound.
    Progress,
    /// A device is used by the core that its server is on.
    BoundToItsCore,
    /// A read of a local program at a promised moment is answered then.
    MomentsKept,
    /// When faults stop, within five cycles every stream is on time again.
    Recovers,
    /// Two runs of one seed are the same.
    Deterministic,
    /// What the engine has counted is what has come.
    CountsAreTrue,
    /// Packets: over any time between two turns a class sends no more than its ceiling.
    CeilingKept,
    /// Packets: a class that always has work gets what it is guaranteed.
    GuaranteeKept,
    /// Packets: what is left goes to the highest priority that can use it.
    LentByPriority,
    /// Packets: streams that borrow get the same for their shares.
    SharesExact,
}

impl Invariant {
    /// A name to search for.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AdmittedFitsCycle => "1 admitted fits the cycle",
            Self::NeverEmpty => "2 never empty",
            Self::NeverEarly => "3 never early",
            Self::NeverLate => "3 never late",
            Self::RightBytes => "4 right bytes",
            Self::ComparedBeforeSent => "5 compared before sent",
            Self::RealTimeFirst => "6 real-time first",
            Self::SweepInOrder => "6 sweep in order",
            Self::UploadsGetTheirFloor => "7 uploads get their floor",
            Self::AckIsDurable => "8 ack is durable",
            Self::OneStatePerBlock => "11 one state per block",
            Self::OneCompletionEach => "12 one completion each",
            Self::Assertion => "13 assertion of the engine",
            Self::NoAllocation => "14 no allocation",
            Self::LedgerIsTheSum => "15 ledger is the sum",
            Self::WithinEnvelope => "within the envelope",
            Self::RefusalChangesNothing => "17 refusal changes nothing",
            Self::NoNeedlessDegradation => "18 no needless degradation",
            Self::FaultsStayAtHome => "19 faults stay at home",
            Self::FailureIsFinal => "20 a failed flush is final",
            Self::BoundedTurn => "21 bounded turn",
            Self::NoBurstAfterPause => "22 no burst after a pause",
            Self::SendsNeverWait => "24 sends never wait for a disk",
            Self::NothingLeft => "25 nothing left",
            Self::TrueOutcome => "true outcome",
            Self::SlowPeersEnd => "slow peers end",
            Self::Progress => "progress",
            Self::BoundToItsCore => "bound to its core",
            Self::MomentsKept => "moments kept",
            Self::Recovers => "recovers",
            Self::Deterministic => "deterministic",
            Self::CountsAreTrue => "counts are true",
            Self::CeilingKept => "ceiling kept",
            Self::GuaranteeKept => "guarantee kept",
            Self::LentByPriority => "lent by priority",
            Self::SharesExact => "shares exact",
        }
    }
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An invariant that was broken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The invariant.
    pub invariant: Invariant,
    /// The observation, and its time.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invariant \"{}\": {}", self.invariant, self.detail)
    }
}

/// Ends the world.
pub(crate) fn broken(invariant: Invariant, detail: String) -> ! {
    std::panic::panic_any(Violation { invariant, detail })
}

/// Ends the world unless `holds`; `detail` is only made then.
#[inline]
pub(crate) fn require(holds: bool, invariant: Invariant, detail: impl FnOnce() -> String) {
    if !holds {
        broken(invariant, detail());
    }
}
