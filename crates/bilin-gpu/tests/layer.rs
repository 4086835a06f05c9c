//! The kernel layer on an adapter; without one these tests fail.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a check fails")]

use std::sync::Arc;

use bilin_core::{DType, Error};
use bilin_gpu::{Access, BufferPool, CommandEncoder, GpuBuffer, GpuDevice, Graph, Kernel, KernelRegistry, adapters};

/// out[i] = 2·x[i] + 1.
const DOUBLE: &str = "
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(64)
fn double(@builtin(global_invocation_id) at: vec3<u32>) {
    if at.x < arrayLength(&y) { y[at.x] = 2.0 * x[at.x] + 1.0; }
}";

fn device() -> GpuDevice {
    GpuDevice::new().unwrap()
}

fn filled(device: &GpuDevice, values: &[f32]) -> GpuBuffer {
    let buffer = device.alloc_buffer(values.len() * 4, DType::F32, [values.len()]).unwrap();
    buffer.write(values).unwrap();
    buffer
}

fn double(device: &GpuDevice) -> Arc<Kernel> {
    let registry = KernelRegistry::new();
    registry.register_source("double", DOUBLE);
    registry.get_pipeline("double", device).unwrap()
}

#[test]
fn adapters_are_listed_and_a_wrong_one_is_named() {
    let all = adapters();
    assert!(!all.is_empty() && all.iter().all(|a| a.max_buffer_bytes > 0 && !a.name.is_empty()), "{all:?}");
    let error = GpuDevice::open(all.len()).unwrap_err();
    assert!(matches!(&error, Error::InvalidArgument { .. }) && error.to_string().contains(&all[0].name), "{error}");
}

#[test]
fn memory_is_zero_typed_and_bounded() {
    let device = device();
    let x = device.alloc_buffer(40, DType::F32, [3, 3]).unwrap();
    assert_eq!((x.dtype(), x.shape(), x.element_count(), x.byte_len()), (DType::F32, &[3, 3][..], 9, 40));
    assert_eq!(x.read::<f32>().unwrap(), [0.0; 9]);
    assert!(matches!(x.read::<i32>(), Err(Error::DtypeMismatch { .. })));
    assert!(matches!(x.write(&[0f32; 10]), Err(Error::InvalidArgument { .. })));
    assert!(matches!(device.alloc_buffer(35, DType::F32, [3, 3]), Err(Error::InvalidArgument { .. })));
    let most = device.limits().max_buffer_bytes as usize;
    let error = device.alloc_buffer(most + 1, DType::U8, [1]).unwrap_err().to_string();
    assert!(error.contains(&(most + 1).to_string()) && error.contains(&most.to_string()), "{error}");
    assert_eq!(device.alloc_buffer(0, DType::F32, [0]).unwrap().read::<f32>().unwrap(), [0f32; 0]);
    // Any number of bytes, and a word's other bytes stay.
    let bytes = device.alloc_buffer(8, DType::U8, [8]).unwrap();
    bytes.write(&[9u8; 8]).unwrap();
    bytes.write(&[1u8, 2, 3, 4, 5]).unwrap();
    assert_eq!(bytes.read::<u8>().unwrap(), [1, 2, 3, 4, 5, 9, 9, 9]);
}

#[test]
fn views_share_memory_and_stay_inside() {
    let device = device();
    let x = filled(&device, &[0., 1., 2., 3., 4., 5.]);
    let view = x.slice_view(8, [2, 1]).unwrap();
    assert_eq!(view.read::<f32>().unwrap(), [2., 3.]);
    view.write(&[7f32]).unwrap();
    assert_eq!(x.read::<f32>().unwrap(), [0., 1., 7., 3., 4., 5.]);
    assert_eq!(view.slice_view(4, [1]).unwrap().read::<f32>().unwrap(), [3.]);
    for (offset, len) in [(2, 1), (8, 5), (24, 1), (usize::MAX - 3, 1)] {
        assert!(matches!(x.slice_view(offset, [len]), Err(Error::InvalidArgument { .. })), "{offset}, {len}");
    }
}

