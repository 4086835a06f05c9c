//! The self-test: every op of a device against the reference, and gradients against difference quotients.

use bilin::autograd::{self, GradOptions, GradcheckOptions, gradcheck};
use bilin::ops::{OpEntry, Sample, entries, op_call};
use bilin::prelude::*;
use bilin::shape_text;

use crate::args::MachineArgs;
use crate::progress::Progress;
use crate::samples::{Order, operands, placed};
use crate::{Failure, Streams};

/// Dtypes in which results are compared.
const DTYPES: [DType; 5] = [DType::F32, DType::F64, DType::C64, DType::Bf16, DType::I32];

pub(crate) fn run(args: &MachineArgs, streams: &mut Streams<'_>) -> std::result::Result<(), Failure> {
    if let Some(count) = args.threads {
        bilin::set_num_threads(count.get())?;
    }
    let device = Device::parse(&args.device)?;
    #[cfg(feature = "wgpu")]
    if device.backend().name() == "wgpu" {
        for kernel in bilin::gpu::check_kernels(&device)? {
            streams.line(format_args!("kernel {kernel} miscomputes here and is taken out of the table"))?;
        }
    }
    let all: Vec<&OpEntry> = entries().collect();
    let progress = Progress::new(all.len());
    let mut differ = 0;
    for (done, entry) in all.iter().enumerate() {
        progress.show(streams, done, entry.schema.name);
        let found = check_op(entry, &device);
        progress.clear(streams);
        match found {
            Ok(calls) => streams.line(format_args!("{:<18} ok, {calls} calls", entry.schema.name))?,
            Err(what) => {
                differ += 1;
                streams.line(format_args!("{:<18} {what}", entry.schema.name))?;
            }
        }
    }
    match differ {
        0 => Ok(()),
        _ => Err(Failure::Input(format!("check: {differ} of {} ops differ on {device}", all.len()))),
    }
}

/// Every sample of an op in every dtype and order of memory; the number of calls compared, or the first difference.
pub(crate) fn check_op(entry: &OpEntry, device: &Device) -> std::result::Result<usize, String> {
    let mut calls = 0;
    for (i, sample) in entry.samples.iter().enumerate() {
        let place = |dtype: DType, what: &str| {
            let shapes: Vec<String> = sample.shapes.iter().map(|s| shape_text(s)).collect();
            format!(
                "differs for {} of {dtype}{}{}: {what}",
                shapes.join(" "),
                if sample.attrs.is_empty() { "" } else { " with " },
                sample.attrs
            )
        };
        for dtype in DTYPES {
            for order in Order::ALL {
                let compared =
                    compare(entry, sample, dtype, order, device, i as u64).map_err(|what| place(dtype, &format!("{what} ({order:?})")))?;
                calls += usize::from(compared);
            }
        }
        differentiate(entry, sample, device, i as u64).map_err(|e| place(DType::F64, &e.to_string()))?;
    }
    Ok(calls)
}

/// The result of a call, and the gradients of its operands for a fixed cotangent.
fn call(entry: &OpEntry, sample: &Sample, operands: Vec<Tensor>) -> Result<Vec<Tensor>> {
    let leaves: Result<Vec<Tensor>> =
        operands.into_iter().map(|t| if t.dtype().is_differentiable() { t.detach().requires_grad_(true) } else { Ok(t) }).collect();
    let leaves = leaves?;
    let out = op_call(entry.schema.name, &leaves, sample.attrs)?;
    let mut all = vec![out.detach()];
    if out.requires_grad() {
        let g =
            Tensor::randn(out.shape(), DType::F32, &Device::reference(), &mut Rng::new(3))?.astype(out.dtype())?.to_device(out.device())?;
        let inputs: Vec<&Tensor> = leaves.iter().filter(|t| t.requires_grad()).collect();
        let options = GradOptions { grad_outputs: vec![Some(g)], allow_unused: true, ..Default::default() };
        all.extend(autograd::grad(&[&out], &inputs, options)?.into_iter().flatten());
    }
    Ok(all)
}

