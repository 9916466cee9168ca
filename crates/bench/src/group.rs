//! A control group with a memory limit, for one server.
//!
//! Promise: works with both versions of the interface; the group vanishes with the value, once the
//! server has ended. What the group counts is the kernel's own account.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use tactus_core::units::Bytes;

const ROOT: &str = "/sys/fs/cgroup";

/// A group.
#[derive(Debug)]
pub struct Group {
    path: PathBuf,
    files: Files,
}

/// The names that differ between the versions.
#[derive(Debug)]
struct Files {
    limit: &'static str,
    peak: &'static str,
    events: &'static str,
}

const V1: Files = Files {
    limit: "memory.limit_in_bytes",
    peak: "memory.max_usage_in_bytes",
    events: "memory.oom_control",
};
const V2: Files = Files { limit: "memory.max", peak: "memory.peak", events: "memory.events" };

impl Group {
    /// Makes a group that may hold `limit`.
    pub fn with_memory(limit: Bytes) -> Result<Self> {
        let first = Path::new(ROOT).join("memory");
        let (root, files) = match first.join(V1.limit).exists() || first.join("tasks").exists() {
            true => (first, V1),
            false => (PathBuf::from(ROOT), V2),
        };
        let path = root.join(format!("tactus-bench-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let group = Self { path, files };
        ensure!(
            group.path.join(group.files.limit).exists(),
            "the memory controller is not at hand in {}",
            group.path.display()
        );
        fs::write(group.path.join(group.files.limit), limit.0.to_string())?;
        Ok(group)
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The most that it ever held, page cache and kernel memory included.
    pub fn peak(&self) -> Result<Bytes> {
        let text = fs::read_to_string(self.path.join(self.files.peak))?;
        Ok(Bytes(text.trim().parse()?))
    }

    /// How many of its processes were killed for memory.
    pub fn killed(&self) -> Result<u64> {
        let text = fs::read_to_string(self.path.join(self.files.events))?;
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        Ok(line.context("the kernel does not count kills")?.trim().parse()?)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.path) {
            eprintln!("left behind: {}: {error}", self.path.display());
        }
    }
}
