//! What the tests and benches need from the host besides Rust, in one table with the reason.
//!
//! Promise: as root on a Debian machine the missing programs are installed; anywhere else they are
//! named, with the packages that bring them, and the task stops. Presence is probed by running the
//! program, so any other way of installing it counts as well.

use std::process::Command;

use anyhow::{Result, bail};

use crate::step::Remark;
use crate::workspace::{Workspace, run, succeeds};

/// Something that must be on the host.
#[derive(Clone, Copy)]
struct Need {
    /// A command that succeeds exactly when it is there.
    probe: &'static [&'static str],
    /// The Debian packages that bring it.
    packages: &'static [&'static str],
    /// What it is for.
    why: &'static str,
}

const FOR_TESTS: &[Need] = &[
    Need {
        probe: &["cc", "--version"],
        packages: &["gcc", "libc6-dev"],
        why: "linker of everything",
    },
    Need {
        probe: &["git", "--version"],
        packages: &["git"],
        why: "tidy asks it which files belong to the tree",
    },
    Need {
        probe: &["curl", "--version"],
        packages: &["curl", "ca-certificates"],
        why: "client of the tests: ranges, keep-alive, bytes equal to the file",
    },
    Need {
        probe: &["ffmpeg", "-version"],
        packages: &["ffmpeg"],
        why: "player of the tests, and ffprobe for continuity and decode errors",
    },
    Need {
        // It refuses to run as root, even for its version.
        probe: &["sh", "-c", "command -v cvlc"],
        packages: &["vlc-bin", "vlc-plugin-base"],
        why: "player of the tests",
    },
    Need {
        probe: &["gst-inspect-1.0", "playbin"],
        packages: &["gstreamer1.0-tools", "gstreamer1.0-plugins-base"],
        why: "player of the tests",
    },
    Need {
        probe: &["gst-inspect-1.0", "souphttpsrc"],
        packages: &["gstreamer1.0-plugins-good"],
        why: "HTTP source and MP4 demultiplexer of GStreamer",
    },
    Need {
        probe: &["gst-inspect-1.0", "tsdemux"],
        packages: &["gstreamer1.0-plugins-bad"],
        why: "MPEG-TS demultiplexer of GStreamer",
    },
    Need {
        probe: &["gst-inspect-1.0", "avdec_h264"],
        packages: &["gstreamer1.0-libav"],
        why: "decoders of GStreamer",
    },
    Need {
        probe: &["gst-inspect-1.0", "rtspclientsink"],
        packages: &["gstreamer1.0-rtsp"],
        why: "GStreamer as a recorder by RTSP",
    },
    Need {
        probe: &["/usr/bin/python3", "-c", "import gi; gi.require_version('Gst', '1.0')"],
        packages: &["python3-gst-1.0"],
        why: "pauses, seeks and speeds of GStreamer",
    },
    Need { probe: &["mpv", "--version"], packages: &["mpv"], why: "player of the tests by RTSP" },
    Need {
        probe: &["ip", "-V"],
        packages: &["iproute2"],
        why: "networks of their own, in which players join groups",
    },
    Need {
        probe: &["node", "--version"],
        packages: &["nodejs"],
        why: "runs tus-js-client, and drives the browser of the tests",
    },
    Need {
        probe: &["npm", "--version"],
        packages: &["npm"],
        why: "brings tus-js-client and the driver of the browser",
    },
    Need {
        probe: &["rclone", "version"],
        packages: &["rclone"],
        why: "client of the tests: whole trees by WebDAV",
    },
    Need {
        // Its version option fails.
        probe: &["sh", "-c", "command -v cadaver"],
        packages: &["cadaver"],
        why: "client of the tests: sends a body before it knows that a token is required",
    },
    Need {
        probe: &["mount.davfs", "--version"],
        packages: &["davfs2"],
        why: "client of the tests: WebDAV as a file system, with its free space",
    },
    Need {
        probe: &["sh", "-c", "command -v gio dbus-run-session && ls /usr/libexec/gvfsd-dav"],
        packages: &["gvfs", "gvfs-backends", "libglib2.0-bin", "dbus"],
        why: "client of the tests: WebDAV as the file manager of GNOME mounts it",
    },
    Need {
        probe: &["litmus", "--version"],
        packages: &["litmus"],
        why: "judge of the tests: what WebDAV asks of a server",
    },
    Need {
        probe: &["nginx", "-v"],
        packages: &["nginx-light"],
        why: "proxy of the tests, with and without TLS",
    },
    Need {
        probe: &["haproxy", "-v"],
        packages: &["haproxy"],
        why: "proxy of the tests, with the PROXY protocol",
    },
    Need { probe: &["caddy", "version"], packages: &["caddy"], why: "proxy of the tests" },
    Need {
        probe: &["promtool", "--version"],
        packages: &["prometheus"],
        why: "checks metrics by the rules of Prometheus",
    },
    Need {
        probe: &["tc", "-V"],
        packages: &["iproute2"],
        why: "network namespaces with a limited wire between them",
    },
    Need {
        probe: &["mount", "--version"],
        packages: &["mount"],
        why: "mounts disks of tests in their own namespace",
    },
    Need {
        probe: &["setpriv", "--version"],
        packages: &["util-linux"],
        why: "runs servers without rights and in namespaces (unshare, nsenter)",
    },
    Need {
        probe: &["sysctl", "--version"],
        packages: &["procps"],
        why: "network settings inside them",
    },
    Need {
        probe: &["chromium", "--version"],
        packages: &["chromium"],
        why: "browser of the tests: uploads through the page",
    },
    Need {
        probe: &["openssl", "version"],
        packages: &["openssl"],
        why: "creates the certificate of the TLS proxy",
    },
    Need {
        probe: &["script", "--version"],
        packages: &["bsdutils"],
        why: "provides a terminal for the commands",
    },
    Need {
        probe: &["rsync", "--version"],
        packages: &["rsync"],
        why: "compares trees of the mounted library",
    },
    Need {
        probe: &["sqlite3", "--version"],
        packages: &["sqlite3"],
        why: "keeps databases on the mounted library",
    },
    Need {
        probe: &["fio", "--version"],
        packages: &["fio"],
        why: "reads back what it has written to the mounted library",
    },
    Need {
        probe: &["sh", "-c", "command -v bonnie++"],
        packages: &["bonnie++"],
        why: "writes, rewrites and seeks on the mounted library",
    },
    Need {
        probe: &["sh", "-c", "command -v smbd smbclient"],
        packages: &["samba", "smbclient"],
        why: "shares the mounted library with other machines",
    },
    Need {
        probe: &["sh", "-c", "command -v mandoc"],
        packages: &["mandoc"],
        why: "checks the manual pages",
    },
];

