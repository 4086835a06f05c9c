//! From views to backend calls: allocates the result, takes the guards in one order, plans, runs.

use std::sync::{Arc, RwLockReadGuard};

use smallvec::SmallVec;

use super::buffer::Buffer;
use super::call::{
    Conj, ContractCall, GatherCall, MAP_INPUTS, MapCall, MapPlan, Precision, ReduceCall, Reduction, ScatterCall, Source, Target,
};
use super::device::Device;
use super::map_expr::{MapExpr, Prim};
use super::storage::{Filling, Storage};
use crate::shape::dtype::DType;
use crate::shape::error::{Error, OpName, Result};
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
        let storage = Filling::alloc(device, numel * dtype.size_bytes())?.share();
        Ok(View { storage, layout: Layout::contiguous(shape), dtype })
    }
}

/// A row-major result: `run` writes it before anybody else can see it, so that no guard is needed.
#[inline]
fn fresh(op: &OpName, device: &Device, shape: &[usize], dtype: DType, run: impl FnOnce(&Layout, Target<'_>) -> Result<()>) -> Result<View> {
    let numel = checked_numel(op, shape, dtype)?;
    let mut memory = Filling::alloc(device, numel * dtype.size_bytes())?;
    let layout = Layout::contiguous(shape);
    run(&layout, Target { buffer: memory.buffer(), dtype })?;
    Ok(View { storage: memory.share(), layout, dtype })
}

type ReadGuard<'a> = RwLockReadGuard<'a, Box<dyn Buffer>>;

/// Read guards of the storages of at most [`MAP_INPUTS`] views, each taken once, in address order, so that no two threads wait for
/// each other.
struct Reads<'a> {
    guards: [Option<(&'a Storage, ReadGuard<'a>)>; MAP_INPUTS],
}

