//! Whether time goes on where the clock says nothing: what the time stamps of pictures and sound tell of it.
//!
//! Promise: a clock that jumps is not taken for one that was only silent: the time stamps must have gone on, without a
//! jump of their own, for as long as the clock says that has passed. At most [`STREAMS`] streams are watched.

use alloc::vec::Vec;

use super::super::{Packet, Pid, Pts, pes_times};
use crate::units::MediaTime;

/// Streams of a programme whose times are watched: one that goes on is enough.
const STREAMS: usize = 8;
/// Times of neighbouring frames are no further apart.
const STEP_MAX: MediaTime = MediaTime(2 * 27_000_000);
/// What is shown goes on as long as the clock does, but for what a decoder holds more or less than before.
const OFF_MAX: u64 = 27_000_000;

/// Times since the last stamp of the clock.
#[derive(Clone, Default, Debug)]
pub(super) struct Passing {
    streams: Vec<Stream>,
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    pid: Pid,
    /// What came last before the clock's last stamp.
    before: Option<Pts>,
    last: Pts,
    /// It has jumped since.
    is_broken: bool,
}

impl Passing {
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

    /// A stamp of the clock has come.
    pub(super) fn handle_stamp(&mut self) {
        for stream in &mut self.streams {
            (stream.before, stream.is_broken) = (Some(stream.last), false);
        }
    }

    /// Whether what is shown has gone on since the last stamp, by which `span` has passed.
    pub(super) fn goes_on(&self, span: MediaTime) -> bool {
        self.streams.iter().filter(|stream| !stream.is_broken).any(|stream| {
            let passed = |before: Pts| stream.last.as_pcr().since(before.as_pcr()).0;
            let passed = stream.before.map_or(0, passed);
            passed > span.0 / 2 && passed.abs_diff(span.0) <= OFF_MAX
        })
    }
}