/// Disks that are emulated, or that lose their power.
const FOR_DISKS: &[Need] = &[
    Need {
        probe: &["fusermount3", "--version"],
        packages: &["fuse3"],
        why: "such a disk is a FUSE file under a loop device",
    },
    Need { probe: &["losetup", "--version"], packages: &["mount"], why: "its loop device" },
    Need { probe: &["mkfs.ext4", "-V"], packages: &["e2fsprogs"], why: "its file system" },
    Need { probe: &["mkfs.xfs", "-V"], packages: &["xfsprogs"], why: "its other file system" },
];

const FOR_BENCHES: &[Need] = &[
    Need {
        probe: &["cc", "--version"],
        packages: &["gcc", "libc6-dev"],
        why: "linker of everything",
    },
    Need {
        probe: &["nginx", "-v"],
        packages: &["nginx-light"],
        why: "the peer that is measured against",
    },
    Need {
        probe: &["curl", "--version"],
        packages: &["curl", "ca-certificates"],
        why: "asks servers what they count",
    },
    Need {
        probe: &["ip", "-V"],
        packages: &["iproute2"],
        why: "network namespaces between server and receivers",
    },
    Need {
        probe: &["ethtool", "--version"],
        packages: &["ethtool"],
        why: "offloads of the wire between them are set and printed",
    },
    Need {
        probe: &["sysctl", "--version"],
        packages: &["procps"],
        why: "network settings inside the namespaces",
    },
    Need {
        probe: &["fincore", "--version"],
        packages: &["util-linux-extra"],
        why: "shows that a cold title is not in the page cache",
    },
    Need { probe: &["fio", "--version"], packages: &["fio"], why: "the disk's physical limits" },
];

const FOR_GO: &[Need] = &[Need {
    probe: &["go", "version"],
    packages: &["golang-go"],
    why: "builds MediaMTX, which a bench measures against",
}];

