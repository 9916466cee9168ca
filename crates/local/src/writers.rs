//! The writers of a program: each takes bytes out of the shared data into slots of the write share,
//! like the body of a request.
//!
//! Promise: requests of one writer are carried out in order, each is answered once. The bytes of
//! the program are copied once; checksums and the disk see the copy. A writer waits for a slot and
//! for flushes only, on an ordinary thread, and holds no other writer up. What was not published
//! leaves nothing: neither a file, nor a slot, nor a claim.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tactus_client::protocol::Replace;
use tactus_control::local::{ForwardedRequest, ForwardedRequests};
use tactus_core::local::{Operation, Request};
use tactus_core::units::WallTime;
use tactus_ring::shared::SharedBytes;
use tactus_storage::store::Upload;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

use crate::changes::{Changes, Publication};
use crate::errno::{EBADF, EMFILE, ESPIPE, ETIMEDOUT, Refusal};

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
    requests: UnboundedSender<ForwardedRequest>,
    reason: Arc<Mutex<Option<Refusal>>>,
    task: JoinHandle<()>,
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
                let unknown = match lock(&known).open.get(&request.request().handle) {
                    Some(writer) => writer.requests.send(request).err().map(|error| error.0),
                    None => Some(request),
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
        if lock(&self.table).open.len() >= WRITERS_MAX {
            let text = format!("{WRITERS_MAX} titles are written, the most for one program");
            return Err((EMFILE, text));
        }
        let (upload, publication) = self.changes.begin(title, len, replace).await?;
        let (sender, requests) = unbounded_channel();
        let reason = Arc::<Mutex<Option<Refusal>>>::default();
        let (data, told) = (Arc::clone(&self.data), Arc::clone(&reason));
        let progress = Progress::Open(Box::new(upload));
        let writer = Writer { progress, publication, data, reason: told };
        let task = self.runtime.spawn(writer.serve(requests));
        let mut table = lock(&self.table);
        let number = table.next;
        table.next = number.wrapping_add(1);
        table.open.insert(number, Entry { requests: sender, reason, task });
        Ok(number)
    }

    /// Ends a writer. Its slots and its claim are back when this returns.
    pub(crate) async fn abandon(&self, writer: u32) -> Result<(), Refusal> {
        let entry = lock(&self.table).open.remove(&writer);
        entry.ok_or_else(|| unknown(writer))?.end().await;
        Ok(())
    }

    /// Why the last request of a writer has failed, if one has.
    pub(crate) fn reason(&self, writer: u32) -> Result<(), Refusal> {
        let table = lock(&self.table);
        let entry = table.open.get(&writer).ok_or_else(|| unknown(writer))?;
        lock(&entry.reason).clone().map_or(Ok(()), Err)
    }

    /// Ends all writers.
    pub(crate) async fn end(self) {
        self.dispatcher.abort();
        // It ends in an error: it was aborted.
        self.dispatcher.await.ok();
        let open = std::mem::take(&mut lock(&self.table).open);
        for (_, entry) in open {
            entry.end().await;
        }
    }
}

impl Entry {
    async fn end(self) {
        self.task.abort();
        // It ends in an error: it was aborted. A title that is getting its name gets it.
        self.task.await.ok();
    }
}

/// One title that is written.
struct Writer {
    progress: Progress,
    publication: Publication,
    data: Arc<SharedBytes>,
    reason: Arc<Mutex<Option<Refusal>>>,
}

enum Progress {
    Open(Box<Upload>),
    /// It takes no more requests, for this reason.
    Over(Refusal),
}

impl Writer {
    async fn serve(mut self, mut requests: UnboundedReceiver<ForwardedRequest>) {
        loop {
            let next = match tokio::time::timeout(SILENCE, requests.recv()).await {
                Ok(next) => next,
                Err(_) => {
                    if let Progress::Open(upload) = &mut self.progress {
                        upload.park();
                    }
                    requests.recv().await
                }
            };
            let Some(request) = next else { return };
            let result = self.carry_out(request.request()).await;
            let result = result.map_err(|refusal| {
                let errno = refusal.0;
                *lock(&self.reason) = Some(refusal);
                errno
            });
            request.answer(result);
        }
    }

    /// Carries a request out. Returns the number of bytes.
    async fn carry_out(&mut self, request: &Request) -> Result<u32, Refusal> {
        let upload = match &mut self.progress {
            Progress::Open(upload) => upload,
            Progress::Over(refusal) => return Err(refusal.clone()),
        };
        let done = match request.operation {
            Operation::Write => {
                let end = upload.len();
                if request.offset.0 != end {
                    let text = format!(
                        "a title is written in order: the next byte is {end}, not {}",
                        request.offset.0
                    );
                    return Err((ESPIPE, text));
                }
                let written = write(upload, &self.data, request).await;
                written.map_err(|error| match error {
                    WriteError::Upload(error) => self.publication.refusal(&error),
                    WriteError::NoSlot => {
                        let text = "the disk was busy for a minute and could not take these bytes";
                        (ETIMEDOUT, text.to_owned())
                    }
                })
            }
            Operation::Sync => {
                let synced = upload.sync().await;
                synced.map_err(|error| self.publication.refusal(&error))
            }
            Operation::Publish => {
                let over = Progress::Over((EBADF, "the title is published".to_owned()));
                let Progress::Open(upload) = std::mem::replace(&mut self.progress, over) else {
                    unreachable!("it was open above");
                };
                let modified = (request.offset.0 > 0).then_some(WallTime(request.offset.0));
                self.publication.publish(*upload, modified).await
            }
            Operation::Nothing | Operation::Read => Err(unknown(request.handle)),
        };
        if let Err(refusal) = &done {
            // The upload goes here, with its file, its slots and its claim.
            self.progress = Progress::Over(refusal.clone());
        }
        done.map(|()| request.len)
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
