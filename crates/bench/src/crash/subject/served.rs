//! The real thing: `tactus serve` on the volume, loaded and asked through its HTTP.
//!
//! Promise: only an answer counts as an acknowledgement. Recovery is the server's own start. What
//! is left is judged three times: the titles as files, one of them as the server sends it, and
//! every upload by resuming it at the offset that the server reports. Of a recording it is an
//! acknowledgement when the server says how much of it is durable.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use tactus_client::{Client as LocalProgram, MemoryWriter, Replace, WriteOptions};
use tactus_core::units::{Nanos, SECOND};

use super::{RecoveredSubject, Subject, files, seen};
use crate::clock;
use crate::crash::client::Client;
use crate::crash::content::{StoredVersion, Version, identify};
use crate::crash::history::{History, OperationHandle, Position, ResumedUpload, VolumeContents};
use crate::crash::medium::Fault;
use crate::crash::recorder::Recorder;
use crate::crash::server::{Program, QUOTA, Server};
use crate::random::Random;

/// Tactus itself.
#[derive(Clone, Debug)]
pub(super) struct TactusSubject {
    name: &'static str,
    method: &'static str,
    program: Program,
    /// Some write or flush fails under it.
    faulty: bool,
}

/// The server at `binary`: as it is, and with one step done wrongly; on a disk that works, and on
/// one that fails once.
pub(super) fn all(binary: &Path) -> Vec<Box<dyn Subject>> {
    let subject = |name, method, wrong, faulty| {
        let local = [LOCAL, MEMORY].contains(&name);
        let program =
            Program { binary: binary.to_owned(), wrong, expiry: EXPIRY, local, quota: QUOTA };
        Box::new(TactusSubject { name, method, program, faulty }) as Box<dyn Subject>
    };
    vec![
        subject("tactus", "the server: PUT, replace, DELETE, MOVE, tus, recordings", None, false),
        subject(LOCAL, "the same, titles by a program of the machine", None, false),
        subject(MEMORY, "the same, and uploads that it builds in memory", None, false),
        subject("tactus-faulty", "the same, where a write or flush fails", None, true),
        subject("tactus-folders", "the same, no folder flushed", Some("folders"), false),
        subject("tactus-sizes", "the same, offset from the size", Some("sizes"), false),
    ]
}

impl Subject for TactusSubject {
    fn name(&self) -> &str {
        self.name
    }

    fn method(&self) -> &str {
        self.method
    }

    fn audio(&self) -> bool {
        self.program.wrong.is_none()
    }

    fn load(&self, root: &Path, recorder: &Recorder<'_>, random: &mut Random) -> Result<()> {
        let server = self.program.start(root)?;
        let local = self.program.local.then(|| server.program()).transpose()?;
        let acts = ClientLoad { titles: 12, uploads: 10 };
        let seeds: Vec<_> = (0..CLIENTS).map(|_| random.next()).collect();
        let fault = self.faulty.then(|| {
            let kind = if random.next() >> 63 == 0 { Fault::Data } else { Fault::Flush };
            (random.next() as usize % (acts.titles + acts.uploads), kind)
        });
        std::thread::scope(|scope| {
            let work = |(number, seed)| {
                let client = server.client();
                let client = if self.faulty { client } else { client.patient() };
                let mut load = Load::new(number, client, recorder, seed);
                load.local = local.clone();
                load.builds = self.name == MEMORY;
                load.tolerant = self.faulty;
                // The first client's work is the clock of the fault, which hits whoever is there.
                load.fault = fault.filter(|_| number == 0);
                scope.spawn(move || load.work(acts))
            };
            let record = |coming| {
                let (client, looks) = (server.client(), server.client());
                let recording =
                    Recording { client, looks, recorder, coming, tolerant: self.faulty };
                let seed = random.next();
                scope.spawn(move || recording.work(seed))
            };
            let mut workers: Vec<_> = seeds.into_iter().enumerate().map(work).collect();
            workers.extend([QUICK, SLOW].map(record));
            for worker in workers {
                worker.join().map_err(|_| anyhow!("a client panicked"))??;
            }
            recorder.fail(None)
        })
    }

