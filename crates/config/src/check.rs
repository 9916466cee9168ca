//! From raw to checked: the defaults, the ranges, and the conditions between keys.
//!
//! Promise: each default is defined once, here or with its settings, and `tactus.sample.toml` shows
//! the same value (a test compares them). The check reads directories only to report a missing one
//! early. Lists and long sections have files of their own below.

mod channels;
mod classes;
mod http;
mod recordings;
mod uploads;

mod rtsp;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};

use tactus_control::access::AccessTo;
use tactus_control::api_path::{API_PATH, is_api_path};
use tactus_control::placement::{self, CorePlan, ServerCounts};
use tactus_control::settings::{
    BackEnd, BestEffort, ClientShare, Cores, EngineSettings, GapFrames, Link, MODEL_FILE, Memory,
    Packets, SlowReader, Volume, packet_servers_max,
};
use tactus_core::pacer;
use tactus_core::path::check_name;
use tactus_core::stagger::Tick;
use tactus_core::units::{BitRate, Bytes, KIB, MIB, Nanos, SECOND};
use tactus_http::settings::{Rate, RateClass};
use tactus_notation::Auto;
use tactus_notation::checks::{
    Checked, RATES, auto_or_off, auto_quantity, in_range, number, or_auto, quantity, unless_off,
};
use tactus_notation::error::Mistake;
use tactus_notation::units::{Percent, Value, exact};
use tactus_notation::value::{SpannedKey, Switch};
use toml::Spanned;

use self::channels::channels;
use self::classes::classes;
use self::http::http;
use self::recordings::recordings;
use self::rtsp::rtsp;
use self::uploads::upload;
use super::raw::{self, AutoOrList, Raw};
use super::unix_socket;
use super::{Admin, Config, Log};

/// Checks a whole file; relative paths begin at `base`.
pub(super) fn check(raw: Raw, base: &Path) -> Checked<Config> {
    let volumes = volumes(raw.volume, base)?;
    if !volumes.is_empty() && !volumes.iter().any(|volume| volume.uploads) {
        uploads::check_useful(&raw.upload.principal)?;
    }
    uploads::check_readers(&raw.http.readers, &raw.upload)?;
    let recordings = recordings(raw.recording, &volumes)?;
    let link = link(raw.link)?;
    let gap_frames = gap_frames(raw.gap_frames, raw.packets.back_end.unwrap_or_default())?;
    let classes = classes(raw.class, &link, gap_frames.as_ref())?;
    let packets = packets(raw.packets)?;
    let packet_servers_max = packet_servers_max(&classes, gap_frames.as_ref(), packets);
    let channels = channels(raw.channel, &classes)?;
    let pinned = pinned(&raw.memory.pinned)?;
    let memory = memory(raw.memory)?;
    let readers = raw.http.readers.as_ref().map(|readers| *readers.get_ref()).unwrap_or_default();
    let rtsp = rtsp(raw.rtsp, base, (&classes, &memory), readers)?;
    let upload = upload(raw.upload, base)?;
    Ok(Config {
        http: http(raw.http, base)?,
        admin: admin(raw.admin, base)?,
        memory,
        pinned,
        link,
        rate: rate(raw.rate)?,
        cpu_budget: quantity(
            raw.cpu.budget,
            EngineSettings::default().cpu_budget,
            Percent::whole(1)..=Percent::WHOLE,
        )?,
        cores: cores(raw.cores, volumes.len(), packet_servers_max)?,
        gap_frames,
        packets,
        best_effort: best_effort(raw.best_effort)?,
        slow_reader: slow_reader(raw.slow_reader)?,
        local: unix_socket::local(raw.local, base, &upload.principals)?,
        upload,
        recordings,
        classes,
        channels,
        rtsp,
        volumes,
        state: None,
        strict: raw.server.strict.unwrap_or(false),
        log: log(raw.log, base)?,
    })
}

/// The path stays relative when there is no working directory.
pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn admin(raw: raw::Admin, base: &Path) -> Checked<Admin> {
    let own = match raw.address {
        None => Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9464)),
        Some(written) => {
            let span = written.span();
            match written.into_inner() {
                Switch::Off => None,
                Switch::Value(text) => Some(address(&text, span)?),
                Switch::Auto | Switch::Max => {
                    let message = "write an address like \"127.0.0.1:9464\", or \"off\"";
                    return Err(Mistake::at(span, message));
                }
            }
        }
    };
    let allowed_hosts = raw.allowed_hosts.unwrap_or_default();
    Ok(Admin {
        address: own,
        unix_sockets: unix_socket::all(raw.unix_socket, base)?,
        allowed_hosts,
        on_http: raw.on_http.unwrap_or(false),
    })
}

