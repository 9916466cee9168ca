//! The checks of RTSP 2.0 (RFC 7826) requests, and the fields of their answers.
//!
//! Promise: RTSP 1.0 answers are not affected. Missing methods (recording) and features are refused
//! before the request has any effect.

use tactus_core::rtsp::v2;

use super::*;

impl Connection {
    /// Finds the session of a request, or the refusal.
    pub(super) fn begin_v2(&mut self, request: &mut Request) -> Result<(), Reply> {
        match request.method {
            Method::Announce | Method::Record | Method::Unknown => {
                return Err(Reply::new(Status::NOT_IMPLEMENTED).with("Public", v2::PUBLIC));
            }
            // A recording announced in 1.0 is set up in 1.0.
            Method::Setup if self.announced.is_some() => {
                return Err(Reply::new(Status::NOT_IN_THIS_STATE));
            }
            _ => {}
        }
        let required = request.fields("require").chain(request.fields("proxy-require"));
        if let Some(missing) = v2::unsupported(required) {
            return Err(Reply::new(Status::OPTION).with("Unsupported", missing));
        }
        if let Some(id) = self.pipelined(request)?
            && request.session().is_none()
        {
            request.name_session(id.to_string());
        }
        if request.method == Method::Setup
            && request.field("accept-ranges").is_some_and(|formats| !v2::accepts_npt(formats))
        {
            return Err(Reply::new(Status::NOT_VALID_FOR_RESOURCE));
        }
        let needs_session =
            matches!(request.method, Method::Play | Method::Pause | Method::Teardown);
        if needs_session && request.session().is_none() {
            // RTSP 1.0 answers 455 here; 2.0 answers 454 for a missing session (section 17.4).
            self.server.counters.refuse(Reason::Session);
            return Err(Reply::new(Status::SESSION_NOT_FOUND));
        }
        Ok(())
    }

    /// The session of the request's pipeline, if it has started.
    fn pipelined(&self, request: &Request) -> Result<Option<SessionId>, Reply> {
        let Some(number) = request.field("pipelined-requests") else { return Ok(None) };
        let number = v2::pipeline(number).ok_or_else(|| Reply::new(Status::BAD_REQUEST))?;
        let id = self.pipelines.find(number);
        // After it has ended, the same pipeline number may start another session.
        Ok(id.filter(|id| self.server.sessions().state(*id).is_some()))
    }

    /// Adds the fields that RTSP 2.0 requires.
    pub(super) async fn complete_two(&mut self, request: &Request, mut reply: Reply) -> Reply {
        if reply.field("Public").is_some() {
            reply = reply.with_only("Public", v2::PUBLIC);
        }
        let id =
            reply.field("Session").and_then(|value| value.split(';').next()).map(str::to_owned);
        let is_set_up = request.method == Method::Setup && reply.status == Status::OK;
        if let Some(id) = &id
            && !is_set_up
        {
            // The session timeout is sent once (section 18.49).
            reply = reply.with_only("Session", id);
        }
        if is_set_up {
            reply = reply
                .with("Accept-Ranges", v2::ACCEPT_RANGES)
                .with("Media-Properties", v2::MEDIA_PROPERTIES);
            let id = id.as_deref().and_then(SessionId::parse);
            if let Some(id) = id {
                let number = request.field("pipelined-requests").and_then(v2::pipeline);
                if let Some(number) = number {
                    self.pipelines.bind(number, id);
                }
                if let Some(length) = self.server.length(id).await {
                    reply = reply.with("Media-Range", span::write(MediaTime(0), length));
                }
            }
        }
        if reply.status == Status::NOT_VALID_FOR_RESOURCE {
            reply = reply.with("Accept-Ranges", v2::ACCEPT_RANGES);
        }
        if request.field("supported").is_some() {
            reply = reply.with("Supported", v2::supported());
        }
        for (field, name) in
            [("pipelined-requests", "Pipelined-Requests"), ("timestamp", "Timestamp")]
        {
            if let Some(value) = request.field(field) {
                reply = reply.with(name, value);
            }
        }
        reply.with("Date", date())
    }
}

/// The date in the format of RFC 7826, section 18.21.
pub(super) fn date() -> String {
    httpdate::fmt_http_date(std::time::SystemTime::now())
}
