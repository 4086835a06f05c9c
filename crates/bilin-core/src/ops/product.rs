//! `matmul`, `dot`, `inner`, `outer`, `tensordot`, `vecdot`, `matvec`, `vecmat`: each checks its operands and says which
//! axes meet; the work is [`Contract`]'s.

use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

use super::apply::apply_one;
use super::contract::{Contract, ProductOptions, result_dtype};
use super::registry::{Attrs, OpEntry, Sample, Values};
use crate::exec::call::{Conj, Precision};
use crate::exec::launch::View;
use crate::schema::{AmpPolicy, Arity, OpSchema};
use crate::shape::dtype::DType;
use crate::shape::error::{Error, OpName, Result, ShapeFault};
use crate::shape::layout::{Dims, broadcast_shapes, normalize_axes, normalize_axis};
use crate::shape::spec::{Axes as SpecAxes, Axis, Spec};
use crate::tape::{Grads, Inference, KeptOp, Meta, Op, Saved, Tensor};

const fn schema(name: &'static str, policy: AmpPolicy) -> OpSchema {
    OpSchema::schema_v1(name, policy, Arity::Exact(2))
}
static MATMUL: OpSchema = schema("matmul", AmpPolicy::Promote);
static DOT: OpSchema = schema("dot", AmpPolicy::KeepInput);
static INNER: OpSchema = schema("inner", AmpPolicy::KeepInput);
static OUTER: OpSchema = schema("outer", AmpPolicy::KeepInput);
static TENSORDOT: OpSchema = schema("tensordot", AmpPolicy::Promote);
static VECDOT: OpSchema = schema("vecdot", AmpPolicy::Promote);
static MATVEC: OpSchema = schema("matvec", AmpPolicy::Promote);
static VECMAT: OpSchema = schema("vecmat", AmpPolicy::Promote);

/// `matmul` of two matrices by the result's dtype, each made once: the smallest products would pay most for another.
static MATRICES: [OnceLock<Contract>; DType::ALL.len()] = [const { OnceLock::new() }; DType::ALL.len()];

/// Which axes of a tensordot are summed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Axes {
    /// The last `count` of lhs with the first `count` of rhs.
    Count(isize),
    /// Axis i of the first list with axis i of the second; negative ones count from the end.
    Pairs(Vec<isize>, Vec<isize>),
}

impl Axes {
    /// Pairs of axes.
    pub fn pairs(lhs: impl Into<Vec<isize>>, rhs: impl Into<Vec<isize>>) -> Axes {
        Axes::Pairs(lhs.into(), rhs.into())
    }
}
impl From<isize> for Axes {
    fn from(count: isize) -> Axes {
        Axes::Count(count)
    }
}
impl From<usize> for Axes {
    fn from(count: usize) -> Axes {
        Axes::Count(isize::try_from(count).unwrap_or(isize::MAX))
    }
}
impl From<i32> for Axes {
    fn from(count: i32) -> Axes {
        Axes::Count(count as isize)
    }
}

#[derive(Debug, Clone)]
enum Form {
    Matmul,
    /// Operands may be vectors: a row on the left, a column on the right, dropped from the result.
    MatmulOfVectors,
    Dot,
    Inner,
    Outer,
    Tensordot(Axes),
    Vecdot(isize),
    Matvec,
    Vecmat,
}

#[derive(Debug, Clone)]
struct Product {
    schema: &'static OpSchema,
    form: Form,
    options: ProductOptions,
}

