//! Anything array-like as a tensor.

use std::cmp::Reverse;

use bilin::{DType, Device, Devices, Kind, Tensor};
use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use crate::dtype::{of_descr, promote};
use crate::error::{OrRaise, invalid, new, wrong_type};
use crate::memory::{borrow, bytes_of};
use crate::numbers::Number;
use crate::tensor::PyTensor;

const WANT: &str = "a tensor, an array, a number or a nested list of numbers";

/// When memory is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Always a copy: later changes of the source don't show.
    Never,
    /// Shared or an error.
    Must,
}

/// A device by name; the CPU where missing.
pub fn device(obj: Option<&Bound<'_, PyAny>>, func: &str) -> PyResult<Device> {
    match obj {
        None => Ok(Device::cpu()),
        Some(obj) if obj.is_none() => Ok(Device::cpu()),
        Some(obj) => match obj.cast::<PyString>() {
            Ok(name) => Device::parse(&name.to_string_lossy()).map_err(|e| match e {
                bilin::Error::InvalidArgument { got, want, .. } => invalid(func, "device", got, want),
                other => crate::error::raise(other),
            }),
            Err(_) => Err(wrong_type(func, "device", obj, "the name of a device, such as 'cpu'")),
        },
    }
}

/// What an operand is before its dtype is settled.
pub enum Operand {
    /// It has a dtype of its own.
    Strong(Tensor),
    /// A number of Python.
    Number(Number),
    /// A list of numbers: its kind counts, its width doesn't.
    List(Tensor),
}

impl Operand {
    fn beside(&self, like: DType) -> Option<DType> {
        match self {
            Operand::Strong(t) => promote(t.dtype(), like),
            Operand::Number(n) => n.dtype_beside(like),
            Operand::List(t) => match (t.dtype().kind(), like.kind()) {
                (a, b) if a == b => Some(like),
                (Kind::Int, Kind::Float | Kind::Complex) | (Kind::Float, Kind::Complex) => Some(like),
                (Kind::Complex, Kind::Float) => promote(like, DType::C64),
                _ => None,
            },
        }
    }

    /// The dtype it has alone.
    fn dtype(&self) -> DType {
        match self {
            Operand::Strong(t) | Operand::List(t) => t.dtype(),
            Operand::Number(n) => n.dtype(),
        }
    }

    /// As a tensor of `dtype`.
    pub fn tensor(self, dtype: DType, device: &Device, func: &str, arg: &str) -> PyResult<Tensor> {
        match self {
            Operand::Strong(t) if t.dtype() == dtype => Ok(t),
            Operand::Strong(t) => t.astype(dtype).or_raise(),
            Operand::List(t) => t.astype(dtype).or_raise()?.to_device(device).or_raise(),
            Operand::Number(n) => n.tensor(dtype, device, func, arg),
        }
    }
}

/// Whether an object can be an operand at all.
pub fn is_array_like(obj: &Bound<'_, PyAny>) -> bool {
    obj.is_instance_of::<PyTensor>()
        || obj.is_instance_of::<PyList>()
        || obj.is_instance_of::<PyTuple>()
        || obj.is_instance_of::<PyUntypedArray>()
        || matches!(Number::of(obj, "", ""), Ok(Some(_)) | Err(_))
        || obj.hasattr("__array__").unwrap_or(false)
        || obj.hasattr("__dlpack__").unwrap_or(false)
}

/// An operand of a function.
pub fn operand(obj: &Bound<'_, PyAny>, func: &str, arg: &str) -> PyResult<Operand> {
    if let Ok(t) = obj.cast::<PyTensor>() {
        return Ok(Operand::Strong(t.get().0.clone()));
    }
    if let Some(n) = Number::of(obj, func, arg)? {
        return Ok(Operand::Number(n));
    }
    if obj.is_instance_of::<PyList>() || obj.is_instance_of::<PyTuple>() {
        return Ok(Operand::List(from_list(obj, func, arg)?));
    }
    Ok(Operand::Strong(from_array(&as_ndarray(obj, func, arg)?, Sharing::Never, &Device::cpu(), func, arg)?))
}

/// An operand with the dtype it has alone: float32 and int64 for lists and numbers of Python.
pub fn tensor(obj: &Bound<'_, PyAny>, func: &str, arg: &str) -> PyResult<Tensor> {
    if let Ok(t) = obj.cast::<PyTensor>() {
        return Ok(t.get().0.clone());
    }
    let found = operand(obj, func, arg)?;
    let dtype = found.dtype();
    found.tensor(dtype, &Device::cpu(), func, arg)
}

