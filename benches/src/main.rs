//! Products of this engine beside peers, in one run, alternating: `cargo run --release -p benches [-- FILTER]`.
//!
//! Each case is timed in rounds; in a round every contender runs once for about 20 ms. A ratio is the median over rounds of
//! peer's time ÷ ours, so a drift of the machine's clock cancels: above 1 we are faster.

use std::hint::black_box;
use std::time::Instant;

use bilin::prelude::*;

mod peers;

use peers::{gemm_peer, matrixmultiply_peer};

type Run = Box<dyn FnMut() -> Result<()>>;

struct Case {
    name: String,
    flops: f64,
    contenders: Vec<(&'static str, Run)>,
}

const ROUNDS: usize = 9;
const SLICE_SECONDS: f64 = 0.02;

fn seconds_a_call(run: &mut Run, calls: usize) -> Result<f64> {
    let start = Instant::now();
    for _ in 0..calls {
        run()?;
    }
    Ok(start.elapsed().as_secs_f64() / calls as f64)
}

fn median(mut xs: Vec<f64>) -> f64 {
    xs.sort_by(f64::total_cmp);
    xs.get(xs.len() / 2).copied().unwrap_or(f64::NAN)
}

fn measure(case: &mut Case) -> Result<()> {
    let mut calls = Vec::new();
    for (_, run) in &mut case.contenders {
        run()?;
        let once = seconds_a_call(run, 1)?.max(1e-9);
        let few = seconds_a_call(run, (1e-3 / once).ceil().max(1.0) as usize)?;
        calls.push((SLICE_SECONDS / few).ceil().max(1.0) as usize);
    }
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); calls.len()];
    for _ in 0..ROUNDS {
        for (i, (_, run)) in case.contenders.iter_mut().enumerate() {
            times[i].push(seconds_a_call(run, calls[i])?);
        }
    }
    let own = times[0].clone();
    let own_median = median(own.clone());
    print!("| {} | {:.3} µs | {:.1} |", case.name, own_median * 1e6, case.flops / own_median / 1e9);
    for (i, (peer, _)) in case.contenders.iter().enumerate().skip(1) {
        let ratio = median(times[i].iter().zip(&own).map(|(t, o)| t / o).collect());
        print!(" {peer} {ratio:.2}");
    }
    println!(" |");
    Ok(())
}

fn tensor(shape: &[usize], dtype: DType) -> Result<Tensor> {
    let dev = Device::cpu();
    if matches!(dtype, DType::F16 | DType::Bf16 | DType::F32 | DType::F64 | DType::C64 | DType::C128) {
        Tensor::rand(shape, dtype, &dev, &mut Rng::new(1))
    } else {
        Tensor::arange(0.0, shape.iter().product::<usize>() as f64, 1.0, DType::I64, &dev)?.reshape(shape)?.astype(dtype)
    }
}

fn ours(f: impl FnMut() -> Result<Tensor> + 'static) -> (&'static str, Run) {
    let mut f = f;
    ("bilin", Box::new(move || f().map(|t| drop(black_box(t)))))
}

