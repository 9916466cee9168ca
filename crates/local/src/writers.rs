//! The writers of a program: each takes bytes out of the shared data, or out of the memory of its
//! title, into slots of the write share, like the body of a request.
//!
//! Promise: requests of one writer are carried out in order, each is answered once. The bytes of
//! the program are copied once; checksums and the disk see the copy. A writer waits for a slot and
//! for flushes only, on an ordinary thread, and holds no other writer up. What was not published
//! leaves nothing: neither a file, nor a slot, nor a claim; except a title in memory that was
//! synced.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tactus_client::protocol::Replace;
use tactus_control::local::ForwardedRequests;
use tactus_core::local::{Operation, Request};
use tactus_core::units::WallTime;
use tactus_ring::shared::SharedBytes;
use tactus_storage::store::{Upload, WorkingDescriptors};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::changes::{Changes, Publication};
use crate::errno::{EBADF, EINVAL, EMFILE, ESPIPE, ETIMEDOUT, Refusal};
use crate::growing_memory::GrowingMemory;
use crate::memory_upload::{MemoryUpload, StepFault};
use crate::open_upload::OpenUpload;
use crate::order::Order;
use crate::working_files::WorkingFileWriter;

/// The writers of one program, and what hands their requests to them.
pub(crate) struct Writers {
    changes: Arc<Changes>,
    runtime: Handle,
    data: Arc<SharedBytes>,
    table: Arc<Mutex<Table>>,
    dispatcher: JoinHandle<()>,
}

#[derive(Default)]
struct Table {
    /// The number of the next writer. Numbers are not used again: an old request in the ring never
    /// meets a new writer.
    next: u32,
    open: HashMap<u32, Entry>,
}

struct Entry {
    /// Bounded by the requests that a program may have under way.
    orders: UnboundedSender<Order>,
    reason: Arc<Mutex<Option<Refusal>>>,
    task: JoinHandle<()>,
    built: Option<BuiltTitle>,
    /// It ends by itself when it gets no more orders.
    ends_itself: bool,
}

/// What is kept of a title in memory until its writer ends.
struct BuiltTitle {
    upload: Arc<OpenUpload>,
    /// The program sees its bytes to the end, even if they cannot be stored.
    _memory: Arc<GrowingMemory>,
}

/// A title in memory whose program can go on.
pub(crate) struct NewBuild {
    /// What requests name its writer by.
    pub(crate) writer: u32,
    /// Bytes that are final.
    pub(crate) end: u64,
    /// What the upload is continued by.
    pub(crate) upload: String,
}

/// Writers of a program at once, as many as titles that it may read at once.
const WRITERS_MAX: usize = 64;

/// A writer without requests for so long gives its slot back: a few slow programs would otherwise
/// hold all slots. As for a body over HTTP.
const SILENCE: Duration = Duration::from_millis(500);

/// How long a write waits for a slot. As for a body over HTTP.
const SPACE_TIME: Duration = Duration::from_secs(60);

impl Writers {
    pub(crate) fn new(
        changes: Arc<Changes>,
        runtime: Handle,
        mut requests: ForwardedRequests,
    ) -> Self {
        let data = requests.data();
        let table = Arc::<Mutex<Table>>::default();
        let known = Arc::clone(&table);
        let dispatcher = runtime.spawn(async move {
            while let Some(request) = requests.next().await {
                // Without its writer it answers itself.
                let number = request.request().handle;
                let order = Order::Request(request);
                let unknown = match lock(&known).open.get(&number) {
                    Some(writer) => writer.orders.send(order).err().map(|error| error.0),
                    None => Some(order),
                };
                drop(unknown);
            }
        });
        Self { changes, runtime, data, table, dispatcher }
    }

    /// What names are changed by.
    pub(crate) fn changes(&self) -> &Changes {
        &self.changes
    }

    /// Begins to write a title. Returns what requests name its writer by.
    pub(crate) async fn create(
        &self,
        title: &str,
        len: Option<u64>,
        replace: Replace,
    ) -> Result<u32, Refusal> {
        self.check_room()?;
        let (upload, publication) = self.changes.begin(title, len, replace).await?;
        Ok(self.add(Progress::Open(Box::new(upload), publication), None))
    }

