//! The two clocks of a transport stream: PCR (27 MHz) and PTS (90 kHz), both of which wrap.
//!
//! Promise: all arithmetic is modulo the wrap, so differences across the wrap (every 26.5 hours)
//! are correct.

use crate::units::MediaTime;

/// A program clock reference: ticks of 27 MHz modulo 2^33 * 300.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pcr(u64);

/// A presentation or decoding timestamp: ticks of 90 kHz modulo 2^33.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pts(u64);

impl Pcr {
    /// Ticks until the clock wraps: 33 bits of 90 kHz, each of 300 ticks.
    pub const WRAP: MediaTime = MediaTime((1 << 33) * 300);

    /// The value at `ticks`, which may exceed the wrap.
    pub const fn at(ticks: MediaTime) -> Self {
        Self(ticks.0 % Self::WRAP.0)
    }

    /// Ticks since the clock's zero.
    pub const fn ticks(self) -> MediaTime {
        MediaTime(self.0)
    }

    /// The forward distance from `earlier`; less than one wrap.
    pub const fn since(self, earlier: Self) -> MediaTime {
        MediaTime((self.0 + Self::WRAP.0 - earlier.0) % Self::WRAP.0)
    }

    /// This value plus `span`.
    #[must_use]
    pub const fn after(self, span: MediaTime) -> Self {
        Self((self.0 + span.0 % Self::WRAP.0) % Self::WRAP.0)
    }

    /// This value minus `span`.
    #[must_use]
    pub const fn before(self, span: MediaTime) -> Self {
        Self((self.0 + Self::WRAP.0 - span.0 % Self::WRAP.0) % Self::WRAP.0)
    }
}

impl Pts {
    /// Ticks of 90 kHz until the clock wraps.
    pub const WRAP: u64 = 1 << 33;
    /// Ticks of 27 MHz in one of 90 kHz.
    pub const TICK: u64 = 300;

    /// The value at `ticks` of 90 kHz, which may exceed the wrap.
    pub const fn at(ticks: u64) -> Self {
        Self(ticks % Self::WRAP)
    }

    /// Ticks of 90 kHz since the clock's zero.
    pub const fn ticks(self) -> u64 {
        self.0
    }

    /// This value plus `span`. Rounds down to a tick of 90 kHz.
    #[must_use]
    pub const fn after(self, span: MediaTime) -> Self {
        Self((self.0 + span.0 / Self::TICK % Self::WRAP) % Self::WRAP)
    }

    /// The same moment on the 27 MHz clock.
    pub const fn as_pcr(self) -> Pcr {
        Pcr(self.0 * Self::TICK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_span_added_is_the_span_measured_even_across_the_wrap(
            start in 0u64..Pcr::WRAP.0, span in 0u64..Pcr::WRAP.0,
        ) {
            let (start, span) = (Pcr::at(MediaTime(start)), MediaTime(span));
            prop_assert_eq!(start.after(span).since(start), span);
            prop_assert_eq!(start.after(span).before(span), start);
        }

        #[test]
        fn both_clocks_wrap_at_the_same_moment(start in 0u64..Pts::WRAP, span in 0u64..Pts::WRAP) {
            let span = MediaTime(span * Pts::TICK);
            let pts = Pts::at(start);
            prop_assert_eq!(pts.after(span).as_pcr(), pts.as_pcr().after(span));
        }
    }
}
