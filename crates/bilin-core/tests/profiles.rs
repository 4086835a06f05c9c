//! Profiles: sums and table of the events, peaks of each dtype, clocks, threads, scopes within scopes.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use std::sync::Mutex;
use std::time::{Duration, Instant};

use bilin_core::exec::backend::Backend;
use bilin_core::exec::buffer::Buffer;
use bilin_core::exec::call::{ContractCall, GatherCall, MapCall, ReduceCall, ScatterCall};
use bilin_core::exec::reference::ReferenceBackend;
use bilin_core::schema::modes::is_profiling;
use bilin_core::schema::profiler::{Direction, Profile, profile, profile_with, record_function};
use bilin_core::{DType, Device, Result, Rng, Tensor};

fn random(shape: &[usize], dtype: DType) -> Tensor {
    Tensor::randn(shape, dtype, &Device::reference(), &mut Rng::new(3)).unwrap()
}
/// A product of two dtypes, its gradients, and a scope around them.
fn sample() -> Profile {
    let (a, b) = (random(&[6, 3, 4], DType::C64).requires_grad_(true).unwrap(), random(&[4, 5], DType::C64));
    let (c, d) = (random(&[30, 40], DType::F64), random(&[40, 20], DType::F64));
    profile(|| {
        record_function("step", || {
            let y = a.matmul(&b).unwrap();
            y.real().unwrap().sum(.., false).unwrap().backward().unwrap();
            c.matmul(&d).unwrap().tanh().unwrap();
        });
    })
}

#[test]
fn sums_and_rows_of_the_table_are_those_of_the_events() {
    let profile = sample();
    let sums = profile.key_averages();
    assert!(sums.windows(2).all(|w| w[0].total_ns >= w[1].total_ns), "the longest first");
    let table = profile.table();
    let rows: Vec<&str> = table.lines().skip(1).collect();
    assert_eq!(rows.len(), sums.len());
    let kernels: u64 = profile.events().iter().filter(|e| e.direction != Direction::Scope).map(|e| e.duration_ns).sum();
    for (k, row) in sums.iter().zip(rows) {
        let of: Vec<_> = profile.events().iter().filter(|e| e.name == k.name && e.node == k.node && e.device == k.device).collect();
        let total = |f: &dyn Fn(&bilin_core::schema::profiler::Event) -> u64| of.iter().map(|e| f(e)).sum::<u64>();
        assert_eq!((k.calls, k.total_ns), (of.len() as u64, total(&|e| e.duration_ns)));
        assert_eq!((k.flops, k.bytes), (total(&|e| e.flops), total(&|e| e.bytes)));
        let name = if k.node.is_empty() { k.name.to_string() } else { format!("{} in {}", k.name, k.node) };
        let cells: Vec<&str> = row.strip_prefix(&name).unwrap().split_whitespace().collect();
        let near = |cell: &str, want: f64, step: f64| {
            let got: f64 = cell.trim_end_matches('%').parse().unwrap();
            assert!((got - want).abs() <= step, "{got} instead of {want} in {row}");
        };
        let ns = k.total_ns as f64;
        near(cells[0], k.calls as f64, 0.0);
        near(cells[1], ns / 1e6, 0.0006);
        near(cells[3], k.flops as f64 / ns, 0.006);
        near(cells[4], k.bytes as f64 / ns, 0.006);
        if k.device.is_none() {
            assert_eq!((&*name, cells[2], cells[5]), ("step", "–", "–"));
        } else {
            near(cells[2], 100.0 * ns / kernels as f64, 0.06);
            assert!(cells[5].trim_end_matches('%').parse::<f64>().unwrap() > 0.0, "{row}");
        }
    }
    // 2·M·N·K, four times that for complex numbers, batches included; a matmul and the gradient of one operand each.
    let flops = |node: &str| sums.iter().find(|k| k.name == "matmul" && k.node == node).unwrap().flops;
    assert_eq!(flops(""), 8 * 6 * 3 * 4 * 5 + 2 * 30 * 40 * 20);
    assert_eq!(flops("MatmulBackward"), 8 * 6 * 3 * 4 * 5);
}

/// Products of large matrices take their time and are noted by dtype; nothing is computed.
#[derive(Debug)]
struct Noting;
static NOTED: Mutex<Vec<[DType; 2]>> = Mutex::new(Vec::new());

