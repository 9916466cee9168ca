//! A network of its own, of one loopback, in which groups have a way: which interface players join
//! them on is the machine's routing, and here that is known.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

pub(crate) struct Net {
    /// Who holds it; it ends with its input.
    keeper: Child,
    /// Not root: then it is root of its own only.
    is_guest: bool,
}

const SET_UP: &str = "ip link set lo up multicast on && ip route add 224.0.0.0/4 dev lo && \
    ip -6 route add ff00::/8 dev lo table local && echo ready && exec cat";

impl Net {
    pub(crate) fn new() -> Self {
        let is_guest = !rustix::process::getuid().is_root();
        let mut unshare = Command::new("unshare");
        unshare.args(is_guest.then_some("--map-root-user")).args(["--net", "sh", "-c", SET_UP]);
        let mut keeper = unshare
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare is part of util-linux");
        let mut said = String::new();
        let pipe = keeper.stdout.as_mut().expect("a pipe");
        BufReader::new(pipe).read_line(&mut said).expect("a line");
        assert_eq!(said, "ready\n", "a network of its own, and ip (package iproute2)");
        Self { keeper, is_guest }
    }

    /// A command that runs `program` there.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--net", "--target", &self.keeper.id().to_string()]);
        command
            .args(self.is_guest.then_some(["--user", "--preserve-credentials"]).iter().flatten());
        command.arg(program);
        command
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        self.keeper.wait().expect("it was started");
    }
}
