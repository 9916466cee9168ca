//! Live streams of channels at `/api/v1/channels/NAME.ts`: an answer without a length, which goes
//! on while the channel does. It sends nothing itself.

use tactus_core::path::RequestPath;
use tactus_playout::channels::ListenError;

use super::Store;
use super::answer::{Answer, Live, refused};
use super::request::{Method, Request};
use super::response::Response;

/// The answer to a GET or HEAD of `path`; none if it is not a channel's.
pub(super) fn answer(store: &Store, request: &Request, path: &RequestPath) -> Option<Answer> {
    let own = path.name().strip_prefix("api/v1/channels/")?;
    let name = own.strip_suffix(".ts").filter(|name| !name.is_empty() && !path.is_directory())?;
    let channels = store.control.channels.as_ref()?;
    // The name of a channel may itself have this ending.
    if channels.one(name).is_none() && channels.one(own).is_some() {
        return None;
    }
    if let Err(error) = channels.check_live(name) {
        return Some(Answer::Short(refusal(&error)));
    }
    let head = Response::streamed(200, "video/mp2t");
    let head = head.with("Cache-Control", "no-store").with("Accept-Ranges", "none");
    if request.method == Method::Head {
        return Some(Answer::Short(head));
    }
    let live = Live { head, channels: channels.clone(), name: name.to_owned() };
    Some(Answer::Live(Box::new(live)))
}

/// The answer if a channel cannot be listened to.
pub(super) fn refusal(error: &ListenError) -> Response {
    match error {
        ListenError::Unknown => Response::text(404, "no channel has this name"),
        ListenError::Sound => {
            let text = "the channel sends sound (AES67) and no transport stream; use its session \
                        description, .../NAME.sdp";
            Response::text(404, text)
        }
        ListenError::Silent(reason) => {
            let reason = reason.as_deref().unwrap_or("its next title has not begun");
            let text = format!("the channel sends nothing now: {reason}; try again later");
            Response::text(503, text).with("Retry-After", SILENT_FOR)
        }
        ListenError::Refused(refusal) => refused(refusal),
    }
}

/// Seconds until a retry: a channel looks again for a missing title within a few seconds.
const SILENT_FOR: &str = "5";
