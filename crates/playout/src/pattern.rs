//! Names for the titles of a recording: a path with fields for the time and a counter.
//!
//! Promise: a pattern recognises the names that it produces, and excludes names that it could not
//! have produced. Times are UTC: the end of daylight saving time repeats no name.

use std::fmt;

use jiff::tz::Offset;
use tactus_control::api_path::{API_PATH, is_api_path};
use tactus_core::path::{PATH_BYTES_MAX, check_name, encode_segment};
use tactus_core::units::WallTime;
use tactus_storage::dates;

/// A path with fields.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pattern {
    text: String,
    parts: Vec<Part>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Part {
    Text(String),
    Field(Field),
}

/// A field of a pattern.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Field {
    Year,
    Month,
    Day,
    Hour,
    Minute,
    Second,
    Counter,
}

/// The values of the fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Occasion {
    /// The beginning of the title.
    pub time: WallTime,
    /// The number of the title in its recording, from 1.
    pub number: u64,
}

const FIELDS: [(char, Field); 7] = [
    ('Y', Field::Year),
    ('m', Field::Month),
    ('d', Field::Day),
    ('H', Field::Hour),
    ('M', Field::Minute),
    ('S', Field::Second),
    ('n', Field::Counter),
];

impl Field {
    /// The number of digits; for a counter the least number.
    fn digits(self) -> usize {
        if matches!(self, Self::Year | Self::Counter) { 4 } else { 2 }
    }
}

impl Pattern {
    /// Parses a pattern: a path from the root, with `%Y %m %d %H %M %S %n`.
    ///
    /// # Errors
    /// The text is invalid; the message says what to write instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        let inner = text.strip_prefix('/').ok_or("write a path that begins with a slash")?;
        let mut parts: Vec<Part> = Vec::new();
        let mut letters = inner.chars();
        while let Some(letter) = letters.next() {
            let letter = match (letter, letter == '%') {
                (_, true) => match letters.next() {
                    Some('%') => '%',
                    field => {
                        let known = FIELDS.iter().find(|(name, _)| Some(*name) == field);
                        let Some((_, field)) = known else {
                            let what = field.map_or("%".into(), |field| format!("%{field}"));
                            return Err(format!(
                                "{what} is not a field; the fields are %Y %m %d %H %M %S, %n for \
                                a counter, %% for a percent sign"
                            ));
                        };
                        parts.push(Part::Field(*field));
                        continue;
                    }
                },
                (letter, false) => letter,
            };
            match parts.last_mut() {
                Some(Part::Text(text)) => text.push(letter),
                _ => parts.push(Part::Text(letter.into())),
            }
        }
        let pattern = Self { text: text.into(), parts };
        // The longest possible name, with a counter of all digits.
        let longest = pattern.name(Occasion { time: WallTime(0), number: u64::MAX });
        if longest.len() + SUFFIX > PATH_BYTES_MAX {
            return Err("this is too long for a path".into());
        }
        for segment in longest.split('/') {
            check_name(segment).map_err(|fault| {
                format!(
                    "{segment:?} is not a valid name: \
                {fault}"
                )
            })?;
        }
        if longest.starts_with(tactus_media::RESERVED) {
            return Err("names that begin with `.tactus` are the server's own".into());
        }
        if is_api_path(&longest) {
            return Err(API_PATH.into());
        }
        Ok(pattern)
    }

    /// The path of a title, without its leading slash.
    pub fn name(&self, occasion: Occasion) -> String {
        let date = Offset::UTC.to_datetime(dates::timestamp(occasion.time));
        let mut name = String::new();
        for part in &self.parts {
            let field = match part {
                Part::Text(text) => {
                    name.push_str(text);
                    continue;
                }
                Part::Field(field) => *field,
            };
            let value = match field {
                Field::Year => date.year().unsigned_abs().into(),
                Field::Month => date.month().unsigned_abs().into(),
                Field::Day => date.day().unsigned_abs().into(),
                Field::Hour => date.hour().unsigned_abs().into(),
                Field::Minute => date.minute().unsigned_abs().into(),
                Field::Second => date.second().unsigned_abs().into(),
                Field::Counter => occasion.number,
            };
            let digits = field.digits();
            name.push_str(&format!("{value:0digits$}"));
        }
        name
    }

    /// Whether its titles have different names.
    pub fn has_fields(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Field(_)))
    }

    /// Whether its names have a counter.
    pub fn has_counter(&self) -> bool {
        self.parts.contains(&Part::Field(Field::Counter))
    }

    /// The counter in `name`, if this pattern could have produced it, with or without the suffix
    /// for a repeated name. 0 if the pattern has no counter.
    pub fn number_in(&self, name: &str) -> Option<u64> {
        let mut numbers = vec![(name, 0)];
        // A counter may have more digits than its least number: all readings are tried.
        for (at, part) in self.parts.iter().enumerate() {
            let is_last = at + 1 == self.parts.len();
            numbers = numbers
                .into_iter()
                .flat_map(|(rest, number)| readings(part, rest, number, is_last))
                .collect();
        }
        numbers.into_iter().find(|(rest, _)| rest.is_empty()).map(|(_, number)| number)
    }

    /// The directory that contains all of its titles, perhaps in subdirectories, without outer
    /// slashes.
    pub fn directory(&self) -> &str {
        let Some(Part::Text(text)) = self.parts.first() else { return "" };
        text.rfind('/').map_or("", |slash| &text[..slash])
    }

    /// The directory that all titles of the pattern share; the path itself if it has no fields.
    pub fn fixed(&self) -> String {
        match self.has_fields() {
            true => self.directory().to_owned(),
            false => self.name(Occasion { time: WallTime(0), number: 0 }),
        }
    }

    /// The path of a title in a URL.
    pub fn url(name: &str) -> String {
        let mut url = String::new();
        for segment in name.split('/') {
            url.push('/');
            encode_segment(segment, &mut url);
        }
        url
    }
}

