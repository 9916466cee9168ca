//! RTCP (RFC 3550, section 6): reports written and read, and how often they are sent.
//!
//! Promise: what is read is a whole compound packet by the rules of appendix A.2, or refused with
//! the rule that it breaks; a BYE counts only for the source that was heard before; nothing is read
//! beyond the datagram. It sends nothing and reads no clock: randomness and time are handed in.

use alloc::vec::Vec;

use crate::units::{BitRate, Bytes, MonoTime, Nanos, SECOND, WallTime};

/// Ticks of a second in the timestamps of transport streams and video frames.
pub const VIDEO_CLOCK: u32 = 90_000;

/// A time as NTP has it: seconds since 1900 in 32.32 (RFC 3550, section 4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NtpTime(pub u64);

impl NtpTime {
    /// Rounds down, to 233 ps.
    pub fn of(time: WallTime) -> Self {
        /// From 1900 to 1970.
        const EPOCH: u64 = 2_208_988_800;
        let seconds = (time.0 / SECOND.0).wrapping_add(EPOCH);
        let fraction = ((time.0 % SECOND.0) << 32) / SECOND.0;
        // The seconds run modulo 2^32, from 2036 on again from zero.
        Self(seconds << 32 | fraction)
    }

    /// The middle 32 bits, by which receivers name a report.
    pub const fn middle(self) -> u32 {
        (self.0 >> 16) as u32
    }
}

/// What ties the timestamps of a stream to time: `base` is of what is due at `epoch`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timeline {
    /// When the first packet was due.
    pub epoch: MonoTime,
    /// Its timestamp.
    pub base: u32,
}

impl Timeline {
    /// The timestamp of what is due at `time`, modulo 2^32; also of a time before the first packet.
    /// Rounds towards the first packet.
    pub fn timestamp(&self, time: MonoTime) -> u32 {
        let ticks = |span: Nanos| (u128::from(span.0) * 9 / 100_000) as u32;
        match time >= self.epoch {
            true => self.base.wrapping_add(ticks(time.since(self.epoch))),
            false => self.base.wrapping_sub(ticks(self.epoch.since(time))),
        }
    }
}

/// What a sender says of itself (section 6.4.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SenderInfo {
    /// When it was said.
    pub time: NtpTime,
    /// The same moment in the stream's timestamps.
    pub timestamp: u32,
    /// Packets since the beginning, modulo 2^32.
    pub packets: u32,
    /// Bytes of their payload, modulo 2^32.
    pub octets: u32,
}

/// What a receiver says of one source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reception {
    /// Of whom.
    pub source: u32,
    /// Lost since the last report, in 256ths.
    pub fraction_lost: u8,
    /// Lost in all; below zero when packets came twice.
    pub lost: i32,
    /// Highest sequence number, with how often they wrapped in the upper half.
    pub highest: u32,
    /// In ticks of the timestamps.
    pub jitter: u32,
    /// The middle of the last sender report's time; 0 without one.
    pub last_report: u32,
    /// Since then, in 65,536ths of a second.
    pub delay: u32,
}

const SR: u8 = 200;
const RR: u8 = 201;
const SDES: u8 = 202;
const BYE: u8 = 203;
const APP: u8 = 204;
/// The only item that everybody must send.
const CNAME: u8 = 1;
const RECEPTION: usize = 24;

/// A compound packet that is being written.
#[derive(Clone, Debug, Default)]
pub struct Compound(Vec<u8>);

impl Compound {
    /// Begins with a sender's report, with what it has received itself.
    ///
    /// # Panics
    /// When there are more than 31 receptions.
    pub fn of_sender(source: u32, info: &SenderInfo, receptions: &[Reception]) -> Self {
        let mut this = Self::default();
        let at = this.begin(SR, receptions.len());
        this.words(&[source, (info.time.0 >> 32) as u32, info.time.0 as u32]);
        this.words(&[info.timestamp, info.packets, info.octets]);
        this.receptions(receptions);
        this.finish(at);
        this
    }

    /// Begins with a receiver's report.
    ///
    /// # Panics
    /// When there are more than 31 receptions.
    pub fn of_receiver(source: u32, receptions: &[Reception]) -> Self {
        let mut this = Self::default();
        let at = this.begin(RR, receptions.len());
        this.words(&[source]);
        this.receptions(receptions);
        this.finish(at);
        this
    }

    /// Says how a source is called, the same in all sessions (section 6.5.1). Of a longer name the
    /// first 255 bytes.
    #[must_use]
    pub fn name(mut self, source: u32, name: &str) -> Self {
        let at = self.begin(SDES, 1);
        self.words(&[source]);
        let name = &name.as_bytes()[..name.len().min(255)];
        self.0.extend([CNAME, name.len() as u8]);
        self.0.extend(name);
        // At least one zero ends the list, and a chunk is whole words.
        self.0.push(0);
        self.pad();
        self.finish(at);
        self
    }

    /// Says that a source has gone (section 6.6).
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

    /// The bytes of one datagram.
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

/// The rule that a datagram breaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RtcpFault {
    /// Shorter than a header, or its lengths do not add up to the datagram.
    Length,
    /// Not version 2.
    Version,
    /// It does not begin with a report.
    First,
    /// Padding before the last packet, of nothing, of parts of words, or of more than there is.
    Padding,
    /// A report ends before what it announces.
    Report,
    /// A description ends before what it announces.
    Description,
    /// A BYE names more sources than it has.
    Sources,
    /// The reason of a BYE ends behind its packet.
    Reason,
    /// An APP without a name.
    Application,
    /// It speaks for another source than those before.
    Stranger,
}

