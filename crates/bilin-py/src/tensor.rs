//! `bilin.Tensor`: facts, conversions, gradients of a tensor.

use bilin::{DType, Device, Tensor, bf16, c64, c128, f16};
use numpy::{PyArrayDescr, PyUntypedArray};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

use crate::convert::{device as parse_device, tensor as tensor_arg};
use crate::dtype::{PyDType, descr, parse, parse_optional};
use crate::error::{OrRaise, invalid, new};
use crate::memory::expose;
use crate::numbers::{flag, int, ints, shape as parse_shape};

/// A strided array on a device, with gradients.
#[pyclass(name = "Tensor", module = "bilin", frozen, weakref)]
pub struct PyTensor(pub Tensor);

impl From<Tensor> for PyTensor {
    fn from(t: Tensor) -> PyTensor {
        PyTensor(t)
    }
}

/// Elements below which letting other threads of Python run costs more than the work.
const BUSY: usize = 1 << 13;

/// Runs `work` on operands of so many elements, and lets other threads of Python run where it takes long.
pub fn busy<T: Send>(py: Python<'_>, elements: usize, work: impl FnOnce() -> T + Send) -> T {
    if elements < BUSY { work() } else { py.detach(work) }
}

/// A number of Python from the only element.
fn number<'py>(py: Python<'py>, t: &Tensor, func: &str) -> PyResult<Bound<'py, PyAny>> {
    if t.numel() != 1 {
        let text = format!("{func}: self has shape {}; want one element: index it first, or use tolist()", bilin::shape_text(t.shape()));
        return Err(new("ShapeMismatch", text));
    }
    Ok(match t.dtype() {
        DType::Bool => t.item::<bool>().or_raise()?.into_pyobject(py)?.to_owned().into_any(),
        DType::U8 => t.item::<u8>().or_raise()?.into_pyobject(py)?.into_any(),
        DType::I8 => t.item::<i8>().or_raise()?.into_pyobject(py)?.into_any(),
        DType::I16 => t.item::<i16>().or_raise()?.into_pyobject(py)?.into_any(),
        DType::I32 => t.item::<i32>().or_raise()?.into_pyobject(py)?.into_any(),
        DType::I64 => t.item::<i64>().or_raise()?.into_pyobject(py)?.into_any(),
        DType::F16 => t.item::<f16>().or_raise()?.to_f64().into_pyobject(py)?.into_any(),
        DType::Bf16 => t.item::<bf16>().or_raise()?.to_f64().into_pyobject(py)?.into_any(),
        DType::F32 => f64::from(t.item::<f32>().or_raise()?).into_pyobject(py)?.into_any(),
        DType::F64 => t.item::<f64>().or_raise()?.into_pyobject(py)?.into_any(),
        DType::C64 => {
            let c = t.item::<c64>().or_raise()?;
            pyo3::types::PyComplex::from_doubles(py, c.re.into(), c.im.into()).into_any()
        }
        DType::C128 => {
            let c = t.item::<c128>().or_raise()?;
            pyo3::types::PyComplex::from_doubles(py, c.re, c.im).into_any()
        }
    })
}

/// Exact values under a dtype that NumPy always has.
fn readable(t: &Tensor) -> PyResult<Tensor> {
    if t.dtype() == DType::Bf16 { t.detach().astype(DType::F32).or_raise() } else { Ok(t.detach()) }
}

fn host(t: &Tensor) -> PyResult<Tensor> {
    t.to_device(&<Device as bilin::Devices>::cpu()).or_raise()
}

/// A read-only array over a tensor's memory, or a writable copy.
pub fn numpy<'py>(py: Python<'py>, t: &Tensor, copy: bool, func: &str) -> PyResult<Bound<'py, PyAny>> {
    array(t, descr(py, t.dtype(), func)?, copy)
}

