//! How long before a moment the file server wakes up.
//!
//! Promise: its core is awake at nearly all moments, and not much earlier than it has to be. A core
//! that sleeps until the moment itself is late by the time that its processor takes to wake up: a
//! few microseconds, or 50 in a virtual machine. That time is learned, because what is added to it
//! is spent awake.

use tactus_core::units::{MonoTime, Nanos};

/// The longest lead time, which is also the first one.
pub(super) const LEAD_MAX: Nanos = Nanos::from_micros(100);

/// The shortest one.
const LEAD_MIN: Nanos = Nanos::from_micros(10);

/// Time between the wake-up and the moment: the turn itself.
const MARGIN: Nanos = Nanos::from_micros(5);

/// After a wake-up that was too late for its moment the lead time is longer by this.
const RISE: Nanos = Nanos::from_micros(8);

/// After each other one it is shorter by this: one of 33 wake-ups is too late when it neither rises
/// nor falls.
const FALL: Nanos = Nanos(RISE.0 / 32);

/// How long before a moment to wake up.
pub(super) struct LeadTime {
    length: Nanos,
    /// When a turn is to begin after a sleep.
    alarm: Option<MonoTime>,
}

impl Default for LeadTime {
    fn default() -> Self {
        Self { length: LEAD_MAX, alarm: None }
    }
}

impl LeadTime {
    /// The present lead time.
    pub(super) fn length(&self) -> Nanos {
        self.length
    }

    /// Whether a moment is so near that a sleep would end too late.
    pub(super) fn includes(&self, now: MonoTime, moment: MonoTime) -> bool {
        moment <= now + self.length
    }

    /// A turn begins: learns from it, if it is the one of the alarm.
    pub(super) fn begin_turn(&mut self, now: MonoTime) {
        let Some(alarm) = self.alarm.take_if(|alarm| now >= *alarm) else { return };
        self.length = match now.since(alarm) + MARGIN > self.length {
            true => (self.length + RISE).min(LEAD_MAX),
            false => Nanos(self.length.0 - FALL.0).max(LEAD_MIN),
        };
    }

    /// A turn ends, and the core may sleep until it is time for `moment`.
    pub(super) fn sleep_until(&mut self, moment: Option<MonoTime>) {
        self.alarm = moment.map(|moment| moment.before(self.length));
    }

    /// Nothing is learned from the next turn: it does not follow a sleep of this core.
    pub(super) fn stay_awake(&mut self) {
        self.alarm = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Wakes up for `moments` moments, each time `late` of its number too late. Returns how many
    /// moments of the second half were missed.
    fn wake_up(lead: &mut LeadTime, moments: u64, late: impl Fn(u64) -> Nanos) -> usize {
        let missed = (0..moments).filter(|&nth| {
            let moment = MonoTime(1_000_000_000) + Nanos::from_millis(2).times(nth);
            lead.sleep_until(Some(moment));
            let now = moment.before(lead.length()) + late(nth);
            lead.begin_turn(now);
            now > moment && nth >= moments / 2
        });
        missed.count()
    }

    #[test]
    fn it_is_as_long_as_nearly_all_wake_ups_take() {
        for typical in [2, 30, 60] {
            let mut lead = LeadTime::default();
            // From `typical` to ten more, and one of a hundred much later.
            let late = |nth: u64| match nth * 7 % 100 {
                0 => Nanos::from_micros(90),
                other => Nanos::from_micros(typical + other % 10),
            };
            let missed = wake_up(&mut lead, 2_000, late);
            let length = lead.length();
            assert!(missed <= 30, "{missed} of 1,000 with {typical} us");
            let needed = Nanos::from_micros(typical) + MARGIN;
            assert!(length >= needed && length <= needed + Nanos::from_micros(25), "{length}");
        }
    }

    #[test]
    fn it_has_bounds_whatever_the_processor_does() {
        let mut lead = LeadTime::default();
        wake_up(&mut lead, 2_000, |_| Nanos(0));
        assert_eq!(lead.length(), LEAD_MIN);
        wake_up(&mut lead, 100, |_| Nanos::from_millis(5));
        assert_eq!(lead.length(), LEAD_MAX);
    }

    #[test]
    fn it_learns_only_from_turns_that_end_a_sleep() {
        let mut lead = LeadTime::default();
        let moment = MonoTime(1_000_000_000);
        for _ in 0..100 {
            lead.begin_turn(moment);
            lead.sleep_until(Some(moment));
            lead.begin_turn(moment.before(Nanos::from_millis(1)));
            lead.stay_awake();
            lead.begin_turn(moment);
            lead.sleep_until(None);
            lead.begin_turn(moment);
        }
        assert_eq!(lead.length(), LEAD_MAX);
    }
}
