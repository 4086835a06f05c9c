//! Gradients: `backward`, `grad`, `jvp`, hooks, nodes, modes.

use bilin::autograd::{BackwardOptions, GradOptions, HookHandle, Picture, backward_all};
use bilin::tape::NodeInput;
use bilin::{Node, Tensor};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::convert::tensor as tensor_arg;
use crate::error::{OrRaise, defer, wrong_type};
use crate::numbers::flag;
use crate::tensor::PyTensor;

/// A recorded op.
#[pyclass(name = "Node", module = "bilin", frozen)]
pub struct PyNode(pub Node);

#[pymethods]
impl PyNode {
    /// `MatmulBackward`, ….
    fn name(&self) -> &'static str {
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
    /// The declaration of its op.
    fn schema(&self) -> crate::ops::PyOpSchema {
        crate::ops::PyOpSchema(self.0.schema())
    }
    /// Where each operand came from: a node, "leaf", or None where no gradient goes.
    fn inputs<'py>(&self, py: Python<'py>) -> PyResult<Vec<Option<Bound<'py, PyAny>>>> {
        let one = |input: &NodeInput| match input {
            NodeInput::Constant => Ok(None),
            NodeInput::Leaf(_) => Ok(Some(pyo3::types::PyString::new(py, "leaf").into_any())),
            NodeInput::Interior(edge) => Ok(Some(Bound::new(py, PyNode(edge.node.clone()))?.into_any())),
        };
        self.0.inputs().iter().map(one).collect()
    }
    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<PyNode>().is_ok_and(|o| o.get().0.is_same(&self.0))
    }
    fn __hash__(&self) -> usize {
        self.0.inputs().as_ptr().addr()
    }
    fn __repr__(&self) -> String {
        format!("<{}>", self.0.name())
    }
}

/// A recorded graph, to draw.
#[pyclass(name = "Picture", module = "bilin.autograd", frozen)]
pub struct PyPicture(Picture);