    fn recover<'a>(&'a self, root: &'a Path) -> Result<Box<dyn RecoveredSubject + 'a>> {
        // After a fault the volume waits for somebody who has checked it.
        if root.join(RESERVED).join("failed").exists() {
            self.program.verify(root)?;
        }
        let server = self.program.start(root)?;
        Ok(Box::new(RestartedServer { server, root }))
    }
}

/// How uploads in parts go.
#[derive(Debug)]
pub(super) struct Uploads {
    /// Where they are created.
    pub(super) at: &'static str,
    /// They are never sent to their end, for they do not become titles.
    pub(super) stay: bool,
}

impl Uploads {
    /// As the server takes them.
    pub(super) const TITLES: Self = Self { at: OURS, stay: false };
}

/// The subject whose titles come from programs of the machine.
const LOCAL: &str = "tactus-local";
/// The one whose programs build titles in memory, too.
const MEMORY: &str = "tactus-memory";
const ENOENT: i32 = 2;
/// Where the server takes uploads in parts, and tells what it holds for them.
const OURS: &str = "/api/v1/uploads";
/// Longer than any run takes.
pub(super) const EXPIRY: Nanos = SECOND.times(86_400);
/// Clients at once: their flushes go together.
pub(super) const CLIENTS: usize = 3;
pub(super) const NAMES: u64 = 6;
/// The longest title in KiB: several of the server's places.
pub(super) const LENGTH_MAX_KIB: u64 = 400;
/// Titles that come by tus begin with it; each has a name of its own.
const UPLOADED: &str = "upload-";
pub(super) const TUS: &str = "Tus-Resumable: 1.0.0\r\n";
const OCTETS: &str = "Content-Type: application/offset+octet-stream\r\n";

/// How much one client does.
#[derive(Clone, Copy, Debug)]
pub(in crate::crash) struct ClientLoad {
    /// Titles put or deleted.
    pub(in crate::crash) titles: usize,
    /// Steps of uploads.
    pub(in crate::crash) uploads: usize,
}

/// One client at work. Its names are its own: acts on one name come one after the other.
pub(in crate::crash) struct Load<'a, 'b> {
    number: usize,
    client: Client,
    recorder: &'a Recorder<'b>,
    random: Random,
    /// The versions that it knows to be there.
    holds: BTreeMap<String, u64>,
    /// Refusals and lost connections are no error of the run.
    pub(in crate::crash) tolerant: bool,
    /// Before this act the disk is asked for a fault.
    fault: Option<(usize, Fault)>,
    /// Titles are written and changed by a program of the machine, not over HTTP.
    local: Option<LocalProgram>,
    /// Uploads are built in memory by it, and so are some next versions of titles.
    builds: bool,
    pub(super) uploads: &'static Uploads,
}

/// An upload under way.
struct Upload {
    url: String,
    name: String,
    version: Version,
    offset: u64,
    built: Option<BuiltUpload>,
}

/// An upload that a program builds in memory.
struct BuiltUpload {
    writer: MemoryWriter,
    /// Since when it may be there. As long as it is not synced it ends with the program.
    bound: Option<Position>,
}

impl<'a, 'b> Load<'a, 'b> {
    /// The client `number`, which begins with nothing.
    pub(in crate::crash) fn new(
        number: usize,
        client: Client,
        recorder: &'a Recorder<'b>,
        seed: u64,
    ) -> Self {
        let (random, holds) = (Random::new(seed), BTreeMap::new());
        let (tolerant, fault, local, builds) = (false, None, None, false);
        let uploads = &Uploads::TITLES;
        Self { number, client, recorder, random, holds, tolerant, fault, local, builds, uploads }
    }

    /// Works; ends early when the server is gone and that is to be expected.
    pub(in crate::crash) fn work(&mut self, acts: ClientLoad) -> Result<()> {
        match self.work_through(acts) {
            Err(_) if self.tolerant => Ok(()),
            result => result,
        }
    }

