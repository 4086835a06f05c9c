//! Contractions: from a checked call to a kernel.

mod batch;
mod blocks;
mod chains;
mod direct;
pub(crate) mod disjoint;
mod dot;
pub(crate) mod element;
mod few;
mod halves;
mod job;
mod line;
mod operand;
mod pair;
mod panel;
mod pieces;
mod product;
mod result;
mod scratch;
mod steps;
mod table;
mod tiles;
mod typed;
mod words;

use bilin_core::exec::buffer::{host_bytes, host_bytes_mut};
use bilin_core::exec::call::{Accum, Conj, ContractCall};
use bilin_core::{DType, Error, Result};
use bilin_core::{c64, c128};

use crate::arch::Isa;
use job::Job;
use table::{Kernel, Kind, Variant};
use typed::Typed;

/// Names of the kernels that this processor can run, best first.
pub fn kernel_names() -> Vec<&'static str> {
    table::kernels(Isa::best()).map(|k| k.name).collect()
}

/// Runs a call with the kernel of this name. Errors: [`Error::KernelNotFound`] where there is none or where it doesn't
/// accept the call.
pub fn contract_with(call: ContractCall<'_>, kernel: &str) -> Result<()> {
    let found = table::kernels(Isa::detected()).find(|k| k.name == kernel);
    match found {
        Some(kernel) => dispatch(call, Some((kernel, true))),
        None => Err(not_found(kernel)),
    }
}

/// Runs a call with the best kernel that accepts it, or the one that `BILIN_KERNEL` names where that accepts it.
pub(crate) fn contract(call: ContractCall<'_>) -> Result<()> {
    dispatch(call, table::forced().map(|k| (k, false)))
}

/// Runs two calls at once where they read one matrix. False, and nothing is touched, where that is no gain.
pub(crate) fn contract_both(calls: [ContractCall<'_>; 2]) -> Result<bool> {
    match calls[0].accumulator {
        _ if table::forced().is_some() => Ok(false),
        DType::F32 => pair::run::<f32>(calls, DType::F32, Isa::best()),
        DType::F64 => pair::run::<f64>(calls, DType::F64, Isa::best()),
        _ => Ok(false),
    }
}

fn not_found(kernel: &str) -> Error {
    Error::KernelNotFound { kernel: kernel.to_string(), backend: "cpu".to_string() }
}

/// The accumulator: integers by the width of the result, since sums are exact modulo it.
fn kind_of(call: &ContractCall<'_>) -> Kind {
    match (call.accumulator, call.out.dtype) {
        (DType::F16 | DType::Bf16 | DType::F32, _) => Kind::F32,
        (DType::F64, _) => Kind::F64,
        (DType::C64, _) => Kind::C64,
        (DType::C128, _) => Kind::C128,
        (DType::Bool, _) => Kind::Truth,
        (_, DType::I64) => Kind::I64,
        _ => Kind::I32,
    }
}

fn dispatch(call: ContractCall<'_>, asked: Option<(&'static Kernel, bool)>) -> Result<()> {
    let sizes @ [batch, m, n, _] = call.plan.sizes();
    if batch == 0 || m == 0 || n == 0 {
        return Ok(());
    }
    let kind = kind_of(&call);
    let asked = match asked {
        Some((kernel, is_strict)) if kernel.kind != kind => {
            if is_strict {
                return Err(not_found(kernel.name));
            }
            None
        }
        other => other,
    };
    match kind {
        Kind::F32 => typed_contract::<f32>(call, sizes, asked, kind),
        Kind::F64 => typed_contract::<f64>(call, sizes, asked, kind),
        Kind::C64 => typed_contract::<c64>(call, sizes, asked, kind),
        Kind::C128 => typed_contract::<c128>(call, sizes, asked, kind),
        Kind::I32 => typed_contract::<i32>(call, sizes, asked, kind),
        Kind::I64 => typed_contract::<i64>(call, sizes, asked, kind),
        Kind::Truth => typed_contract::<u32>(call, sizes, asked, kind),
    }
}

