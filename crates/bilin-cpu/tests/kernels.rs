//! Every kernel of every instruction set against the oracle, bit for bit.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::needless_range_loop, reason = "a panic is how a check fails")]

mod oracle;

use std::collections::BTreeSet;

use bilin_core::DType;
use bilin_core::exec::buffer::Buffer;
use bilin_core::exec::call::Conj;
use oracle::{CLASSES, Case, Class, Rng, Value, block_len, put, read};

const NO: [Conj; 2] = [Conj::No, Conj::No];
const EXACT: [DType; 6] = [DType::Bool, DType::U8, DType::I8, DType::I16, DType::I32, DType::I64];

fn same(dtype: DType) -> [DType; 3] {
    [dtype; 3]
}

#[test]
fn every_dtype_over_small_shapes() {
    let mut rng = Rng(1);
    let mut ran = BTreeSet::new();
    let sizes = [(1, 1, 1), (2, 2, 2), (3, 5, 7), (1, 33, 40), (33, 1, 40), (8, 48, 16), (9, 49, 17), (7, 47, 15), (13, 97, 3), (50, 7, 9)];
    for dtype in DType::ALL {
        for (m, n, k) in sizes {
            for (i, class) in CLASSES.into_iter().enumerate() {
                let out = if class == Class::ZeroFirst { Class::Row } else { CLASSES[(i + 1) % 4] };
                for classes in [[class, Class::Row, Class::Row], [Class::Row, class, out], [class, class, Class::Row]] {
                    ran.extend(Case::new("ik,kj->ij", &[('i', m), ('j', n), ('k', k)], same(dtype), classes, NO, &mut rng, false).check());
                }
            }
            let lens = [('i', m), ('j', n), ('k', k)];
            ran.extend(Case::new("ik,kj->ji", &lens, same(dtype), [Class::Row; 3], NO, &mut rng, false).check());
            ran.extend(Case::new("ik,jk->ij", &lens, same(dtype), [Class::Row; 3], NO, &mut rng, false).check());
            ran.extend(Case::new("ki,kj->ij", &lens, same(dtype), [Class::Row, Class::Offset, Class::Offset], NO, &mut rng, false).check());
        }
        ran.extend(Case::new("b,b->b", &[('b', 300)], same(dtype), [Class::Row; 3], NO, &mut rng, false).check());
        let lens = [('b', 9), ('i', 2), ('j', 3), ('k', 4)];
        ran.extend(Case::new("bik,bkj->bij", &lens, same(dtype), [Class::Row; 3], NO, &mut rng, false).check());
        ran.extend(Case::new("bk,bk->b", &[('b', 30), ('k', 70)], same(dtype), [Class::Row; 3], NO, &mut rng, false).check());
    }
    let all: BTreeSet<_> = bilin_cpu::kernel_names().into_iter().collect();
    let idle: Vec<_> = all.difference(&ran).collect();
    assert!(idle.is_empty(), "never ran: {idle:?}");
}

#[test]
fn around_the_blocks_of_k() {
    let mut rng = Rng(2);
    for dtype in [DType::F32, DType::F64, DType::C64, DType::C128, DType::Bf16, DType::F16, DType::I32, DType::I64, DType::Bool] {
        let block = block_len(dtype.accumulator()).min(1024);
        for k in [block - 1, block, block + 1, 2 * block, 2 * block + 3] {
            for (m, n) in [(1, 1), (1, 20), (11, 1), (5, 19)] {
                let lens = [('i', m), ('j', n), ('k', k)];
                for subscript in ["ik,kj->ij", "ik,jk->ij", "ik,kj->ji"] {
                    Case::new(subscript, &lens, same(dtype), [Class::Row; 3], NO, &mut rng, false).check();
                }
                Case::new("ik,kj->ij", &lens, same(dtype), [Class::Sliced, Class::Negative, Class::Sliced], NO, &mut rng, false).check();
            }
        }
    }
}