fn array<'py>(t: &Tensor, descr: Bound<'py, PyArrayDescr>, copy: bool) -> PyResult<Bound<'py, PyAny>> {
    let host_memory = if t.view().storage.read().host().is_some() { t.clone() } else { host(t)? };
    let owner = Bound::new(descr.py(), PyTensor(host_memory.clone()))?.into_any();
    let array = expose(&owner, &host_memory, descr)?;
    if copy { array.call_method0("copy") } else { Ok(array) }
}

#[pymethods]
impl PyTensor {
    /// `Tensor(obj)` is `asarray(obj)` with a copy.
    #[new]
    #[pyo3(signature = (obj, dtype=None, device=None))]
    fn new(obj: &Bound<'_, PyAny>, dtype: Option<&Bound<'_, PyAny>>, device: Option<&Bound<'_, PyAny>>) -> PyResult<PyTensor> {
        let dtype = parse_optional(dtype, "Tensor", "dtype")?;
        let on = device.filter(|d| !d.is_none()).map(|d| parse_device(Some(d), "Tensor")).transpose()?;
        Ok(PyTensor(crate::convert::asarray(obj, dtype, on.as_ref(), Some(true), "Tensor")?))
    }
    /// Lengths of the axes.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.shape())
    }
    /// Strides in elements.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.strides())
    }
    /// Number of axes.
    #[getter]
    fn ndim(&self) -> usize {
        self.0.rank()
    }
    /// Number of elements.
    #[getter]
    fn size(&self) -> usize {
        self.0.numel()
    }
    /// Bytes of the elements.
    #[getter]
    fn nbytes(&self) -> usize {
        self.0.numel() * self.0.dtype().size_bytes()
    }
    /// Element type.
    #[getter]
    fn dtype(&self) -> PyDType {
        PyDType(self.0.dtype())
    }
    /// Name of the device.
    #[getter]
    fn device(&self) -> String {
        self.0.device().name().to_owned()
    }
    /// All axes in reverse order.
    #[getter(T)]
    fn transposed(&self) -> PyResult<PyTensor> {
        self.0.t().or_raise().map(PyTensor)
    }
    /// The last two axes exchanged.
    #[getter(mT)]
    fn matrix_transposed(&self) -> PyResult<PyTensor> {
        self.0.mt().or_raise().map(PyTensor)
    }
    /// Whether the elements stand in row-major order.
    fn is_contiguous(&self) -> bool {
        self.0.is_contiguous()
    }
    /// How often the memory was changed in place.
    #[getter(_version)]
    fn version(&self) -> u64 {
        self.0.version()
    }

    /// The only element as a number of Python.
    fn item<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        number(py, &self.0, "item")
    }
    /// Nested lists of numbers of Python.
    fn tolist<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        numpy(py, &readable(&self.0)?, false, "tolist")?.call_method0("tolist")
    }
    fn __float__(&self, py: Python<'_>) -> PyResult<f64> {
        number(py, &self.0, "__float__")?.extract()
    }
    fn __int__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.get_type::<pyo3::types::PyInt>().call1((number(py, &self.0, "__int__")?,))
    }
    fn __complex__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.get_type::<pyo3::types::PyComplex>().call1((number(py, &self.0, "__complex__")?,))
    }
    fn __index__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        if self.0.rank() != 0 || self.0.dtype().kind() != bilin::Kind::Int {
            return Err(pyo3::exceptions::PyTypeError::new_err("__index__: only a 0-d tensor of integers is an index; use item()"));
        }
        number(py, &self.0, "__index__")
    }
    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        if self.0.numel() != 1 {
            let got = format!("a tensor of {} elements", self.0.numel());
            return Err(invalid("__bool__", "self", got, "only one element has a truth value; use all or any"));
        }
        number(py, &self.0, "__bool__")?.is_truthy()
    }
    /// The format of the only element's number, or without one the text.
    #[pyo3(signature = (spec, /))]
    fn __format__(slf: &Bound<'_, Self>, spec: &str) -> PyResult<String> {
        let py = slf.py();
        if spec.is_empty() {
            return slf.str()?.extract();
        }
        number(py, &slf.get().0, "__format__")?.call_method1("__format__", (spec,))?.extract()
    }
    fn __len__(&self) -> PyResult<usize> {
        let first = self.0.shape().first().copied();
        first.ok_or_else(|| pyo3::exceptions::PyTypeError::new_err("len: a 0-d tensor has no length; use item()"))
    }
    fn __hash__(slf: &Bound<'_, Self>) -> isize {
        (slf.as_ptr().addr() >> 4) as isize
    }

    /// A read-only array over this memory, or with `copy=True` a writable copy.
    #[pyo3(signature = (*, copy=None))]
    fn numpy<'py>(&self, py: Python<'py>, copy: Option<&Bound<'_, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        self.detached("numpy")?;
        let copy = copy.map(|c| flag(c, "numpy", "copy")).transpose()?.unwrap_or(false);
        numpy(py, &self.0, copy, "numpy")
    }
    /// `numpy` for DLPack: bfloat16, which NumPy's DLPack lacks, as uint16.
    fn _carried<'py>(&self, py: Python<'py>, copy: bool) -> PyResult<Bound<'py, PyAny>> {
        self.detached("__dlpack__")?;
        let descr = if self.0.dtype() == DType::Bf16 { PyArrayDescr::new(py, "uint16") } else { descr(py, self.0.dtype(), "__dlpack__") };
        array(&self.0, descr?, copy)
    }
    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(&self, py: Python<'py>, dtype: Option<&Bound<'py, PyAny>>, copy: Option<bool>) -> PyResult<Bound<'py, PyAny>> {
        self.detached("__array__")?;
        let array = numpy(py, &self.0, copy == Some(true), "__array__")?;
        let Some(dtype) = dtype.filter(|d| !d.is_none()) else { return Ok(array) };
        let kwargs = PyDict::new(py);
        kwargs.set_item("copy", false)?;
        let cast = array.call_method("astype", (dtype,), Some(&kwargs))?;
        if copy == Some(false) && !cast.is(&array) {
            return Err(invalid("__array__", "copy", "False", "another dtype needs a copy"));
        }
        Ok(cast)
    }
    /// NumPy leaves operators to this class.
    #[classattr]
    fn __array_ufunc__() -> Option<bool> {
        None
    }

    /// The same values in another dtype; differentiable between floating and complex dtypes.
    #[pyo3(signature = (dtype, /, *, copy=None, device=None))]
    fn astype(&self, dtype: &Bound<'_, PyAny>, copy: Option<&Bound<'_, PyAny>>, device: Option<&Bound<'_, PyAny>>) -> PyResult<PyTensor> {
        let out = self.0.astype(parse(dtype, "astype", "dtype")?).or_raise()?;
        let copy = copy.map(|c| flag(c, "astype", "copy")).transpose()?.unwrap_or(false);
        let out = if copy && out.dtype() == self.0.dtype() && !out.requires_grad() { out.copy().or_raise()? } else { out };
        match device.filter(|d| !d.is_none()) {
            Some(d) => out.to_device(&parse_device(Some(d), "astype")?).or_raise().map(PyTensor),
            None => Ok(PyTensor(out)),
        }
    }
    /// The same values on another device, without history.
    #[pyo3(signature = (device, /, *, stream=None))]
    fn to_device(&self, device: &Bound<'_, PyAny>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<PyTensor> {
        if stream.is_some_and(|s| !s.is_none()) {
            return Err(invalid("to_device", "stream", "given", "devices here have one queue; want None"));
        }
        self.0.to_device(&parse_device(Some(device), "to_device")?).or_raise().map(PyTensor)
    }
    /// The same elements under another shape; one length may be −1.
    #[pyo3(signature = (*shape))]
    fn reshape(&self, shape: &Bound<'_, PyTuple>) -> PyResult<PyTensor> {
        let first = if shape.len() == 1 { shape.get_item(0)? } else { shape.clone().into_any() };
        reshape(&self.0, &first).map(PyTensor)
    }
    /// Axes in another order; without arguments reversed.
    #[pyo3(signature = (*axes))]
    fn transpose(&self, axes: &Bound<'_, PyTuple>) -> PyResult<PyTensor> {
        let axes = match axes.len() {
            0 => return self.transposed(),
            1 => ints(&axes.get_item(0)?, "transpose", "axes")?,
            _ => ints(axes.as_any(), "transpose", "axes")?,
        };
        self.0.permute(&axes).or_raise_as("transpose", &["self"], &["axes"]).map(PyTensor)
    }
    /// Length-1 and new leading axes repeated to `shape`; a view.
    #[pyo3(signature = (*shape))]
    fn broadcast_to(&self, shape: &Bound<'_, PyTuple>) -> PyResult<PyTensor> {
        let first = if shape.len() == 1 { shape.get_item(0)? } else { shape.clone().into_any() };
        self.0.broadcast_to(parse_shape(&first, "broadcast_to", "shape")?).or_raise_as("broadcast_to", &["self"], &["shape"]).map(PyTensor)
    }

    /// Says that this leaf wants a gradient, or not; returns it.
    #[pyo3(signature = (requires_grad=None))]
    fn requires_grad_<'py>(slf: &Bound<'py, Self>, requires_grad: Option<&Bound<'_, PyAny>>) -> PyResult<Bound<'py, Self>> {
        let on = requires_grad.map(|r| flag(r, "requires_grad_", "requires_grad")).transpose()?.unwrap_or(true);
        slf.get().0.clone().requires_grad_(on).or_raise()?;
        Ok(slf.clone())
    }
    /// Whether a gradient flows to or through this tensor.
    #[getter]
    fn requires_grad(&self) -> bool {
        self.0.requires_grad()
    }
    #[setter]
    fn set_requires_grad(&self, on: &Bound<'_, PyAny>) -> PyResult<()> {
        self.0.clone().requires_grad_(flag(on, "requires_grad", "value")?).or_raise().map(|_| ())
    }
    /// Whether no recorded op made it.
    #[getter]
    fn is_leaf(&self) -> bool {
        self.0.is_leaf()
    }
    /// The gradient accumulated so far.
    #[getter]
    fn grad(&self) -> Option<PyTensor> {
        self.0.grad().map(PyTensor)
    }
    #[setter]
    fn set_grad(&self, grad: &Bound<'_, PyAny>) -> PyResult<()> {
        let grad = if grad.is_none() { None } else { Some(tensor_arg(grad, "grad", "value")?) };
        self.0.set_grad(grad).or_raise_as("grad", &["value"], &[])
    }
    /// Forgets the gradient.
    fn zero_grad(&self) {
        self.0.zero_grad();
    }
    /// The same memory without history.
    fn detach(&self) -> PyTensor {
        PyTensor(self.0.detach())
    }
    /// A copy in memory of its own; the gradient flows through it.
    fn clone(&self) -> PyResult<PyTensor> {
        if !self.0.requires_grad() || !bilin::is_grad_enabled() {
            return self.0.copy().or_raise().map(PyTensor);
        }
        // Adding nothing keeps −0 and is recorded.
        let zero = self.0.scalar_like(-0.0).or_raise()?;
        self.0.add(&zero).or_raise().map(PyTensor)
    }
    /// Keeps the gradient of this interior tensor.
    fn retain_grad(&self) -> PyResult<()> {
        self.0.retain_grad().or_raise()
    }
    /// The recorded op that made it.
    #[getter]
    fn grad_fn(&self) -> Option<crate::autograd::PyNode> {
        self.0.grad_fn().map(crate::autograd::PyNode)
    }
    /// Adds the gradient of this scalar to the `.grad` of the leaves it depends on.
    #[pyo3(signature = (gradient=None, retain_graph=None, create_graph=None))]
    fn backward(
        &self,
        py: Python<'_>,
        gradient: Option<&Bound<'_, PyAny>>,
        retain_graph: Option<&Bound<'_, PyAny>>,
        create_graph: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let gradient = gradient.filter(|g| !g.is_none()).map(|g| tensor_arg(g, "backward", "gradient")).transpose()?;
        let options = crate::autograd::options("backward", retain_graph, create_graph)?;
        let options = bilin::autograd::BackwardOptions { gradient, ..options };
        py.detach(|| self.0.backward_with(options)).map_err(|e| crate::autograd::of_pass(e, "backward", &["self"], &["gradient"]))
    }
    /// Shows every gradient that flows through this tensor to `hook`; a tensor that comes back takes its place.
    #[pyo3(signature = (hook, /))]
    fn register_hook(&self, hook: &Bound<'_, PyAny>) -> PyResult<crate::autograd::PyHook> {
        crate::autograd::register_hook(&self.0, hook)
    }
    /// Calls `hook` with this leaf each time a backward has added to its `.grad`.
    #[pyo3(signature = (hook, /))]
    fn register_post_accumulate_grad_hook(&self, hook: &Bound<'_, PyAny>) -> PyResult<crate::autograd::PyHook> {
        crate::autograd::register_after_hook(&self.0, hook)
    }
    /// The dtype in which the gradient is kept: its own, or float32 for a half leaf.
    #[getter]
    fn grad_dtype(&self) -> PyDType {
        PyDType(self.0.grad_dtype())
    }
    #[setter]
    fn set_grad_dtype(&self, dtype: &Bound<'_, PyAny>) -> PyResult<()> {
        self.0.set_grad_dtype(parse(dtype, "grad_dtype", "dtype")?).or_raise()
    }

    /// Every element becomes `value`.
    #[pyo3(signature = (value, /))]
    fn fill_<'py>(slf: &Bound<'py, Self>, value: &Bound<'_, PyAny>) -> PyResult<Bound<'py, Self>> {
        crate::operators::assign(&slf.get().0, value, "fill_", "value")?;
        Ok(slf.clone())
    }
    /// Copies `source`, which broadcasts, into this memory.
    #[pyo3(signature = (source, /))]
    fn copy_<'py>(slf: &Bound<'py, Self>, source: &Bound<'_, PyAny>) -> PyResult<Bound<'py, Self>> {
        crate::operators::assign(&slf.get().0, source, "copy_", "source")?;
        Ok(slf.clone())
    }
    /// Every element becomes 0.
    fn zero_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        slf.get().0.zero_().or_raise_as("zero_", &["self"], &[])?;
        Ok(slf.clone())
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let t = &self.0;
        let state = (
            PyBytes::new(py, &t.to_bytes().or_raise()?),
            PyTuple::new(py, t.shape())?,
            t.dtype().name(),
            t.device().name(),
            t.is_leaf() && t.requires_grad(),
        );
        Ok((py.import("bilin")?.getattr("_rebuild")?, state.into_pyobject(py)?))
    }
    fn __copy__(&self) -> PyTensor {
        PyTensor(self.0.clone())
    }
    #[pyo3(signature = (memo, /))]
    fn __deepcopy__(&self, memo: &Bound<'_, PyAny>) -> PyResult<PyTensor> {
        let _ = memo;
        let copy = self.0.copy().or_raise()?;
        let wanted = self.0.is_leaf() && self.0.requires_grad();
        Ok(PyTensor(if wanted { copy.requires_grad_(true).or_raise()? } else { copy }))
    }
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let array = numpy(py, &readable(&self.0)?, false, "repr")?;
        let kwargs = PyDict::new(py);
        kwargs.set_item("separator", ", ")?;
        kwargs.set_item("prefix", "Tensor(")?;
        let text: String = py.import("numpy")?.call_method("array2string", (array,), Some(&kwargs))?.extract()?;
        let mut out = format!("Tensor({text}, dtype={}", self.0.dtype().name());
        if self.0.numel() == 0 {
            out += &format!(", shape={}", bilin::shape_text(self.0.shape()));
        }
        if self.0.device().name() != "cpu" {
            out += &format!(", device='{}'", self.0.device().name());
        }
        match self.0.grad_fn() {
            Some(node) => out += &format!(", grad_fn={}", node.name()),
            None if self.0.requires_grad() => out += ", requires_grad=True",
            None => {}
        }
        Ok(out + ")")
    }
}

