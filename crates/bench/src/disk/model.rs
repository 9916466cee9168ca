//! When a disk answers: the timing of a spinning disk and of two kinds of flash.
//!
//! Promise: the answer times depend on the requests, their instants and the seed, on nothing else.
//! A state machine: it takes requests and instants, answers tickets, and reads no clock.
//!
//! HDD: one actuator, in order of arrival; t = size / 150 MB/s + (contiguous with the last request
//! ? 0 : seek + rotation), seek = 1.5 + 14.5 sqrt(distance) ms with distance as a share of the
//! span, rotation uniform in 0..8.3 ms. Flash: up to `slots` requests share the rate equally, the
//! others wait in order; writes weigh more; a base latency follows the transfer; and, on SATA, all
//! stands still for a collection pause now and then.
//!
//! **Writes** cost the arm what reads cost, and are answered when they are on the medium. A drive
//! with a volatile cache answers a write sooner and moves its arm for it later, at a time of its
//! own choosing. Under uploads that never rest its cache is full and it is as fast as its arm: that
//! is the state modelled here. Kinder than it is such a drive only to a burst that fits its cache.
//!
//! **Flushes** keep their place in the order of arrival, on an HDD too: FLUSH CACHE is no queued
//! command (ATA ACS), so the drive ends what it has and takes nothing new before it has answered.
//! With anything written since the last flush it costs a whole turn on an HDD (the head is then
//! where it was, so what follows in sequence needs no rotation) and 0.5 to 5 ms on flash; with
//! nothing written, nothing. A flush of an NVMe disk may be overtaken, but not here: the loop
//! device above waits for it anyway.
//!
//! **Where the numbers are from.** They are definitions, not one product's. HDD: 8.3 ms are a turn
//! at 7200 rpm; seek and rate give 13.4 ms and 66 reads of 256 KiB a second over the whole span, as
//! data sheets of such drives have it. SATA: the rate is the link's; ten times for a write is the
//! factor published for ReFlex' device tables. A turn is the least that a flush of a disk with an
//! arm takes, for it ends with a sector that must be written; 0.5 to 5 ms are drives without
//! capacitors.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use tactus_core::units::{Bytes, MonoTime, Nanos, SECOND};

use super::Profile;
use crate::random::Random;

/// One transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Request {
    /// The first byte.
    pub(super) at: u64,
    /// How many.
    pub(super) length: u32,
    /// What is done with them.
    pub(super) act: RequestKind,
}

/// What a request wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RequestKind {
    Read,
    Write,
    /// All that was written before shall survive a loss of power. It has no place and no length.
    Flush,
}

impl Request {
    pub(super) const FLUSH: Self = Self { at: 0, length: 0, act: RequestKind::Flush };
}

/// Names a request in its answer.
pub(super) type Ticket = u64;

/// The timing of one disk.
#[derive(Debug)]
pub(super) enum Model {
    /// One actuator.
    Spinning(Spinning),
    /// Shared bandwidth.
    Flash(Box<Flash>),
}

impl Model {
    pub(super) fn new(profile: Profile, size: Bytes, seed: u64) -> Self {
        match profile {
            Profile::Hdd => Self::Spinning(Spinning::new(size, seed)),
            Profile::Sata => Self::Flash(Box::new(Flash::new(SATA, seed))),
            Profile::Nvme => Self::Flash(Box::new(Flash::new(NVME, seed))),
        }
    }

    /// A sentence for the report.
    pub(super) fn describe(profile: Profile) -> String {
        let flash = |flash: FlashShape| {
            let pause = flash.pause_every.map_or("no pauses".into(), |every| {
                format!("a pause of {PAUSE_MIN} to {PAUSE_MAX} every {every} (mean, exponential)")
            });
            let (rate, slots) = (flash.bytes_per_second / 1e6, flash.slots);
            let (weight, base) = (flash.write_weight, flash.latency);
            format!(
                "{rate} MB/s shared by up to {slots} requests, writes x {weight}, base latency \
                 {base}, {pause}, a flush after writes {FLUSH_MIN} to {FLUSH_MAX}"
            )
        };
        match profile {
            Profile::Hdd => "one actuator in order of arrival, 150 MB/s, seek 1.5 + 14.5 \
                             sqrt(distance) ms, rotation 0..8.3 ms, contiguous requests neither; \
                             writes as reads, a flush after writes one turn"
                .into(),
            Profile::Sata => flash(SATA),
            Profile::Nvme => flash(NVME),
        }
    }

