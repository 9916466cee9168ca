//! What the server says about itself (`/metrics`, `/api/v1/...`): answered by somebody else, in here
//! only asked.

use super::response::Response;

/// Answers for paths that are no stored objects.
pub trait Internal: Send + Sync {
    /// The answer to a GET of `path`, decoded, with its slash. None if the path is not the server's
    /// own, so that a stored object of that name is looked up. `accept` is the value of the
    /// request's `Accept`. It must not block.
    fn answer(&self, path: &str, query: Option<&str>, accept: Option<&str>) -> Option<Response>;
}

/// Nothing is said.
impl Internal for () {
    fn answer(&self, _: &str, _: Option<&str>, _: Option<&str>) -> Option<Response> {
        None
    }
}
