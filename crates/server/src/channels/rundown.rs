//! What a channel sends next: its list, titles that have their time, and what somebody has asked
//! for.
//!
//! Promise: titles come in the order of their list, each once a turn, whatever is put between them;
//! what has its time is told until it is taken or its time has passed. What was taken and is not
//! sent after all is as if it had never been told. It sends nothing and reads no clock.

use std::collections::VecDeque;

use tactus_core::units::WallTime;

use crate::config::channel::{Playlist, When};

/// What has to be decided for one channel.
#[derive(Debug)]
pub(super) struct Rundown {
    playlist: Playlist,
    /// The list, as it was read last.
    titles: Vec<String>,
    place: Place,
    /// Where it was before the last title was told.
    before: Place,
    /// Asked for by somebody.
    wished: VecDeque<String>,
}

/// How far a playlist has come.
#[derive(Clone, Debug)]
struct Place {
    /// Which title of the list is next.
    at: usize,
    /// The one that was taken last.
    last: Option<String>,
    /// What stands behind that.
    behind: usize,
    /// The list has its turn.
    has_begun: bool,
    timed: Vec<Timed>,
}

/// Something that happens at its time.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Timed {
    time: WallTime,
    when: When,
    /// A title; none for the beginning of the list.
    title: Option<String>,
}

/// One title to be sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Item {
    pub(super) path: String,
    /// Again and again, until something else comes.
    pub(super) is_endless: bool,
    pub(super) origin: Origin,
}

