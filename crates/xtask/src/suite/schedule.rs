//! Which tests share a process, which run side by side, and which run alone.
//!
//! Promise: every listed test stands in exactly one process of the plan, or is counted as left out
//! by the quick gate. Every name in the tables here is a test's; a stale one is an error of the
//! whole gate.

use std::cmp::Reverse;
use std::fmt;

use anyhow::{Result, ensure};

/// Tests that judge exact times of a real-time server, so that nothing runs beside them: binary,
/// test or every test (`*`), and what is judged.
const EXACT: &[(&str, &str, &str)] = &[
    (
        "channels",
        "what_repeats_is_one_clean_stream_and_null_packets_make_a_constant_rate",
        "no late slot and no underrun, clocks within 500 ns",
    ),
    (
        "classes",
        "channels_share_what_their_class_may_have_and_are_refused_by_its_name",
        "shares of a class within a hundredth in each of three seconds without an underrun",
    ),
    (
        "faults",
        "host::f_30_after_five_seconds_of_standstill_nothing_comes_at_once",
        "no second with more than seventeen ticks, by when a receiver gets them",
    ),
    (
        "program",
        "adaptive::r02_hls_js_is_at_the_highest_level_with_the_third_segment_of_fragments",
        "a level that hls.js chooses by the speed of its downloads",
    ),
    (
        "program",
        "adaptive::r02_hls_js_is_at_the_highest_level_with_the_third_segment_of_transport_streams",
        "a level that hls.js chooses by the speed of its downloads",
    ),
    (
        "program",
        "operating::stalls::\
         s04_a_real_time_program_that_takes_the_core_is_logged_counted_and_shown",
        "the time that this test takes from the core of a server, and of any beside it",
    ),
];

/// Tests that judge times with a margin of tenths of a second, so that few others may run beside
/// them: two of these at once, in this order. Columns as in [`EXACT`].
const QUIET: &[(&str, &str, &str)] = &[
    (
        "program",
        "variable_rates::r01_r06_a_player_that_buffers_two_seconds_never_waits",
        "players that wait for less than a fifth of a second in all",
    ),
    (
        "program",
        "variable_rates::r01_the_first_viewer_of_a_title_never_waits",
        "players that wait for less than a fifth of a second in all",
    ),
    (
        "faults",
        "live::f_12_a_disk_that_stalls_costs_a_recording_a_counted_gap_and_nobody_else_anything",
        "no underrun, on a disk that is a process without priority",
    ),
    (
        "faults",
        "disk::f_05_a_read_error_ends_its_stream_and_no_other",
        "no underrun, lateness below 400 ms, on a disk that is a process without priority",
    ),
    (
        "faults",
        "disk::f_11_pauses_of_a_fifth_of_a_second_are_covered",
        "no underrun, on a disk that is a process without priority",
    ),
];

