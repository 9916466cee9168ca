//! One recording from its beginning to its end: socket, clock, alarms.
//!
//! Promise: the socket is read at most at twice the reserved rate, so the excess of a flood stays
//! in the kernel, which drops and counts it (row D02). The disk never delays the socket. A missing
//! interface or a full disk is retried until the recording is stopped.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tactus_control::access::{self, Protocol, Record};
use tactus_core::ts::{Mark, PACKET};
use tactus_core::units::{BitRate, KIB, MIB, MonoTime, Nanos, SECOND, WallTime};
use tactus_notation::Auto;
use tactus_storage::store::{Precondition, Principal};
use tactus_sys::clock;
use tactus_sys::udp_input::{self, BATCH, InputOptions, UdpInput};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use super::cut::{Cutter, Step};
use super::reception::{IncomingDatagram, Reception};
use super::retention;
use super::status::{Alarm, Counts, State, StatusCell};
use super::titles::{Admission, Cause, EndedTitle, PushResult, Titles};
use super::{Names, RecordingVolume};
use crate::pattern::Occasion;
use crate::recording::Recording;

/// A recording that has not begun.
pub(super) struct Session {
    pub(super) recording: Recording,
    pub(super) principal: Principal,
    pub(super) target: RecordingVolume,
    pub(super) board: Arc<StatusCell>,
    pub(super) names: Arc<Names>,
}

/// Interval between attempts to open the input or a title.
const RETRY: Duration = Duration::from_secs(5);
/// Interval of the timers' check.
const TICK: Duration = Duration::from_millis(50);
/// Socket buffer for a stream of unknown rate: it covers the delays of a busy host.
const BUFFER: usize = 8 * MIB as usize;
/// Bounds of the socket buffer for a known rate; it holds two seconds of the stream.
const BUFFERS: std::ops::RangeInclusive<usize> = MIB as usize..=32 * MIB as usize;
/// Upper bound of the reading rate while the stream's rate is unknown.
const UNKNOWN: BitRate = BitRate(100_000_000);
/// A stream whose clock gives no rate within this time is recorded without one.
const CLOCK_WAIT: Nanos = SECOND.times(10);
/// Interval of the retention check.
const RETENTION_EVERY: Nanos = SECOND.times(600);
/// Upper bound of batches that are read at the end from the kernel's buffer.
const LAST_BATCHES: usize = 4096;
/// After this silence, a title whose time is over no longer waits for a place to cut, and the
/// packets held back for it are stored.
const QUIET: Nanos = SECOND;
/// PIDs whose gaps are reported individually.
const PIDS_MAX: usize = 32;

impl Session {
    /// Records until it is stopped, then stores the received packets.
    pub(super) async fn run(self, mut stop: watch::Receiver<bool>) {
        if let Some(mut inbox) = self.open(&mut stop).await {
            let first = self.first_number().await;
            let mut running = RunningRecording::new(self, first);
            running.receive_until(&mut inbox, &mut stop).await;
            running.end(&mut inbox.datagrams).await;
        } else {
            self.board.status().state = State::Stopped;
        }
    }

    async fn open(&self, stop: &mut watch::Receiver<bool>) -> Option<Inbox> {
        loop {
            match self.try_open() {
                Ok(inbox) => {
                    self.board.clear(Alarm::Input);
                    return Some(inbox);
                }
                Err(error) => {
                    let from = &self.recording.from;
                    let what = format!("{from} cannot be received: {error}; it is tried again");
                    self.board.raise(Alarm::Input, what);
                }
            }
            tokio::select! {
                () = tokio::time::sleep(RETRY) => {}
                () = stopped(stop) => return None,
            }
        }
    }

