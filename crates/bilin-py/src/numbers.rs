//! Numbers of Python: weakly typed, they take the dtype of the tensor beside them.

use bilin::{DType, Device, Element, Kind, Tensor, bf16, c64, c128, f16};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyComplex, PyComplexMethods, PyFloat, PyInt};

use crate::error::{OrRaise, invalid, new};

/// A number of Python.
#[derive(Debug, Clone, Copy)]
pub enum Number {
    /// `True`, `False`.
    Bool(bool),
    /// Any whole number that 64 bits hold.
    Int(i64),
    /// A float.
    Float(f64),
    /// A complex number.
    Complex(f64, f64),
}

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Number::Bool(b) => f.write_str(if *b { "True" } else { "False" }),
            Number::Int(i) => i.fmt(f),
            Number::Float(x) => x.fmt(f),
            Number::Complex(x, y) => write!(f, "({x}{y:+}j)"),
        }
    }
}

impl Number {
    /// `None` for other objects; NumPy's scalars aren't Python's numbers, though float64 and complex128 inherit from them.
    pub fn of(obj: &Bound<'_, PyAny>, func: &str, arg: &str) -> PyResult<Option<Number>> {
        if let Ok(f) = obj.cast_exact::<PyFloat>() {
            return Ok(Some(Number::Float(f.value())));
        }
        if obj.is_exact_instance_of::<PyInt>() {
            let int = obj.extract().map_err(|_| invalid(func, arg, "an integer of more than 64 bits", "give a float, or a smaller one"))?;
            return Ok(Some(Number::Int(int)));
        }
        if let Ok(b) = obj.cast::<PyBool>() {
            return Ok(Some(Number::Bool(b.is_true())));
        }
        if let Ok(c) = obj.cast_exact::<PyComplex>() {
            return Ok(Some(Number::Complex(c.real(), c.imag())));
        }
        Ok(None)
    }

    /// The dtype it has alone.
    pub fn dtype(self) -> DType {
        match self {
            Number::Bool(_) => DType::Bool,
            Number::Int(_) => DType::I64,
            Number::Float(_) => DType::F32,
            Number::Complex(..) => DType::C64,
        }
    }

    /// The dtype it takes beside `like`: that one where its kind holds the number, the complex one for a complex beside a real.
    pub fn dtype_beside(self, like: DType) -> Option<DType> {
        let fits = match self {
            Number::Bool(_) => like == DType::Bool,
            Number::Int(_) => like != DType::Bool,
            Number::Float(_) => like.is_differentiable(),
            Number::Complex(..) => like.is_complex(),
        };
        match (fits, self, like) {
            (true, ..) => Some(like),
            (false, Number::Complex(..), DType::F64) => Some(DType::C128),
            (false, Number::Complex(..), _) if like.kind() == Kind::Float => Some(DType::C64),
            _ => None,
        }
    }

    /// A 0-d tensor of `dtype`.
    pub fn tensor(self, dtype: DType, device: &Device, func: &str, arg: &str) -> PyResult<Tensor> {
        let real = match self {
            Number::Bool(b) => f64::from(u8::from(b)),
            Number::Int(i) => i as f64,
            Number::Float(x) | Number::Complex(x, _) => x,
        };
        let imaginary = if let Number::Complex(_, y) = self { y } else { 0.0 };
        let whole = match self {
            Number::Bool(b) => Some(i64::from(b)),
            Number::Int(i) => Some(i),
            _ => None,
        };
        fn make<T: Element>(value: T, device: &Device) -> PyResult<Tensor> {
            Tensor::scalar(value, device).or_raise()
        }
        let refused = || new("DtypeMismatch", format!("{func}: {arg} is {self}, which {dtype} doesn't hold; convert with astype"));
        macro_rules! int {
            ($t:ty) => {{
                let i = whole.ok_or_else(refused)?;
                let fits = <$t>::try_from(i).map_err(|_| invalid(func, arg, i, format!("{dtype} doesn't hold it; convert with astype")))?;
                make(fits, device)
            }};
        }
        match dtype {
            DType::Bool => make(whole.ok_or_else(refused)? != 0, device),
            DType::U8 => int!(u8),
            DType::I8 => int!(i8),
            DType::I16 => int!(i16),
            DType::I32 => int!(i32),
            DType::I64 => make(whole.ok_or_else(refused)?, device),
            DType::F16 => make(f16::from_f64(real), device),
            DType::Bf16 => make(bf16::from_f64(real), device),
            DType::F32 => make(real as f32, device),
            DType::F64 => make(real, device),
            DType::C64 => make(c64::new(real as f32, imaginary as f32), device),
            DType::C128 => make(c128::new(real, imaginary), device),
        }
    }
}

