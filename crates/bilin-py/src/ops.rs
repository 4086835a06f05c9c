//! Every op of the registry as a callable: the engine's strict form, and the one that converts and promotes.

use bilin::ops::{Attrs, OpEntry, Values, entries};
use bilin::{Arity, OpSchema, Tensor, op_lookup, op_registry_all, schema_hash};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

use crate::convert::{promoted, tensor as tensor_arg};
use crate::dtype::PyDType;
use crate::error::{OrRaise, invalid, wrong_type};
use crate::tensor::{PyTensor, busy};

/// Names of an op's operands, in its signature, its stub and its errors.
pub fn operand_names(entry: &OpEntry) -> &'static [&'static str] {
    match (entry.schema.arity, entry.values) {
        (Arity::Exact(1), _) => &["x"],
        (Arity::Exact(2), Values::Indexed) => &["x", "index"],
        // Its pairs of axes are called lhs and rhs.
        (Arity::Exact(2), _) if entry.params.contains(&"lhs") => &["a", "b"],
        (Arity::Exact(2), _) => &["lhs", "rhs"],
        (Arity::Exact(3), Values::Masked) => &["mask", "a", "b"],
        _ if entry.schema.name == "concat" => &["tensors"],
        _ => &["operands"],
    }
}

/// An op of the registry.
#[pyclass(name = "Op", module = "bilin", frozen)]
pub struct PyOp {
    entry: &'static OpEntry,
    /// What it is called here: the registry's name, or another that users look for.
    name: String,
    /// Takes tensors of one dtype and nothing else.
    strict: bool,
}

/// An op bound to its first operand.
#[pyclass(module = "bilin", frozen)]
pub struct BoundOp {
    op: Py<PyOp>,
    first: Py<PyAny>,
}

/// An attribute by its name, or by what users of NumPy, the array API and PyTorch call it, which is given back too.
fn attribute(entry: &OpEntry, name: &str) -> Option<(&'static str, &'static str)> {
    let known = |want: &str| entry.params.iter().copied().find(|p| *p == want);
    let by = |others: [&str; 2], alias| others.into_iter().find_map(known).map(|p| (p, alias));
    known(name).map(|p| (p, p)).or_else(|| match name {
        "axis" => by(["axes", "axis"], "axis"),
        "dim" => by(["axes", "axis"], "dim"),
        "axes" => by(["axis"; 2], "axes"),
        "dims" => by(["axis"; 2], "dims"),
        "keepdims" => by(["keepdim"; 2], "keepdims"),
        _ => None,
    })
}

fn text(op: &str, name: &str, value: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    if value.is_none() {
        return Ok(None);
    }
    if let Ok(b) = value.cast::<pyo3::types::PyBool>() {
        return Ok(Some(b.is_true().to_string()));
    }
    if name == "subscripts"
        && let Ok(s) = value.cast::<PyString>()
    {
        return Ok(Some(s.to_string_lossy().into_owned()));
    }
    if let Ok(d) = value.cast::<PyDType>() {
        return Ok(Some(d.get().0.name().to_owned()));
    }
    if name.ends_with("dtype") {
        return Ok(Some(crate::dtype::parse(value, op, name)?.name().to_owned()));
    }
    if name == "eps" {
        return Ok(Some(crate::numbers::float(value, op, name)?.to_string()));
    }
    let all = crate::numbers::ints(value, op, name)?;
    Ok(Some(all.iter().map(isize::to_string).collect::<Vec<_>>().join(",")))
}

impl PyOp {
    fn name(&self) -> &str {
        &self.name
    }

