//! The rundown of a channel: the next title out of its list, timed titles and requested titles.
//!
//! Promise: titles come in the order of their list, each once per turn, whatever is put between
//! them. A timed title is offered until it is taken or its time has passed. Giving an item back
//! undoes taking it. The rundown sends nothing and reads no clock.

use std::collections::VecDeque;

use tactus_core::units::WallTime;

use crate::channel::{Playlist, ScheduledTime};

/// The schedule of one channel.
#[derive(Debug)]
pub(super) struct Rundown {
    playlist: Playlist,
    /// The list as last read.
    titles: Vec<String>,
    position: PlaylistPosition,
    /// The position before the last offered item.
    before: PlaylistPosition,
    /// Requested titles.
    requested: VecDeque<String>,
}

/// The position in a playlist.
#[derive(Clone, Debug)]
struct PlaylistPosition {
    /// The index of the next title in the list.
    at: usize,
    /// The title that was taken last.
    last: Option<String>,
    /// The index after that title.
    behind: usize,
    /// The list has started.
    has_begun: bool,
    timed: Vec<TimedEvent>,
}

/// A timed event.
#[derive(Clone, PartialEq, Eq, Debug)]
struct TimedEvent {
    time: WallTime,
    when: ScheduledTime,
    /// A title; `None` for the start of the list.
    title: Option<String>,
}

/// One title to send.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Item {
    pub(super) path: String,
    /// Repeated until another title comes.
    pub(super) is_endless: bool,
    pub(super) origin: Origin,
}

/// Why a title is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Origin {
    /// Next in the list.
    List,
    /// Requested.
    Request,
    /// Timed.
    Time,
    /// The fill, as there is no other title.
    Fill,
}

impl Item {
    /// A title that is sent once.
    fn once(path: String, origin: Origin) -> Self {
        Self { path, is_endless: false, origin }
    }

    pub(super) fn is_fill(&self) -> bool {
        self.origin == Origin::Fill
    }
}

impl Rundown {
    /// The rundown of a channel that has sent nothing by `now`. Its list is empty until it is read.
    pub(super) fn new(playlist: Playlist, now: WallTime) -> Self {
        let begin = playlist.start.map(|when| (when, None));
        let titles = playlist.timed.iter().map(|(when, title)| (*when, Some(title.clone())));
        let timed = begin.into_iter().chain(titles);
        let timed: Vec<_> = timed
            .filter_map(|(when, title)| Some(TimedEvent { time: when.next(now)?, when, title }))
            .collect();
        // A start in the past counts, and so does today's start of a repeating list.
        let midnight = ScheduledTime::Daily(0).next(now);
        let has_passed = |when: ScheduledTime| {
            matches!(when, ScheduledTime::Daily(_)) && when.next(now) >= midnight
        };
        let is_running = playlist.repeats && playlist.start.is_some_and(has_passed);
        let has_begun = is_running || !timed.iter().any(|timed| timed.title.is_none());
        let position = PlaylistPosition { at: 0, last: None, behind: 0, has_begun, timed };
        let (titles, requested) = (Vec::new(), VecDeque::new());
        Self { playlist, titles, before: position.clone(), position, requested }
    }

    /// Changes the playlist and keeps the position in the list.
    pub(super) fn change(&mut self, playlist: Playlist, now: WallTime) {
        let is_same_start = playlist.start == self.playlist.start;
        let Self { position, requested, titles, .. } =
            std::mem::replace(self, Self::new(playlist, now));
        let PlaylistPosition { has_begun, timed, .. } =
            std::mem::replace(&mut self.position, position);
        self.position.has_begun = has_begun || self.position.has_begun && is_same_start;
        self.position.timed = timed;
        (self.before, self.requested, self.titles) = (self.position.clone(), requested, titles);
    }

    /// Updates the list. A changed list continues after the title that was taken last.
    pub(super) fn read(&mut self, titles: Vec<String>) {
        // An unchanged list keeps its position: titles that failed are not tried again before the
        // others.
        if titles == self.titles {
            return;
        }
        for position in [&mut self.position, &mut self.before] {
            let known = position.last.as_ref().and_then(|last| {
                // A title may be listed several times: the nearest position is the likeliest.
                let positions = (0..titles.len()).filter(|&at| titles[at] == *last);
                positions.min_by_key(|at| (at + 1).abs_diff(position.behind))
            });
            position.at = known.map_or(position.at.min(titles.len()), |at| at + 1);
            position.behind = position.at;
        }
        self.titles = titles;
    }

