//! Optimisers, clipping, and what a scaler needs of them.

use bilin::Tensor;
use bilin::optim::{AdamW, ClipOptions, Optimizer, Sgd};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::{OrRaise, defer, wrong_type};
use crate::numbers::{flag, float};
use crate::tensor::PyTensor;

type Obj<'a, 'py> = Option<&'a Bound<'py, PyAny>>;

/// One tensor, or any iterable of them.
fn parameters(params: &Bound<'_, PyAny>, func: &str) -> PyResult<Vec<Tensor>> {
    let wrong = || wrong_type(func, "params", params, "a tensor or a list of tensors");
    if let Ok(t) = params.cast::<PyTensor>() {
        return Ok(vec![t.get().0.clone()]);
    }
    params.try_iter().map_err(|_| wrong())?.map(|p| p?.cast::<PyTensor>().map(|t| t.get().0.clone()).map_err(|_| wrong())).collect()
}

/// Tensors by name, as a dict.
pub fn named(py: Python<'_>, state: Vec<(String, Tensor)>) -> PyResult<Bound<'_, PyDict>> {
    let d = PyDict::new(py);
    for (name, t) in state {
        d.set_item(name, Bound::new(py, PyTensor(t))?)?;
    }
    Ok(d)
}

/// A dict of tensors, or of what becomes one.
pub fn unnamed(state: &Bound<'_, PyAny>) -> PyResult<Vec<(String, Tensor)>> {
    let wrong = || wrong_type("load_state_dict", "state", state, "a dict of tensors by name");
    let dict = state.cast::<PyDict>().map_err(|_| wrong())?;
    let one = |t: &Bound<'_, PyAny>| crate::convert::tensor(t, "load_state_dict", "state");
    dict.iter().map(|(n, t)| Ok((n.extract().map_err(|_| wrong())?, one(&t)?))).collect()
}

/// An optimiser of this package, or any object with `params` and `step`.
pub struct AnyOptimizer {
    params: Vec<Tensor>,
    object: Py<PyAny>,
}

impl AnyOptimizer {
    pub fn of(object: &Bound<'_, PyAny>, func: &str) -> PyResult<AnyOptimizer> {
        let wrong = || wrong_type(func, "optimizer", object, "an optimiser: an object with params and step");
        if !object.hasattr("step")? {
            return Err(wrong());
        }
        let params = parameters(&object.getattr("params").map_err(|_| wrong())?, func)?;
        Ok(AnyOptimizer { params, object: object.clone().unbind() })
    }
}

impl Optimizer for AnyOptimizer {
    fn params(&self) -> &[Tensor] {
        &self.params
    }
    fn step(&mut self) -> bilin::Result<()> {
        Python::attach(|py| self.object.call_method0(py, "step").map(|_| ()).map_err(defer))
    }
}

/// Scales gradients in place so that their common norm is at most `max_norm`; the norm that they had.
#[pyfunction]
#[pyo3(signature = (params, max_norm, norm_type=None, error_if_nonfinite=None))]
pub fn clip_grad_norm(
    py: Python<'_>,
    params: &Bound<'_, PyAny>,
    max_norm: &Bound<'_, PyAny>,
    norm_type: Obj<'_, '_>,
    error_if_nonfinite: Obj<'_, '_>,
) -> PyResult<PyTensor> {
    const FUNC: &str = "clip_grad_norm";
    let (params, max_norm) = (parameters(params, FUNC)?, float(max_norm, FUNC, "max_norm")?);
    let mut options = ClipOptions::default();
    if let Some(p) = norm_type {
        options.norm_type = float(p, FUNC, "norm_type")?;
    }
    if let Some(on) = error_if_nonfinite {
        options.error_if_nonfinite = flag(on, FUNC, "error_if_nonfinite")?;
    }
    py.detach(|| bilin::optim::clip_grad_norm_with(&params, max_norm, options))
        .or_raise_as(FUNC, &["params"], &["max_norm", "norm_type", "error_if_nonfinite"])
        .map(PyTensor)
}

fn number(value: Obj<'_, '_>, func: &str, arg: &str, missing: f64) -> PyResult<f64> {
    value.map_or(Ok(missing), |v| float(v, func, arg))
}

/// Stochastic gradient descent: v ← momentum·v + g + weight_decay·p; p ← p − lr·v.
#[pyclass(name = "SGD", module = "bilin.optim")]
pub struct PySgd(Sgd);

#[pymethods]
impl PySgd {
    #[new]
    #[pyo3(signature = (params, lr, *, momentum=None, weight_decay=None))]
    fn new(params: &Bound<'_, PyAny>, lr: &Bound<'_, PyAny>, momentum: Obj<'_, '_>, weight_decay: Obj<'_, '_>) -> PyResult<PySgd> {
        let params = parameters(params, "SGD")?;
        let mut inner = Sgd::new(&params, float(lr, "SGD", "lr")?).or_raise_as("SGD", &["params"], &["lr"])?;
        inner.momentum = number(momentum, "SGD", "momentum", 0.0)?;
        inner.weight_decay = number(weight_decay, "SGD", "weight_decay", 0.0)?;
        inner.check().or_raise_as("SGD", &["params"], &["lr", "momentum", "weight_decay"])?;
        Ok(PySgd(inner))
    }
    /// Named tensors that continue the run.
    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        named(py, self.0.state_dict().or_raise()?)
    }
}

