//! Sound devices by ALSA's PCM interface. Its library is loaded when a device is opened, so Tactus
//! needs no sound library to be built or to start.
//!
//! Promise: every sample is written once and in order. A device that ran empty goes on, and the
//! caller learns of it.

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::fmt;
use std::ptr::null_mut;

use tactus_core::units::Nanos;

/// The format of samples: PCM, signed, the least significant byte first, channels interleaved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SampleFormat {
    /// The channels.
    pub channels: u16,
    /// The bytes of a sample: 2 or 3.
    pub width: u8,
    /// Samples in a second of each channel.
    pub rate: u32,
}

/// Why there is no sound.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SoundError {
    /// The library is missing.
    Library,
    /// The library refuses.
    Device {
        /// The name of the device.
        device: String,
        /// What was tried.
        what: &'static str,
        /// The reason, in the words of the library.
        reason: String,
    },
}

impl fmt::Display for SoundError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Library => f.write_str(
                "the sound library libasound.so.2 is missing; install the package libasound2",
            ),
            Self::Device { device, what, reason } => {
                write!(f, "the sound device {device:?}: {what}: {reason}")
            }
        }
    }
}

impl std::error::Error for SoundError {}

/// A device that plays.
pub struct SoundDevice {
    alsa: Alsa,
    pcm: *mut c_void,
    name: String,
    frame: usize,
}

/// `snd_pcm_open`.
type Open = unsafe extern "C" fn(*mut *mut c_void, *const c_char, c_int, c_int) -> c_int;
/// `snd_pcm_set_params`.
type SetParams =
    unsafe extern "C" fn(*mut c_void, c_int, c_int, c_uint, c_uint, c_int, c_uint) -> c_int;
/// `snd_pcm_writei`.
type Write = unsafe extern "C" fn(*mut c_void, *const c_void, c_ulong) -> c_long;
/// `snd_pcm_recover`.
type Recover = unsafe extern "C" fn(*mut c_void, c_int, c_int) -> c_int;
/// `snd_pcm_delay`.
type Delay = unsafe extern "C" fn(*mut c_void, *mut c_long) -> c_int;
/// `snd_pcm_drain` and `snd_pcm_close`.
type Finish = unsafe extern "C" fn(*mut c_void) -> c_int;
/// `snd_strerror`.
type Text = unsafe extern "C" fn(c_int) -> *const c_char;

/// The functions of the library; it stays loaded.
#[derive(Clone, Copy)]
struct Alsa {
    open: Open,
    set_params: SetParams,
    write: Write,
    recover: Recover,
    delay: Delay,
    drain: Finish,
    close: Finish,
    text: Text,
}

/// `SND_PCM_STREAM_PLAYBACK`.
const PLAYBACK: c_int = 0;
/// `SND_PCM_ACCESS_RW_INTERLEAVED`.
const INTERLEAVED: c_int = 3;
/// `SND_PCM_FORMAT_S16_LE` and `SND_PCM_FORMAT_S24_3LE`.
const FORMATS: [c_int; 2] = [2, 32];
/// Recoveries of one write: a device that runs empty more often in it is broken.
const RECOVERIES_MAX: usize = 8;

impl SoundDevice {
    /// Opens the device `name`, like `hw:0`, `default` or `null`, which holds `latency` of sound.
    ///
    /// # Errors
    /// Why it cannot play this format.
    pub fn open(name: &str, format: SampleFormat, latency: Nanos) -> Result<Self, SoundError> {
        let alsa = Alsa::load().ok_or(SoundError::Library)?;
        let fault = |what, reason| SoundError::Device { device: name.into(), what, reason };
        let text = CString::new(name).map_err(|_| fault("open", "a zero in its name".into()))?;
        let mut pcm = null_mut();
        // SAFETY: both pointers are to values that outlive the call, and the name ends with zero.
        let opened = unsafe { (alsa.open)(&raw mut pcm, text.as_ptr(), PLAYBACK, 0) };
        if opened < 0 {
            return Err(fault("open", alsa.text(opened)));
        }
        let frame = usize::from(format.channels) * usize::from(format.width);
        let device = Self { alsa, pcm, name: name.into(), frame };
        let kind = FORMATS[usize::from(format.width == 3)];
        let (channels, rate) = (c_uint::from(format.channels), format.rate);
        let micros = (latency.0 / 1000) as c_uint;
        // SAFETY: the device is open, and used by this call alone.
        let set =
            unsafe { (alsa.set_params)(device.pcm, kind, INTERLEAVED, channels, rate, 0, micros) };
        device.check("set its format", set.into())?;
        Ok(device)
    }

