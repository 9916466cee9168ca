//! Records standard input as a title, at a rate in Mbit/s.

use std::io::{self, Read};

use tactus_client::{BitRate, Client, RecordingOptions};

fn main() -> io::Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [socket, title, rate] = &arguments[..] else {
        eprintln!("usage: record SOCKET TITLE MBIT");
        std::process::exit(2);
    };
    let rate = rate.parse().map_err(|_| io::Error::other("the rate is no number"))?;
    record(socket, title, rate, io::stdin().lock())
}

pub(crate) fn record(socket: &str, title: &str, rate: u64, mut input: impl Read) -> io::Result<()> {
    let client = Client::connect(socket)?;
    let rate = BitRate(rate * 1_000_000);
    let mut recording = client.record(title, &RecordingOptions::new(rate))?;
    loop {
        // The bytes are read into the ring, where the server takes them.
        let len = input.read(recording.wait(None)?)?;
        if len == 0 {
            break;
        }
        recording.commit(len);
    }
    recording.finish()?;
    Ok(())
}
