//! Writes a title to standard output, so many bytes each hundredth of a second: samples for a
//! device that plays them as they come.

use std::io::{self, Write};

use tactus_client::{Client, Nanos, ReadRequest, ReserveOptions, now};

/// From one moment to the next.
const INTERVAL: Nanos = Nanos::from_millis(10);
/// Reads under way at once.
const READS: u64 = 4;

fn main() -> io::Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [socket, title, bytes] = &arguments[..] else {
        eprintln!("usage: moments SOCKET TITLE BYTES");
        std::process::exit(2);
    };
    let bytes = bytes.parse().map_err(io::Error::other)?;
    write_at_moments(socket, title, bytes, &mut io::stdout())
}

pub(crate) fn write_at_moments(
    socket: &str,
    title: &str,
    bytes: u32,
    out: &mut impl Write,
) -> io::Result<()> {
    let client = Client::connect(socket)?;
    let title = client.open(title)?;
    // In memory, so that a read may be submitted some milliseconds before its moment.
    let _map = title.map()?;
    let options = ReserveOptions { interval: INTERVAL, tolerance: Nanos(0), len: bytes };
    let reserve = title.reserve(&options)?;
    let begin = now() + reserve.ahead(0, bytes) + INTERVAL;
    let moments = title.len().div_ceil(u64::from(bytes));
    for nth in 0..moments + READS {
        if nth >= READS {
            // They come in the order of their moments.
            let completion = client.wait(None)?.expect("reads are under way");
            out.write_all(completion.bytes()?)?;
            out.flush()?;
        }
        if nth < moments {
            let buffer = client.buffer(bytes as usize)?;
            let request = ReadRequest::new(&title, nth * u64::from(bytes), buffer);
            client.submit(request.at(begin + INTERVAL.times(nth)))?;
        }
    }
    Ok(())
}
