//! The paths that the server itself answers, which no title can have.
//!
//! Promise: no store, channel or recording publishes a title that such a path would hide.

/// Whether the server itself answers requests for this path, decoded and without outer slashes, so
/// that a title there is never served. Some of these paths exist only at the address of `[admin]`,
/// unless a key says otherwise.
pub fn is_api_path(path: &str) -> bool {
    let below = path.strip_prefix("api/v1");
    // A directory that is renamed to `api` may contain a `v1`.
    matches!(path, "api" | "metrics" | "healthz" | "readyz")
        || below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The error for such a path.
pub const API_PATH: &str = "/metrics, /healthz, /readyz and everything below /api/v1/ are \
    the server's own paths, so a title there could not be read; choose another name";
