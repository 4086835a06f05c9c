//! Devices, threads, determinism, files, optimisers.

use bilin::{Device, Devices, Tensor};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::convert::device as parse_device;
use crate::error::{OrRaise, wrong_type};
use crate::numbers::{flag, float, len};
use crate::tensor::PyTensor;

/// Every device of this build: name, backend, dtypes, kernels, and why it is absent.
#[pyfunction]
pub fn devices(py: Python<'_>) -> PyResult<Bound<'_, PyList>> {
    let all = PyList::empty(py);
    for info in Device::available() {
        let d = PyDict::new(py);
        d.set_item("name", info.name)?;
        d.set_item("backend", info.backend)?;
        d.set_item("dtypes", info.dtypes.iter().map(|d| d.name()).collect::<Vec<_>>())?;
        d.set_item("kernels", info.kernels)?;
        d.set_item("absent", info.absent)?;
        all.append(d)?;
    }
    Ok(all)
}

/// Bytes and counts of what lives on a device.
#[pyfunction]
#[pyo3(signature = (device=None))]
pub fn memory_stats<'py>(py: Python<'py>, device: Option<&Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyDict>> {
    let stats = parse_device(device, "memory_stats")?.memory_stats();
    let d = PyDict::new(py);
    d.set_item("current_bytes", stats.current_bytes)?;
    d.set_item("peak_bytes", stats.peak_bytes)?;
    d.set_item("alloc_count", stats.alloc_count)?;
    d.set_item("free_count", stats.free_count)?;
    Ok(d)
}

/// Lets a device's peak start again.
#[pyfunction]
#[pyo3(signature = (device=None))]
pub fn reset_peak_memory_stats(device: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    parse_device(device, "reset_peak_memory_stats")?.reset_peak_memory_stats();
    Ok(())
}

/// Refuses allocations past so many bytes; None lifts it.
#[pyfunction]
#[pyo3(signature = (limit_bytes, device=None))]
pub fn set_memory_limit(limit_bytes: &Bound<'_, PyAny>, device: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    let limit = if limit_bytes.is_none() { None } else { Some(len(limit_bytes, "set_memory_limit", "limit_bytes")? as u64) };
    parse_device(device, "set_memory_limit")?.set_memory_limit(limit);
    Ok(())
}

/// Threads of the engine; results don't depend on them.
#[pyfunction]
#[pyo3(signature = (n, /))]
pub fn set_num_threads(n: &Bound<'_, PyAny>) -> PyResult<()> {
    bilin::set_num_threads(len(n, "set_num_threads", "n")?).or_raise()
}

/// Threads of the engine.
#[pyfunction]
pub fn get_num_threads() -> usize {
    bilin::num_threads()
}

/// Refuses ops of this thread that can't promise equal bits.
#[pyfunction]
#[pyo3(signature = (on, /))]
pub fn use_deterministic_algorithms(on: &Bound<'_, PyAny>) -> PyResult<()> {
    bilin::use_deterministic_algorithms(flag(on, "use_deterministic_algorithms", "on")?);
    Ok(())
}

/// Whether this thread refuses them.
#[pyfunction]
pub fn are_deterministic_algorithms_enabled() -> bool {
    bilin::are_deterministic_algorithms_enabled()
}

/// Tensors of a file by its extension: one, or a dict of them.
#[pyfunction]
#[pyo3(signature = (path, /, *, device=None))]
pub fn load<'py>(py: Python<'py>, path: &Bound<'py, PyAny>, device: Option<&Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
    let path: std::path::PathBuf = path.extract().map_err(|_| wrong_type("load", "path", path, "a path"))?;
    let device = parse_device(device, "load")?;
    let all = py.detach(|| bilin::io::load(&path, &device)).or_raise()?;
    let picked = path.to_string_lossy().rsplit('/').next().is_some_and(|n| n.contains(':'));
    let out = PyDict::new(py);
    for (name, t) in all {
        let t = Bound::new(py, PyTensor(t))?.into_any();
        match name {
            Some(name) if !picked => out.set_item(name, t)?,
            _ => return Ok(t),
        }
    }
    Ok(out.into_any())
}

/// Writes a tensor, or a dict of them, by the path's extension, whole or not at all.
#[pyfunction]
#[pyo3(signature = (path, tensors, /))]
pub fn save(py: Python<'_>, path: &Bound<'_, PyAny>, tensors: &Bound<'_, PyAny>) -> PyResult<()> {
    let path: std::path::PathBuf = path.extract().map_err(|_| wrong_type("save", "path", path, "a path"))?;
    let mut all: Vec<(String, Tensor)> = Vec::new();
    match tensors.cast::<PyDict>() {
        Ok(dict) => {
            for (name, t) in dict.iter() {
                let name = name.extract().map_err(|_| wrong_type("save", "tensors", &name, "names as keys"))?;
                all.push((name, crate::convert::tensor(&t, "save", "tensors")?));
            }
        }
        Err(_) => all.push(("tensor".to_owned(), crate::convert::tensor(tensors, "save", "tensors")?)),
    }
    py.detach(|| bilin::io::save(&path, &all.iter().map(|(n, t)| (n.as_str(), t)).collect::<Vec<_>>())).or_raise()
}

