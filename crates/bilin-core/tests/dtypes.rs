//! Conversions between dtypes against integers and the neighbours of the result.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use bilin_core::{DType, Device, Rng, Tensor};
use half::{bf16, f16};

/// Whether `got` is the number nearest to `x` among it and its two neighbours, the even one at a tie.
fn is_nearest(x: f64, got: f64, below: f64, above: f64, is_even: bool) -> bool {
    let (d, b, a) = ((got - x).abs(), (below - x).abs(), (above - x).abs());
    (d < b || (d == b && is_even)) && (d < a || (d == a && is_even))
}

#[test]
fn halves_are_the_nearest() {
    let dev = Device::reference();
    let mut rng = Rng::new(5);
    let mut xs = vec![0.0, -0.6445312500001, 65504.0, 1e-8, 6e-8];
    for _ in 0..20_000 {
        let [a, b, c, _] = rng.next_u32x4();
        // Near a tie of bf16 (bit 15 of f32), off by nothing, by an f32 bit or by less than that.
        let near = f64::from(f32::from_bits((a & 0x007F_0000) | 0x3F00_8000 | (b & 3)));
        xs.push(near + f64::from(c as i32) * 1e-22);
        xs.push(f64::from(f32::from_bits(a & 0x007F_FFFF | 0x3B00_0000)));
        // Ties of f16.
        xs.push(f64::from(f16::from_bits(0x3000 | (b & 0x3FF) as u16)) + 2f64.powi(-14) + f64::from(c as i32) * 1e-22);
    }
    let t = Tensor::from_slice(&xs, [xs.len()], &dev).unwrap();
    for (x, h) in xs.iter().zip(t.astype(DType::Bf16).unwrap().to_vec::<bf16>().unwrap()) {
        let at = |step: i32| bf16::from_bits((i32::from(h.to_bits() & 0x7FFF) + step).max(0) as u16).to_f64() * x.signum();
        assert!(is_nearest(*x, h.to_f64(), at(-1), at(1), h.to_bits() & 1 == 0), "{x:e} as bf16 is {h}");
    }
    for (x, h) in xs.iter().zip(t.astype(DType::F16).unwrap().to_vec::<f16>().unwrap()) {
        let at = |step: i32| f16::from_bits((i32::from(h.to_bits() & 0x7FFF) + step).max(0) as u16).to_f64() * x.signum();
        assert!(is_nearest(*x, h.to_f64(), at(-1), at(1), h.to_bits() & 1 == 0), "{x:e} as f16 is {h}");
    }
}
