//! Back ends of the packet link: the available ones, the cost of a datagram with each, and the
//! choice.
//!
//! Promise: the chosen one works on this host. A refusal of the host is reported and never stops
//! the server. The measurement sends to a socket of its own on the loopback, so no other host sees
//! it. It counts the CPU time of this thread only: other load on the machine hardly changes it, and
//! never the order of the candidates within one measurement.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::time::ClockId;
use tactus_core::datagrams::PAYLOAD;
use tactus_core::ports::{Batch, Message, PacketPort, SocketHandle};
use tactus_core::units::{MILLISECOND, MonoTime, Nanos, SECOND};

use crate::clock;
use crate::packets::directions::FEW;
use crate::packets::frames::{PacketSocketLink, XdpLink};
use crate::packets::gaps::{GapCounters, GapLink, GapOptions};
use crate::packets::ring::UringLink;
use crate::packets::txtime::TxtimeLink;
use crate::packets::udp_output::{self, Cutting, UdpLink};

/// The kernel interface that datagrams leave by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum BackEnd {
    /// `sendmmsg`.
    Sendmmsg,
    /// io_uring.
    IoUring,
    /// `sendmmsg` with a transmit time for each datagram, which `fq` keeps.
    Txtime,
    /// Frames by a packet socket, and `sendmmsg` for destinations that frames do not reach.
    PacketSocket,
    /// Frames by AF_XDP, and `sendmmsg` for destinations that frames do not reach.
    Xdp,
    /// Gap frames: a link that is kept full; `sendmmsg` for other destinations.
    GapFrames,
}

impl BackEnd {
    /// The back ends that can be measured on the loopback.
    pub const ALL: [Self; 5] =
        [Self::Sendmmsg, Self::IoUring, Self::Txtime, Self::PacketSocket, Self::Xdp];

    /// The name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sendmmsg => "sendmmsg",
            Self::IoUring => "io_uring",
            Self::Txtime => "so_txtime",
            Self::PacketSocket => "af_packet",
            Self::Xdp => "af_xdp",
            Self::GapFrames => "gap_frames",
        }
    }

    /// Whether datagrams bypass the host's firewall and queues. Such a back end is used only if the
    /// operator configures it.
    pub const fn is_bypass(self) -> bool {
        matches!(self, Self::PacketSocket | Self::Xdp | Self::GapFrames)
    }

    /// Opens a port of this back end.
    ///
    /// # Errors
    /// Why the host does not have it. Gap frames are opened by [`choose_gaps`].
    pub fn open(self, use_of: ExpectedUse) -> io::Result<Box<dyn PacketPort>> {
        let ExpectedUse { tick, destinations } = use_of;
        Ok(match self {
            Self::Sendmmsg => Box::new(UdpLink::new()),
            Self::IoUring => Box::new(UringLink::new()?),
            Self::Txtime => Box::new(TxtimeLink::open(tick, destinations)?),
            Self::PacketSocket => Box::new(PacketSocketLink::new(destinations)?),
            Self::Xdp => Box::new(XdpLink::new(destinations)?),
            Self::GapFrames => return Err(io::Error::from_raw_os_error(libc::ENODEV)),
        })
    }

    /// The port of this back end on the loopback.
    fn on_loopback(self) -> io::Result<Box<dyn PacketPort>> {
        match self {
            Self::PacketSocket => Ok(Box::new(PacketSocketLink::on_loopback()?)),
            Self::Xdp => Ok(Box::new(XdpLink::on_loopback()?)),
            // Only if a queueing discipline keeps the times.
            Self::Txtime => {
                TxtimeLink::open(MILLISECOND, FEW)?;
                Ok(Box::new(TxtimeLink::on_loopback(MILLISECOND)?))
            }
            other => other.open(ExpectedUse { tick: MILLISECOND, destinations: FEW }),
        }
    }
}

impl BackEnd {
    /// The second port of this back end: with `so_txtime`, datagrams of a device without `fq` are
    /// copied and kept until their time.
    fn second_on_loopback(self) -> Option<Box<dyn PacketPort>> {
        let port = (self == Self::Txtime).then(|| TxtimeLink::alone(MILLISECOND))?;
        Some(Box::new(port.ok()?))
    }
}