    /// The next requested title, or the next of the list. A repeating list always has one.
    pub(super) fn next(&mut self) -> Option<Item> {
        self.before = self.position.clone();
        if let Some(path) = self.requested.pop_front() {
            return Some(Item::once(path, Origin::Request));
        }
        if !self.position.has_begun || self.titles.is_empty() {
            return None;
        }
        if self.position.at >= self.titles.len() {
            if !self.playlist.repeats {
                return None;
            }
            self.position.at = 0;
        }
        self.position.at += 1;
        Some(self.of_list(self.position.at - 1))
    }

    fn of_list(&self, at: usize) -> Item {
        Item { path: self.titles[at].clone(), is_endless: self.is_loop(), origin: Origin::List }
    }

    /// The offered item is sent or primed.
    pub(super) fn take(&mut self, item: &Item) {
        if item.origin == Origin::List {
            (self.position.last, self.position.behind) =
                (Some(item.path.clone()), self.position.at);
        }
    }

    /// The last offered or taken item is not sent after all.
    pub(super) fn give_back(&mut self, item: Item) {
        self.position = self.before.clone();
        if item.origin == Origin::Request {
            self.requested.push_front(item.path);
        }
    }

    /// No title could be sent. At the end of a list that does not repeat, the titles after the last
    /// taken one are offered again: they may be stored later.
    pub(super) fn try_again(&mut self) {
        if self.position.at >= self.titles.len() && !self.playlist.repeats {
            self.position.at = self.position.behind;
        }
    }

    /// Whether a repeated item is still in the playlist.
    pub(super) fn keeps(&self, item: &Item) -> bool {
        match item.origin {
            Origin::Fill => self.playlist.fill.as_ref() == Some(&item.path),
            _ => !item.is_endless || self.is_loop() && self.titles[0] == item.path,
        }
    }

    /// Whether one title, sent once, is the whole playlist.
    pub(super) fn is_single(&self) -> bool {
        let Playlist { repeats, timed, fill, .. } = &self.playlist;
        self.titles.len() == 1 && !repeats && timed.is_empty() && fill.is_none()
    }

    fn is_loop(&self) -> bool {
        self.titles.len() == 1 && self.playlist.repeats
    }

    /// The title to send when there is no other.
    pub(super) fn fill(&self) -> Option<Item> {
        let path = self.playlist.fill.clone()?;
        Some(Item { path, is_endless: true, origin: Origin::Fill })
    }

    /// The time of the next timed event.
    pub(super) fn time(&self) -> Option<WallTime> {
        self.position.first().map(|timed| timed.time)
    }

    /// The title of the next timed event. For the start of the list it is the `nth`, as those
    /// before it may be missing.
    pub(super) fn timed(&self, nth: usize) -> Option<Item> {
        match &self.position.first()?.title {
            Some(path) => (nth == 0).then(|| Item::once(path.clone(), Origin::Time)),
            None => (nth < self.titles.len()).then(|| self.of_list(nth)),
        }
    }

    /// The `nth` of these is sent or primed.
    pub(super) fn take_timed(&mut self, nth: usize, item: &Item) {
        self.before = self.position.clone();
        self.position.pass_timed();
        if item.origin == Origin::List {
            self.position.at = nth + 1;
            self.take(item);
        }
    }

    /// Passes the next timed event. The start of the list starts it; a daily title is scheduled for
    /// the next day.
    pub(super) fn pass_timed(&mut self) {
        for position in [&mut self.position, &mut self.before] {
            position.pass_timed();
        }
    }

    /// Queues a requested title. The caller limits their number.
    pub(super) fn request(&mut self, path: String) {
        self.requested.push_back(path);
    }

    /// The number of queued requests.
    pub(super) fn requests(&self) -> u64 {
        self.requested.len() as u64
    }

    /// Whether nothing more is scheduled, now or later.
    pub(super) fn is_over(&self) -> bool {
        let is_at_end = self.position.at >= self.titles.len() && !self.playlist.repeats;
        let is_all = self.requested.is_empty() && self.position.timed.is_empty();
        is_at_end && is_all && self.position.has_begun
    }

    /// The number of titles in the list and the queue, which bounds useful attempts.
    pub(super) fn len(&self) -> usize {
        self.titles.len() + self.requested.len()
    }

    /// The next title unless another one is requested.
    pub(super) fn peek(&self) -> Option<&str> {
        let requested = self.requested.front().map(String::as_str);
        let next = match self.titles.get(self.position.at) {
            None if self.playlist.repeats => self.titles.first(),
            next => next,
        };
        requested.or(next.map(String::as_str).filter(|_| self.position.has_begun))
    }
}

impl PlaylistPosition {
    fn first(&self) -> Option<&TimedEvent> {
        self.timed.iter().min_by_key(|timed| timed.time)
    }