    fn work_through(&mut self, acts: ClientLoad) -> Result<()> {
        let mut open: Option<Upload> = None;
        let (mut titles, mut uploads) = (acts.titles, acts.uploads);
        while titles + uploads > 0 {
            if let Some((_, fault)) = self.fault.take_if(|(left, _)| *left == titles + uploads - 1)
            {
                self.recorder.fail(Some(fault))?;
            }
            if self.random.next() as usize % (titles + uploads) < titles {
                titles -= 1;
                self.title()?;
            } else {
                uploads -= 1;
                open = match open {
                    None => self.create()?,
                    Some(upload) => self.step(upload)?,
                };
            }
        }
        Ok(())
    }

    /// Puts, replaces, moves or deletes a title.
    fn title(&mut self) -> Result<()> {
        let name = self.name();
        match self.random.next() % 6 {
            0 => {
                let act = self.recorder.begin(&name, None)?;
                if let Some(local) = &self.local {
                    let is_held = self.holds.remove(&name).is_some();
                    let done = local.remove(&format!("/{name}")).or_else(|error| {
                        let is_missing = !is_held && error.errno() == ENOENT;
                        if is_missing { Ok(()) } else { Err(error) }
                    });
                    return self.settle_local(&act, done).map(drop);
                }
                let good: &[u16] = match self.holds.remove(&name) {
                    Some(_) => &[204],
                    // It may never have been there.
                    None => &[204, 404],
                };
                let status = self.client.ask("DELETE", &format!("/{name}"), "", &[])?.status;
                self.settle(&act, status, good).map(drop)
            }
            1 if self.holds.keys().any(|held| *held != name) => self.relocate(&name),
            _ => self.put(name),
        }
    }

    fn put(&mut self, name: String) -> Result<()> {
        let version = self.version();
        let act = self.recorder.begin(&name, Some(version.number()))?;
        let holds = self.holds.remove(&name).is_some();
        let bytes = version.bytes(0, version.length());
        if let Some(local) = self.local.clone() {
            let edits = self.builds && holds && self.random.next().is_multiple_of(2);
            let written = match edits {
                true => self.edit(&local, &name, &bytes),
                false => self.write(&local, &name, &bytes),
            };
            if self.settle_local(&act, written)? {
                self.holds.insert(name, version.number());
            }
            return Ok(());
        }
        let status = self.client.ask("PUT", &format!("/{name}"), "", &bytes)?.status;
        if self.settle(&act, status, &[201, 204])? {
            self.holds.insert(name, version.number());
        }
        Ok(())
    }

    /// Stores a title by a program of the machine: in pieces, and sometimes flushed in between.
    fn write(
        &mut self,
        local: &LocalProgram,
        name: &str,
        bytes: &[u8],
    ) -> Result<(), tactus_client::Error> {
        // Without a length it would claim the whole quota.
        let options = WriteOptions { len: Some(bytes.len() as u64), ..WriteOptions::default() };
        let writer = local.create(&format!("/{name}"), &options)?;
        for piece in bytes.chunks(1 + self.random.next() as usize % bytes.len()) {
            writer.write_all(piece)?;
            if self.random.next().is_multiple_of(4) {
                writer.sync()?;
            }
        }
        writer.publish()
    }

    /// Stores the next version of a title that is there, which a program builds in memory.
    fn edit(
        &self,
        local: &LocalProgram,
        name: &str,
        bytes: &[u8],
    ) -> Result<(), tactus_client::Error> {
        let mut writer = local.edit_in_memory(&format!("/{name}"))?;
        self.recorder.bind(&url_of(&writer));
        writer.grow(bytes.len() as u64)?;
        writer.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        writer.publish(bytes.len() as u64)
    }

    /// Gives a title that is there the name `to`.
    fn relocate(&mut self, to: &str) -> Result<()> {
        let others = self.holds.keys().filter(|held| *held != to);
        let from = others.clone().nth(self.random.next() as usize % others.count());
        let from = from.context("nothing to move")?.clone();
        self.holds.remove(to);
        let version = self.holds.remove(&from).context("nothing to move")?;
        let act = self.recorder.begin_move(&from, to, version)?;
        if let Some(local) = &self.local {
            if let Some((folder, _)) = to.rsplit_once('/') {
                // The folder often exists already.
                local.make_directory(&format!("/{folder}")).ok();
            }
            let (from, new) = (format!("/{from}"), format!("/{to}"));
            let moved = local.rename(&from, &new, Replace::Titles);
            if self.settle_local(&act, moved)? {
                self.holds.insert(to.to_owned(), version);
            }
            return Ok(());
        }
        if let Some((folder, _)) = to.rsplit_once('/') {
            // The folder often exists already. Protocols without MKCOL create folders themselves.
            self.client.ask("MKCOL", &format!("/{folder}/"), "", &[])?;
        }
        let fields = format!("Destination: /{to}\r\n");
        let status = self.client.ask("MOVE", &format!("/{from}"), &fields, &[])?.status;
        if self.settle(&act, status, &[201, 204])? {
            self.holds.insert(to.to_owned(), version);
        }
        Ok(())
    }