    /// The name of an operand, and of one of an op of any number of them.
    fn operand_name(&self, i: usize) -> &'static str {
        let names = operand_names(self.entry);
        names.get(i).or(names.last()).copied().unwrap_or("operands")
    }

    fn operands(&self, args: &[Bound<'_, PyAny>]) -> PyResult<Vec<Tensor>> {
        let name = self.name();
        let (fits, want) = match self.entry.schema.arity {
            Arity::Exact(n) => (args.len() == usize::from(n), format!("want {n}")),
            Arity::AtLeast(n) => (args.len() >= usize::from(n), format!("want {n} or more")),
        };
        if !fits {
            let names = operand_names(self.entry).join(", ");
            return Err(pyo3::exceptions::PyTypeError::new_err(format!("{name}: operands are {} in number; {want}: {names}", args.len())));
        }
        if self.strict {
            let strict = |(i, a): (usize, &Bound<'_, PyAny>)| match a.cast::<PyTensor>() {
                Ok(t) => Ok(t.get().0.clone()),
                Err(_) => Err(wrong_type(name, self.operand_name(i), a, "a bilin.Tensor")),
            };
            return args.iter().enumerate().map(strict).collect();
        }
        let shared = match self.entry.values {
            Values::Indexed => 0..args.len() - 1,
            Values::Masked => 1..args.len(),
            _ => 0..args.len(),
        };
        let both: Vec<(&Bound<'_, PyAny>, &str)> = shared.clone().map(|i| (&args[i], self.operand_name(i))).collect();
        let mut all: std::collections::VecDeque<Tensor> = promoted(&both, name)?.into();
        if shared.start == 1 {
            all.push_front(tensor_arg(&args[0], name, "mask")?);
        }
        if shared.end < args.len() {
            all.push_back(tensor_arg(&args[shared.end], name, "index")?);
        }
        Ok(all.into())
    }

    fn run(&self, py: Python<'_>, args: &[Bound<'_, PyAny>], kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<Tensor> {
        let (entry, name) = (self.entry, self.name());
        let mut pairs: Vec<(&'static str, String)> = Vec::new();
        // The attributes by the names that the caller used, for errors.
        let mut others = entry.params.to_vec();
        // Beyond the operands, attributes by position.
        let count = if let Arity::Exact(n) = entry.schema.arity { args.len().min(usize::from(n)) } else { args.len() };
        let (args, extra) = args.split_at(count);
        if let (["axes"], [_, _, ..]) = (entry.params, extra) {
            // `x.permute(1, 0)` is `x.permute((1, 0))`.
            pairs.extend(text(name, "axes", PyTuple::new(py, extra)?.as_any())?.map(|t| ("axes", t)));
        } else if extra.len() > entry.params.len() {
            let (got, names) = (args.len() + extra.len(), operand_names(entry).join(", "));
            return Err(pyo3::exceptions::PyTypeError::new_err(format!("{name}: operands are {got} in number; want {count}: {names}")));
        } else {
            for (param, value) in entry.params.iter().zip(extra) {
                pairs.extend(text(name, param, value)?.map(|t| (*param, t)));
            }
        }
        for (key, value) in kwargs.into_iter().flatten() {
            let key: String = key.extract()?;
            let Some((param, key)) = attribute(entry, &key) else {
                let want =
                    if entry.params.is_empty() { "it takes none".to_owned() } else { format!("it takes {}", entry.params.join(", ")) };
                return Err(pyo3::exceptions::PyTypeError::new_err(format!("{name}: no argument is named {key}; {want}")));
            };
            others.iter_mut().filter(|other| **other == param).for_each(|other| *other = key);
            pairs.extend(text(name, key, &value)?.map(|t| (param, t)));
        }
        let operands = self.operands(args)?;
        let attrs = Attrs::from_pairs(entry.schema.name, pairs);
        let most = operands.iter().map(Tensor::numel).max().unwrap_or(0);
        busy(py, most, || (entry.call)(&operands, &attrs)).or_raise_as(name, operand_names(entry), &others)
    }
}

#[pymethods]
impl PyOp {
    #[getter(__name__)]
    fn py_name(&self) -> &str {
        self.name()
    }
    /// The same op under another name.
    #[pyo3(name = "_named")]
    fn named(&self, name: String) -> PyOp {
        PyOp { entry: self.entry, name, strict: self.strict }
    }
    #[getter(__signature__)]
    fn signature<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let inspect = py.import("inspect")?;
        let parameter = inspect.getattr("Parameter")?;
        let none = PyDict::new(py);
        none.set_item("default", py.None())?;
        let several = matches!(self.entry.schema.arity, Arity::AtLeast(_));
        let operand = parameter.getattr(if several { "VAR_POSITIONAL" } else { "POSITIONAL_ONLY" })?;
        let attribute = parameter.getattr(if several { "KEYWORD_ONLY" } else { "POSITIONAL_OR_KEYWORD" })?;
        let all = PyList::empty(py);
        for name in operand_names(self.entry) {
            all.append(parameter.call1((*name, &operand))?)?;
        }
        for name in self.entry.params {
            all.append(parameter.call((*name, &attribute), Some(&none))?)?;
        }
        inspect.getattr("Signature")?.call1((all,))
    }
    #[getter(__doc__)]
    fn doc(&self) -> String {
        let form = if self.strict { "the engine's strict form" } else { "converts array-likes and promotes dtypes" };
        format!("Op `{}` of the registry, {form}. Attributes: {}.", self.entry.schema.name, self.params().join(", "))
    }
    /// Names of the attributes.
    #[getter]
    fn params(&self) -> Vec<&'static str> {
        self.entry.params.to_vec()
    }
    /// Names of the operands.
    #[getter(operands)]
    fn all_operands(&self) -> Vec<&'static str> {
        operand_names(self.entry).to_vec()
    }
    /// Its declaration.
    #[getter]
    fn schema(&self) -> PyOpSchema {
        PyOpSchema(self.entry.schema)
    }
    #[pyo3(signature = (*args, **kwargs))]
    fn __call__(&self, py: Python<'_>, args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<PyTensor> {
        self.run(py, &args.iter().collect::<Vec<_>>(), kwargs).map(PyTensor)
    }
    fn __get__(slf: &Bound<'_, Self>, instance: &Bound<'_, PyAny>, owner: Option<&Bound<'_, PyAny>>) -> PyResult<Py<PyAny>> {
        let _ = owner;
        if instance.is_none() {
            return Ok(slf.clone().into_any().unbind());
        }
        let bound = BoundOp { op: slf.clone().unbind(), first: instance.clone().unbind() };
        Ok(Py::new(slf.py(), bound)?.into_any())
    }
    fn __repr__(&self) -> String {
        format!("<bilin op {}>", self.name())
    }
}

