//! The byte clock at the receiver: the permitted times of bytes.
//!
//! It uses its own arithmetic, so that an error of the engine cannot hide in it. It observes the
//! clock's start: a stream sends its burst when it is in memory, and one tick's bytes at its first
//! visit, up to a tick later.

use tactus_core::stagger::SLOT;
use tactus_core::units::{Bytes, MonoTime, Nanos};

use super::Delivery;
use crate::plan::PlanPromise;
use crate::verdict::{Invariant, require};

/// The promise of a paced stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PacedPromise {
    /// Bits per second.
    pub(crate) rate: u64,
    /// Limit of the bytes that may come at once at the start.
    pub(crate) burst: u64,
    pub(crate) tick: Nanos,
    /// Limit of the lateness of cores.
    pub(crate) lateness: Nanos,
}

/// The byte clock check of one stream, and its progress.
#[derive(Clone, Debug)]
pub(crate) struct ByteClockCheck {
    paced: PacedPromise,
    plan: Option<PlanPromise>,
    len: u64,
    /// The running second of the clock, and the bytes sent in it.
    second: (u64, u64),
    /// When the first bytes of the burst came.
    opened: Option<MonoTime>,
    begun: Option<ClockStart>,
}

#[derive(Clone, Copy, Debug)]
struct ClockStart {
    /// The earliest and the latest possible start of the clock.
    earliest: MonoTime,
    latest: MonoTime,
    /// Pauses of the machine before that.
    paused: Nanos,
    /// Bytes that came at once, above the first tick's bytes.
    burst: u64,
    /// The running visit, and the number of bytes sent at its beginning.
    visit: MonoTime,
    /// The time by which the rate has paid for the sent bytes, without the burst.
    paid_until: MonoTime,
}

/// Bytes in `span` at `rate`, rounded down; exact without 128-bit division.
fn bytes_in(rate: u64, span: Nanos) -> u64 {
    let (seconds, rest) = (span.0 / 1_000_000_000, span.0 % 1_000_000_000);
    let bits = seconds * rate;
    bits / 8 + ((bits % 8) * 1_000_000_000 + rest * rate) / 8_000_000_000
}

impl ByteClockCheck {
    pub(super) fn new(paced: PacedPromise, plan: Option<PlanPromise>, len: Bytes) -> Self {
        Self { paced, plan, len: len.0, second: (0, 0), opened: None, begun: None }
    }

    /// The bytes due by `span` after a start with `burst`: by the plan, within burst and rate.
    fn due(&self, burst: u64, span: Nanos) -> u64 {
        let by_rate = burst + bytes_in(self.paced.rate, span);
        self.plan.as_ref().map_or(by_rate, |plan| plan.due(span).min(by_rate))
    }

    /// Stops the world when more is sent in a second than was promised for it. Within a tick of its
    /// begin a second has bytes of the one before, and a late turn has those of several ticks.
    fn check_envelope(&mut self, now: MonoTime, taken: u64, delivery: &Delivery) {
        let PacedPromise { rate, tick, lateness, .. } = self.paced;
        let second = now.0 / 1_000_000_000;
        let Some(promised) = self.plan.as_ref().and_then(|plan| plan.rate_in(second)) else {
            return;
        };
        let before = if self.second.0 == second { self.second.1 } else { 0 };
        self.second = (second, before + taken);
        let most = promised / 8 + bytes_in(rate, tick.times(2) + lateness + SLOT.times(2));
        require(before + taken <= most, Invariant::WithinEnvelope, || {
            format!(
                "{} bytes in a second of {promised} bit/s by {now:?}: {delivery:?}",
                before + taken
            )
        });
    }

    pub(super) fn paced(&self) -> &PacedPromise {
        &self.paced
    }

