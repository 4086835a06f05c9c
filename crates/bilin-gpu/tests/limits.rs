//! Small limits and lost devices: every verb goes around a limit or names it, and a lost device is an error at every call.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a check fails")]

use bilin::prelude::*;
use bilin_gpu::{GpuDevice, GpuOptions, WgpuBackend};
use conformance::compare::{assert_product_rule, assert_same_bits};

fn device(options: GpuOptions) -> (Device, GpuDevice) {
    let gpu = GpuDevice::with_options(&options).unwrap();
    (Device::new("wgpu:0", Box::new(WgpuBackend::new(&gpu))), gpu)
}

fn numbers(shape: &[usize], device: &Device) -> Tensor {
    Tensor::randn(shape, DType::F32, &Device::cpu(), &mut Rng::new(7)).unwrap().to_device(device).unwrap()
}

fn positions(count: usize, below: usize, device: &Device) -> Result<Tensor> {
    Tensor::from_vec((0..count).map(|i| (i * 7 % below) as i64).collect::<Vec<_>>(), [count], device)
}

type Call = fn(&Tensor, &Tensor) -> Result<Tensor>;

/// Each verb, and each of its kernels: name, shapes of the operands, the call.
const CALLS: [(&str, &[usize], &[usize], Call); 18] = [
    ("product in tiles of 128", &[1283, 9], &[9, 1281], |a, b| a.matmul(b)),
    ("smaller product in tiles of 128", &[260, 9], &[9, 259], |a, b| a.matmul(b)),
    ("product in tiles of 32", &[5, 40, 9], &[9, 33], |a, b| a.matmul(b)),
    ("product in parts", &[3, 5000], &[5000, 2], |a, b| a.matmul(b)),
    ("matrix by vector", &[90, 200], &[200, 1], |a, b| a.matmul(b)),
    ("vector by matrix", &[1, 200], &[200, 703], |a, b| a.matmul(b)),
    ("outer", &[41, 1], &[1, 300], |a, b| a.matmul(b)),
    ("map by fours", &[120, 100], &[100], |a, b| a.mul(b)),
    ("map by elements", &[3001], &[3001], |a, b| a.add(b)),
    ("cast by words", &[3001], &[1], |a, _| a.astype(DType::F16)),
    ("copy of a transpose", &[70, 60], &[1], |a, _| a.mt()?.contiguous()),
    ("few terms", &[3000, 8], &[1], |a, _| a.sum(1, false)),
    ("many terms", &[12, 300], &[1], |a, _| a.max(1, false)),
    ("terms across", &[300, 310], &[1], |a, _| a.sum(0, false)),
    ("terms in parts", &[90_000], &[1], |a, _| a.sum(.., false)),
    ("position of the greatest", &[12, 300], &[1], |a, _| a.argmax(1, false)),
    ("gather", &[2000, 3], &[1], |a, _| a.index_select(0, &positions(1500, 2000, a.device())?)),
    ("scatter", &[3000], &[1], |a, _| a.scatter_add(0, &positions(3000, 40, a.device())?, 40)),
];

#[test]
fn grids_beyond_the_limit_are_strided_over_with_the_same_bits() {
    let (few, gpu) = device(GpuOptions { max_groups: Some(2), ..Default::default() });
    let many = Device::wgpu(0).unwrap();
    assert_eq!(gpu.limits().max_groups, 2);
    for (name, a, b, call) in CALLS {
        let on = |device: &Device| call(&numbers(a, device), &numbers(b, device)).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_same_bits(&on(&few), &on(&many), name);
    }
}

#[test]
fn an_operand_beyond_the_binding_limit_is_named_with_size_and_limit_by_every_verb() {
    const LIMIT: u64 = 1 << 16;
    let (small, _) = device(GpuOptions { max_binding_bytes: Some(LIMIT), ..Default::default() });
    let large = numbers(&[300, 200], &small);
    let (row, column) = (numbers(&[1, 300], &small), numbers(&[200, 1], &small));
    let flat = large.reshape([60_000]).unwrap();
    let calls: [(&str, Result<Tensor>); 9] = [
        ("contract lhs", large.matmul(&column)),
        ("contract rhs", row.matmul(&large)),
        ("map", large.exp()),
        ("cast", large.astype(DType::F16)),
        ("copy", large.mt().unwrap().contiguous()),
        ("reduce", large.sum(.., false)),
        ("argmax", large.argmax(1, false)),
        ("gather", flat.index_select(0, &positions(10, 60_000, &small).unwrap())),
        ("scatter", flat.scatter_add(0, &positions(60_000, 10, &small).unwrap(), 10)),
    ];
    for (name, outcome) in calls {
        let error = outcome.and_then(|t| t.to_vec::<f32>().map(drop)).expect_err(name);
        assert!(matches!(&error, Error::InvalidArgument { .. }), "{name}: {error}");
        let text = error.to_string();
        let has_size = ["120000", "240000", "480000"].iter().any(|size| text.contains(size));
        assert!(has_size && text.contains("65536") && text.contains("narrow"), "{name}: {text}");
    }
    // The results alone are too large.
    let error = numbers(&[200, 1], &small).matmul(&row).unwrap_err().to_string();
    assert!(error.contains("240000") && error.contains("65536"), "{error}");
    // What the error asks for works, and the host sees all of it.
    assert_eq!(large.to_vec::<f32>().unwrap(), numbers(&[300, 200], &Device::cpu()).to_vec::<f32>().unwrap());
    let (a, b) = (numbers(&[60, 60], &small), numbers(&[60, 60], &Device::wgpu(0).unwrap()));
    assert_same_bits(&a.matmul(&a).unwrap(), &b.matmul(&b).unwrap(), "the device goes on");
}

