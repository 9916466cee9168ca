//! Classes of a link in admission: the reservation and the limit of each.
//!
//! Promise: no other class gets the guarantee of a class. Streams beyond the guarantee of their
//! class use the rate of its parent like any other stream, and never exceed the ceiling. An
//! over-subscribed class uses at most its ceiling, whatever its streams ask for. Limits change
//! under running streams only as far as all promises are kept. This module does not pace: the
//! `pacer` does.

use alloc::vec;
use alloc::vec::Vec;

use crate::units::BitRate;

/// A class of the link, by its place in the configuration.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClassNumber(pub u16);

impl ClassNumber {
    /// Its place in a table of classes.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The limits of one class, on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClassLimits {
    /// The class above it, which comes before it; `None`: the link.
    pub parent: Option<ClassNumber>,
    /// Its reserved rate.
    pub guaranteed: BitRate,
    /// Its upper limit.
    pub ceiling: Option<BitRate>,
    /// Its streams may ask for more than its ceiling, and then share it.
    pub is_oversubscribed: bool,
}

impl ClassLimits {
    /// The promised part of `asked`: for an over-subscribed class at most its ceiling.
    fn promised(&self, asked: BitRate) -> BitRate {
        asked.min(self.ceiling.filter(|_| self.is_oversubscribed).unwrap_or(asked))
    }
}

/// A class has no room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClassFull {
    /// The class.
    pub class: ClassNumber,
    /// The rate that its streams would ask for.
    pub needed: BitRate,
    /// Its ceiling.
    pub ceiling: BitRate,
}

/// Why classes cannot be changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClassChangeError {
    /// The promises of a class, with the reservations below it, exceed its ceiling.
    Ceiling(ClassFull),
    /// The guarantee of a class would no longer cover the promises to its streams.
    Guarantee {
        /// The class.
        class: ClassNumber,
        /// The promises to its streams and to the classes below it.
        promised: BitRate,
        /// Its new guarantee.
        guaranteed: BitRate,
    },
    /// The classes would exceed the rate of the link.
    Link {
        /// The rate that would be promised.
        needed: BitRate,
        /// The available rate.
        limit: BitRate,
    },
    /// The classes would exceed the rate of the datagram interface.
    Datagrams {
        /// The rate that would be promised.
        needed: BitRate,
        /// The available rate.
        limit: BitRate,
    },
}

/// The classes of a link, and the rates asked of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Classes {
    limits: Vec<ClassLimits>,
    /// Asked by its own streams, and reserved by the classes below it.
    asked: Vec<BitRate>,
    /// Number of its own streams, and of those below it.
    streams: Vec<u32>,
    /// The rate that classes without a parent take of the link.
    taken: BitRate,
}

impl Classes {
    /// Makes classes without streams.
    ///
    /// # Panics
    /// If a class comes before its parent.
    pub fn new(limits: Vec<ClassLimits>) -> Self {
        let (asked, streams) = (vec![BitRate(0); limits.len()], vec![0; limits.len()]);
        Self::added_up(limits, asked, streams)
    }

    /// Classes with the given own demands of their streams.
    fn added_up(limits: Vec<ClassLimits>, asked: Vec<BitRate>, streams: Vec<u32>) -> Self {
        let mut classes = Self { limits, asked, streams, taken: BitRate(0) };
        // From below: a class asks its parent for its reservation.
        for at in (0..classes.limits.len()).rev() {
            let kept = classes.kept(at, classes.asked[at]);
            match classes.limits[at].parent {
                Some(parent) => {
                    assert!(parent.index() < at, "a class comes behind its parent");
                    classes.asked[parent.index()] += kept;
                }
                None => classes.taken += kept,
            }
        }
        classes
    }

