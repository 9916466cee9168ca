//! Rates of streams and recordings, and the rings that they need.
//!
//! Promise: the memory of all rings of a client is bounded.

use std::ops::Range;

use tactus_core::stagger::Tick;
use tactus_core::units::{BitRate, KIB};

use crate::budget::{MemoryBudget, MemoryShare};
use crate::errno::{EINVAL, ENOSPC, Refusal};

/// How often bytes are moved, unless that would be very little or very much at once.
pub(crate) const TICK: Tick = Tick::Ms25;

/// Rates outside of these are mistakes.
pub(crate) const RATES: Range<u64> = 1_000..1_000_000_000_000;

/// The room of a ring if the client names none: what is due in half a second beside the burst.
const ROOM_PART: u64 = 2;
/// The least of it.
const ROOM_MIN: u64 = 256 * KIB;
/// A ring is whole pages.
const PAGE: u64 = 4 * KIB;

/// The room of a ring for a rate: `wanted` bytes, or enough if that is zero.
pub(crate) fn room_of(rate: BitRate, tick: Tick, burst: u64, wanted: u64) -> Result<u64, Refusal> {
    let least = burst.saturating_add(2 * rate.bytes_in(tick.span()).0);
    let room = match wanted {
        0 => least.max(burst.saturating_add(rate.0 / 8 / ROOM_PART)).max(ROOM_MIN),
        _ if wanted < least => {
            let message = format!("a ring for this rate has room for at least {least} bytes");
            return Err((EINVAL, message));
        }
        _ => wanted,
    };
    room.checked_next_multiple_of(PAGE).ok_or((EINVAL, "no ring is that large".into()))
}

/// Takes memory for a ring with `room` bytes.
pub(crate) fn claim(memory: &MemoryBudget, room: u64) -> Result<MemoryShare, Refusal> {
    let mut share = memory.share();
    share.resize(room).map_err(|left| {
        let rings = "the rings of streams and recordings";
        (ENOSPC, format!("{left} are left of [local] data_max for {rings}"))
    })?;
    Ok(share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_has_room_for_two_ticks_and_the_burst() {
        // 25,000 bytes are due in a tick.
        let room = |wanted| room_of(BitRate(8_000_000), Tick::Ms25, 5000, wanted);
        assert_eq!(room(54_999).map_err(|(errno, _)| errno), Err(EINVAL));
        assert_eq!(room(55_000), Ok(57_344));
        assert_eq!(room(0), Ok(507_904), "half a second and the burst");
        assert_eq!(room(u64::MAX).map_err(|(errno, _)| errno), Err(EINVAL));
    }
}
