//! Matches a request's URL with its session.
//!
//! Promise: a request with the URL of one title has no effect on a session of another title, and a
//! request for one of several tracks has none on the others (RFC 2326, sections 11.3.5 and
//! 11.3.11). A session of one track accepts the URL of the track, of the title, and the SAT>IP
//! name: players use all of them.

use super::*;

impl Connection {
    /// The requested URL without a track, which means the whole session.
    ///
    /// # Errors
    /// 454 if the URL names another title or a track that the session does not have; 460 if it
    /// names one of several tracks.
    pub(super) fn whole(&self, id: SessionId, uri: &str) -> Result<String, Reply> {
        let (path, base) = target(uri)?;
        let gone = || self.refused(SessionRefusal::Unknown(Status::SESSION_NOT_FOUND));
        // A recording has no tracks here and is identified by its connection.
        let Some((own, tracks)) = self.title_of(id) else { return Ok(base) };
        match track_named(uri) {
            None if tracks.len() == 1 && is_only_stream(&path) => Ok(base),
            _ if own != path => Err(gone()),
            Some(number) if !tracks.contains(&number) => Err(gone()),
            Some(_) if tracks.len() > 1 => Err(Reply::new(Status::ONLY_AGGREGATE)),
            _ => Ok(base),
        }
    }

    /// The played title and its tracks that are set up.
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
    /// 459 if the session plays another title.
    pub(super) fn is_of(&self, id: SessionId, path: &RequestPath) -> Result<(), Reply> {
        match self.title_of(id) {
            Some((own, _)) if own != *path => Err(Reply::new(Status::AGGREGATE_NOT_ALLOWED)),
            _ => Ok(()),
        }
    }
}

/// `/stream=0`: the SAT>IP (EN 50585) name of the only stream of a session. VLC uses it.
fn is_only_stream(path: &RequestPath) -> bool {
    let number = path.name().strip_prefix("stream=");
    number.is_some_and(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()))
}