const FOR_PYTHON_TOOLS: &[Need] = &[Need {
    probe: &["python3", "-c", "import ensurepip, venv"],
    packages: &["python3-venv"],
    why: "unpacks tools that come ready from the Python index",
}];

const FOR_MACHINES: &[Need] = &[
    Need {
        probe: &["qemu-system-x86_64", "--version"],
        packages: &["qemu-system-x86"],
        why: "emulates a machine with a kernel of its own",
    },
    Need { probe: &["tc", "-V"], packages: &["iproute2"], why: "makes the wire inside it" },
    Need { probe: &["dpkg-deb", "--version"], packages: &["dpkg"], why: "unpacks that kernel" },
];

/// Makes the programs available that the tests play against.
pub(crate) fn set_up_for_tests(_: &Workspace) -> Result<Remark> {
    set_up(&[FOR_TESTS, FOR_DISKS])
}

/// Makes the programs available that the benches measure against.
pub(crate) fn set_up_for_benches() -> Result<Remark> {
    set_up(&[FOR_BENCHES, FOR_DISKS])
}

/// Makes Go available.
pub(crate) fn set_up_for_go() -> Result<Remark> {
    set_up(&[FOR_GO])
}

/// Makes emulated machines available.
pub(crate) fn set_up_for_machines() -> Result<Remark> {
    set_up(&[FOR_MACHINES])
}

/// Makes Python environments available.
pub(crate) fn set_up_for_python_tools() -> Result<Remark> {
    set_up(&[FOR_PYTHON_TOOLS])
}

fn set_up(needs: &[&'static [Need]]) -> Result<Remark> {
    let needs = needs.concat();
    let missing = absent(&needs);
    if missing.is_empty() {
        return Ok(Some(format!("{} needs are met", needs.len())));
    }
    let packages = packages(&missing);
    if !may_install() {
        bail!("{}", complaint(&missing, &packages));
    }
    run(Command::new("apt-get").arg("update"))?;
    run(Command::new("apt-get")
        .args(["install", "--yes", "--no-install-recommends"])
        .args(&packages)
        .env("DEBIAN_FRONTEND", "noninteractive"))?;
    let still_missing = absent(&needs);
    if !still_missing.is_empty() {
        bail!("installed, and yet {}", complaint(&still_missing, &self::packages(&still_missing)));
    }
    Ok(Some(format!("installed {}", packages.join(" "))))
}

fn absent(needs: &[Need]) -> Vec<&Need> {
    needs
        .iter()
        .filter(|need| !succeeds(Command::new(need.probe[0]).args(&need.probe[1..])))
        .collect()
}

fn packages(needs: &[&Need]) -> Vec<&'static str> {
    let mut packages: Vec<_> = needs.iter().flat_map(|need| need.packages).copied().collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

/// Whether this is root on a machine with apt.
fn may_install() -> bool {
    let root = crate::workspace::output(Command::new("id").arg("-u"));
    root.is_ok_and(|id| id.trim() == "0") && succeeds(Command::new("apt-get").arg("--version"))
}

fn complaint(missing: &[&Need], packages: &[&str]) -> String {
    let mut text = "missing on this machine:\n".to_owned();
    for need in missing {
        text += &format!("  {:<28} {}\n", need.probe.join(" "), need.why);
    }
    text + &format!("as root: apt-get install --no-install-recommends {}", packages.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRESENT: Need = Need { probe: &["true"], packages: &["coreutils"], why: "is there" };
    const ABSENT: Need = Need {
        probe: &["no-such-program-anywhere", "--version"],
        packages: &["nowhere", "elsewhere"],
        why: "shows the message",
    };

    #[test]
    fn a_missing_program_is_named_with_its_reason_and_its_packages() {
        let needs = [PRESENT, ABSENT];
        let missing = absent(&needs);
        assert_eq!(missing.len(), 1);
        let text = complaint(&missing, &packages(&missing));
        assert!(text.contains("no-such-program-anywhere --version"), "{text}");
        assert!(text.contains("shows the message"), "{text}");
        assert!(text.ends_with("elsewhere nowhere"), "{text}");
    }

    #[test]
    fn a_package_needed_twice_is_installed_once() {
        assert_eq!(packages(&[&ABSENT, &ABSENT]), ["elsewhere", "nowhere"]);
    }
}
