//! What the servers count: written by one thread each, read by metrics, status page and tests.

use tactus_core::units::Nanos;
use tactus_ring::counter::{Counter, Histogram};

/// Counters of one core. A stall is a turn that began later than it was due by more than
/// [`CORE_STALL`].
///
/// [`CORE_STALL`]: crate::cores::CORE_STALL
#[derive(Default)]
pub struct CoreCounters {
    /// When the next turn is due, in ns of the monotonic clock; zero when the core waits for work.
    pub due: Counter,
    /// Number of stalls.
    pub stalls: Counter,
    /// Their total length, in ns.
    pub stalled: Counter,
    /// The longest stall, in ns.
    pub longest: Counter,
}

/// One disk server.
#[derive(Default)]
pub struct DiskCounters {
    /// Transfers and flushes at the device now.
    pub in_flight: Counter,
    /// Real-time bytes read.
    pub real_time_bytes: Counter,
    /// Best-effort bytes read.
    pub best_effort_bytes: Counter,
    /// Reads that ended.
    pub transfers: Counter,
    /// Reads that failed.
    pub faults: Counter,
    /// Bytes written.
    pub written_bytes: Counter,
    /// Those of them that were written in the time kept for uploads, while real-time work waited or
    /// the cycle was at its end.
    pub floor_bytes: Counter,
    /// Writes that ended.
    pub writes: Counter,
    /// Writes that failed.
    pub write_faults: Counter,
    /// Flushes that ended.
    pub syncs: Counter,
    /// Flushes that failed.
    pub sync_faults: Counter,
    /// Time from hand-over to completion of each flush, in ns.
    pub sync_time: Histogram,
    /// Time in which transfers were at the device and nobody looked for long, in ns: somebody else had
    /// the core.
    pub unattended: Counter,
    /// Cycles in which real-time work was left at the end.
    pub cycles_missed: Counter,
    /// Time from hand-over to completion of each read, in ns.
    pub service: Histogram,
}

/// One block server.
#[derive(Default)]
pub struct BlockCounters {
    /// Blocks that were in memory, or on their way, when asked for.
    pub hits: Counter,
    /// Blocks that had to be read.
    pub misses: Counter,
    /// Blocks that made room for others.
    pub evictions: Counter,
    /// Blocks whose bytes were not those that had been stored.
    pub damaged: Counter,
    /// Places with a block, leased or not.
    pub resident: Counter,
    /// Places whose block somebody holds.
    pub leased: Counter,
}

/// One delivery server.
#[derive(Default)]
pub struct DeliveryCounters {
    /// Streams in the table.
    pub streams: Counter,
    /// Streams begun.
    pub started: Counter,
    /// Streams that sent their last byte.
    pub completed: Counter,
    /// Streams ended because their disk failed.
    pub disk_failed: Counter,
    /// Streams ended because a block of their title is not what was stored.
    pub damaged: Counter,
    /// Streams ended because their peer was too slow.
    pub too_slow: Counter,
    /// Streams whose connection broke.
    pub peer_gone: Counter,
}

/// One link server.
#[derive(Default)]
pub struct LinkCounters {
    /// Payload bytes taken by sockets.
    pub bytes: Counter,
    /// Sends.
    pub sends: Counter,
    /// Sends that the socket did not take whole.
    pub blocked: Counter,
    /// Sends for which the data was not there in time.
    pub underruns: Counter,
    /// Stalls of the core or the machine after which the clocks of all streams were moved.
    pub stalls: Counter,
    /// Streams whose clock was moved by a stall; one stream counts once for each stall.
    pub stalled_streams: Counter,
    /// How late each send left its slot, in ns.
    pub lateness: Histogram,
    /// How far each whole second of each stream was from its rate, in millionths; seconds in which
    /// the peer did not take all are left out. The mean is the figure J over one second.
    pub deviation: Histogram,
}

