//! A stage for the servers: one disk and one link that do what a test says, and a clock it owns.
//!
//! Much smaller than the simulator's world: nothing happens here by chance. The disk takes a fixed
//! time for each transfer unless it is told to hold or to fail a title; a socket takes what is
//! offered unless it is told how much it takes. Blocks are in an arena or in a page cache, and what
//! is offered by reference must be there at that moment.

mod pages;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use tactus_core::datagrams::{Framing, Plan};
use tactus_core::disk_model::DiskModel;
use tactus_core::ports::{
    self, Batch, BatchProgress, Completion, DiskFault, DiskPort, FileHandle, FilePart, LinkPort,
    PacketPort, SendResult, SocketHandle, Stop, Sync, SyncScope, Synced, Transfer, Waker,
};
use tactus_core::stagger::Tick;
use tactus_core::units::{BitRate, Bytes, MILLISECOND, MonoTime, Nanos};
use tactus_engine::assembly::{
    Control, IntakeSetup, PacketSetup, Placement, Setup, VolumeSetup, assemble,
};
use tactus_engine::cores::Core;
use tactus_engine::feeding;
use tactus_engine::link::Patience;
use tactus_engine::message::{
    Blocks, Chunks, ClassChange, Command, Connection, Delivery, Extent, IntakeAnswer,
    IntakeRequest, Origin, Output, PacketClass, Rate, Report, Schedule, Start, StreamId, TitleId,
    VolumeId, WriteClass,
};
use tactus_ring::arena::{ArenaOwner, BlockRef, HeapRegion, View, arena, elsewhere};

use pages::Pages;

pub(crate) const BLOCK: u32 = 65536;
pub(crate) const CYCLE: Nanos = Nanos::from_millis(100);
/// The tick of datagrams.
pub(crate) const TICK: Nanos = Nanos::from_micros(100);
/// Time of a transfer.
const READ: Nanos = MILLISECOND;
/// Time of a flush.
const FLUSH: Nanos = Nanos::from_millis(3);
/// Every title is this long.
pub(crate) const TITLE: Bytes = Bytes(40 * BLOCK as u64);
pub(crate) const PLACES: u32 = 64;

/// Where the blocks of the stage are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Memory {
    Arena,
    PageCache,
}

pub(crate) const BOTH: [Memory; 2] = [Memory::Arena, Memory::PageCache];

/// How many blocks there are room for, and how many a stream may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Room {
    pub(crate) places: u32,
    pub(crate) window: u32,
}

/// Where the disk puts what it reads.
enum Content {
    Arena(View),
    PageCache(Pages),
}

/// The parts of a delivery of blocks.
pub(crate) struct Parts {
    pub(crate) stream: StreamId,
    pub(crate) origin: Origin,
    pub(crate) extent: Extent,
    pub(crate) window: u32,
    pub(crate) framing: Framing,
    /// `None` for best effort.
    pub(crate) rate: Option<Rate>,
    pub(crate) plan: Option<Arc<Plan>>,
    pub(crate) output: Output,
}

impl Parts {
    /// The same, again and again.
    pub(crate) fn repeating(self) -> Self {
        let extent = Extent::Repeating(self.extent.range());
        Self { extent, ..self }
    }

    fn delivery(self) -> Delivery {
        let Self { origin, extent, window, framing, rate, plan, output, .. } = self;
        let schedule = match (rate, plan) {
            (Some(rate), Some(plan)) => Schedule::Plan(rate, plan),
            (Some(rate), None) => Schedule::ByteClock(rate),
            (None, _) => Schedule::BestEffort,
        };
        let blocks = Blocks { origin, extent, window };
        Delivery::of_blocks(blocks, framing, schedule, output).expect("its parts fit together")
    }
}

