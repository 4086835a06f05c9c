//! candle and faer on the cases of `../cases.json`: answers lines `contender TAB case TAB calls` with seconds of wall time a call,
//! or `-` where the contender can't run the case, so that `products.py` can alternate with others.

use std::error::Error;
use std::hint::black_box;
use std::io::{BufRead, Write};
use std::time::Instant;

use candle_core::{DType, Device, Tensor, Var};
use faer::linalg::matmul::matmul;
use faer::traits::ComplexField;
use faer::{Accum, Mat, MatRef, Par};
use serde_json::Value;

type Run = Box<dyn FnMut() -> Result<(), Box<dyn Error>>>;

struct Case {
    is_outer: bool,
    shapes: [Vec<usize>; 2],
    dtype: String,
    views: [String; 2],
    mode: String,
}

fn case(all: &Value, name: &str) -> Option<Case> {
    let one = all.as_array()?.iter().find(|c| c["name"] == name)?;
    let shape = |key: &str| one[key].as_array().into_iter().flatten().filter_map(Value::as_u64).map(|n| n as usize).collect();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Some(Case {
        is_outer: one["op"] == "outer",
        shapes: [shape("lhs"), shape("rhs")],
        dtype: text(&one["dtype"]),
        views: [0, 1].map(|i| text(&one["views"][i])),
        mode: text(&one["mode"]),
    })
}

fn operand(shape: &[usize], dtype: DType, view: &str) -> candle_core::Result<Tensor> {
    let filled = |shape: Vec<usize>| Tensor::rand(0f32, 1f32, shape, &Device::Cpu)?.to_dtype(dtype);
    match view {
        "" => filled(shape.to_vec()),
        "T" => filled(shape.iter().rev().copied().collect())?.t(),
        "half" => filled(vec![shape[0], 2, shape[1]])?.narrow(1, 0, 1)?.squeeze(1),
        other => candle_core::bail!("no view {other}"),
    }
}

fn product(case: &Case, a: &Tensor, b: &Tensor) -> candle_core::Result<Tensor> {
    match (case.is_outer, a.rank(), b.rank()) {
        (true, ..) => a.unsqueeze(1)?.broadcast_mul(&b.unsqueeze(0)?),
        (_, 1, _) => a.unsqueeze(0)?.matmul(b)?.squeeze(0),
        (_, _, 1) => a.matmul(&b.unsqueeze(1)?)?.squeeze(1),
        (_, x, y) if x == y && a.dims()[..x - 2] == b.dims()[..y - 2] => a.matmul(b),
        _ => a.broadcast_matmul(b),
    }
}

fn candle(case: Case) -> Result<Run, Box<dyn Error>> {
    let dtype = match case.dtype.as_str() {
        "float32" => DType::F32,
        "float64" => DType::F64,
        "float16" => DType::F16,
        "bfloat16" => DType::BF16,
        other => return Err(format!("no products of {other}").into()),
    };
    let (a, b) = (operand(&case.shapes[0], dtype, &case.views[0])?, operand(&case.shapes[1], dtype, &case.views[1])?);
    if case.mode.is_empty() {
        return Ok(Box::new(move || {
            black_box(product(&case, &a, &b)?);
            Ok(())
        }));
    }
    let (a, b) = (Var::from_tensor(&a)?, Var::from_tensor(&b)?);
    let kept = if case.mode == "backward" { Some(product(&case, &a, &b)?) } else { None };
    Ok(Box::new(move || {
        let c = kept.as_ref().map_or_else(|| product(&case, &a, &b), |c| Ok(c.clone()))?;
        black_box(c.backward()?);
        Ok(())
    }))
}

fn faer_of<T: ComplexField + 'static>(case: &Case, threads: usize, value: T) -> Result<Run, Box<dyn Error>> {
    let ([m, k], [_, n]) = (<[usize; 2]>::try_from(&*case.shapes[0])?, <[usize; 2]>::try_from(&*case.shapes[1])?);
    if !case.mode.is_empty() || case.is_outer || case.views.iter().any(|v| !matches!(v.as_str(), "" | "T")) {
        return Err("plain matrices alone".into());
    }
    // Its own matrices stand by columns, as a transposed one of ours does.
    let stored = |rows, columns, view: &str| {
        let (rows, columns) = if view == "T" { (columns, rows) } else { (rows, columns) };
        Mat::from_fn(rows, columns, |_, _| value.clone())
    };
    let (a, b) = (stored(m, k, &case.views[0]), stored(k, n, &case.views[1]));
    let turned = case.views.clone().map(|v| v == "T");
    let (mut c, par) = (Mat::<T>::zeros(m, n), if threads > 1 { Par::rayon(threads) } else { Par::Seq });
    Ok(Box::new(move || {
        fn view<T>(x: &Mat<T>, is_turned: bool) -> MatRef<'_, T> {
            if is_turned { x.transpose() } else { x.as_ref() }
        }
        matmul(c.as_mut(), Accum::Replace, view(&a, turned[0]), view(&b, turned[1]), value.clone(), par);
        black_box(&c);
        Ok(())
    }))
}

fn contender(who: &str, case: Case, threads: usize) -> Result<Run, Box<dyn Error>> {
    match (who, case.dtype.as_str()) {
        ("candle", _) => candle(case),
        ("faer", "float32") => faer_of(&case, threads, 1f32),
        ("faer", "float64") => faer_of(&case, threads, 1f64),
        ("faer", "complex64") => faer_of(&case, threads, faer::c32::new(1.0, 0.0)),
        ("faer", "complex128") => faer_of(&case, threads, faer::c64::new(1.0, 0.0)),
        _ => Err("unknown".into()),
    }
}

/// A chain of negations of a scalar, recorded and gone back: seconds a link.
fn chain(links: usize) -> Result<f64, Box<dyn Error>> {
    let x = Var::new(1f32, &Device::Cpu)?;
    let start = Instant::now();
    let mut y = x.as_tensor().clone();
    for _ in 0..links {
        y = y.neg()?;
    }
    black_box(y.backward()?);
    Ok(start.elapsed().as_secs_f64() / links as f64)
}

fn main() -> Result<(), Box<dyn Error>> {
    let all: Value = serde_json::from_str(include_str!("../../cases.json"))?;
    let threads = std::env::var("BILIN_NUM_THREADS").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    if let Some(links) = std::env::args().nth(1) {
        println!("{:.0} ns a link", chain(links.parse()?)? * 1e9);
        return Ok(());
    }
    let (mut current, mut runs) = (String::new(), Vec::<(String, Option<Run>)>::new());
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let mut parts = line.split('\t');
        let (who, name) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let calls: usize = parts.next().and_then(|c| c.parse().ok()).unwrap_or(1);
        if current != name {
            runs.clear();
            name.clone_into(&mut current);
        }
        if !runs.iter().any(|(known, _)| known == who) {
            runs.push((who.to_owned(), case(&all, name).and_then(|case| contender(who, case, threads).ok())));
        }
        let run = runs.iter_mut().find(|(known, _)| known == who).and_then(|(_, run)| run.as_mut());
        let start = Instant::now();
        match run.map(|run| (0..calls).try_for_each(|_| run())) {
            Some(Ok(())) => println!("{}", start.elapsed().as_secs_f64() / calls as f64),
            _ => println!("-"),
        }
        std::io::stdout().flush()?;
    }
    Ok(())
}
