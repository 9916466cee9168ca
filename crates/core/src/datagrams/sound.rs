//! Sound as datagrams: samples of a title in packets of one duration.
//!
//! Promise: each sample leaves once and in order, in the byte order of RTP. Each packet is whole:
//! silence follows the last sample of a title up to the end of its packet, so that the packets of
//! the next title keep their times. Timestamps count the samples of the clock by which packets are
//! due, so all streams of one clock have timestamps of one media clock. Design note:
//! `docs/design/sound.md`.

use super::Session;
use crate::rtp;
use crate::rtp::pcm::{self, PcmFormat};
use crate::units::{BitRate, Bytes, MonoTime};

/// Sound in RTP, out of samples with the least significant byte first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sound {
    /// The session. Its timestamp is that of the zero of the clock by which packets are due.
    pub session: Session,
    /// The format on the wire.
    pub format: PcmFormat,
    /// The bytes of a sample in the title: 2 or 3, at most those on the wire.
    pub width: u8,
}

/// The payload type: the first dynamic one (RFC 3551, section 6).
pub const PAYLOAD_TYPE: u8 = 96;

impl Sound {
    /// The bytes on the wire of so many bytes of the title.
    pub(super) const fn out(&self, title: Bytes) -> Bytes {
        Bytes(title.0 / self.width as u64 * self.format.encoding.bytes() as u64)
    }

    /// The bytes of the title in so many bytes on the wire.
    pub(super) const fn title(&self, out: Bytes) -> Bytes {
        Bytes(out.0 / self.format.encoding.bytes() as u64 * self.width as u64)
    }

    /// The rate on the wire of a title of `rate`.
    pub(super) const fn out_rate(&self, rate: BitRate) -> BitRate {
        BitRate(rate.0 / self.width as u64 * self.format.encoding.bytes() as u64)
    }

    /// The header of packet `number` of the session, whose first sample is due at `due`.
    pub(super) fn header(&self, number: u64, due: MonoTime) -> rtp::Header {
        rtp::Header {
            // It marks no talkspurts (RFC 3551, section 4.1).
            marker: false,
            payload_type: PAYLOAD_TYPE,
            // Both wrap at their width.
            sequence: self.session.sequence.wrapping_add(number as u16),
            timestamp: self.timestamp(due),
            source: self.session.source,
        }
    }

    /// The timestamp of `time`.
    pub fn timestamp(&self, time: MonoTime) -> u32 {
        self.session.timestamp.wrapping_add(pcm::samples(time) as u32)
    }

    /// Composes the payloads of a message in `bytes`, with `room` bytes in front of each, from the
    /// `taken` bytes of the title at its end.
    pub(super) fn compose(&self, taken: Bytes, bytes: &mut [u8], room: usize) {
        let (wire, width) = (usize::from(self.format.encoding.bytes()), usize::from(self.width));
        let mut from = bytes.len() - taken.0 as usize;
        let step = room + self.format.payload().0 as usize;
        let mut begin = 0;
        while begin < bytes.len() {
            let end = (begin + step).min(bytes.len());
            let mut to = begin + room;
            while to < end {
                // Samples only move forward in `bytes`, so none is overwritten before it is read.
                let mut sample = [0; 3];
                if from < bytes.len() {
                    sample[..width].copy_from_slice(&bytes[from..from + width]);
                    from += width;
                }
                // A wider sample has zeros in its lowest bits.
                for nth in 0..wire {
                    bytes[to + nth] = if nth < width { sample[width - 1 - nth] } else { 0 };
                }
                to += wire;
            }
            begin = end;
        }
    }
}