impl fmt::Display for BackEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The measurement of one back end.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The back end.
    pub back_end: BackEnd,
    /// CPU time of a single datagram, up to the point where no socket takes it; or the reason why
    /// the back end is unavailable.
    pub single: Result<Nanos, String>,
    /// CPU time of each of seven datagrams that leave as one message.
    pub gathered: Option<Nanos>,
}

/// The expected use of a port.
#[derive(Clone, Copy, Debug)]
pub struct ExpectedUse {
    /// Interval of the sender's turns.
    pub tick: Nanos,
    /// Number of destinations; more destinations raise the cost of each.
    pub destinations: usize,
}

/// The chosen port.
pub struct ChosenPort {
    /// The port.
    pub port: Box<dyn PacketPort>,
    /// Its back end.
    pub back_end: BackEnd,
    /// Where messages of several datagrams are segmented, if they leave by a socket.
    pub cutting: Cutting,
    /// All measured candidates.
    pub candidates: Vec<Candidate>,
    /// Continues to measure the chosen back end and `sendmmsg`.
    pub gauge: Gauge,
    /// Counters of a link that is kept full.
    pub gaps: Option<Arc<GapCounters>>,
    /// The configured back end that is unavailable, and why.
    pub refused: Option<(BackEnd, io::Error)>,
}

/// Opens a link that is kept full, or a port without one.
pub fn choose_gaps(options: &GapOptions, use_of: ExpectedUse) -> ChosenPort {
    match GapLink::open(options, use_of.destinations, clock::now()) {
        Ok(link) => {
            let gaps = Some(link.counters());
            let gauge = Gauge::read(&[BackEnd::Sendmmsg]);
            ChosenPort { gaps, ..chosen(Box::new(link), BackEnd::GapFrames, gauge, None) }
        }
        Err(error) => {
            ChosenPort { refused: Some((BackEnd::GapFrames, error)), ..choose(None, use_of) }
        }
    }
}

/// Measures `wanted`, or all back ends without bypass, with 10 ms of CPU time for each. Chooses the
/// one that lets each datagram leave at its own time if it is available, otherwise the cheapest.
pub fn choose(wanted: Option<BackEnd>, use_of: ExpectedUse) -> ChosenPort {
    let looked_at = |back_end: &BackEnd| match wanted {
        Some(wanted) => *back_end == wanted || *back_end == BackEnd::Sendmmsg,
        None => !back_end.is_bypass(),
    };
    let looked_at: Vec<BackEnd> = BackEnd::ALL.into_iter().filter(looked_at).collect();
    let gauge = Gauge::read(&looked_at);
    let candidates = gauge.candidates();
    let cost = |back_end: BackEnd| {
        let candidate = candidates.iter().find(|candidate| candidate.back_end == back_end);
        candidate.and_then(|candidate| candidate.single.as_ref().ok().copied())
    };
    let plain = [BackEnd::Sendmmsg, BackEnd::IoUring];
    let cheapest = plain.into_iter().filter_map(|it| Some((cost(it)?, it))).min();
    let exact = cost(BackEnd::Txtime).map(|_| BackEnd::Txtime);
    let mut order: Vec<BackEnd> = wanted.or(exact).into_iter().collect();
    order.extend(cheapest.map(|(_, back_end)| back_end));
    let mut refused = None;
    for back_end in order {
        match back_end.open(use_of) {
            Ok(port) => return chosen(port, back_end, gauge, refused),
            Err(error) => refused = refused.or(Some((back_end, error))),
        }
    }
    chosen(Box::new(UdpLink::new()), BackEnd::Sendmmsg, gauge, refused)
}

fn chosen(
    port: Box<dyn PacketPort>,
    back_end: BackEnd,
    mut gauge: Gauge,
    refused: Option<(BackEnd, io::Error)>,
) -> ChosenPort {
    let cutting = if port.segments_max() > 1 { Cutting::Kernel } else { Cutting::Ours };
    let candidates = gauge.candidates();
    gauge.gauged.retain(|it| [back_end, BackEnd::Sendmmsg].contains(&it.back_end));
    ChosenPort { port, back_end, cutting, candidates, gauge, gaps: None, refused }
}