/// What the disk has been asked for, and how it behaves.
pub(crate) struct Disk {
    blocks: Content,
    queue: VecDeque<(Transfer, MonoTime)>,
    /// Every transfer so far: title and offset.
    pub(crate) reads: Vec<(i32, u64)>,
    /// Titles whose transfers fail, with which error.
    pub(crate) failing: BTreeMap<i32, i32>,
    /// Titles that are not [`content`].
    pub(crate) contents: BTreeMap<i32, Vec<u8>>,
    /// Nothing is answered.
    pub(crate) holds: bool,
    /// Titles whose transfers are not answered, while all others are.
    pub(crate) late: Vec<i32>,
    /// Titles of which one bit of each block is not what was stored.
    pub(crate) damaged: Vec<i32>,
    write_share: View,
    /// What files hold that were written to: offset and bytes, in the order in which they landed.
    pub(crate) written: BTreeMap<i32, Vec<(u64, Vec<u8>)>>,
    syncs: VecDeque<(ports::Sync, MonoTime)>,
    /// Flushes that were begun, by file.
    pub(crate) flushed: Vec<(MonoTime, i32)>,
    /// How many flushes fail from now on.
    pub(crate) flushes_fail: u32,
}

/// What sockets have taken, and how much they will.
#[derive(Default)]
pub(crate) struct Network {
    /// Each send that was taken: when, by which socket, how many bytes.
    pub(crate) sends: Vec<(MonoTime, i32, u64)>,
    /// What each socket has received.
    pub(crate) received: BTreeMap<i32, Vec<u8>>,
    /// Sockets that take no more than this in all.
    pub(crate) limits: BTreeMap<i32, u64>,
    /// Sockets that take any part of what they are offered, or nothing, by these numbers.
    pub(crate) moody: BTreeMap<i32, Dice>,
    /// Sockets whose connection is gone.
    pub(crate) broken: Vec<i32>,
    /// Titles whose file has not got its bytes any more, by which error.
    pub(crate) lost: BTreeMap<i32, i32>,
    /// Each datagram that was taken, in order.
    pub(crate) datagrams: Vec<Datagram>,
    /// Calls of the packet port.
    pub(crate) calls: u64,
    /// UDP outputs that take nothing.
    pub(crate) still: Vec<i32>,
    /// Messages that UDP outputs still take; none for any number.
    pub(crate) takes: Option<u64>,
    /// Where no datagram can be sent to.
    pub(crate) unreachable: Vec<SocketAddr>,
    /// How long before it is due the network wants a datagram, to let it go at its time; zero where
    /// it leaves at once.
    ahead: Nanos,
}

/// A datagram that has left.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Datagram {
    pub(crate) at: MonoTime,
    pub(crate) udp_output: i32,
    pub(crate) to: SocketAddr,
    pub(crate) bytes: Vec<u8>,
}

struct DiskEnd(Arc<Mutex<Disk>>);
struct NetworkEnd(Arc<Mutex<Network>>, Arc<Mutex<Disk>>);
struct Silent;

impl Waker for Silent {
    fn wake(&self) {}
}

impl DiskPort for DiskEnd {
    fn submit(&mut self, now: MonoTime, transfer: Transfer) -> Result<(), Transfer> {
        let mut disk = self.0.lock().expect("one thread plays");
        let before = disk.queue.back().map_or(now, |&(_, done)| done.max(now));
        if transfer.direction == ports::Direction::Write {
            disk.queue.push_back((transfer, before + READ));
            return Ok(());
        }
        disk.reads.push((transfer.file.0, transfer.offset.0));
        if let Content::PageCache(pages) = &mut disk.blocks {
            pages.begin(transfer);
        }
        disk.queue.push_back((transfer, before + READ));
        Ok(())
    }

    fn kick(&mut self, _now: MonoTime) {}

    fn poll_completion(&mut self, now: MonoTime) -> Option<Completion> {
        let mut disk = self.0.lock().expect("one thread plays");
        let next = disk.queue.iter().position(|(one, _)| !disk.late.contains(&one.file.0))?;
        if disk.holds || disk.queue[next].1 > now {
            return None;
        }
        let (transfer, _) = disk.queue.remove(next)?;
        if let Some(&errno) = disk.failing.get(&transfer.file.0) {
            return Some(Completion { transfer, result: Err(DiskFault(errno)) });
        }
        if transfer.direction == ports::Direction::Write {
            let bytes = disk.take_written(transfer);
            disk.written.entry(transfer.file.0).or_default().push((transfer.offset.0, bytes));
            return Some(Completion { transfer, result: Ok(transfer.len) });
        }
        let (from, len) = (transfer.offset.0, u64::from(transfer.len));
        let mut bytes = match disk.contents.get(&transfer.file.0) {
            // Whole sectors are read.
            Some(bytes) => {
                let rest = bytes[from as usize..].iter().copied().chain(std::iter::repeat(0));
                rest.take(len as usize).collect()
            }
            None => content(transfer.file.0, from, len),
        };
        if disk.damaged.contains(&transfer.file.0) {
            bytes[77] ^= 4;
            if matches!(disk.blocks, Content::PageCache(_)) && transfer.sum.is_some() {
                return Some(Completion { transfer, result: Err(DiskFault::DAMAGED) });
            }
        }
        match &mut disk.blocks {
            Content::Arena(view) => {
                let ports::BlockRef { place, generation } = transfer.block;
                view.fill(BlockRef { place, generation }, transfer.at, &bytes);
            }
            Content::PageCache(pages) => pages.pin(transfer, bytes),
        }
        Some(Completion { transfer, result: Ok(transfer.len) })
    }

