//! `trace`: a Chrome trace as an SVG picture.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use bilin::io::atomic::write_whole;
use serde_json::Value;

use crate::{Failure, Streams};

/// A run of something, in microseconds.
struct Slice {
    name: String,
    /// What stands in the tooltip beside name and time.
    detail: String,
    category: String,
    thread: u64,
    start: f64,
    end: f64,
    /// How many slices it lies within.
    depth: usize,
}

/// Times of a begin and an end, each with its thread.
type Arrow = [Option<(f64, u64)>; 2];

#[derive(Default)]
struct Trace {
    slices: Vec<Slice>,
    arrows: BTreeMap<u64, Arrow>,
    /// Counters by name: time and value.
    counters: BTreeMap<String, Vec<(f64, f64)>>,
}

fn number(event: &Value, name: &str) -> Option<f64> {
    event[name].as_f64().filter(|x| x.is_finite())
}

impl Trace {
    /// Reads what `--profile` and other tools write: an object with `traceEvents`, or the list alone.
    fn parse(text: &str) -> Result<Trace, String> {
        let whole: Value = serde_json::from_str(text).map_err(|e| format!("no JSON: {e}"))?;
        let events = whole.get("traceEvents").unwrap_or(&whole).as_array().ok_or("no Chrome trace: want a list traceEvents")?;
        let mut trace = Trace::default();
        for (i, event) in events.iter().enumerate() {
            let phase = event["ph"].as_str().ok_or_else(|| format!("event {i} has no phase ph"))?;
            let time = || number(event, "ts").filter(|t| *t >= 0.0).ok_or_else(|| format!("event {i} has no time ts"));
            let name = || event["name"].as_str().unwrap_or("").to_owned();
            let thread = event["tid"].as_u64().unwrap_or(0);
            match phase {
                "X" => {
                    let (start, length) = (time()?, number(event, "dur").unwrap_or(0.0).max(0.0));
                    let args = event["args"].as_object();
                    let shown = args.into_iter().flatten().filter(|(_, v)| !v.is_null() && v.as_str() != Some(""));
                    let detail =
                        shown.map(|(k, v)| format!("\n{k}: {}", v.as_str().map_or_else(|| v.to_string(), str::to_owned))).collect();
                    let category = event["cat"].as_str().unwrap_or("").to_owned();
                    trace.slices.push(Slice { name: name(), detail, category, thread, start, end: start + length, depth: 0 });
                }
                "s" | "f" => {
                    let id = event["id"].as_u64().ok_or_else(|| format!("event {i} has no whole number id"))?;
                    trace.arrows.entry(id).or_default()[usize::from(phase == "f")] = Some((time()?, thread));
                }
                "C" => {
                    let value = event["args"].as_object().and_then(|a| a.values().find_map(Value::as_f64));
                    if let Some(value) = value.filter(|v| v.is_finite()) {
                        trace.counters.entry(name()).or_default().push((time()?, value));
                    }
                }
                _ => {}
            }
        }
        if trace.slices.is_empty() {
            return Err("no events with a duration".to_owned());
        }
        // The outer of two that begin together is the longer.
        trace.slices.sort_by(|a, b| a.thread.cmp(&b.thread).then(a.start.total_cmp(&b.start)).then(b.end.total_cmp(&a.end)));
        let mut open: Vec<(u64, f64)> = Vec::new();
        for slice in &mut trace.slices {
            // Times are rounded to nanoseconds when they are written.
            open.retain(|(thread, end)| *thread == slice.thread && *end >= slice.end - 0.002);
            slice.depth = open.len();
            open.push((slice.thread, slice.end));
        }
        trace.counters.values_mut().for_each(|c| c.sort_by(|a, b| a.0.total_cmp(&b.0)));
        Ok(trace)
    }