#[test]
fn columns_that_the_first_tiles_pack() {
    let mut rng = Rng(22);
    for dtype in [DType::F32, DType::F64, DType::C64, DType::C128, DType::I32, DType::I64, DType::Bool] {
        let k = block_len(dtype.accumulator()).min(1024) + 3;
        for (m, n) in [(8, 48), (9, 100), (17, 81)] {
            let lens = [('b', 2), ('i', m), ('j', n), ('k', k)];
            for subscript in ["ik,kj->ij", "ki,kj->ij", "bik,kj->bij", "ik,bkj->bij"] {
                Case::new(subscript, &lens, same(dtype), [Class::Row; 3], NO, &mut rng, false).check();
            }
            Case::new("ik,kj->ij", &lens, same(dtype), [Class::Row, Class::Sliced, Class::Row], [Conj::No, Conj::Yes], &mut rng, false)
                .check();
        }
    }
}

#[test]
fn several_loops_of_each_role() {
    let mut rng = Rng(3);
    let lens = [('a', 3), ('b', 2), ('i', 5), ('j', 6), ('k', 7), ('u', 4), ('v', 19)];
    let subscripts = [
        "abik,abkj->abij",
        "abik,abkj->aibj",
        "baik,abkj->abij",
        "ik,bkj->bij",
        "bik,kj->bij",
        "bik,akj->abij",
        "iuv,uvj->ij",
        "iuv,vuj->ij",
        "biuv,bvuj->bji",
        "aibk,kjv->iavjb",
        "abk,abk->ab",
        "abk,bak->ba",
        "abuv,abvu->ab",
        "abc,abc->abc",
        "abc,cba->bac",
        "ab,ij->aibj",
        "i,j->ij",
        "i,j->ji",
        "uv,uv->",
        "uv,vu->",
        "k,k->",
        "ab,ab->",
        "ia,a->i",
        "a,aj->j",
        "aiu,a->iu",
    ];
    let lens: Vec<_> = lens.into_iter().chain([('c', 9)]).collect();
    for dtype in DType::ALL {
        for subscript in subscripts {
            for classes in
                [[Class::Row; 3], [Class::Transposed, Class::Sliced, Class::Transposed], [Class::Negative, Class::ZeroFirst, Class::Sliced]]
            {
                Case::new(subscript, &lens, same(dtype), classes, NO, &mut rng, false).check();
            }
        }
    }
}

#[test]
fn empty_lengths() {
    let mut rng = Rng(4);
    for dtype in DType::ALL {
        for (m, n, k, b) in [(0, 3, 4, 2), (3, 0, 4, 2), (3, 4, 0, 2), (3, 4, 5, 0), (0, 0, 0, 1), (1, 1, 0, 1)] {
            let lens = [('i', m), ('j', n), ('k', k), ('b', b)];
            for class in [Class::Row, Class::Sliced, Class::Transposed] {
                Case::new("bik,bkj->bij", &lens, same(dtype), [Class::Row, Class::Row, class], NO, &mut rng, false).check();
            }
        }
    }
}

#[test]
fn tiles_and_their_edges() {
    let mut rng = Rng(5);
    for dtype in [DType::F32, DType::F64, DType::C64, DType::I32, DType::Bf16] {
        for (m, n) in [(15, 31), (16, 32), (17, 33), (25, 95), (24, 96), (23, 145), (70, 100), (130, 60)] {
            let lens = [('i', m), ('j', n), ('k', 37)];
            for subscript in ["ik,kj->ij", "ki,jk->ij", "ik,kj->ji"] {
                Case::new(subscript, &lens, same(dtype), [Class::Row; 3], NO, &mut rng, false).check();
            }
        }
    }
}

