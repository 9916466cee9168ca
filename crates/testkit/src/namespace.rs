//! A network namespace of its own for a test.

use std::process::Command;

/// Set where the namespace is.
const INSIDE: &str = "TACTUS_TEST_INSIDE";

/// Runs the test with this name again in a network namespace of its own; answers whether this is
/// the run inside.
///
/// # Panics
///
/// If the run inside fails.
#[must_use]
pub fn is_inside(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let own = std::env::current_exe().expect("a path");
    let mut command = Command::new("unshare");
    command.args(["--net", "--map-root-user", "--"]).arg(own);
    command.args(["--exact", test, "--nocapture"]).env(INSIDE, "1");
    let status = command.status().expect("this test needs unshare (util-linux)");
    assert!(
        status.success(),
        "in a network namespace of its own (user namespaces must be allowed)"
    );
    false
}
