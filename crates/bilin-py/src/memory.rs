//! NumPy's memory as the engine's, and the engine's as NumPy's. The only room of this crate with `unsafe`.

use std::any::Any;
use std::os::raw::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use bilin::exec::buffer::Buffer;
use bilin::exec::launch::View;
use bilin::exec::storage::Storage;
use bilin::{DType, Device, Dims, Layout, Strides, Tensor};
use numpy::npyffi::{NPY_ARRAY_WRITEABLE, PY_ARRAY_API, PyArrayObject};
use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::error::OrRaise;

/// Alignment that the engine's kernels take for granted.
const ALIGN: usize = 16;

/// Memory of a NumPy array, which it keeps alive.
struct Borrowed {
    first: NonNull<u8>,
    len: usize,
    is_writable: bool,
    /// The array; given back when the buffer is dropped, on any thread.
    _owner: Py<PyAny>,
}

// SAFETY: the memory belongs to the array, which lives as long; it is written only through `host_mut`, under the storage's guard.
unsafe impl Send for Borrowed {}
// SAFETY: shared access only reads.
unsafe impl Sync for Borrowed {}

impl std::fmt::Debug for Borrowed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Borrowed").field("len", &self.len).finish()
    }
}

impl Buffer for Borrowed {
    fn byte_len(&self) -> usize {
        self.len
    }
    fn host(&self) -> Option<&[u8]> {
        // SAFETY: `len` bytes from `first` are the array's, kept alive by `_owner`.
        Some(unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) })
    }
    fn host_mut(&mut self) -> Option<&mut [u8]> {
        // SAFETY: as above, and NumPy says that it may be written.
        self.is_writable.then(|| unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.len) })
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// A tensor over the memory of `array`, whose elements are of `dtype` in native byte order; `None` where strides aren't whole
/// elements or the memory isn't aligned as the kernels want it.
pub fn borrow(array: &Bound<'_, PyUntypedArray>, dtype: DType, device: &Device) -> PyResult<Option<Tensor>> {
    let size = dtype.size_bytes() as isize;
    let (shape, strides) = (array.shape(), array.strides());
    if array.is_empty() || strides.iter().any(|s| s % size != 0) {
        return Ok(None);
    }
    // SAFETY: a valid array, read under the GIL.
    let (data, flags) = unsafe { ((*array.as_array_ptr()).fields.data.cast::<u8>(), (*array.as_array_ptr()).fields.flags) };
    let reach = |sign: isize| -> isize { shape.iter().zip(strides).map(|(&n, &s)| s * (n as isize - 1)).filter(|r| r * sign > 0).sum() };
    let (low, high) = (reach(-1), reach(1));
    let first = data.wrapping_offset(low);
    let Some(first) = NonNull::new(first).filter(|p| p.addr().get().is_multiple_of(ALIGN)) else { return Ok(None) };
    let buffer = Borrowed {
        first,
        len: (high - low + size) as usize,
        is_writable: flags & NPY_ARRAY_WRITEABLE != 0,
        _owner: array.as_any().clone().unbind(),
    };
    let layout = Layout::from_parts(
        &"asarray".into(),
        Dims::from_slice(shape),
        strides.iter().map(|s| s / size).collect::<Strides>(),
        (-low / size) as usize,
    )
    .or_raise()?;
    let storage = Arc::new(Storage::adopt(device, Box::new(buffer)).or_raise()?);
    Ok(Some(Tensor::from_view(View { storage, layout, dtype })))
}

/// DLPack's description of memory.
#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: [i32; 2],
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
}

/// What a versioned capsule holds before the description; a legacy one begins with it.
#[repr(C)]
struct DlVersioned {
    version: [u32; 2],
    context: *mut c_void,
    deleter: *mut c_void,
    flags: u64,
    tensor: DlTensor,
}

/// What DLPack calls the elements of a capsule: unsigned integers, bfloat16.
const UINT: u8 = 1;
const BFLOAT: u8 = 4;

