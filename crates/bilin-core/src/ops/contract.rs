//! The one product. Every product op lowers to it under its own schema, and its gradients are products again.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::apply::{apply_both, apply_one};
use super::view::BROADCAST_TO;
use crate::exec::call::{Conj, Precision};
use crate::exec::launch::{self, Product, View};
use crate::schema::OpSchema;
use crate::shape::dtype::{DType, Kind};
use crate::shape::error::{Error, OpName, Result};
use crate::shape::layout::Layout;
use crate::shape::spec::{Axes, Axis, Spec};
use crate::tape::{Grads, Inference, Meta, Op, Rewritten, Saved, Saves, Tensor, Vmap};

/// How a product is computed: its result's dtype and the least precision.
///
/// ```
/// use bilin_core::{DType, Device, ProductOptions, Tensor};
/// let a = Tensor::full([1, 2], 100, DType::I8, &Device::reference())?;
/// let wide = a.matmul_with(&a.mt()?, ProductOptions::default().out_dtype(DType::I32))?;
/// assert_eq!(wide.item::<i32>()?, 20_000);
/// # Ok::<(), bilin_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProductOptions {
    pub(crate) out_dtype: Option<DType>,
    pub(crate) precision: Precision,
}

impl ProductOptions {
    /// The result's dtype: the operands' own (default), f32 for f16 and bf16, a wider integer for integers.
    pub fn out_dtype(mut self, dtype: DType) -> Self {
        self.out_dtype = Some(dtype);
        self
    }

    /// The least precision; a backend may do better.
    pub fn precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }
}

/// The result's dtype for operands of `dtype`, or why the wish can't be met.
pub(super) fn result_dtype(op: &OpName, dtype: DType, wish: Option<DType>) -> Result<DType> {
    let Some(out) = wish else { return Ok(dtype) };
    let fits = match dtype.kind() {
        Kind::Bool => out == DType::Bool,
        Kind::Int => {
            out.kind() == Kind::Int && out.size_bytes() >= dtype.size_bytes() && !(out.size_bytes() == dtype.size_bytes() && out != dtype)
        }
        Kind::Float => out == dtype || (dtype.is_half() && out == DType::F32),
        Kind::Complex => out == dtype,
    };
    if fits {
        return Ok(out);
    }
    Err(Error::DtypeMismatch {
        op: op.clone(),
        dtypes: vec![dtype, out],
        remedy: "out_dtype may be the operands' dtype, float32 for halves, or a wider integer; convert with astype",
    })
}

/// Dtype in which sums of products of the two operands are kept.
fn accumulator(lhs: DType, rhs: DType, out: DType) -> DType {
    match out.kind() {
        Kind::Int | Kind::Bool => out,
        _ => lhs.accumulator().max(rhs.accumulator()),
    }
}

/// A contraction of two tensors under the schema of the op that asks for it.
pub(super) fn contract(
    schema: &'static OpSchema,
    spec: Spec,
    conj: [Conj; 2],
    out_dtype: DType,
    lhs: &Tensor,
    rhs: &Tensor,
) -> Result<Tensor> {
    apply_one(Contract { schema, spec, conj, precision: Precision::Ieee, out_dtype }, &[lhs, rhs])
}

/// out[..] = Σ lhs[..]·rhs[..] over the labels absent from the result, either operand conjugated on request.
#[derive(Debug, Clone)]
pub(crate) struct Contract {
    pub(crate) schema: &'static OpSchema,
    pub(crate) spec: Spec,
    pub(crate) conj: [Conj; 2],
    pub(crate) precision: Precision,
    pub(crate) out_dtype: DType,
}

impl Contract {
    fn rotated(&self, spec: Spec, conj: [Conj; 2], out_dtype: DType) -> Contract {
        Contract { schema: self.schema, spec, conj, precision: self.precision, out_dtype }
    }

