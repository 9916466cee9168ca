//! One client: its first message, its memory, its names, its end.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::Shutdown;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use tactus_client::memory::{self, Mapping};
use tactus_client::protocol::{Change, Origin, Replace, Reply, Request};
use tactus_client::socket;
use tactus_control::broker::Broker;
use tactus_control::local::{LocalClients, LocalSession, REQUESTS_MAX};
use tactus_control::recording::Recorder;
use tactus_core::ledger::Resource;
use tactus_core::local::{VERSION, layout};
use tactus_core::path::RequestPath;
use tactus_core::timed::TimedReads;
use tactus_core::units::{Bytes, KIB, Nanos, SECOND};
use tactus_engine::message::VolumeId;
use tactus_storage::catalogue::{Catalogue, OpenTitle};
use tactus_storage::store::WorkingDescriptors;
use tokio::runtime::Handle;

use crate::budget::MemoryBudget;
use crate::changes::Changes;
use crate::doorbell::Doorbell;
use crate::errno::{
    EACCES, EBADF, EBUSY, EEXIST, EINVAL, EIO, EMFILE, EMSGSIZE, ENOSPC, EOPNOTSUPP,
    EPROTONOSUPPORT, Refusal,
};
use crate::fill::FillError;
use crate::growing_memory::{FIRST, GrowingMemory, GrowthFault};
use crate::memory_upload::growth_refusal;
use crate::names::{self, Listing};
use crate::peer::Peer;
use crate::recordings::{RecordingContext, RecordingRequest, Recordings};
use crate::streams::{StreamContext, StreamRequest, Streams};
use crate::titles::{MapFault, MappedTitles, TitleMemory};
use crate::writers::{NewBuild, Writers};

/// What all sessions use.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) clients: LocalClients,
    pub(crate) catalogue: Arc<Catalogue>,
    /// What clients change titles by; none for a client that may not.
    pub(crate) changes: Option<Arc<Changes>>,
    pub(crate) broker: Broker,
    /// None if no volume takes recordings.
    pub(crate) recorder: Option<Recorder>,
    pub(crate) data_max: Bytes,
    pub(crate) mapped: MappedTitles,
    /// The memory of titles that programs have mapped or build.
    pub(crate) budget: MemoryBudget,
    /// Runs the catalogue's lookups.
    pub(crate) runtime: Handle,
}

/// Time for a new client's first message.
const GREETING: Duration = Duration::from_secs(5);

/// A client that does not take its replies is cut off after this time.
const SENDING: Duration = Duration::from_secs(30);

/// The least data of a client, and its unit.
const DATA_MIN: u64 = 64 * KIB;