#[test]
fn each_kernel_is_compiled_once_by_whichever_thread_comes_first() {
    let device = device();
    let registry = KernelRegistry::new();
    registry.register_source("double", DOUBLE);
    assert!(registry.names().contains(&"outer_product_f32".to_owned()));
    assert!(!registry.is_cached("double") && registry.cached_count() == 0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| registry.get_pipeline("double", &device).unwrap());
        }
    });
    assert_eq!((device.counters().compiles, registry.cached_count(), registry.is_cached("double")), (1, 1, true));
    registry.prewarm(&device, &["double", "outer_product_f32", "outer_product_f32x4"]).unwrap();
    assert_eq!((device.counters().compiles, registry.cached_count()), (3, 3));
    let kernel = registry.get_pipeline("double", &device).unwrap();
    assert_eq!((kernel.workgroup_size(), kernel.accesses()), ([64, 1, 1], vec![Access::Read, Access::ReadWrite]));
    assert!(matches!(registry.get_pipeline("triple", &device), Err(Error::KernelNotFound { kernel, .. }) if kernel == "triple"));
}

#[test]
fn a_failed_compile_names_kernel_and_line_and_the_device_goes_on() {
    let device = device();
    let registry = KernelRegistry::new();
    registry.register_source("broken", "\n\nfn f() -> u32 { return nothing; }\n@compute @workgroup_size(1) fn g() {}");
    let error = registry.get_pipeline("broken", &device).unwrap_err();
    assert!(matches!(&error, Error::ShaderCompilation { kernel, message } if kernel == "broken" && message.contains("line 3")), "{error}");
    // Refused after parsing: more invocations than any device has.
    registry.register_source("huge", "@compute @workgroup_size(100000) fn g() {}");
    assert!(matches!(registry.get_pipeline("huge", &device), Err(Error::ShaderCompilation { kernel, .. }) if kernel == "huge"));
    registry.register_source("two", "@compute @workgroup_size(1) fn g() {} @compute @workgroup_size(1) fn h() {}");
    assert!(matches!(registry.get_pipeline("two", &device), Err(Error::ShaderCompilation { .. })));
    // A new source takes the name, and the device works.
    registry.register_source("broken", DOUBLE);
    let (x, y) = (filled(&device, &[3.]), filled(&device, &[0.]));
    let mut encoder = device.command_encoder();
    encoder.encode(&registry.get_pipeline("broken", &device).unwrap(), &[&x, &y], [1, 1, 1]).unwrap();
    encoder.commit_and_wait().unwrap();
    assert_eq!(y.read::<f32>().unwrap(), [7.]);
}

#[test]
fn the_host_reads_and_writes_in_its_turn_while_work_is_in_flight() {
    let device = device();
    let kernel = double(&device);
    const LEN: usize = 1 << 16;
    let (x, y) = (filled(&device, &[1.0; LEN]), filled(&device, &[0.0; LEN]));
    for round in 1..20 {
        // Nothing is waited for: the write stands between two commits, and the read after both.
        let mut encoder = device.command_encoder();
        encoder.encode(&kernel, &[&x, &y], [(LEN / 64) as u32, 1, 1]).unwrap();
        let first = encoder.commit().unwrap();
        x.write(&[round as f32; LEN]).unwrap();
        let mut encoder = device.command_encoder();
        let z = filled(&device, &[0.0; LEN]);
        encoder.encode(&kernel, &[&x, &z], [(LEN / 64) as u32, 1, 1]).unwrap();
        let second = encoder.commit().unwrap();
        let before = if round == 1 { 1.0 } else { round as f32 - 1.0 };
        assert!(y.read::<f32>().unwrap().iter().all(|&y| y == 2.0 * before + 1.0), "round {round}: a write overtook a kernel");
        assert!(z.read::<f32>().unwrap().iter().all(|&z| z == 2.0 * round as f32 + 1.0), "round {round}: a kernel overtook a write");
        first.wait().unwrap();
        second.wait().unwrap();
    }
}

