//! Pins under `/api/v1/pins`: titles and directories that are kept in memory, with the right
//! `pins`.
//!
//! Promise: PUT answers when the pin is admitted or refused, not when all of it has been read. A
//! refusal changes nothing.

use tactus_control::pins::{PinError, Pins};
use tactus_core::path::RequestPath;

use crate::request::{Method, Request};
use crate::response::Response;
use crate::uploads::Refusal;

const PINS: &str = "/api/v1/pins";

/// Whether a path is one of a pin, or of all.
pub(super) fn is_here(path: &RequestPath) -> bool {
    below(path).is_some()
}

/// The path of the pin; empty for all of them, and for the pin of everything.
fn below(path: &RequestPath) -> Option<&str> {
    let rest = path.name().strip_prefix(&PINS[1..])?;
    if rest.is_empty() { Some("") } else { rest.strip_prefix('/') }
}

/// Handles a request.
pub(super) async fn answer(
    pins: Option<&Pins>,
    request: &Request,
    path: &RequestPath,
) -> Result<Response, Refusal> {
    let none = || Response::text(404, "this is not pinned");
    let pins = pins.ok_or_else(none)?;
    let name = below(path).unwrap_or_default();
    let response = match request.method {
        Method::Get | Method::Head if name.is_empty() && !path.is_directory() => {
            Response::json(200, &pins.all())
        }
        Method::Get | Method::Head => Response::json(200, &pins.one(name).ok_or_else(none)?),
        Method::Put if !name.is_empty() || path.is_directory() => {
            Response::json(200, &pins.add(name).await.map_err(|error| refused(&error))?)
        }
        Method::Delete if !name.is_empty() || path.is_directory() => {
            if !pins.remove(name).await {
                return Err(none().into());
            }
            Response::empty(204)
        }
        _ => {
            let text = "use GET to read pins, PUT and DELETE of a PATH to pin and release it";
            return Err(Response::text(405, text).with("Allow", "GET, HEAD, PUT, DELETE").into());
        }
    };
    Ok(response.with("Cache-Control", "no-store"))
}

fn refused(error: &PinError) -> Response {
    let text = error.to_string();
    match error {
        PinError::NotFound(_) => Response::text(404, text),
        PinError::TooMany | PinError::Growing | PinError::Refused { .. } => {
            Response::text(409, text)
        }
    }
}
