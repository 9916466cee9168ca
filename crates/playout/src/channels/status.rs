//! The status of a channel.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde_json::{Map, Value};
use tactus_control::access::{self, Protocol, Record};
use tactus_control::broker::Broker;
use tactus_core::units::BitRate;

use crate::channel::{Channel, List};

/// The state of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Debug)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// A title is missing, there is no room, or its time has not come; it is tried again.
    #[default]
    Waiting,
    /// Sending its playlist.
    Running,
    /// Sending the fill.
    Filling,
    /// The playlist has ended.
    Ended,
}

/// The current status of one channel.
#[derive(Clone, PartialEq, Serialize, Debug)]
pub struct Status {
    /// The name.
    pub name: String,
    /// The path of the current or last title.
    pub title: String,
    /// The next title unless another one is requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_title: Option<String>,
    /// The destination.
    pub to: String,
    /// The state.
    pub state: State,
    /// Why nothing is sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The reserved rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set_rate_bits_per_second: Option<u64>,
    /// Payload of the last full second.
    pub real_rate_bits_per_second: u64,
    /// Payload of the current title.
    pub sent_bytes: u64,
    /// Messages of the current title whose bytes were not in memory in time.
    pub underruns: u64,
    /// The greatest lateness of the current title.
    pub lateness_max_seconds: f64,
    /// The number of started titles.
    pub starts: u64,
    /// How often a title, or a part of one, could not be sent.
    pub skips: u64,
    /// The last skipped title, with the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
    /// Live listeners.
    pub listeners: usize,
    /// It differs from the configuration by a change over the API.
    #[serde(rename = "changed")]
    pub is_changed: bool,
    /// Its effective configuration keys.
    pub keys: Map<String, Value>,
}

/// Queued title requests; longer sequences belong into a list.
pub(super) const REQUESTS_MAX: u64 = 100;

/// The shared state of a channel.
pub(super) struct Board(Mutex<BoardState>);

#[derive(Clone)]
struct BoardState {
    channel: Channel,
    state: State,
    reason: Option<String>,
    title: Option<String>,
    next: Option<String>,
    slot: Option<u32>,
    rate: Option<BitRate>,
    /// Requested titles.
    requests: u64,
    /// Requests that are no longer queued.
    requests_gone: u64,
    starts: u64,
    skips: u64,
    skipped: Option<String>,
    /// The last logged reason of each title that could not be sent.
    told: HashMap<String, String>,
    description: Option<String>,
    url: Option<String>,
}

impl Board {
    pub(super) fn new(channel: Channel) -> Self {
        Self(Mutex::new(BoardState {
            channel,
            state: State::Waiting,
            reason: None,
            title: None,
            next: None,
            slot: None,
            rate: None,
            requests: 0,
            requests_gone: 0,
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

    /// Sets the session description, and the URL if one is enough for players.
    pub(super) fn describe(&self, description: String, url: Option<String>) {
        let mut now = self.now();
        (now.description, now.url) = (Some(description), url);
    }

    pub(super) fn description(&self) -> Option<String> {
        self.now().description.clone()
    }

    /// The URL for players, if it sends to a group.
    pub(super) fn url(&self) -> Option<String> {
        let now = self.now();
        now.url.clone().filter(|_| now.channel.to.to.ip().is_multicast())
    }

    pub(super) fn begin(&self, title: &str, slot: u32, rate: BitRate, is_fill: bool) {
        let mut now = self.now();
        tracing::info!(channel = now.channel.name, title, %rate, "sending a title");
        log(&now.channel.name, "start", title, None, Some(rate));
        now.state = if is_fill { State::Filling } else { State::Running };
        (now.reason, now.next) = (None, None);
        (now.title, now.slot, now.rate) = (Some(title.into()), Some(slot), Some(rate));
        now.starts += 1;
        now.told.remove(title);
    }

    /// Counts one more queued request, unless the queue is full.
    pub(super) fn take_request(&self) -> bool {
        let mut now = self.now();
        let has_room = now.requests - now.requests_gone < REQUESTS_MAX;
        now.requests += u64::from(has_room);
        has_room
    }

    /// Undoes the last request.
    pub(super) fn cancel_request(&self) {
        self.now().requests -= 1;
    }

    /// So many requests left the queue.
    pub(super) fn count_requests(&self, gone: u64) {
        self.now().requests_gone = gone;
    }

    /// Whether it will begin together with the others of this name.
    pub(super) fn begins_with(&self, name: &str) -> bool {
        let now = self.now();
        now.state == State::Waiting && now.channel.sync.as_deref() == Some(name)
    }

    /// Whether a title is sent.
    pub(super) fn is_sent(&self) -> bool {
        matches!(self.now().state, State::Running | State::Filling)
    }

    /// Sets the next title.
    pub(super) fn next(&self, title: &str) {
        self.now().next = Some(title.into());
    }

    /// Records a title, or a part of it, that cannot be sent.
    pub(super) fn skip(&self, title: &str, reason: &str) {
        let mut now = self.now();
        if now.told.get(title).is_none_or(|last| !is_same(last, reason)) {
            tracing::warn!(channel = now.channel.name, title, reason, "a title cannot be sent");
            log(&now.channel.name, "skip", title, Some(reason), None);
            now.told.insert(title.into(), reason.into());
        }
        now.skips += 1;
        now.skipped = Some(format!("{title}: {reason}"));
    }

    pub(super) fn wait(&self, reason: String) {
        let mut now = self.now();
        if now.reason.as_ref().is_none_or(|last| !is_same(last, &reason)) {
            tracing::warn!(channel = now.channel.name, reason, "the channel sends nothing");
            let title = now.title.clone().unwrap_or_default();
            log(&now.channel.name, "stop", &title, Some(&reason), None);
        }
        (now.slot, now.rate, now.next) = (None, None, None);
        (now.state, now.reason) = (State::Waiting, Some(reason));
    }

    pub(super) fn end(&self) {
        let mut now = self.now();
        if now.state != State::Ended {
            tracing::info!(channel = now.channel.name, "the playlist has ended");
            let title = now.title.clone().unwrap_or_default();
            log(&now.channel.name, "stop", &title, Some("complete"), None);
        }
        (now.slot, now.rate, now.next) = (None, None, None);
        (now.state, now.reason) = (State::Ended, None);
    }

    pub(super) fn read(&self, broker: &Broker) -> Status {
        let now = self.now().clone();
        let counters = now.slot.and_then(|slot| broker.counters_of(slot));
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
            listeners: 0,
            is_changed: false,
            keys: now.channel.keys(),
        }
    }

    fn now(&self) -> MutexGuard<'_, BoardState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether two reasons differ only in figures. A refusal names the room that is free just now, and
/// logging that at every attempt has no value.
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