#[pymethods]
impl BoundOp {
    #[pyo3(signature = (*args, **kwargs))]
    fn __call__(&self, py: Python<'_>, args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<PyTensor> {
        let all: Vec<Bound<'_, PyAny>> = std::iter::once(self.first.bind(py).clone()).chain(args.iter()).collect();
        self.op.get().run(py, &all, kwargs).map(PyTensor)
    }
}

/// The declaration of an op.
#[pyclass(name = "OpSchema", module = "bilin", frozen)]
pub struct PyOpSchema(pub &'static OpSchema);

#[pymethods]
impl PyOpSchema {
    /// Unique name.
    #[getter]
    fn name(&self) -> &'static str {
        self.0.name
    }
    /// Raised when the meaning changes.
    #[getter]
    fn version(&self) -> u32 {
        self.0.version
    }
    /// What autocast does with its operands.
    #[getter]
    fn amp_policy(&self) -> String {
        format!("{:?}", self.0.amp_policy)
    }
    /// Whether equal bits are promised.
    #[getter]
    fn deterministic(&self) -> bool {
        self.0.deterministic
    }
    /// Why not, or under what terms.
    #[getter]
    fn determinism_note(&self) -> &'static str {
        self.0.determinism_note
    }
    /// Number of operands, "2", or the least number of them, "1 or more".
    #[getter]
    fn arity(&self) -> String {
        match self.0.arity {
            Arity::Exact(n) => n.to_string(),
            Arity::AtLeast(n) => format!("{n} or more"),
        }
    }
    /// FNV-1a-64, as `schema_hash` gives it.
    #[getter]
    fn hash(&self) -> u64 {
        schema_hash(self.0)
    }
    fn __repr__(&self) -> String {
        let s = self.0;
        format!("OpSchema(name='{}', version={}, amp_policy='{:?}', deterministic={})", s.name, s.version, s.amp_policy, s.deterministic)
    }
}

