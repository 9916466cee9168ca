//! Local programs of a simulated world, and the control side's part for them.
//!
//! A program opens titles, reads in them at random, some of it at moments that the ledger has made
//! room for, and is killed at a random moment. Liars write anything into their memory. Judged is
//! what comes back: each request is answered once, with the right bytes, not before its moment, and
//! a promised moment is kept; the engine gives up all that a program had before another one gets
//! its slot.

mod answers;
mod reports;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tactus_core::local::{Operation, Request, layout};
use tactus_core::ports::{FilePart, FilePort};
use tactus_core::timed::{TimedReads, TimedReserve};
use tactus_core::units::{Bytes, MILLISECOND, MonoTime, Nanos, SECOND};
use tactus_engine::assembly::LocalSetup;
use tactus_engine::file::REQUESTS_MAX;
use tactus_engine::file::program::Program;
use tactus_engine::message::{ClientId, LocalClient, LocalCommand};
use tactus_ring::arena::HeapRegion;
use tactus_ring::shared::SharedMemory;

use super::schedule::{Act, Event};
use super::{WakeFlag, World};
use crate::broker::Grant;
use crate::content;
use crate::device::{Device, open};
use crate::dice::Dice;
use crate::swarm::{MomentSpec, ProgramSpec, Swarm};
use crate::title::{Audience, Title};
use crate::verdict::{Invariant, require};

/// All programs.
pub(super) struct Programs {
    slots: Vec<Slot>,
    /// The file server has reports.
    reported: Arc<AtomicBool>,
    /// Requests so far.
    tokens: u64,
    /// Delays of the control side and of wake-ups.
    dice: Dice,
    /// Copies of what has been read.
    copy: Vec<u8>,
}

/// A slot of the file server's table.
struct Slot {
    spec: ProgramSpec,
    dice: Dice,
    /// Counts its programs.
    life: u32,
    /// The program, until it is killed.
    running: Option<Running>,
    /// The engine has it, or is to give it back.
    is_attached: bool,
    /// Titles that the engine has for it.
    titles: Vec<Option<OpenTitle>>,
    /// The file server has rung for it.
    rung: Arc<AtomicBool>,
}

/// A program that runs.
struct Running {
    program: Program,
    asked: Vec<PendingRead>,
    /// It looks for answers by itself, and the next look is planned.
    is_looking: bool,
}

/// A read that has not been answered.
#[derive(Clone, Copy, Debug)]
struct PendingRead {
    token: u64,
    handle: u32,
    title: usize,
    offset: u64,
    /// Bytes that must come.
    expected: u32,
    /// The part of its data that the bytes go to.
    part: u32,
    when: MonoTime,
    is_promised: bool,
    /// Its title was closed since: the handle may be another opening's when the answer is taken.
    is_closed: bool,
}

/// A title that is open.
struct OpenTitle {
    title: usize,
    /// Its length when it was opened.
    len: u64,
    /// Where the last read has ended.
    next: u64,
    is_closing: bool,
    moments: Option<Moments>,
}

/// Room for reads at moments.
struct Moments {
    grant: Grant,
    reserve: TimedReserve,
    /// The next moment by the mean interval.
    next: MonoTime,
}

/// Reads the page caches of all volumes.
struct PageCaches {
    devices: Vec<Arc<Mutex<Device>>>,
    titles: Arc<[Title]>,
}

impl FilePort for PageCaches {
    fn read(&mut self, part: FilePart, into: &mut [u8]) -> Result<(), i32> {
        let number = part.file.0 as usize;
        let device = open(&self.devices[self.titles[number].volume]);
        device.check_in_memory(device.now, part);
        content::expected(number as u64, part.offset.0, into);
        Ok(())
    }

    /// Programs do not say where they run.
    fn processor(&self) -> u32 {
        0
    }
}

impl Programs {
    pub(super) fn new(swarm: &Swarm, dice: &Dice) -> Self {
        let slot = |(number, spec): (usize, &ProgramSpec)| Slot {
            spec: *spec,
            dice: dice.fork(number as u64),
            life: 0,
            running: None,
            is_attached: false,
            titles: (0..HANDLES).map(|_| None).collect(),
            rung: Arc::default(),
        };
        Self {
            slots: swarm.programs.iter().enumerate().map(slot).collect(),
            reported: Arc::default(),
            tokens: 0,
            dice: dice.fork(1 << 32),
            copy: vec![],
        }
    }

