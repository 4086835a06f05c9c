//! Comparing tensors: by bits, by value, within a derived bound.

use bilin::{DType, Device, Kind, Result, Tensor, c128};

use crate::subject::has_reference_bits;

/// The constant of the error bound c·u·K·(|A|·|B|).
pub const C: f64 = 4.0;

/// Fails where shapes, dtypes or any byte differ.
pub fn assert_same_bits(got: &Tensor, want: &Tensor, what: &str) {
    assert_eq!((got.shape(), got.dtype()), (want.shape(), want.dtype()), "{what}");
    let (a, b) = (got.to_bytes().expect("bytes"), want.to_bytes().expect("bytes"));
    let size = got.dtype().size_bytes();
    if let Some(at) = a.iter().zip(&b).position(|(x, y)| x != y) {
        let i = at / size;
        let (x, y) = (numbers(got)[i], numbers(want)[i]);
        panic!("{what}: element {i} of {:?} is {x}, want {y} ({:?} and {:?})", got.shape(), &a[i * size..][..size], &b[i * size..][..size]);
    }
}

/// The elements as complex f64, exact for all dtypes but large int64.
pub fn numbers(t: &Tensor) -> Vec<c128> {
    macro_rules! of {
        ($t:ty, $f:expr) => {
            t.to_vec::<$t>().expect("elements").into_iter().map($f).collect()
        };
    }
    let re = |x: f64| c128::new(x, 0.0);
    match t.dtype() {
        DType::Bool => of!(bool, |x| re(f64::from(u8::from(x)))),
        DType::U8 => of!(u8, |x| re(f64::from(x))),
        DType::I8 => of!(i8, |x| re(f64::from(x))),
        DType::I16 => of!(i16, |x| re(f64::from(x))),
        DType::I32 => of!(i32, |x| re(f64::from(x))),
        DType::I64 => of!(i64, |x| re(x as f64)),
        DType::F16 => of!(bilin::f16, |x| re(x.to_f64())),
        DType::Bf16 => of!(bilin::bf16, |x| re(x.to_f64())),
        DType::F32 => of!(f32, |x| re(f64::from(x))),
        DType::F64 => of!(f64, re),
        DType::C64 => of!(bilin::c64, |z| c128::new(f64::from(z.re), f64::from(z.im))),
        DType::C128 => of!(c128, |z| z),
    }
}

/// Whether two numbers are equal, or within `bound` of each other, parts that aren't finite alike.
pub fn is_close(got: c128, want: c128, bound: f64) -> bool {
    let part = |a: f64, b: f64| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= bound;
    part(got.re, want.re) && part(got.im, want.im)
}

/// Fails where an element is further from `want` than its bound.
pub fn assert_close(got: &Tensor, want: &[c128], bound: impl Fn(usize) -> f64, what: &str) {
    let got = numbers(got);
    assert_eq!(got.len(), want.len(), "{what}: number of elements");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!(is_close(*g, *w, bound(i)), "{what}: element {i} is {g}, want {w} within {:e}", bound(i));
    }
}

/// Fails where `got` isn't `want`, which the reference made of `operands`: the same bits on a device that promises them, and
/// [near](assert_near) on another.
pub fn assert_reference(got: &Tensor, want: &Tensor, operands: &[Tensor], what: &str) {
    if has_reference_bits(got.device()) { assert_same_bits(got, want, what) } else { assert_near(got, want, operands, what) }
}

/// Fails where whole numbers differ from those that the reference made of `operands`, or floats by more than c·u·K·S: K counts the
/// elements of the largest operand, so all terms of any sum, and S is the largest number there or in the result.
pub fn assert_near(got: &Tensor, want: &Tensor, operands: &[Tensor], what: &str) {
    if matches!(got.dtype().kind(), Kind::Int | Kind::Bool) {
        return assert_same_bits(got, want, what);
    }
    assert_eq!((got.shape(), got.dtype()), (want.shape(), want.dtype()), "{what}");
    let want = numbers(want);
    let finite = |x: f64| if x.is_finite() { x.abs() } else { 0.0 };
    let size = want.iter().chain(&operands.iter().flat_map(numbers).collect::<Vec<_>>()).fold(1.0f64, |m, z| m.max(finite(z.re)));
    let terms = operands.iter().map(Tensor::numel).max().unwrap_or(1).max(1) as f64;
    let u = got.dtype().accumulator().unit_roundoff();
    assert_close(got, &want, |i| C * u * terms * size + got.dtype().unit_roundoff() * 2.0 * finite(want[i].re), what);
}

/// Where f64 is: the tensor's device, or the reference.
fn with_f64(x: &Tensor) -> Device {
    if x.device().backend().has_dtype(DType::F64) { x.device().clone() } else { Device::reference() }
}

/// |x| in f64, on the tensor's device or where f64 is.
pub fn magnitudes(x: &Tensor) -> Tensor {
    let data: Vec<f64> = numbers(x).into_iter().map(|z| z.re.abs() + z.im.abs()).collect();
    Tensor::from_vec(data, x.shape(), &with_f64(x)).expect("a tensor")
}

/// The values in f64, or c128 for complex dtypes, on the tensor's device or where f64 is.
pub fn widened(x: &Tensor) -> Tensor {
    let data = numbers(x);
    match x.dtype().kind() {
        Kind::Complex => Tensor::from_vec(data, x.shape(), &with_f64(x)),
        _ => Tensor::from_vec(data.into_iter().map(|z| z.re).collect::<Vec<f64>>(), x.shape(), &with_f64(x)),
    }
    .expect("a tensor")
}

/// Fails where a product of `operands` in floating point, with `terms` summed, is outside c·u·K·(|A|·|B|) plus one rounding.
pub fn assert_product_rule(got: &Tensor, operands: &[Tensor], terms: usize, product: impl Fn(&[Tensor]) -> Result<Tensor>, what: &str) {
    let dtype = operands[0].dtype();
    let want = numbers(&product(&operands.iter().map(widened).collect::<Vec<_>>()).expect("the product in f64"));
    let size = numbers(&product(&operands.iter().map(magnitudes).collect::<Vec<_>>()).expect("the product of magnitudes"));
    let u = dtype.accumulator().unit_roundoff();
    let factor = if dtype.is_complex() { 2.0 } else { 1.0 };
    let bound = |i: usize| factor * C * u * terms as f64 * size[i].re + got.dtype().unit_roundoff() * (want[i].re.abs() + want[i].im.abs());
    assert_close(got, &want, bound, what);
}

/// Re⟨a, b⟩ in f64.
pub fn inner(a: &Tensor, b: &Tensor) -> f64 {
    numbers(a).iter().zip(numbers(b)).map(|(x, y)| x.re * y.re + x.im * y.im).sum()
}
