//! The rights of a principal, and the paths where they hold.
//!
//! Promise: a right holds only where it is granted. A path covers itself and everything below it,
//! by whole names: `/live` covers `/live/a.ts`, but not `/livestream/a.ts`.

use tactus_core::path::check_name;

/// One kind of action.
#[derive(serde::Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Right {
    /// List all names, and read titles when only principals may.
    Read,
    /// Store titles under free names, and create directories.
    Publish,
    /// Replace titles.
    Replace,
    /// Delete titles and directories, and move them away.
    Delete,
    /// Begin, change and end channels.
    Channels,
    /// Begin and end recordings below the paths.
    Recordings,
    /// Change classes.
    Classes,
    /// Keep titles in memory, and release them.
    Pins,
    /// Move the servers of the engine to other cores.
    Placement,
    /// Reload the configuration.
    Reload,
    /// Classes, pins, the placement, reloading, and releasing any lock.
    Manage,
}

impl Right {
    /// All rights with their names.
    pub const ALL: [(Self, &str); 11] = [
        (Self::Read, "read"),
        (Self::Publish, "publish"),
        (Self::Replace, "replace"),
        (Self::Delete, "delete"),
        (Self::Channels, "channels"),
        (Self::Recordings, "recordings"),
        (Self::Classes, "classes"),
        (Self::Pins, "pins"),
        (Self::Placement, "placement"),
        (Self::Reload, "reload"),
        (Self::Manage, "manage"),
    ];

    /// Rights that apply to paths; the others hold for the whole server.
    pub const OF_PATHS: [Self; 5] =
        [Self::Read, Self::Publish, Self::Replace, Self::Delete, Self::Recordings];

    /// Its name in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        let named = Self::ALL.iter().find(|(right, _)| *right == self);
        named.map_or("", |(_, name)| name)
    }

    fn bit(self) -> u16 {
        1 << self as u16
    }
}

/// Who may read titles.
#[derive(serde::Deserialize, Clone, Copy, PartialEq, Eq, Default, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Readers {
    /// Every client.
    #[default]
    Anyone,
    /// Principals with the right.
    Principals,
}

/// The rights of one principal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rights(Vec<Grant>);

/// Rights below certain paths.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    rights: u16,
    paths: Paths,
}

impl Grant {
    /// Grants `rights` below `paths`; with `manage` also `classes`, `pins`, `placement`
    /// and `reload`.
    #[must_use]
    pub fn new(rights: &[Right], paths: Paths) -> Self {
        let mut all = rights.iter().fold(0, |all, right| all | right.bit());
        if all & Right::Manage.bit() != 0 {
            let managed = [Right::Classes, Right::Pins, Right::Placement, Right::Reload];
            all |= managed.iter().fold(0, |all, right| all | right.bit());
        }
        Self { rights: all, paths }
    }
}

impl Rights {
    /// The rights of all `grants`.
    #[must_use]
    pub fn new(grants: Vec<Grant>) -> Self {
        Self(grants)
    }

    /// All rights, everywhere.
    #[must_use]
    pub fn all() -> Self {
        let rights = Right::ALL.map(|(right, _)| right);
        Self(vec![Grant::new(&rights, Paths::everywhere())])
    }

    /// Whether `right` holds at `path`, which is decoded and without outer slashes.
    #[must_use]
    pub fn has(&self, right: Right, path: &str) -> bool {
        self.0.iter().any(|grant| grant.rights & right.bit() != 0 && grant.paths.cover(path))
    }

    /// Whether `right` holds for any path.
    #[must_use]
    pub fn has_somewhere(&self, right: Right) -> bool {
        self.0.iter().any(|grant| grant.rights & right.bit() != 0)
    }
}

/// Paths of titles and directories, each with everything below it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Paths(Vec<String>);

impl Paths {
    /// The root, which covers everything.
    #[must_use]
    pub fn everywhere() -> Self {
        Self(vec![String::new()])
    }

    /// Parses absolute paths.
    ///
    /// # Errors
    /// A text is invalid; the message shows the valid form.
    pub fn parse(written: &[String]) -> Result<Self, String> {
        if written.is_empty() {
            return Err("the list is empty; write at least one path, or remove `paths`".to_owned());
        }
        written.iter().map(|text| path(text)).collect::<Result<_, _>>().map(Self)
    }

    /// Whether the paths cover `path`, which is decoded and without outer slashes.
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
        || format!("{text:?} is not a path; write it unescaped and from the root, like \"/live/\"");
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
