//! RTCP (RFC 3550, section 6): encoding, parsing and the report interval.
//!
//! Promise: a datagram is a complete compound packet by the rules of appendix A.2, or is refused
//! with the broken rule. A BYE counts only for the known source. Nothing is read beyond the
//! datagram. It sends nothing and reads no clock: randomness and time are parameters.

use alloc::vec::Vec;

use crate::units::{BitRate, Bytes, MonoTime, Nanos, SECOND, WallTime};

/// Clock rate of transport streams and video.
pub const VIDEO_CLOCK: u32 = 90_000;

/// An NTP time: seconds since 1900 in 32.32 (RFC 3550, section 4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NtpTime(pub u64);

impl NtpTime {
    /// Rounds down, to 233 ps.
    pub fn of(time: WallTime) -> Self {
        /// From 1900 to 1970.
        const EPOCH: u64 = 2_208_988_800;
        let seconds = (time.0 / SECOND.0).wrapping_add(EPOCH);
        let fraction = ((time.0 % SECOND.0) << 32) / SECOND.0;
        // The seconds wrap at 2^32, in 2036.
        Self(seconds << 32 | fraction)
    }

    /// The middle 32 bits, which identify a report.
    pub const fn middle(self) -> u32 {
        (self.0 >> 16) as u32
    }
}

/// The mapping of time to timestamps: `base` is the timestamp at `epoch`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timeline {
    /// The due time of the first packet.
    pub epoch: MonoTime,
    /// Its timestamp.
    pub base: u32,
}

impl Timeline {
    /// The timestamp of `time`, modulo 2^32; also for times before the first packet. Rounds towards
    /// the first packet.
    pub fn timestamp(&self, time: MonoTime) -> u32 {
        let ticks = |span: Nanos| (u128::from(span.0) * 9 / 100_000) as u32;
        match time >= self.epoch {
            true => self.base.wrapping_add(ticks(time.since(self.epoch))),
            false => self.base.wrapping_sub(ticks(self.epoch.since(time))),
        }
    }
}

/// The sender information of a report (section 6.4.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SenderInfo {
    /// The time of the report.
    pub time: NtpTime,
    /// The same moment as a timestamp of the stream.
    pub timestamp: u32,
    /// Packets since the beginning, modulo 2^32.
    pub packets: u32,
    /// Bytes of their payload, modulo 2^32.
    pub octets: u32,
}

/// A reception report block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reception {
    /// The reported SSRC.
    pub source: u32,
    /// Lost since the last report, in 256ths.
    pub fraction_lost: u8,
    /// Lost in all; negative with duplicates.
    pub lost: i32,
    /// The highest sequence number, with the number of wraps in the upper half.
    pub highest: u32,
    /// In ticks of the timestamps.
    pub jitter: u32,
    /// The middle of the last sender report's time; 0 without one.
    pub last_report: u32,
    /// The time since then, in 65,536ths of a second.
    pub delay: u32,
}

const SR: u8 = 200;
const RR: u8 = 201;
const SDES: u8 = 202;
const BYE: u8 = 203;
const APP: u8 = 204;
/// The only mandatory item.
const CNAME: u8 = 1;
const RECEPTION: usize = 24;

/// A compound packet under construction.
#[derive(Clone, Debug, Default)]
pub struct Compound(Vec<u8>);

impl Compound {
    /// Starts with a sender report and its reception report blocks.
    ///
    /// # Panics
    /// If there are more than 31 blocks.
    pub fn of_sender(source: u32, info: &SenderInfo, receptions: &[Reception]) -> Self {
        let mut this = Self::default();
        let at = this.begin(SR, receptions.len());
        this.words(&[source, (info.time.0 >> 32) as u32, info.time.0 as u32]);
        this.words(&[info.timestamp, info.packets, info.octets]);
        this.receptions(receptions);
        this.finish(at);
        this
    }

    /// Starts with a receiver report.
    ///
    /// # Panics
    /// If there are more than 31 blocks.
    pub fn of_receiver(source: u32, receptions: &[Reception]) -> Self {
        let mut this = Self::default();
        let at = this.begin(RR, receptions.len());
        this.words(&[source]);
        this.receptions(receptions);
        this.finish(at);
        this
    }

    /// Adds the CNAME of a source, the same in all sessions (section 6.5.1), truncated to 255
    /// bytes.
    #[must_use]
    pub fn name(mut self, source: u32, name: &str) -> Self {
        let at = self.begin(SDES, 1);
        self.words(&[source]);
        let name = &name.as_bytes()[..name.len().min(255)];
        self.0.extend([CNAME, name.len() as u8]);
        self.0.extend(name);
        // At least one zero ends the list, and a chunk is padded to whole words.
        self.0.push(0);
        self.pad();
        self.finish(at);
        self
    }

