//! EBML: the elements of Matroska and WebM (RFC 8794; RFC 9559).
//!
//! Promise: an element's header is read from any bytes without a failure; it never descends by
//! itself.

use tactus_core::units::MediaTime;

/// The header of an element.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) id: u32,
    /// Bytes of the header.
    pub(crate) len: usize,
    /// Bytes of its content; `None` if the writer did not know them.
    pub(crate) size: Option<u64>,
}

/// Why there is no header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// It continues behind the bytes.
    Cut,
    /// These are no element.
    Invalid,
}

/// The longest header: four bytes of identifier and eight of size.
pub(crate) const HEADER_MAX: usize = 12;

/// Identifiers, with their length markers.
pub(crate) mod id {
    pub(crate) const EBML: u32 = 0x1a45_dfa3;
    pub(crate) const SEGMENT: u32 = 0x1853_8067;
    pub(crate) const SEEK_HEAD: u32 = 0x114d_9b74;
    pub(crate) const SEEK: u32 = 0x4dbb;
    pub(crate) const SEEK_ID: u32 = 0x53ab;
    pub(crate) const SEEK_POSITION: u32 = 0x53ac;
    pub(crate) const INFO: u32 = 0x1549_a966;
    pub(crate) const TIMESTAMP_SCALE: u32 = 0x2a_d7b1;
    pub(crate) const DURATION: u32 = 0x4489;
    pub(crate) const TRACKS: u32 = 0x1654_ae6b;
    pub(crate) const TRACK_ENTRY: u32 = 0xae;
    pub(crate) const TRACK_NUMBER: u32 = 0xd7;
    pub(crate) const TRACK_TYPE: u32 = 0x83;
    pub(crate) const CLUSTER: u32 = 0x1f43_b675;
    pub(crate) const TIMESTAMP: u32 = 0xe7;
    pub(crate) const SIMPLE_BLOCK: u32 = 0xa3;
    pub(crate) const BLOCK_GROUP: u32 = 0xa0;
    pub(crate) const BLOCK: u32 = 0xa1;
    pub(crate) const CUES: u32 = 0x1c53_bb6b;
    pub(crate) const CUE_POINT: u32 = 0xbb;
    pub(crate) const CUE_TIME: u32 = 0xb3;
    pub(crate) const CUE_TRACK_POSITIONS: u32 = 0xb7;
    pub(crate) const CUE_CLUSTER_POSITION: u32 = 0xf1;
    pub(crate) const CUE_RELATIVE_POSITION: u32 = 0xf0;
}

/// The header at the start of `bytes`.
pub(crate) fn header(bytes: &[u8]) -> Result<Header, Fault> {
    let id_len = length(bytes, 4)?;
    let id = bytes.get(..id_len).ok_or(Fault::Cut)?;
    let id = id.iter().fold(0, |id, &byte| id << 8 | u32::from(byte));
    let (size, size_len) = number(&bytes[id_len..])?;
    Ok(Header { id, len: id_len + size_len, size })
}

/// A number with its length marker, and its length; `None` if all its bits are ones.
pub(crate) fn number(bytes: &[u8]) -> Result<(Option<u64>, usize), Fault> {
    let len = length(bytes, 8)?;
    let bytes = bytes.get(..len).ok_or(Fault::Cut)?;
    let most = (1u64 << (7 * len)) - 1;
    let value = unsigned(bytes) & most;
    Ok((Some(value).filter(|&value| value < most), len))
}

/// The value of a field without a sign.
pub(crate) fn unsigned(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

/// The value of a floating-point field in thousandths, rounded up; `None` if it is no duration.
pub(crate) fn float_milli(bytes: &[u8]) -> Option<u64> {
    let value = match *bytes {
        [a, b, c, d] => f64::from(f32::from_be_bytes([a, b, c, d])),
        [a, b, c, d, e, f, g, h] => f64::from_be_bytes([a, b, c, d, e, f, g, h]),
        _ => return None,
    };
    let milli = (value * 1000.0).ceil();
    (1.0..1e18).contains(&milli).then_some(milli as u64)
}

/// Ticks of `scale` nanoseconds in ticks of 27 MHz, rounded down.
pub(crate) fn time(ticks: u64, scale: u64) -> MediaTime {
    let ticks = u128::from(ticks) * u128::from(scale) * 27 / 1000;
    MediaTime(u64::try_from(ticks).unwrap_or(u64::MAX))
}

/// The length that the first byte states.
fn length(bytes: &[u8], most: usize) -> Result<usize, Fault> {
    let len = bytes.first().ok_or(Fault::Cut)?.leading_zeros() as usize + 1;
    if len <= most { Ok(len) } else { Err(Fault::Invalid) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_rfc_8794_writes_them() {
        let read = |bytes: &[u8]| header(bytes);
        let is = |id, len, size| Ok(Header { id, len, size });
        assert_eq!(read(b"\xa3\x42\x10rest"), is(id::SIMPLE_BLOCK, 3, Some(0x210)));
        assert_eq!(read(b"\x1f\x43\xb6\x75\xff"), is(id::CLUSTER, 5, None));
        let unknown = b"\x18\x53\x80\x67\x01\xff\xff\xff\xff\xff\xff\xff";
        assert_eq!(read(unknown), is(id::SEGMENT, HEADER_MAX, None));
        let long = b"\x18\x53\x80\x67\x01\x00\x00\x00\x00\x00\x00\x05";
        assert_eq!(read(long), is(id::SEGMENT, HEADER_MAX, Some(5)));
        for cut in 0..long.len() {
            assert_eq!(read(&long[..cut]), Err(Fault::Cut));
        }
        assert_eq!(read(b"\x00\x00"), Err(Fault::Invalid));
        assert_eq!(read(b"\x08\x00\x00\x00\x00\x81"), Err(Fault::Invalid));
        assert_eq!(read(b"\xa3\x00\x00"), Err(Fault::Invalid));
    }

    #[test]
    fn durations_are_positive_numbers() {
        assert_eq!(float_milli(&1.5f32.to_be_bytes()), Some(1500));
        assert_eq!(float_milli(&12_345.678_5f64.to_be_bytes()), Some(12_345_679));
        for bad in [f64::NAN, f64::INFINITY, -1.0, 0.0, 1e300] {
            assert_eq!(float_milli(&bad.to_be_bytes()), None);
        }
        assert_eq!(float_milli(b"123"), None);
    }
}
