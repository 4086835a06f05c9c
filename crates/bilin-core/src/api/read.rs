//! Reading tensors.

use crate::exec::device::Device;
use crate::exec::launch;
use crate::ops::{astype, contiguous};
use crate::shape::dtype::{DType, Element};
use crate::shape::error::{Error, Result};
use crate::tape::Tensor;

impl Tensor {
    /// The same values in `dtype`; the same tensor where it has it. Differentiable between floating and complex dtypes; to
    /// integers and bool the gradient stops. Errors: `Unsupported` where the device lacks the dtype.
    pub fn astype(&self, dtype: DType) -> Result<Tensor> {
        astype(self, dtype)
    }

    /// The same values in row-major order; the same tensor where they stand so.
    pub fn contiguous(&self) -> Result<Tensor> {
        contiguous(self)
    }

    /// A copy of the values in memory of its own, without history.
    pub fn copy(&self) -> Result<Tensor> {
        Ok(Tensor::from_view(launch::copy(&"copy".into(), self.single("copy")?, self.dtype())?))
    }

    /// Row-major native bytes of the elements.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let view = self.single("to_vec")?;
        let dense = if self.is_contiguous() && self.layout().offset() == 0 {
            view.clone()
        } else {
            launch::copy(&"to_vec".into(), view, self.dtype())?
        };
        let mut out = vec![0u8; self.numel() * self.dtype().size_bytes()];
        self.device().sync()?;
        self.device().backend().download(dense.storage.read().as_ref(), &mut out)?;
        Ok(out)
    }

    /// The elements in row-major order. Errors: `DtypeMismatch` where T isn't the tensor's dtype.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        if T::DTYPE != self.dtype() {
            return Err(Error::DtypeMismatch { op: "to_vec".into(), dtypes: vec![self.dtype(), T::DTYPE], remedy: "convert with astype" });
        }
        let bytes = self.to_bytes()?;
        Ok(bytes.chunks_exact(size_of::<T::Repr>()).map(|c| T::from_repr(bytemuck::pod_read_unaligned(c))).collect())
    }

    /// The only element. Errors: `ShapeMismatch` for another count, `DtypeMismatch`.
    pub fn item<T: Element>(&self) -> Result<T> {
        let all = if self.numel() == 1 { self.to_vec()? } else { Vec::new() };
        all.first().copied().ok_or_else(|| Error::ShapeMismatch {
            op: "item".into(),
            shapes: vec![self.shape().to_vec()],
            fault: crate::ShapeFault::Count { want: "one element".into(), remedy: "index it first, or use to_vec" },
        })
    }

    /// The same values on another device, without history; the same tensor where it is there.
    pub fn to_device(&self, device: &Device) -> Result<Tensor> {
        if self.device() == device { Ok(self.clone()) } else { Tensor::from_bytes(&self.to_bytes()?, self.shape(), self.dtype(), device) }
    }
}
