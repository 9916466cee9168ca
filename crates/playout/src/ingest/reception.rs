//! From datagrams to transport packets: source, RTP, order, sync.
//!
//! Promise: the output is whole packets of one source, in order; everything else is counted. It
//! holds a window of datagrams and no more, and reads no socket.

use std::net::{IpAddr, SocketAddr};

use tactus_core::rtp::{self, MP2T, ReorderBuffer, Verdict};
use tactus_core::ts::{Mark, PACKET, Pid, Resync};
use tactus_core::units::{BitRate, MonoTime, Nanos};

use super::source::SourceLock;
use super::status::Counts;
use crate::recording::Kind;

#[derive(Debug)]
pub(super) struct Reception {
    source: SourceLock,
    rtp: Option<Rtp>,
    resync: Resync,
    counts: Counts,
}

/// The RTP state of the input: one source at a time.
#[derive(Debug, Default)]
struct Rtp {
    /// The RTP source (SSRC).
    locked: Option<u32>,
    /// A candidate for a new source, and its next sequence number.
    new: Option<(u32, u16)>,
    order: ReorderBuffer,
    /// Counters of earlier sources.
    before: rtp::Counts,
}

/// A datagram and its time of arrival.
#[derive(Clone, Copy, Debug)]
pub(super) struct IncomingDatagram<'a> {
    pub(super) now: MonoTime,
    pub(super) from: SocketAddr,
    pub(super) bytes: &'a [u8],
    pub(super) is_cut: bool,
}

impl Reception {
    pub(super) fn new(kind: Kind, only: Option<IpAddr>, silence: Nanos) -> Self {
        let source = SourceLock::new(only, silence);
        let rtp = matches!(kind, Kind::Rtp).then(Rtp::default);
        Self { source, rtp, resync: Resync::default(), counts: Counts::default() }
    }

    /// Handles a datagram; `each` gets the packets that it completes.
    pub(super) fn handle(
        &mut self,
        came: IncomingDatagram<'_>,
        mut each: impl FnMut(&[u8; PACKET], Mark),
    ) {
        let IncomingDatagram { now, from, bytes, is_cut } = came;
        self.counts.datagrams += 1;
        self.counts.received_bytes += bytes.len() as u64;
        if !self.source.admits(now, from) {
            return;
        }
        if is_cut {
            self.counts.too_long += 1;
            return;
        }
        let is_known = self.source.locked() == Some(from);
        let Some(rtp) = &mut self.rtp else {
            if is_known || Resync::looks_like_one(bytes) {
                self.source.handle_valid(now, from);
                self.resync.handle(bytes, each);
            } else {
                self.counts.not_ts += 1;
            }
            return;
        };
        let packet = match rtp::Packet::read(bytes) {
            Ok(packet) if packet.payload_type == MP2T => packet,
            _ => {
                self.counts.rtp_bad += 1;
                return;
            }
        };
        if !is_known && !Resync::looks_like_one(packet.payload) {
            self.counts.not_ts += 1;
            return;
        }
        self.source.handle_valid(now, from);
        match rtp.whose(&packet) {
            PacketSource::Current => {}
            PacketSource::Unknown => {
                self.counts.src_refused += 1;
                return;
            }
            PacketSource::New => {
                rtp.order.handle_end();
                while let Some(payload) = rtp.order.poll(now) {
                    self.resync.handle(&payload, &mut each);
                }
                rtp.begin_anew();
            }
        }
        // Packets that have waited long enough go first.
        while let Some(payload) = rtp.order.poll(now) {
            self.resync.handle(&payload, &mut each);
        }
        match rtp.order.handle_packet(now, packet.sequence, packet.payload) {
            Verdict::Now => self.resync.handle(packet.payload, &mut each),
            Verdict::Buffered | Verdict::Dropped => {}
        }
        while let Some(payload) = rtp.order.poll(now) {
            self.resync.handle(&payload, &mut each);
        }
    }

