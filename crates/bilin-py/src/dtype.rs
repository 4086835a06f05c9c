//! `bilin.DType`, and the dtypes that users name in other ways.

use bilin::{DType, Kind};
use numpy::{PyArrayDescr, PyArrayDescrMethods};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyComplex, PyFloat, PyInt, PyString, PyType};

use crate::error::{new, wrong_type};

/// The element type of a tensor; `bilin.float32` and its siblings are the only instances.
#[pyclass(name = "DType", module = "bilin", frozen, eq, hash)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PyDType(pub DType);

#[pymethods]
impl PyDType {
    /// NumPy's name of it.
    #[getter]
    fn name(&self) -> &'static str {
        self.0.name()
    }
    /// Bytes of one element.
    #[getter]
    fn itemsize(&self) -> usize {
        self.0.size_bytes()
    }
    /// `bool`, `int`, `float` or `complex`.
    #[getter]
    fn kind(&self) -> &'static str {
        match self.0.kind() {
            Kind::Bool => "bool",
            Kind::Int => "int",
            Kind::Float => "float",
            Kind::Complex => "complex",
        }
    }
    /// The NumPy dtype; bfloat16 needs the package `ml_dtypes`.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArrayDescr>> {
        descr(py, self.0, "dtype")
    }
    fn __repr__(&self) -> String {
        format!("bilin.{}", self.0.name())
    }
    fn __str__(&self) -> &'static str {
        self.0.name()
    }
    fn __reduce__(&self, py: Python<'_>) -> PyResult<(Py<PyAny>, (&'static str,))> {
        Ok((py.import("bilin")?.getattr("_dtype")?.unbind(), (self.0.name(),)))
    }
}

/// NumPy's dtype of an engine's dtype.
pub fn descr<'py>(py: Python<'py>, dtype: DType, func: &str) -> PyResult<Bound<'py, PyArrayDescr>> {
    if dtype != DType::Bf16 {
        return PyArrayDescr::new(py, dtype.name());
    }
    match py.import("ml_dtypes") {
        Ok(module) => PyArrayDescr::new(py, module.getattr("bfloat16")?),
        Err(_) => Err(new(
            "Unsupported",
            format!("{func}: bfloat16 isn't supported by NumPy; install ml_dtypes, or convert with astype('float32')"),
        )),
    }
}

/// The engine's dtype of a NumPy dtype of any byte order.
pub fn of_descr(descr: &Bound<'_, PyArrayDescr>, func: &str, arg: &str) -> PyResult<DType> {
    let found = match (descr.kind(), descr.itemsize()) {
        (b'b', 1) => Some(DType::Bool),
        (b'u', 1) => Some(DType::U8),
        (b'i', 1) => Some(DType::I8),
        (b'i', 2) => Some(DType::I16),
        (b'i', 4) => Some(DType::I32),
        (b'i', 8) => Some(DType::I64),
        (b'f', 4) => Some(DType::F32),
        (b'f', 8) => Some(DType::F64),
        (b'c', 8) => Some(DType::C64),
        (b'c', 16) => Some(DType::C128),
        // The name tells bfloat16 from what other packages keep in two bytes.
        (_, 2) => match descr.typeobj().name()?.to_str()? {
            "float16" => Some(DType::F16),
            "bfloat16" => Some(DType::Bf16),
            _ => None,
        },
        _ => None,
    };
    found.ok_or_else(|| {
        let name = descr.str().map_or_else(|_| String::from("unknown"), |s| s.to_string());
        let names: Vec<&str> = DType::ALL.iter().map(|d| d.name()).collect();
        new("DtypeMismatch", format!("{func}: {arg} has dtype {name}; convert it to one of {}", names.join(", ")))
    })
}

/// A dtype that a user named: `bilin.float32`, `"float32"`, `numpy.float32`, `numpy.dtype("f4")`, `float`.
pub fn parse(obj: &Bound<'_, PyAny>, func: &str, arg: &str) -> PyResult<DType> {
    if let Ok(d) = obj.cast::<PyDType>() {
        return Ok(d.get().0);
    }
    const WANT: &str = "a dtype such as bilin.float32 or 'float32'";
    if let Ok(name) = obj.cast::<PyString>() {
        let found = name.to_str().ok().and_then(DType::parse);
        if let Some(d) = found {
            return Ok(d);
        }
        // NumPy's other names, such as 'f4', are tried below.
        if PyArrayDescr::new(obj.py(), obj.clone()).is_err() {
            return Err(PyTypeError::new_err(format!("{func}: {arg} is {}; want {WANT}", name.repr()?)));
        }
    }
    let py = obj.py();
    if let Ok(class) = obj.cast::<PyType>() {
        let builtins = [
            (py.get_type::<PyBool>(), DType::Bool),
            (py.get_type::<PyInt>(), DType::I64),
            (py.get_type::<PyFloat>(), DType::F32),
            (py.get_type::<PyComplex>(), DType::C64),
        ];
        if let Some((_, d)) = builtins.iter().find(|(t, _)| class.is(t)) {
            return Ok(*d);
        }
    }
    if !obj.is_none()
        && let Ok(descr) = PyArrayDescr::new(py, obj.clone())
    {
        return of_descr(&descr, func, arg);
    }
    Err(wrong_type(func, arg, obj, WANT))
}

/// The same, where it may be missing.
pub fn parse_optional(obj: Option<&Bound<'_, PyAny>>, func: &str, arg: &str) -> PyResult<Option<DType>> {
    obj.filter(|o| !o.is_none()).map(|o| parse(o, func, arg)).transpose()
}

/// The dtype that two operands share by the array API's table: within a kind, and from real to complex. `None` across kinds.
pub fn promote(a: DType, b: DType) -> Option<DType> {
    use DType::{Bf16, C64, C128, F16, F32, F64, I8, I16, I32, I64, U8};
    if a == b {
        return Some(a);
    }
    let (a, b) = if a < b { (a, b) } else { (b, a) };
    Some(match (a, b) {
        (U8, I8) => I16,
        (U8 | I8, I16) => I16,
        (U8 | I8 | I16, I32) => I32,
        (U8 | I8 | I16 | I32, I64) => I64,
        (F16, Bf16) => F32,
        (F16 | Bf16, F32) => F32,
        (F16 | Bf16 | F32, F64) => F64,
        (F16 | Bf16 | F32, C64) => C64,
        (F64, C64) => C128,
        (F16 | Bf16 | F32 | F64 | C64, C128) => C128,
        _ => return None,
    })
}