#[test]
fn partial_sums_stay_within_the_binding_limit() {
    let (small, _) = device(GpuOptions { max_binding_bytes: Some(1 << 16), ..Default::default() });
    // The result is 40 KB; two parts of it would be 80.
    let product = |device: &Device| {
        let (a, b) = (numbers(&[1, 4, 2048], device), numbers(&[1, 2048, 4], device));
        a.broadcast_to([640, 4, 2048])?.matmul(&b.broadcast_to([640, 2048, 4])?)
    };
    let home = [numbers(&[4, 2048], &Device::cpu()), numbers(&[2048, 4], &Device::cpu())];
    let got = product(&small).unwrap().to_device(&Device::cpu()).unwrap();
    for which in [0, 639] {
        let one = got.narrow(0, which, 1).unwrap().reshape([4, 4]).unwrap();
        assert_product_rule(&one, &home, 2048, |x| x[0].matmul(&x[1]), "parts");
    }
}

#[test]
fn a_result_beyond_the_buffer_limit_is_refused_with_size_and_limit() {
    let (small, _) = device(GpuOptions { max_buffer_bytes: Some(1 << 18), max_binding_bytes: Some(1 << 18), ..Default::default() });
    let (column, row, wide) = (numbers(&[300, 1], &small), numbers(&[1, 300], &small), numbers(&[200, 200], &small));
    let calls: [(&str, usize, Result<Tensor>); 5] = [
        ("alloc", 360_000, Tensor::zeros([300, 300], DType::F32, &small)),
        ("contract", 360_000, column.matmul(&row)),
        ("map", 360_000, column.add(&row)),
        ("cast", 320_000, wide.astype(DType::I64)),
        (
            "gather",
            320_000,
            row.reshape([300])
                .unwrap()
                .index_select(0, &positions(300, 300, &small).unwrap())
                .and_then(|x| x.reshape([1, 300])?.broadcast_to([267, 300])?.contiguous()),
        ),
    ];
    for (name, size, outcome) in calls {
        let error = outcome.expect_err(name);
        let text = error.to_string();
        assert!(matches!(&error, Error::InvalidArgument { .. }) && text.contains("262144"), "{name}: {text}");
        assert!(text.contains(&size.to_string()) || name == "gather", "{name}: {text}");
    }
    assert_eq!(wide.sum(.., false).unwrap().rank(), 0);
    small.sync().unwrap();
}

#[test]
fn a_lost_device_is_an_error_of_every_call_and_another_device_works() {
    let (device, gpu) = device(GpuOptions::default());
    let operands: Vec<(Tensor, Tensor)> = CALLS.iter().map(|(_, a, b, _)| (numbers(a, &device), numbers(b, &device))).collect();
    // Work is queued, and the device goes before it is handed over.
    let queued = operands[0].0.matmul(&operands[0].1).unwrap();
    gpu.close();
    let lost = |what: &str, error: Error| assert!(matches!(&error, Error::DeviceLost { .. }), "{what}: {error}");
    lost("read", queued.to_vec::<f32>().unwrap_err());
    lost("sync", device.sync().unwrap_err());
    lost("alloc", Tensor::zeros([3], DType::F32, &device).unwrap_err());
    lost("upload", Tensor::from_slice(&[1f32], [1], &device).unwrap_err());
    for ((name, _, _, call), (a, b)) in CALLS.iter().zip(&operands) {
        lost(name, call(a, b).unwrap_err());
    }
    lost("in place", operands[7].0.add_(&operands[7].1).and_then(|()| device.sync()).unwrap_err());
    assert_eq!(numbers(&[4], &Device::wgpu(0).unwrap()).numel(), 4);
}
