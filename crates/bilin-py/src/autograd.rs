//! Gradients: `grad`, `jvp`, hooks, nodes, modes.

use bilin::autograd::{GradOptions, HookHandle};
use bilin::{Node, Tensor};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::convert::tensor as tensor_arg;
use crate::error::{OrRaise, defer, wrong_type};
use crate::tensor::PyTensor;

/// A recorded op.
#[pyclass(name = "Node", module = "bilin", frozen)]
pub struct PyNode(pub Node);

#[pymethods]
impl PyNode {
    /// `MatmulBackward`, ….
    fn name(&self) -> String {
        self.0.name()
    }
    /// Gradients of the operands for the cotangent `g`; nothing is released.
    #[pyo3(signature = (g, /))]
    fn apply(&self, py: Python<'_>, g: &Bound<'_, PyAny>) -> PyResult<Vec<Option<PyTensor>>> {
        let g = tensor_arg(g, "apply", "g")?;
        let all = py.detach(|| self.0.apply(&g)).or_raise()?;
        Ok(all.into_iter().map(|g| g.map(PyTensor)).collect())
    }
    /// The same, recorded.
    #[pyo3(signature = (g, /))]
    fn apply_for_graph(&self, py: Python<'_>, g: &Bound<'_, PyAny>) -> PyResult<Vec<Option<PyTensor>>> {
        let g = tensor_arg(g, "apply_for_graph", "g")?;
        let all = py.detach(|| self.0.apply_for_graph(&g)).or_raise()?;
        Ok(all.into_iter().map(|g| g.map(PyTensor)).collect())
    }
    fn __repr__(&self) -> String {
        format!("<{}>", self.0.name())
    }
}

/// Takes a hook off again.
#[pyclass(name = "HookHandle", module = "bilin", frozen)]
pub struct PyHook(HookHandle);

#[pymethods]
impl PyHook {
    /// The hook won't run any more.
    fn remove(&self) {
        self.0.remove();
    }
}

/// A hook that calls Python.
pub fn register_hook(t: &Tensor, hook: &Bound<'_, PyAny>) -> PyResult<PyHook> {
    if !hook.is_callable() {
        return Err(wrong_type("register_hook", "hook", hook, "a function of the gradient"));
    }
    let hook = hook.clone().unbind();
    let run = move |g: &Tensor| {
        Python::attach(|py| {
            let call = || {
                let out = hook.bind(py).call1((PyTensor(g.clone()),))?;
                if out.is_none() { Ok(None) } else { tensor_arg(&out, "register_hook", "the hook's result").map(Some) }
            };
            call().map_err(defer)
        })
    };
    t.register_hook(run).or_raise().map(PyHook)
}

fn tensors(obj: &Bound<'_, PyAny>, func: &str, arg: &str) -> PyResult<Vec<Tensor>> {
    let one = |o: &Bound<'_, PyAny>| match o.cast::<PyTensor>() {
        Ok(t) => Ok(t.get().0.clone()),
        Err(_) => Err(wrong_type(func, arg, o, "a tensor or a list of tensors")),
    };
    if obj.is_instance_of::<PyList>() || obj.is_instance_of::<PyTuple>() {
        return obj.try_iter()?.map(|o| one(&o?)).collect();
    }
    Ok(vec![one(obj)?])
}

/// Gradients of the sum of outputs by inputs, without touching `.grad`.
#[pyfunction]
#[pyo3(signature = (outputs, inputs, grad_outputs=None, retain_graph=None, create_graph=false, allow_unused=false))]
pub fn grad(
    py: Python<'_>,
    outputs: &Bound<'_, PyAny>,
    inputs: &Bound<'_, PyAny>,
    grad_outputs: Option<&Bound<'_, PyAny>>,
    retain_graph: Option<bool>,
    create_graph: bool,
    allow_unused: bool,
) -> PyResult<Vec<Option<PyTensor>>> {
    let (outputs, inputs) = (tensors(outputs, "grad", "outputs")?, tensors(inputs, "grad", "inputs")?);
    let cotangents = match grad_outputs.filter(|g| !g.is_none()) {
        None => Vec::new(),
        Some(g) if g.is_instance_of::<PyList>() || g.is_instance_of::<PyTuple>() => g
            .try_iter()?
            .map(|o| {
                let o = o?;
                if o.is_none() { Ok(None) } else { tensor_arg(&o, "grad", "grad_outputs").map(Some) }
            })
            .collect::<PyResult<_>>()?,
        Some(g) => vec![Some(tensor_arg(g, "grad", "grad_outputs")?)],
    };
    let options = GradOptions { grad_outputs: cotangents, retain_graph, create_graph, allow_unused };
    let run = || bilin::autograd::grad(&outputs.iter().collect::<Vec<_>>(), &inputs.iter().collect::<Vec<_>>(), options);
    Ok(py.detach(run).or_raise()?.into_iter().map(|g| g.map(PyTensor)).collect())
}

