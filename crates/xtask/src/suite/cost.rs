//! What a process of tests costs: the processor time of it and of all processes that it waited for.
//!
//! Promise: it is what the shell that started the process is told by the kernel (times(2)).
//! Processes that a test leaves behind are not counted.

use std::time::Duration;

/// Shell: runs its arguments, writes how much they have computed, and ends as they have.
pub(super) const RUN: &str = "\"$@\"; code=$?; times; exit $code";

/// The processor time that [`RUN`] has written behind `output`, which may itself be anything.
pub(super) fn computed(output: &str) -> Option<Duration> {
    let both = |line: &str| {
        let times = line.split(' ').map(time).collect::<Option<Vec<_>>>()?;
        Some(<[Duration; 2]>::try_from(times).ok()?.iter().sum())
    };
    // The second line is that of the shell's children: user and system.
    output.lines().rev().find_map(both)
}

/// Reads a time as `times` writes it: `1m2.34s`.
fn time(text: &str) -> Option<Duration> {
    let (minutes, seconds) = text.strip_suffix('s')?.split_once('m')?;
    let seconds = Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?;
    Some(Duration::from_secs(minutes.parse::<u32>().ok()?.into()) * 60 + seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_last_line_of_two_times_is_that_of_the_children() {
        let output = "it took 0m9.000000s 0m9.000000s\n0m0.010000s 0m0.000000s\n\
                      1m2.500000s 0m0.250000s\nleft behind\n";
        assert_eq!(computed(output), Some(Duration::from_millis(62_750)));
        for text in ["", "0m1.0s", "0m1.0s 0m1.0s 0m1.0s", "0m1.0s 0m-1.0s", "m1s 0m1s"] {
            assert_eq!(computed(text), None, "{text:?}");
        }
    }

    #[test]
    fn what_a_child_of_the_child_computes_counts_and_its_end_is_that_of_all() {
        let own = "sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done'; exit 3";
        let done = Command::new("sh").args(["-c", RUN, "sh", "sh", "-c", own]).output().unwrap();
        assert_eq!(done.status.code(), Some(3));
        let said = String::from_utf8(done.stdout).unwrap();
        assert!(computed(&said).unwrap() >= Duration::from_millis(10), "{said}");
    }
}