/// Matrices that are read run by run, across columns and along terms, from either side.
#[test]
fn a_few_rows_times_a_large_matrix() {
    let mut rng = Rng(12);
    for dtype in [DType::F32, DType::F64, DType::I32, DType::I64] {
        for (m, n, k) in [(1, 300, 600), (3, 310, 1100), (8, 260, 1030)] {
            let lens = [('i', m), ('j', n), ('k', k)];
            for (subscript, kind) in
                [("ik,kj->ij", "line"), ("ik,jk->ij", "line"), ("jk,ik->ji", "-"), ("kj,ki->ji", "-"), ("jk,ki->ij", "line")]
            {
                let ran = Case::new(subscript, &lens, same(dtype), [Class::Row, Class::Offset, Class::Row], NO, &mut rng, false).check();
                assert!(ran.iter().any(|name| name.contains(kind)), "{subscript} {m} {n} {k}: {ran:?}");
            }
        }
    }
}

/// The same of halves, which are widened or multiplied in pairs on the way: tails of columns, terms and blocks, either side.
#[test]
fn a_row_of_halves_times_a_matrix() {
    let mut rng = Rng(16);
    let is_wide = bilin_cpu::kernel_names().iter().any(|name| name.starts_with("avx512"));
    for dtype in [DType::Bf16, DType::F16] {
        for (n, k) in [(300, 600), (2065, 513), (130, 1027), (8200, 33), (577, 31), (64, 2048)] {
            let lens = [('b', 2), ('i', n), ('k', k)];
            for subscript in ["k,ki->i", "k,ik->i", "ik,k->i", "ki,k->i", "bk,ki->bi", "bki,bk->bi", "bik,bk->ib"] {
                if subscript.contains('b') && n * k > 200_000 {
                    continue;
                }
                for (out, class) in [(dtype, Class::Row), (DType::F32, Class::Sliced)] {
                    let case = Case::new(subscript, &lens, [dtype, dtype, out], [Class::Offset, Class::Row, class], NO, &mut rng, true);
                    let ran = case.check();
                    let has_rows = !subscript.starts_with("bk,");
                    assert!(!is_wide || !has_rows || ran.contains(&"avx512-f32-halves"), "{}: {ran:?}", case.name);
                }
            }
        }
    }
}

/// Small products of halves in batches that don't end with a chunk, either operand shared or transposed.
#[test]
fn batches_of_small_products_of_halves() {
    let mut rng = Rng(17);
    for dtypes in [[DType::Bf16; 3], [DType::F16; 3], [DType::Bf16, DType::F16, DType::F32]] {
        for (b, [m, n, k]) in [(1000, [3, 3, 3]), (8, [1, 7, 2]), (333, [8, 17, 5]), (61, [2, 48, 40]), (50, [5, 1, 70])] {
            let lens = [('b', b), ('i', m), ('j', n), ('k', k)];
            for subscript in ["bik,bkj->bij", "bki,bkj->bij", "bik,bkj->bji"] {
                for class in [Class::Row, Class::Offset, Class::ZeroFirst] {
                    let case = Case::new(subscript, &lens, dtypes, [class, Class::Offset, Class::Offset], NO, &mut rng, true);
                    let ran = case.check();
                    // One tile on every instruction set, its columns side by side.
                    let takes = m <= 3 && n <= 8 && subscript != "bik,bkj->bji" && class != Class::ZeroFirst;
                    assert!(!takes || ran.contains(&"portable-f32-batch"), "{}: {ran:?}", case.name);
                }
            }
            Case::new("bik,bjk->bij", &lens, dtypes, [Class::Row, Class::Row, Class::Sliced], NO, &mut rng, true).check();
            Case::new("bik,bkj->bij", &lens, dtypes, [Class::Sliced, Class::Row, Class::Negative], NO, &mut rng, true).check();
        }
    }
}

