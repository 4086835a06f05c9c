//! From a dtype and bytes to typed operands and results.

use std::marker::PhantomData;

use bilin_core::{DType, c64, c128};
use half::{bf16, f16};

use super::element::{Acc, AsTruth, Plain};
use super::operand::{In, Source};
use super::result::{Out, Sink};

/// An accumulator that knows which dtypes it reads and writes.
pub(crate) trait Typed: Acc {
    /// Calls `run` with the operand; `None` for a dtype that it can't read, or memory that isn't aligned.
    fn with_source<R>(dtype: DType, bytes: &[u8], is_conj: bool, run: impl FnOnce(&dyn Source<Self>) -> R) -> Option<R>;
    /// Calls `run` with the result; `None` likewise.
    fn with_sink<R>(dtype: DType, bytes: &mut [u8], adds: bool, run: impl FnOnce(&dyn Sink<Self>) -> R) -> Option<R>;
}

/// Whole elements of a buffer's bytes.
pub(super) fn elements<T: bytemuck::Pod>(bytes: &[u8]) -> Option<&[T]> {
    let whole = bytes.len() / size_of::<T>() * size_of::<T>();
    bytemuck::try_cast_slice(&bytes[..whole]).ok()
}
pub(super) fn elements_mut<T: bytemuck::Pod>(bytes: &mut [u8]) -> Option<&mut [T]> {
    let whole = bytes.len() / size_of::<T>() * size_of::<T>();
    bytemuck::try_cast_slice_mut(&mut bytes[..whole]).ok()
}

macro_rules! typed {
    ($a:ty, reads [$($in:ident: $in_t:ty, $in_f:ty);* $(;)?], writes [$($out:ident: $out_t:ty, $out_f:ty);* $(;)?]) => {
        impl Typed for $a {
            #[inline]
            fn with_source<R>(dtype: DType, bytes: &[u8], is_conj: bool, run: impl FnOnce(&dyn Source<Self>) -> R) -> Option<R> {
                match dtype {
                    $(DType::$in => Some(run(&In::<$in_t, $in_f> { data: elements(bytes)?, is_conj, convert: PhantomData })),)*
                    _ => None,
                }
            }
            #[inline]
            fn with_sink<R>(dtype: DType, bytes: &mut [u8], adds: bool, run: impl FnOnce(&dyn Sink<Self>) -> R) -> Option<R> {
                match dtype {
                    $(DType::$out => Some(run(&Out::<$out_t, $a, $out_f>::new(elements_mut(bytes)?, adds))),)*
                    _ => None,
                }
            }
        }
    };
}

typed!(f32, reads [F32: f32, Plain; F16: f16, Plain; Bf16: bf16, Plain],
    writes [F32: f32, Plain; F16: f16, Plain; Bf16: bf16, Plain; F64: f64, Plain]);
typed!(f64, reads [F64: f64, Plain; F32: f32, Plain; F16: f16, Plain; Bf16: bf16, Plain],
    writes [F64: f64, Plain; F32: f32, Plain; F16: f16, Plain; Bf16: bf16, Plain]);
typed!(c64, reads [C64: c64, Plain; F32: f32, Plain], writes [C64: c64, Plain; C128: c128, Plain]);
typed!(c128, reads [C128: c128, Plain; C64: c64, Plain; F64: f64, Plain; F32: f32, Plain], writes [C128: c128, Plain; C64: c64, Plain]);
typed!(i32, reads [I32: i32, Plain; I16: i16, Plain; I8: i8, Plain; U8: u8, Plain; I64: i64, Plain; Bool: u8, AsTruth],
    writes [I32: i32, Plain; I16: i16, Plain; I8: i8, Plain; U8: u8, Plain]);
typed!(i64, reads [I64: i64, Plain; I32: i32, Plain; I16: i16, Plain; I8: i8, Plain; U8: u8, Plain; Bool: u8, AsTruth],
    writes [I64: i64, Plain]);
typed!(u32, reads [Bool: u8, AsTruth], writes [Bool: u8, AsTruth]);
