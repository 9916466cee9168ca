//! The encoded form of a consumption.
//!
//! Promise: encoding and decoding round-trip. Any other bytes are refused or decode to a valid
//! consumption. There is no checksum: the storage adds one, and the owner.

use alloc::vec::Vec;

use super::{Consumption, Point, Shape};
use crate::encoding::{Reader, Writer};

/// Upper bound of points.
const POINTS_MAX: usize = 1 << 20;
/// Upper bound of file sizes and durations.
const MAX: u64 = 1 << 62;

impl Consumption {
    /// Encodes the consumption.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer(Vec::new());
        out.number(u64::from(self.shape == Shape::Steps));
        out.number(self.resolution);
        out.number(self.lead);
        out.list(&self.points, Point { time: 0, bytes: 0 }, |out, last, point| {
            out.number(point.time - last.time);
            out.number(point.bytes - last.bytes);
        });
        out.0
    }

    /// Decodes a consumption; `None` if it is invalid.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader(bytes);
        let shape = if from.at_most(1)? == 1 { Shape::Steps } else { Shape::Lines };
        let (resolution, lead) = (from.at_most(MAX)?, from.at_most(MAX)?);
        let points = from.list(POINTS_MAX, 2, Point { time: 0, bytes: 0 }, |from, last| {
            let time = from.after(last.time, MAX)?;
            Some(Point { time, bytes: from.after(last.bytes, MAX)? })
        })?;
        // Of points at one time the last one counts, but for the first of lines.
        let later = points.get(usize::from(shape == Shape::Lines)..)?;
        let is_one = points.last()?.bytes > 0
            && later.windows(2).all(|pair| pair[0].time < pair[1].time)
            && (shape == Shape::Lines
                || points.windows(2).all(|pair| pair[0].bytes < pair[1].bytes))
            && from.0.is_empty();
        is_one.then_some(Self { shape, points, resolution, lead })
    }
}
