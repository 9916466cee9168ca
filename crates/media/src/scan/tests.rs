//! Scans of pieces of any length, and of damaged titles.

use std::path::Path;
use std::process::Command;

use super::*;

/// The bytes of a title of each kind.
fn titles(dir: &Path) -> Vec<(MediaKind, Vec<u8>)> {
    let made = |name: &str, options: &[&str]| {
        let path = dir.join(name);
        let made = Command::new("ffmpeg")
            .args(["-v", "error", "-y", "-f", "lavfi", "-i", "testsrc=s=128x96:r=25:d=5"])
            .args(["-f", "lavfi", "-i", "sine=r=48000:d=5"])
            .args(options)
            .arg(&path)
            .status();
        assert!(made.expect("ffmpeg is missing: install the package ffmpeg").success());
        std::fs::read(path).unwrap()
    };
    let matroska = MediaKind::Matroska;
    vec![
        (matroska, made("a.mkv", &["-g", "10", "-cluster_time_limit", "500"])),
        (matroska, made("b.mkv", &["-f", "matroska", "-live", "1", "-cluster_time_limit", "500"])),
        (MediaKind::Mp3 { is_constant: false }, made("c.mp3", &["-vn", "-q:a", "3"])),
        (MediaKind::Flac, made("d.flac", &["-vn"])),
        (MediaKind::Ogg, made("e.ogg", &["-vn", "-page_duration", "100000"])),
    ]
}

fn scanned(kind: MediaKind, bytes: &[u8], piece: usize) -> Option<Consumption> {
    let mut scan = Scan::of(kind).unwrap();
    bytes.chunks(piece).for_each(|piece| scan.add(piece));
    assert_eq!(scan.len(), bytes.len() as u64);
    scan.finish()
}

#[test]
fn r06_how_the_bytes_are_cut_makes_no_difference() {
    let dir = tempfile::tempdir().unwrap();
    for (kind, bytes) in titles(dir.path()) {
        let whole = scanned(kind, &bytes, bytes.len()).unwrap();
        assert!(whole.points() > 10, "{kind:?}: {}", whole.points());
        for piece in [1, 7, 100, 4099] {
            assert_eq!(scanned(kind, &bytes, piece).as_ref(), Some(&whole), "{kind:?} by {piece}");
        }
    }
}

#[test]
fn r06_damage_costs_what_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    for (kind, bytes) in titles(dir.path()) {
        let whole = scanned(kind, &bytes, bytes.len()).unwrap();
        let mut damaged = bytes.clone();
        let middle = bytes.len() / 2;
        damaged[middle..middle + 300].fill(0);
        let found = scanned(kind, &damaged, 4099).unwrap();
        assert!(found.duration() <= whole.duration(), "{kind:?}");
        // A part of a second of sound, or a cluster.
        let least = whole.points() * 3 / 4;
        assert!(found.points() >= least, "{kind:?}: {} of {}", found.points(), whole.points());
        // A title that is cut off ends there.
        let half = scanned(kind, &bytes[..middle], 4099).unwrap();
        assert!(half.len().0 <= middle as u64 && half.points() >= whole.points() / 4, "{kind:?}");
        for at in (0..bytes.len()).step_by(bytes.len() / 50 + 1) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0xff;
            // Whatever it is, it ends.
            drop(scanned(kind, &damaged, 65_536));
        }
    }
}

#[test]
fn r06_streams_of_ogg_one_after_the_other_are_one_title() {
    let dir = tempfile::tempdir().unwrap();
    let (_, ogg) = titles(dir.path()).pop().unwrap();
    let once = scanned(MediaKind::Ogg, &ogg, ogg.len()).unwrap();
    let twice = scanned(MediaKind::Ogg, &[&ogg[..], &ogg].concat(), 4099).unwrap();
    assert_eq!(twice.len().0, 2 * ogg.len() as u64);
    assert!(
        twice.duration().0 > once.duration().0 * 2,
        "the second one begins where the first ends"
    );
}
