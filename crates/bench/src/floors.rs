//! The physical limits of this machine in this hour: what no server can beat.
//!
//! Promise: each is measured alone, within about a second, and printed with every result, since
//! absolute figures of different hours cannot be compared. What cannot be measured says why.

mod memory;
mod network;
mod storage;
mod wake;

use std::path::Path;

use anyhow::Result;
use tactus_core::units::{Bytes, MIB};

use crate::interrupt;
use crate::report::Floor;
use crate::titles::Titles;

/// The size of the file that is read and sent.
const FILE_SIZE: Bytes = Bytes(1024 * MIB);

/// Measures all limits; `data` is a directory on the disk in question.
pub fn measure(data: &Path) -> Result<Vec<Floor>> {
    let file = Titles::lay(&data.join("floors"), 1, FILE_SIZE)?;
    // Before the copies, whose memory would be touched again while the machine still has it.
    let touch = memory::first_touch();
    let mut floors = memory::measure();
    let mut add = |name: &str, found: Result<Vec<Floor>>| {
        match found {
            Ok(found) => floors.extend(found),
            Err(error) => floors.push(Floor::new(name, format!("not measured: {error:#}"), &[])),
        }
        interrupt::check()
    };
    add("first touch of 4 KiB of free memory", touch)?;
    add("waking up", wake::measure())?;
    add("sockets", network::measure(&file))?;
    add("disk", storage::measure(&file))?;
    Ok(floors)
}