    /// The engine's part; `None` in a world without programs.
    pub(super) fn setup(
        &self,
        devices: &[Arc<Mutex<Device>>],
        titles: &Arc<[Title]>,
    ) -> Option<LocalSetup> {
        let caches = PageCaches { devices: devices.to_vec(), titles: Arc::clone(titles) };
        let waker = Box::new(WakeFlag(Arc::clone(&self.reported)));
        let clients = self.slots.len() as u16;
        (clients > 0).then(|| LocalSetup { clients, port: Box::new(caches), waker })
    }

    /// Whether the engine has anything of a program.
    pub(super) fn any_attached(&self) -> bool {
        self.slots.iter().any(|slot| slot.is_attached)
    }

    /// Requests of honest programs under way that are older than the request number `before`.
    pub(super) fn under_way(&self, before: u64) -> usize {
        let running = self.slots.iter().filter_map(|slot| slot.running.as_ref());
        running.flat_map(|running| &running.asked).filter(|asked| asked.token < before).count()
    }

    /// The number of the next request.
    pub(super) fn next_token(&self) -> u64 {
        self.tokens
    }

    fn delay(&mut self, most: Nanos) -> Nanos {
        Nanos(self.dice.below(most.0.max(1)))
    }
}

impl Running {
    /// A part of its data that no request fills.
    fn free_part(&self) -> Option<u32> {
        let is_free = |part: &u32| self.asked.iter().all(|asked| asked.part != *part);
        (0..REQUESTS_MAX as u32).find(is_free)
    }
}

impl World {
    /// Plans the first program of each slot.
    pub(super) fn plan_programs(&mut self) {
        for slot in 0..self.programs.slots.len() {
            let at = self.now + self.programs.slots[slot].spec.arrives;
            self.push_act(at, slot, Act::Begin);
        }
    }

    fn push_act(&mut self, at: MonoTime, slot: usize, act: Act) {
        let life = self.programs.slots[slot].life;
        self.push(at, Event::Program { slot, life, act });
    }

    /// What a program does.
    pub(super) fn act(&mut self, slot: usize, life: u32, act: Act) {
        if self.programs.slots[slot].life != life {
            return;
        }
        match act {
            Act::Look => self.look_for_answers(slot),
            // The end of the world ends the programs.
            _ if self.now >= self.end => {}
            Act::Begin => self.begin_program(slot),
            Act::Step if self.programs.slots[slot].spec.is_liar => self.lie(slot),
            Act::Step => self.step_of_program(slot),
            Act::Moment { handle } => self.read_at_moment(slot, handle),
            Act::Kill => self.detach(slot),
        }
    }

    fn begin_program(&mut self, at: usize) {
        let slot = &mut self.programs.slots[at];
        slot.life += 1;
        slot.is_attached = true;
        slot.rung.store(false, Ordering::Relaxed);
        let id = ClientId { index: at as u16, generation: slot.life };
        let len = layout::DATA + REQUESTS_MAX * slot.spec.len_max as usize;
        let memory: Arc<dyn SharedMemory> = Arc::new(HeapRegion::new(len));
        let bell = Box::new(WakeFlag(Arc::clone(&slot.rung)));
        let client = LocalClient::new(id, Arc::clone(&memory), bell);
        let program = Program::new(id, memory);
        slot.running = Some(Running { program, asked: vec![], is_looking: false });
        let lives = slot.spec.lives;
        let lives = Nanos(lives.0 / 2 + slot.dice.below(lives.0));
        self.tally.programs += 1;
        self.order(LocalCommand::Attach(Box::new(client)));
        self.push_act(self.now, at, Act::Step);
        self.push_act(self.now + lives, at, Act::Kill);
    }

    /// A command of the control side to the file server.
    fn order(&mut self, command: LocalCommand) {
        let local = self.control.local.as_mut().expect("a world with programs has a file server");
        let pushed = local.commands.push(command);
        require(pushed.is_ok(), Invariant::Assertion, || {
            "the ring of the file server's commands is full".to_owned()
        });
        self.ring_core(self.placement.file);
    }