    fn try_open(&self) -> io::Result<Inbox> {
        let interface = match &self.recording.interface {
            Some(name) => Some(udp_input::interface(name)?),
            None => None,
        };
        let buffer = self.rate().map_or(BUFFER, |rate| {
            let bytes = rate.bytes_in(SECOND.times(2)).0;
            usize::try_from(bytes).unwrap_or(usize::MAX).clamp(*BUFFERS.start(), *BUFFERS.end())
        });
        let from = self.recording.from;
        // Unicast sources are compared here, so that datagrams of other senders are counted.
        let source = from.source.filter(|_| from.to.ip().is_multicast());
        let inbox = UdpInput::open(&InputOptions { to: from.to, source, interface, buffer })?;
        let mut status = self.board.status();
        status.address = inbox.address().ok().map(|address| address.to_string());
        // The kernel doubles the requested size, and gives less at its limit.
        let given = inbox.buffer()?;
        status.socket_buffer_bytes = given as u64;
        if given < buffer {
            tracing::warn!(
                recording = status.name,
                "the kernel holds {given} bytes of {buffer}; raise net.core.rmem_max, or bursts \
                 are lost"
            );
        }
        drop(status);
        // A second handle of the same socket, which only signals readiness.
        let handle = std::net::UdpSocket::from(inbox.as_fd().try_clone_to_owned()?);
        Ok(Inbox { ready: UdpSocket::from_std(handle)?, datagrams: inbox })
    }

    /// The number of the next title: one more than the highest existing one.
    async fn first_number(&self) -> u64 {
        if !self.recording.to.has_counter() {
            return 1;
        }
        let (target, to) = (self.target.clone(), self.recording.to.clone());
        let look = move || {
            let titles = retention::titles(&target.root, &target.mount, &to);
            titles.iter().map(|title| title.number).max().unwrap_or(0)
        };
        tokio::task::spawn_blocking(look).await.unwrap_or(0).saturating_add(1)
    }

    fn rate(&self) -> Option<BitRate> {
        match self.recording.rate {
            Auto::Set(rate) => Some(rate),
            Auto::Auto => None,
        }
    }
}

/// A socket and its readiness.
struct Inbox {
    ready: UdpSocket,
    datagrams: UdpInput,
}

/// A recording whose socket is open.
struct RunningRecording {
    reception: Reception,
    flow: Flow,
    allowance: Allowance,
    /// The reserved rate; none: the rate is not known yet, or never will be.
    reserved: Option<BitRate>,
    is_admitted: bool,
    /// Since when the recording waits for the stream's clock.
    valid_since: Option<MonoTime>,
    /// The kernel's count of dropped datagrams at the last check.
    dropped: u32,
    dropped_at: MonoTime,
    retention: Option<JoinHandle<u64>>,
    retention_at: MonoTime,
    /// The counters of dropped datagrams at the last check.
    counted: Counts,
    counted_at: MonoTime,
}

/// The path of packets from the cutter to titles.
struct Flow {
    session: Session,
    cutter: Cutter,
    titles: Titles,
    /// Counts of gaps and titles; the reception has the others.
    counts: Counts,
    removed: Arc<AtomicU64>,
    /// Data has been dropped, and none accepted since.
    in_gap: bool,
    /// After a failure, no title begins before this time.
    retry_at: Option<MonoTime>,
    has_begun: bool,
    number: u64,
    /// When the last packet arrived.
    packet_at: MonoTime,
}

impl RunningRecording {
    fn new(session: Session, first: u64) -> Self {
        let now = clock::now();
        let Recording { from, silence, rotate, .. } = &session.recording;
        let reserved = session.rate();
        let reception = Reception::new(from.kind, from.source, *silence);
        let cutter = Cutter::new(*rotate);
        let (target, names) = (session.target.clone(), Arc::clone(&session.names));
        let (principal, board) = (session.principal.clone(), Arc::clone(&session.board));
        let titles = Titles::new(target, principal, names, board, reserved);
        let flow = Flow {
            session,
            cutter,
            titles,
            counts: Counts::default(),
            removed: Arc::default(),
            in_gap: false,
            retry_at: None,
            has_begun: false,
            number: first,
            packet_at: now,
        };
        Self {
            reception,
            flow,
            allowance: Allowance::new(now, reserved.unwrap_or(UNKNOWN)),
            reserved,
            is_admitted: reserved.is_some(),
            valid_since: None,
            dropped: 0,
            dropped_at: now,
            retention: None,
            retention_at: now,
            counted: Counts::default(),
            counted_at: now,
        }
    }

