//! Builds a title in memory out of standard input, durable after each megabyte.

use std::io::Read;

use tactus_client::{Client, Replace};

/// The memory grows by so many bytes.
const STEP: usize = 1 << 20;

fn main() -> std::io::Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [socket, title] = &arguments[..] else {
        eprintln!("usage: build SOCKET TITLE");
        std::process::exit(2);
    };
    build(socket, title, std::io::stdin().lock())
}

pub(crate) fn build(socket: &str, title: &str, mut input: impl Read) -> std::io::Result<()> {
    let client = Client::connect(socket)?;
    let mut writer = client.create_in_memory(title, Replace::Titles)?;
    let mut len = 0;
    loop {
        if len == writer.len() as u64 {
            // All bytes so far are final; they outlive a crash from here on.
            writer.sync(len)?;
            writer.grow(len + STEP as u64)?;
        }
        let from = (len - writer.written_back()) as usize;
        match input.read(&mut writer.bytes_mut()[from..])? {
            0 => break,
            more => len += more as u64,
        }
    }
    writer.publish(len)?;
    Ok(())
}
