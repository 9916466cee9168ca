//! The accepted source of datagrams (row D01): the configured one, or the first that sends valid
//! data.
//!
//! Promise: while a source sends, no other is accepted. After a silence of the configured length
//! the next valid source replaces it. To prevent that, configure the source.

use std::net::{IpAddr, SocketAddr};

use tactus_core::units::{MonoTime, Nanos};

#[derive(Debug)]
pub(super) struct SourceLock {
    only: Option<IpAddr>,
    silence: Nanos,
    /// The accepted source, and the time of its last valid datagram.
    locked: Option<(SocketAddr, MonoTime)>,
    refused: u64,
}

impl SourceLock {
    pub(super) fn new(only: Option<IpAddr>, silence: Nanos) -> Self {
        Self { only, silence, locked: None, refused: 0 }
    }

    /// Whether a datagram from this sender is accepted; counts it when it is not.
    pub(super) fn admits(&mut self, now: MonoTime, from: SocketAddr) -> bool {
        let admits = match (self.only, self.locked) {
            (Some(only), _) => only == from.ip().to_canonical(),
            (None, Some((locked, last))) => locked == from || now.since(last) > self.silence,
            (None, None) => true,
        };
        self.refused += u64::from(!admits);
        admits
    }

    /// Records that an accepted datagram was valid.
    pub(super) fn handle_valid(&mut self, now: MonoTime, from: SocketAddr) {
        self.locked = Some((from, now));
    }

    pub(super) fn locked(&self) -> Option<SocketAddr> {
        self.locked.map(|(from, _)| from)
    }

    /// When the last valid datagram arrived; none when there was none.
    pub(super) fn last(&self) -> Option<MonoTime> {
        self.locked.map(|(_, last)| last)
    }

    pub(super) fn refused(&self) -> u64 {
        self.refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tactus_core::units::SECOND;

    fn at(seconds: u64) -> MonoTime {
        MonoTime(seconds * SECOND.0)
    }

    #[test]
    fn d01_the_first_valid_source_has_the_place_until_it_is_silent() {
        let [one, other] =
            ["10.0.0.1:7", "10.0.0.2:7"].map(|text| text.parse::<SocketAddr>().unwrap());
        let mut lock = SourceLock::new(None, SECOND.times(5));
        assert!(lock.admits(at(0), other), "nothing valid has come yet");
        assert!(lock.admits(at(0), one));
        lock.handle_valid(at(0), one);
        assert!(!lock.admits(at(5), other));
        let port = SocketAddr::new(one.ip(), 8);
        assert!(!lock.admits(at(5), port), "another program of the same host");
        lock.handle_valid(at(5), one);
        assert!(!lock.admits(at(10), other));
        assert!(lock.admits(at(11), other));
        lock.handle_valid(at(11), other);
        assert!(!lock.admits(at(11), one));
        assert_eq!((lock.refused(), lock.locked()), (4, Some(other)));
    }

    #[test]
    fn d01_a_source_that_is_named_is_the_only_one_for_ever() {
        let [one, other] =
            ["10.0.0.1:7", "10.0.0.2:7"].map(|text| text.parse::<SocketAddr>().unwrap());
        let mut lock = SourceLock::new(Some(one.ip()), SECOND);
        assert!(!lock.admits(at(0), other));
        assert!(lock.admits(at(0), one) && lock.admits(at(0), SocketAddr::new(one.ip(), 9)));
        lock.handle_valid(at(0), one);
        assert!(!lock.admits(at(1000), other));
        assert_eq!(lock.refused(), 2);
    }
}
