//! From views to backend calls: allocates the result, takes the guards in one order, plans, runs.

use std::sync::{Arc, RwLockReadGuard};

use smallvec::SmallVec;

use super::buffer::Buffer;
use super::call::{Accum, Conj, ContractCall, GatherCall, MapCall, MapPlan, Precision, ReduceCall, Reduction, ScatterCall, Source, Target};
use super::device::Device;
use super::map_expr::{MapExpr, Prim};
use super::storage::Storage;
use crate::shape::dtype::DType;
use crate::shape::error::{OpName, Result};
use crate::shape::layout::{Dims, Layout, checked_numel};
use crate::shape::plan::Plan;
use crate::shape::spec::Spec;

/// A strided view of typed memory.
#[derive(Debug, Clone)]
pub struct View {
    /// The memory.
    pub storage: Arc<Storage>,
    /// Where its elements stand.
    pub layout: Layout,
    /// What they are.
    pub dtype: DType,
}

impl View {
    /// A row-major result with any contents.
    pub fn alloc(op: &OpName, device: &Device, shape: &[usize], dtype: DType) -> Result<View> {
        let numel = checked_numel(op, shape, dtype)?;
        let storage = Arc::new(Storage::alloc(device, numel * dtype.size_bytes())?);
        Ok(View { storage, layout: Layout::contiguous(shape), dtype })
    }
}

type ReadGuard<'a> = RwLockReadGuard<'a, Box<dyn Buffer>>;

