//! Both gradients of an outer product come of one pass over what comes in, and nobody can tell but by the time it takes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a check fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bilin::autograd::{BackwardOptions, GradOptions, grad};
use bilin::exec::backend::Backend;
use bilin::exec::buffer::Buffer;
use bilin::exec::call::{ContractCall, GatherCall, MapCall, ReduceCall, ScatterCall};
use bilin::prelude::*;
use bilin::profiler::{Direction, profile};
use bilin_cpu::CpuBackend;
use conformance::compare::assert_same_bits;

/// The CPU, with its products counted: single ones, and pairs.
#[derive(Debug, Default)]
struct Counting(CpuBackend, Arc<[AtomicUsize; 2]>);

impl Backend for Counting {
    fn name(&self) -> &'static str {
        "counting"
    }
    fn has_dtype(&self, dtype: DType) -> bool {
        self.0.has_dtype(dtype)
    }
    fn alloc(&self, byte_len: usize) -> Result<Option<Box<dyn Buffer>>> {
        self.0.alloc(byte_len)
    }
    fn upload(&self, src: &[u8], dst: &mut dyn Buffer) -> Result<()> {
        self.0.upload(src, dst)
    }
    fn download(&self, src: &dyn Buffer, dst: &mut [u8]) -> Result<()> {
        self.0.download(src, dst)
    }
    fn sync(&self) -> Result<()> {
        self.0.sync()
    }
    fn contract(&self, call: ContractCall<'_>) -> Result<()> {
        self.1[0].fetch_add(1, Relaxed);
        self.0.contract(call)
    }
    fn contract_both(&self, calls: [ContractCall<'_>; 2]) -> Result<bool> {
        let is_done = self.0.contract_both(calls)?;
        self.1[1].fetch_add(usize::from(is_done), Relaxed);
        Ok(is_done)
    }
    fn adds_products(&self) -> bool {
        self.0.adds_products()
    }
    fn map(&self, call: MapCall<'_>) -> Result<()> {
        self.0.map(call)
    }
    fn reduce(&self, call: ReduceCall<'_>) -> Result<()> {
        self.0.reduce(call)
    }
    fn gather(&self, call: GatherCall<'_>) -> Result<()> {
        self.0.gather(call)
    }
    fn scatter_add(&self, call: ScatterCall<'_>) -> Result<()> {
        self.0.scatter_add(call)
    }
    fn kernels(&self) -> Vec<&'static str> {
        self.0.kernels()
    }
}

const LENS: [usize; 2] = [70, 130];

struct Subject {
    device: Device,
    counts: Arc<[AtomicUsize; 2]>,
    x: [Tensor; 2],
    g: Tensor,
}

impl Subject {
    fn new(dtype: DType) -> Subject {
        let backend = Counting::default();
        let counts = backend.1.clone();
        let device = Device::new("counting", Box::new(backend));
        let mut rng = Rng::new(3);
        let mut random = |shape: &[usize]| Tensor::randn(shape, dtype, &device, &mut rng).unwrap();
        let (x, g) = (LENS.map(|len| random(&[len])), random(&LENS));
        Subject { device, counts, x, g }
    }

    fn leaves(&self, needs: [bool; 2]) -> [Tensor; 2] {
        [0, 1].map(|i| self.x[i].detach().requires_grad_(needs[i]).unwrap())
    }

    fn backward(&self, y: &Tensor) {
        let options = BackwardOptions { gradient: Some(self.g.clone()), retain_graph: Some(true), ..Default::default() };
        y.backward_with(options).unwrap();
    }

    /// Each gradient where the other isn't asked for.
    fn alone(&self) -> [Tensor; 2] {
        [[true, false], [false, true]].map(|needs| {
            let leaves = self.leaves(needs);
            self.backward(&leaves[0].outer(&leaves[1]).unwrap());
            leaves[usize::from(needs[1])].grad().unwrap()
        })
    }

    /// Single products and pairs since the last question.
    fn taken(&self) -> [usize; 2] {
        [0, 1].map(|i| self.counts[i].swap(0, Relaxed))
    }
}

