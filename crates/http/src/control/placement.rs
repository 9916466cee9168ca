//! Where the servers of the engine are, under `/api/v1/placement`: read and changed while they run,
//! with the right `placement`.
//!
//! Promise: PUT answers when the server has arrived, with the time in which it began nothing. A
//! refusal moves nothing. A server that was moved stays there until DELETE lets it move by itself
//! again. PUT of a core starts its real-time thread, and DELETE ends it when its servers have moved
//! to others.

use serde::Deserialize;
use serde_json::{Map, Value};
use tactus_control::placer::{PlaceError, Placer};
use tactus_core::path::RequestPath;

use super::recordings;
use crate::incoming::Incoming;
use crate::put::BodyOutcome;
use crate::request::{Method, Request};
use crate::response::Response;
use crate::uploads::Refusal;

const PLACEMENT: &str = "api/v1/placement";

/// What cores are below.
const CORES: &str = "cores/";

/// The body of a PUT.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Target {
    /// The processor of the new core.
    core: u32,
}

/// Whether a path is that of a server, or of all.
pub(super) fn is_here(path: &RequestPath) -> bool {
    below(path).is_some()
}

/// The name of the server; empty for all.
fn below(path: &RequestPath) -> Option<&str> {
    let rest = path.name().strip_prefix(PLACEMENT)?;
    if rest.is_empty() { Some("") } else { rest.strip_prefix('/') }
}

/// Handles a request.
pub(super) async fn answer(
    placer: Option<&Placer>,
    request: &Request,
    path: &RequestPath,
    incoming: &mut Incoming<'_>,
) -> Result<BodyOutcome, Refusal> {
    let Some(placer) = placer else {
        return Err(Response::text(404, "there are no servers here").into());
    };
    let name = below(path).unwrap_or_default();
    if let Some(cpu) = name.strip_prefix(CORES) {
        let response = change_core(placer.clone(), request.method, cpu).await?;
        return Ok(BodyOutcome::Answer(response.with("Cache-Control", "no-store")));
    }
    let response = match request.method {
        Method::Get | Method::Head if name.is_empty() => Response::json(200, &placer.placement()),
        Method::Put if !name.is_empty() => {
            let body = match recordings::read(incoming).await? {
                Ok(body) => body,
                Err(ended) => return Ok(ended),
            };
            let wrong = |error: serde_json::Error| {
                Response::text(400, format!("the body must be like {{\"core\": 1}}: {error}"))
            };
            let keys: Map<String, Value> = serde_json::from_slice(&body).map_err(wrong)?;
            let Target { core } = serde_json::from_value(keys.into()).map_err(wrong)?;
            let (placer, name) = (placer.clone(), name.to_owned());
            let placed = tokio::task::spawn_blocking(move || placer.place(&name, core)).await;
            let placed = placed.map_err(|_| Response::text(500, "the move failed; try again"))?;
            Response::json(200, &placed.map_err(|error| refused(&error))?)
        }
        Method::Delete if !name.is_empty() => {
            Response::json(200, &placer.release(name).map_err(|error| refused(&error))?)
        }
        _ => {
            let text = "use GET to read the placement, PUT of a SERVER to move it, DELETE to let \
                        it move by itself again";
            return Err(Response::text(405, text).with("Allow", "GET, HEAD, PUT, DELETE").into());
        }
    };
    Ok(BodyOutcome::Answer(response.with("Cache-Control", "no-store")))
}

/// Adds a core, or removes it.
async fn change_core(placer: Placer, method: Method, cpu: &str) -> Result<Response, Refusal> {
    let cpu: u32 = cpu.parse().map_err(|_| {
        Response::text(404, "a core has the number of its processor, as in /proc/cpuinfo")
    })?;
    let change = move || {
        let answered =
            |answer: Result<Response, PlaceError>| answer.unwrap_or_else(|error| refused(&error));
        match method {
            Method::Put => answered(placer.add_core(cpu).map(|one| Response::json(200, &one))),
            _ => answered(placer.remove_core(cpu).map(|one| Response::json(200, &one))),
        }
    };
    if !matches!(method, Method::Put | Method::Delete) {
        let text = "use PUT of a core to start its real-time thread, DELETE to end it";
        return Err(Response::text(405, text).with("Allow", "PUT, DELETE").into());
    }
    let changed = tokio::task::spawn_blocking(change).await;
    Ok(changed.map_err(|_| Response::text(500, "the change failed; try again"))?)
}

fn refused(error: &PlaceError) -> Response {
    let text = error.to_string();
    match error {
        PlaceError::NoServer { .. } => Response::text(404, text),
        PlaceError::Stopping(_) | PlaceError::Ending => Response::text(503, text),
        PlaceError::NoCore { .. }
        | PlaceError::NoProcessor { .. }
        | PlaceError::LastCore(_)
        | PlaceError::NoThread(_)
        | PlaceError::Tending(_)
        | PlaceError::NoRoom(_)
        | PlaceError::Busy
        | PlaceError::Refused { .. }
        | PlaceError::Late(_) => Response::text(409, text),
    }
}
