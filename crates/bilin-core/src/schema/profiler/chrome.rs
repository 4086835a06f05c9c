//! Events as a Chrome trace.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use super::{Clock, Direction, Event, Profile};
use crate::exec::device::Device;
use crate::shape::dtype::DType;
use crate::shape::error::shape_text;

impl Profile {
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
            let (dtype, device) = (e.dtype.map_or("", DType::name), e.device.as_ref().map(Device::name));
            let shapes: Vec<String> = e.shapes.iter().map(|s| shape_text(s)).collect();
            add(
                &mut out,
                format!(
                    "{{\"name\":{},\"cat\":\"{category}\",\"ph\":\"X\",\"pid\":1,\"tid\":{},\"ts\":{:.3},\"dur\":{:.3},\"args\":{{\"node\":{},\"device\":{},\"dtype\":\"{dtype}\",\"shapes\":{},\"flops\":{},\"bytes\":{},\"memory_change_bytes\":{},\"clock\":\"{}\"}}}}",
                    quoted(&e.name),
                    e.thread,
                    us(e.start_ns),
                    us(e.duration_ns),
                    quoted(e.node),
                    quoted(device.unwrap_or("")),
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
            if let Some(device) = device {
                let name = quoted(&format!("bytes on {device}"));
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