/// Operands that are tensors of one dtype as they come, the common case.
fn alike(objs: &[(&Bound<'_, PyAny>, &str)]) -> Option<Vec<Tensor>> {
    let first = objs.first()?.0.cast::<PyTensor>().ok()?.get().0.dtype();
    let one =
        |(obj, _): &(&Bound<'_, PyAny>, &str)| obj.cast::<PyTensor>().ok().map(|t| &t.get().0).filter(|t| t.dtype() == first).cloned();
    objs.iter().map(one).collect()
}

/// Operands of one dtype by the rules of promotion.
pub fn promoted(objs: &[(&Bound<'_, PyAny>, &str)], func: &str) -> PyResult<Vec<Tensor>> {
    if let Some(all) = alike(objs) {
        return Ok(all);
    }
    let mut found = Vec::with_capacity(objs.len());
    for (obj, arg) in objs {
        found.push(operand(obj, func, arg)?);
    }
    let mut common: Option<DType> = None;
    // What has a dtype of its own speaks first; of the others floats before whole numbers, whose order then doesn't matter.
    let mut order: Vec<&Operand> = found.iter().collect();
    order.sort_by_key(|o| (!matches!(o, Operand::Strong(_)), Reverse(o.dtype())));
    for o in order {
        let is_strong = matches!(o, Operand::Strong(_));
        common = Some(match common {
            None => o.dtype(),
            Some(so_far) => o.beside(so_far).or_else(|| if is_strong { None } else { promote(so_far, o.dtype()) }).ok_or_else(|| {
                let mut names: Vec<&str> = objs.iter().map(|(_, name)| *name).collect();
                names.dedup();
                let names = names.join(", ");
                let text = format!("{func}: {names}: dtypes ({so_far}, {}) don't fit; convert one with astype", o.dtype());
                new("DtypeMismatch", text)
            })?,
        });
    }
    let device =
        found.iter().find_map(|o| if let Operand::Strong(t) = o { Some(t.device().clone()) } else { None }).unwrap_or_else(Device::cpu);
    let dtype = common.unwrap_or(DType::F32);
    found.into_iter().zip(objs).map(|(o, (_, arg))| o.tensor(dtype, &device, func, arg)).collect()
}

/// Two operands of one dtype; the common case costs two type checks.
pub fn pair(lhs: &Bound<'_, PyAny>, rhs: &Bound<'_, PyAny>, func: &str, names: [&str; 2]) -> PyResult<(Tensor, Tensor)> {
    if let (Ok(a), Ok(b)) = (lhs.cast::<PyTensor>(), rhs.cast::<PyTensor>()) {
        let (a, b) = (&a.get().0, &b.get().0);
        if a.dtype() == b.dtype() {
            return Ok((a.clone(), b.clone()));
        }
    }
    let mut both = promoted(&[(lhs, names[0]), (rhs, names[1])], func)?;
    match (both.pop(), both.pop()) {
        (Some(b), Some(a)) => Ok((a, b)),
        _ => Err(invalid(func, "operands", "missing", "want two")),
    }
}

fn as_ndarray<'py>(obj: &Bound<'py, PyAny>, func: &str, arg: &str) -> PyResult<Bound<'py, PyUntypedArray>> {
    if let Ok(array) = obj.cast::<PyUntypedArray>() {
        return Ok(array.clone());
    }
    let np = obj.py().import("numpy")?;
    let refused = || wrong_type(func, arg, obj, WANT);
    let array = if obj.hasattr("__array__")? || obj.hasattr("__array_interface__")? {
        np.call_method1("asarray", (obj,))
    } else if obj.hasattr("__dlpack__")? {
        np.call_method1("from_dlpack", (obj,))
    } else {
        return Err(refused());
    };
    match array {
        Ok(array) => array.cast_into::<PyUntypedArray>().map_err(|_| refused()),
        Err(cause) => {
            let error = refused();
            error.set_cause(obj.py(), Some(cause));
            Err(error)
        }
    }
}

fn not_numbers(func: &str, arg: &str) -> PyErr {
    PyTypeError::new_err(format!("{func}: {arg} is a list that holds more than numbers; want {WANT}"))
}

fn from_list(obj: &Bound<'_, PyAny>, func: &str, arg: &str) -> PyResult<Tensor> {
    let array = match obj.py().import("numpy")?.call_method1("asarray", (obj,)) {
        Ok(array) => array.cast_into::<PyUntypedArray>()?,
        Err(cause) => {
            let error = invalid(func, arg, "a list that isn't an array", format!("want {WANT}"));
            error.set_cause(obj.py(), Some(cause));
            return Err(error);
        }
    };
    if array.dtype().kind() == b'O' || array.dtype().kind() == b'U' {
        return Err(not_numbers(func, arg));
    }
    let t = from_array(&array, Sharing::Never, &Device::cpu(), func, arg)?;
    match t.dtype() {
        // An empty list, and floats of Python: the default of floats.
        DType::F64 => t.astype(DType::F32).or_raise(),
        DType::C128 => t.astype(DType::C64).or_raise(),
        _ => Ok(t),
    }
}

/// A list with its numbers in `dtype`, without a detour through the default dtype.
pub fn list_of(obj: &Bound<'_, PyAny>, dtype: DType, device: &Device, func: &str, arg: &str) -> PyResult<Tensor> {
    let array = match obj.py().import("numpy")?.call_method1("asarray", (obj,)) {
        Ok(array) if of_descr(&array.cast::<PyUntypedArray>()?.dtype(), func, arg).is_ok() => array,
        _ => return Err(not_numbers(func, arg)),
    };
    from_array(array.cast::<PyUntypedArray>()?, Sharing::Never, device, func, arg)?.astype(dtype).or_raise()
}

/// A NumPy array as a tensor.
pub fn from_array(array: &Bound<'_, PyUntypedArray>, sharing: Sharing, device: &Device, func: &str, arg: &str) -> PyResult<Tensor> {
    from_elements(array, of_descr(&array.dtype(), func, arg)?, sharing, device, func, arg)
}

/// The same, with the elements' bits read as `dtype`, which is as wide.
pub fn from_elements(
    array: &Bound<'_, PyUntypedArray>,
    dtype: DType,
    sharing: Sharing,
    device: &Device,
    func: &str,
    arg: &str,
) -> PyResult<Tensor> {
    let descr = array.dtype();
    let is_native = descr.is_native_byteorder() != Some(false);
    let shared = if is_native { borrow(array, dtype, device)? } else { None };
    match (sharing, shared) {
        (Sharing::Must, Some(t)) => return Ok(t),
        (Sharing::Must, None) => {
            let got = "an array whose memory can't be shared";
            return Err(invalid(func, arg, got, "want native byte order and 16-byte alignment, or copy=None"));
        }
        // Bytes of bool that aren't 0 or 1 are made so below.
        (Sharing::Never, Some(t)) if !array.is_c_contiguous() && dtype != DType::Bool => return t.copy().or_raise(),
        _ => {}
    }
    let kwargs = PyDict::new(array.py());
    kwargs.set_item("order", "C")?;
    let dense = if is_native && array.is_c_contiguous() {
        array.clone()
    } else {
        let native = descr.call_method1("newbyteorder", ("=",))?;
        array.call_method("astype", (native,), Some(&kwargs))?.cast_into::<PyUntypedArray>()?
    };
    let mut bytes = bytes_of(&dense);
    if dtype == DType::Bool {
        bytes.iter_mut().for_each(|b| *b = u8::from(*b != 0));
    }
    Tensor::from_bytes(&bytes, array.shape(), dtype, device).or_raise()
}

/// `bilin.asarray`.
pub fn asarray(obj: &Bound<'_, PyAny>, dtype: Option<DType>, on: Option<&Device>, copy: Option<bool>, func: &str) -> PyResult<Tensor> {
    let sharing = if copy == Some(false) { Sharing::Must } else { Sharing::Never };
    let cpu = Device::cpu();
    let found = if let Ok(t) = obj.cast::<PyTensor>() {
        let t = t.get().0.clone();
        let moved = on.is_some_and(|d| d != t.device()) || dtype.is_some_and(|d| d != t.dtype());
        if moved && copy == Some(false) {
            return Err(invalid(func, "copy", "False", "another dtype or device needs a copy"));
        }
        if copy == Some(true) && !moved { t.copy().or_raise()? } else { t }
    } else if let Some(n) = Number::of(obj, func, "obj")? {
        if copy == Some(false) {
            return Err(invalid(func, "copy", "False", "a number has no memory to share"));
        }
        n.tensor(dtype.unwrap_or_else(|| n.dtype()), on.unwrap_or(&cpu), func, "obj")?
    } else if obj.is_instance_of::<PyList>() || obj.is_instance_of::<PyTuple>() {
        if copy == Some(false) {
            return Err(invalid(func, "copy", "False", "a list has no memory to share"));
        }
        match dtype {
            Some(d) => list_of(obj, d, on.unwrap_or(&cpu), func, "obj")?,
            None => from_list(obj, func, "obj")?,
        }
    } else if obj.is_instance_of::<PyBytes>() {
        return Err(wrong_type(func, "obj", obj, WANT));
    } else {
        let array = as_ndarray(obj, func, "obj")?;
        let own = of_descr(&array.dtype(), func, "obj")?;
        if copy == Some(false) && dtype.is_some_and(|d| d != own) {
            return Err(invalid(func, "copy", "False", "another dtype needs a copy"));
        }
        from_array(&array, sharing, on.unwrap_or(&cpu), func, "obj")?
    };
    let found = match dtype {
        Some(d) => found.astype(d).or_raise()?,
        None => found,
    };
    match on {
        Some(d) => found.to_device(d).or_raise(),
        None => Ok(found),
    }
}