impl Backend for Noting {
    fn name(&self) -> &'static str {
        "noting"
    }
    fn has_dtype(&self, dtype: DType) -> bool {
        ReferenceBackend.has_dtype(dtype)
    }
    fn alloc(&self, byte_len: usize) -> Result<Option<Box<dyn Buffer>>> {
        ReferenceBackend.alloc(byte_len)
    }
    fn upload(&self, src: &[u8], dst: &mut dyn Buffer) -> Result<()> {
        ReferenceBackend.upload(src, dst)
    }
    fn download(&self, src: &dyn Buffer, dst: &mut [u8]) -> Result<()> {
        ReferenceBackend.download(src, dst)
    }
    fn sync(&self) -> Result<()> {
        ReferenceBackend.sync()
    }
    fn contract(&self, call: ContractCall<'_>) -> Result<()> {
        NOTED.lock().unwrap().push([call.lhs.dtype, call.accumulator]);
        std::thread::sleep(Duration::from_millis(3));
        Ok(())
    }
    fn map(&self, call: MapCall<'_>) -> Result<()> {
        ReferenceBackend.map(call)
    }
    fn reduce(&self, call: ReduceCall<'_>) -> Result<()> {
        ReferenceBackend.reduce(call)
    }
    fn gather(&self, call: GatherCall<'_>) -> Result<()> {
        ReferenceBackend.gather(call)
    }
    fn scatter_add(&self, call: ScatterCall<'_>) -> Result<()> {
        ReferenceBackend.scatter_add(call)
    }
    fn kernels(&self) -> Vec<&'static str> {
        Vec::new()
    }
}

#[test]
fn the_peak_of_each_dtype_is_measured_in_that_dtype_once() {
    let device = Device::new("noting", Box::new(Noting));
    let noted = || {
        let mut all = std::mem::take(&mut *NOTED.lock().unwrap());
        all.dedup();
        all
    };
    for (dtype, sums) in [(DType::F64, DType::F64), (DType::F32, DType::F32), (DType::Bf16, DType::F32), (DType::C64, DType::C64)] {
        let x = Tensor::ones([4, 4], dtype, &device).unwrap();
        let profile = profile(|| drop(x.matmul(&x).unwrap()));
        noted();
        profile.key_averages();
        profile.export_chrome_trace();
        assert_eq!(noted(), [] as [[DType; 2]; 0], "only a table needs a peak");
        // A measurement leaves the peak of memory as it was.
        device.reset_peak_memory_stats();
        let before = device.memory_stats();
        let table = profile.table();
        assert_eq!(noted(), [[dtype, sums]], "{table}");
        assert_eq!(device.memory_stats().peak_bytes, before.peak_bytes);
        assert!(table.lines().nth(1).unwrap().ends_with('%'), "{table}");
        assert_eq!(profile.table(), table);
        assert_eq!(noted(), [] as [[DType; 2]; 0], "measured once");
    }
}

#[test]
fn times_are_those_of_the_clock_and_scopes_nest() {
    let x = random(&[8, 8], DType::F32);
    let nap = Duration::from_millis(5);
    let outside = Instant::now();
    let ((before, after), all) = profile_with(|| {
        let before = outside.elapsed();
        record_function("outer", || {
            x.matmul(&x).unwrap();
            record_function("inner", || std::thread::sleep(nap));
            x.exp().unwrap();
        });
        (before, outside.elapsed())
    });
    let find = |name: &str| all.events().iter().find(|e| e.name == name).unwrap();
    let span = |name: &str| (find(name).start_ns, find(name).start_ns + find(name).duration_ns);
    assert_eq!(all.events().iter().map(|e| &*e.name).collect::<Vec<_>>(), ["matmul", "inner", "exp", "outer"], "as they ended");
    assert_eq!(["matmul", "inner", "exp", "outer"].map(|name| find(name).depth), [1, 1, 1, 0]);
    assert!(find("inner").duration_ns as u128 >= nap.as_nanos());
    let (outer, inner) = (span("outer"), span("inner"));
    assert!(u128::from(outer.1 - outer.0) <= (after - before).as_nanos(), "longer than it took");
    assert!(outer.0 <= span("matmul").0 && span("matmul").1 <= inner.0 && inner.1 <= span("exp").0 && span("exp").1 <= outer.1);
}

#[test]
fn profiles_belong_to_their_thread_and_nest_also_across_panics() {
    let x = random(&[4, 4], DType::F32);
    let names = |p: &Profile| p.events().iter().map(|e| e.name.to_string()).collect::<Vec<_>>();
    let mut inner = Profile::default();
    let outer = profile(|| {
        x.exp().unwrap();
        inner = profile(|| drop(x.matmul(&x).unwrap()));
        assert!(is_profiling());
        let panicked = std::panic::catch_unwind(|| profile(|| std::panic::resume_unwind(Box::new(()))));
        assert!(panicked.is_err() && is_profiling());
        // Another thread's work is another thread's profile.
        let there = std::thread::scope(|s| {
            s.spawn(|| {
                assert!(!is_profiling());
                x.sin().unwrap();
                profile(|| drop(x.cos().unwrap()))
            })
            .join()
            .unwrap()
        });
        assert_eq!(names(&there), ["cos"]);
        x.tanh().unwrap();
        assert_ne!(there.events()[0].thread, inner.events()[0].thread);
    });
    assert_eq!((names(&outer), names(&inner)), (vec!["exp".to_owned(), "tanh".to_owned()], vec!["matmul".to_owned()]));
    assert!(!is_profiling() && outer.events().iter().all(|e| e.thread == inner.events()[0].thread));
}