    /// One of its names; half of them are in a folder that is new at first.
    fn name(&mut self) -> String {
        let place = self.random.next() % NAMES;
        name_of(self.number, place)
    }

    fn version(&mut self) -> Version {
        let length = 1_000 + self.random.next() % ((LENGTH_MAX_KIB << 10) - 1_000);
        Version::new(self.random.next(), length)
    }

    fn create(&mut self) -> Result<Option<Upload>> {
        let name = format!("{UPLOADED}{}-{:x}", self.number, self.random.next());
        let version = self.version();
        if let Some(local) = self.local.as_ref().filter(|_| self.builds) {
            let bound = Some(self.recorder.now()?);
            let writer = local.create_in_memory(&format!("/{name}"), Replace::Titles)?;
            let url = url_of(&writer);
            self.recorder.bind(&url);
            let built = Some(BuiltUpload { writer, bound });
            return Ok(Some(Upload { url, name, version, offset: 0, built }));
        }
        let fields = format!("{TUS}Upload-Length: {}\r\n", version.length());
        let Uploads { at, stay } = self.uploads;
        let target = if *stay { (*at).to_owned() } else { format!("{at}?path=/{name}") };
        let asked = self.recorder.ask()?;
        let answer = self.client.ask("POST", &target, &fields, &[])?;
        if answer.status != 201 {
            self.recorder.refused();
            ensure!(self.tolerant, "an upload was refused with {}", answer.status);
            return Ok(None);
        }
        // An upload that nobody was told of cannot be asked for.
        let url = path_of(answer.field("location").context("an upload without a place")?);
        self.recorder.created(asked, &url, &name, version)?;
        Ok(Some(Upload { url, name, version, offset: 0, built: None }))
    }

    /// Sends the next part; an upload that ends becomes a title.
    fn step(&mut self, upload: Upload) -> Result<Option<Upload>> {
        let Upload { url, name, version, offset, built } = upload;
        let part = (1 + self.random.next() % 40) * 4096;
        let end = version.length() - u64::from(self.uploads.stay);
        let to = (offset + part).min(end);
        let last = to == version.length();
        let fields = format!("{TUS}Upload-Offset: {offset}\r\n{OCTETS}");
        let step = self.recorder.begin_step(&url, &name, version, to)?;
        let title = match last {
            true => Some(self.recorder.begin(&name, Some(version.number()))?),
            false => None,
        };
        if let Some(built) = built {
            let steps = [Some(step), title].into_iter().flatten().collect();
            let built = self.build(built, (&url, &name), version, (offset, to), steps)?;
            let built = built.filter(|_| !last).map(Some);
            return Ok(built.map(|built| Upload { url, name, version, offset: to, built }));
        }
        let bytes = version.bytes(offset, to);
        let status = self.client.ask("PATCH", &url, &fields, &bytes)?.status;
        self.settle(&step, status, &[204])?;
        if let Some(title) = title {
            self.settle(&title, status, &[204])?;
        }
        let built = None;
        Ok((status == 204 && to < end).then_some(Upload { url, name, version, offset: to, built }))
    }

