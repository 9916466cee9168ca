//! Values with units, as people write them: `"3.75 Mbit/s"`, `"500 ms"`, `"64 KiB"`, `"70 %"`.
//!
//! Promise: reading never rounds (a value finer than the base unit is an error), and the output of
//! [`exact`] reads back as the same value. There are no guesses: a number without its unit is an
//! error, and so is a unit in the wrong case (`mbit/s` would be a thousandth of a bit).

use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use tactus_core::units::{BitRate, Bytes, KIB, MIB, Nanos};

/// A share in hundredths of a percent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Percent(pub u64);

impl Percent {
    /// The whole.
    pub const WHOLE: Self = Self(10_000);

    /// A share of whole percents.
    pub const fn whole(percent: u64) -> Self {
        Self(percent * 100)
    }

    /// The share of `amount`. Rounds down.
    pub const fn of(self, amount: u64) -> u64 {
        (amount as u128 * self.0 as u128 / Self::WHOLE.0 as u128) as u64
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&exact(*self))
    }
}

/// A quantity that is written with a unit.
pub trait Quantity: Copy {
    /// Its name with an article, for messages: `a rate`.
    const WHAT: &'static str;
    /// An example, for messages.
    const EXAMPLE: &'static str;
    /// Names of its units and their size in the base unit, largest first. [`exact`] prints these.
    const UNITS: &'static [(&'static str, u64)];
    /// Other accepted names.
    const ALSO: &'static [(&'static str, u64)];

    /// The quantity of this many base units.
    fn from_base(base: u64) -> Self;
    /// Its size in base units.
    fn base(self) -> u64;
}

impl Quantity for BitRate {
    const WHAT: &'static str = "a rate";
    const EXAMPLE: &'static str = "8.8 Mbit/s";
    const UNITS: &'static [(&'static str, u64)] =
        &[("Gbit/s", 1_000_000_000), ("Mbit/s", 1_000_000), ("kbit/s", 1_000), ("bit/s", 1)];
    const ALSO: &'static [(&'static str, u64)] = &[
        ("Gbps", 1_000_000_000),
        ("Mbps", 1_000_000),
        ("kbps", 1_000),
        ("bps", 1),
        ("GB/s", 8_000_000_000),
        ("MB/s", 8_000_000),
        ("kB/s", 8_000),
        ("B/s", 8),
        ("GiB/s", 8 * 1024 * MIB),
        ("MiB/s", 8 * MIB),
        ("KiB/s", 8 * KIB),
    ];

    fn from_base(base: u64) -> Self {
        Self(base)
    }

    fn base(self) -> u64 {
        self.0
    }
}

impl Quantity for Bytes {
    const WHAT: &'static str = "a size";
    const EXAMPLE: &'static str = "256 KiB";
    const UNITS: &'static [(&'static str, u64)] =
        &[("TiB", MIB * MIB), ("GiB", 1024 * MIB), ("MiB", MIB), ("KiB", KIB), ("B", 1)];
    const ALSO: &'static [(&'static str, u64)] =
        &[("TB", 1_000_000_000_000), ("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1_000)];

    fn from_base(base: u64) -> Self {
        Self(base)
    }

    fn base(self) -> u64 {
        self.0
    }
}

impl Quantity for Nanos {
    const WHAT: &'static str = "a time";
    const EXAMPLE: &'static str = "500 ms";
    const UNITS: &'static [(&'static str, u64)] = &[
        ("h", 3_600_000_000_000),
        ("min", 60_000_000_000),
        ("s", 1_000_000_000),
        ("ms", 1_000_000),
        ("us", 1_000),
        ("ns", 1),
    ];
    const ALSO: &'static [(&'static str, u64)] = &[("µs", 1_000)];

    fn from_base(base: u64) -> Self {
        Self(base)
    }

    fn base(self) -> u64 {
        self.0
    }
}

