//! The current link classes, which can be changed while streams run.
//!
//! Promise: a change takes effect as a whole or not at all, and takes no reserved rate from a
//! stream. The carried rates are those of the pacer's last full second. All rates include packet
//! overhead. Changes are not saved: a restart or a reload applies the configuration.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde_json::{Map, Value};
use tactus_control::broker::{Broker, ClassUse, ClassesError};
use tactus_control::class::{self, Class, FIXED};
use tactus_core::classes::ClassNumber;
use tactus_core::ledger::Resource;
use tactus_engine::counters::ClassCounters;
use tactus_engine::message::ClassChange;

/// All classes of the link.
#[derive(Clone)]
pub struct Classes {
    inner: Arc<Inner>,
}

struct Inner {
    broker: Broker,
    counters: Arc<[ClassCounters]>,
    /// The configured classes. The settings that need a restart stay.
    configured: Mutex<class::Classes>,
    /// The current classes.
    now: Mutex<class::Classes>,
}

/// The status of one class.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Status {
    /// The name.
    pub name: String,
    /// The parent class; `None`: the link itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// The guaranteed rate.
    pub guaranteed_bits_per_second: u64,
    /// The rate that it never exceeds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ceiling_bits_per_second: Option<u64>,
    /// The order of borrowing among siblings: smaller numbers first.
    pub priority: u8,
    /// Its share of the lent rate against siblings of the same priority.
    pub share_bits_per_second: u64,
    /// Its streams share its ceiling.
    pub oversubscribed: bool,
    /// The number of streams in it and in the classes below it.
    pub streams: u32,
    /// The reserved rate of its streams and of the classes below it.
    pub promised_bits_per_second: u64,
    /// The sent rate.
    pub real_rate_bits_per_second: u64,
    /// The part of it beyond the guarantee.
    pub borrowed_bits_per_second: u64,
    /// The part of the guarantee that other classes may use.
    pub lent_bits_per_second: u64,
    /// Bytes sent since the start.
    pub sent_bytes: u64,
    /// The part of them beyond the guarantee.
    pub borrowed_bytes: u64,
    /// It differs from the configuration.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub changed: bool,
}

/// Why a class is not changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ClassError {
    /// No class has this name.
    #[error("no class has this name")]
    Unknown,
    /// The request is invalid.
    #[error("{0}")]
    Wrong(String),
    /// This key needs a restart.
    #[error("`{0}` of the class {1:?} needs a restart; its rates and its priority change at once")]
    Fixed(&'static str, String),
    /// The reservations would not fit.
    #[error("{message}")]
    NoRoom {
        /// The short resource.
        resource: Resource,
        /// One sentence for people.
        message: String,
    },
    /// A previous change is pending.
    #[error("{0}")]
    Busy(String),
}

impl From<ClassesError> for ClassError {
    fn from(unchanged: ClassesError) -> Self {
        match unchanged {
            ClassesError::NoRoom { resource, message } => Self::NoRoom { resource, message },
            ClassesError::Busy => Self::Busy(unchanged.to_string()),
        }
    }
}

impl Classes {
    /// The `configured` classes, which `broker` knows and which the engine counts in `counters`.
    pub fn new(
        configured: &class::Classes,
        broker: &Broker,
        counters: &Arc<[ClassCounters]>,
    ) -> Self {
        let (broker, counters) = (broker.clone(), Arc::clone(counters));
        let [configured, now] = [(); 2].map(|()| Mutex::new(configured.clone()));
        Self { inner: Arc::new(Inner { broker, counters, configured, now }) }
    }

    /// All classes, each after its parent.
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

    /// The class with this name.
    #[must_use]
    pub fn one(&self, name: &str) -> Option<Status> {
        self.all().into_iter().find(|one| one.name == name)
    }

    /// Sets a class to `keys` of `[[class]]`; with `is_patch` only those keys change, and `null`
    /// removes one.
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
        let class =
            text.and_then(|text| Class::parse(&text, &now).map_err(|error| error.to_string()));
        let class = class.map_err(ClassError::Wrong)?;
        if let Some(key) = class.fixed_unlike(known) {
            return Err(ClassError::Fixed(key, name.to_owned()));
        }
        let mut to = now.clone();
        to.0[number.index()] = class;
        self.inner.put(&mut now, to).map(drop)
    }

    /// Applies rates and priorities of `configured` to the existing classes; new and removed
    /// classes need a restart. Returns the changed classes.
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
        // Replaced as a whole.
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn configured(&self) -> MutexGuard<'_, class::Classes> {
        self.configured.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the classes of `now` that differ from `to`, and returns their names.
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
        self.broker.change_classes(to.0.iter().map(Class::limits).collect(), &changes)?;
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
        // The two counters are read one after the other.
        lent_bits_per_second: class.guaranteed.0.saturating_sub(carried.saturating_sub(borrowed)),
        sent_bytes: counters.bytes.value(),
        borrowed_bytes: counters.borrowed.value(),
        changed: false,
    }
}
