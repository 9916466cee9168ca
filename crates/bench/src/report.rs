//! One report per bench: what was asked, on which machine, how, and what came out.
//!
//! Promise: the same values as JSON for programs, as one self-contained HTML page for people, and
//! as tables on standard output; bad figures stand beside good ones.

mod markup;
mod text;

mod plot;

mod html;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::machine::{self, Machine};
use crate::priority;
use crate::spread::{Spread, quantile};

/// Everything about one bench.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The bench.
    pub name: String,
    /// The question that it answers.
    pub question: String,
    /// How it was measured, one sentence each.
    pub method: Vec<String>,
    /// On which machine.
    pub machine: Machine,
    /// The load averages at the end.
    pub load_at_end: String,
    /// The physical limits of the same hour.
    pub limits: Vec<Floor>,
    /// The settings of each peer and device, as text.
    pub settings: Vec<(String, String)>,
    /// The goals, and whether they were reached.
    pub verdicts: Vec<Verdict>,
    /// The summary.
    pub tables: Vec<Table>,
    /// The video frames.
    pub plots: Vec<Plot>,
    /// Every run with all its values, as it was measured.
    pub runs: Vec<serde_json::Value>,
    /// What a reader must know besides.
    pub notes: Vec<String>,
}

/// One physical limit.
#[derive(Clone, Debug, Serialize)]
pub struct Floor {
    /// What is limited.
    pub name: String,
    /// The figures as text, with units.
    pub value: String,
    /// The figures by unit, for programs.
    pub figures: Vec<(String, f64)>,
}

/// One goal.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// The figure and its unit.
    pub figure: String,
    /// What was measured.
    pub measured: String,
    /// What it must reach.
    pub must: String,
    /// Whether it does; `None` when this run cannot tell.
    pub reached: Option<bool>,
    /// What to push to.
    pub push: String,
    /// Whether it does.
    pub pushed: Option<bool>,
}

impl Verdict {
    /// Compares the median of `measured` with the goals `must` and `push`. With `is_most` the goals
    /// are upper bounds.
    pub fn of(figure: &str, measured: &[f64], (must, push): (f64, f64), is_most: bool) -> Self {
        let median = quantile(&mut measured.to_vec(), 0.5).unwrap_or(f64::NAN);
        let reached = |goal: f64| if is_most { median <= goal } else { median >= goal };
        Self {
            figure: figure.into(),
            measured: spread(measured),
            must: number(must),
            reached: Some(reached(must)),
            push: number(push),
            pushed: Some(reached(push)),
        }
    }
}

/// A table; the first column names the row.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// What it shows.
    pub title: String,
    /// The names of the columns, with units.
    pub head: Vec<String>,
    /// The rows.
    pub rows: Vec<Vec<String>>,
}

/// A video frame.
#[derive(Clone, Debug, Serialize)]
pub enum Plot {
    /// One bar for each peer, with the range of its rounds.
    Bars {
        /// What it shows, with the unit.
        title: String,
        /// The peers.
        bars: Vec<(String, Spread)>,
        /// A value to be met, with its name.
        mark: Option<(String, f64)>,
    },
    /// Lines over a common axis.
    Lines {
        /// What it shows.
        title: String,
        /// The axes, with units.
        axes: (String, String),
        /// Name and points.
        lines: Vec<(String, Vec<(f64, f64)>)>,
        /// A value to be met on the vertical axis, with its name.
        mark: Option<(String, f64)>,
    },
}

impl Report {
    /// An empty report about `name`.
    pub fn new(name: &str, question: &str) -> Self {
        Self {
            name: name.into(),
            question: question.into(),
            method: Vec::new(),
            machine: Machine::look(),
            load_at_end: String::new(),
            limits: Vec::new(),
            settings: Vec::new(),
            verdicts: Vec::new(),
            tables: Vec::new(),
            plots: Vec::new(),
            runs: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Steal time as a share of all runs, in percent of the machine; `None` before the first run.
    fn steal(&self) -> Option<f64> {
        let sum = |name: &str| -> f64 {
            let all = self.runs.iter();
            all.filter_map(|run| run.pointer(&format!("/figures/spent/{name}"))?.as_f64()).sum()
        };
        let wall = sum("wall");
        (wall > 0.0).then(|| sum("steal") / wall / priority::cores() as f64 * 100.0)
    }

    /// Adds something that a reader must know, and tells it at once.
    pub fn note(&mut self, sentence: String) {
        eprintln!("bench: {sentence}");
        self.notes.push(sentence);
    }

    /// Writes `report.json` below `folder`/name, with the runs that are done.
    pub fn keep(&self, folder: &Path) -> Result<()> {
        self.write(folder, "report.json", serde_json::to_string_pretty(self)?).map(drop)
    }

    fn write(&self, folder: &Path, name: &str, content: String) -> Result<PathBuf> {
        let folder = folder.join(&self.name);
        fs::create_dir_all(&folder)?;
        let path = folder.join(name);
        fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// Writes `report.html` and `report.json` below `folder`/name, prints the tables, and answers
    /// where the page is.
    pub fn publish(mut self, folder: &Path) -> Result<PathBuf> {
        self.load_at_end = machine::load();
        self.keep(folder)?;
        let page = self.write(folder, "report.html", html::page(&self)?)?;
        print!("{}", text::tables(&self));
        println!("\nreport: {}", page.display());
        Ok(page)
    }
}

impl Floor {
    /// The limit called `name`: its figures as text, and by unit.
    pub fn new(name: &str, value: String, figures: &[(&str, f64)]) -> Self {
        let figures = figures.iter().map(|&(unit, figure)| (unit.to_owned(), figure)).collect();
        Self { name: name.into(), value, figures }
    }
}

impl Table {
    /// An empty table.
    pub fn new(title: &str, head: &[&str]) -> Self {
        Self {
            title: title.into(),
            head: head.iter().map(|&name| name.into()).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.head.len(), "a row has a cell for each column");
        self.rows.push(cells);
    }
}

/// `table` in columns, for a terminal.
pub fn table_text(table: &Table) -> String {
    let mut text = String::new();
    text::table(&mut text, table);
    text
}

/// `median (min-max)` with three significant digits; the median alone when there was one round.
pub fn spread(values: &[f64]) -> String {
    match Spread::of(values) {
        None => "-".into(),
        Some(Spread { median, rounds: 1, .. }) => number(median),
        Some(all) => {
            format!("{} ({}-{})", number(all.median), number(all.min), number(all.max))
        }
    }
}

/// A number with three significant digits, never in the notation of powers.
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return "-".into();
    }
    let size = value.abs();
    let digits = match size {
        0.0 => return "0".into(),
        _ if size >= 100.0 => 0,
        _ => (2 - size.log10().floor() as i32).clamp(0, 6) as usize,
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_carry_three_digits() {
        for (value, text) in [
            (1599.4, "1599"),
            (62.52, "62.5"),
            (4.349, "4.35"),
            (0.2251, "0.225"),
            (0.0512, "0.0512"),
            (0.0, "0"),
            (-1.25, "-1.25"),
            (f64::NAN, "-"),
        ] {
            assert_eq!(number(value), text);
        }
        assert_eq!(spread(&[3.0, 1.0, 2.0]), "2.00 (1.00-3.00)");
        assert_eq!(spread(&[62.5]), "62.5");
        assert_eq!(spread(&[]), "-");
    }
}
