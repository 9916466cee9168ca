//! Live inputs under `/api/v1/recordings`: started, stopped and read with the right `recordings`.
//!
//! Promise: values are checked by the rules of the configuration, with the same error messages. A
//! path has only the name of a recording. It receives and stores nothing itself.

use tactus_control::rights::Right;
use tactus_core::path::RequestPath;
use tactus_playout::ingest::{BeginError, Recordings, State};
use tactus_playout::recording::Recording;

use crate::incoming::{Incoming, ReadEnd};
use crate::keys;
use crate::put::BodyOutcome;
use crate::request::{Method, Request};
use crate::response::Response;
use crate::rights::Caller;
use crate::uploads::Refusal;

const RECORDINGS: &str = "api/v1/recordings";
/// Longest body, in bytes: more than all keys of a recording take, or of a channel whose titles are
/// not in a file.
const BODY_MAX: usize = 64 * 1024;

/// Whether a path is one of a recording, or of all.
pub(super) fn is_here(path: &RequestPath) -> bool {
    below(path).is_some()
}

/// The part of `path` below the place of all recordings.
fn below(path: &RequestPath) -> Option<&str> {
    let rest = path.name().strip_prefix(RECORDINGS)?;
    if rest.is_empty() { Some("") } else { rest.strip_prefix('/') }
}

/// Handles a request.
pub(super) async fn answer(
    recordings: Option<&Recordings>,
    caller: Caller<'_>,
    request: &Request,
    path: &RequestPath,
    incoming: &mut Incoming<'_>,
) -> Result<BodyOutcome, Refusal> {
    let Some(recordings) = recordings else {
        return Err(Response::text(404, "nothing is recorded here").into());
    };
    let name = below(path).unwrap_or_default();
    let response = match (request.method, name) {
        (Method::Get | Method::Head, "") => Response::json(200, &recordings.all()),
        (Method::Get | Method::Head, name) => told(recordings, name, 200)?,
        (Method::Post, "") => {
            let body = match read(incoming).await? {
                Ok(body) => body,
                Err(ended) => return Ok(ended),
            };
            let wanted = keys::worked_out(move || wanted(&body)).await?;
            check(&caller, &wanted)?;
            let name = wanted.name.clone();
            recordings.begin(wanted, caller.principal).map_err(refused)?;
            told(recordings, &name, 201)?.with("Location", format!("/{RECORDINGS}/{name}"))
        }
        (Method::Post, name) => {
            check(&caller, &recordings.configured(name).ok_or_else(unknown)?)?;
            if !recordings.begin_again(name).map_err(refused)? {
                return Err(unknown().into());
            }
            told(recordings, name, 200)?
        }
        (Method::Delete, name) if !name.is_empty() => {
            let known = recordings.configured(name).ok_or_else(unknown)?;
            caller.check(Right::Recordings, &known.to.fixed())?;
            end(recordings, name).await?
        }
        _ => {
            let text = "use GET to read recordings, POST to start and DELETE to stop one";
            return Err(Response::text(405, text).with("Allow", "GET, HEAD, POST, DELETE").into());
        }
    };
    Ok(BodyOutcome::Answer(response.with("Cache-Control", "no-store")))
}

/// Refuses a caller without the right to record titles of these names. A recording that deletes old
/// titles also needs the right to delete: titles that match its pattern may belong to other
/// principals.
fn check(caller: &Caller<'_>, recording: &Recording) -> Result<(), Response> {
    let titles = recording.to.fixed();
    caller.check(Right::Recordings, &titles)?;
    match recording.keep.is_limited() {
        true => caller.check(Right::Delete, &titles),
        false => Ok(()),
    }
}

/// Stops a running recording; removes a stopped one from the list.
async fn end(recordings: &Recordings, name: &str) -> Result<Response, Refusal> {
    let status = recordings.one(name).ok_or_else(unknown)?;
    if status.state == State::Stopped {
        recordings.forget(name);
        return Ok(Response::empty(204));
    }
    match recordings.stop(name).await {
        Some(true) => told(recordings, name, 200),
        // Its last title is still being stored.
        Some(false) => told(recordings, name, 202),
        None => Err(unknown().into()),
    }
}

fn told(recordings: &Recordings, name: &str, status: u16) -> Result<Response, Refusal> {
    let one = recordings.one(name).ok_or_else(unknown)?;
    Ok(Response::json(status, &one))
}

fn unknown() -> Response {
    Response::text(404, "no recording has this name")
}

fn refused(error: BeginError) -> Response {
    let status = match error {
        BeginError::Exists | BeginError::SameTitles(_) => 409,
        BeginError::TooMany => 429,
        BeginError::NoVolume(_) => 403,
    };
    Response::text(status, error.to_string())
}

/// The recording in a body: the keys of `[[recording]]` as a JSON object.
fn wanted(body: &[u8]) -> Result<Recording, Response> {
    keys::checked(&keys::read(body, "[[recording]]")?, Recording::parse)
}

/// Reads the whole body, which has the keys of an object.
pub(super) async fn read(
    incoming: &mut Incoming<'_>,
) -> Result<Result<Vec<u8>, BodyOutcome>, Refusal> {
    let too_long = || Response::text(413, format!("at most {BODY_MAX} bytes are read here"));
    if incoming.announced().is_some_and(|len| len > BODY_MAX as u64) {
        return Err(too_long().into());
    }
    let mut body = vec![0; BODY_MAX + 1];
    let mut len = 0;
    loop {
        let (count, pause) = incoming.fill(&mut body[len..]).await;
        len += count;
        if len > BODY_MAX {
            return Err(too_long().into());
        }
        match pause {
            ReadEnd::BodyEnd(ended) => return Ok(Err(BodyOutcome::BodyEnd(ended))),
            ReadEnd::Silence => {}
            // The memory is not, so it is over.
            ReadEnd::Full => {
                body.truncate(len);
                return Ok(Ok(body));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_checked_as_the_configuration_is() {
        let good = br#"{"name": "a", "from": "udp://239.1.1.1:5000", "to": "/a-%n.ts",
            "rotate": "1 h", "keep_titles": 3}"#;
        let recording = wanted(good).unwrap();
        assert_eq!((&*recording.name, recording.keep.titles), ("a", Some(3)));
        for (body, said) in [
            ("", "JSON object"),
            ("[]", "JSON object"),
            ("{}", "the key `name` is missing"),
            (r#"{"name": null}"#, "invalid value"),
            (r#"{"name": "a", "from": "udp://x:1", "to": "/a"}"#, "not an address in numbers"),
            (
                r#"{"name": "a", "from": "udp://10.0.0.1:1", "to": "/a", "form": 1}"#,
                "did you mean `from`",
            ),
            (
                r#"{"name": "a", "from": "udp://10.0.0.1:1", "to": "/a", "rotate": "1 h"}"#,
                "this name",
            ),
        ] {
            let error = wanted(body.as_bytes()).unwrap_err();
            let error = String::from_utf8_lossy(error.content());
            assert!(error.contains(said), "{body}: {error}");
        }
    }
}