    fn to_svg(&self) -> String {
        const LEFT: f64 = 16.0;
        const WIDE: f64 = 1168.0;
        const ROW: f64 = 24.0;
        const AREA: f64 = 56.0;
        let first = self.slices.iter().map(|s| s.start).fold(f64::INFINITY, f64::min);
        let length = (self.slices.iter().map(|s| s.end).fold(0.0, f64::max) - first).max(1e-3);
        let x = |time: f64| LEFT + WIDE * ((time - first) / length).clamp(0.0, 1.0);
        // Rows of each thread, below a line with its number.
        let mut tops: BTreeMap<u64, f64> = BTreeMap::new();
        let mut y = 44.0;
        let mut heads = String::new();
        let mut depths: BTreeMap<u64, usize> = BTreeMap::new();
        self.slices.iter().for_each(|s| {
            let depth = depths.entry(s.thread).or_default();
            *depth = (*depth).max(s.depth + 1);
        });
        for (thread, depth) in depths {
            let _ = writeln!(heads, "<text x=\"{LEFT}\" y=\"{:.1}\" fill=\"#555\">thread {thread}</text>", y + 13.0);
            tops.insert(thread, y + 20.0);
            y += 20.0 + ROW * depth as f64 + 12.0;
        }
        let mut body = String::new();
        for s in &self.slices {
            let (left, right, top) = (x(s.start), x(s.end), tops[&s.thread] + ROW * s.depth as f64);
            let fill = match s.category.as_str() {
                "forward" => "#9cc3ea",
                "backward" => "#f2b280",
                _ => "#dfe3e8",
            };
            let _ = write!(
                body,
                "<rect x=\"{left:.2}\" y=\"{top:.1}\" width=\"{:.2}\" height=\"{}\" fill=\"{fill}\" stroke=\"#fff\" stroke-width=\"0.4\"><title>{}</title></rect>",
                (right - left).max(0.3),
                ROW - 2.0,
                escape(&format!("{} {}{}", s.name, duration(s.end - s.start), s.detail))
            );
            // A letter is some 6.4 pixels wide.
            let room = ((right - left - 6.0) / 6.4).max(0.0) as usize;
            let letters = s.name.chars().count();
            if room >= letters.min(4) {
                let label: String = if letters <= room { s.name.clone() } else { s.name.chars().take(room - 1).chain(['…']).collect() };
                let _ =
                    write!(body, "<text x=\"{:.2}\" y=\"{:.1}\" pointer-events=\"none\">{}</text>", left + 3.0, top + 15.0, escape(&label));
            }
            body.push('\n');
        }
        // From the lower edge of a slice to the lower edge of the kernel of its gradient, as low as it is far.
        let lower = |time: f64, thread: u64| {
            let at =
                self.slices.iter().filter(|s| s.thread == thread && s.start <= time && time <= s.end).map(|s| s.depth).max().unwrap_or(0);
            tops.get(&thread).map_or(y, |top| top + ROW * (at + 1) as f64 - 2.0)
        };
        for arrow in self.arrows.values() {
            let [Some((from, a)), Some((to, b))] = *arrow else { continue };
            let (u, v, top, end) = (x(from), x(to), lower(from, a), lower(to, b));
            let dip = top.max(end) + 8.0 + 0.05 * (v - u).abs();
            let _ = writeln!(
                body,
                "<path d=\"M{u:.1} {top:.1}C{u:.1} {dip:.1} {v:.1} {dip:.1} {v:.1} {end:.1}\" fill=\"none\" stroke=\"#7a5ea8\" stroke-opacity=\"0.35\"/>"
            );
        }
        if self.arrows.values().any(|a| a.iter().all(Option::is_some)) {
            y += 60.0;
        }
        for (name, points) in &self.counters {
            let most = points.iter().map(|p| p.1).fold(0.0, f64::max).max(1.0);
            let _ = writeln!(heads, "<text x=\"{LEFT}\" y=\"{:.1}\" fill=\"#555\">{}, at most {most}</text>", y + 13.0, escape(name));
            let base = y + 20.0 + AREA;
            let mut line = format!("M{LEFT} {base:.1}");
            for (time, value) in points {
                let _ = write!(line, "H{:.2}V{:.1}", x(*time), base - AREA * (value / most).clamp(0.0, 1.0));
            }
            let _ = writeln!(
                body,
                "<path d=\"{line}H{:.1}V{base:.1}Z\" fill=\"#cfe5d2\" stroke=\"#5a9464\" stroke-width=\"0.6\"/>",
                LEFT + WIDE
            );
            y = base + 12.0;
        }
        // Ticks at a power of ten or 2 or 5 times it, at most twelve.
        let step = [1.0, 2.0, 5.0].iter().map(|f| f * 10f64.powf((length / 12.0).log10().floor())).find(|s| length / s <= 12.0);
        let step = step.unwrap_or_else(|| 10f64.powf((length / 12.0).log10().floor() + 1.0));
        for i in 0..=(length / step) as usize {
            let (at, time) = (x(first + i as f64 * step), i as f64 * step);
            let _ = writeln!(heads, "<path d=\"M{at:.1} 40V{:.1}\" stroke=\"#e4e4e4\"/>", y - 8.0);
            let _ = writeln!(heads, "<text x=\"{:.1}\" y=\"34\" fill=\"#555\">{}</text>", at + 2.0, duration(time));
        }
        let mut legend = String::new();
        for (i, (name, fill)) in [("forward", "#9cc3ea"), ("backward", "#f2b280"), ("scope", "#dfe3e8")].into_iter().enumerate() {
            let at = LEFT + 90.0 * i as f64;
            let _ = writeln!(
                legend,
                "<rect x=\"{at}\" y=\"4\" width=\"12\" height=\"12\" fill=\"{fill}\"/><text x=\"{}\" y=\"14\">{name}</text>",
                at + 17.0
            );
        }
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1200 {y:.0}\" width=\"1200\" height=\"{y:.0}\" role=\"img\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <title>{} slices in {}</title>\n<rect width=\"1200\" height=\"{y:.0}\" fill=\"#fff\"/>\n{legend}{heads}{body}</svg>\n",
            self.slices.len(),
            duration(length)
        )
    }
}

fn duration(us: f64) -> String {
    match us {
        0.0 => "0".to_owned(),
        us if us < 1e3 => format!("{} µs", three_digits(us)),
        us if us < 1e6 => format!("{} ms", three_digits(us / 1e3)),
        us => format!("{} s", three_digits(us / 1e6)),
    }
}

fn three_digits(x: f64) -> String {
    let decimals = if x < 10.0 { 2 } else { usize::from(x < 100.0) };
    let text = format!("{x:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// XML text; what XML has no way to say is left out.
fn escape(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars().filter(|c| !c.is_control() || *c == '\n') {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\u{fffe}' | '\u{ffff}' => {}
            c => out.push(c),
        }
    }
    out
}

/// Reads a trace, writes its picture, to a file or to stdout.
pub(crate) fn run(file: &Path, output: Option<&Path>, streams: &mut Streams<'_>) -> Result<(), Failure> {
    let named = |e: String| Failure::Input(format!("trace: {}: {e}", file.display()));
    let bytes = std::fs::read(file).map_err(|e| named(e.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|_| named("it isn't text; want the JSON that --profile wrote".into()))?;
    let svg = Trace::parse(&text).map_err(named)?.to_svg();
    match output {
        Some(path) => Ok(write_whole(path, svg.as_bytes())?),
        None => streams.line(format_args!("{}", svg.trim_end())),
    }
}
