//! A file server between a block server that is a table, and programs that may write anything.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tactus_core::local::{Answer, Operation, Request, layout};
use tactus_core::ports::{FileHandle, FilePart, FilePort, Waker};
use tactus_core::timed::{TimedReads, TimedReserve};
use tactus_core::units::{Bytes, MonoTime, Nanos};
use tactus_ring::arena::{ArenaOwner, HeapRegion, Lease, View, arena, elsewhere};
use tactus_ring::shared::{SharedBytes, SharedMemory};
use tactus_ring::spsc::{Consumer, Producer, ring};

use super::program::Program;
use super::{
    COPY_MAX, FileParts, FileServer, FileVolume, PLACES_OF_CLIENT_MAX, REQUESTS_MAX, TAKE_MAX,
};
use crate::counters::FileCounters;
use crate::egress::Memory;
use crate::internal::{BlockRequest, FromBlock, ToBlock};
use crate::message::local::HANDLES_MAX;
use crate::message::{ClientId, LocalClient, LocalCommand, LocalReport, Origin, TitleId, VolumeId};
use crate::server::Server;

/// Bytes of a block.
pub(crate) const BLOCK: u32 = 4096;
/// Bytes of every title: two whole blocks and a part of one.
pub(crate) const TITLE_LEN: u64 = 10_000;
/// Bytes of data that a program shares.
pub(crate) const DATA: u64 = 16 << 10;
/// One with an arena, one in the page cache.
const VOLUMES: u16 = 2;
/// What is reserved for a handle: a block is wanted 20 ms ahead, and due 5 ms before its moment.
pub(crate) const RESERVE: TimedReserve = TimedReserve {
    reads: TimedReads {
        interval: Nanos::from_millis(10),
        tolerance: Nanos::from_millis(1),
        len: Bytes(BLOCK as u64),
    },
    ahead: Nanos::from_millis(20),
    block: Bytes(BLOCK as u64),
};
/// Programs at once.
const CLIENTS: u16 = 2;

/// Byte `offset` of a title.
pub(crate) fn byte(title: TitleId, offset: u64) -> u8 {
    (offset ^ offset >> 8) as u8 ^ title.0 as u8
}

/// Writes the bytes of a title from `offset` on.
fn write(title: TitleId, offset: u64, into: &mut [u8]) {
    (offset..).zip(into).for_each(|(offset, into)| *into = byte(title, offset));
}

/// The title of a handle: on each volume one, then the same again.
fn title_of(handle: u32) -> TitleId {
    TitleId(u64::from(handle % u32::from(VOLUMES)))
}

/// A file server, its block servers, and the control side.
pub(crate) struct Fixture {
    server: FileServer,
    commands: Producer<LocalCommand>,
    reports: Consumer<LocalReport>,
    volumes: Vec<BlockTable>,
    /// The bytes of each title.
    titles: Vec<Arc<dyn SharedMemory>>,
    counters: Arc<FileCounters>,
    /// Where the server runs.
    pub(crate) processor: Arc<AtomicU32>,
    pub(crate) now: MonoTime,
    /// Clients that were reported as broken.
    pub(crate) broken: Vec<ClientId>,
    /// Clients of which nothing is left.
    pub(crate) detached: Vec<ClientId>,
    /// Handles that were reported as closed.
    pub(crate) closed: Vec<(ClientId, u32)>,
    /// Requests of writers wait for [`Self::answer_forwarded`], instead of being refused at once.
    pub(crate) holds_forwarded: bool,
    /// Those that wait, the oldest first: client, place and request.
    forwarded: VecDeque<(ClientId, u16, Request)>,
}

