//! `tactus rm` and `tactus mv`: deletes or renames titles of a server.

use super::client::{self, ClientError, Url};
use super::token::Credentials;
use super::{Failure, put};

/// Deletes titles of a server
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  tactus rm http://127.0.0.1:8080/film.ts --token-file token

Who is watching a title sees it to its end.

Exit codes: 0 done; 1 failed; 2 wrong arguments.")]
pub(super) struct Rm {
    /// What to delete, like http://127.0.0.1:8080/film.ts
    #[arg(required = true)]
    urls: Vec<String>,
    /// Directories too, with all that is in them
    #[arg(short, long)]
    recursive: bool,
    #[command(flatten)]
    credentials: Credentials,
}

/// Renames a title of a server
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  tactus mv http://127.0.0.1:8080/film.ts http://127.0.0.1:8080/films/film.ts

Directories of the new URL that are missing are made.

Exit codes: 0 done; 1 failed; 2 wrong arguments.")]
pub(super) struct Mv {
    /// Which title, like http://127.0.0.1:8080/film.ts
    from: String,
    /// Its new URL, on the same server and volume
    to: String,
    /// Replace what has the new name
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    credentials: Credentials,
}

impl Rm {
    pub(super) fn run(self) -> Result<(), Failure> {
        let authorization = self.credentials.field()?;
        let urls = self.urls.iter().map(|url| Url::parse(url)).collect::<Result<Vec<_>, _>>();
        for url in urls.map_err(Failure::usage)? {
            // Only a title satisfies the condition: a directory is deleted only on explicit
            // request.
            let fields = [("Authorization", &*authorization), ("If-Match", "*")];
            let fields = if self.recursive { &fields[..1] } else { &fields[..] };
            done(client::fetch("DELETE", &url, fields))?;
        }
        Ok(())
    }
}

impl Mv {
    pub(super) fn run(self) -> Result<(), Failure> {
        let authorization = self.credentials.field()?;
        let from = Url::parse(&self.from).map_err(Failure::usage)?;
        let to = Url::parse(&self.to).map_err(Failure::usage)?;
        let destination = to.text();
        // Without the last field, a title is replaced and a directory is not.
        let fields = [
            ("Authorization", &*authorization),
            ("Destination", &*destination),
            ("Overwrite", "F"),
        ];
        let fields = if self.force { &fields[..2] } else { &fields[..] };
        let answer = client::fetch("MOVE", &from, fields)?;
        if answer.status == CONFLICT && make_directories(&to, &fields[..1])? {
            return done(client::fetch("MOVE", &from, fields));
        }
        done(Ok(answer))
    }
}

/// The status when the new name's directory is missing (RFC 4918 section 9.9.4), or a file is in
/// the way.
const CONFLICT: u16 = 409;

/// Creates the missing parent directories of `to`; returns whether any were missing.
fn make_directories(to: &Url, fields: &[(&str, &str)]) -> Result<bool, ClientError> {
    let mut made = false;
    for (at, _) in to.path.match_indices('/').skip(1) {
        let path = to.path[..=at].to_owned();
        let directory = Url { path, query: String::new(), ..to.clone() };
        made |= client::fetch("MKCOL", &directory, fields)?.status == 201;
    }
    Ok(made)
}

fn done(answer: Result<client::Response, ClientError>) -> Result<(), Failure> {
    let answer = answer?;
    match answer.status {
        201 | 204 => Ok(()),
        _ => Err(put::refused(answer)),
    }
}
