//! The engine's errors as Python's, and errors of arguments that name the function and the argument.

use std::cell::RefCell;

use bilin::Error;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyModule;

/// Name of the error by which a failed Python callable leaves the engine.
const CALLABLE: &str = "python callable";

thread_local! {
    /// What a Python callable raised while the engine ran it on this thread.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Keeps what a Python callable raised and gives the engine an error in its place; [`raise`] puts it back.
pub fn defer(raised: PyErr) -> Error {
    RAISED.replace(Some(raised));
    Error::invalid(CALLABLE, "result", "an exception", "see the exception")
}

/// The Python exception of an error of the engine: `bilin.ShapeMismatch`, ….
pub fn raise(error: Error) -> PyErr {
    if matches!(&error, Error::InvalidArgument { op, .. } if op == CALLABLE)
        && let Some(raised) = RAISED.take()
    {
        return raised;
    }
    let raised = new(error.kind(), error.to_string());
    if let Error::OutOfMemory { device, requested_bytes, current_bytes, peak_bytes, limit_bytes } = error {
        Python::attach(|py| {
            let value = raised.value(py);
            let numbers = [("requested_bytes", requested_bytes), ("current_bytes", current_bytes), ("peak_bytes", peak_bytes)];
            let set = numbers.into_iter().try_for_each(|(name, n)| value.setattr(name, n));
            set.and_then(|()| value.setattr("limit_bytes", limit_bytes)).and_then(|()| value.setattr("device", device))
        })
        .map_or_else(|other| other, |()| raised)
    } else {
        raised
    }
}

/// An exception of `bilin.errors` by name.
pub fn new(kind: &str, text: String) -> PyErr {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    Python::attach(|py| {
        let class = MODULE
            .get_or_try_init(py, || py.import("bilin.errors").map(Bound::unbind))
            .and_then(|module| module.bind(py).getattr(kind).or_else(|_| module.bind(py).getattr("BilinError")))
            .and_then(|class| class.cast_into::<pyo3::types::PyType>().map_err(PyErr::from));
        match class {
            Ok(class) => PyErr::from_type(class, text),
            Err(error) => error,
        }
    })
}

/// `bilin.InvalidArgument` with the engine's form of text.
pub fn invalid(func: &str, arg: &str, got: impl std::fmt::Display, want: impl std::fmt::Display) -> PyErr {
    new("InvalidArgument", format!("{func}: {arg} is {got}; {want}"))
}

/// `TypeError` for an object of the wrong type.
pub fn wrong_type(func: &str, arg: &str, got: &Bound<'_, PyAny>, want: &str) -> PyErr {
    let name = got.get_type().fully_qualified_name().map_or_else(|_| "object".to_owned(), |n| n.to_string());
    PyTypeError::new_err(format!("{func}: {arg} is of type {name}; want {want}"))
}

/// Carries the engine's `Result` to Python.
pub trait OrRaise<T> {
    /// The value, or the exception.
    fn or_raise(self) -> PyResult<T>;
}

impl<T> OrRaise<T> for bilin::Result<T> {
    fn or_raise(self) -> PyResult<T> {
        self.map_err(raise)
    }
}