    async fn receive_until(&mut self, inbox: &mut Inbox, stop: &mut watch::Receiver<bool>) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stopped(stop) => return,
                ended = self.flow.titles.ended() => self.handle_ended(ended),
                _ = tick.tick() => self.handle_tick(&inbox.datagrams),
                ready = inbox.ready.readable(), if self.allowance.is_left() => {
                    let Inbox { ready: socket, datagrams } = &mut *inbox;
                    let receive = || self.receive(datagrams);
                    let received = ready.and_then(|()| socket.try_io(Interest::READABLE, receive));
                    if let Err(error) = received
                        && error.kind() != io::ErrorKind::WouldBlock
                    {
                        let what = format!("receiving fails: {error}");
                        self.board().raise(Alarm::Input, what);
                        tokio::time::sleep(TICK).await;
                    }
                }
            }
        }
    }

    /// Reads some of the received datagrams.
    fn receive(&mut self, inbox: &mut UdpInput) -> io::Result<usize> {
        let now = clock::now();
        let Self { reception, flow, allowance, .. } = self;
        allowance.handle_time(now);
        inbox.receive(|datagram| {
            allowance.take(datagram.bytes.len());
            let udp_input::Datagram { from, bytes, is_cut, .. } = datagram;
            let came = IncomingDatagram { now, from, bytes, is_cut };
            reception.handle(came, |packet, mark| flow.handle_packet(now, packet, mark));
        })
    }

    fn handle_tick(&mut self, inbox: &UdpInput) {
        let now = clock::now();
        self.allowance.handle_time(now);
        let Self { reception, flow, .. } = self;
        reception.poll(now, |packet, mark| flow.handle_packet(now, packet, mark));
        flow.handle_tick(now);
        self.admit(now);
        self.watch(now);
        if now.since(self.counted_at) >= SECOND {
            self.watch_input(now);
        }
        if now.since(self.dropped_at) >= SECOND {
            self.dropped_at = now;
            self.ask_for_drops(inbox);
        }
        if now.since(self.retention_at) >= RETENTION_EVERY {
            self.retain(now);
        }
        self.tell(now, false);
    }

    /// Permits titles once the rate is known, or is known to stay unknown.
    fn admit(&mut self, now: MonoTime) {
        if self.is_admitted {
            return;
        }
        if let Some(measured) = self.reception.rate() {
            // A quarter more, for variable rates.
            let rate = BitRate(measured.0.saturating_add(measured.0 / 4));
            self.reserved = Some(rate);
            self.is_admitted = true;
            self.allowance.set_rate(rate);
            self.flow.titles.admit(Admission { rate: Some(rate) });
        } else if self.reception.last().is_some()
            && now.since(*self.valid_since.get_or_insert(now)) >= CLOCK_WAIT
        {
            self.is_admitted = true;
            self.flow.titles.admit(Admission { rate: None });
            let what = "the stream's clock tells no rate, so nothing is reserved; say it by `rate`";
            let what = match dropped(&self.reception.counts(), &Counts::default()) {
                Some(cause) => format!("{what}; {cause}"),
                None => what.to_owned(),
            };
            self.board().raise(Alarm::Reserve, what);
        } else if self.flow.is_quiet(now) {
            // The next title may get a rate again. The rest of this one continues without one.
            self.flow.titles.admit(Admission { rate: None });
        }
    }

    /// Reports why most datagrams since the last check were dropped, if they were.
    fn watch_input(&mut self, now: MonoTime) {
        let counts = self.reception.counts();
        match dropped(&counts, &self.counted) {
            Some(cause) => self.board().raise(Alarm::Input, cause),
            None if counts.datagrams > self.counted.datagrams => self.board().clear(Alarm::Input),
            None => {}
        }
        (self.counted, self.counted_at) = (counts, now);
    }

    fn watch(&self, now: MonoTime) {
        let board = self.board();
        let silence = self.flow.session.recording.silence;
        match self.reception.last() {
            Some(last) if now.since(last) > silence => {
                let what = format!("nothing has come for {silence}");
                board.raise(Alarm::Silence, what);
            }
            Some(_) => board.clear(Alarm::Silence),
            None if now.since(self.flow.packet_at) > silence => {
                board.raise(Alarm::Silence, "nothing has come since it began");
            }
            None => {}
        }
        if let (Some(measured), Some(reserved)) = (self.reception.rate(), self.reserved) {
            if measured > reserved {
                let what = format!("{measured} come, and {reserved} are reserved");
                board.raise(Alarm::Rate, what);
            } else {
                board.clear(Alarm::Rate);
            }
        }
    }

    fn ask_for_drops(&mut self, inbox: &UdpInput) {
        if let Ok(dropped) = inbox.dropped() {
            let more = dropped.wrapping_sub(self.dropped);
            self.flow.counts.socket_dropped += u64::from(more);
            self.dropped = dropped;
        }
    }

    fn handle_ended(&mut self, ended: EndedTitle) {
        let now = clock::now();
        if self.flow.handle_ended(now, ended) {
            self.retain(now);
        }
    }

    /// Deletes surplus titles in the background.
    fn retain(&mut self, now: MonoTime) {
        self.retention_at = now;
        let keep = self.flow.session.recording.keep;
        let is_under_way = self.retention.as_ref().is_some_and(|task| !task.is_finished());
        if !keep.is_limited() || is_under_way {
            return;
        }
        let target = self.flow.session.target.clone();
        let to = self.flow.session.recording.to.clone();
        let removed = Arc::clone(&self.flow.removed);
        self.retention = Some(tokio::spawn(async move {
            let (root, mount) = (target.root.clone(), target.mount.clone());
            let look = move || {
                let mut titles = retention::titles(&root, &mount, &to);
                titles.truncate(retention::surplus(&titles, &keep, wall()));
                titles
            };
            let surplus = tokio::task::spawn_blocking(look).await.unwrap_or_default();
            let mut gone = 0;
            for title in surplus {
                let path = &title.name[target.mount.len()..];
                match target.store.delete(path, Precondition::Any).await {
                    Ok(()) => {
                        gone += 1;
                        removed.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) => tracing::warn!(title = title.name, %error, "it stays"),
                }
            }
            gone
        }));
    }

    async fn end_of_retention(&mut self) {
        if let Some(retention) = self.retention.take()
            && retention.await.is_err()
        {
            tracing::error!("titles that should go have stayed");
        }
    }

    /// Stops receiving, and stores the received packets.
    async fn end(mut self, inbox: &mut UdpInput) {
        let mut batches = 0;
        // Without the rate limit: these datagrams have arrived already.
        while batches < LAST_BATCHES && self.receive(inbox).is_ok_and(|count| count == BATCH) {
            batches += 1;
        }
        let now = clock::now();
        self.ask_for_drops(inbox);
        let Self { reception, flow, .. } = &mut self;
        reception.end(now, |packet, mark| flow.handle_packet(now, packet, mark));
        flow.end(now);
        self.admit(now);
        if !self.is_admitted {
            self.flow.titles.admit(Admission { rate: None });
        }
        self.tell(now, false);
        while self.flow.titles.is_busy() {
            let ended = self.flow.titles.ended().await;
            self.handle_ended(ended);
        }
        // A check that was under way may have missed the last title: it is repeated once.
        self.end_of_retention().await;
        self.retain(clock::now());
        self.end_of_retention().await;
        for alarm in [Alarm::Silence, Alarm::Rate, Alarm::Input, Alarm::Reserve] {
            self.board().clear(alarm);
        }
        self.tell(clock::now(), true);
    }

    /// Updates the status.
    fn tell(&self, now: MonoTime, is_over: bool) {
        let (seen, own) = (self.reception.counts(), self.flow.counts);
        let counts = Counts {
            socket_dropped: own.socket_dropped,
            write_gaps: own.write_gaps,
            write_gap_bytes: own.write_gap_bytes,
            titles: own.titles,
            stored_bytes: own.stored_bytes,
            titles_failed: own.titles_failed,
            titles_removed: self.flow.removed.load(Ordering::Relaxed),
            ..seen
        };
        let silence = self.flow.session.recording.silence;
        let gaps = self.reception.gaps().take(PIDS_MAX).map(|(pid, gaps)| (pid.0, gaps)).collect();
        let mut status = self.board().status();
        status.state = match self.reception.last() {
            _ if is_over => State::Stopped,
            None => State::Waiting,
            Some(last) if now.since(last) > silence => State::Silent,
            Some(_) => State::Recording,
        };
        status.source = self.reception.sender().map(|sender| sender.to_string());
        status.rate_bits_per_second = self.reserved.map(|rate| rate.0);
        status.measured_rate_bits_per_second = self.reception.rate().map(|rate| rate.0);
        let title = self.flow.titles.current();
        status.title = title.map(|(name, ..)| format!("/{name}"));
        (status.title_bytes, status.title_durable_bytes) =
            title.map_or((0, 0), |(_, len, durable)| (len, durable));
        status.counts = counts;
        status.gaps_by_pid = gaps;
    }

    fn board(&self) -> &StatusCell {
        &self.flow.session.board
    }
}