/// Every built-in op, strict or not.
#[pyfunction]
#[pyo3(name = "_ops")]
pub fn all_ops(py: Python<'_>, strict: bool) -> PyResult<Bound<'_, PyList>> {
    let all: PyResult<Vec<Py<PyOp>>> =
        entries().map(|entry| Py::new(py, PyOp { entry, name: entry.schema.name.to_owned(), strict })).collect();
    PyList::new(py, all?)
}

/// The schema of an op by name, or None.
#[pyfunction]
#[pyo3(name = "op_lookup", signature = (name, /))]
pub fn lookup(name: &Bound<'_, PyAny>) -> PyResult<Option<PyOpSchema>> {
    let text: String = name.extract().map_err(|_| wrong_type("op_lookup", "name", name, "the name of an op"))?;
    Ok(op_lookup(&text).map(PyOpSchema))
}

/// All schemas by name.
#[pyfunction]
#[pyo3(name = "op_registry_all")]
pub fn registry_all() -> Vec<PyOpSchema> {
    op_registry_all().into_iter().map(PyOpSchema).collect()
}

/// FNV-1a-64 of a schema.
#[pyfunction]
#[pyo3(name = "schema_hash", signature = (schema, /))]
pub fn hash(schema: &Bound<'_, PyAny>) -> PyResult<u64> {
    match schema.cast::<PyOpSchema>() {
        Ok(s) => Ok(schema_hash(s.get().0)),
        Err(_) => Err(wrong_type("schema_hash", "schema", schema, "an OpSchema of op_lookup")),
    }
}

/// Zeros, ones or one value.
#[pyfunction]
#[pyo3(name = "_full")]
pub fn full(
    func: &str,
    shape: &Bound<'_, PyAny>,
    value: &Bound<'_, PyAny>,
    dtype: Option<&Bound<'_, PyAny>>,
    device: Option<&Bound<'_, PyAny>>,
) -> PyResult<PyTensor> {
    let shape = crate::numbers::shape(shape, func, "shape")?;
    let device = crate::convert::device(device, func)?;
    let number = crate::numbers::Number::of(value, func, "fill_value")?.ok_or_else(|| wrong_type(func, "fill_value", value, "a number"))?;
    let dtype = crate::dtype::parse_optional(dtype, func, "dtype")?.unwrap_or_else(|| number.dtype());
    let one = number.tensor(dtype, &device, func, "fill_value")?;
    let out = Tensor::zeros(shape, dtype, &device).or_raise()?;
    out.copy_(&one).or_raise()?;
    Ok(PyTensor(Tensor::from_view(out.view().clone())))
}

/// The n×n identity.
#[pyfunction]
#[pyo3(name = "_eye")]
pub fn eye(n: &Bound<'_, PyAny>, dtype: Option<&Bound<'_, PyAny>>, device: Option<&Bound<'_, PyAny>>) -> PyResult<PyTensor> {
    let dtype = crate::dtype::parse_optional(dtype, "eye", "dtype")?.unwrap_or(bilin::DType::F32);
    let n = crate::numbers::len(n, "eye", "n")?;
    Tensor::eye(n, dtype, &crate::convert::device(device, "eye")?).or_raise().map(PyTensor)
}

/// Random numbers of a seeded stream.
#[pyclass(name = "Rng", module = "bilin", frozen)]
pub struct PyRng(pub std::sync::Mutex<bilin::Rng>);

#[pymethods]
impl PyRng {
    /// The stream of a seed.
    #[new]
    #[pyo3(signature = (seed, /))]
    fn new(seed: &Bound<'_, PyAny>) -> PyResult<PyRng> {
        Ok(PyRng(std::sync::Mutex::new(bilin::Rng::new(crate::numbers::len(seed, "Rng", "seed")? as u64))))
    }
    /// Uniform numbers in [0, 1).
    #[pyo3(signature = (shape, /, *, dtype=None, device=None))]
    fn rand(&self, shape: &Bound<'_, PyAny>, dtype: Option<&Bound<'_, PyAny>>, device: Option<&Bound<'_, PyAny>>) -> PyResult<PyTensor> {
        self.draw("rand", shape, dtype, device)
    }
    /// Standard normal numbers.
    #[pyo3(signature = (shape, /, *, dtype=None, device=None))]
    fn randn(&self, shape: &Bound<'_, PyAny>, dtype: Option<&Bound<'_, PyAny>>, device: Option<&Bound<'_, PyAny>>) -> PyResult<PyTensor> {
        self.draw("randn", shape, dtype, device)
    }
    /// 0 … n − 1 in random order.
    #[pyo3(signature = (n, /))]
    fn permutation(&self, n: &Bound<'_, PyAny>) -> PyResult<PyTensor> {
        let n = crate::numbers::len(n, "permutation", "n")?;
        let all: Vec<i64> = self.0.lock().unwrap_or_else(|e| e.into_inner()).permutation(n).into_iter().map(|i| i as i64).collect();
        Tensor::from_vec(all, [n], &crate::convert::device(None, "permutation")?).or_raise().map(PyTensor)
    }
}

impl PyRng {
    fn draw(
        &self,
        func: &str,
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
        device: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyTensor> {
        let shape = crate::numbers::shape(shape, func, "shape")?;
        let dtype = crate::dtype::parse_optional(dtype, func, "dtype")?.unwrap_or(bilin::DType::F32);
        let device = crate::convert::device(device, func)?;
        let mut rng = self.0.lock().unwrap_or_else(|e| e.into_inner());
        let draw = if func == "rand" { Tensor::rand } else { Tensor::randn };
        draw(shape, dtype, &device, &mut rng).or_raise().map(PyTensor)
    }
}

/// `arange` and `linspace` in float64 steps.
#[pyfunction]
#[pyo3(name = "_sequence")]
pub fn sequence(
    func: &str,
    start: f64,
    stop: f64,
    step: f64,
    dtype: &Bound<'_, PyAny>,
    device: Option<&Bound<'_, PyAny>>,
) -> PyResult<PyTensor> {
    let dtype = crate::dtype::parse(dtype, func, "dtype")?;
    let device = crate::convert::device(device, func)?;
    match func {
        "arange" => Tensor::arange(start, stop, step, dtype, &device),
        _ if step < 0.0 => return Err(invalid(func, "num", step, "want a count from 0")),
        _ => Tensor::linspace(start, stop, step as usize, dtype, &device),
    }
    .or_raise()
    .map(PyTensor)
}
