//! Making tensors.

use super::Rng;
use crate::exec::device::Device;
use crate::exec::launch::{self, View};
use crate::exec::map_expr::Prim;
use crate::ops::astype;
use crate::shape::dtype::{DType, Element, Kind};
use crate::shape::error::{Error, OpName, Result};
use crate::shape::layout::checked_numel;
use crate::tape::Tensor;

impl Tensor {
    /// A tensor of row-major `data`. Errors: `InvalidArgument` where the lengths don't multiply to `data.len()`.
    pub fn from_slice<T: Element>(data: &[T], shape: impl AsRef<[usize]>, device: &Device) -> Result<Tensor> {
        let reprs: Vec<T::Repr> = data.iter().map(|x| x.to_repr()).collect();
        Tensor::from_bytes(bytemuck::cast_slice(&reprs), shape, T::DTYPE, device)
    }

    /// [`Tensor::from_slice`] of a vector.
    pub fn from_vec<T: Element>(data: Vec<T>, shape: impl AsRef<[usize]>, device: &Device) -> Result<Tensor> {
        Tensor::from_slice(&data, shape, device)
    }

    /// A tensor of row-major native bytes; bool is a byte, 0 or 1.
    pub fn from_bytes(bytes: &[u8], shape: impl AsRef<[usize]>, dtype: DType, device: &Device) -> Result<Tensor> {
        let (op, shape) = (OpName::from("from_slice"), shape.as_ref());
        let numel = checked_numel(&op, shape, dtype)?;
        if numel.checked_mul(dtype.size_bytes()) != Some(bytes.len()) {
            let got = format!("{} elements", bytes.len() / dtype.size_bytes());
            return Err(Error::invalid(op, "data", got, format!("want {numel} for shape {}", crate::shape_text(shape))));
        }
        if !device.backend().has_dtype(dtype) {
            return Err(Error::Unsupported { op, dtype, backend: device.backend().name().into(), remedy: "use another dtype or device" });
        }
        let view = View::alloc(&op, device, shape, dtype)?;
        device.backend().upload(bytes, view.storage.write().as_mut())?;
        Ok(Tensor::from_view(view))
    }

    /// A 0-d tensor.
    pub fn scalar<T: Element>(value: T, device: &Device) -> Result<Tensor> {
        Tensor::from_slice(&[value], [], device)
    }

    fn filled(op: &'static str, shape: impl AsRef<[usize]>, dtype: DType, device: &Device, value: Prim) -> Result<Tensor> {
        Ok(Tensor::from_view(launch::full(&op.into(), device, shape.as_ref(), dtype, value)?))
    }

    /// Zeros.
    pub fn zeros(shape: impl AsRef<[usize]>, dtype: DType, device: &Device) -> Result<Tensor> {
        Tensor::filled("zeros", shape, dtype, device, Prim::ConstInt(0))
    }

    /// Ones.
    pub fn ones(shape: impl AsRef<[usize]>, dtype: DType, device: &Device) -> Result<Tensor> {
        Tensor::filled("ones", shape, dtype, device, Prim::ConstInt(1))
    }

    /// One value everywhere.
    pub fn full(shape: impl AsRef<[usize]>, value: impl Into<f64>, dtype: DType, device: &Device) -> Result<Tensor> {
        let value = value.into();
        let prim = if matches!(dtype.kind(), Kind::Int | Kind::Bool) { Prim::ConstInt(value as i64) } else { Prim::Const(value) };
        Tensor::filled("full", shape, dtype, device, prim)
    }

    /// The n×n identity.
    pub fn eye(n: usize, dtype: DType, device: &Device) -> Result<Tensor> {
        let out = Tensor::zeros([n, n], dtype, device)?;
        let diagonal = out.layout().diagonal(0, 1);
        let part = Tensor::from_view(View { layout: diagonal, ..out.view().clone() });
        part.fill_(1.0)?;
        Ok(Tensor::from_view(out.view().clone()))
    }

