//! MPEG transport streams (ISO/IEC 13818-1): packets, clocks, rates, indexes and seamless
//! repetition.
//!
//! Promise: it parses any bytes without a panic and in linear time, and restamps exactly: a written
//! PCR is the byte's position at the multiplex rate, rounded down to one tick of 27 MHz. It does no
//! I/O and decodes no video; it only detects frame types.

mod clock;
mod continuity;
mod framing;
mod packet;
mod pes;
mod rate;
mod repeat;

mod sections;

mod mux;

mod versions;

mod restamp;
mod resync;

mod index;

pub mod trick;

pub use clock::{Pcr, Pts};
pub use continuity::{Continuity, ContinuityFault};
pub use framing::{Framing, Packets};
pub use index::{
    Access, AccessKind, Flaws, Index, IndexFault, Indexer, Program, Rates, Run, Stream, Tables,
};
pub use mux::{AHEAD, Content, Muxer, Times};
pub use packet::{Packet, Pid, clock_packet, mark_discontinuous, set_continuity, set_pcr};
pub use pes::{
    PesTimes, add_to_pes_times, map_pes_times, pes_times, set_pes_time, splits_pes_times,
};
pub use rate::{Mux, PcrSample, PcrSpan, first_step, measure};
pub use repeat::{ClipFault, Repeat};
pub use restamp::{Count, Moment, NULL_PACKET, PIDS, Restamper, RunTimes};
pub use resync::{Counts, Mark, Resync};
pub use versions::{LongTable, TABLES, TableCount, count_versions};

/// Bytes of a transport packet.
pub const PACKET: usize = 188;
/// The first byte of every packet.
pub const SYNC: u8 = 0x47;
/// The byte of a packet at which its PCR is valid: the one with the last bit of
/// `program_clock_reference_base` (ISO/IEC 13818-1, 2.4.2.2).
pub const PCR_BYTE: u64 = 10;
