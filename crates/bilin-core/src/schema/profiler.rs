//! Events: what ran, on what, for how long, with how many FLOPs and bytes.
//!
//! A profile covers the calling thread; work that a kernel spreads over a pool counts in its event. Off, an op pays one branch.

use std::cell::{Cell, RefCell};
use std::fmt::Write;
use std::time::Instant;

use smallvec::SmallVec;

use super::modes;
use crate::shape::dtype::DType;
use crate::shape::layout::Dims;

/// Which pass an event belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// Computing a value.
    Forward,
    /// Computing a gradient.
    Backward,
    /// A scope of the user's.
    Scope,
}

/// One kernel, or one scope.
#[derive(Debug, Clone)]
pub struct Event {
    /// The op, or the scope's name.
    pub name: String,
    /// The recorded node whose gradient it is part of, such as `MatmulBackward`; empty forward.
    pub node: String,
    /// Number of the node that recorded it or that it belongs to; 0 for none. Joins forward to backward.
    pub sequence: u64,
    /// Which pass.
    pub direction: Direction,
    /// Where it ran.
    pub device: String,
    /// Dtype of the result.
    pub dtype: Option<DType>,
    /// Shapes of the operands.
    pub shapes: SmallVec<[Dims; 2]>,
    /// Floating-point operations: 2·batch·M·N·K of a product, four times that for complex numbers.
    pub flops: u64,
    /// Bytes of operands and results.
    pub bytes: u64,
    /// Nanoseconds from the start of the profile.
    pub start_ns: u64,
    /// Nanoseconds that it took.
    pub duration_ns: u64,
    /// Change of the bytes in use on the device.
    pub memory_change_bytes: i64,
    /// Scopes around it.
    pub depth: u32,
}

/// Events of one name and node, added up.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyAverage {
    /// The op, or the scope's name.
    pub name: String,
    /// The node of a gradient.
    pub node: String,
    /// Number of events.
    pub calls: u64,
    /// Nanoseconds of all.
    pub total_ns: u64,
    /// FLOPs of all.
    pub flops: u64,
    /// Bytes of all.
    pub bytes: u64,
}

/// What was collected.
#[derive(Debug, Clone, Default)]
pub struct Profile {
    events: Vec<Event>,
}

struct Collector {
    start: Instant,
    events: Vec<Event>,
    depth: u32,
}