#[pymethods]
impl PyPicture {
    /// The graph behind one output or several.
    #[new]
    #[pyo3(signature = (*outputs))]
    fn new(outputs: &Bound<'_, PyTuple>) -> PyResult<PyPicture> {
        let all = tensors(outputs.as_any(), "Picture", "outputs")?;
        Ok(PyPicture(Picture::new(&all.iter().collect::<Vec<_>>())))
    }
    /// In Graphviz's language.
    fn to_dot(&self) -> String {
        self.0.to_dot()
    }
    /// As an SVG picture.
    fn to_svg(&self) -> String {
        self.0.to_svg()
    }
    /// Notebooks show it.
    fn _repr_svg_(&self) -> String {
        self.0.to_svg()
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
    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }
    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, _raised: &Bound<'_, PyTuple>) {
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

/// A hook that calls Python with the leaf, after its `.grad` was added to.
pub fn register_after_hook(t: &Tensor, hook: &Bound<'_, PyAny>) -> PyResult<PyHook> {
    const FUNC: &str = "register_post_accumulate_grad_hook";
    if !hook.is_callable() {
        return Err(wrong_type(FUNC, "hook", hook, "a function of the leaf"));
    }
    let hook = hook.clone().unbind();
    let run = move |t: &Tensor| Python::attach(|py| hook.call1(py, (PyTensor(t.clone()),)).map(|_| ()).map_err(defer));
    t.register_post_accumulate_grad_hook(run).or_raise().map(PyHook)
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

fn cotangents(given: Option<&Bound<'_, PyAny>>, func: &str, arg: &str) -> PyResult<Vec<Option<Tensor>>> {
    let one = |o: &Bound<'_, PyAny>| if o.is_none() { Ok(None) } else { tensor_arg(o, func, arg).map(Some) };
    match given.filter(|g| !g.is_none()) {
        None => Ok(Vec::new()),
        Some(g) if g.is_instance_of::<PyList>() || g.is_instance_of::<PyTuple>() => g.try_iter()?.map(|o| one(&o?)).collect(),
        Some(g) => Ok(vec![one(g)?]),
    }
}

fn optional_flag(given: Option<&Bound<'_, PyAny>>, func: &str, arg: &str) -> PyResult<Option<bool>> {
    given.filter(|g| !g.is_none()).map(|g| flag(g, func, arg)).transpose()
}

/// How a backward of Python runs.
pub fn options(func: &str, retain_graph: Option<&Bound<'_, PyAny>>, create_graph: Option<&Bound<'_, PyAny>>) -> PyResult<BackwardOptions> {
    let retain_graph = optional_flag(retain_graph, func, "retain_graph")?;
    let create_graph = optional_flag(create_graph, func, "create_graph")?.unwrap_or(false);
    Ok(BackwardOptions { gradient: None, retain_graph, create_graph })
}

/// An error of a pass in the terms of the function that began it; those of ops and functions on its way keep theirs.
pub fn of_pass(error: bilin::Error, func: &str, outputs: &[&str], others: &[&str]) -> PyErr {
    let is_own = matches!(crate::error::of_call(&error), Some("backward" | "grad"));
    if is_own { crate::error::raise_as(error, func, outputs, others) } else { crate::error::raise(error) }
}

/// Adds the gradient of the sum of several tensors to the `.grad` of the leaves they depend on, in one pass.
#[pyfunction]
#[pyo3(signature = (tensors, grad_tensors=None, retain_graph=None, create_graph=None))]
pub fn backward(
    tensors: &Bound<'_, PyAny>,
    grad_tensors: Option<&Bound<'_, PyAny>>,
    retain_graph: Option<&Bound<'_, PyAny>>,
    create_graph: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let outputs = self::tensors(tensors, "backward", "tensors")?;
    let gradients = cotangents(grad_tensors, "backward", "grad_tensors")?;
    let options = options("backward", retain_graph, create_graph)?;
    tensors
        .py()
        .detach(|| backward_all(&outputs.iter().collect::<Vec<_>>(), &gradients, options))
        .map_err(|e| of_pass(e, "backward", &["tensors"], &["grad_tensors"]))
}

/// Gradients of the sum of outputs by inputs, without touching `.grad`.
#[pyfunction]
#[pyo3(signature = (outputs, inputs, grad_outputs=None, retain_graph=None, create_graph=None, allow_unused=None))]
pub fn grad(
    py: Python<'_>,
    outputs: &Bound<'_, PyAny>,
    inputs: &Bound<'_, PyAny>,
    grad_outputs: Option<&Bound<'_, PyAny>>,
    retain_graph: Option<&Bound<'_, PyAny>>,
    create_graph: Option<&Bound<'_, PyAny>>,
    allow_unused: Option<&Bound<'_, PyAny>>,
) -> PyResult<Vec<Option<PyTensor>>> {
    let (outputs, inputs) = (tensors(outputs, "grad", "outputs")?, tensors(inputs, "grad", "inputs")?);
    let cotangents = cotangents(grad_outputs, "grad", "grad_outputs")?;
    let BackwardOptions { retain_graph, create_graph, .. } = options("grad", retain_graph, create_graph)?;
    let allow_unused = optional_flag(allow_unused, "grad", "allow_unused")?.unwrap_or(false);
    let options = GradOptions { grad_outputs: cotangents, retain_graph, create_graph, allow_unused };
    let run = || bilin::autograd::grad(&outputs.iter().collect::<Vec<_>>(), &inputs.iter().collect::<Vec<_>>(), options);
    Ok(py
        .detach(run)
        .map_err(|e| of_pass(e, "grad", &["outputs"], &["inputs", "grad_outputs"]))?
        .into_iter()
        .map(|g| g.map(PyTensor))
        .collect())
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

/// Searches gradients of this thread for NaN from now on, or not, and says what it did.
#[pyfunction]
#[pyo3(name = "_set_detect_anomaly")]
pub fn set_detect_anomaly(on: bool) -> bool {
    let before = bilin::autograd::is_detecting_anomaly();
    std::mem::forget(bilin::autograd::detect_anomaly(on));
    before
}

/// Whether gradients of this thread are searched for NaN.
#[pyfunction]
pub fn is_detecting_anomaly() -> bool {
    bilin::autograd::is_detecting_anomaly()
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