impl Flow {
    fn handle_packet(&mut self, now: MonoTime, packet: &[u8; PACKET], mark: Mark) {
        self.packet_at = now;
        // The cutter is taken out, because the rest is used while it decides.
        let none = Cutter::new(None);
        let mut cutter = std::mem::replace(&mut self.cutter, none);
        cutter.handle_packet(now, packet, mark, |step| self.handle_step(now, step));
        if std::mem::take(&mut self.has_begun) {
            cutter.begin(now, wall());
        }
        self.cutter = cutter;
    }

    fn handle_step(&mut self, now: MonoTime, step: Step<'_>) {
        let packets = match step {
            Step::Packets(packets) => packets,
            Step::Cut => {
                // The title continues while older ones are still being stored.
                if self.titles.may_cut() {
                    let pushed = self.titles.close(true);
                    self.count(pushed);
                } else {
                    self.has_begun = true;
                }
                return;
            }
        };
        if !self.titles.has_current() {
            if self.retry_at.is_some_and(|at| now < at) {
                self.count(PushResult::Dropped(packets.len() as u64));
                return;
            }
            self.retry_at = None;
            let occasion = Occasion { time: wall(), number: self.number };
            self.number += 1;
            self.titles.begin(self.session.recording.to.name(occasion));
            self.has_begun = true;
        }
        let pushed = self.titles.push(now, packets);
        self.count(pushed);
    }

