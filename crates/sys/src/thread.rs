//! Settings of real-time threads at their start, and the means of the watchdog.
//!
//! Promise: each request either takes effect or returns an error for the caller to report. None
//! stops the program, because Tactus runs without any of them, and admits less.

use std::io;
use std::num::NonZeroU64;

use rustix::thread::{CpuSet, Pid};

/// A thread, by its kernel number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThreadId(Pid);

impl ThreadId {
    /// The number, as in `/proc/self/task`.
    pub fn number(self) -> i32 {
        self.0.as_raw_nonzero().get()
    }
}

/// The calling thread.
pub fn current() -> ThreadId {
    ThreadId(rustix::thread::gettid())
}

/// The processor that the calling thread is on. It costs no system call where the kernel's vDSO
/// answers this, as on x86.
pub fn processor() -> u32 {
    rustix::thread::sched_getcpu() as u32
}

/// The cores that the calling thread may run on, in ascending order.
///
/// # Errors
/// If the machine has more than 1024 cores.
pub fn allowed_cores() -> io::Result<Vec<u32>> {
    let set = rustix::thread::sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).map(|core| core as u32).collect())
}

/// Pins the calling thread to one core.
///
/// # Errors
/// `EINVAL` if the core does not exist or the process may not use it.
pub fn pin(core: u32) -> io::Result<()> {
    set_core(None, core)
}

/// Pins a thread of this process to one core: the kernel lets a thread run anywhere after its core
/// has gone offline.
///
/// # Errors
/// `EINVAL` if the core does not exist, is offline, or the process may not use it; `ESRCH` if the
/// thread has ended.
pub fn pin_again(thread: ThreadId, core: u32) -> io::Result<()> {
    set_core(Some(thread.0), core)
}

fn set_core(thread: Option<Pid>, core: u32) -> io::Result<()> {
    if core as usize >= CpuSet::MAX_CPU {
        return Err(rustix::io::Errno::INVAL.into());
    }
    let mut set = CpuSet::new();
    set.set(core as usize);
    Ok(rustix::thread::sched_setaffinity(thread, &set)?)
}

