//! `[[class]]`: parts of the link, for channels and RTSP.
//!
//! Promise: each class follows its parent, and the guarantees of its children fit into its own
//! guarantee.

pub mod raw;

use serde_json::{Map, Value};
use tactus_core::classes::{ClassLimits, ClassNumber};
use tactus_core::pacer;
use tactus_core::units::{BitRate, Nanos};

use tactus_notation::units::exact;
use tactus_notation::{ConfigError, checks};

/// One class. Its rates include everything on the wire.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Class {
    /// The name that channels refer to.
    pub name: String,
    /// The parent class; none: the link itself.
    pub parent: Option<ClassNumber>,
    /// The rate that it always has.
    pub guaranteed: BitRate,
    /// The rate that it never exceeds.
    pub ceiling: Option<BitRate>,
    /// Order of borrowing among siblings: smaller numbers borrow first.
    pub priority: u8,
    /// Its weight among siblings of the same priority that borrow.
    pub share: BitRate,
    /// Whether the reservations of its streams may exceed its ceiling.
    pub is_oversubscribed: bool,
    /// How long datagrams of its streams may be gathered, at most.
    pub burst: Nanos,
    /// The DSCP of streams without a DSCP of their own.
    pub dscp: Option<u8>,
}

impl Class {
    /// Checks `text`, the content of one `[[class]]`, against the existing classes `known`.
    ///
    /// # Errors
    /// The first mistake, with line and column.
    pub fn parse(text: &str, known: &Classes) -> Result<Self, ConfigError> {
        checks::table(text, "class", |raw| raw::one(raw, known))
    }

    /// Its form for admission.
    pub const fn limits(&self) -> ClassLimits {
        let Self { parent, guaranteed, ceiling, is_oversubscribed, .. } = *self;
        ClassLimits { parent, guaranteed, ceiling, is_oversubscribed }
    }

    /// Its form for the pacer.
    pub const fn paced(&self) -> pacer::Class {
        let Self { guaranteed, ceiling, priority, share, .. } = *self;
        pacer::Class { guaranteed, ceiling, priority, share }
    }

    /// The first key that differs from `other` and needs a restart: every key except rates and
    /// priority.
    pub fn fixed_unlike(&self, other: &Self) -> Option<&'static str> {
        [
            ("name", self.name != other.name),
            ("parent", self.parent != other.parent),
            ("oversubscribe", self.is_oversubscribed != other.is_oversubscribed),
            ("burst", self.burst != other.burst),
            ("dscp", self.dscp != other.dscp),
        ]
        .into_iter()
        .find_map(|(key, is_other)| is_other.then_some(key))
    }
}

/// The default share of a class: its guarantee, or its ceiling.
fn share_of(guaranteed: BitRate, ceiling: Option<BitRate>) -> BitRate {
    Some(guaranteed).filter(|&rate| rate > BitRate(0)).or(ceiling).unwrap_or(SHARE)
}

/// The share of a class with neither a guarantee nor a ceiling.
const SHARE: BitRate = BitRate(1_000_000);

/// The names of the keys that need a restart.
pub const FIXED: [&str; 5] = ["name", "parent", "oversubscribe", "burst", "dscp"];

/// All classes, each after its parent.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Classes(pub Vec<Class>);

/// How the datagrams of a stream are sent, by its own keys and the limits of its class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendOptions {
    /// Its class; none: the link itself.
    pub class: Option<ClassNumber>,
    /// How long the first of several datagrams may wait for the last of them.
    pub burst: Nanos,
    /// The DSCP, six bits.
    pub dscp: u8,
}

impl Classes {
    /// The class with this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<(ClassNumber, &Class)> {
        let at = self.0.iter().position(|class| class.name == name)?;
        Some((ClassNumber(at as u16), &self.0[at]))
    }

    /// Checks that each guarantee covers those of the classes below it.
    ///
    /// # Errors
    /// The first class whose guarantee is too small, with the message.
    pub fn check(&self) -> Result<(), (ClassNumber, String)> {
        for (at, class) in self.0.iter().enumerate() {
            let number = ClassNumber(at as u16);
            let below = self.guaranteed(Some(number));
            if below > class.guaranteed {
                let message = format!(
                    "the classes below {:?} are guaranteed {}, which is more than its own {}",
                    class.name,
                    exact(below),
                    exact(class.guaranteed)
                );
                return Err((number, message));
            }
        }
        Ok(())
    }

    /// The sum of the guarantees of a class's children; none: of the top classes.
    #[must_use]
    pub fn guaranteed(&self, parent: Option<ClassNumber>) -> BitRate {
        let children = self.0.iter().filter(|class| class.parent == parent);
        BitRate(children.map(|class| class.guaranteed.0).sum())
    }

    /// The keys of a class, as in `[[class]]`.
    #[must_use]
    pub fn keys(&self, class: &Class) -> Map<String, Value> {
        let Class { name, parent, guaranteed, ceiling, .. } = class;
        let parent = parent.map(|parent| self.0[parent.index()].name.clone());
        let share = Some(class.share).filter(|&share| share != share_of(*guaranteed, *ceiling));
        let all = [
            ("name", Some(name.clone().into())),
            ("parent", parent.map(Value::from)),
            ("guaranteed", Some(exact(*guaranteed).into())),
            ("ceiling", ceiling.map(|ceiling| exact(ceiling).into())),
            ("priority", Some(class.priority.into())),
            ("share", share.map(|share| exact(share).into())),
            ("oversubscribe", Some(class.is_oversubscribed.into())),
            ("burst", Some(exact(class.burst).into())),
            ("dscp", class.dscp.map(Value::from)),
        ];
        all.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
    }

    /// How the datagrams of a stream in `class` are sent, with its own `burst` and `dscp`.
    ///
    /// # Errors
    /// The values are not permitted; the message says what to write instead.
    pub fn send_options(
        &self,
        class: Option<&str>,
        burst: Option<Nanos>,
        dscp: Option<u8>,
    ) -> Result<SendOptions, String> {
        let Some(name) = class else {
            let (burst, dscp) = (burst.unwrap_or(Nanos(0)), dscp.unwrap_or(0));
            return Ok(SendOptions { class: None, burst, dscp });
        };
        let Some((number, class)) = self.find(name) else {
            let known: Vec<_> = self.0.iter().map(|class| class.name.as_str()).collect();
            return Err(match known.is_empty() {
                true => format!("there is no class {name:?}; add a [[class]]"),
                false => format!("there is no class {name:?}, but {}", known.join(", ")),
            });
        };
        let burst = burst.unwrap_or(class.burst);
        if burst > class.burst {
            return Err(format!(
                "the class {name:?} allows bursts of at most {}",
                exact(class.burst)
            ));
        }
        Ok(SendOptions { class: Some(number), burst, dscp: dscp.or(class.dscp).unwrap_or(0) })
    }
}