fn typed_contract<A: Typed + tiles::Tiled>(
    call: ContractCall<'_>,
    sizes: [usize; 4],
    asked: Option<(&'static Kernel, bool)>,
    kind: Kind,
) -> Result<()> {
    let ContractCall { op, plan, lhs, rhs, out, conj, accum, .. } = call;
    let adds = accum == Accum::Add;
    let dtypes = [lhs.dtype, rhs.dtype, out.dtype];
    let (lhs_bytes, rhs_bytes) = (host_bytes(op, lhs.buffer)?, host_bytes(op, rhs.buffer)?);
    let out_bytes = host_bytes_mut(op, out.buffer)?;
    let (lhs_conj, rhs_conj) = (conj[0] == Conj::Yes, conj[1] == Conj::Yes);
    let done = A::with_source(dtypes[0], lhs_bytes, lhs_conj, |lhs| {
        A::with_source(dtypes[1], rhs_bytes, rhs_conj, |rhs| {
            A::with_sink(dtypes[2], out_bytes, adds, |out| {
                let isa = asked.map_or_else(Isa::best, |(k, _)| k.isa);
                choose(&Job { plan, sizes, lhs, rhs, out, adds, isa }, kind, asked)
            })
        })
    });
    match done.flatten().flatten() {
        Some(Done::Yes) => Ok(()),
        Some(Done::NotAccepted) => Err(not_found(asked.map_or("", |(k, _)| k.name))),
        Some(Done::NoRoom) => Err(Error::OutOfMemory {
            device: "cpu".to_string(),
            requested_bytes: 8 << 20,
            current_bytes: crate::alloc::held_bytes() as u64,
            peak_bytes: crate::alloc::held_bytes() as u64,
            limit_bytes: None,
        }),
        None => Err(Error::DtypeMismatch {
            op: op.clone(),
            dtypes: dtypes.to_vec(),
            remedy: "the accumulator must hold both operands; convert with astype",
        }),
    }
}

/// What came of a job.
enum Done {
    Yes,
    NotAccepted,
    NoRoom,
}

/// Runs a variant where it accepts the job.
#[inline]
fn attempt<A: tiles::Tiled>(job: &Job<'_, A>, variant: Variant) -> Option<Option<()>> {
    match variant {
        Variant::Product => product::accepts(job).then(|| product::run(job)),
        Variant::Dot => dot::accepts(job).map(|steps| dot::run(job, steps)),
        Variant::Few => few::accepts(job).map(|strides| few::run(job, strides)),
        Variant::Line => line::accepts(job).map(|form| line::run(job, form)),
        Variant::Halves | Variant::Pairs => halves::accepts(job, variant == Variant::Pairs).map(|form| halves::run(job, form)),
        Variant::Batch => batch::accepts(job).map(|form| batch::run(job, form)),
        Variant::Direct => direct::accepts(job).map(|strides| direct::run(job, strides)),
        Variant::Panel => Some(panel::run(job)),
        Variant::Chains => chains::accepts(job).map(|form| chains::run(job, form)),
        Variant::Tiles => tiles::accepts(job).map(|form| tiles::run(job, form)),
        Variant::Words => words::accepts(job).map(|form| words::run(job, form)),
    }
}

#[inline(never)]
fn choose<A: tiles::Tiled>(job: &Job<'_, A>, kind: Kind, asked: Option<(&'static Kernel, bool)>) -> Done {
    let outcome = |ran: Option<()>| if ran.is_some() { Done::Yes } else { Done::NoRoom };
    if job.sizes[3] == 0 {
        product::zeros(job);
        return Done::Yes;
    }
    if let Some((kernel, is_strict)) = asked {
        match attempt(job, kernel.variant) {
            Some(ran) => return outcome(ran),
            None if is_strict => return Done::NotAccepted,
            None => {}
        }
    }
    let isa = Isa::best();
    let job = Job { isa, ..*job };
    // Floating-point operands that stand as accumulators are none of the next kernels'.
    let is_plain = matches!(kind, Kind::F32 | Kind::F64) && job.lhs.plain().is_some() && job.rhs.plain().is_some();
    if !is_plain && let Some(ran) = attempt_narrow(&job) {
        return outcome(ran);
    }
    for kernel in table::of_kind(isa, kind) {
        if let Some(ran) = attempt(&job, kernel.variant) {
            return outcome(ran);
        }
    }
    Done::NotAccepted
}

/// Runs the best kernel that reads several elements at once or widens them, where one pays.
fn attempt_narrow<A: tiles::Tiled>(job: &Job<'_, A>) -> Option<Option<()>> {
    let isa = job.isa;
    if isa == Isa::Amx
        && chains::pays(job)
        && let Some(ran) = attempt(job, Variant::Chains)
    {
        return Some(ran);
    }
    if isa == Isa::Amx
        && tiles::pays(job)
        && let Some(ran) = attempt(job, Variant::Tiles)
    {
        return Some(ran);
    }
    // Sums of bf16 in pairs have one order, by whichever kernel.
    if isa >= Isa::Avx512
        && let Some(ran) = attempt(job, Variant::Pairs)
    {
        return Some(ran);
    }
    if words::pays(job)
        && let Some(ran) = attempt(job, Variant::Words)
    {
        return Some(ran);
    }
    if isa >= Isa::Avx512
        && let Some(ran) = attempt(job, Variant::Halves)
    {
        return Some(ran);
    }
    attempt(job, Variant::Batch)
}
