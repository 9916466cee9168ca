//! Sound devices that play one title in step.
//!
//! Promise: every device gets each sample of the title in order. Of two devices whose clocks
//! differ, the other one leaves a sample out or repeats one now and then, so that it stays some
//! samples beside the first one, or as far as the reports of the devices are wrong. A single device
//! gets the title as it is.

use std::borrow::Cow;

use tactus_sys::sound_device::{SoundDevice, SoundError};

/// A device as the group sees it.
pub(super) trait Output {
    /// Writes whole frames; waits while the device is full. Returns how often it had run empty.
    fn write(&mut self, bytes: &[u8]) -> Result<u64, SoundError>;
    /// Frames that were written and are not heard yet, if the device knows it now.
    fn delay(&mut self) -> Option<i64>;
    /// Waits until all has been played.
    fn drain(&mut self) -> Result<(), SoundError>;
}

impl Output for SoundDevice {
    fn write(&mut self, bytes: &[u8]) -> Result<u64, SoundError> {
        self.write(bytes)
    }

    fn delay(&mut self) -> Option<i64> {
        self.delay()
    }

    fn drain(&mut self) -> Result<(), SoundError> {
        self.drain()
    }
}

/// Devices that get the same pieces.
pub(super) struct DeviceGroup<D> {
    members: Vec<Member<D>>,
    /// Bytes of a frame: one sample of all channels.
    frame: usize,
    /// Pieces over which a difference is averaged.
    window: i64,
    /// Frames above which a difference is made up at once.
    jump: i64,
}

struct Member<D> {
    device: D,
    /// Its differences so far in this window, and their number.
    sum: i64,
    count: i64,
    /// Frames to leave out, or to repeat if negative.
    pending: i64,
    /// Frames that were left out or repeated in all.
    adjusted: u64,
}

impl<D: Output> DeviceGroup<D> {
    /// A group of `devices` for frames of `frame` bytes, `rate` of them in a second, which come in
    /// `pieces` a second. The first device leads.
    pub(super) fn new(devices: Vec<D>, frame: usize, rate: u32, pieces: u32) -> Self {
        let member = |device| Member { device, sum: 0, count: 0, pending: 0, adjusted: 0 };
        let members = devices.into_iter().map(member).collect();
        Self { members, frame, window: pieces.into(), jump: i64::from(rate) / JUMP_PART }
    }

    /// Gives the next piece of the title to all devices. Returns for each how often it had run
    /// empty.
    pub(super) fn write(&mut self, piece: &[u8]) -> Result<Vec<u64>, SoundError> {
        let (frame, jump) = (self.frame, self.jump);
        let write = |member: &mut Member<D>| {
            let bytes = member.adjust(piece, frame, jump);
            if bytes.is_empty() { Ok(0) } else { member.device.write(&bytes) }
        };
        let empty = self.members.iter_mut().map(write).collect::<Result<_, _>>()?;
        self.compare();
        Ok(empty)
    }

    /// All have been given the same frames, so the one with more of them to play is behind.
    fn compare(&mut self) {
        let [first, others @ ..] = &mut self.members[..] else { return };
        for other in others {
            if let Some((first, own)) = first.device.delay().zip(other.device.delay()) {
                other.note(own - first, self.window);
            }
        }
    }

    pub(super) fn drain(&mut self) -> Result<(), SoundError> {
        self.members.iter_mut().try_for_each(|member| member.device.drain())
    }

    /// How many frames each device has left out or repeated.
    pub(super) fn adjusted(&self) -> impl Iterator<Item = u64> {
        self.members.iter().map(|member| member.adjusted)
    }
}

impl<D> Member<D> {
    /// It is so many frames behind the first device.
    fn note(&mut self, behind: i64, window: i64) {
        // What is being made up is no difference to come.
        if self.pending != 0 {
            return;
        }
        (self.sum, self.count) = (self.sum + behind, self.count + 1);
        if self.count == window {
            self.pending = self.sum / window;
            (self.sum, self.count) = (0, 0);
        }
    }

    /// The next piece with what it leaves out or repeats: one frame, or all of a large difference.
    fn adjust<'a>(&mut self, piece: &'a [u8], frame: usize, jump: i64) -> Cow<'a, [u8]> {
        let frames = (piece.len() / frame) as i64;
        let step = if self.pending.abs() > jump { self.pending } else { self.pending.signum() };
        let step = step.min(frames);
        self.pending -= step;
        self.adjusted += step.unsigned_abs();
        let len = step.unsigned_abs() as usize * frame;
        match step {
            0 => Cow::Borrowed(piece),
            1.. => Cow::Borrowed(&piece[len..]),
            // Silence where it would be heard as a tone.
            _ if step < -1 => Cow::Owned([&vec![0; len], piece].concat()),
            _ => Cow::Owned([&piece[..len.min(piece.len())], piece].concat()),
        }
    }
}