    fn product<'a>(&'a self, operands: [&'a View; 2], result: &'a Meta) -> Product<'a> {
        let accumulator = accumulator(operands[0].dtype, operands[1].dtype, self.out_dtype);
        let out = (result.shape.as_slice(), self.out_dtype);
        Product { spec: &self.spec, operands, conj: self.conj, accumulator, precision: self.precision, out }
    }

    /// ∂lhs = contract(G, conj(rhs)) with (out, rhs → lhs) and ∂rhs = contract(conj(lhs), G) with (lhs, out → rhs); the
    /// gradient of a conjugated operand is conjugated as a whole.
    fn gradient(&self, saved: &Saved, i: usize, dtype: DType, g: &[Option<Tensor>]) -> Result<Option<(Contract, [Tensor; 2])>> {
        let Some(g) = g[0].clone() else { return Ok(None) };
        let [l, r] = self.conj;
        let other = |own: Conj, other: Conj| if own == Conj::Yes { other } else { other.flipped() };
        let kept = saved.input(1 - i)?.clone();
        Ok(Some(match i {
            0 => (self.rotated(self.spec.for_lhs_grad(), [l, other(l, r)], dtype), [g, kept]),
            _ => (self.rotated(self.spec.for_rhs_grad(), [other(r, l), r], dtype), [kept, g]),
        }))
    }
}

/// Whether every element of G is one product: then both gradients read all of it, each times a vector.
fn is_outer(saved: &Saved, g: &[Option<Tensor>]) -> bool {
    let lens = saved.input_metas().iter().map(|m| m.shape.iter().product::<usize>());
    lens.clone().all(|len| len > 1) && g[0].as_ref().is_some_and(|g| g.numel() == lens.fold(1, usize::saturating_mul))
}

/// The source of a recorded `broadcast_to` view, and the operand's axes without the loops that it repeats.
fn unbroadcast(t: &Tensor, axes: &[Axis]) -> Option<(Tensor, Axes)> {
    let node = &t.edge()?.node;
    if node.schema().name != BROADCAST_TO.name {
        return None;
    }
    let source = &node.0.input_metas.first()?.shape;
    let lead = t.rank() - source.len();
    let axes = source.iter().enumerate().map(|(i, &len)| if len == t.shape()[lead + i] { axes[lead + i] } else { Axis::Unit }).collect();
    let strides = t.strides()[lead..].into();
    let layout = Layout::from_parts(&BROADCAST_TO.name.into(), source.clone(), strides, t.layout().offset()).ok()?;
    Some((t.source(layout)?, axes))
}

