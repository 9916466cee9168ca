//! The thread that begins and ends paced reads at their times.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use crate::priority::hurry;

/// What is to be done at a time.
type Work = Box<dyn FnOnce() + Send>;

/// The thread's end. Clones share it; it ends with the last of them.
#[derive(Clone)]
pub(crate) struct Pacer(Arc<Handle>);

/// A way to the thread that does not keep it: for work that waits at the thread itself.
#[derive(Clone)]
pub(crate) struct WeakPacer(Weak<Handle>);

struct Handle(Arc<Shared>);

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    entries: BinaryHeap<Entry>,
    count: u64,
    is_over: bool,
}

/// The earliest is the greatest; those of one time in the order of their arrival.
struct Entry {
    due: Instant,
    nth: u64,
    work: Work,
}

impl Pacer {
    /// Starts the thread.
    pub(crate) fn start() -> io::Result<Self> {
        let shared = Arc::new(Shared { queue: Mutex::default(), changed: Condvar::new() });
        let own = Arc::clone(&shared);
        let run = move || {
            hurry();
            own.run();
        };
        std::thread::Builder::new().name("tactus-pacer".to_owned()).spawn(run)?;
        Ok(Self(Arc::new(Handle(shared))))
    }

    /// A way to the thread that does not keep it.
    pub(crate) fn downgrade(&self) -> WeakPacer {
        WeakPacer(Arc::downgrade(&self.0))
    }

    /// Does `work` at `due`, on the pacer's thread: it must not wait.
    pub(crate) fn at(&self, due: Instant, work: Work) {
        let shared = &self.0.0;
        let mut queue = shared.queue();
        queue.count += 1;
        let nth = queue.count;
        queue.entries.push(Entry { due, nth, work });
        drop(queue);
        shared.changed.notify_one();
    }
}

impl WeakPacer {
    /// As [`Pacer::at`]; drops `work` if the thread has ended.
    pub(crate) fn at(&self, due: Instant, work: Work) {
        if let Some(handle) = self.0.upgrade() {
            Pacer(handle).at(due, work);
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.queue().is_over = true;
        self.0.changed.notify_one();
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut queue = self.queue();
        while !queue.is_over {
            let now = Instant::now();
            match queue.entries.peek().map(|next| next.due) {
                None => {
                    queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                }
                Some(due) if due > now => {
                    let woken = self.changed.wait_timeout(queue, due - now);
                    queue = woken.unwrap_or_else(PoisonError::into_inner).0;
                }
                Some(_) => {
                    let next = queue.entries.pop().expect("it was just there");
                    drop(queue);
                    (next.work)();
                    queue = self.queue();
                }
            }
        }
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.due, other.nth).cmp(&(self.due, self.nth))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Entry {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[test]
    fn work_is_done_in_the_order_of_its_times_and_not_before_them() {
        let pacer = Pacer::start().unwrap();
        let (sender, done) = channel();
        let start = Instant::now();
        for after in [30, 10, 20, 10] {
            let (sender, due) = (sender.clone(), start + Duration::from_millis(after));
            pacer.at(due, Box::new(move || sender.send((after, Instant::now() >= due)).unwrap()));
        }
        let order: Vec<_> = (0..4).map(|_| done.recv().unwrap()).collect();
        assert_eq!(order, [10, 10, 20, 30].map(|after| (after, true)));
    }

    #[test]
    fn what_is_not_due_at_the_end_is_dropped() {
        let pacer = Pacer::start().unwrap();
        let weak = pacer.downgrade();
        let (sender, done) = channel::<()>();
        let later = Instant::now() + Duration::from_secs(3600);
        for _ in 0..2 {
            let (weak, sender) = (weak.clone(), sender.clone());
            pacer.at(later, Box::new(move || weak.at(later, Box::new(move || drop(sender)))));
        }
        drop(pacer);
        weak.at(Instant::now(), Box::new(move || sender.send(()).unwrap()));
        assert!(done.recv().is_err(), "nothing is done, and nothing is left");
    }
}
