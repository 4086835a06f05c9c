//! The two pictures: loss over epochs, and the digits read wrong.

use super::data::Digit;
use super::svg::{Anchor, FAINT, INK, Page};
use super::train::Epoch;

const TRAINING: &str = "#1f5fa8";
const HELD_BACK: &str = "#c2410c";

/// Which loss of an epoch.
type Loss = fn(&Epoch) -> f64;

/// Corners of the plotted area.
const LEFT: f64 = 80.0;
const RIGHT: f64 = 736.0;
const TOP: f64 = 72.0;
const BOTTOM: f64 = 376.0;

/// A step of 1, 2 or 5 times a power of ten that cuts `length` into at most ten.
fn step(length: usize) -> usize {
    let mut unit = 1;
    loop {
        for factor in [1, 2, 5] {
            if length.div_ceil(unit * factor) <= 10 {
                return unit * factor;
            }
        }
        unit *= 10;
    }
}

/// Marks of a logarithmic axis that enclose `low` to `high`: powers of ten, and between them 2 and 5 where there is room; each
/// with its text.
fn marks(low: f64, high: f64) -> Vec<(f64, String)> {
    let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let factors: &[f64] = if decades.clone().count() <= 4 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let all: Vec<(f64, String)> = decades
        .flat_map(|e| {
            factors.iter().map(move |f| (f * 10f64.powi(e), format!("{:.*}", e.min(0).unsigned_abs() as usize, f * 10f64.powi(e))))
        })
        .collect();
    let first = all.iter().rposition(|(v, _)| *v <= low).unwrap_or(0);
    let last = all.iter().position(|(v, _)| *v >= high && *v > all[first].0).unwrap_or(all.len() - 1);
    all[first..=last].to_vec()
}

/// Both losses over the epochs, the losses on a logarithmic axis.
pub fn loss_curve(history: &[Epoch]) -> String {
    let mut page = Page::new(760.0, 440.0);
    let losses = |of: Loss| history.iter().map(move |e| of(e).max(1e-9));
    let low = losses(|e| e.training_loss.min(e.held_back_loss)).fold(f64::INFINITY, f64::min);
    let high = losses(|e| e.training_loss.max(e.held_back_loss)).fold(0.0, f64::max);
    let marks = marks(low, high);
    let (floor, ceiling) = (marks[0].0.log10(), marks[marks.len() - 1].0.log10());
    let last = history.len();
    let x = |epoch: usize| if last > 1 { LEFT + (RIGHT - LEFT) * (epoch - 1) as f64 / (last - 1) as f64 } else { (LEFT + RIGHT) / 2.0 };
    let y = |loss: f64| BOTTOM - (BOTTOM - TOP) * (loss.log10() - floor) / (ceiling - floor);

    page.text([LEFT, 30.0], Anchor::Start, 18.0, "Loss of the digit classifier");
    for (value, text) in &marks {
        page.line(&[[LEFT, y(*value)], [RIGHT, y(*value)]], FAINT, 1.0);
        page.text([LEFT - 10.0, y(*value) + 4.5], Anchor::End, 13.0, text);
    }
    let every = step(last);
    for epoch in (1..=last).filter(|e| *e == 1 || e % every == 0) {
        page.line(&[[x(epoch), BOTTOM], [x(epoch), BOTTOM + 6.0]], INK, 1.0);
        page.text([x(epoch), BOTTOM + 22.0], Anchor::Middle, 13.0, &epoch.to_string());
    }
    page.line(&[[LEFT, TOP], [LEFT, BOTTOM], [RIGHT, BOTTOM]], INK, 1.0);
    page.text([(LEFT + RIGHT) / 2.0, 424.0], Anchor::Middle, 14.0, "epoch");
    page.upright_text([24.0, (TOP + BOTTOM) / 2.0], 14.0, "mean cross-entropy (log scale)");

    let series: [(&str, &str, Loss); 2] =
        [("training digits", TRAINING, |e| e.training_loss), ("digits held back", HELD_BACK, |e| e.held_back_loss)];
    for (i, (name, colour, of)) in series.into_iter().enumerate() {
        let points: Vec<[f64; 2]> = losses(of).enumerate().map(|(i, loss)| [x(i + 1), y(loss)]).collect();
        page.line(&points, colour, 2.0);
        if last <= 60 {
            points.iter().for_each(|p| page.dot(*p, 2.5, colour));
        }
        let at = LEFT + 180.0 * i as f64;
        page.line(&[[at, 50.0], [at + 26.0, 50.0]], colour, 3.0);
        page.text([at + 34.0, 54.5], Anchor::Start, 13.0, name);
    }
    page.finish("Loss of the digit classifier over the epochs")
}

/// Every digit read wrong as gray cells, with its class and what it was read as.
pub fn misread_grid(misread: &[(&Digit, u8)], of: usize) -> String {
    const CELL: f64 = 9.0;
    const SIDE: f64 = 8.0 * CELL;
    const MARGIN: f64 = 24.0;
    const PITCH: [f64; 2] = [SIDE + 22.0, SIDE + 40.0];
    let columns = misread.len().clamp(5, 10);
    let rows = misread.len().div_ceil(columns).max(1);
    let heading = 56.0;
    let mut page = Page::new(2.0 * MARGIN + PITCH[0] * columns as f64 - 22.0, heading + PITCH[1] * rows as f64 + 10.0);
    let title = format!("{} of {of} digits misread: true → read", misread.len());
    page.text([MARGIN, 34.0], Anchor::Start, 18.0, &title);
    for (i, (digit, read)) in misread.iter().enumerate() {
        let (left, top) = (MARGIN + PITCH[0] * (i % columns) as f64, heading + PITCH[1] * (i / columns) as f64);
        for (j, &ink) in digit.pixels.iter().enumerate().filter(|(_, ink)| **ink > 0) {
            let gray = 255 - u32::from(ink) * 255 / 16;
            page.rectangle(
                [left + CELL * (j % 8) as f64, top + CELL * (j / 8) as f64],
                [CELL, CELL],
                &format!("#{gray:02x}{gray:02x}{gray:02x}"),
            );
        }
        page.frame([left - 0.5, top - 0.5], [SIDE + 1.0, SIDE + 1.0], "#777777");
        page.text([left + SIDE / 2.0, top + SIDE + 20.0], Anchor::Middle, 15.0, &format!("{} → {read}", digit.class));
    }
    page.finish(&title)
}
