//! `einsum`: diagonals as views, lone labels summed first, then pairwise products along the cheapest path.

use smallvec::SmallVec;

use super::apply::{apply_one, effective_dtype};
use super::cast::astype;
use super::contract::{Contract, ProductOptions, result_dtype};
use super::reduce::{any_under, sum_under};
use super::registry::{Attrs, OpEntry, Sample, Values};
use crate::einsum::Labels;
use crate::einsum::path::{self, Path};
use crate::einsum::subscripts::{Subscripts, parse};
use crate::exec::call::Conj;
use crate::schema::modes;
use crate::schema::{AmpPolicy, Arity, OpSchema};
use crate::shape::dtype::{DType, Kind};
use crate::shape::error::{Error, OpName, Result};
use crate::shape::spec::{Axes, Axis, Spec};
use crate::tape::Tensor;

static EINSUM: OpSchema = OpSchema::schema_v1("einsum", AmpPolicy::Promote, Arity::AtLeast(1));

/// The order in which an einsum takes its operands, and what it costs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EinsumPath {
    /// Pairs of operands; each result is the next operand.
    pub steps: Vec<(usize, usize)>,
    /// 2 · product of the lengths of each step's labels, added up.
    pub flops: u128,
    /// Elements of the largest result of a step.
    pub peak_elements: u128,
}

fn shapes<'a>(operands: &[&'a Tensor]) -> SmallVec<[&'a [usize]; 4]> {
    operands.iter().map(|t| t.shape()).collect()
}

/// The path that [`einsum`] takes for operands of these shapes.
///
/// ```
/// use bilin_core::{DType, Device, Tensor, einsum_path};
/// let of = |m, n| Tensor::zeros([m, n], DType::F32, &Device::reference());
/// let path = einsum_path("ij,jk,kl->il", &[&of(100, 2)?, &of(2, 100)?, &of(100, 1)?])?;
/// assert_eq!(path.steps[0], (1, 2));
/// # Ok::<(), bilin_core::Error>(())
/// ```
pub fn einsum_path(subscripts: &str, operands: &[&Tensor]) -> Result<EinsumPath> {
    let shapes = shapes(operands);
    let sub = parse(&EINSUM.name.into(), subscripts, &shapes)?;
    let Path { steps, flops, peak_elements } = path::find(&sub, &shapes);
    Ok(EinsumPath { steps: steps.iter().map(|s| (s.lhs, s.rhs)).collect(), flops, peak_elements })
}

/// Sums of products by subscripts: explicit (`ij,jk->ik`) and implicit form, `...`, repeated labels, labels of length 1
/// that broadcast, 1 to n operands.
///
/// Accumulates as [`matmul`](super::matmul); intermediates stay in the accumulator's dtype and the result is rounded once.
/// Gradient: an einsum of the cotangent and the other operands. Cost: that of [`einsum_path`]. Errors: `InvalidArgument`
/// naming the column of a malformed subscript, `ShapeMismatch` naming the label, `DtypeMismatch`. Source: NumPy `einsum`.
///
/// ```
/// use bilin_core::{Device, Tensor, einsum};
/// let x = Tensor::from_slice(&[1f32, 2., 3., 4.], [2, 2], &Device::reference())?;
/// assert_eq!(einsum("ii", &[&x])?.item::<f32>()?, 5.);
/// # Ok::<(), bilin_core::Error>(())
/// ```
pub fn einsum(subscripts: &str, operands: &[&Tensor]) -> Result<Tensor> {
    einsum_with(subscripts, operands, ProductOptions::default())
}

/// [`einsum`] with a result dtype or a precision.
pub fn einsum_with(subscripts: &str, operands: &[&Tensor], options: ProductOptions) -> Result<Tensor> {
    let op: OpName = EINSUM.name.into();
    let Some(first) = operands.first() else { return Err(Error::invalid(op, "operands", 0, "want at least 1 operand")) };
    if operands.iter().any(|t| t.device() != first.device()) {
        return Err(Error::DeviceMismatch { op, devices: operands.iter().map(|t| t.device().name().to_owned()).collect() });
    }
    let scope = modes::autocast_dtype();
    let dtypes: Vec<DType> = operands.iter().map(|t| scope.map_or(t.dtype(), |scope| effective_dtype(&EINSUM, t, scope))).collect();
    if dtypes.iter().any(|d| *d != dtypes[0]) {
        return Err(Error::DtypeMismatch { op, dtypes, remedy: "convert the operands to one dtype with astype" });
    }
    let out_dtype = result_dtype(&op, dtypes[0], options.out_dtype)?;
    let shapes = shapes(operands);
    let sub = parse(&op, subscripts, &shapes)?;
    let found = path::find(&sub, &shapes);
    let live = shapes.iter().enumerate().map(|(i, shape)| path::live_labels(&sub, i, shape)).collect();
    // The operands' casts are einsum's own; its inner products stay as they are.
    let casts: Result<Vec<Tensor>> = operands.iter().zip(&dtypes).map(|(t, d)| astype(t, *d)).collect();
    let _plain = modes::set_autocast(None);
    Pairwise { op, sub, live, wide: if out_dtype.kind() == Kind::Int { out_dtype } else { out_dtype.accumulator() }, out_dtype, options }
        .run(casts?, found)
}

