//! Rate limits for warnings that clients or shortages could cause without end.
//!
//! Promise: per time span, each cause has at most one line in the log, and all causes together a
//! bounded number. A line tells how many were suppressed before it. Nothing is logged here.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Decides which warnings are logged, by their causes.
#[derive(Debug)]
pub struct Throttle<K> {
    span: Duration,
    causes_max: usize,
    causes: HashMap<K, Cause>,
    /// All causes beyond the limit.
    others: Option<Cause>,
}

#[derive(Debug)]
struct Cause {
    written: Instant,
    left_out: u64,
}

impl<K: Eq + Hash> Throttle<K> {
    /// One line per `span` for each cause. Beyond `causes_max` causes, one line for all others
    /// together.
    #[must_use]
    pub fn new(span: Duration, causes_max: usize) -> Self {
        Self { span, causes_max, causes: HashMap::new(), others: None }
    }

    /// Returns how many warnings of `cause` were suppressed if one may be logged now, else none.
    pub fn poll(&mut self, now: Instant, cause: K) -> Option<u64> {
        if let Some(known) = self.causes.get_mut(&cause) {
            return known.poll(now, self.span);
        }
        if self.causes.len() >= self.causes_max {
            let span = self.span;
            self.causes.retain(|_, known| known.left_out > 0 || !known.is_over(now, span));
        }
        if self.causes.len() >= self.causes_max {
            let span = self.span;
            self.causes.retain(|_, known| !known.is_over(now, span));
        }
        if self.causes.len() < self.causes_max {
            self.causes.insert(cause, Cause { written: now, left_out: 0 });
            return Some(0);
        }
        match &mut self.others {
            Some(others) => others.poll(now, self.span),
            others @ None => {
                *others = Some(Cause { written: now, left_out: 0 });
                Some(0)
            }
        }
    }
}

impl Cause {
    fn is_over(&self, now: Instant, span: Duration) -> bool {
        now.saturating_duration_since(self.written) >= span
    }

    fn poll(&mut self, now: Instant, span: Duration) -> Option<u64> {
        if !self.is_over(now, span) {
            self.left_out += 1;
            return None;
        }
        self.written = now;
        Some(std::mem::take(&mut self.left_out))
    }
}

/// The limit for warnings without a limit of their own.
static ALL: Mutex<Option<Throttle<(&'static str, String)>>> = Mutex::new(None);

/// The time span of [`poll`].
const EVERY: Duration = Duration::from_secs(60);
/// Causes with their own lines per span. All others share one.
const CAUSES_MAX: usize = 256;

/// Whether a warning of this cause and subject may be logged now; if so, the number of suppressed
/// ones before it.
pub fn poll(cause: &'static str, subject: &str) -> Option<u64> {
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    let throttle = all.get_or_insert_with(|| Throttle::new(EVERY, CAUSES_MAX));
    throttle.poll(Instant::now(), (cause, subject.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn s12_a_cause_has_one_line_in_a_span_and_the_next_counts_what_was_left_out() {
        let (mut throttle, start) = (Throttle::new(MINUTE, 8), Instant::now());
        let lines: Vec<_> = (0..20 * 130)
            .filter_map(|n| throttle.poll(start + Duration::from_millis(50) * n, "descriptors"))
            .collect();
        // Twenty per second, for 130 seconds.
        assert_eq!(lines, [0, 1199, 1199]);
        assert_eq!(throttle.poll(start, "another"), Some(0));
    }

    #[test]
    fn s12_however_many_causes_there_are_the_lines_are_bounded() {
        let (mut throttle, start) = (Throttle::new(MINUTE, 8), Instant::now());
        let lines = |throttle: &mut Throttle<u32>, at: Instant, causes: std::ops::Range<u32>| {
            causes.filter(|&cause| throttle.poll(at, cause).is_some()).count()
        };
        assert_eq!(lines(&mut throttle, start, 0..100_000), 9);
        assert_eq!(lines(&mut throttle, start + MINUTE / 2, 0..100_000), 0);
        assert_eq!(lines(&mut throttle, start + MINUTE, 200_000..300_000), 9);
        assert!(throttle.causes.len() <= 8);
    }
}
