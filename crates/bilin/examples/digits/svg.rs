//! Building SVG text: elements, and a page around them.

use std::fmt::{Display, Write};

/// Near black, for text and axes.
pub const INK: &str = "#222222";
/// For grid lines.
pub const FAINT: &str = "#dddddd";

/// A page that is being drawn; lengths are pixels, from the upper left.
#[derive(Debug)]
pub struct Page {
    width: f64,
    height: f64,
    body: String,
}

/// Which part of a text stands at its place.
#[derive(Debug, Clone, Copy)]
pub enum Anchor {
    /// Its left end.
    Start,
    /// Its middle.
    Middle,
    /// Its right end.
    End,
}

impl Page {
    /// A white page.
    pub fn new(width: f64, height: f64) -> Page {
        let mut page = Page { width, height, body: String::new() };
        page.rectangle([0.0, 0.0], [width, height], "#ffffff");
        page
    }

    fn push(&mut self, element: impl Display) {
        // Writing to a string can't fail.
        let _ = writeln!(self.body, "{element}");
    }

    /// A filled rectangle.
    pub fn rectangle(&mut self, [x, y]: [f64; 2], [width, height]: [f64; 2], fill: &str) {
        self.push(format_args!(r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{fill}"/>"#));
    }

    /// A rectangle's outline.
    pub fn frame(&mut self, [x, y]: [f64; 2], [width, height]: [f64; 2], colour: &str) {
        self.push(format_args!(r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="none" stroke="{colour}"/>"#));
    }

    /// A line through points.
    pub fn line(&mut self, points: &[[f64; 2]], colour: &str, width: f64) {
        let points: Vec<String> = points.iter().map(|[x, y]| format!("{x:.1},{y:.1}")).collect();
        self.push(format_args!(
            r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-linejoin="round"/>"#,
            points.join(" ")
        ));
    }

    /// A dot.
    pub fn dot(&mut self, [x, y]: [f64; 2], radius: f64, fill: &str) {
        self.push(format_args!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="{radius}" fill="{fill}"/>"#));
    }

    /// A text; `[x, y]` is on its base line.
    pub fn text(&mut self, [x, y]: [f64; 2], anchor: Anchor, size: f64, text: &str) {
        self.push(format_args!(
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{}" font-size="{size}" fill="{INK}">{}</text>"#,
            anchor.name(),
            escape(text)
        ));
    }

    /// A text that reads upwards, centred on `[x, y]`.
    pub fn upright_text(&mut self, [x, y]: [f64; 2], size: f64, text: &str) {
        self.push(format_args!(
            r#"<text transform="translate({x:.1} {y:.1}) rotate(-90)" text-anchor="middle" font-size="{size}" fill="{INK}">{}</text>"#,
            escape(text)
        ));
    }

    /// The whole file; `title` is what screen readers say.
    pub fn finish(self, title: &str) -> String {
        let Page { width, height, body } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
             role=\"img\" font-family=\"sans-serif\">\n<title>{}</title>\n{body}</svg>\n",
            escape(title)
        )
    }
}

impl Anchor {
    fn name(self) -> &'static str {
        match self {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        }
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
