//! Detects lost, duplicated and reordered packets by the continuity counters (ISO/IEC 13818-1,
//! 2.4.3.3; TR 101 290, 1.4).
//!
//! Promise: every discontinuity that the standard does not permit is counted once, at the packet
//! that shows it. One duplicate and a signalled discontinuity are permitted.

use super::{Packet, Pid};
use alloc::boxed::Box;
use alloc::vec;

/// A continuity error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContinuityFault {
    /// The PID.
    pub pid: Pid,
    /// The expected count.
    pub due: u8,
    /// The received count.
    pub found: u8,
}

/// The counters of one stream.
#[derive(Clone, Debug)]
pub struct Continuity {
    /// By PID: `None` before the first packet, then the last count and whether it was repeated.
    last: Box<[Option<LastPacket>]>,
    faults: u64,
}

#[derive(Clone, Copy, Debug)]
struct LastPacket {
    count: u8,
    repeated: bool,
}

impl Default for Continuity {
    fn default() -> Self {
        Self { last: vec![None; Pid::COUNT].into_boxed_slice(), faults: 0 }
    }
}

impl Continuity {
    /// Takes the stream's next packet; returns the error that it shows.
    pub fn handle_packet(&mut self, packet: &Packet<'_>) -> Option<ContinuityFault> {
        let (pid, found) = (packet.pid(), packet.continuity());
        if pid == Pid::NULL {
            return None;
        }
        let slot = &mut self.last[usize::from(pid.0)];
        let fresh = LastPacket { count: found, repeated: false };
        let Some(last) = slot.filter(|_| !packet.is_discontinuous()) else {
            *slot = Some(fresh);
            return None;
        };
        let next = last.count.wrapping_add(1) & 0x0f;
        let (due, now) = match packet.has_payload() {
            // A packet may be repeated once.
            true if found == last.count && !last.repeated => {
                (found, LastPacket { repeated: true, ..last })
            }
            true => (next, fresh),
            // The counter does not advance without payload.
            false => (last.count, LastPacket { count: found, ..last }),
        };
        *slot = Some(now);
        if found == due {
            return None;
        }
        self.faults += 1;
        Some(ContinuityFault { pid, due, found })
    }

    /// Errors so far.
    pub fn faults(&self) -> u64 {
        self.faults
    }
}

#[cfg(test)]
mod tests {
    use super::super::packet::tests::packet;
    use super::*;

    fn faults(packets: &[[u8; 188]]) -> u64 {
        let mut watch = Continuity::default();
        for bytes in packets {
            watch.handle_packet(&Packet::read(bytes).unwrap());
        }
        watch.faults()
    }

    fn without_payload(count: u8) -> [u8; 188] {
        let mut bytes = packet(256, count, None);
        bytes[3] = 0x20 | count;
        bytes[4..6].copy_from_slice(&[183, 0]);
        bytes
    }

    #[test]
    fn counters_run_on_for_each_pid_by_itself() {
        let both: alloc::vec::Vec<_> =
            (0..40u8).flat_map(|n| [packet(256, n, None), packet(257, n / 2, None)]).collect();
        assert_eq!(faults(&both), 0, "257 repeats each packet once, which is allowed");
    }

    #[test]
    fn a_lost_packet_is_one_fault() {
        assert_eq!(faults(&[packet(256, 3, None), packet(256, 5, None), packet(256, 6, None)]), 1);
    }

    #[test]
    fn a_third_copy_is_a_fault() {
        assert_eq!(faults(&[packet(256, 3, None); 2]), 0);
        assert_eq!(faults(&[packet(256, 3, None); 3]), 1);
    }

    #[test]
    fn null_packets_and_announced_breaks_are_no_faults() {
        assert_eq!(faults(&[packet(0x1fff, 1, None), packet(0x1fff, 7, None)]), 0);
        let mut jump = packet(256, 9, None);
        jump[3] |= 0x20;
        jump[4..6].copy_from_slice(&[1, 0x80]);
        assert_eq!(faults(&[packet(256, 3, None), jump, packet(256, 10, None)]), 0);
    }

    #[test]
    fn packets_without_payload_do_not_count() {
        assert_eq!(faults(&[packet(256, 3, None), without_payload(3), packet(256, 4, None)]), 0);
        assert_eq!(faults(&[packet(256, 3, None), without_payload(4), packet(256, 5, None)]), 1);
    }
}