/// One packet of a compound one, read in place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Packet<'a> {
    /// A sender's report.
    Sender {
        /// Who says it.
        source: u32,
        /// Of itself.
        info: SenderInfo,
        /// Of others.
        receptions: Receptions<'a>,
    },
    /// A receiver's report.
    Receiver {
        /// Who says it.
        source: u32,
        /// Of others.
        receptions: Receptions<'a>,
    },
    /// Who is who.
    Description(Chunks<'a>),
    /// Some have gone.
    Bye {
        /// Who.
        sources: Sources<'a>,
        /// Why; empty when nothing is said.
        reason: &'a [u8],
    },
    /// Somebody's own.
    Application {
        /// Who says it.
        source: u32,
        /// Of which application.
        name: [u8; 4],
        /// What.
        data: &'a [u8],
    },
    /// Of a kind that is not known here; it is to be passed over.
    Other {
        /// Its number.
        kind: u8,
    },
}

/// What a report says of others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receptions<'a>(&'a [u8]);

/// Sources one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sources<'a>(&'a [u8]);

/// The chunks of a description, which have been checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunks<'a> {
    count: usize,
    bytes: &'a [u8],
}

impl Receptions<'_> {
    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = Reception> + '_ {
        self.0.chunks_exact(RECEPTION).map(|bytes| {
            let lost = word(bytes, 4);
            Reception {
                source: word(bytes, 0),
                fraction_lost: (lost >> 24) as u8,
                // Sign and all: 24 bits.
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
    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.chunks_exact(4).map(|bytes| word(bytes, 0))
    }
}

impl<'a> Chunks<'a> {
    /// Each source with its canonical name, if it says one.
    pub fn names(&self) -> impl Iterator<Item = (u32, Option<&'a [u8]>)> + use<'a> {
        let Self { count, mut bytes } = *self;
        (0..count).map_while(move |_| {
            let (source, name, rest) = chunk(bytes)?;
            bytes = rest;
            Some((source, name))
        })
    }
}

/// The packets of `datagram`, all of which have been checked.
///
/// # Errors
/// The first rule that any of them breaks.
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

/// The packets of a compound one, in order.
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

/// The first packet of what is left of a datagram, and what comes behind.
fn one(bytes: &[u8]) -> Result<(Packet<'_>, &[u8]), RtcpFault> {
    let &[first, kind, high, low, ..] = bytes else { return Err(RtcpFault::Length) };
    if first >> 6 != 2 {
        return Err(RtcpFault::Version);
    }
    let len = 4 + 4 * usize::from(u16::from_be_bytes([high, low]));
    let (packet, behind) = bytes.split_at_checked(len).ok_or(RtcpFault::Length)?;
    let mut body = &packet[4..];
    if first & 0x20 != 0 {
        // Section 6.4.1: only the last one is padded, by whole words.
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
            // What a profile adds behind the receptions is passed over.
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

/// The first chunk of a description: its source, its canonical name, and what comes behind.
#[expect(clippy::type_complexity, reason = "three things that are read together")]
fn chunk(bytes: &[u8]) -> Option<(u32, Option<&[u8]>, &[u8])> {
    let (source, _) = bytes.split_first_chunk::<4>()?;
    let (mut at, mut name) = (4, None);
    loop {
        match bytes.get(at)? {
            // The list ends, and the chunk with the word.
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

/// The four bytes at `at`, which are there.
fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The other side of one stream: whoever has spoken first, and nobody else.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Peer {
    source: Option<u32>,
}

/// What a datagram of the other side has told.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct PeerReport {
    /// It has gone.
    pub is_gone: bool,
    /// How it receives our source.
    pub reception: Option<Reception>,
    /// What it sends itself.
    pub info: Option<SenderInfo>,
}

impl Peer {
    /// Whoever has spoken.
    pub const fn source(&self) -> Option<u32> {
        self.source
    }

    /// Understands a datagram that came from the other side of our stream `own`.
    ///
    /// # Errors
    /// The rule that it breaks; then nothing of it counts.
    pub fn handle(&mut self, datagram: &[u8], own: u32) -> Result<PeerReport, RtcpFault> {
        let mut heard = PeerReport::default();
        let mut speaker = self.source;
        // Who speaks must be who has spoken, and nobody ends anybody else.
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

/// How often reports are sent (section 6.3.1, appendix A.7).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interval {
    /// Of what the session sends.
    pub rate: BitRate,
    /// Who take part, ourselves among them.
    pub members: u32,
    /// Those of them that send.
    pub senders: u32,
    /// Whether we do.
    pub we_send: bool,
    /// The mean compound packet, with the headers of IP and UDP.
    pub size_mean: Bytes,
    /// Nothing has been sent yet.
    pub is_first: bool,
}

impl Interval {
    /// For the only sender, to whoever listens: 5 s on average but for very slow sessions.
    pub const fn of_sender(rate: BitRate, is_first: bool) -> Self {
        /// Report, name, and the headers of IPv6 and UDP.
        const SIZE: Bytes = Bytes(28 + 64 + 48);
        Self { rate, members: 2, senders: 1, we_send: true, size_mean: SIZE, is_first }
    }

    /// The time to the next report; `random` is anything, evenly spread.
    pub fn next(&self, random: u32) -> Nanos {
        const SHORTEST: Nanos = SECOND.times(5);
        // 5 % of what the session sends, a quarter of it for those who send while they are few.
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
        // Half to one and a half of it, by e - 3/2, which evens out what reconsidering adds.
        let part = (1u128 << 31) + u128::from(random);
        Nanos(((time * part * 100_000 / 121_828) >> 32) as u64)
    }
}

#[cfg(test)]
mod tests;
