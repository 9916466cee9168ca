//! `cargo xtask dist`: packs a released binary with its files into one archive.
//!
//! Promise: the archive is the same for the same binary and tree: sorted names, a fixed time, no
//! owner. It contains the binary, its manual pages and completions, the sample configuration, the
//! systemd unit, the guide, the licences, and the libraries of local programs for C and Python,
//! below a directory named by version and machine.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::host;
use crate::workspace::{Workspace, output, run};

/// Files of the tree, and their places in the archive.
const FILES: [(&str, &str); 7] = [
    ("crates/client-c/include/tactus.h", "include/tactus.h"),
    ("tactus.sample.toml", "etc/tactus.sample.toml"),
    ("assets/tactus.service", "lib/systemd/system/tactus.service"),
    ("README.md", "share/doc/tactus/README.md"),
    ("CHANGELOG.md", "share/doc/tactus/CHANGELOG.md"),
    ("LICENSE-MIT", "share/doc/tactus/LICENSE-MIT"),
    ("LICENSE-APACHE", "share/doc/tactus/LICENSE-APACHE"),
];

/// What is built.
struct Build {
    /// The server.
    binary: PathBuf,
    /// The library for C, to be linked when a program starts.
    shared: PathBuf,
    /// The same, to be linked into a program.
    linked: PathBuf,
    /// The native half of the package for Python.
    python: PathBuf,
}

/// Builds for release and packs the result.
pub(crate) fn run_dist(workspace: &Workspace) -> Result<()> {
    host::set_up_for_python_tools()?;
    let packages = ["tactus", "tactus-client-c", "tactus-client-python"];
    let mut build = workspace.cargo(&["build", "--release", "--locked"]);
    run(build.args(packages.map(|package| format!("--package={package}"))))?;
    let release = workspace.target.join("release");
    let build = Build {
        binary: release.join("tactus"),
        shared: release.join("libtactus_c.so"),
        linked: release.join("libtactus_c.a"),
        python: release.join("libtactus_python.so"),
    };
    let archive = pack(&build, &workspace.root, &workspace.target.join("dist"))?;
    println!("{}", archive.display());
    Ok(())
}

/// Packs what was built and its files from the tree at `root` into an archive in `out`.
fn pack(build: &Build, root: &Path, out: &Path) -> Result<PathBuf> {
    let binary = &build.binary;
    let said = output(Command::new(binary).arg("--version"))?;
    let version = said.trim().strip_prefix("tactus ").context("the binary is not tactus")?;
    let name = format!("tactus-{version}-{}-linux", std::env::consts::ARCH);
    let place = out.join(&name);
    if place.exists() {
        fs::remove_dir_all(&place)?;
    }
    copy(binary, &place.join("bin/tactus"))?;
    for (from, to) in FILES {
        copy(&root.join(from), &place.join(to))?;
    }
    run(Command::new("cp")
        .arg("-R")
        .arg(root.join("docs/guide"))
        .arg(place.join("share/doc/tactus")))?;
    pack_libraries(build, root, &place, version)?;
    run(Command::new(binary).arg("man").arg(place.join("share/man/man1")))?;
    for (shell, to) in [
        ("bash", "share/bash-completion/completions/tactus"),
        ("zsh", "share/zsh/site-functions/_tactus"),
        ("fish", "share/fish/vendor_completions.d/tactus.fish"),
    ] {
        let to = place.join(to);
        fs::create_dir_all(to.parent().context("the target has a parent")?)?;
        fs::write(to, output(Command::new(binary).args(["completions", shell]))?)?;
    }
    let archive = out.join(format!("{name}.tar.gz"));
    let tar = ["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"];
    // gzip stores neither a name nor a time.
    run(Command::new("tar")
        .args(tar)
        .args(["--use-compress-program=gzip -n", "-cf"])
        .arg(&archive)
        .arg("-C")
        .arg(out)
        .arg(&name))?;
    Ok(archive)
}

/// The libraries of local programs, as they are installed below a prefix.
fn pack_libraries(build: &Build, root: &Path, place: &Path, version: &str) -> Result<()> {
    let lib = place.join("lib");
    copy(&build.shared, &lib.join("libtactus.so.0"))?;
    symlink("libtactus.so.0", lib.join("libtactus.so"))?;
    copy(&build.linked, &lib.join("libtactus.a"))?;
    let description = fs::read_to_string(root.join("crates/client-c/tactus.pc.in"))?
        // Wherever the archive is unpacked.
        .replace("@PREFIX@", "${pcfiledir}/../..")
        .replace("@VERSION@", version);
    fs::create_dir_all(lib.join("pkgconfig"))?;
    fs::write(lib.join("pkgconfig/tactus.pc"), description)?;
    let python = place.join("share/tactus/python");
    fs::create_dir_all(&python)?;
    run(Command::new("python3")
        .arg(root.join("crates/client-python/wheel.py"))
        .arg(&build.python)
        .arg(version)
        .arg(&python))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to.parent().context("the target has a parent")?)?;
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const BINARY: &str = "#!/bin/sh
case $1 in
  --version) echo 'tactus 9.9.9' ;;
  man)
    mkdir -p \"$2\" \"$2/../man5\"
    echo page > \"$2/tactus.1\"
    echo page > \"$2/../man5/tactus.toml.5\" ;;
  completions) echo \"for $2\" ;;
esac
";

    #[test]
    fn n03_the_archive_is_complete_and_reproducible() {
        let dir = tempfile::tempdir().unwrap();
        let binary = dir.path().join("tactus");
        fs::write(&binary, BINARY).unwrap();
        fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
        let library = dir.path().join("library");
        fs::write(&library, "code").unwrap();
        let [shared, linked, python] = std::array::from_fn(|_| library.clone());
        let build = Build { binary, shared, linked, python };
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let archive = pack(&build, &root, &dir.path().join("one")).unwrap();
        let again = pack(&build, &root, &dir.path().join("two")).unwrap();
        assert_eq!(fs::read(&archive).unwrap(), fs::read(again).unwrap());
        let list = output(Command::new("tar").arg("-tzf").arg(&archive)).unwrap();
        for file in [
            "bin/tactus",
            "etc/tactus.sample.toml",
            "lib/systemd/system/tactus.service",
            "share/man/man1/tactus.1",
            "share/man/man5/tactus.toml.5",
            "share/bash-completion/completions/tactus",
            "share/doc/tactus/LICENSE-APACHE",
            "share/doc/tactus/guide/quick-start.md",
            "include/tactus.h",
            "lib/libtactus.so",
            "lib/libtactus.so.0",
            "lib/libtactus.a",
            "lib/pkgconfig/tactus.pc",
            "share/tactus/python/tactus-9.9.9-cp311-abi3-linux_x86_64.whl",
        ] {
            let is_there = list.lines().any(|line| line.ends_with(&format!("-linux/{file}")));
            assert!(is_there, "{file} is not in\n{list}");
        }
        assert!(list.lines().all(|line| line.starts_with("tactus-9.9.9-")), "{list}");
    }
}