/// The name for the `again`th title that would be called `name`: `a.ts`, `a-2.ts`.
pub fn another(name: &str, again: u32) -> String {
    if again < 2 {
        return name.into();
    }
    let dot = stem(name);
    format!("{}-{again}{}", &name[..dot], &name[dot..])
}

/// Where the extension of the last segment begins.
fn stem(name: &str) -> usize {
    let slash = name.rfind('/').map_or(0, |slash| slash + 1);
    name[slash..].rfind('.').filter(|&dot| dot > 0).map_or(name.len(), |dot| slash + dot)
}

/// Room for the suffix of [`another`].
const SUFFIX: usize = 12;

/// The rest of `name` after `part`, in each possible reading.
fn readings<'a>(part: &Part, name: &'a str, number: u64, is_last: bool) -> Vec<(&'a str, u64)> {
    match part {
        Part::Text(text) => match name.strip_prefix(&**text) {
            Some(rest) if !is_last || rest.is_empty() => vec![(rest, number)],
            _ if !is_last => Vec::new(),
            _ => {
                // `-2` before the extension, which is in the last part.
                let dot = text.rfind('.').filter(|&dot| !text[dot..].contains('/'));
                let (before, ending) = text.split_at(dot.unwrap_or(text.len()));
                let rest = name.strip_prefix(before).and_then(|rest| rest.strip_suffix(ending));
                let is_again = rest.is_some_and(|rest| without_again(rest).is_empty());
                if is_again { vec![("", number)] } else { Vec::new() }
            }
        },
        Part::Field(field) => {
            let digits = name.bytes().take_while(u8::is_ascii_digit).count();
            let least = field.digits();
            let most = if *field == Field::Counter { digits.min(20) } else { least.min(digits) };
            let read = |len: usize| {
                let (text, rest) = name.split_at(len);
                let value = text.parse().ok()?;
                let padded = text == format!("{value:0least$}");
                let number = if *field == Field::Counter { value } else { number };
                let rest = if is_last { without_again(rest) } else { rest };
                padded.then_some((rest, number))
            };
            (least..=most).filter_map(read).collect()
        }
    }
}

