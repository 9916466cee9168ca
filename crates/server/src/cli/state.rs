//! The directory for state that outlasts one run.

use std::path::PathBuf;

/// systemd's `StateDirectory=`, or the user's own (XDG Base Directory Specification 0.8); none when
/// the environment names neither.
pub(super) fn directory() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|dir| dir.is_absolute());
    // systemd.exec(5) separates several directories by colons; the first counts.
    if let Some(first) = std::env::var("STATE_DIRECTORY").ok().as_deref().and_then(first_of) {
        return Some(first);
    }
    let state =
        absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
    Some(state.join("tactus"))
}

fn first_of(list: &str) -> Option<PathBuf> {
    list.split(':').next().map(PathBuf::from).filter(|dir| dir.is_absolute())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_directories_of_a_unit_the_first_is_taken() {
        assert_eq!(first_of("/var/lib/tactus:/var/lib/other"), Some("/var/lib/tactus".into()));
        assert_eq!((first_of(""), first_of("tactus")), (None, None));
    }
}
