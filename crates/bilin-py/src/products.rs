//! Products by NumPy's rules of ranks.

use bilin::{Axes, DType, Precision, ProductOptions, Tensor};
use pyo3::prelude::*;
use pyo3::types::{PyEllipsis, PyList, PyTuple};

use crate::convert::{pair, promoted};
use crate::dtype::parse_optional;
use crate::error::{OrRaise, invalid, wrong_type};
use crate::numbers::{int, ints};
use crate::tensor::{PyTensor, busy};

type Obj<'a, 'py> = &'a Bound<'py, PyAny>;

fn options(out_dtype: Option<Obj<'_, '_>>, precision: Option<Obj<'_, '_>>, func: &str) -> PyResult<ProductOptions> {
    let mut options = ProductOptions::default();
    if let Some(d) = parse_optional(out_dtype, func, "out_dtype")? {
        options = options.out_dtype(d);
    }
    if let Some(p) = precision.filter(|p| !p.is_none()) {
        let name: String = p.extract().map_err(|_| wrong_type(func, "precision", p, "'ieee', 'tf32' or 'bf16x3'"))?;
        options = options.precision(match name.as_str() {
            "ieee" => Precision::Ieee,
            "tf32" => Precision::Tf32,
            "bf16x3" => Precision::Bf16x3,
            _ => return Err(invalid(func, "precision", name, "want 'ieee', 'tf32' or 'bf16x3'")),
        });
    }
    Ok(options)
}

const OPERANDS: [&str; 2] = ["lhs", "rhs"];

/// A product of two operands, whose errors speak of `func` and of what it takes.
fn product(
    (lhs, rhs): (Obj<'_, '_>, Obj<'_, '_>),
    func: &str,
    others: &[&str],
    f: impl FnOnce(&Tensor, &Tensor) -> bilin::Result<Tensor> + Send,
) -> PyResult<Tensor> {
    let (a, b) = pair(lhs, rhs, func, OPERANDS)?;
    busy(lhs.py(), a.numel().max(b.numel()), || f(&a, &b)).or_raise_as(func, &OPERANDS, others)
}

/// `lhs @ rhs`.
pub fn matmul_of(lhs: Obj<'_, '_>, rhs: Obj<'_, '_>, func: &str) -> PyResult<Tensor> {
    product((lhs, rhs), func, &[], |a, b| bilin::ops::matmul_with_vectors(a, b, ProductOptions::default()))
}

/// Matrix product of the last two axes over a batch that broadcasts; a vector is a row on the left and a column on the right.
#[pyfunction]
#[pyo3(signature = (lhs, rhs, /, *, out_dtype=None, precision=None))]
pub fn matmul(lhs: Obj<'_, '_>, rhs: Obj<'_, '_>, out_dtype: Option<Obj<'_, '_>>, precision: Option<Obj<'_, '_>>) -> PyResult<PyTensor> {
    if out_dtype.is_none() && precision.is_none() {
        return matmul_of(lhs, rhs, "matmul").map(PyTensor);
    }
    let options = options(out_dtype, precision, "matmul")?;
    product((lhs, rhs), "matmul", &["out_dtype", "precision"], |a, b| bilin::ops::matmul_with_vectors(a, b, options)).map(PyTensor)
}

/// NumPy's `dot`: vectors and matrices as expected, numbers multiply, else the last axis of lhs with the second-last of rhs.
#[pyfunction]
#[pyo3(signature = (lhs, rhs, /))]
pub fn dot(lhs: Obj<'_, '_>, rhs: Obj<'_, '_>) -> PyResult<PyTensor> {
    product((lhs, rhs), "dot", &[], |a, b| match (a.rank(), b.rank()) {
        (0, _) | (_, 0) => a.mul(b),
        (1, 1) | (2, 2) => a.dot(b),
        (_, 1) => bilin::tensordot(a, b, Axes::pairs([-1], [0])),
        _ => bilin::tensordot(a, b, Axes::pairs([-1], [-2])),
    })
    .map(PyTensor)
}

/// Sum over the last axes; numbers multiply.
#[pyfunction]
#[pyo3(signature = (lhs, rhs, /))]
pub fn inner(lhs: Obj<'_, '_>, rhs: Obj<'_, '_>) -> PyResult<PyTensor> {
    product((lhs, rhs), "inner", &[], |a, b| if a.rank() == 0 || b.rank() == 0 { a.mul(b) } else { a.inner(b) }).map(PyTensor)
}

/// `lhs[i]·rhs[j]` of the flattened operands.
#[pyfunction]
#[pyo3(signature = (lhs, rhs, /))]
pub fn outer(lhs: Obj<'_, '_>, rhs: Obj<'_, '_>) -> PyResult<PyTensor> {
    product((lhs, rhs), "outer", &[], |a, b| a.reshape([a.numel()])?.outer(&b.reshape([b.numel()])?)).map(PyTensor)
}

