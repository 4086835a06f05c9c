//! An independent oracle: plain loops over labels in the normative order of summation, and cases to compare with it.
#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::needless_range_loop, reason = "test code")]

use bilin_core::exec::backend::Backend;
use bilin_core::exec::buffer::Buffer;
use bilin_core::exec::call::{Conj, ContractCall, Precision, Source, Target};
use bilin_core::shape::plan::Plan;
use bilin_core::shape::spec::{Axis, Spec};
use bilin_core::{DType, Layout, OpName, Result};
use bilin_cpu::{CpuBackend, CpuBuffer, contract_with};
use half::{bf16, f16};

/// SplitMix64.
pub struct Rng(pub u64);
impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
}

/// How a view stands in its buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    Row,
    Transposed,
    Sliced,
    Negative,
    ZeroFirst,
    Offset,
}
pub const CLASSES: [Class; 6] = [Class::Row, Class::Transposed, Class::Sliced, Class::Negative, Class::ZeroFirst, Class::Offset];

/// A layout of this shape and the elements that its buffer needs, guard bands included.
pub fn view(shape: &[usize], class: Class) -> (Layout, usize) {
    let op: OpName = "test".into();
    let rank = shape.len();
    let mut strides = vec![0isize; rank];
    let (mut step, mut offset) = (1isize, 5usize);
    let order: Vec<usize> = if class == Class::Transposed { (0..rank).collect() } else { (0..rank).rev().collect() };
    for &axis in &order {
        if class == Class::Sliced && Some(&axis) == order.first() {
            step = 2;
        }
        strides[axis] = step;
        step *= shape[axis].max(1) as isize;
        if class == Class::Sliced {
            step += 3;
        }
    }
    if class == Class::ZeroFirst && rank > 0 {
        strides[0] = 0;
    }
    if class == Class::Negative {
        for (s, &len) in strides.iter_mut().zip(shape) {
            offset += len.saturating_sub(1) * s.unsigned_abs();
            *s = -*s;
        }
    }
    if class == Class::Row {
        offset = 0;
    }
    if class == Class::Offset {
        offset = 1;
    }
    (Layout::from_parts(&op, shape.into(), strides.as_slice().into(), offset).unwrap(), step as usize + 16)
}

#[derive(Debug, Clone, Copy)]
pub enum Value {
    Real(f64),
    Complex(f64, f64),
    Int(i64),
}

fn at<T: bytemuck::AnyBitPattern>(bytes: &[u8], i: usize) -> T {
    bytemuck::pod_read_unaligned(&bytes[i * size_of::<T>()..(i + 1) * size_of::<T>()])
}

pub fn read(dtype: DType, bytes: &[u8], i: usize) -> Value {
    match dtype {
        DType::Bool => Value::Int(i64::from(at::<u8>(bytes, i) != 0)),
        DType::U8 => Value::Int(at::<u8>(bytes, i).into()),
        DType::I8 => Value::Int(at::<i8>(bytes, i).into()),
        DType::I16 => Value::Int(at::<i16>(bytes, i).into()),
        DType::I32 => Value::Int(at::<i32>(bytes, i).into()),
        DType::I64 => Value::Int(at::<i64>(bytes, i)),
        DType::F16 => Value::Real(at::<f16>(bytes, i).to_f64()),
        DType::Bf16 => Value::Real(at::<bf16>(bytes, i).to_f64()),
        DType::F32 => Value::Real(at::<f32>(bytes, i).into()),
        DType::F64 => Value::Real(at::<f64>(bytes, i)),
        DType::C64 => Value::Complex(at::<f32>(bytes, 2 * i).into(), at::<f32>(bytes, 2 * i + 1).into()),
        DType::C128 => Value::Complex(at::<f64>(bytes, 2 * i), at::<f64>(bytes, 2 * i + 1)),
    }
}

/// f32 for a second rounding to fewer bits: where it isn't exact, the neighbour with an odd last bit.
fn odd(x: f64) -> f32 {
    let near = x as f32;
    if f64::from(near) == x || x.is_nan() || near.to_bits() % 2 == 1 {
        return near;
    }
    let toward_zero = f64::from(near).abs() > x.abs();
    f32::from_bits(if toward_zero { near.to_bits() - 1 } else { near.to_bits() + 1 })
}

