//! `layer_norm`: (x − μ)/√(σ² + eps) over the last axes, then a scale and a shift; in f32 for halves.

use smallvec::{SmallVec, smallvec};

use super::apply::apply;
use super::cast::astype;
use super::reduce::sum_to;
use super::registry::{OpEntry, Sample, Values};
use crate::exec::call::Reduction;
use crate::exec::launch::{self, View};
use crate::exec::map_expr::{MapExpr, Prim};
use crate::schema::{AmpPolicy, Arity, OpSchema};
use crate::shape::dtype::{DType, Kind};
use crate::shape::error::{Error, OpName, Result, ShapeFault, shape_text};
use crate::shape::layout::{Dims, Layout};
use crate::tape::{Grads, Inference, Meta, Op, Saved, Saves, Tensor, Vmap};

static LAYER_NORM: OpSchema = OpSchema::schema_v1("layer_norm", AmpPolicy::ForceFP32, Arity::AtLeast(1));

/// Results: the normalised tensor, and for the gradient μ and 1/√(σ² + eps) with the normalised axes as length 1.
#[derive(Debug, Clone)]
struct LayerNorm {
    normalized: Dims,
    eps: f64,
    /// Whether a scale and whether a shift follow the operand.
    affine: [bool; 2],
}

impl LayerNorm {
    fn axes(&self, rank: usize) -> SmallVec<[usize; 6]> {
        (rank - self.normalized.len()..rank).collect()
    }
    fn count(&self) -> f64 {
        self.normalized.iter().product::<usize>() as f64
    }
    fn mean(&self, t: &Tensor) -> Result<Tensor> {
        let axes: SmallVec<[isize; 6]> = self.axes(t.rank()).iter().map(|&a| a as isize).collect();
        t.mean(axes.as_slice(), true)
    }
    /// Position of the shift among the operands.
    fn shift(&self) -> usize {
        1 + usize::from(self.affine[0])
    }
    /// (x − μ)·r of the operand and the saved results.
    fn whitened(x: &Tensor, mean: &Tensor, scale: &Tensor) -> Result<Tensor> {
        astype(x, scale.dtype())?.sub(mean)?.mul(scale)
    }
    /// r·(h − mean(h) − x̂·mean(h·x̂)): the derivative of x̂ along `h`, which is its own adjoint.
    fn along(&self, h: &Tensor, white: &Tensor, scale: &Tensor) -> Result<Tensor> {
        h.sub(&self.mean(h)?)?.sub(&white.mul(&self.mean(&h.mul(white)?)?)?)?.mul(scale)
    }
}

/// The sum from left to right.
fn total(parts: SmallVec<[Tensor; 3]>) -> Result<Option<Tensor>> {
    let mut parts = parts.into_iter();
    let first = parts.next();
    first.map(|first| parts.try_fold(first, |sum, part| sum.add(&part))).transpose()
}