impl<'a> Reads<'a> {
    /// Guards of those storages whose address `is_mine`.
    #[inline]
    fn new(views: &[&'a View], is_mine: impl Fn(*const Storage) -> bool) -> Reads<'a> {
        let mut sorted: [Option<&'a Storage>; MAP_INPUTS] = [None; MAP_INPUTS];
        for view in views.iter().take(MAP_INPUTS) {
            let mut next = view.storage.as_ref();
            if !is_mine(next) {
                continue;
            }
            for place in &mut sorted {
                match place {
                    Some(here) if std::ptr::eq(*here, next) => break,
                    Some(here) if std::ptr::from_ref(*here) < std::ptr::from_ref(next) => {}
                    Some(here) => std::mem::swap(here, &mut next),
                    None => {
                        *place = Some(next);
                        break;
                    }
                }
            }
        }
        Reads { guards: sorted.map(|storage| storage.map(|s| (s, s.read()))) }
    }

    fn of(views: &[&'a View]) -> Reads<'a> {
        Reads::new(views, |_| true)
    }

    #[inline]
    fn find(&self, view: &View) -> Option<Source<'_>> {
        let (_, guard) = self.guards.iter().flatten().find(|(s, _)| std::ptr::eq(*s, view.storage.as_ref()))?;
        Some(Source { buffer: guard.as_ref(), dtype: view.dtype })
    }

    #[inline]
    fn source(&self, op: &OpName, view: &View) -> Result<Source<'_>> {
        self.find(view).ok_or_else(|| unguarded(op))
    }
}

#[cold]
fn unguarded(op: &OpName) -> Error {
    Error::invalid(op.clone(), "input", "memory without a guard", "this is a fault of the engine")
}

/// A contraction as an op asks for it.
#[derive(Debug, Clone, Copy)]
pub struct Product<'a> {
    /// Which labels meet.
    pub spec: &'a Spec,
    /// Left and right operand.
    pub operands: [&'a View; 2],
    /// Their conjugation.
    pub conj: [Conj; 2],
    /// Dtype in which the sums are kept.
    pub accumulator: DType,
    /// The least precision.
    pub precision: Precision,
    /// The result's shape, which is the spec's, and its dtype.
    pub out: (&'a [usize], DType),
}

impl Product<'_> {
    #[inline]
    fn plan(&self, op: &OpName, out: &Layout) -> Result<Plan> {
        let [lhs, rhs] = self.operands;
        Plan::new(op, self.spec, &lhs.layout, &rhs.layout, out)
    }

    #[inline]
    fn call<'a>(&self, op: &'a OpName, plan: &'a Plan, reads: &'a Reads<'_>, target: Target<'a>) -> Result<ContractCall<'a>> {
        let [lhs, rhs] = [reads.source(op, self.operands[0])?, reads.source(op, self.operands[1])?];
        ContractCall::new(op, plan, lhs, rhs, target, self.conj, self.accumulator, self.precision)
    }
}

/// A contraction into fresh memory.
#[inline]
pub fn contract(op: &OpName, product: &Product<'_>) -> Result<View> {
    let device = product.operands[0].storage.device();
    fresh(op, device, product.out.0, product.out.1, |layout, target| {
        let plan = product.plan(op, layout)?;
        let reads = Reads::of(&product.operands);
        device.backend().contract(product.call(op, &plan, &reads, target)?)
    })
}

/// Two contractions into fresh memory at once; `None`, and nothing is computed, where the device has no gain from that.
pub fn contract_both(op: &OpName, [first, second]: [&Product<'_>; 2]) -> Result<Option<[View; 2]>> {
    let device = first.operands[0].storage.device();
    let (mut is_done, mut other) = (false, None);
    let one = fresh(op, device, first.out.0, first.out.1, |layout, target| {
        let run = |its_layout: &Layout, its_target: Target<'_>| {
            let plans = [first.plan(op, layout)?, second.plan(op, its_layout)?];
            let reads = Reads::of(&[first.operands[0], first.operands[1], second.operands[0], second.operands[1]]);
            let calls = [first.call(op, &plans[0], &reads, target)?, second.call(op, &plans[1], &reads, its_target)?];
            is_done = device.backend().contract_both(calls)?;
            Ok(())
        };
        other = Some(fresh(op, device, second.out.0, second.out.1, run)?);
        Ok(())
    })?;
    Ok(other.filter(|_| is_done).map(|other| [one, other]))
}

/// A contraction that is added to a view of memory in which neither operand stands; the version isn't touched.
pub fn contract_onto(
    op: &OpName,
    spec: &Spec,
    [lhs, rhs]: [&View; 2],
    conj: [Conj; 2],
    accumulator: DType,
    precision: Precision,
    sum: &View,
) -> Result<()> {
    let plan = Plan::new(op, spec, &lhs.layout, &rhs.layout, &sum.layout)?;
    let reads = Reads::of(&[lhs, rhs]);
    let mut buffer = sum.storage.write();
    let target = Target { buffer: buffer.as_mut(), dtype: sum.dtype };
    let call = ContractCall::new(op, &plan, reads.source(op, lhs)?, reads.source(op, rhs)?, target, conj, accumulator, precision)?;
    sum.storage.device().backend().contract(call.adding()?)
}

/// An elementwise call into fresh memory; `inputs` broadcast to `shape`.
#[inline]
pub fn map(op: &OpName, device: &Device, expr: &MapExpr, inputs: &[&View], shape: &[usize], out_dtype: DType) -> Result<View> {
    fresh(op, device, shape, out_dtype, |layout, target| {
        let plan = map_plan(op, layout, inputs)?;
        let reads = Reads::of(inputs);
        let mut sources: SmallVec<[Source<'_>; 4]> = SmallVec::new();
        for view in inputs {
            sources.push(reads.source(op, view)?);
        }
        device.backend().map(MapCall::new(op, &plan, expr, &sources, target)?)
    })
}

#[inline]
fn map_plan(op: &OpName, out: &Layout, inputs: &[&View]) -> Result<MapPlan> {
    let mut layouts: SmallVec<[&Layout; 4]> = SmallVec::new();
    for view in inputs {
        layouts.push(&view.layout);
    }
    MapPlan::new(op, out, &layouts)
}

/// An elementwise call into an existing view. An input in the same memory is copied first; the version isn't touched.
pub fn map_into(op: &OpName, expr: &MapExpr, inputs: &[&View], out: &View) -> Result<()> {
    let mut copies: SmallVec<[Option<View>; 4]> = SmallVec::new();
    for view in inputs {
        let is_shared = Arc::ptr_eq(&view.storage, &out.storage);
        copies.push(if is_shared { Some(copy(op, view, view.dtype)?) } else { None });
    }
    let inputs: SmallVec<[&View; 4]> = inputs.iter().zip(&copies).map(|(view, copy)| copy.as_ref().unwrap_or(view)).collect();
    let plan = map_plan(op, &out.layout, &inputs)?;
    // The result's guard has its place in the order of addresses too.
    let here = Arc::as_ptr(&out.storage);
    let below = Reads::new(&inputs, |s| s < here);
    let mut buffer = out.storage.write();
    let above = Reads::new(&inputs, |s| s > here);
    let mut sources: SmallVec<[Source<'_>; 4]> = SmallVec::new();
    for view in &inputs {
        sources.push(below.find(view).or_else(|| above.find(view)).ok_or_else(|| unguarded(op))?);
    }
    let target = Target { buffer: buffer.as_mut(), dtype: out.dtype };
    out.storage.device().backend().map(MapCall::new(op, &plan, expr, &sources, target)?)
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
    let device = input.storage.device();
    let shape: Dims = (0..input.layout.rank()).filter(|a| !axes.contains(a)).map(|a| input.layout.shape()[a]).collect();
    fresh(op, device, &shape, out_dtype, |_, target| {
        let reads = Reads::of(&[input]);
        let source = reads.source(op, input)?;
        device.backend().reduce(ReduceCall::new(op, reduction, source, &input.layout, axes, accumulator, target)?)
    })
}

/// Elements of `src` picked along `axis` by `index`, which has the result's shape.
pub fn gather(op: &OpName, src: &View, index: &View, axis: usize) -> Result<View> {
    let device = src.storage.device();
    fresh(op, device, index.layout.shape(), src.dtype, |_, target| {
        let reads = Reads::of(&[src, index]);
        let (from, at) = ((reads.source(op, src)?, &src.layout), (reads.source(op, index)?, &index.layout));
        device.backend().gather(GatherCall::new(op, from, at, axis, target)?)
    })
}

/// Zeros of `shape` in `accumulator`'s dtype, with `src` added along `axis` at `index`.
pub fn scatter_add(op: &OpName, src: &View, index: &View, axis: usize, shape: &[usize], accumulator: DType) -> Result<View> {
    let out = full(op, src.storage.device(), shape, accumulator, Prim::ConstInt(0))?;
    {
        let reads = Reads::of(&[src, index]);
        let mut buffer = out.storage.write();
        let target = Target { buffer: buffer.as_mut(), dtype: accumulator };
        let (from, at) = ((reads.source(op, src)?, &src.layout), (reads.source(op, index)?, &index.layout));
        src.storage.device().backend().scatter_add(ScatterCall::new(op, from, at, axis, (target, &out.layout))?)?;
    }
    Ok(out)
}
