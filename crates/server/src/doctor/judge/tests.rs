//! Each judgement, on a host without other shortcomings.

use std::path::PathBuf;

use tactus_core::units::Nanos;
use tactus_sys::file::DirectAlignment;
use tactus_sys::packets::back_end::BackEnd;
use tactus_sys::probe::{self, HugePages, IoUringFacts, Machine, Network, RealTime};

use super::*;

const EPERM: i32 = 1;
const EINVAL: i32 = 22;

fn fine() -> Facts {
    let none = Limit { soft: None, hard: None };
    let mut machine: Machine = probe::machine();
    machine.cores = vec![0, 1, 2, 3];
    machine.governor = Some("performance".into());
    machine.clock_source = Some("tsc".into());
    machine.real_time = RealTime { fifo: Ok(()), group_without_budget: false, budget_us: None };
    machine.lockable = none;
    machine.open_files = none;
    machine.pipes = None;
    machine.memory.available = 64 << 30;
    machine.memory.left = None;
    machine.huge_pages = HugePages {
        size: Bytes(2 * MIB),
        reserved: 0,
        free: 0,
        transparent: Some("madvise".into()),
    };
    machine.io_uring = Ok(IoUringFacts { deferred: true, restricted: true });
    machine.io_uring_disabled = Some(0);
    let network = Network {
        interfaces: vec![Interface {
            name: "eth0".into(),
            up: true,
            loopback: false,
            speed: Some(BitRate(10_000_000_000)),
            mtu: Some(1500),
            driver: None,
            qdisc: Some("mq".into()),
        }],
        congestion: Some("bbr".into()),
        congestion_allowed: vec!["reno".into(), "cubic".into()],
        default_qdisc: Some("fq_codel".into()),
        send_buffer_max: None,
    };
    let device = Device {
        name: "sda".into(),
        number: (8, 0),
        model: None,
        rotational: Some(true),
        read_ahead: Some(Bytes(131_072)),
        scheduler: Some("mq-deadline".into()),
        sector: Some(Bytes(512)),
        write_cache: Some("write back".into()),
    };
    let volume = Volume {
        path: PathBuf::from("/srv/media"),
        file_system: "ext4".into(),
        mounted_at: PathBuf::from("/srv"),
        size: Bytes(1 << 40),
        free: Bytes(1 << 39),
        flushes: true,
        direct: DirectReads::Work(Some(DirectAlignment { memory: 4, offset: 512 })),
        device: Some(device),
    };
    let packets = vec![(BackEnd::Sendmmsg, Ok(Nanos(900)))];
    let model = Some(Ok("measured".into()));
    let udp_output_buffer = Some(Bytes(8 * MIB));
    Facts { machine, network, volume: Some(volume), model, packets, udp_output_buffer }
}

const NEEDS: Requirements = Requirements {
    arena: Bytes(1 << 30),
    descriptors: 12_000,
    cached: Bytes(0),
    has_arm: false,
    link_is_set: false,
};

fn only(findings: Vec<Finding>) -> Finding {
    let mut others = findings.into_iter().filter(|finding| finding.state != State::Ok);
    let only = others.next().expect("something is not ok");
    let more: Vec<_> = others.collect();
    assert!(more.is_empty(), "{only:?} and {more:?}");
    only
}

#[test]
fn a_good_host_has_nothing_to_change() {
    let findings = all(&fine(), &NEEDS);
    assert!(findings.iter().all(|finding| finding.state == State::Ok), "{findings:#?}");
    assert!(!any_bad(&findings));
    let mut names: Vec<_> = findings.iter().map(|finding| finding.check).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), findings.len());
}

type Spoil = fn(&mut Facts);