/// Adam with decoupled weight decay.
#[pyclass(name = "AdamW", module = "bilin.optim")]
pub struct PyAdamW(AdamW);

#[pymethods]
impl PyAdamW {
    #[new]
    #[pyo3(signature = (params, lr=None, *, betas=None, eps=None, weight_decay=None))]
    fn new(
        params: &Bound<'_, PyAny>,
        lr: Obj<'_, '_>,
        betas: Obj<'_, '_>,
        eps: Obj<'_, '_>,
        weight_decay: Obj<'_, '_>,
    ) -> PyResult<PyAdamW> {
        let params = parameters(params, "AdamW")?;
        let mut inner = AdamW::new(&params, number(lr, "AdamW", "lr", 1e-3)?).or_raise_as("AdamW", &["params"], &["lr"])?;
        if let Some(given) = betas {
            let pair: (Bound<'_, PyAny>, Bound<'_, PyAny>) =
                given.extract().map_err(|_| wrong_type("AdamW", "betas", given, "a pair of numbers"))?;
            let pair = [float(&pair.0, "AdamW", "betas")?, float(&pair.1, "AdamW", "betas")?];
            inner.betas = pair;
        }
        inner.eps = number(eps, "AdamW", "eps", 1e-8)?;
        inner.weight_decay = number(weight_decay, "AdamW", "weight_decay", 0.01)?;
        inner.check().or_raise_as("AdamW", &["params"], &["lr", "betas", "eps", "weight_decay"])?;
        Ok(PyAdamW(inner))
    }
    /// Named tensors that continue the run.
    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        named(py, self.0.state_dict().or_raise()?)
    }
}

macro_rules! optimiser {
    ($class:ident, $name:literal) => {
        #[pymethods]
        impl $class {
            /// One step; parameters without a gradient stay.
            fn step(&mut self, py: Python<'_>) -> PyResult<()> {
                let inner = &mut self.0;
                py.detach(|| inner.step()).or_raise()
            }
            /// Forgets the gradients.
            fn zero_grad(&self) {
                self.0.zero_grad();
            }
            /// What it changes.
            #[getter]
            fn params(&self) -> Vec<PyTensor> {
                self.0.params().iter().map(|t| PyTensor(t.clone())).collect()
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
            /// Takes up a state.
            #[pyo3(signature = (state, /))]
            fn load_state_dict(&mut self, state: &Bound<'_, PyAny>) -> PyResult<()> {
                self.0.load_state_dict(&unnamed(state)?).or_raise_as("load_state_dict", &["state"], &[])
            }
        }
    };
}
optimiser!(PySgd, "SGD");
optimiser!(PyAdamW, "AdamW");
