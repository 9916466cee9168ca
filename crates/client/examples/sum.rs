//! Prints the sum of all bytes of a title.

use tactus_client::{Client, ReadRequest, Result};

/// Bytes of one read.
const LEN: usize = 64 << 10;
/// Reads under way at once.
const READS: u64 = 4;

fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [socket, title] = &arguments[..] else {
        eprintln!("usage: sum SOCKET TITLE");
        std::process::exit(2);
    };
    println!("{}", sum(socket, title)?);
    Ok(())
}

pub(crate) fn sum(socket: &str, title: &str) -> Result<u64> {
    let client = Client::connect(socket)?;
    let title = client.open(title)?;
    for nth in 0..READS {
        let buffer = client.buffer(LEN)?;
        client.submit(ReadRequest::new(&title, nth * LEN as u64, buffer))?;
    }
    let mut next = READS * LEN as u64;
    let mut sum = 0;
    while let Some(completion) = client.wait(None)? {
        sum += completion.bytes()?.iter().map(|&byte| u64::from(byte)).sum::<u64>();
        if next < title.len() {
            client.submit(ReadRequest::new(&title, next, completion.buffer))?;
            next += LEN as u64;
        }
    }
    Ok(sum)
}
