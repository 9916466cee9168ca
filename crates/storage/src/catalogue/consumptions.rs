//! The consumptions of requested titles: how many bytes a player needs by which time.
//!
//! Promise: a request never waits for a long title to be read. The consumption of a transport
//! stream is that of its index, if there is one; a long title without an index is queued for one.
//! The others are found once, with a limit on concurrent reads: those of movies from their tables,
//! and those of short titles of other containers from all their bytes. A long title of these is
//! queued like a transport stream; until it has been read, Matroska and FLAC have an estimate from
//! the points that they state. The memory is bounded, and the least recently used consumption is
//! removed first.

use std::collections::VecDeque;
use std::fs::File;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use tactus_core::path::RequestPath;
use tactus_core::smoothing::Consumption;
use tactus_core::units::{MIB, Nanos};
use tactus_engine::message::TitleId;
use tactus_media::{MediaFacts, MediaKind, consumption, index};

use super::{Catalogue, LONG, OpenTitle};

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
enum Exactness {
    Exact,
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
        title: &OpenTitle,
        path: &RequestPath,
        facts: &MediaFacts,
        range: Range<u64>,
    ) -> PartConsumption {
        if title.following.is_some() {
            return PartConsumption::None;
        }
        match facts.kind {
            // No segment of a playlist waits for an index.
            MediaKind::TransportStream { .. } if facts.duration < SEGMENT_MAX => {
                PartConsumption::None
            }
            MediaKind::TransportStream { .. } => {
                let index = self.index_at_hand(title, path).await;
                let index = index.filter(|index| !index.is_constant() || index.runs().len() > 1);
                let consumption = index.and_then(|index| consumption::of_index(&index, &range));
                consumption.map_or(PartConsumption::None, PartConsumption::Known)
            }
            MediaKind::Mp3 { is_constant: true } | MediaKind::Wave => PartConsumption::None,
            MediaKind::Movie
            | MediaKind::Matroska
            | MediaKind::Mp3 { is_constant: false }
            | MediaKind::Flac
            | MediaKind::Ogg => match self.of_whole(title, path, facts).await {
                Some(consumption) if range.start >= consumption.len().0 => PartConsumption::NoMedia,
                Some(consumption) => {
                    consumption.part(range).map_or(PartConsumption::None, PartConsumption::Known)
                }
                None => PartConsumption::None,
            },
        }
    }

    async fn of_whole(
        self: &Arc<Self>,
        title: &OpenTitle,
        path: &RequestPath,
        facts: &MediaFacts,
    ) -> Option<Arc<Consumption>> {
        if let Some(known) = self.consumptions.get(title.id) {
            return known;
        }
        let (index, name) = self.volume_of(path).ok()??;
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
                        this.want_index(index, name, id);
                        return Some((estimate().map(Arc::new), Exactness::Estimate));
                    }
                    kept.or_else(estimate)
                }
            };
            Some((found.map(Arc::new), Exactness::Exact))
        };
        let (found, exactness) = self.volumes[index].probes.run(look).await.ok()??;
        // The exact one is soon there.
        if exactness == Exactness::Estimate {
            return found;
        }
        self.consumptions.insert(title.id, found.clone());
        found
    }
}
