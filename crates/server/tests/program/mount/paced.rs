//! Reads at the titles' own rates.

use std::io::Read;
use std::os::unix::fs::FileExt;

use tactus_core::units::SECOND;
use tactus_media::sample;

use super::numbers::{ECONNABORTED, ENOTCONN};
use super::*;

#[test]
fn a_paced_read_is_no_faster_than_the_title() {
    let served = Served::new();
    let path = served.titles.join("sample.ts");
    sample::write_ts(&path, SECOND.times(6)).expect("a title");
    let bytes = fs::read(&path).expect("a title");
    let mounted = served.mount(&["--paced"]);
    let read = &|size: usize| {
        let begun = Instant::now();
        let mut file = open(&mounted.path("sample.ts"));
        let mut got = vec![0; bytes.len() / 2];
        for part in got.chunks_mut(size) {
            file.read_exact(part).expect("bytes");
        }
        assert!(got == bytes[..bytes.len() / 2]);
        // Half of six seconds, of which one came at once.
        assert!(begun.elapsed() >= Duration::from_millis(1_990), "{:?}", begun.elapsed());
    };
    std::thread::scope(|scope| {
        for size in [bytes.len() / 2, 10_000] {
            scope.spawn(move || read(size));
        }
    });
    // A place anywhere in the title, and a mapping of it.
    let file = open(&mounted.path("sample.ts"));
    let mut got = [0; 1000];
    file.read_exact_at(&mut got, 1_000_000).expect("bytes");
    assert!(got == bytes[1_000_000..][..1000]);
    script("cmp -n 1000000 $1 $2", &[&mounted.path("sample.ts"), &path]);
}

#[test]
fn paced_readers_delay_no_other_and_end_with_the_mount() {
    let served = Served::new();
    let path = served.titles.join("long.ts");
    sample::write_ts(&path, SECOND.times(40)).expect("a title");
    let len = fs::metadata(&path).expect("a title").len() as usize;
    let other = served.title("no-rate.bin", 3_000_000);
    let mut mounted = served.mount(&["--paced"]);
    std::thread::scope(|scope| {
        // More readers than the mount has threads.
        let readers: Vec<_> = (0..12)
            .map(|_| {
                let mut file = open(&mounted.path("long.ts"));
                scope.spawn(move || errno(file.read_exact(&mut vec![0; len])))
            })
            .collect();
        // What has no rate has no pace. If it had to wait for the others they would end well.
        assert!(fs::read(mounted.path("no-rate.bin")).expect("bytes") == other);
        mounted.signal(Signal::TERM);
        for reader in readers {
            // By whether the read was under way.
            let number = reader.join().expect("a reader");
            assert!([Some(ENOTCONN), Some(ECONNABORTED)].contains(&number), "{number:?}");
        }
    });
    assert_eq!((mounted.ended(), mounted.is_mounted()), (Some(0), false));
}
