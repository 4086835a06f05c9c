//! Events: what ran, on what, for how long, with how many FLOPs and bytes.
//!
//! A profile covers the calling thread; work that a kernel spreads over a pool counts in its event. Off, an op pays one branch.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::modes::{self, ModeGuard};
use super::peak::{Peak, peak_of};
use crate::exec::device::Device;
use crate::shape::dtype::DType;
use crate::shape::error::Result;
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

/// Whose clock measured a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Clock {
    /// The host's, from the call until the work was done.
    #[default]
    Host,
    /// The device's own, from the start of its first kernel to the end of its last.
    Device,
}

/// One kernel, or one scope.
#[derive(Debug, Clone)]
pub struct Event {
    /// The op, or the scope's name.
    pub name: String,
    /// The recorded node whose gradient it is part of, such as `MatmulBackward`; empty forward.
    pub node: String,
    /// Number of the node that it recorded, or backward of the node whose gradient it is part of; 0 for none. Joins forward to
    /// backward.
    pub sequence: u64,
    /// Number of the thread, counted from 1 in the order of their first events.
    pub thread: u64,
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
    /// Nanoseconds that it took, by `clock`.
    pub duration_ns: u64,
    /// Whose clock measured `duration_ns`; `start_ns` is always the host's.
    pub clock: Clock,
    /// Change of the bytes in use on the device.
    pub memory_change_bytes: i64,
    /// Bytes in use on the device after it.
    pub memory_bytes: u64,
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
    /// Whose clock measured the first.
    pub clock: Clock,
    /// FLOPs of all.
    pub flops: u64,
    /// Bytes of all.
    pub bytes: u64,
    /// The device of the first.
    pub device: String,
}

/// What was collected.
#[derive(Debug, Clone, Default)]
pub struct Profile {
    events: Vec<Event>,
    devices: Vec<Device>,
}

#[derive(Debug)]
struct Collector {
    start: Instant,
    /// Without the texts of `names`, which cost allocations that the measured work shouldn't wait for.
    events: Vec<Event>,
    /// Op, op whose gradient it is part of, position of the device; one an event.
    names: Vec<(&'static str, Option<&'static str>, Option<usize>)>,
    devices: Vec<Device>,
    depth: u32,
}

impl Collector {
    fn new() -> Collector {
        Collector { start: Instant::now(), events: Vec::new(), names: Vec::new(), devices: Vec::new(), depth: 0 }
    }

    fn finish(mut self) -> Profile {
        for (event, (op, node, device)) in self.events.iter_mut().zip(self.names) {
            event.name.push_str(op);
            event.node = node.map_or_else(String::new, super::node_name);
            event.device = device.map_or_else(String::new, |i| self.devices[i].name().to_owned());
        }
        Profile { events: self.events, devices: self.devices }
    }
}

static THREADS: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static THREAD: u64 = THREADS.fetch_add(1, Relaxed);
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
    let recording = Recording::start();
    let out = f();
    (out, recording.finish())
}

/// A profile that is open on this thread: [`profile`] for callers that can't wrap their work in a function. Recordings are closed
/// in the reverse order of their opening; one that is dropped is lost.
#[must_use = "events are collected while the recording is open"]
#[derive(Debug)]
pub struct Recording {
    outer: Option<Collector>,
    /// Put back after the outer collector.
    _mode: ModeGuard,
}

impl Recording {
    /// Collects the events of this thread from now on.
    pub fn start() -> Recording {
        let outer = COLLECTOR.replace(Some(Collector::new()));
        Recording { outer, _mode: modes::set_profiling(true) }
    }

    /// The events since the start.
    pub fn finish(self) -> Profile {
        COLLECTOR.take().map_or_else(Profile::default, Collector::finish)
    }
}

/// Also when the profiled function panics.
impl Drop for Recording {
    fn drop(&mut self) {
        COLLECTOR.replace(self.outer.take());
    }
}

/// Runs `f` as a named scope of the profile.
pub fn record_function<T>(name: &str, f: impl FnOnce() -> T) -> T {
    let scope = Scope::enter(name);
    let out = f();
    drop(scope);
    out
}

/// A named scope of the profile, from its making to its drop. Off, it is nothing.
#[must_use = "the scope ends when it is dropped"]
#[derive(Debug)]
pub struct Scope {
    open: Option<(Instant, String)>,
    /// Profiles belong to a thread, so their scopes stay on it.
    not_send: PhantomData<*const ()>,
}