    /// The same streams under other limits.
    ///
    /// # Errors
    /// The first class, from below, whose streams would lose promised rate. The room of the link is
    /// not checked.
    ///
    /// # Panics
    /// If the list has other classes than before, or one has another parent.
    pub fn changed(&self, to: Vec<ClassLimits>) -> Result<Self, ClassChangeError> {
        let parents =
            |limits: &[ClassLimits]| limits.iter().map(|limits| limits.parent).collect::<Vec<_>>();
        assert!(parents(&to) == parents(&self.limits), "classes stay where they are");
        let mut own = self.asked.clone();
        for (at, limits) in self.limits.iter().enumerate() {
            if let Some(parent) = limits.parent {
                own[parent.index()] -= self.kept(at, self.asked[at]);
            }
        }
        let changed = Self::added_up(to, own, self.streams.clone());
        for (at, to) in changed.limits.iter().enumerate().rev() {
            let class = ClassNumber(at as u16);
            let needed = changed.asked[at];
            if let Some(ceiling) =
                to.ceiling.filter(|&ceiling| !to.is_oversubscribed && needed > ceiling)
            {
                return Err(ClassChangeError::Ceiling(ClassFull { class, needed, ceiling }));
            }
            let promised = to.promised(needed);
            let guaranteed = to.guaranteed;
            if guaranteed < promised && guaranteed < self.limits[at].guaranteed {
                return Err(ClassChangeError::Guarantee { class, promised, guaranteed });
            }
        }
        Ok(changed)
    }

    /// The rate that they take of the link now, used or not.
    pub const fn taken(&self) -> BitRate {
        self.taken
    }

    /// The rate asked of a class: by its streams, and by the classes below it as far as those take
    /// it.
    pub fn asked(&self, class: ClassNumber) -> BitRate {
        self.asked[class.index()]
    }

    /// The number of streams of a class, including the classes below it.
    pub fn streams(&self, class: ClassNumber) -> u32 {
        self.streams[class.index()]
    }

    /// The rate that they would take of the link with another stream of `rate` in `class`.
    ///
    /// # Errors
    /// The first class on the path to the link without room for it.
    pub fn with(&self, class: ClassNumber, rate: BitRate) -> Result<BitRate, ClassFull> {
        let (mut class, mut more) = (Some(class), rate);
        while let Some(here) = class {
            let at = here.index();
            let ClassLimits { parent, ceiling, is_oversubscribed, .. } = self.limits[at];
            let needed = BitRate(self.asked[at].0.saturating_add(more.0));
            if let Some(ceiling) = ceiling.filter(|&ceiling| !is_oversubscribed && needed > ceiling)
            {
                return Err(ClassFull { class: here, needed, ceiling });
            }
            more = self.kept(at, needed) - self.kept(at, self.asked[at]);
            class = parent;
        }
        Ok(BitRate(self.taken.0.saturating_add(more.0)))
    }

    /// Adds a stream, for which there is room.
    pub fn add(&mut self, class: ClassNumber, rate: BitRate) {
        self.change(class, |asked, before| asked + before, rate);
        self.count(class, |streams| streams + 1);
    }

    /// Removes a stream.
    ///
    /// # Panics
    /// If it was not added.
    pub fn remove(&mut self, class: ClassNumber, rate: BitRate) {
        self.change(class, |asked, before| asked - before, rate);
        self.count(class, |streams| streams - 1);
    }

    fn count(&mut self, class: ClassNumber, by: fn(u32) -> u32) {
        let mut class = Some(class);
        while let Some(here) = class {
            let streams = &mut self.streams[here.index()];
            *streams = by(*streams);
            class = self.limits[here.index()].parent;
        }
    }

    fn change(&mut self, class: ClassNumber, by: fn(BitRate, BitRate) -> BitRate, rate: BitRate) {
        let (mut class, mut part) = (Some(class), rate);
        while let Some(here) = class {
            let at = here.index();
            let (before, after) = (self.asked[at], by(self.asked[at], part));
            let (kept, keeps) = (self.kept(at, before), self.kept(at, after));
            self.asked[at] = after;
            part = BitRate(kept.0.abs_diff(keeps.0));
            class = self.limits[at].parent;
        }
        self.taken = by(self.taken, part);
    }