#[test]
fn each_thing_that_is_missing_is_named_with_its_cost_and_a_command() {
    let cases: [(&str, State, &str, Spoil); 22] = [
        ("cores", State::Warn, "second processor", |f| f.machine.cores = vec![0]),
        ("realtime", State::Warn, "setcap cap_sys_nice", |f| {
            f.machine.real_time.fifo = Err(EPERM);
        }),
        ("realtime", State::Warn, "cpu.rt_runtime_us", |f| {
            f.machine.real_time.fifo = Err(EPERM);
            f.machine.real_time.group_without_budget = true;
        }),
        ("memlock", State::Warn, "ulimit -l unlimited", |f| {
            f.machine.lockable.hard = Some(8 * MIB);
        }),
        ("memory", State::Bad, "[memory] arena", |f| f.machine.memory.left = Some(1 << 30)),
        ("hugepages", State::Warn, "vm.nr_hugepages=512", |f| {
            f.machine.huge_pages.transparent = Some("never".into());
        }),
        ("io_uring", State::Warn, "sysctl kernel.io_uring_disabled=0", |f| {
            f.machine.io_uring = Err(EPERM);
            f.machine.io_uring_disabled = Some(2);
        }),
        ("io_uring", State::Warn, "seccomp", |f| f.machine.io_uring = Err(EPERM)),
        ("descriptors", State::Warn, "ulimit -n 12000", |f| {
            f.machine.open_files.hard = Some(4096);
        }),
        ("governor", State::Warn, "cpupower", |f| f.machine.governor = Some("powersave".into())),
        ("clock", State::Warn, "echo tsc", |f| f.machine.clock_source = Some("hpet".into())),
        ("filesystem", State::Warn, "local disk", |f| with(f, |v| v.file_system = "nfs4".into())),
        ("flush", State::Bad, "remount,barrier=1 /srv", |f| with(f, |v| v.flushes = false)),
        ("scheduler", State::Warn, "/sys/block/sda/queue/scheduler", |f| {
            with(f, |v| v.device.as_mut().unwrap().scheduler = Some("bfq".into()));
        }),
        ("model", State::Warn, "tactus measure /srv/media", |f| f.model = None),
        ("model", State::Bad, "tactus measure /srv/media", |f| f.model = Some(Err("no".into()))),
        ("link", State::Warn, "[link] rate", |f| f.network.interfaces[0].speed = None),
        ("congestion", State::Warn, "tcp_allowed_congestion_control", |f| {
            f.network.congestion_allowed = vec!["reno".into()];
        }),
        ("qdisc", State::Warn, "tc qdisc del dev eth0 root", |f| {
            f.network.interfaces[0].qdisc = Some("tbf".into());
        }),
        ("udp_output", State::Warn, "sysctl net.core.wmem_max=8388608", |f| {
            f.udp_output_buffer = Some(Bytes(212_992));
        }),
        ("readahead", State::Warn, "echo 512 > /sys/block/", |f| {
            with(f, |v| {
                v.device.as_mut().unwrap().read_ahead = Some(Bytes(8 << 20));
            });
        }),
        ("direct", State::Warn, "put a title", |f| with(f, |v| v.direct = DirectReads::Untried)),
    ];
    for (check, state, fix, spoil) in cases {
        let mut facts = fine();
        spoil(&mut facts);
        let found = only(all(&facts, &NEEDS));
        assert_eq!((found.check, found.state), (check, state), "{found:?}");
        assert!(found.cost.is_some(), "{found:?}");
        assert!(found.fix.as_ref().is_some_and(|said| said.contains(fix)), "{found:?}");
    }
}

fn with(facts: &mut Facts, change: impl FnOnce(&mut Volume)) {
    change(facts.volume.as_mut().unwrap());
}

#[test]
fn without_direct_reads_read_ahead_matters() {
    let mut facts = fine();
    with(&mut facts, |volume| volume.direct = DirectReads::Refused(EINVAL));
    let findings = all(&facts, &NEEDS);
    let state = |check| findings.iter().find(|finding| finding.check == check).unwrap().state;
    assert_eq!((state("direct"), state("readahead")), (State::Bad, State::Warn));
    assert!(any_bad(&findings));
}

