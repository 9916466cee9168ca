//! Connections, requests behind proxies, and abuse scores by address.
//!
//! Promise: an address has at most its share of connections. When its abuse score is full, it has
//! none for a while. The table is bounded, and an event costs the same however many addresses are
//! in it, on average. There are no sockets here; the time is an argument.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::transport::ClientKey;

/// Addresses that are remembered only for their score.
const SCORES_MAX: usize = 16 * 1024;

/// Addresses that are added between two scans of a full table. A scan of refused addresses finds
/// nothing to drop: one for each event would make them an attack.
const SCAN_STEP: usize = SCORES_MAX / 16;

/// The bounds of one address.
#[derive(Clone, Copy, Debug)]
pub(super) struct AddressRules {
    pub(super) connections_max: usize,
    /// The score at which an address is refused; zero refuses no address.
    pub(super) score_max: u32,
    pub(super) refusal: Duration,
}

/// The decision about a new connection or request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AddressVerdict {
    Yes,
    /// The address has reached its limit of connections.
    Full,
    /// The address is refused for its score, for this time.
    Refused(Duration),
}

#[derive(Debug)]
pub(super) struct Addresses {
    rules: AddressRules,
    records: HashMap<ClientKey, Record>,
    /// Records of addresses without a connection.
    idle: usize,
    /// The table is scanned when it has more of them: at most twice [`SCORES_MAX`].
    scan_at: usize,
}

#[derive(Debug)]
struct Record {
    open: usize,
    score: u32,
    /// When the score was last brought up to date.
    scored: Instant,
    refused_until: Option<Instant>,
}

impl Addresses {
    pub(super) fn new(rules: AddressRules) -> Self {
        Self { rules, records: HashMap::new(), idle: 0, scan_at: SCORES_MAX }
    }

    /// Counts a new connection, or a request through a proxy, if it is admitted. [`Self::left`] is
    /// the counterpart.
    pub(super) fn handle_connection(&mut self, now: Instant, unit: ClientKey) -> AddressVerdict {
        let record = self.record(now, unit);
        if let Some(left) = record.refused_for(now) {
            return AddressVerdict::Refused(left);
        }
        let open = record.open;
        if open >= self.rules.connections_max {
            return AddressVerdict::Full;
        }
        self.record(now, unit).open += 1;
        self.idle -= usize::from(open == 0);
        AddressVerdict::Yes
    }

    /// Releases an admitted connection.
    pub(super) fn left(&mut self, now: Instant, unit: ClientKey) {
        let Some(record) = self.records.get_mut(&unit) else { return };
        self.idle += usize::from(record.open == 1);
        record.open = record.open.saturating_sub(1);
        record.forgive(now);
        if record.is_forgettable(now) {
            self.records.remove(&unit);
            self.idle -= 1;
        } else {
            self.forget_some(now);
        }
    }

    /// Adds to the score of an address. Returns true when the score has become full, which refuses
    /// the address for a while.
    pub(super) fn handle_abuse(&mut self, now: Instant, unit: ClientKey, points: u32) -> bool {
        let rules = self.rules;
        let record = self.record(now, unit);
        record.forgive(now);
        record.score = record.score.saturating_add(points);
        let is_full = rules.score_max > 0 && record.score >= rules.score_max;
        if is_full {
            record.score = 0;
            record.refused_until = Some(now + rules.refusal);
        }
        self.forget_some(now);
        is_full
    }

    /// The record of an address; a new one has no connection.
    fn record(&mut self, now: Instant, unit: ClientKey) -> &mut Record {
        self.records.entry(unit).or_insert_with(|| {
            self.idle += 1;
            Record::new(now)
        })
    }

    /// Bounds the table: drops scores before refusals.
    fn forget_some(&mut self, now: Instant) {
        if self.idle <= self.scan_at {
            return;
        }
        self.idle = 0;
        self.records.retain(|_, record| {
            let is_refused = record.refused_for(now).is_some();
            self.idle += usize::from(record.open == 0 && is_refused);
            record.open > 0 || is_refused
        });
        if self.idle > 2 * SCORES_MAX {
            self.records.retain(|_, record| record.open > 0);
            self.idle = 0;
        }
        self.scan_at = (self.idle + SCAN_STEP).clamp(SCORES_MAX, 2 * SCORES_MAX);
    }
}

impl Record {
    fn new(now: Instant) -> Self {
        Self { open: 0, score: 0, scored: now, refused_until: None }
    }

    /// Subtracts one point for each whole second that has passed.
    fn forgive(&mut self, now: Instant) {
        let seconds = now.saturating_duration_since(self.scored).as_secs();
        self.score = self.score.saturating_sub(u32::try_from(seconds).unwrap_or(u32::MAX));
        self.scored += Duration::from_secs(seconds);
    }

    /// The remaining time of a refusal.
    fn refused_for(&self, now: Instant) -> Option<Duration> {
        self.refused_until
            .and_then(|until| until.checked_duration_since(now))
            .filter(|t| !t.is_zero())
    }

