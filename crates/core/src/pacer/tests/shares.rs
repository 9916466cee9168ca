//! Shares: guarantees, lending and targets that do not fit.

use proptest::prelude::*;

use super::*;

/// A packet size of which even a slow class sends many in a millisecond.
const SMALL: u64 = 400;
const FIFTH: Nanos = Nanos::from_millis(200);

/// Classes, parents first, each with the index of its parent; `None`: the link.
type Tree = [(Option<usize>, Class)];

/// The rates of a class.
#[derive(Clone, Copy)]
struct ClassRates {
    /// Its whole rate.
    gets: u64,
    /// The guaranteed part of it, scaled down if the guarantees of the siblings do not fit.
    guaranteed: u64,
}

fn children(tree: &Tree, of: Option<usize>) -> Vec<usize> {
    (0..tree.len()).filter(|&at| tree[at].0 == of).collect()
}

/// The highest rate that a class can use: its ceiling, or the sum of its children.
fn most(tree: &Tree, at: usize) -> u64 {
    let below = children(tree, Some(at));
    let sum = below.iter().fold(0u64, |sum, &child| sum.saturating_add(most(tree, child)));
    let ceiling = tree[at].1.ceiling.map_or(u64::MAX, |ceiling| ceiling.0);
    if below.is_empty() { ceiling } else { ceiling.min(sum) }
}

/// The rates of all classes on a link if all leaves always send. In bits per second; divisions
/// round down.
fn fluid(link: u64, tree: &Tree) -> Vec<u64> {
    let mut all = vec![0; tree.len()];
    let mut parents = vec![(None, ClassRates { gets: link, guaranteed: link })];
    while let Some((parent, has)) = parents.pop() {
        let below = children(tree, parent);
        for (&at, gets) in below.iter().zip(level(has, tree, &below)) {
            all[at] = gets.gets;
            parents.push((Some(at), gets));
        }
    }
    all
}

/// The rates of the children of a class: guarantees first, scaled to fit, the rest by priority and
/// share, each at most the rate that it can use.
fn level(of: ClassRates, tree: &Tree, below: &[usize]) -> Vec<ClassRates> {
    let classes: Vec<Class> = below.iter().map(|&at| tree[at].1).collect();
    let most: Vec<u64> = below.iter().map(|&at| most(tree, at).min(of.gets)).collect();
    let promised: u64 = classes.iter().map(|class| class.guaranteed.0).sum();
    let part =
        |of: u64, what: u64, sum: u64| (u128::from(of) * u128::from(what) / u128::from(sum)) as u64;
    let guaranteed: Vec<u64> = classes
        .iter()
        .map(|class| match promised <= of.guaranteed {
            true => class.guaranteed.0,
            false => part(of.guaranteed, class.guaranteed.0, promised),
        })
        .collect();
    let mut gets: Vec<u64> =
        guaranteed.iter().zip(&most).map(|(&guaranteed, &most)| guaranteed.min(most)).collect();
    let mut left = of.gets - gets.iter().sum::<u64>();
    for priority in 0..PRIORITIES as u8 {
        let mut open: Vec<usize> =
            (0..classes.len()).filter(|&at| classes[at].priority == priority).collect();
        // A class above its limit gets the limit, and the others share again.
        loop {
            let shares: u64 = open.iter().map(|&at| classes[at].share.0).sum();
            let full =
                |at: &usize| gets[*at] + part(left, classes[*at].share.0, shares) >= most[*at];
            let (filled, rest): (Vec<usize>, Vec<usize>) = open.iter().partition(|at| full(at));
            if filled.is_empty() {
                let lent = left;
                for &at in &rest {
                    let more = part(lent, classes[at].share.0, shares);
                    gets[at] += more;
                    left -= more;
                }
                break;
            }
            for at in filled {
                left -= most[at] - gets[at];
                gets[at] = most[at];
            }
            open = rest;
        }
        if !open.is_empty() {
            break;
        }
    }
    gets.into_iter()
        .zip(guaranteed)
        .map(|(gets, guaranteed)| ClassRates { gets, guaranteed })
        .collect()
}

