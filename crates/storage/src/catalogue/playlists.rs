//! The playlists beside titles: which titles are segments, and how long they play.
//!
//! Promise: a title is looked for in the playlists of its own directory and of the two above. A
//! directory is read again when its names have changed, a playlist when its bytes have. Without
//! playlists, a directory is not looked at more often than every [`FRESH`]. Memory is bounded, and
//! the least recently used directories are forgotten first.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::Dir;
use tactus_core::path::RequestPath;
use tactus_engine::message::VolumeId;
use tactus_media::playlist::{self, PLAYLIST_MAX, Playlist, Segment};

use super::volume::{OpenObject, WaitPolicy};
use super::{Catalogue, FileVersion};

/// The playlists of recently used directories.
#[derive(Debug, Default)]
pub(super) struct Playlists(Mutex<VecDeque<Directory>>);

/// The playlists of a directory.
#[derive(Clone, Debug)]
struct Directory {
    volume: VolumeId,
    /// Relative to the volume's root.
    name: String,
    /// When it was last compared with the disk.
    at: Instant,
    /// Of the directory itself: it changes with each name. `None` if there is no directory.
    version: Option<FileVersion>,
    lists: Vec<List>,
}

#[derive(Clone, Debug)]
struct List {
    name: String,
    version: FileVersion,
    playlist: Arc<Playlist>,
}

/// How long a look at a directory counts.
const FRESH: Duration = Duration::from_secs(2);
/// Most directories in memory.
const DIRECTORIES_MAX: usize = 256;
/// Most memory of playlists, in bytes.
const MEMORY_MAX: usize = 64 << 20;
/// Most playlists of a directory that are read: a film with its levels, languages and subtitles.
const LISTS_MAX: usize = 64;
/// Most templates that are compared on a thread that serves other clients.
const TEMPLATES_INLINE: usize = 32;
/// Most names of a directory that are looked at: a day of segments of one second.
const NAMES_MAX: usize = 200_000;
/// The title's directory, and those above where the playlist of all levels lies.
const LEVELS: usize = 3;

impl Playlists {
    fn get(&self, volume: VolumeId, name: &str) -> Option<Directory> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = known.iter().position(|one| one.volume == volume && one.name == name)?;
        let found = known.remove(at)?;
        known.push_back(found.clone());
        Some(found)
    }

    fn insert(&self, directory: Directory) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|one| one.volume != directory.volume || one.name != directory.name);
        known.push_back(directory);
        let mut size = known.iter().map(Directory::size).sum::<usize>();
        while known.len() > DIRECTORIES_MAX || size > MEMORY_MAX {
            let Some(gone) = known.pop_front() else { break };
            size -= gone.size();
        }
    }
}

impl Directory {
    fn segment(&self, below: &str) -> Option<Segment> {
        self.lists.iter().find_map(|list| list.playlist.segment(below))
    }

    fn templates(&self) -> usize {
        self.lists.iter().map(|list| list.playlist.templates()).sum()
    }

    fn size(&self) -> usize {
        let of_list = |list: &List| list.name.len() + 128 + list.playlist.size();
        self.name.len() + self.lists.iter().map(of_list).sum::<usize>()
    }
}

impl Catalogue {
    /// The title at `path` as a segment of a playlist beside it; `None` if no playlist names it, or
    /// the volume is busy.
    pub async fn segment(self: &Arc<Self>, path: &RequestPath) -> Option<Segment> {
        let (index, name) = self.volume_of(path).ok()??;
        let (mut stale, now) = (false, Instant::now());
        for (directory, below) in levels(name) {
            let known = self.playlists.get(self.volumes[index].id, directory);
            let known = known.filter(|known| {
                now.duration_since(known.at) < FRESH && known.templates() <= TEMPLATES_INLINE
            });
            let Some(known) = known else {
                stale = true;
                break;
            };
            if let Some(segment) = known.segment(below) {
                return Some(segment);
            }
            // A live playlist grows: its newest segment is looked for in its newest version.
            stale |= !known.lists.is_empty();
        }
        if !stale {
            return None;
        }
        let (this, name) = (Arc::clone(self), name.to_owned());
        let look = move || {
            levels(&name)
                .find_map(|(directory, below)| this.read_playlists(index, directory).segment(below))
        };
        self.volumes[index].probes.run(look).await.ok()?
    }

