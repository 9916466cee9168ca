//! `POST /api/v1/reload`: reloads the configuration, with the right `reload`.
//!
//! Promise: the answer names the changes, and those that need a restart. An invalid file changes
//! nothing.

use tactus_core::path::RequestPath;
use tactus_playout::reload::Reload;

use crate::request::{Method, Request};
use crate::response::Response;
use crate::uploads::Refusal;

/// Whether a path is that of the reload.
pub(super) fn is_here(path: &RequestPath) -> bool {
    path.name() == "api/v1/reload"
}

/// Handles a request.
pub(super) async fn answer(
    reload: Option<&Reload>,
    request: &Request,
) -> Result<Response, Refusal> {
    if request.method != Method::Post {
        let text = "the configuration is read again by POST";
        return Err(Response::text(405, text).with("Allow", "POST").into());
    }
    let Some(reload) = reload else {
        return Err(
            Response::text(404, "the server was started without a configuration file").into()
        );
    };
    let reloaded = reload.read().await.map_err(|error| Response::text(409, error.to_string()))?;
    Ok(Response::json(200, &reloaded).with("Cache-Control", "no-store"))
}
