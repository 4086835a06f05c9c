//! Mixed precision: scopes, and the scale of a loss.

use bilin::amp::{GradScaler, ScalerOptions, Stepped};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::dtype::{PyDType, parse_optional};
use crate::error::{OrRaise, wrong_type};
use crate::numbers::{flag, float, len};
use crate::optim::{AnyOptimizer, named, unnamed};
use crate::tensor::PyTensor;

/// Opens an autocast scope by dtype, or one without casts, and gives the dtype of the one outside.
#[pyfunction]
#[pyo3(name = "_set_autocast")]
pub fn set_autocast(dtype: Option<&Bound<'_, PyAny>>) -> PyResult<Option<PyDType>> {
    let before = bilin::amp::autocast_dtype();
    // The scope is Python's: it puts the mode back itself.
    match parse_optional(dtype, "autocast", "dtype")? {
        Some(d) => std::mem::forget(bilin::amp::autocast(d)),
        None => std::mem::forget(bilin::amp::autocast_disabled()),
    }
    Ok(before.map(PyDType))
}

/// Whether an autocast scope with casts is open on this thread.
#[pyfunction]
pub fn is_autocast_enabled() -> bool {
    bilin::amp::is_autocast_enabled()
}

/// The dtype of the innermost autocast scope of this thread, or None.
#[pyfunction]
pub fn autocast_dtype() -> Option<PyDType> {
    bilin::amp::autocast_dtype().map(PyDType)
}

/// Scales a loss so that gradients in float16 don't vanish, and undoes it before the step.
#[pyclass(name = "GradScaler", module = "bilin.amp")]
pub struct PyGradScaler(GradScaler);

#[pymethods]
impl PyGradScaler {
    #[new]
    #[pyo3(signature = (init_scale=None, growth_factor=None, backoff_factor=None, growth_interval=None, enabled=None))]
    fn new(
        init_scale: Option<&Bound<'_, PyAny>>,
        growth_factor: Option<&Bound<'_, PyAny>>,
        backoff_factor: Option<&Bound<'_, PyAny>>,
        growth_interval: Option<&Bound<'_, PyAny>>,
        enabled: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyGradScaler> {
        const FUNC: &str = "GradScaler";
        let mut o = ScalerOptions::default();
        for (arg, given, to) in [
            ("init_scale", init_scale, &mut o.init_scale),
            ("growth_factor", growth_factor, &mut o.growth_factor),
            ("backoff_factor", backoff_factor, &mut o.backoff_factor),
        ] {
            *to = given.map_or(Ok(*to), |v| float(v, FUNC, arg))?;
        }
        o.growth_interval = growth_interval.map_or(Ok(o.growth_interval), |v| len(v, FUNC, "growth_interval").map(|n| n as u64))?;
        let scaler = GradScaler::new(o).or_raise_as(FUNC, &["init_scale"], &["growth_factor", "backoff_factor", "growth_interval"])?;
        let on = enabled.map_or(Ok(true), |v| flag(v, FUNC, "enabled"))?;
        Ok(PyGradScaler(if on { scaler } else { GradScaler::disabled() }))
    }
    /// A loss times the scale, differentiable; or each of a list or tuple.
    #[pyo3(signature = (outputs, /))]
    fn scale<'py>(&self, outputs: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = outputs.py();
        if let Ok(t) = outputs.cast::<PyTensor>() {
            let scaled = self.0.scale(&t.get().0).or_raise_as("scale", &["outputs"], &[])?;
            return Ok(Bound::new(py, PyTensor(scaled))?.into_any());
        }
        let is_list = outputs.is_instance_of::<PyList>();
        if !is_list && !outputs.is_instance_of::<PyTuple>() {
            return Err(wrong_type("scale", "outputs", outputs, "a tensor, or a list or tuple of them"));
        }
        let one = |o: PyResult<Bound<'py, PyAny>>| match o?.cast::<PyTensor>() {
            Ok(t) => Bound::new(py, PyTensor(self.0.scale(&t.get().0).or_raise_as("scale", &["outputs"], &[])?)),
            Err(_) => Err(wrong_type("scale", "outputs", outputs, "a tensor, or a list or tuple of them")),
        };
        let all = outputs.try_iter()?.map(one).collect::<PyResult<Vec<_>>>()?;
        Ok(if is_list { PyList::new(py, all)?.into_any() } else { PyTuple::new(py, all)?.into_any() })
    }
    /// Divides the gradients of the optimiser's parameters by the scale, once a step, so that they can be clipped.
    #[pyo3(signature = (optimizer, /))]
    fn unscale_(&mut self, py: Python<'_>, optimizer: &Bound<'_, PyAny>) -> PyResult<()> {
        let optimizer = AnyOptimizer::of(optimizer, "unscale_")?;
        let inner = &mut self.0;
        py.detach(|| inner.unscale_(&optimizer)).or_raise()
    }
    /// The optimiser's step where every gradient is finite. True where it was taken, False where it was skipped.
    #[pyo3(signature = (optimizer, /))]
    fn step(&mut self, py: Python<'_>, optimizer: &Bound<'_, PyAny>) -> PyResult<bool> {
        let mut optimizer = AnyOptimizer::of(optimizer, "step")?;
        let inner = &mut self.0;
        py.detach(|| inner.step(&mut optimizer)).or_raise().map(|done| done == Stepped::Taken)
    }
    /// Moves the scale after the steps of all optimisers, or sets it.
    #[pyo3(signature = (new_scale=None))]
    fn update(&mut self, new_scale: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        match new_scale.filter(|s| !s.is_none()) {
            None => self.0.update().or_raise(),
            Some(scale) => self.0.update_to(float(scale, "update", "new_scale")?).or_raise_as("update", &["new_scale"], &[]),
        }
    }
    /// The scale now.
    fn get_scale(&self) -> f64 {
        self.0.get_scale()
    }
    /// Whether it scales.
    fn is_enabled(&self) -> bool {
        self.0.is_enabled()
    }
    /// Good steps in a row so far.
    fn get_growth_tracker(&self) -> u64 {
        self.0.growth_tracker()
    }
    /// Named 0-d tensors that continue the run.
    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        named(py, self.0.state_dict().or_raise()?)
    }
    /// Takes up a state.
    #[pyo3(signature = (state, /))]
    fn load_state_dict(&mut self, state: &Bound<'_, PyAny>) -> PyResult<()> {
        self.0.load_state_dict(&unnamed(state)?).or_raise_as("load_state_dict", &["state"], &[])
    }
}
