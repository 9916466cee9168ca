//! MediaMTX, which `rtsp-many` measures against: one exact version, built from its module of Go.
//!
//! Promise: the sum of the module is compared with the one below before anything is built; what it
//! needs is pinned by its own sums. It lies in the build directory. Two files that its release adds
//! are made here: its version, and the script of its HLS page, which stays empty as the bench uses
//! RTSP alone.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::host;
use crate::workspace::{Workspace, output, run};

const MODULE: &str = "github.com/bluenviron/mediamtx";
const VERSION: &str = "v1.15.3";
const SUM: &str = "h1:JZXYLqTf5qFu3Qh2kYevZAjPiP95y3LW8LzXpvYiloU=";

/// Builds it, unless it is there.
pub(crate) fn set_up(workspace: &Workspace) -> Result<()> {
    let place = workspace.target.join("tools/mediamtx");
    let (binary, done) = (place.join("mediamtx"), place.join("installed"));
    if binary.is_file() && fs::read_to_string(&done).is_ok_and(|text| text == SUM) {
        return Ok(());
    }
    host::set_up_for_go()?;
    let source = place.join("source");
    if source.exists() {
        fs::remove_dir_all(&source)?;
    }
    fs::create_dir_all(&place)?;
    let module = format!("{MODULE}@{VERSION}");
    let text = output(go(&place).args(["mod", "download", "-json", &module]))?;
    let field = |name: &str| {
        let opening = format!("\"{name}\": \"");
        let (_, rest) = text.split_once(&opening)?;
        Some(rest.split_once('"')?.0.to_owned())
    };
    let sum = field("Sum").context("Go tells no sum of the module")?;
    ensure!(sum == SUM, "{module} has the sum {sum}, not {SUM}");
    let module = field("Dir").context("Go tells no place of the module")?;
    // Modules lie there without the right to write.
    run(Command::new("cp").args(["-r", "--no-preserve=mode", &module]).arg(&source))?;
    fs::write(source.join("internal/core/VERSION"), VERSION)?;
    fs::write(source.join("internal/servers/hls/hls.min.js"), "")?;
    run(go(&source).args(["build", "-o"]).arg(&binary).arg("."))?;
    fs::remove_dir_all(&source)?;
    Ok(fs::write(done, SUM)?)
}

fn go(place: &Path) -> Command {
    let mut go = Command::new("go");
    go.current_dir(place).env("CGO_ENABLED", "0").env("GOFLAGS", "-buildvcs=false");
    go
}
