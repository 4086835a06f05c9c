//! Elements to and from the compute types, a block at a time.

use bytemuck::Pod;
use half::{bf16, f16};
use num_complex::Complex;

use super::halves::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use crate::shape::dtype::{DType, c64, c128, round_to_odd};
use crate::shape::plan::{Loop, position};

/// A value-preserving or, towards narrower types, C-like conversion; complex to real takes the real part.
pub(super) trait Convert<T> {
    fn convert(self) -> T;
}

macro_rules! numbers {
    ($($from:ty => $($to:ty),*;)*) => {$($(
        impl Convert<$to> for $from {
            #[inline(always)]
            fn convert(self) -> $to { self as $to }
        }
    )*)*};
}
numbers! {
    u8 => i64, f32, f64; i8 => i64, f32, f64; i16 => i64, f32, f64; i32 => i64, f32, f64;
    i64 => u8, i8, i16, i32, i64, f32, f64;
    f32 => u8, i8, i16, i32, i64, f32, f64;
    f64 => u8, i8, i16, i32, i64, f32, f64;
}

macro_rules! halves {
    ($($h:ty, $to_f32:ident, $from_f32:ident;)*) => {$(
        impl Convert<f32> for $h { #[inline(always)] fn convert(self) -> f32 { $to_f32(self) } }
        impl Convert<f64> for $h { #[inline(always)] fn convert(self) -> f64 { f64::from($to_f32(self)) } }
        impl Convert<i64> for $h { #[inline(always)] fn convert(self) -> i64 { $to_f32(self) as i64 } }
        impl Convert<$h> for f32 { #[inline(always)] fn convert(self) -> $h { $from_f32(self) } }
        impl Convert<$h> for f64 { #[inline(always)] fn convert(self) -> $h { $from_f32(round_to_odd(self)) } }
        impl Convert<$h> for i64 { #[inline(always)] fn convert(self) -> $h { $from_f32(round_to_odd(self as f64)) } }
    )*};
}
halves! { f16, f16_to_f32, f32_to_f16; bf16, bf16_to_f32, f32_to_bf16; }

/// Complex to and from everything: each real type goes through a part.
macro_rules! complexes {
    ($part:ty, $other:ty; $($e:ty),*) => {
        $(
            impl Convert<Complex<$part>> for $e {
                #[inline(always)]
                fn convert(self) -> Complex<$part> { Complex::new(self.convert(), 0.0) }
            }
            impl Convert<$e> for Complex<$part> {
                #[inline(always)]
                fn convert(self) -> $e { self.re.convert() }
            }
        )*
        impl Convert<Complex<$part>> for Complex<$part> {
            #[inline(always)]
            fn convert(self) -> Complex<$part> { self }
        }
        impl Convert<Complex<$other>> for Complex<$part> {
            #[inline(always)]
            fn convert(self) -> Complex<$other> { Complex::new(self.re as $other, self.im as $other) }
        }
    };
}
complexes!(f32, f64; u8, i8, i16, i32, i64, f16, bf16, f32, f64);
complexes!(f64, f32; u8, i8, i16, i32, i64, f16, bf16, f32, f64);

/// A compute type: every element type converts to it and from it.
pub(super) trait Compute:
    Pod
    + Default
    + Send
    + Sync
    + PartialEq
    + Convert<u8>
    + Convert<i8>
    + Convert<i16>
    + Convert<i32>
    + Convert<i64>
    + Convert<f16>
    + Convert<bf16>
    + Convert<f32>
    + Convert<f64>
    + Convert<c64>
    + Convert<c128>
    + From1<u8>
    + From1<i8>
    + From1<i16>
    + From1<i32>
    + From1<i64>
    + From1<f16>
    + From1<bf16>
    + From1<f32>
    + From1<f64>
    + From1<c64>
    + From1<c128>
{
    /// Its own.
    const DTYPE: DType;
}

/// `Convert` seen from its target, so that a bound on the target says it.
pub(super) trait From1<E> {
    fn from1(e: E) -> Self;
}
impl<E: Convert<T>, T> From1<E> for T {
    #[inline(always)]
    fn from1(e: E) -> T {
        e.convert()
    }
}

macro_rules! computes {
    ($($t:ty, $dtype:ident;)*) => {$(
        impl Compute for $t {
            const DTYPE: DType = DType::$dtype;
        }
    )*};
}
computes! { i64, I64; f32, F32; f64, F64; c64, C64; c128, C128; }

#[inline(always)]
fn load<E: Pod, T: From1<E>>(bytes: &[u8], at: isize, stride: isize, out: &mut [T]) {
    let all: &[E] = bytemuck::cast_slice(bytes);
    if stride == 1 {
        for (o, &e) in out.iter_mut().zip(&all[at as usize..]) {
            *o = T::from1(e);
        }
    } else if stride == 0 {
        out.fill_with(|| T::from1(all[at as usize]));
    } else {
        for (i, o) in out.iter_mut().enumerate() {
            *o = T::from1(all[(at + i as isize * stride) as usize]);
        }
    }
}

/// Reads `out.len()` elements of `dtype` from element `at`, `stride` apart.
pub(super) fn load_block<T: Compute>(dtype: DType, bytes: &[u8], at: isize, stride: isize, out: &mut [T]) {
    match dtype {
        DType::Bool => {
            load::<u8, T>(bytes, at, stride, out);
            // A byte other than 0 is true.
            for o in out.iter_mut().filter(|o| **o != T::default()) {
                *o = T::from1(1u8);
            }
        }
        DType::U8 => load::<u8, T>(bytes, at, stride, out),
        DType::I8 => load::<i8, T>(bytes, at, stride, out),
        DType::I16 => load::<i16, T>(bytes, at, stride, out),
        DType::I32 => load::<i32, T>(bytes, at, stride, out),
        DType::I64 => load::<i64, T>(bytes, at, stride, out),
        DType::F16 => load::<f16, T>(bytes, at, stride, out),
        DType::Bf16 => load::<bf16, T>(bytes, at, stride, out),
        DType::F32 => load::<f32, T>(bytes, at, stride, out),
        DType::F64 => load::<f64, T>(bytes, at, stride, out),
        DType::C64 => load::<c64, T>(bytes, at, stride, out),
        DType::C128 => load::<c128, T>(bytes, at, stride, out),
    }
}

/// The same, compiled for the caller's instruction set where elements of the commonest kinds stand side by side.
#[inline(always)]
pub(super) fn load_row<T: Compute>(dtype: DType, bytes: &[u8], at: isize, stride: isize, out: &mut [T]) {
    match (dtype, stride) {
        (DType::F16, 1) => load::<f16, T>(bytes, at, 1, out),
        (DType::Bf16, 1) => load::<bf16, T>(bytes, at, 1, out),
        _ => load_block(dtype, bytes, at, stride, out),
    }
}

/// The same in the linear order of loops, of which the operand is one, from step `at`.
pub(super) fn load_walk<T: Compute, const N: usize>(
    dtype: DType,
    bytes: &[u8],
    offset: isize,
    (loops, operand): (&[Loop<N>], usize),
    at: usize,
    out: &mut [T],
) {
    for (done, n, place, stride) in rows(loops, operand, at, out.len()) {
        load_block(dtype, bytes, offset + place, stride, &mut out[done..done + n]);
    }
}

/// Writes elements in the linear order of loops, of which the result is one.
pub(super) fn store_walk<T: Compute, const N: usize>(
    dtype: DType,
    bytes: &mut [u8],
    offset: isize,
    (loops, operand): (&[Loop<N>], usize),
    at: usize,
    values: &[T],
) {
    for (done, n, place, stride) in rows(loops, operand, at, values.len()) {
        store_block(dtype, bytes, offset + place, stride, &values[done..done + n]);
    }
}

/// Rows of the innermost loop that make up `count` steps from `at`: steps before it, its own, its place and stride.
fn rows<const N: usize>(
    loops: &[Loop<N>],
    operand: usize,
    at: usize,
    count: usize,
) -> impl Iterator<Item = (usize, usize, isize, isize)> + '_ {
    let (outer, (len, stride)) = match loops.split_last() {
        Some((inner, outer)) => (outer, (inner.len, inner.strides[operand])),
        None => (loops, (1, 0)),
    };
    let mut done = 0;
    std::iter::from_fn(move || {
        let (row, first) = ((at + done) / len, (at + done) % len);
        let (here, n) = (done, (len - first).min(count - done));
        done += n;
        (n > 0).then(|| (here, n, position(outer, row)[operand] + first as isize * stride, stride))
    })
}

#[inline(always)]
fn store<E: Pod, T: Convert<E> + Copy>(bytes: &mut [u8], at: isize, stride: isize, values: &[T]) {
    let all: &mut [E] = bytemuck::cast_slice_mut(bytes);
    if stride == 1 {
        for (o, &v) in all[at as usize..].iter_mut().zip(values) {
            *o = v.convert();
        }
    } else {
        for (i, &v) in values.iter().enumerate() {
            all[(at + i as isize * stride) as usize] = v.convert();
        }
    }
}

/// Writes `values` as elements of `dtype` from element `at`, `stride` apart.
pub(super) fn store_block<T: Compute>(dtype: DType, bytes: &mut [u8], at: isize, stride: isize, values: &[T]) {
    match dtype {
        DType::Bool => {
            for (i, v) in values.iter().enumerate() {
                bytes[(at + i as isize * stride) as usize] = u8::from(*v != T::default());
            }
        }
        DType::U8 => store::<u8, T>(bytes, at, stride, values),
        DType::I8 => store::<i8, T>(bytes, at, stride, values),
        DType::I16 => store::<i16, T>(bytes, at, stride, values),
        DType::I32 => store::<i32, T>(bytes, at, stride, values),
        DType::I64 => store::<i64, T>(bytes, at, stride, values),
        DType::F16 => store::<f16, T>(bytes, at, stride, values),
        DType::Bf16 => store::<bf16, T>(bytes, at, stride, values),
        DType::F32 => store::<f32, T>(bytes, at, stride, values),
        DType::F64 => store::<f64, T>(bytes, at, stride, values),
        DType::C64 => store::<c64, T>(bytes, at, stride, values),
        DType::C128 => store::<c128, T>(bytes, at, stride, values),
    }
}

/// The same, compiled for the caller's instruction set where elements of the commonest kinds stand side by side.
#[inline(always)]
pub(super) fn store_row<T: Compute>(dtype: DType, bytes: &mut [u8], at: isize, stride: isize, values: &[T]) {
    match (dtype, stride) {
        (DType::F16, 1) => store::<f16, T>(bytes, at, 1, values),
        (DType::Bf16, 1) => store::<bf16, T>(bytes, at, 1, values),
        _ => store_block(dtype, bytes, at, stride, values),
    }
}
