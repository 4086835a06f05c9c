//! The product commands: read, compute, differentiate, write, report.

use std::path::Path;
use std::time::Instant;

use bilin::io::load_one;
use bilin::prelude::*;
use bilin::{amp, einsum_path, einsum_with, memory_stats, reset_peak_memory_stats, tensordot_with};

use crate::args::{Product, ProductArgs};
use crate::output::{Files, check_name};
use crate::report::Report;
use crate::{Failure, Streams, derivatives, print};

impl Product {
    /// The op's name.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Product::Plain(name) => name,
            Product::Tensordot(_) => "tensordot",
            Product::Einsum(_) => "einsum",
        }
    }

    fn compute(&self, x: &[Tensor], options: ProductOptions) -> Result<Tensor> {
        let (lhs, rhs) = match (self, x) {
            (Product::Einsum(subscripts), _) => return einsum_with(subscripts, &x.iter().collect::<Vec<_>>(), options),
            (_, [lhs, rhs]) => (lhs, rhs),
            _ => return Err(Error::invalid(self.name(), "operands", x.len(), "want 2 operands")),
        };
        match self {
            Product::Tensordot(axes) => tensordot_with(lhs, rhs, axes.clone(), options),
            Product::Plain("matmul") => lhs.matmul_with(rhs, options),
            Product::Plain("dot") => lhs.dot_with(rhs, options),
            Product::Plain("inner") => lhs.inner_with(rhs, options),
            Product::Plain("outer") => lhs.outer_with(rhs, options),
            Product::Plain("vecdot") => lhs.vecdot_with(rhs, options),
            Product::Plain("matvec") => lhs.matvec_with(rhs, options),
            Product::Plain("vecmat") => lhs.vecmat_with(rhs, options),
            _ => Err(Error::invalid("bilin", "command", self.name(), "want a product")),
        }
    }

    /// Floating point operations of a product that succeeded: 2·batch·M·N·K, of complex numbers four times that.
    fn flops(&self, x: &[Tensor], out: &Tensor) -> Result<u128> {
        let length = |t: &Tensor, axis: isize| -> u128 {
            let rank = t.rank() as isize;
            usize::try_from(if axis < 0 { axis + rank } else { axis }).ok().and_then(|a| t.shape().get(a)).map_or(1, |l| *l as u128)
        };
        let terms = match (self, x) {
            (Product::Einsum(subscripts), _) => {
                return Ok(einsum_path(subscripts, &x.iter().collect::<Vec<_>>())?.flops.saturating_mul(if out.dtype().is_complex() {
                    4
                } else {
                    1
                }));
            }
            (Product::Plain("outer"), _) | (_, []) => 1,
            (Product::Tensordot(Axes::Pairs(axes, _)), [lhs, ..]) => axes.iter().map(|a| length(lhs, *a)).product(),
            (Product::Tensordot(Axes::Count(count)), [lhs, ..]) => (1..=*count).map(|i| length(lhs, -i)).product(),
            (_, [lhs, ..]) => length(lhs, -1),
        };
        let each: u128 = if out.dtype().is_complex() { 8 } else { 2 };
        Ok(each.saturating_mul(terms).saturating_mul(out.numel() as u128))
    }
}

fn byte_len(t: &Tensor) -> u64 {
    t.numel() as u64 * t.dtype().size_bytes() as u64
}

/// Runs `f` until its work is done and takes the time.
fn timed<T>(device: &Device, f: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    let start = Instant::now();
    let out = f()?;
    device.sync()?;
    Ok((out, start.elapsed().as_secs_f64()))
}

pub(crate) fn run(args: &ProductArgs, streams: &mut Streams<'_>) -> std::result::Result<(), Failure> {
    let op = args.product.name();
    if let Some(path) = &args.output {
        check_name(path)?;
    }
    if let Some(count) = args.threads {
        bilin::set_num_threads(count.get())?;
    }
    let device = Device::parse(&args.device)?;
    let operands = load_operands(args, &device)?;
    if args.grad.is_some() || args.hvp.is_some() {
        derivatives::check_operands(op, &operands)?;
    }
    let vectors = args.hvp.as_deref().map(|folder| derivatives::load_vectors(folder, &operands, args.dtype.is_some())).transpose()?;
    let leaves = if args.grad.is_some() { derivatives::leaves(&operands)? } else { operands.clone() };

    let options = ProductOptions::default().precision(args.precision);
    let options = args.out_dtype.map_or(options, |dtype| options.out_dtype(dtype));
    let compute = |x: &[Tensor]| {
        let _scope = args.autocast.map(amp::autocast);
        args.product.compute(x, options)
    };
    reset_peak_memory_stats(&device);
    let (out, seconds) = timed(&device, || compute(&leaves))?;
    let mut report = Report {
        op,
        shape: out.shape().to_vec(),
        dtype: out.dtype(),
        device: device.name().to_owned(),
        seconds,
        flops: args.product.flops(&operands, &out)?,
        bytes: operands.iter().map(byte_len).sum::<u64>() + byte_len(&out),
        ..Report::default()
    };

    let mut files = Files::default();
    let mut folders: Vec<&Path> = Vec::new();
    if let Some(path) = &args.output {
        files.add(path.clone(), &out)?;
    }
    if let Some((cotangent, folder)) = &args.grad {
        let (grads, seconds) = timed(&device, || derivatives::gradients(&out, &leaves, cotangent, args.dtype.is_some()))?;
        report.grad_seconds = Some(seconds);
        for (i, grad) in grads.iter().enumerate() {
            files.add(folder.join(format!("grad{i}.npy")), grad)?;
        }
        folders.push(folder);
    }
    if let (Some(folder), Some(vectors)) = (&args.hvp, &vectors) {
        let (products, seconds) = timed(&device, || derivatives::hessian_products(compute, &operands, vectors))?;
        report.hvp_seconds = Some(seconds);
        for (i, product) in products.iter().enumerate() {
            files.add(folder.join(format!("hvp{i}.npy")), product)?;
        }
    }
    report.peak_bytes = memory_stats(&device).peak_bytes;
    report.files = files.write(&folders)?;

    if args.json {
        return streams.line(format_args!("{}", report.json()));
    }
    if args.output.is_none() {
        streams.line(format_args!("{}", print::array(&out)?))?;
    }
    streams.note(format_args!("{}", report.summary()));
    Ok(())
}

fn load_operands(args: &ProductArgs, device: &Device) -> Result<Vec<Tensor>> {
    let one = |path: &std::path::PathBuf| {
        let t = load_one(path, device)?;
        args.dtype.map_or(Ok(t.clone()), |dtype| t.astype(dtype))
    };
    args.operands.iter().map(one).collect()
}
