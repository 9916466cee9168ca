//! Decides when a channel has something to do, and what: facts and the time in, an act and the next
//! wake-up out.
//!
//! Promise: the wake-up follows from the same conditions as the acts, so no due act is missed. It
//! reads no clock and knows neither titles nor streams.

use std::time::{Duration, Instant};

/// The facts of one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub(super) now: Instant,
    /// When a failed search is repeated.
    pub(super) again: Instant,
    /// The time of the next timed event.
    pub(super) timed: Option<Instant>,
    /// When a failed search for it is repeated.
    pub(super) timed_again: Instant,
    /// When the list is read independently of a search.
    pub(super) reads: Option<Instant>,
    pub(super) sent: Option<CurrentTitle>,
    pub(super) waiting: Option<PrimedTitle>,
}

/// The current title.
#[derive(Clone, Copy, Debug)]
pub(super) struct CurrentTitle {
    /// When it ends, if it does.
    pub(super) ends: Option<Instant>,
    /// Some of it may have left.
    pub(super) has_begun: bool,
    /// The packet server has it, and it has not ended.
    pub(super) is_open: bool,
    /// It was stopped.
    pub(super) is_stopped: bool,
    /// It ends as soon as another title is primed.
    pub(super) is_left: bool,
}

/// The primed title.
#[derive(Clone, Copy, Debug)]
pub(super) struct PrimedTitle {
    /// When it cuts the current title; `None` at the natural end.
    pub(super) cut: Option<Instant>,
    pub(super) since: Instant,
    /// It has been read ahead.
    pub(super) is_ready: bool,
    /// Another title is to follow.
    pub(super) is_unwanted: bool,
}

/// What to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Act {
    /// Cut from the current to the primed title.
    Cut,
    /// Read the list.
    Read,
    /// Search the timed title.
    FindTimed,
    /// Search the next title.
    FindNext,
    /// Drop the primed title: nothing has to follow.
    MakeWay,
}

/// How long before its time a title is searched, admitted and primed. Its room counts twice for
/// this long.
const LEAD: Duration = Duration::from_secs(20);
/// Interval of attempts for a title that is missing or has no room.
pub(super) const AGAIN: Duration = Duration::from_secs(5);
/// Nearer to the end than this the primed title is not replaced: the engine may already have
/// started it.
const KEEP: Duration = Duration::from_secs(2);
/// The primed title is cut to after this time even if it is not read ahead.
const PRIME_MAX: Duration = Duration::from_secs(15);
/// Polling interval of the state of the primed title.
const LOOK: Duration = Duration::from_millis(20);
/// The longest sleep.
const LONG: Duration = Duration::from_secs(60);

impl Facts {
    /// The first due act.
    pub(super) fn act(&self) -> Option<Act> {
        ACTS.into_iter().find(|&act| self.due(act).is_some_and(|due| due <= self.now))
    }

    /// The next wake-up, if no event comes before.
    pub(super) fn wake(&self) -> Instant {
        let dues = ACTS.into_iter().filter_map(|act| self.due(act));
        let looks = self.look().into_iter();
        dues.chain(looks).fold(self.now + LONG, Instant::min)
    }

    /// Whether the primed title can be dropped; nearer to the end it may start at any moment.
    pub(super) fn may_make_way(&self) -> bool {
        self.sent
            .is_some_and(|sent| sent.is_open && sent.ends.is_none_or(|ends| ends > self.now + KEEP))
    }

    fn due(&self, act: Act) -> Option<Instant> {
        match act {
            Act::Cut => self.cut(),
            Act::Read => self.reads,
            Act::FindTimed => self.find_timed(),
            Act::FindNext => self.find_next(),
            Act::MakeWay => {
                let is_asked = self.needed().is_some_and(|needed| needed <= self.now);
                let is_unwanted = self.waiting.is_some_and(|waiting| waiting.is_unwanted);
                let drops = is_unwanted && !is_asked && self.begun().is_some();
                (drops && self.may_make_way()).then_some(self.again)
            }
        }
    }