/// What stands for a block server.
struct BlockTable {
    owner: ArenaOwner,
    view: Option<View>,
    requests: Consumer<ToBlock>,
    answers: Producer<FromBlock>,
    wants: VecDeque<BlockRequest>,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let places = u32::from(CLIENTS) * PLACES_OF_CLIENT_MAX;
        let (parts, volumes) = (0..VOLUMES).map(|volume| block_table(volume, places)).unzip();
        let each = usize::from(CLIENTS) * (4 * HANDLES_MAX as usize + REQUESTS_MAX + 2) + 1;
        let (commands, server_commands) = ring(each);
        let (server_reports, reports) = ring(each);
        let counters = Arc::<FileCounters>::default();
        let processor = Arc::<AtomicU32>::default();
        let server = FileServer::new(FileParts {
            clients: usize::from(CLIENTS),
            volumes: parts,
            port: Box::new(Host { processor: Arc::clone(&processor) }),
            commands: server_commands,
            reports: server_reports,
            waker: Box::new(NoWaker),
            counters: Arc::clone(&counters),
        });
        let (broken, detached, closed) = (vec![], vec![], vec![]);
        let now = MonoTime(1_000_000_000);
        let titles = (0..u64::from(VOLUMES)).map(|title| memory_of(TitleId(title))).collect();
        Self {
            server,
            commands,
            reports,
            volumes,
            titles,
            counters,
            processor,
            now,
            broken,
            detached,
            closed,
            holds_forwarded: false,
            forwarded: VecDeque::new(),
        }
    }

    fn command(&mut self, command: LocalCommand) {
        assert!(self.commands.push(command).is_ok(), "the ring holds the commands of all clients");
    }

    /// Attaches a program in the slot `index`.
    pub(crate) fn attach(&mut self, index: u16) -> Program {
        let len = layout::DATA + DATA as usize;
        let memory: Arc<dyn SharedMemory> = Arc::new(HeapRegion::new(len));
        let id = ClientId { index, generation: 0 };
        let client = LocalClient::new(id, Arc::clone(&memory), Box::new(NoWaker));
        self.command(LocalCommand::Attach(Box::new(client)));
        Program::new(id, memory)
    }

    pub(crate) fn open(&mut self, client: ClientId, handle: u32) {
        self.open_grown(client, handle, TITLE_LEN);
    }

    /// The same, of a title that has grown to `len` bytes.
    pub(crate) fn open_grown(&mut self, client: ClientId, handle: u32, len: u64) {
        let title = title_of(handle);
        let origin = Origin {
            volume: VolumeId(title.0 as u16),
            title,
            file: FileHandle(title.0 as i32),
            sent_file: FileHandle(title.0 as i32),
            position: 0,
            len: Bytes(len),
            sums: None,
        };
        self.command(LocalCommand::Open { client, handle, origin });
    }

    /// Has the title of a handle in memory.
    pub(crate) fn map(&mut self, client: ClientId, handle: u32) {
        let memory = Arc::clone(&self.titles[title_of(handle).0 as usize]);
        let memory = SharedBytes::new(memory, 0);
        self.command(LocalCommand::Map { client, handle, memory });
    }

    /// Has the moments of reads of a handle kept.
    pub(crate) fn reserve(&mut self, client: ClientId, handle: u32) {
        self.command(LocalCommand::Reserve { client, handle, reserve: RESERVE });
    }

    /// What the open wants of a volume are: the block, its deadline, and whether it is best effort.
    #[cfg(test)]
    pub(crate) fn wanted(&self, volume: u16) -> Vec<(u64, MonoTime, bool)> {
        let wants = &self.volumes[usize::from(volume)].wants;
        wants.iter().map(|want| (want.block, want.deadline, want.best_effort)).collect()
    }

    pub(crate) fn close(&mut self, client: ClientId, handle: u32) {
        self.command(LocalCommand::Close { client, handle });
    }

    pub(crate) fn detach(&mut self, client: ClientId) {
        self.forwarded.retain(|(of, ..)| *of != client);
        self.command(LocalCommand::Detach(client));
    }

    /// One turn of the server, whose work is bounded. Returns when it wants the next one.
    pub(crate) fn turn(&mut self) -> Option<MonoTime> {
        let before = (self.counters.requests.value(), self.counters.bytes.value());
        self.server.poll(self.now);
        // Once in its turn, and once more when it falls asleep.
        let visits = 2 * u64::from(CLIENTS);
        let requests = self.counters.requests.value() - before.0;
        assert!(requests <= visits * TAKE_MAX as u64, "{requests} requests in a turn");
        // The bytes of a request are counted at its end.
        let bytes = self.counters.bytes.value() - before.1;
        let ended = visits * (REQUESTS_MAX as u64 * DATA + u64::from(COPY_MAX));
        assert!(bytes <= ended, "{bytes} bytes in a turn");
        while let Some(report) = self.reports.pop() {
            match report {
                LocalReport::Broken(client) => self.broken.push(client),
                LocalReport::Detached(client) => self.detached.push(client.id()),
                LocalReport::Closed { client, handle, .. } => self.closed.push((client, handle)),
                LocalReport::Forwarded { client, place, request } => {
                    assert!(request.operation.is_of_writer());
                    let end = request.at.checked_add(u64::from(request.len));
                    assert!(end.is_some_and(|end| end <= DATA), "the bytes lie within the data");
                    if self.holds_forwarded {
                        self.forwarded.push_back((client, place, request));
                        let all = usize::from(CLIENTS) * REQUESTS_MAX;
                        assert!(self.forwarded.len() <= all, "each client has its places");
                    } else {
                        // As the control side, which knows no writer.
                        let result = Err(EBADF);
                        self.command(LocalCommand::Answer { client, place, result });
                    }
                }
            }
        }
        for table in &mut self.volumes {
            table.take();
        }
        self.server.poll_timeout(self.now)
    }

    /// Answers the oldest forwarded request that is held.
    pub(crate) fn answer_forwarded(&mut self, errno: Option<u32>) {
        if let Some((client, place, request)) = self.forwarded.pop_front() {
            let result = errno.map_or(Ok(request.len), Err);
            self.command(LocalCommand::Answer { client, place, result });
        }
    }

    /// Answers the oldest want of a volume, or the youngest.
    pub(crate) fn answer(&mut self, volume: u16, is_oldest: bool, errno: Option<i32>) {
        let table = &mut self.volumes[usize::from(volume % VOLUMES)];
        let want = if is_oldest { table.wants.pop_front() } else { table.wants.pop_back() };
        if let Some(want) = want {
            table.answer(&want, errno);
        }
    }

    /// Answers all wants.
    pub(crate) fn answer_all(&mut self) {
        for table in &mut self.volumes {
            while let Some(want) = table.wants.pop_front() {
                table.answer(&want, None);
            }
        }
    }

    /// Blocks that are lent.
    pub(crate) fn lent(&self) -> u32 {
        self.volumes.iter().map(|table| table.owner.counts().lent).sum()
    }

    /// Turns, a tenth of a millisecond apart, with an answer for every want, until `is_done`.
    ///
    /// # Panics
    /// If `turns` are not enough.
    pub(crate) fn run<R>(&mut self, turns: u32, mut is_done: impl FnMut(&Self) -> Option<R>) -> R {
        for _ in 0..turns {
            self.turn();
            self.answer_all();
            self.now += Nanos::from_micros(100);
            if let Some(result) = is_done(self) {
                return result;
            }
        }
        panic!("not done after {turns} turns");
    }
}

