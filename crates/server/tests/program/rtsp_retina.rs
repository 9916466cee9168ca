//! retina, a client of RTSP in Rust, plays movies and transport streams, over UDP and in the
//! connection.
//!
//! Promise: every video frame and every audio frame of a movie is, byte for byte, what the file
//! has; of a transport stream, which it does not take apart, every packet is.

use std::fs::{self, File};
use std::time::{Duration, Instant};

use crate::media_server::{TestServer, Titles};
use futures::{Stream, StreamExt};
use retina::client::{
    PacketItem, PlayOptions, Playing, Session, SessionOptions, SetupOptions, Transport,
};
use retina::codec::{CodecItem, FrameFormat};
use tactus_core::units::Nanos;
use tactus_media::movie::Movie;

/// Nothing more comes, also on a machine that has no time.
const QUIET: Duration = Duration::from_secs(20);
/// How often a receiver may lose datagrams itself: retina asks for no more room than the kernel
/// gives to all.
const TRIES: usize = 5;

fn transports() -> [(&'static str, Transport); 2] {
    [("udp", Transport::Udp(Default::default())), ("tcp", Transport::Tcp(Default::default()))]
}

/// What is heard of `title`, until all of it has come; again as long as the receiver itself has
/// lost some.
async fn heard<T: PartialEq>(
    title: &str,
    all: &T,
    hear: impl AsyncFn(Transport) -> T,
    wrong: impl Fn(&T) -> String,
) {
    for (name, transport) in transports() {
        for nth in 1.. {
            let before = overruns();
            let came = hear(transport.clone()).await;
            if came == *all {
                break;
            }
            let is_own_fault = overruns() > before && nth < TRIES;
            assert!(is_own_fault, "{title}, {name}: {}", wrong(&came));
        }
    }
}

/// Datagrams that sockets here have had no room for.
fn overruns() -> u64 {
    let text = fs::read_to_string("/proc/net/snmp").expect("it is Linux");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (names, values) = lines.next().zip(lines.next()).expect("it counts datagrams");
    let mut both = names.split(' ').zip(values.split(' '));
    let (_, value) = both.find(|(name, _)| *name == "RcvbufErrors").expect("it counts them");
    value.parse().expect("a number")
}

/// Plays all of `url`, as soon as the server knows it.
async fn playing(url: &str, transport: Transport) -> Session<Playing> {
    let end = Instant::now() + QUIET;
    loop {
        match play(url, &transport).await {
            Ok(session) => return session,
            // Its index is being made.
            Err(error) if error.to_string().contains("503") && Instant::now() < end => {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            Err(error) => panic!("{url}: {error}"),
        }
    }
}

async fn play(url: &str, transport: &Transport) -> Result<Session<Playing>, retina::Error> {
    let url = url.parse().expect("a URL");
    let mut session = Session::describe(url, SessionOptions::default()).await?;
    for nth in 0..session.streams().len() {
        let options = SetupOptions::default().transport(transport.clone());
        session.setup(nth, options.frame_format(FrameFormat::MP4)).await?;
    }
    session.play(PlayOptions::default()).await
}

/// What comes next, if anything comes.
async fn next<T>(
    session: &mut (impl Stream<Item = Result<T, retina::Error>> + Unpin),
) -> Option<T> {
    let item = tokio::time::timeout(QUIET, session.next()).await.ok()??;
    item.inspect_err(|error| println!("{error}")).ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_frame_of_video_and_audio_of_a_movie_is_as_in_the_file() {
    let server = TestServer::new("");
    is_as_in_the_file(&server, "movie.mp4", &Titles::get().movie).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_video_frames_by_h265_too() {
    let server = TestServer::new("");
    let bytes = server.add_hevc();
    is_as_in_the_file(&server, "hevc.mp4", &bytes).await;
}

async fn is_as_in_the_file(server: &TestServer, title: &str, bytes: &[u8]) {
    let file = server.titles().join(title);
    let movie = Movie::read(&File::open(file).expect("a movie")).expect("it can be sent");
    // The first audio frame primes its decoder: the movie's edit leaves it out.
    let begin = movie.begin(Nanos::ZERO);
    let samples = [0, 1].map(|track: usize| -> Vec<Vec<u8>> {
        let samples = movie.tracks[track].samples().iter().skip(begin.first[track] as usize);
        samples.map(|own| bytes[own.at as usize..][..own.len as usize].to_vec()).collect()
    });
    let counts = samples.each_ref().map(Vec::len);
    let url = format!("rtsp://{}/{title}", server.rtsp);
    let hear = async |transport: Transport| {
        let mut session = playing(&url, transport).await.demuxed().expect("it knows these");
        let mut came = [vec![], vec![]];
        while came.each_ref().map(Vec::len) != counts
            && let Some(item) = next(&mut session).await
        {
            match item {
                CodecItem::VideoFrame(frame) => came[0].push(frame.into_data()),
                CodecItem::AudioFrame(frame) => came[1].push(frame.data().to_vec()),
                _ => {}
            }
        }
        came
    };
    heard(title, &samples, hear, |came| {
        let same = |track: usize| {
            let pairs = came[track].iter().zip(&samples[track]);
            pairs.take_while(|(one, other)| one == other).count()
        };
        let came = came.each_ref().map(Vec::len);
        format!("{came:?} of {counts:?}, the first {} and {} the same", same(0), same(1))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_packet_of_a_transport_stream_is_as_in_the_file() {
    let server = TestServer::new("");
    let titles = Titles::get();
    for (title, bytes) in
        [("even-short.ts", &titles.even_short), ("film-short.ts", &titles.film_short)]
    {
        let url = format!("rtsp://{}/{title}", server.rtsp);
        let hear = async |transport: Transport| {
            let mut session = playing(&url, transport).await;
            let mut came = vec![];
            while came.len() < bytes.len()
                && let Some(item) = next(&mut session).await
            {
                if let PacketItem::Rtp(packet) = item {
                    came.extend_from_slice(packet.payload());
                }
            }
            came
        };
        heard(title, bytes, hear, |came| format!("{} of {} bytes", came.len(), bytes.len())).await;
    }
}