impl Quantity for Percent {
    const WHAT: &'static str = "a share";
    const EXAMPLE: &'static str = "70 %";
    const UNITS: &'static [(&'static str, u64)] = &[("%", 100)];
    const ALSO: &'static [(&'static str, u64)] = &[];

    fn from_base(base: u64) -> Self {
        Self(base)
    }

    fn base(self) -> u64 {
        self.0
    }
}

/// Why a text is not a quantity. The message says what to write instead.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UnitError {
    /// It does not begin with a number.
    #[error("{text:?} is not {what}; write it like \"{example}\"")]
    NoNumber {
        /// The written text.
        text: String,
        /// The expected quantity.
        what: &'static str,
        /// An example.
        example: &'static str,
    },
    /// The unit is missing.
    #[error("{text:?} has no unit; write {what} like \"{example}\"")]
    NoUnit {
        /// The written text.
        text: String,
        /// The expected quantity.
        what: &'static str,
        /// An example.
        example: &'static str,
    },
    /// The unit is unknown, or belongs to another quantity.
    #[error("{unit:?} is not a unit of {what}; {advice}")]
    UnknownUnit {
        /// The written unit.
        unit: String,
        /// The expected quantity.
        what: &'static str,
        /// The most similar unit, or all units.
        advice: String,
    },
    /// A fraction of the smallest unit.
    #[error("{text:?} is finer than {smallest}; write a whole number of it")]
    TooFine {
        /// The written text.
        text: String,
        /// The smallest step.
        smallest: String,
    },
    /// More than 64 bits of the base unit.
    #[error("{text:?} is too large")]
    TooLarge {
        /// The written text.
        text: String,
    },
}

