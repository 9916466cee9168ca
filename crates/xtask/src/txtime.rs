//! Datagrams with times, on a kernel that keeps them: boots Debian's, which has `fq`, in an
//! emulated machine, and runs the test that most kernels must skip.
//!
//! Promise: nothing of the machine's own is changed but that QEMU is installed when it may be;
//! kernel, shell and programs lie in the build directory. It needs no rights beyond that, no KVM,
//! and takes ten seconds besides what is fetched and built. It is no step of the gate: the kernel
//! is 70 MB of somebody else's.

mod archive;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::host;
use crate::workspace::{Workspace, output, run};
use archive::Archive;

/// What the emulated machine does, and what it says when all went well.
const INIT: &str = include_str!("txtime/init.sh");
const WELL: &str = "all went well";
/// How long it may take to boot and to run the test, in seconds.
const PATIENCE: &str = "300";
const PROGRAMS: [&str; 2] = ["ip", "tc"];
const MODULES: [&str; 2] = ["kernel/net/sched/sch_fq.ko", "kernel/drivers/net/veth.ko"];

/// Runs it.
pub(crate) fn run_txtime(workspace: &Workspace) -> Result<()> {
    ensure!(cfg!(target_arch = "x86_64"), "the machine that is emulated is an x86-64");
    host::set_up_for_machines()?;
    let place = workspace.target.join("txtime");
    fs::create_dir_all(&place)?;
    let meta = output(Command::new("apt-cache").args(["depends", "linux-image-amd64"]))?;
    let kernel = meta
        .lines()
        .find_map(|line| line.trim().strip_prefix("Depends: "))
        .context("linux-image-amd64 names no kernel")?;
    let system = unpacked(&place, kernel)?;
    let shell = unpacked(&place, "busybox-static")?;
    let version = kernel.trim_start_matches("linux-image-");

    let mut archive = Archive::new();
    for folder in ["proc", "sys", "dev", "run", "tmp"] {
        archive.add_folder(folder);
    }
    archive.add("init", INIT.as_bytes(), true);
    archive.add("bin/busybox", &read(&shell.join("bin/busybox"))?, true);
    for module in MODULES {
        let from = system.join("lib/modules").join(version).join(module);
        let name = Path::new(module).file_name().context("a module has a name")?;
        archive.add(&format!("modules/{}", name.to_string_lossy()), &read(&from)?, false);
    }
    for program in PROGRAMS {
        let path = output(Command::new("which").arg(program))?;
        add_program(&mut archive, Path::new(path.trim()), &format!("programs/{program}"))?;
    }
    add_program(&mut archive, &built(workspace)?, "programs/test")?;
    let image = place.join("image.cpio");
    fs::write(&image, archive.end())?;

    let mut machine = Command::new("timeout");
    machine.args(["--kill-after=10", PATIENCE, "qemu-system-x86_64"]);
    machine.args(["-machine", "q35", "-accel", "tcg", "-cpu", "max"]);
    machine.args(["-m", "512", "-nographic", "-no-reboot", "-nic", "none"]);
    machine.args(["-append", "console=ttyS0 quiet panic=-1"]);
    machine.arg("-kernel").arg(system.join(format!("boot/vmlinuz-{version}")));
    machine.arg("-initrd").arg(image);
    println!("$ a machine with {kernel}");
    let said = output(&mut machine)?;
    println!("{said}");
    ensure!(said.contains(WELL), "the test has failed on a kernel with fq");
    Ok(())
}

/// The test's program.
fn built(workspace: &Workspace) -> Result<PathBuf> {
    let build = ["test", "--locked", "--package=tactus-sys", "--test=txtime", "--no-run"];
    run(&mut workspace.cargo(&build))?;
    let told = output(workspace.cargo(&build).arg("--message-format=json"))?;
    let executable = |line: &str| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_it = message["target"]["name"] == "txtime";
        is_it.then(|| message["executable"].as_str().map(PathBuf::from))?
    };
    told.lines().find_map(executable).context("cargo names no program")
}

/// A Debian package's files, in a folder of its own.
fn unpacked(place: &Path, package: &str) -> Result<PathBuf> {
    let folder = place.join(package);
    let done = folder.join("unpacked");
    if done.exists() {
        return Ok(folder);
    }
    fs::create_dir_all(&folder)?;
    // As root the downloads go to somebody who may not write here; that is a warning and no more.
    run(Command::new("apt-get").current_dir(&folder).args(["download", package]))?;
    for entry in fs::read_dir(&folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "deb") {
            run(Command::new("dpkg-deb").arg("-x").arg(&path).arg(&folder))?;
            fs::remove_file(path)?;
        }
    }
    fs::write(done, "")?;
    Ok(folder)
}

/// A program and the libraries that it is linked with.
fn add_program(archive: &mut Archive, program: &Path, name: &str) -> Result<()> {
    archive.add(name, &read(program)?, true);
    let linked = output(Command::new("ldd").arg(program))?;
    for library in linked.split_whitespace().filter(|word| word.starts_with('/')) {
        let library = library.trim_end_matches(':');
        archive.add(library.trim_start_matches('/'), &read(Path::new(library))?, true);
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| path.display().to_string())
}
