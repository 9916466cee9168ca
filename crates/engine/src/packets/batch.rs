//! The batch of one call: due messages, the headers of their datagrams, and the places of their
//! bytes.
//!
//! Promise: no allocation after the start. A gathered message is described again, in the same way,
//! until it has left or its stream is closed. The bytes of a kept message stay in place: the next
//! batch gets other memory.

use tactus_core::datagrams::{Message, PAYLOAD, SEGMENTS_MAX};
use tactus_core::ports::{self, SocketHandle};
use tactus_core::rtp;
use tactus_core::units::MonoTime;
use tactus_ring::arena::View;

use super::entry::Entry;
use super::generated;
use crate::egress::{BlockPart, Memory};
use crate::pool::Pool;

/// Limit of gathered messages: the limit of one call.
pub(super) const MESSAGES: usize = 64;
/// Limit of the parts of a call: four for each message (a header, a payload and two more where
/// blocks meet), or nearly three of the longest messages.
pub(super) const PARTS: usize = 256;
/// Memory for copied bytes: nine of the longest messages.
const STAGE: usize = 512 * 1024;
/// The batches that may hold kept messages at once, plus the one being filled. A batch serves all
/// UDP outputs, so two are enough for any number of UDP outputs that become full together.
const STAGES: usize = 9;
/// Limit of kept messages.
pub(super) const KEPT_MAX: usize = STAGES * MESSAGES;
const MESSAGE_MAX: usize = SEGMENTS_MAX as usize * (rtp::HEADER + PAYLOAD.0 as usize);

/// Messages that leave as soon as the port takes them.
pub(super) struct Batch {
    gathered: Vec<DueMessage>,
    /// Number of messages that have left or are kept.
    gone: usize,
    stages: Vec<BatchMemory>,
    /// The stage being filled; `None` while every stage holds kept messages.
    filled: Option<usize>,
}

/// Memory of one batch.
struct BatchMemory {
    /// Headers of datagrams that are not copied.
    headers: Vec<[u8; rtp::HEADER]>,
    bytes: Vec<u8>,
    used: usize,
    /// Number of kept messages.
    kept: usize,
}

/// A due message.
#[derive(Clone, Copy)]
pub(super) struct DueMessage {
    /// The slot of its stream.
    pub(super) index: u32,
    pub(super) message: Message,
    udp_output: SocketHandle,
    /// The stage of its batch.
    stage: u8,
    /// The index of its first header, if the headers are not in front of copied payloads.
    header: usize,
    /// The offset and length of its datagrams in the stage, if they are copied.
    staged: Option<(usize, usize)>,
    /// The number of a generated datagram within its stream.
    pub(super) generated: Option<u64>,
}

/// A batch in the form of the port: messages of one UDP output.
pub(super) struct PortBatch<'a> {
    messages: [ports::Message; MESSAGES],
    due: [MonoTime; MESSAGES],
    count: usize,
    parts: [&'a [u8]; PARTS],
    used: usize,
}