/// A whole number that an argument asks for: an int, or anything with `__index__`; a bool is refused, it is a slip.
pub fn int(obj: &Bound<'_, PyAny>, func: &str, arg: &str) -> PyResult<isize> {
    if !obj.is_instance_of::<PyBool>()
        && let Ok(i) = obj.extract::<isize>()
    {
        return Ok(i);
    }
    if obj.is_instance_of::<PyInt>() && !obj.is_instance_of::<PyBool>() {
        return Err(invalid(func, arg, "past 64 bits", "want a whole number of at most 64 bits"));
    }
    Err(crate::error::wrong_type(func, arg, obj, "a whole number"))
}

/// A length or count: a whole number from 0.
pub fn len(obj: &Bound<'_, PyAny>, func: &str, arg: &str) -> PyResult<usize> {
    let i = int(obj, func, arg)?;
    usize::try_from(i).map_err(|_| invalid(func, arg, i, "want a whole number from 0"))
}

/// One whole number, or a tuple or list of them.
pub fn ints(obj: &Bound<'_, PyAny>, func: &str, arg: &str) -> PyResult<Vec<isize>> {
    if obj.is_instance_of::<pyo3::types::PyTuple>() || obj.is_instance_of::<pyo3::types::PyList>() {
        return obj.try_iter()?.map(|i| int(&i?, func, arg)).collect();
    }
    if obj.is_instance_of::<pyo3::types::PyString>()
        || obj.is_instance_of::<pyo3::types::PyBytes>()
        || obj.is_instance_of::<pyo3::types::PyDict>()
    {
        return Err(crate::error::wrong_type(func, arg, obj, "a whole number or a tuple of them"));
    }
    if let Ok(i) = int(obj, func, arg) {
        return Ok(vec![i]);
    }
    match obj.try_iter() {
        Ok(all) => all.map(|i| int(&i?, func, arg)).collect(),
        Err(_) => Err(crate::error::wrong_type(func, arg, obj, "a whole number or a tuple of them")),
    }
}

/// Lengths of axes; one number is a shape of one axis.
pub fn shape(obj: &Bound<'_, PyAny>, func: &str, arg: &str) -> PyResult<Vec<usize>> {
    let all = ints(obj, func, arg)?;
    all.into_iter().map(|i| usize::try_from(i).map_err(|_| invalid(func, arg, i, "lengths are whole numbers from 0"))).collect()
}

/// A truth value: `True` or `False`, NumPy's included, nothing else.
pub fn flag(obj: &Bound<'_, PyAny>, func: &str, arg: &str) -> PyResult<bool> {
    obj.extract::<bool>().map_err(|_| crate::error::wrong_type(func, arg, obj, "True or False"))
}

/// A real number.
pub fn float(obj: &Bound<'_, PyAny>, func: &str, arg: &str) -> PyResult<f64> {
    if obj.is_instance_of::<PyBool>() {
        return Err(crate::error::wrong_type(func, arg, obj, "a number"));
    }
    obj.extract::<f64>().map_err(|_| crate::error::wrong_type(func, arg, obj, "a number"))
}