    fn handle_tick(&mut self, now: MonoTime) {
        if !self.titles.has_current() {
            return;
        }
        if self.is_quiet(now) {
            self.release(now);
            let is_over = now.since(self.packet_at) >= self.session.recording.silence;
            // The title stays open while older ones are still being stored.
            if (is_over || self.cutter.is_due(now)) && self.titles.may_cut() {
                self.cutter.handle_loss();
                let pushed = self.titles.close(false);
                return self.count(pushed);
            }
        }
        let pushed = self.titles.handle_tick(now);
        self.count(pushed);
    }

    /// Whether the source has stopped, as far as it can be detected.
    fn is_quiet(&self, now: MonoTime) -> bool {
        now.since(self.packet_at) >= QUIET
    }

    /// Passes on the packets that were held back for the cut.
    fn release(&mut self, now: MonoTime) {
        let mut cutter = std::mem::replace(&mut self.cutter, Cutter::new(None));
        cutter.end(|step| self.handle_step(now, step));
        self.cutter = cutter;
    }

    fn end(&mut self, now: MonoTime) {
        self.release(now);
        let pushed = self.titles.close(false);
        self.count(pushed);
    }

    fn count(&mut self, pushed: PushResult) {
        match pushed {
            PushResult::Kept => {}
            PushResult::Taken => {
                if std::mem::take(&mut self.in_gap) {
                    self.session.board.clear(Alarm::Stall);
                }
            }
            PushResult::Dropped(bytes) => {
                self.counts.write_gap_bytes += bytes;
                if !std::mem::replace(&mut self.in_gap, true) {
                    self.counts.write_gaps += 1;
                    // Without a title, the failure was reported already.
                    if self.titles.has_current() {
                        let what = "the disk does not take what comes, and it is being dropped";
                        self.session.board.raise(Alarm::Stall, what);
                    }
                }
            }
        }
    }

