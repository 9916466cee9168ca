//! The replay of power failures finds the writers that are wrong, and nothing on those that are
//! right.
//!
//! It needs root, FUSE, loop devices, ext4 and XFS; what is missing is named. A thousand cuts are
//! the gate's own step.

use std::process::Command;

use serde_json::Value;

/// Runs the replay and answers its outcomes, one for each subject and file system.
fn replay(arguments: &[&str]) -> Vec<Value> {
    let out = tempfile::tempdir().expect("a directory for the report");
    let out = out.path().join("crash");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tactus-bench"));
    let ended = command.arg("crash").arg("--out").arg(&out).args(arguments).output();
    let ended = ended.expect("the bench runs");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{command:?}: {}\n{said}", ended.status);
    let report = std::fs::read(out.join("report.json")).expect("a report");
    let report: Value = serde_json::from_slice(&report).expect("a report of JSON");
    report["runs"].as_array().expect("a list of runs").clone()
}

fn count(outcome: &Value, key: &str) -> u64 {
    outcome[key].as_u64().expect("a count")
}

#[test]
fn what_is_wrong_is_found_out_within_few_power_failures() {
    let wrong = "--subject=rename,fsync-rename,fsync-retried,chunks-size";
    let outcomes = replay(&["--cuts=300", "--until-found", wrong]);
    assert_eq!(outcomes.len(), 8, "four subjects on two file systems");
    for outcome in outcomes {
        let kinds: &[&str] = match outcome["subject"].as_str().expect("a name") {
            "chunks-size" => &["wrong_offset"],
            "fsync-retried" => &["lost", "torn"],
            _ => &["lost"],
        };
        assert!(kinds.iter().any(|kind| count(&outcome, kind) > 0), "{outcome:#}");
        assert_eq!(count(&outcome, "unmountable"), 0, "{outcome:#}");
    }
}

#[test]
fn what_is_right_survives_every_power_failure() {
    let right = "--subject=fsync-rename-fsync,unnamed,fsync-final,chunks-journal";
    for outcome in replay(&["--cuts=40", right]) {
        for kind in ["lost", "torn", "wrong_offset", "stray", "unmountable"] {
            assert_eq!(count(&outcome, kind), 0, "{outcome:#}");
        }
        assert!(count(&outcome, "cuts") == 40 && count(&outcome, "acks") > 0, "{outcome:#}");
        let faulty = outcome["subject"] == "fsync-final";
        assert_eq!(count(&outcome, "faults") > 0, faulty, "{outcome:#}");
    }
}