pub fn put(dtype: DType, bytes: &mut [u8], i: usize, value: Value) {
    fn set<T: bytemuck::NoUninit>(bytes: &mut [u8], i: usize, x: T) {
        bytes[i * size_of::<T>()..(i + 1) * size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&x));
    }
    match (dtype, value) {
        (DType::Bool, Value::Int(n)) => set(bytes, i, u8::from(n != 0)),
        (DType::U8, Value::Int(n)) => set(bytes, i, n as u8),
        (DType::I8, Value::Int(n)) => set(bytes, i, n as i8),
        (DType::I16, Value::Int(n)) => set(bytes, i, n as i16),
        (DType::I32, Value::Int(n)) => set(bytes, i, n as i32),
        (DType::I64, Value::Int(n)) => set(bytes, i, n),
        (DType::F16, Value::Real(x)) => set(bytes, i, f16::from_f32(odd(x))),
        (DType::Bf16, Value::Real(x)) => set(bytes, i, bf16::from_f32(odd(x))),
        (DType::F32, Value::Real(x)) => set(bytes, i, x as f32),
        (DType::F64, Value::Real(x)) => set(bytes, i, x),
        (DType::C64, Value::Complex(re, im)) => set(bytes, i, [re as f32, im as f32]),
        (DType::C128, Value::Complex(re, im)) => set(bytes, i, [re, im]),
        (dtype, value) => panic!("{value:?} as {dtype}"),
    }
}

/// A random value; `wild` ones include zeros of both signs, subnormals, infinities and NaN.
pub fn random(dtype: DType, rng: &mut Rng, wild: bool) -> Value {
    let mut real = || {
        let x = rng.unit();
        if !wild {
            return x;
        }
        match rng.next() % 24 {
            0 => -0.0,
            1 => 0.0,
            2 => f64::INFINITY,
            3 => f64::NAN,
            4 => x * 1e-40,
            5 => x * 1e-20,
            _ => x,
        }
    };
    match dtype {
        DType::Bool => Value::Int(i64::from(rng.next().is_multiple_of(7))),
        DType::F16 | DType::Bf16 | DType::F32 | DType::F64 => Value::Real(real()),
        DType::C64 | DType::C128 => Value::Complex(real(), real()),
        _ => Value::Int(rng.next() as i64),
    }
}

pub fn block_len(accumulator: DType) -> usize {
    match accumulator {
        DType::F32 => 512,
        DType::F64 | DType::C64 => 256,
        DType::C128 => 128,
        _ => usize::MAX,
    }
}

/// Zero of its sign for a subnormal number.
fn flushed(x: f32) -> f32 {
    if x.is_subnormal() { 0f32.copysign(x) } else { x }
}

/// A sum of products of bf16 in the order of tile units: 32 terms at a time, even and odd ones apart.
fn paired_sum(terms: &[(Value, Value)]) -> Value {
    let total = terms.chunks(32).fold(0f32, |total, some| {
        let mut chains = [0f32; 2];
        for i in 0..32 {
            let chain = &mut chains[i % 2];
            *chain = match some.get(i) {
                // A product of zeros, which turns −0 into +0.
                None => *chain + 0.0,
                Some(&(Value::Real(a), Value::Real(b))) => flushed(flushed(a as f32).mul_add(flushed(b as f32), *chain)),
                other => panic!("{other:?}"),
            };
        }
        flushed(total + flushed(chains[0] + chains[1]))
    });
    Value::Real(total.into())
}

/// The same in the normative order by an instruction for pairs of bf16: subnormal numbers count as zeros inside a block.
fn flushed_sum(terms: &[(Value, Value)]) -> Value {
    let blocks = terms.chunks(512).map(|block| {
        block.iter().fold(-0f32, |acc, t| match *t {
            (Value::Real(a), Value::Real(b)) => flushed(flushed(a as f32).mul_add(flushed(b as f32), flushed(acc))),
            other => panic!("{other:?}"),
        })
    });
    Value::Real(blocks.reduce(|a, b| a + b).unwrap().into())
}

/// The sum of two totals.
fn add(accumulator: DType, a: f64, b: f64) -> f64 {
    if matches!(accumulator, DType::F32 | DType::C64) { (a as f32 + b as f32).into() } else { a + b }
}