impl Op for Contract {
    fn schema(&self) -> &'static OpSchema {
        self.schema
    }

    fn infer(&self, inputs: &[Meta]) -> Result<Inference> {
        let shape = self.spec.out_shape(&inputs[0].shape, &inputs[1].shape);
        Ok(Inference::of(Meta { shape, dtype: self.out_dtype }))
    }

    /// One more label, of the batch, of m or of n.
    fn vmap(&self, _lanes: usize, differs: &[bool], _inputs: &[Meta]) -> Vmap {
        let lists = [self.spec.lhs(), self.spec.rhs(), self.spec.out()];
        let number = |axis: &Axis| if let Axis::Label(l) = axis { *l + 1 } else { 0 };
        let label = Axis::Label(lists.iter().flat_map(|list| list.iter()).map(number).max().unwrap_or(0));
        let with = |list: &[Axis], has: bool| has.then_some(label).into_iter().chain(list.iter().copied()).collect::<Axes>();
        match Spec::new(with(lists[0], differs[0]), with(lists[1], differs[1]), with(lists[2], true)) {
            Some(spec) => Vmap::Some(Arc::new(Contract { spec, ..self.clone() })),
            None => Vmap::Each,
        }
    }

    fn rewrite(&self, inputs: &[&Tensor]) -> Option<Rewritten> {
        let [lhs, rhs] = [(inputs[0], self.spec.lhs()), (inputs[1], self.spec.rhs())].map(|(t, axes)| unbroadcast(t, axes));
        if lhs.is_none() && rhs.is_none() {
            return None;
        }
        let keep = |i: usize, axes: &[Axis]| (inputs[i].clone(), Axes::from_slice(axes));
        // One after the other: a loop must stay in one of the two.
        let (l, l_axes) = lhs
            .filter(|(_, axes)| Spec::new(axes.clone(), self.spec.rhs().into(), self.spec.out().into()).is_some())
            .unwrap_or_else(|| keep(0, self.spec.lhs()));
        let (r, r_axes) = rhs
            .filter(|(_, axes)| Spec::new(l_axes.clone(), axes.clone(), self.spec.out().into()).is_some())
            .unwrap_or_else(|| keep(1, self.spec.rhs()));
        let spec = Spec::new(l_axes, r_axes, self.spec.out().into())?;
        Some((Arc::new(Contract { spec, ..self.clone() }), smallvec![l, r]))
    }

    fn eval(&self, inputs: &[&View], outputs: &[Meta]) -> Result<SmallVec<[View; 1]>> {
        let product = self.product([inputs[0], inputs[1]], &outputs[0]);
        launch::contract(&self.schema.name.into(), &product).map(|view| SmallVec::from_buf([view]))
    }

    fn eval_onto(&self, inputs: &[&View], sum: &View) -> Result<bool> {
        let accumulator = accumulator(inputs[0].dtype, inputs[1].dtype, self.out_dtype);
        if sum.dtype != accumulator || !accumulator.is_differentiable() || !sum.storage.device().backend().adds_products() {
            return Ok(false);
        }
        let (op, operands) = (self.schema.name.into(), [inputs[0], inputs[1]]);
        launch::contract_onto(&op, &self.spec, operands, self.conj, accumulator, self.precision, sum)?;
        Ok(true)
    }

    fn flops(&self, inputs: &[&View], outputs: &[Meta]) -> u64 {
        let (lhs, rhs) = (self.spec.lhs(), self.spec.rhs());
        let own = lhs.iter().zip(inputs[0].layout.shape());
        let more = rhs.iter().zip(inputs[1].layout.shape()).filter(|(axis, _)| !lhs.contains(axis));
        let steps = own.chain(more).filter(|(axis, _)| **axis != Axis::Unit).fold(1u64, |n, (_, &len)| n.saturating_mul(len as u64));
        steps.saturating_mul(if outputs[0].dtype.is_complex() { 8 } else { 2 })
    }

    fn saves(&self, need: &[bool]) -> Saves {
        Saves { inputs: u64::from(need[1]) | u64::from(need[0]) << 1, outputs: 0 }
    }

    fn vjp_call(&self, saved: &Saved, i: usize, dtype: DType, g: &[Option<Tensor>]) -> Result<Option<Rewritten>> {
        // To add two vectors costs nothing beside G, which is read once for both.
        if is_outer(saved, g) {
            return Ok(None);
        }
        let Some((op, [lhs, rhs])) = self.gradient(saved, i, dtype, g)? else { return Ok(None) };
        Ok(Some((Arc::new(op), smallvec![lhs, rhs])))
    }

    fn vjp(&self, saved: &Saved, need: &[Option<DType>], g: &[Option<Tensor>]) -> Result<Grads> {
        if let [Some(lhs), Some(rhs)] = *need
            && is_outer(saved, g)
            && let Some((l, of_l)) = self.gradient(saved, 0, lhs, g)?
            && let Some((r, of_r)) = self.gradient(saved, 1, rhs, g)?
            && let Some(both) = apply_both([&l, &r], [of_l.each_ref(), of_r.each_ref()], |views, outputs| {
                let op = self.schema.name.into();
                launch::contract_both(&op, [&l.product(views[0], outputs[0]), &r.product(views[1], outputs[1])])
            })?
        {
            return Ok(both.map(Some).into());
        }
        let mut grads = Grads::new();
        for (i, want) in need.iter().enumerate() {
            let call = want.map(|dtype| self.gradient(saved, i, dtype, g)).transpose()?.flatten();
            grads.push(call.map(|(op, [lhs, rhs])| apply_one(op, &[&lhs, &rhs])).transpose()?);
        }
        Ok(grads)
    }

    fn is_multilinear(&self) -> bool {
        true
    }
}
