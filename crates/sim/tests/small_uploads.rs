//! A full server with many small uploads to one directory.
//!
//! Every world stops at the first byte of a stream that is late, and at an acknowledged name that a
//! power cut would take. Times are those of the simulation.

use tactus_core::units::Nanos;
use tactus_sim::run::tally;
use tactus_sim::small_uploads::SmallUploads;

#[test]
fn small_uploads_within_their_floor_are_acknowledged_in_two_cycles_on_a_full_server() {
    let world = SmallUploads::default();
    let tally = tally(&world, world.run());
    assert!(tally.uploads > 1_000, "{tally:?}");
    assert!(tally.ack_max < Nanos::from_millis(2 * 250), "{tally:?}");
}