    fn submit_sync(&mut self, now: MonoTime, sync: Sync) -> Result<(), Sync> {
        let mut disk = self.0.lock().expect("one thread plays");
        disk.flushed.push((now, sync.file.0));
        disk.syncs.push_back((sync, now + FLUSH));
        Ok(())
    }

    fn poll_synced(&mut self, now: MonoTime) -> Option<Synced> {
        let mut disk = self.0.lock().expect("one thread plays");
        let (sync, done) = *disk.syncs.front()?;
        if done > now {
            return None;
        }
        disk.syncs.pop_front();
        let fails = disk.flushes_fail > 0;
        disk.flushes_fail -= u32::from(fails);
        Some(Synced { sync, result: if fails { Err(DiskFault(5)) } else { Ok(()) } })
    }
}

impl LinkPort for NetworkEnd {
    fn send(&mut self, now: MonoTime, socket: SocketHandle, parts: &[&[u8]]) -> SendResult {
        assert!(parts.iter().any(|part| !part.is_empty()), "a send of nothing has no answer");
        let mut network = self.0.lock().expect("one thread plays");
        if network.broken.contains(&socket.0) {
            return SendResult::Broken(104);
        }
        let limit = network.limits.get(&socket.0).copied().unwrap_or(u64::MAX);
        let network = &mut *network;
        let received = network.received.entry(socket.0).or_default();
        let mut left = limit - received.len() as u64;
        if let Some(dice) = network.moody.get_mut(&socket.0) {
            let offered = parts.iter().map(|part| part.len() as u64).sum();
            let mood = [0, dice.below(20), dice.below(2000), dice.below(50_000), offered];
            left = left.min(mood[dice.below(5) as usize]);
        }
        let mut taken = 0;
        for part in parts {
            let part = &part[..left.min(part.len() as u64) as usize];
            received.extend_from_slice(part);
            left -= part.len() as u64;
            taken += part.len() as u64;
        }
        if taken == 0 {
            return SendResult::Blocked;
        }
        network.sends.push((now, socket.0, taken));
        SendResult::Some(taken as u32)
    }

    fn send_file(&mut self, now: MonoTime, socket: SocketHandle, part: FilePart) -> SendResult {
        if let Some(&errno) = self.0.lock().expect("one thread plays").lost.get(&part.file.0) {
            return SendResult::Lost(errno);
        }
        let bytes = match &self.1.lock().expect("one thread plays").blocks {
            Content::PageCache(pages) => pages.bytes(part),
            Content::Arena(_) => panic!("{part:?} is in no page cache"),
        };
        LinkPort::send(self, now, socket, &[&bytes])
    }

    fn read(&mut self, now: MonoTime, part: FilePart, into: &mut [u8]) -> Result<(), i32> {
        PacketPort::read(self, now, part, into)
    }
}

/// Numbers that follow from a seed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

impl PacketPort for NetworkEnd {
    fn segments_max(&self) -> u32 {
        64
    }

    fn ahead(&self) -> Nanos {
        self.0.lock().expect("one thread plays").ahead
    }

    fn send(&mut self, now: MonoTime, udp_output: SocketHandle, batch: Batch<'_>) -> BatchProgress {
        self.send_timed(now, udp_output, batch, &vec![now; batch.messages.len()])
    }

