//! The ports of RTP and RTCP: one pair for each local address, shared by all sessions.
//!
//! Promise: a report counts for a session only if it is well-formed and comes from the address and
//! port of the session's receiver (row S19). Other reports are counted and dropped.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tactus_control::broker::{UDP_BUFFER, UdpOutput};
use tactus_core::rtp::rtcp::NtpTime;
use tactus_core::rtsp::session::SessionId;
use tactus_core::rtsp::transport::Ports;
use tactus_sys::packets::udp_output;
use tactus_sys::udp_input;
use tokio::net::UdpSocket;

use super::reports::{self, Report, ReportDatagram, now_and_wall};
use super::settings::RtspSettings;
use super::{Reason, Server};

/// All port pairs.
pub(super) struct PortPairs {
    settings: RtspSettings,
    open: Mutex<HashMap<IpAddr, Arc<Pair>>>,
    groups: Mutex<HashMap<udp_output::UdpOptions, Arc<UdpOutput>>>,
}

/// One port pair.
pub(super) struct Pair {
    pub(super) udp_output: Arc<UdpOutput>,
    pub(super) ports: Ports,
    pub(super) address: IpAddr,
    reports: UdpSocket,
    /// The sessions of each receiver address.
    receivers: Mutex<HashMap<SocketAddr, Vec<SessionId>>>,
}

/// Sessions whose reports may come from one port: a player may tell several sessions apart by SSRC.
/// Each report is checked against all of them.
const RECEIVER_SESSIONS_MAX: usize = 8;

/// The destination of sender reports.
#[derive(Clone)]
pub(super) enum Listeners {
    /// One receiver, whose reports come to the pair.
    One(Arc<Pair>, SocketAddr),
    /// A multicast group: its receivers are unknown, so their reports do not count.
    Group(Arc<std::net::UdpSocket>, SocketAddr),
}

/// Attempts to find a pair: the kernel picks ports at random, half of them are even, and few of the
/// next ones are in use.
const TRIES: u32 = 64;
/// Longest report; longer ones are truncated and therefore malformed.
const REPORT_MAX: usize = 2048;

impl PortPairs {
    pub(super) fn new(settings: &RtspSettings) -> Self {
        Self { settings: settings.clone(), open: Mutex::default(), groups: Mutex::default() }
    }

    fn options(&self, from: IpAddr) -> udp_output::UdpOptions {
        udp_output::UdpOptions {
            from,
            interface: None,
            hops: None,
            dscp: self.settings.dscp,
            heard_here: true,
            buffer: UDP_BUFFER,
        }
    }

    /// The UDP output for multicast groups of the family of `group`.
    pub(super) fn for_group(&self, group: IpAddr, hops: u8) -> io::Result<Arc<UdpOutput>> {
        let interface = self.settings.interface.as_deref().map(udp_input::interface).transpose()?;
        let any = match group {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let options = udp_output::UdpOptions { interface, hops: Some(hops), ..self.options(any) };
        let mut open = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(udp_output) = open.get(&options) {
            return Ok(Arc::clone(udp_output));
        }
        let udp_output = UdpOutput::of(udp_output::open(&options)?, self.settings.class);
        open.insert(options, Arc::clone(&udp_output));
        Ok(udp_output)
    }
}

impl Pair {
    fn open(pairs: &PortPairs, address: IpAddr) -> io::Result<Self> {
        // A link-local address needs its interface to be bound.
        let from = match address {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            address => address,
        };
        let mut failed = io::Error::from(io::ErrorKind::AddrInUse);
        // Unsuitable sockets stay open until one fits, so that the kernel picks other ports.
        let mut unfit = vec![];
        for _ in 0..TRIES {
            let udp_output = udp_output::open(&pairs.options(from))?;
            let port = udp_output::address(&udp_output)?.port();
            if let Some(ports) = Ports::even(port) {
                match std::net::UdpSocket::bind(SocketAddr::new(from, ports.rtcp())) {
                    Ok(reports) => {
                        reports.set_nonblocking(true)?;
                        let reports = UdpSocket::from_std(reports)?;
                        let udp_output = UdpOutput::of(udp_output, pairs.settings.class);
                        let receivers = Mutex::default();
                        return Ok(Self { udp_output, ports, address, reports, receivers });
                    }
                    Err(error) => failed = error,
                }
            }
            unfit.push(udp_output);
        }
        Err(failed)
    }

