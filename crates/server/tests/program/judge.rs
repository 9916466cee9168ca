//! What a transport stream that was received is worth, by TR 101 290.
//!
//! Promise: a monitor of other people (dvb-conformance) judges every indicator of all three
//! priorities but two: 2.4 needs time stamps of 500 ns, so it is reckoned here from the bytes and
//! what the multiplex says of itself; 3.10 is judged against a rate of draining that the monitor
//! guesses, far below what a video level allows. ffmpeg has to decode what it is given without a
//! complaint.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use dvb_conformance::{ConformanceMonitor, Indicator};
use tactus_core::rtp;
use tactus_core::ts::{PACKET, PCR_BYTE, Packet, Pcr, Pid, pes_times};
use tactus_core::units::{BitRate, MediaTime};

/// What came, in its order.
pub(crate) struct ReceivedPackets {
    bytes: Vec<u8>,
    /// The packet that a datagram or a frame begins with, and its time in ticks of 90 kHz since the
    /// first one.
    stamps: Vec<(usize, u64)>,
    /// Packets behind which nothing was sent for a while: a pause, or a machine that has stood
    /// still.
    stalls: Vec<usize>,
    /// Packets that something else begins with, as a mark in the next clock says
    /// (`discontinuity_indicator`).
    seams: Vec<usize>,
    /// What may be raised.
    excused: Vec<Indicator>,
}

/// When a packet was due, and where its clock has to stand.
#[derive(Clone, Copy)]
pub(crate) enum PacketTiming<'a> {
    /// One packet after the other at a constant rate.
    Even(BitRate),
    /// By its own clock: nothing can be said of it.
    Own,
    /// By the sender's time stamps; between two clocks every byte takes as long as any other (ISO
    /// 13818-1, D.0.3), but not where something else begins, at these packets.
    Stamps(&'a [usize]),
    /// A multiplex of a constant rate of which empty places are left out: by the sender's time
    /// stamps, and each clock is that of a place.
    Places(BitRate),
}

/// 2.4: a clock may be so far off.
const ERROR_MAX_NS: u64 = 500;
/// Between two ticks of 90 kHz, and a byte's time rounded to one.
const STAMP_ERROR_MAX_NS: u64 = 22_300;
/// No datagrams for so many ticks of 90 kHz: there is a clock in all that is sent each 40 ms.
const STALL: u32 = 18_000;
/// Something was ordered meanwhile: a pause, however long.
const ORDERED: u32 = u32::MAX;
/// How long a pause is for whoever times what comes: with what is left of two titles' 40 ms no
/// clock is missed.
const PAUSE: u64 = 1_350;
/// 27 MHz.
const TICKS: u64 = 27_000_000;

impl ReceivedPackets {
    /// Datagrams of whole packets, or a file's bytes.
    pub(crate) fn plain(bytes: Vec<u8>) -> Self {
        let (stamps, stalls, seams) = (vec![], vec![], vec![]);
        let excused = vec![Indicator::DataDelayError];
        let mut heard = Self { bytes, stamps, stalls, seams, excused };
        heard.seams = heard.marked().into_iter().map(|(_, mark)| mark).collect();
        heard
    }

    /// Clocks that say that they are other ones, each behind the clock that came before it.
    fn marked(&self) -> Vec<(usize, usize)> {
        let (mut last, mut marked) = (None, vec![]);
        for (nth, packet) in self.packets().filter(|(_, packet)| packet.pcr().is_some()) {
            let before = last.replace(nth);
            marked.extend(before.filter(|_| packet.is_discontinuous()).map(|before| (before, nth)));
        }
        marked
    }

    /// The same, of which this may be raised.
    pub(crate) fn excusing(mut self, indicator: Indicator) -> Self {
        self.excused.push(indicator);
        self
    }

    /// How many jumps were marked.
    pub(crate) fn jumps(&self) -> usize {
        self.seams.len()
    }

    /// Packets of RTP, which must follow each other.
    pub(crate) fn rtp(packets: &[Vec<u8>]) -> Self {
        Self::rtp_from(packets, &[])
    }