/// A sum in the normative order.
pub fn sum(accumulator: DType, terms: &[(Value, Value)]) -> Value {
    let f = |a: f64, b: f64, c: f64| -> f64 {
        if matches!(accumulator, DType::F32 | DType::C64) { (a as f32).mul_add(b as f32, c as f32).into() } else { a.mul_add(b, c) }
    };
    let add = |a: f64, b: f64| add(accumulator, a, b);
    match terms.first() {
        None if matches!(accumulator, DType::C64 | DType::C128) => Value::Complex(0.0, 0.0),
        None if matches!(accumulator, DType::F32 | DType::F64) => Value::Real(0.0),
        None => Value::Int(0),
        Some((Value::Int(_), _)) => Value::Int(terms.iter().fold(0, |acc, t| match t {
            (Value::Int(a), Value::Int(b)) if accumulator == DType::Bool => acc | (a & b),
            (Value::Int(a), Value::Int(b)) => acc.wrapping_add(a.wrapping_mul(*b)),
            other => panic!("{other:?}"),
        })),
        Some((Value::Real(_), _)) => {
            let blocks = terms.chunks(block_len(accumulator)).map(|block| {
                block.iter().fold(-0.0, |acc, t| match *t {
                    (Value::Real(a), Value::Real(b)) => f(a, b, acc),
                    other => panic!("{other:?}"),
                })
            });
            Value::Real(blocks.reduce(add).unwrap())
        }
        Some((Value::Complex(..), _)) => {
            let blocks = terms.chunks(block_len(accumulator)).map(|block| {
                block.iter().fold((-0.0, -0.0), |(re, im), t| match *t {
                    (Value::Complex(ar, ai), Value::Complex(br, bi)) => (f(-ai, bi, f(ar, br, re)), f(ai, br, f(ar, bi, im))),
                    other => panic!("{other:?}"),
                })
            });
            let (re, im) = blocks.reduce(|a, b| (add(a.0, b.0), add(a.1, b.1))).unwrap();
            Value::Complex(re, im)
        }
    }
}

/// In what order, and with what rules for subnormal numbers, a sum is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Usual,
    Paired,
    Flushed,
}

/// One contraction to compare.
pub struct Case {
    pub name: String,
    pub spec: Spec,
    pub dtypes: [DType; 3],
    pub accumulator: DType,
    pub layouts: [Layout; 3],
    pub conj: [Conj; 2],
    pub lhs: CpuBuffer,
    pub rhs: CpuBuffer,
    out_len: usize,
}

/// A subscript such as `ik,kj->ij` with the lengths of its labels.
pub fn parse(subscript: &str) -> [Vec<char>; 3] {
    let (inputs, out) = subscript.split_once("->").unwrap();
    let (lhs, rhs) = inputs.split_once(',').unwrap();
    [lhs, rhs, out].map(|s| s.chars().collect())
}

impl Case {
    /// The same case over `f` of its real elements in f64.
    pub fn widened(&self, f: impl Fn(f64) -> f64) -> Case {
        let wide = |buffer: &CpuBuffer, dtype: DType| {
            let bytes = buffer.host().unwrap();
            let mut out = CpuBuffer::new(bytes.len() / dtype.size_bytes() * 8).unwrap();
            for i in 0..bytes.len() / dtype.size_bytes() {
                let Value::Real(x) = read(dtype, bytes, i) else { panic!("{dtype} isn't real") };
                put(DType::F64, out.host_mut().unwrap(), i, Value::Real(f(x)));
            }
            out
        };
        Case {
            name: self.name.clone(),
            spec: self.spec.clone(),
            dtypes: [DType::F64; 3],
            accumulator: DType::F64,
            layouts: self.layouts.clone(),
            conj: self.conj,
            lhs: wide(&self.lhs, self.dtypes[0]),
            rhs: wide(&self.rhs, self.dtypes[1]),
            out_len: self.out_len,
        }
    }

    pub fn new(
        subscript: &str,
        lens: &[(char, usize)],
        dtypes: [DType; 3],
        classes: [Class; 3],
        conj: [Conj; 2],
        rng: &mut Rng,
        wild: bool,
    ) -> Case {
        let lists = parse(subscript);
        let len_of = |c: &char| lens.iter().find(|l| l.0 == *c).unwrap().1;
        let axes = |list: &Vec<char>| list.iter().map(|&c| Axis::Label(c as u16)).collect();
        let spec = Spec::new(axes(&lists[0]), axes(&lists[1]), axes(&lists[2])).unwrap();
        let views: Vec<(Layout, usize)> =
            lists.iter().zip(classes).map(|(l, class)| view(&l.iter().map(len_of).collect::<Vec<_>>(), class)).collect();
        let mut filled = |which: usize| {
            let (dtype, len) = (dtypes[which], views[which].1);
            let mut buffer = CpuBuffer::new(len * dtype.size_bytes()).unwrap();
            for i in 0..len {
                let value = random(dtype, rng, wild);
                put(dtype, buffer.host_mut().unwrap(), i, value);
            }
            buffer
        };
        let (lhs, rhs) = (filled(0), filled(1));
        let widest = if dtypes[0].size_bytes() >= dtypes[1].size_bytes() { dtypes[0] } else { dtypes[1] };
        let accumulator = if widest.accumulator() == DType::F32 && dtypes[2] == DType::F64 { DType::F32 } else { widest.accumulator() };
        Case {
            name: format!("{subscript} {lens:?} {dtypes:?} {classes:?} {conj:?}"),
            spec,
            dtypes,
            accumulator,
            layouts: [views[0].0.clone(), views[1].0.clone(), views[2].0.clone()],
            conj,
            lhs,
            rhs,
            out_len: views[2].1,
        }
    }

