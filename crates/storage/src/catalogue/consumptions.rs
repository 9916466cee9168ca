//! The consumptions of requested titles: how many bytes a player needs by which time.
//!
//! Promise: a request never waits for a long title to be read. The consumption of a transport
//! stream is that of its index, if there is one; a long title without an index is queued for one.
//! The others are found once, with a limit on concurrent reads: those of movies from their tables,
//! and those of short titles of other containers from all their bytes. A long title of these is
//! queued like a transport stream. Until a long title has been read, a [preview](super::previews)
//! tells the first bytes of a range; the rest comes at the mean rate, or by the points that
//! Matroska and FLAC state. The memory is bounded, and the least recently used consumption is
//! removed first.

use std::collections::VecDeque;
use std::fs::File;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use tactus_core::path::RequestPath;
use tactus_core::smoothing::{Consumption, Shape};
use tactus_core::units::{Bytes, KIB, MIB, MediaTime, Nanos};
use tactus_engine::message::TitleId;
use tactus_media::{MediaFacts, MediaKind, consumption, index};
use tokio::sync::mpsc;

use super::previews::{Preview, PreviewRequest};
use super::{Catalogue, LONG, OpenTitle, Unindexed};

/// The consumptions of titles other than transport streams in memory; `None` for one without.
#[derive(Debug, Default)]
pub(super) struct Consumptions(Mutex<Cache>);

#[derive(Debug, Default)]
struct Cache {
    /// In order of use; the most recently used is last.
    titles: VecDeque<(TitleId, Option<Arc<Consumption>>)>,
    points: usize,
}

/// Memory for consumptions, of 16 bytes a point: dozens of long movies.
const POINTS_MAX: usize = 64 * MIB as usize / 16;
/// Longer than segments of HLS usually are.
const SEGMENT_MAX: Nanos = Nanos(12_000_000_000);
/// Most consumptions in memory, however small.
const TITLES_MAX: usize = 4096;

impl Consumptions {
    fn get(&self, id: TitleId) -> Option<Option<Arc<Consumption>>> {
        let mut cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = cache.titles.iter().position(|(known, _)| *known == id)?;
        let found = cache.titles.remove(at)?;
        let consumption = found.1.clone();
        cache.titles.push_back(found);
        Some(consumption)
    }

    pub(super) fn has(&self, id: TitleId) -> bool {
        let cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cache.titles.iter().any(|(known, _)| *known == id)
    }

    pub(super) fn insert(&self, id: TitleId, consumption: Option<Arc<Consumption>>) {
        let points = |consumption: &Option<Arc<Consumption>>| {
            consumption.as_ref().map_or(0, |it| it.points())
        };
        let mut cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cache.titles.retain(|(known, _)| *known != id);
        cache.titles.push_back((id, consumption));
        cache.points = cache.titles.iter().map(|(_, consumption)| points(consumption)).sum();
        while cache.titles.len() > TITLES_MAX || cache.points > POINTS_MAX {
            let Some((_, gone)) = cache.titles.pop_front() else { break };
            cache.points -= points(&gone);
        }
    }
}

/// Whether a consumption is final.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exactness {
    /// It is that of the content.
    Exact,
    /// The title has no index yet: beyond a preview the times are estimated, or unknown.
    Estimate,
}

/// The consumption of a part of a title.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PartConsumption {
    /// Its bytes are needed at these times.
    Known(Consumption),
    /// No media lies in it: a player waits for all of it, as for an index at the end.
    NoMedia,
    /// Its rate is constant, or nothing is known yet.
    None,
}

impl Catalogue {
    /// The consumption of `range` of the title at `path`, whose media facts are `facts`.
    pub async fn consumption(
        self: &Arc<Self>,
        title: &Arc<OpenTitle>,
        path: &RequestPath,
        facts: &MediaFacts,
        range: Range<u64>,
    ) -> (PartConsumption, Exactness) {
        let leaves_by_clock = match facts.kind {
            // No segment of a playlist waits for an index.
            MediaKind::TransportStream { .. } => facts.duration < SEGMENT_MAX,
            MediaKind::Mp3 { is_constant } => is_constant,
            MediaKind::Wave => true,
            MediaKind::Movie | MediaKind::Matroska | MediaKind::Flac | MediaKind::Ogg => false,
        };
        if title.following.is_some() || leaves_by_clock {
            return (PartConsumption::None, Exactness::Exact);
        }
        let (known, exactness) = self.at_hand(title, path, facts, &range).await;
        if exactness == Exactness::Exact {
            return (known, exactness);
        }
        match self.preview(title, path, facts.kind, range.clone()).await {
            Preview::Whole => self.at_hand(title, path, facts, &range).await,
            Preview::First(first) => {
                let found = continued(first, known, facts, &range);
                (PartConsumption::Known(found), exactness)
            }
            Preview::None => (known, exactness),
        }
    }