    fn receivers(&self) -> MutexGuard<'_, HashMap<SocketAddr, Vec<SessionId>>> {
        self.receivers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the limit of sessions for reports from `from` is reached.
    pub(super) fn is_full(&self, from: SocketAddr) -> bool {
        self.receivers().get(&from).is_some_and(|known| known.len() >= RECEIVER_SESSIONS_MAX)
    }

    /// Counts reports from `from` for this session, unless the limit is reached, which only
    /// concurrent SETUPs can cause.
    pub(super) fn expect(&self, from: SocketAddr, id: SessionId) {
        let mut receivers = self.receivers();
        let sessions = receivers.entry(from).or_default();
        if sessions.len() < RECEIVER_SESSIONS_MAX && !sessions.contains(&id) {
            sessions.push(id);
        }
    }

    /// Ignores reports for this session from now on.
    pub(super) fn forget(&self, from: SocketAddr, id: SessionId) {
        let mut receivers = self.receivers();
        if let Some(sessions) = receivers.get_mut(&from) {
            sessions.retain(|known| *known != id);
            if sessions.is_empty() {
                receivers.remove(&from);
            }
        }
    }
}

impl Listeners {
    /// Sends a sender report if the socket has room: reports may be lost.
    pub(super) fn report(&self, bytes: &[u8]) {
        let (to, sent) = match self {
            Self::One(pair, to) => (to, pair.reports.try_send_to(bytes, *to)),
            Self::Group(socket, to) => (to, socket.send_to(bytes, to)),
        };
        if let Err(error) = sent {
            tracing::debug!(%to, %error, "an RTCP report was not sent");
        }
    }

    /// The pair and the address of the receiver's reports; `None` for a group.
    pub(super) fn receiver(&self) -> Option<(Arc<Pair>, SocketAddr)> {
        match self {
            Self::One(pair, from) => Some((Arc::clone(pair), *from)),
            Self::Group(..) => None,
        }
    }
}

impl Server {
    /// The pair of a local address, opened at its first use.
    pub(super) fn pair(self: &Arc<Self>, address: IpAddr) -> io::Result<Arc<Pair>> {
        let mut open = self.pairs.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pair) = open.get(&address) {
            return Ok(Arc::clone(pair));
        }
        let pair = Arc::new(Pair::open(&self.pairs, address)?);
        open.insert(address, Arc::clone(&pair));
        self.tasks().spawn(hear(Arc::clone(self), Arc::clone(&pair)));
        Ok(pair)
    }

    fn handle_report(&self, pair: &Pair, from: SocketAddr, bytes: &[u8]) {
        let from = SocketAddr::new(from.ip().to_canonical(), from.port());
        let sessions = pair.receivers().get(&from).cloned().unwrap_or_default();
        let heard = reports::read(bytes).filter(|_| !sessions.is_empty());
        let Some(heard) = heard else { return self.counters.bad_report() };
        self.counters.report();
        for id in sessions {
            self.handle(&heard, id);
        }
    }

    /// Handles a report of a session's receiver.
    pub(super) fn handle(&self, heard: &ReportDatagram, id: SessionId) {
        let (now, wall) = now_and_wall();
        let wrong = self.receptions.handle(id, &heard.receptions, (now, NtpTime::of(wall)));
        if wrong > 0 {
            self.counters.bad_report();
        }
        match heard.report {
            Report::Alive => self.sessions().handle_report(now, id),
            Report::Bye => {
                tracing::debug!(session = ?id, "the receiver sent BYE; the session ends");
                self.sessions().handle_over(id);
                self.end_stream(id);
            }
        }
    }
}

/// Reads receiver reports.
async fn hear(server: Arc<Server>, pair: Arc<Pair>) {
    let mut bytes = [0; REPORT_MAX];
    loop {
        match pair.reports.recv_from(&mut bytes).await {
            Ok((len, from)) => server.handle_report(&pair, from, &bytes[..len]),
            // ICMP errors of undeliverable packets are not reports.
            Err(error) => {
                tracing::debug!(%error, "cannot read RTCP reports");
                server.counters.refuse(Reason::Malformed);
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        }
    }
}