    /// A step of an honest program: it opens or closes a title, or reads.
    fn step_of_program(&mut self, at: usize) {
        let slot = &mut self.programs.slots[at];
        if slot.running.is_none() {
            return;
        }
        let is_open = slot.titles.iter().flatten().any(|title| !title.is_closing);
        let next = match slot.dice.below(10) {
            // While the server is still awake.
            0..=2 => Nanos(slot.dice.below(20_000)),
            _ => Nanos(slot.dice.below(2 * slot.spec.think.0)),
        };
        match slot.dice.below(16) {
            0 if is_open => self.close_title(at),
            1 | 2 => self.open_title(at),
            _ if !is_open => self.open_title(at),
            _ => self.read_somewhere(at),
        }
        self.push_act(self.now + next, at, Act::Step);
    }

    fn open_title(&mut self, at: usize) {
        let slot = &mut self.programs.slots[at];
        let Some(handle) = slot.titles.iter().position(Option::is_none) else { return };
        let has_moments = slot.titles.iter().flatten().any(|open| open.moments.is_some());
        let asked = slot.spec.moments.filter(|_| !has_moments && slot.dice.chance(500));
        let fits = |title: &&Title| match title.audience {
            Audience::Both => asked.is_none() || title.growth.is_none(),
            Audience::Downloads => asked.is_none(),
            Audience::Paced => false,
        };
        let count = self.titles.iter().filter(fits).count();
        let Some(chosen) = count.checked_sub(1) else { return };
        let chosen = slot.dice.below(chosen as u64 + 1) as usize;
        let mut fitting = self.titles.iter().enumerate().filter(|(_, title)| fits(title));
        let (title, _) = fitting.nth(chosen).expect("one of those that were counted");
        let client = ClientId { index: at as u16, generation: slot.life };
        let origin = self.origin(title);
        let len = origin.len.0;
        let moments = asked.and_then(|asked| self.admit_moments(at, title, asked));
        let reserve = moments.as_ref().map(|moments| moments.reserve);
        let opened = OpenTitle { title, len, next: 0, is_closing: false, moments };
        self.programs.slots[at].titles[handle] = Some(opened);
        let handle = handle as u32;
        self.trace.note_all([self.now.0, at as u64, title as u64]);
        self.order(LocalCommand::Open { client, handle, origin });
        if let Some(reserve) = reserve {
            self.order(LocalCommand::Reserve { client, handle, reserve });
            self.push_act(self.now, at, Act::Moment { handle });
        }
    }

    /// Room for reads at moments, if the ledger has it and the program can use it.
    fn admit_moments(&mut self, at: usize, title: usize, asked: MomentSpec) -> Option<Moments> {
        let Title { volume, len, .. } = self.titles[title];
        let ProgramSpec { think, depth, len_max, .. } = self.programs.slots[at].spec;
        // Two blocks are read ahead in two cycles each.
        let ahead = self.swarm.volumes[volume].cycle.times(4);
        let interval = Nanos((ahead.0 / asked.ahead).max(think.0 / 4));
        let reads = TimedReads {
            interval,
            tolerance: Nanos(interval.0 / 1000 * asked.tolerance_thousandths),
            len: asked.len.min(Bytes(u64::from(len_max))),
        };
        let Some((grant, reserve)) = self.broker.admit_timed(volume, reads, len) else {
            self.tally.refused += 1;
            return None;
        };
        if grant.window() + depth > REQUESTS_MAX as u32 {
            // More than the program has places for.
            self.broker.release(grant);
            return None;
        }
        Some(Moments { grant, reserve, next: MonoTime(0) })
    }

    fn close_title(&mut self, at: usize) {
        let slot = &mut self.programs.slots[at];
        let handle = slot.dice.below(HANDLES) as usize;
        let Some(open) = slot.titles[handle].as_mut().filter(|open| !open.is_closing) else {
            return;
        };
        open.is_closing = true;
        let asked = slot.running.iter_mut().flat_map(|running| &mut running.asked);
        asked.filter(|read| read.handle as usize == handle).for_each(|read| read.is_closed = true);
        let client = ClientId { index: at as u16, generation: slot.life };
        self.order(LocalCommand::Close { client, handle: handle as u32 });
    }