    /// The rate that a class with this demand takes of its parent.
    fn kept(&self, at: usize, asked: BitRate) -> BitRate {
        let limits = self.limits[at];
        limits.promised(asked).max(limits.guaranteed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const M: u64 = 1_000_000;

    fn class(parent: Option<u16>, guaranteed: u64, ceiling: Option<u64>) -> ClassLimits {
        ClassLimits {
            parent: parent.map(ClassNumber),
            guaranteed: BitRate(guaranteed * M),
            ceiling: ceiling.map(|ceiling| BitRate(ceiling * M)),
            is_oversubscribed: false,
        }
    }

    #[test]
    fn what_is_guaranteed_is_taken_from_the_start_and_more_as_it_is_asked_for() {
        let limits =
            vec![class(None, 50, Some(80)), class(Some(0), 20, None), class(Some(0), 10, Some(30))];
        let mut classes = Classes::new(limits);
        assert_eq!(
            (classes.taken(), classes.asked(ClassNumber(0))),
            (BitRate(50 * M), BitRate(30 * M))
        );
        let (first, second) = (ClassNumber(1), ClassNumber(2));
        // Within its own guarantee, its parent's, and beyond both.
        for (rate, taken) in [(20, 50), (20, 50), (10, 60)] {
            assert_eq!(classes.with(first, BitRate(rate * M)), Ok(BitRate(taken * M)));
            classes.add(first, BitRate(rate * M));
            assert_eq!(classes.taken(), BitRate(taken * M));
        }
        assert_eq!(
            classes.with(second, BitRate(31 * M)),
            Err(ClassFull { class: second, needed: BitRate(31 * M), ceiling: BitRate(30 * M) })
        );
        // Its own ceiling allows it, its parent's does not.
        assert_eq!(
            classes.with(second, BitRate(30 * M + 1)).map_err(|full| full.class),
            Err(second)
        );
        classes.add(first, BitRate(10 * M));
        assert_eq!(
            classes.with(second, BitRate(30 * M)).map_err(|full| (full.class, full.needed)),
            Err((ClassNumber(0), BitRate(90 * M)))
        );
        assert_eq!(classes.with(second, BitRate(20 * M)), Ok(BitRate(80 * M)));
    }

    #[test]
    fn an_over_subscribed_class_takes_its_ceiling_whatever_it_is_asked_for() {
        let over = ClassLimits { is_oversubscribed: true, ..class(None, 5, Some(10)) };
        let mut classes = Classes::new(vec![over]);
        for _ in 0..10 {
            assert!(classes.with(ClassNumber(0), BitRate(4 * M)).is_ok());
            classes.add(ClassNumber(0), BitRate(4 * M));
        }
        assert_eq!(
            (classes.taken(), classes.asked(ClassNumber(0))),
            (BitRate(10 * M), BitRate(40 * M))
        );
    }

    #[test]
    fn terms_change_only_as_far_as_what_was_promised_stays_so() {
        let (house, gold, rest) = (ClassNumber(0), ClassNumber(1), ClassNumber(2));
        let limits = |house: (u64, u64), gold: (u64, u64), rest: (u64, u64)| {
            let under = |(guaranteed, ceiling)| class(Some(0), guaranteed, Some(ceiling));
            vec![class(None, house.0, Some(house.1)), under(gold), under(rest)]
        };
        let mut classes = Classes::new(limits((50, 80), (20, 40), (10, 30)));
        classes.add(gold, BitRate(15 * M));
        classes.add(rest, BitRate(25 * M));
        assert_eq!([house, gold, rest].map(|class| classes.streams(class)), [2, 1, 1]);
        let full = |class, needed, ceiling| {
            Err(ClassChangeError::Ceiling(ClassFull {
                class,
                needed: BitRate(needed * M),
                ceiling: BitRate(ceiling * M),
            }))
        };
        let short = |class, promised, guaranteed| {
            let (promised, guaranteed) = (BitRate(promised * M), BitRate(guaranteed * M));
            Err(ClassChangeError::Guarantee { class, promised, guaranteed })
        };
        let to = |to| classes.changed(to).map(|changed| changed.taken().0 / M);
        assert_eq!(to(limits((50, 80), (15, 15), (10, 25))), Ok(50), "as low as what is promised");
        assert_eq!(to(limits((50, 80), (15, 14), (10, 30))), full(gold, 15, 14));
        assert_eq!(to(limits((50, 80), (14, 40), (10, 30))), short(gold, 15, 14));
        assert_eq!(
            to(limits((50, 80), (20, 40), (9, 30))),
            short(rest, 25, 9),
            "never with less than it had"
        );
        assert_eq!(
            to(limits((50, 80), (20, 40), (12, 30))),
            Ok(50),
            "but with more, be it not enough"
        );
        assert_eq!(to(limits((60, 80), (20, 40), (10, 30))), Ok(60));
        // A class is asked for the reservations of the classes below it.
        assert_eq!(to(limits((44, 80), (20, 40), (10, 30))), short(house, 45, 44));
        assert_eq!(to(limits((50, 54), (30, 40), (10, 30))), full(house, 55, 54));
        assert_eq!(to(limits((50, 80), (30, 40), (10, 30))), Ok(55));
        // An over-subscribed class has promised no more than its ceiling.
        let over = |ceiling| ClassLimits {
            is_oversubscribed: true,
            ..class(None, ceiling, Some(ceiling))
        };
        let mut classes = Classes::new(vec![over(10)]);
        classes.add(house, BitRate(40 * M));
        let lower = classes.changed(vec![over(5)]).expect("its streams share what there is");
        assert_eq!((lower.taken(), lower.asked(house)), (BitRate(5 * M), BitRate(40 * M)));
    }

    proptest! {
        #[test]
        fn terms_that_are_changed_are_as_if_they_had_been_so_when_streams_came(
            spec in prop::collection::vec(
                (
                    any::<prop::sample::Index>(),
                    any::<bool>(),
                    [(0u64..50, 0u64..200), (0u64..50, 0u64..200)],
                ),
                1..8,
            ),
            streams in prop::collection::vec((any::<prop::sample::Index>(), 1u64..60), 0..20),
        ) {
            let [from, to] = [0, 1].map(|which: usize| -> Vec<ClassLimits> {
                spec.iter()
                    .enumerate()
                    .map(|(at, (parent, over, rates))| {
                        let (parent, (own, more)) = (parent.index(at + 1), rates[which]);
                        ClassLimits {
                            is_oversubscribed: *over,
                            ..class(
                                (parent < at).then_some(parent as u16),
                                own,
                                Some(own + more + 1),
                            )
                        }
                    })
                    .collect()
            });
            let mut classes = Classes::new(from.clone());
            let mut anew = Classes::new(to.clone());
            for (place, rate) in streams {
                let (class, rate) =
                    (ClassNumber(place.index(from.len()) as u16), BitRate(rate * M));
                if classes.with(class, rate).is_ok() {
                    classes.add(class, rate);
                    anew.add(class, rate);
                }
            }
            let Ok(changed) = classes.changed(to.clone()) else { return Ok(()) };
            prop_assert_eq!(&changed, &anew);
            for (at, to) in to.iter().enumerate() {
                let asked = changed.asked(ClassNumber(at as u16));
                prop_assert!(
                    to.is_oversubscribed || to.ceiling.is_none_or(|ceiling| asked <= ceiling)
                );
            }
        }

        #[test]
        fn classes_take_what_their_sums_say_and_are_as_before_when_all_have_gone(
            spec in prop::collection::vec(
                (any::<prop::sample::Index>(), 0u64..50, 0u64..200, any::<bool>()),
                1..12,
            ),
            streams in prop::collection::vec((any::<prop::sample::Index>(), 1u64..60), 0..40),
        ) {
            let limits: Vec<ClassLimits> = spec
                .iter()
                .enumerate()
                .map(|(at, (parent, own, more, over))| {
                    let parent = parent.index(at + 1);
                    ClassLimits {
                        is_oversubscribed: *over,
                        ..class((parent < at).then_some(parent as u16), *own, Some(own + more + 1))
                    }
                })
                .collect();
            let mut classes = Classes::new(limits.clone());
            let before = classes.clone();
            let mut own = vec![0; limits.len()];
            let mut live = vec![];
            for (place, rate) in streams {
                let number = place.index(limits.len());
                let (class, rate) = (ClassNumber(number as u16), BitRate(rate * M));
                let Ok(taken) = classes.with(class, rate) else { continue };
                classes.add(class, rate);
                own[number] += rate.0;
                live.push((class, rate));
                // By the law, from below.
                let mut asked = own.clone();
                let mut link = 0;
                for at in (0..limits.len()).rev() {
                    let ClassLimits { parent, guaranteed, ceiling, is_oversubscribed } = limits[at];
                    let ceiling = ceiling.expect("each has one").0;
                    let most = if is_oversubscribed { asked[at].min(ceiling) } else { asked[at] };
                    let kept = most.max(guaranteed.0);
                    match parent {
                        Some(parent) => asked[parent.index()] += kept,
                        None => link += kept,
                    }
                    prop_assert_eq!(classes.asked(ClassNumber(at as u16)), BitRate(asked[at]));
                }
                prop_assert_eq!((taken, classes.taken()), (BitRate(link), BitRate(link)));
            }
            for (class, rate) in live {
                classes.remove(class, rate);
            }
            prop_assert_eq!(classes, before);
        }
    }
}
