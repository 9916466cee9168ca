//! `[[http.unix_socket]]`, `[[admin.unix_socket]]` and `[local]`: socket files to listen on.
//!
//! Promise: a path that the kernel cannot bind is refused with the limit. Without a mode only the
//! owner and the group can connect.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use tactus_control::rights::Rights;
use tactus_control::socket_file::UnixSocket;
use tactus_core::units::{Bytes, MIB};
use tactus_http::settings::Principal;
use tactus_local::settings::{
    CLIENTS, DATA_MAX, LocalSettings, PRINCIPAL, TITLES_MAX, WriteSettings,
};
use tactus_notation::checks::{Checked, number, quantity};
use tactus_notation::error::Mistake;
use tactus_notation::value::SpannedKey;

use super::raw;

/// Most bytes of a path: `sun_path` of unix(7) has 108, with the zero at its end.
const PATH_MAX: usize = 107;

/// The owner and the group.
const MODE: u32 = 0o660;

/// Checks the tables; relative paths begin at `base`.
pub(super) fn all(written: Vec<raw::UnixSocket>, base: &Path) -> Checked<Vec<UnixSocket>> {
    written.into_iter().map(|written| one(written, base)).collect()
}

/// Checks `[local]`: none without a path. Who writes has the rights of one of `principals`.
pub(super) fn local(
    raw: raw::Local,
    base: &Path,
    principals: &[Principal],
) -> Checked<Option<LocalSettings>> {
    let writing = writing(raw.write_users, raw.write_groups, raw.principal, principals)?;
    let clients = number(raw.clients_max, u32::from(CLIENTS), 1..=CLIENTS_MAX)?;
    let data_max = quantity(raw.data_max, DATA_MAX, Bytes(MIB)..=Bytes(16 << 30))?;
    let titles_max = quantity(raw.titles_max, TITLES_MAX, Bytes(0)..=Bytes(1 << 50))?;
    let Some(path) = raw.path else { return Ok(None) };
    let (mode, owner, group) = (raw.mode, raw.owner, raw.group);
    let socket = one(raw::UnixSocket { path, mode, owner, group }, base)?;
    let (clients, users, groups) = (clients as u16, raw.users, raw.groups);
    Ok(Some(LocalSettings { socket, clients, data_max, titles_max, users, groups, writing }))
}

/// Who may write: nobody unless users or groups are named.
fn writing(
    users: Vec<String>,
    groups: Vec<String>,
    principal: SpannedKey<String>,
    principals: &[Principal],
) -> Checked<Option<WriteSettings>> {
    let known = |name: &str| principals.iter().find(|principal| principal.name == name);
    let (principal, rights) = match principal {
        None => (PRINCIPAL.to_owned(), Rights::all()),
        Some(written) => match known(written.get_ref()) {
            Some(known) => (known.name.clone(), known.rights.clone()),
            None => {
                let message = "no [[upload.principal]] has this name; add one, or leave it out: \
                    programs that may write then have all rights";
                return Err(Mistake::at(written.span(), message));
            }
        },
    };
    let is_anybody = !users.is_empty() || !groups.is_empty();
    Ok(is_anybody.then_some(WriteSettings { users, groups, principal, rights }))
}

/// Each client takes places of the arena.
const CLIENTS_MAX: u32 = 256;

fn one(written: raw::UnixSocket, base: &Path) -> Checked<UnixSocket> {
    let raw::UnixSocket { path, mode, owner, group } = written;
    let span = path.span();
    let path = base.join(path.into_inner());
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() > PATH_MAX {
        let message = format!(
            "the path of a socket has at most {PATH_MAX} bytes, and this one has {}; choose a \
             shorter one like \"/run/tactus/http.sock\"",
            bytes.len()
        );
        return Err(Mistake::at(span, message));
    }
    if bytes.contains(&0) || path.file_name().is_none() {
        return Err(Mistake::at(span, "write a path like \"/run/tactus/http.sock\""));
    }
    let mode = mode.map_or(Ok(MODE), |mode| {
        let text = mode.get_ref();
        let octal = text.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
        let value = u32::from_str_radix(text, 8).ok().filter(|mode| octal && *mode <= 0o777);
        value.ok_or_else(|| Mistake::at(mode.span(), "write permissions in octal like \"0660\""))
    })?;
    Ok(UnixSocket { path, mode, owner, group })
}

