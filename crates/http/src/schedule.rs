//! The schedule of a part of a title by its content, and its renewal: a stream that began before
//! its title had an index, or with less than it needs, gets the exact schedule of its rest.
//!
//! Promise: the rest is admitted beside the stream as it is, before that stream is interrupted. So
//! a full server costs it nothing: it keeps its rate, and admission is tried again, a bounded
//! number of times. The rest begins as after a seek, with a start burst.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tactus_control::broker::{Broker, DeliverySpec, Grant, Viewer};
use tactus_core::datagrams::Plan;
use tactus_core::path::RequestPath;
use tactus_core::polyline::Polyline;
use tactus_core::units::Bytes;
use tactus_engine::message::Pace;
use tactus_media::MediaFacts;
use tactus_storage::catalogue::{Catalogue, Exactness, OpenTitle, PartConsumption};
use tokio::time::Instant;

use super::rate::{self, PlannedPace};
use super::settings::Rate as RateLimits;

/// What the exact schedule of a rest is made from.
#[derive(Debug)]
pub(super) struct Renewal {
    pub(super) path: RequestPath,
    pub(super) media: MediaFacts,
    /// The pace by the title as a whole.
    pub(super) pace: Pace,
    pub(super) limits: RateLimits,
    pub(super) reason: RenewalReason,
}

/// Why a stream needs another schedule than it began with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RenewalReason {
    /// The title had no index.
    Index,
    /// There was no room for what the content needs.
    Room,
    /// The same, and another stream of its viewer had not ended. Its room is kept for this one.
    OwnRoom,
}

/// Interval of the check whether a stream of the viewer has ended.
const LOOK: Duration = Duration::from_millis(100);

/// A rest that has been admitted.
pub(super) struct Rest {
    /// Its first byte. The stream before is at this byte, or a little further.
    first: u64,
    pub(super) grant: Grant,
    pub(super) pace: Pace,
    /// None if its rate is constant.
    line: Option<Polyline>,
}

impl RenewalReason {
    /// Interval and number of attempts while there is no room: ten minutes.
    fn attempts(self) -> (Duration, u32) {
        match self {
            Self::Index => (Duration::from_secs(10), 60),
            // Its viewer may be waiting for bytes.
            Self::Room | Self::OwnRoom => (Duration::from_secs(2), 300),
        }
    }
}

/// The pace of one part of a title at its own rate, for each of `paces` and its limits, and whether
/// it is final. Only the last one does not depend on spare memory.
pub(super) async fn follow_content(
    catalogue: &Arc<Catalogue>,
    title: &Arc<OpenTitle>,
    path: &RequestPath,
    media: &MediaFacts,
    part: Range<u64>,
    paces: Vec<(Pace, RateLimits)>,
) -> (Vec<PlannedPace>, Exactness) {
    if let [(Pace::BestEffort, _)] = paces[..] {
        return (vec![Pace::BestEffort.into()], Exactness::Exact);
    }
    let (len, mean) = (Bytes(part.end - part.start), media.rate);
    let (found, exactness) = catalogue.consumption(title, path, media, part).await;
    let usual = || paces.iter().map(|&(pace, _)| pace.into()).collect();
    let mut planned: Vec<PlannedPace> = match found {
        PartConsumption::None => usual(),
        PartConsumption::NoMedia => {
            paces.iter().map(|&(pace, _)| rate::at_once(pace, len)).collect()
        }
        PartConsumption::Known(consumption) => {
            let is_short = consumption.points() <= POINTS_INLINE;
            let each = paces.clone();
            let smoothing = move || {
                let follow = |(pace, limits): &(Pace, RateLimits)| {
                    rate::following(*pace, mean, &consumption, limits)
                };
                each.iter().map(follow).collect()
            };
            match is_short {
                true => smoothing(),
                false => tokio::task::spawn_blocking(smoothing).await.unwrap_or_else(|_| usual()),
            }
        }
    };
    let before = planned.len() - 1;
    planned[..before].iter_mut().for_each(|pace| pace.takes_spare = true);
    (planned, exactness)
}

/// Points of a consumption that are smoothed on the thread that serves other clients: under half a
/// millisecond.
const POINTS_INLINE: usize = 4096;

impl Renewal {
    /// Waits for the index of `title`, and admits what is then left of the stream at `slot`, which
    /// sends `range`. Waits for ever if nothing can be gained.
    pub(super) async fn rest(
        &self,
        (catalogue, broker): (&Arc<Catalogue>, &Broker),
        title: &Arc<OpenTitle>,
        range: Range<u64>,
        slot: u32,
        viewer: &Viewer,
    ) -> Rest {
        let (interval, tries) = self.reason.attempts();
        let mut newest = None;
        match self.reason {
            RenewalReason::Index => catalogue.index_made(title, &self.path).await,
            RenewalReason::Room => tokio::time::sleep(interval).await,
            RenewalReason::OwnRoom => newest = own_room(broker, viewer, newest, interval).await,
        }
        for nth in 0..tries {
            let sent = broker.counters_of(slot).map_or(0, |stream| stream.bytes.value());
            let first = range.start + sent;
            if first >= range.end {
                break;
            }
            let rest = first..range.end;
            let paces = vec![(self.pace, self.limits.clone())];
            let planned =
                follow_content(catalogue, title, &self.path, &self.media, rest, paces).await;
            let (planned, exactness) = planned;
            let Some(planned) = planned.into_iter().next() else { break };
            let line = planned.plan.as_ref().and_then(|plan| plan.line.clone());
            let gains_nothing = exactness != Exactness::Exact || line.is_none();
            if self.reason == RenewalReason::Index && gains_nothing {
                break;
            }
            let len = Bytes(range.end - first);
            let spec = DeliverySpec::connection(broker, title, planned.pace.rate(), len);
            let spec = line.iter().fold(spec, |spec, line| spec.by_line(broker, line));
            let spec = spec.within_share(viewer);
            let admitted = match self.reason {
                RenewalReason::Index => broker.admit(&spec),
                RenewalReason::Room => broker.admit_by_free_room(&spec),
                RenewalReason::OwnRoom => broker.admit_again(&spec),
            };
            match admitted {
                Ok(grant) => return Rest { first, grant, pace: planned.pace, line },
                Err(refusal) if nth == 0 && self.reason == RenewalReason::Index => tracing::info!(
                    title = self.path.name(), %refusal,
                    "a stream that began without an index keeps its rate for now"
                ),
                Err(_) => {}
            }
            match self.reason {
                RenewalReason::OwnRoom => newest = own_room(broker, viewer, newest, interval).await,
                RenewalReason::Index | RenewalReason::Room => tokio::time::sleep(interval).await,
            }
        }
        std::future::pending().await
    }
}

/// Waits until a newer room than `newest` is kept for the viewer, but at most for `longest`.
/// Returns the newest one.
async fn own_room(
    broker: &Broker,
    viewer: &Viewer,
    newest: Option<u64>,
    longest: Duration,
) -> Option<u64> {
    let begun = Instant::now();
    loop {
        let now = broker.newest_room(viewer);
        if now > newest || begun.elapsed() >= longest {
            return now.max(newest);
        }
        tokio::time::sleep(LOOK).await;
    }
}

impl Rest {
    /// The schedule from byte `at` on; `None` behind the end, or if the rate is constant.
    pub(super) fn plan(&self, at: u64) -> Option<Arc<Plan>> {
        let line = self.line.as_ref()?.behind(Bytes(at.saturating_sub(self.first)))?;
        Some(Arc::new(Plan::of_times(line)))
    }
}

#[cfg(test)]
mod tests;
