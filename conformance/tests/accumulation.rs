//! Gradients add up in the memory that stands, by every kernel: the bits of each by itself and an addition after it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a check fails")]

use std::collections::BTreeSet;

use bilin::autograd::BackwardOptions;
use bilin::memory_stats;
use bilin::prelude::*;
use conformance::compare::assert_same_bits;
use conformance::samples::{all, call, operands};
use conformance::subject::{device, has_reference_bits, having, own_device};

fn leaf(x: &Tensor, keep: DType) -> Tensor {
    let x = x.detach().requires_grad_(x.dtype().is_differentiable()).unwrap();
    if x.requires_grad() {
        x.set_grad_dtype(keep).unwrap();
    }
    x
}
fn with(g: &Tensor) -> BackwardOptions {
    BackwardOptions { gradient: Some(g.clone()), retain_graph: Some(true), ..Default::default() }
}
/// Halves with the gradient in f32, the others in their own.
fn kept(dtype: DType) -> DType {
    if dtype.is_half() { DType::F32 } else { dtype }
}
const DTYPES: [DType; 6] = [DType::F32, DType::F64, DType::C64, DType::C128, DType::F16, DType::Bf16];

#[test]
fn passes_of_every_op_add_up_to_the_bits_of_their_sum() {
    let mut ran = BTreeSet::new();
    for (entry, sample, seed) in all() {
        let reference = has_reference_bits(&device()).then(|| (DType::F64, Device::reference()));
        for (dtype, device) in having(DTYPES).into_iter().map(|d| (d, device())).chain(reference) {
            let x = operands(entry, sample, dtype, &device, seed);
            let keep = |x: &Tensor| leaf(x, kept(x.dtype()));
            let leaves: Vec<Tensor> = x.iter().map(keep).collect();
            let Some(y) = call(entry, &leaves, sample.attrs).ok().filter(Tensor::requires_grad) else { continue };
            let mut rng = Rng::new(seed);
            let g: Vec<Tensor> = (0..3).map(|_| Tensor::randn(y.shape(), y.dtype(), &device, &mut rng).unwrap()).collect();
            let alone = |g: &Tensor| -> Vec<Option<Tensor>> {
                let leaves: Vec<Tensor> = x.iter().map(keep).collect();
                call(entry, &leaves, sample.attrs).unwrap().backward_with(with(g)).unwrap();
                leaves.iter().map(Tensor::grad).collect()
            };
            let parts: Vec<_> = g.iter().map(alone).collect();
            g.iter().for_each(|g| y.backward_with(with(g)).unwrap());
            for (i, x) in leaves.iter().enumerate() {
                let what = format!("{} {:?} '{}' {dtype} on {device}, operand {i}", entry.schema.name, sample.shapes, sample.attrs);
                let Some(got) = x.grad() else {
                    assert!(parts[0][i].is_none(), "{what}");
                    continue;
                };
                let part = |p: usize| parts[p][i].as_ref().unwrap();
                assert_eq!(got.dtype(), kept(x.dtype()), "{what}");
                assert_same_bits(&got, &part(0).add(part(1)).unwrap().add(part(2)).unwrap(), &what);
                ran.insert(entry.schema.name);
            }
        }
    }
    assert!(ran.len() > 50, "{ran:?}");
}

/// No memory where products add to what stands, as the CPU's do. Small, long, by lines, by tiles, with a batch that is summed in the product, and with either operand turned.
#[test]
fn a_second_pass_through_a_product_takes_no_memory_or_that_of_one_gradient() {
    let device = own_device();
    let mut rng = Rng::new(5);
    let cases: [(&[usize], &[usize]); 7] = [
        (&[1, 1], &[1, 1]),
        (&[3, 5], &[5, 2]),
        (&[600, 48], &[48, 32]),
        (&[1, 700], &[700, 90]),
        (&[300, 40], &[40, 1]),
        (&[5, 70, 33], &[33, 65]),
        (&[129, 130], &[130, 257]),
    ];
    for (a, b) in cases {
        for dtype in having(DTYPES) {
            let mut of = |shape: &[usize]| Tensor::randn(shape, dtype, &device, &mut rng).unwrap();
            let (a, b) = (of(a), of(b));
            for (turned, w) in [(false, b.clone()), (true, b.mt().unwrap().contiguous().unwrap())] {
                let w = leaf(&w, kept(dtype));
                let y = if turned { a.matmul(&w.mt().unwrap()) } else { a.matmul(&w) }.unwrap();
                let g = [of(y.shape()), of(y.shape())];
                y.backward_with(with(&g[0])).unwrap();
                let (first, before) = (w.grad().unwrap().copy().unwrap(), memory_stats(&device));
                device.reset_peak_memory_stats();
                y.backward_with(with(&g[1])).unwrap();
                let after = memory_stats(&device);
                let what = format!("{:?}·{:?} of {dtype}, turned: {turned}", a.shape(), b.shape());
                // The gradient of a turned view goes on through the view, and a device whose products don't add has one beside the sum.
                let taken = (after.alloc_count - before.alloc_count, after.peak_bytes - before.current_bytes);
                let beside = if device.backend().adds_products() { (0, 0) } else { (1, (w.numel() * kept(dtype).size_bytes()) as u64) };
                if !turned {
                    assert_eq!(taken, beside, "{what}");
                }
                let sum = w.grad().unwrap().copy().unwrap();
                w.zero_grad();
                y.backward_with(with(&g[1])).unwrap();
                assert_same_bits(&sum, &first.add(&w.grad().unwrap()).unwrap(), &what);
            }
        }
    }
}
