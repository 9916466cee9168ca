//! What a writer is to do next.

use tactus_control::local::ForwardedRequest;
use tokio::sync::oneshot;

use crate::errno::Refusal;

/// One order, from the ring or from a message. Dropped without an answer, it answers itself.
pub(crate) enum Order {
    /// A request of the ring.
    Request(ForwardedRequest),
    /// A working file of a greater length. Answered by the length that is permitted.
    Grow(u64, oneshot::Sender<Result<u64, Refusal>>),
    /// A working file for another path.
    Retarget(String, oneshot::Sender<Result<(), Refusal>>),
    /// A working file that nothing is made of any more.
    Unname(oneshot::Sender<Result<(), Refusal>>),
    /// The bytes of a working file are not wanted.
    Discard,
}
