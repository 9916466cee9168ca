//! Twelve titles of a variable rate: four kinds of pictures, three qualities, four containers.
//!
//! Promise: ffmpeg makes the titles once, and again only if the recipe has changed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tactus_core::units::Bytes;

use super::packets::{Packet, TRANSPORT, packets};
use crate::command;

/// A title and its packets.
#[derive(Clone, Debug)]
pub(super) struct Clip {
    pub(super) name: String,
    pub(super) len: Bytes,
    pub(super) packets: Vec<Packet>,
    is_transport: bool,
}

/// Pictures of a minute, 640 x 360, 25 a second.
const KINDS: [(&str, &str); 4] = [
    // Ten seconds of noise, twice, in black.
    (
        "noise",
        "color=c=black:s=640x360:r=25:d=60,\
         noise=alls=30:allf=t:enable='between(mod(t,30),10,20)'",
    ),
    // Zooms, turns and swarms of changing complexity, with cuts.
    (
        "sport",
        "mandelbrot=s=640x360:r=25,trim=duration=13,setpts=PTS-STARTPTS[a];\
         testsrc2=s=640x360:r=25:d=9,rotate=t/3[b];\
         life=s=320x180:r=25:mold=10:ratio=0.1:seed=7:death_color=#483d8b:life_color=#00ff7f,\
         scale=640:360:flags=neighbor,trim=duration=6,setpts=PTS-STARTPTS[c];\
         mandelbrot=s=640x360:r=25:start_scale=0.02:end_scale=0.0001,trim=duration=17,\
         setpts=PTS-STARTPTS[d];\
         testsrc2=s=1280x720:r=25:d=5,crop=640:360:x='t*120':y='t*60'[e];\
         mandelbrot=s=640x360:r=25:inner=convergence,trim=duration=10,setpts=PTS-STARTPTS[f];\
         [a][b][c][d][e][f]concat=n=6:v=1",
    ),
    // A new still every five seconds.
    (
        "slides",
        "mandelbrot=s=640x360:r=1/5:start_scale=1:end_scale=0.001:end_pts=12,fps=25,\
         trim=duration=60",
    ),
    // Calm and busy shots of five to twelve seconds, some of them with grain.
    (
        "film",
        "gradients=s=640x360:r=25:speed=0.01:seed=3:d=11[a];\
         sierpinski=s=160x90:r=25:seed=5:type=triangle,scale=640:360,trim=duration=7,\
         setpts=PTS-STARTPTS[b];\
         mandelbrot=s=640x360:r=25:start_scale=0.5,trim=duration=9,setpts=PTS-STARTPTS,\
         noise=alls=8:allf=t[c];\
         color=c=gray:s=640x360:r=25:d=5[d];\
         testsrc2=s=640x360:r=25:d=8,gblur=sigma=2[e];\
         gradients=s=640x360:r=25:speed=0.05:seed=9:d=8,noise=alls=6:allf=t[f];\
         sierpinski=s=160x90:r=25:seed=8:type=carpet,scale=640:360,trim=duration=12,\
         setpts=PTS-STARTPTS[g];\
         [a][b][c][d][e][f][g]concat=n=7:v=1",
    ),
];
const SOUND: &str = "anoisesrc=r=48000:a=0.1:d=60:seed=1";
const QUALITIES: [&str; 3] = ["23", "27", "32"];
/// Endings of names, and what makes ffmpeg write that container.
const CONTAINERS: [(&str, &[&str]); 4] = [
    ("ts", &[]),
    ("mp4", &["-movflags", "+faststart"]),
    ("fragments.mp4", &["-movflags", "frag_keyframe+empty_moov+default_base_moof"]),
    ("mkv", &[]),
];
const VIDEO: &str = "-t 60 -c:v libx264 -preset fast -g 50 -crf";
const AUDIO: &str = "-c:a aac -b:a 96k";
/// The file beside the folder of the titles with the commands that made them.
const RECIPE: &str = "recipe.txt";
/// Access points to begin at, besides the beginning.
const POINTS: usize = 20;

/// Finds the titles in `folder`, or makes them.
pub(super) fn lay(folder: &Path) -> Result<Vec<Clip>> {
    fs::create_dir_all(folder)?;
    let recipe = folder.with_extension(RECIPE);
    let wanted = format!("{KINDS:?}\n{SOUND}\n{QUALITIES:?}\n{CONTAINERS:?}\n{VIDEO}\n{AUDIO}\n");
    if fs::read_to_string(&recipe).is_ok_and(|made| made == wanted) {
        return names().iter().map(|name| Clip::read(folder, name)).collect();
    }
    for (number, (kind, _)) in KINDS.iter().enumerate() {
        super::say(&format!("encoding titles: {kind}"));
        encode(folder, number)?;
    }
    let clips = names().iter().map(|name| Clip::read(folder, name)).collect::<Result<_>>()?;
    fs::write(recipe, wanted)?;
    Ok(clips)
}