/// Why a title is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Origin {
    /// It was the list's turn.
    List,
    /// Somebody has asked for it.
    Wish,
    /// Its time has come.
    Time,
    /// There is nothing else.
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
    /// A channel that has sent nothing by `now`. Its list is empty until it is told.
    pub(super) fn new(playlist: Playlist, now: WallTime) -> Self {
        let begin = playlist.start.map(|when| (when, None));
        let titles = playlist.timed.iter().map(|(when, title)| (*when, Some(title.clone())));
        let timed = begin.into_iter().chain(titles);
        let timed: Vec<_> = timed
            .filter_map(|(when, title)| Some(Timed { time: when.next(now)?, when, title }))
            .collect();
        // A moment that has passed was its beginning, and so was today's of a list that goes on for
        // ever.
        let midnight = When::Daily(0).next(now);
        let has_passed = |when: When| matches!(when, When::Daily(_)) && when.next(now) >= midnight;
        let is_running = playlist.repeats && playlist.start.is_some_and(has_passed);
        let has_begun = is_running || !timed.iter().any(|timed| timed.title.is_none());
        let place = Place { at: 0, last: None, behind: 0, has_begun, timed };
        let (titles, wished) = (Vec::new(), VecDeque::new());
        Self { playlist, titles, before: place.clone(), place, wished }
    }

    /// Goes by another playlist, from where the list is.
    pub(super) fn change(&mut self, playlist: Playlist, now: WallTime) {
        let is_same_start = playlist.start == self.playlist.start;
        let Self { place, wished, titles, .. } = std::mem::replace(self, Self::new(playlist, now));
        let Place { has_begun, timed, .. } = std::mem::replace(&mut self.place, place);
        self.place.has_begun = has_begun || self.place.has_begun && is_same_start;
        self.place.timed = timed;
        (self.before, self.wished, self.titles) = (self.place.clone(), wished, titles);
    }

    /// The list has been read. One that is another one goes on behind the title that was taken
    /// last.
    pub(super) fn read(&mut self, titles: Vec<String>) {
        // What could not be sent since is not asked for again before the others.
        if titles == self.titles {
            return;
        }
        for place in [&mut self.place, &mut self.before] {
            let known = place.last.as_ref().and_then(|last| {
                // The same title may stand there several times: the nearest place is the likeliest.
                let places = (0..titles.len()).filter(|&at| titles[at] == *last);
                places.min_by_key(|at| (at + 1).abs_diff(place.behind))
            });
            place.at = known.map_or(place.at.min(titles.len()), |at| at + 1);
            place.behind = place.at;
        }
        self.titles = titles;
    }

    /// A title of the list, or one that was wished for, if there is any; in a list that repeats
    /// there always is.
    pub(super) fn next(&mut self) -> Option<Item> {
        self.before = self.place.clone();
        if let Some(path) = self.wished.pop_front() {
            return Some(Item::once(path, Origin::Wish));
        }
        if !self.place.has_begun || self.titles.is_empty() {
            return None;
        }
        if self.place.at >= self.titles.len() {
            if !self.playlist.repeats {
                return None;
            }
            self.place.at = 0;
        }
        self.place.at += 1;
        Some(self.of_list(self.place.at - 1))
    }

    fn of_list(&self, at: usize) -> Item {
        Item { path: self.titles[at].clone(), is_endless: self.is_loop(), origin: Origin::List }
    }

    /// What was told is sent, or waits to be.
    pub(super) fn take(&mut self, item: &Item) {
        if item.origin == Origin::List {
            (self.place.last, self.place.behind) = (Some(item.path.clone()), self.place.at);
        }
    }

    /// What was told last, or taken, is not sent after all.
    pub(super) fn give_back(&mut self, item: Item) {
        self.place = self.before.clone();
        if item.origin == Origin::Wish {
            self.wished.push_front(item.path);
        }
    }

    /// Nothing could be had. Of a list that comes to an end, what stands behind the title that was
    /// taken last is asked for again: it may come.
    pub(super) fn try_again(&mut self) {
        if self.place.at >= self.titles.len() && !self.playlist.repeats {
            self.place.at = self.place.behind;
        }
    }

    /// Whether what is sent again and again is still in the playlist.
    pub(super) fn keeps(&self, item: &Item) -> bool {
        match item.origin {
            Origin::Fill => self.playlist.fill.as_ref() == Some(&item.path),
            _ => !item.is_endless || self.is_loop() && self.titles[0] == item.path,
        }
    }

    /// Whether one title, sent once, is all that will ever come by itself.
    pub(super) fn is_single(&self) -> bool {
        let Playlist { repeats, timed, fill, .. } = &self.playlist;
        self.titles.len() == 1 && !repeats && timed.is_empty() && fill.is_none()
    }

    fn is_loop(&self) -> bool {
        self.titles.len() == 1 && self.playlist.repeats
    }

    /// What is sent when there is nothing else.
    pub(super) fn fill(&self) -> Option<Item> {
        let path = self.playlist.fill.clone()?;
        Some(Item { path, is_endless: true, origin: Origin::Fill })
    }

    /// When the next thing happens that has its time.
    pub(super) fn time(&self) -> Option<WallTime> {
        self.place.first().map(|timed| timed.time)
    }

    /// The title that has its time then. Of the beginning of the list its `nth`, as those before it
    /// may be missing.
    pub(super) fn timed(&self, nth: usize) -> Option<Item> {
        match &self.place.first()?.title {
            Some(path) => (nth == 0).then(|| Item::once(path.clone(), Origin::Time)),
            None => (nth < self.titles.len()).then(|| self.of_list(nth)),
        }
    }

    /// The `nth` of these is sent, or waits to be.
    pub(super) fn take_timed(&mut self, nth: usize, item: &Item) {
        self.before = self.place.clone();
        self.place.pass_timed();
        if item.origin == Origin::List {
            self.place.at = nth + 1;
            self.take(item);
        }
    }

    /// The time of what has it next is over. The list has begun if that was its beginning; a title
    /// comes again the next day if it does.
    pub(super) fn pass_timed(&mut self) {
        for place in [&mut self.place, &mut self.before] {
            place.pass_timed();
        }
    }

    /// Has a title sent before what comes next otherwise. Who takes wishes sees to it that they do
    /// not become too many.
    pub(super) fn wish(&mut self, path: String) {
        self.wished.push_back(path);
    }

    /// How many wishes wait.
    pub(super) fn wishes(&self) -> u64 {
        self.wished.len() as u64
    }

    /// Whether anything can come without being asked for, now or at its time.
    pub(super) fn is_over(&self) -> bool {
        let is_at_end = self.place.at >= self.titles.len() && !self.playlist.repeats;
        let is_all = self.wished.is_empty() && self.place.timed.is_empty();
        is_at_end && is_all && self.place.has_begun
    }

    /// How many titles its list has, which is how often it is worth asking for another one.
    pub(super) fn len(&self) -> usize {
        self.titles.len() + self.wished.len()
    }

    /// What comes next, if nothing is asked for meanwhile.
    pub(super) fn peek(&self) -> Option<&str> {
        let wished = self.wished.front().map(String::as_str);
        let next = match self.titles.get(self.place.at) {
            None if self.playlist.repeats => self.titles.first(),
            next => next,
        };
        wished.or(next.map(String::as_str).filter(|_| self.place.has_begun))
    }
}

