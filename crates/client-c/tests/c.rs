//! The header is that of the source, and a C program reads titles with it.

#![allow(clippy::unwrap_used, reason = "a test fails with a panic")]

#[path = "../../client/tests/fake/mod.rs"]
#[allow(dead_code, reason = "made for the tests of the Rust library")]
mod fake;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use fake::{FakeServer, TITLE_LEN, TITLE_RATE, byte};

const CRATE: &str = env!("CARGO_MANIFEST_DIR");

#[test]
fn the_header_is_that_of_the_source() {
    let mut made = vec![];
    let config = cbindgen::Config::from_file(Path::new(CRATE).join("cbindgen.toml")).unwrap();
    cbindgen::Builder::new()
        .with_config(config)
        .with_src(Path::new(CRATE).join("src/lib.rs"))
        .generate()
        .unwrap()
        .write(&mut made);
    let path = Path::new(CRATE).join("include/tactus.h");
    if std::env::var_os("TACTUS_UPDATE").is_some() {
        fs::write(&path, &made).unwrap();
    }
    let header = fs::read(&path).unwrap_or_default();
    assert!(header == made, "run this test with TACTUS_UPDATE=1 and commit include/tactus.h");
}

/// The library as it is installed: header, both libraries, pkg-config.
fn install(prefix: &Path) {
    let (include, lib) = (prefix.join("include"), prefix.join("lib"));
    fs::create_dir_all(&include).unwrap();
    fs::create_dir_all(lib.join("pkgconfig")).unwrap();
    fs::copy(Path::new(CRATE).join("include/tactus.h"), include.join("tactus.h")).unwrap();
    let built: PathBuf = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    for (from, to) in [("libtactus_c.so", "libtactus.so.0"), ("libtactus_c.a", "libtactus.a")] {
        fs::copy(built.join(from), lib.join(to)).unwrap();
    }
    symlink("libtactus.so.0", lib.join("libtactus.so")).unwrap();
    let template = fs::read_to_string(Path::new(CRATE).join("tactus.pc.in")).unwrap();
    let text = template
        .replace("@PREFIX@", prefix.to_str().unwrap())
        .replace("@VERSION@", env!("CARGO_PKG_VERSION"));
    fs::write(lib.join("pkgconfig/tactus.pc"), text).unwrap();
}

fn flags(prefix: &Path, arguments: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")).args(arguments).arg("tactus");
    let text = String::from_utf8(successful(&mut command).stdout).unwrap();
    text.split_whitespace().map(str::to_owned).collect()
}

fn successful(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{said}", output.status);
    output
}

fn compile(source: &str, prefix: &Path, is_static: bool) -> PathBuf {
    let program = prefix.join("program");
    let mut compile = Command::new("cc");
    compile.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-o"]).arg(&program);
    compile.arg(Path::new(CRATE).join(source)).args(flags(prefix, &["--cflags"]));
    if is_static {
        compile.arg(prefix.join("lib/libtactus.a"));
        compile.args(flags(prefix, &["--static", "--libs-only-l"]).iter().skip(1));
    } else {
        compile.args(flags(prefix, &["--libs"]));
    }
    successful(&mut compile);
    program
}

#[test]
fn the_c_program_of_the_guide_sums_a_title() {
    let dir = tempfile::tempdir().unwrap();
    install(dir.path());
    let program = compile("examples/sum.c", dir.path(), false);
    let server = FakeServer::start();
    let mut run = Command::new(&program);
    run.env("LD_LIBRARY_PATH", dir.path().join("lib")).arg(&server.path).arg("/one");
    let said = String::from_utf8(successful(&mut run).stdout).unwrap();
    assert_eq!(said, format!("{}\n", sum_of_title()));
    let guide = include_str!("../../../docs/guide/local-programs.md");
    let example = include_str!("../examples/sum.c");
    assert!(guide.contains(&format!("```c\n{example}```\n")), "examples/sum.c has changed");
}

#[test]
fn the_c_program_of_the_guide_stores_a_title() {
    let dir = tempfile::tempdir().unwrap();
    install(dir.path());
    let program = compile("examples/store.c", dir.path(), false);
    let server = FakeServer::start();
    let bytes: Vec<u8> = (0..300_000_u32).map(|at| (at ^ at >> 8) as u8).collect();
    let file = dir.path().join("bytes");
    fs::write(&file, &bytes).unwrap();
    let mut run = Command::new(&program);
    run.env("LD_LIBRARY_PATH", dir.path().join("lib")).arg(&server.path).arg("/one");
    successful(run.stdin(fs::File::open(&file).unwrap()));
    assert!(*server.control.written.lock().unwrap() == bytes);
    assert_eq!(*server.control.changes.lock().unwrap(), ["Publish 0"]);
    let guide = include_str!("../../../docs/guide/local-programs.md");
    let example = include_str!("../examples/store.c");
    assert!(guide.contains(&format!("```c\n{example}```\n")), "examples/store.c has changed");
}

#[test]
fn the_c_program_of_the_guide_builds_a_title_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    install(dir.path());
    let program = compile("examples/build.c", dir.path(), false);
    let server = FakeServer::start();
    let bytes: Vec<u8> = (0..1_500_000_u32).map(|at| (at ^ at >> 8) as u8).collect();
    let file = dir.path().join("bytes");
    fs::write(&file, &bytes).unwrap();
    let mut run = Command::new(&program);
    run.env("LD_LIBRARY_PATH", dir.path().join("lib")).arg(&server.path).arg("/one");
    successful(run.stdin(fs::File::open(&file).unwrap()));
    assert!(*server.control.written.lock().unwrap() == bytes);
    let guide = include_str!("../../../docs/guide/memory.md");
    let example = include_str!("../examples/build.c");
    assert!(guide.contains(&format!("```c\n{example}```\n")), "examples/build.c has changed");
}