    fn send_timed(
        &mut self,
        now: MonoTime,
        udp_output: SocketHandle,
        batch: Batch<'_>,
        due: &[MonoTime],
    ) -> BatchProgress {
        let mut network = self.0.lock().expect("one thread plays");
        network.calls += 1;
        assert_eq!(due.len(), batch.messages.len(), "each has its time");
        let mut parts = batch.parts.iter();
        let mut messages = 0;
        for (message, &due) in batch.messages.iter().zip(due) {
            let at = if network.ahead > Nanos(0) { due.max(now) } else { now };
            let parts: Vec<_> = parts.by_ref().take(usize::from(message.parts)).collect();
            assert!(parts.iter().all(|part| !part.is_empty()), "a part of nothing costs something");
            if network.takes == Some(0) || network.still.contains(&udp_output.0) {
                return BatchProgress { messages, stop: Some(Stop::Full) };
            }
            if network.unreachable.contains(&message.to) {
                return BatchProgress { messages, stop: Some(Stop::Refused(101)) };
            }
            network.takes = network.takes.map(|takes| takes - 1);
            messages += 1;
            let bytes: Vec<u8> = parts.into_iter().copied().flatten().copied().collect();
            for own in bytes.chunks(usize::from(message.segment)) {
                let (to, udp_output, bytes) = (message.to, udp_output.0, own.to_vec());
                network.datagrams.push(Datagram { at, udp_output, to, bytes });
            }
        }
        assert_eq!(parts.next(), None, "each part belongs to a message");
        BatchProgress { messages, stop: None }
    }

    fn read(&mut self, _now: MonoTime, part: FilePart, into: &mut [u8]) -> Result<(), i32> {
        if let Some(&errno) = self.0.lock().expect("one thread plays").lost.get(&part.file.0) {
            return Err(errno);
        }
        match &self.1.lock().expect("one thread plays").blocks {
            Content::PageCache(pages) => into.copy_from_slice(&pages.bytes(part)),
            Content::Arena(_) => panic!("{part:?} is in no page cache"),
        }
        Ok(())
    }
}

/// What a title contains.
pub(crate) fn content(title: i32, from: u64, len: u64) -> Vec<u8> {
    (from..from + len).map(|at| (at / 256 * 31 + at + title as u64 * 7) as u8).collect()
}

/// An engine on one core.
pub(crate) struct Stage {
    pub(crate) core: Core,
    pub(crate) control: Control,
    pub(crate) disk: Arc<Mutex<Disk>>,
    pub(crate) network: Arc<Mutex<Network>>,
    pub(crate) now: MonoTime,
    wake: Option<MonoTime>,
    pub(crate) reports: Vec<Report>,
    starts: u32,
    window: u32,
    writes: ArenaOwner,
    /// What the intake has said, and when.
    pub(crate) answers: Vec<(MonoTime, IntakeAnswer)>,
}

/// Places of the stage's write share.
/// Link servers; most deliveries have the first.
pub(crate) const LINKS: u16 = 2;
const WRITE_PLACES: u32 = 16;

impl Disk {
    /// What a write found in its place.
    fn take_written(&self, transfer: Transfer) -> Vec<u8> {
        let ports::BlockRef { place, generation } = transfer.block;
        let block = BlockRef { place, generation };
        let mut bytes = vec![0; transfer.len as usize];
        self.write_share.copy_out(block, transfer.at, &mut bytes);
        bytes
    }
}

impl Stage {
    pub(crate) fn new(memory: Memory) -> Self {
        Self::with(memory, Room { places: PLACES, window: 6 })
    }

    pub(crate) fn with(memory: Memory, room: Room) -> Self {
        Self::with_classes(memory, room, vec![])
    }

    /// With a network that keeps the time of each datagram that it gets so long before.
    pub(crate) fn with_ahead(memory: Memory, ahead: Nanos) -> Self {
        Self::generated_of(memory, Room { places: PLACES, window: 6 }, vec![], ahead)
    }

    pub(crate) fn with_classes(memory: Memory, room: Room, classes: Vec<PacketClass>) -> Self {
        Self::generated_of(memory, room, classes, Nanos(0))
    }

