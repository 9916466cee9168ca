//! Trick play of transport streams: faster, backwards and slower than they are.
//!
//! Promise: what is shown is read at a promised rate, only the blocks in which its pictures lie; where disks have no time
//! for as many pictures, there are fewer, down to two a second. What leaves is a transport stream that nobody
//! need complain of, in the numbers of the session that it is for. The argument: `docs/design/trick-play.md`.

mod cut;
mod fast;
mod plan;
mod slow;

use std::fmt;
use std::sync::Arc;

use tactus_core::datagrams::{Form, PAYLOAD};
use tactus_core::itinerary::Itinerary;
use tactus_core::ledger::Resource;
use tactus_core::ts::trick::{
    Counts, Multiplex, PER_SECOND_MIN, RATE_MIN, Scale, Terms, choose, film_of,
};
use tactus_core::ts::{Index, Pcr};
use tactus_core::units::{BitRate, Bytes, MediaTime, MonoTime, Nanos, SECOND};

use crate::broker::{Broker, MadeRate, Reading, Refusal, Target};
use crate::catalogue::OpenTitle;
use crate::made::{End, Feed, Made, Output};

use cut::Cutter;
use fast::Fast;
use plan::Plan;
use slow::Slow;

/// How a title is to be shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// How fast, and whereto; [`Scale::PLAY`] is no trick.
    pub scale: Scale,
    /// From where, by a player's time.
    pub from: MediaTime,
}

/// Why it is not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// it has no pictures that can be shown alone
    NoPictures,
    /// no room, and fewer pictures are none
    Refused(Refusal),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPictures => f.write_str("it has no pictures that can be shown alone"),
            Self::Refused(refusal) => refusal.fmt(f),
        }
    }
}

impl std::error::Error for Fault {}

/// A title that is shown so. It ends when this is dropped.
pub struct Trick {
    made: Made,
    scale: Scale,
    /// The first picture by a player's time, and how long after the beginning it is shown.
    from: MediaTime,
    after: MediaTime,
    /// By a player's time, how far it goes.
    last: MediaTime,
}

/// Pictures in a second, as many as there may be: more of them look no better, and each is a way for the disk.
const PER_SECOND: [u32; 4] = [8, 5, 3, PER_SECOND_MIN];

impl Trick {
    /// Admits it and begins.
    ///
    /// # Errors
    /// [`Fault`] says why not; nothing has changed.
    ///
    /// # Panics
    /// Outside of an executor, and of titles that grow.
    pub fn start(
        broker: &Broker,
        title: &Arc<OpenTitle>,
        index: &Arc<Index>,
        wanted: Wanted,
        target: Target,
    ) -> Result<Self, Fault> {
        assert!(title.following.is_none(), "only what is whole is shown so");
        if wanted.scale == Scale::SLOW {
            return Self::slow(broker, title, index, wanted, target);
        }
        let mut refused = None;
        for per_second in PER_SECOND {
            match Self::fast(broker, title, index, wanted, per_second, target.clone()) {
                // Fewer pictures need less of the disk, and what goes with it.
                Err(Fault::Refused(refusal)) if is_of_reading(refusal.resource) => {
                    refused = Some(refusal);
                }
                done => return done,
            }
        }
        Err(Fault::Refused(refused.expect("each number of pictures was refused")))
    }

    fn fast(
        broker: &Broker,
        title: &Arc<OpenTitle>,
        index: &Arc<Index>,
        wanted: Wanted,
        per_second: u32,
        target: Target,
    ) -> Result<Self, Fault> {
        let Wanted { scale, from } = wanted;
        let rate = rate_of(index);
        let origin = index.origin();
        let terms = Terms { scale, from: line(origin, from), per_second, rate };
        let choices = choose(index.accesses(), index.stride(), terms);
        let (first, last) = choices.first().zip(choices.last()).ok_or(Fault::NoPictures)?;
        let (first, last) = (*first, *last);
        let access = index.accesses().iter().find(|access| access.at == first.at);
        let film = access.and_then(|access| film_of(index, access)).ok_or(Fault::NoPictures)?;
        let block = broker.block(title.volume);
        let plan = Plan::new(choices, block, title.len);
        let itinerary = Itinerary::new(plan.stops.as_slice().into(), title.len, block)
            .map_err(|_| Fault::NoPictures)?;
        let multiplex = Multiplex::new(film, rate, CLOCK, Counts::default());
        let packets = (first.end - first.at).div_ceil(index.stride() as u64);
        let after = multiplex.preparation(packets);
        let feed = Feed {
            title: Arc::clone(title),
            reading: Reading {
                range: 0..itinerary.len().0,
                itinerary: Some(itinerary),
                rate: plan.rate,
                burst: plan.ready,
            },
            ready: plan.ready.min(plan.len()),
            hold: plan.hold,
        };
        let cutter = Cutter::new(target.form, rate);
        let maker = Fast::new(multiplex, plan, index.stride(), after, cutter);
        let output = Output { needs: needs_of(rate, target.form), target };
        let made = Made::start(broker, feed, vec![output], maker).map_err(Fault::Refused)?;
        let played = |shown: MediaTime| MediaTime(shown.0.saturating_sub(origin.0));
        let (from, last) = (played(first.shown), played(last.shown));
        Ok(Self { made, scale, from, after, last })
    }