/// Each container holds three kinds, each kind three containers.
fn container(kind: usize, quality: usize) -> (&'static str, &'static [&'static str]) {
    CONTAINERS[(kind + quality) % CONTAINERS.len()]
}

fn name(kind: usize, quality: usize) -> String {
    format!("{}-{}.{}", KINDS[kind].0, QUALITIES[quality], container(kind, quality).0)
}

fn names() -> Vec<String> {
    let places = (0..KINDS.len()).flat_map(|kind| (0..QUALITIES.len()).map(move |q| (kind, q)));
    places.map(|(kind, quality)| name(kind, quality)).collect()
}

/// Encodes one kind in all qualities.
fn encode(folder: &Path, kind: usize) -> Result<()> {
    let pictures = KINDS[kind].1;
    let filter = format!("{pictures},format=yuv420p,split={}[v0][v1][v2]", QUALITIES.len());
    let mut ffmpeg = Command::new("ffmpeg");
    ffmpeg.args(["-nostdin", "-v", "error", "-y", "-f", "lavfi", "-i", SOUND]);
    ffmpeg.args(["-filter_complex", &filter]);
    for (number, quality) in QUALITIES.iter().enumerate() {
        ffmpeg.args(["-map", &format!("[v{number}]"), "-map", "0:a"]);
        ffmpeg.args(VIDEO.split(' ')).arg(quality).args(AUDIO.split(' '));
        ffmpeg.args(container(kind, number).1).arg(folder.join(name(kind, number)));
    }
    command::finish(&mut ffmpeg).map(drop)
}

impl Clip {
    fn read(folder: &Path, name: &str) -> Result<Self> {
        let path: PathBuf = folder.join(name);
        let len = fs::metadata(&path).with_context(|| format!("no title {}", path.display()))?;
        let is_transport = name.ends_with(".ts");
        Ok(Self {
            name: name.to_owned(),
            len: Bytes(len.len()),
            packets: packets(&path)?,
            is_transport,
        })
    }

    /// Where players begin: at the first byte, and at access points all over the title.
    pub(super) fn starts(&self) -> Vec<u64> {
        let whole = |at: u64| if self.is_transport { at - at % TRANSPORT } else { at };
        let mut keys: Vec<u64> =
            self.packets.iter().filter(|packet| packet.is_key).map(|key| whole(key.at)).collect();
        keys.sort_unstable();
        keys.dedup();
        // The first one is the beginning.
        let keys = keys.get(1..).unwrap_or_default();
        let count = POINTS.min(keys.len());
        std::iter::once(0).chain((0..count).map(|nth| keys[nth * keys.len() / count])).collect()
    }

    /// How long it plays, in seconds.
    pub(super) fn lasts(&self) -> f64 {
        match (self.packets.first(), self.packets.last()) {
            (Some(first), Some(last)) => last.decoded - first.decoded,
            _ => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twelve_titles_of_four_containers_have_names_of_their_own() {
        let mut names = names();
        for (ending, _) in CONTAINERS {
            let count = names.iter().filter(|name| name.ends_with(&format!(".{ending}"))).count();
            // The names of fragments end like those of other movies.
            assert_eq!(count, if ending == "mp4" { 6 } else { 3 }, "{ending}");
        }
        names.dedup();
        assert_eq!(names.len(), 12);
    }

    #[test]
    fn players_begin_at_the_beginning_and_at_twenty_key_frames() {
        let key = |nth: u64| Packet {
            decoded: nth as f64,
            at: 200 + nth * 1_000,
            end: 300 + nth * 1_000,
            is_key: true,
        };
        let clip = |is_transport| Clip {
            name: "x".into(),
            len: Bytes(61_000),
            packets: (0..60).map(key).collect(),
            is_transport,
        };
        let starts = clip(false).starts();
        assert_eq!((starts.len(), starts[0], starts[1]), (21, 0, 1_200));
        assert!(starts.is_sorted() && starts[20] > 55_000);
        assert!(clip(true).starts().iter().all(|start| start % TRANSPORT == 0));
    }
}
