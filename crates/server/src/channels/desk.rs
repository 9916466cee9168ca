//! What a channel sends next: its list, titles that have their time, and what somebody has asked for.
//!
//! Promise: titles come in the order of their list, each once a turn, whatever is put between them; a title
//! that has its time is told once for each time. It sends nothing and reads no clock.

use std::collections::VecDeque;

use tactus_core::units::WallTime;

use crate::config::channel::{Programme, When};

/// What has to be decided for one channel.
#[derive(Debug)]
pub(super) struct Desk {
    programme: Programme,
    /// The list, as it was read last.
    titles: Vec<String>,
    /// Which of them is next.
    at: usize,
    /// The list has its turn.
    has_begun: bool,
    timed: Vec<Timed>,
    /// Asked for by somebody.
    wished: VecDeque<String>,
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

/// Wishes that may wait: somebody who has more makes a list.
pub(super) const WISHES_MAX: usize = 100;

impl Desk {
    /// A channel that has sent nothing by `now`. Its list is empty until it is told.
    pub(super) fn new(programme: Programme, now: WallTime) -> Self {
        let begin = programme.start.map(|when| (when, None));
        let titles = programme.timed.iter().map(|(when, title)| (*when, Some(title.clone())));
        let timed = begin.into_iter().chain(titles);
        let timed: Vec<_> = timed
            .filter_map(|(when, title)| Some(Timed { time: when.next(now)?, when, title }))
            .collect();
        // A moment that has passed was its beginning, and so was today's of a list that goes on for ever.
        let midnight = When::Daily(0).next(now);
        let has_passed = |when: When| matches!(when, When::Daily(_)) && when.next(now) >= midnight;
        let is_running = programme.repeats && programme.start.is_some_and(has_passed);
        let has_begun = is_running || !timed.iter().any(|timed| timed.title.is_none());
        let (titles, wished) = (Vec::new(), VecDeque::new());
        Self { programme, titles, at: 0, has_begun, timed, wished }
    }

    /// Goes by another programme, after `current` where that is in its list.
    pub(super) fn change(&mut self, programme: Programme, now: WallTime) {
        let is_same_start = programme.start == self.programme.start;
        let Self { at, has_begun, wished, titles, .. } =
            std::mem::replace(self, Self::new(programme, now));
        (self.at, self.wished, self.titles) = (at, wished, titles);
        self.has_begun |= has_begun && is_same_start;
    }

    /// The list has been read; it goes on behind `last`, the title of it that was begun last.
    pub(super) fn read(&mut self, titles: Vec<String>, last: Option<&str>) {
        let known = last.and_then(|last| {
            // The same title may stand there several times: the nearest place is the likeliest.
            let places = (0..titles.len()).filter(|&place| titles[place] == last);
            places.min_by_key(|place| (place + 1).abs_diff(self.at))
        });
        self.at = known.map_or(self.at.min(titles.len()), |place| place + 1);
        self.titles = titles;
    }

    /// A title of the list, or one that was wished for, if there is any; in a list that repeats there always
    /// is.
    pub(super) fn next(&mut self) -> Option<Item> {
        if let Some(path) = self.wished.pop_front() {
            return Some(Item::once(path, Origin::Wish));
        }
        if !self.has_begun || self.titles.is_empty() {
            return None;
        }
        if self.at >= self.titles.len() {
            if !self.programme.repeats {
                return None;
            }
            self.at = 0;
        }
        let path = self.titles[self.at].clone();
        self.at += 1;
        Some(Item { path, is_endless: self.is_loop(), origin: Origin::List })
    }

    /// Whether a title is all of the list, and is sent again and again.
    pub(super) fn loops(&self, path: &str) -> bool {
        self.is_loop() && self.titles.first().is_some_and(|title| title == path)
    }

    /// Whether one title, sent once, is all that will ever come by itself.
    pub(super) fn is_single(&self) -> bool {
        let Programme { repeats, timed, fill, .. } = &self.programme;
        self.titles.len() == 1 && !repeats && timed.is_empty() && fill.is_none()
    }

    fn is_loop(&self) -> bool {
        self.titles.len() == 1 && self.programme.repeats
    }

    /// What is sent when there is nothing else.
    pub(super) fn fill(&self) -> Option<Item> {
        let path = self.programme.fill.clone()?;
        Some(Item { path, is_endless: true, origin: Origin::Fill })
    }

