//! Titles that programs write in place, through descriptors of their files.
//!
//! Promise: what a program has synchronized becomes a title, also if the program ends without
//! publishing it. A program that writes past its claim loses its bytes, and takes no space of
//! others for longer than a second, whatever it orders meanwhile.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tactus_core::local::Operation;
use tactus_storage::store::WorkingFile;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::changes::{Changes, Target};
use crate::errno::{EBADF, EDQUOT, EINVAL, ENOENT, Refusal, not_stored};
use crate::order::Order;

/// One title that is written in place.
pub(crate) struct WorkingFileWriter {
    progress: Progress,
    changes: Arc<Changes>,
    reason: Arc<Mutex<Option<Refusal>>>,
}

enum Progress {
    Open(Box<(WorkingFile, Target)>),
    /// Nothing is made of it any more, but programs have it open.
    Nameless(Box<WorkingFile>),
    /// It takes no more requests, for this reason.
    Over(Refusal),
}

/// How often the length of a file is compared with its claim.
const CHECK: Duration = Duration::from_secs(1);

impl WorkingFileWriter {
    pub(crate) fn new(
        file: WorkingFile,
        target: Target,
        changes: Arc<Changes>,
        reason: Arc<Mutex<Option<Refusal>>>,
    ) -> Self {
        Self { progress: Progress::Open(Box::new((file, target))), changes, reason }
    }

    /// Carries orders out until the program has no more.
    pub(crate) async fn serve(mut self, mut orders: UnboundedReceiver<Order>) {
        loop {
            match tokio::time::timeout(CHECK, orders.recv()).await {
                Ok(Some(order)) => {
                    // A program may have orders all the time.
                    self.check();
                    self.carry_out(order).await;
                }
                Ok(None) => break,
                Err(_) => self.check(),
            }
        }
        self.check();
        if let Progress::Open(open) = self.progress
            && open.0.is_kept()
        {
            let (file, target) = *open;
            if let Err(error) = file.finish().await {
                let (_, text) = target.publication.refusal(&error);
                tracing::warn!("a title that was being written has no name: {text}");
            }
        }
    }

    async fn carry_out(&mut self, order: Order) {
        match order {
            Order::Request(request) => {
                let done = self.request(request.request().operation).await;
                request.answer(self.note(done).map(|()| 0).map_err(|(errno, _)| errno));
            }
            Order::Grow(len, answer) => {
                let grown = match &mut self.progress {
                    Progress::Open(open) => {
                        let (file, target) = &mut **open;
                        file.grow(len).map_err(|error| target.publication.refusal(&error))
                    }
                    Progress::Nameless(file) => file.grow(len).map_err(|error| not_stored(&error)),
                    Progress::Over(refusal) => Err(refusal.clone()),
                };
                // Without a receiver its session has ended.
                answer.send(grown).ok();
            }
            Order::Retarget(path, answer) => {
                let done = match &mut self.progress {
                    Progress::Open(open) => {
                        let (file, target) = &mut **open;
                        let changed = self.changes.retarget(file, target.volume, &path).await;
                        changed.map(|changed| *target = changed)
                    }
                    Progress::Nameless(_) => Err(nameless()),
                    Progress::Over(refusal) => Err(refusal.clone()),
                };
                answer.send(done).ok();
            }
            Order::Unname(answer) => {
                let over = Progress::Over((EBADF, "the file is losing its name".to_owned()));
                let done = match std::mem::replace(&mut self.progress, over) {
                    // What kept others from locking its path ends with the name.
                    Progress::Open(open) => {
                        let (mut file, _) = *open;
                        let done = file.forget_name().await;
                        self.progress = Progress::Nameless(Box::new(file));
                        done.map_err(|error| not_stored(&error))
                    }
                    other => {
                        self.progress = other;
                        Ok(())
                    }
                };
                answer.send(done).ok();
            }
            Order::Discard => {
                self.progress = Progress::Over((EBADF, "the file was discarded".to_owned()));
            }
        }
    }

    async fn request(&mut self, operation: Operation) -> Result<(), Refusal> {
        let (file, target) = match &mut self.progress {
            Progress::Open(open) => &mut **open,
            Progress::Nameless(file) if operation == Operation::Sync => {
                return file.sync().await.map_err(|error| not_stored(&error));
            }
            Progress::Nameless(_) => return Err(nameless()),
            Progress::Over(refusal) => return Err(refusal.clone()),
        };
        match operation {
            Operation::Sync => {
                let synced = file.sync().await;
                synced.map_err(|error| target.publication.refusal(&error))
            }
            Operation::Publish => {
                let over = Progress::Over((EBADF, "the title is published".to_owned()));
                let Progress::Open(open) = std::mem::replace(&mut self.progress, over) else {
                    unreachable!("it was open above");
                };
                let (file, target) = *open;
                let published = file.finish().await.map(drop);
                let published = published.map_err(|error| target.publication.refusal(&error));
                if let Err(refusal) = &published {
                    self.progress = Progress::Over(refusal.clone());
                }
                published
            }
            Operation::Nothing
            | Operation::Read
            | Operation::Write
            | Operation::WriteBack
            | Operation::Grow => {
                Err((EINVAL, "a working file is written by its descriptor".to_owned()))
            }
        }
    }

    /// Ends a file that is longer than it may be.
    fn check(&mut self) {
        let file = match &self.progress {
            Progress::Open(open) => &open.0,
            Progress::Nameless(file) => &**file,
            Progress::Over(_) => return,
        };
        if !file.is_within_claim() {
            file.clear();
            let text = "the file was written past the length that was permitted";
            self.progress = Progress::Over((EDQUOT, text.to_owned()));
        }
    }

    /// Keeps the reason of a refusal.
    fn note<T>(&self, done: Result<T, Refusal>) -> Result<T, Refusal> {
        if let Err(refusal) = &done {
            let mut reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
            *reason = Some(refusal.clone());
        }
        done
    }
}

fn nameless() -> Refusal {
    (ENOENT, "the file has lost its name".to_owned())
}
