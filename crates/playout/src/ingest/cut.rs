//! Finds the packet at which one title ends and the next begins.
//!
//! Promise: the titles, joined in order, are the stream, packet by packet. A title that is due to
//! end does so at the next PAT that precedes an access point; after a timeout at any PAT, and after
//! another one at any packet. The cutter holds a bounded number of packets back for that.

use tactus_core::ts::{Mark, PACKET};
use tactus_core::units::{Bytes, MonoTime, Nanos, SECOND, WallTime};

use crate::recording::Rotate;

/// Splits the stream into packets and cuts, in order.
#[derive(Debug)]
pub(super) struct Cutter {
    rotate: Option<Rotate>,
    /// Bytes of the title so far.
    len: u64,
    /// When the title is due to end, if it is cut by time.
    end: Option<MonoTime>,
    /// Since when the title is due.
    due: Option<MonoTime>,
    /// Packets from the last PAT on, until an access point is found or excluded.
    pending: Vec<u8>,
}

/// The next step of the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step<'a> {
    /// Whole packets of the present title.
    Packets(&'a [u8]),
    /// The next title begins.
    Cut,
}

/// Wait for an access point: broadcast streams have them closer together. Then any PAT will do.
const BEGINNING_WAIT: Nanos = SECOND.times(5);
/// Further wait for a PAT: a stream without one is cut at any packet.
const PAT_WAIT: Nanos = SECOND.times(10);
/// Pending packets: between a PAT and its video frame there are only a PMT and some audio.
const PENDING_MAX: usize = 64 * PACKET;

impl Cutter {
    pub(super) fn new(rotate: Option<Rotate>) -> Self {
        Self { rotate, len: 0, end: None, due: None, pending: Vec::new() }
    }

    /// Begins a title.
    pub(super) fn begin(&mut self, now: MonoTime, wall: WallTime) {
        self.end = match self.rotate {
            // The period is counted on the monotonic clock: a step of the wall clock ends no title.
            Some(Rotate::Time(period)) => Some(now + Nanos(period.0 - wall.0 % period.0)),
            _ => None,
        };
    }