/// A title in memory.
fn memory_of(title: TitleId) -> Arc<dyn SharedMemory> {
    let memory: Arc<dyn SharedMemory> = Arc::new(HeapRegion::new(TITLE_LEN as usize));
    let mut bytes = SharedBytes::new(Arc::clone(&memory), 0);
    bytes.fill(0, TITLE_LEN as usize, |into| write(title, 0, into));
    memory
}

fn block_table(volume: u16, places: u32) -> (FileVolume, BlockTable) {
    let (owner, view) = if volume == 0 {
        let (owner, view) = arena(Box::new(HeapRegion::new((places * BLOCK) as usize)), BLOCK);
        (owner, Some(view))
    } else {
        (elsewhere(places, BLOCK), None)
    };
    // As in the assembly.
    let (to_block, requests) = ring(4 * places as usize + 1);
    let (answers, from_block) = ring(places as usize + 1);
    let memory = view.clone().map_or(Memory::PageCache, Memory::Arena);
    let parts = FileVolume { block: Bytes(u64::from(BLOCK)), memory, to_block, from_block };
    (parts, BlockTable { owner, view, requests, answers, wants: VecDeque::new() })
}

impl BlockTable {
    fn take(&mut self) {
        while let Some(request) = self.requests.pop() {
            match request {
                ToBlock::Want(want) => self.wants.push_back(want),
                ToBlock::Return(lease) => self.take_back(lease),
                ToBlock::Commit(_) => {}
                ToBlock::Abandon { .. } => panic!("the file server abandons nothing"),
            }
        }
    }