    fn read_somewhere(&mut self, at: usize) {
        let now = self.now;
        let Slot { spec, dice, titles, running, .. } = &mut self.programs.slots[at];
        let Some(running) = running else { return };
        let promised = running.asked.iter().filter(|asked| asked.is_promised).count();
        if running.asked.len() - promised >= spec.depth as usize {
            return;
        }
        let handle = dice.below(HANDLES) as usize;
        let Some(open) = titles[handle].as_mut().filter(|open| !open.is_closing) else { return };
        let offset = match dice.below(4) {
            0 => open.next,
            // Whole blocks have something to compare in every world.
            1 => dice.below(open.len) / 65_536 * 65_536,
            _ => dice.below(open.len + 10),
        };
        let len = dice.spread(1, u64::from(spec.len_max)) as u32;
        open.next = (offset + u64::from(len)) % open.len;
        // Without a reserve a moment only says when the answer comes.
        let may_wait = open.moments.is_none() && dice.chance(150);
        let when = if may_wait { now + Nanos(dice.spread(100_000, SECOND.0)) } else { MonoTime(0) };
        self.ask(at, handle as u32, (offset, len), (when, false));
    }

    /// Asks for the next promised moment of a title, and plans the one after it.
    fn read_at_moment(&mut self, at: usize, handle: u32) {
        let (now, lateness) = (self.now, self.swarm.lateness);
        let Slot { dice, titles, running, .. } = &mut self.programs.slots[at];
        let open = titles[handle as usize].as_mut().filter(|open| !open.is_closing);
        let (Some(open), Some(running)) = (open, running) else { return };
        let Some(Moments { reserve, next, .. }) = &mut open.moments else { return };
        let TimedReads { interval, tolerance, len } = reserve.reads;
        // Until the file server takes the request.
        let needed = reserve.ahead.times(2) + ON_ITS_WAY + lateness.times(8);
        let len = dice.between(1, len.0);
        let offset = dice.below(open.len);
        if running.free_part().is_some() {
            let early = Nanos(dice.below(tolerance.0 + 1));
            let when = match dice.below(3) {
                0 => *next,
                1 => next.before(early.min(Nanos(next.0))),
                _ => *next + Nanos(dice.below(interval.0)),
            };
            let when = when.max(now + needed);
            *next = when.max(*next) + interval;
            self.ask(at, handle, (offset, len as u32), (when, true));
        }
        let slot = &mut self.programs.slots[at];
        let open = slot.titles[handle as usize].as_ref();
        let next = open.and_then(|open| open.moments.as_ref()).map_or(now, |room| room.next);
        let wait = next.since(now + needed);
        let wait = Nanos(wait.0 / 2 + slot.dice.below(interval.0)).max(MILLISECOND);
        self.push_act(now + wait, at, Act::Moment { handle });
    }

    /// Pushes a read, and rings if the server sleeps.
    fn ask(
        &mut self,
        at: usize,
        handle: u32,
        (offset, len): (u64, u32),
        (when, is_promised): (MonoTime, bool),
    ) {
        let now = self.now;
        let token = self.programs.tokens;
        self.programs.tokens += 1;
        let Slot { spec, titles, running, .. } = &mut self.programs.slots[at];
        let (Some(running), Some(open)) = (running, &titles[handle as usize]) else { return };
        let Some(part) = running.free_part() else { return };
        let request = Request {
            token,
            operation: Operation::Read,
            handle,
            offset: Bytes(offset),
            len,
            at: u64::from(part) * u64::from(spec.len_max),
            when,
        };
        let pushed = running.program.requests.push(&request.encode());
        require(pushed == Ok(true), Invariant::Assertion, || {
            format!("{request:?} at {now:?} found no room in its ring: {pushed:?}")
        });
        let expected = open.len.saturating_sub(offset).min(u64::from(len)) as u32;
        let title = open.title;
        let asked = PendingRead {
            token,
            handle,
            title,
            offset,
            expected,
            part,
            when,
            is_promised,
            is_closed: false,
        };
        running.asked.push(asked);
        let must_ring = running.program.server_mark.must_ring();
        let looks = spec.looks.filter(|_| !running.is_looking);
        match spec.looks {
            Some(_) => running.is_looking = true,
            // It sleeps from now on: no answer can have come since.
            None => running.program.own_mark.set(),
        }
        if must_ring {
            self.ring_doorbell();
        }
        if let Some(every) = looks {
            self.push_act(now + every, at, Act::Look);
        }
    }

