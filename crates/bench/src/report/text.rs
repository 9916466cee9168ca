//! A report on a terminal: the goals and the tables, in columns.

use std::fmt::Write;

use super::{Report, Table};

/// Goals, tables and notes.
pub(super) fn tables(report: &Report) -> String {
    let mut text = format!("\n{}: {}\n", report.name, report.question);
    let facts = report.machine.facts();
    for (name, value) in facts {
        line(&mut text, &format!("  {name}: {value}"));
    }
    line(&mut text, &format!("  load average at the end: {}", report.load_at_end));
    if let Some(share) = report.steal() {
        line(&mut text, &format!("  steal time in the runs: {share:.2} % of the machine"));
    }
    if !report.limits.is_empty() {
        let mut limits = Table::new("physical limits, this hour", &["limit", "value"]);
        for limit in &report.limits {
            limits.row(vec![limit.name.clone(), limit.value.clone()]);
        }
        table(&mut text, &limits);
    }
    for each in &report.tables {
        table(&mut text, each);
    }
    if !report.verdicts.is_empty() {
        table(&mut text, &verdicts(report));
    }
    for note in &report.notes {
        line(&mut text, &format!("note: {note}"));
    }
    text
}

/// The goals as a table.
pub(super) fn verdicts(report: &Report) -> Table {
    let mut goals = Table::new("goals", &["figure", "measured", "must", "", "push to", ""]);
    let word = |reached: Option<bool>| match reached {
        Some(true) => "reached".to_owned(),
        Some(false) => "missed".to_owned(),
        None => "not judged".to_owned(),
    };
    for verdict in &report.verdicts {
        goals.row(vec![
            verdict.figure.clone(),
            verdict.measured.clone(),
            verdict.must.clone(),
            word(verdict.reached),
            verdict.push.clone(),
            word(verdict.pushed),
        ]);
    }
    goals
}

/// Adds `table` in columns.
pub(super) fn table(text: &mut String, table: &Table) {
    let mut widths: Vec<usize> = table.head.iter().map(|cell| cell.chars().count()).collect();
    for row in &table.rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    line(text, &format!("\n{}", table.title));
    for row in std::iter::once(&table.head).chain(&table.rows) {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        line(text, cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}

fn line(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("a string takes every line");
}
