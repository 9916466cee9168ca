//! Video frames as SVG: bars drawn here, lines by a plotting library.
//!
//! Promise: every colour is a variable of the page, so a video frame is right on light and on dark;
//! lines and bars carry their names in text.

use std::fmt::Write;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::markup::escaped;
use super::{Plot, number};
use crate::spread::Spread;

/// The video frame.
pub(super) fn svg(plot: &Plot) -> Result<String> {
    match plot {
        Plot::Bars { title, bars, mark } => bar_chart(title, bars, mark.as_ref()),
        Plot::Lines { title, axes, lines, mark } => {
            line_chart(title, axes, lines, mark.as_ref()).map_err(|error| anyhow!("{error}"))
        }
    }
}

const WIDTH: f64 = 900.0;

fn bar_chart(
    title: &str,
    bars: &[(String, Spread)],
    mark: Option<&(String, f64)>,
) -> Result<String> {
    let (labels, values, row_height, head) = (250.0, 200.0, 34.0, 40.0);
    let most = bars.iter().map(|(_, all)| all.max).chain(mark.map(|mark| mark.1));
    let most = most.fold(f64::MIN_POSITIVE, f64::max);
    let place = |value: f64| labels + value.max(0.0) / most * (WIDTH - labels - values);
    let foot = head + row_height * bars.len() as f64;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {}\" role=\"img\">\
         <text x=\"0\" y=\"18\" font-size=\"16\" font-weight=\"600\" fill=\"var(--ink)\">{}</text>",
        foot + 26.0,
        escaped(title)
    );
    for (row, (name, all)) in bars.iter().enumerate() {
        let top = head + row_height * row as f64;
        let (middle, zero) = (top + row_height / 2.0, place(0.0));
        let (low, high) = (place(all.min), place(all.max));
        let range = match all.rounds {
            1 => number(all.median),
            _ => format!("{} ({}-{})", number(all.median), number(all.min), number(all.max)),
        };
        write!(
            text,
            "<text x=\"{}\" y=\"{}\" font-size=\"14\" text-anchor=\"end\" \
             fill=\"var(--ink)\">{}</text><rect x=\"{zero}\" y=\"{}\" width=\"{}\" height=\"20\" \
             fill=\"var(--s{})\"/><path d=\"M{low} {middle}H{high}M{low} {}v8M{high} {}v8\" \
             stroke=\"var(--ink)\" stroke-width=\"1.5\" fill=\"none\"/><text x=\"{}\" y=\"{}\" \
             font-size=\"14\" fill=\"var(--ink)\">{range}</text>",
            labels - 10.0,
            middle + 5.0,
            escaped(name),
            middle - 10.0,
            (place(all.median) - zero).max(1.0),
            row % SERIES.len(),
            middle - 4.0,
            middle - 4.0,
            high.max(place(all.median)) + 8.0,
            middle + 5.0,
        )?;
    }
    if let Some((name, value)) = mark {
        let x = place(*value);
        write!(
            text,
            "<path d=\"M{x} {}V{foot}\" stroke=\"var(--mark)\" stroke-width=\"1.5\" \
             stroke-dasharray=\"5 4\"/><text x=\"{x}\" y=\"{}\" font-size=\"13\" \
             text-anchor=\"middle\" fill=\"var(--mark)\">{} {}</text>",
            head - 6.0,
            foot + 16.0,
            escaped(name),
            number(*value)
        )?;
    }
    text.push_str("</svg>");
    Ok(text)
}

/// Colours that stand for variables of the page until the video frame is drawn.
const INK: RGBColor = RGBColor(1, 0, 1);
const LINE: RGBColor = RGBColor(1, 0, 2);
const MARK: RGBColor = RGBColor(1, 0, 3);
const SERIES: [RGBColor; 6] = [
    RGBColor(2, 0, 0),
    RGBColor(2, 0, 1),
    RGBColor(2, 0, 2),
    RGBColor(2, 0, 3),
    RGBColor(2, 0, 4),
    RGBColor(2, 0, 5),
];

type DrawResult<T> = Result<T, Box<dyn std::error::Error>>;

fn line_chart(
    title: &str,
    axes: &(String, String),
    lines: &[(String, Vec<(f64, f64)>)],
    mark: Option<&(String, f64)>,
) -> DrawResult<String> {
    let points = || lines.iter().flat_map(|(_, points)| points.iter().copied());
    let (left, right) = range(points().map(|point| point.0));
    let (_, high) = range(points().map(|point| point.1).chain(mark.map(|mark| mark.1)));
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH as u32, 380)).into_drawing_area();
        let mut chart = ChartBuilder::on(&root)
            .caption(title, ("sans-serif", 17).into_font().color(&INK))
            .margin(10)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(left..right, 0.0..high * 1.05)?;
        chart
            .configure_mesh()
            .axis_style(INK)
            .bold_line_style(LINE)
            .light_line_style(TRANSPARENT)
            .label_style(("sans-serif", 13).into_font().color(&INK))
            .x_desc(axes.0.as_str())
            .y_desc(axes.1.as_str())
            .x_label_formatter(&|value| number(*value))
            .y_label_formatter(&|value| number(*value))
            .draw()?;
        for ((name, points), colour) in lines.iter().zip(SERIES.iter().cycle()) {
            let style = colour.stroke_width(2);
            chart.draw_series(LineSeries::new(points.iter().copied(), style))?.label(name).legend(
                move |(x, y)| PathElement::new(vec![(x, y), (x + 22, y)], colour.stroke_width(3)),
            );
        }
        if let Some((name, value)) = mark {
            let style = MARK.stroke_width(1);
            let ends = [(left, *value), (right, *value)];
            chart
                .draw_series(DashedLineSeries::new(ends, 6, 4, style))?
                .label(format!("{name} {}", number(*value)))
                .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 22, y)], style));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .label_font(("sans-serif", 13).into_font().color(&INK))
            .legend_area_size(28)
            .draw()?;
        root.present()?;
    }
    let variables = [(INK, "ink"), (LINE, "line"), (MARK, "mark")].into_iter();
    for (colour, name) in variables {
        text = text.replace(&hex(colour), &format!("var(--{name})"));
    }
    for (place, colour) in SERIES.into_iter().enumerate() {
        text = text.replace(&hex(colour), &format!("var(--s{place})"));
    }
    let size = format!("width=\"{WIDTH}\" height=\"380\" viewBox");
    Ok(text.replace(&size, "viewBox").replace("#000000", "var(--ink)"))
}

fn hex(colour: RGBColor) -> String {
    format!("#{:02X}{:02X}{:02X}", colour.0, colour.1, colour.2)
}

fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let finite = values.filter(|value| value.is_finite());
    let (low, high) =
        finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
    match low < high {
        true => (low, high),
        false if low.is_finite() => (low - 0.5, low + 0.5),
        false => (0.0, 1.0),
    }
}