/// Small products of several elements to a word in batches: several tiles an item, whole words of k and not, either operand shared.
#[test]
fn batches_of_small_products_of_words() {
    let mut rng = Rng(18);
    use DType::*;
    for dtypes in [[Bf16; 3], [Bf16, Bf16, F32], [I8; 3], [U8, U8, U8], [I16; 3], [I8, I8, I32], [U8, I8, I32]] {
        for (b, [m, n, k]) in
            [(37, [32, 32, 32]), (19, [17, 50, 36]), (9, [5, 64, 48]), (70, [1, 16, 64]), (21, [20, 70, 34]), (13, [9, 33, 33])]
        {
            let lens = [('b', b), ('i', m), ('j', n), ('k', k)];
            for subscript in ["bik,bkj->bij", "ik,bkj->bij", "bik,kj->bij", "bki,bkj->bij", "bik,bkj->bji"] {
                let classes = [Class::Offset, Class::Row, Class::Offset];
                Case::new(subscript, &lens, dtypes, classes, NO, &mut rng, dtypes[0] == Bf16).check();
            }
        }
    }
}

/// Groups of 32 blocks, several blocks of k, tails of each: what a tile unit pads and visits twice.
#[test]
fn blocks_of_a_tile_unit() {
    let mut rng = Rng(11);
    use DType::*;
    let of = [
        [Bf16, Bf16, Bf16],
        [Bf16, Bf16, F32],
        [I8, I8, I32],
        [U8, I8, I32],
        [I8, U8, I32],
        [U8, U8, I32],
        [I8; 3],
        [I16; 3],
        [I32; 3],
        [I64; 3],
        [I16, I16, I32],
        [I32, I32, I64],
    ];
    for dtypes in of {
        for (m, n, k) in [(1, 40, 1100), (33, 1, 600), (17, 33, 1025), (40, 70, 65), (64, 32, 2050)] {
            let lens = [('i', m), ('j', n), ('k', k)];
            for subscript in ["ik,kj->ij", "ki,jk->ij", "ik,jk->ji"] {
                Case::new(subscript, &lens, dtypes, [Class::Row; 3], NO, &mut rng, false).check();
            }
            Case::new("ik,kj->ij", &lens, dtypes, [Class::Negative, Class::Sliced, Class::Transposed], NO, &mut rng, true).check();
        }
    }
}

/// Columns that don't fit at once, rows that are loaded where they stand, and k of more terms than are summed in one go there.
#[test]
fn columns_of_a_tile_unit_part_by_part() {
    let mut rng = Rng(15);
    use DType::*;
    for (dtypes, m, n, k) in [([Bf16; 3], 64, 100, 4096), ([Bf16, Bf16, F32], 64, 70, 4160), ([U8, I8, I32], 64, 100, 8192)] {
        let lens = [('i', m), ('j', n), ('k', k)];
        for subscript in ["ik,kj->ij", "jk,ik->ij"] {
            Case::new(subscript, &lens, dtypes, [Class::Row; 3], NO, &mut rng, false).check();
        }
    }
    // Steps of the batch share the columns, or the rows.
    let lens = [('b', 3), ('i', 64), ('j', 70), ('k', 64)];
    for subscript in ["bik,kj->bij", "ik,bkj->bij", "bik,bkj->bij"] {
        Case::new(subscript, &lens, [Bf16; 3], [Class::Row; 3], NO, &mut rng, false).check();
    }
}

#[test]
fn conjugation_on_either_side() {
    let mut rng = Rng(6);
    for dtype in [DType::C64, DType::C128] {
        for conj in [[Conj::Yes, Conj::No], [Conj::No, Conj::Yes], [Conj::Yes, Conj::Yes]] {
            for subscript in ["ik,kj->ij", "ik,kj->ji", "ik,jk->ij", "bk,bk->b", "b,b->b", "k,k->", "ik,k->i", "k,kj->j", "i,j->ij"] {
                let lens = [('i', 21), ('j', 35), ('k', 300), ('b', 19)];
                Case::new(subscript, &lens, same(dtype), [Class::Row; 3], conj, &mut rng, false).check();
                Case::new(subscript, &lens, same(dtype), [Class::Sliced, Class::Row, Class::Row], conj, &mut rng, true).check();
            }
        }
    }
    // Real dtypes: no effect.
    Case::new("ik,kj->ij", &[('i', 3), ('j', 4), ('k', 5)], same(DType::F32), [Class::Row; 3], [Conj::Yes; 2], &mut rng, false).check();
}

