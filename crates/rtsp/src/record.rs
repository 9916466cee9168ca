//! A record session: received packets become a transport stream, which is stored as a title.
//!
//! Promise: the received part becomes a title, whether the recording ends by TEARDOWN, with its
//! connection, by silence or by a crash. Only packets of the recording client count; it gets
//! receiver reports. Backpressure slows a sender that records within its connection. A sender of
//! datagrams loses the chunks that do not fit into the queue of [`QUEUE`]; they are counted.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tactus_control::access::{self, Protocol, Record};
use tactus_control::recording::Recording;
use tactus_core::assembly::{Assembly, Counts};
use tactus_core::rtp::rtcp::Compound;
use tactus_core::rtsp::session::SessionId;
use tactus_core::rtsp::transport::Ports;
use tactus_core::sdp::MEDIA_MAX;
use tactus_core::units::{BitRate, MIB, MonoTime, Nanos, SECOND};
use tactus_storage::store::ResumeError;
use tactus_sys::clock;
use tactus_sys::udp_input::{InputOptions, UdpInput};
use tokio::net::UdpSocket;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use super::reports::NAME;
use super::transport::report_frame;
use super::{Server, Status};

/// Packets that are received and not processed yet.
const CAME_MAX: usize = 512;
/// Bytes that are handed to storage at once.
const CHUNK: usize = 64 * 1024;
/// Chunks that wait for the disk: seconds at usual rates.
const QUEUE: usize = 128;
/// Interval of the check for packets that need not wait any more.
const LOOK: Duration = Duration::from_millis(50);
/// Interval of receiver reports (RFC 3550, section 6.2).
const REPORT_EACH: Nanos = SECOND.times(5);
/// Reports that wait for the connection: one for each medium.
const REPORTS_MAX: usize = MEDIA_MAX;
/// A partial chunk is handed over after this many checks.
const LOOKS: u32 = 4;
/// The kernel's receive buffer of a medium: a second of 16 Mbit/s.
const BUFFER: usize = 2 * MIB as usize;
/// Longest report.
const REPORT_MAX: usize = 2048;
/// Attempts to find a pair: the kernel picks ports at random, half of them are even, and few of the
/// next ones are in use.
const TRIES: u32 = 64;
/// Packets that were sent before the end arrive within this time.
const GRACE: Duration = Duration::from_millis(300);
/// A title is stored within this time unless the disk hangs; then it is stored in the background.
const END_MAX: Duration = Duration::from_secs(10);

/// A received packet of a medium.
pub(super) struct IncomingPacket {
    pub(super) nth: usize,
    pub(super) is_report: bool,
    pub(super) bytes: Box<[u8]>,
}

/// The sockets of one medium that is received over UDP.
pub(super) struct Sockets {
    packets: UdpInput,
    reports: Arc<UdpSocket>,
    pub(super) ports: Ports,
    /// The destination of receiver reports.
    to: SocketAddr,
}

/// Where receiver reports for this medium go.
enum Reporter {
    Datagrams(Arc<UdpSocket>, SocketAddr),
    /// The RTCP channel of the medium.
    Frames(u8),
}

/// The shared handle of a recording.
pub(super) struct RecordSession {
    /// The path of its title, as requested.
    pub(super) title: String,
    from: SocketAddr,
    principal: Option<String>,
    rate: BitRate,
    bytes: AtomicU64,
    /// Set when it is to end.
    stop: watch::Sender<Option<Instant>>,
    /// The result of the recording.
    end: watch::Receiver<Option<Result<(), String>>>,
}

/// The parts of a recording.
pub(super) struct Parts {
    pub(super) server: Weak<Server>,
    pub(super) id: SessionId,
    pub(super) title: String,
    pub(super) from: SocketAddr,
    pub(super) principal: Option<String>,
    pub(super) rate: BitRate,
    pub(super) assembly: Assembly,
    pub(super) recording: Recording,
    /// By the number of the medium; empty for interleaved media.
    pub(super) sockets: Vec<(usize, Sockets)>,
    /// The RTCP channels of interleaved media, by the number of the medium.
    pub(super) channels: Vec<u8>,
    /// The SSRC of receiver reports.
    pub(super) source: u32,
}

/// The queues between a recording and the connection that carries it.
pub(super) struct Ends {
    /// Interleaved packets.
    pub(super) give: mpsc::Sender<IncomingPacket>,
    /// Reports, framed for the connection.
    pub(super) reports: mpsc::Receiver<Box<[u8]>>,
}