/// Reads a quantity: digits, an optional fraction, an optional space, a unit.
///
/// # Errors
/// When the text has another form, or cannot be represented exactly.
pub fn read<Q: Quantity>(text: &str) -> Result<Q, UnitError> {
    let trimmed = text.trim();
    let number_len =
        trimmed.bytes().position(|b| !b.is_ascii_digit() && b != b'.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(number_len);
    let unit = unit.trim_start();
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let no_number =
        || UnitError::NoNumber { text: text.into(), what: Q::WHAT, example: Q::EXAMPLE };
    let dot_is_misplaced = number.contains('.') && fraction.is_empty() || fraction.contains('.');
    if whole.is_empty() || dot_is_misplaced {
        return Err(no_number());
    }
    if unit.is_empty() && whole.bytes().chain(fraction.bytes()).any(|b| b != b'0') {
        return Err(UnitError::NoUnit { text: text.into(), what: Q::WHAT, example: Q::EXAMPLE });
    }
    let size = match unit {
        "" => 1, // zero needs no unit
        _ => unit_size::<Q>(unit)?,
    };
    let too_large = || UnitError::TooLarge { text: text.into() };
    let whole: u64 = whole.parse().map_err(|_| too_large())?;
    let mut base = u128::from(whole) * u128::from(size);
    let fraction = fraction.trim_end_matches('0');
    if !fraction.is_empty() {
        let too_fine =
            || UnitError::TooFine { text: text.into(), smallest: exact(Q::from_base(1)) };
        // No unit is larger than 2^43, so more than 19 decimals are always too fine.
        let digits: u64 = fraction.parse().map_err(|_| too_fine())?;
        let parts = 10u128.pow(fraction.len() as u32);
        let scaled = u128::from(digits) * u128::from(size);
        if !scaled.is_multiple_of(parts) {
            return Err(too_fine());
        }
        base += scaled / parts;
    }
    u64::try_from(base).map(Q::from_base).map_err(|_| too_large())
}

/// Reads a rate in the form of a query or the command line: `8800000`, `8.8M`, or with its unit.
///
/// # Errors
/// As [`read`].
pub fn read_short_rate(text: &str) -> Result<BitRate, UnitError> {
    let unit = match text.trim_end().bytes().last() {
        Some(b'0'..=b'9') => " bit/s",
        Some(b'k' | b'M' | b'G') => "bit/s",
        _ => "",
    };
    read(&format!("{text}{unit}")).map_err(|error| match error {
        // The error names the written text, not its expansion.
        UnitError::TooFine { smallest, .. } => UnitError::TooFine { text: text.into(), smallest },
        UnitError::NoNumber { what, example, .. } => {
            UnitError::NoNumber { text: text.into(), what, example }
        }
        UnitError::TooLarge { .. } => UnitError::TooLarge { text: text.into() },
        other => other,
    })
}

/// The size of the unit `name`, in base units.
fn unit_size<Q: Quantity>(name: &str) -> Result<u64, UnitError> {
    let all = || Q::UNITS.iter().chain(Q::ALSO);
    if let Some((_, size)) = all().find(|(known, _)| *known == name) {
        return Ok(*size);
    }
    let advice = match all().find(|(known, _)| known.eq_ignore_ascii_case(name)) {
        Some((known, _)) => format!("did you mean \"{known}\"?"),
        None => {
            let names: Vec<_> = Q::UNITS.iter().map(|(name, _)| *name).collect();
            format!("its units are {}", names.join(", "))
        }
    };
    Err(UnitError::UnknownUnit { unit: name.into(), what: Q::WHAT, advice })
}

/// Writes a quantity so that [`read`] gives the same value back: in the largest unit that needs at
/// most three decimals.
pub fn exact<Q: Quantity>(quantity: Q) -> String {
    let base = quantity.base();
    for &(name, size) in Q::UNITS {
        let thousandths = u128::from(base % size) * 1000;
        if base >= size && thousandths.is_multiple_of(u128::from(size)) {
            return with_decimals(base / size, (thousandths / u128::from(size)) as u64, 3, name);
        }
    }
    let (name, size) = Q::UNITS[Q::UNITS.len() - 1];
    let decimals = size.ilog10() as usize; // 0, and 2 for percents
    with_decimals(base / size, base % size, decimals, name)
}

fn with_decimals(whole: u64, fraction: u64, decimals: usize, unit: &str) -> String {
    if fraction == 0 {
        return format!("{whole} {unit}");
    }
    let digits = format!("{fraction:0decimals$}");
    format!("{whole}.{} {unit}", digits.trim_end_matches('0'))
}

/// A quantity in a configuration file: a string with its unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Value<Q>(pub Q);

impl<'de, Q: Quantity> Deserialize<'de> for Value<Q> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader<Q>(PhantomData<Q>);
        impl<Q: Quantity> Visitor<'_> for Reader<Q> {
            type Value = Value<Q>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{} with its unit, like \"{}\"", Q::WHAT, Q::EXAMPLE)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Value<Q>, E> {
                read(text).map(Value).map_err(E::custom)
            }
        }
        from.deserialize_str(Reader(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn people_write_units_in_many_ways() {
        assert_eq!(read("3.75 Mbit/s"), Ok(BitRate(3_750_000)));
        assert_eq!(read("3.75Mbit/s"), Ok(BitRate(3_750_000)));
        assert_eq!(read(" 1 Gbps "), Ok(BitRate(1_000_000_000)));
        assert_eq!(read("1.1 MB/s"), Ok(BitRate(8_800_000)));
        assert_eq!(read("4 KiB/s"), Ok(BitRate(32_768)));
        assert_eq!(read("500 ms"), Ok(Nanos(500_000_000)));
        assert_eq!(read("62.5 ms"), Ok(Nanos(62_500_000)));
        assert_eq!(read("2 min"), Ok(Nanos(120_000_000_000)));
        assert_eq!(read("64 KiB"), Ok(Bytes(65_536)));
        assert_eq!(read("1.5 GiB"), Ok(Bytes(1_610_612_736)));
        assert_eq!(read("64 kB"), Ok(Bytes(64_000)));
        assert_eq!(read("0.05 %"), Ok(Percent(5)));
        assert_eq!(read("0"), Ok(Nanos(0)));
    }

    #[test]
    fn a_rate_in_a_query_may_be_short() {
        for text in ["8800000", "8.8M", "8800k", "0.0088G", "8.8 Mbit/s", "1.1 MB/s"] {
            assert_eq!(read_short_rate(text), Ok(BitRate(8_800_000)), "{text}");
        }
        for text in ["", "M", "fast", "8.8m", "-1", "1e6", "0.5"] {
            assert!(read_short_rate(text).is_err(), "{text:?} was read");
        }
    }

    #[test]
    fn what_cannot_be_kept_exactly_is_an_error() {
        let fine = read::<BitRate>("1.0005 kbit/s").unwrap_err();
        assert_eq!(
            fine.to_string(),
            "\"1.0005 kbit/s\" is finer than 1 bit/s; write a whole number of it"
        );
        assert!(matches!(read::<Bytes>("0.3 KiB"), Err(UnitError::TooFine { .. })));
        assert!(matches!(read::<Percent>("0.001 %"), Err(UnitError::TooFine { .. })));
        assert!(matches!(read::<Bytes>("18000000 TiB"), Err(UnitError::TooLarge { .. })));
        assert!(matches!(read::<Bytes>("99999999999999999999 B"), Err(UnitError::TooLarge { .. })));
    }

    #[test]
    fn errors_say_what_to_write() {
        let said = |e: UnitError| e.to_string();
        assert_eq!(
            said(read::<BitRate>("8800000").unwrap_err()),
            "\"8800000\" has no unit; write a rate like \"8.8 Mbit/s\""
        );
        assert_eq!(
            said(read::<BitRate>("8 mbit/s").unwrap_err()),
            "\"mbit/s\" is not a unit of a rate; did you mean \"Mbit/s\"?"
        );
        assert_eq!(
            said(read::<Nanos>("5 parsecs").unwrap_err()),
            "\"parsecs\" is not a unit of a time; its units are h, min, s, ms, us, ns"
        );
        for text in ["", "fast", "-3 s", ".5 s", "1. s", "1.2.3 s", "1e3 s"] {
            assert!(read::<Nanos>(text).is_err(), "{text:?} was read");
        }
    }

    #[test]
    fn exact_text_is_short_where_it_can_be() {
        assert_eq!(exact(BitRate(8_800_000)), "8.8 Mbit/s");
        assert_eq!(exact(BitRate(8_800_001)), "8800.001 kbit/s");
        assert_eq!(exact(Nanos(62_500_000)), "62.5 ms");
        assert_eq!(exact(Bytes(4097)), "4097 B");
        assert_eq!(exact(Percent(7_000)), "70 %");
        assert_eq!(exact(Percent(5)), "0.05 %");
        assert_eq!(exact(Nanos(0)), "0 ns");
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back_as_the_same_value(base in any::<u64>(), shift in 0u32..64) {
            let base = base >> shift;
            prop_assert_eq!(read(&exact(BitRate(base))), Ok(BitRate(base)));
            prop_assert_eq!(read(&exact(Bytes(base))), Ok(Bytes(base)));
            prop_assert_eq!(read(&exact(Nanos(base))), Ok(Nanos(base)));
            prop_assert_eq!(read(&exact(Percent(base))), Ok(Percent(base)));
        }

        #[test]
        fn what_people_are_shown_reads_back_and_shows_the_same(
            base in any::<u64>(),
            shift in 0u32..64,
        ) {
            let base = base >> shift;
            let shown = BitRate(base).to_string();
            prop_assert_eq!(read::<BitRate>(&shown).map(|r| r.to_string()), Ok(shown));
            let shown = Nanos(base).to_string();
            prop_assert_eq!(read::<Nanos>(&shown).map(|t| t.to_string()), Ok(shown));
        }

        #[test]
        fn no_text_makes_the_reader_panic(text in "\\PC{0,24}") {
            drop((read::<BitRate>(&text), read::<Bytes>(&text), read::<Nanos>(&text)));
        }
    }
}
