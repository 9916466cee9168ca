//! The other end of a socket: its rate, its pauses and its end.

use tactus_core::units::{BitRate, MonoTime, Nanos};

/// How a receiver behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Temper {
    /// Its buffer is always empty.
    Eager,
    /// Takes bytes at a rate, through a buffer of so many bytes.
    Steady { rate: BitRate, buffer: u64 },
    /// As steady, but takes nothing for a time that begins this long after the start.
    Stalling { rate: BitRate, buffer: u64, after: Nanos, span: Nanos },
}

/// One receiver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receiver {
    temper: Temper,
    /// How long after the start its connection breaks.
    breaks_after: Option<Nanos>,
    connected: MonoTime,
    level: u64,
    /// Until when the level has been brought up to date.
    at: MonoTime,
}

impl Receiver {
    pub(crate) fn new(temper: Temper, breaks_after: Option<Nanos>) -> Self {
        let at = MonoTime(0);
        Self { temper, breaks_after, connected: at, level: 0, at }
    }

    pub(super) fn connected(self, now: MonoTime) -> Self {
        Self { connected: now, at: now, ..self }
    }

    pub(super) fn is_broken(&mut self, now: MonoTime) -> bool {
        self.breaks_after.is_some_and(|after| now >= self.connected + after)
    }

    /// The part of `offered` bytes that it takes now.
    pub(super) fn take(&mut self, now: MonoTime, offered: u64) -> u64 {
        let (rate, buffer) = match self.temper {
            Temper::Eager => return offered,
            Temper::Steady { rate, buffer } | Temper::Stalling { rate, buffer, .. } => {
                (rate, buffer)
            }
        };
        let awake = self.awake(now);
        let drained = (u128::from(rate.0) * u128::from(awake.0) / 8_000_000_000) as u64;
        if drained > 0 || awake == Nanos(0) {
            self.level = self.level.saturating_sub(drained);
            self.at = now;
        }
        let taken = offered.min(buffer - self.level);
        self.level += taken;
        taken
    }

    /// Time since the last look in which it was taking bytes.
    fn awake(&self, now: MonoTime) -> Nanos {
        let all = now.since(self.at);
        let Temper::Stalling { after, span, .. } = self.temper else { return all };
        let from = (self.connected + after).max(self.at);
        let to = (self.connected + after + span).min(now);
        all.saturating_sub(to.since(from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tactus_core::units::SECOND;

    #[test]
    fn a_stalled_receiver_takes_its_buffer_and_then_nothing_until_it_wakes() {
        let temper = Temper::Stalling {
            rate: BitRate(8_000_000),
            buffer: 500_000,
            after: SECOND,
            span: SECOND.times(2),
        };
        let mut receiver = Receiver::new(temper, None).connected(MonoTime(0));
        let at = |tenths: u64| MonoTime(tenths * SECOND.0 / 10);
        assert_eq!(receiver.take(at(10), 600_000), 500_000);
        assert_eq!(receiver.take(at(20), 600_000), 0);
        assert_eq!(receiver.take(at(30), 600_000), 0);
        assert_eq!(receiver.take(at(31), 600_000), 100_000);
        assert!(!receiver.is_broken(at(99)));
    }

    #[test]
    fn a_connection_breaks_when_its_time_has_come() {
        let mut receiver = Receiver::new(Temper::Eager, Some(SECOND)).connected(MonoTime(5));
        assert!(!receiver.is_broken(MonoTime(SECOND.0)));
        assert!(receiver.is_broken(MonoTime(SECOND.0 + 5)));
    }
}
