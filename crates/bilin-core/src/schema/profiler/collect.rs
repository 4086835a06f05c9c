//! Collecting events. Whatever the measured work would wait for is left to the end: an event is one flat record, its shapes
//! lengths in a common list, its times raw clock readings, its texts not there yet.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::{Clock, Direction, Event, Profile};
use crate::exec::device::Device;
use crate::schema::modes::{self, ModeGuard};
use crate::schema::node_name;
use crate::shape::dtype::DType;
use crate::shape::error::Result;
use crate::shape::layout::Dims;

/// An event as it is collected.
#[derive(Debug, Clone, Copy)]
struct Record {
    what: What,
    /// The op whose gradient it is part of.
    node: Option<&'static str>,
    sequence: u64,
    start: Instant,
    end: Instant,
    /// How long the device worked by its own clock, where it has one.
    own: Option<Duration>,
    flops: u64,
    bytes: u64,
    memory_before: u64,
    memory_after: u64,
    /// Where its lengths end in the list of all.
    lens_end: usize,
    depth: u32,
    /// Position of the device, from 1; 0 for none.
    device: u16,
    dtype: Option<DType>,
    operand_dtype: Option<DType>,
}

#[derive(Debug, Clone, Copy)]
enum What {
    Op(&'static str),
    /// Position of the scope's name.
    Scope(u32),
}

#[derive(Debug)]
struct Collector {
    start: Instant,
    records: Vec<Record>,
    /// Of each shape its rank and its lengths.
    lens: Vec<usize>,
    scopes: Vec<String>,
    devices: Vec<Device>,
    depth: u32,
}

impl Collector {
    fn new() -> Collector {
        let start = Instant::now();
        Collector { start, records: Vec::new(), lens: Vec::new(), scopes: Vec::new(), devices: Vec::new(), depth: 0 }
    }

    fn push(&mut self, what: What, start: Instant, end: Instant) -> &mut Record {
        let (node, sequence) = NODE.get().map_or((None, 0), |(op, sequence)| (Some(op), sequence));
        let (depth, lens_end) = (self.depth, self.lens.len());
        let (flops, bytes, memory_before, memory_after, device, dtype, operand_dtype) = (0, 0, 0, 0, 0, None, None);
        let at = self.records.len();
        self.records.push(Record {
            what,
            node,
            sequence,
            start,
            end,
            own: None,
            flops,
            bytes,
            memory_before,
            memory_after,
            lens_end,
            depth,
            device,
            dtype,
            operand_dtype,
        });
        &mut self.records[at]
    }

    fn device(&mut self, device: &Device) -> u16 {
        let known = self.devices.iter().position(|d| d == device);
        let at = known.unwrap_or_else(|| {
            self.devices.push(device.clone());
            self.devices.len() - 1
        });
        u16::try_from(at + 1).unwrap_or(0)
    }

