//! Video frames out of NAL units: single, aggregated (STAP-A, AP) and fragmented (FU-A, FU).
//!
//! Promise: a video frame comes out as an access unit of a byte stream (ISO/IEC 14496-10 and
//! 23008-2, annex B): the delimiter, then the parameter sets if decoding can start here, then its
//! units. A unit with a missing fragment is dropped.

use alloc::vec::Vec;

use super::{FRAME_MAX, Frame, Packet, follows};

/// The codec.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// H.264.
    H264,
    /// H.265.
    H265,
}

/// The depacketizer of one video stream.
#[derive(Clone, Debug)]
pub struct Units {
    kind: Kind,
    /// Parameter sets out of the session description, each behind a start code.
    announced: Vec<u8>,
    last: Option<u16>,
    /// A unit with fragments to come.
    open: Option<Vec<u8>>,
    /// The units of the current video frame.
    video_frame: Option<VideoFrame>,
    broken: u64,
}

#[derive(Clone, Debug, Default)]
struct VideoFrame {
    timestamp: u32,
    data: Vec<u8>,
    begins: bool,
    has_sets: bool,
}

const START: [u8; 4] = [0, 0, 0, 1];

impl Kind {
    /// The type of a unit.
    const fn of(self, first: u8) -> u8 {
        match self {
            Self::H264 => first & 0x1f,
            Self::H265 => first >> 1 & 0x3f,
        }
    }

    const fn header(self) -> usize {
        match self {
            Self::H264 => 1,
            Self::H265 => 2,
        }
    }

    /// An access unit delimiter that permits all slice types (7.3.2.4; H.265: 7.3.2.5).
    const fn delimiter(self) -> &'static [u8] {
        match self {
            Self::H264 => &[0, 0, 0, 1, 9, 0xf0],
            Self::H265 => &[0, 0, 0, 1, 70, 1, 0x50],
        }
    }

    const fn is_delimiter(self, kind: u8) -> bool {
        kind == match self {
            Self::H264 => 9,
            Self::H265 => 35,
        }
    }

    /// Whether it is a sequence parameter set, which a decoder needs first.
    const fn is_sequence_set(self, kind: u8) -> bool {
        kind == match self {
            Self::H264 => 7,
            Self::H265 => 33,
        }
    }

    /// Whether it belongs to a random access point.
    const fn is_beginning(self, kind: u8) -> bool {
        match self {
            Self::H264 => kind == 5,
            Self::H265 => kind >= 16 && kind <= 21,
        }
    }
}

impl Units {
    /// An empty depacketizer. `sets` are the parameter sets of the session description.
    pub fn new<'a>(kind: Kind, sets: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut announced = Vec::new();
        for set in sets.into_iter().filter(|set| !set.is_empty()) {
            announced.extend(START);
            announced.extend(set);
        }
        Self { kind, announced, last: None, open: None, video_frame: None, broken: 0 }
    }

    /// The codec.
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    pub(super) const fn broken(&self) -> u64 {
        self.broken
    }

    pub(super) fn handle(&mut self, packet: &Packet<'_>, mut each: impl FnMut(Frame)) {
        if !follows(&mut self.last, packet.sequence) {
            self.give_up();
        }
        if self.video_frame.as_ref().is_some_and(|one| one.timestamp != packet.timestamp) {
            // The end of the fragmented unit before is lost.
            self.give_up();
            self.emit(&mut each);
        }
        self.video_frame.get_or_insert_with(|| VideoFrame {
            timestamp: packet.timestamp,
            ..VideoFrame::default()
        });
        self.take(packet.payload);
        if packet.marker {
            self.emit(&mut each);
        }
    }

    pub(super) fn handle_end(&mut self, mut each: impl FnMut(Frame)) {
        self.give_up();
        self.emit(&mut each);
    }

    fn take(&mut self, payload: &[u8]) {
        let header = self.kind.header();
        let Some(&first) = payload.first().filter(|_| payload.len() > header) else { return };
        match (self.kind, self.kind.of(first)) {
            (Kind::H264, 24) | (Kind::H265, 48) => {
                self.give_up();
                let mut rest = &payload[header..];
                while let Some((len, more)) = rest.split_first_chunk::<2>() {
                    let len = usize::from(u16::from_be_bytes(*len));
                    let Some((unit, more)) = more.split_at_checked(len) else {
                        self.broken += 1;
                        return;
                    };
                    self.unit(unit);
                    rest = more;
                }
            }
            (Kind::H264, 28) | (Kind::H265, 49) => self.fragment(payload),
            // Other packet types are not permitted in packetisation mode 1 and without decoding
            // order numbers.
            (Kind::H264, 25..=27 | 29..=31) | (Kind::H265, 50..) => self.broken += 1,
            _ => {
                self.give_up();
                self.unit(payload);
            }
        }
    }

    fn fragment(&mut self, payload: &[u8]) {
        let header = self.kind.header();
        let Some((&mark, bytes)) = payload[header..].split_first() else { return };
        if mark & 0x80 != 0 {
            self.give_up();
            let mut unit = Vec::with_capacity(4 * payload.len());
            match self.kind {
                Kind::H264 => unit.push(payload[0] & 0xe0 | mark & 0x1f),
                Kind::H265 => unit.extend([payload[0] & 0x81 | (mark & 0x3f) << 1, payload[1]]),
            }
            self.open = Some(unit);
        }
        let Some(open) = &mut self.open else { return };
        if open.len() + bytes.len() > FRAME_MAX {
            return self.give_up();
        }
        open.extend(bytes);
        if mark & 0x40 != 0
            && let Some(unit) = self.open.take()
        {
            self.unit(&unit);
        }
    }

    /// A complete unit.
    fn unit(&mut self, unit: &[u8]) {
        let Some(video_frame) = &mut self.video_frame else { return };
        let Some(&first) = unit.first().filter(|_| unit.len() > self.kind.header()) else { return };
        let kind = self.kind.of(first);
        // The delimiter is generated.
        if self.kind.is_delimiter(kind) {
            return;
        }
        if video_frame.data.len() + unit.len() > FRAME_MAX {
            self.broken += 1;
            return;
        }
        video_frame.has_sets |= self.kind.is_sequence_set(kind);
        video_frame.begins |= self.kind.is_beginning(kind);
        video_frame.data.extend(START);
        video_frame.data.extend(unit);
    }

    /// Drops an incomplete unit.
    fn give_up(&mut self) {
        if self.open.take().is_some() {
            self.broken += 1;
        }
    }

    fn emit(&mut self, each: &mut impl FnMut(Frame)) {
        let Some(video_frame) = self.video_frame.take() else { return };
        if video_frame.data.is_empty() {
            return;
        }
        let VideoFrame { timestamp, data: units, begins, has_sets } = video_frame;
        // Parameter sets in the stream precede a video frame at which decoding can start, whatever
        // its type.
        let begins = begins || has_sets;
        let sets: &[u8] = if begins && !has_sets { &self.announced } else { &[] };
        let data = [self.kind.delimiter(), sets, &units].concat();
        each(Frame { timestamp, data, begins });
    }
}
