//! Classes under `/api/v1/classes`: read and changed, also while they send, with the right
//! `classes`.
//!
//! Promise: values are checked by the rules of the configuration, with the same error messages. A
//! change that conflicts with granted rates is refused with the name of the missing resource. It
//! changes nothing itself.

use tactus_core::path::RequestPath;
use tactus_playout::classes::{ClassError, Classes};

use super::recordings;
use crate::incoming::Incoming;
use crate::keys;
use crate::put::BodyOutcome;
use crate::request::{Method, Request};
use crate::response::Response;
use crate::uploads::Refusal;

const CLASSES: &str = "api/v1/classes";

/// Whether a path is one of a class, or of all.
pub(super) fn is_here(path: &RequestPath) -> bool {
    below(path).is_some()
}

/// The part of `path` below the place of all classes.
fn below(path: &RequestPath) -> Option<&str> {
    let rest = path.name().strip_prefix(CLASSES)?;
    if rest.is_empty() { Some("") } else { rest.strip_prefix('/') }
}

/// Handles a request.
pub(super) async fn answer(
    classes: Option<&Classes>,
    request: &Request,
    path: &RequestPath,
    incoming: &mut Incoming<'_>,
) -> Result<BodyOutcome, Refusal> {
    let Some(classes) = classes else {
        return Err(Response::text(404, "nothing is sent here").into());
    };
    let name = below(path).unwrap_or_default();
    let response = match request.method {
        Method::Get | Method::Head if name.is_empty() => Response::json(200, &classes.all()),
        Method::Get | Method::Head => told(classes, name)?,
        Method::Put | Method::Patch if !name.is_empty() => {
            let body = match recordings::read(incoming).await? {
                Ok(body) => body,
                Err(ended) => return Ok(ended),
            };
            let of = name.to_owned();
            let work = move || keys::named(keys::read(&body, "[[class]]")?, &of, "class");
            let keys = keys::worked_out(work).await?;
            let is_patch = request.method == Method::Patch;
            classes.set(name, keys, is_patch).map_err(|error| refused(&error))?;
            told(classes, name)?
        }
        _ => {
            let text = "use GET to read classes, PUT or PATCH of NAME to change one; classes are \
                added and removed in the configuration";
            return Err(Response::text(405, text).with("Allow", "GET, HEAD, PUT, PATCH").into());
        }
    };
    Ok(BodyOutcome::Answer(response.with("Cache-Control", "no-store")))
}

fn told(classes: &Classes, name: &str) -> Result<Response, Refusal> {
    let one = classes.one(name).ok_or_else(|| refused(&ClassError::Unknown))?;
    Ok(Response::json(200, &one))
}

fn refused(error: &ClassError) -> Response {
    let text = error.to_string();
    match error {
        ClassError::Unknown => Response::text(404, text),
        ClassError::Wrong(_) => Response::text(400, text),
        ClassError::Fixed(..) | ClassError::NoRoom { .. } => Response::text(409, text),
        ClassError::Busy(_) => Response::text(503, text).with("Retry-After", "1"),
    }
}