    /// Writes whole frames; waits while the device is full. Returns how often it had run empty.
    ///
    /// # Errors
    /// The device is gone.
    ///
    /// # Panics
    /// If the bytes are not whole frames.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<u64, SoundError> {
        assert!(bytes.len().is_multiple_of(self.frame), "frames are whole");
        let mut underruns = 0;
        for _ in 0..RECOVERIES_MAX {
            while !bytes.is_empty() {
                let frames = (bytes.len() / self.frame) as c_ulong;
                // SAFETY: the device is open, and the library reads so many frames of `bytes`.
                let done = unsafe { (self.alsa.write)(self.pcm, bytes.as_ptr().cast(), frames) };
                if done < 0 {
                    underruns += u64::from(done == -c_long::from(libc::EPIPE));
                    // SAFETY: the device is open, and used by this call alone.
                    let again = unsafe { (self.alsa.recover)(self.pcm, done as c_int, 1) };
                    self.check("write", again.into())?;
                    break;
                }
                bytes = &bytes[(done as usize * self.frame).min(bytes.len())..];
            }
            if bytes.is_empty() {
                return Ok(underruns);
            }
        }
        self.check("write", -c_long::from(libc::EIO)).map(|()| underruns)
    }

    /// Frames that were written and are not heard yet. `None` while the device cannot tell: it
    /// has run empty, or has not begun.
    pub fn delay(&mut self) -> Option<i64> {
        let mut frames = 0;
        // SAFETY: the device is open, and used by this call alone, which writes one number.
        let told = unsafe { (self.alsa.delay)(self.pcm, &raw mut frames) };
        (told >= 0).then_some(frames)
    }

    /// Waits until all has been played.
    ///
    /// # Errors
    /// The device is gone.
    pub fn drain(&mut self) -> Result<(), SoundError> {
        // SAFETY: the device is open, and used by this call alone.
        let drained = unsafe { (self.alsa.drain)(self.pcm) };
        self.check("drain", drained.into())
    }

    fn check(&self, what: &'static str, result: c_long) -> Result<(), SoundError> {
        if result >= 0 {
            return Ok(());
        }
        let reason = self.alsa.text(result as c_int);
        Err(SoundError::Device { device: self.name.clone(), what, reason })
    }
}

impl Drop for SoundDevice {
    fn drop(&mut self) {
        // SAFETY: it is open, and nobody uses it after its last owner. A device that is gone cannot
        // be closed either, which changes nothing.
        unsafe { (self.alsa.close)(self.pcm) };
    }
}

impl fmt::Debug for SoundDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SoundDevice").field(&self.name).finish()
    }
}

impl Alsa {
    fn load() -> Option<Self> {
        // SAFETY: the name ends with zero. The library's initialisers have no preconditions.
        let library = unsafe { libc::dlopen(c"libasound.so.2".as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            return None;
        }
        let find = |name: &CStr| {
            // SAFETY: the library is loaded and stays so, and the name ends with zero.
            let found = unsafe { libc::dlsym(library, name.as_ptr()) };
            (!found.is_null()).then_some(found)
        };
        macro_rules! function {
            ($name:literal, $kind:ty) => {
                // SAFETY: the function of this name has this signature in every version of
                // libasound.so.2 (alsa/pcm.h).
                unsafe { std::mem::transmute::<*mut c_void, $kind>(find($name)?) }
            };
        }
        Some(Self {
            open: function!(c"snd_pcm_open", Open),
            set_params: function!(c"snd_pcm_set_params", SetParams),
            write: function!(c"snd_pcm_writei", Write),
            recover: function!(c"snd_pcm_recover", Recover),
            delay: function!(c"snd_pcm_delay", Delay),
            drain: function!(c"snd_pcm_drain", Finish),
            close: function!(c"snd_pcm_close", Finish),
            text: function!(c"snd_strerror", Text),
        })
    }

    fn text(&self, error: c_int) -> String {
        // SAFETY: the function takes any number.
        let text = unsafe { (self.text)(error) };
        // SAFETY: it returns a static text that ends with zero.
        let text = unsafe { CStr::from_ptr(text) };
        text.to_string_lossy().into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The package libasound2 has a device that swallows sound.
    #[test]
    fn a_device_takes_frames_and_one_that_is_missing_is_told() {
        let format = SampleFormat { channels: 2, width: 3, rate: 48_000 };
        let latency = Nanos::from_millis(100);
        let mut device = SoundDevice::open("null", format, latency).expect("libasound2");
        assert_eq!(device.write(&[0; 6 * 480]), Ok(0));
        assert!(device.delay().is_none_or(|frames| (0..=480).contains(&frames)));
        assert_eq!(device.drain(), Ok(()));
        let error = SoundDevice::open("no-such-device", format, latency).unwrap_err();
        assert!(error.to_string().contains("\"no-such-device\": open: "), "{error}");
    }
}
