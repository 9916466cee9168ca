//! The change of a request, as far as locks need it.

/// A change of one path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Change {
    /// The decoded path, without outer slashes.
    pub(crate) path: String,
    /// Whether it also covers everything below the path.
    pub(crate) below: bool,
    /// Directories in which it makes or removes a name (RFC 4918 section 7.4).
    pub(crate) within: Vec<String>,
}

impl Change {
    /// The object at `path` gets other content or other properties.
    pub(crate) fn of(path: &str) -> Self {
        Self { path: path.to_owned(), below: false, within: Vec::new() }
    }

    /// An object appears at `path`, in its directory.
    pub(crate) fn appearing(path: &str) -> Self {
        Self { within: vec![above(path).to_owned()], ..Self::of(path) }
    }

    /// The object at `path` disappears, with everything below it.
    pub(crate) fn vanishing(path: &str) -> Self {
        Self { below: true, ..Self::appearing(path) }
    }
}

/// The directory of a path.
pub(crate) fn above(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(above, _)| above)
}

/// Whether `path` lies below `directory`.
pub(super) fn is_below(path: &str, directory: &str) -> bool {
    match directory {
        "" => !path.is_empty(),
        _ => path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/')),
    }
}