    /// How a kernel, or the choice, sums: bf16 by a unit for them where there is one, of 32 terms and more.
    pub fn order(&self, kernel: Option<&str>) -> Order {
        let would_take = self.dtypes[..2] == [DType::Bf16; 2] && self.accumulator != DType::F64 && self.terms() >= 32;
        let names = bilin_cpu::kernel_names();
        let is = |name: &str| kernel.map_or(would_take && names.contains(&name), |kernel| kernel == name);
        if is("amx-bf16-tiles") || kernel == Some("avx512-bf16-chains") {
            Order::Paired
        } else if is("avx512-bf16-words") || is("avx512-bf16-pairs") {
            Order::Flushed
        } else {
            Order::Usual
        }
    }

    /// Terms of each sum.
    fn terms(&self) -> usize {
        let (lhs, out) = (self.spec.lhs(), self.spec.out());
        lhs.iter().enumerate().filter(|(_, a)| !out.contains(a)).map(|(i, _)| self.layouts[0].shape()[i]).product()
    }

    /// The bytes of the result's buffer, replaced, where its old contents are 0xFF, or added to.
    pub fn expected(&self, old: Option<&[u8]>) -> Vec<u8> {
        self.expected_by(Order::Usual, old)
    }

    /// The same in another order.
    fn expected_by(&self, order: Order, old: Option<&[u8]>) -> Vec<u8> {
        let mut out = old.map_or_else(|| vec![0xFF; self.out_len * self.dtypes[2].size_bytes()], <[u8]>::to_vec);
        let lists = [self.spec.lhs(), self.spec.rhs(), self.spec.out()];
        let summed: Vec<Axis> = lists[0].iter().filter(|a| !lists[2].contains(a)).copied().collect();
        let strides = |axes: &[Axis]| -> Vec<(usize, [isize; 3])> {
            axes.iter()
                .map(|axis| {
                    let mut one = (0, [0; 3]);
                    for i in 0..3 {
                        if let Some(at) = lists[i].iter().position(|a| a == axis) {
                            one = (self.layouts[i].shape()[at], one.1);
                            one.1[i] = self.layouts[i].strides()[at];
                        }
                    }
                    one
                })
                .collect()
        };
        let positions = |loops: &[(usize, [isize; 3])]| -> Vec<[isize; 3]> {
            let mut all = vec![[0; 3]];
            for (len, strides) in loops {
                all = all.iter().flat_map(|p| (0..*len as isize).map(move |i| std::array::from_fn(|x| p[x] + i * strides[x]))).collect();
            }
            all
        };
        let (free, inner) = (positions(&strides(lists[2])), positions(&strides(&summed)));
        let (lhs, rhs) = (self.lhs.host().unwrap(), self.rhs.host().unwrap());
        let value = |which: usize, bytes: &[u8], i: isize| match read(self.dtypes[which], bytes, i as usize) {
            Value::Complex(re, im) if self.conj[which] == Conj::Yes => Value::Complex(re, -im),
            other => other,
        };
        let bases = [0, 1, 2].map(|i| self.layouts[i].offset() as isize);
        let mut terms = Vec::with_capacity(inner.len());
        for p in free {
            terms.clear();
            terms.extend(inner.iter().map(|k| (value(0, lhs, bases[0] + p[0] + k[0]), value(1, rhs, bases[1] + p[1] + k[1]))));
            let (dtype, at) = (self.dtypes[2], (bases[2] + p[2]) as usize);
            let total = match order {
                Order::Paired if !terms.is_empty() => paired_sum(&terms),
                Order::Flushed if !terms.is_empty() => flushed_sum(&terms),
                _ => sum(self.accumulator, &terms),
            };
            let value = match (total, old.map(|old| read(dtype, old, at))) {
                (Value::Real(x), Some(Value::Real(o))) => Value::Real(add(dtype, o, x)),
                (Value::Complex(re, im), Some(Value::Complex(o, p))) => Value::Complex(add(dtype, o, re), add(dtype, p, im)),
                (total, _) => total,
            };
            put(dtype, &mut out, at, value);
        }
        out
    }