#[test]
fn how_streams_are_read_follows_from_the_disk_as_measured_and_not_from_its_own_word() {
    let said = |rotational, read_ahead, needs: Requirements| {
        let mut facts = fine();
        with(&mut facts, |volume| {
            let device = volume.device.as_mut().unwrap();
            (device.rotational, device.read_ahead) = (Some(rotational), Some(Bytes(read_ahead)));
        });
        let mut findings = all(&facts, &needs).into_iter();
        findings.find(|finding| finding.check == "readahead").unwrap()
    };
    // Virtual disks call themselves rotational.
    let cached = Requirements { cached: Bytes(2 << 30), ..NEEDS };
    for (read_ahead, state) in [(512 << 10, State::Ok), (8 << 20, State::Warn)] {
        let flash = said(true, read_ahead, cached);
        assert!(flash.state == state && flash.found.contains("from the page cache"), "{flash:?}");
    }
    let arm = said(false, 8 << 20, Requirements { has_arm: true, ..NEEDS });
    assert!(arm.state == State::Ok && arm.found.contains("read directly"), "{arm:?}");
}

#[test]
fn pipes_must_have_room_for_the_blocks_in_the_page_cache() {
    let mut facts = fine();
    let needs = Requirements { cached: Bytes(2 << 30), ..NEEDS };
    let pipes = |facts: &Facts, needs: &Requirements| {
        all(facts, needs).into_iter().find(|finding| finding.check == "pipes")
    };
    assert_eq!(pipes(&facts, &needs).map(|found| found.state), Some(State::Ok), "no limit");
    facts.machine.pipes = Some(Bytes(64 << 20));
    let few = pipes(&facts, &needs).unwrap();
    assert_eq!(few.state, State::Warn);
    assert!(few.cost.is_some_and(|cost| cost.contains("copied")), "{few:?}");
    assert!(few.fix.unwrap().starts_with("sysctl fs.pipe-user-pages-soft=1048576,"));
    // What the command sets is enough.
    facts.machine.pipes = Some(Bytes(1_048_576 * 4096));
    assert_eq!(pipes(&facts, &needs).map(|found| found.state), Some(State::Ok));
    assert_eq!(pipes(&facts, &NEEDS), None, "nothing is in the page cache");
}

#[test]
fn a_configured_link_need_not_tell_its_speed() {
    let mut facts = fine();
    facts.network.interfaces[0].speed = None;
    let findings = all(&facts, &Requirements { link_is_set: true, ..NEEDS });
    assert!(findings.iter().all(|finding| finding.state == State::Ok));
    assert_eq!(fastest(&facts.network.interfaces), None);
}

#[test]
fn interfaces_that_are_down_or_lead_back_do_not_count() {
    let mut facts = fine();
    let eth0 = facts.network.interfaces[0].clone();
    facts.network.interfaces.push(Interface {
        up: false,
        speed: Some(BitRate(1 << 40)),
        ..eth0.clone()
    });
    facts.network.interfaces.push(Interface {
        loopback: true,
        speed: Some(BitRate(1 << 41)),
        ..eth0
    });
    assert_eq!(fastest(&facts.network.interfaces), Some(BitRate(10_000_000_000)));
}

#[test]
fn a_core_of_a_running_server_is_shown_with_what_its_parts_use() {
    let placement = serde_json::json!([
        {"cpu": 1, "online": true, "busy_ratio": 0.424, "parts": [
            {"name": "link", "busy_ratio": 0.404}, {"name": "disk.0", "busy_ratio": 0.02}]},
        {"cpu": 2, "online": true, "busy_ratio": 0.91, "parts": [
            {"name": "link.1", "busy_ratio": 0.91}]},
        {"cpu": 3, "online": false, "busy_ratio": 0.0, "parts": []},
    ]);
    let findings = shares(&placement);
    let found: Vec<_> = findings.iter().map(|one| (one.state, one.found.as_str())).collect();
    let wanted = [
        (State::Ok, "core 1 is busy 42.4 % of its time: link 40.4 %, disk.0 2.0 %"),
        (State::Warn, "core 2 is busy 91.0 % of its time: link.1 91.0 %"),
        (State::Warn, "core 3 is offline: nothing is on it"),
    ];
    assert_eq!(found, wanted);
}
