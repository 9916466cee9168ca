//! A report as one page: self-contained, for light and dark, readable without colour.

use std::fmt::Write;

use anyhow::Result;

use super::markup::escaped;
use super::{Report, Table, plot, text};

/// The page.
pub(super) fn page(report: &Report) -> Result<String> {
    let mut body = String::new();
    write!(
        body,
        "<h1>{}</h1><p class=lead>{}</p>",
        escaped(&report.name),
        escaped(&report.question)
    )?;
    for note in &report.notes {
        write!(body, "<p class=note>{}</p>", escaped(note))?;
    }
    if !report.verdicts.is_empty() {
        table(&mut body, &text::verdicts(report))?;
    }
    for each in &report.tables {
        table(&mut body, each)?;
    }
    for each in &report.plots {
        write!(body, "<figure>{}</figure>", plot::svg(each)?)?;
    }
    if !report.limits.is_empty() {
        let mut limits = Table::new("Physical limits in the same hour", &["limit", "value"]);
        for limit in &report.limits {
            limits.row(vec![limit.name.clone(), limit.value.clone()]);
        }
        table(&mut body, &limits)?;
    }
    let mut machine = Table::new("Machine", &["", ""]);
    for (name, value) in report.machine.facts() {
        machine.row(vec![name.into(), value.into()]);
    }
    machine.row(vec!["load average at the end".into(), report.load_at_end.clone()]);
    let steal = report.steal().map_or("unknown".into(), |share| format!("{share:.2} %"));
    machine.row(vec!["steal time in the runs, of the machine".into(), steal]);
    table(&mut body, &machine)?;
    write!(body, "<h2>Method</h2><ul>")?;
    for sentence in &report.method {
        write!(body, "<li>{}</li>", escaped(sentence))?;
    }
    write!(body, "</ul><h2>Settings</h2>")?;
    for (name, settings) in &report.settings {
        let (name, settings) = (escaped(name), escaped(settings));
        write!(body, "<details><summary>{name}</summary><pre>{settings}</pre></details>")?;
    }
    write!(body, "<h2>Every run</h2>")?;
    for (place, run) in report.runs.iter().enumerate() {
        let name = run.get("name").and_then(|name| name.as_str()).unwrap_or("run");
        let values = serde_json::to_string_pretty(run)?;
        let (number, name, values) = (place + 1, escaped(name), escaped(&values));
        write!(body, "<details><summary>{number}. {name}</summary><pre>{values}</pre></details>")?;
    }
    Ok(format!(
        "<!doctype html><html lang=en><meta charset=utf-8>\
         <meta name=viewport content=\"width=device-width,initial-scale=1\">\
         <title>{} - Tactus bench</title><style>{STYLE}</style><main>{body}</main></html>\n",
        escaped(&report.name)
    ))
}

const STYLE: &str = "\
:root{color-scheme:light \
     dark;--ground:#fff;--ink:#1c2430;--soft:#5b6675;--line:#d9dee5;--mark:#b3261e;--s0:#1f5fbf;\
     --s1:#0f8577;--s2:#c46a00;--s3:#7a3fb5;--s4:#66707d;--s5:#a8336b}@media(prefers-color-scheme:\
     dark){:root{--ground:#14181e;--ink:#e6eaf0;--soft:#9aa6b5;--line:#323a45;--mark:#ff8a80;--s0:\
     #6ea8ff;--s1:#43c7b4;--s2:#f0a848;--s3:#c293f0;--s4:#9aa6b5;--s5:#f07fb0}}body{margin:0;\
     background:var(--ground);color:var(--ink);font:16px/1.5 \
     system-ui,sans-serif}main{max-width:64rem;margin:0 auto;padding:1.5rem 1rem \
     4rem}h1{font-size:1.7rem;margin:.2em 0}h2{font-size:1.15rem;margin:2em 0 \
     .5em}.lead{color:var(--soft);margin-top:0}.note{border-left:4px solid \
     var(--mark);padding-left:.75rem}.scroll{overflow-x:auto}table{border-collapse:collapse;\
     font-variant-numeric:tabular-nums;font-size:.92rem}th,td{text-align:left;padding:.3rem .9rem \
     .3rem 0;border-bottom:1px solid \
     var(--line);vertical-align:top}th{color:var(--soft);font-weight:600}td.missed{color:\
     var(--mark);font-weight:600}td.reached{font-weight:600}figure{margin:2rem \
     0}svg{max-width:100%;height:auto}svg \
     text{font-family:system-ui,sans-serif}pre{overflow-x:auto;font-size:.82rem;background:\
     color-mix(in srgb,var(--line) \
     35%,transparent);padding:.75rem}summary{cursor:pointer;padding:.2rem 0}";

fn table(body: &mut String, table: &Table) -> Result<()> {
    write!(body, "<h2>{}</h2><div class=scroll><table><tr>", escaped(&table.title))?;
    for cell in &table.head {
        write!(body, "<th>{}</th>", escaped(cell))?;
    }
    for row in &table.rows {
        write!(body, "</tr><tr>")?;
        for cell in row {
            let class = match cell.as_str() {
                "reached" | "missed" => format!(" class={cell}"),
                _ => String::new(),
            };
            write!(body, "<td{class}>{}</td>", escaped(cell))?;
        }
    }
    write!(body, "</tr></table></div>")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Plot, Verdict};
    use crate::spread::Spread;

    #[test]
    fn a_page_holds_what_the_report_holds_and_loads_nothing() {
        let mut report = Report::new("http-cold", "is a < b & c?");
        let mut rows = Table::new("results", &["peer", "J1s, %"]);
        rows.row(vec!["tactus".into(), "0.01".into()]);
        report.tables.push(rows);
        report.verdicts.push(Verdict {
            figure: "J".into(),
            measured: "0.06".into(),
            must: "0.05".into(),
            reached: Some(false),
            push: "0.01".into(),
            pushed: None,
        });
        let all = Spread { median: 2.0, min: 1.0, max: 3.0, rounds: 3 };
        report.plots.push(Plot::Bars {
            title: "bars".into(),
            bars: vec![("tactus <x>".into(), all)],
            mark: Some(("goal".into(), 4.0)),
        });
        report.plots.push(Plot::Lines {
            title: "lines".into(),
            axes: ("s".into(), "ms".into()),
            lines: vec![("nginx".into(), vec![(0.0, 1.0), (10.0, 1_000.0)])],
            mark: Some(("goal".into(), 70.0)),
        });
        let page = page(&report).unwrap();
        assert!(page.contains("is a &lt; b &amp; c?"));
        assert!(page.contains("class=missed>missed"));
        assert!(page.contains("tactus &lt;x&gt;"));
        assert_eq!(page.matches("<svg").count(), 2);
        assert!(!page.contains("src=") && !page.contains("href="));
        let leftover = page.split("<svg").skip(1).any(|svg| svg.contains("#0"));
        assert!(!leftover, "a colour of the drawing library is left");
    }
}
