//! The store of a simulated world: uploads and recordings, and their acknowledgements.
//!
//! It uses the engine like the real store: places of the write share are filled and handed over,
//! files are flushed, and bytes covered by a flush are acknowledged. Acknowledged bytes are
//! compared with the content of the disk after an immediate power cut.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tactus_core::ports::{self, DiskFault, FileHandle, SyncScope};
use tactus_core::units::{Bytes, MonoTime, Nanos, SECOND, SECTOR};
use tactus_engine::assembly::WritePath;
use tactus_engine::message::{WriteAnswer, WriteClass, WriteRequest};
use tactus_ring::arena::{ArenaOwner, BlockRef, View};

use super::World;
use super::schedule::Event;
use crate::broker::{Grant, Request};
use crate::content::{self, Fidelity, ReadTarget};
use crate::device::{DIRECTORY, NewFile, SPAN, open};
use crate::dice::Dice;
use crate::swarm::{Mode, UploadSpec};
use crate::verdict::{Invariant, broken, require};

/// One volume's write share and the operations under way on it.
pub(super) struct Store {
    keeper: ArenaOwner,
    view: View,
    write_path: WritePath,
    woken: Arc<AtomicBool>,
    asked: HashMap<u32, EngineRequest>,
    tokens: u32,
    /// A write or flush has failed: no more uploads are taken.
    is_closed: bool,
    /// Places promised to recordings, and places held by uploads.
    promised: u32,
    used_by_uploads: u32,
    /// Uploaders that wait for a place.
    waiting: VecDeque<usize>,
}

/// A request to the engine.
#[derive(Clone, Copy, Debug)]
enum EngineRequest {
    Write { uploader: usize, block: BlockRef },
    Sync { uploader: usize, file: FileHandle, to: u64 },
    Name { uploader: usize },
}

/// A client that uploads one file after the other, or a live input.
pub(super) struct Uploader {
    spec: UploadSpec,
    dice: Dice,
    file: FileHandle,
    seed: u64,
    /// Bytes of the present file that have been handed over, and acknowledged.
    sent: u64,
    acked: u64,
    len: u64,
    /// Writes that have not been answered.
    writing: u32,
    is_syncing: bool,
    is_active: bool,
    /// When the present file was opened.
    begun: MonoTime,
    is_waiting: bool,
    grant: Option<Grant>,
    until: MonoTime,
}

impl Store {
    pub(super) fn new(
        keeper: ArenaOwner,
        view: View,
        write_path: WritePath,
        woken: Arc<AtomicBool>,
    ) -> Self {
        Self {
            keeper,
            view,
            write_path,
            woken,
            asked: HashMap::new(),
            tokens: 0,
            is_closed: false,
            promised: 0,
            used_by_uploads: 0,
            waiting: VecDeque::new(),
        }
    }

    /// Whether there are unhandled answers.
    pub(super) fn take_ring(&self) -> bool {
        self.woken.swap(false, Ordering::Relaxed)
    }

    fn ask(&mut self, request: impl FnOnce(u32) -> WriteRequest, asked: EngineRequest) {
        let token = self.tokens;
        self.tokens += 1;
        self.asked.insert(token, asked);
        let pushed = self.write_path.requests.push(request(token));
        require(pushed.is_ok(), Invariant::Assertion, || {
            "the write path's ring is full".to_owned()
        });
    }
}

impl Uploader {
    pub(super) fn new(number: usize, spec: UploadSpec, dice: &Dice) -> Self {
        Self {
            spec,
            dice: dice.fork(50_000 + number as u64),
            file: FileHandle(-1),
            seed: 0,
            sent: 0,
            acked: 0,
            len: 0,
            writing: 0,
            is_syncing: false,
            is_active: false,
            begun: MonoTime(0),
            is_waiting: false,
            grant: None,
            until: MonoTime(0),
        }
    }
}

impl World {
    /// An upload or a recording begins, or its next part.
    pub(super) fn upload(&mut self, uploader: usize) {
        let now = self.now;
        let volume = self.uploaders[uploader].spec.volume;
        let quiet_from = self.swarm.quiet_from;
        let liveness = self.swarm.mode == Mode::Liveness;
        let store = self.stores[volume].as_mut().expect("the volume takes uploads");
        if store.is_closed && liveness && now >= quiet_from && store.asked.is_empty() {
            // Opened again, and everything on it read again.
            store.is_closed = false;
        }
        if now >= self.end {
            return;
        }
        if store.is_closed {
            return self.push(now + SECOND, Event::Upload { uploader });
        }
        let of = &self.uploaders[uploader];
        if !of.is_active {
            if of.writing > 0 || of.is_syncing {
                // Its last file is still open.
                return self.push(now + SECOND, Event::Upload { uploader });
            }
            self.open_file(uploader);
        }
        if self.uploaders[uploader].spec.record.is_some() {
            self.record(uploader);
        } else {
            self.send(uploader);
        }
    }

