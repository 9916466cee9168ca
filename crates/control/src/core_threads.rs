//! The real-time threads of an engine: one for each core that it uses, started and ended while it
//! runs.
//!
//! Promise: an engine has a core for each processor that it may use, from its start to its end. One
//! without a thread is parked: it has no servers, and costs nothing. What others hold of a core
//! (its waker, its mailbox, its number) stays the same whether it has a thread or not.

mod host;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use tactus_engine::cores::Core;
use tactus_engine::migration::Mailbox;
use tactus_sys::disk::uring::Tender;
use tactus_sys::thread::{self, AbortOnPanic, ThreadId};
use tactus_sys::waker::{self, Sleeper, Waker};

use crate::claim::Claim;
use host::{CoreHost, RUN};

pub(crate) use host::{Rights, Wakers};

/// The cores of an engine. Clones share them.
#[derive(Clone)]
pub(crate) struct CoreThreads(Arc<Shared>);

struct Shared {
    ends: Vec<CoreEnd>,
    /// SCHED_FIFO priority of the threads; none if they shall have none.
    priority: Option<u8>,
    /// Of the engine: whether more than one core has a thread.
    several: Arc<AtomicBool>,
}

/// A core on its processor.
struct CoreEnd {
    cpu: u32,
    waker: Waker,
    tender: Tender,
    mailbox: Mailbox,
    order: Arc<AtomicU8>,
    state: Mutex<CoreState>,
}

/// A core between two threads.
type ParkedCore = Box<(Core, Sleeper)>;

enum CoreState {
    Parked(ParkedCore),
    Running(RunningCore),
    /// For good, or while it changes.
    Absent,
}

struct RunningCore {
    thread: JoinHandle<Option<ParkedCore>>,
    id: ThreadId,
    real_time: bool,
    _claim: Option<Claim>,
}

/// The order for a thread to park its core.
const PARK: u8 = 1;
/// The order for a thread to end with its core.
const END: u8 = 2;

impl CoreThreads {
    /// The cores, each with its processor, all of them parked.
    ///
    /// # Errors
    /// If file descriptors are exhausted.
    pub(crate) fn new(
        cores: Vec<Core>,
        cpus: impl IntoIterator<Item = u32>,
        priority: Option<u8>,
    ) -> io::Result<Self> {
        let several = cores.first().map(Core::several).unwrap_or_default();
        several.store(false, Ordering::Relaxed);
        let end = |(core, cpu): (Core, u32)| {
            let (waker, sleeper) = waker::waker()?;
            Ok(CoreEnd {
                cpu,
                waker,
                tender: Tender::default(),
                mailbox: core.mailbox(),
                order: Arc::new(AtomicU8::new(RUN)),
                state: Mutex::new(CoreState::Parked(Box::new((core, sleeper)))),
            })
        };
        let ends = cores.into_iter().zip(cpus).map(end).collect::<io::Result<_>>()?;
        Ok(Self(Arc::new(Shared { ends, priority, several })))
    }

    /// The processor of each core.
    pub(crate) fn cpus(&self) -> impl Iterator<Item = u32> {
        self.0.ends.iter().map(|end| end.cpu)
    }

    /// The number of the core on a processor, with or without a thread.
    pub(crate) fn number_of(&self, cpu: u32) -> Option<usize> {
        self.cpus().position(|of| of == cpu)
    }

    /// The processor of a core.
    pub(crate) fn cpu(&self, core: usize) -> u32 {
        self.0.ends[core].cpu
    }

    /// What wakes each core; one that is parked is woken for nothing, at no cost.
    pub(crate) fn wakers(&self) -> Vec<Waker> {
        self.0.ends.iter().map(|end| end.waker.clone()).collect()
    }

    pub(crate) fn waker(&self, core: usize) -> &Waker {
        &self.0.ends[core].waker
    }

    pub(crate) fn mailbox(&self, core: usize) -> &Mailbox {
        &self.0.ends[core].mailbox
    }

    /// The rings that have left a core.
    pub(crate) fn tender(&self, core: usize) -> &Tender {
        &self.0.ends[core].tender
    }

    /// The thread of a core, if it has one.
    pub(crate) fn thread(&self, core: usize) -> Option<ThreadId> {
        match &*self.0.ends[core].state() {
            CoreState::Running(running) => Some(running.id),
            CoreState::Parked(_) | CoreState::Absent => None,
        }
    }

    /// Whether the thread of a core is real-time; `None` if it has no thread.
    pub(crate) fn is_real_time(&self, core: usize) -> Option<bool> {
        match &*self.0.ends[core].state() {
            CoreState::Running(running) => Some(running.real_time),
            CoreState::Parked(_) | CoreState::Absent => None,
        }
    }

    /// The cores that have a thread, in order.
    pub(crate) fn running(&self) -> Vec<usize> {
        (0..self.0.ends.len()).filter(|&core| self.thread(core).is_some()).collect()
    }