    fn generated_of(
        memory: Memory,
        Room { places, window }: Room,
        classes: Vec<PacketClass>,
        ahead: Nanos,
    ) -> Self {
        // Shown with whatever fails.
        println!("blocks in {memory:?}");
        let (keeper, blocks, memory) = match memory {
            Memory::Arena => {
                let region = HeapRegion::new(places as usize * BLOCK as usize);
                let (keeper, view) = arena(Box::new(region), BLOCK);
                (keeper, Content::Arena(view.clone()), feeding::Memory::Arena(view))
            }
            Memory::PageCache => {
                let blocks = Content::PageCache(Pages::default());
                (elsewhere(places, BLOCK), blocks, feeding::Memory::PageCache)
            }
        };
        let region = HeapRegion::new(WRITE_PLACES as usize * BLOCK as usize);
        let (write_keeper, view_of_writes) = arena(Box::new(region), BLOCK);
        let disk = Arc::new(Mutex::new(Disk {
            blocks,
            queue: VecDeque::new(),
            reads: vec![],
            failing: BTreeMap::new(),
            contents: BTreeMap::new(),
            holds: false,
            late: vec![],
            damaged: vec![],
            write_share: view_of_writes,
            written: BTreeMap::new(),
            syncs: VecDeque::new(),
            flushed: vec![],
            flushes_fail: 0,
        }));
        let network = Arc::new(Mutex::new(Network { ahead, ..Network::default() }));
        let millisecond = Nanos::from_millis(1);
        let model = DiskModel {
            visit: millisecond,
            sweep: Nanos(0),
            read_mib: millisecond,
            write_mib: millisecond,
            depth: 4,
            flush: FLUSH,
        };
        let (mut cores, control) = assemble(Setup {
            volumes: vec![VolumeSetup {
                port: DiskEnd(Arc::clone(&disk)),
                keeper,
                memory,
                cycle: CYCLE,
                model,
                best_effort_depth: 2,
                intake: Some(IntakeSetup {
                    places: WRITE_PLACES,
                    syncs_max: 8,
                    floor_thousandths: 50,
                    waker: Box::new(Silent),
                }),
            }],
            links: (0..LINKS)
                .map(|_| NetworkEnd(Arc::clone(&network), Arc::clone(&disk)))
                .collect(),
            packets: Some(PacketSetup {
                port: Box::new(NetworkEnd(Arc::clone(&network), Arc::clone(&disk))),
                rate: BitRate(1_000_000_000),
                tick: TICK,
                classes,
            }),
            streams: 16,
            patience: Patience { behind_max: Nanos::from_millis(500), ..Patience::default() },
            placement: Placement {
                links: vec![0; usize::from(LINKS)],
                ..Placement::sensible(1, 1)
            },
            report_waker: Box::new(Silent),
        });
        let core = cores.pop().expect("one core");
        let now = MonoTime(7_000_000_123);
        let (reports, starts) = (vec![], 0);
        let (wake, writes) = (None, write_keeper);
        let answers = vec![];
        Self { core, control, disk, network, now, wake, reports, starts, window, writes, answers }
    }

    /// Asks for `bytes` to be written, from a place of the write share.
    pub(crate) fn write(&mut self, token: u32, file: i32, offset: u64, bytes: &[u8]) {
        let block = self.writes.take().expect("a free place");
        self.disk().write_share.fill(block, 0, bytes);
        let BlockRef { place, generation } = block;
        self.ask(IntakeRequest::Write {
            token,
            block: ports::BlockRef { place, generation },
            file: FileHandle(file),
            offset: Bytes(offset),
            len: bytes.len() as u32,
            class: WriteClass::BestEffort,
            position: 0,
        });
    }

    /// Asks for a flush.
    pub(crate) fn sync(&mut self, token: u32, file: i32) {
        self.ask(IntakeRequest::Sync { token, file: FileHandle(file), reach: SyncScope::All });
    }

    fn ask(&mut self, request: IntakeRequest) {
        let intake = self.control.intakes[0].as_mut().expect("the volume takes uploads");
        assert!(intake.requests.push(request).is_ok());
        self.turn();
    }

    /// A paced stream of the whole title.
    pub(crate) fn start(&mut self, title: i32, rate: u64) -> StreamId {
        let pace = Some(Rate { rate: BitRate(rate), burst: Bytes(0), tick: Tick::Ms10 });
        self.start_with(title, pace)
    }

    /// A stream of the whole title.
    pub(crate) fn start_with(&mut self, title: i32, pace: Option<Rate>) -> StreamId {
        self.start_range(title, pace, 0..TITLE.0)
    }