    fn open_file(&mut self, uploader: usize) {
        let number = uploader;
        let Uploader { spec, dice, .. } = &mut self.uploaders[uploader];
        let spec = *spec;
        let places = dice.between(1, spec.len_max / u64::from(spec.place));
        let len = places * u64::from(spec.place);
        let position = dice.below(SPAN - len) / 4096 * 4096;
        let seed = dice.next();
        let is_recording = spec.record.is_some();
        let new = NewFile { seed, position, is_recording, len };
        let file = open(&self.devices[spec.volume]).stable().open(number, new);
        let (begun, until) = (self.now, self.now + spec.lasts);
        let of = &mut self.uploaders[uploader];
        of.begun = begun;
        (of.file, of.seed, of.len, of.until) = (file, seed, len, until);
        (of.sent, of.acked, of.is_active) = (0, 0, true);
    }

    /// Hands over as much as there are places for, up to the next acknowledgement.
    fn send(&mut self, uploader: usize) {
        let of = &self.uploaders[uploader];
        let volume = of.spec.volume;
        let stop = (of.acked + of.spec.chunk).min(of.len);
        while self.uploaders[uploader].sent < stop {
            let store = self.stores[volume].as_mut().expect("the volume takes uploads");
            let most = store.keeper.places() - store.promised;
            if store.used_by_uploads >= most {
                let of = &mut self.uploaders[uploader];
                if !std::mem::replace(&mut of.is_waiting, true) {
                    store.waiting.push_back(uploader);
                }
                return;
            }
            store.used_by_uploads += 1;
            self.write(uploader, WriteClass::BestEffort);
        }
        let of = &mut self.uploaders[uploader];
        if of.writing == 0 && !of.is_syncing && of.sent > of.acked {
            of.is_syncing = true;
            let (file, to) = (of.file, of.sent);
            let store = self.stores[volume].as_mut().expect("the volume takes uploads");
            let asked = EngineRequest::Sync { uploader, file, to };
            store.ask(|token| WriteRequest::Sync { token, file, reach: SyncScope::Data }, asked);
            self.ring_core(self.placement.disks[volume]);
        }
    }

    /// Fills a place and hands it over.
    fn write(&mut self, uploader: usize, class: WriteClass) {
        let of = &mut self.uploaders[uploader];
        let Uploader { file, seed, spec, .. } = *of;
        let store = self.stores[spec.volume].as_mut().expect("the volume takes uploads");
        let Some(block) = store.keeper.take() else {
            broken(
                Invariant::NeverEmpty,
                format!("no place is left for {spec:?} at {:?}", self.now),
            )
        };
        // A recording wraps around in its file.
        let offset = of.sent % of.len;
        of.sent += u64::from(spec.place);
        of.writing += 1;
        let range = (offset, offset + u64::from(spec.place));
        content::fill(
            &store.view,
            ReadTarget { block, at: 0 },
            seed,
            range,
            Fidelity::Restamping(4096),
        );
        let mut device = open(&self.devices[spec.volume]);
        if class == WriteClass::BestEffort {
            device.note_upload(self.now, u64::from(spec.place));
        }
        let position = device.stable().position(file) + offset;
        drop(device);
        let BlockRef { place, generation } = block;
        let request = |token| WriteRequest::Write {
            token,
            block: ports::BlockRef { place, generation },
            file,
            offset: Bytes(offset),
            len: spec.place,
            class,
            position,
        };
        store.ask(request, EngineRequest::Write { uploader, block });
        self.tally.written += u64::from(spec.place);
        self.ring_core(self.placement.disks[spec.volume]);
    }