#[test]
fn a_c_program_builds_titles_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    install(dir.path());
    let program = compile("tests/memory.c", dir.path(), false);
    let server = FakeServer::start();
    let mut run = Command::new(&program);
    run.env("LD_LIBRARY_PATH", dir.path().join("lib")).arg(&server.path);
    let said = String::from_utf8(successful(&mut run).stdout).unwrap();
    let expected = "grown 10 of 4194304, moved 0\nfinal 5\nupload 9 an-upload\nsmall 1\n\
                    final already 1\ntoo long 1\nthe older version\n\
                    what was synced, final 15\nnull 1\nbad 1\n";
    assert_eq!(said, expected);
    assert_eq!(*server.control.written.lock().unwrap(), b"abcdefghi");
    assert_eq!(*server.control.changes.lock().unwrap(), ["Sync 0", "Publish 7", "kept", "kept"]);
}

#[test]
fn the_c_program_of_the_guide_records_a_title() {
    let dir = tempfile::tempdir().unwrap();
    install(dir.path());
    let program = compile("examples/record.c", dir.path(), false);
    let server = FakeServer::start();
    let bytes: Vec<u8> = (0..30_000_u32).map(|at| (at ^ at >> 8) as u8).collect();
    let file = dir.path().join("bytes");
    fs::write(&file, &bytes).unwrap();
    let mut run = Command::new(&program);
    run.env("LD_LIBRARY_PATH", dir.path().join("lib")).arg(&server.path).args(["/one", "8"]);
    successful(run.stdin(fs::File::open(&file).unwrap()));
    assert!(*server.control.written.lock().unwrap() == bytes);
    assert_eq!(*server.control.changes.lock().unwrap(), ["Record"]);
    let guide = include_str!("../../../docs/guide/local-programs.md");
    let example = include_str!("../examples/record.c");
    assert!(guide.contains(&format!("```c\n{example}```\n")), "examples/record.c has changed");
}

#[test]
fn a_c_program_writes_and_changes_names_in_each_way() {
    let dir = tempfile::tempdir().unwrap();
    install(dir.path());
    let program = compile("tests/writes.c", dir.path(), false);
    let server = FakeServer::start();
    let mut run = Command::new(&program);
    run.env("LD_LIBRARY_PATH", dir.path().join("lib")).arg(&server.path);
    let said = String::from_utf8(successful(&mut run).stdout).unwrap();
    assert_eq!(
        said,
        "written 7\nsynced 0\npublished 0\n\
         busy 1\nbad 1\ntoo much 1\nrecorded 5\nnull 1\n\
         bad 1\nnull 1\nmissing 1\nroom 256\n"
    );
    assert_eq!(*server.control.written.lock().unwrap(), b"abcdefghijklmno");
    let expected = [
        "Sync 0",
        "Publish 7",
        "Publish 9",
        "Record",
        "Remove { title: \"/a\" }",
        "MakeDirectory { directory: \"/d\" }",
        "RemoveDirectory { directory: \"/d\" }",
        "Rename { from: \"/a\", to: \"/b\", replace: Nothing }",
        "SetModified { name: \"/b\", modified: 5 }",
    ];
    assert_eq!(*server.control.changes.lock().unwrap(), expected);
}

fn sum_of_title() -> u64 {
    (0..TITLE_LEN).map(|offset| u64::from(byte(0, offset))).sum()
}

#[test]
fn a_c_program_reads_a_title_in_each_way_with_both_libraries() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path();
    install(prefix);
    let sum = sum_of_title();
    let expected = format!(
        "title {TITLE_LEN} {TITLE_RATE}\nstat 0\n\
         name a {TITLE_LEN}\nname b {TITLE_LEN}\nname c {TITLE_LEN}\nlist 7\n\
         copy {TITLE_LEN} {sum}\nwait {sum}\ndescriptor {sum}\n\
         reserve 7000000 65536\n\
         no reserve 1: no interval: Invalid argument (os error 22)\n\
         timed 1\nnothing 0\nfull 1\n\
         missing 1: no title has the name /missing: No such file or directory (os error 2)\n\
         null 1\nroom 256\n\
         busy 1\nstream 16000000 3\ntoo much 1\nstreamed {}\nbehind 1\n",
        sum - (0..3).map(|offset| u64::from(byte(0, offset))).sum::<u64>()
    );
    for is_static in [false, true] {
        let program = compile("tests/program.c", prefix, is_static);
        let server = FakeServer::start();
        let mut run = Command::new(&program);
        run.env("LD_LIBRARY_PATH", prefix.join("lib")).arg(&server.path);
        let said = String::from_utf8(successful(&mut run).stdout).unwrap();
        assert_eq!(said, expected);
    }
}

#[test]
fn the_header_is_valid_for_cpp_as_well() {
    let include = Path::new(CRATE).join("include");
    let mut compile = Command::new("cc");
    compile.args(["-x", "c++", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-I"]);
    successful(compile.arg(&include).arg(include.join("tactus.h")));
}