/// Sum of products of the flattened operands, lhs conjugated.
#[pyfunction]
#[pyo3(signature = (lhs, rhs, /))]
pub fn vdot(lhs: Obj<'_, '_>, rhs: Obj<'_, '_>) -> PyResult<PyTensor> {
    product((lhs, rhs), "vdot", &[], |a, b| a.reshape([a.numel()])?.vecdot(&b.reshape([b.numel()])?)).map(PyTensor)
}

/// Sum over `axis`, lhs conjugated, over a batch that broadcasts.
#[pyfunction]
#[pyo3(signature = (lhs, rhs, /, *, axis=None))]
pub fn vecdot(lhs: Obj<'_, '_>, rhs: Obj<'_, '_>, axis: Option<Obj<'_, '_>>) -> PyResult<PyTensor> {
    let axis = axis.map(|a| int(a, "vecdot", "axis")).transpose()?.unwrap_or(-1);
    product((lhs, rhs), "vecdot", &["axis"], |a, b| bilin::ops::vecdot_axis(a, b, axis)).map(PyTensor)
}

/// (…,M,K)·(…,K) → (…,M).
#[pyfunction]
#[pyo3(signature = (lhs, rhs, /))]
pub fn matvec(lhs: Obj<'_, '_>, rhs: Obj<'_, '_>) -> PyResult<PyTensor> {
    product((lhs, rhs), "matvec", &[], |a, b| a.matvec(b)).map(PyTensor)
}

/// (…,K)·(…,K,N) → (…,N), lhs conjugated.
#[pyfunction]
#[pyo3(signature = (lhs, rhs, /))]
pub fn vecmat(lhs: Obj<'_, '_>, rhs: Obj<'_, '_>) -> PyResult<PyTensor> {
    product((lhs, rhs), "vecmat", &[], |a, b| a.vecmat(b)).map(PyTensor)
}

fn axes_of(axes: Obj<'_, '_>) -> PyResult<Axes> {
    if axes.is_instance_of::<PyTuple>() || axes.is_instance_of::<PyList>() {
        if axes.len()? != 2 {
            return Err(invalid("tensordot", "axes", format!("a list of {} items", axes.len()?), "want a count or a pair of axis lists"));
        }
        return Ok(Axes::Pairs(ints(&axes.get_item(0)?, "tensordot", "axes")?, ints(&axes.get_item(1)?, "tensordot", "axes")?));
    }
    Ok(Axes::Count(int(axes, "tensordot", "axes")?))
}

/// Sum over a count of axes, or over pairs of axes.
#[pyfunction]
#[pyo3(signature = (lhs, rhs, /, axes=None, *, out_dtype=None, precision=None))]
pub fn tensordot(
    lhs: Obj<'_, '_>,
    rhs: Obj<'_, '_>,
    axes: Option<Obj<'_, '_>>,
    out_dtype: Option<Obj<'_, '_>>,
    precision: Option<Obj<'_, '_>>,
) -> PyResult<PyTensor> {
    let axes = axes.map(axes_of).transpose()?.unwrap_or(Axes::Count(2));
    let options = options(out_dtype, precision, "tensordot")?;
    product((lhs, rhs), "tensordot", &["axes", "out_dtype", "precision"], |a, b| bilin::tensordot_with(a, b, axes, options)).map(PyTensor)
}

/// NumPy's second form: operands, each followed by the numbers of its axes, and perhaps those of the result.
fn from_lists(all: &[Bound<'_, PyAny>], func: &str) -> PyResult<String> {
    let labels = |list: &Bound<'_, PyAny>| -> PyResult<String> {
        let mut text = String::new();
        let wrong = || wrong_type(func, "subscripts", list, "text such as 'ij,jk->ik', or a list of numbers after each operand");
        if list.is_instance_of::<PyTensor>() {
            return Err(wrong());
        }
        for item in list.try_iter().map_err(|_| wrong())? {
            let item = item?;
            if item.is_instance_of::<PyEllipsis>() {
                text.push_str("...");
                continue;
            }
            // Capitals come first, so that the order of labels is that of the numbers.
            match int(&item, func, "subscripts")? {
                n @ 0..26 => text.push((b'A' + n as u8) as char),
                n @ 26..52 => text.push((b'a' + (n - 26) as u8) as char),
                n => return Err(invalid(func, "subscripts", n, "want numbers from 0 to 51, or Ellipsis")),
            }
        }
        Ok(text)
    };
    let pairs = all.chunks_exact(2);
    let out = match pairs.remainder() {
        [out] => format!("->{}", labels(out)?),
        _ => String::new(),
    };
    let terms: Vec<String> = pairs.map(|pair| labels(&pair[1])).collect::<PyResult<_>>()?;
    Ok(terms.join(",") + &out)
}