    /// start, start + step, … below (for a negative step above) `stop`. Errors: `InvalidArgument` for step 0 or numbers that
    /// aren't finite.
    pub fn arange(start: f64, stop: f64, step: f64, dtype: DType, device: &Device) -> Result<Tensor> {
        if step == 0.0 || !(start.is_finite() && stop.is_finite() && step.is_finite()) {
            return Err(Error::invalid(
                "arange",
                "step",
                format!("{step} from {start} to {stop}"),
                "want finite numbers and a step other than 0",
            ));
        }
        let count = ((stop - start) / step).ceil().max(0.0);
        if count > 1e15 {
            return Err(Error::TooLarge { op: "arange".into(), shape: vec![usize::MAX], dtype });
        }
        Tensor::sequence("arange", count as usize, dtype, device, |i| start + i as f64 * step)
    }

    /// `count` numbers from `start` to `stop`, both included.
    pub fn linspace(start: f64, stop: f64, count: usize, dtype: DType, device: &Device) -> Result<Tensor> {
        let step = if count > 1 { (stop - start) / (count - 1) as f64 } else { 0.0 };
        Tensor::sequence("linspace", count, dtype, device, |i| if i + 1 == count && i > 0 { stop } else { start + i as f64 * step })
    }

    fn sequence(op: &'static str, count: usize, dtype: DType, device: &Device, f: impl FnMut(usize) -> f64) -> Result<Tensor> {
        checked_numel(&op.into(), &[count], DType::F64)?;
        let mut data: Vec<f64> = Vec::new();
        data.try_reserve_exact(count).map_err(|_| Error::TooLarge { op: op.into(), shape: vec![count], dtype })?;
        data.extend((0..count).map(f));
        rounded(&data, &[count], DType::F64, dtype, device)
    }

    fn random(
        op: &'static str,
        shape: &[usize],
        dtype: DType,
        device: &Device,
        rng: &mut Rng,
        draw: fn(&mut Rng) -> [f64; 2],
    ) -> Result<Tensor> {
        if !dtype.is_differentiable() {
            return Err(Error::DtypeMismatch { op: op.into(), dtypes: vec![dtype], remedy: "want a floating or complex dtype" });
        }
        let numel = checked_numel(&op.into(), shape, DType::C128)?;
        let parts = if dtype.is_complex() { 2 } else { 1 };
        let mut data: Vec<f64> = Vec::new();
        data.try_reserve_exact(numel * parts + 1).map_err(|_| Error::TooLarge { op: op.into(), shape: shape.to_vec(), dtype })?;
        while data.len() < numel * parts {
            data.extend(draw(rng));
        }
        data.truncate(numel * parts);
        let wide = if parts == 2 { DType::C128 } else { DType::F64 };
        rounded(&data, shape, wide, dtype, device)
    }

    /// Uniform numbers in [0, 1); of complex dtypes both parts. Drawn in f64 and rounded, so a narrow dtype may show 1.
    pub fn rand(shape: impl AsRef<[usize]>, dtype: DType, device: &Device, rng: &mut Rng) -> Result<Tensor> {
        Tensor::random("rand", shape.as_ref(), dtype, device, rng, Rng::uniforms)
    }

    /// Standard normal numbers; of complex dtypes both parts.
    pub fn randn(shape: impl AsRef<[usize]>, dtype: DType, device: &Device, rng: &mut Rng) -> Result<Tensor> {
        Tensor::random("randn", shape.as_ref(), dtype, device, rng, Rng::normals)
    }
}

/// Values of dtype `wide` in `dtype`: rounded on the device, or on the host where the device can't hold `wide`.
fn rounded(data: &[f64], shape: &[usize], wide: DType, dtype: DType, device: &Device) -> Result<Tensor> {
    let on_host = Device::reference();
    let at = if device.backend().has_dtype(wide) { device } else { &on_host };
    astype(&Tensor::from_bytes(bytemuck::cast_slice(data), shape, wide, at)?, dtype)?.to_device(device)
}
