//! What a product took: for people and as JSON.

use bilin::{DType, shape_text};
use serde_json::{Map, Value, json};

/// Measurements of one product.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) op: &'static str,
    pub(crate) shape: Vec<usize>,
    pub(crate) dtype: DType,
    pub(crate) device: String,
    /// Time of the product alone.
    pub(crate) seconds: f64,
    pub(crate) grad_seconds: Option<f64>,
    pub(crate) hvp_seconds: Option<f64>,
    pub(crate) flops: u128,
    /// Bytes of the operands and the result.
    pub(crate) bytes: u64,
    /// Most bytes in use on the device, operands included.
    pub(crate) peak_bytes: u64,
    /// Files that were written.
    pub(crate) files: Vec<String>,
}

impl Default for Report {
    fn default() -> Report {
        Report {
            op: "",
            shape: Vec::new(),
            dtype: DType::F32,
            device: String::new(),
            seconds: 0.0,
            grad_seconds: None,
            hvp_seconds: None,
            flops: 0,
            bytes: 0,
            peak_bytes: 0,
            files: Vec::new(),
        }
    }
}

impl Report {
    pub(crate) fn json(&self) -> Value {
        let mut all = Map::new();
        all.insert("op".into(), json!(self.op));
        all.insert("shape".into(), json!(self.shape));
        all.insert("dtype".into(), json!(self.dtype.name()));
        all.insert("device".into(), json!(self.device));
        all.insert("seconds".into(), json!(self.seconds));
        for (name, seconds) in [("grad_seconds", self.grad_seconds), ("hvp_seconds", self.hvp_seconds)] {
            if let Some(seconds) = seconds {
                all.insert(name.into(), json!(seconds));
            }
        }
        all.insert("flops".into(), json!(u64::try_from(self.flops).unwrap_or(u64::MAX)));
        all.insert("bytes".into(), json!(self.bytes));
        all.insert("peak_bytes".into(), json!(self.peak_bytes));
        all.insert("files".into(), json!(self.files));
        Value::Object(all)
    }

    /// One line.
    pub(crate) fn summary(&self) -> String {
        let mut text = format!("{}: {} {} on {}, {}", self.op, shape_text(&self.shape), self.dtype, self.device, duration(self.seconds));
        if self.flops > 0 && self.seconds > 0.0 {
            text += &format!(", {:.3} GFLOP/s", self.flops as f64 / self.seconds / 1e9);
        }
        for (what, seconds) in [("gradients", self.grad_seconds), ("Hessian products", self.hvp_seconds)] {
            if let Some(seconds) = seconds {
                text += &format!(", {what} {}", duration(seconds));
            }
        }
        text
    }
}

/// Seconds with a unit that suits them.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.1} µs", s * 1e6),
        s if s < 1.0 => format!("{:.2} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}