    /// Begins to build a title in `memory`; if `over` is the entity tag of a title, its next
    /// version.
    pub(crate) async fn create_in_memory(
        &self,
        title: &str,
        replace: Replace,
        over: Option<String>,
        memory: Arc<GrowingMemory>,
    ) -> Result<NewBuild, Refusal> {
        self.check_room()?;
        let (open, publication) = self.changes.create(title, replace, over).await?;
        let open = Arc::new(open);
        let begun = MemoryUpload::begin(Arc::clone(&open), publication, Arc::clone(&memory)).await;
        if begun.is_err() {
            open.end(false).await;
        }
        Ok(self.build(begun?, open, memory))
    }

    /// Goes on with an upload in `memory`, which gets its bytes.
    pub(crate) async fn resume_in_memory(
        &self,
        title: &str,
        upload: &str,
        memory: Arc<GrowingMemory>,
    ) -> Result<NewBuild, Refusal> {
        self.check_room()?;
        let (open, publication) = self.changes.resume(title, upload).await?;
        let open = Arc::new(open);
        let begun = MemoryUpload::resume(Arc::clone(&open), publication, Arc::clone(&memory)).await;
        Ok(self.build(begun?, open, memory))
    }

    fn build(
        &self,
        begun: MemoryUpload,
        upload: Arc<OpenUpload>,
        memory: Arc<GrowingMemory>,
    ) -> NewBuild {
        let (end, id) = (begun.end(), upload.id());
        let built = BuiltTitle { upload, _memory: memory };
        let writer = self.add(Progress::Memory(Box::new(begun)), Some(built));
        NewBuild { writer, end, upload: id }
    }

    fn add(&self, progress: Progress, built: Option<BuiltTitle>) -> u32 {
        let (orders, requests) = unbounded_channel();
        let reason = Arc::<Mutex<Option<Refusal>>>::default();
        let (data, told) = (Arc::clone(&self.data), Arc::clone(&reason));
        let writer = Writer { progress, data, reason: told };
        let task = self.runtime.spawn(writer.serve(requests));
        self.enter(Entry { orders, reason, task, built, ends_itself: false })
    }

    /// Begins to write a title in place. Returns what requests name it by, the number of its file,
    /// and its descriptors.
    pub(crate) async fn work(
        &self,
        title: &str,
        replace: Replace,
    ) -> Result<(u32, u64, WorkingDescriptors), Refusal> {
        self.check_room()?;
        let (file, target) = self.changes.work(title, replace).await?;
        let failed = |error: std::io::Error| (EMFILE, format!("{title}: {error}"));
        let (number, descriptors) =
            (file.number().map_err(failed)?, file.descriptors().map_err(failed)?);
        let (orders, requests) = unbounded_channel();
        let reason = Arc::<Mutex<Option<Refusal>>>::default();
        let changes = Arc::clone(&self.changes);
        let writer = WorkingFileWriter::new(file, target, changes, Arc::clone(&reason));
        let task = self.runtime.spawn(writer.serve(requests));
        let writer = self.enter(Entry { orders, reason, task, built: None, ends_itself: true });
        Ok((writer, number, descriptors))
    }

    fn check_room(&self) -> Result<(), Refusal> {
        if lock(&self.table).open.len() < WRITERS_MAX {
            return Ok(());
        }
        Err((EMFILE, format!("{WRITERS_MAX} titles are written, the most for one program")))
    }

    fn enter(&self, entry: Entry) -> u32 {
        let mut table = lock(&self.table);
        let number = table.next;
        table.next = number.wrapping_add(1);
        table.open.insert(number, entry);
        number
    }

    /// Permits a working file a greater length. Returns the length.
    pub(crate) async fn grow(&self, writer: u32, len: u64) -> Result<u64, Refusal> {
        self.order(writer, |answer| Order::Grow(len, answer)).await
    }

