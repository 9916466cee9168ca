//! The two text formats of Prometheus, and their negotiation.
//!
//! Promise: OpenMetrics 1.0 if the scraper accepts it with no lower preference, else format 0.0.4,
//! which every scraper reads. The content is the same.

/// <https://prometheus.io/docs/instrumenting/exposition_formats/>
pub(super) const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
/// <https://github.com/prometheus/OpenMetrics>
pub(super) const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Whether `accept` (RFC 9110 section 12.5.1) prefers OpenMetrics.
pub(super) fn wants_open_metrics(accept: Option<&str>) -> bool {
    let mut open_metrics = 0;
    let mut text = 0;
    for range in accept.unwrap_or_default().split(',') {
        let mut parts = range.split(';').map(str::trim);
        let media_type = parts.next().unwrap_or_default().to_ascii_lowercase();
        let (mut weight, mut is_known) = (1000, true);
        for parameter in parts {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let value = value.trim().trim_matches('"');
            match name.trim().to_ascii_lowercase().as_str() {
                "q" => weight = thousandths(value),
                "version" => is_known = matches!(value, "1.0.0" | "0.0.1" | "0.0.4"),
                _ => {}
            }
        }
        match media_type.as_str() {
            "application/openmetrics-text" if is_known => open_metrics = open_metrics.max(weight),
            "text/plain" if is_known => text = text.max(weight),
            _ => {}
        }
    }
    open_metrics > 0 && open_metrics >= text
}

/// A weight of at most three decimals (RFC 9110 section 12.4.2); an invalid one counts as zero.
fn thousandths(text: &str) -> u32 {
    match text.parse::<f64>() {
        Ok(weight) if (0.0..=1.0).contains(&weight) => (weight * 1000.0).round() as u32,
        _ => 0,
    }
}

/// Converts a page of OpenMetrics to format 0.0.4: counters have `_total` in their metric names,
/// and there are no units and no end mark.
pub(super) fn prometheus(open_metrics: &str) -> String {
    let mut page = String::with_capacity(open_metrics.len());
    let mut help: Option<(&str, &str)> = None;
    for line in open_metrics.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = Some(rest.split_once(' ').unwrap_or((rest, "")));
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap_or((rest, "untyped"));
            let ending = if kind == "counter" { "_total" } else { "" };
            let kind = if kind == "unknown" { "untyped" } else { kind };
            if let Some((_, text)) = help.take().filter(|(of, _)| *of == name) {
                page += &format!("# HELP {name}{ending} {text}\n");
            }
            page += &format!("# TYPE {name}{ending} {kind}\n");
        } else if !line.starts_with("# UNIT ") && line != "# EOF" {
            page.push_str(line);
            page.push('\n');
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w11_a_scraper_gets_the_format_that_it_asks_for() {
        // The `Accept` fields of Prometheus 2 and 3, curl, and browsers.
        for (accept, wants) in [
            (None, false),
            (Some(""), false),
            (Some("*/*"), false),
            (Some("text/html,application/xhtml+xml,*/*;q=0.8"), false),
            (Some("text/plain"), false),
            (Some("text/plain;version=0.0.4"), false),
            (Some("application/openmetrics-text"), true),
            (Some("application/openmetrics-text; version=1.0.0; charset=utf-8"), true),
            (Some("application/openmetrics-text;version=\"1.0.0\""), true),
            (Some("APPLICATION/OpenMetrics-Text; Version=1.0.0"), true),
            (Some("application/openmetrics-text;version=2.0.0"), false),
            (Some("application/openmetrics-text;q=0"), false),
            (Some("application/openmetrics-text;q=x"), false),
            (Some("application/openmetrics-text;q=0.3,text/plain;version=0.0.4;q=0.7"), false),
            (
                Some(
                    "application/openmetrics-text;version=1.0.0;q=0.5,\
                     application/openmetrics-text;version=0.0.1;q=0.4,\
                     text/plain;version=1.0.0;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
                ),
                true,
            ),
            (
                Some(
                    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;\
                     encoding=delimited;q=0.6,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                ),
                false,
            ),
        ] {
            assert_eq!(wants_open_metrics(accept), wants, "{accept:?}");
        }
    }

    #[test]
    fn w11_both_formats_have_the_same_content() {
        let open_metrics = "# HELP a_bytes Bytes.\n# TYPE a_bytes counter\n# UNIT a_bytes bytes\n\
                            a_bytes_total{x=\"# EOF\"} 1\n# HELP b How many.\n# TYPE b gauge\nb 2\n\
                            # TYPE c unknown\nc 3\n# EOF\n";
        assert_eq!(
            prometheus(open_metrics),
            "# HELP a_bytes_total Bytes.\n# TYPE a_bytes_total counter\n\
             a_bytes_total{x=\"# EOF\"} 1\n# HELP b How many.\n# TYPE b gauge\nb 2\n\
             # TYPE c untyped\nc 3\n"
        );
    }
}