/// The longest tests that run side by side, in seconds. They begin first, so that none of them is
/// left over at the end. The quick gate leaves out those of [`QUICK_MAX`] and more.
const LONG: &[(&str, &str, u32)] = &[
    ("program", "rtsp_matrix::gstreamer_gets_every_byte_to_the_end_in_both_versions", 98),
    ("program", "rtsp_matrix::ffmpeg_decodes_every_frame_of_a_movie", 96),
    ("program", "conformance::every_scale_is_clean", 63),
    ("program", "rtsp_matrix::gstreamer_does_so_too_in_two", 58),
    (
        "program",
        "rtsp_matrix::gstreamer_plays_pauses_seeks_and_goes_faster_in_movies_over_each_transport",
        58,
    ),
    ("program", "rtsp_matrix::gstreamer_plays_pauses_seeks_and_goes_faster_in_two", 55),
    (
        "program",
        "rtsp_matrix::gstreamer_plays_pauses_seeks_and_goes_faster_over_each_transport",
        54,
    ),
    (
        "program",
        "conformance::jumps::a_session_that_jumps_while_it_is_played_and_in_a_pause_is_clean",
        49,
    ),
    ("rtsp_check", "no_check_fails_here", 49),
    ("program", "rtsp_matrix::mpv_decodes_every_frame_pauses_and_seeks_over_each_transport", 48),
    (
        "trick",
        "what_is_shown_faster_and_backwards_is_clean_and_every_video_frame_of_it_decodes",
        41,
    ),
    ("program", "conformance::what_was_recorded_by_rtsp_is_clean", 38),
    ("program", "rtsp_retina::every_frame_of_video_and_audio_of_a_movie_is_as_in_the_file", 37),
    ("program", "rtsp_matrix::ffmpeg_decodes_every_frame_and_seeks_over_each_transport", 36),
    ("program", "rtsp_matrix::mpv_plays_movies_so_too", 36),
    ("rtsp_record", "ffmpeg_records_a_film_by_udp_and_in_the_connection_with_every_frame", 36),
    ("rtsp_movies", "scales::video_frames_of_open_groups_of_h265_do_so_too", 35),
    ("rtsp_record", "gstreamer_records_a_film_and_a_transport_stream", 35),
    ("program", "rtsp_retina::of_video_frames_by_h265_too", 34),
    ("rtsp_movies", "scales::video_frames_of_h264_come_at_the_scale_in_order_and_decode", 33),
    ("program", "rtsp_matrix::aiortsp_plays_pauses_seeks_and_goes_faster", 29),
    ("program", "conformance::rtsp_is_clean_over_each_transport_over_a_pause_and_after_a_seek", 28),
    ("rtsp_movies", "ffmpeg_seeks_and_decodes_what_the_file_has_from_there_on", 28),
    (
        "promises",
        "classes::a_class_that_changes_has_its_new_rates_at_once_and_moves_no_datagram_of\
         _another",
        25,
    ),
    ("bad_input", "stops::p01_datagrams_of_any_length_are_recorded_byte_by_byte", 23),
    (
        "channels",
        "nothing_begins_before_its_time_whatever_is_missing_and_what_comes_till_then_is_sent",
        22,
    ),
    ("generated_movie", "ffmpeg_decodes_every_frame_of_video_and_audio", 22),
    ("program", "conformance::jumps::a_channel_that_is_changed_while_it_is_sent_is_clean", 22),
    ("program", "conformance::rtsp_of_a_variable_rate_is_clean_by_datagrams", 22),
    (
        "program",
        "uploaders::dav::w05_rclone_syncs_odd_names_both_ways_and_sends_only_changes_as_owncloud",
        22,
    ),
    (
        "program",
        "live::listeners_get_the_bytes_of_the_datagrams_at_their_pace_over_changes_of_title",
        21,
    ),
    (
        "program",
        "uploaders::dav::w05_rclone_syncs_odd_names_both_ways_and_sends_only_changes_as\
         _nextcloud",
        21,
    ),
    ("rtsp_movies", "ffprobe_gets_every_frame_of_video_and_audio_to_the_goodbye", 21),
    ("bad_input", "stops::p06_a_title_whose_source_stops_ends_with_the_silence", 20),
    ("disk", "stress::ports_that_go_with_reads_in_flight_leave_memory_and_contents_right", 20),
    ("program", "live::a_channel_that_ends_sends_the_last_chunk_and_the_connection_goes_on", 20),
    ("program", "uploaders::rclone_goes_on_where_it_or_the_server_was_killed", 20),
    ("channels", "a_skip_leaves_what_is_on_the_air_then_and_nothing_that_comes_later", 18),
    (
        "faults",
        "disk::f_10_p11_a_disk_that_has_become_slow_costs_what_was_begun_last_and_recovers",
        17,
    ),
    ("program", "live::curl_and_ffprobe_take_it_as_a_stream", 17),
    ("rtsp", "s11_s15_who_is_silent_is_sent_no_more_and_its_rate_comes_back", 17),
    ("channels", "titles_follow_each_other_in_one_session_with_reports_and_a_goodbye", 16),
    (
        "faults",
        "kill::f_04_killed_at_any_moment_it_has_all_that_was_acknowledged_and_nothing_half",
        16,
    ),
    ("rtsp_movies", "scales::the_scale_changes_while_it_plays_and_it_goes_on_from_there", 16),
    (
        "program",
        "uploaders::dav::w08_rclone_lists_and_copies_all_of_a_large_directory_by_http_and_webdav",
        15,
    ),
    ("bad_input", "live::ffmpeg_sends_by_udp_and_rtp_and_what_it_sent_is_recorded", 14),
    ("bad_input", "web::w08_a_directory_of_any_size_is_listed_whole_sorted_and_in_pages", 14),
    (
        "program",
        "everyday::page::n02_w09_the_page_sorts_filters_takes_dropped_files_and_plays_mp4_and_ts",
        14,
    ),
    ("program", "uploaders::tuspy_goes_on_through_cuts_and_kills", 14),
    ("rtsp_movies", "gstreamer_plays_to_the_end", 14),
    ("faults", "disk::f_13_without_inodes_only_new_titles_are_refused", 13),
    ("program", "conformance::jumps::a_session_is_clean_over_changes_of_its_scale", 13),
    ("program", "players::vlc_gets_every_byte_and_decodes_without_a_complaint", 13),
    ("program", "uploaders::tactus_put_goes_on_through_cuts_and_kills", 13),
    (
        "program",
        "uploaders::tactus_record_has_the_server_receive_a_stream_and_waits_for_its_title",
        13,
    ),
    ("program", "uploaders::tus_js_client_goes_on_through_cuts_and_kills", 13),
    ("rtsp", "a_report_that_comes_in_two_reads_is_not_slow", 13),
    ("rtsp", "ffmpeg_plays_every_packet_of_a_title", 13),
    ("faults", "damage::f_09_random_damage_is_found_before_it_is_copied", 12),
    ("faults", "damage::f_09_random_damage_is_found_before_it_is_sent_by_reference", 12),
    ("program", "rtsp_retina::every_packet_of_a_transport_stream_is_as_in_the_file", 12),
    (
        "rtsp_movies",
        "fragments::r07_fragments_without_a_stated_duration_are_played_whole_and_sought_in",
        12,
    ),
    ("rtsp_movies", "s15_movies_that_hold_nothing_are_counted_whatever_they_have_played", 12),
];