    fn pass_timed(&mut self) {
        let Some(at) = (0..self.timed.len()).min_by_key(|&at| self.timed[at].time) else { return };
        let TimedEvent { time, when, ref title } = self.timed[at];
        if title.is_none() {
            (self.at, self.last, self.behind, self.has_begun) = (0, None, 0, true);
        }
        match when.next(time) {
            Some(again) => self.timed[at].time = again,
            None => drop(self.timed.remove(at)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::Channel;

    const DAY: u64 = 86_400_000_000_000;
    const NOON: WallTime = WallTime(1_795_348_800_000_000_000);

    fn rundown(keys: &str, titles: &[&str]) -> Rundown {
        let text = format!("name = \"a\"\nto = \"udp://239.1.1.1:5000\"\ntitle = \"/-\"\n{keys}");
        let mut rundown = Rundown::new(Channel::parse(&text).unwrap().playlist, NOON);
        read(&mut rundown, titles);
        rundown
    }

    fn read(rundown: &mut Rundown, titles: &[&str]) {
        rundown.read(titles.iter().map(ToString::to_string).collect());
    }

    /// Takes the next item.
    fn next(rundown: &mut Rundown) -> Option<String> {
        let item = rundown.next()?;
        rundown.take(&item);
        Some(item.path)
    }

    fn timed(rundown: &Rundown) -> Vec<String> {
        (0..).map_while(|nth| rundown.timed(nth)).map(|item| item.path).collect()
    }

    const fn hour(hours: u64) -> WallTime {
        WallTime(NOON.0 + hours * 3_600_000_000_000)
    }

    #[test]
    fn a_list_goes_round_and_requests_come_between() {
        let mut all = rundown("", &["/a", "/b"]);
        assert_eq!(
            [next(&mut all), next(&mut all), next(&mut all)].map(Option::unwrap),
            ["/a", "/b", "/a"]
        );
        all.request("/w".into());
        assert_eq!((all.peek(), all.is_over(), all.requests()), (Some("/w"), false, 1));
        assert_eq!([next(&mut all), next(&mut all)].map(Option::unwrap), ["/w", "/b"]);
        all.request("/w".into());
        let requested = all.next().unwrap();
        all.give_back(requested.clone());
        assert_eq!(all.next(), Some(requested));
        let listed = all.next().unwrap();
        assert_eq!(listed.path, "/a");
        all.give_back(listed.clone());
        assert_eq!(all.next(), Some(listed));

        let mut once = rundown("repeat = false", &["/a", "/b"]);
        assert_eq!([next(&mut once), next(&mut once)].map(Option::unwrap), ["/a", "/b"]);
        assert_eq!((next(&mut once), once.peek(), once.is_over()), (None, None, true));
        assert!(next(&mut rundown("", &[])).is_none());
    }

    #[test]
    fn what_is_sent_again_and_again_is_kept_as_long_as_the_program_has_it() {
        let mut alone = rundown("fill = \"/i\"", &["/a"]);
        let (item, fill) = (alone.next().unwrap(), alone.fill().unwrap());
        assert!(item.is_endless && fill.is_endless && fill.is_fill());
        assert!(alone.keeps(&item) && alone.keeps(&fill));
        read(&mut alone, &["/b"]);
        assert!(!alone.keeps(&item) && alone.keeps(&fill));
        read(&mut alone, &["/a", "/b"]);
        assert!(!alone.keeps(&item) && alone.keeps(&Item::once("/gone".into(), Origin::List)));
        for keys in ["fill = \"/other\"", ""] {
            alone.change(rundown(keys, &[]).playlist, NOON);
            assert!(!alone.keeps(&fill), "{keys}");
        }
    }

    #[test]
    fn a_list_that_changes_goes_on_behind_what_was_sent() {
        let mut rundown = rundown("", &["/a", "/b", "/c", "/b"]);
        let mut read = |titles: &[&str]| {
            read(&mut rundown, titles);
            next(&mut rundown).unwrap()
        };
        assert_eq!(read(&["/a"]), "/a");
        assert_eq!(read(&["/x", "/a", "/b"]), "/b");
        assert_eq!(read(&["/b", "/1", "/2", "/b", "/3"]), "/3", "the nearest one");
        assert_eq!(read(&["/1"]), "/1");
    }

    #[test]
    fn what_cannot_be_sent_is_passed_however_long_the_list_is() {
        let titles: Vec<_> = (1..=30).map(|nth| format!("/{nth}")).collect();
        let titles: Vec<_> = titles.iter().map(String::as_str).collect();
        for keys in ["", "repeat = false"] {
            let mut rundown = rundown(keys, &titles);
            assert_eq!(next(&mut rundown).as_deref(), Some("/1"));
            assert!((0..20).all(|_| rundown.next().is_some()));
            rundown.try_again();
            read(&mut rundown, &titles);
            assert_eq!(rundown.next().map(|item| item.path).as_deref(), Some("/22"), "{keys}");
        }
        // At the end of a list that does not repeat, a skipped title may have been stored.
        let mut once = rundown("repeat = false", &["/a", "/b", "/c"]);
        assert_eq!(next(&mut once).as_deref(), Some("/a"));
        assert!(once.next().is_some() && once.next().is_some() && once.next().is_none());
        once.try_again();
        assert_eq!((once.is_over(), next(&mut once).as_deref()), (false, Some("/b")));
        assert_eq!(next(&mut once).as_deref(), Some("/c"));
        once.try_again();
        assert_eq!((once.is_over(), next(&mut once)), (true, None));
    }

    #[test]
    fn what_has_its_time_is_told_until_it_is_taken_or_its_time_is_over() {
        let keys = "start = \"2026-11-22T13:00:00Z\"\n\
                    at = [{ time = \"2026-11-22T14:00:00Z\", title = \"/n\" }, \
                    { time = \"2026-11-22T11:00:00Z\", title = \"/past\" }]";
        let mut begun = rundown(keys, &["/a", "/b", "/c"]);
        assert_eq!((next(&mut begun), begun.peek(), begun.is_over()), (None, None, false));
        assert_eq!(begun.time(), Some(hour(1)));
        assert_eq!(timed(&begun), ["/a", "/b", "/c"], "whichever can be had first");
        let first = begun.timed(1).unwrap();
        begun.take_timed(1, &first);
        assert_eq!((begun.time(), timed(&begun)), (Some(hour(2)), vec!["/n".into()]));
        // Another item is to follow: the start of the list is still pending.
        begun.give_back(first.clone());
        assert_eq!((begun.time(), begun.next()), (Some(hour(1)), None));
        begun.take_timed(1, &first);
        begun.pass_timed();
        assert_eq!((begun.time(), next(&mut begun)), (None, Some("/c".into())));

        // The list starts even if none of its titles can be sent then.
        let mut none = rundown(keys, &["/a"]);
        none.pass_timed();
        assert_eq!((none.time(), next(&mut none)), (Some(hour(2)), Some("/a".into())));

        let mut daily = rundown("at = [{ time = \"20:00\", title = \"/n\" }]", &["/a"]);
        let (first, item) = (daily.time().unwrap(), daily.timed(0).unwrap());
        assert_eq!(item, Item::once("/n".into(), Origin::Time));
        daily.take_timed(0, &item);
        let day = daily.time().unwrap().0 - first.0;
        assert!((DAY - DAY / 24..=DAY + DAY / 24).contains(&day));
        daily.give_back(item);
        assert_eq!(daily.time(), Some(first));
        daily.pass_timed();
        assert_eq!(daily.time().unwrap().0 - first.0, day);
    }

    /// A daily start, so many seconds after `NOON` by this host's time zone.
    fn daily(after: u64) -> String {
        let midnight = ScheduledTime::Daily(0).next(NOON).unwrap();
        let now = (DAY - (midnight.0 - NOON.0)) / 1_000_000_000;
        format!("start = \"{}\"\n", ScheduledTime::Daily((now + after) as u32))
    }

    #[test]
    fn a_list_that_repeats_has_begun_when_its_start_of_today_has_passed() {
        let mut passed = rundown(&daily(0), &["/a", "/b"]);
        assert_eq!(next(&mut passed), Some("/a".into()), "the server was started again");
        let (again, item) = (passed.time().unwrap(), passed.timed(0).unwrap());
        assert_eq!(item.path, "/a", "from its first title tomorrow");
        assert!(again.0 - NOON.0 > DAY / 2);
        let mut to_come = rundown(&daily(1), &["/a", "/b"]);
        assert_eq!((next(&mut to_come), to_come.peek()), (None, None));
        let mut once = rundown(&format!("{}repeat = false", daily(0)), &["/a", "/b"]);
        assert_eq!(next(&mut once), None, "it may have ended");
        let mut moment = rundown("start = \"2026-12-01T00:00:00Z\"", &["/a", "/b"]);
        assert_eq!(next(&mut moment), None, "days ahead");
    }

    #[test]
    fn another_program_keeps_what_has_begun() {
        let playlist = |keys: &str| rundown(keys, &[]).playlist;
        let mut rundown = rundown(&daily(1), &["/a", "/b"]);
        assert!(next(&mut rundown).is_none());
        let first = rundown.timed(0).unwrap();
        rundown.take_timed(0, &first);
        rundown.change(playlist(&format!("{}repeat = false", daily(1))), NOON);
        assert_eq!([next(&mut rundown), next(&mut rundown)], [Some("/b".into()), None]);
        rundown.change(playlist(&daily(2)), NOON);
        assert_eq!((next(&mut rundown), rundown.time().is_some()), (None, true));
        rundown.change(playlist(""), NOON);
        assert_eq!(next(&mut rundown), Some("/a".into()));
    }
}