/// Restricts the calling thread to some cores.
///
/// # Errors
/// `EINVAL` if none of them exists or may be used by the process.
pub fn keep_to(cores: &[u32]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for &core in cores.iter().filter(|&&core| (core as usize) < CpuSet::MAX_CPU) {
        set.set(core as usize);
    }
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// Runs the calling thread before all ordinary ones: `SCHED_FIFO` at `priority` (1 to 99). Threads
/// that it starts are ordinary.
///
/// # Errors
/// `EPERM` without `CAP_SYS_NICE` or a sufficient `RLIMIT_RTPRIO`, and in a control group without a
/// real-time budget. `EINVAL` for a priority out of range.
pub fn run_fifo(priority: u8) -> io::Result<()> {
    set_policy(None, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, i32::from(priority))
}

/// Makes a thread of this process ordinary: the watchdog does this to a runaway thread.
///
/// # Errors
/// `ESRCH` if the thread has ended.
pub fn demote(thread: ThreadId) -> io::Result<()> {
    set_policy(Some(thread), libc::SCHED_OTHER, 0)
}

/// Whether the thread runs under `SCHED_FIFO` now.
///
/// # Errors
/// `ESRCH` if the thread has ended.
pub fn is_fifo(thread: ThreadId) -> io::Result<bool> {
    // SAFETY: takes a number and returns one.
    let policy = unsafe { libc::sched_getscheduler(thread.0.as_raw_nonzero().get()) };
    match policy {
        -1 => Err(io::Error::last_os_error()),
        policy => Ok(policy & !libc::SCHED_RESET_ON_FORK == libc::SCHED_FIFO),
    }
}

/// Lets the calling thread's sleeps end within 1 ns of the requested time, not 50 us later (the
/// default for ordinary threads; `SCHED_FIFO` has no slack). It lowered the lateness p99 from 1.3
/// to 0.2 ms.
///
/// # Errors
/// Only if a sandbox refuses the call.
pub fn tighten_timer() -> io::Result<()> {
    Ok(rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?)
}

/// Names the calling thread for `top` and `ps`; the kernel keeps the first 15 bytes.
///
/// # Errors
/// `EINVAL` if the name holds a zero byte.
pub fn set_name(name: &str) -> io::Result<()> {
    let name = std::ffi::CString::new(name).map_err(|_| rustix::io::Errno::INVAL)?;
    Ok(rustix::thread::set_name(&name)?)
}

fn set_policy(thread: Option<ThreadId>, policy: i32, priority: i32) -> io::Result<()> {
    // Zero means the calling thread.
    let id = thread.map_or(0, |thread| thread.0.as_raw_nonzero().get());
    let parameter = libc::sched_param { sched_priority: priority };
    // SAFETY: the parameter lives through the call, which only reads it.
    match unsafe { libc::sched_setscheduler(id, policy, &raw const parameter) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Guard of a thread that is essential: its panic ends the program. A server that still answers but
/// delivers nothing would be worse than a restarted one.
#[derive(Debug)]
pub struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The hook has reported the panic; there is nothing to save.
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    /// Tells the process that this test starts to panic.
    const PANICS: &str = "TACTUS_TEST_PANICS";

    #[test]
    fn a_panic_of_a_vital_thread_ends_the_program() {
        if std::env::var_os(PANICS).is_some() {
            let vital = std::thread::spawn(|| {
                let _vital = AbortOnPanic;
                panic!("as a broken invariant would");
            });
            drop(vital.join());
            return;
        }
        let test = "thread::tests::a_panic_of_a_vital_thread_ends_the_program";
        let program = std::env::current_exe().expect("the test's own path");
        let done = Command::new(program).args(["--exact", test]).env(PANICS, "1").output();
        let status = done.expect("the test starts itself").status;
        assert_eq!(status.signal(), Some(libc::SIGABRT), "{status}");
    }

    /// Runs on a separate thread, because most of these tests change the calling thread.
    fn apart<R: Send>(act: impl FnOnce() -> R + Send) -> R {
        std::thread::scope(|scope| scope.spawn(act).join().unwrap())
    }

    #[test]
    fn a_pinned_thread_may_use_only_its_core() {
        let last = *allowed_cores().unwrap().last().unwrap();
        let after = apart(move || {
            pin(last).unwrap();
            (allowed_cores().unwrap(), processor())
        });
        assert_eq!(after, (vec![last], last));
    }

    #[test]
    fn a_thread_is_pinned_again_by_another() {
        let last = *allowed_cores().unwrap().last().unwrap();
        apart(move || {
            let thread = current();
            apart(move || pin_again(thread, last).unwrap());
            assert_eq!(allowed_cores().unwrap(), [last]);
            assert!(pin_again(thread, 1023).is_err());
        });
    }

    #[test]
    fn a_core_that_does_not_exist_is_refused() {
        assert!(pin(1023).is_err());
        assert!(pin(u32::MAX).is_err());
    }

    #[test]
    fn a_fifo_thread_can_be_demoted_by_another() {
        apart(|| {
            if let Err(refusal) = run_fifo(1) {
                println!("skipped: SCHED_FIFO is refused here: {refusal}");
                return;
            }
            let runaway = current();
            assert!(is_fifo(runaway).unwrap());
            assert!(!apart(|| is_fifo(current()).unwrap()), "threads it starts are ordinary");
            apart(|| demote(runaway)).unwrap();
            assert!(!is_fifo(runaway).unwrap());
        });
    }

    #[test]
    fn a_priority_out_of_range_is_refused() {
        assert!(apart(|| run_fifo(100)).is_err());
    }

    #[test]
    fn a_thread_bears_its_name() {
        let comm = apart(|| {
            set_name("tactus-core-0").unwrap();
            tighten_timer().unwrap();
            std::fs::read_to_string("/proc/thread-self/comm").unwrap()
        });
        assert_eq!(comm.trim(), "tactus-core-0");
        assert!(set_name("zero\0byte").is_err());
    }
}