    /// Takes a request and answers how much of the disk's time it is.
    pub(super) fn handle_request(
        &mut self,
        now: MonoTime,
        ticket: Ticket,
        request: Request,
    ) -> Nanos {
        match self {
            Self::Spinning(disk) => disk.handle_request(now, ticket, request),
            Self::Flash(disk) => disk.handle_request(now, ticket, request),
        }
    }

    /// The next request that is answered by `now`.
    pub(super) fn poll_done(&mut self, now: MonoTime) -> Option<Ticket> {
        match self {
            Self::Spinning(disk) => disk.poll_done(now),
            Self::Flash(disk) => disk.poll_done(now),
        }
    }

    /// When to ask again, if no request comes before.
    pub(super) fn poll_timeout(&self) -> Option<MonoTime> {
        match self {
            Self::Spinning(disk) => disk.answers.front().map(|answer| answer.0),
            Self::Flash(disk) => disk.poll_timeout(),
        }
    }
}

/// A disk with one arm.
#[derive(Debug)]
pub(super) struct Spinning {
    size: u64,
    random: Random,
    busy_until: MonoTime,
    /// Where the arm stands: the end of the last transfer.
    arm: u64,
    /// Whether anything was written since the last flush.
    written: bool,
    answers: VecDeque<(MonoTime, Ticket)>,
}

impl Spinning {
    const BYTES_PER_SECOND: f64 = 150e6;
    const SEEK_MIN_MS: f64 = 1.5;
    const SEEK_SPAN_MS: f64 = 14.5;
    /// One turn at 7200 rpm.
    const TURN_MS: f64 = 8.3;

    fn new(size: Bytes, seed: u64) -> Self {
        Self {
            size: size.0,
            random: Random::new(seed),
            busy_until: MonoTime(0),
            arm: 0,
            written: false,
            answers: VecDeque::new(),
        }
    }

    fn handle_request(&mut self, now: MonoTime, ticket: Ticket, request: Request) -> Nanos {
        let millis = match request.act {
            RequestKind::Read => self.transfer(request),
            RequestKind::Write => {
                self.written = true;
                self.transfer(request)
            }
            RequestKind::Flush if std::mem::take(&mut self.written) => Self::TURN_MS,
            RequestKind::Flush => 0.0,
        };
        let time = Nanos((millis * 1e6) as u64);
        self.busy_until = self.busy_until.max(now) + time;
        self.answers.push_back((self.busy_until, ticket));
        time
    }

    /// Milliseconds of a transfer, and of the way to it.
    fn transfer(&mut self, request: Request) -> f64 {
        let mut millis = f64::from(request.length) / Self::BYTES_PER_SECOND * 1e3;
        if request.at != self.arm {
            let distance = self.arm.abs_diff(request.at) as f64 / self.size as f64;
            millis += Self::seek(distance) + Self::TURN_MS * self.random.share();
        }
        self.arm = request.at + u64::from(request.length);
        millis
    }

    /// Milliseconds of a seek over `distance`, a share of the whole span.
    fn seek(distance: f64) -> f64 {
        Self::SEEK_MIN_MS + Self::SEEK_SPAN_MS * distance.min(1.0).sqrt()
    }

    /// What one sweep over `visits` places takes on average that lie evenly over `span` (a share of
    /// the disk), with one transfer of `length` at each.
    pub(super) fn sweep(visits: u32, span: f64, length: Bytes) -> Nanos {
        let transfer = length.0 as f64 / Self::BYTES_PER_SECOND * 1e3;
        let seek = Self::seek(span / f64::from(visits.max(1)));
        let visit = transfer + seek + Self::TURN_MS / 2.0;
        Nanos((f64::from(visits) * visit * 1e6) as u64)
    }