fn class(guaranteed_max: u64, above_max: u64) -> impl Strategy<Value = Class> {
    (0..guaranteed_max, 1..above_max, any::<bool>(), 0u8..3, 1u64..1_000).prop_map(
        |(guaranteed, above, has_ceiling, priority, share)| Class {
            guaranteed: BitRate(guaranteed * MBIT),
            ceiling: has_ceiling.then_some(BitRate((guaranteed + above) * MBIT)),
            priority,
            share: BitRate(share * MBIT),
        },
    )
}

/// A tree of up to three levels. Parents may have lower guarantees than their children, or none,
/// and the sum may exceed the link, or a part of it.
fn tree() -> impl Strategy<Value = Vec<(Option<usize>, Class)>> {
    let spec = prop::sample::select(vec![60, 300, 1_500]).prop_flat_map(|most| {
        let class = prop_oneof![1 => class(1, 600), 4 => class(most, 600)];
        prop::collection::vec((any::<prop::sample::Index>(), class), 2..16)
    });
    spec.prop_map(|spec| {
        let mut tree: Vec<(Option<usize>, Class)> = vec![];
        for (at, (parent, class)) in spec.into_iter().enumerate() {
            let depth = |mut at: usize| {
                let mut depth = 1;
                while let Some(parent) = tree[at].0 {
                    (at, depth) = (parent, depth + 1);
                }
                depth
            };
            // Half of the classes lie on the link.
            let parent = parent.index(2 * at + 1);
            tree.push(((parent < at && depth(parent) < 3).then_some(parent), class));
        }
        tree
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn shares_are_those_of_a_fluid_over_any_tree_whoever_joined_when(
        tree in tree(), link in 300u64..2_000, joins in prop::collection::vec(0u64..40_000_000, 16),
    ) {
        let link = link * MBIT;
        let mut harness = PacerHarness::new(LIMITS, link);
        let mut ids: Vec<Option<ClassId>> = vec![None; tree.len()];
        // Parents before their children; leaves at their own time.
        let is_leaf = |at: usize| children(&tree, Some(at)).is_empty();
        for (at, &(parent, class)) in tree.iter().enumerate().filter(|&(at, _)| !is_leaf(at)) {
            let parent = parent.map_or(LINK, |parent| ids[parent].unwrap());
            ids[at] = Some(harness.pacer.add(parent, class).unwrap());
        }
        let mut leaves: Vec<usize> = (0..tree.len()).filter(|&at| is_leaf(at)).collect();
        leaves.sort_by_key(|&at| joins[at]);
        let begin = harness.now;
        for &at in &leaves {
            harness.run((begin + Nanos(joins[at])).since(harness.now));
            let parent = tree[at].0.map_or(LINK, |parent| ids[parent].unwrap());
            harness.add(parent, tree[at].1, TrafficPattern::Greedy, SMALL);
        }
        harness.run(Nanos::from_millis(5));
        let expected = fluid(link, &tree);
        // Two packets for each level, for short and for long.
        for millis in [50, 200] {
            let sent = harness.sent_in(Nanos::from_millis(millis));
            for (number, &at) in leaves.iter().enumerate() {
                let fluid = BitRate(expected[at]).bytes_in(Nanos::from_millis(millis)).0;
                let error = sent[number].abs_diff(fluid);
                prop_assert!(
                    error <= 6 * SMALL,
                    "class {at}, {millis} ms: {} for {fluid} of {sent:?}",
                    sent[number]
                );
            }
        }
    }

    #[test]
    fn shares_are_those_of_a_fluid_and_do_not_drift(
        classes in prop::collection::vec(class(2_000, 3_000), 1..9), link in 500u64..8_000,
    ) {
        let link = link * MBIT;
        let mut harness = PacerHarness::new(LIMITS, link);
        for &class in &classes {
            harness.greedy(LINK, class);
        }
        harness.run(Nanos::from_millis(20));
        let tree: Vec<_> = classes.iter().map(|&class| (None, class)).collect();
        let expected = fluid(link, &tree);
        // The difference stays a few packets for short and long times.
        for millis in [100, 400] {
            let sent = harness.sent_in(Nanos::from_millis(millis));
            for (at, &rate) in expected.iter().enumerate() {
                let fluid = BitRate(rate).bytes_in(Nanos::from_millis(millis)).0;
                let error = sent[at].abs_diff(fluid);
                let bound = (3 + 2 * classes.len() as u64) * DATAGRAM;
                prop_assert!(
                    error <= bound,
                    "class {at}, {millis} ms: {} for {fluid} of {sent:?}",
                    sent[at]
                );
            }
        }
    }

    #[test]
    fn a_guarantee_holds_whatever_others_do(
        rates in prop::collection::vec(1u64..1_000, 2..8),
        switches in prop::collection::vec((0usize..7, any::<bool>(), 0u64..3_000_000), 50..150),
    ) {
        let sum: u64 = rates.iter().sum();
        let link = sum * MBIT;
        let mut harness = PacerHarness::new(LIMITS, link);
        for (at, &rate) in rates.iter().enumerate() {
            // The observed class is the last to borrow.
            let class = Class {
                guaranteed: BitRate(rate * MBIT), ceiling: None,
                priority: if at == 0 { 7 } else { 0 }, share: BitRate(MBIT),
            };
            harness.greedy(LINK, class);
        }
        let begin = harness.now;
        for (which, on, span) in switches {
            let which = 1 + which % (rates.len() - 1);
            harness.silence(which);
            if on {
                harness.wake(which);
            }
            harness.run(Nanos(span));
        }
        let now = MonoTime(harness.now.0 / TICK.0 * TICK.0);
        let owed = BitRate(rates[0] * MBIT).bytes_in(now.since(begin)).0;
        let sent = harness.streams[0].sent;
        prop_assert!(sent + (1 + rates.len() as u64) * DATAGRAM >= owed, "{sent} of {owed}");
    }
}

/// The test of the original algorithm: targets of 4, 4, 4, 2, 2 on a link of 10 join one after the
/// other.
#[test]
fn targets_above_the_link_share_it_in_proportion_whoever_joined_when() {
    let targets = [4, 4, 4, 2, 2];
    let mut harness = PacerHarness::new(LIMITS, 10 * GBIT);
    for joined in 1..=targets.len() {
        harness.greedy(LINK, Class::target(BitRate(targets[joined - 1] * GBIT)));
        harness.run(Nanos::from_millis(1));
        let sent = harness.sent_in(FIFTH);
        let sum = targets[..joined].iter().sum::<u64>().max(10);
        for (at, &sent) in sent.iter().enumerate() {
            let exact = targets[at] * 10 * GBIT / 40 / sum;
            assert!(
                sent.abs_diff(exact) <= 4 * DATAGRAM,
                "{joined} joined, {at}: {sent} for {exact}"
            );
        }
    }
    // And they leave again, the first one first.
    for gone in 1..targets.len() {
        harness.silence(gone - 1);
        // They make up for a millisecond of blocking.
        harness.run(Nanos::from_millis(8));
        let sent = harness.sent_in(FIFTH);
        let here = targets.len() - gone;
        let sum = targets[gone..].iter().sum::<u64>();
        for (at, &sent) in sent.iter().enumerate().skip(gone) {
            let exact = match sum > 10 {
                true => targets[at] * 10 * GBIT / 40 / sum,
                false => targets[at] * GBIT / 40,
            };
            assert!(sent.abs_diff(exact) <= 4 * DATAGRAM, "{here} left, {at}: {sent} for {exact}");
        }
    }
}

#[test]
fn targets_without_guarantees_share_the_same_way() {
    let mut harness = PacerHarness::new(LIMITS, 10 * GBIT);
    let targets = [4, 4, 4, 2, 2];
    for target in targets {
        let class = Class { guaranteed: BitRate(0), ..Class::target(BitRate(target * GBIT)) };
        harness.greedy(LINK, class);
        harness.run(Nanos::from_millis(10));
    }
    let sent = harness.sent_in(FIFTH);
    for (at, &sent) in sent.iter().enumerate() {
        let exact = targets[at] * 10 * GBIT / 40 / 16;
        assert!(sent.abs_diff(exact) <= 4 * DATAGRAM, "{at}: {sent} for {exact}");
    }
}

#[test]
fn what_is_lent_stays_in_the_family_before_it_goes_to_the_neighbours() {
    let mut harness = PacerHarness::new(LIMITS, 10 * GBIT);
    let open =
        |guaranteed: u64| Class { ceiling: None, ..Class::target(BitRate(guaranteed * GBIT)) };
    let (house, neighbours) =
        (harness.pacer.add(LINK, open(6)).unwrap(), harness.pacer.add(LINK, open(4)).unwrap());
    let busy = harness.greedy(house, open(4));
    let quiet = harness.greedy(house, open(2));
    let other = harness.greedy(neighbours, open(4));
    let gets = |harness: &mut PacerHarness, expected: [u64; 3]| {
        harness.run(Nanos::from_millis(2));
        let sent = harness.sent_in(FIFTH);
        for (at, exact) in [busy, quiet, other].into_iter().zip(expected) {
            let exact = exact * GBIT / 40;
            assert!(sent[at].abs_diff(exact) <= 4 * DATAGRAM, "{at}: {} for {exact}", sent[at]);
        }
    };
    gets(&mut harness, [4, 2, 4]);
    harness.silence(quiet);
    gets(&mut harness, [6, 0, 4]);
    harness.silence(busy);
    gets(&mut harness, [0, 0, 10]);
    harness.wake(quiet);
    gets(&mut harness, [0, 6, 4]);
}

#[test]
fn lending_goes_by_priority_and_guarantees_before_it() {
    let mut harness = PacerHarness::new(LIMITS, 10 * GBIT);
    let class = |guaranteed: u64, ceiling: u64, priority| Class {
        guaranteed: BitRate(guaranteed * GBIT),
        ceiling: Some(BitRate(ceiling * GBIT)),
        priority,
        share: BitRate(GBIT),
    };
    harness.greedy(LINK, class(2, 10, 5));
    harness.greedy(LINK, class(1, 4, 0));
    harness.greedy(LINK, class(0, 10, 1));
    harness.greedy(LINK, class(0, 10, 1));
    harness.run(Nanos::from_millis(2));
    let sent = harness.sent_in(FIFTH);
    // 2 are owed, 4 are the ceiling, and two of one priority share the other 4.
    for (at, exact) in [2, 4, 2, 2].into_iter().enumerate() {
        let exact = exact * GBIT / 40;
        assert!(sent[at].abs_diff(exact) <= 4 * DATAGRAM, "{at}: {} for {exact}", sent[at]);
    }
}

#[test]
fn a_change_of_rate_counts_from_the_next_packet() {
    let mut harness = PacerHarness::new(LIMITS, 10 * GBIT);
    harness.greedy(LINK, Class::target(BitRate(3 * GBIT)));
    harness.run(FIFTH);
    let class = harness.streams[0].class;
    for rate in [1_000, 64_000, 7 * MBIT, 300 * MBIT, GBIT / 30] {
        harness.pacer.change(harness.now, class, Class::target(BitRate(rate)));
        // The packet that is already clocked leaves at its own time.
        harness.run(SECOND.times(12));
        let sent = harness.sent_in(SECOND.times(2))[0];
        assert!(sent.abs_diff(rate / 4) <= DATAGRAM, "{rate}: {sent}");
    }
    harness.pacer.set_link(harness.now, BitRate(10 * MBIT));
    harness.run(Nanos::from_millis(1));
    let sent = harness.sent_in(SECOND)[0];
    assert!(sent.abs_diff(10 * MBIT / 8) <= 2 * DATAGRAM, "{sent}");
}

#[test]
fn a_guarantee_that_is_new_is_owed_nothing_for_the_time_before() {
    let mut harness = PacerHarness::new(LIMITS, 10 * GBIT);
    let class = |guaranteed: u64, priority| Class {
        guaranteed: BitRate(guaranteed * GBIT),
        ceiling: None,
        priority,
        share: BitRate(GBIT),
    };
    harness.greedy(LINK, class(6, 0));
    harness.greedy(LINK, class(0, 1));
    harness.run(SECOND);
    let promoted = harness.streams[1].class;
    harness.pacer.change(harness.now, promoted, class(4, 1));
    // From the first millisecond on each has its own.
    for _ in 0..20 {
        let sent = harness.sent_in(Nanos::from_millis(1));
        for (sent, exact) in sent.into_iter().zip([6, 4]) {
            let exact = exact * GBIT / 8000;
            assert!(sent.abs_diff(exact) <= 4 * DATAGRAM, "{sent} for {exact}");
        }
    }
}

#[test]
fn a_guarantee_counts_as_soon_as_all_above_have_one_and_not_for_the_time_before() {
    let class = |guaranteed: u64, ceiling: Option<u64>, priority| Class {
        guaranteed: BitRate(guaranteed * GBIT),
        ceiling: ceiling.map(|ceiling| BitRate(ceiling * GBIT)),
        priority,
        share: BitRate(GBIT),
    };
    // With a ceiling the inner class is blocked at times, and not in line when its parent changes.
    for ceiling in [None, Some(8)] {
        let mut harness = PacerHarness::new(LIMITS, 10 * GBIT);
        let house = harness.pacer.add(LINK, class(0, None, 0)).unwrap();
        let flat = harness.pacer.add(house, class(8, ceiling, 0)).unwrap();
        harness.greedy(flat, class(5, None, 7));
        harness.greedy(flat, class(1, Some(4), 0));
        harness.greedy(flat, class(0, None, 0));
        harness.run(SECOND);
        assert_eq!(harness.streams[0].sent, 0, "a guarantee below none is worth nothing");
        harness.pacer.change(harness.now, house, class(8, None, 0));
        harness.run(Nanos::from_millis(1));
        let lent = (ceiling.unwrap_or(10) - 6) / 2;
        for _ in 0..20 {
            let sent = harness.sent_in(Nanos::from_millis(1));
            for (sent, exact) in sent.into_iter().zip([5, 1 + lent, lent]) {
                let exact = exact * GBIT / 8000;
                assert!(sent.abs_diff(exact) <= 4 * DATAGRAM, "{sent} for {exact}");
            }
        }
        harness.pacer.change(harness.now, house, class(0, None, 0));
        harness.run(Nanos::from_millis(1));
        assert_eq!(harness.sent_in(FIFTH)[0], 0, "and with the house's it is gone");
    }
}

#[test]
fn rates_from_a_kilobit_to_a_hundred_gigabits_share_one_link() {
    let rates = [1_000, 64_000, 4 * MBIT, 2 * GBIT, 90 * GBIT];
    let mut harness = PacerHarness::new(LIMITS, 100 * GBIT);
    let bytes = [DATAGRAM, DATAGRAM, DATAGRAM, 7 * DATAGRAM, PACKET_MAX.0];
    for (rate, bytes) in rates.into_iter().zip(bytes) {
        harness.add(LINK, Class::target(BitRate(rate)), TrafficPattern::Greedy, bytes);
    }
    harness.run(Nanos::from_millis(1));
    let span = SECOND.times(3);
    let sent = harness.sent_in(span);
    for (at, &rate) in rates.iter().enumerate() {
        let exact = BitRate(rate).bytes_in(span).0;
        assert!(sent[at].abs_diff(exact) <= bytes[at], "{rate}: {} for {exact}", sent[at]);
    }
}

#[test]
fn virtual_time_begins_anew_without_anybody_noticing() {
    // At a bit per second a packet of 1 MiB is 97 days of virtual time: 64 bits end after 2,199 of
    // them.
    let mut harness = PacerHarness::new(LIMITS, 100 * GBIT);
    for share in [1, 2] {
        harness.add(LINK, Class::rest(BitRate(share)), TrafficPattern::Greedy, PACKET_MAX.0);
    }
    for _ in 0..7 {
        let sent = harness.sent_in(Nanos::from_millis(100));
        assert!(sent[1].abs_diff(2 * sent[0]) <= 3 * PACKET_MAX.0, "{sent:?}");
    }
    assert!(harness.streams[0].sent > 2_500 * PACKET_MAX.0);
    // And a third one joins in.
    harness.add(LINK, Class::rest(BitRate(1)), TrafficPattern::Greedy, PACKET_MAX.0);
    let sent = harness.sent_in(Nanos::from_millis(100));
    assert!(sent[2].abs_diff(sent[0]) <= 2 * PACKET_MAX.0, "{sent:?}");
}
