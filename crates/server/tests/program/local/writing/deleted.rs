//! Files of titles that were replaced or deleted: when the server lets go of them.

use tactus_client::{BitRate, Nanos, RecordingOptions, StreamOptions, now};

use super::*;

/// 10 MB/s: the title takes a fifth of a second.
const RATE: BitRate = BitRate(80_000_000);

/// The server looks each second, and closes a file within two. The rest is for a busy machine.
const CLOSED_WITHIN: Duration = Duration::from_secs(15);

impl Site {
    fn wait_until_no_file_is_left(&self) {
        let until = Instant::now() + CLOSED_WITHIN;
        while !self.left().is_empty() {
            assert!(Instant::now() < until, "{:?} are left", self.left());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The part of the arena that is promised.
    fn promised_memory(&self) -> f64 {
        self.metric("tactus_promised_ratio{resource=\"memory\",volume=\"/\"}")
    }

    /// Has two viewers at once make a title hot, and waits until they have left it in memory, as
    /// one of so many.
    fn heat(&self, client: &Client, path: &str, hot: u32) {
        let before = self.promised_memory();
        let title = client.open(path).expect("a title");
        let options = StreamOptions { rate: Some(RATE), ..StreamOptions::default() };
        let streams = [(); 2].map(|()| client.stream(&title, &options).expect("room"));
        for mut stream in streams {
            while !stream.is_at_end() {
                let len = stream.wait(None).expect("bytes").len();
                stream.consume(len);
            }
        }
        let until = Instant::now() + PATIENCE;
        // What is read into memory has a place among the streams.
        while self.metric("tactus_streams") > f64::from(hot) {
            assert!(Instant::now() < until, "a stream is left");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(self.promised_memory() > before, "{path} is hot");
    }
}

#[test]
fn the_file_of_a_title_that_is_gone_is_closed_when_it_has_no_reader() {
    let _turn = turn();
    let site = serve_writers();
    let client = site.connect();
    let bytes = content(2_000_003, 0);
    for path in ["/hot.bin", "/replaced.bin", "/mapped.bin", "/timed.bin", "/read.bin"] {
        site.store(&client, path, &bytes).expect("a title");
        assert!(site.get(path).1.as_bytes() == bytes, "its blocks are in memory");
    }
    site.heat(&client, "/hot.bin", 1);
    site.heat(&client, "/replaced.bin", 2);
    let mapped = client.open("/mapped.bin").expect("a title");
    assert!(mapped.map().expect("memory")[..] == bytes[..]);
    drop(mapped);
    let timed = client.open("/timed.bin").expect("a title");
    let mut buffer = client.buffer(1000).expect("room");
    buffer.fill(0);
    let when = now() + Nanos::from_millis(1);
    client.submit(tactus_client::ReadRequest::new(&timed, 5, buffer).at(when)).expect("room");
    let completion = client.wait(None).expect("a server").expect("a read");
    assert_eq!(completion.bytes(), Ok(&bytes[5..1005]));
    drop((completion, timed));
    let mut recording = client.record("/live.bin", &RecordingOptions::new(RATE)).expect("room");
    recording.write_all(&bytes).expect("room");
    assert_eq!(recording.finish(), Ok(bytes.len() as u64));
    assert!(site.get("/live.bin").1.as_bytes() == bytes);

    // One has a reader, which reads on.
    let reader = client.open("/read.bin").expect("a title");
    let other = content(1_000_001, 1);
    site.store(&client, "/replaced.bin", &other).expect("another version");
    for path in ["/hot.bin", "/mapped.bin", "/timed.bin", "/live.bin", "/read.bin"] {
        client.remove(path).expect("a title");
    }
    let mut copy = vec![0; bytes.len()];
    assert_eq!(reader.read_at(0, &mut copy), Ok(bytes.len()));
    assert!(copy == bytes);
    assert!(!site.left().is_empty(), "the reader's file is open");
    drop(reader);
    site.wait_until_no_file_is_left();
    assert!(site.get("/replaced.bin").1.as_bytes() == other);
    client.remove("/replaced.bin").expect("a title");
    site.wait_until_no_file_is_left();
}
