//! Cases as data.

use bilin::prelude::*;
use serde_json::Value;

/// What a case times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Forward,
    /// The gradients alone, over a graph that is kept.
    Backward,
    Both,
}

/// One product.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub name: String,
    /// Whether it is an outer product.
    pub is_outer: bool,
    /// Shapes of the operands, as the product sees them.
    pub shapes: [Vec<usize>; 2],
    pub dtype: DType,
    /// `T`: stands transposed in memory; `flip`: first axis reversed; `half`: every second row of a taller matrix.
    pub views: [String; 2],
    pub mode: Mode,
}

impl Case {
    /// Multiplications and additions (complex: of real numbers), with gradients where the case has them.
    pub(crate) fn flops(&self) -> f64 {
        let product = |s: &[usize]| s.iter().map(|&n| n as f64).product::<f64>();
        let [a, b] = &self.shapes;
        let rows = if a.len() > 1 { a[a.len() - 2] } else { 1 } as f64;
        let columns = if b.len() > 1 { b[b.len() - 1] } else { 1 } as f64;
        let inner = *a.last().unwrap_or(&1) as f64;
        let batch = |s: &[usize]| s[..s.len().saturating_sub(2)].to_vec();
        let (x, y) = (batch(a), batch(b));
        let rank = x.len().max(y.len());
        let at = |s: &[usize], i: usize| if i + s.len() >= rank { s[i + s.len() - rank] } else { 1 };
        let items: f64 = (0..rank).map(|i| at(&x, i).max(at(&y, i)) as f64).product();
        let one = if self.is_outer { product(a) * product(b) } else { 2.0 * items * rows * columns * inner };
        let factor = if self.dtype.is_complex() { 4.0 } else { 1.0 };
        let passes = match self.mode {
            Mode::Forward => 1.0,
            Mode::Backward => 2.0,
            Mode::Both => 3.0,
        };
        one * factor * passes
    }

    /// Sizes of a plain product of two matrices: rows, inner, columns.
    pub(crate) fn plain(&self) -> Option<[usize; 3]> {
        match (&self.shapes[0][..], &self.shapes[1][..]) {
            (&[m, k], &[_, n]) if self.mode == Mode::Forward && self.views.iter().all(String::is_empty) => Some([m, k, n]),
            _ => None,
        }
    }
}

/// The cases of `cases.json`.
pub(crate) fn all() -> Result<Vec<Case>> {
    let bad = |what: &str| Error::invalid("benches", "cases.json", what.to_string(), "see the other cases");
    let Ok(Value::Array(list)) = serde_json::from_str(include_str!("../cases.json")) else { return Err(bad("not a list")) };
    list.iter()
        .map(|one| {
            let text = |key: &str| one[key].as_str().unwrap_or_default().to_string();
            let shape = |key: &str| -> Vec<usize> {
                one[key].as_array().into_iter().flatten().filter_map(Value::as_u64).map(|n| n as usize).collect()
            };
            let dtype = DType::ALL.into_iter().find(|d| d.to_string() == text("dtype")).ok_or_else(|| bad(&text("name")))?;
            let view = |i: usize| one["views"][i].as_str().unwrap_or_default().to_string();
            let mode = match one["mode"].as_str() {
                None => Mode::Forward,
                Some("backward") => Mode::Backward,
                Some("both") => Mode::Both,
                Some(other) => return Err(bad(other)),
            };
            let (is_outer, shapes) = (text("op") == "outer", [shape("lhs"), shape("rhs")]);
            Ok(Case { name: text("name"), is_outer, shapes, dtype, views: [view(0), view(1)], mode })
        })
        .collect()
}
