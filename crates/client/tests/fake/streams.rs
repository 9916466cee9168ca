//! Streams of the fake server: all their bytes come at once.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use tactus_client::memory::{self, Mapping};
use tactus_client::protocol::Reply;
use tactus_core::local::stream::{BYTES, END, StreamEnd, TAKEN, WRITTEN};
use tactus_ring::shared::{ByteRingLayout, ByteWriter, SharedMemory, SharedWord, Words};

use super::{TITLE_LEN, TITLE_RATE, byte};

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