/// Number of consecutive rounds; their lower quartile counts. Disturbances, such as a host that
/// takes the core, only add time, often to several rounds in a row; the minimum is a matter of
/// chance.
const ROUNDS: usize = 8;
/// Batches of a round: 640 datagrams, 0.5 to 2 ms.
const BATCHES: usize = 10;
const BATCH: usize = 64;
/// Time for a port to learn its route.
const SETTLES: Nanos = MILLISECOND.times(20);

/// The cost of a datagram with each of these back ends.
pub fn measure(back_ends: &[BackEnd]) -> Vec<Candidate> {
    Gauge::read(back_ends).candidates()
}

/// Measures the cost of datagrams, one round at a time. A processor may be slowed down by other
/// work for longer than a start may wait. The cheapest few consecutive rounds count, the same for
/// all back ends, because costs of different times are not comparable.
pub struct Gauge {
    /// `None` if there is no back end that can send.
    stage: Option<TestPath>,
    gauged: Vec<MeasuredBackEnd>,
    rounds: usize,
}

struct MeasuredBackEnd {
    back_end: BackEnd,
    port: io::Result<Box<dyn PacketPort>>,
    /// The second port, if it has one; the more expensive port counts.
    second_port: Option<Box<dyn PacketPort>>,
    /// Results of the last few rounds.
    single: VecDeque<Nanos>,
    gathered: VecDeque<Nanos>,
    counts: Costs,
}

/// The cost of a datagram with one back end, alone and as one of seven.
#[derive(Clone, Copy, Default)]
struct Costs {
    single: Option<Nanos>,
    gathered: Option<Nanos>,
}

impl Gauge {
    /// A gauge that has measured often enough for a result.
    fn read(back_ends: &[BackEnd]) -> Self {
        let stage = TestPath::new().ok();
        let open = |&back_end: &BackEnd| {
            let port = back_end.on_loopback();
            let second_port = port.as_ref().ok().and_then(|_| back_end.second_on_loopback());
            MeasuredBackEnd { second_port, ..MeasuredBackEnd::over(back_end, port) }
        };
        let gauged = stage.iter().flat_map(|_| back_ends).map(open).collect();
        let mut gauge = Self { stage, gauged, rounds: 0 };
        gauge.settle();
        for _ in 0..ROUNDS {
            gauge.round();
        }
        gauge
    }

    fn settle(&mut self) {
        let Some(stage) = &self.stage else { return };
        for MeasuredBackEnd { back_end, port, .. } in &mut self.gauged {
            let asks = matches!(back_end, BackEnd::PacketSocket | BackEnd::Xdp | BackEnd::Txtime);
            if let (true, Ok(port)) = (asks, port) {
                stage.settle(port.as_mut());
            }
        }
    }

    /// Measures each once more, in turn.
    pub fn round(&mut self) {
        let Some(stage) = &self.stage else { return };
        for MeasuredBackEnd { port, second_port, single, gathered, .. } in &mut self.gauged {
            let Ok(port) = port else { continue };
            let other = second_port.as_mut().and_then(|other| stage.cost(other.as_mut(), 1));
            add(
                single,
                stage.cost(port.as_mut(), 1).map(|own| other.map_or(own, |it| it.max(own))),
            );
            if port.segments_max() > 1 {
                add(gathered, stage.cost(port.as_mut(), 7));
            }
        }
        self.judge();
    }

    /// Uses the last few rounds, if they are the first ones or cheaper than the present result.
    fn judge(&mut self) {
        self.rounds += 1;
        let counts = self.gauged.iter().map(|it| it.counts.sum()).sum::<Nanos>();
        let last = self.gauged.iter().map(|it| it.last().sum()).sum::<Nanos>();
        if self.rounds <= ROUNDS || last < counts {
            for gauged in &mut self.gauged {
                gauged.counts = gauged.last();
            }
        }
    }