/// Read guards of several storages, each taken once, in address order, so that no two threads wait for each other.
struct Reads<'a> {
    guards: SmallVec<[(*const Storage, ReadGuard<'a>); 4]>,
}

impl<'a> Reads<'a> {
    fn new(views: &[&'a View]) -> Reads<'a> {
        let mut all: SmallVec<[&'a Storage; 4]> = views.iter().map(|v| v.storage.as_ref()).collect();
        all.sort_unstable_by_key(|s| std::ptr::from_ref(*s));
        all.dedup_by_key(|s| std::ptr::from_ref(*s));
        Reads { guards: all.into_iter().map(|s| (std::ptr::from_ref(s), s.read())).collect() }
    }

    fn source(&self, view: &View) -> Source<'_> {
        let at = self.guards.iter().position(|(p, _)| *p == Arc::as_ptr(&view.storage)).unwrap_or(0);
        Source { buffer: self.guards[at].1.as_ref(), dtype: view.dtype }
    }
}

/// A contraction into fresh memory of `shape`, the spec's result.
#[expect(clippy::too_many_arguments, reason = "the facts of one call, handed on from the op that holds them as fields")]
pub fn contract(
    op: &OpName,
    spec: &Spec,
    lhs: &View,
    rhs: &View,
    conj: [Conj; 2],
    accumulator: DType,
    precision: Precision,
    shape: &[usize],
    out_dtype: DType,
) -> Result<View> {
    let out = View::alloc(op, lhs.storage.device(), shape, out_dtype)?;
    contract_into(op, spec, [lhs, rhs], conj, accumulator, precision, &out, Accum::Replace)?;
    Ok(out)
}

/// A contraction into a view of memory that neither operand stands in; the version isn't touched.
#[expect(clippy::too_many_arguments, reason = "the facts of one call, handed on from the op that holds them as fields")]
pub fn contract_into(
    op: &OpName,
    spec: &Spec,
    [lhs, rhs]: [&View; 2],
    conj: [Conj; 2],
    accumulator: DType,
    precision: Precision,
    out: &View,
    accum: Accum,
) -> Result<()> {
    let plan = Plan::new(op, spec, &lhs.layout, &rhs.layout, &out.layout)?;
    let reads = Reads::new(&[lhs, rhs]);
    let mut buffer = out.storage.write();
    let target = Target { buffer: buffer.as_mut(), dtype: out.dtype };
    let call = ContractCall::new(op, &plan, reads.source(lhs), reads.source(rhs), target, conj, accumulator, precision)?;
    out.storage.device().backend().contract(match accum {
        Accum::Replace => call,
        Accum::Add => call.adding()?,
    })
}

/// An elementwise call into fresh memory; `inputs` broadcast to `shape`.
pub fn map(op: &OpName, device: &Device, expr: &MapExpr, inputs: &[&View], shape: &[usize], out_dtype: DType) -> Result<View> {
    let out = View::alloc(op, device, shape, out_dtype)?;
    run_map(op, expr, inputs, &out)?;
    Ok(out)
}

/// An elementwise call into an existing view. An input in the same memory is copied first; the version isn't touched.
pub fn map_into(op: &OpName, expr: &MapExpr, inputs: &[&View], out: &View) -> Result<()> {
    let mut copies: SmallVec<[View; 4]> = SmallVec::new();
    for view in inputs {
        let is_shared = Arc::ptr_eq(&view.storage, &out.storage);
        copies.push(if is_shared { copy(op, view, view.dtype)? } else { (*view).clone() });
    }
    let refs: SmallVec<[&View; 4]> = copies.iter().collect();
    run_map(op, expr, &refs, out)
}

fn run_map(op: &OpName, expr: &MapExpr, inputs: &[&View], out: &View) -> Result<()> {
    let shape = out.layout.shape();
    let mut layouts: SmallVec<[Layout; 4]> = SmallVec::new();
    for view in inputs {
        layouts.push(view.layout.broadcast_to(shape).ok_or_else(|| {
            crate::shape::error::Error::invalid(
                op.clone(),
                "input",
                format!("{:?}", view.layout.shape()),
                format!("want a shape that broadcasts to {shape:?}"),
            )
        })?);
    }
    let refs: SmallVec<[&Layout; 4]> = layouts.iter().collect();
    let plan = MapPlan::new(op, &out.layout, &refs)?;
    let reads = Reads::new(inputs);
    let sources: SmallVec<[Source<'_>; 4]> = inputs.iter().map(|v| reads.source(v)).collect();
    let mut buffer = out.storage.write();
    let target = Target { buffer: buffer.as_mut(), dtype: out.dtype };
    out.storage.device().backend().map(MapCall::new(op, &plan, (&out.layout, &refs), expr, &sources, target)?)
}

/// A row-major copy in another dtype.
pub fn copy(op: &OpName, view: &View, dtype: DType) -> Result<View> {
    let expr = MapExpr::new(op, &[Prim::Input(0)][..], view.dtype)?;
    map(op, view.storage.device(), &expr, &[view], view.layout.shape(), dtype)
}

/// A filled view.
pub fn full(op: &OpName, device: &Device, shape: &[usize], dtype: DType, value: Prim) -> Result<View> {
    let expr = MapExpr::new(op, vec![value], dtype)?;
    map(op, device, &expr, &[], shape, dtype)
}

/// A reduction over `axes` (ascending) into fresh memory; the result keeps the other axes.
pub fn reduce(op: &OpName, reduction: Reduction, input: &View, axes: &[usize], accumulator: DType, out_dtype: DType) -> Result<View> {
    let shape: Dims = (0..input.layout.rank()).filter(|a| !axes.contains(a)).map(|a| input.layout.shape()[a]).collect();
    let out = View::alloc(op, input.storage.device(), &shape, out_dtype)?;
    {
        let reads = Reads::new(&[input]);
        let mut buffer = out.storage.write();
        let target = Target { buffer: buffer.as_mut(), dtype: out_dtype };
        let call = ReduceCall::new(op, reduction, reads.source(input), &input.layout, axes, accumulator, target)?;
        input.storage.device().backend().reduce(call)?;
    }
    Ok(out)
}

/// Elements of `src` picked along `axis` by `index`, which has the result's shape.
pub fn gather(op: &OpName, src: &View, index: &View, axis: usize) -> Result<View> {
    let out = View::alloc(op, src.storage.device(), index.layout.shape(), src.dtype)?;
    {
        let reads = Reads::new(&[src, index]);
        let mut buffer = out.storage.write();
        let target = Target { buffer: buffer.as_mut(), dtype: src.dtype };
        let call = GatherCall::new(op, (reads.source(src), &src.layout), (reads.source(index), &index.layout), axis, target)?;
        src.storage.device().backend().gather(call)?;
    }
    Ok(out)
}

/// Zeros of `shape` in `accumulator`'s dtype, with `src` added along `axis` at `index`.
pub fn scatter_add(op: &OpName, src: &View, index: &View, axis: usize, shape: &[usize], accumulator: DType) -> Result<View> {
    let out = full(op, src.storage.device(), shape, accumulator, Prim::ConstInt(0))?;
    {
        let reads = Reads::new(&[src, index]);
        let mut buffer = out.storage.write();
        let target = Target { buffer: buffer.as_mut(), dtype: accumulator };
        let call =
            ScatterCall::new(op, (reads.source(src), &src.layout), (reads.source(index), &index.layout), axis, (target, &out.layout))?;
        src.storage.device().backend().scatter_add(call)?;
    }
    Ok(out)
}
