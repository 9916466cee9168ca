//! Values as a table of the configuration has them: with their place, or a word in their place.
//!
//! Promise: a word or a form that a key does not have is an error with what to write instead.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use toml::Spanned;

use super::units::{Quantity, Value};

/// A key whose place is needed for messages.
pub type SpannedKey<T> = Option<Spanned<T>>;

/// A value that the operator has given, or that is determined at start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Auto<T> {
    /// Determined at start.
    Auto,
    /// Given.
    Set(T),
}

impl<T> Auto<T> {
    /// The given value, or the result of `found`.
    pub fn or_else(self, found: impl FnOnce() -> T) -> T {
        match self {
            Self::Auto => found(),
            Self::Set(value) => value,
        }
    }
}

/// One string, or a list of them.
#[derive(Clone, Debug)]
pub struct OneOrMore(pub Vec<String>);

/// A value, or a word in its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Switch<T> {
    /// `"auto"`: determined at start.
    Auto,
    /// `"off"`.
    Off,
    /// `"max"`: without a limit.
    Max,
    /// A value.
    Value(T),
}

impl<'de> Deserialize<'de> for OneOrMore {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = OneOrMore;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an address, or a list of addresses")
            }

            fn visit_str<E: de::Error>(self, one: &str) -> Result<OneOrMore, E> {
                Ok(OneOrMore(vec![one.into()]))
            }

            /// A port number alone is also an address.
            fn visit_i64<E: de::Error>(self, one: i64) -> Result<OneOrMore, E> {
                Ok(OneOrMore(vec![one.to_string()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<OneOrMore, A::Error> {
                let mut all = Vec::new();
                while let Some(one) = list.next_element()? {
                    all.push(one);
                }
                Ok(OneOrMore(all))
            }
        }
        from.deserialize_any(Reader)
    }
}

/// A type whose values may stand in place of a word.
pub trait SwitchValue: Sized {
    /// Writes the expected forms, for messages.
    fn expecting(f: &mut fmt::Formatter<'_>) -> fmt::Result;

    /// From a string other than the words.
    ///
    /// # Errors
    /// When the string is invalid.
    fn from_text<E: de::Error>(text: &str) -> Result<Self, E>;

    /// From a whole number.
    ///
    /// # Errors
    /// When the number is invalid.
    fn from_number<E: de::Error>(number: i64) -> Result<Self, E>;
}

impl<Q: Quantity> SwitchValue for Value<Q> {
    fn expecting(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with its unit, like \"{}\"", Q::WHAT, Q::EXAMPLE)
    }

    fn from_text<E: de::Error>(text: &str) -> Result<Self, E> {
        super::units::read(text).map(Value).map_err(E::custom)
    }

    fn from_number<E: de::Error>(number: i64) -> Result<Self, E> {
        Self::from_text(&number.to_string())
    }
}

impl SwitchValue for String {
    fn expecting(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn from_text<E: de::Error>(text: &str) -> Result<Self, E> {
        Ok(text.into())
    }

    fn from_number<E: de::Error>(number: i64) -> Result<Self, E> {
        Err(E::custom(format_args!("{number} is a number; write a string in quotes")))
    }
}

impl SwitchValue for u32 {
    fn expecting(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number")
    }

    fn from_text<E: de::Error>(text: &str) -> Result<Self, E> {
        Err(E::custom(format_args!("{text:?} is not a whole number; write it without quotes")))
    }

    fn from_number<E: de::Error>(number: i64) -> Result<Self, E> {
        Self::try_from(number).map_err(|_| {
            E::custom(format_args!("{number} is out of range; write 0 to {}", Self::MAX))
        })
    }
}

/// A switch with words only.
impl SwitchValue for de::IgnoredAny {
    fn expecting(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"auto\" or \"off\"")
    }

    fn from_text<E: de::Error>(text: &str) -> Result<Self, E> {
        Err(E::custom(format_args!(
            "{text:?} is not a value of this key; write \"auto\" or \
            \"off\""
        )))
    }

    fn from_number<E: de::Error>(number: i64) -> Result<Self, E> {
        Self::from_text(&number.to_string())
    }
}

impl<'de, T: SwitchValue> Deserialize<'de> for Switch<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader<T>(PhantomData<T>);
        impl<T: SwitchValue> Visitor<'_> for Reader<T> {
            type Value = Switch<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                T::expecting(f)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Switch<T>, E> {
                match text {
                    "auto" => Ok(Switch::Auto),
                    "off" => Ok(Switch::Off),
                    "max" => Ok(Switch::Max),
                    _ => T::from_text(text).map(Switch::Value),
                }
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Switch<T>, E> {
                T::from_number(number).map(Switch::Value)
            }
        }
        from.deserialize_any(Reader(PhantomData))
    }
}