    /// The present results.
    pub fn candidates(&self) -> Vec<Candidate> {
        let candidate = |it: &MeasuredBackEnd| Candidate {
            back_end: it.back_end,
            single: match &it.port {
                Ok(_) => it.counts.single.ok_or_else(|| "it does not take all".to_owned()),
                Err(error) => Err(error.to_string()),
            },
            gathered: it.counts.gathered,
        };
        self.gauged.iter().map(candidate).collect()
    }
}

impl MeasuredBackEnd {
    fn over(back_end: BackEnd, port: io::Result<Box<dyn PacketPort>>) -> Self {
        let last = || VecDeque::with_capacity(ROUNDS);
        Self {
            back_end,
            port,
            second_port: None,
            single: last(),
            gathered: last(),
            counts: Costs::default(),
        }
    }

    fn last(&self) -> Costs {
        Costs { single: lower_quartile(&self.single), gathered: lower_quartile(&self.gathered) }
    }
}

impl Costs {
    fn sum(self) -> Nanos {
        [self.single, self.gathered].into_iter().flatten().sum()
    }
}

/// Adds the result of a round, if any, in place of the oldest one.
fn add(last: &mut VecDeque<Nanos>, cost: Option<Nanos>) {
    let Some(cost) = cost else { return };
    last.truncate(ROUNDS - 1);
    last.push_front(cost);
}

fn lower_quartile(values: &VecDeque<Nanos>) -> Option<Nanos> {
    let mut sorted: Vec<Nanos> = values.iter().copied().collect();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 4).copied()
}

/// A UDP output, and a group without members on the loopback. A datagram to it passes the whole
/// send path, and is discarded on arrival.
struct TestPath {
    udp_output: OwnedFd,
    to: SocketAddr,
}

/// A group within the local site (RFC 2365); the discard port.
const NOBODY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(239, 255, 84, 65)), 9);

impl TestPath {
    fn new() -> io::Result<Self> {
        let from = Ipv4Addr::LOCALHOST.into();
        let interface = Some(crate::udp_input::interface("lo")?);
        let (hops, dscp, heard_here, buffer) = (None, 0, false, 4 << 20);
        let options = udp_output::UdpOptions { from, interface, hops, dscp, heard_here, buffer };
        Ok(Self { udp_output: udp_output::open(&options)?, to: NOBODY })
    }

    /// Sends until the port has had time to learn its route.
    fn settle(&self, port: &mut dyn PacketPort) {
        let end = clock::now() + SETTLES;
        while clock::now() < end {
            self.send(port, 1);
            clock::sleep_until(clock::now() + MILLISECOND);
        }
    }

    /// CPU time of a datagram; `None` if not all were taken.
    fn cost(&self, port: &mut dyn PacketPort, segments: usize) -> Option<Nanos> {
        let begun = cpu_time();
        let mut sent = 0;
        for _ in 0..BATCHES {
            sent += self.send(port, segments);
        }
        let spent = cpu_time().since(begun);
        (sent == (BATCHES * BATCH) as u64).then(|| Nanos(spent.0 / sent))
    }

    fn send(&self, port: &mut dyn PacketPort, segments: usize) -> u64 {
        const LEN: usize = PAYLOAD.0 as usize;
        static BODY: [u8; LEN] = [0x47; LEN];
        let to = self.to;
        let messages = BATCH / segments;
        let rest = BATCH % segments;
        let message = |parts: usize| Message { to, segment: LEN as u16, parts: parts as u16 };
        let mut described = vec![message(segments); messages];
        described.extend((rest > 0).then(|| message(rest)));
        let parts = [&BODY[..]; BATCH];
        let batch = Batch { messages: &described, parts: &parts };
        // A port with transmit times keeps datagrams for a moment.
        let now = clock::now();
        let due = if port.ahead() > Nanos(0) { now + Nanos(1) } else { now };
        let all = &[due; BATCH][..described.len()];
        let gone = port.send_timed(now, SocketHandle(self.udp_output.as_raw_fd()), batch, all);
        port.turn(due, due);
        let taken = &described[..gone.messages];
        taken.iter().map(|message| u64::from(message.parts)).sum()
    }
}