#[cfg(test)]
mod tests {
    use tactus_control::rights::{Right, Rights};

    use crate::Config;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse("/etc/tactus/tactus.toml".as_ref(), text).map_err(|error| error.to_string())
    }

    #[test]
    fn nobody_writes_unless_named_and_then_with_the_rights_of_a_principal() {
        let digest = "0".repeat(64);
        let of = |keys: &str| {
            parse(&format!(
                "[local]\npath = \"/a\"\n{keys}\n[[upload.principal]]\nname = \"studio\"\n\
                 token_sha256 = \"{digest}\"\nrights = [\"publish\"]\n"
            ))
        };
        let config = of("users = [\"ann\"]\nprincipal = \"studio\"").unwrap();
        assert!(config.local.as_ref().unwrap().writing.is_none());
        assert!(!config.upload_settings().records);
        let config = of("write_users = [\"ann\"]").unwrap();
        assert!(config.upload_settings().records, "volumes take uploads");
        let writing = config.local.unwrap().writing.unwrap();
        assert_eq!((writing.principal.as_str(), &writing.rights), ("local", &Rights::all()));
        let writing = of("write_groups = [\"editors\"]\nprincipal = \"studio\"").unwrap();
        let writing = writing.local.unwrap().writing.unwrap();
        assert_eq!((writing.principal.as_str(), writing.groups.len()), ("studio", 1));
        assert!(writing.rights.has(Right::Publish, "a"));
        assert!(!writing.rights.has(Right::Delete, "a"));
        let error = of("principal = \"other\"").unwrap_err();
        assert!(error.contains("no [[upload.principal]] has this name"), "{error}");
    }

    #[test]
    fn a_socket_has_a_path_that_fits_and_a_safe_mode() {
        let config = parse("[http]\naddress = []\n[[http.unix_socket]]\npath = \"a.sock\"\n");
        let http = config.unwrap().http;
        assert_eq!(http.unix_sockets[0].path.to_str(), Some("/etc/tactus/a.sock"));
        assert_eq!((http.unix_sockets[0].mode, http.addresses.len()), (0o660, 0));
        let long = format!("/{}", "x".repeat(106));
        assert!(parse(&format!("[[http.unix_socket]]\npath = \"{long}\"\n")).is_ok());
        for (text, said) in [
            (format!("[[http.unix_socket]]\npath = \"{long}x\"\n"), "at most 107 bytes"),
            ("[[admin.unix_socket]]\npath = \"/a\"\nmode = \"0680\"\n".into(), "octal"),
            ("[[admin.unix_socket]]\npath = \"/a\"\nmode = \"4777\"\n".into(), "octal"),
            ("[[http.unix_socket]]\npath = \"/\"\n".into(), "write a path"),
            ("[[http.unix_socket]]\npath = \"/a\"\nport = 1\n".into(), "port"),
            ("[http]\naddress = []\n".into(), "at least one"),
            (format!("[local]\npath = \"{long}x\"\n"), "at most 107 bytes"),
            ("[local]\npath = \"/a\"\nclients_max = 0\n".into(), "clients_max"),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn peers_of_unix_sockets_are_trusted_when_the_word_says_so() {
        assert!(!parse("").unwrap().http.proxies.unix);
        let some = parse("[http]\ntrusted_proxies = [\"unix\", \"10.0.0.1\"]\n").unwrap();
        assert!(some.http.proxies.unix && some.http.proxies.trusted.len() == 1);
    }
}
