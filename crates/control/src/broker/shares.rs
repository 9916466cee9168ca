//! One client's share of downloads without a rate, and of reserved rates.
//!
//! Promise: no client takes everything. A new client finds a free part as long as the others keep
//! to their shares. Decisions depend on the counts here alone.

use std::collections::HashMap;

use tactus_core::units::{BitRate, Bytes, MIB};
use tactus_engine::message::Rate;

use super::viewer::{Party, Viewer};
use crate::settings::ClientShare;

/// The use of a share by a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Claim {
    /// A download without a rate.
    Download,
    /// A short answer without a rate.
    Short,
    /// A rate.
    Rate(BitRate),
}

/// The use of a viewer's share by a stream at a rate, or as best effort; `None` if the share is
/// everything.
pub(super) fn claim(viewer: &Viewer, rate: Option<Rate>, is_short: bool) -> Option<Claim> {
    match rate {
        _ if viewer.share == ClientShare::All => None,
        Some(Rate { rate, .. }) => Some(Claim::Rate(rate)),
        None if is_short => Some(Claim::Short),
        None => Some(Claim::Download),
    }
}

/// Whether the answer is short, like a page, a playlist or a poster, and not a download.
pub(super) fn is_short(rate: Option<Rate>, len: Bytes) -> bool {
    rate.is_none() && len <= SHORT_MAX
}

/// Longer than pages, playlists, posters and subtitles; about a second of a film.
const SHORT_MAX: Bytes = Bytes(MIB);

/// The use by one party.
#[derive(Clone, Copy, Default, Debug)]
struct PartyUse {
    downloads: u32,
    shorts: u32,
    streams: u32,
    rate: BitRate,
}

/// The excess over a share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Excess {
    pub(super) needed: u64,
    pub(super) share: u64,
}

/// The use by all parties.
#[derive(Debug, Default)]
pub(super) struct Shares {
    parties: HashMap<Party, PartyUse>,
    /// Number of parties with downloads, with short answers and with rates.
    with_downloads: u64,
    with_shorts: u64,
    with_rates: u64,
    /// The sum of all rates.
    rate: u64,
}

impl Shares {
    /// Checks whether `party` may hold `claim` in addition to its use, with `limit` in all.
    pub(super) fn check(
        &self,
        party: &Party,
        claim: Claim,
        share: ClientShare,
        limit: u64,
    ) -> Result<(), Excess> {
        let in_use = self.parties.get(party).copied().unwrap_or_default();
        let (has, adds, others) = match claim {
            Claim::Download => (u64::from(in_use.downloads), 1, self.with_downloads),
            Claim::Short => (u64::from(in_use.shorts), 1, self.with_shorts),
            Claim::Rate(rate) => (in_use.rate.0, rate.0, self.with_rates),
        };
        let is_new = match claim {
            Claim::Rate(_) => in_use.streams == 0,
            Claim::Download | Claim::Short => has == 0,
        };
        let parties = others + u64::from(is_new);
        let whole_one = u64::from(!matches!(claim, Claim::Rate(_)));
        let share = allowed(share, limit, parties).max(whole_one);
        let needed = has.saturating_add(adds);
        if needed <= share { Ok(()) } else { Err(Excess { needed, share }) }
    }

    /// Checks a party that adds `rate` to a resource of which `used` of `limit` is reserved. Its
    /// part of the resource is estimated by its part of all reserved rates, because a stream's use
    /// of a disk or a core grows roughly with its rate.
    pub(super) fn check_part(
        &self,
        party: &Party,
        rate: BitRate,
        share: ClientShare,
        (used, limit): (u64, u64),
        promised: BitRate,
    ) -> Result<(), Excess> {
        let in_use = self.parties.get(party).copied().unwrap_or_default();
        let parties = self.with_rates + u64::from(in_use.streams == 0);
        let own = u128::from(in_use.rate.0.saturating_add(rate.0));
        let needed = u128::from(used) * own / u128::from(promised.0.max(1));
        let needed = u64::try_from(needed).unwrap_or(u64::MAX);
        let share = allowed(share, limit, parties);
        if in_use.streams == 0 || needed <= share { Ok(()) } else { Err(Excess { needed, share }) }
    }

    pub(super) fn take(&mut self, party: &Party, claim: Claim) {
        let in_use = self.parties.entry(party.clone()).or_default();
        match claim {
            Claim::Download => {
                self.with_downloads += u64::from(in_use.downloads == 0);
                in_use.downloads += 1;
            }
            Claim::Short => {
                self.with_shorts += u64::from(in_use.shorts == 0);
                in_use.shorts += 1;
            }
            Claim::Rate(rate) => {
                self.with_rates += u64::from(in_use.streams == 0);
                in_use.streams += 1;
                in_use.rate = BitRate(in_use.rate.0.saturating_add(rate.0));
                self.rate = self.rate.saturating_add(rate.0);
            }
        }
    }

