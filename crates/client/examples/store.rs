//! Stores standard input as a title.

use std::io::Read;

use tactus_client::{Client, Error, WriteOptions, WriteRequest};

/// Bytes of one write.
const LEN: usize = 64 << 10;
/// Buffers: one is filled while the server takes the others.
const WRITES: usize = 4;

fn main() -> std::io::Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [socket, title] = &arguments[..] else {
        eprintln!("usage: store SOCKET TITLE");
        std::process::exit(2);
    };
    store(socket, title, std::io::stdin().lock())
}

pub(crate) fn store(socket: &str, title: &str, mut input: impl Read) -> std::io::Result<()> {
    let client = Client::connect(socket)?;
    let writer = client.create(title, &WriteOptions::default())?;
    let buffers: Result<Vec<_>, Error> = (0..WRITES).map(|_| client.buffer(LEN)).collect();
    let mut free = buffers?;
    loop {
        let mut buffer = match free.pop() {
            Some(buffer) => buffer,
            None => {
                let completion = client.wait(None)?.expect("all buffers are under way");
                completion.result?;
                completion.buffer
            }
        };
        // Bytes are built where the server takes them.
        let len = input.read(&mut buffer)?;
        if len == 0 {
            break;
        }
        client.submit_write(WriteRequest::new(&writer, buffer).len(len))?;
    }
    // After all that was submitted; a write that has failed fails this, too.
    writer.publish()?;
    Ok(())
}