    /// The next place of a recording is full.
    fn record(&mut self, uploader: usize) {
        let now = self.now;
        let Uploader { spec, grant, writing, until, .. } = self.uploaders[uploader];
        let rate = spec.record.expect("only recordings are recorded");
        let cycle = self.swarm.volumes[spec.volume].cycle;
        let fills = rate.time_for(Bytes(u64::from(spec.place)));
        if grant.is_none() {
            let Some(grant) = self.broker.admit_recording(spec.volume, Request::Record { rate })
            else {
                self.tally.refused += 1;
                return self.push(now + SECOND, Event::Upload { uploader });
            };
            let store = self.stores[spec.volume].as_mut().expect("the volume takes uploads");
            store.promised += grant.window();
            self.uploaders[uploader].grant = Some(grant);
            self.tally.recordings += 1;
            return self.push(now + fills, Event::Upload { uploader });
        }
        if now >= until {
            self.uploaders[uploader].is_active = false;
            self.end_recording(uploader);
            return self.push(now + spec.think + SECOND, Event::Upload { uploader });
        }
        let store = self.stores[spec.volume].as_ref().expect("the volume takes uploads");
        if writing == 0 && store.used_by_uploads + store.promised > store.keeper.places() {
            // It begins when uploads have released places.
            return self.push(now + fills, Event::Upload { uploader });
        }
        // One place is always being filled.
        let window = grant.map_or(0, |grant| grant.window());
        if writing + 1 >= window {
            let volume = &self.swarm.volumes[spec.volume];
            let healthy = volume.faults.is_empty() && self.swarm.pauses.is_empty();
            require(!healthy, Invariant::NeverEmpty, || {
                format!("{writing} places of a recording wait at {now:?}, it was promised {window}")
            });
            // The bytes that come meanwhile are lost.
            return self.push(now + fills, Event::Upload { uploader });
        }
        let deadline = now + cycle.times(3) + fills;
        self.write(uploader, WriteClass::Paced { deadline });
        self.push(now + fills, Event::Upload { uploader });
    }

    /// Returns the promise of a recording, when all of it has been written.
    fn end_recording(&mut self, uploader: usize) {
        let of = &mut self.uploaders[uploader];
        if of.writing > 0 || of.is_active {
            return;
        }
        if let Some(grant) = of.grant.take() {
            let store = self.stores[of.spec.volume].as_mut().expect("the volume takes uploads");
            store.promised -= grant.window();
            self.broker.release(grant);
        }
    }

    /// Reads the engine's answers.
    pub(super) fn read_answers(&mut self, volume: usize) {
        while let Some(store) = self.stores[volume].as_mut()
            && let Some(answer) = store.write_path.answers.pop()
        {
            let (token, result) = match answer {
                WriteAnswer::Written { token, result } | WriteAnswer::Synced { token, result } => {
                    (token, result)
                }
            };
            let asked = store.asked.remove(&token);
            self.trace.note_all([self.now.0, u64::from(token), u64::from(result.is_ok())]);
            match (answer, asked) {
                (WriteAnswer::Written { .. }, Some(EngineRequest::Write { uploader, block })) => {
                    self.written(uploader, block, result);
                }
                (WriteAnswer::Synced { .. }, Some(EngineRequest::Sync { uploader, file, to })) => {
                    self.synced(uploader, token, (file, to), result);
                }
                (WriteAnswer::Synced { .. }, Some(EngineRequest::Name { uploader })) => {
                    self.named(uploader, result);
                }
                _ => broken(
                    Invariant::OneCompletionEach,
                    format!("{answer:?} at {:?}, but {asked:?} was asked for", self.now),
                ),
            }
        }
    }

    fn written(&mut self, uploader: usize, block: BlockRef, result: Result<(), DiskFault>) {
        let of = &mut self.uploaders[uploader];
        of.writing -= 1;
        let is_recording = of.spec.record.is_some();
        let store = self.stores[of.spec.volume].as_mut().expect("the volume takes uploads");
        store.keeper.emptied(block);
        if is_recording {
            if result.is_err() {
                self.fail(uploader);
            }
            return self.end_recording(uploader);
        }
        store.used_by_uploads -= 1;
        let next = store.waiting.pop_front();
        if result.is_err() {
            self.fail(uploader);
        } else if self.uploaders[uploader].is_active {
            self.go_on(uploader);
        } else if self.uploaders[uploader].writing == 0 {
            self.retry(uploader);
        }
        if let Some(next) = next {
            self.uploaders[next].is_waiting = false;
            if self.uploaders[next].is_active {
                self.go_on(next);
            }
        }
    }

    /// Hands over more, unless the run is over.
    fn go_on(&mut self, uploader: usize) {
        let volume = self.uploaders[uploader].spec.volume;
        let is_closed = self.stores[volume].as_ref().is_none_or(|store| store.is_closed);
        if is_closed || self.now >= self.end {
            self.fail_quietly(uploader);
        } else {
            self.send(uploader);
        }
    }