fn log(raw: raw::Log, base: &Path) -> Checked<Log> {
    let access_to = match raw.access_to {
        None => AccessTo::Stdout,
        Some(written) => match written.get_ref().as_str() {
            "stdout" => AccessTo::Stdout,
            "stderr" => AccessTo::Stderr,
            file => {
                let path = base.join(file);
                // The parent of a bare name is empty.
                let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
                if !dir.unwrap_or(Path::new(".")).is_dir() || path.is_dir() || file.is_empty() {
                    let message =
                        "write \"stdout\", \"stderr\", or a file in an existing directory";
                    return Err(Mistake::at(written.span(), message));
                }
                AccessTo::File(path)
            }
        },
    };
    let (form, access) = (raw.format.unwrap_or_default(), raw.access.unwrap_or_default());
    Ok(Log { form, access, access_to })
}

fn volumes(raw: Vec<raw::Volume>, base: &Path) -> Checked<Vec<Volume>> {
    let alone = raw.len() == 1;
    let mut all: Vec<Volume> = Vec::with_capacity(raw.len());
    for written in raw {
        let span = written.mount.as_ref().map_or_else(|| written.path.span(), Spanned::span);
        let next = volume(written, base, alone)?;
        if all.iter().any(|volume| volume.mount == next.mount) {
            let message =
                format!("two volumes are mounted at {}; name `mount` for one", next.mount);
            return Err(Mistake::at(span, message));
        }
        all.push(next);
    }
    Ok(all)
}

fn volume(raw: raw::Volume, base: &Path, alone: bool) -> Checked<Volume> {
    // Logs and errors show the path, so it must not depend on the working directory.
    let path = absolute(&base.join(raw.path.get_ref()));
    if !path.is_dir() {
        let message =
            format!("{} is not a directory; create it or correct the path", path.display());
        return Err(Mistake::at(raw.path.span(), message));
    }
    let mount = match raw.mount {
        Some(written) => mount(written.get_ref()).map_err(|m| Mistake::at(written.span(), m))?,
        None if alone => "/".into(),
        None => {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
            mount(&name.unwrap_or_default()).map_err(|_| {
                Mistake::at(raw.path.span(), "several volumes need a `mount` each; add it here")
            })?
        }
    };
    let model = match or_auto(raw.model)? {
        Auto::Auto => path.join(MODEL_FILE),
        Auto::Set((file, _)) => base.join(file),
    };
    let default = Volume::new(path);
    Ok(Volume {
        model,
        mount,
        cycle: auto_quantity(raw.cycle, cycle_fits, CYCLES)?,
        block: auto_quantity(raw.block, block_fits, BLOCKS)?,
        depth: match or_auto(raw.depth)? {
            Auto::Auto => Auto::Auto,
            Auto::Set((depth, span)) => Auto::Set(in_range(depth, span, 1..=256)?),
        },
        budget: quantity(raw.budget, default.budget, Percent::whole(1)..=Percent::WHOLE)?,
        sendfile: raw.sendfile.unwrap_or_default(),
        uploads: raw.uploads.unwrap_or_default(),
        unfinished: raw.unfinished.unwrap_or_default(),
        write_share: quantity(raw.write_share, default.write_share, WRITE_SHARES)?,
        upload_floor: quantity(
            raw.upload_floor,
            default.upload_floor,
            Percent(0)..=Percent::whole(50),
        )?,
        path: default.path,
    })
}

/// From eight slots of a mebibyte, with which two uploads still keep a disk busy, to the writes of
/// some seconds.
const WRITE_SHARES: RangeInclusive<Bytes> = Bytes(8 * MIB)..=Bytes(4096 * MIB);
/// Cycles and seconds have common boundaries, so that a window of one second always holds the same
/// work.
fn cycle_fits(cycle: Nanos) -> bool {
    let in_range = (Nanos::from_millis(50)..=SECOND.times(10)).contains(&cycle);
    in_range && (SECOND.0.is_multiple_of(cycle.0) || cycle.0.is_multiple_of(SECOND.0))
}

const CYCLES: &str = "a cycle divides one second or is a whole number of seconds, 50 ms to 10 s; \
                      write \"250 ms\" for flash, \"1 s\" to \"10 s\" for a spinning disk";

fn block_fits(block: Bytes) -> bool {
    (Bytes(64 * KIB)..=Bytes(16 * MIB)).contains(&block) && block.0.is_power_of_two()
}

const BLOCKS: &str = "a block is a power of two from 64 KiB to 16 MiB; \
                      write \"256 KiB\" for flash, \"1 MiB\" for a spinning disk";

