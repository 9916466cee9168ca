//! JSON bodies with the keys of a table of the configuration.
//!
//! Promise: values are checked by the rules of the configuration, with the same error messages.

use serde_json::{Map, Value};
use tactus_notation::ConfigError;

use super::response::Response;

/// The keys of `table` in a JSON object.
pub(super) fn read(body: &[u8], table: &str) -> Result<Map<String, Value>, Response> {
    serde_json::from_slice(body).map_err(|error| {
        Response::text(
            400,
            format!(
                "the body must be a JSON object with the keys of {table}: \
            {error}"
            ),
        )
    })
}

/// The keys with the name from the path; `what` is the kind of object in error messages.
pub(super) fn named(
    mut keys: Map<String, Value>,
    name: &str,
    what: &str,
) -> Result<Map<String, Value>, Response> {
    match keys.insert("name".into(), name.into()) {
        None => Ok(keys),
        Some(written) if written == *name => Ok(keys),
        Some(_) => {
            let text = format!("the path names another {what} than the body");
            Err(Response::text(400, text))
        }
    }
}

/// Runs work on a thread that may take long. Checking a body of 64 KiB takes about as long as a
/// thread that serves other clients may be busy.
pub(super) async fn worked_out<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Response> + Send + 'static,
) -> Result<T, Response> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(Response::text(500, "the body could not be processed; try again")))
}

/// Checks the keys by the rules of the configuration.
pub(super) fn checked<T>(
    keys: &Map<String, Value>,
    parse: impl FnOnce(&str) -> Result<T, ConfigError>,
) -> Result<T, Response> {
    let text = toml::to_string(keys).map_err(|error| format!("invalid value: {error}"));
    let meant = text.and_then(|text| parse(&text).map_err(|error| error.to_string()));
    meant.map_err(|message| Response::text(400, message))
}
