//! The wheel has all its files, and Python programs read titles with the installed package.

#![allow(clippy::unwrap_used, reason = "a test fails with a panic")]

#[path = "../../client/tests/fake/mod.rs"]
#[allow(dead_code, reason = "made for the tests of the Rust library")]
mod fake;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::Ordering;

use fake::{FakeServer, TITLE_LEN, byte};

const CRATE: &str = env!("CARGO_MANIFEST_DIR");

/// A Python with pip, which `cargo xtask setup` makes.
fn python() -> Command {
    let built = library();
    let target = built.ancestors().nth(3).unwrap();
    let python = target.join("tools/clients/python/bin/python3");
    assert!(python.is_file(), "{} is missing: cargo xtask setup makes it", python.display());
    let mut command = Command::new(python);
    // Without modules of the user, and without files of compiled modules.
    command.args(["-s", "-B"]);
    command
}

/// The library that was built with this test.
fn library() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libtactus_python.so")
}

fn successful(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{said}", output.status);
    output
}

/// Packs the wheel into a directory. Returns its path.
fn pack(directory: &Path) -> PathBuf {
    fs::create_dir_all(directory).unwrap();
    let mut pack = python();
    pack.arg(Path::new(CRATE).join("wheel.py")).arg(library());
    pack.arg(env!("CARGO_PKG_VERSION")).arg(directory);
    PathBuf::from(String::from_utf8(successful(&mut pack).stdout).unwrap().trim())
}