/// Which ranks an operand may have, and in words.
type RankRule = (fn(usize) -> bool, &'static str);
type AxisList = SmallVec<[usize; 6]>;

const LAST_TWO: &str = "K of lhs and rhs must be equal; transpose with mt() or reshape";

impl Product {
    fn name(&self) -> OpName {
        self.schema.name.into()
    }

    fn shapes(inputs: &[Meta]) -> Vec<Vec<usize>> {
        inputs.iter().map(|m| m.shape.to_vec()).collect()
    }

    fn ranks(&self, inputs: &[Meta], wants: [RankRule; 2], remedy: &'static str) -> Result<()> {
        for (operand, (fits, want)) in wants.into_iter().enumerate() {
            if !fits(inputs[operand].shape.len()) {
                let fault = ShapeFault::Rank { operand, want, remedy };
                return Err(Error::ShapeMismatch { op: self.name(), shapes: Self::shapes(inputs), fault });
            }
        }
        Ok(())
    }

    fn same_len(&self, inputs: &[Meta], lhs_axis: usize, rhs_axis: usize, remedy: &'static str) -> Result<()> {
        let (lhs_len, rhs_len) = (inputs[0].shape[lhs_axis], inputs[1].shape[rhs_axis]);
        if lhs_len == rhs_len {
            return Ok(());
        }
        let fault = ShapeFault::Lengths { lhs_axis, lhs_len, rhs_axis, rhs_len, remedy };
        Err(Error::ShapeMismatch { op: self.name(), shapes: Self::shapes(inputs), fault })
    }

    /// A spec for operands with `lhs_core` and `rhs_core` axes behind a batch that broadcasts; cores and the result's
    /// core name labels from 0, batch labels follow them.
    fn batched(&self, inputs: &[Meta], lhs_core: &[u16], rhs_core: &[u16], out_core: &[u16]) -> Result<Spec> {
        let split = |m: &Meta, core: usize| Dims::from_slice(&m.shape[..m.shape.len() - core]);
        let (lhs, rhs) = (split(&inputs[0], lhs_core.len()), split(&inputs[1], rhs_core.len()));
        let out = broadcast_shapes(&self.name(), &[&lhs, &rhs]).map_err(|e| match e {
            Error::ShapeMismatch { op, fault, .. } => Error::ShapeMismatch { op, shapes: Self::shapes(inputs), fault },
            other => other,
        })?;
        let first = 16u16;
        let list = |own: &Dims, core: &[u16]| -> SpecAxes {
            let lead = out.len() - own.len();
            let batch = own
                .iter()
                .enumerate()
                .map(|(i, &len)| if len == 1 && out[lead + i] != 1 { Axis::Unit } else { Axis::Label(first + (lead + i) as u16) });
            batch.chain(core.iter().map(|&l| Axis::Label(l))).collect()
        };
        let (lhs, rhs) = (list(&lhs, lhs_core), list(&rhs, rhs_core));
        // A batch axis of length 1 that only one operand has, or none, is no loop.
        let out = (0..out.len()).map(|i| Axis::Label(first + i as u16)).chain(out_core.iter().map(|&l| Axis::Label(l))).collect();
        self.spec(lhs, rhs, out)
    }

    fn spec(&self, lhs: SpecAxes, rhs: SpecAxes, out: SpecAxes) -> Result<Spec> {
        Spec::new(lhs, rhs, out).ok_or_else(|| Error::invalid(self.name(), "spec", "labels that don't pair", "this is a fault of the op"))
    }

    /// Whether it is `matmul` of two matrices, whose sizes fit then.
    #[inline]
    fn is_of_matrices(&self, inputs: &[Meta]) -> Result<bool> {
        let is = matches!(self.form, Form::Matmul) && inputs.iter().all(|m| m.shape.len() == 2);
        if is {
            self.same_len(inputs, 1, 0, LAST_TWO)?;
        }
        Ok(is)
    }

    /// Ranks, then contracted sizes, then batch sizes.
    fn resolve(&self, inputs: &[Meta]) -> Result<(Spec, [Conj; 2])> {
        let rank = |i: usize| inputs[i].shape.len();
        let plain = [Conj::No; 2];
        let labels = |ids: std::ops::Range<usize>| ids.map(|i| Axis::Label(i as u16)).collect::<SpecAxes>();
        match &self.form {
            Form::Matmul => {
                let at_least_2: RankRule = (|r| r >= 2, "at least 2");
                self.ranks(inputs, [at_least_2; 2], "for vectors use dot, matvec, vecmat or outer, or unsqueeze")?;
                self.same_len(inputs, rank(0) - 1, rank(1) - 2, LAST_TWO)?;
                Ok((self.batched(inputs, &[0, 2], &[2, 1], &[0, 1])?, plain))
            }
            Form::MatmulOfVectors => {
                let at_least_1: RankRule = (|r| r >= 1, "at least 1");
                self.ranks(inputs, [at_least_1; 2], "multiply with mul where one is a scalar")?;
                self.same_len(inputs, rank(0) - 1, rank(1).saturating_sub(2), LAST_TWO)?;
                let (rows, columns) = (rank(0) > 1, rank(1) > 1);
                let lhs: &[u16] = if rows { &[0, 2] } else { &[2] };
                let rhs: &[u16] = if columns { &[2, 1] } else { &[2] };
                let out: &[u16] = match (rows, columns) {
                    (true, true) => &[0, 1],
                    (true, false) => &[0],
                    (false, true) => &[1],
                    (false, false) => &[],
                };
                Ok((self.batched(inputs, lhs, rhs, out)?, plain))
            }
            Form::Dot => {
                let lhs = rank(0);
                if lhs != rank(1) || !(1..=2).contains(&lhs) {
                    let operand = usize::from(lhs == 1 || lhs == 2);
                    let fault =
                        ShapeFault::Rank { operand, want: "1 and 1, or 2 and 2", remedy: "use matmul, matvec, vecmat or tensordot" };
                    return Err(Error::ShapeMismatch { op: self.name(), shapes: Self::shapes(inputs), fault });
                }
                self.same_len(inputs, lhs - 1, 0, "the contracted lengths must be equal")?;
                let (l, r, o): (&[u16], &[u16], &[u16]) = if lhs == 1 { (&[0], &[0], &[]) } else { (&[0, 2], &[2, 1], &[0, 1]) };
                Ok((self.batched(inputs, l, r, o)?, plain))
            }
            Form::Inner => {
                let at_least_1: RankRule = (|r| r >= 1, "at least 1");
                self.ranks(inputs, [at_least_1; 2], "multiply with mul where one is a scalar")?;
                self.same_len(inputs, rank(0) - 1, rank(1) - 1, "the last lengths must be equal")?;
                let (l, r) = (rank(0) - 1, rank(1) - 1);
                let k = Axis::Label((l + r) as u16);
                let mut lhs = labels(0..l);
                let mut rhs = labels(l..l + r);
                lhs.push(k);
                rhs.push(k);
                Ok((self.spec(lhs, rhs, labels(0..l + r))?, plain))
            }
            Form::Outer => {
                let one: RankRule = (|r| r == 1, "1");
                self.ranks(inputs, [one; 2], "flatten with reshape, or use tensordot with 0 axes")?;
                Ok((self.spec(labels(0..1), labels(1..2), labels(0..2))?, plain))
            }
            Form::Tensordot(axes) => {
                let (l, r) = self.pairs(inputs, axes)?;
                let (lhs_rank, rhs_rank) = (rank(0), rank(1));
                let lhs = labels(0..lhs_rank);
                let rhs: SpecAxes =
                    (0..rhs_rank).map(|a| Axis::Label(r.iter().position(|&x| x == a).map_or(lhs_rank + a, |at| l[at]) as u16)).collect();
                let free_lhs = (0..lhs_rank).filter(|a| !l.contains(a)).map(|a| lhs[a]);
                let free_rhs = (0..rhs_rank).filter(|a| !r.contains(a)).map(|a| rhs[a]);
                let out = free_lhs.chain(free_rhs).collect();
                Ok((self.spec(lhs, rhs, out)?, plain))
            }
            Form::Vecdot(axis) => {
                let at_least_1: RankRule = (|r| r >= 1, "at least 1");
                self.ranks(inputs, [at_least_1; 2], "multiply with mul where one is a scalar")?;
                let (l, r) = (normalize_axis(&self.name(), *axis, rank(0))?, normalize_axis(&self.name(), *axis, rank(1))?);
                self.same_len(inputs, l, r, "the contracted lengths must be equal")?;
                // The summed axis moved last, as the batch rule wants it, then the labels moved back.
                let moved = |i: usize, at: usize| {
                    let mut shape = inputs[i].shape.clone();
                    let len = shape.remove(at);
                    shape.push(len);
                    Meta { shape, dtype: inputs[i].dtype }
                };
                let spec = self.batched(&[moved(0, l), moved(1, r)], &[0], &[0], &[])?;
                let back = |list: &[Axis], at: usize| {
                    let mut list = SpecAxes::from_slice(list);
                    if let Some(k) = list.pop() {
                        list.insert(at, k);
                    }
                    list
                };
                Ok((self.spec(back(spec.lhs(), l), back(spec.rhs(), r), SpecAxes::from_slice(spec.out()))?, [Conj::Yes, Conj::No]))
            }
            Form::Matvec => {
                self.ranks(
                    inputs,
                    [(|r| r >= 2, "at least 2"), (|r| r >= 1, "at least 1")],
                    "lhs holds matrices, rhs vectors; for matrices use matmul",
                )?;
                self.same_len(inputs, rank(0) - 1, rank(1) - 1, "columns of lhs and the length of rhs must be equal")?;
                Ok((self.batched(inputs, &[0, 1], &[1], &[0])?, plain))
            }
            Form::Vecmat => {
                self.ranks(
                    inputs,
                    [(|r| r >= 1, "at least 1"), (|r| r >= 2, "at least 2")],
                    "lhs holds vectors, rhs matrices; for matrices use matmul",
                )?;
                self.same_len(inputs, rank(0) - 1, rank(1) - 2, "the length of lhs and rows of rhs must be equal")?;
                Ok((self.batched(inputs, &[1], &[1, 0], &[0])?, [Conj::Yes, Conj::No]))
            }
        }
    }

    fn pairs(&self, inputs: &[Meta], axes: &Axes) -> Result<(AxisList, AxisList)> {
        let name = self.name();
        let (lhs_rank, rhs_rank) = (inputs[0].shape.len(), inputs[1].shape.len());
        let (l, r) = match axes {
            Axes::Count(count) => {
                let n = usize::try_from(*count).ok().filter(|n| *n <= lhs_rank.min(rhs_rank)).ok_or_else(|| {
                    Error::invalid(
                        name.clone(),
                        "axes",
                        count,
                        format!(
                            "want a count from 0 to {}, the lower rank of {} and {}",
                            lhs_rank.min(rhs_rank),
                            crate::shape_text(&inputs[0].shape),
                            crate::shape_text(&inputs[1].shape)
                        ),
                    )
                })?;
                ((lhs_rank - n..lhs_rank).collect(), (0..n).collect())
            }
            Axes::Pairs(l, r) => {
                if l.len() != r.len() {
                    return Err(Error::invalid(
                        name,
                        "axes",
                        format!("{l:?} and {r:?}"),
                        "want lists of equal length, one axis of each a pair",
                    ));
                }
                (normalize_axes(&name, l, lhs_rank)?, normalize_axes(&name, r, rhs_rank)?)
            }
        };
        for (&a, &b) in l.iter().zip(&r) {
            self.same_len(inputs, a, b, "lengths of paired axes must be equal")?;
        }
        Ok((l, r))
    }
}

impl Op for Product {
    fn schema(&self) -> &'static OpSchema {
        self.schema
    }

    fn infer(&self, inputs: &[Meta]) -> Result<Inference> {
        let name = self.name();
        if inputs[0].dtype != inputs[1].dtype {
            let dtypes = inputs.iter().map(|m| m.dtype).collect();
            return Err(Error::DtypeMismatch { op: name, dtypes, remedy: "convert one operand with astype" });
        }
        let out_dtype = result_dtype(&name, inputs[0].dtype, self.options.out_dtype)?;
        let precision = self.options.precision;
        let shape_of = |spec: &Spec| spec.out_shape(&inputs[0].shape, &inputs[1].shape);
        let (lowered, shape) = match MATRICES.get(out_dtype as usize) {
            Some(made) if precision == Precision::Ieee && self.is_of_matrices(inputs)? => {
                let made = made.get_or_init(|| {
                    let (spec, conj) = (Spec::matrices(), [Conj::No; 2]);
                    Contract { schema: self.schema, spec, conj, precision, out_dtype }
                });
                (KeptOp::Static(made), shape_of(&made.spec))
            }
            _ => {
                let (spec, conj) = self.resolve(inputs)?;
                let shape = shape_of(&spec);
                (KeptOp::Shared(Arc::new(Contract { schema: self.schema, spec, conj, precision, out_dtype })), shape)
            }
        };
        Ok(Inference { outputs: SmallVec::from_buf([Meta { shape, dtype: out_dtype }]), lowered: Some(lowered) })
    }

    fn eval(&self, _inputs: &[&View], _outputs: &[Meta]) -> Result<SmallVec<[View; 1]>> {
        Ok(SmallVec::new())
    }

    fn vjp(&self, _saved: &Saved, _need: &[Option<DType>], _g: &[Option<Tensor>]) -> Result<Grads> {
        Ok(Grads::new())
    }
}