    /// Has a working file become a title of another name.
    pub(crate) async fn retarget(&self, writer: u32, to: String) -> Result<(), Refusal> {
        self.order(writer, |answer| Order::Retarget(to, answer)).await
    }

    /// Has a working file lose its name.
    pub(crate) async fn unname(&self, writer: u32) -> Result<(), Refusal> {
        self.order(writer, Order::Unname).await
    }

    async fn order<T>(
        &self,
        writer: u32,
        order: impl FnOnce(oneshot::Sender<Result<T, Refusal>>) -> Order,
    ) -> Result<T, Refusal> {
        let (sender, answer) = oneshot::channel();
        let sent = match lock(&self.table).open.get(&writer) {
            Some(entry) => entry.orders.send(order(sender)).is_ok(),
            None => false,
        };
        if !sent {
            return Err(unknown(writer));
        }
        // Without an answer it takes no such order.
        answer.await.map_err(|_| unknown(writer))?
    }

    /// Ends a writer. Its slots and its claim are back when this returns. If it `keeps` what was
    /// synced, a title in memory can be continued.
    pub(crate) async fn abandon(&self, writer: u32, keeps: bool) -> Result<(), Refusal> {
        let entry = lock(&self.table).open.remove(&writer);
        entry.ok_or_else(|| unknown(writer))?.end(keeps).await;
        Ok(())
    }

    /// Why the last request of a writer has failed, if one has.
    pub(crate) fn reason(&self, writer: u32) -> Result<(), Refusal> {
        let table = lock(&self.table);
        let entry = table.open.get(&writer).ok_or_else(|| unknown(writer))?;
        lock(&entry.reason).clone().map_or(Ok(()), Err)
    }

    /// Ends all writers. What was synced of titles in memory is kept.
    pub(crate) async fn end(self) {
        self.dispatcher.abort();
        // It ends in an error: it was aborted.
        self.dispatcher.await.ok();
        let open = std::mem::take(&mut lock(&self.table).open);
        for (_, entry) in open {
            entry.end(true).await;
        }
    }
}

impl Entry {
    async fn end(self, keeps: bool) {
        let Self { orders, task, built, ends_itself, .. } = self;
        match (ends_itself, keeps) {
            (true, true) => {}
            // Refused only if it has ended.
            (true, false) => orders.send(Order::Discard).unwrap_or_default(),
            (false, _) => task.abort(),
        }
        drop(orders);
        // It ends in an error: it was aborted. A title that is getting its name gets it.
        task.await.ok();
        if let Some(built) = built {
            built.upload.end(keeps).await;
        }
    }
}

/// One title that is written.
struct Writer {
    progress: Progress,
    data: Arc<SharedBytes>,
    reason: Arc<Mutex<Option<Refusal>>>,
}

enum Progress {
    /// Its bytes come out of the data of the program.
    Open(Box<Upload>, Publication),
    /// It is built in memory.
    Memory(Box<MemoryUpload>),
    /// It takes no more requests, for this reason.
    Over(Refusal),
}

impl Writer {
    async fn serve(mut self, mut orders: UnboundedReceiver<Order>) {
        loop {
            let next = match tokio::time::timeout(SILENCE, orders.recv()).await {
                Ok(next) => next,
                Err(_) => self.idle(&mut orders).await,
            };
            let request = match next {
                Some(Order::Request(request)) => request,
                // Orders for working files: dropped, they are refused.
                Some(_) => continue,
                None => return,
            };
            let result = self.carry_out(request.request()).await;
            let result = result.map_err(|refusal| {
                let errno = refusal.0;
                *lock(&self.reason) = Some(refusal);
                errno
            });
            request.answer(result);
        }
    }

    /// Waits for a request of a program that is silent.
    async fn idle(&mut self, orders: &mut UnboundedReceiver<Order>) -> Option<Order> {
        match &mut self.progress {
            Progress::Open(upload, _) => upload.park(),
            Progress::Memory(upload) => {
                upload.park();
                tokio::select! {
                    biased;
                    next = orders.recv() => return next,
                    () = upload.superseded() => {}
                }
                self.progress = Progress::Over(upload.give_way().await);
            }
            Progress::Over(_) => {}
        }
        orders.recv().await
    }