impl PyTensor {
    fn detached(&self, func: &str) -> PyResult<()> {
        if self.0.requires_grad() {
            return Err(invalid(func, "self", "a tensor that requires a gradient", "call detach() first: NumPy keeps no history"));
        }
        Ok(())
    }
}

/// `reshape` where one length may be −1.
pub fn reshape(t: &Tensor, shape: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let mut lens = ints(shape, "reshape", "shape")?;
    if let Some(at) = lens.iter().position(|&n| n == -1) {
        let others: usize = lens.iter().filter(|&&n| n != -1).map(|&n| n.max(0) as usize).product();
        if others == 0 || !t.numel().is_multiple_of(others) {
            let want = format!("{} elements don't divide among the other lengths", t.numel());
            return Err(new("ShapeMismatch", format!("reshape: shape has a length of −1; {want}")));
        }
        lens[at] = (t.numel() / others) as isize;
    }
    let lens: PyResult<Vec<usize>> = lens
        .into_iter()
        .map(|n| usize::try_from(n).map_err(|_| invalid("reshape", "shape", n, "want lengths from 0, and at most one −1")))
        .collect();
    t.reshape(lens?).or_raise_as("reshape", &["x"], &["shape"])
}

/// A tensor from its pickled parts.
#[pyfunction]
#[pyo3(name = "_rebuild")]
pub fn rebuild(bytes: &[u8], shape: Vec<usize>, dtype: &str, device: &str, requires_grad: bool) -> PyResult<PyTensor> {
    let dtype = DType::parse(dtype).ok_or_else(|| invalid("_rebuild", "dtype", dtype, "want a dtype's name"))?;
    let t = Tensor::from_bytes(bytes, shape, dtype, &<Device as bilin::Devices>::parse(device).or_raise()?).or_raise()?;
    Ok(PyTensor(if requires_grad { t.requires_grad_(true).or_raise()? } else { t }))
}

