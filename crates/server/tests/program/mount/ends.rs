//! How mounts end, and what their readers get when something has ended.

use std::os::unix::fs::FileExt;

use rustix::fs::XattrFlags;
use rustix::process::{WaitOptions, waitpid};
use tactus_client::{Client, Replace};

use super::numbers::{ENOTCONN, EOPNOTSUPP};
use super::*;

const LEN: usize = 3_000_000;

fn unmount(mounted: &Mounted) {
    let mut command = Command::new(installed("umount", "mount"));
    let output = command.arg(&mounted.place).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Stops the server. Returns when none of its threads runs any more, which may be a while after
/// the signal.
fn stop(served: &Served) {
    let pid = Pid::from_child(&served.process.0);
    kill_process(pid, Signal::STOP).expect("it runs");
    let state = waitpid(Some(pid), WaitOptions::UNTRACED).expect("a child");
    assert!(state.is_some_and(|(_, state)| state.stopped()), "{state:?}");
}

#[test]
fn a_mount_ends_by_umount_fusermount_and_signals() {
    let served = Served::new();
    served.title("one.ts", LEN);
    let mut mounted = served.mount(&[]);
    unmount(&mounted);
    assert_eq!((mounted.ended(), mounted.is_mounted()), (Some(0), false));
    let mut mounted = served.mount(&[]);
    script("fusermount3 -u $1", &[&mounted.place]);
    assert_eq!((mounted.ended(), mounted.is_mounted()), (Some(0), false));
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut mounted = served.mount(&[]);
        mounted.signal(signal);
        assert_eq!((mounted.ended(), mounted.is_mounted()), (Some(0), false), "{signal:?}");
    }
    // In use: umount refuses, a signal ends it, and its reader gets an error.
    let mut mounted = served.mount(&["--no-passthrough"]);
    let file = open(&mounted.path("one.ts"));
    let refused = Command::new("umount").arg(&mounted.place).output().expect("it runs");
    assert!(!refused.status.success() && mounted.is_mounted());
    mounted.signal(Signal::TERM);
    assert_eq!((mounted.ended(), mounted.is_mounted()), (Some(0), false));
    assert_eq!(errno(file.read_at(&mut [0; 10], 0)), Some(ENOTCONN));
}

#[test]
fn a_mount_in_the_background_is_usable_when_the_command_returns() {
    let served = Served::new();
    let bytes = served.title("one.ts", LEN);
    let said = served.command(&["--background"]).output().expect("it runs");
    let place = served.dir.path().join("mount");
    assert!(said.status.success(), "{said:?}");
    assert!(fs::read(place.join("one.ts")).expect("bytes") == bytes);
    script("fusermount3 -u $1", &[&place]);
    assert!(!place.join("one.ts").exists());

    let refused = served.command(&["--background", "--path", "/none"]).output().expect("it runs");
    let text = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{text}");
    assert!(text.contains("/none"), "{text}");
}

#[test]
fn m01_a_server_that_has_been_killed_is_an_error_number_until_it_is_back() {
    let mut served = Served::new();
    let bytes = served.title("films/one.ts", LEN);
    let mut mounted = served.mount(&["--no-passthrough", "-o", "attr_timeout=0,entry_timeout=0"]);
    let path = mounted.path("films/one.ts");
    let file = open(&path);
    let mut got = vec![0; 1000];
    file.read_exact_at(&mut got, 0).expect("bytes");
    served.kill();
    let begun = Instant::now();
    assert_eq!(errno(fs::metadata(&path)), Some(ENOTCONN));
    assert_eq!(errno(File::open(&path)), Some(ENOTCONN));
    assert_eq!(errno(fs::read_dir(mounted.path("films"))), Some(ENOTCONN));
    // Not what the kernel has read before.
    assert_eq!(errno(file.read_at(&mut got, 2_500_000)), Some(ENOTCONN));
    assert!(begun.elapsed() < Duration::from_secs(30));
    assert!(mounted.said().contains("the server has gone"), "{}", mounted.said());

    served.start();
    wait_until("it is not back", || fs::metadata(&path).is_ok());
    assert!(fs::read(&path).expect("bytes") == bytes);
    file.read_exact_at(&mut got, 2_600_000).expect("the file that was opened before");
    assert!(got == bytes[2_600_000..][..1000]);
    assert!(mounted.said().contains("the server is back"), "{}", mounted.said());

    drop(file);
    served.kill();
    unmount(&mounted);
    assert_eq!((mounted.ended(), mounted.is_mounted()), (Some(0), false));
}

