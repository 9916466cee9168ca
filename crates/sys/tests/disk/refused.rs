//! io_uring refused by a filter, as containers do it: the device opens all the same.

use std::io;

use tactus_core::ports::DiskPort;
use tactus_sys::clock;
use tactus_sys::disk::DiskFacts;

use crate::fixture::{Fixture, METHODS, next};

#[test]
fn where_io_uring_is_refused_threads_read_and_the_port_says_why() {
    // A filter stays with its thread for ever, so it gets one of its own.
    let facts = std::thread::spawn(|| {
        refuse_io_uring(libc::EPERM).unwrap();
        let mut fixture = Fixture::new(2, 100_000);
        let mut device = fixture.open(METHODS[0], 2);
        let transfer = fixture.transfer(98_304, 4096);
        device.submit(clock::now(), transfer).unwrap();
        fixture.check(next(&mut device));
        device.facts()
    });
    let refused = DiskFacts::Threads { threads: 3, refused: Some(libc::EPERM) };
    assert_eq!(facts.join().unwrap(), refused);
}

/// Makes `io_uring_setup` fail for this thread and those it starts.
fn refuse_io_uring(errno: i32) -> io::Result<()> {
    let statement = |code: u32, jump_false: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: jump_false,
        k,
    };
    let program = [
        // The number of the system call is the first word of what the filter sees.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, libc::SYS_io_uring_setup as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter =
        libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: takes numbers only.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mode = libc::SECCOMP_MODE_FILTER as libc::c_ulong;
    // SAFETY: filter and program live through the call, which copies them.
    match unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const filter) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
