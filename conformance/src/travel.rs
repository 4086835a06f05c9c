//! Functions of a device without f64, seen from one that has it.

use bilin::autograd::{BackwardContext, ForwardContext, Function};
use bilin::{DType, Device, Result, Tensor};

/// The same numbers in another dtype on another device; its gradient travels back.
struct Travel {
    to: Device,
    dtype: DType,
    back: (Device, DType),
}

impl Function for Travel {
    fn forward(&self, _ctx: &mut ForwardContext, x: &[Tensor]) -> Result<Vec<Tensor>> {
        // The cast is made where both dtypes are.
        let here = x[0].to_device(&Device::reference())?.astype(self.dtype)?;
        Ok(vec![here.to_device(&self.to)?])
    }
    fn backward(&self, _ctx: &BackwardContext, g: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let (to, dtype) = self.back.clone();
        travel(&g[0], &to, dtype).map(|g| vec![Some(g)])
    }
    fn jvp(&self, _x: &[Tensor], _y: &[Tensor], t: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        travel(&t[0], &self.to, self.dtype).map(|t| vec![Some(t)])
    }
}

/// `x` in `dtype` on the device `to`, with its history.
pub fn travel(x: &Tensor, to: &Device, dtype: DType) -> Result<Tensor> {
    let back = (x.device().clone(), x.dtype());
    Ok(Travel { to: to.clone(), dtype, back }.apply(&[x])?.swap_remove(0))
}

/// `f`, which runs on the device `there` in f32, as a function of tensors that are on the reference in f64. What isn't of floats
/// goes as it is.
pub fn from_f64(there: &Device, f: impl Fn(&[Tensor]) -> Result<Tensor>) -> impl Fn(&[Tensor]) -> Result<Tensor> {
    move |x| {
        let to = |x: &Tensor| if x.dtype() == DType::F64 { travel(x, there, DType::F32) } else { x.to_device(there) };
        let y = f(&x.iter().map(to).collect::<Result<Vec<_>>>()?)?;
        travel(&y, &Device::reference(), DType::F64)
    }
}