/// Serves a client until it leaves.
///
/// # Errors
/// Why its connection ended early.
pub(crate) fn serve(connection: OwnedFd, peer: &Peer, shared: &Shared) -> io::Result<()> {
    let connection = Arc::new(connection);
    set_socket_timeout(&connection, Timeout::Recv, Some(GREETING))?;
    set_socket_timeout(&connection, Timeout::Send, Some(SENDING))?;
    let Some((Request::Hello { version, data }, _)) = socket::receive(&connection)? else {
        return refuse(&connection, EINVAL, "the first message is `hello`");
    };
    if version != VERSION {
        let message = format!("this server speaks version {VERSION}, not {version}");
        return refuse(&connection, EPROTONOSUPPORT, &message);
    }
    set_socket_timeout(&connection, Timeout::Recv, None)?;
    let data = data.clamp(DATA_MIN, shared.data_max.0.max(DATA_MIN)).next_multiple_of(DATA_MIN);
    let len = layout::DATA + data as usize;
    let file = memory::create(len)?;
    let mapping = Arc::new(Mapping::new(file.as_fd(), len)?);
    let (bell, their_bell) = Doorbell::new()?;
    let cut = || {
        let connection = Arc::clone(&connection);
        // Refused only if the client has gone.
        move || rustix::net::shutdown(&*connection, Shutdown::Both).unwrap_or_default()
    };
    let attach = || {
        let cut = cut();
        shared.clients.attach(Arc::clone(&mapping) as _, Box::new(bell.clone()), Box::new(cut))
    };
    let Some(mut session) = retried(attach) else {
        return refuse(&connection, EBUSY, "as many programs as may are connected; see [local]");
    };
    let welcome = Reply::Welcome {
        version: VERSION,
        memory: len as u64,
        handles: tactus_control::local::HANDLES_MAX,
        requests: tactus_control::local::REQUESTS_MAX as u32,
    };
    socket::send(&connection, &welcome, &[file.as_fd(), their_bell.as_fd()])?;
    drop((file, their_bell));
    let memory = MemoryBudget::new(shared.data_max);
    let recording = shared.changes.clone().map(|changes| RecordingContext {
        recorder: shared.recorder.clone(),
        changes,
        runtime: shared.runtime.clone(),
        client: Arc::clone(&mapping),
        bell: bell.clone(),
        cut: Arc::new(cut()),
        memory: memory.clone(),
    });
    let recordings = recording.map(Recordings::new);
    let context = StreamContext {
        broker: shared.broker.clone(),
        catalogue: Arc::clone(&shared.catalogue),
        runtime: shared.runtime.clone(),
        client: mapping,
        bell: bell.clone(),
        cut: Arc::new(cut()),
        memory,
    };
    let mut streams = Streams::new(context, peer);
    std::thread::scope(|scope| {
        let listening = std::thread::Builder::new().name("tactus-bell".to_owned());
        listening.spawn_scoped(scope, || bell.listen(|| shared.clients.wake()))?;
        let requests = session.take_forwarded();
        let changes = shared.changes.clone().zip(requests);
        let new = |(changes, requests)| Writers::new(changes, shared.runtime.clone(), requests);
        let writers = changes.map(new);
        let ended = {
            answer(&connection, shared, &mut session, &mut streams, writers.as_ref(), recordings)
        };
        if let Some(writers) = writers {
            shared.runtime.block_on(writers.end());
        }
        bell.end();
        ended
    })
}