/// The longest test of the quick gate, in seconds.
const QUICK_MAX: u32 = 20;

/// Unit tests that the quick gate leaves out: each hands thousands of mutations to one parser, and
/// together they compute a sixth of what all unit tests do.
const QUICK_WITHOUT: &str = "fuzz_targets::";

/// Unit tests of one process. They are short; a process for each would cost more than it runs.
const UNITS: usize = 40;

/// A test binary and its tests.
pub(super) struct Target {
    pub(super) name: String,
    pub(super) is_integration: bool,
    pub(super) tests: Vec<String>,
}

/// Tests of one binary that one process runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shard {
    /// Index of the binary.
    pub(super) target: usize,
    pub(super) name: String,
    pub(super) tests: Vec<String>,
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, tests, .. } = self;
        match &tests[..] {
            [one] => write!(f, "{name}: {one}"),
            [first, ..] => write!(f, "{name}: {first} and {} more", tests.len() - 1),
            [] => write!(f, "{name}"),
        }
    }
}

/// What runs, in its order.
pub(super) struct Plan {
    /// The longest ones, side by side. Empty in the quick gate, which has nothing that judges.
    pub(super) long: Vec<Shard>,
    /// Then in pairs.
    pub(super) quiet: Vec<Shard>,
    /// Then one by one.
    pub(super) alone: Vec<Shard>,
    /// Then side by side.
    pub(super) beside: Vec<Shard>,
    /// Tests that the quick gate does not run.
    pub(super) left_out: usize,
}

impl Plan {
    pub(super) fn new(targets: &[Target], is_quick: bool) -> Result<Self> {
        Self::by(targets, is_quick, &Tables { exact: EXACT, quiet: QUIET, long: LONG })
    }

    fn by(targets: &[Target], is_quick: bool, tables: &Tables) -> Result<Self> {
        if !is_quick {
            tables.check(targets)?;
        }
        let mut plan =
            Self { long: vec![], quiet: vec![], alone: vec![], beside: vec![], left_out: 0 };
        for (target, binary) in targets.iter().enumerate() {
            let shard = |tests: &[&String]| Shard {
                target,
                name: binary.name.clone(),
                tests: tests.iter().map(ToString::to_string).collect(),
            };
            let (exact, rest): (Vec<_>, Vec<_>) = binary
                .tests
                .iter()
                .partition(|test| place_in(tables.exact, &binary.name, test).is_some());
            let (quiet, rest): (Vec<_>, Vec<_>) = rest
                .into_iter()
                .partition(|test| place_in(tables.quiet, &binary.name, test).is_some());
            let (long, mut short): (Vec<_>, Vec<_>) =
                rest.into_iter().partition(|test| tables.seconds(&binary.name, test) >= QUICK_MAX);
            if is_quick {
                let listed = short.len();
                short.retain(|test| !test.starts_with(QUICK_WITHOUT));
                plan.left_out += listed - short.len();
            }
            if is_quick {
                plan.left_out += exact.len() + quiet.len() + long.len();
            } else {
                // Those of one binary share what they prepare, and run one after the other.
                plan.alone.extend(exact.chunks(1).map(shard));
                plan.quiet.extend(quiet.chunks(1).map(shard));
                plan.beside.extend(long.chunks(1).map(shard));
            }
            let size = if binary.is_integration { 1 } else { UNITS };
            plan.beside.extend(short.chunks(size).map(shard));
        }
        plan.beside.sort_by_key(|shard| {
            Reverse(shard.tests.iter().map(|test| tables.seconds(&shard.name, test)).max())
        });
        if !is_quick {
            let is_long = |shard: &Shard| {
                shard.tests.iter().any(|test| tables.seconds(&shard.name, test) > 0)
            };
            let rest = plan.beside.split_off(plan.beside.partition_point(is_long));
            plan.long = std::mem::replace(&mut plan.beside, rest);
        }
        plan.quiet.sort_by_key(|shard| place_in(tables.quiet, &shard.name, &shard.tests[0]));
        Ok(plan)
    }
}