/// `/`, or `/name/` with one or more plain names.
fn mount(text: &str) -> Result<String, String> {
    let inner = text.trim_matches('/');
    let plain =
        |part: &str| !matches!(part, "" | "." | "..") && !part.chars().any(char::is_control);
    if inner.is_empty() && text.starts_with('/') {
        return Ok("/".into());
    }
    if !inner.split('/').all(plain) || inner.starts_with(tactus_media::RESERVED) {
        return Err(format!("{text:?} is not a path of plain names; write \"/\" or \"/films/\""));
    }
    if is_api_path(inner) {
        return Err(API_PATH.into());
    }
    Ok(format!("/{inner}/"))
}

fn memory(raw: raw::Memory) -> Checked<Memory> {
    let enough = |arena: Bytes| arena >= Bytes(16 * MIB);
    Ok(Memory {
        arena: auto_quantity(raw.arena, enough, "the arena needs 16 MiB or more")?,
        streams_max: number(raw.streams_max, Memory::default().streams_max, 1..=1_000_000)?,
        lock: auto_or_off(raw.lock)?,
    })
}

/// Paths of titles and directories, without slashes at their ends.
fn pinned(written: &[Spanned<String>]) -> Checked<Vec<String>> {
    let one = |text: &Spanned<String>| {
        let name = text.get_ref().trim_matches('/');
        let is_plain = name.is_empty() || name.split('/').all(|part| check_name(part).is_ok());
        let message = || format!("{name:?} is no path; write \"/films/a.ts\" or \"/films/\"");
        if !text.get_ref().starts_with('/') || !is_plain {
            return Err(Mistake::at(text.span(), message()));
        }
        if is_api_path(name) {
            return Err(Mistake::at(text.span(), API_PATH.to_owned()));
        }
        Ok(name.to_owned())
    };
    written.iter().map(one).collect()
}

fn link(raw: raw::Link) -> Checked<Link> {
    let fits = |rate: BitRate| (BitRate(100_000)..=pacer::RATE_MAX).contains(&rate);
    Ok(Link {
        rate: auto_quantity(raw.rate, fits, "a link has 100 kbit/s to 1 Tbit/s")?,
        budget: quantity(raw.budget, Link::default().budget, Percent::whole(1)..=Percent::WHOLE)?,
    })
}

fn rate(raw: raw::Rate) -> Checked<Rate> {
    let default = match raw.default {
        None => None,
        Some(written) => {
            let span = written.span();
            match written.into_inner() {
                Switch::Max => None,
                Switch::Value(Value(rate)) => Some(in_range(rate, span, RATES)?),
                Switch::Auto | Switch::Off => {
                    return Err(Mistake::at(span, "write a rate like \"8 Mbit/s\", or \"max\""));
                }
            }
        }
    };
    let usual = Rate::default();
    Ok(Rate {
        default,
        min: quantity(raw.min, usual.min, BitRate(1_000)..=BitRate(10_000_000))?,
        player_buffer: quantity(
            raw.player_buffer,
            usual.player_buffer,
            SECOND..=SECOND.times(600),
        )?,
        segment_multiple: number(raw.segment_multiple, usual.segment_multiple, 1..=100)?,
        segment_max: quantity(raw.segment_max, usual.segment_max, Nanos(0)..=SECOND.times(60))?,
        title: rate_class(raw.title, usual.title)?,
        asked: rate_class(raw.asked, usual.asked)?,
        cmcd: rate_class(raw.cmcd, usual.cmcd)?,
    })
}

/// `"auto"` is the fair share.
fn client_share(
    written: SpannedKey<Switch<Value<Percent>>>,
    default: ClientShare,
) -> Checked<ClientShare> {
    let Some(written) = written else { return Ok(default) };
    Ok(match or_auto(Some(written))? {
        Auto::Auto => ClientShare::Fair,
        Auto::Set((Value(part), span)) => {
            match in_range(part, span, Percent::whole(1)..=Percent::WHOLE)? {
                Percent::WHOLE => ClientShare::All,
                part => ClientShare::Part(part),
            }
        }
    })
}

fn rate_class(raw: raw::RateClass, default: RateClass) -> Checked<RateClass> {
    let tick = match raw.tick {
        None => default.tick,
        Some(written) => {
            let span = written.span();
            let Value(wanted) = written.into_inner();
            Tick::EVEN.into_iter().find(|tick| tick.span() == wanted).ok_or_else(|| {
                let known = Tick::EVEN.map(|tick| exact(tick.span()));
                Mistake::at(
                    span,
                    format!("{wanted} is not a possible tick; write one of {}", known.join(", ")),
                )
            })?
        }
    };
    Ok(RateClass {
        headroom: quantity(raw.headroom, default.headroom, Percent(0)..=Percent::whole(400))?,
        ceiling: quantity(raw.ceiling, default.ceiling, RATES)?,
        start_burst: quantity(raw.start_burst, default.start_burst, Nanos(0)..=SECOND.times(60))?,
        tick,
        client_share: client_share(raw.client_share, default.client_share)?,
    })
}