#[test]
fn infinities_nan_subnormals_and_signed_zeros() {
    let mut rng = Rng(7);
    for dtype in [DType::F16, DType::Bf16, DType::F32, DType::F64, DType::C64, DType::C128] {
        for subscript in ["ik,kj->ij", "ik,kj->ji", "bk,bk->b", "b,b->b", "i,j->ij", "ik,k->i", "k,kj->j"] {
            for k in [1, 2, 3] {
                let lens = [('i', 37), ('j', 50), ('k', k), ('b', 700)];
                Case::new(subscript, &lens, same(dtype), [Class::Row; 3], NO, &mut rng, true).check();
            }
        }
    }
}

#[test]
fn a_sum_of_negative_zeros_is_one_and_a_sum_of_nothing_is_not() {
    let mut rng = Rng(11);
    let mut ran = BTreeSet::new();
    for dtype in [DType::F16, DType::Bf16, DType::F32, DType::F64, DType::C64, DType::C128] {
        let number = |re: f64| if dtype.is_complex() { Value::Complex(re, 0.0) } else { Value::Real(re) };
        let block = block_len(dtype.accumulator());
        for subscript in ["ik,kj->ij", "ik,kj->ji", "ki,jk->ij", "bk,bk->b", "ik,k->i", "k,kj->j", "k,k->"] {
            for k in [0, 1, 2, block + 1] {
                let lens = [('i', 19), ('j', 37), ('k', k), ('b', 21)];
                let mut case = Case::new(subscript, &lens, same(dtype), [Class::Row; 3], NO, &mut rng, false);
                for (buffer, x) in [(&mut case.lhs, 0.0), (&mut case.rhs, -0.0)] {
                    let bytes = buffer.host_mut().unwrap();
                    (0..bytes.len() / dtype.size_bytes()).for_each(|i| put(dtype, bytes, i, number(x)));
                }
                ran.extend(case.check());
                // A tile unit begins at +0.
                let wants_sign = k > 0 && case.order(None) != oracle::Order::Paired;
                let got = case.run(None).unwrap();
                for i in 0..case.layouts[2].numel() {
                    let (re, im) = match read(dtype, &got, i) {
                        Value::Complex(re, im) => (re, im),
                        Value::Real(re) => (re, 0.0),
                        other => panic!("{other:?}"),
                    };
                    assert!(re == 0.0 && re.is_sign_negative() == wants_sign, "{}: {re}", case.name);
                    assert!(im == 0.0 && im.is_sign_positive(), "{}: imaginary part {im}", case.name);
                }
            }
        }
    }
    let floats = |name: &&str| !["i32", "i64", "bool", "product"].iter().any(|part| name.contains(part));
    let idle: Vec<_> = bilin_cpu::kernel_names().into_iter().filter(floats).filter(|name| !ran.contains(name)).collect();
    assert!(idle.is_empty(), "never ran: {idle:?}");
}

#[test]
fn widths_that_differ() {
    use DType::*;
    let mut rng = Rng(8);
    let all = [
        [F32, Bf16, F32],
        [Bf16, F32, F32],
        [F16, F32, F32],
        [F16, F16, F32],
        [Bf16, Bf16, F32],
        [F32, F32, Bf16],
        [F32, F32, F16],
        [F32, F32, F64],
        [F64, F32, F64],
        [Bf16, F64, F64],
        [F64, F64, F32],
        [F64, F64, Bf16],
        [F64, F16, F16],
        [C64, C128, C128],
        [C128, C128, C64],
        [C64, C64, C128],
        [I8, I8, I32],
        [U8, U8, I32],
        [I8, I8, I64],
        [I16, I16, I32],
        [I32, I32, I64],
        [I16, I16, I64],
    ];
    for dtypes in all {
        for k in [3, 700] {
            let lens = [('i', 9), ('j', 21), ('k', k), ('b', 11)];
            for subscript in ["ik,kj->ij", "ik,jk->ji", "bik,bkj->bij", "bk,bk->b", "b,b->b", "ik,k->i"] {
                if subscript == "bik,bkj->bij" && k > 100 {
                    continue;
                }
                Case::new(subscript, &lens, dtypes, [Class::Row; 3], NO, &mut rng, false).check();
                Case::new(subscript, &lens, dtypes, [Class::Transposed, Class::Sliced, Class::Negative], NO, &mut rng, false).check();
            }
        }
    }
}