    /// Adds a BYE (section 6.6).
    #[must_use]
    pub fn bye(mut self, source: u32, reason: &str) -> Self {
        let at = self.begin(BYE, 1);
        self.words(&[source]);
        if !reason.is_empty() {
            let reason = &reason.as_bytes()[..reason.len().min(255)];
            self.0.push(reason.len() as u8);
            self.0.extend(reason);
            self.pad();
        }
        self.finish(at);
        self
    }

    /// The bytes of the datagram.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    fn begin(&mut self, kind: u8, count: usize) -> usize {
        assert!(count <= 31, "five bits count what a packet holds");
        let at = self.0.len();
        self.0.extend([2 << 6 | count as u8, kind, 0, 0]);
        at
    }

    fn words(&mut self, words: &[u32]) {
        self.0.extend(words.iter().flat_map(|word| word.to_be_bytes()));
    }

    fn receptions(&mut self, receptions: &[Reception]) {
        for one in receptions {
            let lost = one.lost.clamp(-0x80_0000, 0x7f_ffff) as u32 & 0xff_ffff;
            let lost = u32::from(one.fraction_lost) << 24 | lost;
            self.words(&[one.source, lost, one.highest, one.jitter, one.last_report, one.delay]);
        }
    }

    fn pad(&mut self) {
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn finish(&mut self, at: usize) {
        let words = (self.0.len() - at) / 4 - 1;
        self.0[at + 2..at + 4].copy_from_slice(&(words as u16).to_be_bytes());
    }
}

/// The broken rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RtcpFault {
    /// Shorter than a header, or the lengths do not add up to the datagram.
    Length,
    /// Not version 2.
    Version,
    /// It does not begin with a report.
    First,
    /// Padding before the last packet, of zero bytes, of partial words, or longer than the packet.
    Padding,
    /// A report is shorter than its block count.
    Report,
    /// An SDES packet is shorter than its chunk count.
    Description,
    /// A BYE is shorter than its source count.
    Sources,
    /// The reason of a BYE exceeds its packet.
    Reason,
    /// An APP without a name.
    Application,
    /// A packet of another source.
    Stranger,
}

/// One packet of a compound packet, parsed in place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Packet<'a> {
    /// A sender report.
    Sender {
        /// The SSRC of its sender.
        source: u32,
        /// The sender information.
        info: SenderInfo,
        /// The reception report blocks.
        receptions: Receptions<'a>,
    },
    /// A receiver report.
    Receiver {
        /// The SSRC of its sender.
        source: u32,
        /// The reception report blocks.
        receptions: Receptions<'a>,
    },
    /// SDES.
    Description(Chunks<'a>),
    /// BYE.
    Bye {
        /// The sources.
        sources: Sources<'a>,
        /// The reason, possibly empty.
        reason: &'a [u8],
    },
    /// APP.
    Application {
        /// The SSRC of its sender.
        source: u32,
        /// The application.
        name: [u8; 4],
        /// Its data.
        data: &'a [u8],
    },
    /// An unknown type, to be skipped.
    Other {
        /// The packet type.
        kind: u8,
    },
}

/// Reception report blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receptions<'a>(&'a [u8]);

/// A list of SSRCs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sources<'a>(&'a [u8]);

/// The checked chunks of an SDES packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunks<'a> {
    count: usize,
    bytes: &'a [u8],
}

impl Receptions<'_> {
    /// All blocks.
    pub fn iter(&self) -> impl Iterator<Item = Reception> + '_ {
        self.0.chunks_exact(RECEPTION).map(|bytes| {
            let lost = word(bytes, 4);
            Reception {
                source: word(bytes, 0),
                fraction_lost: (lost >> 24) as u8,
                // 24 bits with sign.
                lost: (lost << 8) as i32 >> 8,
                highest: word(bytes, 8),
                jitter: word(bytes, 12),
                last_report: word(bytes, 16),
                delay: word(bytes, 20),
            }
        })
    }
}

impl Sources<'_> {
    /// All SSRCs.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.chunks_exact(4).map(|bytes| word(bytes, 0))
    }
}

