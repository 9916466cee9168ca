//! Viewers who come at random, more and more of them, and how many of them a reservation at the
//! peak would let in.

use tactus_core::units::BitRate;

use crate::random::Random;

/// A viewer: the time of its arrival, and the title that it requests.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Viewer {
    /// Seconds from the start.
    pub(super) comes: f64,
    /// The number of the title.
    pub(super) title: usize,
}

/// What a reservation at the peak needs to know of a title.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct TitleReservation {
    pub(super) peak: BitRate,
    /// How long it is reserved, in seconds.
    pub(super) lasts: f64,
}

/// Viewers who come more and more often until `end`: a Poisson process whose rate grows by `growth`
/// a second each second. Each wants any of `titles`.
pub(super) fn viewers(seed: u64, growth: f64, end: f64, titles: usize) -> Vec<Viewer> {
    let mut dice = Random::new(seed);
    let mut all = Vec::new();
    let mut expected = 0.0;
    loop {
        expected -= (1.0 - dice.share()).ln();
        // The number of viewers until then is growth / 2 * time * time on average.
        let comes = (2.0 * expected / growth).sqrt();
        if comes >= end {
            return all;
        }
        all.push(Viewer { comes, title: dice.next() as usize % titles });
    }
}

/// Which of `viewers` find room in `limit` when the peak of each is reserved as long as it stays.
pub(super) fn at_peaks(
    viewers: &[Viewer],
    holds: &[TitleReservation],
    limit: BitRate,
) -> Vec<bool> {
    let mut inside: Vec<(f64, u64)> = Vec::new();
    let enter = |viewer: &Viewer| {
        inside.retain(|&(until, _)| until > viewer.comes);
        let TitleReservation { peak, lasts } = holds[viewer.title];
        let reserved: u64 = inside.iter().map(|&(_, peak)| peak).sum();
        let fits = reserved + peak.0 <= limit.0;
        if fits {
            inside.push((viewer.comes + lasts, peak.0));
        }
        fits
    };
    viewers.iter().map(enter).collect()
}

/// How many viewers are inside when the first one is refused, and when that is. `None` if all are
/// admitted.
pub(super) fn inside_at_first_refusal(
    viewers: &[Viewer],
    admitted: &[bool],
    holds: &[TitleReservation],
) -> Option<(usize, f64)> {
    let first = admitted.iter().position(|admitted| !admitted)?;
    let comes = viewers[first].comes;
    let stays = |viewer: &&Viewer| viewer.comes + holds[viewer.title].lasts > comes;
    Some((viewers[..first].iter().filter(stays).count(), comes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn viewers_come_as_often_as_they_should_and_the_same_with_the_same_seed() {
        let all = viewers(7, 0.02, 600.0, 12);
        assert!((3_400..3_800).contains(&all.len()), "{}", all.len());
        let early = all.iter().filter(|viewer| viewer.comes < 300.0).count();
        assert!((800..1_000).contains(&early), "{early}");
        assert_eq!(all, viewers(7, 0.02, 600.0, 12));
        assert_ne!(all, viewers(8, 0.02, 600.0, 12));
        assert!((0..12).all(|title| all.iter().any(|viewer| viewer.title == title)));
    }

    #[test]
    fn a_reservation_at_the_peak_lasts_as_long_as_its_viewer() {
        let holds = [3, 5].map(|peak| TitleReservation { peak: BitRate(peak), lasts: 10.0 });
        let comes = [(0.0, 0), (1.0, 1), (2.0, 0), (9.0, 0), (10.0, 0), (11.0, 1)];
        let viewers = comes.map(|(comes, title)| Viewer { comes, title });
        let inside = at_peaks(&viewers, &holds, BitRate(8));
        assert_eq!(inside, [true, true, false, false, true, true]);
        assert_eq!(inside_at_first_refusal(&viewers, &inside, &holds), Some((2, 2.0)));
        let late = [true, true, true, true, true, false];
        // The first one has left after ten seconds, and the second is leaving.
        assert_eq!(inside_at_first_refusal(&viewers, &late, &holds), Some((3, 11.0)));
        assert_eq!(inside_at_first_refusal(&viewers, &[true; 6], &holds), None);
    }
}