    /// When the next thing happens that has its time.
    pub(super) fn time(&self) -> Option<WallTime> {
        self.timed.iter().map(|timed| timed.time).min()
    }

    /// The title that has its time then, which comes again the next day if it does; of the beginning of the
    /// list its first title.
    pub(super) fn next_timed(&mut self) -> Option<(WallTime, Item)> {
        let place = (0..self.timed.len()).min_by_key(|&place| self.timed[place].time)?;
        let Timed { time, when, ref title } = self.timed[place];
        let title = title.clone();
        match when.next(time) {
            Some(again) => self.timed[place].time = again,
            None => drop(self.timed.remove(place)),
        }
        let item = match title {
            Some(path) => Item::once(path, Origin::Time),
            None => {
                (self.at, self.has_begun) = (0, true);
                self.next()?
            }
        };
        Some((time, item))
    }

    /// Has a title sent before what comes next otherwise; whether there is room for the wish.
    pub(super) fn wish(&mut self, path: String) -> bool {
        let has_room = self.wished.len() < WISHES_MAX;
        if has_room {
            self.wished.push_back(path);
        }
        has_room
    }

    /// Has a title sent before all others that were asked for.
    pub(super) fn wish_first(&mut self, path: String) {
        self.wished.push_front(path);
    }

    /// A title that was told is not sent after all: it is next again.
    pub(super) fn give_back(&mut self, item: Item) {
        match item.origin {
            Origin::List => {
                let before = self.at.checked_sub(1);
                let is_last = |at: &usize| self.titles.get(*at) == Some(&item.path);
                self.at = before.filter(is_last).unwrap_or(self.at);
            }
            Origin::Wish => self.wished.push_front(item.path),
            // Its time comes again, or it is not of this programme.
            Origin::Time | Origin::Fill => {}
        }
    }

    /// Whether anything can come without being asked for, now or at its time.
    pub(super) fn is_over(&self) -> bool {
        let is_at_end = self.at >= self.titles.len() && !self.programme.repeats;
        is_at_end && self.has_begun && self.wished.is_empty() && self.timed.is_empty()
    }

    /// How many titles its list has, which is how often it is worth asking for another one.
    pub(super) fn len(&self) -> usize {
        self.titles.len() + self.wished.len()
    }

