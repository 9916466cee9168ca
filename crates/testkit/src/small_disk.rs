//! A file system of its own, so that a test can fill it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A file system on a loop device, gone when dropped.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts one of `size` bytes below `home`, an empty directory. `None` without the right to.
    ///
    /// # Panics
    /// If the image cannot be made.
    #[must_use]
    pub fn mount(home: &Path, size: u64) -> Option<Self> {
        let (image, mount) = (home.join("image"), home.join("mount"));
        let file = File::create(&image).expect("an image");
        file.set_len(size).expect("an image");
        fs::create_dir(&mount).expect("a directory");
        run("mkfs.ext4", &["-q", "-F", "-m", "0", image.to_str()?])?;
        run("mount", &["-o", "loop", image.to_str()?, mount.to_str()?])?;
        Some(Self(mount))
    }

    /// Its directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let path = self.0.to_str().expect("it was mounted by this name");
        // A process that was killed gives the files of its io_uring back a moment after its end.
        let until = Instant::now() + RELEASE;
        while run("umount", &[path]).is_none() {
            assert!(Instant::now() < until, "still in use");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Longer than the kernel takes to release the files of a process that has ended.
const RELEASE: Duration = Duration::from_secs(30);

fn run(program: &str, arguments: &[&str]) -> Option<()> {
    let done = Command::new(program).args(arguments).output().ok()?;
    done.status.success().then_some(())
}
