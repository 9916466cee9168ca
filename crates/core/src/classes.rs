//! Classes of a link as admission sees them: what each keeps free for its streams, and what it may take.
//!
//! Promise: what a class is guaranteed nobody else is given; what its streams need beyond that is taken from
//! its parent's as any other's, and never above its ceiling, unless it may be over-subscribed: then
//! it takes its ceiling at most, whatever its streams ask for. It paces nothing: that is the `pacer`'s.

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

/// What one class may, on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClassTerms {
    /// The class above it, which comes before it; none: the link.
    pub parent: Option<ClassNumber>,
    /// What is kept free for it.
    pub guaranteed: BitRate,
    /// What it takes at most.
    pub ceiling: Option<BitRate>,
    /// Its streams may ask for more than its ceiling, which they then share.
    pub is_oversubscribed: bool,
}

/// A class has no room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full {
    /// Which.
    pub class: ClassNumber,
    /// What it would be asked for.
    pub needed: BitRate,
    /// Its ceiling.
    pub ceiling: BitRate,
}

/// The classes of a link, and what they are asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Classes {
    terms: Vec<ClassTerms>,
    /// By its own streams, and kept by the classes below it.
    asked: Vec<BitRate>,
    /// What those without a parent take of the link.
    taken: BitRate,
}

impl Classes {
    /// Nobody asks for anything yet.
    ///
    /// # Panics
    /// When a class comes before its parent.
    pub fn new(terms: Vec<ClassTerms>) -> Self {
        let asked = vec![BitRate(0); terms.len()];
        let mut classes = Self { terms, asked, taken: BitRate(0) };
        // From below: what a class keeps its parent is asked for.
        for at in (0..classes.terms.len()).rev() {
            let kept = classes.kept(at, classes.asked[at]);
            match classes.terms[at].parent {
                Some(parent) => {
                    assert!(parent.index() < at, "a class comes behind its parent");
                    classes.asked[parent.index()] += kept;
                }
                None => classes.taken += kept,
            }
        }
        classes
    }

    /// What they take of the link now, used or not.
    pub const fn taken(&self) -> BitRate {
        self.taken
    }

    /// What a class is asked for: by its streams, and by the classes below it as far as they take it.
    pub fn asked(&self, class: ClassNumber) -> BitRate {
        self.asked[class.index()]
    }

    /// What they would take of the link with a stream of `rate` more in `class`.
    ///
    /// # Errors
    /// The first class on the way to the link that has no room for it.
    pub fn with(&self, class: ClassNumber, rate: BitRate) -> Result<BitRate, Full> {
        let (mut class, mut more) = (Some(class), rate);
        while let Some(here) = class {
            let at = here.index();
            let ClassTerms { parent, ceiling, is_oversubscribed, .. } = self.terms[at];
            let needed = BitRate(self.asked[at].0.saturating_add(more.0));
            if let Some(ceiling) = ceiling.filter(|&ceiling| !is_oversubscribed && needed > ceiling)
            {
                return Err(Full { class: here, needed, ceiling });
            }
            more = self.kept(at, needed) - self.kept(at, self.asked[at]);
            class = parent;
        }
        Ok(BitRate(self.taken.0.saturating_add(more.0)))
    }

    /// Counts a stream in, which there is room for.
    pub fn add(&mut self, class: ClassNumber, rate: BitRate) {
        self.change(class, |asked, before| asked + before, rate);
    }

    /// Counts a stream out.
    ///
    /// # Panics
    /// When it was not counted in.
    pub fn remove(&mut self, class: ClassNumber, rate: BitRate) {
        self.change(class, |asked, before| asked - before, rate);
    }

    fn change(&mut self, class: ClassNumber, by: fn(BitRate, BitRate) -> BitRate, rate: BitRate) {
        let (mut class, mut part) = (Some(class), rate);
        while let Some(here) = class {
            let at = here.index();
            let (before, after) = (self.asked[at], by(self.asked[at], part));
            let (kept, keeps) = (self.kept(at, before), self.kept(at, after));
            self.asked[at] = after;
            part = BitRate(kept.0.abs_diff(keeps.0));
            class = self.terms[at].parent;
        }
        self.taken = by(self.taken, part);
    }

    /// What a class that is asked for so much takes of its parent's.
    fn kept(&self, at: usize, asked: BitRate) -> BitRate {
        let ClassTerms { guaranteed, ceiling, is_oversubscribed, .. } = self.terms[at];
        let most = ceiling.filter(|_| is_oversubscribed).unwrap_or(asked);
        asked.min(most).max(guaranteed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const M: u64 = 1_000_000;

    fn class(parent: Option<u16>, guaranteed: u64, ceiling: Option<u64>) -> ClassTerms {
        ClassTerms {
            parent: parent.map(ClassNumber),
            guaranteed: BitRate(guaranteed * M),
            ceiling: ceiling.map(|ceiling| BitRate(ceiling * M)),
            is_oversubscribed: false,
        }
    }

    #[test]
    fn what_is_guaranteed_is_taken_from_the_start_and_more_as_it_is_asked_for() {
        let terms =
            vec![class(None, 50, Some(80)), class(Some(0), 20, None), class(Some(0), 10, Some(30))];
        let mut classes = Classes::new(terms);
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
            Err(Full { class: second, needed: BitRate(31 * M), ceiling: BitRate(30 * M) })
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
        let over = ClassTerms { is_oversubscribed: true, ..class(None, 5, Some(10)) };
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

    proptest! {
        #[test]
        fn classes_take_what_their_sums_say_and_are_as_before_when_all_have_gone(
            spec in prop::collection::vec((any::<prop::sample::Index>(), 0u64..50, 0u64..200, any::<bool>()), 1..12),
            streams in prop::collection::vec((any::<prop::sample::Index>(), 1u64..60), 0..40),
        ) {
            let terms: Vec<ClassTerms> = spec.iter().enumerate().map(|(at, (parent, own, more, over))| {
                let parent = parent.index(at + 1);
                ClassTerms {
                    is_oversubscribed: *over,
                    ..class((parent < at).then_some(parent as u16), *own, Some(own + more + 1))
                }
            }).collect();
            let mut classes = Classes::new(terms.clone());
            let before = classes.clone();
            let mut own = vec![0; terms.len()];
            let mut live = vec![];
            for (place, rate) in streams {
                let number = place.index(terms.len());
                let (class, rate) = (ClassNumber(number as u16), BitRate(rate * M));
                let Ok(taken) = classes.with(class, rate) else { continue };
                classes.add(class, rate);
                own[number] += rate.0;
                live.push((class, rate));
                // By the law, from below.
                let mut asked = own.clone();
                let mut link = 0;
                for at in (0..terms.len()).rev() {
                    let ClassTerms { parent, guaranteed, ceiling, is_oversubscribed } = terms[at];
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