struct Pairwise {
    op: OpName,
    sub: Subscripts,
    /// Labels of each term whose axis isn't 1.
    live: Vec<Labels>,
    /// Dtype of intermediates.
    wide: DType,
    out_dtype: DType,
    options: ProductOptions,
}

impl Pairwise {
    fn run(&self, operands: Vec<Tensor>, found: Path) -> Result<Tensor> {
        let mut terms: Vec<Option<(Tensor, Labels)>> = Vec::new();
        for (i, t) in operands.into_iter().enumerate() {
            terms.push(Some(self.prepare(i, t)?));
        }
        let count = found.steps.len();
        for (i, step) in found.steps.into_iter().enumerate() {
            let (Some((lhs, l)), Some((rhs, r))) = (terms[step.lhs].take(), terms[step.rhs].take()) else {
                return Err(Error::invalid(self.op.clone(), "path", "an operand used twice", "this is a fault of the path"));
            };
            let dtype = if i + 1 == count { self.out_dtype } else { self.wide };
            let axes = |labels: &[u16]| labels.iter().map(|&l| Axis::Label(l)).collect::<Axes>();
            let spec = Spec::new(axes(&l), axes(&r), axes(&step.labels))
                .ok_or_else(|| Error::invalid(self.op.clone(), "path", "labels that don't pair", "this is a fault of the path"))?;
            let product = Contract { schema: &EINSUM, spec, conj: [Conj::No; 2], precision: self.options.precision, out_dtype: dtype };
            terms.push(Some((apply_one(product, &[&lhs, &rhs])?, step.labels.iter().copied().collect())));
        }
        match terms.pop().flatten() {
            Some((t, labels)) => self.finish(t, &labels),
            None => Err(Error::invalid(self.op.clone(), "operands", 0, "want at least 1 operand")),
        }
    }

    /// An operand without repeated labels, without length-1 axes, and with labels that stand nowhere else summed.
    fn prepare(&self, term: usize, mut t: Tensor) -> Result<(Tensor, Labels)> {
        let mut labels = self.sub.terms[term].clone();
        while let Some((a, b)) = repeated(&labels) {
            t = t.diagonal(a as isize, b as isize)?;
            let label = labels[a];
            labels.remove(b);
            labels.remove(a);
            labels.push(label);
        }
        let units: SmallVec<[isize; 6]> = (0..t.rank()).filter(|&a| t.shape()[a] == 1).map(|a| a as isize).collect();
        if !units.is_empty() {
            labels = labels.iter().enumerate().filter(|(a, _)| t.shape()[*a] != 1).map(|(_, l)| *l).collect();
            t = t.squeeze(&units)?;
        }
        let is_alone = |l: &u16| !self.sub.out.contains(l) && !(0..self.sub.terms.len()).any(|o| o != term && self.live[o].contains(l));
        let lone: SmallVec<[isize; 6]> = labels.iter().enumerate().filter(|(_, l)| is_alone(l)).map(|(a, _)| a as isize).collect();
        if !lone.is_empty() {
            labels.retain(|l| !is_alone(l));
            t = if self.wide == DType::Bool { any_under(&EINSUM, &t, &lone)? } else { sum_under(&EINSUM, &t, &lone, self.wide)? };
        }
        Ok((t, labels))
    }

    /// The result's dtype, axis order and length-1 axes.
    fn finish(&self, t: Tensor, labels: &[u16]) -> Result<Tensor> {
        let mut t = astype(&t, self.out_dtype)?;
        let kept: SmallVec<[u16; 6]> = self.sub.out.iter().copied().filter(|l| labels.contains(l)).collect();
        let order: SmallVec<[isize; 6]> = kept.iter().filter_map(|l| labels.iter().position(|m| m == l)).map(|a| a as isize).collect();
        if order.iter().enumerate().any(|(i, &a)| a != i as isize) {
            t = t.permute(&order)?;
        }
        for (at, l) in self.sub.out.iter().enumerate() {
            if !labels.contains(l) {
                t = t.unsqueeze(at as isize)?;
            }
        }
        Ok(t)
    }
}

fn repeated(labels: &[u16]) -> Option<(usize, usize)> {
    labels.iter().enumerate().find_map(|(b, l)| labels[..b].iter().position(|m| m == l).map(|a| (a, b)))
}

fn call(x: &[Tensor], a: &Attrs) -> Result<Tensor> {
    einsum(a.required("subscripts")?, &x.iter().collect::<Vec<_>>())
}

pub(super) static ENTRIES: &[OpEntry] = &[OpEntry {
    schema: &EINSUM,
    params: &["subscripts"],
    call,
    samples: &[
        Sample::new(&[&[2, 3], &[3, 4]], "subscripts=ij,jk->ik"),
        Sample::new(&[&[3, 3]], "subscripts=ii->i"),
        Sample::new(&[&[2, 2, 4]], "subscripts=iij->j"),
        Sample::new(&[&[2, 3, 4], &[4, 3]], "subscripts=...ij,jk"),
        Sample::new(&[&[4, 1], &[1, 3]], "subscripts=ab,ab->ab"),
        Sample::new(&[&[4, 3], &[1, 2]], "subscripts=ij,jk->ik"),
        Sample::new(&[&[2, 3], &[3, 4], &[4, 2]], "subscripts=ab,bc,cd->ad"),
        Sample::new(&[&[2, 0], &[0, 3]], "subscripts=ij,jk->ik"),
    ],
    values: Values::Any,
}];
