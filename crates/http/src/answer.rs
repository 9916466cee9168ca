//! The kinds of answers: content in memory, a delivery by the engine, or a refusal.

use std::ops::Range;
use std::sync::Arc;

use tactus_control::broker::{Device, Overlap, Refusal};
use tactus_control::engine::Watchdog;
use tactus_control::settings::ClientShare;
use tactus_engine::message::VolumeId;
use tactus_playout::channels::Channels;
use tactus_storage::catalogue::{Catalogue, OpenFault, OpenTitle};

use super::rate::PlannedPace;
use super::response::Response;
use super::schedule::Renewal;

/// An answer to a request.
#[derive(Debug)]
pub(super) enum Answer {
    /// All content is in memory, or there is no content.
    Short(Response),
    /// The engine sends the content.
    Delivery(Box<Delivery>),
    /// The engine sends what a channel sends.
    Live(Box<Live>),
}

/// An answer that follows a channel.
#[derive(Debug)]
pub(super) struct Live {
    /// Its head.
    pub(super) head: Response,
    /// All channels.
    pub(super) channels: Channels,
    /// The name of the channel.
    pub(super) name: String,
}

/// Parts of a title, each with the bytes that precede it.
pub(super) type Parts = Vec<(Vec<u8>, Range<u64>)>;

/// The end of an answer with a growing title.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ContentEnd {
    /// Its length is known.
    Until(u64),
    /// The content ends with the connection.
    UntilClosed,
}

/// An answer whose content the engine sends.
#[derive(Debug)]
pub(super) struct Delivery {
    /// The head, with the total length.
    pub(super) head: Response,
    /// The title.
    pub(super) title: Arc<OpenTitle>,
    /// The paces that it may have, the best first; at least one. With a plan it has one part.
    pub(super) paces: Vec<PlannedPace>,
    /// Whether it is a playlist, which is short whatever its length.
    pub(super) is_playlist: bool,
    /// The client's share in the resources of such streams.
    pub(super) share: ClientShare,
    /// What tells its client from others at the same address.
    pub(super) device: Device,
    /// Whether the client may close its stream before only after the head of this one.
    pub(super) overlap: Overlap,
    /// Whether it continues within a title: no new viewer begins so.
    pub(super) is_seek: bool,
    /// Whether a viewer without room may have a slower pace: its request names none.
    pub(super) may_be_slowed: bool,
    /// Whether it is a part of what a player needs: a segment, or a look at a title.
    pub(super) is_piece: bool,
    /// The parts, each with the bytes that precede it. No part is empty.
    pub(super) parts: Parts,
    /// The bytes after the last part.
    pub(super) tail: Vec<u8>,
    /// How the rest gets another schedule: if the title has no index yet, or if the granted pace is
    /// a slower one.
    pub(super) renewal: Option<Renewal>,
    /// Set for a growing title that is sent as it comes; `parts` is then empty.
    pub(super) follows: Option<ContentEnd>,
}

impl Delivery {
    /// Bytes of the title in the answer.
    pub(super) fn len(&self) -> u64 {
        match self.follows {
            Some(ContentEnd::Until(len)) => return len,
            // The longest possible title.
            Some(ContentEnd::UntilClosed) => return u64::MAX / 2,
            None => {}
        }
        self.parts.iter().map(|(_, part)| part.end - part.start).sum()
    }
}

/// The refusal of every path on a volume whose disk does not answer, because even looking up a name
/// would wait for the disk.
pub(super) fn if_down(
    watchdog: &Watchdog,
    catalogue: &Catalogue,
    volume: VolumeId,
) -> Result<(), Response> {
    match down(watchdog, catalogue, volume) {
        None => Ok(()),
        Some(text) => Err(Response::text(503, text).with("Retry-After", DOWN_FOR)),
    }
}

/// The reason why nothing begins on a volume whose disk does not answer.
pub(super) fn down(watchdog: &Watchdog, catalogue: &Catalogue, volume: VolumeId) -> Option<String> {
    if watchdog.is_up(usize::from(volume.0)) {
        return None;
    }
    let mount = catalogue.mount_of(volume);
    Some(format!("the disk of the volume at /{mount} does not answer; try again later"))
}

/// Seconds until a retry. A disk that resets itself is back by then; a broken disk takes longer.
pub(super) const DOWN_FOR: &str = "5";

/// The refusal of an object that cannot be opened.
pub(super) fn not_served(fault: OpenFault) -> Response {
    match fault {
        OpenFault::NotFound => Response::text(404, fault.to_string()),
        OpenFault::Denied => Response::text(403, fault.to_string()),
        OpenFault::Busy => Response::text(503, fault.to_string()).with("Retry-After", "1"),
        OpenFault::Failed(_) | OpenFault::Damaged(_) => Response::text(500, fault.to_string()),
    }
}

/// The refusal of a range that begins with bytes that the disk recently failed to read.
pub(super) fn unreadable(at: u64) -> Response {
    let text = format!(
        "the disk cannot read this title at byte {at}; store it again, or ask again in ten minutes"
    );
    Response::text(500, text)
}

/// 503, with the name of the missing resource for programs and a sentence for people.
pub(super) fn refused(refusal: &Refusal) -> Response {
    let seconds = refusal.retry_after.as_secs().max(1);
    let body = serde_json::json!({
        "error": "refused",
        "resource": refusal.resource.to_string(),
        "message": refusal.message,
        "retry_after_seconds": seconds,
    });
    Response::json(503, &body).with("Retry-After", seconds.to_string())
}
