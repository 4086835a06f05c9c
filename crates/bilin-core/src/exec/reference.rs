//! The oracle: plain loops in the normative order of summation, one output element at a time.

use half::{bf16, f16};

use super::backend::Backend;
use super::buffer::{Buffer, HostBuffer, host_bytes, host_bytes_mut};
use super::call::{Accum, Conj, ContractCall, GatherCall, MapCall, ReduceCall, ScatterCall};
use super::host::{self, Serial};
use super::order::contract_block_len;
use crate::shape::dtype::{DType, c64, c128, round_to_odd};
use crate::shape::error::{Error, Result};
use crate::shape::plan::position;

/// The reference backend: correct by inspection, slow by design.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReferenceBackend;

/// Element `i` of `bytes` as a complex f64 and, for integers, exactly.
fn read(dtype: DType, bytes: &[u8], i: usize) -> (c128, i64) {
    fn at<T: bytemuck::AnyBitPattern>(bytes: &[u8], i: usize) -> T {
        let size = size_of::<T>();
        bytemuck::pod_read_unaligned(&bytes[i * size..(i + 1) * size])
    }
    let real = |x: f64| (c128::new(x, 0.0), 0);
    let int = |x: i64| (c128::new(x as f64, 0.0), x);
    match dtype {
        DType::Bool => int(i64::from(at::<u8>(bytes, i) != 0)),
        DType::U8 => int(i64::from(at::<u8>(bytes, i))),
        DType::I8 => int(i64::from(at::<i8>(bytes, i))),
        DType::I16 => int(i64::from(at::<i16>(bytes, i))),
        DType::I32 => int(i64::from(at::<i32>(bytes, i))),
        DType::I64 => int(at::<i64>(bytes, i)),
        DType::F16 => real(at::<f16>(bytes, i).to_f64()),
        DType::Bf16 => real(at::<bf16>(bytes, i).to_f64()),
        DType::F32 => real(f64::from(at::<f32>(bytes, i))),
        DType::F64 => real(at::<f64>(bytes, i)),
        DType::C64 => {
            let z = at::<c64>(bytes, i);
            (c128::new(f64::from(z.re), f64::from(z.im)), 0)
        }
        DType::C128 => (at::<c128>(bytes, i), 0),
    }
}

fn write(dtype: DType, bytes: &mut [u8], i: usize, z: c128, n: i64) {
    fn put<T: bytemuck::NoUninit>(bytes: &mut [u8], i: usize, x: T) {
        let size = size_of::<T>();
        bytes[i * size..(i + 1) * size].copy_from_slice(bytemuck::bytes_of(&x));
    }
    match dtype {
        DType::Bool => put(bytes, i, u8::from(n != 0)),
        DType::U8 => put(bytes, i, n as u8),
        DType::I8 => put(bytes, i, n as i8),
        DType::I16 => put(bytes, i, n as i16),
        DType::I32 => put(bytes, i, n as i32),
        DType::I64 => put(bytes, i, n),
        DType::F16 => put(bytes, i, f16::from_f32(round_to_odd(z.re))),
        DType::Bf16 => put(bytes, i, bf16::from_f32(round_to_odd(z.re))),
        DType::F32 => put(bytes, i, z.re as f32),
        DType::F64 => put(bytes, i, z.re),
        DType::C64 => put(bytes, i, c64::new(z.re as f32, z.im as f32)),
        DType::C128 => put(bytes, i, z),
    }
}

/// One fused multiply-add in the accumulator's dtype, carried in f64 where that holds it exactly.
fn fused(accumulator: DType, a: c128, b: c128, acc: c128) -> c128 {
    let single = |x: f64, y: f64, z: f64| f64::from((x as f32).mul_add(y as f32, z as f32));
    match accumulator {
        DType::F64 => c128::new(a.re.mul_add(b.re, acc.re), 0.0),
        DType::C128 => c128::new((-a.im).mul_add(b.im, a.re.mul_add(b.re, acc.re)), a.im.mul_add(b.re, a.re.mul_add(b.im, acc.im))),
        DType::C64 => c128::new(single(-a.im, b.im, single(a.re, b.re, acc.re)), single(a.im, b.re, single(a.re, b.im, acc.im))),
        _ => c128::new(single(a.re, b.re, acc.re), 0.0),
    }
}

/// A sum rounded to the accumulator's dtype.
fn add(accumulator: DType, a: c128, b: c128) -> c128 {
    let sum = a + b;
    match accumulator {
        DType::F64 | DType::C128 => sum,
        // f64 holds the exact sum of two f32 or rounds it so that rounding again gives the f32 sum (53 ≥ 2·24 + 2).
        _ => c128::new(f64::from(sum.re as f32), f64::from(sum.im as f32)),
    }
}

