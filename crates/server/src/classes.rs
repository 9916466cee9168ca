//! The classes of the link as they are now: told to whoever asks, and changed while streams run.
//!
//! Promise: a change is in force as a whole or not at all, and takes from no stream what it has been promised; what was
//! carried is what the pacer has counted, of the last whole second; all rates are of what is on the wire. It keeps no
//! change: the next start, and whoever reads the configuration again, goes by that.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde_json::{Map, Value};
use tactus_core::classes::ClassNumber;
use tactus_core::ledger::Resource;
use tactus_engine::counters::ClassCounters;
use tactus_engine::message::ClassChange;

use crate::broker::{Broker, ClassUse, Unchanged};
use crate::config::Config;
use crate::config::class::{self, Class, FIXED};

/// All classes of a server's link.
#[derive(Clone)]
pub struct Classes {
    inner: Arc<Inner>,
}

struct Inner {
    broker: Broker,
    counters: Arc<[ClassCounters]>,
    /// As they are configured; what of it counts from the start on stays.
    configured: Mutex<class::Classes>,
    /// As they are.
    now: Mutex<class::Classes>,
}

/// One of them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Status {
    /// How it is called.
    pub name: String,
    /// The class that it is a part of; none: the link itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// What it has whatever others ask for.
    pub guaranteed_bits_per_second: u64,
    /// What it never exceeds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ceiling_bits_per_second: Option<u64>,
    /// Who borrows first among siblings: smaller numbers.
    pub priority: u8,
    /// Its part of what is lent, against siblings of the same priority.
    pub share_bits_per_second: u64,
    /// Its streams share its ceiling.
    pub oversubscribed: bool,
    /// How many streams there are in it, and in the classes below it.
    pub streams: u32,
    /// What its streams, and the classes below it, are promised.
    pub promised_bits_per_second: u64,
    /// What left.
    pub real_rate_bits_per_second: u64,
    /// What of it was beyond its guarantee.
    pub borrowed_bits_per_second: u64,
    /// What of its guarantee others may use.
    pub lent_bits_per_second: u64,
    /// What has left since the start.
    pub sent_bytes: u64,
    /// What of it was beyond its guarantee.
    pub borrowed_bytes: u64,
    /// It is not as it is configured.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub changed: bool,
}

/// Why a class stays as it is.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ClassError {
    /// Nobody is called so.
    #[error("no class has this name")]
    Unknown,
    /// What is asked for makes no sense.
    #[error("{0}")]
    Wrong(String),
    /// This key counts from a start on.
    #[error("`{0}` of the class {1:?} needs a restart; its rates and its priority change at once")]
    Fixed(&'static str, String),
    /// What is promised would not fit.
    #[error("{message}")]
    NoRoom {
        /// What is short.
        resource: Resource,
        /// One sentence for people.
        message: String,
    },
    /// What was asked for before is not done yet.
    #[error("{0}")]
    Busy(String),
}

impl From<Unchanged> for ClassError {
    fn from(unchanged: Unchanged) -> Self {
        match unchanged {
            Unchanged::NoRoom { resource, message } => Self::NoRoom { resource, message },
            Unchanged::Busy => Self::Busy(unchanged.to_string()),
        }
    }
}

impl Classes {
    /// Those of `config`, which `broker` has taken into its books and the engine counts for in `counters`.
    pub fn new(config: &Config, broker: &Broker, counters: &Arc<[ClassCounters]>) -> Self {
        let (broker, counters) = (broker.clone(), Arc::clone(counters));
        let [configured, now] = [(); 2].map(|()| Mutex::new(config.classes.clone()));
        Self { inner: Arc::new(Inner { broker, counters, configured, now }) }
    }

    /// All of them, each behind its parent.
    #[must_use]
    pub fn all(&self) -> Vec<Status> {
        let now = self.inner.now();
        let each = now.0.iter().zip(self.inner.broker.classes()).zip(&*self.inner.counters);
        let configured = self.inner.configured();
        let each = each.zip(&configured.0);
        each.map(|(((class, used), counters), configured)| {
            let changed = class != configured;
            Status { changed, ..status(&now, class, used, counters) }
        })
        .collect()
    }

    /// One of them.
    #[must_use]
    pub fn one(&self, name: &str) -> Option<Status> {
        self.all().into_iter().find(|one| one.name == name)
    }

