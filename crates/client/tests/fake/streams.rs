//! Streams and recordings of the fake server: all bytes of a stream come at once.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tactus_client::memory::{self, Mapping};
use tactus_client::protocol::Reply;
use tactus_core::local::stream::{BYTES, CLOSED, END, OVERRUNS, StreamEnd, TAKEN, WRITTEN};
use tactus_ring::shared::{
    ByteReader, ByteRingLayout, ByteWriter, SharedBytes, SharedMemory, SharedWord, Words,
};

use super::{Control, ROOM, TITLE_LEN, TITLE_RATE, byte};

/// A stream that is complete from the beginning, and its memory.
pub(super) fn begin(handle: u32, first: u64, rate: Option<u64>) -> (Reply, Option<OwnedFd>) {
    if first >= TITLE_LEN {
        return (Reply::Error { errno: 22, message: "behind the end".to_owned() }, None);
    }
    if rate == Some(1) {
        let message = "no room for a stream of 1 bit/s".to_owned();
        return (Reply::Error { errno: 16, message }, None);
    }
    let bytes: Vec<u8> = (first..TITLE_LEN).map(|offset| byte(handle, offset)).collect();
    let capacity = bytes.len().next_multiple_of(4096);
    let len = BYTES + capacity;
    let file = memory::create(len).unwrap();
    let mapping: Arc<dyn SharedMemory> = Arc::new(Mapping::new(file.as_fd(), len).unwrap());
    let end = SharedWord::new(Words::new(Arc::clone(&mapping)), END);
    let layout = ByteRingLayout { written: WRITTEN, taken: TAKEN, bytes: BYTES, capacity };
    assert_eq!(ByteWriter::new(mapping, layout).write(&[&bytes]), Ok(bytes.len()));
    end.store(StreamEnd::Complete.encode());
    let rate = rate.unwrap_or(TITLE_RATE);
    (Reply::Stream { stream: 7, memory: len as u64, rate }, Some(file))
}

/// A recording whose bytes are taken every millisecond, unless requests are held, and its memory.
pub(super) fn record(control: &Arc<Control>) -> (Reply, Option<OwnedFd>) {
    let len = BYTES + ROOM;
    let file = memory::create(len).unwrap();
    let mapping: Arc<dyn SharedMemory> = Arc::new(Mapping::new(file.as_fd(), len).unwrap());
    let words = Words::new(Arc::clone(&mapping));
    let layout = ByteRingLayout { written: WRITTEN, taken: TAKEN, bytes: BYTES, capacity: ROOM };
    let mut ring = ByteReader::new(words.clone(), layout);
    let word = |at| SharedWord::new(words.clone(), at);
    let (closed, end, overruns) = (word(CLOSED), word(END), word(OVERRUNS));
    let bytes = SharedBytes::new(mapping, BYTES);
    let control = Arc::clone(control);
    std::thread::spawn(move || {
        let ring_doorbell = || {
            if let Some(doorbell) = &*control.doorbell.lock().unwrap() {
                // A client that has gone needs none.
                rustix::io::write(doorbell, &[1]).ok();
            }
        };
        while !control.stop.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
            let errno = control.write_error.load(Ordering::SeqCst);
            let is_closed = closed.load() != 0;
            if errno != 0 {
                end.store(StreamEnd::Failed(errno).encode());
                return ring_doorbell();
            }
            if control.is_held.load(Ordering::SeqCst) {
                continue;
            }
            overruns.store(overruns.load() + u64::from(ring.look() == Ok(ROOM as u64)));
            let (at, count) = ring.next();
            let mut taken = vec![0; count];
            bytes.copy_out(at as u64, &mut taken);
            control.written.lock().unwrap().extend(&taken);
            ring.consume(count as u64);
            if is_closed && ring.seen() == 0 {
                control.changes.lock().unwrap().push("Record".to_owned());
                end.store(StreamEnd::Complete.encode());
                return ring_doorbell();
            }
            if count > 0 {
                ring_doorbell();
            }
        }
    });
    (Reply::Recording { recording: 9, memory: len as u64 }, Some(file))
}
