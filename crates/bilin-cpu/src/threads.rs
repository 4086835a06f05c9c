//! Threads: the caller's rayon pool where there is one, else one of our own.

use std::sync::{Arc, RwLock};

use bilin_core::exec::host::Workers;
use bilin_core::{Error, Result};
use rayon::prelude::*;

/// Multiply-adds of a product below which it stays on its thread: handing work over takes about 10 µs.
pub(crate) const SERIAL_BELOW: usize = 1 << 19;
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

/// Threads that [`for_each`] may use here.
pub(crate) fn current_threads() -> usize {
    if rayon::current_thread_index().is_some() { rayon::current_num_threads() } else { num_threads() }
}

/// Runs `work` in the pool that belongs here.
fn inside(work: impl FnOnce() + Send) {
    if rayon::current_thread_index().is_some() {
        return work();
    }
    match ensured() {
        (_, Some(pool)) => pool.install(work),
        _ => work(),
    }
}

/// Runs `work(0..tasks)`, each task of about `cost` elementary operations, in any order.
pub(crate) fn for_each(tasks: usize, cost: usize, work: &(dyn Fn(usize) + Sync)) {
    if tasks <= 1 || tasks.saturating_mul(cost) < SERIAL_BELOW || current_threads() == 1 {
        (0..tasks).for_each(work);
        return;
    }
    let least = (SERIAL_BELOW / 4 / cost.max(1)).clamp(1, tasks);
    inside(|| (0..tasks).into_par_iter().with_min_len(least).for_each(work));
}

/// Runs `work` over ranges that make up `0..tasks`, each task of about `cost` elementary operations, in any order.
pub(crate) fn for_ranges(tasks: usize, cost: usize, work: &(dyn Fn(std::ops::Range<usize>) + Sync)) {
    let threads = current_threads();
    if tasks <= 1 || tasks.saturating_mul(cost) < SERIAL_BELOW || threads == 1 {
        return work(0..tasks);
    }
    let least = (SERIAL_BELOW / 4 / cost.max(1)).clamp(1, tasks);
    let each = tasks.div_ceil(4 * threads).max(least);
    let parts = tasks.div_ceil(each);
    inside(|| (0..parts).into_par_iter().for_each(|i| work(i * each..tasks.min((i + 1) * each))));
}

/// Runs `work(start, chunk)` for chunks of a slice, each element of about `cost` elementary operations.
pub(crate) fn for_each_chunk<T: Send>(data: &mut [T], chunk: usize, cost: usize, work: &(dyn Fn(usize, &mut [T]) + Sync)) {
    if data.len() <= chunk || data.len().saturating_mul(cost) < SERIAL_BELOW || current_threads() == 1 {
        data.chunks_mut(chunk).enumerate().for_each(|(i, part)| work(i * chunk, part));
    } else {
        inside(|| data.par_chunks_mut(chunk).enumerate().for_each(|(i, part)| work(i * chunk, part)));
    }
}

/// Elementwise loops on this crate's threads.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RayonWorkers;

impl Workers for RayonWorkers {
    fn chunks(&self, bytes: &mut [u8], chunk_bytes: usize, cost: usize, run: &(dyn Fn(usize, &mut [u8]) + Sync)) {
        let chunk_bytes = chunk_bytes.max(1);
        if cost < ELEMENTWISE_SERIAL_BELOW || bytes.len() <= chunk_bytes || current_threads() == 1 {
            bytes.chunks_mut(chunk_bytes).enumerate().for_each(|(i, chunk)| run(i, chunk));
        } else {
            inside(|| bytes.par_chunks_mut(chunk_bytes).enumerate().for_each(|(i, chunk)| run(i, chunk)));
        }
    }
}
