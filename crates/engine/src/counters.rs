//! Counters of the servers: each is written by one thread; metrics, status page and tests read
//! them.

use tactus_core::disk_model::Ratio;
use tactus_core::estimator::{Estimate, Leftover};
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

/// One server of any kind. Neighbours may be on different cores, so they share no cache line.
#[derive(Default)]
#[repr(align(64))]
pub struct ServerCounters {
    /// Time of its core that it has used, in ns.
    pub busy: Counter,
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
    /// The part of them that was written in the time reserved for uploads, while real-time work
    /// waited or the cycle was at its end.
    pub floor_bytes: Counter,
    /// Cycles through which a write or a flush of an upload has waited.
    pub upload_cycles_waited: Counter,
    /// Time of the disk that uploads have used, in ns: of their pieces by the model, and of their
    /// flushes.
    pub upload_time: Counter,
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
    /// Time in ns in which transfers were at the device and the disk server did not run for long:
    /// other work used the core.
    pub unattended: Counter,
    /// Cycles in which real-time work was left at the end.
    pub cycles_missed: Counter,
    /// Time from hand-over to completion of each read, in ns.
    pub service: Histogram,
    /// Reads of probes that ended.
    pub probes: Counter,
    /// Bytes read by probes.
    pub probe_bytes: Counter,
    /// The model in use, as a part of that of the start, in millionths; zero if nothing is
    /// learned.
    pub model_ratio: Counter,
    /// The same for the last cycle alone; zero unless the disk fell behind in it.
    pub pressure: Counter,
    /// What the last cycle has left over, as the number of a [`Leftover`].
    pub leftover: Counter,
    /// How much evidence there is for the model, in thousandths.
    pub confidence: Counter,
    /// Seconds with evidence at full depth.
    pub samples: Counter,
}

impl DiskCounters {
    /// What is known about the disk.
    pub fn estimate(&self) -> Estimate {
        let ratio = |value: u64| Ratio(u32::try_from(value).unwrap_or(Ratio::MAX.0));
        let pressure = self.pressure.value();
        Estimate {
            ratio: match self.model_ratio.value() {
                0 => Ratio::ONE,
                value => ratio(value),
            },
            pressure: (pressure > 0).then(|| ratio(pressure)),
            leftover: [Leftover::Nothing, Leftover::Deferred, Leftover::Promised]
                .into_iter()
                .find(|leftover| *leftover as u64 == self.leftover.value())
                .unwrap_or_default(),
            confidence: u32::try_from(self.confidence.value()).unwrap_or(0),
            samples: self.samples.value(),
        }
    }
}

/// One block server.
#[derive(Default)]
pub struct BlockCounters {
    /// Blocks that were in memory, or on their way, at the time of the want.
    pub hits: Counter,
    /// Blocks that had to be read.
    pub misses: Counter,
    /// Evicted blocks.
    pub evictions: Counter,
    /// Blocks whose bytes differ from the stored bytes.
    pub damaged: Counter,
    /// Places with a block, leased or not.
    pub resident: Counter,
    /// Places whose block is leased.
    pub leased: Counter,
}

/// The file server.
#[derive(Default)]
pub struct FileCounters {
    /// Local clients.
    pub clients: Counter,
    /// Requests taken.
    pub requests: Counter,
    /// Requests that cannot be.
    pub refused: Counter,
    /// Bytes copied to clients.
    pub bytes: Counter,
    /// Bytes that clients have written.
    pub written: Counter,
    /// Blocks that had to be asked for.
    pub wants: Counter,
    /// Reads whose moments were promised, answered.
    pub promised: Counter,
    /// Those of them that were answered more than a millisecond late.
    pub late: Counter,
    /// Times that a sleeping client was rung for.
    pub rings: Counter,
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
    /// Streams ended because a block of their title differs from the stored bytes.
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
    /// Sends without data in time.
    pub underruns: Counter,
    /// Stalls of the core or the machine after which the clocks of all streams were moved.
    pub stalls: Counter,
    /// Streams whose clock was moved by a stall; one stream counts once for each stall.
    pub stalled_streams: Counter,
    /// How late each send left its slot, in ns.
    pub lateness: Histogram,
    /// Deviation of each whole second of each stream from its rate, in millionths. Seconds in which
    /// the peer did not take all bytes are excluded. The mean is the figure J over one second.
    pub deviation: Histogram,
}

/// One packet server.
#[derive(Default)]
pub struct PacketCounters {
    /// Payload bytes taken by UDP outputs.
    pub bytes: Counter,
    /// Datagrams.
    pub datagrams: Counter,
    /// Messages that carried them.
    pub messages: Counter,
    /// Calls of the port.
    pub calls: Counter,
    /// Turns in which the pacer went on to a later tick.
    pub turns: Counter,
    /// Datagrams that the kernel refused to send.
    pub refused: Counter,
    /// Calls after which a UDP output was full.
    pub full: Counter,
    /// Messages without data in time.
    pub underruns: Counter,
    /// Stalls of the core, the machine or a UDP output that moved the clocks of late streams.
    pub stalls: Counter,
    /// Streams whose clock was moved by a stall; one stream counts once for each stall.
    pub stalled_streams: Counter,
    /// Null packets inserted between packets of titles.
    pub stuffed: Counter,
    /// Packets of titles that found no slot when they were due: the rate of stuffing is too low.
    pub slots_late: Counter,
    /// Packets whose continuity counter could not be kept over a join: their title has too many
    /// elementary streams.
    pub unstamped: Counter,
    /// Lateness of the turn in which each message left, in ns after the message was due.
    pub lateness: Histogram,
    /// Deviation of each whole second of each stream from its rate, in millionths. The mean is the
    /// figure J over one second.
    pub deviation: Histogram,
}

/// One class of the packet server's link, with all classes and streams below it. Updated once a
/// second; bytes on the wire.
#[derive(Default)]
pub struct ClassCounters {
    /// Bytes sent.
    pub bytes: Counter,
    /// The part of them beyond its guarantee in their second: capacity that other classes left.
    pub borrowed: Counter,
    /// Bytes of the last second.
    pub second_bytes: Counter,
    /// The part of them beyond its guarantee.
    pub second_borrowed: Counter,
}

/// One slot of the stream table, as the link sees it. All values are zero from the end of a stream
/// to the first visit of the next one. Neighbouring slots may belong to links on different cores,
/// so they share no cache line.
#[derive(Default)]
#[repr(align(64))]
pub struct StreamCounters {
    /// Payload bytes sent by this stream.
    pub bytes: Counter,
    /// Sends without data in time.
    pub underruns: Counter,
    /// Latest send so far, in ns after its slot.
    pub lateness_max: Counter,
    /// Stalls by which this stream's clock was moved.
    pub stalls: Counter,
    /// Total length of these stalls, in ns: the stream stays this much later.
    pub stalled: Counter,
    /// Payload bytes of the last whole second; zero before the first one.
    pub second_bytes: Counter,
    /// Deviation of that second from the rate, in millionths.
    pub deviation: Counter,
    /// Set rate in bits per second; zero for best effort and for a free slot.
    pub rate: Counter,
    /// When the first datagram of its session was due, in ns; zero before the first datagram. For a
    /// generated stream, the origin of its times, which moves with its clock.
    pub epoch: Counter,
    /// Datagrams sent in the session, including those of its earlier streams.
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