    /// The same; what was ordered begins with the packets of these numbers. The time before those
    /// is the client's.
    pub(crate) fn rtp_from(packets: &[Vec<u8>], begins: &[u16]) -> Self {
        let packets = packets.iter().map(|packet| rtp::Packet::read(packet).expect("RTP"));
        let mut heard =
            Self::plain(packets.clone().flat_map(|packet| packet.payload).copied().collect());
        let mut last = None::<(u16, u32)>;
        let mut nth = 0;
        // What each begins with, and how long after the one before.
        let mut steps: Vec<(usize, u32)> = vec![];
        // Those whose headers have M.
        let mut markers = vec![];
        let mut pause_max = 0;
        for packet in packets {
            let step = last.map_or(0, |(sequence, timestamp)| {
                assert_eq!(
                    packet.sequence,
                    sequence.wrapping_add(1),
                    "at {} behind {timestamp}",
                    packet.timestamp
                );
                let step = packet.timestamp.wrapping_sub(timestamp);
                assert!(step < 1 << 31, "packet {}: time goes back", packet.sequence);
                step
            });
            markers.extend(packet.marker.then_some(steps.len()));
            let is_first = last.is_some() && begins.contains(&packet.sequence);
            last = Some((packet.sequence, packet.timestamp));
            pause_max = pause_max.max(if is_first { step } else { 0 });
            steps.push((nth, if is_first { ORDERED } else { step }));
            nth += packet.payload.len() / PACKET;
        }
        // A jump is where a header says so (M), between one clock and a marked one; it says so
        // nowhere else but at the beginning of what was heard.
        let jumps = heard.marked();
        let inner = markers.iter().filter(|&&place| place > 0).count();
        assert_eq!(inner, jumps.len(), "M and marks: {markers:?} {jumps:?}");
        let marked = jumps.into_iter().map(|(before, mark)| {
            let from = steps.partition_point(|&(first, _)| first <= before);
            let to = steps.partition_point(|&(first, _)| first <= mark);
            let place = markers.iter().copied().find(|place| (from..to).contains(place));
            let place = place.expect("the datagram in which another clock begins has M");
            let (first, step) = steps[place];
            pause_max = pause_max.max(if step == ORDERED { 0 } else { step });
            steps[place].1 = ORDERED;
            first
        });
        heard.seams = marked.collect();
        if pause_max > 0 {
            let (jumps, longest) = (heard.jumps(), pause_max / 90);
            println!(
                "{:<34} {jumps} jumps are marked; nothing was sent for up to {longest} ms",
                ""
            );
        }
        let mut time = 0;
        for (first, step) in steps {
            // The clock inside has stood still meanwhile.
            match step {
                STALL.. => {
                    heard.stalls.push(first);
                    time += PAUSE;
                }
                ticks => time += u64::from(ticks),
            }
            heard.stamps.push((first, time));
        }
        heard
    }