impl Sockets {
    /// The sockets of a local address; `to` is the destination of receiver reports.
    pub(super) fn open(own: IpAddr, to: SocketAddr) -> io::Result<Self> {
        let mut failed = io::Error::from(io::ErrorKind::AddrInUse);
        // Unsuitable sockets stay open until one fits, so that the kernel picks other ports.
        let mut unfit = vec![];
        for _ in 0..TRIES {
            let any = SocketAddr::new(own, 0);
            let wanted = InputOptions { to: any, source: None, interface: None, buffer: BUFFER };
            let packets = UdpInput::open(&wanted)?;
            if let Some(ports) = Ports::even(packets.address()?.port()) {
                match std::net::UdpSocket::bind(SocketAddr::new(own, ports.rtcp())) {
                    Ok(reports) => {
                        reports.set_nonblocking(true)?;
                        let reports = Arc::new(UdpSocket::from_std(reports)?);
                        return Ok(Self { packets, reports, ports, to });
                    }
                    Err(error) => failed = error,
                }
            }
            unfit.push(packets);
        }
        Err(failed)
    }

    /// Passes on datagrams of `peer` until the receiver is closed, then those that have already
    /// arrived.
    async fn hear(
        mut self,
        nth: usize,
        peer: IpAddr,
        came: mpsc::Sender<IncomingPacket>,
        mut end: watch::Receiver<()>,
    ) -> io::Result<()> {
        // A second handle of the same socket, which only waits for readiness.
        let handle = std::net::UdpSocket::from(self.packets.as_fd().try_clone_to_owned()?);
        let ready = UdpSocket::from_std(handle)?;
        let mut report = [0; REPORT_MAX];
        loop {
            let mut packets = vec![];
            tokio::select! {
                readable = ready.readable() => {
                    readable?;
                    let receive = || match self.receive(peer, &mut packets)? {
                        0 => Err(io::ErrorKind::WouldBlock.into()),
                        _ => Ok(()),
                    };
                    match ready.try_io(tokio::io::Interest::READABLE, receive) {
                        Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                            tracing::debug!(%error, "a recording's socket");
                        }
                        _ => {}
                    }
                }
                heard = self.reports.recv_from(&mut report) => {
                    // ICMP errors of undeliverable packets are not reports.
                    let Ok((len, from)) = heard else { continue };
                    if from.ip().to_canonical() == peer {
                        let bytes = report[..len].into();
                        let packet = IncomingPacket { nth, is_report: true, bytes };
                        if came.send(packet).await.is_err() {
                            return Ok(());
                        }
                    }
                }
                _ = end.changed() => break,
            }
            for bytes in packets {
                if came.send(IncomingPacket { nth, is_report: false, bytes }).await.is_err() {
                    return Ok(());
                }
            }
        }
        let mut packets = vec![];
        let mut held = 0;
        while held < BUFFER && self.receive(peer, &mut packets)? > 0 {
            for bytes in packets.drain(..) {
                held += bytes.len();
                if came.send(IncomingPacket { nth, is_report: false, bytes }).await.is_err() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Reads a batch from the socket. Returns its size, including datagrams of other senders.
    fn receive(&mut self, peer: IpAddr, packets: &mut Vec<Box<[u8]>>) -> io::Result<usize> {
        self.packets.receive(|one| {
            if one.from.ip().to_canonical() == peer && !one.is_cut {
                packets.push(one.bytes.into());
            }
        })
    }
}

impl RecordSession {
    /// Starts a recording.
    pub(super) fn begin(parts: Parts) -> (Arc<Self>, Ends) {
        let Parts { server, id, title, from, principal, rate, assembly, recording, .. } = parts;
        let Parts { sockets, channels, source, .. } = parts;
        let (stop, stopping) = watch::channel(None);
        let (tell_end, end) = watch::channel(None);
        let (give, came) = mpsc::channel(CAME_MAX);
        let bytes = AtomicU64::new(0);
        let session = Arc::new(Self { title, from, principal, rate, bytes, stop, end });
        let mut hearing = JoinSet::new();
        let may_wait = sockets.is_empty();
        let (hears, end_of_hearing) = watch::channel(());
        let mut reporters: Vec<_> = channels.into_iter().map(Reporter::Frames).collect();
        for (nth, sockets) in sockets {
            reporters.push(Reporter::Datagrams(Arc::clone(&sockets.reports), sockets.to));
            let end = end_of_hearing.clone();
            hearing.spawn(sockets.hear(nth, from.ip().to_canonical(), give.clone(), end));
        }
        let (chunks, written) = mpsc::channel(QUEUE);
        let told = Arc::clone(&session);
        let (tell, reports) = mpsc::channel(REPORTS_MAX);
        let run = Run {
            server,
            id,
            assembly,
            came,
            hears,
            stopping,
            chunks,
            may_wait,
            dropped: 0,
            source,
            reporters,
            tell,
        };
        // Not one of the server's tasks: those are aborted at shutdown, and this one stores a
        // title.
        tokio::spawn(async move {
            let writing = tokio::spawn(write(recording, written));
            let server = Weak::clone(&run.server);
            let (counts, dropped) = run.run(&told).await;
            hearing.shutdown().await;
            let stored = match writing.await {
                Ok(stored) => stored.map_err(|error| error.to_string()),
                Err(_) => Err("the recording was interrupted".to_owned()),
            };
            let Counts { packets, lost, refused, broken, .. } = counts;
            let title = &told.title;
            tracing::info!(
                title,
                packets,
                lost,
                refused,
                broken,
                dropped,
                "a recording by RTSP ended"
            );
            access::record(Record {
                outcome: Some(stored.as_ref().err().map_or("stored", |_| "failed").to_owned()),
                ..Record::new(Protocol::Recording, "end", title.clone())
            });
            tell_end.send_replace(Some(stored));
            if let Some(server) = server.upgrade() {
                server.sessions().handle_over(id);
                server.record_sessions().remove(&id);
            }
        });
        (session, Ends { give, reports })
    }

    /// Stops receiving.
    pub(super) fn stop(&self) {
        self.stop.send_modify(|stop| {
            stop.get_or_insert_with(Instant::now);
        });
    }

    /// Ends the recording and waits until its title is stored.
    ///
    /// # Errors
    /// Why the title is not stored, or not yet.
    pub(super) async fn finish(&self) -> Result<(), String> {
        self.stop();
        let mut end = self.end.clone();
        let end = tokio::time::timeout(END_MAX, end.wait_for(Option::is_some)).await;
        match end {
            Ok(Ok(end)) => end.clone().expect("it was waited for"),
            Ok(Err(_)) => Err("the recording was interrupted".to_owned()),
            Err(_) => Err("the disk is slow; the title is still being stored".to_owned()),
        }
    }

    pub(super) fn status(&self, id: SessionId) -> Status {
        let name = id.to_string();
        Status {
            session: format!("{}..", &name[..8]),
            title: self.title.clone(),
            to: self.from.to_string(),
            state: "recording",
            principal: self.principal.clone(),
            set_rate_bits_per_second: self.rate.0,
            sent_bytes: self.bytes.load(Ordering::Relaxed),
            underruns: 0,
            receivers: vec![],
        }
    }
}

impl Server {
    /// Ends the recording; its title is stored in the background.
    pub(super) fn stop_record_session(&self, id: SessionId) {
        let session = self.record_sessions().get(&id).map(Arc::clone);
        if let Some(session) = session {
            session.stop();
        }
    }

    /// Ends all recordings and waits until their titles are stored.
    pub(super) async fn end_record_sessions(&self) {
        let record_sessions: Vec<_> = self.record_sessions().values().map(Arc::clone).collect();
        record_sessions.iter().for_each(|session| session.stop());
        for session in record_sessions {
            if let Err(error) = session.finish().await {
                tracing::warn!(
                    title = session.title,
                    error,
                    "a recording is not stored yet; storing goes on"
                );
            }
        }
    }
}

/// The running recording.
struct Run {
    server: Weak<Server>,
    id: SessionId,
    assembly: Assembly,
    came: mpsc::Receiver<IncomingPacket>,
    /// Stops the tasks that read the sockets.
    hears: watch::Sender<()>,
    stopping: watch::Receiver<Option<Instant>>,
    chunks: mpsc::Sender<Vec<u8>>,
    /// Backpressure can slow the sender.
    may_wait: bool,
    /// Bytes lost because the disk was too slow.
    dropped: u64,
    /// The SSRC of receiver reports.
    source: u32,
    /// By the number of the medium.
    reporters: Vec<Reporter>,
    /// Sends reports to the connection.
    tell: mpsc::Sender<Box<[u8]>>,
}

impl Run {
    async fn run(mut self, session: &RecordSession) -> (Counts, u64) {
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut looks, mut out) = (0, Vec::new());
        let mut heard = MonoTime(0);
        let mut told = clock::now();
        // The last datagrams may arrive after the request that ends the recording.
        let grace = if self.may_wait { Duration::ZERO } else { GRACE };
        loop {
            let came = tokio::select! {
                came = self.came.recv() => match came {
                    Some(came) => Some(came),
                    None => break,
                },
                _ = look.tick() => {
                    looks += 1;
                    None
                }
                () = stopped(&mut self.stopping, grace) => break,
            };
            let now = clock::now();
            if came.is_some_and(|came| self.handle(now, &came)) && now.since(heard) >= SECOND {
                heard = now;
                if let Some(server) = self.server.upgrade() {
                    server.sessions().handle_report(now, self.id);
                }
            }
            if now.since(told) >= REPORT_EACH {
                told = now;
                self.report(now);
            }
            self.assembly.poll(now, &mut out);
            if out.len() >= CHUNK || looks >= LOOKS {
                looks = 0;
                if !self.hand_over(session, &mut out).await {
                    break;
                }
            }
        }
        // All packets that arrived before the end belong to the recording, including queued ones.
        match self.may_wait {
            true => self.came.close(),
            false => {
                self.hears.send_replace(());
            }
        }
        while let Some(came) = self.came.recv().await {
            self.handle(clock::now(), &came);
        }
        self.assembly.handle_end(clock::now(), &mut out);
        // The rest is waited for: no more packets arrive.
        self.may_wait = true;
        self.hand_over(session, &mut out).await;
        (self.assembly.counts(), self.dropped)
    }

    fn handle(&mut self, now: MonoTime, came: &IncomingPacket) -> bool {
        match came.is_report {
            true => self.assembly.handle_report(now, came.nth, &came.bytes),
            false => self.assembly.handle_packet(now, came.nth, &came.bytes),
        }
    }

    /// Sends receiver reports, if there is room: reports may be lost.
    fn report(&mut self, now: MonoTime) {
        for (nth, reporter) in self.reporters.iter().enumerate() {
            // A medium without packets since the last report needs an empty report only.
            let receptions = Vec::from_iter(self.assembly.report(now, nth));
            let report = Compound::of_receiver(self.source, &receptions).name(self.source, NAME);
            let bytes = report.into_bytes();
            let is_sent = match reporter {
                Reporter::Datagrams(socket, to) => socket.try_send_to(&bytes, *to).is_ok(),
                Reporter::Frames(channel) => {
                    self.tell.try_send(report_frame(*channel, &bytes)).is_ok()
                }
            };
            if !is_sent {
                tracing::debug!(session = ?self.id, "an RTCP report was not sent");
            }
        }
    }

    /// False if the writer has ended.
    async fn hand_over(&mut self, session: &RecordSession, out: &mut Vec<u8>) -> bool {
        if out.is_empty() {
            return !self.chunks.is_closed();
        }
        let chunk = std::mem::take(out);
        let len = chunk.len() as u64;
        session.bytes.fetch_add(len, Ordering::Relaxed);
        if self.may_wait {
            return self.chunks.send(chunk).await.is_ok();
        }
        match self.chunks.try_send(chunk) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Full(_)) => {
                if self.dropped == 0 {
                    let title = &session.title;
                    tracing::warn!(
                        title,
                        "the disk is too slow for a recording; some of it is lost"
                    );
                }
                self.dropped += len;
                true
            }
            Err(mpsc::error::TrySendError::Closed(_)) => false,
        }
    }
}