/// `rest` of a name without the suffix `-2`.
fn without_again(rest: &str) -> &str {
    let again = rest.strip_prefix('-').and_then(|again| Some((again, again.parse::<u32>().ok()?)));
    let is_again = again.is_some_and(|(text, again)| again > 1 && text == again.to_string());
    if is_again { "" } else { rest }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MOMENT: Occasion = Occasion { time: WallTime(951_868_799_000_000_000), number: 7 };

    #[test]
    fn fields_are_filled_in_utc() {
        let pattern = Pattern::parse("/live/a/%Y-%m-%d/%H%M%S-%n 100%%.ts").unwrap();
        assert_eq!(pattern.name(MOMENT), "live/a/2000-02-29/235959-0007 100%.ts");
        assert_eq!(pattern.directory(), "live/a");
        assert_eq!(Pattern::url("a b/c%.ts"), "/a%20b/c%25.ts");
        assert_eq!(Pattern::parse("/%n.ts").unwrap().directory(), "");
        assert_eq!(Pattern::parse("/a/b-%n.ts").unwrap().directory(), "a");
    }

    #[test]
    fn what_is_no_path_is_refused_with_what_to_write() {
        for (text, said) in [
            ("a.ts", "begins with a slash"),
            ("/a/%q.ts", "%q is not a field"),
            ("/a%", "% is not a field"),
            ("/", "is not a valid name"),
            ("/a//b", "is not a valid name"),
            ("/../b", "is not a valid name"),
            ("/a/", "is not a valid name"),
            ("/a/\u{7}", "is not a valid name"),
            ("/.tactus/a", ".tactus"),
        ] {
            let error = Pattern::parse(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn a_name_that_is_taken_gets_a_number_before_its_ending() {
        assert_eq!(another("a/b.ts", 1), "a/b.ts");
        assert_eq!(another("a/b.ts", 2), "a/b-2.ts");
        assert_eq!(another("a.d/b", 3), "a.d/b-3");
        assert_eq!(another(".a", 2), ".a-2");
    }

    #[test]
    fn other_names_are_not_its_own() {
        let pattern = Pattern::parse("/live/%Y%m%d-%n.ts").unwrap();
        assert_eq!(pattern.number_in("live/20000229-0007.ts"), Some(7));
        assert_eq!(pattern.number_in("live/20000229-12345.ts"), Some(12345));
        assert_eq!(pattern.number_in("live/20000229-0007-2.ts"), Some(7));
        for other in [
            "live/20000229-007.ts",
            "live/20000229-00007.ts",
            "live/20000229-0007-1.ts",
            "live/20000229-0007-x.ts",
            "live/20000229-0007.ts.bak",
            "live/2000022-0007.ts",
            "live/film.ts",
            "20000229-0007.ts",
            "",
        ] {
            assert_eq!(pattern.number_in(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn what_it_names_it_knows_again(
            parts in proptest::collection::vec(
                prop_oneof![
                    "%[YmdHMSn]",
                    "[a-z0-9]{1,3}",
                    Just("-".to_owned()),
                    Just(".ts".to_owned()),
                    Just("/x".to_owned())
                ],
                1..8,
            ),
            seconds in 0u64..8_000_000_000,
            number in 1u64..100_000,
            again in 1u32..5,
        ) {
            let text = format!("/a{}", parts.concat());
            let Ok(pattern) = Pattern::parse(&text) else { return Ok(()) };
            let name = pattern.name(Occasion { time: WallTime(seconds * 1_000_000_000), number });
            let found = pattern.number_in(&name);
            prop_assert!(found.is_some(), "{text}: {name}");
            if text.matches("%n").count() == 1
                && !text.contains("%n%")
                && !text.contains(char::is_numeric)
            {
                prop_assert_eq!(found, Some(number));
            }
            let known = pattern.number_in(&another(&name, again)).is_some();
            // An extension that contains fields is not searched for the suffix.
            prop_assert!(known || text.matches('.').count() > 0);
        }
    }
}