impl<'a> Chunks<'a> {
    /// Each source with its CNAME, if it has one.
    pub fn names(&self) -> impl Iterator<Item = (u32, Option<&'a [u8]>)> + use<'a> {
        let Self { count, mut bytes } = *self;
        (0..count).map_while(move |_| {
            let (source, name, rest) = chunk(bytes)?;
            bytes = rest;
            Some((source, name))
        })
    }
}

/// The packets of `datagram`, all of them checked.
///
/// # Errors
/// The first broken rule.
pub fn read(datagram: &[u8]) -> Result<Packets<'_>, RtcpFault> {
    let mut rest = datagram;
    let mut is_first = true;
    while is_first || !rest.is_empty() {
        let (packet, behind) = one(rest)?;
        let begins = matches!(packet, Packet::Sender { .. } | Packet::Receiver { .. });
        if is_first && !begins {
            return Err(RtcpFault::First);
        }
        (rest, is_first) = (behind, false);
    }
    Ok(Packets(datagram))
}

/// The packets of a compound packet, in order.
#[derive(Clone, Copy, Debug)]
pub struct Packets<'a>(&'a [u8]);

impl<'a> Iterator for Packets<'a> {
    type Item = Packet<'a>;

    fn next(&mut self) -> Option<Packet<'a>> {
        let (packet, rest) = one(self.0).ok()?;
        self.0 = rest;
        Some(packet)
    }
}

/// Parses the first packet; returns the rest of the datagram.
fn one(bytes: &[u8]) -> Result<(Packet<'_>, &[u8]), RtcpFault> {
    let &[first, kind, high, low, ..] = bytes else { return Err(RtcpFault::Length) };
    if first >> 6 != 2 {
        return Err(RtcpFault::Version);
    }
    let len = 4 + 4 * usize::from(u16::from_be_bytes([high, low]));
    let (packet, behind) = bytes.split_at_checked(len).ok_or(RtcpFault::Length)?;
    let mut body = &packet[4..];
    if first & 0x20 != 0 {
        // Section 6.4.1: only the last packet is padded, by whole words.
        let padding = usize::from(*body.last().ok_or(RtcpFault::Padding)?);
        let is_whole = padding > 0 && padding % 4 == 0 && behind.is_empty();
        let left = body.len().checked_sub(padding).filter(|_| is_whole);
        body = &body[..left.ok_or(RtcpFault::Padding)?];
    }
    let packet = read_body(kind, usize::from(first & 0x1f), body)?;
    Ok((packet, behind))
}

fn read_body(kind: u8, count: usize, body: &[u8]) -> Result<Packet<'_>, RtcpFault> {
    match kind {
        SR => {
            // Profile-specific extensions after the blocks are skipped.
            let (head, rest) = body.split_at_checked(24).ok_or(RtcpFault::Report)?;
            let receptions = rest.get(..count * RECEPTION).ok_or(RtcpFault::Report)?;
            let time = NtpTime(u64::from(word(head, 4)) << 32 | u64::from(word(head, 8)));
            let info = SenderInfo {
                time,
                timestamp: word(head, 12),
                packets: word(head, 16),
                octets: word(head, 20),
            };
            Ok(Packet::Sender { source: word(head, 0), info, receptions: Receptions(receptions) })
        }
        RR => {
            let (head, rest) = body.split_at_checked(4).ok_or(RtcpFault::Report)?;
            let receptions = rest.get(..count * RECEPTION).ok_or(RtcpFault::Report)?;
            Ok(Packet::Receiver { source: word(head, 0), receptions: Receptions(receptions) })
        }
        SDES => {
            let mut rest = body;
            for _ in 0..count {
                (_, _, rest) = chunk(rest).ok_or(RtcpFault::Description)?;
            }
            match rest.is_empty() {
                true => Ok(Packet::Description(Chunks { count, bytes: body })),
                false => Err(RtcpFault::Description),
            }
        }
        BYE => {
            let (sources, rest) = body.split_at_checked(count * 4).ok_or(RtcpFault::Sources)?;
            let reason = match rest {
                [] => &[][..],
                [len, text @ ..] => text.get(..usize::from(*len)).ok_or(RtcpFault::Reason)?,
            };
            Ok(Packet::Bye { sources: Sources(sources), reason })
        }
        APP => {
            let (head, data) = body.split_at_checked(8).ok_or(RtcpFault::Application)?;
            let name = [head[4], head[5], head[6], head[7]];
            Ok(Packet::Application { source: word(head, 0), name, data })
        }
        kind => Ok(Packet::Other { kind }),
    }
}

/// Parses the first chunk: its source, its CNAME, and the rest.
#[expect(clippy::type_complexity, reason = "three things that are read together")]
fn chunk(bytes: &[u8]) -> Option<(u32, Option<&[u8]>, &[u8])> {
    let (source, _) = bytes.split_first_chunk::<4>()?;
    let (mut at, mut name) = (4, None);
    loop {
        match bytes.get(at)? {
            // The end of the list; the chunk ends with the word.
            0 => return Some((u32::from_be_bytes(*source), name, bytes.get((at + 4) & !3..)?)),
            kind => {
                let len = usize::from(*bytes.get(at + 1)?);
                let text = bytes.get(at + 2..at + 2 + len)?;
                if *kind == CNAME {
                    name = name.or(Some(text));
                }
                at += 2 + len;
            }
        }
    }
}