fn einsum_operands(args: &Bound<'_, PyTuple>, func: &str) -> PyResult<(String, Vec<Tensor>)> {
    let items: Vec<Bound<'_, PyAny>> = args.iter().collect();
    let (text, operands) = match items.split_first() {
        None => return Err(invalid(func, "subscripts", "missing", "want text such as 'ij,jk->ik'")),
        Some((first, rest)) if first.is_instance_of::<pyo3::types::PyString>() => {
            (first.cast::<pyo3::types::PyString>()?.to_string_lossy().into_owned(), rest.to_vec())
        }
        Some((first, [])) => return Err(wrong_type(func, "subscripts", first, "text such as 'ij,jk->ik'")),
        Some(_) => (from_lists(&items, func)?, items.chunks_exact(2).map(|pair| pair[0].clone()).collect()),
    };
    if operands.is_empty() {
        return Err(invalid(func, "operands", "missing", "want at least one"));
    }
    Ok((text, promoted(&operands.iter().map(|o| (o, "operands")).collect::<Vec<_>>(), func)?))
}

/// NumPy's argument: every value of it gives the same path here.
fn check_optimize(optimize: Option<Obj<'_, '_>>, func: &str) -> PyResult<()> {
    let Some(given) = optimize.filter(|o| !o.is_none()) else { return Ok(()) };
    if let Ok(name) = given.extract::<String>() {
        return match name.as_str() {
            "greedy" | "optimal" => Ok(()),
            _ => Err(invalid(func, "optimize", name, "want True, False, 'greedy', 'optimal' or a path")),
        };
    }
    if given.extract::<bool>().is_ok() || given.is_instance_of::<PyList>() || given.is_instance_of::<PyTuple>() {
        return Ok(());
    }
    Err(wrong_type(func, "optimize", given, "True, False, 'greedy', 'optimal' or a path"))
}

/// Sums of products by subscripts; the order of contraction is always the cheapest that is found, whatever `optimize` says.
#[pyfunction]
#[pyo3(signature = (*operands, out_dtype=None, precision=None, optimize=None))]
pub fn einsum(
    operands: &Bound<'_, PyTuple>,
    out_dtype: Option<Obj<'_, '_>>,
    precision: Option<Obj<'_, '_>>,
    optimize: Option<Obj<'_, '_>>,
) -> PyResult<PyTensor> {
    check_optimize(optimize, "einsum")?;
    let (text, all) = einsum_operands(operands, "einsum")?;
    let options = options(out_dtype, precision, "einsum")?;
    let most = all.iter().map(Tensor::numel).max().unwrap_or(0);
    busy(operands.py(), most, || bilin::einsum_with(&text, &all.iter().collect::<Vec<_>>(), options))
        .or_raise_as("einsum", &["operands"], &["subscripts", "out_dtype", "precision"])
        .map(PyTensor)
}

/// Steps, FLOPs, elements.
type PathParts = (Vec<(usize, usize)>, u128, u128);

/// Steps, FLOPs and peak elements of the path that `einsum` takes.
#[pyfunction]
#[pyo3(name = "_einsum_path", signature = (*operands))]
pub fn einsum_path(operands: &Bound<'_, PyTuple>) -> PyResult<PathParts> {
    let (text, all) = einsum_operands(operands, "einsum_path")?;
    let path = bilin::einsum_path(&text, &all.iter().collect::<Vec<_>>()).or_raise_as("einsum_path", &["operands"], &["subscripts"])?;
    Ok((path.steps, path.flops, path.peak_elements))
}

/// The dtype that the operands of a product share.
#[pyfunction]
#[pyo3(signature = (*operands))]
pub fn result_type(operands: &Bound<'_, PyTuple>) -> PyResult<crate::dtype::PyDType> {
    let mut common: Option<DType> = None;
    for o in operands.iter() {
        let dtype = match o.cast::<PyTensor>() {
            Ok(t) => t.get().0.dtype(),
            Err(_) => match crate::dtype::parse(&o, "result_type", "operands") {
                Ok(d) => d,
                Err(_) => crate::convert::tensor(&o, "result_type", "operands")?.dtype(),
            },
        };
        common = Some(match common {
            None => dtype,
            Some(so_far) => crate::dtype::promote(so_far, dtype).ok_or_else(|| {
                crate::error::new(
                    "DtypeMismatch",
                    format!("result_type: operands: dtypes ({so_far}, {dtype}) don't fit; convert one with astype"),
                )
            })?,
        });
    }
    common.map(crate::dtype::PyDType).ok_or_else(|| invalid("result_type", "operands", "missing", "want at least one"))
}