    /// A file's bytes, each at the time that the clocks around it say.
    pub(crate) fn by_its_clock(bytes: Vec<u8>) -> Self {
        let mut heard = Self::plain(bytes);
        let mut parts = heard.clocks();
        assert_eq!(parts.len(), 1, "one clock");
        let clocks = parts.remove(0);
        let ticks = |nth: usize| {
            let behind = clocks.partition_point(|&(known, _)| known <= nth);
            let behind = behind.clamp(1, clocks.len() - 1);
            let (from, to) = (clocks[behind - 1], clocks[behind]);
            let slope = i128::from(to.1 - from.1) * (nth as i128 - from.0 as i128);
            // The first clock is not in the first packet; a second leaves room before it.
            i128::from(from.1 + TICKS) + slope / (to.0 - from.0) as i128
        };
        let packets = heard.bytes.len() / PACKET;
        heard.stamps = (0..packets).map(|nth| (nth, ticks(nth) as u64 / 300)).collect();
        heard
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn packets(&self) -> impl Iterator<Item = (usize, Packet<'_>)> {
        let packets = self.bytes.chunks(PACKET).enumerate();
        packets.map(|(nth, bytes)| (nth, Packet::first_of(bytes).expect("whole packets")))
    }

    /// When a packet was due.
    fn time(&self, nth: usize, law: PacketTiming<'_>) -> Duration {
        match law {
            PacketTiming::Even(rate) => {
                let bits = nth as u128 * 8 * PACKET as u128;
                Duration::from_nanos((bits * 1_000_000_000 / u128::from(rate.0)) as u64)
            }
            PacketTiming::Own | PacketTiming::Stamps(_) | PacketTiming::Places(_) => {
                let behind = self.stamps.partition_point(|&(first, _)| first <= nth);
                let (_, ticks) = self.stamps[behind.checked_sub(1).expect("the first has one")];
                Duration::from_nanos(ticks * 100_000 / 9)
            }
        }
    }

    /// The clocks of the first PID that has one, from seam to seam: the packet, and the time since
    /// the first of the part.
    fn clocks(&self) -> Vec<Vec<(usize, u64)>> {
        let with = |(nth, packet): (usize, Packet<'_>)| Some((nth, packet.pid(), packet.pcr()?));
        let all: Vec<(usize, Pid, Pcr)> = self.packets().filter_map(with).collect();
        let own = all.first().expect("a clock").1;
        let all: Vec<_> = all.into_iter().filter(|&(_, pid, _)| pid == own).collect();
        let parts = all.chunk_by(|one, next| self.part(one.0) == self.part(next.0));
        let times = parts.map(|part| {
            let (mut last, mut time) = (part[0].2, 0);
            let of = |&(nth, _, pcr): &(usize, Pid, Pcr)| {
                time += pcr.since(last).0;
                last = pcr;
                (nth, time)
            };
            part.iter().map(of).collect()
        });
        times.collect()
    }

    /// How many seams are before a packet.
    fn part(&self, nth: usize) -> usize {
        self.seams.partition_point(|seam| *seam <= nth)
    }

    /// How far clocks are off what the law says, in ns.
    fn clock_error(&self, law: PacketTiming<'_>) -> u64 {
        let parts = self.clocks();
        parts.iter().map(|clocks| self.clock_error_in(clocks, law)).max().expect("a clock")
    }

    fn clock_error_in(&self, clocks: &[(usize, u64)], law: PacketTiming<'_>) -> u64 {
        let part = self.part(clocks[0].0);
        let off = match law {
            PacketTiming::Own => 0,
            PacketTiming::Even(rate) => {
                let at = |nth: usize| (nth - clocks[0].0) as u128 * (8 * PACKET) as u128;
                let due = |nth| (at(nth) * u128::from(TICKS) / u128::from(rate.0)) as i128;
                spread(clocks.iter().map(|&(nth, time)| i128::from(time) - due(nth)))
            }
            PacketTiming::Places(rate) => {
                let place = (8 * PACKET) as u128 * u128::from(TICKS);
                let off = clocks.iter().map(|&(_, time)| {
                    let scaled = u128::from(time) * u128::from(rate.0);
                    let nearest = (scaled + place / 2) / place * place;
                    (scaled as i128 - nearest as i128) / i128::from(rate.0)
                });
                spread(off)
            }
            PacketTiming::Stamps(seams) => {
                let own = self.stamps.iter().filter(|&&(first, _)| self.part(first) == part);
                let off = own.filter_map(|&(first, stamp)| {
                    // The clock at the first byte, by the two clocks around it.
                    let at = (first * PACKET) as i128;
                    let place = |nth: usize| (nth * PACKET) as i128 + i128::from(PCR_BYTE);
                    let behind = clocks.partition_point(|&(nth, _)| place(nth) <= at);
                    let (from, to) = (clocks.get(behind.checked_sub(1)?)?, clocks.get(behind)?);
                    let mut breaks = seams.iter().chain(&self.stalls);
                    if breaks.any(|seam| (from.0 + 1..=to.0).contains(seam)) {
                        return None;
                    }
                    let slope = i128::from(to.1 - from.1) * (at - place(from.0));
                    let clock = i128::from(from.1) + slope / (place(to.0) - place(from.0));
                    let part = self.stalls.partition_point(|stall| *stall <= first);
                    Some((part, clock - i128::from(stamp) * 300))
                });
                let off: Vec<_> = off.collect();
                let parts = off.chunk_by(|one, next| one.0 == next.0);
                parts.map(|part| spread(part.iter().map(|each| each.1))).max().unwrap_or_default()
            }
        };
        off * 1000 / 27
    }

    /// What the monitor raises, how often, and where first.
    fn raised(&self, law: PacketTiming<'_>) -> BTreeMap<String, (u64, String)> {
        let present =
            self.packets().map(|(nth, packet)| (self.part(nth), packet.pid().0)).collect();
        let mut monitor = ConformanceMonitor::new();
        let mut raised = BTreeMap::<String, (u64, String)>::new();
        for (nth, packet) in self.packets() {
            let time = self.time(nth, law);
            for event in monitor.feed(packet.bytes(), time) {
                let is_of_nobody = event.pid.is_some_and(|pid| {
                    let is_by_stream =
                        matches!(event.indicator, Indicator::PtsError | Indicator::UnreferencedPid);
                    is_by_stream && !self.is_steady(Pid(pid.value()), nth, &present)
                });
                if !self.excused.contains(&event.indicator) && !is_of_nobody {
                    let what = format!("{} {}", event.indicator.clause(), event.indicator.name());
                    let seen = format!("packet {nth} at {time:?}: {event:?}");
                    raised.entry(what).or_insert((0, seen)).0 += 1;
                }
            }
        }
        raised
    }

    /// Whether a stream is there on both sides of the last seam: the monitor times what the table
    /// has taken out as well.
    fn is_steady(&self, pid: Pid, nth: usize, present: &BTreeSet<(usize, u16)>) -> bool {
        let part = self.part(nth);
        [part, part.saturating_sub(1)].iter().all(|&part| present.contains(&(part, pid.0)))
    }

    /// Judges it, as one row of the table; panics when something is wrong with it.
    pub(crate) fn judge(&self, name: &str, law: PacketTiming<'_>) {
        assert!(self.bytes.len().is_multiple_of(PACKET), "{name}: whole packets");
        let raised = self.raised(law);
        let row = Row {
            packets: self.bytes.len() / PACKET,
            clock_error: self.clock_error(law),
            clock_gap: self
                .clocks()
                .iter()
                .map(|part| gap(part.iter().map(|each| each.1)))
                .max()
                .expect("a clock"),
            table_gaps: self.table_gaps(law),
            services_gap: self.services_gap(law),
            time_gap: self.time_gap(),
        };
        println!("{name:<34} {row}  {}", if raised.is_empty() { "clean" } else { "NOT clean" });
        assert!(raised.is_empty(), "{name}: {raised:#?}");
        let error_max =
            if matches!(law, PacketTiming::Stamps(_)) { STAMP_ERROR_MAX_NS } else { ERROR_MAX_NS };
        assert!(row.clock_error <= error_max, "{name}: 2.4: {} ns", row.clock_error);
        assert!(row.clock_gap <= TICKS / 10, "{name}: 2.3");
        assert!(row.table_gaps.iter().all(|gap| *gap <= Duration::from_millis(500)), "{name}: 1.3");
        assert!(row.time_gap <= TICKS * 7 / 10, "{name}: 2.5");
        // The monitor does not miss what has never come.
        let gap = row.services_gap.unwrap_or(Duration::MAX);
        assert!(gap <= Duration::from_secs(2), "{name}: 3.5: {gap:?}");
    }

    /// The longest time without what describes the services (SDT), from the first packet to the
    /// last; none when it never came.
    fn services_gap(&self, law: PacketTiming<'_>) -> Option<Duration> {
        let sent = self.packets().filter(|(_, packet)| packet.pid() == Pid::SDT);
        let sent: Vec<_> = sent.map(|(nth, _)| nth).collect();
        sent.first()?;
        let last = self.bytes.len() / PACKET - 1;
        let all: Vec<_> = [&[0], &sent[..], &[last]].concat();
        all.windows(2).map(|pair| self.time(pair[1], law) - self.time(pair[0], law)).max()
    }

    /// The longest time without a PAT, and without a PMT of its first program.
    fn table_gaps(&self, law: PacketTiming<'_>) -> [Duration; 2] {
        let pat = self.packets().find(|(_, packet)| packet.pid() == Pid(0) && packet.starts_unit());
        let (_, pat) = pat.expect("a PAT");
        // Behind the pointer: eight bytes of head, programs of four; program 0 is the network.
        let table = &pat.payload()[1..];
        let program = table[8..].chunks(4).find(|four| four[..2] != [0, 0]).expect("a program");
        let pmt = Pid(u16::from_be_bytes([program[2] & 0x1f, program[3]]));
        [Pid(0), pmt].map(|pid| {
            let times = self.packets().filter(|(_, packet)| packet.pid() == pid);
            let times: Vec<_> = times.map(|(nth, _)| self.time(nth, law)).collect();
            times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
        })
    }

    /// The longest time between what is shown next to each other, of any PID, in ticks of 27 MHz.
    fn time_gap(&self) -> u64 {
        let mut shown = BTreeMap::<(usize, u16), Vec<u64>>::new();
        for (nth, packet) in self.packets() {
            if let Some(times) = pes_times(&packet) {
                let of = (self.part(nth), packet.pid().0);
                shown.entry(of).or_default().push(times.shown.ticks() * 300);
            }
        }
        let gaps = shown.into_values().map(|mut times| {
            times.sort_unstable();
            gap(times)
        });
        gaps.max().expect("something is shown")
    }

    /// The decoders of ffmpeg take all that is whole of it.
    pub(crate) fn decode(&self, name: &str, dir: &Path) {
        let file = dir.join("heard.ts");
        fs::write(&file, self.whole()).expect("room on the disk");
        let path = file.to_str().expect("a plain name");
        // ffprobe, as ffmpeg would want frames of two titles in the order of one.
        let mut ffprobe = Command::new("timeout");
        ffprobe.args(["600", "ffprobe", "-v", "error", "-count_frames", "-of", "csv=p=0"]);
        ffprobe.args(["-show_entries", "stream=nb_read_frames", path]);
        let ended = ffprobe.output().expect("timeout is part of coreutils");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(
            ended.status.success() && said.is_empty(),
            "{name}: ffprobe (package ffmpeg): {said}"
        );
        fs::remove_file(file).expect("it is ours");
    }

    /// What came, without what was begun last of each PID: it may not be whole.
    fn whole(&self) -> Vec<u8> {
        let begins = |&(nth, packet): &(usize, Packet<'_>)| {
            packet.starts_unit().then_some((packet.pid().0, nth))
        };
        let ends: BTreeMap<u16, usize> = self.packets().filter_map(|each| begins(&each)).collect();
        let is_whole = |(nth, packet): &(usize, Packet<'_>)| {
            ends.get(&packet.pid().0).is_none_or(|end| nth < end)
        };
        let kept = self.packets().filter(is_whole);
        kept.flat_map(|(_, packet)| *packet.bytes()).collect()
    }
}

/// How far apart the outermost are.
fn spread(values: impl Iterator<Item = i128>) -> u64 {
    let values: Vec<_> = values.collect();
    let (low, high) = (values.iter().min(), values.iter().max());
    low.zip(high).map_or(0, |(low, high)| (high - low) as u64)
}

fn gap(times: impl IntoIterator<Item = u64>) -> u64 {
    let times: Vec<_> = times.into_iter().collect();
    times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
}

struct Row {
    packets: usize,
    /// ns.
    clock_error: u64,
    /// Ticks of 27 MHz.
    clock_gap: u64,
    table_gaps: [Duration; 2],
    services_gap: Option<Duration>,
    /// Ticks of 27 MHz.
    time_gap: u64,
}

impl fmt::Display for Row {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |ticks: u64| MediaTime(ticks).0 / (TICKS / 1000);
        write!(
            to,
            "{:>6} packets  PCR off {:>5} ns, each {:>3} ms  PAT each {:>3} ms, PMT {:>3} ms  PTS \
             each {:>3} ms",
            self.packets,
            self.clock_error,
            ms(self.clock_gap),
            self.table_gaps[0].as_millis(),
            self.table_gaps[1].as_millis(),
            ms(self.time_gap),
        )
    }
}