    fn slow(
        broker: &Broker,
        title: &Arc<OpenTitle>,
        index: &Arc<Index>,
        wanted: Wanted,
        target: Target,
    ) -> Result<Self, Fault> {
        let Wanted { scale, from } = wanted;
        let access = *index.entry_at(from).ok_or(Fault::NoPictures)?;
        let film = film_of(index, &access).ok_or(Fault::NoPictures)?;
        // Where it is fastest it still fits: it takes twice as long as it did.
        let rate = index.rates().map_or(RATE_MIN, |rates| rates.max).max(rate_of(index));
        let multiplex = Multiplex::new(film, rate, CLOCK, Counts::default());
        let needs = slow::needs(index, &access, scale);
        let pace = plan::Pace::of(&needs);
        let feed = Feed {
            title: Arc::clone(title),
            reading: Reading {
                range: access.at..title.len.0,
                itinerary: None,
                rate: pace.rate,
                burst: pace.ready,
            },
            ready: pace.ready.min(Bytes(title.len.0 - access.at)),
            hold: Bytes(pace.ready.0 * 2),
        };
        let cutter = Cutter::new(target.form, rate);
        let maker = Slow::new(multiplex, Arc::clone(index), access.at, scale, cutter);
        let output = Output { needs: needs_of(rate, target.form), target };
        let made = Made::start(broker, feed, vec![output], maker).map_err(Fault::Refused)?;
        // A picture is shown some time after its bytes have come; that time is twice as long, too.
        let ahead = MediaTime(access.shown.0.saturating_sub(index.time_at(access.at).0));
        let after = scale.shown(ahead);
        let last = MediaTime(index.duration().0.saturating_sub(index.origin().0));
        let from = index.played(&access);
        Ok(Self { made, scale, from, after, last })
    }

    /// How fast it goes.
    #[must_use]
    pub fn scale(&self) -> Scale {
        self.scale
    }

    /// From where it is shown, and how far, by a player's time.
    #[must_use]
    pub fn span(&self) -> (MediaTime, MediaTime) {
        (self.from, self.last)
    }

    /// What is shown at `now`, by a player's time.
    #[must_use]
    pub fn position(&self, now: MonoTime) -> MediaTime {
        let Some(begin) = self.made.begin() else { return self.from };
        let elapsed = MediaTime((u128::from(now.since(begin).0) * 27 / 1000) as u64);
        let passed = self.scale.passed(MediaTime(elapsed.0.saturating_sub(self.after.0)));
        if self.scale.is_reverse() {
            MediaTime(self.from.0.saturating_sub(passed.0)).max(self.last)
        } else {
            MediaTime(self.from.0.saturating_add(passed.0)).min(self.last)
        }
    }

    /// The place in the delivery table by which the engine counts what leaves.
    #[must_use]
    pub fn place(&self) -> u32 {
        self.made.places()[0]
    }

    /// Waits for its end.
    pub async fn ended(&self) -> End {
        self.made.ended().await.why
    }

    /// Ends it, if it has not ended; answers how many datagrams have left.
    pub async fn stop(self) -> u64 {
        self.made.stop().await.packets[0]
    }
}

/// What the clock of all that is built begins with: whoever has seen another one is told of the jump.
const CLOCK: Pcr = Pcr::at(MediaTime(27_000_000));

/// The title's own rate: that of its stamps.
fn rate_of(index: &Index) -> BitRate {
    index.rates().map_or(RATE_MIN, |rates| rates.mean).max(RATE_MIN)
}

/// A player's time on the title's line.
fn line(origin: MediaTime, played: MediaTime) -> MediaTime {
    MediaTime(origin.0.saturating_add(played.0))
}

/// What fewer pictures need less of.
fn is_of_reading(resource: Resource) -> bool {
    matches!(resource, Resource::Disk | Resource::Arena | Resource::Cpu)
}

/// What datagrams of a multiplex need: whole ones, and for each clock, table and picture one that is not whole.
fn needs_of(rate: BitRate, form: Form) -> MadeRate {
    let whole = rate.bytes_in(SECOND).0.div_ceil(PAYLOAD.0);
    let datagrams = whole + PARTIAL;
    let rate = BitRate(rate.0 + datagrams * form.header().0 * 8);
    MadeRate { rate, datagrams: u32::try_from(datagrams).unwrap_or(u32::MAX) }
}

/// Clocks come 28 times in a second, tables five times, pictures eight times.
const PARTIAL: u64 = 2 * (28 + 5 + 8);

/// Rounds up: nothing leaves early.
fn nanos(time: MediaTime) -> Nanos {
    Nanos((u128::from(time.0) * 1000).div_ceil(27) as u64)
}
