//! How long players take from a request to the first picture of a title at a URL.
//!
//! `cargo run -p tactus-bench --example first_picture -- URL [RUNS]`
//!
//! `ffprobe` reads the duration, `ffmpeg` and `mpv` decode one frame, and Chromium shows one: all
//! but the last include the start of the program. Players that are not installed are left out.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Each command with its arguments before and behind the URL.
const PLAYERS: [(&str, &[&str], &[&str]); 3] = [
    ("ffprobe", &["-v", "error", "-show_entries", "format=duration"], &[]),
    ("ffmpeg", &["-nostdin", "-v", "error", "-i"], &["-frames:v", "1", "-f", "null", "-"]),
    ("mpv", &["--no-config", "--really-quiet", "--vo=null", "--ao=null", "--frames=1"], &[]),
];
/// How long Chromium may take.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().ok_or("usage: first_picture URL [RUNS]")?;
    let runs: usize = arguments.next().map_or(Ok(5), |runs| runs.parse())?;
    for (player, before, behind) in PLAYERS {
        let took = (0..runs).map_while(|_| {
            let mut command = Command::new(player);
            command.args(before).arg(&url).args(behind);
            command.stdin(Stdio::null()).stdout(Stdio::null());
            let begun = Instant::now();
            let is_done = command.status().is_ok_and(|status| status.success());
            is_done.then(|| begun.elapsed())
        });
        print(player, took.collect());
    }
    let took: Result<Vec<_>> = (0..runs).map(|_| chromium(&url)).collect();
    print("chromium", took.unwrap_or_default());
    Ok(())
}

fn print(player: &str, mut took: Vec<Duration>) {
    took.sort();
    match (took.first(), took.get(took.len() / 2), took.last()) {
        (Some(least), Some(median), Some(most)) => {
            println!("{player:9} median {median:.2?}, {least:.2?} to {most:.2?}");
        }
        _ => println!("{player:9} cannot play it, or is not installed"),
    }
}

/// From the beginning of the video element to its first frame, as the page says it.
fn chromium(url: &str) -> Result<Duration> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let page = format!("http://{}/", listener.local_addr()?);
    let (sender, receiver) = channel();
    let html = PAGE.replace("URL", url);
    std::thread::spawn(move || {
        for socket in listener.incoming().map_while(|socket| socket.ok()) {
            // Browsers open connections that they do not use.
            let (html, sender) = (html.clone(), sender.clone());
            std::thread::spawn(move || answer(socket, &html, &sender).ok());
        }
    });
    let profile = std::env::temp_dir().join(format!("first-picture-{}", std::process::id()));
    let mut browser = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--autoplay-policy=no-user-gesture-required"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(page)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let found = receiver.recv_timeout(PATIENCE);
    browser.kill()?;
    browser.wait()?;
    // A helper of the browser may still write there.
    std::fs::remove_dir_all(&profile).unwrap_or_default();
    Ok(Duration::from_millis(found?))
}

/// The page, which asks for `/frame/MILLISECONDS` when it shows a frame.
const PAGE: &str = "<body><script>const video = document.createElement('video'); \
    video.muted = true; const begun = performance.now(); \
    video.requestVideoFrameCallback(() => \
    fetch('/frame/' + Math.round(performance.now() - begun))); \
    video.src = 'URL'; document.body.append(video); video.play()</script>";

fn answer(mut socket: TcpStream, html: &str, sender: &Sender<u64>) -> Result<()> {
    let mut first = String::new();
    BufReader::new(&socket).read_line(&mut first)?;
    let path = first.split(' ').nth(1).unwrap_or_default();
    let html = match path.strip_prefix("/frame/") {
        Some(took) => {
            sender.send(took.parse()?)?;
            ""
        }
        None => html,
    };
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n";
    write!(socket, "{head}Content-Length: {}\r\n\r\n{html}", html.len())?;
    Ok(())
}
