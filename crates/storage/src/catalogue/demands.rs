//! The demands of requested titles: how many bytes a player needs by which time.
//!
//! Promise: a request never waits for a long title to be read. The demand of a transport stream is
//! that of its index, if there is one; a long title without an index is queued for one. Demands of
//! movies are found once, with a limit on concurrent reads; their memory is bounded, and the least
//! recently used one is removed first.

use std::collections::VecDeque;
use std::fs::File;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use tactus_core::path::RequestPath;
use tactus_core::smoothing::Demand;
use tactus_core::units::MIB;
use tactus_engine::message::TitleId;
use tactus_media::{MediaFacts, MediaKind, demand};

use super::{Catalogue, OpenTitle};

/// The demands of movies in memory; `None` for a movie without one.
#[derive(Debug, Default)]
pub(super) struct Demands(Mutex<Cache>);

#[derive(Debug, Default)]
struct Cache {
    /// In order of use; the most recently used is last.
    titles: VecDeque<(TitleId, Option<Arc<Demand>>)>,
    points: usize,
}

/// Memory for demands, of 16 bytes a point: dozens of long movies.
const POINTS_MAX: usize = 64 * MIB as usize / 16;
/// Most demands in memory, however small.
const TITLES_MAX: usize = 4096;

impl Demands {
    fn get(&self, id: TitleId) -> Option<Option<Arc<Demand>>> {
        let mut cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = cache.titles.iter().position(|(known, _)| *known == id)?;
        let found = cache.titles.remove(at)?;
        let demand = found.1.clone();
        cache.titles.push_back(found);
        Some(demand)
    }

    fn insert(&self, id: TitleId, demand: Option<Arc<Demand>>) {
        let points = |demand: &Option<Arc<Demand>>| demand.as_ref().map_or(0, |it| it.points());
        let mut cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cache.titles.retain(|(known, _)| *known != id);
        cache.titles.push_back((id, demand));
        cache.points = cache.titles.iter().map(|(_, demand)| points(demand)).sum();
        while cache.titles.len() > TITLES_MAX || cache.points > POINTS_MAX {
            let Some((_, gone)) = cache.titles.pop_front() else { break };
            cache.points -= points(&gone);
        }
    }
}

/// The demand of a part of a title.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PartDemand {
    /// Its bytes are needed at these times.
    Known(Demand),
    /// No media lies in it: a player waits for all of it, as for an index at the end.
    NoMedia,
    /// Its rate is constant, or nothing is known yet.
    None,
}

impl Catalogue {
    /// The demand of `range` of the title at `path`, whose media facts are `facts`.
    pub async fn demand(
        self: &Arc<Self>,
        title: &OpenTitle,
        path: &RequestPath,
        facts: &MediaFacts,
        range: Range<u64>,
    ) -> PartDemand {
        if title.following.is_some() {
            return PartDemand::None;
        }
        match facts.kind {
            MediaKind::TransportStream { .. } => {
                let index = self.index_at_hand(title, path).await;
                let index = index.filter(|index| !index.is_constant() || index.runs().len() > 1);
                let demand = index.and_then(|index| demand::of_index(&index, &range));
                demand.map_or(PartDemand::None, PartDemand::Known)
            }
            MediaKind::Movie => match self.of_movie(title, path).await {
                Some(demand) if range.start >= demand.len().0 => PartDemand::NoMedia,
                Some(demand) => demand.part(range).map_or(PartDemand::None, PartDemand::Known),
                None => PartDemand::None,
            },
        }
    }

    async fn of_movie(
        self: &Arc<Self>,
        title: &OpenTitle,
        path: &RequestPath,
    ) -> Option<Arc<Demand>> {
        if let Some(known) = self.demands.get(title.id) {
            return known;
        }
        let (index, name) = self.volume_of(path).ok()??;
        let (this, name, id) = (Arc::clone(self), name.to_owned(), title.id);
        let look = move || {
            let file = File::from(this.open_version(index, &name, id)?);
            Some(demand::of_movie(&file).map(Arc::new))
        };
        let found = self.volumes[index].probes.run(look).await.ok()??;
        self.demands.insert(title.id, found.clone());
        found
    }
}
