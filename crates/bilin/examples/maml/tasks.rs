//! Tasks: sines of random height and shift, ten points to adapt by and ten to judge by.

use bilin::prelude::*;

/// Points of each part of a task.
pub const POINTS: usize = 10;

/// Points of T tasks: each of shape (T, 10, 1).
#[derive(Debug)]
pub struct Tasks {
    /// To adapt by.
    pub given: [Tensor; 2],
    /// To judge by.
    pub asked: [Tensor; 2],
}

impl Tasks {
    /// height·sin(x − shift) for heights in (0.1, 5) and shifts in (0, π), at places in (−5, 5).
    pub fn draw(count: usize, device: &Device, rng: &mut Rng) -> Result<Tasks> {
        let mut uniform = |shape: [usize; 3], low: f64, high: f64| -> Result<Tensor> {
            Tensor::rand(shape, DType::F64, device, rng)?.mul_scalar(high - low)?.add_scalar(low)
        };
        let height = uniform([count, 1, 1], 0.1, 5.0)?;
        let shift = uniform([count, 1, 1], 0.0, std::f64::consts::PI)?;
        let mut part = || -> Result<[Tensor; 2]> {
            let x = uniform([count, POINTS, 1], -5.0, 5.0)?;
            let y = x.sub(&shift)?.sin()?.mul(&height)?;
            Ok([x, y])
        };
        Ok(Tasks { given: part()?, asked: part()? })
    }
}
