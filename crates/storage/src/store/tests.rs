//! The write protocol on a real file system, rule by rule.

mod damage;
mod faults;
mod hostile_writers;
mod kills;
mod put;
mod quota;
mod resume;
mod working_file;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::*;

/// A temporary volume beside the test program: on a real file system with direct I/O and
/// attributes, which the directory for temporary files may lack.
struct TestVolume(tempfile::TempDir);

/// The defaults, except that most titles are too long for an attribute and have a manifest.
fn options() -> StoreOptions {
    StoreOptions { attribute_units: 1, ..StoreOptions::default() }
}

impl TestVolume {
    fn new() -> Self {
        let program = std::env::current_exe().unwrap();
        let builder =
            tempfile::Builder::new().prefix("store-").tempdir_in(program.parent().unwrap());
        Self(builder.unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    async fn open(&self) -> Store {
        self.open_with(options()).await
    }

    async fn open_with(&self, options: StoreOptions) -> Store {
        open(self, options).await.0
    }

    /// A copy of the volume as a crash would leave it.
    fn crashed(&self) -> Self {
        let copy = Self::new();
        let mut cp = std::process::Command::new("cp");
        cp.arg("-a").arg(self.path(".")).arg(copy.0.path());
        assert!(cp.status().unwrap().success());
        copy
    }

    /// The titles of the volume, by path, with their lengths.
    fn titles(&self) -> Vec<(String, u64)> {
        fn walk(top: &Path, directory: &Path, found: &mut Vec<(String, u64)>) {
            for entry in std::fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    if !path.ends_with(".tactus") {
                        walk(top, &path, found);
                    }
                } else {
                    let name = path.strip_prefix(top).unwrap().to_str().unwrap().to_owned();
                    found.push((name, path.metadata().unwrap().len()));
                }
            }
        }
        let mut found = Vec::new();
        walk(self.0.path(), self.0.path(), &mut found);
        found.sort();
        found
    }

    /// The server's own files in a directory, without the permanent directories.
    fn own(&self, directory: &str) -> usize {
        let mut count = 0;
        for entry in std::fs::read_dir(self.path(".tactus").join(directory)).unwrap() {
            let path = entry.unwrap().path();
            count += match std::fs::read_dir(&path) {
                Ok(inside) => inside.count(),
                // A file; or a directory that the store has removed meanwhile.
                Err(_) => usize::from(path.exists()),
            };
        }
        count
    }
}

async fn open(volume_dir: &TestVolume, options: StoreOptions) -> (Store, RecoveryReport) {
    try_open(volume_dir, options).await.unwrap()
}

/// Waits for the lock of the last life: a child process that another test has just forked has a
/// copy of it, until it begins its program.
async fn try_open(
    volume_dir: &TestVolume,
    options: StoreOptions,
) -> Result<(Store, RecoveryReport), OpenError> {
    let begun = Instant::now();
    loop {
        let medium = Arc::new(PlainMedium::new(4, 128 * 1024));
        match Store::open(volume_dir.0.path(), medium, options.clone()).await {
            Err(OpenError::InUse(_)) if begun.elapsed() < Duration::from_secs(5) => {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            opened => return opened,
        }
    }
}

/// Bytes that depend on `seed`.
fn content(seed: u64, len: usize) -> Vec<u8> {
    let word = |at: u64| (at ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17);
    (0..len.div_ceil(8) as u64).flat_map(|at| word(at).to_le_bytes()).take(len).collect()
}

fn put(path: &str, len: Option<usize>) -> UploadSpec {
    UploadSpec {
        path: path.to_owned(),
        len: len.map(|len| len as u64),
        precondition: Precondition::Any,
        principal: Principal::new("ann"),
    }
}

async fn store(store: &Store, what: UploadSpec, bytes: &[u8]) -> Result<StoredTitle, UploadError> {
    let mut upload = store.begin(what).await?;
    for piece in bytes.chunks(10_007) {
        upload.append(piece).await?;
    }
    upload.finish().await
}