impl Batch {
    pub(super) fn new() -> Self {
        Self {
            gathered: Vec::with_capacity(MESSAGES),
            gone: 0,
            stages: (0..STAGES).map(|_| BatchMemory::new()).collect(),
            filled: Some(0),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.gathered.is_empty()
    }

    /// Whether a message may be added.
    pub(super) fn has_room(&self) -> bool {
        let Some(filled) = self.filled else { return false };
        self.gathered.len() < MESSAGES && self.stages[filled].used + MESSAGE_MAX <= STAGE
    }

    /// Whether every stage holds kept messages, so that no message can be gathered.
    pub(super) fn is_stuck(&self) -> bool {
        self.filled.is_none()
    }

    fn filled(&mut self) -> (u8, &mut BatchMemory) {
        let filled = self.filled.expect("there is room");
        (filled as u8, &mut self.stages[filled])
    }

    /// Adds the message that `entry` has offered.
    pub(super) fn add(&mut self, index: u32, entry: &Entry, message: Message) {
        let (udp_output, staged, generated) = (entry.output.socket, None, None);
        let (stage, filled) = self.filled();
        let header = filled.headers.len();
        self.gathered.push(DueMessage {
            index,
            message,
            udp_output,
            stage,
            header,
            staged,
            generated,
        });
    }

    /// Adds the datagram that a generated stream has offered.
    pub(super) fn add_generated(&mut self, index: u32, entry: &generated::Entry, message: Message) {
        let (udp_output, generated) = (entry.output.socket, Some(entry.next()));
        let (header, staged, (stage, _)) = (0, None, self.filled());
        self.gathered.push(DueMessage {
            index,
            message,
            udp_output,
            stage,
            header,
            staged,
            generated,
        });
    }

    /// Writes the headers of the datagrams of the last added message, whose bytes are not copied.
    pub(super) fn add_headers(&mut self, entry: &Entry, message: &Message) {
        let headers = (0..message.datagrams).filter_map(|nth| entry.cutter.header(nth));
        self.filled().1.headers.extend(headers);
    }

    /// Memory for the datagrams of the last added message, with `room` in front of each.
    pub(super) fn stage(&mut self, room: usize) -> &mut [u8] {
        let last = self.gathered.last_mut().expect("a message was added");
        let message = &last.message;
        let len = message.bytes.0 as usize + message.datagrams as usize * room;
        let stage = &mut self.stages[usize::from(last.stage)];
        let from = stage.used;
        last.staged = Some((from, len));
        stage.used += len;
        &mut stage.bytes[from..from + len]
    }

    /// The UDP output of the first message.
    pub(super) fn udp_output(&self) -> Option<SocketHandle> {
        self.gathered.get(self.gone).map(|first| first.udp_output)
    }

    /// Removes the first message.
    pub(super) fn take(&mut self) -> DueMessage {
        let first = self.gathered[self.gone];
        self.gone += 1;
        self.clear_if_empty();
        first
    }

    /// Removes the first message to keep it: its bytes stay in place until it is [given
    /// back](Self::give_back).
    pub(super) fn keep(&mut self) -> DueMessage {
        let first = &self.gathered[self.gone];
        self.stages[usize::from(first.stage)].kept += 1;
        self.take()
    }

    /// Frees a kept message that has left, or whose stream is closed.
    pub(super) fn give_back(&mut self, gathered: &DueMessage) {
        let stage = usize::from(gathered.stage);
        self.stages[stage].kept -= 1;
        if self.stages[stage].kept == 0 && self.is_empty() {
            self.clear_if_empty();
        }
    }

    /// Removes the messages of a closed stream.
    pub(super) fn cancel(&mut self, index: u32) {
        self.gathered.drain(..self.gone);
        self.gone = 0;
        self.gathered.retain(|gathered| gathered.index != index);
        self.clear_if_empty();
    }

    fn clear_if_empty(&mut self) {
        if self.gone < self.gathered.len() {
            return;
        }
        self.gathered.clear();
        self.gone = 0;
        // Reuses the last stage, as it is warm in the cache.
        let last = self.filled.filter(|&last| self.stages[last].kept == 0);
        self.filled = last.or_else(|| self.stages.iter().position(|stage| stage.kept == 0));
        if let Some(filled) = self.filled {
            self.stages[filled].headers.clear();
            self.stages[filled].used = 0;
        }
    }

    /// The first messages of the batch that share one UDP output.
    pub(super) fn first_of_one_udp_output(&self) -> impl Iterator<Item = &DueMessage> {
        let udp_output = self.udp_output();
        self.gathered[self.gone..]
            .iter()
            .take_while(move |each| Some(each.udp_output) == udp_output)
    }

    /// Describes the first of these messages, all of one UDP output, as many as fit.
    pub(super) fn describe<'a>(
        &'a self,
        messages: impl Iterator<Item = &'a DueMessage>,
        entries: &[Option<Entry>],
        generated: &'a [Option<generated::Entry>],
        fed: &'a Pool<BlockPart>,
        memories: &'a [Memory],
    ) -> PortBatch<'a> {
        let nothing = ports::Message { to: NOWHERE, segment: 0, parts: 0 };
        let mut described = PortBatch {
            messages: [nothing; MESSAGES],
            due: [MonoTime(0); MESSAGES],
            count: 0,
            parts: [&[]; PARTS],
            used: 0,
        };
        for gathered in messages.take(MESSAGES) {
            if let Some(number) = gathered.generated {
                let entry = generated[gathered.index as usize].as_ref();
                let entry = entry.expect("what a stream has gathered goes when it is closed");
                let bytes = entry.datagram(number).bytes();
                let (to, segment) = (entry.output.to, bytes.len() as u16);
                if described.add(bytes).is_none() {
                    break;
                }
                described.messages[described.count] = ports::Message { to, segment, parts: 1 };
                described.due[described.count] = gathered.message.due;
                described.count += 1;
                continue;
            }
            let entry = entries[gathered.index as usize].as_ref();
            let entry = entry.expect("what a stream has gathered goes when it is closed");
            let before = described.used;
            let is_whole = match gathered.staged {
                Some((from, len)) => {
                    let stage = &self.stages[usize::from(gathered.stage)];
                    described.add(&stage.bytes[from..from + len])
                }
                None => {
                    // Bytes in the page cache are always staged.
                    let view = memories[entry.volume].view().into_iter();
                    let pieces =
                        view.flat_map(|view| parts_of(view, fed, entry, &gathered.message));
                    described.add_datagrams(self.headers_of(gathered, entry), gathered, pieces)
                }
            };
            if is_whole.is_none() {
                described.used = before;
                break;
            }
            let parts = (described.used - before) as u16;
            let segment = entry.segment();
            described.messages[described.count] =
                ports::Message { to: entry.output.to, segment, parts };
            described.due[described.count] = gathered.message.due;
            described.count += 1;
        }
        assert!(described.count > 0, "any message alone has fewer parts than there is room for");
        described
    }

    fn headers_of(&self, gathered: &DueMessage, entry: &Entry) -> &[[u8; rtp::HEADER]] {
        let count = if entry.has_header() { gathered.message.datagrams as usize } else { 0 };
        let headers = &self.stages[usize::from(gathered.stage)].headers;
        &headers[gathered.header..gathered.header + count]
    }
}

