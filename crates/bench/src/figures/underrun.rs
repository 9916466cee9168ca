//! Underruns: how often a virtual player found less than it had to show.
//!
//! Promise: a player starts to drain at the stream's rate once it holds its start-up buffer; each
//! time it finds less than it has to drain it stops, counts one underrun, and starts again when the
//! buffer is full once more. A stream that never fills its first buffer counts one. A stream that
//! was delivered whole cannot run dry any more. A cycle of the common grid is missed when in it at
//! least one player had nothing to show.

use tactus_core::units::{BitRate, Bytes, MonoTime, Nanos};

use crate::arrivals::Trace;
use crate::figures::windows::{Grid, Span};

/// A virtual receiver, the same for all servers.
#[derive(Clone, Copy, Debug)]
pub struct Player {
    /// The rate at which it drains.
    pub rate: BitRate,
    /// How much media it gathers before it starts to drain.
    pub start_up: Nanos,
}

/// What one player met.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Underruns {
    /// How often it ran dry, or never began.
    pub count: u64,
    /// How long after the request it began to show, if it did.
    pub began_after: Option<Nanos>,
    /// When it stood still though it should have shown something.
    pub stood: Vec<Span>,
}

impl Underruns {
    fn stand(&mut self, from: MonoTime, to: MonoTime) {
        self.stood.push(Span { from, to });
    }
}

/// How many windows of `grid` hold an instant in which one of `plays` stood still.
pub fn missed(plays: &[Underruns], grid: &Grid) -> usize {
    let stood = || plays.iter().flat_map(|play| &play.stood);
    grid.kept().filter(|window| stood().any(|span| span.overlaps(*window))).count()
}

impl Player {
    /// Plays `trace` from the request at `asked` until `end`. `whole` is the length of the title
    /// when it was delivered completely before `end`.
    pub fn play(&self, trace: &Trace, asked: MonoTime, end: MonoTime, whole: bool) -> Underruns {
        let start_up = self.rate.bytes_in(self.start_up);
        let mut found = Underruns::default();
        let mut shown = Bytes::ZERO; // drained in earlier stretches
        let mut state = State::Filling { since: asked };
        for step in trace.between(asked, end) {
            if let State::Playing { since, held } = state {
                let dry = since + self.rate.time_for(held);
                if step.at > dry {
                    found.count += 1;
                    shown += held;
                    state = State::Filling { since: dry };
                } else {
                    state = State::Playing { since, held: Bytes(step.after) - shown };
                }
            }
            if let State::Filling { since } = state {
                let held = Bytes(step.after) - shown;
                if held >= start_up {
                    match found.began_after {
                        None => found.began_after = Some(step.at.since(asked)),
                        Some(_) => found.stand(since, step.at),
                    }
                    state = State::Playing { since: step.at, held };
                }
            }
        }
        match state {
            State::Playing { since, held } if !whole => {
                let dry = since + self.rate.time_for(held);
                if dry < end {
                    found.count += 1;
                    found.stand(dry, end);
                }
            }
            State::Filling { since } if found.began_after.is_none() && !whole => {
                found.count += 1;
                found.stand(since, end);
            }
            State::Filling { since } if !whole => found.stand(since, end),
            State::Filling { .. } | State::Playing { .. } => {}
        }
        found
    }
}

/// What the player does: gather, or drain what it holds.
#[derive(Clone, Copy)]
enum State {
    /// Gathers since this instant.
    Filling { since: MonoTime },
    /// Drains since this instant; `held` counts all bytes received for this stretch.
    Playing { since: MonoTime, held: Bytes },
}

#[cfg(test)]
mod tests {
    use super::*;
    use tactus_core::units::MILLISECOND;

    /// One byte per microsecond, so 1,000 bytes are a millisecond; half a second to start.
    const PLAYER: Player = Player { rate: BitRate(8_000_000), start_up: Nanos::from_millis(500) };

    fn at(millis: u64) -> MonoTime {
        MonoTime(0) + MILLISECOND.times(millis)
    }

    fn trace(arrivals: &[(u64, u32)]) -> Trace {
        let mut trace = Trace::default();
        for &(millis, media_millis) in arrivals {
            trace.push(at(millis), media_millis * 1_000);
        }
        trace
    }

    #[test]
    fn a_stream_at_its_rate_never_runs_dry() {
        let steady: Vec<(u64, u32)> = (0..20).map(|tick| (250 * tick, 250)).collect();
        let found = PLAYER.play(&trace(&steady), at(0), at(5_000), false);
        assert_eq!(found.count, 0);
        assert_eq!(found.began_after, Some(Nanos::from_millis(250)));
    }

    #[test]
    fn a_hole_longer_than_the_buffer_is_one_underrun() {
        // Starts at 100 ms with 600 ms of media: dry at 700. The next comes at 900, and playing
        // goes on at once, since 500 ms are there again; dry at 1,400; the next comes at 1,400.
        let holes = trace(&[(0, 300), (100, 300), (900, 500), (1_400, 500)]);
        let found = PLAYER.play(&holes, at(0), at(1_800), false);
        assert_eq!(found.count, 1);
        assert_eq!(found.stood, [Span { from: at(700), to: at(900) }]);
    }

    #[test]
    fn the_buffer_must_be_full_again_before_playing_goes_on() {
        // Dry at 500; 400 ms of media at 600 are not enough, 100 more at 800 are; dry at 1,300.
        let thin = trace(&[(0, 500), (600, 400), (800, 100)]);
        let found = PLAYER.play(&thin, at(0), at(1_300), false);
        assert_eq!((found.count, found.stood), (1, vec![Span { from: at(500), to: at(800) }]));
        assert_eq!(PLAYER.play(&thin, at(0), at(1_301), false).count, 2);
    }

    #[test]
    fn a_cycle_is_missed_when_any_player_stood_still_in_it() {
        let play = |arrivals: &[(u64, u32)]| PLAYER.play(&trace(arrivals), at(0), at(2_000), false);
        // One stands from 700 to 900, one from 1,500 on, one never.
        let plays = [
            play(&[(0, 300), (100, 300), (900, 1_400)]),
            play(&[(0, 1_500)]),
            play(&[(0, 1_000), (500, 2_000)]),
        ];
        let whole = Span { from: at(0), to: at(2_000) };
        assert_eq!(missed(&plays, &Grid::new(whole, Nanos::from_millis(250), &[])), 2 + 2);
        assert_eq!(missed(&plays[2..], &Grid::new(whole, Nanos::from_millis(250), &[])), 0);
    }

    #[test]
    fn a_stream_that_never_starts_counts() {
        assert_eq!(PLAYER.play(&trace(&[(0, 499)]), at(0), at(9_000), false).count, 1);
        assert_eq!(PLAYER.play(&trace(&[]), at(0), at(9_000), false).count, 1);
    }

    #[test]
    fn a_title_delivered_whole_cannot_run_dry() {
        assert_eq!(PLAYER.play(&trace(&[(0, 700)]), at(0), at(9_000), true).count, 0);
        assert_eq!(PLAYER.play(&trace(&[(0, 700)]), at(0), at(9_000), false).count, 1);
    }
}
