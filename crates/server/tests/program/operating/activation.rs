//! Socket activation: connections wait while the server restarts.

use std::fs;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tactus_testkit::server::keep_state;

use super::test_server::{get, line, prepared};

/// As systemd does with a socket unit: the sockets stay open, and the server is restarted when it
/// ends.
const SUPERVISOR: &str = r#"
import fcntl, os, socket, sys
listeners = []
for _ in range(2):
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    listeners.append(listener)
with open("ports", "w") as file:
    print(*[listener.getsockname()[1] for listener in listeners], file=file)
while True:
    pid = os.fork()
    if pid == 0:
        for at, each in enumerate([fcntl.fcntl(one, fcntl.F_DUPFD, 100) for one in listeners]):
            os.dup2(each, 3 + at)
        own = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2", "LISTEN_FDNAMES": "http:admin"}
        os.execve(sys.argv[1], sys.argv[1:], {**os.environ, **own})
    with open("pid.new", "w") as file:
        print(pid, file=file)
    os.rename("pid.new", "pid")
    os.waitpid(pid, 0)
"#;

struct SupervisedServer {
    supervisor: Child,
    dir: tempfile::TempDir,
}

impl SupervisedServer {
    fn new() -> Self {
        let (dir, command) = prepared(&[], "");
        let mut supervisor = Command::new("/usr/bin/python3");
        keep_state(&mut supervisor, dir.path());
        supervisor.args(["-c", SUPERVISOR]).arg(command.get_program()).args(command.get_args());
        for name in ["out", "err"] {
            let file = fs::File::create(dir.path().join(name)).expect("a file");
            if name == "out" {
                supervisor.stdout(file)
            } else {
                supervisor.stderr(file)
            };
        }
        let supervisor = supervisor.current_dir(dir.path()).spawn().expect("python3 runs");
        Self { supervisor, dir }
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.dir.path().join(name)).unwrap_or_default()
    }

    fn wait_for<T>(&self, look: impl Fn(&Self) -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            let said = self.read("out") + &self.read("err");
            assert!(begun.elapsed() < Duration::from_secs(20), "not seen: {said}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn server(&self) -> Option<Pid> {
        Pid::from_raw(self.read("pid").trim().parse().ok()?)
    }
}

impl Drop for SupervisedServer {
    fn drop(&mut self) {
        drop(self.supervisor.kill());
        drop(self.supervisor.wait());
        if let Some(server) = self.server() {
            kill_process(server, Signal::KILL).ok();
        }
    }
}

#[test]
fn n14_a_restart_with_passed_sockets_refuses_no_connection() {
    let supervised = SupervisedServer::new();
    let ports = supervised.wait_for(|all| line(&all.read("ports"), " "));
    let (http, admin) = ports.split_once(' ').expect("two ports");
    let addresses = [http, admin].map(|port| format!("127.0.0.1:{port}"));
    let fields = "Range: bytes=0-99\r\n";
    // A connection is accepted before the server runs, and answered later.
    assert_eq!(get(&addresses[0], "/film.ts?rate=max", fields).status, 206);
    assert_eq!(get(&addresses[1], "/readyz", "").status, 200);
    let said = supervised.wait_for(|all| line(&all.read("out"), "Serving "));
    assert!(said.ends_with(&format!("http://{}/", addresses[0])), "{said}");
    for _ in 0..2 {
        let before = supervised.server().expect("it runs");
        kill_process(before, Signal::TERM).expect("it runs");
        let mut answers = 0;
        while supervised.server() == Some(before) || answers < 3 {
            assert_eq!(get(&addresses[0], "/film.ts?rate=max", fields).status, 206);
            assert_eq!(get(&addresses[1], "/healthz", "").status, 200);
            answers += 1;
        }
    }
}
