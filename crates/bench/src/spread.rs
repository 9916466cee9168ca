//! What many values come to: quantiles, and the median with its range.
//!
//! Promise: every summary is a value that was measured (nearest rank), never one in between, except
//! the median of an even count. It knows nothing about what the values mean.

use serde::Serialize;

/// The quantile `q` (0..=1) of `values` by nearest rank; `None` when there are none.
///
/// Reorders `values`, which is cheaper than sorting them.
pub fn quantile(values: &mut [f64], q: f64) -> Option<f64> {
    assert!((0.0..=1.0).contains(&q), "a quantile lies between 0 and 1, not {q}");
    if values.is_empty() {
        return None;
    }
    let rank = (q * values.len() as f64).ceil() as usize;
    let place = rank.clamp(1, values.len()) - 1;
    Some(*values.select_nth_unstable_by(place, f64::total_cmp).1)
}

/// The mean of `values`; `None` when there are none.
pub fn mean(values: &[f64]) -> Option<f64> {
    if values.is_empty() {
        return None;
    }
    Some(values.iter().sum::<f64>() / values.len() as f64)
}

/// Rounds of one measurement: the median, and how far the rounds lay apart.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Spread {
    /// The middle value; of an even count, the mean of the two in the middle.
    pub median: f64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
    /// How many rounds there were.
    pub rounds: usize,
}

impl Spread {
    /// Summarises `values`; `None` when there are none.
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = match sorted.len() % 2 {
            1 => sorted[middle],
            _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
        };
        Some(Self { median, min, max, rounds: sorted.len() })
    }
}

/// The confidence interval of the median, at 95 % or more: the narrowest pair of order statistics
/// that reaches it. `None` for fewer than six values, because no pair reaches it.
///
/// It assumes nothing but independent rounds: each value lies below the median with probability
/// 1/2.
pub fn median_interval(values: &[f64]) -> Option<(f64, f64)> {
    const OUTSIDE: f64 = 0.05;
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    // The chance that exactly `below` of the values lie below the median, and that at most so many
    // do.
    let (mut chance, mut tail, mut inner) = (0.5_f64.powi(count as i32), 0.0, None);
    for below in 0..count / 2 {
        tail += chance;
        if 2.0 * tail > OUTSIDE {
            break;
        }
        inner = Some((sorted[below], sorted[count - 1 - below]));
        chance *= (count - below) as f64 / (below + 1) as f64;
    }
    inner
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_of_the_sample() {
        let mut values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!(quantile(&mut values, 0.5), Some(100.0));
        assert_eq!(quantile(&mut values, 0.99), Some(198.0));
        assert_eq!(quantile(&mut values, 1.0), Some(200.0));
        assert_eq!(quantile(&mut values, 0.0), Some(1.0));
        assert_eq!(quantile(&mut [], 0.5), None);
    }

    #[test]
    fn the_interval_of_a_median_is_that_of_the_sign_test() {
        let values: Vec<f64> = (1..=10).rev().map(f64::from).collect();
        // Tables of the sign test: 10 values, the second and the ninth, 97.9 %.
        assert_eq!(median_interval(&values), Some((2.0, 9.0)));
        let values: Vec<f64> = (1..=20).map(f64::from).collect();
        assert_eq!(median_interval(&values), Some((6.0, 15.0)));
        assert_eq!(median_interval(&values[..6]), Some((1.0, 6.0)));
        assert_eq!(median_interval(&values[..5]), None);
    }

    #[test]
    fn a_spread_is_the_median_and_the_range() {
        let odd = Spread::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((odd.median, odd.min, odd.max, odd.rounds), (2.0, 1.0, 3.0, 3));
        assert_eq!(Spread::of(&[4.0, 1.0]).unwrap().median, 2.5);
        assert_eq!(Spread::of(&[]), None);
    }
}