struct Tables<'a> {
    exact: &'a [(&'a str, &'a str, &'a str)],
    quiet: &'a [(&'a str, &'a str, &'a str)],
    long: &'a [(&'a str, &'a str, u32)],
}

impl Tables<'_> {
    fn check(&self, targets: &[Target]) -> Result<()> {
        let judging = self.exact.iter().chain(self.quiet).map(|(binary, test, _)| (binary, test));
        let long = self.long.iter().map(|(binary, test, _)| (binary, test));
        for (binary, test) in judging.chain(long) {
            let mut named = targets.iter().filter(|target| target.name == *binary);
            let is_there =
                |target: &Target| *test == "*" || target.tests.iter().any(|listed| listed == test);
            ensure!(named.any(is_there), "no such test any more: {binary}: {test}");
        }
        Ok(())
    }

    fn seconds(&self, binary: &str, test: &str) -> u32 {
        let row = self.long.iter().find(|(name, long, _)| *name == binary && *long == test);
        row.map_or(0, |(_, _, seconds)| *seconds)
    }
}

/// The row of a test that judges times.
fn place_in(table: &[(&str, &str, &str)], binary: &str, test: &str) -> Option<usize> {
    table.iter().position(|(name, row, _)| *name == binary && (*row == test || *row == "*"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets() -> [Target; 2] {
        let target = |name: &str, is_integration, tests: Vec<String>| Target {
            name: name.to_owned(),
            is_integration,
            tests,
        };
        let units = (0..UNITS + 1).map(|nth| format!("unit_{nth}"));
        let units = units.chain([format!("{QUICK_WITHOUT}no_bytes_crash_it")]).collect();
        let players = ["even", "exact", "long", "longer", "quiet", "short"];
        let players = players.map(str::to_owned).to_vec();
        [target("core", false, units), target("players", true, players)]
    }

    const TABLES: Tables<'_> = Tables {
        exact: &[("players", "exact", "it counts microseconds")],
        quiet: &[("players", "quiet", "tenths of a second"), ("players", "even", "the same")],
        long: &[("players", "long", QUICK_MAX), ("players", "longer", QUICK_MAX + 1)],
    };

    #[test]
    fn every_listed_test_stands_in_exactly_one_process() {
        let targets = targets();
        let plan = Plan::by(&targets, false, &TABLES).unwrap();
        let mut planned: Vec<_> =
            plan.long.iter().chain(&plan.quiet).chain(&plan.alone).chain(&plan.beside).collect();
        planned.sort_by_key(|shard| shard.target);
        let mut planned: Vec<_> = planned
            .iter()
            .flat_map(|shard| shard.tests.iter().map(|test| (shard.target, test)))
            .collect();
        let mut listed: Vec<_> = (0..targets.len())
            .flat_map(|target| targets[target].tests.iter().map(move |test| (target, test)))
            .collect();
        planned.sort();
        listed.sort();
        assert_eq!(planned, listed);
        assert_eq!(plan.left_out, 0);
    }

    #[test]
    fn exact_tests_run_alone_others_that_judge_times_in_pairs_and_the_longest_begin_first() {
        let plan = Plan::by(&targets(), false, &TABLES).unwrap();
        let names = |shards: &[Shard]| shards.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(names(&plan.alone), ["players: exact"]);
        assert_eq!(names(&plan.quiet), ["players: quiet", "players: even"], "as in the table");
        let beside = names(&plan.beside);
        assert_eq!(names(&plan.long), ["players: longer", "players: long"]);
        assert!(beside.contains(&format!("core: unit_0 and {} more", UNITS - 1)), "{beside:?}");
    }

    #[test]
    fn the_quick_plan_counts_what_it_leaves_out() {
        let plan = Plan::by(&targets(), true, &TABLES).unwrap();
        assert!(plan.long.is_empty() && plan.quiet.is_empty() && plan.alone.is_empty());
        let planned: usize = plan.beside.iter().map(|shard| shard.tests.len()).sum();
        assert_eq!((planned, plan.left_out), (UNITS + 2, 6));
    }

    #[test]
    fn a_name_in_a_table_that_no_test_has_is_an_error() {
        let tables = Tables { long: &[("players", "renamed", 60)], ..TABLES };
        let error = Plan::by(&targets(), false, &tables).err().unwrap();
        assert!(error.to_string().contains("players: renamed"), "{error}");
    }
}
