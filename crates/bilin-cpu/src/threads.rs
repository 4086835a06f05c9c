//! Threads: the caller's rayon pool where there is one, else one of our own.

use std::ops::Range;
use std::sync::{Arc, Mutex, RwLock};

use bilin_core::exec::host::{Work, Workers};
use bilin_core::{Error, Result};

use crate::arch::Isa;

/// Cost (see [`cost`]) below which work stays on its thread: waking another takes about 5 µs.
pub(crate) const SERIAL_BELOW: usize = 1 << 22;
/// Multiply-adds that take as long as reading or writing a byte of memory.
const BYTE_COST: usize = 8;

/// Of work, in multiply-adds: what it computes, or what it moves.
pub(crate) fn cost(multiply_adds: usize, bytes: usize) -> usize {
    multiply_adds.max(bytes.saturating_mul(BYTE_COST))
}

/// The same for elementwise work, whose steps each take longer.
const ELEMENTWISE_SERIAL_BELOW: usize = 1 << 17;

/// Most threads of a pool: more than any machine has cores, few enough to start.
const MOST: usize = 4096;

#[derive(Default)]
struct Pool {
    threads: usize,
    pool: Option<Arc<rayon::ThreadPool>>,
}

static POOL: RwLock<Pool> = RwLock::new(Pool { threads: 0, pool: None });

fn default_threads() -> usize {
    let asked = std::env::var("BILIN_NUM_THREADS").ok().and_then(|v| v.parse::<usize>().ok()).filter(|n| (1..=MOST).contains(n));
    asked.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

fn ensured() -> (usize, Option<Arc<rayon::ThreadPool>>) {
    {
        let pool = POOL.read().unwrap_or_else(|e| e.into_inner());
        if pool.threads > 0 {
            return (pool.threads, pool.pool.clone());
        }
    }
    let mut pool = POOL.write().unwrap_or_else(|e| e.into_inner());
    if pool.threads == 0 {
        *pool = built(default_threads());
    }
    (pool.threads, pool.pool.clone())
}

fn built(threads: usize) -> Pool {
    if threads == 1 {
        return Pool { threads, pool: None };
    }
    match rayon::ThreadPoolBuilder::new().num_threads(threads).thread_name(|i| format!("bilin-{i}")).build() {
        Ok(pool) => Pool { threads, pool: Some(Arc::new(pool)) },
        Err(_) => Pool { threads: 1, pool: None },
    }
}

/// Threads of the engine's own pool: `BILIN_NUM_THREADS`, else what [`set_num_threads`] said, else one per core.
pub fn num_threads() -> usize {
    let pool = POOL.read().unwrap_or_else(|e| e.into_inner());
    if pool.threads > 0 { pool.threads } else { default_threads() }
}

/// Sets the number of threads of the engine's own pool. Results don't depend on it.
pub fn set_num_threads(threads: usize) -> Result<()> {
    if !(1..=MOST).contains(&threads) {
        return Err(Error::invalid("set_num_threads", "threads", threads, format!("want a count from 1 to {MOST}")));
    }
    let mut pool = POOL.write().unwrap_or_else(|e| e.into_inner());
    if pool.threads != threads {
        *pool = built(threads);
    }
    Ok(())
}

/// Threads that work may be spread over here.
pub(crate) fn current_threads() -> usize {
    if rayon::current_thread_index().is_some() { rayon::current_num_threads() } else { num_threads() }
}

/// Runs `work` on every item, in any order: this thread and those of the pool that belongs here take one after the other.
fn share<I>(items: I, count: usize, work: &(dyn Fn(I::Item) + Sync))
where
    I: Iterator + Send,
{
    let items = Mutex::new(items);
    let next = || items.lock().unwrap_or_else(|e| e.into_inner()).next();
    let turns = || {
        while let Some(item) = next() {
            work(item);
        }
    };
    if rayon::current_thread_index().is_some() {
        return rayon::in_place_scope(|scope| with_help(scope, rayon::current_num_threads().min(count), &turns));
    }
    match ensured() {
        (threads, Some(pool)) => pool.in_place_scope(|scope| with_help(scope, threads.min(count), &turns)),
        _ => turns(),
    }
}

/// Takes turns on this thread and on others up to `threads` in all.
fn with_help<'s>(scope: &rayon::Scope<'s>, threads: usize, turns: &'s (impl Fn() + Sync)) {
    for _ in 1..threads {
        scope.spawn(|_| turns());
    }
    turns();
}

/// Runs `work(0..tasks)`, each task of about `cost`, in any order.
pub(crate) fn for_each(tasks: usize, cost: usize, work: &(dyn Fn(usize) + Sync)) {
    for_ranges(tasks, cost, &|range| range.for_each(work));
}

/// Runs `work` over ranges that make up `0..tasks`, each task of about `cost`, in any order.
pub(crate) fn for_ranges(tasks: usize, cost: usize, work: &(dyn Fn(Range<usize>) + Sync)) {
    let threads = if tasks <= 1 || tasks.saturating_mul(cost) < SERIAL_BELOW { 1 } else { current_threads() };
    if threads == 1 {
        return work(0..tasks);
    }
    let least = (SERIAL_BELOW / 4 / cost.max(1)).clamp(1, tasks);
    let each = tasks.div_ceil(8 * threads).max(least);
    let ranges = (0..tasks).step_by(each).map(|from| from..tasks.min(from + each));
    share(ranges, tasks.div_ceil(each), work);
}

/// Runs `work(start, chunk)` for chunks of a slice, each element of about `cost`.
pub(crate) fn for_each_chunk<T: Send>(data: &mut [T], chunk: usize, cost: usize, work: &(dyn Fn(usize, &mut [T]) + Sync)) {
    let is_serial = data.len() <= chunk || data.len().saturating_mul(cost) < SERIAL_BELOW;
    chunks(data, chunk, is_serial, &|i, part| work(i * chunk, part));
}

fn chunks<T: Send>(data: &mut [T], chunk: usize, is_serial: bool, work: &(dyn Fn(usize, &mut [T]) + Sync)) {
    let count = data.len().div_ceil(chunk);
    let parts = data.chunks_mut(chunk).enumerate();
    if is_serial || current_threads() == 1 {
        parts.for_each(|(i, part)| work(i, part));
    } else {
        share(parts, count, &|(i, part)| work(i, part));
    }
}

/// Elementwise loops on this crate's threads.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RayonWorkers;

impl Workers for RayonWorkers {
    fn chunks(&self, bytes: &mut [u8], chunk_bytes: usize, cost: usize, run: &(dyn Fn(usize, &mut [u8]) + Sync)) {
        let chunk_bytes = chunk_bytes.max(1);
        chunks(bytes, chunk_bytes, cost < ELEMENTWISE_SERIAL_BELOW || bytes.len() <= chunk_bytes, run);
    }
    fn compiled<W: Work>(&self, work: W) -> W::Output {
        Isa::best().with(work)
    }
}
