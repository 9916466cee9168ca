//! `GET /api/v1/capacity`: how many more streams fit, and the free part of each resource.
//!
//! Promise: the figures come from the ledger, so an answer of n means that n more streams of that
//! rate would have been admitted at that moment. A request reserves nothing.

use std::collections::BTreeMap;

use serde::Serialize;
use tactus_core::ledger::Resource;
use tactus_core::units::BitRate;
use tactus_engine::message::VolumeId;

use super::{Sources, thousandths};

#[derive(Serialize)]
pub(super) struct Capacity {
    streams: u32,
    fits: Vec<RateCapacity>,
    resources: Vec<ResourceLevel>,
    refusals: BTreeMap<String, u64>,
}

#[derive(Serialize)]
struct RateCapacity {
    volume: String,
    rate_bits_per_second: u64,
    streams: u32,
    /// The resource that refuses the next stream.
    ends_with: String,
    /// Where the disk's model comes from: `measured`, `guess` or `learned`.
    model: &'static str,
    /// How much evidence there is for it: 0 to 1.
    confidence: f64,
    /// Absent if the server takes no uploads.
    #[serde(skip_serializing_if = "Option::is_none")]
    recordings: Option<u32>,
}

#[derive(Serialize)]
struct ResourceLevel {
    resource: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    volume: Option<String>,
    /// The processor, for the time of a core.
    #[serde(skip_serializing_if = "Option::is_none")]
    core: Option<String>,
    used: u64,
    limit: u64,
    unit: &'static str,
}

/// Rates of the answer if the request names none: speech to ultra high definition.
pub(super) const RATES: [u64; 6] =
    [128_000, 1_000_000, 4_000_000, 8_800_000, 20_000_000, 50_000_000];

impl Capacity {
    pub(super) fn now(sources: &Sources, rate: Option<BitRate>) -> Self {
        let broker = &sources.broker;
        let tick = sources.config.rate.title.tick;
        let rates = rate.map_or_else(|| RATES.map(BitRate).to_vec(), |rate| vec![rate]);
        let volumes = 0..broker.volumes();
        let fits = volumes.flat_map(|volume| {
            let learned = sources.learned(usize::from(volume));
            rates.iter().map(move |&rate| {
                let (streams, ends_with) = broker.limit_for(VolumeId(volume), rate, tick);
                RateCapacity {
                    volume: sources.mount(usize::from(volume)).to_owned(),
                    rate_bits_per_second: rate.0,
                    streams,
                    ends_with: ends_with.to_string(),
                    model: learned.source.name(),
                    confidence: thousandths(learned.confidence),
                    recordings: sources
                        .takes_uploads(usize::from(volume))
                        .then(|| broker.room_for_recordings(VolumeId(volume), rate)),
                }
            })
        });
        let level = |level: tactus_core::ledger::Level| ResourceLevel {
            resource: level.resource.to_string(),
            volume: level
                .resource
                .is_of_disk()
                .then(|| sources.mount(level.number as usize).to_owned()),
            core: sources.cpu(level.number).filter(|_| level.resource == Resource::Cpu),
            used: level.used,
            limit: level.limit,
            unit: match level.resource {
                Resource::Disk => "nanoseconds per cycle",
                Resource::Arena | Resource::ReadAhead => "blocks",
                Resource::WriteShare => "places",
                Resource::Link | Resource::Datagrams | Resource::Class => "bits per second",
                Resource::Cpu => "nanoseconds per second",
                Resource::Streams => "streams",
            },
        };
        let refusals = broker.refusals();
        Self {
            streams: broker.streams(),
            fits: fits.collect(),
            resources: broker.levels().into_iter().map(level).collect(),
            refusals: refusals.iter().map(|(what, count)| (what.to_string(), count)).collect(),
        }
    }
}
