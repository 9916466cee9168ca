//! How long a process was ready to run and others had the processors.
//!
//! Promise: what is counted is the kernel's own account of it. On a machine that does something
//! else besides, a recovery takes longer through no fault of its own.

use std::fs;
use std::time::Duration;

use anyhow::Result;

/// All threads of a process together; those that have ended count for nothing.
pub(super) fn of(process: u32) -> Result<Duration> {
    let mut sum = 0;
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        // One may end just now. Time on a processor, time waiting for one, turns.
        let told = fs::read_to_string(thread?.path().join("schedstat")).unwrap_or_default();
        sum += told.split(' ').nth(1).map_or(Ok(0), str::parse)?;
    }
    Ok(Duration::from_nanos(sum))
}
