//! The processes that use an open handle: whether one of them still has it open.
//!
//! Promise: nothing here looks at a file of the mount, so that no thread waits for a request that
//! it would have to answer, and nobody waits for long. What cannot be found out is no answer.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The processes that have opened a handle or written by it.
#[derive(Default)]
pub(crate) struct Processes {
    leaders: Mutex<Vec<Option<u32>>>,
    /// The thread that was here last.
    last: AtomicU32,
}

impl Processes {
    /// The thread `thread` uses the handle.
    pub(crate) fn add(&self, thread: u32) {
        if self.last.swap(thread, Ordering::Relaxed) == thread {
            return;
        }
        let leader = leader(thread);
        let mut leaders = self.leaders.lock().unwrap_or_else(PoisonError::into_inner);
        if !leaders.contains(&leader) && leaders.len() < PROCESSES_MAX {
            leaders.push(leader);
        }
    }

    /// Whether one of them, or one of their children, still has the inode `number` open when the
    /// thread `closer` closes a descriptor of it. None if it is not known: the children of
    /// a process that has ended belong to another one.
    pub(crate) fn have_open(&self, number: u64, closer: u32) -> Option<bool> {
        let leaders = self.leaders.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if leaders.is_empty() || leaders.len() == PROCESSES_MAX {
            return None;
        }
        let leaders = leaders.into_iter().collect::<Option<Vec<_>>>()?;
        if !leaders.contains(&leader(closer)?) {
            // A child that has got a descriptor without using it, and begins another program. The
            // one that has opened the file has its own, or has left the end to the release.
            return Some(true);
        }
        // A process that begins another program closes descriptors while the kernel lets nobody
        // look at it: then there is no answer before this request has one.
        let (sender, answer) = channel();
        let look = move || {
            // Without a receiver it is too late.
            sender.send(family_has_open(leaders, number)).ok();
        };
        std::thread::Builder::new().name("tactus-look".to_owned()).spawn(look).ok()?;
        answer.recv_timeout(PATIENCE).ok()?
    }
}

fn family_has_open(mut family: Vec<u32>, number: u64) -> Option<bool> {
    let mut is_known = true;
    let mut at = 0;
    while let Some(&process) = family.get(at) {
        at += 1;
        match has_open(process, number) {
            Some(true) => return Some(true),
            Some(false) => {}
            None => is_known = false,
        }
        match children(process) {
            Some(children) if family.len() + children.len() <= FAMILY_MAX => {
                let new: Vec<_> =
                    children.into_iter().filter(|child| !family.contains(child)).collect();
                family.extend(new);
            }
            _ => is_known = false,
        }
    }
    is_known.then_some(false)
}

/// The children of a process, by all its threads.
fn children(process: u32) -> Option<Vec<u32>> {
    let mut children = vec![];
    for thread in fs::read_dir(format!("/proc/{process}/task")).ok()? {
        let list = fs::read_to_string(thread.ok()?.path().join("children"));
        match list {
            Ok(list) => children.extend(list.split_whitespace().flat_map(str::parse::<u32>)),
            // The thread has just ended.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(_) => return None,
        }
    }
    Some(children)
}

/// The process of a thread.
fn leader(thread: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    line.trim().parse().ok()
}

fn has_open(process: u32, number: u64) -> Option<bool> {
    let line = format!("ino:\t{number}");
    for entry in fs::read_dir(format!("/proc/{process}/fdinfo")).ok()? {
        // One that has just been closed is no error.
        let Ok(about) = entry.and_then(|entry| fs::read_to_string(entry.path())) else { continue };
        let mut inodes = about.lines().filter(|line| line.starts_with("ino:"));
        match inodes.next() {
            Some(inode) if inode == line => return Some(true),
            Some(_) => {}
            // Linux before 5.14.
            None => return None,
        }
    }
    Some(false)
}

/// Processes of one handle that are remembered. With more it is not known who has it open.
const PROCESSES_MAX: usize = 16;

/// Processes and their children that are looked at.
const FAMILY_MAX: usize = 64;

/// Longer than a look takes.
const PATIENCE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn an_open_file_of_this_process_is_found_until_it_is_closed() {
        let place = std::env::temp_dir().join(format!("tactus-processes-{}", std::process::id()));
        let processes = Processes::default();
        let own = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        let file = fs::File::create(&place).unwrap();
        let number = file.metadata().unwrap().ino();
        assert_eq!(processes.have_open(number, own), None, "nobody is known");
        processes.add(own);
        assert_eq!(processes.have_open(number, own), Some(true));
        let mut command = std::process::Command::new("sleep");
        let mut child = command.arg("60").stdin(file).spawn().unwrap();
        drop(command);
        assert_eq!(processes.have_open(number, own), Some(true), "a child has it");
        assert_eq!(processes.have_open(number, child.id()), Some(true), "it has not used it");
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(processes.have_open(number, own), Some(false));
        fs::remove_file(&place).unwrap();
        // No process has this number.
        processes.add(u32::MAX);
        assert_eq!(processes.have_open(number, own), None);
    }
}
