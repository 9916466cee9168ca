//! The interface for the server's own paths (`/metrics`, `/api/v1/...`). Other modules implement
//! it.

use super::response::Response;

/// Answers for paths that are no stored objects.
pub trait Internal: Send + Sync {
    /// The answer to a GET of `path`, decoded, with its slash. None if the path is not the server's
    /// own, so that a stored object of that name is looked up. `accept` is the value of the
    /// request's `Accept`. It must not block.
    fn answer(&self, path: &str, query: Option<&str>, accept: Option<&str>) -> Option<Response>;
}

/// A server without paths of its own.
impl Internal for () {
    fn answer(&self, _: &str, _: Option<&str>, _: Option<&str>) -> Option<Response> {
        None
    }
}