    fn is_forgettable(&self, now: Instant) -> bool {
        self.open == 0 && self.score == 0 && self.refused_for(now).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Client;
    use std::net::IpAddr;

    fn unit(address: IpAddr) -> ClientKey {
        Client::of(address).peer.unit()
    }

    fn parse(text: &str) -> ClientKey {
        unit(text.parse().unwrap())
    }

    fn fixture() -> Addresses {
        let refusal = Duration::from_secs(60);
        Addresses::new(AddressRules { connections_max: 2, score_max: 100, refusal })
    }

    #[test]
    fn an_address_holds_at_most_its_share() {
        let (mut addresses, now) = (fixture(), Instant::now());
        let [a, b] = ["10.0.0.1", "10.0.0.2"].map(parse);
        assert_eq!(addresses.handle_connection(now, a), AddressVerdict::Yes);
        assert_eq!(addresses.handle_connection(now, parse("::ffff:10.0.0.1")), AddressVerdict::Yes);
        assert_eq!(addresses.handle_connection(now, a), AddressVerdict::Full);
        assert_eq!(addresses.handle_connection(now, b), AddressVerdict::Yes);
        addresses.left(now, a);
        assert_eq!(addresses.handle_connection(now, a), AddressVerdict::Yes);
    }

    #[test]
    fn an_ipv6_network_is_one_address() {
        let (mut addresses, now) = (fixture(), Instant::now());
        let mut welcome = |text: &str| addresses.handle_connection(now, parse(text));
        assert_eq!(welcome("2001:db8:0:1::1"), AddressVerdict::Yes);
        assert_eq!(welcome("2001:db8:0:1:ffff::2"), AddressVerdict::Yes);
        assert_eq!(welcome("2001:db8:0:1::3"), AddressVerdict::Full);
        assert_eq!(welcome("2001:db8:0:2::1"), AddressVerdict::Yes);
    }

    #[test]
    fn a_full_score_refuses_for_a_while_and_points_are_forgiven() {
        let (mut addresses, start) = (fixture(), Instant::now());
        let address = parse("10.0.0.1");
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(addresses.handle_connection(start, address), AddressVerdict::Yes);
        addresses.handle_abuse(start, address, 99);
        addresses.handle_abuse(after(50), address, 50);
        assert_eq!(
            addresses.handle_connection(after(50), address),
            AddressVerdict::Yes,
            "50 were forgiven"
        );
        addresses.handle_abuse(after(50), address, 1);
        let left = Duration::from_secs(59);
        assert_eq!(addresses.handle_connection(after(51), address), AddressVerdict::Refused(left));
        addresses.left(after(51), address);
        addresses.left(after(51), address);
        let left = Duration::from_secs(1);
        assert_eq!(addresses.handle_connection(after(109), address), AddressVerdict::Refused(left));
        assert_eq!(addresses.handle_connection(after(110), address), AddressVerdict::Yes);
    }

    #[test]
    fn w02_points_count_without_a_connection_and_a_limit_of_zero_refuses_no_address() {
        let (mut addresses, now) = (fixture(), Instant::now());
        let address = parse("10.0.0.1");
        let full: Vec<_> = (0..6).map(|_| addresses.handle_abuse(now, address, 20)).collect();
        assert_eq!(full, [false, false, false, false, true, false]);
        addresses.rules.score_max = 0;
        let other = parse("10.0.0.2");
        assert!(!(0..100).any(|_| addresses.handle_abuse(now, other, 20)));
        assert_eq!(addresses.handle_connection(now, other), AddressVerdict::Yes);
        // The table stays bounded, whatever the number of refused addresses.
        addresses.rules.score_max = 100;
        for bits in 0..100_000u32 {
            addresses.handle_abuse(now, unit(IpAddr::V4(bits.into())), 100);
        }
        assert!(addresses.records.len() <= 2 * SCORES_MAX + 1);
    }

    #[test]
    fn w02_scores_and_refusals_of_a_crowd_that_has_left_are_bounded() {
        let (mut addresses, now) = (fixture(), Instant::now());
        let crowd: Vec<_> =
            (0..3 * SCORES_MAX as u32).map(|bits| unit(IpAddr::V4(bits.into()))).collect();
        for (nth, address) in crowd.iter().enumerate() {
            assert_eq!(addresses.handle_connection(now, *address), AddressVerdict::Yes);
            addresses.handle_abuse(now, *address, if nth % 2 == 0 { 1 } else { 100 });
        }
        assert_eq!(
            (addresses.records.len(), addresses.idle),
            (crowd.len(), 0),
            "all are connected"
        );
        for address in &crowd {
            addresses.left(now, *address);
            let idle = addresses.records.values().filter(|record| record.open == 0);
            if addresses.idle.is_multiple_of(1000) {
                assert_eq!(idle.count(), addresses.idle);
            }
            assert!(addresses.idle <= 2 * SCORES_MAX);
        }
        assert_eq!(addresses.records.len(), addresses.idle);
    }

    #[test]
    fn who_left_without_guilt_is_forgotten() {
        let (mut addresses, now) = (fixture(), Instant::now());
        for bits in 0..100_000u32 {
            let address = unit(IpAddr::V4(bits.into()));
            assert_eq!(addresses.handle_connection(now, address), AddressVerdict::Yes);
            addresses.handle_abuse(now, address, bits % 2);
            addresses.left(now, address);
        }
        assert!(addresses.records.len() <= SCORES_MAX + 1);
    }
}
