//! The server itself, as a process, with transport streams of a constant rate and of a variable
//! one, and a movie.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{MutexGuard, OnceLock};

use tactus_core::units::{Nanos, SECOND};
use tactus_media::sample;
use tactus_testkit::process::{Process, turn};
use tactus_testkit::server::keep_state;
use tactus_testkit::{DISK_MODEL, server};

use crate::TACTUS;

/// How long both titles are.
pub(crate) const SECONDS: u64 = 24;
/// The short ones, for programs that repeat: two of the sample's turns, and no more of the other.
const SHORT_TURNS: u64 = 2;
/// How long the movie is, at least.
pub(crate) const MOVIE_SECONDS: u64 = 16;

/// A film of a variable rate, with a video frame that needs no other every 0.48 s.
const FILM: &str = "-f lavfi -i testsrc2=size=640x360:rate=25 -f lavfi -i sine=sample_rate=48000 \
    -c:v libx264 -preset veryfast -pix_fmt yuv420p -g 12 -keyint_min 12 -sc_threshold 0 -bf 2 \
    -flags:v +cgop -crf 26 -maxrate 3M -bufsize 1M -c:a mp2 -b:a 128k -f mpegts -pcr_period 20";

/// A movie by H.265, with video frames out of order.
const HEVC: &str = "-f lavfi -i testsrc2=size=320x180:rate=25 -f lavfi -i sine=sample_rate=48000 \
    -c:v libx265 -preset ultrafast -tag:v hvc1 -b:v 400k -pix_fmt yuv420p \
    -x265-params log-level=none:keyint=25:bframes=3 -c:a aac -b:a 96k";

/// A running server of `/even.ts` and `/film.ts`, and short ones of both. One at a time: it pins
/// its cores.
pub(crate) struct TestServer {
    _process: Process,
    pub(crate) rtsp: SocketAddr,
    /// The same by IPv6.
    pub(crate) rtsp_six: SocketAddr,
    pub(crate) http: SocketAddr,
    dir: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

/// Players bind the port of a group on all addresses, and servers of other processes send to theirs
/// at the same time: each process has its own groups and port.
fn own_number() -> u16 {
    (std::process::id() % 2000) as u16
}

/// The port of all groups.
pub(crate) fn group_port() -> u16 {
    15204 + 8 * own_number()
}

impl TestServer {
    pub(crate) fn new(more: &str) -> Self {
        Self::by(&|program| Command::new(program), more)
    }

    /// One that is started by what `command` makes of its program, in a network of its own for
    /// instance.
    pub(crate) fn by(command: &dyn Fn(&str) -> Command, more: &str) -> Self {
        let turn = turn();
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
        let titles = dir.path().join("titles");
        fs::create_dir_all(titles.join(".tactus")).expect("a directory for titles");
        fs::write(titles.join(".tactus/disk-model.toml"), DISK_MODEL).expect("a model");
        for (name, bytes) in Titles::get().all() {
            fs::write(titles.join(name), bytes).expect("a title");
        }
        let own = own_number();
        let group = format!("239.192.{}.{}/29", own / 32, own % 32 * 8);
        let port = group_port();
        let text = format!(
            "[http]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"off\"\non_http = true\n\
             [memory]\narena = \"32 MiB\"\n\
             [rtsp]\naddress = [\"127.0.0.1:0\", \"[::1]:0\"]\ngroups = [\"{group}\"]\n\
             interface = \"lo\"\ngroup_port = {port}\nrecorders = \"anyone\"\n\
             [[volume]]\npath = \"{}\"\n{more}",
            titles.display()
        );
        token(&dir.path().join("token"));
        let config = dir.path().join("tactus.toml");
        fs::write(&config, text).expect("a configuration");
        let mut command = command(TACTUS);
        keep_state(&mut command, dir.path()).args(["serve", "--config"]).arg(&config);
        let (process, said) = server::start(&mut command, None, server::until("Metrics"), drop);
        let addresses = |scheme: &str| {
            let all = said.iter().filter_map(|line| line.split_once(scheme));
            let all = all.filter_map(|(_, rest)| rest.split('/').next());
            all.map(|text| text.parse().expect("an address")).collect::<Vec<SocketAddr>>()
        };
        let [rtsp, rtsp_six] = addresses("rtsp://")[..] else { panic!("{said:?}") };
        let http = addresses("http://")[0];
        Self { _process: process, rtsp, rtsp_six, http, dir, _turn: turn }
    }