#[test]
fn every_half_and_what_lies_around_it_is_rounded_to_nearest() {
    let mut rng = Rng(13);
    let mut case = Case::new("b,b->b", &[('b', 7 << 16)], [DType::F32, DType::F32, DType::F16], [Class::Row; 3], NO, &mut rng, false);
    let around = [0u32, 1, 0xfff, 0x1000, 0x1001, 0x1fff, 0x0800_0000];
    let (lhs, rhs) = (case.lhs.host_mut().unwrap().as_chunks_mut::<4>().0, case.rhs.host_mut().unwrap().as_chunks_mut::<4>().0);
    for (i, (x, one)) in lhs.iter_mut().zip(rhs).enumerate() {
        let half = half::f16::from_bits((i >> 3) as u16).to_f32().to_bits();
        *x = half.wrapping_add(around[i % 7]).to_ne_bytes();
        *one = 1f32.to_ne_bytes();
    }
    case.check();
}

/// Loops of each role that don't merge, whose inner ones are longer than vectors.
#[test]
fn runs_in_pieces() {
    let mut rng = Rng(15);
    let lens = [('b', 3), ('c', 5), ('i', 33), ('j', 40), ('k', 20)];
    for dtype in [DType::F32, DType::F64, DType::C64, DType::Bf16, DType::I8] {
        for subscript in ["bcij,ckj->bik", "bik,bcij->ckj", "bik,ckj->bcij", "bcij,bcik->jk", "bijc,cj->bi"] {
            for class in [Class::Row, Class::Offset, Class::Negative] {
                Case::new(subscript, &lens, same(dtype), [Class::Row, class, Class::Row], NO, &mut rng, false).check();
            }
        }
    }
}

/// A result that is written past the caches, and one that isn't aligned for it.
#[test]
fn results_of_many_megabytes() {
    let mut rng = Rng(14);
    for (dtype, class) in [(DType::F32, Class::Row), (DType::F32, Class::Offset), (DType::F64, Class::Row)] {
        let lens = [('i', 2050), ('j', if dtype == DType::F64 { 1040 } else { 2064 })];
        Case::new("i,j->ij", &lens, same(dtype), [Class::Row, Class::Row, class], NO, &mut rng, false).check();
    }
    for class in [Class::Row, Class::Offset] {
        let lens = [('i', 2050), ('k', 3), ('j', 2064)];
        Case::new("ik,kj->ij", &lens, same(DType::F32), [Class::Row, Class::Row, class], NO, &mut rng, false).check();
    }
}

#[test]
fn truth_values_of_any_nonzero_byte() {
    let mut rng = Rng(9);
    let mut case = Case::new("ik,kj->ij", &[('i', 20), ('j', 20), ('k', 30)], same(DType::Bool), [Class::Row; 3], NO, &mut rng, false);
    for byte in case.lhs.host_mut().unwrap() {
        *byte *= 2;
    }
    case.check();
    for dtype in EXACT {
        assert_eq!(dtype.accumulator(), dtype);
    }
}

#[test]
fn a_refused_pair_is_an_error() {
    let mut rng = Rng(10);
    let mut case = Case::new("ik,kj->ij", &[('i', 2), ('j', 2), ('k', 2)], same(DType::F64), [Class::Row; 3], NO, &mut rng, false);
    case.accumulator = DType::F32;
    assert_eq!(case.run(None).unwrap_err().kind(), "DtypeMismatch");
    assert_eq!(case.run(Some("no-such-kernel")).unwrap_err().kind(), "KernelNotFound");
}