impl Scope {
    /// Opens a scope.
    pub fn enter(name: &str) -> Scope {
        let open = modes::is_profiling().then(|| (Instant::now(), name.to_owned()));
        if open.is_some() {
            COLLECTOR.with_borrow_mut(|c| c.iter_mut().for_each(|c| c.depth += 1));
        }
        Scope { open, not_send: PhantomData }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        let Some((start, name)) = self.open.take() else { return };
        COLLECTOR.with_borrow_mut(|c| c.iter_mut().for_each(|c| c.depth = c.depth.saturating_sub(1)));
        record("", start, start.elapsed(), None, |event| {
            event.name = name;
            event.direction = Direction::Scope;
        });
    }
}

/// Runs `work` of a device and says how long it took, by the device's own clock where it has one.
pub(crate) fn measure<T>(device: Option<&Device>, work: impl FnOnce() -> Result<T>) -> Result<(T, Instant, Duration, Clock)> {
    let start = Instant::now();
    let Some(device) = device else { return Ok((work()?, start, start.elapsed(), Clock::Host)) };
    device.backend().start_clock()?;
    let start = Instant::now();
    let out = work();
    // Stopped whatever came of the work.
    let own = device.backend().stop_clock();
    let (out, duration) = (out?, start.elapsed());
    Ok(match own? {
        Some(own) => (out, start, own, Clock::Device),
        None => (out, start, duration, Clock::Host),
    })
}

