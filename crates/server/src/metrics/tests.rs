//! The properties of the figures, on a running engine.

use std::sync::Arc;

use tactus_control::engine;
use tactus_control::pins::Pins;
use tactus_core::units::{Bytes, MIB};
use tactus_notation::Auto;

use super::*;

const OPEN: Option<&str> = Some("application/openmetrics-text");

struct Fixture {
    figures: MetricsEndpoint,
    _engine: Engine,
    _dir: tempfile::TempDir,
}

fn fixture() -> Fixture {
    let dir = tempfile::tempdir_in(std::env::current_dir().unwrap()).unwrap();
    let mut config = Config::unconfigured();
    config.serve_only(dir.path());
    config.memory.arena = Auto::Set(Bytes(16 * MIB));
    config.memory.streams_max = 16;
    config.volumes[0].uploads = true;
    let engine = engine::start(&config.engine()).unwrap();
    let catalogue =
        Catalogue::new(dir.path(), tactus_storage::catalogue::CatalogueRules::default());
    let catalogue = Arc::new(catalogue.unwrap());
    let rtsp = Rtsp::new(&config.rtsp, &catalogue, &engine.broker, None).unwrap();
    let classes = Classes::new(&config.classes, &engine.broker, &engine.counters.classes);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let pins = runtime.block_on(async { Pins::begin(&[], &catalogue, &engine.broker) });
    let figures = MetricsEndpoint::new(MetricsSources {
        engine: &engine,
        config: &config,
        catalogue,
        http: Arc::default(),
        classes,
        pins,
        recordings: None,
        recorder: None,
        uploads: None,
        channels: None,
        rtsp: Some(rtsp),
    });
    Fixture { figures, _engine: engine, _dir: dir }
}

fn text(response: Option<Response>) -> String {
    let response = response.expect("the path is one of the figures'");
    assert_eq!(response.status(), 200);
    String::from_utf8(response.content().to_vec()).unwrap()
}

#[test]
fn figures_are_told_and_other_paths_are_left_to_titles() {
    let fixture = fixture();
    let answer = |path| fixture.figures.answer(path, None, OPEN);
    assert!(answer("/film.ts").is_none());
    assert!(answer("/metrics.ts").is_none());
    assert_eq!(answer("/api/v2/").unwrap().status(), 404);

    let page = text(answer("/metrics"));
    assert!(page.ends_with("# EOF\n"));
    for name in [
        "tactus_build{version=\"0.1.0\"} 1",
        "tactus_streams_ended_total{outcome=\"too_slow\"} 0",
        "# TYPE tactus_server_busy_seconds counter",
        "tactus_server_busy_seconds_total{server=\"disk.0\"} ",
        "tactus_server_busy_seconds_total{server=\"link\"} ",
        "tactus_server_moves_total{cause=\"command\"} 0",
        "tactus_server_moves_total{cause=\"idle\"} 0",
        "tactus_server_move_pauses_seconds_total 0",
        "tactus_lateness_seconds_bucket{le=\"0.005\"} 0",
        "tactus_deviation_ratio_bucket{le=\"+Inf\"} 0",
        "tactus_disk_cycles_missed_total{volume=\"/\"} 0",
        "tactus_degradation_level{volume=\"/\"} 0",
        "tactus_degradation_ended_total{volume=\"/\"} 0",
        "tactus_disk_written_bytes_total{volume=\"/\",time=\"floor\"} 0",
        "tactus_disk_flush_seconds_bucket{le=\"0.1\",volume=\"/\"} 0",
        "tactus_write_share_places{volume=\"/\",state=\"used\"} 0",
        "tactus_recorders{volume=\"/\"} 0",
        "tactus_recorded_bytes_total{volume=\"/\"} 0",
        "tactus_recorded_gaps_total{volume=\"/\",cause=\"disk\"} 0",
        "tactus_recorded_lost_bytes_total{volume=\"/\",cause=\"rate\"} 0",
        "tactus_packets_total 0",
        "# TYPE tactus_queue_dropped counter",
        "tactus_rtcp_lost_ratio_bucket{le=\"0.01\"} 0",
        "tactus_rtcp_jitter_seconds_count 0",
        "tactus_rtcp_round_trip_seconds_sum 0",
        "tactus_packet_lateness_seconds_count 0",
        "tactus_promised_ratio{resource=\"disk\",volume=\"/\"} 0",
        "tactus_refusals_total{resource=\"cpu\"} 0",
        "tactus_http_abuse_total{kind=\"slow_header\"} 0",
    ] {
        assert!(page.contains(name), "{name} is not in\n{page}");
    }

    let status: serde_json::Value = serde_json::from_str(&text(answer("/api/v1/status"))).unwrap();
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(status["streams"].as_array().map(Vec::len), Some(0));
    assert_eq!(status["recordings"].as_array().map(Vec::len), Some(0));
    assert_eq!(status["channels"].as_array().map(Vec::len), Some(0));
    assert_eq!(status["packets"]["datagrams"], 0);
    assert!(status["packets"]["queues"].is_array());
    assert_eq!(status["volumes"][0]["arena"], "16 MiB");
    assert_eq!(status["volumes"][0]["degradation"]["level"], 0);
    assert_eq!(status["volumes"][0]["uploads"]["write_share"], "64 MiB");
    assert_eq!(status["volumes"][0]["uploads"]["places_used"], 0);
    let servers = status["placement"].as_array().unwrap().iter();
    assert_eq!(servers.map(|core| core["servers"].as_array().unwrap().len()).sum::<usize>(), 6);
    assert_eq!(status["placement"][0]["online"], true);
    assert_eq!(status["moves"].as_array().map(Vec::len), Some(0));
}