    /// What comes next, if nothing is asked for meanwhile.
    pub(super) fn peek(&self) -> Option<&str> {
        let wished = self.wished.front().map(String::as_str);
        let next = match self.titles.get(self.at) {
            None if self.programme.repeats => self.titles.first(),
            next => next,
        };
        wished.or(next.map(String::as_str).filter(|_| self.has_begun))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    const DAY: u64 = 86_400_000_000_000;
    const NOON: WallTime = WallTime(1_795_348_800_000_000_000);

    fn desk(keys: &str, titles: &[&str]) -> Desk {
        let text = format!("name = \"a\"\nto = \"udp://239.1.1.1:5000\"\ntitle = \"/-\"\n{keys}");
        let mut desk = Desk::new(Config::parse_channel(&text).unwrap().programme, NOON);
        desk.read(titles.iter().map(ToString::to_string).collect(), None);
        desk
    }

    fn next(desk: &mut Desk) -> Option<String> {
        desk.next().map(|item| item.path)
    }

    #[test]
    fn a_list_goes_round_and_wishes_come_between() {
        let mut all = desk("", &["/a", "/b"]);
        assert_eq!(
            [next(&mut all), next(&mut all), next(&mut all)].map(Option::unwrap),
            ["/a", "/b", "/a"]
        );
        assert!(all.wish("/w".into()));
        assert_eq!((all.peek(), all.is_over()), (Some("/w"), false));
        assert_eq!([next(&mut all), next(&mut all)].map(Option::unwrap), ["/w", "/b"]);
        let wished = Item::once("/w".into(), Origin::Wish);
        all.give_back(wished.clone());
        assert_eq!(all.next(), Some(wished));
        let listed = all.next().unwrap();
        assert_eq!(listed.path, "/a");
        all.give_back(listed.clone());
        assert_eq!(all.next(), Some(listed));
        assert!((0..WISHES_MAX).all(|_| all.wish("/w".into())));
        assert!(!all.wish("/w".into()));

        let mut once = desk("repeat = false", &["/a", "/b"]);
        assert_eq!([next(&mut once), next(&mut once)].map(Option::unwrap), ["/a", "/b"]);
        assert_eq!((next(&mut once), once.peek(), once.is_over()), (None, None, true));
        let mut alone = desk("fill = \"/i\"", &["/a"]);
        assert!(alone.next().unwrap().is_endless && alone.loops("/a") && !alone.loops("/b"));
        assert!(alone.fill().unwrap().is_fill());
        assert!(next(&mut desk("", &[])).is_none());
    }

    #[test]
    fn a_list_that_changes_goes_on_behind_what_was_sent() {
        let mut desk = desk("", &["/a", "/b", "/c", "/b"]);
        let read = |desk: &mut Desk, titles: &[&str], last| {
            desk.read(titles.iter().map(ToString::to_string).collect(), Some(last));
            next(desk).unwrap()
        };
        next(&mut desk);
        assert_eq!(read(&mut desk, &["/x", "/a", "/y"], "/a"), "/y");
        assert_eq!(read(&mut desk, &["/b", "/1", "/2", "/b", "/3"], "/b"), "/3", "the nearest one");
        assert_eq!(read(&mut desk, &["/1"], "/gone"), "/1");
    }

    #[test]
    fn what_has_its_time_is_told_once_for_each() {
        let keys = "start = \"2026-11-22T13:00:00Z\"\nat = [{ time = \"2026-11-22T14:00:00Z\", title = \"/n\" }, \
                    { time = \"2026-11-22T11:00:00Z\", title = \"/past\" }]";
        let mut desk = desk(keys, &["/a", "/b"]);
        let hour = |hours: u64| WallTime(NOON.0 + hours * 3_600_000_000_000);
        assert_eq!((next(&mut desk), desk.peek(), desk.is_over()), (None, None, false));
        assert_eq!(desk.time(), Some(hour(1)));
        assert_eq!(
            desk.next_timed().map(|(at, item)| (at, item.path)),
            Some((hour(1), "/a".into()))
        );
        assert_eq!(
            desk.next_timed().map(|(at, item)| (at, item.path)),
            Some((hour(2), "/n".into()))
        );
        assert_eq!((desk.time(), next(&mut desk)), (None, Some("/b".into())));

        let mut daily = self::desk("at = [{ time = \"20:00\", title = \"/n\" }]", &["/a"]);
        let (first, _) = daily.next_timed().unwrap();
        let (second, item) = daily.next_timed().unwrap();
        assert!((DAY - DAY / 24..=DAY + DAY / 24).contains(&(second.0 - first.0)));
        assert_eq!(item, Item::once("/n".into(), Origin::Time));
    }

    /// A daily start, so many seconds after `NOON` by this host's time zone.
    fn daily(after: u64) -> String {
        let midnight = When::Daily(0).next(NOON).unwrap();
        let now = (DAY - (midnight.0 - NOON.0)) / 1_000_000_000;
        format!("start = \"{}\"\n", When::Daily((now + after) as u32))
    }

    #[test]
    fn a_list_that_repeats_has_begun_when_its_start_of_today_has_passed() {
        let mut passed = desk(&daily(0), &["/a", "/b"]);
        assert_eq!(next(&mut passed), Some("/a".into()), "the server was started again");
        let (again, item) = passed.next_timed().unwrap();
        assert_eq!(item.path, "/a", "from its first title tomorrow");
        assert!(again.0 - NOON.0 > DAY / 2);
        let mut to_come = desk(&daily(1), &["/a", "/b"]);
        assert_eq!((next(&mut to_come), to_come.peek()), (None, None));
        let mut once = desk(&format!("{}repeat = false", daily(0)), &["/a", "/b"]);
        assert_eq!(next(&mut once), None, "it may have ended");
        let mut moment = desk("start = \"2026-12-01T00:00:00Z\"", &["/a", "/b"]);
        assert_eq!(next(&mut moment), None, "days ahead");
    }

    #[test]
    fn another_programme_keeps_what_has_begun() {
        let programme = |keys: &str| desk(keys, &[]).programme;
        let mut desk = desk(&daily(1), &["/a", "/b"]);
        assert!(next(&mut desk).is_none());
        desk.next_timed();
        desk.change(programme(&format!("{}repeat = false", daily(1))), NOON);
        assert_eq!([next(&mut desk), next(&mut desk)], [Some("/b".into()), None]);
        desk.change(programme(&daily(2)), NOON);
        assert_eq!((next(&mut desk), desk.time().is_some()), (None, true));
        desk.change(programme(""), NOON);
        assert_eq!(next(&mut desk), Some("/a".into()));
    }
}
