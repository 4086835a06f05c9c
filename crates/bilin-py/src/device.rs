//! Devices, threads, determinism, files.

use bilin::{Device, Devices, Tensor};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::convert::device as parse_device;
use crate::error::{OrRaise, wrong_type};
use crate::numbers::{flag, len};
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
    bilin::set_num_threads(len(n, "set_num_threads", "n")?).or_raise_as("set_num_threads", &["n"], &[])
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