/// CPU time of this thread.
fn cpu_time() -> MonoTime {
    let ran = rustix::time::clock_gettime(ClockId::ThreadCPUTime);
    MonoTime(ran.tv_sec as u64 * SECOND.0 + ran.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_beginning_is_forgotten_and_luck_does_not_count() {
        let port = || -> Box<dyn PacketPort> { Box::new(UdpLink::new()) };
        let gauged = vec![MeasuredBackEnd::over(BackEnd::Sendmmsg, Ok(port()))];
        let mut gauge = Gauge { stage: None, gauged, rounds: 0 };
        let mut rounds = |costs: &[(u64, u64)]| {
            for &(single, gathered) in costs {
                add(&mut gauge.gauged[0].single, Some(Nanos(single)));
                add(&mut gauge.gauged[0].gathered, Some(Nanos(gathered)));
                gauge.judge();
            }
            let found = &gauge.candidates()[0];
            (found.single.as_ref().unwrap().0, found.gathered.unwrap().0)
        };
        assert_eq!(rounds(&[(1_700, 600), (1_800, 620)]), (1_700, 600));
        assert_eq!(rounds(&[(1_750, 610); 6]), (1_750, 610));
        // Two cheap rounds do not count, a third one does.
        assert_eq!(rounds(&[(900, 310), (910, 320)]), (1_750, 610));
        assert_eq!(rounds(&[(920, 330)]), (920, 330));
        // Later slow rounds do not revoke the result, and results of different times are not mixed.
        assert_eq!(rounds(&[(1_700, 600); 20]), (920, 330));
        assert_eq!(rounds(&[(910, 700); 20]), (920, 330));
    }

    const USE: ExpectedUse = ExpectedUse { tick: MILLISECOND, destinations: FEW };

    #[test]
    fn what_a_port_keeps_until_its_time_is_sent_while_its_cost_is_taken() {
        let mut kept = BackEnd::Txtime.second_on_loopback().unwrap();
        let stage = TestPath::new().unwrap();
        stage.settle(kept.as_mut());
        assert!(stage.cost(kept.as_mut(), 1).is_some_and(|cost| cost > Nanos(0)));
        assert_eq!(kept.turn(clock::now(), MonoTime(0)), None, "all have left");
        assert!(BackEnd::Sendmmsg.second_on_loopback().is_none());
    }

    #[test]
    fn who_goes_on_measuring_has_the_one_that_was_taken() {
        let mut chosen = choose(None, USE);
        chosen.gauge.round();
        let found = chosen.gauge.candidates();
        let back_ends: Vec<BackEnd> = found.iter().map(|it| it.back_end).collect();
        assert!(back_ends.contains(&chosen.back_end) && back_ends.contains(&BackEnd::Sendmmsg));
        assert!(found.len() <= 2 && found.iter().all(|it| it.single.is_ok()));
    }

    #[test]
    fn without_its_device_no_link_is_kept_full() {
        let rate = tactus_core::units::BitRate(1_000_000_000);
        let device = "lo".to_owned();
        let options = GapOptions { device, rate, overhead: 24, ahead: MILLISECOND.times(2) };
        let chosen = choose_gaps(&options, USE);
        assert!(chosen.gaps.is_none() && !chosen.back_end.is_bypass());
        let (refused, why) = chosen.refused.unwrap();
        assert_eq!((refused, why.raw_os_error()), (BackEnd::GapFrames, Some(libc::ENODEV)));
    }

    #[test]
    fn what_is_chosen_sends_and_what_is_refused_is_told() {
        for wanted in BackEnd::ALL.map(Some).into_iter().chain([None]) {
            let mut chosen = choose(wanted, USE);
            let is_wanted = wanted.is_none_or(|wanted| wanted == chosen.back_end);
            assert!(is_wanted || chosen.refused.is_some());
            assert!(wanted.is_some() || !chosen.back_end.is_bypass());
            let stage = TestPath::new().unwrap();
            assert_eq!(stage.send(chosen.port.as_mut(), 1), BATCH as u64);
            let plain = &chosen.candidates[0];
            assert_eq!(plain.back_end, BackEnd::Sendmmsg);
            let cost = plain.single.as_ref().unwrap().0;
            assert!((10..1_000_000).contains(&cost), "{cost} ns");
        }
    }
}