/// Resolves some time after the stop was requested.
async fn stopped(stopping: &mut watch::Receiver<Option<Instant>>, grace: Duration) {
    let said = stopping.wait_for(Option::is_some).await.map(|said| *said);
    match said {
        Ok(said) => tokio::time::sleep_until(said.expect("it was waited for") + grace).await,
        // The stop can no longer be requested: the recording ends with its input.
        Err(_) => std::future::pending().await,
    }
}

/// Writes chunks until the queue is closed, then publishes the title.
async fn write(
    mut recording: Recording,
    mut chunks: mpsc::Receiver<Vec<u8>>,
) -> Result<(), ResumeError> {
    let failed = loop {
        let chunk = tokio::select! {
            chunk = chunks.recv() => chunk,
            error = recording.tend() => break Some(error),
        };
        let Some(chunk) = chunk else { break None };
        if let Err(error) = put(&mut recording, &chunk).await {
            break Some(error);
        }
    };
    // Closes the queue, which stops its senders.
    drop(chunks);
    recording.finish().await?;
    failed.map_or(Ok(()), Err)
}

async fn put(recording: &mut Recording, mut bytes: &[u8]) -> Result<(), ResumeError> {
    while !bytes.is_empty() {
        let space = recording.space().await?;
        let count = bytes.len().min(space.len());
        space[..count].copy_from_slice(&bytes[..count]);
        recording.advance(count);
        bytes = &bytes[count..];
    }
    Ok(())
}