    fn synced(
        &mut self,
        uploader: usize,
        token: u32,
        (file, to): (FileHandle, u64),
        result: Result<(), DiskFault>,
    ) {
        let now = self.now;
        let volume = self.uploaders[uploader].spec.volume;
        {
            let mut device = open(&self.devices[volume]);
            let failed = device.has_failed(token);
            let is_right = result.is_err() == failed;
            require(is_right, Invariant::FailureIsFinal, || {
                format!("{result:?} of a flush at {now:?}, the device said failed: {failed}")
            });
            let is_safe = result.is_err() || device.stable().is_durable(file, 0, to);
            require(is_safe, Invariant::AckIsDurable, || {
                format!("{to} bytes of {file:?} acknowledged at {now:?}, not all would be there")
            });
        }
        let of = &mut self.uploaders[uploader];
        of.is_syncing = false;
        if result.is_err() {
            return self.fail(uploader);
        }
        of.acked = to;
        let is_complete = of.is_active && of.acked == of.len;
        if is_complete && of.spec.has_name {
            return self.give_name(uploader);
        }
        self.acknowledge(uploader, is_complete);
    }

    /// The next part follows after a while, or the next file.
    fn acknowledge(&mut self, uploader: usize, is_complete: bool) {
        let of = &mut self.uploaders[uploader];
        self.tally.acks += 1;
        if is_complete {
            of.is_active = false;
            self.tally.uploads += 1;
        }
        let think = Nanos(of.spec.think.0 / 2 + of.dice.below(of.spec.think.0.max(1)));
        self.push(self.now + think, Event::Upload { uploader });
    }

    /// Changes the directory in memory, and flushes it.
    fn give_name(&mut self, uploader: usize) {
        let count = self.uploaders.len();
        let of = &mut self.uploaders[uploader];
        of.is_syncing = true;
        let volume = of.spec.volume;
        open(&self.devices[volume]).stable().name(uploader, count);
        let store = self.stores[volume].as_mut().expect("the volume takes uploads");
        let (file, reach) = (DIRECTORY, SyncScope::All);
        let asked = EngineRequest::Name { uploader };
        store.ask(|token| WriteRequest::Sync { token, file, reach }, asked);
        self.ring_core(self.placement.disks[volume]);
    }

    fn named(&mut self, uploader: usize, result: Result<(), DiskFault>) {
        let now = self.now;
        let of = &mut self.uploaders[uploader];
        let name = uploader as u64 * SECTOR;
        let mut device = open(&self.devices[of.spec.volume]);
        let is_safe = result.is_err() || device.stable().is_durable(DIRECTORY, name, name + SECTOR);
        drop(device);
        require(is_safe, Invariant::AckIsDurable, || {
            format!("the name of upload {uploader} acknowledged at {now:?} would not be there")
        });
        of.is_syncing = false;
        if result.is_err() {
            return self.fail(uploader);
        }
        let took = now.since(of.begun);
        self.tally.ack_time += took;
        self.tally.ack_max = self.tally.ack_max.max(took);
        self.acknowledge(uploader, true);
    }

    /// An error is final: the upload ends, and its volume takes no more uploads.
    fn fail(&mut self, uploader: usize) {
        let volume = self.uploaders[uploader].spec.volume;
        let store = self.stores[volume].as_mut().expect("the volume takes uploads");
        store.is_closed = true;
        self.tally.uploads_failed += 1;
        self.fail_quietly(uploader);
    }

    fn fail_quietly(&mut self, uploader: usize) {
        let of = &mut self.uploaders[uploader];
        let was_active = std::mem::replace(&mut of.is_active, false);
        // A recording has its own schedule, and a flush its own answer.
        if (was_active || of.writing == 0) && of.spec.record.is_none() && !of.is_syncing {
            self.retry(uploader);
        }
    }

    fn retry(&mut self, uploader: usize) {
        if self.uploaders[uploader].writing == 0 && self.now < self.end {
            self.push(self.now + SECOND, Event::Upload { uploader });
        }
    }

    /// Ends everything: uploads are given up, recordings end.
    pub(super) fn close_stores(&mut self) {
        for uploader in 0..self.uploaders.len() {
            self.uploaders[uploader].is_active = false;
            self.end_recording(uploader);
        }
    }

    /// Whether the engine has a request of the store.
    pub(super) fn stores_are_busy(&self) -> bool {
        self.stores.iter().flatten().any(|store| !store.asked.is_empty())
    }

    pub(super) fn check_stores_empty(&self) {
        for store in self.stores.iter().flatten() {
            let counts = store.keeper.counts();
            let clean = counts.free == store.keeper.places() && store.promised == 0;
            require(clean, Invariant::NothingLeft, || {
                format!("of a write share {counts:?}, {} promised", store.promised)
            });
        }
    }
}
