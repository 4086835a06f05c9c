//! Python's operators on tensors.

use bilin::Tensor;
use pyo3::basic::CompareOp;
use pyo3::prelude::*;
use pyo3::types::PyNotImplemented;

use crate::convert::{is_array_like, operand, pair, promoted};
use crate::dtype::promote;
use crate::error::{OrRaise, new};
use crate::numbers::Number;
use crate::products::matmul_of;
use crate::tensor::{PyTensor, busy};

type Binary = fn(&Tensor, &Tensor) -> bilin::Result<Tensor>;

fn answer(py: Python<'_>, t: PyResult<Tensor>) -> PyResult<Py<PyAny>> {
    Ok(Py::new(py, PyTensor(t?))?.into_any())
}

fn binary(slf: &Bound<'_, PyTensor>, other: &Bound<'_, PyAny>, swapped: bool, name: &str, f: Binary) -> PyResult<Py<PyAny>> {
    let py = slf.py();
    if !is_array_like(other) {
        return Ok(PyNotImplemented::get(py).to_owned().into_any().unbind());
    }
    let (lhs, rhs) = if swapped { (other, slf.as_any()) } else { (slf.as_any(), other) };
    let (a, b) = pair(lhs, rhs, name, ["lhs", "rhs"])?;
    answer(py, busy(py, a.numel().max(b.numel()), || f(&a, &b)).or_raise_as(name, &["lhs", "rhs"], &[]))
}

/// `source` in the dtype of `target`, within its kind.
fn same_kind(target: &Tensor, source: &Bound<'_, PyAny>, func: &str, arg: &str) -> PyResult<Tensor> {
    let found = operand(source, func, arg)?;
    let refused = |got: bilin::DType| {
        new("DtypeMismatch", format!("{func}: self, {arg}: dtypes ({}, {got}) don't fit; convert {arg} with astype", target.dtype()))
    };
    match &found {
        crate::convert::Operand::Number(Number::Complex(..)) if !target.dtype().is_complex() => return Err(refused(bilin::DType::C64)),
        crate::convert::Operand::Strong(t) if t.dtype() != target.dtype() => {
            let widened = promote(t.dtype(), target.dtype()).ok_or_else(|| refused(t.dtype()))?;
            if widened.kind() != target.dtype().kind() {
                return Err(refused(t.dtype()));
            }
        }
        _ => {}
    }
    found.tensor(target.dtype(), target.device(), func, arg)
}

/// Copies `source`, which broadcasts, into `target`'s memory.
pub fn assign(target: &Tensor, source: &Bound<'_, PyAny>, func: &str, arg: &str) -> PyResult<()> {
    target.copy_(&same_kind(target, source, func, arg)?).or_raise_as(func, &["self", arg], &[])
}

fn in_place(slf: &PyTensor, other: &Bound<'_, PyAny>, func: &str, f: impl Fn(&Tensor, &Tensor) -> bilin::Result<()>) -> PyResult<()> {
    f(&slf.0, &same_kind(&slf.0, other, func, "other")?).or_raise_as(func, &["self", "other"], &[])
}

fn remainder_free(name: &str) -> PyErr {
    pyo3::exceptions::PyTypeError::new_err(format!("{name}: tensors have no such operator; use NumPy through numpy()"))
}