    pub(super) fn give_back(&mut self, party: &Party, claim: Claim) {
        let in_use = self.parties.get_mut(party).expect("what is given back was taken");
        match claim {
            Claim::Download => {
                in_use.downloads -= 1;
                self.with_downloads -= u64::from(in_use.downloads == 0);
            }
            Claim::Short => {
                in_use.shorts -= 1;
                self.with_shorts -= u64::from(in_use.shorts == 0);
            }
            Claim::Rate(rate) => {
                in_use.streams -= 1;
                in_use.rate = BitRate(in_use.rate.0.saturating_sub(rate.0));
                self.rate = self.rate.saturating_sub(rate.0);
                self.with_rates -= u64::from(in_use.streams == 0);
            }
        }
        if in_use.downloads == 0 && in_use.shorts == 0 && in_use.streams == 0 {
            self.parties.remove(party);
        }
    }
}

/// The limit of one of `parties`. The fair share leaves one share for a newcomer. Rounds down.
fn allowed(share: ClientShare, limit: u64, parties: u64) -> u64 {
    match share {
        ClientShare::All => u64::MAX,
        ClientShare::Part(part) => part.of(limit),
        ClientShare::Fair => limit / (parties + 1),
    }
}

#[cfg(test)]
mod tests {
    use tactus_notation::units::Percent;

    use super::*;
    use proptest::prelude::*;

    fn party(number: u8) -> Party {
        Party::of([10, 0, 0, number].into())
    }

    /// Takes downloads until one is refused; returns their number.
    fn fill(shares: &mut Shares, number: u8, share: ClientShare, limit: u64) -> u64 {
        let mut count = 0;
        while shares.check(&party(number), Claim::Download, share, limit).is_ok() && count < limit {
            shares.take(&party(number), Claim::Download);
            count += 1;
        }
        count
    }

    #[test]
    fn s10_one_address_leaves_downloads_to_others() {
        let mut shares = Shares::default();
        assert_eq!(fill(&mut shares, 1, ClientShare::Fair, 64), 32);
        assert_eq!(fill(&mut shares, 2, ClientShare::Fair, 64), 21);
        assert_eq!(fill(&mut shares, 1, ClientShare::Fair, 64), 0, "it exceeds the fair share");
        let mut shares = Shares::default();
        assert_eq!(fill(&mut shares, 1, ClientShare::Part(Percent::whole(10)), 64), 6);
        assert_eq!(fill(&mut shares, 2, ClientShare::All, 64), 64);
        assert_eq!(fill(&mut shares, 3, ClientShare::Fair, 1), 1, "one is always allowed");
    }

    #[test]
    fn s10_rates_of_one_party_are_a_share_of_each_resource() {
        let mut shares = Shares::default();
        let (one, other) = (party(1), Party::Principal("bob".into()));
        let rate = |mbit: u64| Claim::Rate(BitRate(mbit * 1_000_000));
        let link = 100_000_000;
        let fair = ClientShare::Fair;
        assert!(shares.check(&one, rate(60), fair, link).is_err(), "also by a single stream");
        shares.check(&one, rate(40), fair, link).unwrap();
        shares.take(&one, rate(40));
        assert_eq!(
            shares.check(&one, rate(20), fair, link),
            Err(Excess { needed: 60_000_000, share: 50_000_000 })
        );
        shares.check(&other, rate(33), fair, link).unwrap();
        // A party whose own streams use half of a disk has used up its share.
        let promised = BitRate(40_000_000);
        let of_disk = |used| {
            shares.check_part(&one, BitRate(10_000_000), fair, (used, 1000), promised).is_ok()
        };
        assert!(of_disk(390) && !of_disk(450));
        shares.give_back(&one, rate(40));
        assert!(shares.parties.is_empty() && shares.with_rates == 0 && shares.rate == 0);
    }

    proptest! {
        /// The counts always equal the held claims.
        #[test]
        fn s10_what_is_given_back_is_free_again(
            steps in proptest::collection::vec((0u8..4, 0u8..3, any::<bool>()), 1..200)
        ) {
            let claim = |kind| match kind {
                0 => Claim::Download,
                1 => Claim::Short,
                _ => Claim::Rate(BitRate(7)),
            };
            let (mut shares, mut taken) = (Shares::default(), Vec::new());
            for (who, kind, takes) in steps {
                match taken.iter().position(|&one| one == (who, kind)).filter(|_| !takes) {
                    Some(at) => {
                        taken.remove(at);
                        shares.give_back(&party(who), claim(kind));
                    }
                    None => {
                        taken.push((who, kind));
                        shares.take(&party(who), claim(kind));
                    }
                }
                let with = |kind| {
                    (0..4).filter(|&who| taken.contains(&(who, kind))).count() as u64
                };
                prop_assert_eq!(shares.with_downloads, with(0));
                prop_assert_eq!(shares.with_shorts, with(1));
                prop_assert_eq!(shares.with_rates, with(2));
                let rates = taken.iter().filter(|one| one.1 == 2).count() as u64;
                prop_assert_eq!(shares.rate, rates * 7);
            }
        }
    }
}