    /// Where its titles are.
    pub(crate) fn titles(&self) -> PathBuf {
        self.dir.path().join("titles")
    }

    /// Adds a movie by H.265 to the titles: `/hevc.mp4`.
    pub(crate) fn add_hevc(&self) -> Vec<u8> {
        made(HEVC, self.titles().join("hevc.mp4"), MOVIE_SECONDS)
    }

    /// A place for what was received.
    pub(crate) fn out(&self) -> &Path {
        self.dir.path()
    }
}

/// What uploads and changes say to be let in, in a server that takes them.
pub(crate) const TOKEN: &str = "a-test-may-change-this-server";

/// For a principal whose `token_file` is this one; nobody else may read it.
fn token(file: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::write(file, TOKEN).expect("a token");
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).expect("a file of ours");
}

/// The titles' bytes, made once.
pub(crate) struct Titles {
    pub(crate) even: Vec<u8>,
    pub(crate) film: Vec<u8>,
    pub(crate) even_short: Vec<u8>,
    pub(crate) film_short: Vec<u8>,
    /// Video frames by H.264, audio by AAC, in an MP4.
    pub(crate) movie: Vec<u8>,
}

impl Titles {
    pub(crate) fn get() -> &'static Self {
        static TITLES: OnceLock<Titles> = OnceLock::new();
        TITLES.get_or_init(|| {
            let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
            let even = |length| {
                let file = dir.path().join("even.ts");
                sample::write_ts(&file, length).expect("a title");
                fs::read(file).expect("a title")
            };
            let movie = dir.path().join("movie.mp4");
            sample::write_mp4(&movie, SECOND.times(MOVIE_SECONDS)).expect("a movie");
            let short = Nanos(SECOND.0 * SHORT_TURNS * 12 / 10);
            Self {
                even: even(SECOND.times(SECONDS)),
                film: film(dir.path().join("film.ts"), SECONDS),
                even_short: even(short),
                film_short: film(dir.path().join("short.ts"), 3),
                movie: fs::read(movie).expect("a movie"),
            }
        })
    }

    fn all(&self) -> [(&'static str, &[u8]); 5] {
        [
            ("even.ts", &self.even),
            ("film.ts", &self.film),
            ("even-short.ts", &self.even_short),
            ("film-short.ts", &self.film_short),
            ("movie.mp4", &self.movie),
        ]
    }
}

fn film(file: PathBuf, seconds: u64) -> Vec<u8> {
    made(FILM, file, seconds)
}

/// Encodes by `parameters` once for all processes of tests; later ones copy the result.
fn made(parameters: &str, file: PathBuf, seconds: u64) -> Vec<u8> {
    let mut name = DefaultHasher::new();
    (parameters, seconds).hash(&mut name);
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("film-{:016x}", name.finish()));
    if !kept.exists() {
        let mut make = Command::new("ffmpeg");
        make.args(["-nostdin", "-v", "error", "-y"]).args(parameters.split_whitespace());
        let made = make.args(["-t", &seconds.to_string()]).arg(&file).status();
        let made = made.expect("ffmpeg is installed (package ffmpeg)");
        assert!(made.success(), "ffmpeg makes a film");
        fs::rename(&file, &kept).expect("both are below the same directory");
    }
    fs::copy(&kept, &file).expect("a film");
    fs::read(file).expect("a film")
}
