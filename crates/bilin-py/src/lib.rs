//! The extension module of the Python package `bilin`: arguments are converted here, everything else is the engine's.

mod amp;
mod autograd;
mod convert;
mod device;
mod dtype;
mod error;
mod function;
mod index;
mod memory;
mod numbers;
mod operators;
mod ops;
mod optim;
mod products;
mod profiler;
mod tensor;

use bilin::DType;
use pyo3::prelude::*;

use crate::convert::{asarray as as_tensor, device as parse_device};
use crate::dtype::{PyDType, parse, parse_optional};

/// Anything array-like as a tensor.
#[pyfunction]
#[pyo3(signature = (obj, /, *, dtype=None, device=None, copy=None))]
fn asarray(
    obj: &Bound<'_, PyAny>,
    dtype: Option<&Bound<'_, PyAny>>,
    device: Option<&Bound<'_, PyAny>>,
    copy: Option<&Bound<'_, PyAny>>,
) -> PyResult<tensor::PyTensor> {
    let copy = copy.filter(|c| !c.is_none()).map(|c| numbers::flag(c, "asarray", "copy")).transpose()?;
    let on = device.filter(|d| !d.is_none()).map(|d| parse_device(Some(d), "asarray")).transpose()?;
    as_tensor(obj, parse_optional(dtype, "asarray", "dtype")?, on.as_ref(), copy, "asarray").map(tensor::PyTensor)
}

/// The dtype of a name, for a function of Python that errors shall name.
#[pyfunction]
#[pyo3(name = "_dtype", signature = (obj, func="dtype", arg="obj", /))]
fn dtype_of(obj: &Bound<'_, PyAny>, func: &str, arg: &str) -> PyResult<PyDType> {
    parse(obj, func, arg).map(PyDType)
}

/// Anything array-like as a tensor, for a function of Python that errors shall name.
#[pyfunction]
#[pyo3(name = "_tensor")]
fn tensor_for(obj: &Bound<'_, PyAny>, func: &str, arg: &str) -> PyResult<tensor::PyTensor> {
    convert::tensor(obj, func, arg).map(tensor::PyTensor)
}

/// `from_dlpack` of bfloat16 elements that NumPy carried as uint16.
#[pyfunction]
#[pyo3(name = "_from_bits")]
fn from_bits(
    array: &Bound<'_, numpy::PyUntypedArray>,
    device: Option<&Bound<'_, PyAny>>,
    copy: Option<&Bound<'_, PyAny>>,
) -> PyResult<tensor::PyTensor> {
    let copy = copy.filter(|c| !c.is_none()).map(|c| numbers::flag(c, "from_dlpack", "copy")).transpose()?;
    let sharing = if copy == Some(false) { convert::Sharing::Must } else { convert::Sharing::Never };
    convert::from_elements(array, DType::Bf16, sharing, &parse_device(device, "from_dlpack")?, "from_dlpack", "x").map(tensor::PyTensor)
}

/// Calls a capsule's bfloat16 elements uint16, or the other way round; whether it held such.
#[pyfunction]
#[pyo3(name = "_relabel")]
fn relabel(capsule: &Bound<'_, PyAny>, to_bits: bool) -> bool {
    memory::relabel(capsule, to_bits)
}

#[pymodule(gil_used = false)]
fn _bilin(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    for d in DType::ALL {
        m.add(d.name(), PyDType(d))?;
    }
    m.add_class::<tensor::PyTensor>()?;
    m.add_class::<PyDType>()?;
    m.add_class::<ops::PyOp>()?;
    m.add_class::<ops::PyOpSchema>()?;
    m.add_class::<ops::PyRng>()?;
    m.add_class::<autograd::PyNode>()?;
    m.add_class::<autograd::PyHook>()?;
    m.add_class::<autograd::PyPicture>()?;
    m.add_class::<optim::PySgd>()?;
    m.add_class::<optim::PyAdamW>()?;
    m.add_class::<amp::PyGradScaler>()?;
    macro_rules! functions {
        ($($f:path),* $(,)?) => { $(m.add_function(wrap_pyfunction!($f, m)?)?;)* };
    }
    functions![
        asarray,
        dtype_of,
        tensor_for,
        from_bits,
        relabel,
        tensor::rebuild,
        tensor::stack,
        operators::where_,
        products::matmul,
        products::dot,
        products::inner,
        products::outer,
        products::vdot,
        products::vecdot,
        products::matvec,
        products::vecmat,
        products::tensordot,
        products::einsum,
        products::einsum_path,
        products::result_type,
        ops::all_ops,
        ops::lookup,
        ops::registry_all,
        ops::hash,
        ops::full,
        ops::eye,
        ops::sequence,
        autograd::grad,
        autograd::jvp,
        autograd::variable,
        autograd::depends_on_others,
        autograd::without_history,
        autograd::set_grad_enabled,
        autograd::is_grad_enabled,
        autograd::backward,
        autograd::set_detect_anomaly,
        autograd::is_detecting_anomaly,
        autograd::gradcheck,
        function::apply_function,
        function::checkpoint,
        amp::set_autocast,
        amp::is_autocast_enabled,
        amp::autocast_dtype,
        optim::clip_grad_norm,
        profiler::profile_begin,
        profiler::profile_end,
        profiler::scope_begin,
        profiler::scope_end,
        device::devices,
        device::memory_stats,
        device::reset_peak_memory_stats,
        device::set_memory_limit,
        device::set_num_threads,
        device::get_num_threads,
        device::use_deterministic_algorithms,
        device::are_deterministic_algorithms_enabled,
        device::load,
        device::save,
    ];
    Ok(())
}
