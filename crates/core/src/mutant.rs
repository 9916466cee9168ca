//! Deliberate mistakes: what the simulator must find, or it proves nothing.
//!
//! `mutant!(Name, wrong, right)` is `right`. Only with the feature `mutants`, which nothing but the
//! simulator asks for, it is `wrong` while that mistake is switched on. One line for each.

/// `right`, or `wrong` where the mistake of this name is built in and switched on.
#[macro_export]
macro_rules! mutant {
    ($name:ident, $wrong:expr, $right:expr) => {{
        #[cfg(feature = "mutants")]
        let value =
            if $crate::mutant::is_on($crate::mutant::Mutant::$name) { $wrong } else { $right };
        #[cfg(not(feature = "mutants"))]
        let value = $right;
        value
    }};
}

#[cfg(feature = "mutants")]
mod switch {
    use core::sync::atomic::{AtomicU32, Ordering};

    /// A mistake.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum Mutant {
        /// The byte clock counts whole milliseconds.
        RemainderDropped,
        /// The byte clock is a millisecond fast.
        ClockEarly,
        /// A sweep reads in the order of deadlines.
        SweepUnsorted,
        /// A stream takes a block more than it was granted.
        WindowOffByOne,
        /// A stream that is closed does not give back the blocks that it had not sent.
        LeaseLost,
        /// A stop is obeyed whichever life of the place it means.
        GenerationUnchecked,
        /// What a stream read per cycle stays in the ledger.
        LedgerLeaks,
        /// Visits of the arm cost nothing.
        VisitsForgotten,
        /// Best-effort reads begin also when they end after the cycle.
        CycleEndIgnored,
        /// What a socket has left untaken is skipped.
        PartialSendSkipped,
        /// The burst is sent although memory does not hold what must follow.
        PrimingTooShort,
        /// A new stream's first blocks come before all others.
        NewcomersFirst,
        /// A paced stream waits for a block as long as the download that asked for it.
        PromotionForgotten,
        /// A sweep is begun before the running streams have asked, or interrupted for new streams,
        /// as if a whole cycle were left.
        RoundIgnored,
        /// After a disk's fault all that was missed is owed at once.
        DebtKept,
        /// A block is given back when half of it has been sent.
        LeaseEarly,
        /// What is due is offered whether or not its blocks are in memory.
        Unleased,
        /// The disk is not told that nobody waits for a block any more.
        DropForgotten,
        /// Pieces of uploads begin also when they end after the cycle.
        WriteEndIgnored,
        /// Real-time work that fills the cycle leaves uploads nothing.
        FloorForgotten,
        /// A flush counts as done when it has been given to the device.
        AckBeforeFlush,
        /// A flush that fails is tried again.
        SyncRetried,
        /// A request joins a flush of its file that has begun.
        JoinLate,
        /// What is read for downloads and holds is not compared with its checksum.
        SumSkipped,
        /// A block of a growing title counts as in memory however much of it was read.
        ShortBlockKept,
        /// A disk with light load is believed to be as fast under full load.
        LightLoadTrusted,
        /// Short probes alone tell how fast a disk is.
        BurstTrusted,
        /// A disk is never believed to be slower than the model of the start.
        SlownessIgnored,
        /// Uploads get their floor, and nothing of the time that is left over.
        UploadsKeptBack,
        /// The first step of an envelope is not promised.
        StepForgotten,
        /// A promise over time that returns leaves its first step.
        StepKept,
        /// The bytes of a plan leave a slot of 62.5 ms late.
        PlanLate,
        /// The pacer's clocks drop what a division leaves.
        RestDropped,
        /// Whoever came first is first in the pacer's lines, within a slot.
        LineUnsorted,
        /// Nobody is owed what is guaranteed.
        NothingOwed,
        /// The lowest priority borrows first.
        PriorityIgnored,
        /// Guarantees that do not fit are kept as they are.
        PromisesUncut,
        /// What a class did not borrow while it was away it borrows afterwards.
        CreditKept,
        /// No ceiling holds anybody back.
        CeilingIgnored,
        /// A packet counts as due a tick early.
        DueEarly,
        /// What a class did not use while it was idle it has saved.
        IdleSaved,
        /// A message of several datagrams is due when the first of them is.
        BurstEarly,
        /// Datagrams of one message have one sequence number.
        SequenceByMessage,
        /// Datagrams of one message have one timestamp.
        TimestampOfMessage,
        /// What a full UDP output does not take counts as gone.
        FullDropped,
        /// Where one UDP output is full, who leaves by others waits too.
        FullForAll,
        /// What the kernel refuses counts as sent.
        RefusedCounted,
        /// After a UDP output stood still all that was missed is owed at once.
        StallOwed,
        /// A stream of datagrams that is closed keeps its blocks.
        FedKept,
        /// What a closed stream has gathered is sent all the same.
        CancelForgotten,
        /// A copy out of the page cache goes on behind the end of a title that begins again.
        SeamIgnored,
        /// A message is offered when the first of its bytes is there.
        OfferedUnready,
        /// Who is late sends what is due in the next 50 ms, too.
        LateEarly,
        /// A core forgets that a server is to leave if the new core is not awake yet.
        OrderForgotten,
        /// A server that moves keeps its device bound to its old core.
        PortKept,
        /// What is sent for a stream is answered to the first delivery server, whichever it has.
        AnswerMisdirected,
        /// The new core of a server is not woken for it.
        ArrivalUnwoken,
        /// A local client that is detached keeps the blocks of its reads.
        ClientLeaseKept,
        /// A block for a moment that is kept is wanted at the moment.
        MomentWantedLate,
        /// A block for a moment that is kept comes after the reads of all streams.
        MomentBestEffort,
        /// A file server that moves leaves the answers behind that wait for their time.
        AnswersLeftBehind,
        /// The balancer looks at promises alone, and not at the time that servers use.
        BusyIgnored,
        /// A server leaves a full core though the fuller one of both is as full afterwards.
        GainForgotten,
        /// Servers come together on a core that is full then.
        PackedFull,
    }

    impl Mutant {
        /// Those of the engine.
        pub const ALL: [Self; 35] = [
            Self::RemainderDropped,
            Self::ClockEarly,
            Self::SweepUnsorted,
            Self::WindowOffByOne,
            Self::LeaseLost,
            Self::GenerationUnchecked,
            Self::LedgerLeaks,
            Self::VisitsForgotten,
            Self::CycleEndIgnored,
            Self::PartialSendSkipped,
            Self::PrimingTooShort,
            Self::NewcomersFirst,
            Self::PromotionForgotten,
            Self::DebtKept,
            Self::LeaseEarly,
            Self::Unleased,
            Self::DropForgotten,
            Self::WriteEndIgnored,
            Self::FloorForgotten,
            Self::AckBeforeFlush,
            Self::SyncRetried,
            Self::SumSkipped,
            Self::ShortBlockKept,
            Self::UploadsKeptBack,
            Self::StepForgotten,
            Self::StepKept,
            Self::PlanLate,
            Self::OrderForgotten,
            Self::PortKept,
            Self::ArrivalUnwoken,
            Self::ClientLeaseKept,
            Self::MomentWantedLate,
            Self::MomentBestEffort,
            Self::AnswersLeftBehind,
            Self::AnswerMisdirected,
        ];

        /// Those of what is learned about disks, which only worlds tell whose disks differ from
        /// their models.
        pub const OF_LEARNING: [Self; 3] =
            [Self::LightLoadTrusted, Self::BurstTrusted, Self::SlownessIgnored];

        /// Those of a disk with an arm that is full while many streams begin, which random worlds
        /// seldom have.
        pub const OF_FULL_DISKS: [Self; 1] = [Self::RoundIgnored];

        /// Those of names that share a flush, which only worlds with many small uploads have.
        pub const OF_SMALL_UPLOADS: [Self; 1] = [Self::JoinLate];

        /// Those of the balancer, which worlds with a load of their own tell.
        pub const OF_THE_BALANCER: [Self; 3] =
            [Self::BusyIgnored, Self::GainForgotten, Self::PackedFull];

        /// Those of the pacer, which no world of disks tells, but the worlds of packets do.
        pub const OF_THE_PACER: [Self; 9] = [
            Self::RestDropped,
            Self::LineUnsorted,
            Self::NothingOwed,
            Self::PriorityIgnored,
            Self::PromisesUncut,
            Self::CreditKept,
            Self::CeilingIgnored,
            Self::DueEarly,
            Self::IdleSaved,
        ];

        /// Those of the packet server, which only worlds with datagrams tell.
        pub const OF_DATAGRAMS: [Self; 12] = [
            Self::BurstEarly,
            Self::SequenceByMessage,
            Self::TimestampOfMessage,
            Self::FullDropped,
            Self::FullForAll,
            Self::RefusedCounted,
            Self::StallOwed,
            Self::FedKept,
            Self::CancelForgotten,
            Self::SeamIgnored,
            Self::OfferedUnready,
            Self::LateEarly,
        ];
    }

    static ON: AtomicU32 = AtomicU32::new(NONE);
    const NONE: u32 = u32::MAX;

    /// Switches one mistake on, in the whole process, and all others off.
    pub fn switch_on(mutant: Option<Mutant>) {
        ON.store(mutant.map_or(NONE, |mutant| mutant as u32), Ordering::Relaxed);
    }

    /// Whether `mutant` is switched on.
    pub fn is_on(mutant: Mutant) -> bool {
        ON.load(Ordering::Relaxed) == mutant as u32
    }
}

#[cfg(feature = "mutants")]
pub use switch::{Mutant, is_on, switch_on};