    /// Passes the next packet to the stream.
    pub(super) fn handle_packet(
        &mut self,
        now: MonoTime,
        packet: &[u8; PACKET],
        mark: Mark,
        mut each: impl FnMut(Step<'_>),
    ) {
        let due = self.due_since(now);
        let Some(since) = due else {
            self.len += PACKET as u64;
            each(Step::Packets(packet));
            return;
        };
        let waited = now.since(since);
        if mark.pat {
            self.release(&mut each);
        }
        if (mark.pat && waited >= BEGINNING_WAIT) || waited >= PAT_WAIT {
            self.release(&mut each);
            self.cut(&mut each);
            self.len += PACKET as u64;
            each(Step::Packets(packet));
        } else if mark.pat || !self.pending.is_empty() {
            self.pending.extend(packet);
            if mark.random_access {
                self.cut(&mut each);
                self.release(&mut each);
            } else if self.pending.len() >= PENDING_MAX {
                self.release(&mut each);
            }
        } else {
            self.len += PACKET as u64;
            each(Step::Packets(packet));
        }
    }

    /// Whether the title's time is over, including the wait for a place to cut.
    pub(super) fn is_due(&self, now: MonoTime) -> bool {
        self.due.is_some() || self.len > 0 && self.end.is_some_and(|end| now >= end)
    }

    /// Records that the title has ended early.
    pub(super) fn handle_loss(&mut self) {
        self.len = 0;
        self.due = None;
        self.end = None;
    }

    /// Passes the pending packets at the end of the stream.
    pub(super) fn end(&mut self, mut each: impl FnMut(Step<'_>)) {
        self.release(&mut each);
    }

    fn due_since(&mut self, now: MonoTime) -> Option<MonoTime> {
        let full = match self.rotate {
            Some(Rotate::Size(Bytes(size))) => self.len + PACKET as u64 > size,
            _ => self.end.is_some_and(|end| now >= end),
        };
        // Nothing has been written: there is no title to end.
        if full && self.due.is_none() && self.len > 0 {
            self.due = Some(now);
        }
        self.due
    }

    fn release(&mut self, each: &mut impl FnMut(Step<'_>)) {
        if !self.pending.is_empty() {
            self.len += self.pending.len() as u64;
            each(Step::Packets(&self.pending));
            self.pending.clear();
        }
    }

    fn cut(&mut self, each: &mut impl FnMut(Step<'_>)) {
        each(Step::Cut);
        self.handle_loss();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tactus_core::units::MILLISECOND;

    use super::*;

    const PAT: Mark = Mark { pat: true, random_access: false };
    const VIDEO_FRAME: Mark = Mark { pat: false, random_access: true };
    const OTHER: Mark = Mark { pat: false, random_access: false };

    /// Titles as the numbers of their packets; a packet arrives every ten milliseconds.
    fn titles(cutter: &mut Cutter, marks: &[Mark]) -> Vec<Vec<u8>> {
        let mut titles = vec![Vec::new()];
        let wall = WallTime(0);
        cutter.begin(MonoTime(0), wall);
        for (nth, mark) in marks.iter().enumerate() {
            let now = MonoTime(nth as u64 * 10 * MILLISECOND.0);
            let mut cut = false;
            cutter.handle_packet(now, &[nth as u8; PACKET], *mark, |step| match step {
                Step::Cut => {
                    titles.push(Vec::new());
                    cut = true;
                }
                Step::Packets(bytes) => {
                    let title = titles.last_mut().unwrap();
                    title.extend(bytes.chunks(PACKET).map(|packet| packet[0]));
                }
            });
            if cut {
                cutter.end = None;
            }
        }
        cutter.end(|step| {
            let Step::Packets(bytes) = step else { panic!("no title begins at the end") };
            titles.last_mut().unwrap().extend(bytes.chunks(PACKET).map(|packet| packet[0]));
        });
        titles
    }

    fn of_size(packets: u64) -> Cutter {
        Cutter::new(Some(Rotate::Size(Bytes(packets * PACKET as u64))))
    }

    #[test]
    fn a_title_ends_before_the_pat_of_a_video_frame() {
        // A repeated PAT, then one before a video frame.
        let marks = [OTHER, OTHER, OTHER, PAT, OTHER, PAT, OTHER, VIDEO_FRAME, OTHER];
        let titles = titles(&mut of_size(2), &marks);
        assert_eq!(titles, [vec![0, 1, 2, 3, 4], vec![5, 6, 7, 8]]);
    }

    #[test]
    fn without_video_frames_any_pat_and_without_pat_any_packet_will_do_after_a_while() {
        let mut marks = vec![OTHER; 200];
        marks.extend(vec![OTHER; 400]);
        marks[550] = PAT;
        let with_pat = titles(&mut of_size(20), &marks[..600]);
        assert_eq!(with_pat[0].len(), 550);
        let without = titles(&mut of_size(20), &vec![OTHER; 1500]);
        assert_eq!(without[0].len(), 1020, "ten seconds after it was due");
    }

    #[test]
    fn a_title_ends_by_time_at_a_whole_multiple_of_utc() {
        let mut cutter = Cutter::new(Some(Rotate::Time(SECOND.times(60))));
        cutter.begin(MonoTime(5), WallTime(SECOND.times(59).0));
        let mut steps = Vec::new();
        for (millis, mark) in [(0, PAT), (0, VIDEO_FRAME), (1100, PAT), (1100, VIDEO_FRAME)] {
            let now = MonoTime(5 + millis * MILLISECOND.0);
            cutter.handle_packet(now, &[0; PACKET], mark, |step| {
                steps.push(matches!(step, Step::Cut));
            });
        }
        assert_eq!(steps, [false, false, true, false]);
    }

    proptest! {
        #[test]
        fn joined_titles_are_the_stream(
            size in 1u64..40,
            marks in proptest::collection::vec(
                prop_oneof![1 => Just(PAT), 1 => Just(VIDEO_FRAME), 6 => Just(OTHER)],
                0..250,
            ),
        ) {
            let titles = titles(&mut of_size(size), &marks);
            let joined: Vec<u8> = titles.concat();
            prop_assert_eq!(joined, (0..marks.len()).map(|nth| nth as u8).collect::<Vec<_>>());
            prop_assert!(titles[..titles.len() - 1].iter().all(|title| title.len() as u64 >= size));
        }
    }
}