/// The four bytes at `at`, which must exist.
fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The peer of one stream: the source that reported first.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Peer {
    source: Option<u32>,
}

/// The content of a peer's datagram.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct PeerReport {
    /// The peer has left.
    pub is_gone: bool,
    /// Its report block for the own source.
    pub reception: Option<Reception>,
    /// Its sender information.
    pub info: Option<SenderInfo>,
}

impl Peer {
    /// The SSRC of the peer, if known.
    pub const fn source(&self) -> Option<u32> {
        self.source
    }

    /// Parses a datagram of the peer of stream `own`.
    ///
    /// # Errors
    /// The broken rule; then the whole datagram is ignored.
    pub fn handle(&mut self, datagram: &[u8], own: u32) -> Result<PeerReport, RtcpFault> {
        let mut heard = PeerReport::default();
        let mut speaker = self.source;
        // Only the known source may report, and it may end only itself.
        let mut is_same = |source: u32| *speaker.get_or_insert(source) == source;
        for packet in read(datagram)? {
            let is_from_same = match packet {
                Packet::Sender { source, info, receptions } => {
                    heard.info = Some(info);
                    heard.reception = heard.reception.or(of(&receptions, own));
                    is_same(source)
                }
                Packet::Receiver { source, receptions } => {
                    heard.reception = heard.reception.or(of(&receptions, own));
                    is_same(source)
                }
                Packet::Bye { sources, .. } => {
                    let mut any = false;
                    let all = sources.iter().all(|source| {
                        any = true;
                        is_same(source)
                    });
                    heard.is_gone |= any && all;
                    all
                }
                Packet::Description(chunks) => chunks.names().all(|(source, _)| is_same(source)),
                Packet::Application { .. } | Packet::Other { .. } => true,
            };
            if !is_from_same {
                return Err(RtcpFault::Stranger);
            }
        }
        self.source = speaker;
        Ok(heard)
    }
}

fn of(receptions: &Receptions<'_>, own: u32) -> Option<Reception> {
    receptions.iter().find(|reception| reception.source == own)
}

/// The report interval (section 6.3.1, appendix A.7).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interval {
    /// The rate of the session.
    pub rate: BitRate,
    /// The members, including this one.
    pub members: u32,
    /// The senders among them.
    pub senders: u32,
    /// Whether this member sends.
    pub we_send: bool,
    /// The mean size of compound packets, with IP and UDP headers.
    pub size_mean: Bytes,
    /// No report has been sent yet.
    pub is_first: bool,
}

impl Interval {
    /// For the only sender: 5 s on average except for very slow sessions.
    pub const fn of_sender(rate: BitRate, is_first: bool) -> Self {
        /// Report, name, and the headers of IPv6 and UDP.
        const SIZE: Bytes = Bytes(28 + 64 + 48);
        Self { rate, members: 2, senders: 1, we_send: true, size_mean: SIZE, is_first }
    }

    /// The time to the next report; `random` must be uniformly distributed.
    pub fn next(&self, random: u32) -> Nanos {
        const SHORTEST: Nanos = SECOND.times(5);
        // 5 % of the session's rate, a quarter of it for the senders while they are few.
        let share = |parts: u32| u128::from(self.rate.0.max(1)) * u128::from(parts);
        let (members, share) = match self.senders > 0 && self.senders <= self.members / 4 {
            true if self.we_send => (self.senders, share(5)),
            true => (self.members - self.senders, share(15)),
            false => (self.members, share(20)),
        };
        // In ns: bytes · 8 · 10^9 for each member, of `share` 400ths of a bit a second.
        let bits = u128::from(self.size_mean.0) * 8 * u128::from(members.max(1));
        let time = bits * u128::from(SECOND.0) * 400 / share;
        let shortest = if self.is_first { SHORTEST.0 / 2 } else { SHORTEST.0 };
        let time = time.clamp(u128::from(shortest), u128::from(SECOND.0 * 3600));
        // Randomised from half to one and a half of it, divided by e - 3/2, which compensates for
        // timer reconsideration.
        let part = (1u128 << 31) + u128::from(random);
        Nanos(((time * part * 100_000 / 121_828) >> 32) as u64)
    }
}

#[cfg(test)]
mod tests;
