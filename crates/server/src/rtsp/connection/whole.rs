//! What a request's URL has to do with the session that it names.
//!
//! Promise: what is asked of one title does nothing to a session of another one, and what is asked
//! of one track of several does nothing to the others (RFC 2326, sections 11.3.5 and 11.3.11). A
//! session of one track answers to that track's URL as to its title's, and to what SAT>IP calls it:
//! players ask each of them.

use super::*;

impl Connection {
    /// The URL as it was asked for, without a track: it means all of the session.
    ///
    /// # Errors
    /// 454 when it is another title's, or a track's that the session does not have; 460 when it is
    /// one track's of several.
    pub(super) fn whole(&self, id: SessionId, uri: &str) -> Result<String, Reply> {
        let (path, base) = target(uri)?;
        let gone = || self.refused(Refused::Unknown(Status::SESSION_NOT_FOUND));
        // What is recorded has no tracks here, and is known by its connection.
        let Some((own, tracks)) = self.title_of(id) else { return Ok(base) };
        match track_named(uri) {
            None if tracks.len() == 1 && is_only_stream(&path) => Ok(base),
            _ if own != path => Err(gone()),
            Some(number) if !tracks.contains(&number) => Err(gone()),
            Some(_) if tracks.len() > 1 => Err(Reply::new(Status::ONLY_AGGREGATE)),
            _ => Ok(base),
        }
    }

    /// The title that is played, and its tracks that have been set up.
    fn title_of(&self, id: SessionId) -> Option<(RequestPath, Vec<u32>)> {
        if let Some(session) = self.server.play_session(id) {
            return Some((session.movie_title().path().clone(), session.numbers()));
        }
        let streams = self.server.streams();
        streams.get(&id).map(|handle| (handle.ts_title.path.clone(), vec![1]))
    }

    /// A track is added to a session of its own title only (RFC 2326, section 10.4).
    ///
    /// # Errors
    /// 459 when the session is of another one.
    pub(super) fn is_of(&self, id: SessionId, path: &RequestPath) -> Result<(), Reply> {
        match self.title_of(id) {
            Some((own, _)) if own != *path => Err(Reply::new(Status::AGGREGATE_NOT_ALLOWED)),
            _ => Ok(()),
        }
    }
}

/// `/stream=0`: a client of SAT>IP (EN 50585) calls the stream of its session so, whatever it has
/// set up, as it knows one in each. VLC does.
fn is_only_stream(path: &RequestPath) -> bool {
    let number = path.name().strip_prefix("stream=");
    number.is_some_and(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()))
}