    /// Carries a request out. Returns the number of bytes.
    async fn carry_out(&mut self, request: &Request) -> Result<u32, Refusal> {
        if request.operation == Operation::Publish {
            return self.publish(request).await;
        }
        if let Progress::Memory(upload) = &mut self.progress
            && upload.is_superseded()
        {
            self.progress = Progress::Over(upload.give_way().await);
        }
        let done = match &mut self.progress {
            Progress::Open(upload, publication) => {
                step(upload, publication, &self.data, request).await
            }
            Progress::Memory(upload) => match request.operation {
                Operation::Grow => upload.grow(request.offset.0).await,
                Operation::WriteBack => upload.write_back(request.offset.0).await,
                Operation::Sync => upload.sync().await,
                _ => {
                    let text = "a title in memory is written back, out of its memory".to_owned();
                    Err(StepFault::Request((EINVAL, text)))
                }
            },
            Progress::Over(refusal) => Err(StepFault::Request(refusal.clone())),
        };
        match done {
            Ok(()) => Ok(request.len),
            Err(StepFault::Request(refusal)) => Err(refusal),
            Err(StepFault::Title(refusal)) => {
                // The upload goes here, with its file, its slots and its claim; that of a title in
                // memory when its writer ends.
                self.progress = Progress::Over(refusal.clone());
                Err(refusal)
            }
        }
    }

    /// Makes a title of all bytes.
    async fn publish(&mut self, request: &Request) -> Result<u32, Refusal> {
        let over = Progress::Over((EBADF, "the title is published".to_owned()));
        let modified = (request.offset.0 > 0).then_some(WallTime(request.offset.0));
        let published = match std::mem::replace(&mut self.progress, over) {
            Progress::Open(upload, publication) => publication.publish(*upload, modified).await,
            Progress::Memory(upload) => upload.publish(modified).await,
            Progress::Over(refusal) => Err(refusal),
        };
        published.map(|()| 0).inspect_err(|refusal| {
            self.progress = Progress::Over(refusal.clone());
        })
    }
}

/// Carries a request out for a title whose bytes come out of the data of the program.
async fn step(
    upload: &mut Upload,
    publication: &Publication,
    data: &SharedBytes,
    request: &Request,
) -> Result<(), StepFault> {
    let refused = |error| StepFault::Title(publication.refusal(&error));
    match request.operation {
        Operation::Write => {
            let end = upload.len();
            if request.offset.0 != end {
                let text = format!(
                    "a title is written in order: the next byte is {end}, not {}",
                    request.offset.0
                );
                return Err(StepFault::Request((ESPIPE, text)));
            }
            write(upload, data, request).await.map_err(|error| match error {
                WriteError::Upload(error) => refused(error),
                WriteError::NoSlot => {
                    let text = "the disk was busy for a minute and could not take these bytes";
                    StepFault::Title((ETIMEDOUT, text.to_owned()))
                }
            })
        }
        Operation::Sync => upload.sync().await.map_err(refused),
        _ => {
            let text = "the title was not begun in memory".to_owned();
            Err(StepFault::Request((EINVAL, text)))
        }
    }
}

enum WriteError {
    Upload(tactus_storage::store::UploadError),
    /// There was no slot for too long.
    NoSlot,
}

/// Appends the bytes of a request.
async fn write(
    upload: &mut Upload,
    data: &SharedBytes,
    request: &Request,
) -> Result<(), WriteError> {
    let mut done = 0;
    while done < request.len {
        let space = tokio::time::timeout(SPACE_TIME, upload.space()).await;
        let space = space.map_err(|_| WriteError::NoSlot)?.map_err(WriteError::Upload)?;
        let count = space.len().min((request.len - done) as usize);
        data.copy_out(request.at + u64::from(done), &mut space[..count]);
        upload.advance(count);
        done += count as u32;
        // The thread serves all connections.
        tokio::task::yield_now().await;
    }
    Ok(())
}

fn unknown(writer: u32) -> Refusal {
    (EBADF, format!("no title is written as {writer}"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change under a lock is one step.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