impl Op for LayerNorm {
    fn schema(&self) -> &'static OpSchema {
        &LAYER_NORM
    }

    fn infer(&self, inputs: &[Meta]) -> Result<Inference> {
        let op: OpName = LAYER_NORM.name.into();
        let Meta { shape, dtype } = &inputs[0];
        if dtype.kind() != Kind::Float || inputs.iter().any(|m| m.dtype != *dtype) {
            let dtypes = inputs.iter().map(|m| m.dtype).collect();
            return Err(Error::DtypeMismatch { op, dtypes, remedy: "want one real floating dtype; convert with astype" });
        }
        if self.normalized.is_empty() || !shape.ends_with(&self.normalized) {
            let shapes = inputs.iter().map(|m| m.shape.to_vec()).collect();
            let want = format!("an operand whose last axes are normalized_shape {}", shape_text(&self.normalized));
            return Err(Error::ShapeMismatch { op, shapes, fault: ShapeFault::Count { want, remedy: "name its last axes" } });
        }
        if let Some(i) = inputs[1..].iter().position(|m| m.shape != self.normalized) {
            let shapes = inputs.iter().map(|m| m.shape.to_vec()).collect();
            let want = format!("operand {} in normalized_shape {}", i + 1, shape_text(&self.normalized));
            return Err(Error::ShapeMismatch { op, shapes, fault: ShapeFault::Count { want, remedy: "reshape it" } });
        }
        let mut kept = shape.clone();
        kept[shape.len() - self.normalized.len()..].fill(1);
        let statistic = Meta::new(&kept, dtype.accumulator());
        Ok(Inference { outputs: smallvec![inputs[0].clone(), statistic.clone(), statistic], lowered: None })
    }

    /// Statistics are taken lane by lane anyway; a scale or shift for each would need an axis in between.
    fn vmap(&self, _lanes: usize, differs: &[bool], _inputs: &[Meta]) -> Vmap {
        if differs[1..].contains(&true) { Vmap::Each } else { Vmap::Broadcast(None) }
    }

    fn eval(&self, inputs: &[&View], outputs: &[Meta]) -> Result<SmallVec<[View; 1]>> {
        let op: OpName = LAYER_NORM.name.into();
        let (x, shape, kept, wide) = (inputs[0], &outputs[0].shape, &outputs[1].shape, outputs[1].dtype);
        let axes = self.axes(shape.len());
        let run = |prims: SmallVec<[Prim; 12]>, inputs: &[&View], shape: &[usize], dtype: DType| {
            launch::map(&op, x.storage.device(), &MapExpr::new(&op, prims.to_vec(), wide)?, inputs, shape, dtype)
        };
        let sum = |v: &View| -> Result<View> {
            let mut sum = launch::reduce(&op, Reduction::Sum, v, &axes, wide, wide)?;
            sum.layout = Layout::contiguous(kept);
            Ok(sum)
        };
        let count = Prim::Const(self.count());
        let mean = run(smallvec![Prim::Input(0), count, Prim::Div], &[&sum(x)?], kept, wide)?;
        // The squares of the differences, not the difference of the squares, which cancels.
        let centred = run(smallvec![Prim::Input(0), Prim::Input(1), Prim::Sub], &[x, &mean], shape, wide)?;
        let squares = sum(&run(smallvec![Prim::Input(0), Prim::Input(0), Prim::Mul], &[&centred], shape, wide)?)?;
        let root = smallvec![Prim::Const(1.0), Prim::Input(0), count, Prim::Div, Prim::Const(self.eps), Prim::Add, Prim::Sqrt, Prim::Div];
        let scale = run(root, &[&squares], kept, wide)?;
        let mut prims: SmallVec<[Prim; 12]> = smallvec![Prim::Input(0), Prim::Input(1), Prim::Mul];
        let mut operands: SmallVec<[&View; 4]> = smallvec![&centred, &scale];
        for (i, then) in [(0, Prim::Mul), (1, Prim::Add)].into_iter().filter(|(i, _)| self.affine[*i]) {
            prims.extend([Prim::Input(operands.len() as u8), then]);
            operands.push(inputs[if i == 0 { 1 } else { self.shift() }]);
        }
        let out = run(prims, &operands, shape, outputs[0].dtype)?;
        drop(operands);
        Ok(smallvec![out, mean, scale])
    }

    /// Two sums, a difference, a square, and a product, a scale and a shift each.
    fn flops(&self, inputs: &[&View], _outputs: &[Meta]) -> u64 {
        7 * inputs[0].layout.numel() as u64
    }

    fn saves(&self, need: &[bool]) -> Saves {
        let reads_whitened = need[0] || (self.affine[0] && need[1]);
        let inputs = u64::from(reads_whitened) | (u64::from(self.affine[0] && need[0]) << 1);
        Saves { inputs, outputs: if reads_whitened { 0b110 } else { 0 } }
    }

    fn vjp(&self, saved: &Saved, need: &[Option<DType>], g: &[Option<Tensor>]) -> Result<Grads> {
        let wide = saved.input_metas()[0].dtype.accumulator();
        let g: SmallVec<[Option<Tensor>; 3]> = g.iter().map(|g| g.as_ref().map(|g| astype(g, wide)).transpose()).collect::<Result<_>>()?;
        let mut grads: Grads = need.iter().map(|_| None).collect();
        let reads_whitened = need[0].is_some() || (self.affine[0] && need[1].is_some());
        let white = reads_whitened.then(|| Self::whitened(saved.input(0)?, saved.output(1)?, saved.output(2)?)).transpose()?;
        if let (Some(_), Some(white)) = (need[0], &white) {
            let scale = saved.output(2)?;
            let mut parts: SmallVec<[Tensor; 3]> = SmallVec::new();
            if let Some(g) = &g[0] {
                let h = if self.affine[0] { g.mul(&astype(saved.input(1)?, wide)?)? } else { g.clone() };
                parts.push(self.along(&h, white, scale)?);
            }
            // The statistics have cotangents where this rule itself is differentiated: ∂μ/∂x = 1/n, ∂r/∂x = −r²·x̂/n.
            if let Some(g) = &g[1] {
                parts.push(g.mul_scalar(1.0 / self.count())?.broadcast_to(white.shape())?);
            }
            if let Some(g) = &g[2] {
                parts.push(white.mul(&g.mul(scale)?.mul(scale)?.mul_scalar(-1.0 / self.count())?)?);
            }
            grads[0] = total(parts)?;
        }
        if let Some(g) = &g[0] {
            if let (true, Some(Some(_)), Some(white)) = (self.affine[0], need.get(1), &white) {
                grads[1] = Some(sum_to(&g.mul(white)?, &self.normalized)?);
            }
            if let (true, Some(Some(_))) = (self.affine[1], need.get(self.shift())) {
                grads[self.shift()] = Some(sum_to(g, &self.normalized)?);
            }
        }
        Ok(grads)
    }

    fn jvp(&self, inputs: &[Tensor], outputs: &[Tensor], tangents: &[Option<Tensor>]) -> Result<Grads> {
        let (mean, scale) = (&outputs[1], &outputs[2]);
        let wide = scale.dtype();
        let white = Self::whitened(&inputs[0], mean, scale)?;
        let mut out: Grads = smallvec![None, None, None];
        let mut parts: SmallVec<[Tensor; 3]> = SmallVec::new();
        if let Some(t) = &tangents[0] {
            let t = astype(t, wide)?;
            let along = self.along(&t, &white, scale)?;
            parts.push(if self.affine[0] { along.mul(&astype(&inputs[1], wide)?)? } else { along });
            out[1] = Some(self.mean(&t)?);
            out[2] = Some(self.mean(&t.mul(&white)?)?.mul(scale)?.mul(scale)?.neg()?);
        }
        if let (true, Some(Some(t))) = (self.affine[0], tangents.get(1)) {
            parts.push(white.mul(&astype(t, wide)?)?);
        }
        if let (true, Some(Some(t))) = (self.affine[1], tangents.get(self.shift())) {
            parts.push(astype(t, wide)?.broadcast_to(white.shape())?);
        }
        out[0] = total(parts)?.map(|s| astype(&s, outputs[0].dtype())).transpose()?;
        Ok(out)
    }
}