impl BatchMemory {
    fn new() -> Self {
        let headers = Vec::with_capacity(MESSAGES * SEGMENTS_MAX as usize);
        Self { headers, bytes: vec![0; STAGE], used: 0, kept: 0 }
    }
}

/// The bytes of the title in a message, block by block, and the bytes behind them.
pub(super) fn parts_of<'a>(
    view: &'a View,
    fed: &'a Pool<BlockPart>,
    entry: &Entry,
    message: &Message,
) -> impl Iterator<Item = &'a [u8]> {
    let mut skip = (message.from - entry.sent).0 as usize;
    fed.iter(&entry.fed).map(move |fed| {
        let bytes = &view.bytes(&fed.lease)[fed.at as usize..][..fed.len as usize];
        let skipped = skip.min(bytes.len());
        skip -= skipped;
        &bytes[skipped..]
    })
}

impl<'a> PortBatch<'a> {
    /// The due time of each of its messages.
    pub(super) fn due(&self) -> &[MonoTime] {
        &self.due[..self.count]
    }

    pub(super) fn batch(&self) -> ports::Batch<'_> {
        ports::Batch { messages: &self.messages[..self.count], parts: &self.parts[..self.used] }
    }

    /// Adds the parts of all datagrams of a message; `None` if they do not fit.
    fn add_datagrams(
        &mut self,
        headers: &'a [[u8; rtp::HEADER]],
        gathered: &DueMessage,
        pieces: impl IntoIterator<Item = &'a [u8]>,
    ) -> Option<()> {
        let mut pieces = pieces.into_iter();
        let mut rest: &'a [u8] = &[];
        let mut left = gathered.message.bytes.0 as usize;
        let mut headers = headers.iter();
        while left > 0 {
            if let Some(header) = headers.next() {
                self.add(header)?;
            }
            let mut own = left.min(PAYLOAD.0 as usize);
            left -= own;
            while own > 0 {
                if rest.is_empty() {
                    rest = pieces.next().expect("only what was fed is offered");
                    continue;
                }
                let (part, behind) = rest.split_at(own.min(rest.len()));
                self.add(part)?;
                own -= part.len();
                rest = behind;
            }
        }
        Some(())
    }

    fn add(&mut self, part: &'a [u8]) -> Option<()> {
        *self.parts.get_mut(self.used)? = part;
        self.used += 1;
        Some(())
    }
}

/// Filler for the unused elements of the array.
const NOWHERE: std::net::SocketAddr =
    std::net::SocketAddr::V4(std::net::SocketAddrV4::new(std::net::Ipv4Addr::UNSPECIFIED, 0));