/// One packet server.
#[derive(Default)]
pub struct PacketCounters {
    /// Payload bytes taken by outlets.
    pub bytes: Counter,
    /// Datagrams.
    pub datagrams: Counter,
    /// Messages that they left in.
    pub messages: Counter,
    /// Calls of the port.
    pub calls: Counter,
    /// Turns in which the pacer went on to a later tick.
    pub turns: Counter,
    /// Datagrams that the kernel would not send.
    pub refused: Counter,
    /// Calls after which an outlet was full.
    pub full: Counter,
    /// Messages whose bytes were not there in time, or had not been made.
    pub underruns: Counter,
    /// Stalls of the core, the machine or an outlet that moved the clocks of late streams.
    pub stalls: Counter,
    /// Streams whose clock was moved by a stall; one stream counts once for each stall.
    pub stalled_streams: Counter,
    /// Null packets put between those of titles.
    pub stuffed: Counter,
    /// Packets of titles that found no place when their time came: the rate they are stuffed to is too low.
    pub slots_late: Counter,
    /// Packets whose counter could not be kept over a join: their stream is one of too many.
    pub unstamped: Counter,
    /// How late the turn began in which each message left, in ns after it was due.
    pub lateness: Histogram,
    /// How far each whole second of each stream was from its rate, in millionths. The mean is the
    /// figure J over one second.
    pub deviation: Histogram,
}

/// One class of the packet server's link, with all below it. Told once a second, on the wire.
#[derive(Default)]
pub struct ClassCounters {
    /// Bytes sent.
    pub bytes: Counter,
    /// Those of them that were beyond its guarantee in their second: out of what others left.
    pub borrowed: Counter,
    /// Bytes of the last second.
    pub second_bytes: Counter,
    /// Those of them beyond its guarantee.
    pub second_borrowed: Counter,
}

/// One place of the delivery table, as the link sees it. All is zero from a stream's end to the first
/// visit of the next.
#[derive(Default)]
pub struct StreamCounters {
    /// Payload bytes sent in this life of the place.
    pub bytes: Counter,
    /// Sends for which the data was not there.
    pub underruns: Counter,
    /// Latest send so far, in ns after its slot.
    pub lateness_max: Counter,
    /// Stalls by which this stream's clock was moved.
    pub stalls: Counter,
    /// Their total, in ns: the stream stays this much later.
    pub stalled: Counter,
    /// Payload bytes of the last whole second; zero before there was one.
    pub second_bytes: Counter,
    /// How far that second was from the rate, in millionths.
    pub deviation: Counter,
    /// Set rate in bits per second; zero for best effort and when free.
    pub rate: Counter,
    /// When the first datagram of its session was due, in ns; zero as long as none is sent. Of a generated stream what
    /// its times count from, which moves with its clock.
    pub epoch: Counter,
    /// Datagrams of the session that have left, those of streams that it follows among them.
    pub session_packets: Counter,
    /// Their payload bytes.
    pub session_bytes: Counter,
    /// The latest send of the slot's previous stream, in ns. It stays until the slot is used again
    /// and that stream has ended.
    pub ended_lateness: Counter,
    /// Sends of that stream that were not on time: without data, or after a stall.
    pub ended_underruns: Counter,
    /// Payload bytes of the session that had left when that stream ended.
    pub ended_session_bytes: Counter,
}

impl StreamCounters {
    pub(crate) fn clear(&self) {
        self.ended_lateness.set(self.lateness_max.value());
        self.ended_underruns.set(self.underruns.value() + self.stalls.value());
        self.ended_session_bytes.set(self.session_bytes.value());
        let Self { bytes, underruns, lateness_max, second_bytes, deviation, rate, .. } = self;
        let Self { stalls, stalled, epoch, session_packets, session_bytes, .. } = self;
        for counter in [bytes, underruns, lateness_max, second_bytes, deviation, rate] {
            counter.set(0);
        }
        for counter in [stalls, stalled, epoch, session_packets, session_bytes] {
            counter.set(0);
        }
    }

    /// Counts a stall that has moved the stream's clock by `pause`.
    pub(crate) fn count_stall(&self, pause: Nanos) {
        self.stalls.add(1);
        self.stalled.add(pause.0);
        self.lateness_max.raise(pause.0);
    }
}