/// Tries for a while: a program that has just ended may still be on its way out.
fn retried<T>(attempt: impl Fn() -> Option<T>) -> Option<T> {
    let until = Instant::now() + LEAVING;
    loop {
        let result = attempt();
        if result.is_some() || Instant::now() >= until {
            return result;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Time for a place to become free.
const LEAVING: Duration = Duration::from_secs(2);

/// Answers messages until the client leaves.
fn answer(
    connection: &OwnedFd,
    shared: &Shared,
    session: &mut LocalSession,
    streams: &mut Streams,
    writers: Option<&Writers>,
    mut recordings: Option<Recordings>,
) -> io::Result<()> {
    let mut titles = Titles::default();
    while let Some((request, descriptors)) = socket::receive(connection)? {
        drop::<Vec<OwnedFd>>(descriptors);
        let answered = match request {
            Request::Hello { .. } => Err((EINVAL, "the program is connected already".into())),
            Request::Map { handle } => titles.map(handle, shared, session),
            Request::Reserve { handle, interval, tolerance, len } => {
                let (interval, tolerance) = (Nanos(interval), Nanos(tolerance));
                let reads = TimedReads { interval, tolerance, len: Bytes(len.into()) };
                titles.reserve(handle, &reads, shared, session).map(alone)
            }
            Request::File { title } => {
                let found = names::file(&shared.catalogue, &shared.broker, &title);
                shared.runtime.block_on(found).map(|(reply, file)| (reply, Some(file)))
            }
            Request::Space { path } => names::space(&shared.catalogue, &path).map(alone),
            Request::CreateInMemory { title, replace, origin } => {
                let new = NewTitle { path: title, replace, origin };
                create_in_memory(new, shared, writers)
            }
            Request::Change(Change::WorkingFile { title, replace }) => {
                let begun = shared.runtime.block_on(work(shared, &title, replace, writers));
                match begun {
                    Ok((reply, files)) => {
                        let files = [files.write.as_fd(), files.read.as_fd()];
                        socket::send(connection, &reply, &files)?;
                        continue;
                    }
                    Err(refusal) => Err(refusal),
                }
            }
            Request::Stream { handle, first, rate, burst, room } => {
                let title = titles.streamed(handle);
                title.and_then(|(title, path)| {
                    streams.begin(StreamRequest { title, path, first, rate, burst, room })
                })
            }
            Request::Seek { stream, first } => streams.seek(stream, first).map(alone),
            Request::EndStream { stream } => streams.end(stream).map(alone),
            Request::Open { title } => {
                shared.runtime.block_on(titles.open(&title, shared, session)).map(alone)
            }
            Request::Close { handle } => titles.close(handle, session).map(alone),
            Request::Stat { title } => {
                shared.runtime.block_on(names::stat(&shared.catalogue, &title)).map(alone)
            }
            Request::List { directory, after } => {
                let listing = &mut titles.listing;
                let part = names::list(&shared.catalogue, listing, &directory, after.as_deref());
                shared.runtime.block_on(part).map(alone)
            }
            Request::Record { title, rate, replace, room } => match &mut recordings {
                Some(recordings) => {
                    recordings.begin(&RecordingRequest { title, rate, replace, room })
                }
                None => Err(may_not_write()),
            },
            Request::EndRecording { recording } => match &mut recordings {
                Some(recordings) => recordings.end(recording).map(alone),
                None => Err(may_not_write()),
            },
            Request::Change(change) => match writers {
                Some(writers) => shared.runtime.block_on(changed(change, writers)).map(alone),
                None => Err(may_not_write()),
            },
        };
        let (reply, file) =
            answered.unwrap_or_else(|(errno, message)| (Reply::Error { errno, message }, None));
        let files: Vec<_> = file.iter().map(AsFd::as_fd).collect();
        socket::send(connection, &reply, &files)?;
    }
    Ok(())
}

/// A reply without a descriptor.
fn alone(reply: Reply) -> (Reply, Option<OwnedFd>) {
    (reply, None)
}

fn may_not_write() -> Refusal {
    let text = "this user may not write; see [local] write_users and write_groups";
    (EACCES, text.to_owned())
}

/// A title to build in memory.
struct NewTitle {
    path: String,
    replace: Replace,
    origin: Origin,
}

/// Begins to build a title in memory, or goes on. With bytes of a title or an upload it waits for
/// the disk.
fn create_in_memory(
    new: NewTitle,
    shared: &Shared,
    writers: Option<&Writers>,
) -> Result<(Reply, Option<OwnedFd>), Refusal> {
    let writers = writers.ok_or_else(may_not_write)?;
    let NewTitle { path, replace, origin } = new;
    let memory = GrowingMemory::new(&shared.budget).map_err(growth_refusal)?;
    let file = memory.writable().map_err(|error| growth_refusal(GrowthFault::System(error)))?;
    let mut begin = (replace, None);
    if origin == Origin::Title {
        let found = names::open(&shared.catalogue, &path);
        let (title, _) = shared.runtime.block_on(found)?;
        load(&title, &memory, shared)?;
        begin = (Replace::Existing, Some(title.etag.clone()));
    }
    let memory = Arc::new(memory);
    let begun = async {
        let ((replace, over), memory) = (begin, Arc::clone(&memory));
        match &origin {
            Origin::Nothing | Origin::Title => {
                writers.create_in_memory(&path, replace, over, memory).await
            }
            Origin::Upload(upload) => writers.resume_in_memory(&path, upload, memory).await,
        }
    };
    let NewBuild { writer, end, upload } = shared.runtime.block_on(begun)?;
    let (first, len, limit) = (FIRST, memory.len(), memory.limit());
    Ok((Reply::CreatedInMemory { writer, first, len, end, limit, upload }, Some(file)))
}

/// Reads a title into new memory.
fn load(title: &Arc<OpenTitle>, memory: &GrowingMemory, shared: &Shared) -> Result<(), Refusal> {
    if title.following.is_some() {
        return Err((EBUSY, "the title still grows; try again when it is complete".into()));
    }
    if title.len.0 == 0 {
        return Ok(());
    }
    memory.grow(title.len.0).map_err(growth_refusal)?;
    let whole = (FIRST + title.len.0) as usize;
    let mapping = Mapping::of_own(memory.file().as_fd(), whole);
    let mapping = mapping.map_err(|error| refusal(MapFault::System(error)))?;
    let filled = shared.mapped.fill(title, Arc::new(mapping));
    filled.map_err(|fault| refusal(MapFault::Fill(fault)))
}

/// Begins to write a title in place, where writes through the page cache harm no stream.
async fn work(
    shared: &Shared,
    title: &str,
    replace: Replace,
    writers: Option<&Writers>,
) -> Result<(Reply, WorkingDescriptors), Refusal> {
    let writers = writers.ok_or_else(may_not_write)?;
    let volume = writers.changes().volume_of(title)?;
    if !shared.broker.takes_cached_io(VolumeId(volume)) {
        return Err((EOPNOTSUPP, format!("{title} is written by the server only")));
    }
    let (writer, file, descriptors) = writers.work(title, replace).await?;
    Ok((Reply::WorkingFile { writer, file, permitted: 0 }, descriptors))
}

/// Answers what a client changes.
async fn changed(change: Change, writers: &Writers) -> Result<Reply, Refusal> {
    let changes = writers.changes();
    match change {
        Change::Create { title, len, replace } => {
            let writer = writers.create(&title, len, replace).await?;
            return Ok(Reply::Created { writer });
        }
        Change::WorkingFile { .. } => {
            return Err((EINVAL, "its descriptors need a reply of their own".to_owned()));
        }
        Change::Grow { writer, len } => {
            return Ok(Reply::Granted { len: writers.grow(writer, len).await? });
        }
        Change::Retarget { writer, to } => writers.retarget(writer, to).await?,
        Change::Unname { writer } => writers.unname(writer).await?,
        Change::Abandon { writer, keeps } => {
            writers.abandon(writer, keeps).await?;
            return Ok(Reply::Closed);
        }
        Change::Reason { writer } => writers.reason(writer)?,
        Change::Remove { title } => changes.remove(&title).await?,
        Change::RemoveDirectory { directory } => changes.remove_directory(&directory).await?,
        Change::MakeDirectory { directory } => changes.make_directory(&directory).await?,
        Change::Rename { from, to, replace } => changes.rename(&from, &to, replace).await?,
        Change::SetModified { name, modified } => changes.set_modified(&name, modified).await?,
    }
    Ok(Reply::Done)
}

/// The titles that a client has open, those of them that it has mapped, and the directory that it
/// reads.
#[derive(Default)]
struct Titles {
    listing: Option<Listing>,
    open: HashMap<u32, (Arc<OpenTitle>, Option<Arc<TitleMemory>>)>,
    paths: HashMap<u32, RequestPath>,
    /// Reads at moments that are under way at once, of each title with a reserve.
    reserved: HashMap<u32, u32>,
}

impl Titles {
    /// Opens a title for reading.
    async fn open(
        &mut self,
        title: &str,
        shared: &Shared,
        session: &mut LocalSession,
    ) -> Result<Reply, Refusal> {
        let (found, stat) = names::open(&shared.catalogue, title).await?;
        let opened = session.open(&found, &shared.broker);
        let handle = opened.map_err(|fault| (EMFILE, format!("{title}: {fault}")))?;
        self.open.insert(handle, (found, None));
        self.paths.insert(handle, names::path_of(title)?);
        Ok(Reply::Opened { handle, stat })
    }

    fn close(&mut self, handle: u32, session: &mut LocalSession) -> Result<Reply, Refusal> {
        if !session.close(handle) {
            return Err(not_open(handle));
        }
        self.open.remove(&handle);
        self.paths.remove(&handle);
        self.reserved.remove(&handle);
        Ok(Reply::Closed)
    }

    /// A title to stream, and its path.
    fn streamed(&self, handle: u32) -> Result<(Arc<OpenTitle>, RequestPath), Refusal> {
        let known = self.open.get(&handle).zip(self.paths.get(&handle));
        let ((title, _), path) = known.ok_or_else(|| not_open(handle))?;
        Ok((Arc::clone(title), path.clone()))
    }

    /// Has a title read into memory. Waits for the disk.
    fn map(
        &mut self,
        handle: u32,
        shared: &Shared,
        session: &mut LocalSession,
    ) -> Result<(Reply, Option<OwnedFd>), Refusal> {
        let open = self.open.get_mut(&handle);
        let (title, mapped) = open.ok_or_else(|| not_open(handle))?;
        let memory = shared.mapped.get(title).map_err(refusal)?;
        let file = memory.read_only().map_err(|error| refusal(MapFault::System(error)))?;
        if mapped.is_none() {
            session.map(handle, memory.bytes(), Box::new(Arc::clone(&memory)));
        }
        *mapped = Some(memory);
        Ok((Reply::Mapped { first: layout::DATA as u64, len: title.len.0 }, Some(file)))
    }
}

impl Titles {
    /// Reserves room for reads at moments.
    fn reserve(
        &mut self,
        handle: u32,
        reads: &TimedReads,
        shared: &Shared,
        session: &mut LocalSession,
    ) -> Result<Reply, Refusal> {
        let (title, mapped) = self.open.get(&handle).ok_or_else(|| not_open(handle))?;
        let is_possible = (INTERVAL_MIN..=INTERVAL_MAX).contains(&reads.interval)
            && reads.tolerance <= INTERVAL_MAX
            && reads.len > Bytes(0);
        if !is_possible {
            let text = "reads at moments have an interval of 0.1 ms to an hour, a tolerance of an \
                        hour at most, and at least one byte";
            return Err((EINVAL, text.into()));
        }
        if title.following.is_some() {
            return Err((EINVAL, "a title that grows has no reserve".into()));
        }
        if self.reserved.contains_key(&handle) {
            return Err((EEXIST, "the title has a reserve already: open it once more".into()));
        }
        let block = shared.broker.block_of(title.volume);
        if reads.len > block {
            let text = format!("a read at a moment has at most {block}, a block of the volume");
            return Err((EMSGSIZE, text));
        }
        let grant = shared.broker.admit_timed(title, reads, mapped.is_some());
        let grant = grant.map_err(|refusal| {
            let errno = if refusal.resource == Resource::Arena { ENOSPC } else { EBUSY };
            (errno, format!("{}; try again in {:?}", refusal.message, refusal.retry_after))
        })?;
        let under_way = self.reserved.values().sum::<u32>().saturating_add(grant.under_way);
        if under_way as usize > REQUESTS_MAX {
            let text = format!(
                "the reserves of this program have {under_way} reads under way at once; a program \
                 has {REQUESTS_MAX}: reserve a longer interval or a smaller tolerance"
            );
            return Err((EBUSY, text));
        }
        self.reserved.insert(handle, grant.under_way);
        let (ahead, block) = (grant.ahead().0, grant.reserve.block.0);
        session.reserve(handle, grant);
        Ok(Reply::Reserved { ahead, block })
    }
}

/// The shortest interval of reads at moments.
const INTERVAL_MIN: Nanos = Nanos::from_micros(100);
/// The longest one.
const INTERVAL_MAX: Nanos = SECOND.times(3600);

fn not_open(handle: u32) -> Refusal {
    (EBADF, format!("no title is open as {handle}"))
}

fn refusal(fault: MapFault) -> Refusal {
    match fault {
        MapFault::Unfit => (EINVAL, "a title without bytes, or that grows, is not mapped".into()),
        MapFault::NoRoom(left) => growth_refusal(GrowthFault::NoRoom(left)),
        MapFault::Fill(FillError::Failed(errno)) => (errno, "the title cannot be read".into()),
        MapFault::Fill(FillError::TimedOut) => (EIO, "the disk does not answer".into()),
        MapFault::Fill(FillError::Busy) => (EMFILE, "no descriptors are left".into()),
        MapFault::System(error) => {
            (error.raw_os_error().map_or(EIO, |errno| errno as u32), error.to_string())
        }
    }
}

pub(crate) fn refuse(connection: &OwnedFd, errno: u32, message: &str) -> io::Result<()> {
    socket::send(connection, &Reply::Error { errno, message: message.into() }, &[])
}