/// Compares one call; false where the op, or the device, doesn't take the dtype.
fn compare(entry: &OpEntry, sample: &Sample, dtype: DType, order: Order, device: &Device, seed: u64) -> std::result::Result<bool, String> {
    let make = |device: &Device, order: Order| -> Result<Vec<Tensor>> {
        operands(entry, sample, dtype, seed)?.iter().map(|t| placed(t, device, order)).collect()
    };
    let want = make(&Device::reference(), Order::Rows).and_then(|x| call(entry, sample, x));
    let got = make(device, order).and_then(|x| call(entry, sample, x));
    let (want, got) = match (want, got) {
        (Err(_), Err(_)) | (Ok(_), Err(Error::Unsupported { .. })) => return Ok(false),
        (Ok(want), Ok(got)) => (want, got),
        (Ok(_), Err(e)) => return Err(format!("an error, {e}")),
        (Err(e), Ok(_)) => return Err(format!("no error, where the reference says {e}")),
    };
    if want.len() != got.len() {
        return Err(format!("{} gradients, the reference has {}", got.len().saturating_sub(1), want.len().saturating_sub(1)));
    }
    let slack = slack(&make(&Device::reference(), Order::Rows).map_err(|e| e.to_string())?, &want, device).map_err(|e| e.to_string())?;
    for (i, (want, got)) in want.iter().zip(&got).enumerate() {
        let what = if i == 0 { "result".to_owned() } else { format!("gradient {}", i - 1) };
        same(want, got, slack)
            .map_err(|e| e.to_string())
            .and_then(|fault| fault.map_or(Ok(()), Err))
            .map_err(|fault| format!("{what}: {fault}"))?;
    }
    Ok(true)
}

/// How far floating results may be from the reference's. CPUs share its order of summation, so not at all; a device with an
/// order of its own may differ by 4·u·K·S, where K counts the elements of the largest operand and S is the largest number.
fn slack(operands: &[Tensor], results: &[Tensor], device: &Device) -> Result<f64> {
    if device.backend().name() != "wgpu" {
        return Ok(0.0);
    }
    let (mut terms, mut size) = (1, 1.0f64);
    for t in operands.iter().chain(results) {
        terms = terms.max(t.numel());
        let numbers: Vec<c128> = t.to_device(&Device::reference())?.astype(DType::C128)?.to_vec()?;
        size = numbers.iter().map(|z| z.norm()).filter(|x| x.is_finite()).fold(size, f64::max);
    }
    Ok(4.0 * DType::F32.unit_roundoff() * terms as f64 * size * size)
}

/// What differs: nothing, for equal bits, any NaN for any other, one rounding of bf16, and floats within `slack`.
fn same(want: &Tensor, got: &Tensor, slack: f64) -> Result<Option<String>> {
    if want.shape() != got.shape() || want.dtype() != got.dtype() {
        return Ok(Some(format!(
            "{} {}, the reference has {} {}",
            shape_text(got.shape()),
            got.dtype(),
            shape_text(want.shape()),
            want.dtype()
        )));
    }
    let (dtype, complex) = (want.dtype(), want.dtype().is_complex());
    let (want_bytes, got_bytes) = (want.to_bytes()?, got.to_bytes()?);
    if want_bytes == got_bytes {
        return Ok(None);
    }
    let wide = |t: &Tensor| -> Result<Vec<c128>> { t.to_device(&Device::reference())?.astype(DType::C128)?.to_vec() };
    let size = dtype.size_bytes();
    let elements = want_bytes.chunks_exact(size).zip(got_bytes.chunks_exact(size)).zip(wide(want)?.into_iter().zip(wide(got)?));
    for (i, ((a, b), (want, got))) in elements.enumerate() {
        let both_nan = |x: f64, y: f64| x.is_nan() && y.is_nan();
        let nan = both_nan(want.re, got.re) && (!complex || both_nan(want.im, got.im));
        let rounding = dtype == DType::Bf16 && (want.re - got.re).abs() <= 2.0 * dtype.unit_roundoff() * want.re.abs().max(got.re.abs());
        let is_near = slack > 0.0 && (dtype.is_differentiable() && (want - got).norm() <= slack);
        if a != b && !nan && !rounding && !is_near {
            let show = |z: c128| if complex { format!("{:e}{:+e}j", z.re, z.im) } else { format!("{:e}", z.re) };
            return Ok(Some(format!("element {i} is {}, the reference has {}", show(got), show(want))));
        }
    }
    Ok(None)
}