    /// Has a class be as `keys` of `[[class]]` say, or with `is_patch` only otherwise in those: `null` takes one away.
    ///
    /// # Errors
    /// Why not; then nothing has changed.
    pub fn set(
        &self,
        name: &str,
        keys: Map<String, Value>,
        is_patch: bool,
    ) -> Result<(), ClassError> {
        let mut now = self.inner.now();
        let (number, known) = now.find(name).ok_or(ClassError::Unknown)?;
        let mut all = now.keys(known);
        if !is_patch {
            all.retain(|key, _| FIXED.contains(&&**key));
        }
        all.extend(keys);
        all.retain(|_, value| !value.is_null());
        let text = toml::to_string(&all).map_err(|error| format!("invalid value: {error}"));
        let class = text
            .and_then(|text| Config::parse_class(&text, &now).map_err(|error| error.to_string()));
        let class = class.map_err(ClassError::Wrong)?;
        if let Some(key) = class.fixed_unlike(known) {
            return Err(ClassError::Fixed(key, name.to_owned()));
        }
        let mut to = now.clone();
        to.0[number.index()] = class;
        self.inner.put(&mut now, to).map(drop)
    }

    /// Has each have the rates and the priority that it has in `configured`, which may have others, and less: those
    /// stay away, and stay. Which have changed.
    ///
    /// # Errors
    /// Why not; then nothing has changed.
    pub fn configure(&self, configured: &class::Classes) -> Result<Vec<String>, ClassError> {
        let mut now = self.inner.now();
        let mut to = now.clone();
        for class in &mut to.0 {
            if let Some((_, other)) = configured.find(&class.name) {
                let Class { guaranteed, ceiling, priority, share, .. } = *other;
                *class = Class { guaranteed, ceiling, priority, share, ..class.clone() };
            }
        }
        let changed = self.inner.put(&mut now, to.clone())?;
        *self.inner.configured() = to;
        Ok(changed.into_iter().map(|name| format!("class {name:?}")).collect())
    }
}

impl Inner {
    fn now(&self) -> MutexGuard<'_, class::Classes> {
        // It is replaced as a whole.
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn configured(&self) -> MutexGuard<'_, class::Classes> {
        self.configured.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes those of `now` that are not as `to` says: these.
    fn put(&self, now: &mut class::Classes, to: class::Classes) -> Result<Vec<String>, ClassError> {
        to.check().map_err(|(_, said)| {
            let message = format!("nothing is changed: {said}");
            ClassError::NoRoom { resource: Resource::Class, message }
        })?;
        let numbered = (0u16..).map(ClassNumber).zip(now.0.iter().zip(&to.0));
        let others = numbered.filter(|(_, (before, after))| before.paced() != after.paced());
        let changes: Vec<_> =
            others.map(|(number, (_, to))| ClassChange { number, to: to.paced() }).collect();
        if changes.is_empty() {
            return Ok(vec![]);
        }
        self.broker.change_classes(to.0.iter().map(Class::terms).collect(), &changes)?;
        for ClassChange { number, .. } in &changes {
            let (before, after) = (&now.0[number.index()], &to.0[number.index()]);
            tracing::info!(
                class = after.name,
                guaranteed = %after.guaranteed,
                ceiling = after.ceiling.map(tracing::field::display),
                priority = after.priority,
                guaranteed_before = %before.guaranteed,
                ceiling_before = before.ceiling.map(tracing::field::display),
                "a class has changed"
            );
        }
        *now = to;
        Ok(changes.iter().map(|change| now.0[change.number.index()].name.clone()).collect())
    }
}

impl fmt::Debug for Classes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.inner.now().0.iter().map(|class| class.name.clone()).collect();
        f.debug_tuple("Classes").field(&names).finish()
    }
}

fn status(
    classes: &class::Classes,
    class: &Class,
    ClassUse { promised, streams }: ClassUse,
    counters: &ClassCounters,
) -> Status {
    let carried = counters.second_bytes.value() * 8;
    let borrowed = counters.second_borrowed.value() * 8;
    Status {
        name: class.name.clone(),
        parent: class.parent.map(|parent| classes.0[parent.index()].name.clone()),
        guaranteed_bits_per_second: class.guaranteed.0,
        ceiling_bits_per_second: class.ceiling.map(|ceiling| ceiling.0),
        priority: class.priority,
        share_bits_per_second: class.share.0,
        oversubscribed: class.is_oversubscribed,
        streams,
        promised_bits_per_second: promised.0,
        real_rate_bits_per_second: carried,
        borrowed_bits_per_second: borrowed,
        // The two are told one after the other.
        lent_bits_per_second: class.guaranteed.0.saturating_sub(carried.saturating_sub(borrowed)),
        sent_bytes: counters.bytes.value(),
        borrowed_bytes: counters.borrowed.value(),
        changed: false,
    }
}
