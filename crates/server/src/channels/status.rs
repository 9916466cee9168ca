//! What a channel says of itself.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde_json::{Map, Value};
use tactus_core::units::BitRate;

use crate::access::{self, Protocol, Record};
use crate::broker::Broker;
use crate::config::channel::{Channel, List};

/// What goes on.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Debug)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Something is missing, or there is no room, or its time has not come; tried again.
    #[default]
    Waiting,
    /// It is sent.
    Running,
    /// The title for when there is nothing else is sent.
    Filling,
    /// It has come to its end.
    Ended,
}

/// One channel as it is now.
#[derive(Clone, PartialEq, Serialize, Debug)]
pub struct Status {
    /// How it is called.
    pub name: String,
    /// The path of the title that is sent, or was.
    pub title: String,
    /// What follows, if nobody asks for something else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_title: Option<String>,
    /// Where it goes.
    pub to: String,
    /// What goes on.
    pub state: State,
    /// Why it is not sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What was promised.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set_rate_bits_per_second: Option<u64>,
    /// Payload of the last whole second.
    pub real_rate_bits_per_second: u64,
    /// Payload of the title since it began.
    pub sent_bytes: u64,
    /// Messages whose bytes were not there in time, of this title.
    pub underruns: u64,
    /// The latest message of this title.
    pub lateness_max_seconds: f64,
    /// How many titles have begun.
    pub starts: u64,
    /// How often a title, or a part of one, could not be sent.
    pub skips: u64,
    /// What could not, and why, the last time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
    /// It is not what the configuration says, but what was asked for since.
    #[serde(rename = "changed")]
    pub is_changed: bool,
    /// What it goes by.
    pub keys: Map<String, Value>,
}

/// Wishes that may wait: somebody who has more makes a list.
pub(super) const WISHES_MAX: u64 = 100;

/// Where a channel's state is written.
pub(super) struct Board(Mutex<Now>);

#[derive(Clone)]
struct Now {
    channel: Channel,
    state: State,
    reason: Option<String>,
    title: Option<String>,
    next: Option<String>,
    place: Option<u32>,
    rate: Option<BitRate>,
    /// Titles that were asked for.
    wishes: u64,
    /// Those of them that wait no more.
    wishes_gone: u64,
    starts: u64,
    skips: u64,
    skipped: Option<String>,
    /// What the log has been told of titles that could not be sent.
    told: HashMap<String, String>,
    description: Option<String>,
    url: Option<String>,
}

impl Board {
    pub(super) fn new(channel: Channel) -> Self {
        Self(Mutex::new(Now {
            channel,
            state: State::Waiting,
            reason: None,
            title: None,
            next: None,
            place: None,
            rate: None,
            wishes: 0,
            wishes_gone: 0,
            starts: 0,
            skips: 0,
            skipped: None,
            told: HashMap::new(),
            description: None,
            url: None,
        }))
    }

    pub(super) fn channel(&self) -> Channel {
        self.now().channel.clone()
    }

    pub(super) fn change(&self, channel: Channel) {
        let mut now = self.now();
        (now.channel, now.next) = (channel, None);
    }

    /// How players take it.
    pub(super) fn describe(&self, description: String, url: String) {
        let mut now = self.now();
        (now.description, now.url) = (Some(description), Some(url));
    }

    pub(super) fn description(&self) -> Option<String> {
        self.now().description.clone()
    }

    /// Where players find it, if it goes to a group.
    pub(super) fn url(&self) -> Option<String> {
        let now = self.now();
        now.url.clone().filter(|_| now.channel.to.to.ip().is_multicast())
    }

    pub(super) fn begin(&self, title: &str, place: u32, rate: BitRate, is_fill: bool) {
        let mut now = self.now();
        tracing::info!(channel = now.channel.name, title, %rate, "it is sent");
        log(&now.channel.name, "start", title, None, Some(rate));
        now.state = if is_fill { State::Filling } else { State::Running };
        (now.reason, now.next) = (None, None);
        (now.title, now.place, now.rate) = (Some(title.into()), Some(place), Some(rate));
        now.starts += 1;
        now.told.remove(title);
    }

    /// Whether one more title may be asked for; then it counts as one that waits.
    pub(super) fn wish(&self) -> bool {
        let mut now = self.now();
        let has_room = now.wishes - now.wishes_gone < WISHES_MAX;
        now.wishes += u64::from(has_room);
        has_room
    }

