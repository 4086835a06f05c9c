//! Functions whose gradient is written in Python, and checkpoints of functions of Python.

use std::sync::PoisonError;

use bilin::autograd::{self, BackwardContext, ForwardContext, Function};
use bilin::{Rng, Tensor};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::error::{OrRaise, defer};
use crate::ops::PyRng;
use crate::tensor::PyTensor;

fn list<'py>(py: Python<'py>, all: &[Tensor]) -> PyResult<Bound<'py, PyList>> {
    PyList::new(py, all.iter().map(|t| Py::new(py, PyTensor(t.clone()))).collect::<PyResult<Vec<_>>>()?)
}

fn owned(all: &[Bound<'_, PyTensor>]) -> Vec<Tensor> {
    all.iter().map(|t| t.get().0.clone()).collect()
}

fn optional(all: Vec<Option<Bound<'_, PyTensor>>>) -> Vec<Option<Tensor>> {
    all.into_iter().map(|t| t.map(|t| t.get().0.clone())).collect()
}

/// Runs Python and hands what it raises through the engine.
fn python<T>(call: impl FnOnce(Python<'_>) -> PyResult<T>) -> bilin::Result<T> {
    Python::attach(|py| call(py).map_err(defer))
}

/// The closures of one call of a `bilin.autograd.Function`.
struct Closures {
    name: String,
    forward: Py<PyAny>,
    backward: Py<PyAny>,
    jvp: Option<Py<PyAny>>,
    /// Number of inputs.
    operands: usize,
}

impl Function for Closures {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, ctx: &mut ForwardContext, inputs: &[Tensor]) -> bilin::Result<Vec<Tensor>> {
        type Lists<'py> = (Vec<Bound<'py, PyTensor>>, Vec<Bound<'py, PyTensor>>, Vec<Bound<'py, PyTensor>>, Vec<Bound<'py, PyTensor>>);
        python(|py| {
            let needs = PyTuple::new(py, (0..inputs.len()).map(|i| ctx.needs_input_grad(i)))?;
            let (outputs, saved, constants, fixed): Lists<'_> = self.forward.bind(py).call1((list(py, inputs)?, needs))?.extract()?;
            let refs = |all: &[Tensor], f: &mut dyn FnMut(&[&Tensor])| f(&all.iter().collect::<Vec<_>>());
            refs(&owned(&saved), &mut |t| ctx.save_for_backward(t));
            refs(&owned(&constants), &mut |t| ctx.save_constants(t));
            refs(&owned(&fixed), &mut |t| ctx.mark_non_differentiable(t));
            Ok(owned(&outputs))
        })
    }

    fn backward(&self, ctx: &BackwardContext, g: &[Tensor]) -> bilin::Result<Vec<Option<Tensor>>> {
        python(|py| {
            let needs = PyTuple::new(py, (0..self.operands).map(|i| ctx.needs_input_grad(i)))?;
            let arrived = PyTuple::new(py, (0..g.len()).map(|i| ctx.has_output_grad(i)))?;
            let args = (list(py, ctx.saved())?, list(py, ctx.constants())?, needs, arrived, list(py, g)?);
            Ok(optional(self.backward.bind(py).call1(args)?.extract()?))
        })
    }

    fn jvp(&self, inputs: &[Tensor], outputs: &[Tensor], tangents: &[Tensor]) -> bilin::Result<Vec<Option<Tensor>>> {
        let Some(jvp) = &self.jvp else {
            return Err(bilin::Error::NotDifferentiable {
                op: self.name.clone().into(),
                what: "has no rule for forward mode".into(),
                remedy: "write a static method jvp(ctx, *tangents), or use reverse mode",
            });
        };
        python(|py| Ok(optional(jvp.bind(py).call1((list(py, inputs)?, list(py, outputs)?, list(py, tangents)?))?.extract()?)))
    }
}

/// Calls a function by its closures: `forward(tensors, needs)` gives results, what is saved, constants, and results without
/// gradient; `backward(saved, constants, needs, arrived, gradients)` gives gradients; `jvp(inputs, outputs, tangents)` tangents.
#[pyfunction]
#[pyo3(name = "_apply_function")]
pub fn apply_function(
    name: String,
    forward: Py<PyAny>,
    backward: Py<PyAny>,
    jvp: Option<Py<PyAny>>,
    inputs: Vec<Bound<'_, PyTensor>>,
) -> PyResult<Vec<PyTensor>> {
    let inputs = owned(&inputs);
    let function = Closures { name, forward, backward, jvp, operands: inputs.len() };
    let results = autograd::apply_function(Box::new(function), &inputs.iter().collect::<Vec<_>>()).or_raise()?;
    Ok(results.into_iter().map(PyTensor).collect())
}

/// `f`, a function of a list of tensors that gives a list of tensors, run again in backward. `rng` draws the same numbers again.
#[pyfunction]
#[pyo3(name = "_checkpoint")]
pub fn checkpoint(f: Py<PyAny>, inputs: Vec<Bound<'_, PyTensor>>, rng: Option<Bound<'_, PyRng>>) -> PyResult<Vec<PyTensor>> {
    let inputs = owned(&inputs);
    let operands: Vec<&Tensor> = inputs.iter().collect();
    let run = move |x: &[Tensor]| {
        python(|py| {
            let results: Vec<Bound<'_, PyTensor>> = f.bind(py).call1((list(py, x)?,))?.extract()?;
            Ok(owned(&results))
        })
    };
    let results = match rng {
        None => autograd::checkpoint(run, &operands),
        Some(rng) => {
            let shared = rng.clone().unbind();
            let mut stream = state(rng.get(), None);
            // The function draws from Python's object, which is lent the stream for the time of a run.
            let drawn = move |x: &[Tensor], stream: &mut Rng| {
                let before = state(shared.get(), Some(stream.clone()));
                let results = run(x);
                *stream = state(shared.get(), Some(before));
                results
            };
            let results = autograd::checkpoint_with_rng(drawn, &operands, &mut stream);
            state(rng.get(), Some(stream));
            results
        }
    };
    Ok(results.or_raise()?.into_iter().map(PyTensor).collect())
}

/// What the stream was; puts `next` in its place.
fn state(rng: &PyRng, next: Option<Rng>) -> Rng {
    let mut now = rng.0.lock().unwrap_or_else(PoisonError::into_inner);
    let before = now.clone();
    if let Some(next) = next {
        *now = next;
    }
    before
}
