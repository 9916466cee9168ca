//! Entering the kernel, reading the clock, waking up: by a timer, by another thread, by a ring.

use std::hint::black_box;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, Thread};

use anyhow::{Result, anyhow};
use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::gettid;
use tactus_core::units::{MILLISECOND, Nanos};

use crate::report::{Floor, number};
use crate::{clock, cpu, priority, spread};

const CALLS: u64 = 200_000;
const ROUNDS: u64 = 10_000;
/// Timer wake-ups: two seconds at a kilohertz.
const WAKES: u64 = 2_000;
const PRIORITY: u32 = 50;

/// All of them.
pub(super) fn measure() -> Result<Vec<Floor>> {
    let null = per_call(|| {
        black_box(rustix::process::getppid());
    });
    let read = per_call(|| {
        black_box(clock::now());
    });
    let calls = format!("{} ns; {} ns", number(null), number(read));
    let figures = [("system call, ns", null), ("clock, ns", read)];
    Ok(vec![
        Floor::new("null system call; clock read", calls, &figures),
        timer()?,
        pair("wake another thread by futex, one way", futex()?),
        pair("wake another thread by eventfd, one way", by_eventfd()?),
        pair("hand over between spinning threads, one way", spinning()?),
    ])
}

fn per_call(mut call: impl FnMut()) -> f64 {
    let start = clock::now();
    for _ in 0..CALLS {
        call();
    }
    clock::now().since(start).0 as f64 / CALLS as f64
}

/// One way in microseconds: half of the mean round trip.
fn pair(name: &str, whole: Nanos) -> Floor {
    let micros = whole.0 as f64 / ROUNDS as f64 / 2e3;
    Floor::new(name, format!("{} us", number(micros)), &[("us", micros)])
}

fn timer() -> Result<Floor> {
    let beat = move || -> Result<(Vec<f64>, f64)> {
        priority::pin(0)?;
        priority::fifo(PRIORITY)?;
        let thread = gettid().as_raw_nonzero().get() as u32;
        let mut late = Vec::with_capacity(WAKES as usize);
        let before = cpu::thread_run_time(thread)?;
        let mut due = clock::now();
        for _ in 0..WAKES {
            due += MILLISECOND;
            clock::sleep_until(due);
            late.push(clock::now().since(due).0 as f64 / 1e3);
        }
        let ran = cpu::thread_run_time(thread)?.saturating_sub(before);
        Ok((late, ran.0 as f64 / 1e3 / WAKES as f64))
    };
    let (mut late, cost) =
        thread::spawn(beat).join().map_err(|_| anyhow!("the timer panicked"))??;
    let quantile = |values: &mut [f64], q| spread::quantile(values, q).unwrap_or(f64::NAN);
    let (p50, p99) = (quantile(&mut late, 0.5), quantile(&mut late, 0.99));
    let value = format!("p50 {} us, p99 {} us, {} us CPU", number(p50), number(p99), number(cost));
    let figures = [("p50, us", p50), ("p99, us", p99), ("CPU, us", cost)];
    Ok(Floor::new("timer wake-up under SCHED_FIFO, 1 kHz", value, &figures))
}

/// Runs `here` on core 0 and `there` on core 1 and times the former.
fn across(
    here: impl FnOnce() -> Result<()> + Send,
    there: impl FnOnce() -> Result<()> + Send,
) -> Result<Nanos> {
    thread::scope(|scope| {
        let there = scope.spawn(move || {
            priority::pin(1.min(priority::cores() - 1))?;
            there()
        });
        let here = scope.spawn(move || {
            priority::pin(0)?;
            let start = clock::now();
            here()?;
            anyhow::Ok(clock::now().since(start))
        });
        let time = here.join().map_err(|_| anyhow!("one side panicked"))??;
        there.join().map_err(|_| anyhow!("one side panicked"))??;
        Ok(time)
    })
}

fn futex() -> Result<Nanos> {
    let turn = &AtomicU64::new(0);
    let (to_here, from_there) = std::sync::mpsc::channel::<Thread>();
    let (to_there, from_here) = std::sync::mpsc::channel::<Thread>();
    let wait = move |odd: u64, round: u64| {
        while turn.load(Ordering::Acquire) != 2 * round + odd {
            thread::park();
        }
    };
    across(
        move || {
            to_there.send(thread::current())?;
            let other = from_there.recv()?;
            for round in 0..ROUNDS {
                turn.store(2 * round + 1, Ordering::Release);
                other.unpark();
                wait(0, round + 1);
            }
            Ok(())
        },
        move || {
            to_here.send(thread::current())?;
            let other = from_here.recv()?;
            for round in 0..ROUNDS {
                wait(1, round);
                turn.store(2 * round + 2, Ordering::Release);
                other.unpark();
            }
            Ok(())
        },
    )
}

fn by_eventfd() -> Result<Nanos> {
    let waker = || eventfd(0, EventfdFlags::CLOEXEC);
    let (here, there) = (waker()?, waker()?);
    let wake = |waker: &OwnedFd| -> Result<()> {
        rustix::io::write(waker, &1_u64.to_ne_bytes())?;
        Ok(())
    };
    let listen = |waker: &OwnedFd| -> Result<()> {
        rustix::io::read(waker, &mut [0; 8])?;
        Ok(())
    };
    across(
        || (0..ROUNDS).try_for_each(|_| wake(&there).and_then(|()| listen(&here))),
        || (0..ROUNDS).try_for_each(|_| listen(&there).and_then(|()| wake(&here))),
    )
}

fn spinning() -> Result<Nanos> {
    let turn = AtomicU64::new(0);
    let wait = |value: u64| {
        while turn.load(Ordering::Acquire) != value {
            std::hint::spin_loop();
        }
    };
    across(
        || {
            for round in 0..ROUNDS {
                turn.store(2 * round + 1, Ordering::Release);
                wait(2 * round + 2);
            }
            Ok(())
        },
        || {
            for round in 0..ROUNDS {
                wait(2 * round + 1);
                turn.store(2 * round + 2, Ordering::Release);
            }
            Ok(())
        },
    )
}
