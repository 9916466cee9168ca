//! Distinguishes a jump of the clock from a range without PCRs, by the decoding times of video and
//! audio.
//!
//! Promise: a jump is never taken for a gap. A gap requires that the decoding times advanced by the
//! same span, without a jump of their own. At most [`STREAMS`] streams are followed.

use alloc::vec::Vec;

use super::super::{Packet, Pid, Pts, pes_times};
use crate::units::MediaTime;

/// Streams of a program that are followed: one that advances is enough.
const STREAMS: usize = 8;
/// Largest distance of decoding times of neighbouring frames.
const STEP_MAX: MediaTime = MediaTime(2 * 27_000_000);
/// How much the advance may differ from the clock's: decoder buffering varies.
const OFF_MAX: u64 = 27_000_000;

/// The decoding times since the last PCR.
#[derive(Clone, Default, Debug)]
pub(super) struct PesProgress {
    streams: Vec<Stream>,
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    pid: Pid,
    /// The last decoding time before the last PCR.
    before: Option<Pts>,
    last: Pts,
    /// The times have jumped since the last PCR.
    is_broken: bool,
}

impl PesProgress {
    /// Takes the next packet of the title.
    pub(super) fn handle_packet(&mut self, packet: &Packet<'_>) {
        if !packet.starts_unit() || packet.is_scrambled() {
            return;
        }
        let Some(times) = pes_times(packet) else { return };
        let (pid, time) = (packet.pid(), times.decoded);
        let known = self.streams.iter().position(|stream| stream.pid == pid);
        match known {
            Some(nth) => {
                let stream = &mut self.streams[nth];
                let step = time.as_pcr().since(stream.last.as_pcr());
                let is_double = stream.last == time;
                stream.is_broken |= step > STEP_MAX && !is_double;
                stream.last = time;
            }
            None if self.streams.len() < STREAMS => {
                self.streams.push(Stream { pid, before: None, last: time, is_broken: false });
            }
            None => {}
        }
    }

    /// Records a PCR.
    pub(super) fn handle_sample(&mut self) {
        for stream in &mut self.streams {
            (stream.before, stream.is_broken) = (Some(stream.last), false);
        }
    }

    /// Whether decoding times have advanced by about `span` since the last PCR.
    pub(super) fn advanced_by(&self, span: MediaTime) -> bool {
        self.streams.iter().filter(|stream| !stream.is_broken).any(|stream| {
            let passed = |before: Pts| stream.last.as_pcr().since(before.as_pcr()).0;
            let passed = stream.before.map_or(0, passed);
            passed > span.0 / 2 && passed.abs_diff(span.0) <= OFF_MAX
        })
    }
}
