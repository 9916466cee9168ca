//! Finds the transport packets of a title.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use tactus_core::ts::{Framing, PACKET};
use tactus_core::units::KIB;
use tactus_storage::catalogue::OpenTitle;

/// Search range of the first packet.
const REACH: u64 = 64 * KIB;

/// The range of complete packets in `title`.
///
/// # Errors
/// Why it cannot be sent, as a sentence.
pub async fn range(title: &Arc<OpenTitle>) -> Result<Range<u64>, String> {
    let title = Arc::clone(title);
    // A blocking thread: the disk may hang.
    let found = tokio::task::spawn_blocking(move || look(&title)).await;
    found.map_err(|_| "cannot read the properties of the title".to_owned())?
}

fn look(title: &OpenTitle) -> Result<Range<u64>, String> {
    let unreadable = |error: std::io::Error| format!("the title cannot be read: {error}");
    // Reopened: the title's own handle may use direct I/O, which needs aligned memory.
    let file = File::from(tactus_sys::file::reopen(&title.file).map_err(unreadable)?);
    let len = title.len.0.min(REACH);
    let mut head = vec![0; len as usize];
    file.read_exact_at(&mut head, 0).map_err(unreadable)?;
    whole_packets(&head, title.len.0)
}

fn whole_packets(head: &[u8], len: u64) -> Result<Range<u64>, String> {
    let framing = Framing::find(head, head.len()).ok_or(
        "the title is not an MPEG transport stream; only transport streams can be sent as \
            datagrams",
    )?;
    if framing.stride != PACKET {
        return Err(format!(
            "the title has packets of {} bytes; only transport streams of {PACKET}-byte packets \
            can be sent",
            framing.stride
        ));
    }
    let (first, _) = framing.packets(head).next().ok_or(
        "the title contains no complete transport \
        packet",
    )?;
    let first = first as u64;
    Ok(first..first + (len - first) / PACKET as u64 * PACKET as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packets(count: usize, stride: usize) -> Vec<u8> {
        (0..count * stride).map(|at| if at % stride == 0 { 0x47 } else { 0 }).collect()
    }

    #[test]
    fn what_is_in_front_and_a_packet_that_is_cut_are_left_out() {
        let bytes = [&[1, 2, 3][..], &packets(10, 188), &[0x47, 1]].concat();
        assert_eq!(whole_packets(&bytes, bytes.len() as u64), Ok(3..1883));
        assert_eq!(whole_packets(&bytes, 1_000_000), Ok(3..3 + 999_972));
        assert!(
            whole_packets(&packets(10, 192), 1920).unwrap_err().contains("packets of 192 bytes")
        );
        assert!(whole_packets(b"nothing", 7).unwrap_err().contains("not an MPEG transport stream"));
    }
}