impl Place {
    fn first(&self) -> Option<&Timed> {
        self.timed.iter().min_by_key(|timed| timed.time)
    }

    fn pass_timed(&mut self) {
        let Some(at) = (0..self.timed.len()).min_by_key(|&at| self.timed[at].time) else { return };
        let Timed { time, when, ref title } = self.timed[at];
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
    use crate::config::Config;

    const DAY: u64 = 86_400_000_000_000;
    const NOON: WallTime = WallTime(1_795_348_800_000_000_000);

    fn rundown(keys: &str, titles: &[&str]) -> Rundown {
        let text = format!("name = \"a\"\nto = \"udp://239.1.1.1:5000\"\ntitle = \"/-\"\n{keys}");
        let mut rundown = Rundown::new(Config::parse_channel(&text).unwrap().playlist, NOON);
        read(&mut rundown, titles);
        rundown
    }

    fn read(rundown: &mut Rundown, titles: &[&str]) {
        rundown.read(titles.iter().map(ToString::to_string).collect());
    }

    /// What is told next, and taken.
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
    fn a_list_goes_round_and_wishes_come_between() {
        let mut all = rundown("", &["/a", "/b"]);
        assert_eq!(
            [next(&mut all), next(&mut all), next(&mut all)].map(Option::unwrap),
            ["/a", "/b", "/a"]
        );
        all.wish("/w".into());
        assert_eq!((all.peek(), all.is_over(), all.wishes()), (Some("/w"), false, 1));
        assert_eq!([next(&mut all), next(&mut all)].map(Option::unwrap), ["/w", "/b"]);
        all.wish("/w".into());
        let wished = all.next().unwrap();
        all.give_back(wished.clone());
        assert_eq!(all.next(), Some(wished));
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
        // At the end of one that does not go round, what was passed may have come.
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
        let keys = "start = \"2026-11-22T13:00:00Z\"\nat = [{ time = \"2026-11-22T14:00:00Z\", title = \"/n\" }, \
                    { time = \"2026-11-22T11:00:00Z\", title = \"/past\" }]";
        let mut begun = rundown(keys, &["/a", "/b", "/c"]);
        assert_eq!((next(&mut begun), begun.peek(), begun.is_over()), (None, None, false));
        assert_eq!(begun.time(), Some(hour(1)));
        assert_eq!(timed(&begun), ["/a", "/b", "/c"], "whichever can be had first");
        let first = begun.timed(1).unwrap();
        begun.take_timed(1, &first);
        assert_eq!((begun.time(), timed(&begun)), (Some(hour(2)), vec!["/n".into()]));
        // Another one is to follow: the list still has its time.
        begun.give_back(first.clone());
        assert_eq!((begun.time(), begun.next()), (Some(hour(1)), None));
        begun.take_timed(1, &first);
        begun.pass_timed();
        assert_eq!((begun.time(), next(&mut begun)), (None, Some("/c".into())));

        // Of a list of which nothing can be had then, it is the turn.
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
        let midnight = When::Daily(0).next(NOON).unwrap();
        let now = (DAY - (midnight.0 - NOON.0)) / 1_000_000_000;
        format!("start = \"{}\"\n", When::Daily((now + after) as u32))
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
