//! Movies by RTSP, as elementary streams, played by others.

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tactus::catalogue::{Catalogue, CatalogueRules};
use tactus::config::{Auto, Config};
use tactus::engine::{self, Engine};
use tactus::media::movie::Movie;
use tactus::media::{probe, sample};
use tactus::rtsp::Rtsp;
use tactus_core::units::{Bytes, MIB, SECOND};

/// Longer than anything takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// One server at a time: each pins its cores.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

struct Stage {
    engine: Engine,
    rtsp: Rtsp,
    url: String,
    movie: Movie,
    file: PathBuf,
    dir: tempfile::TempDir,
}

async fn stage(seconds: u64) -> Stage {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    let file = dir.path().join("movie.mp4");
    sample::write_mp4(&file, SECOND.times(seconds)).expect("a movie");
    let movie = Movie::read(&File::open(&file).expect("a movie")).expect("it can be sent");
    let mut config = Config::unconfigured();
    config.serve_only(dir.path());
    config.memory.arena = Auto::Set(Bytes(32 * MIB));
    let rules = CatalogueRules { probe: probe::probe, ..CatalogueRules::default() };
    let catalogue = Arc::new(Catalogue::new(dir.path(), rules).expect("a volume"));
    let engine = engine::start(&config).expect("the engine starts");
    let rtsp = Rtsp::new(&config.rtsp, &catalogue, &engine.broker).expect("it has no passwords");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("rtsp://{}/movie.mp4", listener.local_addr().expect("bound"));
    tokio::spawn(rtsp.clone().serve(listener));
    Stage { engine, rtsp, url, movie, file, dir }
}

impl Stage {
    /// How many samples of each track come from `wish` on.
    fn expected(&self, wish: u64) -> [usize; 2] {
        let begin = self.movie.begin(SECOND.times(wish));
        [0, 1].map(|nth| self.movie.tracks[nth].samples().len() - begin.first[nth] as usize)
    }

    /// Waits until no stream is promised any more.
    async fn peace(&self) {
        let end = Instant::now() + PATIENCE;
        while self.engine.broker.streams() > 0 {
            assert!(Instant::now() < end, "{:?}", self.rtsp.all());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// What a program says; it has to end well.
fn said(program: &str, package: &str, terms: &[&str]) -> String {
    let out = Command::new("timeout").args(["120", program]).args(terms).output();
    let out = out.unwrap_or_else(|_| panic!("{program} is missing: install the package {package}"));
    assert!(out.status.success(), "{program}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("text")
}

#[tokio::test(flavor = "multi_thread")]
async fn ffprobe_gets_every_picture_and_every_frame_of_sound_to_the_goodbye() {
    let _turn = TURN.lock().await;
    let stage = stage(8).await;
    let terms = [
        &["-v", "error", "-rtsp_transport", "udp", "-count_packets", "-of", "csv=p=0"][..],
        &["-show_entries", "stream=codec_name,nb_read_packets", &stage.url],
    ];
    let terms = terms.concat();
    let told = tokio::task::block_in_place(|| said("ffprobe", "ffmpeg", &terms));
    let [pictures, sound] = stage.expected(0);
    assert!(told.contains(&format!("h264,{pictures}")), "{told}");
    assert!(told.contains(&format!("aac,{sound}")), "{told}");
    stage.peace().await;
    assert_eq!(stage.engine.counters.packets.refused.value(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn ffmpeg_seeks_and_decodes_what_the_file_has_from_there_on() {
    let _turn = TURN.lock().await;
    let stage = stage(9).await;
    let sums = |from: &[&str], input: &str| {
        let terms = [
            from,
            &["-i", input, "-map", "0:v:0", "-fps_mode", "passthrough", "-f", "framemd5", "-"],
        ]
        .concat();
        let terms = [&["-v", "error", "-nostdin"], &terms[..]].concat();
        let told = tokio::task::block_in_place(|| said("ffmpeg", "ffmpeg", &terms));
        let lines = told.lines().filter(|line| !line.starts_with('#'));
        lines
            .filter_map(|line| Some(line.rsplit_once(',')?.1.trim().to_owned()))
            .collect::<Vec<_>>()
    };
    let whole = sums(&[], &stage.file.display().to_string());
    let came = sums(&["-rtsp_transport", "udp", "-ss", "5"], &stage.url);
    // ffmpeg leaves out what comes before the second asked for.
    assert!(
        (whole.len() / 3..whole.len() / 2).contains(&came.len()),
        "{} of {}",
        came.len(),
        whole.len()
    );
    // Of the first one, where the seek begins, it does not know the time yet, and keeps it.
    assert!(whole.ends_with(&came[1..]), "every picture to the end, as in the file");
    assert!(whole.contains(&came[0]));
    stage.peace().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gstreamer_plays_to_the_end() {
    let _turn = TURN.lock().await;
    let stage = stage(5).await;
    let out = stage.dir.path().join("pictures.h264");
    let pipeline = format!(
        "-q rtspsrc location={} protocols=udp ! rtph264depay ! \
         video/x-h264,stream-format=byte-stream,alignment=au ! filesink location={}",
        stage.url,
        out.display()
    );
    let words: Vec<_> = pipeline.split_whitespace().collect();
    tokio::task::block_in_place(|| said("gst-launch-1.0", "gstreamer1.0-tools", &words));
    let file = out.display().to_string();
    let terms = [
        "-v",
        "error",
        "-count_packets",
        "-of",
        "csv=p=0",
        "-show_entries",
        "stream=nb_read_packets",
        &file,
    ];
    let told = tokio::task::block_in_place(|| said("ffprobe", "ffmpeg", &terms));
    let came: usize = told.trim().parse().expect("a number");
    let [pictures, _] = stage.expected(0);
    // The last one is only complete when something follows it.
    assert!((pictures - 1..=pictures).contains(&came), "{came} of {pictures}");
    stage.peace().await;
}