#[test]
fn every_way_to_write_it_reads_once() {
    type Way = (&'static str, fn(&Tensor, &Tensor) -> Result<Tensor>);
    let ways: [Way; 5] = [
        ("outer", Tensor::outer),
        ("matmul", |a, b| a.unsqueeze(1)?.matmul(&b.unsqueeze(0)?)),
        ("tensordot", |a, b| bilin::tensordot(a, b, 0)),
        ("einsum", |a, b| bilin::einsum("i,j->ij", &[a, b])),
        ("transposed", |a, b| bilin::einsum("i,j->ji", &[a, b])?.mt()),
    ];
    for dtype in [DType::F32, DType::F64, DType::F16, DType::Bf16, DType::C64] {
        let subject = Subject::new(dtype);
        let want = subject.alone();
        for (name, way) in ways {
            let leaves = subject.leaves([true; 2]);
            let y = way(&leaves[0], &leaves[1]).unwrap();
            subject.taken();
            subject.backward(&y);
            // Those of other dtypes read twice.
            let reads = if matches!(dtype, DType::F32 | DType::F64) { [0, 1] } else { [2, 0] };
            assert_eq!(subject.taken(), reads, "{name} {dtype}");
            for (x, want) in leaves.iter().zip(&want) {
                assert_same_bits(&x.grad().unwrap(), want, &format!("{name} {dtype}"));
            }
        }
    }
}

#[test]
fn gradients_add_up_and_hooks_see_them() {
    let subject = Subject::new(DType::F32);
    let want = subject.alone();
    let leaves = subject.leaves([true; 2]);
    let y = leaves[0].outer(&leaves[1]).unwrap();
    leaves[1].register_hook(|g| g.mul_scalar(2.0).map(Some)).unwrap();
    subject.taken();
    (0..3).for_each(|_| subject.backward(&y));
    assert_eq!(subject.taken(), [0, 3], "added to what stands, it is read once as well");
    let thrice = |x: &Tensor| x.add(x).unwrap().add(x).unwrap();
    assert_same_bits(&leaves[0].grad().unwrap(), &thrice(&want[0]), "added");
    assert_same_bits(&leaves[1].grad().unwrap(), &thrice(&want[1].mul_scalar(2.0).unwrap()), "hooked");
}

#[test]
fn recorded_gradients_have_gradients() {
    let subject = Subject::new(DType::F64);
    let [a, b] = subject.leaves([true; 2]);
    let y = a.outer(&b).unwrap();
    let options = GradOptions { grad_outputs: vec![Some(subject.g.clone())], create_graph: true, ..Default::default() };
    subject.taken();
    let first = grad(&[&y], &[&a, &b], options).unwrap();
    assert_eq!(subject.taken(), [2, 0], "recorded, each is an op of its own");
    for (got, want) in first.iter().flatten().zip(subject.alone()) {
        assert_same_bits(&got.detach(), &want, "first");
    }
    // ∂ Σ(G·b) / ∂b is the sum of each column of G.
    let sum = first[0].as_ref().unwrap().sum(.., false).unwrap();
    let second = grad(&[&sum], &[&b], GradOptions::default()).unwrap();
    let (got, columns) = (second[0].as_ref().unwrap(), subject.g.sum(0, false).unwrap());
    // At most LENS[0] additions each way.
    let (got, want): (Vec<f64>, Vec<f64>) = (got.to_vec().unwrap(), columns.to_vec().unwrap());
    let size: Vec<f64> = subject.g.abs().unwrap().sum(0, false).unwrap().to_vec().unwrap();
    for ((got, want), size) in got.iter().zip(want).zip(size) {
        assert!((got - want).abs() <= 2.0 * LENS[0] as f64 * f64::EPSILON * size, "{got} {want}");
    }
}

#[test]
fn a_profile_shows_both() {
    let subject = Subject::new(DType::F32);
    let leaves = subject.leaves([true; 2]);
    let y = leaves[0].outer(&leaves[1]).unwrap();
    subject.taken();
    let before = subject.device.memory_stats().current_bytes;
    let profile = profile(|| subject.backward(&y));
    assert_eq!(subject.taken(), [0, 1]);
    let events: Vec<_> = profile.events().iter().filter(|e| e.name == "outer").collect();
    let [m, n] = LENS;
    assert_eq!(events.len(), 2);
    for (event, (first, len)) in events.iter().zip([(vec![m, n], n), (vec![m], m * n)]) {
        assert_eq!((event.node, event.direction, event.flops), ("OuterBackward", Direction::Backward, 2 * (m * n) as u64));
        assert_eq!((event.shapes[0].to_vec(), event.shapes[1].iter().product()), (first, len));
    }
    assert_eq!([events[0].bytes, events[1].bytes], [(m * n + m + n) as u64 * 4; 2]);
    assert_eq!(events.iter().map(|e| e.memory_change_bytes).sum::<i64>(), (subject.device.memory_stats().current_bytes - before) as i64);
}

#[test]
fn memory_for_one_of_them_is_too_little() {
    let subject = Subject::new(DType::F64);
    let want = subject.alone();
    let leaves = subject.leaves([true; 2]);
    let y = leaves[0].outer(&leaves[1]).unwrap();
    let options = || BackwardOptions { gradient: Some(subject.g.clone()), retain_graph: Some(true), ..Default::default() };
    subject.device.set_memory_limit(Some(subject.device.memory_stats().current_bytes + 8 * LENS[0] as u64 + 8));
    assert_eq!(y.backward_with(options()).unwrap_err().kind(), "OutOfMemory");
    assert!(leaves.iter().all(|x| x.grad().is_none()));
    subject.device.set_memory_limit(None);
    subject.backward(&y);
    for (x, want) in leaves.iter().zip(&want) {
        assert_same_bits(&x.grad().unwrap(), want, "with more");
    }
}
