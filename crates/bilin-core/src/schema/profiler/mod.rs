//! Events: what ran, on what, for how long, with how many FLOPs and bytes.
//!
//! A profile covers the calling thread; work that a kernel spreads over a pool counts in its event. Off, an op pays one branch.

mod chrome;
mod collect;
mod peak;

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;

use smallvec::SmallVec;

pub(crate) use collect::{InNode, Run, Watch, set_sequence};
pub use collect::{Recording, Scope, profile, profile_with, record_function};
use peak::{bytes_per_ns, flops_per_ns};

use crate::exec::device::Device;
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

/// Whose clock measured a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Clock {
    /// The host's, from the call until the work was done.
    Host,
    /// The device's own, from the start of its first kernel to the end of its last.
    Device,
}

/// One kernel, or one scope.
#[derive(Debug, Clone)]
pub struct Event {
    /// The op, or the scope's name.
    pub name: Cow<'static, str>,
    /// The recorded node whose gradient it is part of, such as `MatmulBackward`; empty forward.
    pub node: &'static str,
    /// Number of the node that it recorded, or backward of the node whose gradient it is part of; 0 for none. Joins forward to
    /// backward.
    pub sequence: u64,
    /// Number of the thread, counted from 1 in the order of their first profiles.
    pub thread: u64,
    /// Which pass.
    pub direction: Direction,
    /// Where it ran; none for a scope.
    pub device: Option<Device>,
    /// Dtype of the result.
    pub dtype: Option<DType>,
    /// The widest dtype of the operands.
    pub operand_dtype: Option<DType>,
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

/// Events of one name, node and device, added up.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyAverage {
    /// The op, or the scope's name.
    pub name: Cow<'static, str>,
    /// The node of a gradient.
    pub node: &'static str,
    /// Where they ran.
    pub device: Option<Device>,
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

/// Sums of one name, node and device.
struct Sum {
    of: KeyAverage,
    /// Nanoseconds that the same FLOPs and bytes take at the device's peak; none where that can't be measured.
    at_peak_ns: Option<f64>,
}

impl Profile {
    /// The events, in the order in which they ended.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Adds up, with `at_peak` for each event; the longest first.
    fn sums(&self, mut at_peak: impl FnMut(&Event) -> Option<f64>) -> Vec<Sum> {
        let mut places: HashMap<(&str, &str, Option<&str>), usize> = HashMap::new();
        let mut sums: Vec<Sum> = Vec::new();
        for e in &self.events {
            let at = *places.entry((&e.name, e.node, e.device.as_ref().map(Device::name))).or_insert_with(|| {
                let (name, device) = (e.name.clone(), e.device.clone());
                let of = KeyAverage { name, node: e.node, device, calls: 0, total_ns: 0, flops: 0, bytes: 0 };
                sums.push(Sum { of, at_peak_ns: Some(0.0) });
                sums.len() - 1
            });
            let sum = &mut sums[at];
            sum.of.calls += 1;
            sum.of.total_ns += e.duration_ns;
            sum.of.flops += e.flops;
            sum.of.bytes += e.bytes;
            sum.at_peak_ns = sum.at_peak_ns.zip(at_peak(e)).map(|(a, b)| a + b);
        }
        sums.sort_by(|a, b| b.of.total_ns.cmp(&a.of.total_ns).then_with(|| (&a.of.name, a.of.node).cmp(&(&b.of.name, b.of.node))));
        sums
    }

    /// Events of one name, node and device added up, the longest first.
    pub fn key_averages(&self) -> Vec<KeyAverage> {
        self.sums(|_| None).into_iter().map(|s| s.of).collect()
    }

    /// A table by total time: calls, milliseconds, share of the kernels' time, GFLOP/s, GB/s, share of the peak.
    ///
    /// The share of the peak is the time that the same work takes at the device's limits over the time that it took: for each
    /// event the longer of its FLOPs at the rate of large products of its operands' dtype and its bytes at the rate of a large
    /// copy. A rate is measured the first time that a table needs it, in some hundredths of a second. Work whose operands are in
    /// the cache can pass 100 %. A last line names devices whose own clock measured the times; else they are the host's.
    pub fn table(&self) -> String {
        let kernels: u64 = self.events.iter().filter(|e| e.direction != Direction::Scope).map(|e| e.duration_ns).sum();
        let mut out = format!("{:<36} {:>8} {:>12} {:>7} {:>10} {:>9} {:>8}\n", "op", "calls", "ms", "share", "GFLOP/s", "GB/s", "of peak");
        for Sum { of: k, at_peak_ns } in self.sums(at_peak_ns) {
            let name = if k.node.is_empty() { k.name.to_string() } else { format!("{} in {}", k.name, k.node) };
            let (ns, total) = (k.total_ns.max(1) as f64, kernels.max(1) as f64);
            // A scope is time on the clock, not a part of the kernels' time.
            let share = if k.device.is_none() { "–".to_owned() } else { format!("{:.1}%", 100.0 * k.total_ns as f64 / total) };
            let of_peak = at_peak_ns.map_or_else(|| "–".to_owned(), |at_peak| format!("{:.1}%", 100.0 * at_peak / ns));
            let _ = writeln!(
                out,
                "{name:<36} {:>8} {:>12.3} {share:>7} {:>10.2} {:>9.2} {of_peak:>8}",
                k.calls,
                k.total_ns as f64 / 1e6,
                k.flops as f64 / ns,
                k.bytes as f64 / ns
            );
        }
        let own = self.events.iter().filter(|e| e.clock == Clock::Device).filter_map(|e| e.device.as_ref().map(Device::name));
        let own: BTreeSet<&str> = own.collect();
        if !own.is_empty() {
            let _ = writeln!(out, "times of {} by its own clock", own.into_iter().collect::<Vec<_>>().join(", "));
        }
        out
    }
}

/// Nanoseconds of an event's work at the peak of its device.
fn at_peak_ns(e: &Event) -> Option<f64> {
    let device = e.device.as_ref()?;
    let moving = e.bytes as f64 / bytes_per_ns(device)?;
    if e.flops == 0 {
        return Some(moving);
    }
    Some(moving.max(e.flops as f64 / flops_per_ns(device, e.operand_dtype?)?))
}