    /// Handles the end of a title; true when it was stored.
    fn handle_ended(&mut self, now: MonoTime, ended: EndedTitle) -> bool {
        let EndedTitle { name, result, cut_short, lost, was_current, .. } = ended;
        if was_current {
            self.cutter.handle_loss();
        }
        if lost > 0 {
            self.count(PushResult::Dropped(lost));
        }
        let board = &self.session.board;
        let recording = &*self.session.recording.name;
        if let Some(failure) = cut_short.as_ref().filter(|failure| failure.cause != Cause::Long) {
            let how =
                if matches!(result, Ok(0)) { "is not stored" } else { "ends before its time" };
            board.raise(Alarm::Storage, format!("/{name} {how}: {}", failure.what));
            self.retry_at = Some(now + RETRY_NANOS);
        }
        match result {
            // The title was empty.
            Ok(0) => false,
            Ok(len) => {
                self.counts.titles += 1;
                self.counts.stored_bytes += len;
                if cut_short.is_none() {
                    board.clear(Alarm::Storage);
                }
                tracing::info!(recording, title = name, bytes = len, "stored");
                access::record(Record {
                    name: Some(recording.to_owned()),
                    outcome: Some("stored".to_owned()),
                    received_bytes: len,
                    ..Record::new(Protocol::Recording, "title", format!("/{name}"))
                });
                board.status().last_title = Some(format!("/{name}"));
                true
            }
            Err(failure) => {
                self.counts.titles_failed += 1;
                board.raise(Alarm::Storage, format!("/{name} is not stored: {}", failure.what));
                self.retry_at = Some(now + RETRY_NANOS);
                false
            }
        }
    }
}

const RETRY_NANOS: Nanos = SECOND.times(5);

/// The reading allowance: twice the rate, so that a sender's bursts are not lost and a flood is not
/// read.
struct Allowance {
    rate: BitRate,
    /// Negative when a batch was larger than the rest.
    bytes: i64,
    last: MonoTime,
}

impl Allowance {
    fn new(now: MonoTime, rate: BitRate) -> Self {
        let mut allowance = Self { rate: BitRate(0), bytes: 0, last: now };
        allowance.set_rate(rate);
        allowance.bytes = allowance.most();
        allowance
    }

    fn set_rate(&mut self, rate: BitRate) {
        self.rate = BitRate(rate.0.saturating_mul(2));
        self.bytes = self.bytes.min(self.most());
    }

    /// The bytes of a second, and at least the burst of a slow stream's sender.
    fn most(&self) -> i64 {
        let second = self.rate.bytes_in(SECOND).0.max(256 * KIB);
        i64::try_from(second).unwrap_or(i64::MAX)
    }

    fn handle_time(&mut self, now: MonoTime) {
        let more = self.rate.bytes_in(now.since(self.last));
        // Time that is worth less than a byte is kept.
        if more.0 > 0 {
            self.last = now;
            let more = i64::try_from(more.0).unwrap_or(i64::MAX);
            self.bytes = self.bytes.saturating_add(more).min(self.most());
        }
    }

    fn take(&mut self, bytes: usize) {
        self.bytes -= bytes as i64;
    }

    fn is_left(&self) -> bool {
        self.bytes > 0
    }
}

/// The reason for which most datagrams since `before` were dropped; none when most were not.
fn dropped(counts: &Counts, before: &Counts) -> Option<String> {
    let came = counts.datagrams - before.datagrams;
    let causes = counts.dropped().into_iter().zip(before.dropped());
    let causes = causes.map(|((now, why), (before, _))| (now - before, why));
    let (count, why) = causes.max_by_key(|&(count, _)| count)?;
    (count > 0 && count * 2 >= came)
        .then(|| format!("{count} of {came} received datagrams were dropped: they {why}"))
}

/// Waits for the stop of the recording, or for the end of its sender.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    drop(stop.wait_for(|stop| *stop).await);
}

fn wall() -> WallTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    WallTime(u64::try_from(since.as_nanos()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d02_a_stream_is_read_at_twice_its_rate_and_no_faster() {
        let rate = BitRate(8_000_000);
        let mut now = MonoTime(0);
        let mut allowance = Allowance::new(now, rate);
        let mut read = 0;
        for _ in 0..1000 {
            now += Nanos::from_millis(10);
            allowance.handle_time(now);
            while allowance.is_left() {
                allowance.take(1316);
                read += 1316;
            }
        }
        // Ten seconds of 2 MB, and the burst at the beginning.
        assert!((20_000_000..22_100_000).contains(&read), "{read}");
    }
}