    /// Contents to add to, where the case's result holds unrounded sums.
    fn old(&self) -> Option<Vec<u8>> {
        let dtype = self.dtypes[2];
        let is_sum = dtype == self.accumulator && dtype.is_differentiable();
        is_sum.then(|| {
            let (mut bytes, mut rng) = (vec![0; self.out_len * dtype.size_bytes()], Rng(self.out_len as u64));
            (0..self.out_len).for_each(|i| put(dtype, &mut bytes, i, random(dtype, &mut rng, true)));
            bytes
        })
    }

    /// The bytes after a run of one kernel, or of the backend's choice.
    pub fn run(&self, kernel: Option<&str>) -> Result<Vec<u8>> {
        self.run_over(kernel, None)
    }

    /// The same, added to old contents where there are some.
    fn run_over(&self, kernel: Option<&str>, old: Option<&[u8]>) -> Result<Vec<u8>> {
        let op: OpName = "test".into();
        let plan = Plan::new(&op, &self.spec, &self.layouts[0], &self.layouts[1], &self.layouts[2])?;
        let mut out = CpuBuffer::new(self.out_len * self.dtypes[2].size_bytes()).unwrap();
        match old {
            Some(old) => out.host_mut().unwrap().copy_from_slice(old),
            None => out.host_mut().unwrap().fill(0xFF),
        }
        let target = Target { buffer: &mut out, dtype: self.dtypes[2] };
        let (lhs, rhs) = (Source { buffer: &self.lhs, dtype: self.dtypes[0] }, Source { buffer: &self.rhs, dtype: self.dtypes[1] });
        let call = ContractCall::new(&op, &plan, lhs, rhs, target, self.conj, self.accumulator, Precision::Ieee)?;
        let call = if old.is_some() { call.adding()? } else { call };
        match kernel {
            Some(name) => contract_with(call, name)?,
            None => CpuBackend::new().contract(call)?,
        }
        Ok(out.host().unwrap().to_vec())
    }

    /// Panics where the bytes differ; any NaN equals any NaN.
    pub fn compare(&self, expected: &[u8], got: &[u8], kernel: &str) {
        if expected == got {
            return;
        }
        let dtype = self.dtypes[2];
        for i in 0..self.out_len {
            let (want, have) = (read(dtype, expected, i), read(dtype, got, i));
            let same = |a: f64, b: f64| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
            let fits = match (want, have) {
                (Value::Real(a), Value::Real(b)) => same(a, b),
                (Value::Complex(a, b), Value::Complex(c, d)) => same(a, c) && same(b, d),
                (Value::Int(a), Value::Int(b)) => a == b,
                _ => false,
            };
            assert!(fits, "{} by {kernel}: element {i} is {have:?}, want {want:?}", self.name);
        }
    }

    /// Compares every kernel that accepts the case; returns their names.
    pub fn check(&self) -> Vec<&'static str> {
        let mut ran = Vec::new();
        let old = self.old();
        for old in std::iter::once(None).chain(old.as_deref().map(Some)) {
            let mut known: Vec<(Order, Vec<u8>)> = Vec::new();
            let mut compare = |kernel: Option<&str>, got: &[u8]| {
                let order = self.order(kernel);
                if !known.iter().any(|(o, _)| *o == order) {
                    known.push((order, self.expected_by(order, old)));
                }
                let expected = known.iter().find(|(o, _)| *o == order);
                self.compare(&expected.unwrap().1, got, kernel.unwrap_or("choice"));
            };
            let chosen = self.run_over(None, old).unwrap_or_else(|e| panic!("{}: {e}", self.name));
            compare(None, &chosen);
            for kernel in bilin_cpu::kernel_names() {
                match self.run_over(Some(kernel), old) {
                    Ok(got) => {
                        compare(Some(kernel), &got);
                        ran.push(kernel);
                    }
                    Err(bilin_core::Error::KernelNotFound { .. }) => {}
                    Err(e) => panic!("{} by {kernel}: {e}", self.name),
                }
            }
        }
        ran
    }
}
