//! Deliveries of growing titles: up to the durable watermark, and further as it moves.
//!
//! Promise: the engine never gets a byte that is not durable. A delivery sends all durable bytes,
//! then waits for more, up to a bound. When the title is whole, the delivery continues to its end
//! in the same file, even if the name has another file by then.

use std::sync::Arc;
use std::time::Duration;

use tactus_core::units::Bytes;
use tactus_engine::message::{Command, Extent, Outcome, StreamId};
use tactus_storage::catalogue::{Follower, Growth, OpenTitle, Watermark};
use tokio::time::timeout;

use super::DeliveryResult;
use super::grant::{Grant, Source};
use super::output::Output;

/// A delivery that has sent all bytes of a title ends if the title has not grown for this time. A
/// recording's source may pause for a change of program; an upload's client may lose its connection
/// and resume.
const STALL_MAX: Duration = Duration::from_secs(60);

/// Interval of the check whether a stream has sent all bytes.
const LOOK: Duration = Duration::from_secs(5);

/// Retry interval while the ring of commands is full.
const AGAIN: Duration = Duration::from_millis(5);

impl Grant {
    /// Delivers the growing `title` from `first` to its final end. The socket as in
    /// [`Self::deliver`]. A title that does not become whole is sent as far as it has grown, and
    /// the delivery is not complete.
    ///
    /// # Panics
    /// If the title does not grow.
    pub async fn follow(
        &mut self,
        title: &Arc<OpenTitle>,
        first: u64,
        output: Output,
    ) -> DeliveryResult {
        let mut following = title.following.clone().expect("a title that grows is followed");
        let nothing = DeliveryResult::without_socket;
        // The engine has no empty delivery.
        let mut watermark = following.look();
        while watermark.durable.0 <= first {
            match watermark.state {
                Growth::Growing => {}
                // All of the title has been sent already.
                Growth::Whole => {
                    let socket = output.into_socket();
                    return DeliveryResult { socket, ..nothing(Outcome::Complete) };
                }
                Growth::GivenUp => return nothing(Outcome::Stopped),
            }
            match timeout(STALL_MAX, following.next()).await {
                Ok(next) => watermark = next,
                Err(_) => return nothing(Outcome::Stopped),
            }
        }
        let grows = watermark.state == Growth::Growing;
        let range = Bytes(first)..watermark.durable;
        let extent = if grows { Extent::Growing(range) } else { Extent::Range(range) };
        let mut running = match self.start(title, Source::of(extent), output).await {
            Ok(running) => running,
            Err(ended) => return ended,
        };
        let mut is_whole = watermark.state == Growth::Whole;
        if grows {
            let stream = running.stream();
            let shared = Arc::clone(&self.shared);
            tokio::select! {
                delivered = running.ended() => return delivered,
                whole = shared.extend(stream, first, &mut following, watermark) => is_whole = whole,
            }
        }
        match running.ended().await {
            // The delivery ends where the title has stopped growing, not at the title's end.
            DeliveryResult { outcome: Outcome::Complete, sent, late, .. } if !is_whole => {
                DeliveryResult { sent, late, ..nothing(Outcome::Stopped) }
            }
            delivered => delivered,
        }
    }
}

impl super::Shared {
    /// Passes the growth to the engine until the title grows no more. Returns whether the title is
    /// whole then.
    async fn extend(
        &self,
        stream: StreamId,
        first: u64,
        following: &mut Follower,
        mut watermark: Watermark,
    ) -> bool {
        let mut waited = Duration::ZERO;
        loop {
            if let Ok(next) = timeout(LOOK, following.next()).await {
                (watermark, waited) = (next, Duration::ZERO);
            } else {
                let has_all = self.sent(stream.index) >= watermark.durable.0 - first;
                waited = if has_all { waited + LOOK } else { Duration::ZERO };
                if waited < STALL_MAX {
                    continue;
                }
            }
            if watermark.state != Growth::Growing || waited >= STALL_MAX {
                let end = watermark.durable;
                self.table().command(Command::Extend { stream, end, is_whole: true });
                return watermark.state == Growth::Whole;
            }
            while !self.table().may_extend(stream, watermark.durable) {
                tokio::time::sleep(AGAIN).await;
            }
        }
    }

    /// The number of bytes that the stream in a slot has sent.
    fn sent(&self, slot: u32) -> u64 {
        self.streams.get(slot as usize).map_or(0, |stream| stream.bytes.value())
    }
}

impl super::StreamTable {
    /// Sends an extension to the engine if the ring keeps its room for urgent commands. Returns
    /// whether it was sent.
    fn may_extend(&mut self, stream: StreamId, end: Bytes) -> bool {
        let commands = &mut self.commands[usize::from(stream.server.0)];
        let has_room = commands.free() > 6 * self.slots.len();
        if has_room {
            self.command(Command::Extend { stream, end, is_whole: false });
        }
        has_room
    }
}