    /// What is known of the consumption of `range` without a further read of the title's content.
    async fn at_hand(
        self: &Arc<Self>,
        title: &Arc<OpenTitle>,
        path: &RequestPath,
        facts: &MediaFacts,
        range: &Range<u64>,
    ) -> (PartConsumption, Exactness) {
        let or_none = |found: Option<Consumption>| {
            found.map_or(PartConsumption::None, PartConsumption::Known)
        };
        if matches!(facts.kind, MediaKind::TransportStream { .. }) {
            let Some(index) = self.index_at_hand(title, path).await else {
                return (PartConsumption::None, Exactness::Estimate);
            };
            let is_variable = !index.is_constant() || index.runs().len() > 1;
            let found = is_variable.then(|| consumption::of_index(&index, range)).flatten();
            return (or_none(found), Exactness::Exact);
        }
        let (whole, exactness) = self.of_whole(title, path, facts).await;
        let found = match whole {
            Some(whole) if is_index(range, whole.len()) => PartConsumption::NoMedia,
            Some(whole) => or_none(whole.part(range.clone())),
            None => PartConsumption::None,
        };
        (found, exactness)
    }

    /// Waits for a preview of a title without an index, if it may have one. Unless that was all of
    /// the title, the title is queued for an index.
    async fn preview(
        &self,
        title: &Arc<OpenTitle>,
        path: &RequestPath,
        kind: MediaKind,
        range: Range<u64>,
    ) -> Preview {
        let can_have_one = title.len >= LONG
            && rustix::fs::fstat(&title.file).is_ok_and(|stat| !self.can_have_no_index(&stat));
        match self.spot(path) {
            Ok((volume, name)) if can_have_one => {
                let unindexed = Unindexed { volume, name: name.to_owned(), title: Some(title.id) };
                let preview = self.previews.preview(title, unindexed.clone(), kind, range).await;
                if preview != Preview::Whole {
                    self.want_index(unindexed);
                }
                preview
            }
            Ok(_) | Err(_) => Preview::None,
        }
    }

    /// The requests that wait for a preview, for the one task that reads for them.
    pub fn preview_requests(&self) -> mpsc::Receiver<PreviewRequest> {
        self.previews.requests()
    }

    /// The consumption of a title that is no transport stream.
    async fn of_whole(
        self: &Arc<Self>,
        title: &OpenTitle,
        path: &RequestPath,
        facts: &MediaFacts,
    ) -> (Option<Arc<Consumption>>, Exactness) {
        if let Some(known) = self.consumptions.get(title.id) {
            return (known, Exactness::Exact);
        }
        let Ok(Some((index, name))) = self.volume_of(path) else { return (None, Exactness::Exact) };
        let (this, name, id) = (Arc::clone(self), name.to_owned(), title.id);
        let (kind, is_short) = (facts.kind, title.len < LONG);
        let look = move || {
            let file = File::from(this.open_version(index, &name, id)?);
            let root = this.volumes[index].root();
            let found = match kind {
                MediaKind::Movie => consumption::of_movie(&file),
                kind if is_short => consumption::of_frames(&file, kind),
                kind => {
                    let stat = rustix::fs::fstat(&file).ok()?;
                    let kept = index::kept_consumption(root, &stat, &file);
                    let estimate = || consumption::estimate(&file, kind);
                    if kept.is_none() && !this.can_have_no_index(&stat) {
                        return Some((estimate().map(Arc::new), Exactness::Estimate));
                    }
                    kept.or_else(estimate)
                }
            };
            Some((found.map(Arc::new), Exactness::Exact))
        };
        let found = self.volumes[index].probes.run(look).await.ok().flatten();
        let Some((found, exactness)) = found else { return (None, Exactness::Exact) };
        // The exact one is soon there.
        if exactness == Exactness::Exact {
            self.consumptions.insert(title.id, found.clone());
        }
        (found, exactness)
    }
}

/// Whether a range is what lies behind the media of a title: the index of a movie. It may begin
/// with the last bytes of the media, as the requests of some players have round beginnings.
fn is_index(range: &Range<u64>, media: Bytes) -> bool {
    range.end > media.0 && range.start.saturating_add(ROUNDED_MAX) > media.0
}

/// More than what players round the beginning of a request by: Chromium has blocks of 32 KiB.
const ROUNDED_MAX: u64 = 64 * KIB;

/// The consumption of a range of which the first bytes are known: behind them it is that of an
/// estimate, or the bytes are needed at the mean rate.
fn continued(
    first: Consumption,
    estimate: PartConsumption,
    facts: &MediaFacts,
    range: &Range<u64>,
) -> Consumption {
    if let PartConsumption::Known(estimate) = estimate {
        return first.followed_by(&estimate);
    }
    let len = range.end - range.start;
    let rest = Bytes(len.saturating_sub(first.len().0));
    let lasts = facts.rate.time_for(rest).0.saturating_mul(27) / 1000;
    let from = first.duration();
    let end = MediaTime(from.0.saturating_add(lasts));
    let points = [(MediaTime(0), Bytes(0)), (from, first.len()), (end, Bytes(len))];
    match Consumption::new(Shape::Lines, points.into_iter()) {
        Some(mean) => first.followed_by(&mean),
        None => first,
    }
}