/// Adds an event of `op`; `fill` says the rest.
pub(crate) fn record(op: &'static str, start: Instant, duration: Duration, device: Option<&Device>, fill: impl FnOnce(&mut Event)) {
    COLLECTOR.with_borrow_mut(|collector| {
        let Some(c) = collector else { return };
        let (node, sequence, direction) = match NODE.get() {
            Some((op, sequence)) => (Some(op), sequence, Direction::Backward),
            None => (None, 0, Direction::Forward),
        };
        let mut event = Event {
            name: String::new(),
            node: String::new(),
            sequence,
            thread: THREAD.with(|t| *t),
            direction,
            device: String::new(),
            dtype: None,
            shapes: SmallVec::new(),
            flops: 0,
            bytes: 0,
            start_ns: start.saturating_duration_since(c.start).as_nanos() as u64,
            duration_ns: duration.as_nanos() as u64,
            clock: Clock::Host,
            memory_change_bytes: 0,
            memory_bytes: device.map_or(0, |d| d.memory_stats().current_bytes),
            depth: c.depth,
        };
        fill(&mut event);
        let device = device.map(|device| {
            c.devices.iter().position(|d| d == device).unwrap_or_else(|| {
                c.devices.push(device.clone());
                c.devices.len() - 1
            })
        });
        c.events.push(event);
        c.names.push((op, node, device));
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
                all.push(KeyAverage {
                    name: e.name.clone(),
                    node: e.node.clone(),
                    calls: 0,
                    total_ns: 0,
                    clock: e.clock,
                    flops: 0,
                    bytes: 0,
                    device: e.device.clone(),
                });
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

    /// A table by total time: calls, milliseconds, share of the kernels' time, GFLOP/s, GB/s, share of the peak.
    ///
    /// The peak of a device is measured the first time that a table asks, in some milliseconds: the best of several products of
    /// 256×256 f32 matrices in FLOP/s, and of several copies of 16 MiB in bytes read and written per second. The share is that
    /// of the nearer of both limits; work whose operands are in the cache can pass 100 %. A last line names devices whose own
    /// clock measured the times; else they are the host's.
    pub fn table(&self) -> String {
        let kernels: u64 = self.events.iter().filter(|e| e.direction != Direction::Scope).map(|e| e.duration_ns).sum();
        let peaks: Vec<(&str, Option<Peak>)> = self.devices.iter().map(|d| (d.name(), peak_of(d))).collect();
        let mut out = format!("{:<36} {:>8} {:>12} {:>7} {:>10} {:>9} {:>8}\n", "op", "calls", "ms", "share", "GFLOP/s", "GB/s", "of peak");
        for k in self.key_averages() {
            let name = if k.node.is_empty() { k.name.clone() } else { format!("{} in {}", k.name, k.node) };
            let (ns, total) = (k.total_ns.max(1) as f64, kernels.max(1) as f64);
            let peak = peaks.iter().find(|(name, _)| *name == k.device).and_then(|(_, peak)| *peak);
            let share =
                peak.map_or_else(|| "–".to_owned(), |p| format!("{:.1}%", 100.0 * p.share(k.flops as f64 / ns, k.bytes as f64 / ns)));
            let _ = writeln!(
                out,
                "{name:<36} {:>8} {:>12.3} {:>6.1}% {:>10.2} {:>9.2} {share:>8}",
                k.calls,
                k.total_ns as f64 / 1e6,
                100.0 * k.total_ns as f64 / total,
                k.flops as f64 / ns,
                k.bytes as f64 / ns
            );
        }
        let has_clock = |d: &&Device| self.events.iter().any(|e| e.clock == Clock::Device && e.device == d.name());
        let own: Vec<&str> = self.devices.iter().filter(has_clock).map(Device::name).collect();
        if !own.is_empty() {
            let _ = writeln!(out, "times of {} by its own clock", own.join(", "));
        }
        out
    }

    /// The events as Chrome trace JSON, which Perfetto opens: a row of kernels and scopes for each thread, one arrow from an op
    /// to the first kernel of its gradient, a counter of the bytes in use. Times in microseconds.
    pub fn export_chrome_trace(&self) -> String {
        let mut out = String::from("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[");
        let mut first = true;
        let mut add = |out: &mut String, text: String| {
            if !std::mem::take(&mut first) {
                out.push(',');
            }
            out.push_str(&text);
        };
        // A flow begins once and ends once.
        let mut ends: HashMap<u64, usize> = HashMap::new();
        for (i, e) in self.events.iter().enumerate().filter(|(_, e)| e.direction == Direction::Backward && e.sequence > 0) {
            ends.entry(e.sequence).or_insert(i);
        }
        let begins = |e: &Event| e.direction == Direction::Forward && ends.contains_key(&e.sequence);
        let begun: HashSet<u64> = self.events.iter().filter(|e| begins(e)).map(|e| e.sequence).collect();
        let mut threads: Vec<u64> = self.events.iter().map(|e| e.thread).collect();
        threads.sort_unstable();
        threads.dedup();
        for t in threads {
            let text = format!("{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":1,\"tid\":{t},\"args\":{{\"name\":\"thread {t}\"}}}}");
            add(&mut out, text);
        }
        for (i, e) in self.events.iter().enumerate() {
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
                    "{{\"name\":{},\"cat\":\"{category}\",\"ph\":\"X\",\"pid\":1,\"tid\":{},\"ts\":{:.3},\"dur\":{:.3},\"args\":{{\"node\":{},\"device\":{},\"dtype\":\"{dtype}\",\"shapes\":{},\"flops\":{},\"bytes\":{},\"memory_change_bytes\":{},\"clock\":\"{}\"}}}}",
                    quoted(&e.name),
                    e.thread,
                    us(e.start_ns),
                    us(e.duration_ns),
                    quoted(&e.node),
                    quoted(&e.device),
                    quoted(&shapes.join(" ")),
                    e.flops,
                    e.bytes,
                    e.memory_change_bytes,
                    if e.clock == Clock::Device { "device" } else { "host" }
                ),
            );
            let end = ends.get(&e.sequence) == Some(&i) && begun.contains(&e.sequence);
            let phase = if begins(e) { Some("\"s\"") } else { end.then_some("\"f\",\"bp\":\"e\"") };
            if let Some(phase) = phase {
                let (id, tid, ts) = (e.sequence, e.thread, us(e.start_ns));
                let text =
                    format!("{{\"name\":\"gradient\",\"cat\":\"flow\",\"ph\":{phase},\"id\":{id},\"pid\":1,\"tid\":{tid},\"ts\":{ts:.3}}}");
                add(&mut out, text);
            }
            if !e.device.is_empty() {
                let name = quoted(&format!("bytes on {}", e.device));
                let (ts, bytes) = (us(e.start_ns + e.duration_ns), e.memory_bytes);
                add(&mut out, format!("{{\"name\":{name},\"ph\":\"C\",\"pid\":1,\"ts\":{ts:.3},\"args\":{{\"bytes\":{bytes}}}}}"));
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