/// `steps` kernels, each on the result of the one before.
fn chain(device: &GpuDevice, kernel: &Arc<Kernel>, buffers: &[GpuBuffer]) -> CommandEncoder {
    let mut encoder = device.command_encoder();
    for pair in buffers.windows(2) {
        encoder.encode(kernel, &[&pair[0], &pair[1]], [1, 1, 1]).unwrap();
    }
    encoder
}

#[test]
fn barriers_stand_where_bytes_are_shared_and_nowhere_else() {
    let device = device();
    let kernel = double(&device);
    let buffers: Vec<GpuBuffer> = (0..5).map(|i| filled(&device, &[i as f32; 4])).collect();
    chain(&device, &kernel, &buffers).commit_and_wait().unwrap();
    assert_eq!(buffers[4].read::<f32>().unwrap(), [15.; 4]);
    let c = device.counters();
    assert_eq!((c.dispatches, c.commits, c.barriers), (4, 1, 3));
    // Two halves of one memory don't wait for each other; a third kernel that reads both waits once.
    let align = 256;
    let both = device.alloc_buffer(2 * align, DType::F32, [2 * align / 4]).unwrap();
    let halves = [0, align].map(|at| both.slice_view(at, [align / 4]).unwrap());
    let x = filled(&device, &[1.; 64]);
    let y = filled(&device, &[0.; 128]);
    let mut encoder = device.command_encoder();
    encoder.encode(&kernel, &[&x, &halves[0]], [1, 1, 1]).unwrap();
    encoder.encode(&kernel, &[&x, &halves[1]], [1, 1, 1]).unwrap();
    assert_eq!(device.counters().barriers, 3);
    encoder.encode(&kernel, &[&both, &y], [2, 1, 1]).unwrap();
    assert_eq!(device.counters().barriers, 4);
    encoder.barrier();
    encoder.encode(&kernel, &[&x, &filled(&device, &[0.])], [1, 1, 1]).unwrap();
    encoder.commit_and_wait().unwrap();
    assert_eq!(device.counters().barriers, 5);
    assert_eq!(y.read::<f32>().unwrap(), [7.; 128]);
}

#[test]
fn what_a_kernel_cannot_take_is_refused_before_it_is_recorded() {
    let device = device();
    let kernel = double(&device);
    let (x, y) = (filled(&device, &[1.; 8]), filled(&device, &[0.; 8]));
    let other = filled(&GpuDevice::new().unwrap(), &[0.; 8]);
    let most = device.limits().max_groups;
    let mut encoder = device.command_encoder();
    let mut refused = |buffers: &[&GpuBuffer], grid: [u32; 3]| encoder.encode(&kernel, buffers, grid).unwrap_err();
    let text = |e: Error| e.to_string();
    assert_eq!(text(refused(&[&x], [1, 1, 1])), "double: buffers is 1 buffers; want 2, one for each binding of group 0");
    assert!(text(refused(&[&x, &y], [1, 0, 1])).contains("grid is [1, 0, 1]"));
    assert!(text(refused(&[&x, &y], [most + 1, 1, 1])).contains(&most.to_string()));
    assert!(text(refused(&[&x, &x], [1, 1, 1])).contains("one of them is written"));
    assert!(text(refused(&[&x.slice_view(4, [1]).unwrap(), &y], [1, 1, 1])).contains("at byte 4"));
    assert!(matches!(refused(&[&x, &other], [1, 1, 1]), Error::DeviceMismatch { .. }));
    assert!(encoder.encode_with(&kernel, &[&x, &y], &[1], [1, 1, 1]).unwrap_err().to_string().contains("declares no uniform"));
    assert!(encoder.is_empty());
    encoder.commit_and_wait().unwrap();
    assert_eq!(y.read::<f32>().unwrap(), [0.; 8]);
}