    fn poll_done(&mut self, now: MonoTime) -> Option<Ticket> {
        self.answers.pop_front_if(|answer| answer.0 <= now).map(|answer| answer.1)
    }
}

/// The numbers of a flash disk.
#[derive(Clone, Copy, Debug)]
struct FlashShape {
    bytes_per_second: f64,
    write_weight: f64,
    slots: usize,
    latency: Nanos,
    pause_every: Option<Nanos>,
}

const SATA: FlashShape = FlashShape {
    bytes_per_second: 500e6,
    write_weight: 10.0,
    slots: 32,
    latency: Nanos::from_micros(100),
    pause_every: Some(SECOND.times(10)),
};

/// The daemon's own time is the base latency.
const NVME: FlashShape = FlashShape {
    bytes_per_second: 3e9,
    write_weight: 1.0,
    slots: 64,
    latency: Nanos::ZERO,
    pause_every: None,
};

const PAUSE_MIN: Nanos = Nanos::from_millis(20);
const PAUSE_MAX: Nanos = Nanos::from_millis(100);
const FLUSH_MIN: Nanos = Nanos::from_micros(500);
const FLUSH_MAX: Nanos = Nanos::from_millis(5);

/// A flash disk: processor sharing among the requests in its slots.
#[derive(Debug)]
pub(super) struct Flash {
    shape: FlashShape,
    random: Random,
    /// Up to when the state below is worked out.
    at: MonoTime,
    /// Weighted bytes that each request in a slot has had since the start.
    served: f64,
    /// Requests in slots, by the value of `served` at which they are complete.
    active: BinaryHeap<Reverse<(Work, Ticket)>>,
    waiting: VecDeque<QueuedRequest>,
    /// A flush has the disk for itself.
    flushing: bool,
    /// Whether anything was written since the last flush.
    written: bool,
    answers: VecDeque<(MonoTime, Ticket)>,
    /// The next pause, or the one that is on.
    pause: Option<(MonoTime, MonoTime)>,
}

/// A request that has no slot yet.
#[derive(Clone, Copy, Debug)]
struct QueuedRequest {
    /// Weighted bytes; for a flush, as many as its time is worth.
    work: f64,
    /// It begins when the slots are empty, and they stay so until it is done.
    alone: bool,
    ticket: Ticket,
}

/// Weighted bytes, ordered. The fraction of a byte that rounding loses is below a nanosecond.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
struct Work(f64);

impl Eq for Work {}

#[expect(clippy::derive_ord_xor_partial_ord, reason = "work is never NaN, so both agree")]
impl Ord for Work {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl Flash {
    fn new(shape: FlashShape, seed: u64) -> Self {
        Self {
            shape,
            random: Random::new(seed),
            at: MonoTime(0),
            served: 0.0,
            active: BinaryHeap::new(),
            waiting: VecDeque::new(),
            flushing: false,
            written: false,
            answers: VecDeque::new(),
            pause: None,
        }
    }

    fn handle_request(&mut self, now: MonoTime, ticket: Ticket, request: Request) -> Nanos {
        if self.at == MonoTime(0) {
            self.at = now;
            self.pause = self.next_pause(now);
        }
        self.advance(now);
        let length = f64::from(request.length);
        let (work, alone) = match request.act {
            RequestKind::Read => (length, false),
            RequestKind::Write => {
                self.written = true;
                (length * self.shape.write_weight, false)
            }
            RequestKind::Flush if std::mem::take(&mut self.written) => {
                let span = FLUSH_MAX.saturating_sub(FLUSH_MIN).0 as f64;
                let nanos = FLUSH_MIN.0 as f64 + span * self.random.share();
                (nanos / 1e9 * self.shape.bytes_per_second, true)
            }
            RequestKind::Flush => (0.0, false),
        };
        self.waiting.push_back(QueuedRequest { work, alone, ticket });
        self.fill_slots();
        Nanos((work / self.shape.bytes_per_second * 1e9) as u64)
    }

    fn poll_done(&mut self, now: MonoTime) -> Option<Ticket> {
        self.advance(now);
        self.answers.pop_front_if(|answer| answer.0 <= now).map(|answer| answer.1)
    }

