//! The kernel's figures about a stalled core.
//!
//! Promise: a cause is named only if figures of the kernel account for at least half of the stall;
//! the figures are given with it. `/proc` is read within bounds and never fails the caller:
//! unreadable figures are unknown.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;

use tactus_core::units::Nanos;
use tactus_sys::thread::ThreadId;

use super::Length;

/// Figures of a core's thread and processor at one time. All of them only grow.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Sample {
    /// Time that the thread has run.
    ran: Nanos,
    /// Time that it was runnable while others ran (`/proc/PID/task/TID/schedstat`).
    waited: Nanos,
    /// Involuntary context switches.
    involuntary: u64,
    /// Time that the hypervisor gave this processor to others.
    stolen: Nanos,
}

/// The files with the figures of one thread and its processor. They stay open: opening and closing
/// them takes longer than reading them.
pub(super) struct Figures {
    cpu: u32,
    schedstat: File,
    status: Option<File>,
    stat: Option<File>,
    /// The buffer of the last read.
    text: Box<[u8]>,
}

impl Figures {
    pub(super) fn open(thread: ThreadId, cpu: u32) -> io::Result<Self> {
        let task = format!("/proc/self/task/{}", thread.number());
        Ok(Self {
            cpu,
            schedstat: File::open(format!("{task}/schedstat"))?,
            status: File::open(format!("{task}/status")).ok(),
            stat: File::open("/proc/stat").ok(),
            text: vec![0; FILE_MAX].into(),
        })
    }

    /// The present figures.
    pub(super) fn sample(&mut self) -> Option<Sample> {
        let Self { cpu, schedstat: runs, status, stat, text } = self;
        let (ran, waited) = schedstat(read(runs, text)?)?;
        let status = status.as_ref().and_then(|file| involuntary(read(file, text)?));
        let stolen = stat.as_ref().and_then(|file| stolen(read(file, text)?, *cpu));
        Some(Sample {
            ran,
            waited,
            involuntary: status.unwrap_or(0),
            stolen: stolen.unwrap_or_default(),
        })
    }
}

/// Reads a file of `/proc` from its beginning, as far as there is room.
fn read<'a>(file: &File, text: &'a mut [u8]) -> Option<&'a str> {
    let mut len = 0;
    while len < text.len() {
        match file.read_at(&mut text[len..], len as u64).ok()? {
            0 => break,
            more => len += more,
        }
    }
    std::str::from_utf8(&text[..len]).ok()
}

/// Bytes of a file that are read: the lines of five hundred processors.
const FILE_MAX: usize = 64 * 1024;

/// `run wait slices`, in ns (Linux, Documentation/scheduler/sched-stats.rst).
fn schedstat(text: &str) -> Option<(Nanos, Nanos)> {
    let mut words = text.split_ascii_whitespace();
    Some((Nanos(words.next()?.parse().ok()?), Nanos(words.next()?.parse().ok()?)))
}

fn involuntary(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"))?;
    line.trim().parse().ok()
}

/// The eighth figure of a processor's line, in hundredths of a second (proc_stat(5)).
fn stolen(stat: &str, cpu: u32) -> Option<Nanos> {
    let name = format!("cpu{cpu} ");
    let line = stat.lines().find_map(|line| line.strip_prefix(&name))?;
    let ticks: u64 = line.split_ascii_whitespace().nth(7)?.parse().ok()?;
    Some(Nanos::from_millis(ticks.saturating_mul(10)))
}

/// The difference between two samples.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Clues {
    /// The difference; none when `/proc` cannot be read.
    passed: Option<Sample>,
    /// By how much the observing thread was late itself.
    own_delay: Nanos,
    /// Real-time programs that were seen on the core.
    pub(super) others: Vec<String>,
}

impl Clues {
    pub(super) fn between(before: Option<&Sample>, now: Option<&Sample>, own_delay: Nanos) -> Self {
        let passed = before.zip(now).map(|(before, now)| Sample {
            ran: now.ran.saturating_sub(before.ran),
            waited: now.waited.saturating_sub(before.waited),
            involuntary: now.involuntary.saturating_sub(before.involuntary),
            stolen: now.stolen.saturating_sub(before.stolen),
        });
        Self { passed, own_delay, others: vec![] }
    }

    pub(super) fn with_others(self, others: Vec<String>) -> Self {
        Self { others, ..self }
    }

    /// The cause of a stall of this length, in words.
    pub(super) fn cause(&self, length: Nanos) -> String {
        let half = Nanos(length.0 / 2);
        let Some(passed) = &self.passed else { return "the cause is unknown".to_owned() };
        let cause = if passed.stolen >= half {
            "the hypervisor gave the processor to others"
        } else if !self.others.is_empty() {
            "real-time programs use the core"
        } else if passed.waited >= half {
            "another program used the core"
        } else if self.own_delay >= half {
            "the whole server was stopped, or the machine was paused"
        } else if passed.ran >= half {
            "the server's own thread or interrupts took this long"
        } else {
            "the cause is unknown"
        };
        let mut text = cause.to_owned();
        if !self.others.is_empty() {
            write!(text, ": {}", self.others.join(", ")).expect("a string takes everything");
        }
        write!(
            text,
            " (waited {} for the core, ran {}, {} involuntary context switches)",
            Length(passed.waited),
            Length(passed.ran),
            passed.involuntary
        )
        .expect("a string takes everything");
        text
    }
}