/// A Python that has the package installed below `place`.
fn installed(place: &Path) -> Command {
    let wheel = pack(place);
    let packages = place.join("packages");
    let mut install = python();
    install.args(["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]);
    successful(install.arg("--target").arg(&packages).arg(wheel));
    let mut python = python();
    python.env("PYTHONPATH", packages);
    python
}

#[test]
fn the_wheel_is_the_same_each_time() {
    let dir = tempfile::tempdir().unwrap();
    let (one, other) = (pack(&dir.path().join("one")), pack(&dir.path().join("other")));
    assert_eq!(one.file_name(), other.file_name());
    assert!(fs::read(one).unwrap() == fs::read(other).unwrap());
}

#[test]
fn the_python_program_of_the_guide_sums_a_title() {
    let dir = tempfile::tempdir().unwrap();
    let server = FakeServer::start();
    let mut run = installed(dir.path());
    run.arg(Path::new(CRATE).join("examples/sum.py")).arg(&server.path).arg("/one");
    let said = String::from_utf8(successful(&mut run).stdout).unwrap();
    let sum = (0..TITLE_LEN).map(|offset| u64::from(byte(0, offset))).sum::<u64>();
    assert_eq!(said, format!("{sum}\n"));
    let guide = include_str!("../../../docs/guide/local-programs.md");
    let example = include_str!("../examples/sum.py");
    assert!(guide.contains(&format!("```python\n{example}```\n")), "examples/sum.py has changed");
}

#[test]
fn the_python_program_of_the_guide_records_a_title() {
    let dir = tempfile::tempdir().unwrap();
    let server = FakeServer::start();
    let bytes: Vec<u8> = (0..300_000_u32).map(|at| (at ^ at >> 8) as u8).collect();
    let file = dir.path().join("bytes");
    fs::write(&file, &bytes).unwrap();
    let mut run = installed(dir.path());
    run.arg(Path::new(CRATE).join("examples/record.py")).arg(&server.path).args(["/one", "8"]);
    successful(run.stdin(fs::File::open(&file).unwrap()));
    assert!(*server.control.written.lock().unwrap() == bytes);
    assert_eq!(*server.control.changes.lock().unwrap(), ["Record"]);
    let guide = include_str!("../../../docs/guide/local-programs.md");
    let example = include_str!("../examples/record.py");
    assert!(
        guide.contains(&format!("```python\n{example}```\n")),
        "examples/record.py has changed"
    );
}

#[test]
fn the_python_program_of_the_guide_builds_a_title() {
    let dir = tempfile::tempdir().unwrap();
    let server = FakeServer::start();
    let bytes: Vec<u8> = (0..2_300_000_u32).map(|at| (at ^ at >> 8) as u8).collect();
    let file = dir.path().join("bytes");
    fs::write(&file, &bytes).unwrap();
    let mut run = installed(dir.path());
    run.arg(Path::new(CRATE).join("examples/build.py")).arg(&server.path).arg("/one");
    successful(run.stdin(fs::File::open(&file).unwrap()));
    assert!(*server.control.written.lock().unwrap() == bytes);
    let expected = ["Sync 0", "Sync 0", "Sync 0", "Publish 0"];
    assert_eq!(server.control.changes.lock().unwrap()[..4], expected);
    let guide = include_str!("../../../docs/guide/memory.md");
    let example = include_str!("../examples/build.py");
    assert!(guide.contains(&format!("```python\n{example}```\n")), "examples/build.py has changed");
}

/// The part of `program.py` with this name, against this server.
fn part(python: &mut Command, name: &str, server: &FakeServer, title: &Path) -> Command {
    let mut run = Command::new(python.get_program());
    run.args(python.get_args());
    run.envs(python.get_envs().filter_map(|(name, value)| Some((name, value?))));
    run.arg(Path::new(CRATE).join("tests/program.py")).arg(name).arg(&server.path).arg(title);
    run
}

#[test]
fn a_python_program_reads_a_title_in_each_way() {
    let dir = tempfile::tempdir().unwrap();
    let title = dir.path().join("title");
    fs::write(&title, (0..TITLE_LEN).map(|offset| byte(0, offset)).collect::<Vec<_>>()).unwrap();
    let mut python = installed(dir.path());
    let names = [
        "package",
        "stub",
        "reads",
        "files",
        "maps",
        "errors",
        "requests",
        "event_loop",
        "streams",
        "writers",
        "recordings",
        "memories",
        "reserves",
        "rings_in_event_loop",
        "memory_in_event_loop",
    ];
    for name in names {
        // One for each: it takes one client.
        let server = FakeServer::start();
        let said = successful(&mut part(&mut python, name, &server, &title)).stdout;
        assert_eq!(String::from_utf8(said).unwrap(), format!("{name}\n"));
        let expected = match name {
            "writers" => {
                vec!["Sync 0", "Publish 7", "Publish 0", "Publish 0", "Remove { title: \"/a\" }"]
            }
            "recordings" => vec!["Record", "Record"],
            "memories" => vec!["Sync 0", "Publish 7", "kept", "kept", "kept"],
            "rings_in_event_loop" => vec!["Record", "Publish 0"],
            "memory_in_event_loop" => vec!["Sync 0", "Publish 0", "kept", "kept"],
            _ => vec![],
        };
        assert_eq!(*server.control.changes.lock().unwrap(), expected, "{name}");
        if name == "memories" {
            let bytes = fs::read(&title).unwrap();
            assert!(*server.control.written.lock().unwrap() == bytes[..599_999]);
        }
    }
    let server = FakeServer::start();
    server.control.hold(true);
    let mut run = part(&mut python, "closes", &server, &title);
    let mut program = run.stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(program.stdout.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), "closed");
    assert_eq!(server.control.closed.load(Ordering::SeqCst), 0, "a read is under way");
    server.control.hold(false);
    assert_eq!(said.next().unwrap().unwrap(), "closes");
    assert_eq!(server.control.closed.load(Ordering::SeqCst), 1);
    assert!(program.wait().unwrap().success());

    for name in ["gone", "gone_in_event_loop"] {
        let mut server = FakeServer::start();
        server.control.hold(true);
        let mut run = part(&mut python, name, &server, &title);
        let program = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        server.control.wait_for_requests(3);
        server.stop();
        let output = program.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {}\n{said}", output.status);
        assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{name}\n"));
    }
}