    fn poll_timeout(&self) -> Option<MonoTime> {
        let answer = self.answers.front().map(|answer| answer.0);
        let transfer = self.next_completion().map(|at| at + self.shape.latency);
        [answer, transfer].into_iter().flatten().min()
    }

    /// When the next transfer ends, the current pause considered.
    fn next_completion(&self) -> Option<MonoTime> {
        let Reverse((Work(goal), _)) = self.active.peek()?;
        let nanos =
            (goal - self.served) * self.active.len() as f64 / self.shape.bytes_per_second * 1e9;
        let span = Nanos(nanos.max(0.0).ceil() as u64);
        Some(match self.pause {
            Some((from, to)) if from <= self.at => self.at.max(to) + span,
            Some((from, to)) if from < self.at + span => self.at + span + to.since(from),
            _ => self.at + span,
        })
    }

    fn advance(&mut self, now: MonoTime) {
        while self.at < now {
            if let Some((from, to)) = self.pause
                && from <= self.at
            {
                self.at = self.at.max(to.min(now));
                if to <= now {
                    self.pause = self.next_pause(to);
                }
                continue;
            }
            let until = self.pause.map_or(now, |(from, _)| from.min(now));
            let next = self.next_completion().filter(|at| *at <= until);
            let stop = next.unwrap_or(until);
            if !self.active.is_empty() {
                let nanos = stop.since(self.at).0 as f64;
                let share = self.shape.bytes_per_second / self.active.len() as f64;
                self.served += nanos / 1e9 * share;
            }
            self.at = stop;
            if next.is_some()
                && let Some(Reverse((Work(goal), ticket))) = self.active.pop()
            {
                self.served = goal;
                self.flushing = false; // it was alone, or there was none
                self.answers.push_back((self.at + self.shape.latency, ticket));
                self.fill_slots();
            }
        }
    }

    fn fill_slots(&mut self) {
        while self.active.len() < self.shape.slots && !self.flushing {
            let alone_now = self.active.is_empty();
            let next = self.waiting.pop_front_if(|next| !next.alone || alone_now);
            let Some(QueuedRequest { work, alone, ticket }) = next else { return };
            self.flushing = alone;
            self.active.push(Reverse((Work(self.served + work), ticket)));
        }
    }

