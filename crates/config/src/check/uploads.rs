//! `[upload]`: checks principals, their tokens and their rights.

use std::path::Path;

use tactus_control::rights::{Grant, Paths, Readers, Right, Rights};
use tactus_core::units::{Bytes, SECOND};
use tactus_http::settings::{Principal, Token, Upload};
use tactus_notation::checks::{Checked, PLAIN_NAME, is_plain_name, number, quantity, unless_off};
use tactus_notation::error::Mistake;
use tactus_notation::units::Value;
use tactus_notation::value::SpannedKey;
use toml::Spanned;

use crate::raw;

pub(super) fn upload(raw: raw::Upload, base: &Path) -> Checked<Upload> {
    let mut principals: Vec<Principal> = Vec::with_capacity(raw.principal.len());
    for written in raw.principal {
        let span = written.name.span();
        let next = principal(written, base)?;
        if principals.iter().any(|known| known.name == next.name) {
            let message =
                format!("two principals have the name {:?}; names must be unique", next.name);
            return Err(Mistake::at(span, message));
        }
        principals.push(next);
    }
    let day = SECOND.times(86_400);
    let default = Upload::default();
    Ok(Upload {
        principals,
        object_max: quantity(
            raw.object_max,
            default.object_max,
            Bytes(1)..=Bytes(i64::MAX as u64),
        )?,
        open_max: number(raw.open_max, default.open_max, 1..=100_000)?,
        open_per_principal_max: number(
            raw.open_per_principal_max,
            default.open_per_principal_max,
            1..=100_000,
        )?,
        expiry: quantity(raw.expiry, default.expiry, SECOND.times(60)..=day.times(365))?,
        locks_max: number(raw.locks_max, default.locks_max, 1..=100_000)?,
        locks_per_principal_max: number(
            raw.locks_per_principal_max,
            default.locks_per_principal_max,
            1..=100_000,
        )?,
        lock_timeout_max: quantity(
            raw.lock_timeout_max,
            default.lock_timeout_max,
            SECOND.times(10)..=day,
        )?,
    })
}

fn principal(raw: raw::Principal, base: &Path) -> Checked<Principal> {
    let span = raw.name.span();
    let name = raw.name.into_inner();
    if !is_plain_name(&name) {
        return Err(Mistake::at(span, PLAIN_NAME));
    }
    let token = match (raw.token_file, raw.token_sha256) {
        (Some(file), None) => Token::File(base.join(file.into_inner())),
        (None, Some(digest)) => Token::Sha256(sha256(digest.get_ref()).ok_or_else(|| {
            Mistake::at(digest.span(), "write the 64 hexadecimal digits that `sha256sum` prints")
        })?),
        _ => {
            let message =
                "a principal needs a `token_file` or a `token_sha256`; write exactly one of them";
            return Err(Mistake::at(span, message));
        }
    };
    let quota = unless_off(raw.quota, "write a size like \"500 GiB\", or \"off\"")?;
    let quota = quota.map(|(Value(quota), _)| quota);
    let rights = rights(raw.rights, raw.paths, raw.grant)?;
    Ok(Principal { name, token, quota, rights })
}

/// Without `rights` a principal has all rights; if it has `paths`, all rights that apply to paths.
fn rights(
    rights: SpannedKey<Vec<Right>>,
    below: SpannedKey<Vec<String>>,
    grants: Vec<raw::Grant>,
) -> Checked<Rights> {
    let mut granted = vec![];
    match (rights, below) {
        (Some(rights), below) => granted.push(Grant::new(rights.get_ref(), paths(below)?)),
        (None, below @ Some(_)) => granted.push(Grant::new(&Right::OF_PATHS, paths(below)?)),
        (None, None) if grants.is_empty() => return Ok(Rights::all()),
        // A principal with all rights everywhere needs no further grants.
        (None, None) => {}
    }
    for grant in grants {
        granted.push(Grant::new(grant.rights.get_ref(), paths(Some(grant.paths))?));
    }
    Ok(Rights::new(granted))
}

/// The paths where a right holds; everywhere if none are written.
pub(super) fn paths(written: SpannedKey<Vec<String>>) -> Checked<Paths> {
    let Some(written) = written else { return Ok(Paths::everywhere()) };
    Paths::parse(written.get_ref()).map_err(|message| Mistake::at(written.span(), message))
}

/// When no volume takes uploads, rights that need one are an error.
pub(super) fn check_useful(principals: &[raw::Principal]) -> Checked<()> {
    const TITLES: [Right; 4] = [Right::Publish, Right::Replace, Right::Delete, Right::Recordings];
    for principal in principals {
        let grants = principal.grant.iter().map(|grant| grant.rights.get_ref());
        let own = principal.rights.as_ref().map(Spanned::get_ref);
        let mut named = own.into_iter().chain(grants).peekable();
        let has_all = named.peek().is_none();
        if has_all || named.flatten().any(|right| TITLES.contains(right)) {
            let message = "no volume accepts uploads; set `uploads = true` in a [[volume]], or \
                write \
                           `rights` that need no volume, like [\"channels\", \"manage\"]";
            return Err(Mistake::at(principal.name.span(), message));
        }
    }
    Ok(())
}

/// When only principals may read, at least one must have the right.
pub(super) fn check_readers(readers: &SpannedKey<Readers>, upload: &raw::Upload) -> Checked<()> {
    match readers {
        Some(readers)
            if *readers.get_ref() == Readers::Principals && upload.principal.is_empty() =>
        {
            let message =
                "no principal may read; add an [[upload.principal]] with the right \"read\"";
            Err(Mistake::at(readers.span(), message))
        }
        _ => Ok(()),
    }
}

fn sha256(digits: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    let plain = digits.len() == 64 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    for (at, byte) in digest.iter_mut().enumerate().filter(|_| plain) {
        *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).ok()?;
    }
    plain.then_some(digest)
}