    /// A thread of the control side hears the doorbell and wakes the file server's core.
    fn ring_doorbell(&mut self) {
        self.ring_core(self.placement.file);
    }

    /// A step of a liar.
    fn lie(&mut self, at: usize) {
        let now = self.now;
        let Slot { spec, dice, running, .. } = &mut self.programs.slots[at];
        let Some(Running { program, .. }) = running else { return };
        for _ in 0..dice.between(1, 8) {
            match dice.below(40) {
                0 => {
                    let word = dice.below(layout::DATA as u64 / 8) as usize * 8;
                    program.write(word, dice.next());
                }
                1 => program.write(POSITIONS[dice.below(2) as usize], dice.below(300)),
                2 => program.write(MARKS[dice.below(2) as usize], dice.below(3)),
                // Taken, without a look at it.
                3..=9 => {
                    program.answers.pop().ok();
                }
                10..=15 => {
                    program.requests.push(&std::array::from_fn(|_| dice.below(40))).ok();
                }
                _ => {
                    let operation = dice.pick(&OPERATIONS);
                    let request = Request {
                        token: dice.next(),
                        operation,
                        handle: dice.below(HANDLES + 1) as u32,
                        offset: Bytes(dice.spread(1, 1 << 32)),
                        len: dice.spread(1, 1 << 20) as u32,
                        at: dice.below(u64::from(spec.len_max)),
                        when: MonoTime(dice.below(2) * (now.0 + dice.below(SECOND.0))),
                    };
                    program.requests.push(&request.encode()).ok();
                }
            }
        }
        let (opens, next) = (dice.chance(200), Nanos(dice.below(2 * spec.think.0)));
        self.ring_doorbell();
        if opens {
            self.open_title(at);
        }
        self.push_act(now + next, at, Act::Step);
    }

    /// A program ends, whatever it waits for.
    fn detach(&mut self, at: usize) {
        let slot = &mut self.programs.slots[at];
        let Some(running) = slot.running.take() else { return };
        self.tally.killed += u64::from(!running.asked.is_empty());
        self.order(LocalCommand::Detach(running.program.id));
    }

    /// After each turn of a core: plans what was rung for.
    pub(super) fn hear_programs(&mut self) {
        let control_delay = self.swarm.control_delay;
        if self.programs.reported.swap(false, Ordering::Relaxed) {
            let at = self.now + self.programs.delay(control_delay);
            self.push(at, Event::LocalReports);
        }
        for slot in 0..self.programs.slots.len() {
            if self.programs.slots[slot].rung.swap(false, Ordering::Relaxed) {
                let at = self.now + self.programs.delay(control_delay);
                self.push_act(at, slot, Act::Look);
            }
        }
    }

    /// At the end: programs that wait for nothing leave at once.
    pub(super) fn close_programs(&mut self) {
        for slot in 0..self.programs.slots.len() {
            self.leave_if_over(slot);
        }
    }
}

/// Titles that a program has open at once.
const HANDLES: u64 = 6;

/// Time from a request to the turn that takes it, of a server that may be on its way to another
/// core.
const ON_ITS_WAY: Nanos = Nanos::from_millis(20);

/// What a liar writes as a number of requests pushed, or answers taken.
const POSITIONS: [usize; 2] = [layout::REQUESTS_PUSHED, layout::ANSWERS_TAKEN];
const MARKS: [usize; 2] = [layout::SERVER_ASLEEP, layout::CLIENT_ASLEEP];
const OPERATIONS: [Operation; 6] = [
    Operation::Read,
    Operation::Read,
    Operation::Read,
    Operation::Nothing,
    Operation::Write,
    Operation::Publish,
];
