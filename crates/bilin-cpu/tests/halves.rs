//! f16 and bf16 by every kernel of the table: sums in f32 or better over the whole of K, and one rounding of the result.
//!
//! |got − ref| ≤ 4·2⁻²⁴·K·Σ|a||b| + one rounding of ref + K·2⁻¹²⁶ where a unit flushes subnormals, ref in f64: the bound of
//! docs/derivations/error-bound.md. Of whole numbers whose sums are exact in f32, in any order, only the one rounding is left:
//! no bit may differ.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a check fails")]

mod oracle;

use std::collections::BTreeSet;

use bilin_core::DType;
use bilin_core::Error;
use bilin_core::exec::buffer::Buffer;
use bilin_core::exec::call::Conj;
use oracle::{Case, Class, Rng, Value, put, read, sum};

const NO: [Conj; 2] = [Conj::No, Conj::No];

/// One rounding to `dtype` of a number of this size, subnormal results included.
fn rounding(dtype: DType, x: f64) -> f64 {
    let (mantissa, least) = match dtype {
        DType::F16 => (11, -24),
        DType::Bf16 => (8, -133),
        DType::F32 => (24, -149),
        other => panic!("{other}"),
    };
    (x.abs() * 2f64.powi(-mantissa)).max(2f64.powi(least - 1))
}

/// Of each element its place, its sum in f64, and how far from that a result may be.
fn bounds(case: &Case, terms: usize) -> Vec<(usize, f64, f64)> {
    let (sums, sizes) = (case.widened(|x| x).expected(None), case.widened(f64::abs).expected(None));
    let number = |bytes: &[u8], at: usize| match read(DType::F64, bytes, at) {
        Value::Real(x) => x,
        other => panic!("{other:?}"),
    };
    // What no element of the result stands on is NaN.
    let places = (0..sums.len() / 8).filter(|&at| !number(&sums, at).is_nan());
    let k = terms as f64;
    let bound = |sum: f64, size: f64| 4.0 * 2f64.powi(-24) * k * size + rounding(case.dtypes[2], sum) + 4.0 * k * 2f64.powi(-126);
    let all: Vec<_> = places.map(|at| (at, number(&sums, at), bound(number(&sums, at), number(&sizes, at)))).collect();
    assert!(!all.is_empty());
    all
}

/// Elements of a result that are out of their bound: place, value, want, bound.
fn outside(case: &Case, got: &[u8], bounds: &[(usize, f64, f64)]) -> Option<(usize, f64, f64, f64)> {
    let value = |at: usize| match read(case.dtypes[2], got, at) {
        Value::Real(x) => x,
        other => panic!("{other:?}"),
    };
    // False for NaN.
    let fits = |&(at, want, bound): &(usize, f64, f64)| (value(at) - want).abs() <= bound;
    bounds.iter().find(|b| !fits(b)).map(|&(at, want, bound)| (at, value(at), want, bound))
}

/// The case over whole numbers up to 64: sums of up to 4099 products are below 2²⁴, and most of them are no halves.
fn with_whole_numbers(mut case: Case, rng: &mut Rng) -> Case {
    let [lhs, rhs, _] = case.dtypes;
    for (buffer, dtype) in [(&mut case.lhs, lhs), (&mut case.rhs, rhs)] {
        let bytes = buffer.host_mut().unwrap();
        for i in 0..bytes.len() / dtype.size_bytes() {
            put(dtype, bytes, i, Value::Real((rng.next() % 129) as f64 - 64.0));
        }
    }
    case
}

/// Elements of a result that aren't the exact sum rounded once: place, value, want.
fn rounded_twice(case: &Case, got: &[u8]) -> Option<(usize, f64, f64)> {
    let (sums, dtype) = (case.widened(|x| x).expected(None), case.dtypes[2]);
    let number = |dtype: DType, bytes: &[u8], at: usize| match read(dtype, bytes, at) {
        Value::Real(x) => x,
        other => panic!("{other:?}"),
    };
    let mut once = vec![0; dtype.size_bytes()];
    (0..sums.len() / 8).filter(|&at| !number(DType::F64, &sums, at).is_nan()).find_map(|at| {
        put(dtype, &mut once, 0, Value::Real(number(DType::F64, &sums, at)));
        let (got, want) = (number(dtype, got, at), number(dtype, &once, 0));
        (got != want).then_some((at, got, want))
    })
}

/// Every kernel that accepts the case, by name, and the backend's choice; then the same over whole numbers.
fn check(case: Case, terms: usize, rng: &mut Rng, ran: &mut BTreeSet<&'static str>) {
    let mut run = |case: &Case, wrong: &dyn Fn(&[u8]) -> Option<String>| {
        for kernel in bilin_cpu::kernel_names().into_iter().map(Some).chain([None]) {
            match case.run(kernel) {
                Ok(got) => {
                    if let Some(wrong) = wrong(&got) {
                        panic!("{} by {kernel:?}: {wrong}", case.name);
                    }
                    ran.extend(kernel);
                }
                Err(Error::KernelNotFound { .. }) if kernel.is_some() => {}
                Err(e) => panic!("{} by {kernel:?}: {e}", case.name),
            }
        }
    };
    let bounds = bounds(&case, terms);
    run(&case, &|got| {
        outside(&case, got, &bounds).map(|(at, got, want, bound)| format!("element {at} is {got:e}, want {want:e} within {bound:e}"))
    });
    let whole = with_whole_numbers(case, rng);
    run(&whole, &|got| rounded_twice(&whole, got).map(|(at, got, want)| format!("of whole numbers element {at} is {got}, want {want}")));
}