    /// Passes on packets that have waited long enough for a missing one.
    pub(super) fn poll(&mut self, now: MonoTime, mut each: impl FnMut(&[u8; PACKET], Mark)) {
        let Some(rtp) = &mut self.rtp else { return };
        while let Some(payload) = rtp.order.poll(now) {
            self.resync.handle(&payload, &mut each);
        }
    }

    /// Passes on the rest at the end of the input.
    pub(super) fn end(&mut self, now: MonoTime, each: impl FnMut(&[u8; PACKET], Mark)) {
        if let Some(rtp) = &mut self.rtp {
            rtp.order.handle_end();
        }
        self.poll(now, each);
    }

    /// The address of the sender.
    pub(super) fn sender(&self) -> Option<SocketAddr> {
        self.source.locked()
    }

    /// When the last valid packet arrived.
    pub(super) fn last(&self) -> Option<MonoTime> {
        self.source.last()
    }

    /// The rate that the stream's PCRs give.
    pub(super) fn rate(&self) -> Option<BitRate> {
        self.resync.rate()
    }

    /// Continuity errors by PID.
    pub(super) fn gaps(&self) -> impl Iterator<Item = (Pid, u32)> {
        self.resync.gaps()
    }

    /// The counters of this module; the others are zero.
    pub(super) fn counts(&self) -> Counts {
        Counts {
            src_refused: self.counts.src_refused + self.source.refused(),
            rtp: self.rtp.as_ref().map(Rtp::counts).unwrap_or_default(),
            ts: self.resync.counts(),
            ..self.counts
        }
    }
}

/// The RTP source of a packet.
enum PacketSource {
    Current,
    /// A new source that is accepted from now on.
    New,
    Unknown,
}

impl Rtp {
    /// Two successive packets, without another in between, make a source (RFC 3550, A.1): one stray
    /// packet does not end a stream.
    fn whose(&mut self, packet: &rtp::Packet<'_>) -> PacketSource {
        let source = packet.source;
        if *self.locked.get_or_insert(source) == source {
            self.new = None;
            return PacketSource::Current;
        }
        if self.new == Some((source, packet.sequence)) {
            self.locked = Some(source);
            self.new = None;
            return PacketSource::New;
        }
        self.new = Some((source, packet.sequence.wrapping_add(1)));
        PacketSource::Unknown
    }

    fn begin_anew(&mut self) {
        self.before = self.counts();
        self.before.restarts += 1;
        self.order = ReorderBuffer::default();
    }

    fn counts(&self) -> rtp::Counts {
        let (old, new) = (self.before, self.order.counts());
        rtp::Counts {
            lost: old.lost + new.lost,
            late: old.late + new.late,
            early: old.early + new.early,
            restarts: old.restarts + new.restarts,
        }
    }
}

#[cfg(test)]
mod tests {
    use tactus_core::units::{MILLISECOND, SECOND};

    use super::*;

    fn at(millis: u64) -> MonoTime {
        MonoTime(millis * MILLISECOND.0)
    }

    fn packets(first: u8, count: u8) -> Vec<u8> {
        (first..first + count)
            .flat_map(|nth| {
                let mut packet = [nth; PACKET];
                packet[..4].copy_from_slice(&[0x47, 1, 0, 0x10 | nth & 0x0f]);
                packet
            })
            .collect()
    }

    fn rtp(source: u32, sequence: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x80, MP2T];
        bytes.extend(sequence.to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend(source.to_be_bytes());
        bytes.extend(payload);
        bytes
    }

    struct Fixture {
        reception: Reception,
        out: Vec<u8>,
    }

    impl Fixture {
        fn new(kind: Kind) -> Self {
            let reception = Reception::new(kind, None, SECOND);
            Self { reception, out: Vec::new() }
        }

        fn come(&mut self, millis: u64, from: &str, bytes: &[u8]) {
            let from = from.parse().unwrap();
            let came = IncomingDatagram { now: at(millis), from, bytes, is_cut: false };
            self.reception.handle(came, |packet, _| self.out.extend(packet));
        }
    }

    const ONE: &str = "10.0.0.1:7";
    const OTHER: &str = "10.0.0.2:7";

