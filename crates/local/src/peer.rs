//! Who connects, by the kernel's word, and whether it may.

use std::ffi::CString;
use std::io;

use anyhow::{Result, anyhow};
use nix::unistd::{Gid, Group, Uid, User, getgrouplist};
use rustix::fd::AsFd;

use crate::settings::LocalSettings;

/// Who may connect, and who may write.
#[derive(Clone, Debug)]
pub(crate) struct Admitted {
    readers: Members,
    writers: Members,
}

/// Users and groups, as numbers.
#[derive(Clone, Default, Debug)]
struct Members {
    users: Vec<Uid>,
    groups: Vec<Gid>,
}

/// A process that has connected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) pid: i32,
    pub(crate) uid: Uid,
    pub(crate) gid: Gid,
}

impl Admitted {
    /// Looks the names up.
    pub(crate) fn of(settings: &LocalSettings) -> Result<Self> {
        let mut readers = Members::of(&settings.users, &settings.groups)?;
        readers.users.extend([Uid::from_raw(0), Uid::effective()]);
        let writers = match &settings.writing {
            Some(writing) => Members::of(&writing.users, &writing.groups)?,
            None => Members::default(),
        };
        Ok(Self { readers, writers })
    }

    /// Whether `peer` may connect.
    pub(crate) fn admits(&self, peer: &Peer) -> bool {
        self.readers.have(peer) || self.may_write(peer)
    }

    /// Whether `peer` may write. Root and the server's own user have to be named like any other.
    pub(crate) fn may_write(&self, peer: &Peer) -> bool {
        self.writers.have(peer)
    }
}

impl Members {
    fn of(users: &[String], groups: &[String]) -> Result<Self> {
        let mut all = Self::default();
        for name in users {
            all.users.push(match name.parse() {
                Ok(number) => Uid::from_raw(number),
                Err(_) => {
                    let user = User::from_name(name)?;
                    user.ok_or_else(|| anyhow!("this host has no user {name:?}"))?.uid
                }
            });
        }
        for name in groups {
            all.groups.push(match name.parse() {
                Ok(number) => Gid::from_raw(number),
                Err(_) => {
                    let group = Group::from_name(name)?;
                    group.ok_or_else(|| anyhow!("this host has no group {name:?}"))?.gid
                }
            });
        }
        Ok(all)
    }

    /// Whether `peer` is one of them: by its user, its group, or the groups of its user.
    fn have(&self, peer: &Peer) -> bool {
        self.users.contains(&peer.uid)
            || self.groups.contains(&peer.gid)
            || !self.groups.is_empty()
                && groups_of(peer).iter().any(|group| self.groups.contains(group))
    }
}

impl Peer {
    pub(crate) fn of(socket: impl AsFd) -> io::Result<Self> {
        let found = rustix::net::sockopt::socket_peercred(socket)?;
        Ok(Self {
            pid: found.pid.as_raw_nonzero().get(),
            uid: Uid::from_raw(found.uid.as_raw()),
            gid: Gid::from_raw(found.gid.as_raw()),
        })
    }
}

/// The groups of a user, by the host's tables.
fn groups_of(peer: &Peer) -> Vec<Gid> {
    let Ok(Some(user)) = User::from_uid(peer.uid) else { return vec![] };
    let Ok(name) = CString::new(user.name) else { return vec![] };
    getgrouplist(&name, peer.gid).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{CLIENTS, DATA_MAX, PRINCIPAL, TITLES_MAX, WriteSettings};
    use tactus_control::rights::Rights;
    use tactus_control::socket_file::UnixSocket;

    fn admitted(users: &[&str], groups: &[&str]) -> Result<Admitted> {
        with_writers(users, groups, None)
    }

    fn with_writers(
        users: &[&str],
        groups: &[&str],
        writers: Option<(&[&str], &[&str])>,
    ) -> Result<Admitted> {
        let names = |all: &[&str]| all.iter().map(|&name| name.to_owned()).collect();
        let socket = UnixSocket { path: "/s".into(), mode: 0o660, owner: None, group: None };
        Admitted::of(&LocalSettings {
            socket,
            clients: CLIENTS,
            data_max: DATA_MAX,
            titles_max: TITLES_MAX,
            users: names(users),
            groups: names(groups),
            writing: writers.map(|(users, groups)| WriteSettings {
                users: names(users),
                groups: names(groups),
                principal: PRINCIPAL.to_owned(),
                rights: Rights::all(),
            }),
        })
    }

    fn peer(uid: u32, gid: u32) -> Peer {
        Peer { pid: 1, uid: Uid::from_raw(uid), gid: Gid::from_raw(gid) }
    }

    #[test]
    fn only_root_the_server_and_the_named_ones_may_connect() {
        let nobody = admitted(&[], &[]).unwrap();
        assert!(nobody.admits(&peer(0, 7)));
        assert!(nobody.admits(&peer(Uid::effective().as_raw(), 7)));
        assert!(!nobody.admits(&peer(54_321, 0)), "the group of root is not named");
        let some = admitted(&["54321", "root"], &["777"]).unwrap();
        assert!(some.admits(&peer(54_321, 1)));
        assert!(some.admits(&peer(54_322, 777)));
        assert!(!some.admits(&peer(54_322, 778)));
    }

    #[test]
    fn only_the_named_ones_may_write_and_they_may_connect() {
        let nobody = admitted(&["54321"], &[]).unwrap();
        assert!(!nobody.may_write(&peer(54_321, 1)));
        assert!(!nobody.may_write(&peer(0, 0)), "root has to be named");
        let some = with_writers(&["54321"], &[], Some((&["54323"], &["777"]))).unwrap();
        assert!(some.may_write(&peer(54_323, 1)) && some.admits(&peer(54_323, 1)));
        assert!(some.may_write(&peer(54_324, 777)) && some.admits(&peer(54_324, 777)));
        assert!(!some.may_write(&peer(54_321, 1)), "it may only read");
        let error = with_writers(&[], &[], Some((&["no-such-user"], &[]))).unwrap_err();
        assert_eq!(error.to_string(), "this host has no user \"no-such-user\"");
    }

    #[test]
    fn unknown_names_are_errors() {
        let error = admitted(&["no-such-user"], &[]).unwrap_err().to_string();
        assert_eq!(error, "this host has no user \"no-such-user\"");
        let error = admitted(&[], &["no-such-group"]).unwrap_err().to_string();
        assert_eq!(error, "this host has no group \"no-such-group\"");
    }
}