    fn take_back(&mut self, lease: Lease) {
        let block = lease.block();
        assert!(self.owner.give_back(lease), "each want has a place of its own here");
        self.owner.evict(block);
    }

    fn answer(&mut self, want: &BlockRequest, errno: Option<i32>) {
        let token = want.token;
        let answer = match errno {
            Some(errno) => FromBlock::Failed { token, errno },
            None => {
                let block = self.owner.take().expect("clients have no more than their places");
                let offset = want.block * u64::from(BLOCK);
                if let Some(view) = &self.view {
                    let mut bytes = [0; BLOCK as usize];
                    write(want.title, offset, &mut bytes);
                    view.fill(block, 0, &bytes[..want.len as usize]);
                }
                self.owner.filled(block);
                FromBlock::Ready { token, lease: self.owner.lend(block) }
            }
        };
        assert!(self.answers.push(answer).is_ok(), "the ring holds an answer for each place");
    }
}

/// The file of each title, and where the server runs.
struct Host {
    processor: Arc<AtomicU32>,
}

impl FilePort for Host {
    fn read(&mut self, part: FilePart, into: &mut [u8]) -> Result<(), i32> {
        write(TitleId(part.file.0 as u64), part.offset.0, into);
        Ok(())
    }

    fn processor(&self) -> u32 {
        self.processor.load(Ordering::Relaxed)
    }
}

struct NoWaker;

impl Waker for NoWaker {
    fn wake(&self) {}
}

impl Program {
    /// Reads a part of the title of a handle as an honest program does, and checks the bytes.
    ///
    /// # Panics
    /// If they are wrong, or do not come within a bounded number of turns.
    pub(crate) fn read(&mut self, fixture: &mut Fixture, handle: u32) {
        self.reads += 1;
        let (offset, len) = (self.reads * 977 % TITLE_LEN, (self.reads * 331 % 5000) as u32);
        let at = self.reads * 89 % (DATA - 5000);
        let (operation, when) = (Operation::Read, MonoTime(0));
        let token = self.reads;
        let request = Request { token, operation, handle, offset: Bytes(offset), len, at, when };
        assert_eq!(self.requests.push(&request.encode()), Ok(true));
        let words = fixture.run(TURNS_OF_READ, |_| self.answers.pop().expect("an honest server"));
        let expected = u64::from(len).min(TITLE_LEN - offset);
        let answer = Answer::decode(&words);
        assert_eq!((answer.token, answer.result), (token, Ok(expected as u32)));
        let (mut copy, mut title) = (vec![0; expected as usize], vec![0; expected as usize]);
        self.data.copy_out(at, &mut copy);
        write(title_of(handle), offset, &mut title);
        assert!(copy == title, "{offset} {len}");
    }
}

const EBADF: u32 = 9;

/// A want for each of three blocks, and the turns in which they come and are copied.
const TURNS_OF_READ: u32 = 8;
