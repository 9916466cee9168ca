//! Requests of the commands that show and change a server's objects: JSON below `/api/v1`.
//!
//! Promise: an unexpected answer becomes a failure with the server's own message.

use anyhow::Context;
use comfy_table::Table;
use serde_json::{Map, Value};

use super::client::{self, ClientError, RequestBody, Response, Url};
use super::put::refused;
use super::token::Credentials;
use super::{Failure, console};

/// Longer than the answer about ten thousand channels.
const ANSWER_MAX: u64 = 64 << 20;

/// A kind of objects that a server identifies by name.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    /// Their path.
    pub(super) path: &'static str,
    /// Their name in messages about unknown ones.
    pub(super) what: &'static str,
}

/// One of them.
#[derive(clap::Args, Debug)]
pub(super) struct NamedObject {
    /// Which server, like http://127.0.0.1:8080/
    pub(super) server: String,
    /// How it is called
    pub(super) name: String,
    #[command(flatten)]
    pub(super) credentials: Credentials,
}

/// All of them.
#[derive(clap::Args, Debug)]
pub(super) struct ObjectList {
    /// Which server, like http://127.0.0.1:8080/
    server: String,
    /// As JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    credentials: Credentials,
}

impl Kind {
    /// Prints all of them: as JSON, or by `table`.
    pub(super) fn list(
        self,
        list: &ObjectList,
        table: impl FnOnce(&Value) -> Table,
    ) -> Result<(), Failure> {
        let all = self.all(&list.server, &list.credentials)?;
        if list.json { print(&all) } else { console::line(table(&all)) }
    }

    /// Requests all of them; the API permits this to every client on the same machine.
    pub(super) fn all(self, server: &str, credentials: &Credentials) -> Result<Value, Failure> {
        let authorization = credentials.field_if_any()?;
        let answer = ask(server, "GET", self.path, authorization.as_deref(), None)?;
        self.read(answer, 200)
    }

    /// Requests one of them, or all by no name; `below` follows its path.
    pub(super) fn ask(
        self,
        which: &NamedObject,
        method: &str,
        below: &str,
        body: Option<Map<String, Value>>,
    ) -> Result<Response, Failure> {
        let slash = if which.name.is_empty() { "" } else { "/" };
        let path = format!("{}{slash}{}{below}", self.path, which.name);
        // Reads need no token by default, so one is sent only if it was given; the server refuses a
        // read that needs one.
        let authorization = match method {
            "GET" => which.credentials.field_if_any()?,
            _ => Some(which.credentials.field()?),
        };
        ask(&which.server, method, &path, authorization.as_deref(), body)
    }

    /// The server's answer, if it has the `expected` status.
    pub(super) fn read(self, answer: Response, expected: u16) -> Result<Value, Failure> {
        if answer.status != expected {
            return Err(self.not_done(answer));
        }
        let text = answer.into_text(ANSWER_MAX)?;
        Ok(serde_json::from_str(&text).context(
            "the server's answer is not valid JSON of this \
            API; check the URL and the server's version",
        )?)
    }

    /// The failure for a refusal.
    pub(super) fn not_done(self, answer: Response) -> Failure {
        let what = self.what;
        match answer.status {
            400 | 409 => {
                let status = answer.status;
                let said = answer.into_text(ANSWER_MAX).unwrap_or_default();
                let said = said.trim();
                if status == 400 { Failure::usage(said) } else { anyhow::anyhow!("{said}").into() }
            }
            404 => anyhow::anyhow!("the server has no {what}, or accepts no changes").into(),
            405 => anyhow::anyhow!("the server accepts no changes; start it with --uploads").into(),
            _ => refused(answer),
        }
    }
}

fn ask(
    server: &str,
    method: &str,
    path: &str,
    authorization: Option<&str>,
    body: Option<Map<String, Value>>,
) -> Result<Response, Failure> {
    let url = Url::parse(server).and_then(|url| url.join(path)).map_err(Failure::usage)?;
    let mut fields = vec![("Content-Type", "application/json")];
    fields.extend(authorization.map(|value| ("Authorization", value)));
    let answer: Result<_, ClientError> = match (body, method) {
        (None, "GET" | "DELETE") => client::fetch(method, &url, &fields),
        (body, _) => {
            let text = body.map(|body| Value::Object(body).to_string()).unwrap_or_default();
            let (len, from) = (Some(text.len() as u64), &mut text.as_bytes());
            client::send(method, &url, &fields, Some(RequestBody { from, len, seen: &|_| {} }))
        }
    };
    Ok(answer?)
}

/// Prints an answer as JSON.
pub(super) fn print(value: &Value) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).unwrap_or_default();
    console::line(text)
}