    fn finish(self) -> Profile {
        let thread = THREAD.with(|t| *t);
        let mut nodes: HashMap<&'static str, &'static str> = HashMap::new();
        let mut lens = self.lens.iter().copied();
        let mut taken = 0;
        let event = |r: &Record| {
            let mut shapes = smallvec::SmallVec::new();
            while taken < r.lens_end {
                let rank = lens.next().unwrap_or(0);
                shapes.push(lens.by_ref().take(rank).collect::<Dims>());
                taken += rank + 1;
            }
            let (name, direction) = match r.what {
                What::Scope(at) => (Cow::Owned(self.scopes[at as usize].clone()), Direction::Scope),
                What::Op(op) if r.node.is_some() => (Cow::Borrowed(op), Direction::Backward),
                What::Op(op) => (Cow::Borrowed(op), Direction::Forward),
            };
            Event {
                name,
                node: r.node.map_or("", |op| nodes.entry(op).or_insert_with(|| node_name(op))),
                sequence: r.sequence,
                thread,
                direction,
                device: r.device.checked_sub(1).map(|i| self.devices[usize::from(i)].clone()),
                dtype: r.dtype,
                operand_dtype: r.operand_dtype,
                shapes,
                flops: r.flops,
                bytes: r.bytes,
                start_ns: r.start.saturating_duration_since(self.start).as_nanos() as u64,
                duration_ns: r.own.unwrap_or_else(|| r.end.saturating_duration_since(r.start)).as_nanos() as u64,
                clock: if r.own.is_some() { Clock::Device } else { Clock::Host },
                memory_change_bytes: r.memory_after as i64 - r.memory_before as i64,
                memory_bytes: r.memory_after,
                depth: r.depth,
            }
        };
        let events = self.records.iter().map(event).collect();
        Profile { events }
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
/// assert_eq!((&*profile.events()[0].name, profile.events()[0].flops), ("matmul", 1024));
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
        let end = Instant::now();
        COLLECTOR.with_borrow_mut(|collector| {
            let Some(c) = collector else { return };
            c.depth = c.depth.saturating_sub(1);
            c.scopes.push(name);
            c.push(What::Scope(c.scopes.len() as u32 - 1), start, end);
        });
    }
}

/// The clock and the bytes in use before a kernel.
pub(crate) struct Watch {
    start: Instant,
    memory: u64,
}

/// What a kernel did: its operands by shape and dtype.
pub(crate) struct Run<'a, S> {
    pub(crate) op: &'static str,
    pub(crate) device: &'a Device,
    pub(crate) operands: S,
    pub(crate) result_bytes: u64,
    pub(crate) dtype: Option<DType>,
    pub(crate) flops: u64,
}

impl Watch {
    pub(crate) fn start(device: Option<&Device>) -> Result<Watch> {
        device.map_or(Ok(()), |d| d.backend().start_clock())?;
        Ok(Watch { memory: device.map_or(0, Device::current_bytes), start: Instant::now() })
    }

    /// The clock after it. Work that is only queued has no duration yet, so this waits for it.
    pub(crate) fn stop(self, device: Option<&Device>) -> Result<Lap> {
        let own = device.map_or(Ok(None), |d| d.backend().stop_clock())?;
        Ok(Lap { watch: self, end: Instant::now(), own })
    }
}

/// The time of a kernel.
pub(crate) struct Lap {
    watch: Watch,
    end: Instant,
    own: Option<Duration>,
}

impl Lap {
    /// The times of two kernels that ran as one over the same elements: half of it each. The memory counts with the first.
    pub(crate) fn halved(self, device: &Device) -> [Lap; 2] {
        let Lap { watch, end, own } = self;
        let (middle, own) = (watch.start + end.saturating_duration_since(watch.start) / 2, own.map(|own| own / 2));
        let after = Watch { start: middle, memory: device.current_bytes() };
        [Lap { watch, end: middle, own }, Lap { watch: after, end, own }]
    }

    /// Adds the event; gives its place.
    pub(crate) fn record<'a>(self, run: Run<'a, impl Iterator<Item = (&'a [usize], DType)>>) -> usize {
        let Lap { watch, end, own } = self;
        COLLECTOR.with_borrow_mut(|collector| {
            let Some(c) = collector else { return 0 };
            let at = c.records.len();
            let (mut bytes, mut widest) = (run.result_bytes, None);
            for (shape, dtype) in run.operands {
                c.lens.push(shape.len());
                c.lens.extend_from_slice(shape);
                bytes += (shape.iter().product::<usize>() * dtype.size_bytes()) as u64;
                widest = widest.max(Some(dtype));
            }
            let device = c.device(run.device);
            let record = c.push(What::Op(run.op), watch.start, end);
            *record = Record {
                own,
                flops: run.flops,
                bytes,
                memory_before: watch.memory,
                memory_after: run.device.current_bytes(),
                device,
                dtype: run.dtype,
                operand_dtype: widest,
                ..*record
            };
            at
        })
    }
}

/// Tells an event of a forward pass which node it recorded.
pub(crate) fn set_sequence(at: usize, sequence: u64) {
    let set = |c: &mut Collector| c.records.get_mut(at).filter(|r| r.node.is_none()).map(|r| r.sequence = sequence);
    COLLECTOR.with_borrow_mut(|c| c.as_mut().and_then(set));
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