fn product(schema: &'static OpSchema, form: Form, lhs: &Tensor, rhs: &Tensor, options: ProductOptions) -> Result<Tensor> {
    apply_one(Product { schema, form, options }, &[lhs, rhs])
}

macro_rules! products {
    ($($(#[$doc:meta])* $name:ident, $with:ident, $schema:ident, $form:expr;)*) => {
        $(
            $(#[$doc])*
            pub fn $name(lhs: &Tensor, rhs: &Tensor) -> Result<Tensor> {
                product(&$schema, $form, lhs, rhs, ProductOptions::default())
            }
        )*
        impl Tensor {
            $(
                $(#[$doc])*
                pub fn $name(&self, rhs: &Tensor) -> Result<Tensor> {
                    $name(self, rhs)
                }
                #[doc = concat!("[`Tensor::", stringify!($name), "`] with a result dtype or a precision.")]
                pub fn $with(&self, rhs: &Tensor, options: ProductOptions) -> Result<Tensor> {
                    product(&$schema, $form, self, rhs, options)
                }
            )*
        }
    };
}

products! {
    /// Matrix product of the last two axes over a batch that broadcasts.
    ///
    /// Shapes: (…,M,K)·(…,K,N) → broadcast(batch) + (M,N); ranks ≥ 2. Accumulates in f32 for f16 and bf16, else in the
    /// operands' dtype; integers wrap. Gradient: G·Bᴴ and Aᴴ·G, summed over broadcast axes inside the product.
    /// Cost: 2·batch·M·N·K FLOPs, no memory beyond the result. Errors: `DtypeMismatch`, `ShapeMismatch`,
    /// `DeviceMismatch`. Source: NumPy `matmul`.
    matmul, matmul_with, MATMUL, Form::Matmul;
    /// Product of two vectors, → shape (), or of two matrices. Errors: `ShapeMismatch` for other ranks. Gradient,
    /// accumulator and cost as for [`matmul`].
    dot, dot_with, DOT, Form::Dot;
    /// Sum over the last axes: lhs[:-1] + rhs[:-1]. Ranks ≥ 1. Gradient, accumulator and cost as for [`matmul`].
    inner, inner_with, INNER, Form::Inner;
    /// (M)·(N) → (M,N), `lhs[i]·rhs[j]`. Gradient: G·conj(rhs), Gᵀ·conj(lhs). Cost: M·N multiplications.
    outer, outer_with, OUTER, Form::Outer;
    /// Sum over the last axis, lhs conjugated, over a batch that broadcasts. Source: array API `vecdot`.
    vecdot, vecdot_with, VECDOT, Form::Vecdot(-1);
    /// (…,M,K)·(…,K) → (…,M) over a batch that broadcasts. Source: NumPy `matvec`.
    matvec, matvec_with, MATVEC, Form::Matvec;
    /// (…,K)·(…,K,N) → (…,N), lhs conjugated, over a batch that broadcasts. Source: NumPy `vecmat`.
    vecmat, vecmat_with, VECMAT, Form::Vecmat;
}

/// Sum over a count of axes or over pairs of axes; the free axes of lhs, then those of rhs, stay.
///
/// Errors: `InvalidArgument` for a negative or too great count, lists of unequal length, a duplicate or out-of-range axis;
/// `ShapeMismatch` for lengths that differ. Gradient, accumulator and cost as for [`matmul`].
pub fn tensordot(lhs: &Tensor, rhs: &Tensor, axes: impl Into<Axes>) -> Result<Tensor> {
    tensordot_with(lhs, rhs, axes, ProductOptions::default())
}

/// [`tensordot`] with a result dtype or a precision.
pub fn tensordot_with(lhs: &Tensor, rhs: &Tensor, axes: impl Into<Axes>, options: ProductOptions) -> Result<Tensor> {
    product(&TENSORDOT, Form::Tensordot(axes.into()), lhs, rhs, options)
}

/// [`matmul`] by NumPy's and the array API's rule of ranks: a vector on the left is a row, one on the right a column, and that
/// axis is dropped from the result. Nothing is conjugated. Errors: `ShapeMismatch` for rank 0.
pub fn matmul_with_vectors(lhs: &Tensor, rhs: &Tensor, options: ProductOptions) -> Result<Tensor> {
    let form = if lhs.rank() > 1 && rhs.rank() > 1 { Form::Matmul } else { Form::MatmulOfVectors };
    product(&MATMUL, form, lhs, rhs, options)
}

/// [`vecdot`] over another axis, counted from the end where negative.
pub fn vecdot_axis(lhs: &Tensor, rhs: &Tensor, axis: isize) -> Result<Tensor> {
    product(&VECDOT, Form::Vecdot(axis), lhs, rhs, ProductOptions::default())
}

fn options(a: &Attrs) -> Result<ProductOptions> {
    let out_dtype = a.text("out_dtype").map(|_| a.dtype("out_dtype")).transpose()?;
    Ok(ProductOptions { out_dtype, ..ProductOptions::default() })
}

fn axes(a: &Attrs) -> Result<Axes> {
    if a.text("lhs").is_some() || a.text("rhs").is_some() {
        return Ok(Axes::Pairs(a.ints("lhs")?, a.ints("rhs")?));
    }
    Ok(Axes::Count(a.int("axes", 2)?))
}

macro_rules! entry {
    ($schema:ident, $with:ident, [$($sample:expr),*]) => {
        OpEntry { schema: &$schema, params: &["out_dtype"], call: |x, a| x[0].$with(&x[1], options(a)?), samples: &[$($sample),*], values: Values::Any }
    };
}

pub(super) static ENTRIES: &[OpEntry] = &[
    entry!(
        MATMUL,
        matmul_with,
        [
            Sample::new(&[&[2, 3], &[3, 4]], ""),
            Sample::new(&[&[1, 1], &[1, 1]], ""),
            Sample::new(&[&[5, 1, 3, 2], &[4, 2, 3]], ""),
            Sample::new(&[&[2, 1, 3], &[3, 2]], ""),
            Sample::new(&[&[3, 0], &[0, 2]], ""),
            Sample::new(&[&[0, 2, 3], &[3, 2]], ""),
            Sample::new(&[&[17, 9], &[9, 33]], ""),
            Sample::new(&[&[3, 513], &[513, 2]], "")
        ]
    ),
    entry!(DOT, dot_with, [Sample::new(&[&[5], &[5]], ""), Sample::new(&[&[0], &[0]], ""), Sample::new(&[&[2, 3], &[3, 2]], "")]),
    entry!(INNER, inner_with, [Sample::new(&[&[2, 3], &[4, 2, 3]], ""), Sample::new(&[&[3], &[3]], "")]),
    entry!(OUTER, outer_with, [Sample::new(&[&[3], &[4]], ""), Sample::new(&[&[1], &[7]], ""), Sample::new(&[&[0], &[2]], "")]),
    OpEntry {
        schema: &TENSORDOT,
        params: &["axes", "lhs", "rhs", "out_dtype"],
        call: |x, a| tensordot_with(&x[0], &x[1], axes(a)?, options(a)?),
        samples: &[
            Sample::new(&[&[2, 3, 4], &[3, 4, 2]], "axes=2"),
            Sample::new(&[&[2, 3], &[2, 2]], "axes=0"),
            Sample::new(&[&[2, 3, 4], &[4, 3, 5]], "lhs=1,-1;rhs=1,0"),
        ],
        values: Values::Any,
    },
    OpEntry {
        schema: &VECDOT,
        params: &["axis"],
        call: |x, a| vecdot_axis(&x[0], &x[1], a.int("axis", -1)?),
        samples: &[Sample::new(&[&[2, 5], &[1, 5]], ""), Sample::new(&[&[3, 2], &[3, 2]], "axis=0")],
        values: Values::Any,
    },
    entry!(MATVEC, matvec_with, [Sample::new(&[&[2, 3], &[3]], ""), Sample::new(&[&[4, 2, 3], &[1, 3]], "")]),
    entry!(VECMAT, vecmat_with, [Sample::new(&[&[3], &[3, 2]], ""), Sample::new(&[&[4, 3], &[3, 2]], "")]),
];