    /// A stream of a part of the title; the number of its socket is that of its place.
    pub(crate) fn start_range(
        &mut self,
        title: i32,
        pace: Option<Rate>,
        range: Range<u64>,
    ) -> StreamId {
        let start = self.start_of(title, pace, range);
        self.begin(start)
    }

    /// A place that nobody has had.
    pub(crate) fn place(&mut self) -> StreamId {
        let stream = StreamId { index: self.starts, generation: 1 };
        self.starts += 1;
        stream
    }

    /// The parts of such a stream's delivery, for a test to change.
    pub(crate) fn start_of(&mut self, title: i32, rate: Option<Rate>, range: Range<u64>) -> Parts {
        let stream = self.place();
        Parts {
            stream,
            origin: Origin {
                volume: VolumeId(0),
                title: TitleId(title as u64),
                file: FileHandle(title),
                position: 0,
                len: TITLE,
                sums: None,
            },
            extent: Extent::Range(Bytes(range.start)..Bytes(range.end)),
            window: self.window,
            framing: Framing::Plain,
            rate,
            plan: None,
            output: Output::Connection(Connection::of(SocketHandle(stream.index as i32))),
        }
    }

    /// Begins a delivery of these parts.
    pub(crate) fn begin(&mut self, parts: Parts) -> StreamId {
        let stream = parts.stream;
        self.command(Command::Start(Start { stream, delivery: parts.delivery() }));
        stream
    }

    /// Begins a delivery of generated chunks.
    pub(crate) fn send_chunks(&mut self, stream: StreamId, chunks: Chunks, output: Output) {
        let delivery = Delivery::of_chunks(chunks, output).expect("the parts fit");
        self.command(Command::Start(Start { stream, delivery }));
    }

    pub(crate) fn command(&mut self, command: Command) {
        assert!(self.control.commands.push(command).is_ok());
        self.turn();
    }

    /// Lets classes of datagrams have something else.
    pub(crate) fn change(&mut self, changes: &[ClassChange]) {
        for &change in changes {
            assert!(self.control.classes.push(change).is_ok(), "there is room for one of each");
        }
        self.turn();
    }

    /// Lets `span` pass.
    pub(crate) fn pass(&mut self, span: Nanos) {
        let end = self.now + span;
        while let Some(wake) = self.wake.filter(|&wake| wake <= end) {
            self.now = wake;
            self.turn();
        }
        self.now = end;
    }

    /// Moves all servers to another core. Returns the time until they could leave.
    pub(crate) fn hand_over(&mut self) -> Nanos {
        let from = self.now;
        while !self.core.quiesce() {
            self.now += Nanos::from_millis(1);
            self.turn();
        }
        let mut servers = std::mem::replace(&mut self.core, Core::new(vec![])).into_servers();
        for server in &mut servers {
            server.resume().expect("the ports stay");
        }
        self.core = Core::new(servers);
        self.turn();
        self.now.since(from)
    }

    /// The number of transfers and flushes at the device.
    pub(crate) fn at_the_device(&self) -> usize {
        let disk = self.disk();
        disk.queue.len() + disk.syncs.len()
    }

    /// Lets `span` pass in which the machine stands still.
    pub(crate) fn stand_still(&mut self, span: Nanos) {
        self.now += span;
        self.turn();
    }

    fn turn(&mut self) {
        self.wake = self.core.turn(self.now);
        while let Some(report) = self.control.reports.pop() {
            self.reports.push(report);
        }
        let intake = self.control.intakes[0].as_mut().expect("the volume takes uploads");
        while let Some(answer) = intake.answers.pop() {
            self.answers.push((self.now, answer));
        }
    }

    pub(crate) fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().expect("one thread plays")
    }

    pub(crate) fn network(&self) -> MutexGuard<'_, Network> {
        self.network.lock().expect("one thread plays")
    }

    /// When the socket of `stream` has taken how much.
    pub(crate) fn sends(&self, stream: StreamId) -> Vec<(MonoTime, u64)> {
        let network = self.network();
        let own = network.sends.iter().filter(|&&(_, socket, _)| socket == stream.index as i32);
        own.map(|&(at, _, bytes)| (at, bytes)).collect()
    }

    pub(crate) fn received(&self, stream: StreamId) -> Vec<u8> {
        self.network().received.get(&(stream.index as i32)).cloned().unwrap_or_default()
    }
}
