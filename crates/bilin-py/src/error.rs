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

/// The Python exception of an error of the engine: `bilin.ShapeMismatch`, …. An op of the registry speaks of its operands by
/// the names of its signature.
pub fn raise(error: Error) -> PyErr {
    let entry = of_call(&error).and_then(|op| bilin::ops::entries().find(|e| e.schema.name == op));
    match entry {
        Some(entry) => raise_as(error, entry.schema.name, crate::ops::operand_names(entry), entry.params),
        None => raise_as(error, "", &[], &[]),
    }
}

/// The op of an error about what a call was given.
pub fn of_call(error: &Error) -> Option<&str> {
    match error {
        Error::ShapeMismatch { op, .. }
        | Error::DtypeMismatch { op, .. }
        | Error::DeviceMismatch { op, .. }
        | Error::NonDeterministic { op, .. }
        | Error::TooLarge { op, .. }
        | Error::Unsupported { op, .. }
        | Error::InvalidArgument { op, .. } => Some(op),
        _ => None,
    }
}

/// The same in the terms of the function that was called: its name, and its arguments by theirs. What the text doesn't tell
/// apart, such as two shapes, is said of all of `operands`; `others` are arguments that the text may name as well.
pub fn raise_as(error: Error, func: &str, operands: &[&str], others: &[&str]) -> PyErr {
    if matches!(&error, Error::InvalidArgument { op, .. } if op == CALLABLE)
        && let Some(raised) = RAISED.take()
    {
        return raised;
    }
    let kind = error.kind();
    let text = match of_call(&error) {
        Some(op) if !func.is_empty() => named(&error.to_string(), op, func, operands, others),
        _ => error.to_string(),
    };
    with_numbers(new(kind, text), error)
}

/// The numbers of an out-of-memory error as attributes of its exception.
fn with_numbers(raised: PyErr, error: Error) -> PyErr {
    let Error::OutOfMemory { device, requested_bytes, current_bytes, peak_bytes, limit_bytes } = error else { return raised };
    Python::attach(|py| {
        let value = raised.value(py);
        let numbers = [("requested_bytes", requested_bytes), ("current_bytes", current_bytes), ("peak_bytes", peak_bytes)];
        let set = numbers.into_iter().try_for_each(|(name, n)| value.setattr(name, n));
        set.and_then(|()| value.setattr("limit_bytes", limit_bytes)).and_then(|()| value.setattr("device", device))
    })
    .map_or_else(|other| other, |()| raised)
}

fn named(text: &str, op: &str, func: &str, operands: &[&str], others: &[&str]) -> String {
    let fact = text.strip_prefix(op).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(text);
    let mut fact = fact.to_owned();
    for (i, name) in operands.iter().enumerate().rev() {
        fact = fact.replace(&format!("operand {i}"), name);
    }
    let several = others.iter().find(|name| ["axes", "dim", "dims"].contains(name));
    if let (Some(several), Some(rest)) = (several, fact.strip_prefix("axis is ")) {
        fact = format!("{several} holds {rest}");
    }
    if others.contains(&"axis")
        && let Some(rest) = fact.strip_prefix("axes is ")
    {
        fact = format!("axis is {rest}");
    }
    let mut words = fact.split(|c: char| !c.is_alphanumeric() && c != '_');
    if words.any(|w| operands.contains(&w) || others.contains(&w)) {
        return format!("{func}: {fact}");
    }
    format!("{func}: {}: {fact}", operands.join(", "))
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
    /// The value, or the exception in the terms of a function with these arguments.
    fn or_raise_as(self, func: &str, operands: &[&str], others: &[&str]) -> PyResult<T>;
}

impl<T> OrRaise<T> for bilin::Result<T> {
    fn or_raise(self) -> PyResult<T> {
        self.map_err(raise)
    }
    fn or_raise_as(self, func: &str, operands: &[&str], others: &[&str]) -> PyResult<T> {
        self.map_err(|error| raise_as(error, func, operands, others))
    }
}