/// Joined along an axis.
#[pyfunction]
#[pyo3(signature = (tensors, /, *, axis=None))]
pub fn stack(tensors: &Bound<'_, PyAny>, axis: Option<&Bound<'_, PyAny>>) -> PyResult<PyTensor> {
    let all = sequence(tensors, "stack")?;
    let axis = axis.map(|a| int(a, "stack", "axis")).transpose()?.unwrap_or(0);
    bilin::stack(&all.iter().collect::<Vec<_>>(), axis).or_raise_as("stack", &["tensors"], &["axis"]).map(PyTensor)
}

/// Operands of one dtype from a list or tuple.
pub fn sequence(tensors: &Bound<'_, PyAny>, func: &str) -> PyResult<Vec<Tensor>> {
    let is_sequence = tensors.is_instance_of::<PyList>()
        || tensors.is_instance_of::<PyTuple>()
        || tensors.is_instance_of::<PyTensor>()
        || tensors.is_instance_of::<PyUntypedArray>();
    if !is_sequence || tensors.getattr("ndim").is_ok_and(|n| n.eq(0).unwrap_or(false)) {
        return Err(crate::error::wrong_type(func, "tensors", tensors, "a list or tuple of tensors"));
    }
    let items: Vec<Bound<'_, PyAny>> = tensors.try_iter()?.collect::<PyResult<_>>()?;
    if items.is_empty() {
        return Err(invalid(func, "tensors", "an empty list", "want at least one"));
    }
    let refs: Vec<(&Bound<'_, PyAny>, &str)> = items.iter().map(|i| (i, "tensors")).collect();
    crate::convert::promoted(&refs, func)
}
