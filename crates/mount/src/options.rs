//! What can be chosen for a mount, and the options of mount(8).

use std::path::PathBuf;
use std::time::Duration;

use fuser::{MountOption, SessionACL};

/// What can be chosen for a mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountOptions {
    /// The server's socket for programs of this machine (`[local] path`).
    pub socket: PathBuf,
    /// The directory of the library that is mounted: `/` for all of it.
    pub path: String,
    /// Answer reads no faster than the title's own rate, a second ahead at most.
    pub paced: bool,
    /// Let the kernel read the files of titles itself, where kernel and server allow it.
    pub passthrough: bool,
    /// Let programs write, create and remove.
    pub writable: bool,
    /// How long the kernel may keep attributes without asking.
    pub attributes_for: Duration,
    /// How long the kernel may keep names without asking.
    pub names_for: Duration,
    /// The owner of all files; by default the user of the mounting process.
    pub uid: Option<u32>,
    /// The group of all files.
    pub gid: Option<u32>,
    /// Bits that no file's mode has.
    pub umask: u16,
    /// Who else may use the mount.
    pub access: SessionACL,
    /// The options of the kernel and of fusermount3.
    pub others: Vec<MountOption>,
}

/// Why an option is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OptionError(String);

impl MountOptions {
    /// The defaults for the server at `socket`.
    #[must_use]
    pub fn new(socket: PathBuf) -> Self {
        Self {
            socket,
            path: "/".to_owned(),
            paced: false,
            passthrough: true,
            writable: false,
            attributes_for: KEPT,
            names_for: KEPT,
            uid: None,
            gid: None,
            umask: 0,
            access: SessionACL::Owner,
            others: vec![],
        }
    }

    /// Takes a list of options as `mount -o` has it: `allow_other,attr_timeout=0`.
    ///
    /// # Errors
    /// If an option is not known or its value is none.
    pub fn take(&mut self, list: &str) -> Result<(), OptionError> {
        for option in list.split(',').filter(|option| !option.is_empty()) {
            self.take_one(option)?;
        }
        Ok(())
    }

    fn take_one(&mut self, option: &str) -> Result<(), OptionError> {
        let (name, value) = option.split_once('=').unzip();
        match (name.unwrap_or(option), value) {
            ("attr_timeout", Some(value)) => self.attributes_for = seconds(option, value)?,
            ("entry_timeout", Some(value)) => self.names_for = seconds(option, value)?,
            ("uid", Some(value)) => self.uid = Some(number(option, value, 10)?),
            ("gid", Some(value)) => self.gid = Some(number(option, value, 10)?),
            ("umask", Some(value)) => {
                let bits = number(option, value, 8)?;
                let umask = u16::try_from(bits).ok().filter(|bits| *bits <= 0o777);
                self.umask = umask.ok_or_else(|| refused(option, "is no umask"))?;
            }
            ("fsname", Some(value)) => self.others.push(MountOption::FSName(value.to_owned())),
            ("allow_other", None) => self.access = SessionACL::All,
            ("allow_root", None) => self.access = SessionACL::RootAndOwner,
            ("auto_unmount", None) => self.others.push(MountOption::AutoUnmount),
            ("ro", None) => self.writable = false,
            ("rw", None) => self.writable = true,
            // Permissions are always checked by the kernel.
            ("default_permissions", None) => {}
            ("exec", None) => self.others.push(MountOption::Exec),
            ("noexec", None) => self.others.push(MountOption::NoExec),
            ("suid", None) => self.others.push(MountOption::Suid),
            ("nosuid", None) => self.others.push(MountOption::NoSuid),
            ("dev", None) => self.others.push(MountOption::Dev),
            ("nodev", None) => self.others.push(MountOption::NoDev),
            ("atime", None) => self.others.push(MountOption::Atime),
            ("noatime", None) => self.others.push(MountOption::NoAtime),
            _ => return Err(refused(option, "is not a known option")),
        }
        Ok(())
    }
}

impl std::fmt::Display for OptionError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for OptionError {}

fn refused(option: &str, why: &str) -> OptionError {
    OptionError(format!("-o {option}: {option:?} {why}"))
}

fn number(option: &str, value: &str, radix: u32) -> Result<u32, OptionError> {
    u32::from_str_radix(value, radix).map_err(|_| refused(option, "has no number"))
}

fn seconds(option: &str, value: &str) -> Result<Duration, OptionError> {
    let seconds = value.parse().ok().and_then(|value| Duration::try_from_secs_f64(value).ok());
    seconds.ok_or_else(|| refused(option, "has no number of seconds"))
}

/// As long as libfuse lets the kernel keep names and attributes by default.
const KEPT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_those_of_mount() {
        let mut options = MountOptions::new("/s".into());
        options.take("ro,allow_other,attr_timeout=0.5,entry_timeout=0,,uid=7,gid=8").unwrap();
        options.take("umask=027,fsname=films,noexec").unwrap();
        assert_eq!((options.uid, options.gid, options.umask), (Some(7), Some(8), 0o027));
        assert_eq!(options.attributes_for, Duration::from_millis(500));
        assert_eq!(options.names_for, Duration::ZERO);
        assert_eq!(options.access, SessionACL::All);
        let others = [MountOption::FSName("films".into()), MountOption::NoExec];
        assert_eq!(options.others, others);
        assert!(!options.writable);
        options.take("rw").unwrap();
        assert!(options.writable);
        options.take("noexec,ro").unwrap();
        assert!(!options.writable, "the last one counts");
    }

    #[test]
    fn what_is_no_option_is_refused_by_its_name() {
        for option in ["loud", "uid", "uid=x", "umask=8", "umask=7777", "attr_timeout=-1", "ro=1"] {
            let error = MountOptions::new("/s".into()).take(&format!("ro,{option}")).unwrap_err();
            assert!(error.to_string().contains(option), "{error}");
        }
    }
}
