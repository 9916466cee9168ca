//! Tokens: the source of a command's token, and the token that `serve --uploads` makes.
//!
//! Promise: a token is never in the arguments, where other users see it. Only the owner can read a
//! generated token file.

use std::fs::{DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::rand::{GetRandomFlags, getrandom};
use tactus_http as http;
use tactus_media::RESERVED;

use super::Failure;

/// Who changes something.
#[derive(clap::Args, Debug)]
pub(super) struct Credentials {
    /// File with the token [default: the environment's TACTUS_TOKEN]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl Credentials {
    /// The value of `Authorization`, if a token was given: for requests that may work without one.
    pub(super) fn field_if_any(&self) -> Result<Option<String>, Failure> {
        let is_given = self.token_file.is_some() || std::env::var_os("TACTUS_TOKEN").is_some();
        is_given.then(|| self.field()).transpose()
    }

    /// The value of `Authorization`.
    pub(super) fn field(&self) -> Result<String, Failure> {
        let token = match &self.token_file {
            Some(file) => {
                http::token_in(file).map_err(|error| Failure::usage(format!("{error:#}")))?
            }
            None => std::env::var("TACTUS_TOKEN").map(String::into_bytes).map_err(|_| {
                Failure::usage(
                    "a token is needed: --token-file FILE, or TACTUS_TOKEN in the environment",
                )
            })?,
        };
        let token =
            String::from_utf8(token).ok().filter(|t| t.bytes().all(|b| b.is_ascii_graphic()));
        let token = token.ok_or_else(|| Failure::usage("a token has visible characters only"))?;
        Ok(format!("Bearer {token}"))
    }
}

/// The token of a volume.
pub(super) struct ServerToken {
    pub(super) file: PathBuf,
    /// A new token, which is shown only this once.
    pub(super) made: Option<String>,
}

/// The path of the token file of the volume `dir`.
pub(super) fn place(dir: &Path) -> PathBuf {
    dir.join(RESERVED).join("upload-token")
}

/// The token of the volume `dir`, made when there is none.
pub(super) fn own(dir: &Path) -> Result<ServerToken> {
    let (directory, file) = (dir.join(RESERVED), place(dir));
    if file.exists() {
        http::token_in(&file)?;
        return Ok(ServerToken { file, made: None });
    }
    let mut bytes = [0; 32];
    let filled = getrandom(&mut bytes, GetRandomFlags::empty()).context("no random bytes")?;
    anyhow::ensure!(filled == bytes.len(), "the kernel gives up to 256 random bytes at once");
    // Clients would take a token that begins with a dash for an option.
    let token = data_encoding::HEXLOWER.encode(&bytes);
    let write = || -> std::io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        let mut new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file)?;
        new.write_all(format!("{token}\n").as_bytes())?;
        new.sync_all()
    };
    write().with_context(|| format!("the token cannot be kept in {}", file.display()))?;
    Ok(ServerToken { file, made: Some(token) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_token_is_made_once_and_for_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let first = own(dir.path()).unwrap();
        let token = first.made.unwrap();
        assert_eq!(token.len(), 64);
        assert_eq!(http::token_in(&first.file).unwrap(), token.as_bytes());
        let mode = std::fs::metadata(&first.file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(own(dir.path()).unwrap().made.is_none());
        assert_ne!(own(tempfile::tempdir().unwrap().path()).unwrap().made, Some(token));
    }

    #[test]
    fn no_program_takes_a_token_for_an_option() {
        for _ in 0..20 {
            let token = own(tempfile::tempdir().unwrap().path()).unwrap().made.unwrap();
            assert!(token.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{token}");
        }
    }
}