/// Runnable real-time threads of other programs on a processor, at most three.
pub(super) fn real_time_on(cpu: u32) -> Vec<String> {
    let own = std::process::id();
    let numbers = |path: &str| {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
    };
    let tasks = numbers("/proc").filter(|&pid| pid != own).flat_map(|pid| {
        numbers(&format!("/proc/{pid}/task")).map(move |task| format!("/proc/{pid}/task/{task}"))
    });
    let found = tasks.take(TASKS_MAX).filter_map(|task| {
        let stat = fs::read_to_string(format!("{task}/stat")).ok()?;
        Task::of(&stat).filter(|task| task.is_real_time_on(cpu)).map(|task| task.to_string())
    });
    found.take(3).collect()
}

/// Tasks that are read at most: 40 ms.
const TASKS_MAX: usize = 4096;

/// One line of `/proc/PID/stat` (proc_pid_stat(5)).
#[derive(PartialEq, Eq, Debug)]
struct Task {
    id: u32,
    name: String,
    is_runnable: bool,
    cpu: u32,
    priority: u32,
    policy: u32,
}

impl Task {
    fn of(stat: &str) -> Option<Self> {
        // A name may contain anything, parentheses too.
        let (id, rest) = stat.split_once(" (")?;
        let (name, rest) = rest.rsplit_once(") ")?;
        let fields: Vec<_> = rest.split_ascii_whitespace().collect();
        // The first of these fields is the third one of the manual.
        let field = |number: usize| fields.get(number - 3)?.parse().ok();
        Some(Self {
            id: id.parse().ok()?,
            name: name.to_owned(),
            is_runnable: fields.first() == Some(&"R"),
            cpu: field(39)?,
            priority: field(40)?,
            policy: field(41)?,
        })
    }

    fn is_real_time_on(&self, cpu: u32) -> bool {
        self.is_runnable && self.cpu == cpu && self.policy_name().is_some()
    }

    fn policy_name(&self) -> Option<&'static str> {
        match self.policy {
            1 => Some("SCHED_FIFO"),
            2 => Some("SCHED_RR"),
            6 => Some("SCHED_DEADLINE"),
            _ => None,
        }
    }
}

impl std::fmt::Display for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { id, name, priority, .. } = self;
        write!(f, "{name:?} (thread {id}, {} {priority})", self.policy_name().unwrap_or("?"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECONDS: fn(u64) -> Nanos = |seconds| Nanos::from_millis(1000 * seconds);

    #[test]
    fn s04_the_cause_is_what_accounts_for_the_stall() {
        let clues = |passed: Sample, own_delay: Nanos| Clues {
            passed: Some(passed),
            own_delay,
            others: vec![],
        };
        let none = Sample::default();
        let length = SECONDS(5);
        for (clues, said) in [
            (clues(Sample { waited: SECONDS(5), ..none }, SECONDS(0)), "another program used"),
            (clues(Sample { stolen: SECONDS(4), ..none }, SECONDS(5)), "the hypervisor"),
            (clues(none, SECONDS(5)), "the whole server was stopped"),
            (clues(Sample { ran: SECONDS(5), ..none }, SECONDS(0)), "the server's own thread"),
            (clues(Sample { waited: SECONDS(1), ..none }, SECONDS(1)), "the cause is unknown"),
            (Clues::default(), "the cause is unknown"),
        ] {
            let cause = clues.cause(length);
            assert!(cause.starts_with(said), "{cause}");
        }
        let hog = Clues {
            others: vec!["\"hog\" (thread 7, SCHED_FIFO 99)".to_owned()],
            ..clues(Sample { waited: SECONDS(5), involuntary: 2, ..none }, SECONDS(0))
        };
        let cause = hog.cause(length);
        assert!(cause.contains("\"hog\" (thread 7, SCHED_FIFO 99)"), "{cause}");
        assert!(cause.contains("waited 5.0 s"), "{cause}");
        assert!(cause.contains("2 involuntary context switches"), "{cause}");
    }

    #[test]
    fn s04_lines_of_proc_are_understood() {
        assert_eq!(schedstat("12 345 6\n"), Some((Nanos(12), Nanos(345))));
        assert_eq!(schedstat(""), None);
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t9\nnonvoluntary_ctxt_switches:\t42\n";
        assert_eq!(involuntary(status), Some(42));
        let stat = "cpu  1 2 3 4 5 6 7 8 9 0\ncpu1 1 2 3 4 5 6 7 123 9 0\ncpu12 0 0 0 0 0 0 0 7\n";
        assert_eq!(stolen(stat, 1), Some(Nanos::from_millis(1230)));
        assert_eq!((stolen(stat, 12), stolen(stat, 2)), (Some(Nanos::from_millis(70)), None));
        let mut fields = vec!["0"; 36];
        fields.extend(["1", "99", "1"]);
        let stat = format!("77 (a) (b\n) R {}", fields[1..].join(" "));
        let task = Task::of(&stat).expect("a whole line");
        assert_eq!((task.id, &*task.name, task.priority, task.policy), (77, "a) (b\n", 99, 1));
        assert!(task.is_real_time_on(1) && !task.is_real_time_on(0));
        assert_eq!(task.to_string(), "\"a) (b\\n\" (thread 77, SCHED_FIFO 99)");
        assert_eq!(Task::of("77 (x) R 1 2"), None);
    }

    #[test]
    fn s04_a_thread_of_this_process_can_be_sampled() {
        let mut figures = Figures::open(tactus_sys::thread::current(), 0).expect("a live thread");
        let before = figures.sample().expect("this kernel provides the figures");
        let begun = std::time::Instant::now();
        while begun.elapsed() < std::time::Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        assert!(figures.sample().expect("as before").ran > before.ran, "figures are read anew");
    }
}