#[test]
fn m01_a_server_that_is_stopped_is_an_error_number_within_30_seconds() {
    let mut served = Served::new();
    served.title("one.ts", LEN);
    served.title("two.ts", LEN);
    let options = ["--no-passthrough", "-o", "rw,attr_timeout=0,entry_timeout=0"];
    let mut mounted = served.mount(&options);
    let file = open(&mounted.path("one.ts"));
    let flushed = create(&mounted.path("flushed.ts"));
    flushed.write_all_at(b"before", 0).expect("room");
    flushed.sync_all().expect("a flush");
    let [synced, closed] = ["synced.ts", "closed.ts"].map(|name| create(&mounted.path(name)));
    synced.write_all_at(b"bytes", 0).expect("room");
    closed.write_all_at(b"bytes", 0).expect("room");
    stop(&served);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                assert_eq!(errno(fs::metadata(mounted.path("two.ts"))), Some(ENOTCONN));
            });
        }
        scope.spawn(|| assert!(file.read_at(&mut [0; 4096], 1_000_000).is_err()));
        // Once the server knows its name, a file is flushed without it.
        scope.spawn(move || {
            flushed.write_all_at(b" and meanwhile", 6).expect("room");
            flushed.sync_all().expect("a flush");
            drop(flushed);
        });
        scope.spawn(move || assert_eq!(errno(synced.sync_all()), Some(ENOTCONN)));
        scope.spawn(move || drop(closed));
    });
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    drop(file);
    unmount(&mounted);
    assert_eq!((mounted.ended(), mounted.is_mounted()), (Some(0), false));
    served.kill();
    served.start();
    wait_until("its name", || get(&served, "flushed.ts").is_some());
    assert_eq!(get(&served, "flushed.ts").as_deref(), Some(&b"before and meanwhile"[..]));
    assert_eq!((get(&served, "synced.ts"), get(&served, "closed.ts")), (None, None));
}

#[test]
fn m01_a_mount_whose_process_was_killed_is_an_error_number_and_can_be_taken_down() {
    let served = Served::new();
    served.title("one.ts", LEN);
    let mut mounted = served.mount(&["--no-passthrough"]);
    let file = open(&mounted.path("one.ts"));
    mounted.process.kill();
    assert_eq!(errno(file.read_at(&mut [0; 4096], 1_000_000)), Some(ENOTCONN));
    assert_eq!(errno(fs::metadata(mounted.path("one.ts"))), Some(ENOTCONN));
    let refused = served.command(&[]).output().expect("it runs");
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(text.contains("umount"), "{text}");
    drop(file);
    script("fusermount3 -u $1", &[&mounted.place]);
    assert!(!mounted.is_mounted());
    assert!(mounted.ended().is_none(), "a signal has ended it");
}

#[test]
fn files_that_the_kernel_reads_go_on_without_the_server() {
    let mut served = Served::new();
    let bytes = served.title("one.ts", LEN);
    let mounted = served.mount(&[]);
    let file = open(&mounted.path("one.ts"));
    served.kill();
    // Not what a read ahead could have brought.
    let mut got = vec![0; 1000];
    let read = file.read_exact_at(&mut got, 2_500_000);
    // Linux 6.9 passes reads through; an older kernel asks the mount.
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    let mut numbers = release.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) if (major, minor) >= (6, 9) => {
            read.expect("bytes");
            assert!(got == bytes[2_500_000..][..1000]);
        }
        _ => assert_eq!(errno(read), Some(ENOTCONN)),
    }
    assert_eq!(errno(File::open(mounted.path("one.ts"))), Some(ENOTCONN));
}

#[test]
fn a_mount_without_its_server_or_its_directory_says_so() {
    let mut served = Served::new();
    let place = served.dir.path().join("mount");
    let refused = |served: &Served, options: &[&str]| {
        let output = served.command(options).output().expect("it runs");
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).expect("text")
    };
    served.title("one.ts", 10);
    assert!(refused(&served, &["--path", "/one.ts"]).contains("/one.ts cannot be mounted"));
    served.kill();
    assert!(refused(&served, &[]).contains("[local] path"));
    fs::remove_dir(&place).expect("a directory");
    fs::write(&place, "").expect("a file");
    assert!(refused(&served, &[]).contains("is not a directory"));
}

#[test]
fn l05_a_program_that_describes_its_file_itself_is_not_believed_after_a_kill() {
    let mut served = Served::new();
    let mounted = served.mount(RW);
    let others = served.title("others/one.ts", LEN);
    // The mount passes no attributes on.
    let file = create(&mounted.path("mounted.ts"));
    let set = |file: &File, name: &str, value: &str| {
        rustix::fs::fsetxattr(file, name, value.as_bytes(), XattrFlags::empty())
    };
    let refused = set(&file, "user.tactus.path", "others/one.ts").map_err(Into::into);
    assert_eq!(errno(refused), Some(EOPNOTSUPP));
    file.write_all_at(b"by the mount", 0).expect("room");
    file.sync_all().expect("a flush");
    // A program of the server's own user has a descriptor that can.
    let client = Client::connect(served.socket()).expect("a connection");
    let new = client.working_file("/own.ts", Replace::Titles).expect("a file");
    new.working.grow(100).expect("room");
    new.write.write_all_at(b"by the library", 0).expect("room");
    set(&new.write, "user.tactus.path", "others/one.ts").expect("an attribute");
    new.working.sync(None).expect("a flush");
    set(&new.write, "user.tactus.path", "../../outside.ts").expect("an attribute");
    served.kill();
    served.start();
    for (name, bytes) in [("mounted.ts", &b"by the mount"[..]), ("own.ts", b"by the library")] {
        wait_until("its name", || get(&served, name).is_some());
        assert_eq!(get(&served, name).as_deref(), Some(bytes));
    }
    assert!(get(&served, "others/one.ts") == Some(others));
    assert!(!served.dir.path().join("outside.ts").exists());
    let working = served.titles.join(".tactus/working");
    wait_until("nothing is left", || fs::read_dir(&working).expect("it").next().is_none());
    drop(file);
}
