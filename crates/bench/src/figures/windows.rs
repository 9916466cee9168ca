//! The window grid that all streams share, and which of its windows count.
//!
//! Promise: a window counts only when it lies wholly inside the measured span and the machine did
//! not stand still in it.

use tactus_core::units::{MonoTime, Nanos};

/// A span of time: from `from` up to, not including, `to`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The first instant.
    pub from: MonoTime,
    /// The first instant after it.
    pub to: MonoTime,
}

impl Span {
    /// Whether the two have an instant in common.
    pub fn overlaps(self, other: Span) -> bool {
        self.from < other.to && other.from < self.to
    }

    /// How long it is.
    pub fn length(self) -> Nanos {
        self.to.since(self.from)
    }
}

/// Windows of one length, laid from the start of the measured span.
#[derive(Clone, Debug)]
pub struct Grid {
    start: MonoTime,
    window: Nanos,
    kept: Vec<bool>,
}

impl Grid {
    /// Lays windows of length `window` over `measured`: the last partial one is dropped, and so is
    /// each in which one of `gaps` lies.
    pub fn new(measured: Span, window: Nanos, gaps: &[Span]) -> Self {
        assert!(window > Nanos::ZERO, "a window has a length");
        let count = measured.length().0 / window.0;
        let mut grid = Self { start: measured.from, window, kept: vec![true; count as usize] };
        for gap in gaps {
            for place in 0..grid.kept.len() {
                grid.kept[place] &= !grid.span(place).overlaps(*gap);
            }
        }
        grid
    }

    /// The length of a window.
    pub fn window(&self) -> Nanos {
        self.window
    }

    /// How many windows there are, kept or dropped.
    pub fn count(&self) -> usize {
        self.kept.len()
    }

    /// How many windows were dropped for a gap.
    pub fn dropped(&self) -> usize {
        self.kept.iter().filter(|kept| !**kept).count()
    }

    /// The windows that count, in order.
    pub fn kept(&self) -> impl Iterator<Item = Span> + '_ {
        (0..self.kept.len()).filter(|place| self.kept[*place]).map(|place| self.span(place))
    }

    /// The longest stretch without a dropped window; of equal ones the first.
    pub fn largest_piece(&self) -> Option<Span> {
        let mut best: Option<(usize, usize)> = None;
        let mut from = 0;
        for stretch in self.kept.chunk_by(|left, right| left == right) {
            let to = from + stretch.len();
            if stretch[0] && best.is_none_or(|(from, to)| stretch.len() > to - from) {
                best = Some((from, to));
            }
            from = to;
        }
        best.map(|(from, to)| Span { from: self.span(from).from, to: self.span(to - 1).to })
    }

    fn span(&self, place: usize) -> Span {
        let from = self.start + self.window.times(place as u64);
        Span { from, to: from + self.window }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn span(from: u64, to: u64) -> Span {
        Span { from: MonoTime(from), to: MonoTime(to) }
    }

    #[test]
    fn a_gap_drops_each_window_it_touches_and_the_last_partial_window_never_counts() {
        let grid = Grid::new(span(100, 195), Nanos(10), &[span(118, 121), span(140, 141)]);
        assert_eq!(grid.count(), 9);
        assert_eq!(grid.dropped(), 3);
        let kept: Vec<Span> = grid.kept().collect();
        assert_eq!(kept[..2], [span(100, 110), span(130, 140)]);
        assert_eq!(grid.largest_piece(), Some(span(150, 190)));
    }

    #[test]
    fn a_grid_with_nothing_left_has_no_piece() {
        assert_eq!(Grid::new(span(0, 20), Nanos(10), &[span(0, 20)]).largest_piece(), None);
        assert_eq!(Grid::new(span(0, 9), Nanos(10), &[]).largest_piece(), None);
    }
}
