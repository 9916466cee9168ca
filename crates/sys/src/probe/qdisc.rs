//! The queueing discipline at each interface's root (rtnetlink(7), RTM_GETQDISC).
//!
//! Promise: an answer that does not parse is an error, not a guess.

use std::collections::BTreeMap;
use std::io;

use netlink_packet_core::NlasIterator;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcHandle, TcHeader, TcMessage, TcStatsQueue};

use crate::netlink::{Extent, Netlink, Outcome, attributes, malformed};

/// One at a root.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Root {
    pub(super) kind: String,
    /// Packets that it and the disciplines below it have dropped since it was made; counted in 32
    /// bits.
    pub(super) dropped: u32,
}

/// Within `TCA_STATS2`, `struct gnet_stats_queue` (linux/gen_stats.h).
const TCA_STATS_QUEUE: u16 = 3;

/// Those of all interfaces, by interface index.
pub(super) fn at_roots() -> io::Result<BTreeMap<u32, Root>> {
    let mut roots = BTreeMap::new();
    let question = RouteNetlinkMessage::GetQueueDiscipline(TcMessage::default());
    let outcome = Netlink::open()?.query(question, Extent::All, |body| {
        roots.extend(root(body)?);
        Ok(())
    })?;
    match outcome {
        Outcome::Complete => Ok(roots),
        Outcome::Refused(errno) => Err(errno.into()),
    }
}

/// The discipline of an answer and its interface's index, if it is at the root.
fn root(body: &[u8]) -> io::Result<Option<(u32, Root)>> {
    let header = TcHeader::parse(body).map_err(malformed)?;
    let (mut kind, mut dropped) = (None, 0);
    for attribute in attributes(body, &header) {
        let attribute = attribute.map_err(malformed)?;
        match attribute.kind() {
            libc::TCA_KIND => {
                let name = attribute.value().split(|byte| *byte == 0).next().unwrap_or_default();
                kind = Some(String::from_utf8_lossy(name).into_owned());
            }
            libc::TCA_STATS2 => dropped = packets_dropped(attribute.value())?,
            _ => {}
        }
    }
    let index = header.index.cast_unsigned();
    let is_root = header.parent == TcHandle::ROOT;
    Ok(kind.filter(|_| is_root).map(|kind| (index, Root { kind, dropped })))
}

fn packets_dropped(statistics: &[u8]) -> io::Result<u32> {
    for part in NlasIterator::new(statistics) {
        let part = part.map_err(malformed)?;
        if part.kind() == TCA_STATS_QUEUE {
            return Ok(TcStatsQueue::parse(part.value()).map_err(malformed)?.drops);
        }
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::{DefaultNla, Emitable};

    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let attribute = DefaultNla::new(kind, value.to_vec());
        let mut bytes = vec![0; attribute.buffer_len()];
        attribute.emit(&mut bytes);
        bytes
    }

    fn discipline(interface: i32, parent: TcHandle, name: &str, dropped: u32) -> Vec<u8> {
        let header = TcHeader { index: interface, parent, ..TcHeader::default() };
        let mut body = vec![0; header.buffer_len()];
        header.emit(&mut body);
        let statistics = [1, 2, dropped, 4, 5].map(u32::to_ne_bytes).concat();
        body.extend(attribute(9, &[7]));
        body.extend(attribute(libc::TCA_KIND, format!("{name}\0").as_bytes()));
        body.extend(attribute(libc::TCA_STATS2, &attribute(TCA_STATS_QUEUE, &statistics)));
        body
    }

    #[test]
    fn a_root_has_its_kind_and_its_drops() {
        let htb = discipline(3, TcHandle::ROOT, "htb", 73);
        assert_eq!(root(&htb).unwrap(), Some((3, Root { kind: "htb".to_owned(), dropped: 73 })));
        let below = discipline(2, TcHandle { major: 1, minor: 0 }, "fq", 5);
        assert_eq!(root(&below).unwrap(), None);
    }

    #[test]
    fn an_answer_that_breaks_off_is_an_error_or_lacks_an_attribute() {
        let whole = discipline(2, TcHandle::ROOT, "mq", 72);
        let complete = root(&whole).unwrap();
        for len in 0..whole.len() {
            assert_ne!(root(&whole[..len]).ok().flatten(), complete, "{len}");
        }
    }

    #[test]
    fn this_machine_answers() {
        at_roots().unwrap();
    }
}