    fn next_pause(&mut self, after: MonoTime) -> Option<(MonoTime, MonoTime)> {
        let mean = self.shape.pause_every?;
        let wait = -(1.0 - self.random.share()).ln() * mean.0 as f64;
        let span = PAUSE_MAX.saturating_sub(PAUSE_MIN).0 as f64 * self.random.share();
        let from = after + Nanos(wait as u64);
        Some((from, from + PAUSE_MIN + Nanos(span as u64)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Bytes = Bytes(64 << 30);
    const MIB: u32 = 1 << 20;

    /// One request after the other; answers the seconds that they took.
    fn one_by_one(model: &mut Model, requests: impl Iterator<Item = Request>) -> f64 {
        let start = MonoTime(1_000_000_000);
        let mut now = start;
        for (ticket, request) in requests.enumerate() {
            model.handle_request(now, ticket as u64, request);
            loop {
                match model.poll_done(now) {
                    Some(done) => {
                        assert_eq!(done, ticket as u64);
                        break;
                    }
                    None => now = model.poll_timeout().unwrap().max(now + Nanos(1)),
                }
            }
        }
        now.since(start).0 as f64 / 1e9
    }

    fn read(at: u64, length: u32) -> Request {
        Request { at, length, act: RequestKind::Read }
    }

    fn write(at: u64, length: u32) -> Request {
        Request { at, length, act: RequestKind::Write }
    }

    fn random_reads(count: u64, length: u32) -> impl Iterator<Item = Request> {
        let mut places = Random::new(7);
        (0..count).map(move |_| {
            let blocks = SIZE.0 / u64::from(length);
            read(places.next() % blocks * u64::from(length), length)
        })
    }

    #[test]
    fn the_spinning_disk_has_the_rates_of_its_table() {
        let mut disk = Model::new(Profile::Hdd, SIZE, 1);
        let iops = 4_000.0 / one_by_one(&mut disk, random_reads(4_000, MIB / 4));
        assert!((65.0..67.5).contains(&iops), "{iops} reads of 256 KiB per second");
        let mut disk = Model::new(Profile::Hdd, SIZE, 1);
        let rate = 4_000.0 * f64::from(MIB) / one_by_one(&mut disk, random_reads(4_000, MIB)) / 1e6;
        assert!((47.0..53.0).contains(&rate), "{rate} MB/s in random reads of 1 MiB");
        let mut disk = Model::new(Profile::Hdd, SIZE, 1);
        let ordered = (0..1_000).map(|place| read(place * u64::from(MIB), MIB));
        let rate = 1_000.0 * f64::from(MIB) / one_by_one(&mut disk, ordered) / 1e6;
        assert!((149.0..151.0).contains(&rate), "{rate} MB/s in sequence");
    }

    #[test]
    fn a_write_moves_the_arm_as_a_read_does() {
        let run = |act| {
            let requests = random_reads(200, MIB).map(|read| Request { act, ..read });
            one_by_one(&mut Model::new(Profile::Hdd, SIZE, 5), requests)
        };
        assert_eq!(run(RequestKind::Read), run(RequestKind::Write));
        // A read between two halves of an upload costs the travel of the arm twice.
        let halves = [write(0, MIB), write(u64::from(MIB), MIB)];
        let apart = [halves[0], read(SIZE.0 / 2, 4096), halves[1]];
        let seconds = |requests: &[Request]| {
            one_by_one(&mut Model::new(Profile::Hdd, SIZE, 5), requests.iter().copied())
        };
        let travel = 2.0 * (1.5 + 14.5 * 0.5_f64.sqrt()) / 1e3;
        assert!(seconds(&apart) - seconds(&halves) > travel);
    }

    #[test]
    fn a_flush_takes_a_turn_after_writes_and_nothing_without() {
        let mut disk = Model::new(Profile::Hdd, SIZE, 1);
        let start = MonoTime(1_000);
        let turn = Nanos((Spinning::TURN_MS * 1e6) as u64);
        assert_eq!(disk.handle_request(start, 0, Request::FLUSH), Nanos::ZERO);
        let first = disk.handle_request(start, 1, write(0, MIB));
        assert_eq!(disk.handle_request(start, 2, Request::FLUSH), turn);
        assert_eq!(disk.handle_request(start, 3, Request::FLUSH), Nanos::ZERO);
        // The head is back where the write ended.
        assert_eq!(disk.handle_request(start, 4, write(u64::from(MIB), MIB)), first);
        // In order of arrival: what comes after the flush waits for it.
        let all = start + first + turn + first;
        assert_eq!(disk.poll_done(start), Some(0));
        for ticket in 1..=4 {
            assert_eq!(disk.poll_done(all), Some(ticket));
        }
    }

    #[test]
    fn a_sweep_takes_what_its_visits_take_one_by_one() {
        let visits = 200;
        let step = SIZE.0 / u64::from(visits) / 4096 * 4096;
        let all = (0..u64::from(visits)).map(|place| read(place * step + step / 2, MIB));
        let seconds = one_by_one(&mut Model::new(Profile::Hdd, SIZE, 9), all);
        let promised = Spinning::sweep(visits, 1.0, Bytes(u64::from(MIB))).0 as f64 / 1e9;
        assert!((seconds / promised - 1.0).abs() < 0.03, "{seconds} s, promised {promised} s");
    }

    #[test]
    fn the_same_seed_gives_the_same_disk() {
        let run =
            |seed| one_by_one(&mut Model::new(Profile::Hdd, SIZE, seed), random_reads(50, MIB));
        assert_eq!(run(3), run(3));
        assert_ne!(run(3), run(4));
    }

    #[test]
    fn flash_shares_its_rate_among_the_requests_in_its_slots() {
        let mut disk = Flash::new(FlashShape { pause_every: None, ..SATA }, 1);
        let start = MonoTime(1_000);
        // Two reads of 1 MB and one of 0.5 MB: the small one has its share after 3 ms, then the two
        // others need another millisecond each at half the rate: 3 + 2 = 5 ms in all.
        for (ticket, length) in [(0, 1_000_000), (1, 1_000_000), (2, 500_000)] {
            disk.handle_request(start, ticket, read(0, length));
        }
        let mut answers = Vec::new();
        while let Some(at) = disk.poll_timeout() {
            while let Some(ticket) = disk.poll_done(at) {
                let micros = (at.since(start) - disk.shape.latency).0 / 1_000;
                answers.push((ticket, micros));
            }
        }
        assert_eq!(answers, [(2, 3_000), (0, 5_000), (1, 5_000)]);
    }

    #[test]
    fn requests_beyond_the_slots_wait_and_writes_weigh_more() {
        let shape = FlashShape { slots: 1, latency: Nanos::ZERO, pause_every: None, ..SATA };
        let mut disk = Flash::new(shape, 1);
        let start = MonoTime(1_000);
        disk.handle_request(start, 0, write(0, 50_000));
        disk.handle_request(start, 1, read(0, 500_000));
        assert_eq!(disk.poll_timeout(), Some(start + Nanos::from_millis(1)));
        assert_eq!(disk.poll_done(start + Nanos::from_millis(1)), Some(0));
        assert_eq!(disk.poll_timeout(), Some(start + Nanos::from_millis(2)));
    }

    #[test]
    fn a_flush_has_a_flash_disk_for_itself() {
        let shape = FlashShape { latency: Nanos::ZERO, pause_every: None, ..SATA };
        let mut disk = Flash::new(shape, 1);
        let start = MonoTime(1_000);
        let millisecond = Nanos::from_millis(1);
        disk.handle_request(start, 0, write(0, 50_000)); // 1 ms
        let flush = disk.handle_request(start, 1, Request::FLUSH);
        assert!(FLUSH_MIN <= flush && flush <= FLUSH_MAX, "{flush}");
        disk.handle_request(start, 2, read(0, 500_000)); // 1 ms, not beside the flush
        assert_eq!(disk.handle_request(start, 3, Request::FLUSH), Nanos::ZERO);
        let written = start + millisecond;
        assert_eq!((disk.poll_done(written), disk.poll_done(written)), (Some(0), None));
        let flushed = disk.poll_timeout().unwrap();
        assert!(flushed.since(written + flush) <= Nanos(2), "{flushed:?}");
        assert_eq!(disk.poll_done(flushed), Some(1));
        assert_eq!(disk.poll_done(flushed + Nanos(1)), Some(3), "nothing was left to flush");
        assert!(disk.poll_timeout().unwrap().since(flushed + millisecond) <= Nanos(2));
    }

    #[test]
    fn a_pause_delays_everything_by_its_length() {
        let mut disk = Flash::new(FlashShape { latency: Nanos::ZERO, ..SATA }, 1);
        let start = MonoTime(1_000);
        disk.handle_request(start, 0, read(0, 0));
        let (from, to) = disk.pause.unwrap();
        assert!(PAUSE_MIN <= to.since(from) && to.since(from) <= PAUSE_MAX);
        while disk.poll_done(from.before(Nanos::from_millis(1))).is_some() {}
        // One millisecond of transfer left when the pause begins, one after it.
        disk.handle_request(from.before(Nanos::from_millis(1)), 1, read(0, 1_000_000));
        let done = disk.poll_timeout().unwrap();
        assert!(done >= to + Nanos::from_micros(999) && done <= to + Nanos::from_micros(1_001));
        assert_eq!(disk.poll_done(to), None);
        assert_eq!(disk.poll_done(disk.poll_timeout().unwrap()), Some(1));
    }

    #[test]
    fn a_flash_disk_reaches_its_rate_whatever_the_depth() {
        let mut disk = Model::new(Profile::Nvme, SIZE, 1);
        let seconds = one_by_one(&mut disk, (0..300).map(|_| read(0, MIB)));
        let rate = 300.0 * f64::from(MIB) / seconds / 1e9;
        assert!((2.9..3.01).contains(&rate), "{rate} GB/s");
    }
}