/// Values and derivatives along `v` of `f`, a function of a list of tensors that gives a list of tensors.
#[pyfunction]
#[pyo3(name = "_jvp")]
pub fn jvp(f: &Bound<'_, PyAny>, x: Vec<Bound<'_, PyTensor>>, v: Vec<Bound<'_, PyTensor>>) -> PyResult<Vec<(PyTensor, PyTensor)>> {
    let py = f.py();
    let refs = |all: &[Bound<'_, PyTensor>]| all.iter().map(|t| t.get().0.clone()).collect::<Vec<_>>();
    let (x, v) = (refs(&x), refs(&v));
    let run = |x: &[Tensor]| {
        let call = || {
            let list = PyList::new(py, x.iter().map(|t| PyTensor(t.clone())).map(|t| Py::new(py, t)).collect::<PyResult<Vec<_>>>()?)?;
            f.call1((list,))?.try_iter()?.map(|o| Ok(o?.cast::<PyTensor>()?.get().0.clone())).collect::<PyResult<Vec<_>>>()
        };
        call().map_err(defer)
    };
    let pairs = bilin::autograd::jvp_many(run, &x.iter().collect::<Vec<_>>(), &v.iter().collect::<Vec<_>>()).or_raise()?;
    Ok(pairs.into_iter().map(|(a, b)| (PyTensor(a), PyTensor(b))).collect())
}

/// A place of its own for the value of `x`, connected to its history.
#[pyfunction]
#[pyo3(name = "_variable")]
pub fn variable(x: &Bound<'_, PyTensor>) -> PyResult<PyTensor> {
    bilin::autograd::variable(&x.get().0).or_raise().map(PyTensor)
}

/// Whether outputs depend on more than `variables`.
#[pyfunction]
#[pyo3(name = "_depends_on_others")]
pub fn depends_on_others(outputs: Vec<Bound<'_, PyTensor>>, variables: Vec<Bound<'_, PyTensor>>) -> bool {
    let (o, v): (Vec<&Tensor>, Vec<&Tensor>) =
        (outputs.iter().map(|t| &t.get().0).collect(), variables.iter().map(|t| &t.get().0).collect());
    bilin::autograd::depends_on_others(&o, &v)
}

/// Turns recording on this thread on or off and says what it was.
#[pyfunction]
#[pyo3(name = "_set_grad_enabled")]
pub fn set_grad_enabled(on: bool) -> bool {
    let before = bilin::is_grad_enabled();
    // The scope is Python's: it puts the mode back itself.
    std::mem::forget(bilin::set_grad_enabled(on));
    before
}

/// Whether ops of this thread are recorded.
#[pyfunction]
pub fn is_grad_enabled() -> bool {
    bilin::is_grad_enabled()
}

/// Opens an autocast scope by dtype, or one without casts, and gives the dtype of the one outside.
#[pyfunction]
#[pyo3(name = "_set_autocast")]
pub fn set_autocast(dtype: Option<&Bound<'_, PyAny>>) -> PyResult<Option<crate::dtype::PyDType>> {
    let before = bilin::amp::autocast_dtype();
    match crate::dtype::parse_optional(dtype, "autocast", "dtype")? {
        Some(d) => std::mem::forget(bilin::amp::autocast(d)),
        None => std::mem::forget(bilin::amp::autocast_disabled()),
    }
    Ok(before.map(crate::dtype::PyDType))
}

/// Whether an autocast scope with casts is open on this thread.
#[pyfunction]
pub fn is_autocast_enabled() -> bool {
    bilin::amp::is_autocast_enabled()
}

/// Numeric against analytic gradients of `f`, which takes and gives tensors.
#[pyfunction]
#[pyo3(name = "_gradcheck")]
pub fn gradcheck(f: &Bound<'_, PyAny>, x: Vec<Bound<'_, PyTensor>>, second: bool, step: f64, tolerance: f64, seed: u64) -> PyResult<()> {
    let x: Vec<Tensor> = x.iter().map(|t| t.get().0.clone()).collect();
    let py = f.py();
    let run = |x: &[Tensor]| {
        let call = || {
            let args = PyTuple::new(py, x.iter().map(|t| Py::new(py, PyTensor(t.clone()))).collect::<PyResult<Vec<_>>>()?)?;
            tensor_arg(&f.call1(args)?, "gradcheck", "the function's result")
        };
        call().map_err(defer)
    };
    let options = bilin::autograd::GradcheckOptions { step, tolerance, seed };
    let check: fn(_, &[&Tensor], _) -> bilin::Result<()> = if second { bilin::autograd::gradgradcheck } else { bilin::autograd::gradcheck };
    check(run, &x.iter().collect::<Vec<_>>(), options).or_raise()
}

/// The value with the tangents of open levels, but without history.
#[pyfunction]
#[pyo3(name = "_without_history")]
pub fn without_history(x: &Bound<'_, PyTensor>) -> PyResult<PyTensor> {
    bilin::autograd::without_history(&x.get().0).or_raise().map(PyTensor)
}