    #[test]
    fn d01_only_one_source_gets_into_a_title() {
        for kind in [Kind::Udp, Kind::Rtp] {
            let wrapped = |source, sequence, payload: &[u8]| match kind {
                Kind::Udp => payload.to_vec(),
                Kind::Rtp => rtp(source, sequence, payload),
            };
            let mut fixture = Fixture::new(kind);
            fixture.come(0, OTHER, b"GET / HTTP/1.1");
            for nth in 0..8u8 {
                fixture.come(u64::from(nth), ONE, &wrapped(1, nth.into(), &packets(nth * 7, 7)));
                fixture.come(u64::from(nth), OTHER, &wrapped(2, nth.into(), &packets(100, 7)));
            }
            let first = fixture.out.chunks(PACKET).map(|packet| packet[9]).collect::<Vec<_>>();
            assert!(fixture.out == packets(0, 56), "{kind:?} {first:?}");
            let counts = fixture.reception.counts();
            assert_eq!((counts.src_refused, counts.datagrams), (8, 17));
            assert_eq!(counts.not_ts + counts.rtp_bad, 1);
        }
    }

    #[test]
    fn d01_one_stray_packet_of_another_ssrc_does_not_end_a_stream() {
        let mut fixture = Fixture::new(Kind::Rtp);
        fixture.come(0, ONE, &rtp(1, 10, &packets(0, 7)));
        fixture.come(1, ONE, &rtp(2, 90, &packets(100, 7)));
        fixture.come(2, ONE, &rtp(1, 11, &packets(7, 7)));
        fixture.come(3, ONE, &rtp(2, 91, &packets(107, 7)));
        fixture.come(4, ONE, &rtp(1, 12, &packets(14, 7)));
        assert!(fixture.out == packets(0, 21));
        // The same sender has restarted.
        fixture.come(5, ONE, &rtp(2, 100, &packets(0, 7)));
        fixture.come(6, ONE, &rtp(2, 101, &packets(21, 7)));
        fixture.come(7, ONE, &rtp(2, 102, &packets(28, 7)));
        assert!(fixture.out == packets(0, 35));
        let counts = fixture.reception.counts();
        assert_eq!((counts.src_refused, counts.rtp.restarts), (3, 1));
    }

    #[test]
    fn d03_what_is_no_rtp_is_dropped_and_counted() {
        let mut fixture = Fixture::new(Kind::Rtp);
        let good = |sequence: u16| rtp(1, sequence, &packets(sequence as u8 * 7, 7));
        fixture.come(0, ONE, &good(0));
        let with = |at: usize, byte: u8| {
            let mut bytes = good(1);
            bytes[at] = byte;
            bytes
        };
        let cut = good(1)[..11].to_vec();
        let mut padded = with(0, 0xa0);
        padded.truncate(100);
        padded[99] = 255;
        let sources = with(0, 0x8f)[..40].to_vec();
        let extension = {
            let mut bytes = with(0, 0x90);
            bytes[14..16].copy_from_slice(&[0xff, 0xff]);
            bytes
        };
        let bad = [cut, with(0, 0), with(0, 0xc0), sources, extension, padded, with(1, 96)];
        for (nth, bytes) in bad.iter().enumerate() {
            fixture.come(1, ONE, bytes);
            assert_eq!(fixture.reception.counts().rtp_bad, nth as u64 + 1, "{nth}");
        }
        fixture.come(2, ONE, &good(1));
        assert!(fixture.out == packets(0, 14), "the stream goes on");
    }

    #[test]
    fn what_waits_for_a_lost_datagram_comes_out_in_time() {
        let mut fixture = Fixture::new(Kind::Rtp);
        for sequence in [0, 2, 3] {
            fixture.come(0, ONE, &rtp(1, sequence, &packets(sequence as u8 * 7, 7)));
        }
        assert_eq!(fixture.out.len(), 7 * PACKET);
        fixture.reception.poll(at(1000), |packet, _| fixture.out.extend(packet));
        assert!(fixture.out == [packets(0, 7), packets(14, 14)].concat());
        let counts = fixture.reception.counts();
        assert_eq!((counts.rtp.lost, counts.ts.gaps), (1, 1));
    }
}