/// Calls the bfloat16 elements of an unused DLPack capsule uint16, or the other way round, since NumPy's DLPack has no
/// bfloat16. False where it holds something else, which stays as it is.
pub fn relabel(capsule: &Bound<'_, PyAny>, to_bits: bool) -> bool {
    let (from, to) = if to_bits { (BFLOAT, UINT) } else { (UINT, BFLOAT) };
    let object = capsule.as_ptr();
    // SAFETY: a capsule of this name, not yet consumed, holds a pointer to DLPack's structure, which belongs to whoever has
    // the capsule; only the number of the element type is written, under the lock that all users of the capsule hold.
    unsafe {
        let tensor = if ffi::PyCapsule_IsValid(object, c"dltensor_versioned".as_ptr()) != 0 {
            let managed = ffi::PyCapsule_GetPointer(object, c"dltensor_versioned".as_ptr()).cast::<DlVersioned>();
            // Of another major version only the version may be read.
            if (*managed).version[0] != 1 {
                return false;
            }
            &raw mut (*managed).tensor
        } else if ffi::PyCapsule_IsValid(object, c"dltensor".as_ptr()) != 0 {
            ffi::PyCapsule_GetPointer(object, c"dltensor".as_ptr()).cast::<DlTensor>()
        } else {
            return false;
        };
        let is_found = ((*tensor).code, (*tensor).bits, (*tensor).lanes) == (from, 16, 1);
        if is_found {
            (*tensor).code = to;
        }
        is_found
    }
}

/// The bytes of a C-contiguous array.
pub fn bytes_of(array: &Bound<'_, PyUntypedArray>) -> Vec<u8> {
    let len = array.len() * array.dtype().itemsize();
    if len == 0 {
        return Vec::new();
    }
    // SAFETY: a valid C-contiguous array of `len` bytes, read under the GIL.
    unsafe { std::slice::from_raw_parts((*array.as_array_ptr()).fields.data.cast::<u8>(), len) }.to_vec()
}

/// A read-only array over the memory of `tensor`, which `owner` keeps alive. The memory must be the host's.
pub fn expose<'py>(owner: &Bound<'py, PyAny>, tensor: &Tensor, descr: Bound<'py, PyArrayDescr>) -> PyResult<Bound<'py, PyAny>> {
    let py = owner.py();
    let size = tensor.dtype().size_bytes();
    let data = {
        let guard = tensor.view().storage.read();
        let bytes =
            guard.host().ok_or_else(|| crate::error::invalid("numpy", "self", "memory of another device", "use to_device('cpu')"))?;
        let start = if tensor.numel() == 0 { 0 } else { tensor.layout().offset() * size };
        bytes.as_ptr().wrapping_add(start)
    };
    let mut dims: Vec<isize> = tensor.shape().iter().map(|&n| n as isize).collect();
    let mut strides: Vec<isize> = tensor.strides().iter().map(|&s| s * size as isize).collect();
    // SAFETY: dims and strides have one entry an axis and describe elements inside the storage, which `owner` keeps alive as
    // the array's base; the array isn't writable. NewFromDescr and SetBaseObject steal the references given to them.
    unsafe {
        let array = PY_ARRAY_API.PyArray_NewFromDescr(
            py,
            py.get_type::<PyUntypedArray>().as_type_ptr(),
            descr.into_dtype_ptr(),
            dims.len() as i32,
            dims.as_mut_ptr(),
            strides.as_mut_ptr(),
            data.cast_mut().cast::<c_void>(),
            0,
            std::ptr::null_mut(),
        );
        let array = Bound::from_owned_ptr_or_err(py, array)?;
        if PY_ARRAY_API.PyArray_SetBaseObject(py, array.as_ptr().cast::<PyArrayObject>(), owner.clone().into_ptr()) < 0 {
            return Err(PyErr::fetch(py));
        }
        Ok(array)
    }
}
