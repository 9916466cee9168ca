//! Writes a title to standard output, at the rate at which it plays.

use std::io::{self, Write};

use tactus_client::{Client, StreamOptions};

fn main() -> io::Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [socket, title] = &arguments[..] else {
        eprintln!("usage: play SOCKET TITLE");
        std::process::exit(2);
    };
    play(socket, title, &mut io::stdout())
}

pub(crate) fn play(socket: &str, title: &str, out: &mut impl Write) -> io::Result<()> {
    let client = Client::connect(socket)?;
    let title = client.open(title)?;
    let mut stream = client.stream(&title, &StreamOptions::default())?;
    while !stream.is_at_end() {
        let chunk = stream.wait(None)?;
        out.write_all(chunk)?;
        let len = chunk.len();
        stream.consume(len);
    }
    Ok(())
}
