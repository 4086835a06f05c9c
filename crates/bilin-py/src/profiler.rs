//! Profiles of what a thread runs.

use std::cell::RefCell;

use bilin::Device;
use bilin::profiler::{Direction, Profile, Recording, Scope};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::dtype::PyDType;
use crate::error::invalid;

/// What a `with` of Python holds open.
enum Open {
    Profile(Recording),
    Scope(Scope),
}

thread_local! {
    /// Guards of this thread's scopes, innermost last: they can't leave the thread.
    static OPEN: RefCell<Vec<Open>> = const { RefCell::new(Vec::new()) };
}

/// What was collected.
#[pyclass(name = "_Profile", module = "bilin", frozen)]
pub struct PyProfile(Profile);

#[pymethods]
impl PyProfile {
    /// One tuple an event, in the order of `bilin.profiler.Event`.
    fn events<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let all = PyList::empty(py);
        for e in self.0.events() {
            let shapes = e.shapes.iter().map(|s| PyTuple::new(py, s.iter())).collect::<PyResult<Vec<_>>>()?;
            let direction = match e.direction {
                Direction::Forward => "forward",
                Direction::Backward => "backward",
                Direction::Scope => "scope",
            };
            let device = e.device.as_ref().map_or("", Device::name);
            let [dtype, operand_dtype] = [e.dtype, e.operand_dtype].map(|d| d.map(PyDType));
            let who = (&*e.name, e.node, direction, e.sequence, e.thread, e.depth, device, dtype, operand_dtype).into_pyobject(py)?;
            let what = (PyTuple::new(py, shapes)?, e.flops, e.bytes, e.start_ns, e.duration_ns, e.memory_change_bytes, e.memory_bytes);
            all.append(who.add(what.into_pyobject(py)?)?)?;
        }
        Ok(all)
    }
    /// One tuple a name, in the order of `bilin.profiler.KeyAverage`.
    fn key_averages(&self) -> Vec<(String, &'static str, u64, u64, u64, u64, String)> {
        let device = |d: Option<Device>| d.map_or_else(String::new, |d| d.name().to_owned());
        let all = self.0.key_averages().into_iter();
        all.map(|k| (k.name.into_owned(), k.node, k.calls, k.total_ns, k.flops, k.bytes, device(k.device))).collect()
    }
    /// By total time.
    fn table(&self, py: Python<'_>) -> String {
        // It may measure the peak of the device.
        py.detach(|| self.0.table())
    }
    /// Chrome trace JSON.
    fn export_chrome_trace(&self) -> String {
        self.0.export_chrome_trace()
    }
}

/// Opens a profile of this thread.
#[pyfunction]
#[pyo3(name = "_profile_begin")]
pub fn profile_begin() {
    OPEN.with_borrow_mut(|open| open.push(Open::Profile(Recording::start())));
}

/// Closes the innermost scope of this thread, which must be a profile.
#[pyfunction]
#[pyo3(name = "_profile_end")]
pub fn profile_end() -> PyResult<PyProfile> {
    match OPEN.with_borrow_mut(|open| open.pop_if(|last| matches!(last, Open::Profile(_)))) {
        Some(Open::Profile(recording)) => Ok(PyProfile(recording.finish())),
        _ => Err(crossed("profile")),
    }
}

/// Opens a named scope on this thread.
#[pyfunction]
#[pyo3(name = "_scope_begin")]
pub fn scope_begin(name: &str) {
    OPEN.with_borrow_mut(|open| open.push(Open::Scope(Scope::enter(name))));
}

/// Closes the innermost scope of this thread, which must be a named one.
#[pyfunction]
#[pyo3(name = "_scope_end")]
pub fn scope_end() -> PyResult<()> {
    match OPEN.with_borrow_mut(|open| open.pop_if(|last| matches!(last, Open::Scope(_)))) {
        Some(Open::Scope(scope)) => {
            drop(scope);
            Ok(())
        }
        _ => Err(crossed("record_function")),
    }
}

fn crossed(func: &str) -> PyErr {
    invalid(func, "exit", "out of order", "scopes close in the reverse order of their opening, on their own thread")
}
