//! R7: movies in fragments.

use super::*;

/// The sample movie of so many seconds, remuxed into fragments. Returns its duration before.
fn fragmented(file: &Path, seconds: u64, flags: &str) -> f64 {
    let whole = file.with_extension("whole.mp4");
    sample::write_mp4(&whole, SECOND.times(seconds)).expect("a movie");
    let [from, to] = [&whole, file].map(|path| path.to_str().expect("a plain path"));
    let copied = ["-c", "copy", "-movflags", flags, "-y", to];
    said("ffmpeg", "ffmpeg", &[&["-v", "error", "-i", from][..], &copied].concat());
    let movie = Movie::read(&File::open(&whole).expect("a movie")).expect("it can be sent");
    std::fs::remove_file(whole).expect("it was written");
    movie.duration.0 as f64 / 1e9
}

/// The decoded frames of one kind that ffmpeg gets from `input`.
fn frames(map: &str, options: &[&str], input: &str) -> Vec<String> {
    let sums = ["-map", map, "-fps_mode", "passthrough", "-f", "framemd5", "-"];
    let all = [&["-v", "error", "-nostdin"], options, &["-i", input], &sums].concat();
    let told = said("ffmpeg", "ffmpeg", &all);
    let lines = told.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| Some(line.rsplit_once(',')?.1.trim().to_owned())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn r07_fragments_without_a_stated_duration_are_played_whole_and_sought_in() {
    let _turn = TURN.lock().await;
    for flags in ["frag_keyframe+empty_moov", "cmaf+global_sidx"] {
        // Without an edit list ffmpeg writes no delay of decoding: two frames.
        let mut before = 0.0;
        let fixture = stage_of(DISK_MODEL, |file| before = fragmented(file, 3, flags)).await;
        let duration = fixture.movie.duration.0 as f64 / 1e9;
        assert!((duration - before).abs() < 0.1, "{flags}: {duration} of {before}");
        let (answer, _) = Client::new(&fixture).ask("DESCRIBE", &fixture.url, "");
        let range = format!("a=range:npt=0.000-{:.2}", duration - 0.005);
        assert!(answer.contains(&range), "{flags}: {range} in {answer}");

        let file = fixture.file.display().to_string();
        let played = |map: &'static str, options: &'static [&'static str]| {
            let url = fixture.url.clone();
            tokio::task::spawn_blocking(move || frames(map, options, &url))
        };
        let (whole, audio) = (frames("0:v", &[], &file), frames("0:a", &[], &file));
        let (video, came, sought) = (
            played("0:v", &["-rtsp_transport", "tcp"]),
            played("0:a", &["-rtsp_transport", "udp"]),
            played("0:v", &["-rtsp_transport", "udp", "-ss", "2"]),
        );
        assert!(video.await.expect("it ends") == whole, "{flags}: every frame");
        let came = came.await.expect("it ends");
        // The first frames of AAC depend on frames before them.
        let first = audio.len() - came.len();
        assert!(first <= 2 && came[4..] == audio[first..][4..], "{flags}: every sound");
        let sought = sought.await.expect("it ends");
        assert!(whole.ends_with(&sought[1..]), "{flags}: every frame to the end");
        assert!(
            (whole.len() / 5..whole.len() * 3 / 4).contains(&sought.len()),
            "{flags}: {} of {}",
            sought.len(),
            whole.len()
        );
    }
}
