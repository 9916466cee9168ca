//! A stream at another scale: faster, slower or backwards.
//!
//! Promise: as in [`super`]: one RTP stream, whose sequence numbers and continuity counters
//! continue with the sent packets.

use tactus_control::generated::{End, OutputProgress};
use tactus_control::trick::{Destination, Trick};

use super::*;

/// How a PLAY at another scale ended.
struct ScaledEnd {
    /// The order that ended it; `None` if it ended by itself.
    order: Option<Option<Order>>,
    /// A message that could not be inserted any more.
    unsaid: Option<Box<[u8]>>,
    /// The end, if it ended by itself.
    ended: Option<End>,
}

impl Stream {
    /// Plays faster, slower or backwards until the end or until the next order, which it returns.
    pub(super) async fn trick(
        &mut self,
        shown: ScaledPlay,
        (begun, reporter): (oneshot::Sender<Result<PlayStart, trick::Fault>>, Option<EndReporter>),
        orders: &mut Orders,
        position: &mut u64,
    ) -> Option<Order> {
        let ScaledPlay { index, scale, from } = shown;
        let from = match from {
            Some(from) => from,
            // At the end, backwards means from the end.
            None if scale.is_reverse() => index.duration().min(self.time(*position).await?),
            None => self.from(None, *position).await?.time,
        };
        self.unplayed = None;
        let session = self.numbers.begin(tactus_sys::clock::now());
        let Session { source, sequence, timestamp } = session;
        // Out of descriptors: the client learns that there is no such session.
        let Ok(output) = self.path.output() else { return orders.next().await };
        let channel = self.path.channel();
        let destination = Destination { output, framing: Framing::Rtp(session), channel };
        let wanted = trick::TrickRequest { scale, from };
        let (broker, title) = (self.broker.clone(), Arc::clone(&self.ts_title.title));
        let (of, counts, tables) = (Arc::clone(&index), self.counts.clone(), self.tables.clone());
        let start = move || {
            let before = trick::Continuation { counts: &counts, tables: &tables };
            Trick::start(&broker, &title, &of, wanted, destination, before)
        };
        let trick = match trick::started(start).await {
            Some(Ok(trick)) => trick,
            // The server shuts down.
            None => return orders.next().await,
            Some(Err(fault)) => {
                self.rest();
                begun.send(Err(fault)).ok();
                return orders.next().await;
            }
        };
        if let Some(server) = self.server.upgrade() {
            server.sessions().handle_begin(self.id);
        }
        let record = self.record();
        let (from, to) = trick.span();
        begun.send(Ok(PlayStart { from, to, source, sequence, timestamp })).ok();
        let ScaledEnd { order, unsaid, ended } = self.follow(&trick, session, orders).await;
        if let Some(gone) = trick.gone() {
            self.sent = after(self.sent, gone, session);
        }
        let time = trick.position(tactus_sys::clock::now());
        let entry = index.entry_at(time).map_or(0, |entry| index.start_of(entry));
        *position = entry.max(self.ts_title.bytes.start);
        let trick::TrickEnd { packets, is_whole, counts, tables, ticks, sent } = trick.stop().await;
        record.log(ended.unwrap_or(End::Stopped).name(), sent.0, sent.1);
        if !tables.is_empty() {
            self.tables = tables;
        }
        // Wraps at its width.
        self.numbers.sequence = sequence.wrapping_add(packets as u16);
        if packets > 0 {
            self.numbers.least = Some(timestamp.wrapping_add(ticks));
        }
        self.is_elsewhere = true;
        for count in counts {
            match self.counts.iter_mut().find(|known| known.pid == count.pid) {
                Some(known) => *known = count,
                None => self.counts.push(count),
            }
        }
        if let RtpTransport::Interleaved(path) = &mut self.path {
            path.is_broken |= !is_whole;
            if let Some(text) = unsaid {
                path.say(&text).await;
            }
        }
        match order {
            Some(order) => order,
            None => {
                self.rest();
                if let Some(reporter) = reporter {
                    let at = if ended == Some(End::Complete) { to } else { time };
                    let last = (packets > 0).then(|| self.numbers.last());
                    let (is_whole, last) = (ended == Some(End::Complete), Vec::from_iter(last));
                    reporter.tell(Ending { is_whole, at, scale: Some(scale.to_string()), last });
                }
                self.say_goodbye().await;
                orders.next().await
            }
        }
    }

    /// Follows a PLAY until its end or the next order. A message that was not inserted comes back.
    async fn follow(&self, trick: &Trick, session: Session, orders: &mut Orders) -> ScaledEnd {
        let end = |ended| ScaledEnd { order: None, unsaid: None, ended };
        loop {
            tokio::select! {
                biased;
                order = orders.next() => match (order, trick.interleaver()) {
                    (Some(Order::Text(text)), Some(interleaver)) => {
                        if let Err(text) = interleaver.send(text).await {
                            let ended = trick.ended().await;
                            return ScaledEnd { unsaid: Some(text), ..end(Some(ended)) };
                        }
                        // The answer goes before the first frame.
                        trick.go();
                    }
                    (order, _) => return ScaledEnd { order: Some(order), ..end(None) },
                },
                ended = trick.ended() => {
                    tracing::debug!(session = ?self.id, ?ended, "trick play has ended");
                    return end(Some(ended));
                }
                () = tokio::time::sleep(REPORT_EACH) => {
                    let Some(gone) = trick.gone() else { continue };
                    let now = after(self.sent, gone, session);
                    let report = report_now(|time, wall| now.report(time, wall));
                    match (&self.path, trick.interleaver()) {
                        (RtpTransport::Udp(path), _) => path.listeners.report(&report),
                        (RtpTransport::Interleaved(path), Some(interleaver)) => {
                            // Whether it is sent before the end is nothing to wait for.
                            drop(interleaver.send(frame(path.channels.1, &report)));
                        }
                        (RtpTransport::Interleaved(_), None) => {}
                    }
                }
            }
        }
    }
}

/// The sent part, including the generated packets.
fn after(before: SenderState, gone: OutputProgress, session: Session) -> SenderState {
    SenderState {
        source: session.source,
        timeline: Timeline { epoch: gone.begin, base: session.timestamp },
        packets: before.packets + gone.packets,
        bytes: before.bytes + gone.bytes,
    }
}