    /// The playlists of a directory as they are now.
    fn read_playlists(&self, index: usize, name: &str) -> Directory {
        let volume = self.volumes[index].id;
        let before = self.playlists.get(volume, name);
        let opened = match self.volumes[index].open_beneath(name, WaitPolicy::AsNeeded) {
            Ok(OpenObject::Directory { handle }) => Some(handle),
            Ok(OpenObject::File { .. }) | Err(_) => None,
        };
        let version = opened.as_ref().and_then(|handle| rustix::fs::fstat(handle).ok());
        let version = version.map(|stat| FileVersion::of(&stat));
        let same = before.as_ref().filter(|before| before.version == version);
        let names = match (same, &opened) {
            (Some(before), _) => before.lists.iter().map(|list| list.name.clone()).collect(),
            (None, Some(handle)) => names_in(handle),
            (None, None) => vec![],
        };
        let known = before.map(|before| before.lists).unwrap_or_default();
        let lists = names.into_iter().filter_map(|list| self.read_list(index, name, list, &known));
        let (name, at) = (name.to_owned(), Instant::now());
        let directory = Directory { volume, name, at, version, lists: lists.collect() };
        self.playlists.insert(directory.clone());
        directory
    }

    fn read_list(
        &self,
        index: usize,
        directory: &str,
        name: String,
        known: &[List],
    ) -> Option<List> {
        let path = if directory.is_empty() { name.clone() } else { format!("{directory}/{name}") };
        let opened = self.volumes[index].open_beneath(&path, WaitPolicy::AsNeeded).ok()?;
        let OpenObject::File { file, version } = opened else { return None };
        if let Some(same) = known.iter().find(|list| list.name == name && list.version == version) {
            return Some(same.clone());
        }
        let mut text = Vec::new();
        File::from(file).take(PLAYLIST_MAX).read_to_end(&mut text).ok()?;
        let playlist = Arc::new(Playlist::read(&name, &text)?);
        Some(List { name, version, playlist })
    }
}

/// The directories in which a playlist may name the title, from its own upwards, with the title's
/// path below each.
fn levels(name: &str) -> impl Iterator<Item = (&str, &str)> {
    let slashes = name.match_indices('/').map(|(at, _)| at).rev();
    let above = slashes.map(|at| (&name[..at], &name[at + 1..]));
    above.chain([("", name)]).take(LEVELS)
}

/// The names of playlists in a directory.
fn names_in(directory: &OwnedFd) -> Vec<String> {
    let Ok(entries) = Dir::read_from(directory) else { return vec![] };
    let names = entries.take(NAMES_MAX).flatten().filter_map(|entry| {
        let name = entry.file_name().to_str().ok()?;
        playlist::is_playlist(name).then(|| name.to_owned())
    });
    names.take(LISTS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tactus_core::units::Nanos;

    use super::*;
    use crate::catalogue::CatalogueRules;

    fn path(text: &str) -> RequestPath {
        RequestPath::parse(text.as_bytes()).unwrap()
    }

    #[tokio::test]
    async fn r02_a_playlist_names_the_titles_beside_and_below_it_and_new_ones_as_it_grows() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("film/v0")).unwrap();
        let list = |name: &str, text: &str| {
            let path = dir.path().join("film").join(name);
            fs::write(path, format!("#EXTM3U\n{text}")).unwrap();
        };
        list("v0/list.m3u8", "#EXTINF:4,\n0.ts\n");
        list("all.mpd", "no manifest");
        let catalogue = Arc::new(Catalogue::new(dir.path(), CatalogueRules::default()).unwrap());
        let millis = async |name: &str| {
            let found = catalogue.segment(&path(name)).await;
            found.map(|segment| segment.duration.map_or(0, |Nanos(nanos)| nanos / 1_000_000))
        };
        assert_eq!(millis("/film/v0/0.ts").await, Some(4000));
        assert_eq!(millis("/film/v0/1.ts").await, None);
        assert_eq!(millis("/0.ts").await, None);
        // In the same second, as live playlists do.
        list("v0/list.m3u8", "#EXTINF:4,\n0.ts\n#EXTINF:3.5,\n1.ts\n");
        assert_eq!(millis("/film/v0/1.ts").await, Some(3500));
        list("above.m3u8", "#EXTINF:2,\nv0/2.ts\n");
        assert_eq!(millis("/film/v0/2.ts").await, Some(2000));
        fs::remove_file(dir.path().join("film/above.m3u8")).unwrap();
        assert_eq!(millis("/film/v0/3.ts").await, None, "the directory is read again");
        assert_eq!(millis("/film/v0/2.ts").await, None);
    }

    #[test]
    fn r02_three_directories_are_looked_at() {
        let all: Vec<_> = levels("a/b/c/d.ts").collect();
        assert_eq!(all, [("a/b/c", "d.ts"), ("a/b", "c/d.ts"), ("a", "b/c/d.ts")]);
        assert_eq!(levels("d.ts").collect::<Vec<_>>(), [("", "d.ts")]);
    }
}