fn parameters(params: &Bound<'_, PyAny>, func: &str) -> PyResult<Vec<Tensor>> {
    let wrong = || wrong_type(func, "params", params, "a list of tensors");
    params.try_iter().map_err(|_| wrong())?.map(|p| p?.cast::<PyTensor>().map(|t| t.get().0.clone()).map_err(|_| wrong())).collect()
}

fn named(py: Python<'_>, state: Vec<(String, Tensor)>) -> PyResult<Bound<'_, PyDict>> {
    let d = PyDict::new(py);
    for (name, t) in state {
        d.set_item(name, Bound::new(py, PyTensor(t))?)?;
    }
    Ok(d)
}

fn unnamed(state: &Bound<'_, PyAny>) -> PyResult<Vec<(String, Tensor)>> {
    let wrong = || wrong_type("load_state_dict", "state", state, "a dict of tensors by name");
    let dict = state.cast::<PyDict>().map_err(|_| wrong())?;
    dict.iter().map(|(n, t)| Ok((n.extract().map_err(|_| wrong())?, t.cast::<PyTensor>().map_err(|_| wrong())?.get().0.clone()))).collect()
}

macro_rules! optimiser {
    ($class:ident, $name:literal, $inner:ty, $new:expr, ($($arg:ident = $default:literal),*), $state:expr) => {
        #[doc = concat!("The optimiser ", $name, ".")]
        #[pyclass(name = $name, module = "bilin.optim")]
        pub struct $class($inner);

        #[pymethods]
        impl $class {
            #[new]
            #[pyo3(signature = (params, lr, *, $($arg = None),*))]
            fn new(params: &Bound<'_, PyAny>, lr: &Bound<'_, PyAny>, $($arg: Option<&Bound<'_, PyAny>>),*) -> PyResult<$class> {
                $(let $arg = $arg.map(|v| float(v, $name, stringify!($arg))).transpose()?.unwrap_or($default);)*
                let make: fn(Vec<Tensor>, f64, $(replace!($arg f64)),*) -> bilin::Result<$inner> = $new;
                make(parameters(params, $name)?, float(lr, $name, "lr")?, $($arg),*).or_raise().map($class)
            }
            /// One step; parameters without a gradient stay.
            fn step(&mut self, py: Python<'_>) -> PyResult<()> {
                let inner = &mut self.0;
                py.detach(|| inner.step()).or_raise()
            }
            /// Forgets the gradients.
            fn zero_grad(&self) {
                self.0.zero_grad();
            }
            /// Step size.
            #[getter]
            fn lr(&self) -> f64 {
                self.0.lr
            }
            #[setter]
            fn set_lr(&mut self, lr: &Bound<'_, PyAny>) -> PyResult<()> {
                self.0.lr = float(lr, $name, "lr")?;
                Ok(())
            }
            /// Named tensors that continue the run.
            fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
                let state: fn(&$inner) -> bilin::Result<Vec<(String, Tensor)>> = $state;
                named(py, state(&self.0).or_raise()?)
            }
            /// Takes up a state.
            #[pyo3(signature = (state, /))]
            fn load_state_dict(&mut self, state: &Bound<'_, PyAny>) -> PyResult<()> {
                self.0.load_state_dict(&unnamed(state)?).or_raise()
            }
        }
    };
}
macro_rules! replace {
    ($name:ident $with:ty) => {
        $with
    };
}

optimiser!(
    PySgd,
    "SGD",
    bilin::optim::Sgd,
    |p, lr, momentum, weight_decay| bilin::optim::Sgd::new(&p, lr).map(|mut o| {
        (o.momentum, o.weight_decay) = (momentum, weight_decay);
        o
    }),
    (momentum = 0.0, weight_decay = 0.0),
    |o| Ok(o.state_dict())
);
optimiser!(
    PyAdamW,
    "AdamW",
    bilin::optim::AdamW,
    |p, lr, beta1, beta2, eps, weight_decay| bilin::optim::AdamW::new(&p, lr).map(|mut o| {
        (o.betas, o.eps, o.weight_decay) = ([beta1, beta2], eps, weight_decay);
        o
    }),
    (beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01),
    |o| o.state_dict()
);
