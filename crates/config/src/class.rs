//! `[[class]]`: parts of the link, for channels and RTSP.
//!
//! Promise: each class follows its parent, and the guarantees of its children fit into its own
//! guarantee.

use serde_json::{Map, Value};
use tactus_core::classes::{ClassLimits, ClassNumber};
use tactus_core::pacer;
use tactus_core::units::{BitRate, Nanos};

use tactus_notation::units::exact;

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
pub(super) fn share_of(guaranteed: BitRate, ceiling: Option<BitRate>) -> BitRate {
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
    pub(super) fn guaranteed(&self, parent: Option<ClassNumber>) -> BitRate {
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::Config;

    fn read(text: &str) -> Result<Config, String> {
        Config::parse(Path::new("test.toml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn classes_stand_behind_their_parents_and_streams_have_what_they_allow() {
        let text = "[[class]]\nname = \"gold\"\nparent = \"house\"\nguaranteed = \"60 Mbit/s\"\n\
                    burst = \"4 ms\"\ndscp = 34\n\
                    [[class]]\nname = \"rest\"\nparent = \"house\"\nceiling = \"20 Mbit/s\"\n\
                    priority = 7\noversubscribe = true\n\
                    [[class]]\nname = \"house\"\nguaranteed = \"80 Mbit/s\"\n\
                    ceiling = \"100 Mbit/s\"\n\
                    [[channel]]\nname = \"a\"\ntitle = \"/a.ts\"\nto = \"udp://239.1.1.1:5000\"\n\
                    class = \"gold\"\n";
        let config = read(text).expect("it is right");
        let names: Vec<_> = config.classes.0.iter().map(|class| class.name.as_str()).collect();
        assert_eq!(names, ["house", "gold", "rest"]);
        let (number, gold) = config.classes.find("gold").expect("it is there");
        assert_eq!((number, gold.parent), (ClassNumber(1), Some(ClassNumber(0))));
        assert_eq!((gold.share, gold.ceiling), (BitRate(60_000_000), None));
        let (_, rest) = config.classes.find("rest").expect("it is there");
        assert_eq!((rest.share, rest.priority), (BitRate(20_000_000), 7));
        let of = |class: Option<&str>, burst: Option<u64>, dscp| {
            let send_options =
                config.classes.send_options(class, burst.map(Nanos::from_millis), dscp);
            send_options.map(|send_options| {
                (send_options.class.map(|class| class.0), send_options.burst, send_options.dscp)
            })
        };
        assert_eq!(of(None, None, None), Ok((None, Nanos(0), 0)));
        assert_eq!(of(None, Some(40), Some(9)), Ok((None, Nanos::from_millis(40), 9)));
        assert_eq!(of(Some("gold"), None, None), Ok((Some(1), Nanos::from_millis(4), 34)));
        assert_eq!(of(Some("gold"), Some(2), Some(0)), Ok((Some(1), Nanos::from_millis(2), 0)));
        assert!(of(Some("gold"), Some(5), None).unwrap_err().contains("4 ms"));
        assert!(of(Some("silver"), None, None).unwrap_err().contains("house, gold, rest"));
    }

    #[test]
    fn a_class_is_the_same_when_its_keys_are_read_again() {
        let text = "[[class]]\nname = \"house\"\nguaranteed = \"80 Mbit/s\"\n\
                    [[class]]\nname = \"a\"\nparent = \"house\"\nguaranteed = \"6 Mbit/s\"\n\
                    burst = \"4 ms\"\ndscp = 34\n\
                    [[class]]\nname = \"b\"\nceiling = \"2500 kbit/s\"\noversubscribe = true\n\
                    share = \"7 Mbit/s\"\npriority = 3\n\
                    [[class]]\nname = \"c\"\n";
        let classes = read(text).expect("it is right").classes;
        for class in &classes.0 {
            let again = toml::to_string(&classes.keys(class)).expect("plain values");
            assert_eq!(Config::parse_class(&again, &classes).as_ref(), Ok(class));
        }
        let twice = |keys: &str| Config::parse_class(&format!("name = \"a\"\n{keys}"), &classes);
        let other =
            twice("parent = \"house\"\nburst = \"4 ms\"\ndscp = 34\nguaranteed = \"9 Mbit/s\"\n");
        let (other, known) =
            (other.expect("it is right"), classes.find("a").expect("it is there").1);
        assert_eq!((other.share, other.fixed_unlike(known)), (BitRate(9_000_000), None));
        assert_eq!(twice("").expect("it is right").fixed_unlike(known), Some("parent"));
        assert!(twice("ceiling = \"1 Gbps\"\npace = 3\n").is_err());
        assert!(
            twice("parent = \"none\"\n")
                .expect_err("unknown")
                .to_string()
                .contains("no class \"none\"")
        );
    }

    #[test]
    fn what_cannot_be_kept_is_a_mistake() {
        let class = |keys: &str| format!("[[class]]\nname = \"a\"\n{keys}");
        for (text, said) in [
            (class("parent = \"b\"\n"), "no class \"b\""),
            (class("parent = \"a\"\n"), "its own parent"),
            (class("guaranteed = \"2 Mbit/s\"\nceiling = \"1 Mbit/s\"\n"), "below its guarantee"),
            (class("oversubscribe = true\n"), "ceiling"),
            (class("priority = 8\n"), "8"),
            (class("burst = \"41 ms\"\n"), "41 ms"),
            (class("") + &class(""), "defined twice"),
            (
                class("guaranteed = \"1 Mbit/s\"\n")
                    + "[[class]]\nname = \"b\"\nparent = \"a\"\nguaranteed = \"2 Mbit/s\"\n",
                "guaranteed",
            ),
            (
                class("parent = \"b\"\n") + "[[class]]\nname = \"b\"\nparent = \"a\"\n",
                "its own parent",
            ),
            (
                "[link]\nrate = \"10 Mbit/s\"\n".to_owned()
                    + &class("guaranteed = \"10 Mbit/s\"\n"),
                "`[link]` rate",
            ),
            (
                "[gap_frames]\ndevice = \"eth7\"\nrate = \"10 Mbit/s\"\n".to_owned()
                    + &class("guaranteed = \"10 Mbit/s\"\n"),
                "`[gap_frames]` rate",
            ),
            (
                "[[channel]]\nname = \"a\"\ntitle = \"/a.ts\"\nto = \"udp://239.1.1.1:5000\"\n\
                 class = \"x\"\n"
                    .into(),
                "no class \"x\"",
            ),
            (class("") + "[rtsp]\nclass = \"a\"\nburst = \"1 ms\"\n", "allows bursts of"),
        ] {
            let error = read(&text).expect_err(&text);
            assert!(error.contains(said), "{text}: {error}");
        }
        // Nine nested classes.
        let mut deep = class("");
        for at in 1..9 {
            let parent = if at == 1 { "a".to_owned() } else { format!("c{}", at - 1) };
            deep += &format!("[[class]]\nname = \"c{at}\"\nparent = \"{parent}\"\n");
        }
        assert!(read(&deep).expect_err("too deep").contains("deep"));
    }
}