fn cores(raw: raw::Cores, volumes: usize, packet_servers_max: u16) -> Checked<Cores> {
    let placement = match raw.placement {
        None => Auto::Auto,
        Some(written) => {
            let span = written.span();
            match written.into_inner() {
                AutoOrList::Auto => Auto::Auto,
                AutoOrList::List(list) => {
                    let disks = u16::try_from(volumes.max(1)).unwrap_or(u16::MAX);
                    let plan = list.into_iter().map(core_plan).collect::<Result<_, _>>();
                    let plan = plan.and_then(|plan| placement::complete(plan, disks));
                    let plan = plan.and_then(|plan| {
                        let counts = ServerCounts::of(&plan, disks);
                        let fits = counts.packets <= packet_servers_max;
                        fits.then_some(plan).ok_or_else(|| ONE_PACKET_SERVER.to_owned())
                    });
                    Auto::Set(plan.map_err(|message| Mistake::at(span, message))?)
                }
            }
        }
    };
    let fixed = raw.fixed.into_iter().map(|written| {
        let disks = u16::try_from(volumes.max(1)).unwrap_or(u16::MAX);
        let name = written.get_ref().parse();
        let name = name.and_then(|name| placement::check_name(name, &placement, disks));
        name.map_err(|message| Mistake::at(written.span(), message))
    });
    Ok(Cores {
        fixed: fixed.collect::<Result<_, _>>()?,
        placement,
        realtime: auto_or_off(raw.realtime)?,
        priority: number(raw.priority, Cores::default().priority, 1..=99)?,
        balance: auto_or_off(raw.balance)?,
        ..Cores::default()
    })
}

fn packets(raw: raw::Packets) -> Checked<Packets> {
    let ticks = Nanos::from_micros(50)..=Nanos::from_millis(5);
    Ok(Packets {
        tick: quantity(raw.tick, Packets::default().tick, ticks)?,
        back_end: raw.back_end.unwrap_or_default(),
    })
}

fn gap_frames(raw: raw::GapFrames, back_end: BackEnd) -> Checked<Option<GapFrames>> {
    let rate = quantity(raw.rate, GapFrames::RATE, GAP_RATES)?;
    let overhead = number(raw.overhead, GapFrames::OVERHEAD, 0..=100)?;
    let otherwise = "write the name of a network device reserved for these datagrams, or \"off\"";
    let Some((device, span)) = unless_off(raw.device, otherwise)? else { return Ok(None) };
    if back_end != BackEnd::Auto {
        let message =
            "[gap_frames] and `[packets] back_end` exclude each other; remove `[packets] back_end`";
        return Err(Mistake::at(span, message));
    }
    Ok(Some(GapFrames { device, rate, overhead }))
}

/// Above this rate, 2 ms do not fit into the ring of frames.
const GAP_RATES: RangeInclusive<BitRate> = BitRate(10_000_000)..=BitRate(10_000_000_000);
const ONE_PACKET_SERVER: &str = "[[class]], [gap_frames] and the back end \"af_xdp\" need a \
                                 single packet server; remove packets.1 and all further ones";

fn core_plan(core: raw::Core) -> Result<CorePlan, String> {
    let servers = core.servers.iter().map(|name| name.parse()).collect::<Result<_, _>>()?;
    Ok(CorePlan { cpu: core.cpu, servers })
}

fn best_effort(raw: raw::BestEffort) -> Checked<BestEffort> {
    let default = BestEffort::default();
    Ok(BestEffort {
        streams_max: match or_auto(raw.streams_max)? {
            Auto::Auto => default.streams_max,
            Auto::Set((streams, span)) => Auto::Set(in_range(streams, span, 0..=100_000)?),
        },
        client_share: client_share(raw.client_share, default.client_share)?,
    })
}

fn slow_reader(raw: raw::SlowReader) -> Checked<SlowReader> {
    let default = SlowReader::default();
    Ok(SlowReader {
        behind_max: quantity(raw.behind_max, default.behind_max, SECOND..=SECOND.times(600))?,
        download_rate_min: quantity(
            raw.download_rate_min,
            default.download_rate_min,
            BitRate(0)..=BitRate(1_000_000_000),
        )?,
        download_window: quantity(
            raw.download_window,
            default.download_window,
            SECOND..=SECOND.times(3600),
        )?,
    })
}

fn address(text: &str, span: Range<usize>) -> Checked<SocketAddr> {
    super::address::parse(text).map_err(|message| Mistake::at(span, message))
}