    /// Starts the thread of a parked core. It keeps `claim` until it ends.
    ///
    /// # Errors
    /// If there can be no further thread; the core stays parked. `AlreadyExists` if it has one.
    pub(crate) fn start(&self, core: usize, claim: Option<Claim>) -> io::Result<Rights> {
        let end = &self.0.ends[core];
        let mut state = end.state();
        let parked = match std::mem::replace(&mut *state, CoreState::Absent) {
            CoreState::Parked(parked) => parked,
            other => {
                *state = other;
                return Err(io::ErrorKind::AlreadyExists.into());
            }
        };
        // A thread that does not start must not take the core along.
        let way = Arc::new(Mutex::new(Some(parked)));
        let (taken, tender, order) = (Arc::clone(&way), end.tender.clone(), Arc::clone(&end.order));
        let (cpu, priority) = (end.cpu, self.0.priority);
        let (tell, told) = channel();
        let body = move || {
            let _vital = AbortOnPanic;
            let parked = taken.lock().unwrap_or_else(PoisonError::into_inner).take();
            let (core, sleeper) = *parked.expect("a core is given to one thread");
            let rights = Rights::take(cpu, priority);
            // The receiver waits for it.
            drop(tell.send((thread::current(), rights)));
            let mut host = CoreHost::new(sleeper, Arc::clone(&order), tender);
            let core = core.run(&mut host);
            // What the kernel binds to this thread ends with it.
            (order.load(Ordering::Acquire) == PARK).then(|| Box::new((core, host.into_sleeper())))
        };
        end.order.store(RUN, Ordering::Release);
        // From the start on: this core, or another one, may get a neighbour.
        let is_alone = self.0.ends.iter().all(|other| std::ptr::eq(end, other) || !other.runs());
        self.0.several.store(!is_alone, Ordering::Release);
        // One that sleeps until it is woken begins to look.
        self.0.ends.iter().for_each(|other| other.waker.wake());
        let name = format!("tactus-core-{cpu}");
        let thread = match std::thread::Builder::new().name(name).spawn(body) {
            Ok(thread) => thread,
            Err(error) => {
                let parked = way.lock().unwrap_or_else(PoisonError::into_inner).take();
                *state = parked.map_or(CoreState::Absent, CoreState::Parked);
                return Err(error);
            }
        };
        let (id, rights) = told.recv().map_err(io::Error::other)?;
        let real_time = rights.real_time;
        *state = CoreState::Running(RunningCore { thread, id, real_time, _claim: claim });
        Ok(rights)
    }

    /// Ends the thread of a core without servers and without rings to tend, and parks the core.
    pub(crate) fn park(&self, core: usize) {
        let end = &self.0.ends[core];
        let mut state = end.state();
        let running = match std::mem::replace(&mut *state, CoreState::Absent) {
            CoreState::Running(running) => running,
            other => {
                *state = other;
                return;
            }
        };
        end.order.store(PARK, Ordering::Release);
        end.waker.wake();
        if let Ok(Some(parked)) = running.thread.join() {
            *state = CoreState::Parked(parked);
        }
        drop(state);
        self.0.several.store(self.running().len() > 1, Ordering::Release);
    }

    /// Ends all threads, each with its core.
    pub(crate) fn end(&self) {
        for end in &self.0.ends {
            end.order.store(END, Ordering::Release);
            end.waker.wake();
        }
        for end in &self.0.ends {
            let ended = std::mem::replace(&mut *end.state(), CoreState::Absent);
            if let CoreState::Running(running) = ended
                && running.thread.join().is_err()
            {
                tracing::error!("a core ended with a panic");
            }
        }
    }
}

impl CoreEnd {
    fn state(&self) -> MutexGuard<'_, CoreState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn runs(&self) -> bool {
        matches!(&*self.state(), CoreState::Running(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu() -> u32 {
        thread::allowed_cores().expect("a processor")[0]
    }

    #[test]
    fn a_core_gets_a_thread_is_parked_and_gets_another_one() {
        let threads = CoreThreads::new(vec![Core::default()], [cpu()], None).expect("a core");
        assert_eq!((threads.running(), threads.thread(0).is_some()), (vec![], false));
        for _ in 0..3 {
            let rights = threads.start(0, None).expect("a thread");
            assert!(!rights.real_time && threads.is_real_time(0) == Some(false));
            let again = threads.start(0, None).map(drop).expect_err("it has a thread");
            assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
            assert_eq!(threads.running(), [0]);
            threads.park(0);
            assert_eq!(threads.running(), Vec::<usize>::new());
        }
        threads.end();
        assert!(threads.start(0, None).is_err(), "it has ended");
    }

    #[test]
    fn cores_look_at_their_rings_only_while_there_are_several() {
        let threads = CoreThreads::new(vec![Core::default(), Core::default()], [cpu(), 77], None);
        let threads = threads.expect("cores");
        let is_one_of_several = || threads.0.several.load(Ordering::Acquire);
        threads.start(0, None).expect("a thread");
        assert!(!is_one_of_several());
        // There is no such processor: it runs all the same.
        assert!(!threads.start(1, None).expect("a thread").refused.is_empty());
        assert!(is_one_of_several());
        threads.park(0);
        assert!(!is_one_of_several());
        threads.end();
    }
}
