//! Where the processors of the machine are: hyper-threads, NUMA nodes, isolated and offline ones.
//!
//! Promise: reading changes nothing and never fails. What the system does not tell is as on a
//! machine with one node, without hyper-threads, whose processors are all online.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Where the kernel describes the machine.
pub const SYSTEM: &str = "/sys/devices/system";

/// Where a processor is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position {
    /// Its NUMA node.
    pub node: u32,
    /// The lowest number of the hyper-threads of its physical core.
    pub first_sibling: u32,
    /// The scheduler keeps other programs away from it (`isolcpus`).
    pub is_isolated: bool,
}

/// The positions of processors, in the order of `cpus`, by the files below `system`
/// (`Documentation/admin-guide/cputopology.rst` of the kernel).
pub fn positions(system: &Path, cpus: &[u32]) -> Vec<Position> {
    let isolated = list(&system.join("cpu/isolated")).unwrap_or_default();
    let nodes = nodes(system);
    let position = |&cpu: &u32| {
        let siblings = system.join(format!("cpu/cpu{cpu}/topology/thread_siblings_list"));
        let first = list(&siblings).and_then(|list| list.into_iter().min());
        let of_node = nodes.iter().find(|(_, cpus)| cpus.contains(&cpu));
        Position {
            node: of_node.map_or(0, |&(node, _)| node),
            first_sibling: first.unwrap_or(cpu),
            is_isolated: isolated.contains(&cpu),
        }
    };
    cpus.iter().map(position).collect()
}

/// The NUMA nodes and their processors.
fn nodes(system: &Path) -> Vec<(u32, Vec<u32>)> {
    let entries = fs::read_dir(system.join("node")).into_iter().flatten().flatten();
    let node = |entry: fs::DirEntry| {
        let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
        Some((number, list(&entry.path().join("cpulist"))?))
    };
    entries.filter_map(node).collect()
}

/// Watches which processors are online: one read of an open file for each look.
#[derive(Debug)]
pub struct OnlineWatch {
    path: PathBuf,
    file: Option<File>,
}

impl OnlineWatch {
    /// By the files below `system`.
    pub fn new(system: &Path) -> Self {
        let path = system.join("cpu/online");
        Self { file: File::open(&path).ok(), path }
    }

    /// Those of `cpus` that are online; all of them if the system does not tell.
    pub fn online(&mut self, cpus: &[u32]) -> Vec<bool> {
        let online = self.read().filter(|text| !text.trim().is_empty()).map(|text| cores_of(&text));
        let is_online = |cpu| online.as_ref().is_none_or(|online| online.contains(cpu));
        cpus.iter().map(is_online).collect()
    }

    fn read(&mut self) -> Option<String> {
        if self.file.is_none() {
            self.file = File::open(&self.path).ok();
        }
        let file = self.file.as_mut()?;
        let mut text = String::new();
        let read = file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_string(&mut text));
        read.ok().map(|_| text)
    }
}

fn list(path: &Path) -> Option<Vec<u32>> {
    fs::read_to_string(path).ok().map(|text| cores_of(text.trim()))
}

/// A list of processors in the kernel's form: `0-2,5`.
pub(crate) fn cores_of(list: &str) -> Vec<u32> {
    let ranges = list.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.trim().parse::<u32>().ok()?..=last.trim().parse::<u32>().ok()?)
    });
    ranges.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        fs::create_dir_all(path.parent().expect("a file has a directory")).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn nodes_hyper_threads_and_isolated_processors_are_read() {
        let root = tempfile::tempdir().unwrap();
        for (file, text) in [
            ("cpu/isolated", "3,6-7\n"),
            ("node/node0/cpulist", "0-1,4-5\n"),
            ("node/node1/cpulist", "2-3,6-7\n"),
            ("node/possible", "0-1\n"),
        ] {
            put(root.path(), file, text);
        }
        for cpu in 0..8u32 {
            let first = cpu % 4;
            let file = format!("cpu/cpu{cpu}/topology/thread_siblings_list");
            put(root.path(), &file, &format!("{first},{}\n", first + 4));
        }
        let found = positions(root.path(), &[1, 3, 7, 2]);
        let position =
            |node, first_sibling, is_isolated| Position { node, first_sibling, is_isolated };
        let wanted = [
            position(0, 1, false),
            position(1, 3, true),
            position(1, 3, true),
            position(1, 2, false),
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn a_machine_that_tells_nothing_has_one_node_and_no_hyper_threads() {
        let root = tempfile::tempdir().unwrap();
        let found = positions(root.path(), &[0, 5]);
        let alone = |cpu| Position { node: 0, first_sibling: cpu, is_isolated: false };
        assert_eq!(found, [alone(0), alone(5)]);
        assert_eq!(OnlineWatch::new(root.path()).online(&[0, 5]), [true, true]);
    }

    #[test]
    fn a_processor_that_goes_offline_is_noticed_and_one_that_comes_back() {
        let root = tempfile::tempdir().unwrap();
        put(root.path(), "cpu/online", "0-3\n");
        let mut watch = OnlineWatch::new(root.path());
        assert_eq!(watch.online(&[1, 2]), [true, true]);
        put(root.path(), "cpu/online", "0-1,3\n");
        assert_eq!(watch.online(&[1, 2]), [true, false]);
        put(root.path(), "cpu/online", "0,2-3\n");
        assert_eq!(watch.online(&[1, 2]), [false, true]);
        put(root.path(), "cpu/online", "");
        assert_eq!(watch.online(&[1, 2]), [true, true], "a file without text tells nothing");
    }

    #[test]
    fn this_machine_is_read() {
        let cpus = crate::thread::allowed_cores().unwrap();
        assert_eq!(positions(Path::new(SYSTEM), &cpus).len(), cpus.len());
        assert!(OnlineWatch::new(Path::new(SYSTEM)).online(&cpus).iter().all(|online| *online));
    }
}
