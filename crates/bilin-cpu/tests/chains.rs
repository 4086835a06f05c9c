//! A few rows of bf16 in the order of a tile unit, by vectors and by tiles where there are some: no bit may differ.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a check fails")]

mod oracle;

use bilin_core::DType;
use bilin_core::exec::buffer::Buffer;
use bilin_core::exec::call::Conj;
use oracle::{Case, Class, Rng, Value, put, read};

const NO: [Conj; 2] = [Conj::No, Conj::No];
const CHAINS: &str = "avx512-bf16-chains";
const PAIRED: [&str; 2] = [CHAINS, "amx-bf16-tiles"];

fn has(kernel: &str) -> bool {
    bilin_cpu::kernel_names().contains(&kernel)
}

/// Every number of rows, from either side, with tails of columns and of terms, several tasks of columns, batches, gaps, and
/// results that are rounded, kept and added to.
#[test]
fn rows_have_the_bits_of_the_order() {
    let mut rng = Rng(31);
    for m in 1..=8 {
        for (i, (n, k)) in [(64, 32), (33, 33), (301, 63), (40, 96), (95, 1057), (2, 70), (8230, 34)].into_iter().enumerate() {
            let lens = [('b', 3), ('i', m), ('j', n), ('k', k)];
            for (out, wild) in [(DType::Bf16, true), (DType::F32, i % 2 == 0)] {
                for subscript in ["ik,kj->ij", "ki,kj->ij", "kj,ik->ij", "kj,ki->ji", "bik,bkj->bij", "bki,kj->bij"] {
                    // The oracle is slow.
                    if n * k > 5000 && (subscript.contains("ki,") || subscript.contains('b') || ![1, 3, 8].contains(&m)) {
                        continue;
                    }
                    let classes = [Class::Negative, Class::Offset, [Class::Row, Class::Sliced][i % 2]];
                    let case = Case::new(subscript, &lens, [DType::Bf16, DType::Bf16, out], classes, NO, &mut rng, wild);
                    let ran = case.check();
                    // Two columns of neighbours may be the few rows as well.
                    let is_few = subscript != "bki,kj->bij" || 3 * m <= 8;
                    let takes = is_few && n >= m.max(3) && !matches!(subscript, "kj,ik->ij" | "kj,ki->ji");
                    assert!(!takes || !has(CHAINS) || ran.contains(&CHAINS), "{}: {ran:?}", case.name);
                }
            }
        }
    }
}

/// A term that isn't zero: its place and its two factors.
type Term = (usize, f64, f64);

/// Sums whose last step is seen in the result: the terms that aren't zero, by their place, how many there are in all, and the sum.
#[test]
fn numbers_that_are_too_small_count_as_zeros_of_their_sign() {
    let small = 2f64.powi(-63);
    let tiny = 2f64.powi(-70);
    let least = small * small;
    let cases: [(&[Term], usize, f64); 10] = [
        (&[(0, small, small)], 64, least),
        // Operands that are subnormal.
        (&[(0, 2f64.powi(-127), 2f64.powi(100))], 64, 0.0),
        (&[(3, 2f64.powi(100), 2f64.powi(-130)), (40, 1.0, 1.0)], 64, 1.0),
        // A product, a chain, two chains and a total that come to less than the least normal number.
        (&[(0, tiny, tiny)], 64, 0.0),
        (&[(0, 1.5 * small, small), (2, -small, small)], 64, 0.0),
        (&[(0, 1.5 * small, small), (1, -small, small)], 64, 0.0),
        (&[(0, 1.5 * small, small), (32, -1.75 * small, small)], 64, -0.0),
        // By a little less, which the nearest number on its grid would hide.
        (&[(0, small, small), (2, -3.0 * 2f64.powi(-76), 2f64.powi(-76))], 64, 0.0),
        // −0 in both chains and in the total: kept where all terms are there, lost where zeros stand for some.
        (&[(0, 1.5 * small, small), (32, -1.75 * small, small), (94, -tiny, tiny), (95, -tiny, tiny)], 96, -0.0),
        (&[(0, 1.5 * small, small), (32, -1.75 * small, small), (64, -tiny, tiny), (65, -tiny, tiny)], 66, 0.0),
    ];
    for (i, (terms, k, want)) in cases.into_iter().enumerate() {
        for (m, n) in [(1, 40), (3, 33), (8, 64)] {
            let lens = [('i', m), ('j', n), ('k', k)];
            let mut case = Case::new("ik,kj->ij", &lens, [DType::Bf16, DType::Bf16, DType::F32], [Class::Row; 3], NO, &mut Rng(1), false);
            for (buffer, lines, by) in [(&mut case.lhs, m, [k, 1]), (&mut case.rhs, n, [1, n])] {
                let bytes = buffer.host_mut().unwrap();
                bytes.fill(0);
                for line in 0..lines {
                    for &(at, x, y) in terms {
                        put(DType::Bf16, bytes, line * by[0] + at * by[1], Value::Real(if by[1] == 1 { x } else { y }));
                    }
                }
            }
            for kernel in PAIRED.into_iter().filter(|kernel| has(kernel)) {
                let got = case.run(Some(kernel)).unwrap();
                for at in 0..m * n {
                    let Value::Real(got) = read(DType::F32, &got, at) else { panic!("a number") };
                    assert_eq!(got.to_bits(), want.to_bits(), "case {i}, {m} by {n}, by {kernel}: {got:e}, want {want:e}");
                }
            }
        }
    }
}