#[test]
fn a_graph_replays_with_the_same_bits_and_other_buffers() {
    let device = device();
    let kernel = double(&device);
    let buffers: Vec<GpuBuffer> = (0..4).map(|i| filled(&device, &[i as f32 + 0.1; 4])).collect();
    let graph = Graph::capture(chain(&device, &kernel, &buffers)).unwrap();
    assert_eq!((graph.len(), device.counters().commits), (3, 0));
    graph.replay(&[]).unwrap().wait().unwrap();
    let first = buffers[3].read::<f32>().unwrap();
    buffers[3].write(&[f32::NAN; 4]).unwrap();
    graph.replay(&[]).unwrap().wait().unwrap();
    assert_eq!(buffers[3].read::<f32>().unwrap(), first);
    let (x, y) = (filled(&device, &[0.1; 4]), filled(&device, &[f32::NAN; 4]));
    graph.replay(&[(&buffers[0], &x), (&buffers[3], &y)]).unwrap().wait().unwrap();
    assert_eq!(y.read::<f32>().unwrap(), first);
    let c = device.counters();
    assert_eq!((c.commits, c.dispatches, c.barriers), (3, 3 + 9, 2 + 6));
    let wrong = filled(&device, &[0.; 5]);
    assert!(matches!(graph.replay(&[(&buffers[0], &wrong)]), Err(Error::InvalidArgument { .. })));
    assert!(matches!(graph.replay(&[(&x, &y)]), Err(Error::InvalidArgument { .. })), "x isn't in the graph");
}

#[test]
fn a_pool_hands_memory_out_again() {
    let device = device();
    let pool = BufferPool::new(&device);
    let kernel = double(&device);
    let x = filled(&device, &[1.; 4]);
    let mut encoder = device.command_encoder();
    let y = pool.acquire(16, DType::F32, [4]).unwrap();
    encoder.encode(&kernel, &[&x, &y], [1, 1, 1]).unwrap();
    drop(y);
    assert_eq!(pool.stats().hits, 0);
    let z = pool.acquire(16, DType::F32, [4]).unwrap();
    assert_eq!((pool.stats().hits, pool.stats().misses), (0, 2), "the recording still holds the first");
    encoder.commit_and_wait().unwrap();
    drop(z);
    let held = pool.stats().held_bytes;
    assert_eq!(held, 512);
    let again = pool.acquire(200, DType::U8, [200]).unwrap();
    assert_eq!((pool.stats().hits, pool.stats().held_bytes), (1, 256));
    pool.trim();
    assert_eq!(pool.stats().held_bytes, 0);
    assert_eq!(again.byte_len(), 200);
}

#[test]
fn time_on_the_device_is_measured() {
    let device = device();
    let kernel = double(&device);
    let buffers: Vec<GpuBuffer> = (0..5).map(|_| filled(&device, &[1.; 4])).collect();
    if device.has_feature("timestamps") {
        let time = chain(&device, &kernel, &buffers).commit_and_wait_timed().unwrap();
        assert!(time.as_secs_f64() > 0.0 && time.as_secs_f64() < 60.0, "{time:?}");
        assert_eq!(buffers[4].read::<f32>().unwrap(), [31.; 4]);
    } else {
        assert!(matches!(chain(&device, &kernel, &buffers).commit_and_wait_timed(), Err(Error::InvalidArgument { .. })));
    }
}

#[test]
fn a_lost_device_is_an_error_and_another_works() {
    let lost = device();
    let (kernel, x, y) = (double(&lost), filled(&lost, &[1.]), filled(&lost, &[0.]));
    let mut encoder = lost.command_encoder();
    encoder.encode(&kernel, &[&x, &y], [1, 1, 1]).unwrap();
    lost.close();
    assert!(matches!(encoder.commit(), Err(Error::DeviceLost { .. })));
    assert!(matches!(x.read::<f32>(), Err(Error::DeviceLost { .. })));
    assert!(matches!(x.write(&[1f32]), Err(Error::DeviceLost { .. })));
    assert!(matches!(lost.alloc_buffer(4, DType::F32, [1]), Err(Error::DeviceLost { .. })));
    assert!(matches!(lost.wait(), Err(Error::DeviceLost { .. })));
    assert_eq!(filled(&device(), &[5.]).read::<f32>().unwrap(), [5.]);
}