impl Backend for ReferenceBackend {
    fn name(&self) -> &'static str {
        "reference"
    }
    fn has_dtype(&self, _dtype: DType) -> bool {
        true
    }
    fn alloc(&self, byte_len: usize) -> Result<Option<Box<dyn Buffer>>> {
        Ok(HostBuffer::zeroed(byte_len).map(|mut buffer| {
            // Old contents must never show: every byte of fresh memory is part of a NaN.
            if let Some(bytes) = buffer.host_mut() {
                bytes.fill(0xFF);
            }
            Box::new(buffer) as Box<dyn Buffer>
        }))
    }
    fn upload(&self, src: &[u8], dst: &mut dyn Buffer) -> Result<()> {
        let dst = host_bytes_mut(&"upload".into(), dst)?;
        let room = dst.len();
        let dst = dst
            .get_mut(..src.len())
            .ok_or_else(|| Error::invalid("upload", "src", format!("{} bytes", src.len()), format!("the buffer has {room}")))?;
        dst.copy_from_slice(src);
        Ok(())
    }
    fn download(&self, src: &dyn Buffer, dst: &mut [u8]) -> Result<()> {
        let src = host_bytes(&"download".into(), src)?;
        let part = src
            .get(..dst.len())
            .ok_or_else(|| Error::invalid("download", "dst", format!("{} bytes", dst.len()), format!("the buffer has {}", src.len())))?;
        dst.copy_from_slice(part);
        Ok(())
    }
    fn sync(&self) -> Result<()> {
        Ok(())
    }
    fn contract(&self, call: ContractCall<'_>) -> Result<()> {
        let plan = call.plan;
        let [batch, m, n, k] = plan.sizes();
        let (lhs, rhs) = (host_bytes(call.op, call.lhs.buffer)?, host_bytes(call.op, call.rhs.buffer)?);
        let out = host_bytes_mut(call.op, call.out.buffer)?;
        let block = contract_block_len(call.accumulator);
        let offsets = plan.offsets().map(|o| o as isize);
        let conj = |c: Conj, z: c128| if c == Conj::Yes { z.conj() } else { z };
        for b in 0..batch {
            let at_b = position(plan.batch(), b);
            for i in 0..m {
                let at_m = position(plan.m(), i);
                for j in 0..n {
                    let at_n = position(plan.n(), j);
                    let base: [isize; 3] = std::array::from_fn(|x| offsets[x] + at_b[x] + at_m[x] + at_n[x]);
                    let (mut total, mut exact) = (c128::new(0.0, 0.0), 0i64);
                    let mut sum = c128::new(-0.0, -0.0);
                    for term in 0..k {
                        let at_k = position(plan.k(), term);
                        let (a, a_int) = read(call.lhs.dtype, lhs, (base[0] + at_k[0]) as usize);
                        let (b, b_int) = read(call.rhs.dtype, rhs, (base[1] + at_k[1]) as usize);
                        exact = match call.accumulator {
                            DType::Bool => exact | (a_int & b_int),
                            _ => exact.wrapping_add(a_int.wrapping_mul(b_int)),
                        };
                        sum = fused(call.accumulator, conj(call.conj[0], a), conj(call.conj[1], b), sum);
                        if (term + 1) % block == 0 || term + 1 == k {
                            total = if term < block { sum } else { add(call.accumulator, total, sum) };
                            sum = c128::new(-0.0, -0.0);
                        }
                    }
                    if call.accum == Accum::Add {
                        total = add(call.accumulator, read(call.out.dtype, out, base[2] as usize).0, total);
                    }
                    write(call.out.dtype, out, base[2] as usize, total, exact);
                }
            }
        }
        Ok(())
    }
    fn adds_products(&self) -> bool {
        true
    }
    fn map(&self, call: MapCall<'_>) -> Result<()> {
        host::map(call, &Serial)
    }
    fn reduce(&self, call: ReduceCall<'_>) -> Result<()> {
        host::reduce(call, &Serial)
    }
    fn gather(&self, call: GatherCall<'_>) -> Result<()> {
        host::gather(call, &Serial)
    }
    fn scatter_add(&self, call: ScatterCall<'_>) -> Result<()> {
        host::scatter_add(call, &Serial)
    }
    fn autocast_dtype(&self, dtype: DType) -> DType {
        if dtype == DType::F16 { DType::F32 } else { dtype }
    }
    fn kernels(&self) -> Vec<&'static str> {
        vec!["loops"]
    }
}
