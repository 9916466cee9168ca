//! Idle time of the processors: whether one more process of tests has room.
//!
//! Promise: of the processes that wait here at most one begins in [`LOOK`]. Without figures of the
//! kernel none begins before the work is over.

use std::fs;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

/// How long the processors are watched for each process.
const LOOK: Duration = Duration::from_secs(1);

/// The part of all processors' time that must have been idle, in hundredths: half of one of two.
const IDLE_MIN: u64 = 25;

/// The line of the processes that wait for idle time.
#[derive(Default)]
pub(super) struct IdleTime {
    line: Mutex<()>,
}

impl IdleTime {
    /// Waits until the processors have been idle enough, or until `is_over`.
    pub(super) fn wait(&self, is_over: &dyn Fn() -> bool) {
        let _first = self.line.lock().expect("no holder panics");
        let mut before = read();
        while !is_over() {
            thread::sleep(LOOK);
            let now = read();
            if is_idle(before, now) {
                return;
            }
            before = now;
        }
    }
}

/// Sums of all processors since the start of the machine, in ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Ticks {
    all: u64,
    /// With the time of processes in the background, which any other process takes from them.
    /// Without the time in which a processor waited for a disk: more processes would wait, too.
    idle: u64,
}

fn read() -> Option<Ticks> {
    parse(&fs::read_to_string("/proc/stat").ok()?)
}

/// Reads the line `cpu`: user, nice, system, idle, iowait, irq, softirq, steal (proc_stat(5)).
fn parse(text: &str) -> Option<Ticks> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line.split_whitespace().map_while(|tick| tick.parse().ok()).collect();
    Some(Ticks { all: ticks.get(..8)?.iter().sum(), idle: ticks[1] + ticks[3] })
}

fn is_idle(before: Option<Ticks>, now: Option<Ticks>) -> bool {
    let (Some(before), Some(now)) = (before, now) else { return false };
    let all = now.all.saturating_sub(before.all);
    all > 0 && now.idle.saturating_sub(before.idle) * 100 >= all * IDLE_MIN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_is_what_the_kernel_counts_as_idle_and_not_the_wait_for_a_disk() {
        let busy = parse("cpu  100 0 50 1000 700 0 10 40 0 0\ncpu0 1 1\n").unwrap();
        assert_eq!(busy, Ticks { all: 1900, idle: 1000 });
        assert!(is_idle(Some(busy), parse("cpu  150 0 100 1050 750 0 10 40")), "50 of 200");
        assert!(!is_idle(Some(busy), parse("cpu  100 0 50 1049 851 0 10 40")), "49 of 200");
        assert!(!is_idle(Some(busy), Some(busy)), "no time has passed");
    }

    #[test]
    fn time_of_steps_in_the_background_is_as_good_as_idle() {
        let busy = parse("cpu  100 20 50 1000 700 0 10 40 0 0").unwrap();
        assert_eq!(busy, Ticks { all: 1920, idle: 1020 });
        assert!(is_idle(Some(busy), parse("cpu  175 60 125 1010 700 0 10 40")), "40 and 10 of 200");
        assert!(!is_idle(Some(busy), parse("cpu  175 59 126 1010 700 0 10 40")), "39 and 10");
    }

    #[test]
    fn without_figures_nothing_more_begins_until_the_work_is_over() {
        assert!(!is_idle(None, None));
        for text in ["", "cpu  1 2 3\n", "intr 5\n"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
        IdleTime::default().wait(&|| true);
    }
}