    fn cut(&self) -> Option<Instant> {
        self.sent.filter(|sent| !sent.is_stopped)?;
        let PrimedTitle { cut, since, is_ready, .. } = self.wanted()?;
        let cut = cut?;
        Some(if is_ready { cut } else { cut.max(since) + PRIME_MAX })
    }

    fn find_timed(&self) -> Option<Instant> {
        let time = self.timed?;
        let lead = before(time);
        let Some(sent) = self.sent else { return Some(lead.max(self.timed_again).min(time)) };
        self.begun()?;
        // After the end another title is sent.
        let is_within = sent.ends.is_none_or(|ends| time <= ends);
        // A title with a cut goes first.
        let is_free = self.wanted().is_none_or(|waiting| waiting.cut.is_none());
        (is_within && is_free).then(|| lead.max(self.timed_again))
    }

    fn find_next(&self) -> Option<Instant> {
        match self.sent {
            None => Some(self.again),
            Some(_) if self.wanted().is_some() => None,
            Some(_) => Some(self.needed()?.max(self.again)),
        }
    }

    /// From when on a title has to follow the current one, whichever is primed.
    fn needed(&self) -> Option<Instant> {
        let sent = self.begun()?;
        if sent.is_left { Some(self.now) } else { sent.ends.map(before) }
    }

    /// The current title, if it has started; otherwise no title can follow it.
    fn begun(&self) -> Option<CurrentTitle> {
        self.sent.filter(|sent| sent.has_begun && !sent.is_stopped)
    }

    fn wanted(&self) -> Option<PrimedTitle> {
        self.waiting.filter(|waiting| !waiting.is_unwanted)
    }

    /// The time of the next poll: the engine does not report these changes.
    fn look(&self) -> Option<Instant> {
        let sent = self.sent.filter(|sent| !sent.is_stopped)?;
        let cut = self.wanted().filter(|waiting| !waiting.is_ready).and_then(|waiting| waiting.cut);
        let soon = self.now + LOOK;
        let begins = (!sent.has_begun).then_some(soon);
        begins.or(cut.map(|cut| cut.max(soon)))
    }
}

/// In order of precedence.
const ACTS: [Act; 5] = [Act::Cut, Act::Read, Act::FindTimed, Act::FindNext, Act::MakeWay];

fn before(time: Instant) -> Instant {
    time.checked_sub(LEAD).unwrap_or(time)
}

/// The attempts of one search, until the search changes.
#[derive(Debug)]
pub(super) struct Search {
    pub(super) is_timed: bool,
    since: Instant,
    tries: usize,
    /// The first reasons why the tried titles could not be sent.
    pub(super) why: Option<String>,
    misses: usize,
}

/// Titles whose reasons are reported.
const REASONS_MAX: usize = 3;

/// Attempts, in a list of any length.
const TRIES_MAX: usize = 20;
/// This leaves as much time for the fill.
const SEARCH_MAX: Duration = LEAD.checked_div(2).expect("two is not zero");

impl Search {
    pub(super) fn new(now: Instant, is_timed: bool) -> Self {
        Self { is_timed, since: now, tries: 0, why: None, misses: 0 }
    }

    /// Records that a title cannot be sent.
    pub(super) fn miss(&mut self, title: &str, reason: &str) {
        self.misses += 1;
        if self.misses > REASONS_MAX {
            return;
        }
        let why = self.why.get_or_insert_default();
        if !why.is_empty() {
            why.push_str("; ");
        }
        why.push_str(title);
        why.push_str(": ");
        why.push_str(reason);
    }

    /// The place of the next try among `titles`, if one is to be made.
    pub(super) fn next(&mut self, now: Instant, titles: usize) -> Option<usize> {
        let is_open = self.tries < titles.clamp(1, TRIES_MAX) && now < self.since + SEARCH_MAX;
        self.tries += 1;
        is_open.then(|| self.tries - 1)
    }
}

