//! Deliveries of titles that are still coming in: up to what is on stable storage, and on as more is.
//!
//! Promise: the engine is never told of a byte that is not durable. Who follows a title gets all that is,
//! and then waits for more, but not without end; one whose title is whole goes on to its end in the same
//! file, whatever has the name by then.

use std::sync::Arc;
use std::time::Duration;

use tactus_core::units::Bytes;
use tactus_engine::message::{Command, Extent, Outcome, StreamId};
use tokio::time::timeout;

use super::Delivered;
use super::grant::{Grant, Source};
use super::output::Output;
use crate::catalogue::{Follower, Growth, OpenTitle, Watermark};

/// Who has had all of a title for so long, and it has not grown, waits no more. A recording's source may
/// pause for a change of program, an upload's client for a lost connection that it takes up again.
const STALL_MAX: Duration = Duration::from_secs(60);

/// How often it is looked whether a stream has had all there is.
const LOOK: Duration = Duration::from_secs(5);

/// When the engine has not yet taken what it was told before.
const AGAIN: Duration = Duration::from_millis(5);

impl Grant {
    /// Delivers `title`, which grows, from `first` to the end that it will have. The socket as in
    /// [`Self::deliver`]. What does not become whole is sent as far as it is there, and is not complete.
    ///
    /// # Panics
    /// When the title does not grow.
    pub async fn follow(
        &mut self,
        title: &Arc<OpenTitle>,
        first: u64,
        output: Output,
    ) -> Delivered {
        let mut following = title.following.clone().expect("a title that grows is followed");
        let nothing = Delivered::without_socket;
        // The engine has no word for a delivery of nothing.
        let mut watermark = following.look();
        while watermark.durable.0 <= first {
            match watermark.state {
                Growth::Growing => {}
                // All of it has been sent: there is nothing.
                Growth::Whole => {
                    let socket = Arc::into_inner(output.socket);
                    return Delivered { socket, ..nothing(Outcome::Complete) };
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
            // It ends where the title has stopped to grow, and not where the title would.
            Delivered { outcome: Outcome::Complete, sent, late, .. } if !is_whole => {
                Delivered { sent, late, ..nothing(Outcome::Stopped) }
            }
            delivered => delivered,
        }
    }
}

impl super::Shared {
    /// Tells the engine of what comes, until there will be no more; whether the title is whole then.
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

    /// Bytes that the stream in a slot has sent.
    fn sent(&self, slot: u32) -> u64 {
        self.streams.get(slot as usize).map_or(0, |stream| stream.bytes.value())
    }
}

impl super::StreamTable {
    /// Tells the engine of more where what must be said keeps its room in the ring; whether it has.
    fn may_extend(&mut self, stream: StreamId, end: Bytes) -> bool {
        let has_room = self.commands.free() > 4 * self.slots.len();
        if has_room {
            self.command(Command::Extend { stream, end, is_whole: false });
        }
        has_room
    }
}
