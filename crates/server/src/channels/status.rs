//! What a channel says of itself.

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tactus_core::units::BitRate;

use crate::broker::Broker;
use crate::config::channel::Channel;

/// What goes on.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Debug)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Something is missing, or there is no room; tried again.
    #[default]
    Waiting,
    /// It is sent.
    Running,
    /// It has come to its end.
    Ended,
}

/// One channel as it is now.
#[derive(Clone, PartialEq, Serialize, Debug)]
pub struct Status {
    /// How it is called.
    pub name: String,
    /// Its title's path.
    pub title: String,
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
    /// Payload since it began.
    pub sent_bytes: u64,
    /// Messages whose bytes were not there in time.
    pub underruns: u64,
    /// The latest message.
    pub lateness_max_seconds: f64,
    /// How often it has begun.
    pub starts: u64,
}

/// Where a channel's state is written.
pub(super) struct Board {
    pub(super) channel: Channel,
    now: Mutex<Now>,
}

#[derive(Clone, Default)]
struct Now {
    state: State,
    reason: Option<String>,
    place: Option<u32>,
    rate: Option<BitRate>,
    starts: u64,
}

impl Board {
    pub(super) fn new(channel: Channel) -> Self {
        Self { channel, now: Mutex::default() }
    }

    pub(super) fn begin(&self, place: u32, rate: BitRate) {
        let mut now = self.now();
        let starts = now.starts + 1;
        let (state, reason) = (State::Running, None);
        *now = Now { state, reason, place: Some(place), rate: Some(rate), starts };
    }

    pub(super) fn wait(&self, reason: String) {
        let mut now = self.now();
        if now.reason.as_ref() != Some(&reason) {
            tracing::warn!(channel = self.channel.name, reason, "it is not sent");
        }
        *now = Now {
            state: State::Waiting,
            reason: Some(reason),
            starts: now.starts,
            ..Now::default()
        };
    }

    pub(super) fn end(&self) {
        let mut now = self.now();
        *now = Now { state: State::Ended, starts: now.starts, ..Now::default() };
    }

    pub(super) fn read(&self, broker: &Broker) -> Status {
        let Now { state, reason, place, rate, starts } = self.now().clone();
        let counters = place.and_then(|place| broker.counters_of(place));
        let count =
            |which: fn(&tactus_engine::counters::StreamCounters) -> u64| counters.map_or(0, which);
        Status {
            name: self.channel.name.clone(),
            title: self.channel.title.clone(),
            to: self.channel.to.to_string(),
            state,
            reason,
            set_rate_bits_per_second: rate.map(|rate| rate.0),
            real_rate_bits_per_second: count(|each| each.second_bytes.value() * 8),
            sent_bytes: count(|each| each.bytes.value()),
            underruns: count(|each| each.underruns.value()),
            lateness_max_seconds: count(|each| each.lateness_max.value()) as f64 / 1e9,
            starts,
        }
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