/// The title that a skip applies to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Skip {
    /// The current title, as soon as another one is primed.
    Sent,
    /// The current title: cut to the primed one.
    Cut,
    /// The primed title has already started and is skipped.
    Waiting,
}

impl Skip {
    /// By the primed title: whether it has started, and whether it is to follow.
    pub(super) fn of(waiting: Option<(bool, bool)>) -> Self {
        match waiting {
            // The current title has ended, and the report has not arrived yet.
            Some((true, _)) => Self::Waiting,
            Some((false, true)) => Self::Cut,
            Some((false, false)) | None => Self::Sent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    /// An hour after the clock's earliest instant.
    fn noon() -> Instant {
        Instant::now() + seconds(3600)
    }

    fn silent(now: Instant) -> Facts {
        let (timed_again, again) = (now, now + AGAIN);
        let (timed, reads, sent, waiting) = (None, None, None, None);
        Facts { now, again, timed, timed_again, reads, sent, waiting }
    }

    fn sending(now: Instant, ends: Option<Instant>) -> Facts {
        let sent = CurrentTitle {
            ends,
            has_begun: true,
            is_open: true,
            is_stopped: false,
            is_left: false,
        };
        Facts { again: now, sent: Some(sent), ..silent(now) }
    }

    fn waiting(now: Instant, cut: Option<Instant>) -> Option<PrimedTitle> {
        Some(PrimedTitle { cut, since: now, is_ready: true, is_unwanted: false })
    }

    /// The next act and its time, if only the time changes.
    fn first(mut facts: Facts) -> (Act, Instant) {
        for _ in 0..1000 {
            if let Some(act) = facts.act() {
                return (act, facts.now);
            }
            let wake = facts.wake();
            assert!(wake > facts.now, "it would turn in a circle");
            facts.now = wake;
        }
        panic!("nothing is ever due: {facts:?}");
    }

    #[test]
    fn what_has_its_time_comes_at_its_time_when_nothing_is_sent() {
        let now = noon();
        let time = now + seconds(3);
        // The act is tried at this time at the latest, whatever else is due.
        let facts = Facts { timed: Some(time), timed_again: now + AGAIN, ..silent(now) };
        assert_eq!(first(facts), (Act::FindTimed, time));
        let far =
            Facts { again: now + seconds(600), timed: Some(now + seconds(90)), ..silent(now) };
        assert_eq!(
            first(far),
            (Act::FindTimed, now + seconds(70)),
            "its times are found out before"
        );
        assert_eq!(first(silent(now)), (Act::FindNext, now + AGAIN));
    }

    #[test]
    fn what_follows_is_looked_for_before_it_is_needed_and_not_twice() {
        let now = noon();
        let ends = Some(now + seconds(60));
        assert_eq!(first(sending(now, ends)), (Act::FindNext, now + seconds(40)));
        let mut left = sending(now, None);
        assert_eq!(left.wake(), now + LONG, "what has no end needs nobody");
        left.sent = left.sent.map(|sent| CurrentTitle { is_left: true, ..sent });
        assert_eq!(first(left), (Act::FindNext, now));
        assert_eq!(first(Facts { again: now + AGAIN, ..left }), (Act::FindNext, now + AGAIN));
        let follows = Facts { waiting: waiting(now, None), ..left };
        assert_eq!((follows.act(), follows.wake()), (None, now + LONG));
        // No title follows one that has not started or is over.
        left.sent = left.sent.map(|sent| CurrentTitle { has_begun: false, ..sent });
        assert_eq!((left.act(), left.wake()), (None, now + LOOK));
        left.sent = left.sent.map(|sent| CurrentTitle { is_stopped: true, ..sent });
        assert_eq!((left.act(), left.wake()), (None, now + LONG));
    }

    #[test]
    fn what_has_its_time_is_looked_for_beside_what_waits_but_what_is_cut_to_comes_first() {
        let now = noon();
        let time = now + seconds(30);
        let ends = Some(now + seconds(35));
        let mut facts = Facts { timed: Some(time), ..sending(now, ends) };
        assert_eq!(first(facts), (Act::FindTimed, now + seconds(10)));
        // Until the retry the next title is searched only when it is needed.
        facts.timed_again = now + seconds(16);
        assert_eq!(first(facts), (Act::FindNext, now + seconds(15)));
        facts.waiting = waiting(now, None);
        assert_eq!(first(facts), (Act::FindTimed, now + seconds(16)));
        facts.waiting = waiting(now, Some(now + seconds(20)));
        assert_eq!(first(facts), (Act::Cut, now + seconds(20)));
        // After the end of the current title the slot belongs to another one.
        let facts = Facts { timed: Some(time), ..sending(now, Some(now + seconds(29))) };
        assert_eq!(first(facts), (Act::FindNext, now + seconds(9)));
    }

    #[test]
    fn a_title_is_cut_to_when_it_has_been_read_or_will_not_be() {
        let now = noon();
        let cut = now + seconds(7);
        let mut facts = Facts { waiting: waiting(now, Some(cut)), ..sending(now, None) };
        assert_eq!(first(facts), (Act::Cut, cut));
        facts.waiting = facts.waiting.map(|waiting| PrimedTitle { is_ready: false, ..waiting });
        assert_eq!(facts.wake(), cut);
        facts.now = cut;
        assert_eq!((facts.act(), facts.wake()), (None, cut + LOOK));
        assert_eq!(first(facts), (Act::Cut, cut + PRIME_MAX));
    }

    #[test]
    fn what_is_unwanted_is_dropped_unless_it_is_needed_or_may_begin_at_any_moment() {
        let now = noon();
        let unwanted = waiting(now, None).map(|each| PrimedTitle { is_unwanted: true, ..each });
        let facts = |left: Duration| Facts { waiting: unwanted, ..sending(now, Some(now + left)) };
        assert_eq!(first(facts(seconds(60))), (Act::MakeWay, now));
        assert_eq!(first(facts(seconds(15))), (Act::FindNext, now));
        assert!(facts(seconds(3)).may_make_way() && !facts(seconds(2)).may_make_way());
        // The replacement failed: the primed title stays.
        let missed = Facts { again: now + AGAIN, ..facts(seconds(15)) };
        assert_eq!(missed.act(), None);
    }

    #[test]
    fn a_list_is_read_for_its_own_sake_where_nothing_else_asks_for_it() {
        let now = noon();
        let facts = Facts { reads: Some(now + seconds(5)), ..sending(now, None) };
        assert_eq!(first(facts), (Act::Read, now + seconds(5)));
    }

    #[test]
    fn a_search_leaves_time_for_the_fill_and_has_an_end() {
        let begin = noon();
        // Each takes two seconds.
        let mut slow = Search::new(begin, false);
        let tries = (0..).take_while(|&nth| slow.next(begin + seconds(2 * nth), 100).is_some());
        let last = tries.last().expect("the first is always tried");
        assert!(seconds(2 * (last + 1)) <= LEAD / 2 && last >= 3, "{last}");
        let mut quick = Search::new(begin, false);
        assert_eq!((0..100).filter_map(|_| quick.next(begin, 50)).last(), Some(TRIES_MAX - 1));
        let mut short = Search::new(begin, false);
        assert_eq!((0..100).filter_map(|_| short.next(begin, 3)).last(), Some(2));
    }

    #[test]
    fn a_skip_concerns_what_is_on_the_air() {
        let [begun, wanted] = [true; 2];
        assert_eq!(Skip::of(None), Skip::Sent);
        assert_eq!(Skip::of(Some((!begun, wanted))), Skip::Cut);
        assert_eq!(Skip::of(Some((!begun, !wanted))), Skip::Sent);
        assert_eq!(Skip::of(Some((begun, wanted))), Skip::Waiting);
        assert_eq!(Skip::of(Some((begun, !wanted))), Skip::Waiting);
    }
}
