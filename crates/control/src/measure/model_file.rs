//! The disk model's file: `.tactus/disk-model.toml` inside the volume.
//!
//! Promise: a written model reads back as the same model. The file states the device, kernel and
//! day of the measurement, so that people can judge whether it still applies. It appears whole or
//! not at all. The tables of times are for people; only `[model]`, `[uploads]` and `probes` are
//! read back.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use tactus_core::disk_model::DiskModel;
use tactus_core::units::{Nanos, SECOND};
use tactus_notation::units::{Value, exact};

use super::profile::{Profile, Seek, Service};

/// The contents that are read back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModelFile {
    /// The device that was measured.
    pub device: String,
    /// When it was measured, as text.
    pub measured: String,
    /// The disk's model.
    pub model: DiskModel,
    /// Whether the disk is probed in idle time, too, to correct the model.
    pub probes: bool,
}

/// Upper bound of a time: hundreds of times the need of the slowest disk, and short enough that no
/// sum of a cycle's visits overflows.
const TIME_MAX: Nanos = Nanos(10 * SECOND.0);

/// The version of the format that is written.
const VERSION: u32 = 1;

#[derive(Serialize)]
struct ModelRecord {
    version: u32,
    measured: String,
    tactus: &'static str,
    device: String,
    device_model: Option<String>,
    device_size: Option<String>,
    kernel: String,
    file_system: String,
    scratch: String,
    model: WrittenModel,
    uploads: WrittenUploads,
    service: Vec<WrittenService>,
    seek: Vec<WrittenSeek>,
}

#[derive(Serialize)]
struct WrittenModel {
    visit: String,
    sweep: String,
    read_mib: String,
    write_mib: String,
    depth: u32,
}

/// Apart from the model, because versions before uploads refuse unknown keys.
#[derive(Serialize)]
struct WrittenUploads {
    flush: String,
}

#[derive(Serialize)]
struct WrittenService {
    kind: &'static str,
    size: String,
    depth: u32,
    p50: String,
    p99: String,
    rate: String,
}

#[derive(Serialize)]
struct WrittenSeek {
    distance: String,
    time: String,
}

