//! Pictures of recorded graphs: Graphviz DOT, and SVG drawn here.

use std::collections::HashMap;
use std::fmt::Write;

use super::pass::{Place, place};
use crate::shape::error::shape_text;
use crate::tape::{Node, NodeInput, Tensor};

struct Vertex {
    label: String,
    detail: String,
    is_leaf: bool,
    /// Longest way down to a leaf.
    height: usize,
}

/// A recorded graph, from its outputs to the leaves that require gradients. The same graph gives the same picture.
///
/// ```
/// use bilin_core::{Device, Tensor, autograd::Picture};
/// let x = Tensor::scalar(2f64, &Device::reference())?.requires_grad_(true)?;
/// let picture = Picture::new(&[&x.exp()?]);
/// assert!(picture.to_dot().contains("n1 -> n0") && picture.to_svg().contains("ExpBackward"));
/// # Ok::<(), bilin_core::Error>(())
/// ```
pub struct Picture {
    vertices: Vec<Vertex>,
    /// From a node to what its operand came from.
    edges: Vec<(usize, usize)>,
}

fn address(input: &NodeInput) -> Option<(usize, u64)> {
    Some(match (place(input)?, input) {
        (Place::Leaf(at), NodeInput::Leaf(slot)) => (at, slot.sequence()),
        (Place::Result(at, _), NodeInput::Interior(edge)) => (at, edge.node.0.sequence),
        _ => return None,
    })
}

impl Picture {
    /// The graph behind `outputs`; empty where none of them has a history.
    pub fn new(outputs: &[&Tensor]) -> Picture {
        Picture::of(outputs.iter().map(|t| t.node_input()).collect())
    }

    fn of(mut stack: Vec<NodeInput>) -> Picture {
        let mut found: HashMap<usize, (u64, NodeInput)> = HashMap::new();
        while let Some(input) = stack.pop() {
            let Some((at, sequence)) = address(&input) else { continue };
            if found.contains_key(&at) {
                continue;
            }
            if let NodeInput::Interior(edge) = &input {
                stack.extend(edge.node.inputs().iter().cloned());
            }
            found.insert(at, (sequence, input));
        }
        // Operands were made before what reads them, so heights are known when they are asked for.
        let mut order: Vec<(u64, usize, NodeInput)> = found.into_iter().map(|(at, (sequence, input))| (sequence, at, input)).collect();
        order.sort_unstable_by_key(|(sequence, ..)| *sequence);
        let index: HashMap<usize, usize> = order.iter().enumerate().map(|(i, (_, at, _))| (*at, i)).collect();
        let mut picture = Picture { vertices: Vec::new(), edges: Vec::new() };
        for (i, (_, _, input)) in order.iter().enumerate() {
            let slot = input.slot();
            let detail = slot.map_or_else(String::new, |s| format!("{} {}", shape_text(&s.shape), s.dtype));
            let mut vertex = Vertex { label: "leaf".into(), detail, is_leaf: true, height: 0 };
            if let NodeInput::Interior(edge) = input {
                vertex.label = edge.node.name().to_owned();
                vertex.is_leaf = false;
                for to in edge.node.inputs().iter().filter_map(address).filter_map(|(at, _)| index.get(&at)) {
                    picture.edges.push((i, *to));
                    vertex.height = vertex.height.max(picture.vertices[*to].height + 1);
                }
            }
            picture.vertices.push(vertex);
        }
        picture
    }

    /// The graph in Graphviz's language.
    pub fn to_dot(&self) -> String {
        let mut out = String::from("digraph {\n");
        for (i, v) in self.vertices.iter().enumerate() {
            let shape = if v.is_leaf { "ellipse" } else { "box" };
            let _ = writeln!(out, "  n{i} [label=\"{}\\n{}\", shape={shape}];", v.label.replace('"', "'"), v.detail);
        }
        for (from, to) in &self.edges {
            let _ = writeln!(out, "  n{from} -> n{to};");
        }
        out + "}\n"
    }

    /// The graph as an SVG picture: outputs on top, leaves at the bottom, a row for each height.
    pub fn to_svg(&self) -> String {
        const WIDE: usize = 150;
        const HIGH: usize = 40;
        const GAP: usize = 20;
        const ROW: usize = 75;
        let rows = self.vertices.iter().map(|v| v.height + 1).max().unwrap_or(0);
        let mut lanes: Vec<Vec<usize>> = vec![Vec::new(); rows];
        self.vertices.iter().enumerate().for_each(|(i, v)| lanes[v.height].push(i));
        let widest = lanes.iter().map(Vec::len).max().unwrap_or(0);
        let (width, height) = (widest * (WIDE + GAP) + GAP, rows * ROW + GAP);
        // Middles of the boxes; each row in the order of the mean of what it points to, so that few lines cross.
        let mut at = vec![(0, 0); self.vertices.len()];
        for (row, lane) in lanes.iter_mut().enumerate() {
            let mean = |i: usize| {
                let below: Vec<usize> = self.edges.iter().filter(|(from, _)| *from == i).map(|(_, to)| at[*to].0).collect();
                below.iter().sum::<usize>().checked_div(below.len()).unwrap_or(i)
            };
            lane.sort_by_cached_key(|i| mean(*i));
            let start = (width + GAP - lane.len() * (WIDE + GAP)) / 2;
            for (k, i) in lane.iter().enumerate() {
                at[*i] = (start + k * (WIDE + GAP) + WIDE / 2, height - GAP / 2 - row * ROW - HIGH / 2);
            }
        }
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\" text-anchor=\"middle\">\n"
        );
        for (from, to) in &self.edges {
            let ((x, y), (u, v)) = (at[*from], at[*to]);
            let (y, v) = (y + HIGH / 2, v - HIGH / 2);
            let middle = (y + v) / 2;
            let _ = writeln!(out, "<path d=\"M{x} {y}C{x} {middle} {u} {middle} {u} {v}\" fill=\"none\" stroke=\"#888\"/>");
        }
        let escape = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        for (v, (x, y)) in self.vertices.iter().zip(&at) {
            let (left, top) = (x - WIDE / 2, y - HIGH / 2);
            let (radius, fill) = if v.is_leaf { (HIGH / 2, "#e3f1e3") } else { (4, "#e6ecf7") };
            let _ = writeln!(
                out,
                "<rect x=\"{left}\" y=\"{top}\" width=\"{WIDE}\" height=\"{HIGH}\" rx=\"{radius}\" fill=\"{fill}\" stroke=\"#666\"/>"
            );
            let _ = writeln!(out, "<text x=\"{x}\" y=\"{}\">{}</text>", y - 3, escape(&v.label));
            let _ = writeln!(out, "<text x=\"{x}\" y=\"{}\" fill=\"#555\">{}</text>", y + 13, escape(&v.detail));
        }
        out + "</svg>\n"
    }
}

impl Node {
    /// The graph behind this op, to draw.
    pub fn picture(&self) -> Picture {
        let edge = crate::tape::Edge { node: self.clone(), index: 0 };
        Picture::of(vec![NodeInput::Interior(edge)])
    }
}