    /// Builds the bytes from `from` on to `to` of an upload, with some behind them that are not
    /// final, and has them stored; all bytes become a title. Then `steps` are acknowledged.
    fn build(
        &mut self,
        built: BuiltUpload,
        (url, name): (&str, &str),
        version: Version,
        (from, to): (u64, u64),
        steps: Vec<OperationHandle>,
    ) -> Result<Option<BuiltUpload>> {
        let BuiltUpload { mut writer, bound } = built;
        let len = (to + self.random.next() % 20_000).min(version.length());
        writer.grow(len)?;
        let bytes = version.bytes(from, len);
        // In pieces from the last to the first.
        let size = 1 + self.random.next() as usize % bytes.len();
        for (at, piece) in bytes.chunks(size).enumerate().collect::<Vec<_>>().into_iter().rev() {
            writer.bytes_mut()[at * size..][..piece.len()].copy_from_slice(piece);
        }
        let writer = match to == version.length() {
            true => {
                writer.publish(to)?;
                None
            }
            false => {
                writer.sync(to)?;
                Some(writer)
            }
        };
        for step in &steps {
            self.recorder.ack(step)?;
        }
        if let Some(bound) = bound {
            self.recorder.ask()?;
            self.recorder.created(bound, url, name, version)?;
        }
        Ok(writer.map(|writer| BuiltUpload { writer, bound: None }))
    }