#[derive(Deserialize)]
struct Read {
    version: u32,
    measured: String,
    device: String,
    /// Never written: an operator adds it.
    probes: Option<bool>,
    model: ReadModel,
    /// Files of versions before uploads lack it.
    uploads: Option<ReadUploads>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadModel {
    visit: Value<Nanos>,
    sweep: Value<Nanos>,
    read_mib: Value<Nanos>,
    write_mib: Value<Nanos>,
    depth: u32,
}

#[derive(Deserialize)]
struct ReadUploads {
    flush: Value<Nanos>,
}

/// Reads a model.
///
/// # Errors
/// `NotFound` when there is no file; `InvalidData`, with advice, when it is not a model file.
pub fn read(path: &Path) -> io::Result<ModelFile> {
    parse(path, &fs::read_to_string(path)?)
}

/// Reads a model from `text`, the content of the file at `path`.
///
/// # Errors
/// `InvalidData`, with advice, when it is not a model file.
pub fn parse(path: &Path, text: &str) -> io::Result<ModelFile> {
    let wrong = |what: String| {
        let message =
            format!("{}: {what}; run `tactus measure` again, or delete the file", path.display());
        io::Error::new(io::ErrorKind::InvalidData, message)
    };
    let file: Read = toml::from_str(text).map_err(|error| wrong(error.message().to_owned()))?;
    if file.version != VERSION {
        return Err(wrong(format!(
            "it has version {}, this program reads {VERSION}",
            file.version
        )));
    }
    let unmeasured = match file.model.sweep.0 {
        Nanos(0) => DiskModel::FLASH_FLUSH,
        _ => DiskModel::ARM_FLUSH,
    };
    let model = DiskModel {
        visit: file.model.visit.0,
        sweep: file.model.sweep.0,
        read_mib: file.model.read_mib.0,
        write_mib: file.model.write_mib.0,
        depth: file.model.depth,
        flush: file.uploads.map_or(unmeasured, |uploads| uploads.flush.0),
    };
    if model.depth == 0 || model.read_mib == Nanos(0) {
        return Err(wrong("depth and read_mib are never zero".into()));
    }
    let times = [model.visit, model.sweep, model.read_mib, model.write_mib];
    if times.iter().any(|&time| time > TIME_MAX) {
        return Err(wrong(format!("no disk takes more than {TIME_MAX} for one thing")));
    }
    let probes = file.probes.unwrap_or(true);
    Ok(ModelFile { device: file.device, measured: file.measured, model, probes })
}

/// Writes the measured profile.
///
/// # Errors
/// When the volume cannot be written to.
pub fn write(path: &Path, profile: &Profile) -> io::Result<()> {
    let text = text_of(profile)?;
    let dir = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(dir)?;
    let new = path.with_extension("toml.new");
    let mut file = fs::File::create(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    fs::File::open(dir)?.sync_all()
}

fn text_of(profile: &Profile) -> io::Result<String> {
    let model = profile.model;
    let service = |s: &Service| WrittenService {
        kind: if s.writes { "write" } else { "read" },
        size: exact(s.size),
        depth: s.depth,
        p50: shown(s.p50),
        p99: shown(s.p99),
        rate: s.rate.to_string(),
    };
    let seek = |s: &Seek| WrittenSeek {
        distance: format!("{} %", f64::from(s.distance_thousandths) / 10.0),
        time: shown(s.time),
    };
    let written = ModelRecord {
        version: VERSION,
        measured: profile.measured.clone(),
        tactus: env!("CARGO_PKG_VERSION"),
        device: profile.device_name().to_owned(),
        device_model: profile.device.as_ref().and_then(|device| device.model.clone()),
        device_size: profile.device.as_ref().map(|device| device.size.to_string()),
        kernel: profile.kernel.clone(),
        file_system: profile.file_system.clone(),
        scratch: exact(profile.scratch),
        model: WrittenModel {
            visit: exact(model.visit),
            sweep: exact(model.sweep),
            read_mib: exact(model.read_mib),
            write_mib: exact(model.write_mib),
            depth: model.depth,
        },
        uploads: WrittenUploads { flush: exact(model.flush) },
        service: profile.services.iter().map(service).collect(),
        seek: profile.seeks.iter().map(seek).collect(),
    };
    let text = toml::to_string(&written).map_err(io::Error::other)?;
    Ok(format!("{HEAD}{text}"))
}

const HEAD: &str = "\
# Written by `tactus measure`, read at each start. Only [model] and [uploads] matter: a sweep over n
# places takes n * visit + sqrt(n) * sweep, and read_mib for each MiB;
# a flush takes at most flush. Measure again after a change of
# disk, file system or kernel. `probes = false` before the tables: no reads in idle time.

";

/// Whole microseconds, for people.
fn shown(time: Nanos) -> String {
    Nanos(time.0 / 1000 * 1000).to_string()
}

#[cfg(test)]
mod tests {
    use tactus_core::units::{BitRate, Bytes, KIB, MIB};

    use super::*;

    fn profile() -> Profile {
        let service = Service {
            writes: false,
            size: Bytes(256 * KIB),
            depth: 8,
            p50: Nanos(123_456),
            p99: Nanos(1_234_567),
            rate: BitRate(8_000_000_000),
        };
        Profile {
            model: DiskModel {
                visit: Nanos(56_789),
                sweep: Nanos(0),
                read_mib: Nanos(400_001),
                write_mib: Nanos(900_000),
                depth: 8,
                flush: Nanos(2_345_678),
            },
            measured: "Sat, 21 Nov 2026 21:00:00 GMT".into(),
            device: None,
            kernel: "6.18".into(),
            file_system: "ext4".into(),
            scratch: Bytes(64 * MIB),
            services: vec![service, Service { writes: true, ..service }],
            seeks: vec![Seek { distance_thousandths: 125, time: Nanos(7_000_000) }],
        }
    }

    #[test]
    fn a_model_round_trips() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(".tactus/disk-model.toml");
        write(&path, &profile()).unwrap();
        let read = read(&path).unwrap();
        assert_eq!((read.model, read.device.as_str()), (profile().model, "unknown"));
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("visit = \"56.789 us\"") && text.contains("12.5 %"), "{text}");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_from_before_flushes_were_measured_is_read_with_a_cautious_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.toml");
        write(&path, &profile()).unwrap();
        let written = fs::read_to_string(&path).unwrap();
        let before = written.replacen("[uploads]\nflush = \"2345.678 us\"\n", "", 1);
        assert_ne!(before, written, "{written}");
        fs::write(&path, &before).unwrap();
        assert_eq!(read(&path).unwrap().model.flush, DiskModel::FLASH_FLUSH);
        fs::write(&path, before.replacen("sweep = \"0 ns\"", "sweep = \"24 ms\"", 1)).unwrap();
        assert_eq!(read(&path).unwrap().model.flush, DiskModel::ARM_FLUSH);
    }

    #[test]
    fn r11_a_disk_is_probed_unless_its_model_file_forbids_it() {
        let path = Path::new("m.toml");
        let written = text_of(&profile()).unwrap();
        assert!(parse(path, &written).unwrap().probes);
        for probes in [false, true] {
            let text = format!("probes = {probes}\n{written}");
            assert_eq!(parse(path, &text).unwrap().probes, probes);
        }
        let error = parse(path, &format!("probes = \"off\"\n{written}")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_file_that_is_not_a_model_says_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.toml");
        assert_eq!(read(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        write(&path, &profile()).unwrap();
        let good = fs::read_to_string(&path).unwrap();
        for (from, to) in [
            ("version = 1", "version = 9"),
            ("depth = 8\n\n", "depth = 0\n\n"),
            ("visit = \"56.789 us\"", "visit = 56"),
            ("visit = \"56.789 us\"", "visit = \"5000000 h\""),
            ("\n[model]\n", "\n[mode]\n"),
        ] {
            assert!(good.contains(from), "{from:?}");
            fs::write(&path, good.replacen(from, to, 1)).unwrap();
            let error = read(&path).expect_err(to);
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{to}");
            assert!(error.to_string().contains("run `tactus measure` again"), "{error}");
        }
    }
}