#[pymethods]
impl PyTensor {
    fn __matmul__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        if !is_array_like(other) {
            return Ok(PyNotImplemented::get(py).to_owned().into_any().unbind());
        }
        answer(py, matmul_of(slf.as_any(), other, "matmul"))
    }
    fn __rmatmul__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        if !is_array_like(other) {
            return Ok(PyNotImplemented::get(py).to_owned().into_any().unbind());
        }
        answer(py, matmul_of(other, slf.as_any(), "matmul"))
    }
    fn __imatmul__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<()> {
        let product = matmul_of(slf.as_any(), other, "matmul")?;
        if product.shape() != slf.get().0.shape() {
            let text =
                format!("matmul: {} doesn't fit into {}", bilin::shape_text(product.shape()), bilin::shape_text(slf.get().0.shape()));
            return Err(new("ShapeMismatch", format!("{text} in place; write x = x @ y")));
        }
        slf.get().0.copy_(&product).or_raise()
    }
    fn __add__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        binary(slf, other, false, "add", Tensor::add)
    }
    fn __radd__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        binary(slf, other, true, "add", Tensor::add)
    }
    fn __sub__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        binary(slf, other, false, "sub", Tensor::sub)
    }
    fn __rsub__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        binary(slf, other, true, "sub", Tensor::sub)
    }
    fn __mul__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        binary(slf, other, false, "mul", Tensor::mul)
    }
    fn __rmul__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        binary(slf, other, true, "mul", Tensor::mul)
    }
    fn __truediv__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        binary(slf, other, false, "div", Tensor::div)
    }
    fn __rtruediv__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        binary(slf, other, true, "div", Tensor::div)
    }
    fn __pow__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>, modulo: Option<&Bound<'_, PyAny>>) -> PyResult<Py<PyAny>> {
        if modulo.is_some_and(|m| !m.is_none()) {
            return Err(remainder_free("pow with a modulus"));
        }
        binary(slf, other, false, "pow", Tensor::pow)
    }
    fn __rpow__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>, modulo: Option<&Bound<'_, PyAny>>) -> PyResult<Py<PyAny>> {
        if modulo.is_some_and(|m| !m.is_none()) {
            return Err(remainder_free("pow with a modulus"));
        }
        binary(slf, other, true, "pow", Tensor::pow)
    }
    fn __neg__(&self) -> PyResult<PyTensor> {
        self.0.neg().or_raise().map(PyTensor)
    }
    fn __pos__(&self) -> PyTensor {
        PyTensor(self.0.clone())
    }
    fn __abs__(&self) -> PyResult<PyTensor> {
        self.0.abs().or_raise().map(PyTensor)
    }
    fn __iadd__(&self, other: &Bound<'_, PyAny>) -> PyResult<()> {
        in_place(self, other, "add_", Tensor::add_)
    }
    fn __isub__(&self, other: &Bound<'_, PyAny>) -> PyResult<()> {
        in_place(self, other, "sub_", Tensor::sub_)
    }
    fn __imul__(&self, other: &Bound<'_, PyAny>) -> PyResult<()> {
        in_place(self, other, "mul_", Tensor::mul_)
    }
    fn __itruediv__(&self, other: &Bound<'_, PyAny>) -> PyResult<()> {
        in_place(self, other, "div_", |a, b| a.copy_(&bilin::no_grad(|| a.div(b))?))
    }
    fn __richcmp__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>, op: CompareOp) -> PyResult<Py<PyAny>> {
        let (name, f): (_, Binary) = match op {
            CompareOp::Eq => ("eq", Tensor::eq),
            CompareOp::Ne => ("ne", Tensor::ne),
            CompareOp::Lt => ("lt", Tensor::lt),
            CompareOp::Le => ("le", Tensor::le),
            CompareOp::Gt => ("gt", Tensor::gt),
            CompareOp::Ge => ("ge", Tensor::ge),
        };
        binary(slf, other, false, name, f)
    }
}

/// `where(mask, a, b)`.
#[pyfunction]
#[pyo3(name = "where", signature = (mask, a, b, /))]
pub fn where_(mask: &Bound<'_, PyAny>, a: &Bound<'_, PyAny>, b: &Bound<'_, PyAny>) -> PyResult<PyTensor> {
    let mask = crate::convert::tensor(mask, "where", "mask")?;
    let both = promoted(&[(a, "a"), (b, "b")], "where")?;
    mask.where_(&both[0], &both[1]).or_raise_as("where", &["mask", "a", "b"], &[]).map(PyTensor)
}
