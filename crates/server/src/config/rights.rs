//! What a principal may do, and below which paths.
//!
//! Promise: a right holds where it is written and nowhere else; a path covers itself and what lies below
//! it, by whole names: `/live` covers `/live/a.ts` and not `/livestream/a.ts`.

use tactus_core::path::check_name;

/// One thing that a principal may do.
#[derive(serde::Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Right {
    /// See every name, and read titles where only principals may.
    Read,
    /// Store titles under names that are free, and make directories.
    Publish,
    /// Store titles in the place of others.
    Replace,
    /// Delete titles and directories, and move them away.
    Delete,
    /// Begin, change and end channels.
    Channels,
    /// Begin and end recordings whose titles lie below the paths.
    Recordings,
    /// Change classes, and have the configuration read again.
    Manage,
}

impl Right {
    /// All of them, by their names.
    pub const ALL: [(Self, &str); 7] = [
        (Self::Read, "read"),
        (Self::Publish, "publish"),
        (Self::Replace, "replace"),
        (Self::Delete, "delete"),
        (Self::Channels, "channels"),
        (Self::Recordings, "recordings"),
        (Self::Manage, "manage"),
    ];

    /// Those that hold below paths; the others hold wherever they are granted.
    pub const OF_PATHS: [Self; 5] =
        [Self::Read, Self::Publish, Self::Replace, Self::Delete, Self::Recordings];

    /// How it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        let named = Self::ALL.iter().find(|(right, _)| *right == self);
        named.map_or("", |(_, name)| name)
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// Who may read titles.
#[derive(serde::Deserialize, Clone, Copy, PartialEq, Eq, Default, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Readers {
    /// Whoever asks.
    #[default]
    Anyone,
    /// Principals that may.
    Principals,
}

/// Rights of one principal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rights(Vec<Grant>);

/// Some rights below some paths.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    rights: u8,
    paths: Paths,
}

impl Grant {
    /// These rights below these paths.
    #[must_use]
    pub fn new(rights: &[Right], paths: Paths) -> Self {
        Self { rights: rights.iter().fold(0, |all, right| all | right.bit()), paths }
    }
}

impl Rights {
    /// Those of `grants` together.
    #[must_use]
    pub fn new(grants: Vec<Grant>) -> Self {
        Self(grants)
    }

    /// All there are, everywhere.
    #[must_use]
    pub fn all() -> Self {
        let rights = Right::ALL.map(|(right, _)| right);
        Self(vec![Grant::new(&rights, Paths::everywhere())])
    }

    /// Whether `right` holds at `path`, a decoded path without outer slashes.
    #[must_use]
    pub fn has(&self, right: Right, path: &str) -> bool {
        self.0.iter().any(|grant| grant.rights & right.bit() != 0 && grant.paths.cover(path))
    }

    /// Whether `right` holds somewhere.
    #[must_use]
    pub fn has_somewhere(&self, right: Right) -> bool {
        self.0.iter().any(|grant| grant.rights & right.bit() != 0)
    }
}

/// Paths of titles and directories, each with what lies below it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Paths(Vec<String>);

impl Paths {
    /// Everything.
    #[must_use]
    pub fn everywhere() -> Self {
        Self(vec![String::new()])
    }

    /// The paths that are written so, each from the root.
    ///
    /// # Errors
    /// What to write instead.
    pub fn parse(written: &[String]) -> Result<Self, String> {
        if written.is_empty() {
            return Err("no path is left; write at least one, or leave `paths` out".to_owned());
        }
        written.iter().map(|text| path(text)).collect::<Result<_, _>>().map(Self)
    }

    /// Whether `path`, decoded and without outer slashes, is one of them or lies below one.
    #[must_use]
    pub fn cover(&self, path: &str) -> bool {
        self.0.iter().any(|own| match path.strip_prefix(own.as_str()) {
            Some(rest) => own.is_empty() || rest.is_empty() || rest.starts_with('/'),
            None => false,
        })
    }
}

fn path(text: &str) -> Result<String, String> {
    let wrong =
        || format!("{text:?} is no path; write it decoded and from the root, like \"/live/\"");
    let inner = text.strip_prefix('/').ok_or_else(wrong)?;
    let inner = inner.strip_suffix('/').unwrap_or(inner);
    match inner.is_empty() || inner.split('/').all(|name| check_name(name).is_ok()) {
        true => Ok(inner.to_owned()),
        false => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s14_a_path_covers_itself_and_what_lies_below_it_by_whole_names() {
        let paths = |all: &[&str]| {
            Paths::parse(&all.iter().map(|&text| text.to_owned()).collect::<Vec<_>>())
        };
        let live = paths(&["/live/", "/a/b"]).unwrap();
        for covered in ["live", "live/x.ts", "live/x/y.ts", "a/b", "a/b/c.ts"] {
            assert!(live.cover(covered), "{covered}");
        }
        for other in ["", "livestream/x.ts", "live.ts", "LIVE/x.ts", "a", "a/bc.ts", "x/live/y.ts"]
        {
            assert!(!live.cover(other), "{other}");
        }
        assert!(paths(&["/"]).unwrap().cover("anything/at/all.ts"));
        assert!(Paths::everywhere().cover(""));
        for wrong in [&[][..], &["live"], &[""], &["/a//b"], &["/../x"], &["/a/./b"], &["/%2e%2e/"]]
        {
            assert!(paths(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn s14_a_right_holds_where_it_is_granted_only() {
        let live = Paths::parse(&["/live/".to_owned()]).unwrap();
        let rights = Rights::new(vec![
            Grant::new(&[Right::Publish, Right::Delete], live),
            Grant::new(&[Right::Read], Paths::everywhere()),
        ]);
        assert!(rights.has(Right::Publish, "live/a.ts") && !rights.has(Right::Publish, "a.ts"));
        assert!(!rights.has(Right::Replace, "live/a.ts") && rights.has(Right::Read, "a.ts"));
        assert!(rights.has_somewhere(Right::Delete) && !rights.has_somewhere(Right::Manage));
        for (right, name) in Right::ALL {
            assert!(Rights::all().has(right, "") && Rights::all().has(right, "a/b"), "{name}");
        }
    }
}