/// One row, few, many, a vector on either side, dot, outer, batches, and either operand broadcast over them.
const FORMS: [(&str, [usize; 4]); 12] = [
    ("ik,kj->ij", [1, 1, 19, 0]),
    ("ik,kj->ij", [1, 3, 33, 0]),
    ("ik,kj->ij", [1, 40, 50, 0]),
    ("ik,kj->ij", [1, 7, 1, 0]),
    ("ik,jk->ij", [1, 5, 18, 0]),
    ("ki,kj->ji", [1, 17, 4, 0]),
    ("k,k->", [1, 1, 1, 0]),
    ("bik,bkj->bij", [3, 2, 17, 0]),
    ("bik,bkj->bij", [9, 3, 5, 0]),
    ("bik,kj->bij", [3, 2, 5, 0]),
    ("ik,bkj->bij", [2, 5, 16, 0]),
    ("bk,bk->b", [19, 1, 1, 0]),
];
const CLASSES: [[Class; 3]; 4] = [
    [Class::Row; 3],
    [Class::Offset, Class::Offset, Class::Offset],
    [Class::Transposed, Class::Sliced, Class::Row],
    [Class::Negative, Class::Row, Class::Transposed],
];

/// Every tail of the widest vectors and tiles, and both sides of the blocks of K.
fn depths() -> impl Iterator<Item = usize> {
    (1..=70).chain([95, 127, 128, 129, 160, 255, 256, 257, 511, 512, 513, 1023, 1025, 4099])
}

#[test]
fn every_kernel_rounds_halves_once() {
    let (mut rng, mut ran) = (Rng(11), BTreeSet::new());
    for half in [DType::F16, DType::Bf16] {
        let dtypes = [[half; 3], [half, half, DType::F32], [half, DType::F32, half], [DType::F32, half, DType::F32]];
        for (i, k) in depths().enumerate() {
            for (j, (subscript, [b, m, n, _])) in FORMS.into_iter().enumerate() {
                if k > 600 && b * m * n > 200 {
                    continue;
                }
                let lens = [('b', b), ('i', m), ('j', n), ('k', k)];
                // Halves everywhere at every depth; the others and the classes take turns.
                let mut wanted = vec![([half; 3], [Class::Row; 3])];
                wanted.push((dtypes[(i + j) % 4], CLASSES[(i / 4 + j) % 4]));
                for (dtypes, classes) in wanted {
                    let case = Case::new(subscript, &lens, dtypes, classes, NO, &mut rng, false);
                    check(case, k, &mut rng, &mut ran);
                }
            }
        }
        let case = Case::new("i,j->ij", &[('i', 37), ('j', 50)], [half; 3], [Class::Row; 3], NO, &mut rng, false);
        check(case, 1, &mut rng, &mut ran);
        let case = Case::new("bi,bi->bi", &[('b', 37), ('i', 50)], [half; 3], [Class::Row; 3], NO, &mut rng, false);
        check(case, 1, &mut rng, &mut ran);
    }
    // A kernel that takes halves at all took some here; direct ones, those of lines and of few terms read operands of the accumulator's width, where they stand.
    let takes = |name: &&str| ["f32", "bf16", "f16"].iter().any(|sums| name.split('-').any(|part| part == *sums));
    let in_place = |name: &str| ["-direct", "-few", "-line"].iter().any(|end| name.ends_with(end));
    let idle: Vec<_> = bilin_cpu::kernel_names().into_iter().filter(takes).filter(|name| !ran.contains(name) && !in_place(name)).collect();
    assert!(idle.is_empty(), "never ran: {idle:?}");
    assert!(ran.iter().all(takes), "a kernel whose name doesn't say that it takes halves: {ran:?}");
}

/// A sum that is rounded to the half on the way is seen.
#[test]
fn partial_sums_in_a_half_are_seen() {
    let mut rng = Rng(12);
    for half in [DType::F16, DType::Bf16] {
        for every in [1, 32] {
            let mut found = 0;
            for _ in 0..100 {
                let case = Case::new("k,k->", &[('k', 256)], [half; 3], [Class::Row; 3], NO, &mut rng, false);
                let case = with_whole_numbers(case, &mut rng);
                let (lhs, rhs) = (case.lhs.host().unwrap(), case.rhs.host().unwrap());
                let terms: Vec<_> = (0..256).map(|i| (read(half, lhs, i), read(half, rhs, i))).collect();
                let mut got = case.run(None).unwrap();
                assert_eq!(rounded_twice(&case, &got), None);
                put(half, &mut got, 0, Value::Real(0.0));
                for part in terms.chunks(every) {
                    let (Value::Real(so_far), Value::Real(more)) = (read(half, &got, 0), sum(DType::F32, part)) else { panic!("a sum") };
                    put(half, &mut got, 0, Value::Real(so_far + more));
                }
                found += usize::from(rounded_twice(&case, &got).is_some());
            }
            assert!(found >= 25, "partial sums of {every} in {half}: {found} of 100 are seen");
        }
    }
}