/// A difference of a hundredth of a second and more is made up at once: it is heard as an echo.
const JUMP_PART: i64 = 100;

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    /// Frames of one byte; pieces of 10 ms.
    const RATE: u32 = 48_000;
    const PIECE: usize = 480;
    /// Frames that a device holds.
    const HELD: f64 = 4800.0;

    /// A device with a clock of its own.
    struct Clocked {
        /// The seconds that have passed, for all devices.
        now: Rc<Cell<f64>>,
        /// Frames in a second.
        rate: f64,
        begun: Option<f64>,
        written: Vec<u8>,
    }

    impl Clocked {
        fn new(now: &Rc<Cell<f64>>, rate: f64) -> Self {
            Self { now: Rc::clone(now), rate, begun: None, written: vec![] }
        }

        fn played(&self) -> f64 {
            self.begun.map_or(0.0, |begun| (self.now.get() - begun) * self.rate)
        }
    }

    impl Output for Clocked {
        fn write(&mut self, bytes: &[u8]) -> Result<u64, SoundError> {
            self.written.extend(bytes);
            let over = self.written.len() as f64 - self.played() - HELD;
            if over >= 0.0 {
                self.begun.get_or_insert(self.now.get());
                self.now.set(self.now.get() + over / self.rate);
            }
            Ok(0)
        }

        fn delay(&mut self) -> Option<i64> {
            Some((self.written.len() as f64 - self.played()) as i64)
        }

        fn drain(&mut self) -> Result<(), SoundError> {
            Ok(())
        }
    }

    /// Byte `at` of the title.
    fn byte(at: usize) -> u8 {
        (at ^ at >> 8) as u8
    }

    /// Plays so many seconds on devices of these rates. Returns the group, and by how many frames
    /// the devices were apart at most after the first seconds.
    fn played(seconds: usize, rates: &[f64]) -> (DeviceGroup<Clocked>, i64) {
        let now = Rc::new(Cell::new(0.0));
        let devices = rates.iter().map(|&rate| Clocked::new(&now, rate)).collect();
        let mut group = DeviceGroup::new(devices, 1, RATE, 100);
        let mut apart = 0;
        for nth in 0..seconds * 100 {
            let piece: Vec<u8> = (nth * PIECE..(nth + 1) * PIECE).map(byte).collect();
            assert_eq!(group.write(&piece), Ok(vec![0; rates.len()]));
            if nth > 500 {
                let delays = group.members.iter_mut().filter_map(|member| member.device.delay());
                let delays: Vec<_> = delays.collect();
                let [least, most] = [delays.iter().min(), delays.iter().max()];
                apart = apart.max(most.unwrap() - least.unwrap());
            }
        }
        (group, apart)
    }

    #[test]
    fn devices_whose_clocks_differ_stay_in_step_by_single_samples() {
        for other in [48_004.8, 47_995.2, 48_000.5] {
            let (group, apart) = played(120, &[48_000.0, other]);
            assert!(apart <= 24, "{other}: {apart} frames");
            let adjusted: Vec<u64> = group.adjusted().collect();
            // As many as the clocks differ by, and none of the first one.
            let expected = (other - 48_000.0_f64).abs() * 120.0;
            assert_eq!(adjusted[0], 0);
            let differs = (adjusted[1] as f64 - expected).abs();
            assert!(differs <= 20.0, "{other}: {adjusted:?} of {expected}");
            let first = &group.members[0].device.written;
            assert!(first.iter().enumerate().all(|(at, &sample)| sample == byte(at)));
        }
    }

    #[test]
    fn devices_with_one_clock_and_a_single_device_get_the_title_as_it_is() {
        for rates in [&[48_000.0][..], &[48_000.0, 48_000.0, 48_000.0]] {
            let (group, _) = played(10, rates);
            assert!(group.adjusted().all(|adjusted| adjusted == 0));
            for member in group.members {
                assert_eq!(member.device.written.len(), 10 * RATE as usize);
            }
        }
    }

    #[test]
    fn a_device_that_is_far_behind_catches_up_at_once() {
        let mut member = Member { device: (), sum: 0, count: 0, pending: 0, adjusted: 0 };
        let piece: Vec<u8> = (0..PIECE).map(byte).collect();
        for _ in 0..100 {
            assert_eq!(member.adjust(&piece, 1, 480), piece);
            member.note(700, 100);
        }
        assert_eq!(member.adjust(&piece, 1, 480).len(), 0);
        // The rest is small: a sample of each piece.
        assert_eq!(member.adjust(&piece, 1, 480)[..], piece[1..]);
        assert_eq!((member.pending, member.adjusted), (219, 481));
        member.pending = -500;
        let late = member.adjust(&piece, 1, 480);
        assert!(late[..500].iter().all(|&sample| sample == 0) && late[500..] == piece);
        assert_eq!(member.pending, 0);
        member.pending = -1;
        assert_eq!(member.adjust(&piece, 1, 480)[..3], [piece[0], piece[0], piece[1]]);
    }
}
