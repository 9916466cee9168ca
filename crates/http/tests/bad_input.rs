//! Bad input against a whole server: every row of the tables H (framing), R (ranges), A (paths and
//! files), U (uploads and WebDAV) and D (live inputs) is one case, named by its id. What a row says
//! about a part alone is also tested in that part; here the answer on the wire counts, what happens
//! to the connection, and what is counted.
#![allow(clippy::unwrap_used, reason = "a case fails by panicking, also in what it calls")]

#[path = "bad_input/client.rs"]
mod client;
#[path = "bad_input/test_server.rs"]
mod test_server;

#[path = "bad_input/crowds.rs"]
mod crowds;
#[path = "bad_input/dav.rs"]
mod dav;
#[path = "bad_input/exact.rs"]
mod exact;
#[path = "bad_input/file_managers.rs"]
mod file_managers;
#[path = "bad_input/framing.rs"]
mod framing;
#[path = "bad_input/good.rs"]
mod good;
#[path = "bad_input/growing.rs"]
mod growing;
#[path = "bad_input/live.rs"]
mod live;
#[path = "bad_input/locks.rs"]
mod locks;
#[path = "bad_input/oc.rs"]
mod oc;
#[path = "bad_input/paths.rs"]
mod paths;
#[path = "bad_input/proxies.rs"]
mod proxies;
#[path = "bad_input/ranges.rs"]
mod ranges;
#[path = "bad_input/recording.rs"]
mod recording;
#[path = "bad_input/rights.rs"]
mod rights;
#[path = "bad_input/slow.rs"]
mod slow;
#[path = "bad_input/stops.rs"]
mod stops;
#[path = "bad_input/times.rs"]
mod times;
#[path = "bad_input/uploads.rs"]
mod uploads;
#[path = "bad_input/web.rs"]
mod web;

/// A03 is a race against the catalogue alone; all others go over the wire.
#[test]
fn every_row_has_its_case() {
    let cases = [
        include_str!("bad_input/crowds.rs"),
        include_str!("bad_input/dav.rs"),
        include_str!("bad_input/framing.rs"),
        include_str!("bad_input/live.rs"),
        include_str!("bad_input/locks.rs"),
        include_str!("bad_input/paths.rs"),
        include_str!("bad_input/ranges.rs"),
        include_str!("bad_input/slow.rs"),
        include_str!("bad_input/uploads.rs"),
        include_str!("../../storage/src/catalogue/tests.rs"),
    ]
    .concat();
    for (table, rows) in [("h", 21), ("r", 6), ("a", 8), ("u", 29), ("d", 4)] {
        for row in 1..=rows {
            let case = format!("\n#[test]\nfn {table}{row:02}_");
            assert!(cases.contains(&case), "row {table}{row:02} has no case");
        }
    }
}
