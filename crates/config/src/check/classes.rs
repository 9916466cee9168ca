//! Checks `[[class]]` and sorts each class after its parent.

use std::collections::HashMap;

use tactus_control::class::Classes;
use tactus_control::class::raw::{self, RawClass};
use tactus_control::settings::{GapFrames, Link};
use tactus_core::classes::ClassNumber;
use tactus_core::pacer::DEPTH_MAX;
use tactus_core::units::BitRate;
use tactus_notation::Auto;
use tactus_notation::checks::{Checked, PLAIN_NAME, is_plain_name};
use tactus_notation::error::Mistake;
use tactus_notation::units::exact;
use toml::Spanned;

/// Upper bound of the configured classes: one for each of a country's channels, with 6 KB each.
const CLASSES_MAX: usize = 1000;

/// Checks all classes, and sorts each after its parent.
pub(super) fn classes(
    written: Vec<RawClass>,
    link: &Link,
    gap_frames: Option<&GapFrames>,
) -> Checked<Classes> {
    let mut spans = HashMap::new();
    for class in &written {
        let (name, span) = (class.name.get_ref(), class.name.span());
        if !is_plain_name(name) {
            return Err(Mistake::at(span, PLAIN_NAME));
        }
        if spans.insert(name.clone(), span.clone()).is_some() {
            let message = format!("the class {name:?} is defined twice; give each its own name");
            return Err(Mistake::at(span, message));
        }
        if spans.len() > CLASSES_MAX {
            return Err(Mistake::at(span, format!("write {CLASSES_MAX} classes at most")));
        }
    }
    let mut left = written;
    let mut classes = Classes::default();
    // One level of the hierarchy after another.
    for depth in 0..=DEPTH_MAX {
        let mut behind = vec![];
        let known = classes.0.len();
        for written in left {
            let parent = written.parent.as_ref();
            if let Some(parent) = parent
                && !spans.contains_key(parent.get_ref())
            {
                let message =
                    format!("there is no class {:?}; write one of them", parent.get_ref());
                return Err(Mistake::at(parent.span(), message));
            }
            let above = parent.map(|parent| {
                classes.0[..known].iter().position(|class| class.name == *parent.get_ref())
            });
            match above {
                Some(None) => behind.push(written),
                above => {
                    // Streams are a level of their own.
                    if depth + 1 >= DEPTH_MAX {
                        let message =
                            format!("classes may be nested at most {} deep", DEPTH_MAX - 1);
                        return Err(Mistake::at(written.name.span(), message));
                    }
                    let parent = above.flatten().map(|at| ClassNumber(at as u16));
                    classes.0.push(raw::check(written, parent)?);
                }
            }
        }
        left = behind;
    }
    if let Some(circle) = left.first() {
        let span = circle.parent.as_ref().map_or(circle.name.span(), Spanned::span);
        return Err(Mistake::at(span, "a class cannot be its own parent; name another one"));
    }
    if let Err((number, message)) = classes.check() {
        let name = &classes.0[number.index()].name;
        return Err(Mistake::at(spans[name].clone(), message));
    }
    let of_link = match link.rate {
        Auto::Set(rate) => Some((rate, "`[link]` rate")),
        Auto::Auto => None,
    };
    let kept_full = gap_frames.map(|gaps| (gaps.rate, "`[gap_frames]` rate"));
    let narrowest = of_link.into_iter().chain(kept_full).min_by_key(|&(rate, _)| rate);
    if let (Some((rate, key)), Some(first)) = (narrowest, classes.0.first()) {
        let room = BitRate(link.budget.of(rate.0));
        let all = classes.guaranteed(None);
        if all > room {
            let message = format!(
                "classes are guaranteed {} together, and their link has {} for streams ({key}, \
                 `[link]` budget)",
                exact(all),
                exact(room)
            );
            return Err(Mistake::at(spans[&first.name].clone(), message));
        }
    }
    Ok(classes)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tactus_control::class::Class;
    use tactus_core::units::Nanos;

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
            assert_eq!(Class::parse(&again, &classes).as_ref(), Ok(class));
        }
        let twice = |keys: &str| Class::parse(&format!("name = \"a\"\n{keys}"), &classes);
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