impl Tensor {
    /// (x − μ)/√(σ² + eps)·weight + bias, with mean μ and variance σ² over the last axes, whose lengths are
    /// `normalized_shape`; weight and bias have that shape.
    ///
    /// Real floating point; halves are computed in f32 and rounded once. Errors: `DtypeMismatch`, `ShapeMismatch`,
    /// `InvalidArgument` for an `eps` that is negative or no number. Source: Ba, Kiros and Hinton, "Layer normalization", 2016;
    /// PyTorch `layer_norm`.
    ///
    /// ```
    /// use bilin_core::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1f32, 2., 3., 10., 20., 30.], [2, 3], &Device::reference())?;
    /// let y = x.layer_norm(&[3], None, None, 0.0)?.to_vec::<f32>()?;
    /// assert!(y.iter().zip(y.iter().skip(3)).all(|(a, b)| (a - b).abs() < 1e-6));
    /// # Ok::<(), bilin_core::Error>(())
    /// ```
    pub fn layer_norm(&self, normalized_shape: &[usize], weight: Option<&Tensor>, bias: Option<&Tensor>, eps: f64) -> Result<Tensor> {
        if eps.is_nan() || eps < 0.0 {
            return Err(Error::invalid(LAYER_NORM.name, "eps", eps, "want a number from 0"));
        }
        let affine = [weight.is_some(), bias.is_some()];
        let op = LayerNorm { normalized: Dims::from_slice(normalized_shape), eps, affine };
        let operands: SmallVec<[&Tensor; 3]> = [Some(self), weight, bias].into_iter().flatten().collect();
        let out = apply(std::sync::Arc::new(op), &operands)?.into_iter().next();
        out.ok_or_else(|| Error::invalid(LAYER_NORM.name, "outputs", 0, "want results"))
    }
}

pub(super) static ENTRIES: &[OpEntry] = &[OpEntry {
    schema: &LAYER_NORM,
    params: &["normalized_shape", "eps"],
    call: |x, a| match x {
        [_] | [_, _] | [_, _, _] => x[0].layer_norm(&a.lens("normalized_shape")?, x.get(1), x.get(2), a.number("eps", 1e-5)?),
        _ => Err(Error::invalid(LAYER_NORM.name, "operands", x.len(), "want x, x and weight, or x, weight and bias")),
    },
    samples: &[
        Sample::new(&[&[3, 5], &[5], &[5]], "normalized_shape=5"),
        Sample::new(&[&[2, 3, 4], &[3, 4]], "normalized_shape=3,4;eps=0.01"),
        Sample::new(&[&[5]], "normalized_shape=5"),
        Sample::new(&[&[0, 5], &[5], &[5]], "normalized_shape=5"),
    ],
    values: Values::Distinct,
}];