    /// Notes that `taken` bytes leave at `now` after `sent`. Stops the world if they are early, or
    /// if earlier bytes were late.
    #[expect(clippy::too_many_arguments, reason = "the facts of one send, all of different kinds")]
    pub(super) fn check_send(
        &mut self,
        now: MonoTime,
        wanted: MonoTime,
        paused: Nanos,
        sent: u64,
        taken: u64,
        delivery: &Delivery,
        ever_blocked: bool,
    ) {
        let PacedPromise { rate, burst, tick, lateness } = self.paced;
        let each = bytes_in(rate, tick);
        let due = |span| self.due(burst, span);
        let Some(begun) = self.begun else {
            let is_promised = delivery.is_promised && !ever_blocked && paused == Nanos(0);
            let is_burst = sent + taken <= burst.min(due(Nanos(0)));
            // A later visit of a stream whose burst was cut shows the clock as well.
            if is_burst && self.opened.is_none_or(|opened| now < opened + tick) {
                self.opened.get_or_insert(now);
                return;
            }
            let limit = self.opened.map(|opened| opened + tick + lateness + SLOT.times(2));
            let is_late = limit.is_some_and(|limit| now > limit);
            require(!(is_late && is_promised), Invariant::NeverLate, || {
                format!("the first visit is at {now:?}: {delivery:?} {limit:?}")
            });
            // The slot of the first visit lies between the scheduled turn and now.
            let earliest = MonoTime(wanted.0.next_multiple_of(SLOT.0).min(now.0 / SLOT.0 * SLOT.0));
            // A peer that has left bytes of the burst untaken hides the first visit.
            let hidden = self.opened.filter(|_| ever_blocked);
            let earliest = hidden.map_or(earliest, |opened| earliest.min(opened));
            // A late turn makes several visits at once. After a pause the phase of the visits no
            // longer fits the clock: one comes up to a tick late.
            let spare = if paused > Nanos(0) { tick } else { Nanos(0) };
            let most = due(tick + spare + now.since(earliest));
            let taken = sent + taken;
            require(taken <= most, Invariant::NeverEarly, || {
                format!("{taken} bytes at the start at {now:?}, {most} are due: {delivery:?}")
            });
            // A clock that moved before it began has a fraction of a byte more.
            let burst = taken.saturating_sub(each) + u64::from(paused > Nanos(0));
            let latest = now;
            self.begun = Some(ClockStart {
                earliest,
                latest,
                paused,
                burst,
                visit: now,
                paid_until: now + tick,
            });
            return;
        };
        if now == begun.latest {
            // The first visit, in several sends.
            let spare = if paused > Nanos(0) { tick } else { Nanos(0) };
            let most = due(tick + spare + now.since(begun.earliest));
            require(sent + taken <= most, Invariant::NeverEarly, || {
                format!(
                    "{} bytes at the start at {now:?}, {most} are due: {delivery:?}",
                    sent + taken
                )
            });
            let burst = (sent + taken).saturating_sub(each) + u64::from(paused > Nanos(0));
            self.begun = Some(ClockStart { burst, ..begun });
            return;
        }
        let mut begun = begun;
        if ever_blocked {
            // The bytes that the peer left untaken may have been part of the burst.
            begun.burst = burst;
        }
        // A clock that has moved rounds once more.
        let rounding = u64::from(paused > Nanos(0) && self.plan.is_some());
        // The visit behind a burst that was cut may be a later one: its bytes were rounded once.
        let rounding = rounding + u64::from(self.opened.is_some());
        let allowed = self.due(begun.burst, tick + now.since(begun.earliest)) + rounding;
        require(sent + taken <= allowed, Invariant::NeverEarly, || {
            format!("{} bytes at {now:?}, {allowed} are due: {delivery:?} {begun:?}", sent + taken)
        });
        let since = now.since(begun.visit);
        begun.visit = now;
        let paid = Nanos(taken * 8_000_000_000 / rate);
        begun.paid_until = begun.paid_until.max(now) + paid;
        if ever_blocked {
            // Bytes that a peer has left untaken are still due.
            begun.paid_until = now;
        }
        // Bytes unsent after a short pause come at once; after a long one the clock moves.
        let catch_up = if paused > begun.paused { STALL } else { Nanos(0) };
        let limit = now + tick.times(2) + catch_up + lateness + SLOT.times(2);
        require(begun.paid_until <= limit, Invariant::NoBurstAfterPause, || {
            format!("above the rate at {now:?}, {sent} and {taken}: {delivery:?} {begun:?}")
        });
        self.begun = Some(begun);
        if delivery.is_promised && !ever_blocked && paused == Nanos(0) {
            self.check_envelope(now, taken, delivery);
        }
        if since > Nanos(0) && delivery.is_promised && !ever_blocked {
            self.check_not_late(now, sent, paused, delivery);
        }
    }

    /// Stops the world when bytes that were due a tick ago have not come by `now`.
    pub(super) fn check_not_late(
        &self,
        now: MonoTime,
        sent: u64,
        paused: Nanos,
        delivery: &Delivery,
    ) {
        let Some(begun) = &self.begun else { return };
        let PacedPromise { tick, lateness, .. } = self.paced;
        let slip = lateness + (paused - begun.paused);
        // One tick's bytes come with the first visit; the last visit was at most a tick ago.
        let span = (now.since(begun.latest) + tick).saturating_sub(tick + slip);
        let due = self.due(begun.burst, span).min(self.len);
        require(sent >= due, Invariant::NeverLate, || {
            format!("{sent} bytes by {now:?}, {due} were due a tick ago: {delivery:?} {begun:?}")
        });
    }
}

/// A longer stall of the machine moves its clocks; a shorter one is made up for.
const STALL: Nanos = Nanos::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_span_are_exact() {
        for rate in [64_000, 8_800_001, 999_999_937, 10_000_000_000] {
            for span in [0, 1, 999, 62_500_000, 3_600_000_000_001, 86_400_000_000_007] {
                let exact = u128::from(rate) * u128::from(span) / 8_000_000_000;
                assert_eq!(u128::from(bytes_in(rate, Nanos(span))), exact);
            }
        }
    }
}
