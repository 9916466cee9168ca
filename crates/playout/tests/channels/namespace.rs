//! A network namespace for one test, so that it can make links.

/// Runs this test again in a network namespace of its own; answers whether this is there.
pub(crate) fn is_inside(test: &str) -> bool {
    const INSIDE: &str = "TACTUS_TEST_INSIDE";
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let own = std::env::current_exe().expect("a path");
    let mut command = std::process::Command::new("unshare");
    command.args(["--net", "--map-root-user", "--"]).arg(own);
    command.args(["--exact", test, "--nocapture"]).env(INSIDE, "1");
    let status = command.status().expect("this test needs unshare (util-linux)");
    assert!(
        status.success(),
        "in a network namespace of its own (user namespaces must be allowed)"
    );
    false
}