thread_local! {
    static COLLECTOR: RefCell<Option<Collector>> = const { RefCell::new(None) };
    /// The node whose gradient is being computed, and its number.
    static NODE: Cell<Option<(&'static str, u64)>> = const { Cell::new(None) };
}

/// Runs `f` and returns the events of this thread.
///
/// ```
/// use bilin_core::{DType, Device, Tensor, schema::profiler};
/// let a = Tensor::ones([8, 8], DType::F32, &Device::reference())?;
/// let profile = profiler::profile(|| drop(a.matmul(&a)));
/// assert_eq!((profile.events()[0].name.as_str(), profile.events()[0].flops), ("matmul", 1024));
/// # Ok::<(), bilin_core::Error>(())
/// ```
pub fn profile(f: impl FnOnce()) -> Profile {
    profile_with(f).1
}

/// [`profile`] of a function with a result. A profile inside a profile takes the events of its own time.
pub fn profile_with<T>(f: impl FnOnce() -> T) -> (T, Profile) {
    let outer = COLLECTOR.replace(Some(Collector { start: Instant::now(), events: Vec::new(), depth: 0 }));
    let restore = Restore(outer);
    let mode = modes::set_profiling(true);
    let out = f();
    drop(mode);
    let events = COLLECTOR.take().map_or_else(Vec::new, |c| c.events);
    drop(restore);
    (out, Profile { events })
}

/// Puts the outer collector back, also when `f` panics.
struct Restore(Option<Collector>);
impl Drop for Restore {
    fn drop(&mut self) {
        COLLECTOR.replace(self.0.take());
    }
}

/// Runs `f` as a named scope of the profile.
pub fn record_function<T>(name: &str, f: impl FnOnce() -> T) -> T {
    if !modes::is_profiling() {
        return f();
    }
    let start = Instant::now();
    COLLECTOR.with_borrow_mut(|c| c.iter_mut().for_each(|c| c.depth += 1));
    let out = f();
    COLLECTOR.with_borrow_mut(|c| c.iter_mut().for_each(|c| c.depth -= 1));
    record(start, |event| {
        event.name = name.to_owned();
        event.direction = Direction::Scope;
    });
    out
}

/// Adds an event that began at `start` and ends now; `fill` says the rest.
pub(crate) fn record(start: Instant, fill: impl FnOnce(&mut Event)) {
    let duration_ns = start.elapsed().as_nanos() as u64;
    COLLECTOR.with_borrow_mut(|collector| {
        let Some(c) = collector else { return };
        let (node, sequence, direction) = match NODE.get() {
            Some((op, sequence)) => (super::node_name(op), sequence, Direction::Backward),
            None => (String::new(), 0, Direction::Forward),
        };
        let mut event = Event {
            name: String::new(),
            node,
            sequence,
            direction,
            device: String::new(),
            dtype: None,
            shapes: SmallVec::new(),
            flops: 0,
            bytes: 0,
            start_ns: start.saturating_duration_since(c.start).as_nanos() as u64,
            duration_ns,
            memory_change_bytes: 0,
            depth: c.depth,
        };
        fill(&mut event);
        c.events.push(event);
    });
}

/// Marks this thread as computing the gradient of a node, until the guard is dropped.
pub(crate) struct InNode(Option<(&'static str, u64)>);

impl InNode {
    pub(crate) fn enter(op: &'static str, sequence: u64) -> InNode {
        InNode(NODE.replace(Some((op, sequence))))
    }
}
impl Drop for InNode {
    fn drop(&mut self) {
        NODE.set(self.0);
    }
}

impl Profile {
    /// The events, in the order in which they ended.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Events of one name and node added up, the longest first.
    pub fn key_averages(&self) -> Vec<KeyAverage> {
        let mut all: Vec<KeyAverage> = Vec::new();
        for e in &self.events {
            let at = all.iter().position(|k| k.name == e.name && k.node == e.node).unwrap_or_else(|| {
                all.push(KeyAverage { name: e.name.clone(), node: e.node.clone(), calls: 0, total_ns: 0, flops: 0, bytes: 0 });
                all.len() - 1
            });
            let k = &mut all[at];
            k.calls += 1;
            k.total_ns += e.duration_ns;
            k.flops += e.flops;
            k.bytes += e.bytes;
        }
        all.sort_by(|a, b| b.total_ns.cmp(&a.total_ns).then_with(|| (&a.name, &a.node).cmp(&(&b.name, &b.node))));
        all
    }

    /// A table by total time: calls, milliseconds, share of the kernels' time, GFLOP/s, GB/s.
    pub fn table(&self) -> String {
        let kernels: u64 = self.events.iter().filter(|e| e.direction != Direction::Scope).map(|e| e.duration_ns).sum();
        let mut out = format!("{:<36} {:>8} {:>12} {:>7} {:>10} {:>9}\n", "op", "calls", "ms", "share", "GFLOP/s", "GB/s");
        for k in self.key_averages() {
            let name = if k.node.is_empty() { k.name.clone() } else { format!("{} in {}", k.name, k.node) };
            let (ns, total) = (k.total_ns.max(1) as f64, kernels.max(1) as f64);
            let _ = writeln!(
                out,
                "{name:<36} {:>8} {:>12.3} {:>6.1}% {:>10.2} {:>9.2}",
                k.calls,
                k.total_ns as f64 / 1e6,
                100.0 * k.total_ns as f64 / total,
                k.flops as f64 / ns,
                k.bytes as f64 / ns
            );
        }
        out
    }

    /// The events as Chrome trace JSON, which Perfetto opens: one row of kernels and scopes, arrows from an op to its
    /// gradient. Times in microseconds.
    pub fn export_chrome_trace(&self) -> String {
        let mut out = String::from("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[");
        let mut first = true;
        let mut add = |out: &mut String, text: String| {
            if !std::mem::take(&mut first) {
                out.push(',');
            }
            out.push_str(&text);
        };
        for e in &self.events {
            let us = |ns: u64| ns as f64 / 1000.0;
            let category = match e.direction {
                Direction::Forward => "forward",
                Direction::Backward => "backward",
                Direction::Scope => "scope",
            };
            let dtype = e.dtype.map_or("", DType::name);
            let shapes: Vec<String> = e.shapes.iter().map(|s| crate::shape::error::shape_text(s)).collect();
            add(
                &mut out,
                format!(
                    "{{\"name\":{},\"cat\":\"{category}\",\"ph\":\"X\",\"pid\":1,\"tid\":1,\"ts\":{:.3},\"dur\":{:.3},\"args\":{{\"node\":{},\"device\":{},\"dtype\":\"{dtype}\",\"shapes\":{},\"flops\":{},\"bytes\":{},\"memory_change_bytes\":{}}}}}",
                    quoted(&e.name),
                    us(e.start_ns),
                    us(e.duration_ns),
                    quoted(&e.node),
                    quoted(&e.device),
                    quoted(&shapes.join(" ")),
                    e.flops,
                    e.bytes,
                    e.memory_change_bytes
                ),
            );
            if e.sequence > 0 {
                let (phase, binding) = if e.direction == Direction::Backward { ("f", ",\"bp\":\"e\"") } else { ("s", "") };
                add(
                    &mut out,
                    format!(
                        "{{\"name\":\"gradient\",\"cat\":\"flow\",\"ph\":\"{phase}\"{binding},\"id\":{},\"pid\":1,\"tid\":1,\"ts\":{:.3}}}",
                        e.sequence,
                        us(e.start_ns)
                    ),
                );
            }
        }
        out.push_str("]}");
        out
    }
}

/// A JSON string.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if u32::from(c) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