    /// Whether it was done.
    fn settle_local(
        &self,
        act: &OperationHandle,
        done: Result<(), tactus_client::Error>,
    ) -> Result<bool> {
        match done {
            Ok(()) => self.recorder.ack(act)?,
            Err(error) => {
                ensure!(self.tolerant, "refused: {error}");
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether it was done.
    fn settle(&self, act: &OperationHandle, status: u16, good: &[u16]) -> Result<bool> {
        if good.contains(&status) {
            self.recorder.ack(act)?;
            return Ok(true);
        }
        ensure!(self.tolerant, "refused with {status}");
        Ok(false)
    }
}

/// Someone whose bytes come at a rate and cannot wait.
struct Recording<'a, 'b> {
    client: Client,
    /// For looking how much is durable meanwhile.
    looks: Client,
    recorder: &'a Recorder<'b>,
    coming: RecordingProfile,
    tolerant: bool,
}

/// How a recording comes.
#[derive(Clone, Copy)]
struct RecordingProfile {
    /// Bytes in all.
    len: u64,
    /// Bytes each second.
    rate: u64,
}

/// Recordings begin with it; each has a name of its own.
const RECORDED: &str = "recording-";
/// It fills the server's places, and hears each second how much is durable.
const QUICK: RecordingProfile = RecordingProfile { len: 2_500_000, rate: 1_000_000 };
/// It fills none: after four seconds its last sector is filled up, and written again with what
/// follows.
const SLOW: RecordingProfile = RecordingProfile { len: 330_000, rate: 60_000 };
const PIECES: u64 = 50;

impl Recording<'_, '_> {
    /// Records one title to its end; ends early when that is to be expected.
    fn work(mut self, seed: u64) -> Result<()> {
        match self.record(seed) {
            Err(_) if self.tolerant => Ok(()),
            result => result.context("a recording"),
        }
    }

    fn record(&mut self, seed: u64) -> Result<()> {
        let RecordingProfile { len, rate } = self.coming;
        let version = Version::new(seed, len);
        let name = format!("{RECORDED}{seed:x}");
        let target = format!("/{name}?rate={}k", rate * 8 / 1000);
        let mut pieces = self.client.put_pieces(&target)?;
        let (mut sent, mut all) = (0, Vec::new());
        for piece in 1..=PIECES {
            let to = len * piece / PIECES;
            all.push((to, self.recorder.begin_piece(&name, version, to)?));
            pieces.send(&version.bytes(sent, to))?;
            sent = to;
            clock::sleep(Nanos(SECOND.0 * len / PIECES / rate));
            if piece.is_multiple_of(5) {
                let durable = self.durable(&name)?;
                for (_, begun) in all.iter().filter(|(to, _)| *to <= durable) {
                    self.recorder.ack(begun)?;
                }
            }
        }
        let answer = pieces.end()?;
        ensure!(answer.status == 201, "it was answered with {}", answer.status);
        for (_, begun) in &all {
            self.recorder.ack(begun)?;
        }
        Ok(())
    }

    /// How much of it the server says to be durable.
    fn durable(&mut self, name: &str) -> Result<u64> {
        let answer = self.looks.ask("GET", "/api/v1/status", "", &[])?;
        let status: serde_json::Value = serde_json::from_slice(&answer.body)?;
        let all = status["recordings"].as_array().context("a status without recordings")?;
        let own = all.iter().find(|one| one["title"].as_str() == Some(&format!("/{name}")));
        // It is not there before it has begun.
        Ok(own.and_then(|own| own["durable_bytes"].as_u64()).unwrap_or(0))
    }
}

/// Where the upload is that a program builds.
fn url_of(writer: &MemoryWriter) -> String {
    format!("{OURS}/{}", writer.upload())
}

/// A title of the client `number`.
pub(super) fn name_of(number: usize, place: u64) -> String {
    let folder = if place.is_multiple_of(2) { format!("folder-{number}/") } else { String::new() };
    format!("{folder}title-{number}-{place}")
}

/// A server that has started again.
struct RestartedServer<'a> {
    server: Server,
    root: &'a Path,
}

impl RecoveredSubject for RestartedServer<'_> {
    fn look(&mut self, history: &History) -> Result<VolumeContents> {
        look(&self.server, self.root, history, true)
            .with_context(|| format!("the server said: {}", self.server.output()))
    }

    fn starved(&self) -> Result<Duration> {
        self.server.starved()
    }
}

/// Holds what `server` has against `history`; with `finish`, by bringing every upload to its end.
pub(in crate::crash) fn look(
    server: &Server,
    root: &Path,
    history: &History,
    finish: bool,
) -> Result<VolumeContents> {
    let mut client = server.client().patient();
    let mut found = VolumeContents { titles: titles(root)?, ..VolumeContents::default() };
    // One title as everybody gets it, checksums compared; the versions draw which.
    let whole = found.titles.iter().filter_map(|(name, seen)| match seen {
        StoredVersion::Whole(number) => Some((name, *number)),
        StoredVersion::Torn(_) => None,
    });
    let drawn = whole.clone().fold(0, |drawn, (_, number)| drawn ^ number);
    let count = whole.clone().count().max(1);
    if let Some((name, on_disk)) = whole.clone().nth(drawn as usize % count) {
        let sent = client.ask("GET", &format!("/{name}?rate=max"), "", &[]);
        let there = match sent.map(|answer| (answer.status, identify(&answer.body))) {
            Ok((200, sent)) if sent == StoredVersion::Whole(on_disk) => sent,
            // A complete next version gets its name after the start.
            Ok((200, sent)) if sent == seen(&root.join(name))? => sent,
            Ok((status, sent)) => {
                StoredVersion::Torn(format!("right on the disk, sent with {status} as {sent:?}"))
            }
            Err(error) => {
                let ended = ended(&mut client)?;
                StoredVersion::Torn(format!(
                    "right on the disk, not sent: {error:#}; {ended}; {}",
                    server.output()
                ))
            }
        };
        let name = name.clone();
        found.titles.insert(name, there);
    }
    let mut open = history.untold();
    for url in history.bound() {
        let status = client.ask("DELETE", url, TUS, &[])?.status;
        ensure!([204, 404, 410].contains(&status), "DELETE of an upload: {status}");
    }
    for (url, name, version) in history.uploads() {
        let answer = client.ask("HEAD", url, TUS, &[])?;
        if answer.status != 200 {
            ensure!([404, 410].contains(&answer.status), "HEAD of an upload: {}", answer.status);
            continue;
        }
        open += 1;
        let offset = answer.field("upload-offset").context("an upload without an offset")?;
        let has_length = answer.field("upload-length").is_some();
        let resumed = ResumedUpload { offset: offset.parse()?, wrong_at: None };
        found.uploads.insert(url.clone(), resumed);
        if !finish {
            continue;
        }
        let resumed = found.uploads.get_mut(url).expect("it was put there just now");
        finish_upload(&mut client, root, (url, name), version, (resumed, has_length))?;
        open -= 1;
    }
    found.strays.extend(strays(root, open)?);
    // Nothing is open any more: what was cut off has its name.
    recordings(&mut client, root, history, &mut found)?;
    Ok(found)
}

/// Reads the titles that recordings have become, as files and as everybody gets them.
fn recordings(
    client: &mut Client,
    root: &Path,
    history: &History,
    found: &mut VolumeContents,
) -> Result<()> {
    let known: BTreeMap<_, _> = history.recordings().collect();
    for (name, path) in files(root)? {
        if !name.starts_with(RECORDED) {
            continue;
        }
        let Some(version) = known.get(&*name) else {
            found.strays.push(format!("{name}: never asked for"));
            continue;
        };
        let bytes = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        let offset = bytes.len() as u64;
        let too_long = (offset > version.length()).then_some(version.length());
        let mut wrong_at = too_long.or_else(|| version.differs(&bytes));
        let sent = client.ask("GET", &format!("/{name}?rate=max"), "", &[]);
        if !sent.is_ok_and(|answer| answer.status == 200 && answer.body == bytes) {
            // Its checksums are not those of its bytes.
            wrong_at.get_or_insert(0);
        }
        found.recordings.insert(name, ResumedUpload { offset, wrong_at });
    }
    Ok(())
}

/// How streams have ended, as the server counts them.
fn ended(client: &mut Client) -> Result<String> {
    let answer = client.ask("GET", "/metrics", "", &[])?;
    let page = String::from_utf8_lossy(&answer.body).into_owned();
    let lines = page.lines().filter(|line| !line.starts_with('#') && !line.ends_with(" 0"));
    let told = |line: &&str| {
        ["ended", "fault", "damaged", "stall", "missed"].iter().any(|word| line.contains(word))
    };
    Ok(lines.filter(told).collect::<Vec<_>>().join(", "))
}

/// Sends what is missing of an upload, and reads the title that it has become.
fn finish_upload(
    client: &mut Client,
    root: &Path,
    (url, name): (&str, &str),
    version: Version,
    (resumed, has_length): (&mut ResumedUpload, bool),
) -> Result<()> {
    let offset = resumed.offset;
    if offset > version.length() {
        resumed.wrong_at = Some(version.length());
        return Ok(());
    }
    let title = root.join(name);
    // All of it may have been sent, and its end not answered.
    if offset < version.length() || !title.exists() {
        let mut fields = format!("{TUS}Upload-Offset: {offset}\r\n{OCTETS}");
        if !has_length {
            fields += &format!("Upload-Length: {}\r\n", version.length());
        }
        let rest = version.bytes(offset, version.length());
        let status = client.ask("PATCH", url, &fields, &rest)?.status;
        ensure!(status == 204, "an upload cannot be resumed at {offset}: {status}");
    }
    let bytes = fs::read(&title).with_context(|| format!("reading {}", title.display()))?;
    let short = (bytes.len() as u64 != version.length()).then_some(bytes.len() as u64);
    resumed.wrong_at = version.differs(&bytes).or(short);
    Ok(())
}

/// Deletes the titles that have come by tus, which would only become more and more.
pub(in crate::crash) fn delete_uploaded(
    server: &Server,
    found: &VolumeContents,
    history: &mut History,
) -> Result<()> {
    let mut client = server.client().patient();
    for name in found.titles.keys().filter(|name| name.starts_with(UPLOADED)) {
        let status = client.ask("DELETE", &format!("/{name}"), "", &[])?.status;
        ensure!(status == 204, "{name} cannot be deleted: {status}");
        history.forget(name);
    }
    Ok(())
}

/// Fails when the server keeps room for nothing, or has forgotten to: what may still be stored is
/// the quota without titles and open uploads, to the byte. An upload without an acknowledgement may
/// exist or not; only the number of these is known.
pub(in crate::crash) fn audit(server: &Server, root: &Path, history: &History) -> Result<()> {
    let client = server.client();
    let deadline = clock::now() + TIDY_WITHIN;
    loop {
        let open: u64 = history.uploads().map(|(_, _, version)| version.length()).sum();
        let free = QUOTA.0.checked_sub(length(root)? + open).context("more than the quota")?;
        let kept = history.untold() as u64 * (LENGTH_MAX_KIB << 10);
        let least = free.checked_sub(kept).context("too many uploads that nobody was told of")?;
        let more = client.would_be_taken("/more", free + 1)?;
        let enough = client.would_be_taken("/enough", least)?;
        if enough && !more {
            return Ok(());
        }
        // What is unlinked, or was asked for just now, counts a moment longer.
        if clock::now() >= deadline {
            let holds = server.client().ask("GET", OURS, "", &[])?;
            let holds = String::from_utf8_lossy(&holds.body).into_owned();
            let text = format!("{least} B to {free} B: {enough}; more: {more}");
            bail!(
                "the room is not what it should be: {text}; the server holds {holds} and said: {}",
                server.output()
            );
        }
        clock::sleep(Nanos::from_millis(200));
    }
}

/// Bytes of all titles.
fn length(folder: &Path) -> Result<u64> {
    let mut sum = 0;
    for (name, path) in files(folder)? {
        let about = path.symlink_metadata()?;
        sum += match about.is_dir() {
            true if name == RESERVED => 0,
            true => length(&path)?,
            false => about.len(),
        };
    }
    Ok(sum)
}

/// Reads titles of `clients` clients at a rate of their own or as fast as the disk has time, until
/// the server is gone. Returns the number of deliveries. Fails if one is not one whole version.
pub(in crate::crash) fn deliver(mut client: Client, clients: usize, seed: u64) -> Result<u64> {
    let mut random = Random::new(seed);
    let mut delivered = 0;
    loop {
        let name = name_of(random.next() as usize % clients, random.next() % NAMES);
        let rate = if random.next() >> 63 == 0 { "20M" } else { "max" };
        match client.ask("GET", &format!("/{name}?rate={rate}"), "", &[]) {
            Ok(answer) if answer.status == 200 => match identify(&answer.body) {
                StoredVersion::Whole(_) => delivered += 1,
                StoredVersion::Torn(why) => bail!("{name} was sent torn: {why}"),
            },
            Ok(answer) => {
                let good = [404, 503].contains(&answer.status);
                ensure!(good, "{name} was answered with {}", answer.status);
            }
            // One that is dead answers nothing any more.
            Err(error) => match client.ask("GET", "/metrics", "", &[]) {
                Ok(_) => bail!("{name} was not sent: {error:#}; {}", ended(&mut client)?),
                Err(_) => return Ok(delivered),
            },
        }
    }
}

/// Reads all titles.
pub(in crate::crash) fn titles(root: &Path) -> Result<BTreeMap<String, StoredVersion>> {
    let mut found = BTreeMap::new();
    walk(root, "", &mut found)?;
    Ok(found)
}

fn walk(folder: &Path, prefix: &str, found: &mut BTreeMap<String, StoredVersion>) -> Result<()> {
    for (name, path) in files(folder)? {
        let whole = format!("{prefix}{name}");
        // It need not be whole: it is read as what it is.
        if whole.starts_with(RECORDED) {
            continue;
        }
        if path.is_dir() {
            if !name.starts_with('.') {
                walk(&path, &format!("{whole}/"), found)?;
            }
        } else {
            let title = seen(&path)?;
            found.insert(whole, title);
        }
    }
    Ok(())
}

pub(super) const RESERVED: &str = ".tactus";
/// What the server may unlink in the background after its start, on a machine that has no time for
/// it.
pub(super) const TIDY_WITHIN: Nanos = SECOND.times(20);

/// What lies in the server's own directories and belongs to none of the titles and `open` uploads.
fn strays(root: &Path, open: usize) -> Result<Vec<String>> {
    let own = root.join(RESERVED);
    let deadline = clock::now() + TIDY_WITHIN;
    loop {
        let mut strays = Vec::new();
        let folders = [("stage", 0), ("trash", 0), ("working", 0), ("uploads", open)];
        for (folder, allowed) in folders {
            let path = own.join(folder);
            let names = if path.exists() { files(&path)? } else { Vec::new() };
            if names.len() > allowed {
                strays.push(format!("{} files in {folder}, {allowed} allowed", names.len()));
            }
        }
        if strays.is_empty() || clock::now() > deadline {
            return Ok(strays);
        }
        clock::sleep(Nanos::from_millis(5));
    }
}

/// The path of a URL.
fn path_of(url: &str) -> String {
    match url.split_once("://").and_then(|(_, rest)| rest.split_once('/')) {
        Some((_, path)) => format!("/{path}"),
        None => url.to_owned(),
    }
}