    /// The last of them was not taken.
    pub(super) fn unwish(&self) {
        self.now().wishes -= 1;
    }

    /// So many wait no more.
    pub(super) fn count_wishes(&self, gone: u64) {
        self.now().wishes_gone = gone;
    }

    /// Whether anything is sent.
    pub(super) fn is_sent(&self) -> bool {
        matches!(self.now().state, State::Running | State::Filling)
    }

    /// This title follows.
    pub(super) fn next(&self, title: &str) {
        self.now().next = Some(title.into());
    }

    /// A title, or a part of it, cannot be sent.
    pub(super) fn skip(&self, title: &str, reason: &str) {
        let mut now = self.now();
        if now.told.get(title).is_none_or(|last| !is_same(last, reason)) {
            tracing::warn!(channel = now.channel.name, title, reason, "it cannot be sent");
            log(&now.channel.name, "skip", title, Some(reason), None);
            now.told.insert(title.into(), reason.into());
        }
        now.skips += 1;
        now.skipped = Some(format!("{title}: {reason}"));
    }

    pub(super) fn wait(&self, reason: String) {
        let mut now = self.now();
        if now.reason.as_ref().is_none_or(|last| !is_same(last, &reason)) {
            tracing::warn!(channel = now.channel.name, reason, "nothing is sent");
            let title = now.title.clone().unwrap_or_default();
            log(&now.channel.name, "stop", &title, Some(&reason), None);
        }
        (now.place, now.rate, now.next) = (None, None, None);
        (now.state, now.reason) = (State::Waiting, Some(reason));
    }

    pub(super) fn end(&self) {
        let mut now = self.now();
        if now.state != State::Ended {
            tracing::info!(channel = now.channel.name, "it has come to its end");
            let title = now.title.clone().unwrap_or_default();
            log(&now.channel.name, "stop", &title, Some("complete"), None);
        }
        (now.place, now.rate, now.next) = (None, None, None);
        (now.state, now.reason) = (State::Ended, None);
    }

    pub(super) fn read(&self, broker: &Broker) -> Status {
        let now = self.now().clone();
        let counters = now.place.and_then(|place| broker.counters_of(place));
        let count =
            |which: fn(&tactus_engine::counters::StreamCounters) -> u64| counters.map_or(0, which);
        let first = match &now.channel.playlist.list {
            List::Titles(titles) => titles.first().cloned().unwrap_or_default(),
            List::File(file) => file.clone(),
        };
        Status {
            name: now.channel.name.clone(),
            title: now.title.unwrap_or(first),
            next_title: now.next,
            to: now.channel.to.to_string(),
            state: now.state,
            reason: now.reason,
            set_rate_bits_per_second: now.rate.map(|rate| rate.0),
            real_rate_bits_per_second: count(|each| each.second_bytes.value() * 8),
            sent_bytes: count(|each| each.bytes.value()),
            underruns: count(|each| each.underruns.value()),
            lateness_max_seconds: count(|each| each.lateness_max.value()) as f64 / 1e9,
            starts: now.starts,
            skips: now.skips,
            skipped: now.skipped,
            is_changed: false,
            keys: now.channel.keys(),
        }
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether two reasons differ in their figures at most. Why there is no room is told with what is
/// free just now, and a log has nothing new to say of that at every try.
fn is_same(one: &str, other: &str) -> bool {
    let words = |text| str::chars(text).filter(|each| !each.is_ascii_digit() && *each != '.');
    words(one).eq(words(other))
}

/// Logs an event of a channel.
fn log(channel: &str, what: &str, title: &str, outcome: Option<&str>, rate: Option<BitRate>) {
    if !access::is_on() {
        return;
    }
    access::record(Record {
        name: Some(channel.to_owned()),
        outcome: outcome.map(str::to_owned),
        rate: rate.map(|rate| rate.0),
        ..Record::new(Protocol::Channel, what, title)
    });
}

#[cfg(test)]
mod tests {
    use super::is_same;

    #[test]
    fn a_reason_is_new_when_more_than_its_figures_are() {
        let short = "no room for packets of 4 Mbit/s: 951.278 ms of each second, of 950 ms";
        assert!(is_same(
            short,
            "no room for packets of 4 Mbit/s: 950 ms of each second, of 950 ms"
        ));
        assert!(!is_same(short, "no room on the link: 951.278 ms of each second, of 950 ms"));
        assert!(!is_same(short, "there is no such title"));
    }
}
