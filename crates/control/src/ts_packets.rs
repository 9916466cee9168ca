//! Finds the transport packets of a title: plain ones, those of M2TS (192 bytes) and of DVB-ASI
//! (204 bytes).

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use tactus_core::ts::Framing;
use tactus_core::units::KIB;
use tactus_storage::catalogue::OpenTitle;

/// Search range of the first packet.
const REACH: u64 = 64 * KIB;

/// The packets of a title.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TsPackets {
    /// The range of complete packets, each with its arrival time or parity.
    pub bytes: Range<u64>,
    /// Their framing.
    pub framing: Framing,
}

/// The range of complete packets in `title`.
///
/// # Errors
/// Why it cannot be sent, as a sentence.
pub async fn find(title: &Arc<OpenTitle>) -> Result<TsPackets, String> {
    let title = Arc::clone(title);
    // A blocking thread: the disk may hang.
    let found = tokio::task::spawn_blocking(move || look(&title)).await;
    found.map_err(|_| "cannot read the properties of the title".to_owned())?
}

fn look(title: &OpenTitle) -> Result<TsPackets, String> {
    let unreadable = |error: std::io::Error| format!("the title cannot be read: {error}");
    // Reopened: the title's own handle may use direct I/O, which needs aligned memory.
    let file = File::from(tactus_sys::file::reopen(&title.file).map_err(unreadable)?);
    let len = title.len.0.min(REACH);
    let mut head = vec![0; len as usize];
    file.read_exact_at(&mut head, 0).map_err(unreadable)?;
    whole_packets(&head, title.len.0)
}

fn whole_packets(head: &[u8], len: u64) -> Result<TsPackets, String> {
    let framing = Framing::find(head, head.len()).ok_or(
        "the title is not an MPEG transport stream; only transport streams can be sent as \
            datagrams",
    )?;
    let (first, _) = framing.packets(head).next().ok_or(
        "the title contains no complete transport \
        packet",
    )?;
    let (first, lead, stride) = (first as u64, framing.lead() as u64, framing.stride as u64);
    // A first packet without its whole arrival time is left out.
    let start = first.checked_sub(lead).unwrap_or(first + stride - lead);
    let count = (len - start) / stride;
    Ok(TsPackets { bytes: start..start + count * stride, framing })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packets(count: usize, stride: usize) -> Vec<u8> {
        (0..count * stride).map(|at| if at % stride == 0 { 0x47 } else { 0 }).collect()
    }

    #[test]
    fn r10_packets_have_their_arrival_times_in_front_or_parity_behind() {
        let found = |bytes: &[u8]| whole_packets(bytes, bytes.len() as u64).unwrap();
        let m2ts = |bytes| TsPackets { bytes, framing: Framing { stride: 192 } };
        let whole = [&[9; 4][..], &packets(10, 192)[..1916]].concat();
        assert_eq!(found(&whole), m2ts(0..1920));
        assert_eq!(found(&whole[2..]), m2ts(190..1918), "the first arrival time is cut");
        assert_eq!(found(&whole[..1919]), m2ts(0..1728), "the last packet is cut");
        let parity = packets(10, 204);
        let framing = Framing { stride: 204 };
        assert_eq!(found(&parity), TsPackets { bytes: 0..2040, framing });
        assert_eq!(found(&parity[..2039]), TsPackets { bytes: 0..1836, framing });
    }

    #[test]
    fn what_is_in_front_and_a_packet_that_is_cut_are_left_out() {
        let bytes = [&[1, 2, 3][..], &packets(10, 188), &[0x47, 1]].concat();
        let plain = |bytes| Ok(TsPackets { bytes, framing: Framing::PLAIN });
        assert_eq!(whole_packets(&bytes, bytes.len() as u64), plain(3..1883));
        assert_eq!(whole_packets(&bytes, 1_000_000), plain(3..3 + 999_972));
        assert!(whole_packets(b"nothing", 7).unwrap_err().contains("not an MPEG transport stream"));
    }
}
