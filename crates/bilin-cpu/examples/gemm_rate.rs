//! Prints the rate of key shapes: `gemm_rate [words to filter by]`.

use std::time::Instant;

use bilin_core::exec::backend::Backend;
use bilin_core::exec::buffer::Buffer;
use bilin_core::exec::call::{Conj, ContractCall, Precision, Source, Target};
use bilin_core::shape::plan::Plan;
use bilin_core::shape::spec::{Axis, Spec};
use bilin_core::{DType, Layout, OpName, Result};
use bilin_cpu::{CpuBackend, CpuBuffer};

/// Subscript, lengths of its labels, dtype.
type Shape = (String, Vec<(char, usize)>, DType);

/// Seconds of the best of several runs.
fn seconds(subscript: &str, lens: &[(char, usize)], dtypes: [DType; 3]) -> Result<f64> {
    let op: OpName = "rate".into();
    let parts: Vec<&str> = subscript.split([',', '>']).map(|s| s.trim_end_matches('-')).collect();
    let axes = |s: &str| s.chars().map(|c| Axis::Label(c as u16)).collect();
    let shape = |s: &str| -> Vec<usize> { s.chars().map(|c| lens.iter().find(|l| l.0 == c).map_or(1, |l| l.1)).collect() };
    let Some(spec) = Spec::new(axes(parts[0]), axes(parts[1]), axes(parts[2])) else { return Ok(f64::NAN) };
    let layouts: Vec<Layout> = parts.iter().map(|p| Layout::contiguous(&shape(p))).collect();
    let plan = Plan::new(&op, &spec, &layouts[0], &layouts[1], &layouts[2])?;
    let bytes = |i: usize| layouts[i].numel() * dtypes[i].size_bytes();
    let fresh = |i: usize| CpuBuffer::new(bytes(i)).ok_or(bilin_core::Error::invalid("rate", "shape", "", "smaller"));
    let (mut lhs, mut rhs, mut out) = (fresh(0)?, fresh(1)?, fresh(2)?);
    for buffer in [&mut lhs, &mut rhs] {
        if let Some(bytes) = buffer.host_mut() {
            for (i, b) in bytes.iter_mut().enumerate() {
                *b = if i % 2 == 1 { 0x3c } else { (i * 7 % 64) as u8 };
            }
        }
    }
    let backend = CpuBackend::new();
    let acc = dtypes[0].accumulator();
    let mut once = || -> Result<()> {
        let target = Target { buffer: &mut out, dtype: dtypes[2] };
        let (l, r) = (Source { buffer: &lhs, dtype: dtypes[0] }, Source { buffer: &rhs, dtype: dtypes[1] });
        backend.contract(ContractCall::new(&op, &plan, l, r, target, [Conj::No; 2], acc, Precision::Ieee)?)
    };
    once()?;
    let start = Instant::now();
    once()?;
    let each = start.elapsed().as_secs_f64();
    let repeats = ((0.02 / each) as usize).clamp(1, 100_000);
    let mut best = f64::MAX;
    for _ in 0..12 {
        let start = Instant::now();
        for _ in 0..repeats {
            once()?;
        }
        best = best.min(start.elapsed().as_secs_f64() / repeats as f64);
    }
    Ok(best)
}

#[allow(clippy::type_complexity, reason = "a list of cases, read once")]
fn main() -> Result<()> {
    let filters: Vec<String> = std::env::args().skip(1).collect();
    let square = |n| vec![('i', n), ('j', n), ('k', n)];
    let mut cases: Vec<Shape> = Vec::new();
    for n in [2, 4, 16, 64, 128, 256, 512, 1024, 2048] {
        for dtype in [DType::F32, DType::F64] {
            cases.push(("ik,kj->ij".into(), square(n), dtype));
        }
    }
    for s in ["ik,jk->ij", "ki,kj->ij", "ki,jk->ij", "ik,kj->ji"] {
        for dtype in [DType::F32, DType::F64] {
            cases.push((s.into(), square(1024), dtype));
        }
    }
    for dtype in DType::ALL {
        cases.push(("ik,kj->ij".into(), square(512), dtype));
        cases.push(("ik,jk->ij".into(), square(512), dtype));
    }
    for dtype in [DType::F32, DType::F64, DType::Bf16, DType::C64] {
        let large =
            [('i', 4096), ('j', 4096), ('k', 4096), ('v', 1 << 22), ('b', 100_000), ('x', 3), ('y', 3), ('z', 3), ('p', 256), ('q', 64)];
        for s in [
            "ik,k->i",
            "ki,k->i",
            "k,kj->j",
            "k,jk->j",
            "v,v->",
            "v,v->v",
            "i,j->ij",
            "bxz,bzy->bxy",
            "bz,bz->b",
            "bq,bq->b",
            "qpk,qkx->qpx",
        ] {
            cases.push((s.into(), large.to_vec(), dtype));
        }
    }
    for (s, lens, dtype) in cases {
        let lens: Vec<_> = lens.into_iter().filter(|l| s.contains(l.0)).collect();
        let label = format!("{s} {dtype} {}", lens.iter().map(|l| format!("{}={}", l.0, l.1)).collect::<Vec<_>>().join(" "));
        if filters.iter().any(|f| !label.contains(f.as_str())) {
            continue;
        }
        let time = seconds(&s, &lens, [dtype; 3])?;
        let flop: f64 = 2.0 * lens.iter().map(|l| l.1 as f64).product::<f64>();
        let parts: Vec<&str> = s.split([',', '>']).map(|p| p.trim_end_matches('-')).collect();
        let size = |p: &str| p.chars().map(|c| lens.iter().find(|l| l.0 == c).map_or(1.0, |l| l.1 as f64)).product::<f64>();
        let bytes: f64 = parts.iter().map(|p| size(p)).sum::<f64>() * dtype.size_bytes() as f64;
        println!("{label:44} {:10.2} us {:8.2} GFLOP/s {:7.2} GB/s", time * 1e6, flop / time / 1e9, bytes / time / 1e9);
    }
    Ok(())
}
