//! The titles that are sought in, made by ffmpeg: one film in three containers.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::command;

/// A container.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Container {
    Mp4,
    Ts,
    Mkv,
}

impl Container {
    pub(super) fn extension(self) -> &'static str {
        match self {
            Self::Mp4 => "mp4",
            Self::Ts => "ts",
            Self::Mkv => "mkv",
        }
    }

    pub(super) fn file(self) -> &'static str {
        match self {
            Self::Mp4 => "film.mp4",
            Self::Ts => "film.ts",
            Self::Mkv => "film.mkv",
        }
    }
}

/// The directory with the titles.
pub(super) struct Titles {
    root: PathBuf,
}

/// The encoded part, and how often it is repeated.
const PART_SECONDS: u32 = 60;
const PARTS: u32 = 15;
const FRAMES_PER_SECOND: u32 = 25;

impl Titles {
    /// Makes the titles that the folder does not have yet.
    pub(super) fn lay(folder: &Path, gop: u16) -> Result<Self> {
        let root = folder.join(format!("gop-{gop}"));
        let done = root.join("done");
        if done.exists() {
            return Ok(Self { root });
        }
        fs::create_dir_all(&root)?;
        let part = root.join("part.mp4");
        let frames = (u32::from(gop) * FRAMES_PER_SECOND).to_string();
        let source = format!(
            "testsrc2=size=640x360:rate={FRAMES_PER_SECOND},noise=alls=20:allf=t[out0];\
             sine=sample_rate=48000[out1]"
        );
        ffmpeg(&format!("-f lavfi -i {source} -t {PART_SECONDS} -c:v libx264 -preset ultrafast"))
            .args(["-pix_fmt", "yuv420p", "-g", &frames, "-keyint_min", &frames])
            .args("-sc_threshold 0 -bf 2 -b:v 1500k -maxrate:v 1500k -bufsize:v 1500k".split(' '))
            .args("-x264-params nal-hrd=cbr -c:a aac -b:a 96k".split(' '))
            .write(&part)?;
        let list = root.join("list");
        fs::write(&list, "file part.mp4\n".repeat(PARTS as usize))?;
        let film = root.join(Container::Mp4.file());
        ffmpeg(&format!("-f concat -i {}", list.display()))
            .args("-c copy -movflags +faststart".split(' '))
            .write(&film)?;
        let copy = || ffmpeg(&format!("-i {} -c copy", film.display()));
        copy().args(["-muxrate", "1900k"]).write(&root.join(Container::Ts.file()))?;
        copy().write(&root.join(Container::Mkv.file()))?;
        fs::remove_file(part)?;
        fs::remove_file(list)?;
        fs::write(done, "")?;
        Ok(Self { root })
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Their duration in seconds.
    pub(super) fn length(&self) -> f64 {
        f64::from(PART_SECONDS * PARTS)
    }
}

struct Ffmpeg(std::process::Command);

fn ffmpeg(input: &str) -> Ffmpeg {
    let mut command = std::process::Command::new("ffmpeg");
    command.args(["-nostdin", "-v", "error", "-y"]).args(input.split(' '));
    Ffmpeg(command)
}

impl Ffmpeg {
    fn args<'a>(mut self, args: impl IntoIterator<Item = &'a str>) -> Self {
        self.0.args(args);
        self
    }

    fn write(mut self, file: &Path) -> Result<()> {
        command::finish(self.0.arg(file)).map(drop).context("ffmpeg lays down a title")
    }
}