#[test]
fn capacity_is_told_for_the_rate_that_is_asked_for() {
    let fixture = fixture();
    let ask = |query| fixture.figures.answer("/api/v1/capacity", query, None);
    let json = |query| serde_json::from_str::<serde_json::Value>(&text(ask(query))).unwrap();
    let usual = json(None);
    assert_eq!(usual["fits"].as_array().map(Vec::len), Some(capacity::RATES.len()));
    let asked = json(Some("rate=1M"));
    assert_eq!(asked["fits"][0]["rate_bits_per_second"], 1_000_000);
    assert!(asked["fits"][0]["streams"].as_u64().is_some_and(|fits| (1..=16).contains(&fits)));
    assert!(asked["fits"][0]["recordings"].as_u64().is_some_and(|fits| fits > 0));
    let resources = ["disk", "memory", "link", "cpu", "streams"];
    for fits in usual["fits"].as_array().unwrap() {
        let ends_with = fits["ends_with"].as_str().unwrap();
        assert!(resources.contains(&ends_with), "n14: {ends_with}");
    }
    let full = json(Some("rate=900G"));
    assert_eq!(full["fits"][0]["streams"], 0);
    assert_eq!(full["fits"][0]["recordings"], 0);
    let wrong = ask(Some("rate=fast")).unwrap();
    assert_eq!(wrong.status(), 400);
}

/// Line by line: `# TYPE` and `# HELP` for each family, and every family in the guide.
#[test]
fn every_metric_is_in_the_guide() {
    let fixture = fixture();
    let guide = include_str!("../../../../docs/guide/metrics.md");
    let page = text(fixture.figures.answer("/metrics", None, OPEN));
    let families = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    for family in families {
        let name = family.split(' ').next().unwrap();
        assert!(guide.contains(&format!("`{name}")), "{name} is not in docs/guide/metrics.md");
    }
}

/// `promtool check metrics` parses the page as Prometheus does, and reports names that break its
/// rules.
#[test]
fn w11_promtool_finds_nothing_wrong_in_either_format() {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    let fixture = fixture();
    let page = text(fixture.figures.answer("/metrics", None, Some("text/plain")));
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is installed (Debian package prometheus)");
    promtool.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let found = promtool.wait_with_output().unwrap();
    let said = [found.stdout, found.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(found.status.success() && said.trim().is_empty(), "{said}\n{page}");
}

#[test]
fn w11_format_0_0_4_has_help_texts_and_base_units() {
    let fixture = fixture();
    let response = fixture.figures.answer("/metrics", None, None);
    let page = text(response);
    assert!(!page.contains("# EOF") && !page.contains("# UNIT"));
    let names: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    for name in names {
        let (name, kind) = name.split_once(' ').unwrap();
        assert!(page.contains(&format!("# HELP {name} ")), "{name}");
        assert_eq!(kind == "counter", name.ends_with("_total"), "{name} {kind}");
        assert!(!name.contains("bits"), "{name}");
    }
    for name in ["process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"] {
        assert!(page.contains(&format!("\n{name} ")), "{name}");
    }
}

#[test]
fn n13_liveness_and_readiness_have_answers() {
    let fixture = fixture();
    let answer = |path| fixture.figures.answer(path, None, None);
    assert_eq!(text(answer("/healthz")), "alive\n");
    let ready = answer("/readyz").unwrap();
    // A test host may deny rights, which is a warning.
    assert_eq!(ready.status(), 200);
    assert!(ready.content().starts_with(b"ready\n"));
}