fn cases() -> Result<Vec<Case>> {
    let mut all = Vec::new();
    let flops = |m: usize, n: usize, k: usize| 2.0 * m as f64 * n as f64 * k as f64;
    for (m, k, n) in [(64, 64, 64), (256, 256, 256), (512, 512, 512), (1024, 1024, 1024), (8, 2048, 2048), (2048, 64, 2048), (64, 2048, 64)]
    {
        let (a, b) = (tensor(&[m, k], DType::F32)?, tensor(&[k, n], DType::F32)?);
        let peers = vec![ours(move || a.matmul(&b)), gemm_peer(m, n, k, 1f32), matrixmultiply_peer(m, n, k)];
        all.push(Case { name: format!("f32 ({m},{k})·({k},{n})"), flops: flops(m, n, k), contenders: peers });
        let (a, b) = (tensor(&[m, k], DType::F64)?, tensor(&[k, n], DType::F64)?);
        let peers = vec![ours(move || a.matmul(&b)), gemm_peer(m, n, k, 1f64)];
        all.push(Case { name: format!("f64 ({m},{k})·({k},{n})"), flops: flops(m, n, k), contenders: peers });
    }
    for dtype in DType::ALL {
        let (a, b) = (tensor(&[512, 512], dtype)?, tensor(&[512, 512], dtype)?);
        let factor = if dtype.is_complex() { 4.0 } else { 1.0 };
        let peers = vec![ours(move || a.matmul(&b))];
        all.push(Case { name: format!("{dtype} 512³"), flops: factor * flops(512, 512, 512), contenders: peers });
    }
    let square = |n: usize| tensor(&[n, n], DType::F32);
    let (a, b) = (square(1024)?, square(1024)?);
    let (at, bt) = (a.mt()?, b.mt()?);
    let flipped = a.flip(0)?;
    let views = [("Aᵀ·B", at, b.clone()), ("A·Bᵀ", a.clone(), bt), ("A[::-1]·B", flipped, b.clone())];
    for (name, x, y) in views {
        let (a, b) = (a.clone(), b.clone());
        let mut plain = ours(move || a.matmul(&b));
        plain.0 = "contiguous";
        all.push(Case {
            name: format!("f32 1024³ {name}"),
            flops: flops(1024, 1024, 1024),
            contenders: vec![ours(move || x.matmul(&y)), plain],
        });
    }
    let (a, b) = (tensor(&[512, 32, 32], DType::F32)?, tensor(&[512, 32, 32], DType::F32)?);
    all.push(Case { name: "f32 512×32³".into(), flops: 512.0 * flops(32, 32, 32), contenders: vec![ours(move || a.matmul(&b))] });
    let (a, b) = (tensor(&[100_000, 3, 3], DType::F64)?, tensor(&[100_000, 3, 3], DType::F64)?);
    all.push(Case { name: "f64 100000×3³".into(), flops: 1e5 * flops(3, 3, 3), contenders: vec![ours(move || a.matmul(&b))] });
    let (a, x) = (square(4096)?, tensor(&[4096], DType::F32)?);
    all.push(Case { name: "f32 mat-vec 4096".into(), flops: flops(4096, 1, 4096), contenders: vec![ours(move || a.matvec(&x))] });
    let (a, x) = (square(4096)?, tensor(&[4096], DType::F32)?);
    all.push(Case { name: "f32 vec-mat 4096".into(), flops: flops(4096, 1, 4096), contenders: vec![ours(move || x.vecmat(&a))] });
    let (x, y) = (tensor(&[4096], DType::F32)?, tensor(&[4096], DType::F32)?);
    all.push(Case { name: "f32 outer 4096".into(), flops: 4096.0 * 4096.0, contenders: vec![ours(move || x.outer(&y))] });
    let (a, b) = (tensor(&[64, 1, 256, 256], DType::F32)?, tensor(&[1, 64, 256, 4], DType::F32)?);
    all.push(Case {
        name: "f32 (64,1,256,256)·(1,64,256,4)".into(),
        flops: 4096.0 * flops(256, 4, 256),
        contenders: vec![ours(move || a.matmul(&b))],
    });
    let (a, b) = (square(2)?, square(2)?);
    all.push(Case { name: "f32 2×2 call".into(), flops: flops(2, 2, 2), contenders: vec![ours(move || a.matmul(&b))] });
    let (a, b) = (square(2)?.requires_grad_(true)?, square(2)?.requires_grad_(true)?);
    let both = ours(move || {
        a.matmul(&b)?.sum(.., false)?.backward()?;
        let g = a.grad();
        a.zero_grad();
        b.zero_grad();
        g.map_or_else(|| a.zeros_like(), Ok)
    });
    all.push(Case { name: "f32 2×2 forward+backward".into(), flops: 3.0 * flops(2, 2, 2), contenders: vec![both] });
    let x = square(2)?.requires_grad_(true)?;
    let chain = ours(move || {
        let mut y = x.clone();
        for _ in 0..1000 {
            y = y.add(&x)?;
        }
        y.sum(.., false)?.backward()?;
        x.zero_grad();
        Ok(y)
    });
    all.push(Case { name: "f32 1,000-op chain, forward+backward".into(), flops: 1000.0, contenders: vec![chain] });
    Ok(all)
}

fn main() -> std::process::ExitCode {
    let filter = std::env::args().nth(1).unwrap_or_default();
    println!("threads {}", bilin::num_threads());
    println!("| case | time | GFLOP/s | peer's time ÷ ours |\n|---|---|---|---|");
    let run = || -> Result<()> { cases()?.iter_mut().filter(|c| c.name.contains(&filter)).try_for_each(measure) };
    match run() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("benches: {e}");
            std::process::ExitCode::FAILURE
        }
    }
}
