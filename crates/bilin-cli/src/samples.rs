//! Operands for the registry's samples.

use bilin::Kind;
use bilin::ops::{Attrs, OpEntry, Sample, Values};
use bilin::prelude::*;

/// How operands stand in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Row by row.
    Rows,
    /// First axis fastest.
    Columns,
    /// Every axis backwards.
    Backwards,
}

impl Order {
    pub(crate) const ALL: [Order; 3] = [Order::Rows, Order::Columns, Order::Backwards];
}

/// The dtype of operand `i` of `count` in a call in `dtype`.
fn operand_dtype(values: Values, i: usize, count: usize, dtype: DType) -> DType {
    match values {
        Values::Indexed if i + 1 == count => DType::I64,
        Values::Masked if i == 0 => DType::Bool,
        _ => dtype,
    }
}

/// Numbers for operand `i`: as the op wants them, and such that every dtype tells apart those that must differ.
fn numbers(entry: &OpEntry, attrs: &Attrs, i: usize, count: usize, numel: usize, dtype: DType, rng: &mut Rng) -> Result<Vec<f64>> {
    let kind = operand_dtype(entry.values, i, count, dtype).kind();
    let signed = |rng: &mut Rng, most: u64| rng.below(2 * most + 1) as f64 - most as f64;
    Ok(match (entry.values, kind) {
        (Values::Indexed, _) if i + 1 == count => {
            let below = attrs.int("below", 1)?.max(1) as u64;
            (0..numel).map(|_| rng.below(below) as f64).collect()
        }
        (_, Kind::Bool) => (0..numel).map(|_| rng.below(2) as f64).collect(),
        (Values::Positive, Kind::Int) => (0..numel).map(|_| 1.0 + rng.below(5) as f64).collect(),
        (Values::Positive, _) => (0..numel).map(|_| 0.5 + rng.below(1 << 10) as f64 / 512.0).collect(),
        (Values::Distinct, kind) => {
            // Elements of one operand are 1/4 apart, operands are 1/16 off each other, and no number is whole.
            let size = |p: usize| if kind == Kind::Int { (3 * (p + 1) + i) as f64 } else { (p + 1) as f64 / 4.0 + (i + 1) as f64 / 16.0 };
            let order = rng.permutation(numel);
            order.into_iter().map(|p| if rng.below(2) == 0 { size(p) } else { -size(p) }).collect()
        }
        (_, Kind::Int) => (0..numel).map(|_| signed(rng, 4)).collect(),
        _ => (0..numel).map(|_| signed(rng, 1 << 11) / 1024.0).collect(),
    })
}

/// The operands of a sample in `dtype`, on the reference device, row by row.
pub(crate) fn operands(entry: &OpEntry, sample: &Sample, dtype: DType, seed: u64) -> Result<Vec<Tensor>> {
    let (device, mut rng) = (Device::reference(), Rng::new(seed));
    let attrs = Attrs::parse(entry.schema.name, sample.attrs)?;
    let count = sample.shapes.len();
    let mut all = Vec::new();
    for (i, shape) in sample.shapes.iter().enumerate() {
        let numel = shape.iter().product();
        let wanted = operand_dtype(entry.values, i, count, dtype);
        let re = numbers(entry, &attrs, i, count, numel, dtype, &mut rng)?;
        let t = if wanted.is_complex() {
            let im = numbers(entry, &attrs, i, count, numel, dtype, &mut rng)?;
            Tensor::from_vec(re.into_iter().zip(im).map(|(re, im)| c128::new(re, im)).collect(), shape, &device)?
        } else {
            Tensor::from_vec(re, shape, &device)?
        };
        all.push(t.astype(wanted)?);
    }
    Ok(all)
}

/// The same values on `device`, in memory in `order`.
pub(crate) fn placed(t: &Tensor, device: &Device, order: Order) -> Result<Tensor> {
    let rank = t.rank() as isize;
    match order {
        Order::Rows => t.to_device(device),
        Order::Columns => {
            let reversed: Vec<isize> = (0..rank).rev().collect();
            t.permute(&reversed)?.contiguous()?.to_device(device)?.permute(&reversed)
        }
        Order::Backwards => {
            let flipped = |t: Tensor| (0..rank).try_fold(t, |t, axis| t.flip(axis));
            flipped(flipped(t.clone())?.contiguous()?.to_device(device)?)
        }
    }
}