/// Checks the gradients in f64 on the device, where the op takes f64 and gives f64 or c128.
fn differentiate(entry: &OpEntry, sample: &Sample, device: &Device, seed: u64) -> Result<()> {
    let name = entry.schema.name;
    if !device.backend().has_dtype(DType::F64) {
        return Ok(());
    }
    let operands: Vec<Tensor> = operands(entry, sample, DType::F64, seed)?.iter().map(|t| t.to_device(device)).collect::<Result<_>>()?;
    let result = match op_call(name, &operands, sample.attrs) {
        Ok(result) => result.dtype(),
        Err(_) => return Ok(()),
    };
    if !matches!(result, DType::F64 | DType::C128) {
        return Ok(());
    }
    gradcheck(|x| op_call(name, x, sample.attrs), &operands.iter().collect::<Vec<_>>(), GradcheckOptions::default())
}

#[cfg(test)]
mod tests {
    use super::{check_op, same};
    use bilin::exec::buffer::Buffer;
    use bilin::exec::call::{ContractCall, GatherCall, MapCall, ReduceCall, ScatterCall};
    use bilin::exec::reference::ReferenceBackend;
    use bilin::prelude::*;
    use bilin::{Backend, ops};

    /// The reference with a fault: sums start at the second element, if there are two.
    #[derive(Debug)]
    struct Faulty;
    impl Backend for Faulty {
        fn name(&self) -> &'static str {
            "faulty"
        }
        fn has_dtype(&self, dtype: DType) -> bool {
            dtype != DType::C64
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
            Ok(())
        }
        fn contract(&self, call: ContractCall<'_>) -> Result<()> {
            ReferenceBackend.contract(call)
        }
        fn map(&self, call: MapCall<'_>) -> Result<()> {
            ReferenceBackend.map(call)
        }
        fn reduce(&self, mut call: ReduceCall<'_>) -> Result<()> {
            if let Some(inner) = call.reduced.last_mut().filter(|l| l.len > 1) {
                call.offset = call.offset.saturating_add_signed(inner.strides[0]);
                inner.len -= 1;
            }
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
    fn a_faulty_device_is_found_out_and_a_missing_dtype_is_none() {
        let device = Device::new("faulty", Box::new(Faulty));
        let check = |name: &str| check_op(ops::entries().find(|e| e.schema.name == name).unwrap(), &device);
        let what = check("sum").unwrap_err();
        assert!(what.starts_with("differs for (3, 5, 2) of float32: result: element 0 is "), "{what}");
        let sound = check_op(ops::entries().find(|e| e.schema.name == "eq").unwrap(), &Device::reference()).unwrap();
        assert_eq!(check("eq").unwrap() * 5, sound * 4);
    }

    #[test]
    fn bits_count_except_of_nan_and_one_rounding_of_bf16() {
        let of = |x: &[f32]| Tensor::from_slice(x, [x.len()], &Device::reference()).unwrap();
        assert_eq!(same(&of(&[1., f32::NAN]), &of(&[1., -f32::NAN]), 0.0).unwrap(), None);
        assert!(same(&of(&[1.]), &of(&[1.0f32.next_up()]), 0.0).unwrap().is_some());
        assert!(same(&of(&[0.]), &of(&[-0.]), 0.0).unwrap().is_some());
        assert!(same(&of(&[0.]), &of(&[0., 0.]), 0.0).unwrap().is_some());
        let half = |x: f32| of(&[x]).astype(DType::Bf16).unwrap();
        assert_eq!(same(&half(1.), &half(1. + 1. / 128.), 0.0).unwrap(), None);
        assert!(same(&half(1.), &half(1. + 2. / 128.), 0.0).unwrap().is_some());
    }
}
