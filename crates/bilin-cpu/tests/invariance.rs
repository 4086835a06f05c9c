//! What bits may not depend on: threads, other rows, memory; and what memory may not grow with.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::needless_range_loop, reason = "a panic is how a check fails")]

mod oracle;

use bilin_core::DType;
use bilin_core::exec::backend::Backend;
use bilin_core::exec::buffer::Buffer;
use bilin_core::exec::call::Conj;
use bilin_cpu::{CpuBackend, CpuBuffer};
use oracle::{Case, Class, Rng};

const NO: [Conj; 2] = [Conj::No, Conj::No];

#[test]
fn threads_change_no_bit() {
    let mut rng = Rng(1);
    let pools = [1, 2, 5].map(|n| rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap());
    for dtype in [DType::F32, DType::F64, DType::C64, DType::Bf16, DType::I32] {
        let lens = [('i', 150), ('j', 170), ('k', 600), ('b', 3), ('v', 200_000)];
        for subscript in ["ik,kj->ij", "ik,jk->ij", "bik,bkj->bij", "v,v->", "vb,vb->v", "v,v->v", "vi,i->v", "v,vi->i"] {
            let lens: Vec<_> = lens.iter().map(|&(c, n)| if c == 'v' && subscript.contains('i') { (c, 1500) } else { (c, n) }).collect();
            let case = Case::new(subscript, &lens, [dtype; 3], [Class::Row; 3], NO, &mut rng, false);
            let got: Vec<_> = pools.iter().map(|pool| pool.install(|| case.run(None).unwrap())).collect();
            assert!(got.iter().all(|g| *g == got[0]), "{}", case.name);
            assert!(case.run(None).unwrap() == got[0], "{}", case.name);
        }
    }
}

#[test]
fn one_row_has_the_bits_it_has_among_many() {
    let mut rng = Rng(2);
    for dtype in [DType::F32, DType::F64, DType::C64, DType::Bf16, DType::F16] {
        for (k, n) in [(700, 60), (64, 1), (1300, 17)] {
            let many = Case::new("ik,kj->ij", &[('i', 40), ('j', n), ('k', k)], [dtype; 3], [Class::Row; 3], NO, &mut rng, false);
            let mut one = Case::new("ik,kj->ij", &[('i', 1), ('j', n), ('k', k)], [dtype; 3], [Class::Row; 3], NO, &mut rng, false);
            let row = 13;
            let size = dtype.size_bytes();
            let line = many.lhs.host().unwrap()[row * k * size..(row + 1) * k * size].to_vec();
            one.lhs.host_mut().unwrap()[..k * size].copy_from_slice(&line);
            let rhs = many.rhs.host().unwrap()[..k * n * size].to_vec();
            one.rhs.host_mut().unwrap()[..k * n * size].copy_from_slice(&rhs);
            let (all, single) = (many.run(None).unwrap(), one.run(None).unwrap());
            assert!(all[row * n * size..(row + 1) * n * size] == single[..n * size], "{dtype} k={k} n={n}");
        }
    }
}

#[test]
fn set_num_threads_takes_effect_and_refuses_zero() {
    for wrong in [0, 4097, usize::MAX] {
        assert_eq!(bilin_cpu::set_num_threads(wrong).unwrap_err().kind(), "InvalidArgument");
    }
    bilin_cpu::set_num_threads(3).unwrap();
    assert_eq!(bilin_cpu::num_threads(), 3);
    bilin_cpu::set_num_threads(2).unwrap();
    assert_eq!(bilin_cpu::num_threads(), 2);
}

#[test]
fn buffers_are_aligned_reused_and_poisoned() {
    let backend = CpuBackend::new();
    for len in [0, 1, 63, 64, 65, 4096, 4097, 100_000, 1 << 20, (64 << 20) + 1] {
        let buffer = backend.alloc(len).unwrap().unwrap();
        let bytes = buffer.host().unwrap();
        assert_eq!((bytes.len(), bytes.as_ptr() as usize % 64), (len, 0));
    }
    assert!(backend.alloc(usize::MAX / 2 - 100).unwrap().is_none());
    assert!(backend.alloc(usize::MAX).unwrap().is_none());
    bilin_cpu::set_poison(true);
    for len in [10, 10_000] {
        let mut buffer = backend.alloc(len).unwrap().unwrap();
        buffer.host_mut().unwrap().fill(7);
        drop(buffer);
        assert!(backend.alloc(len).unwrap().unwrap().host().unwrap().iter().all(|&b| b == 0xFF));
    }
    bilin_cpu::set_poison(false);
    assert!(CpuBuffer::new(8).unwrap().host().unwrap().len() == 8);
}

#[test]
fn uploads_and_downloads_check_their_lengths() {
    let backend = CpuBackend::new();
    let mut buffer = backend.alloc(8).unwrap().unwrap();
    backend.upload(&[1, 2, 3], buffer.as_mut()).unwrap();
    let mut back = [0; 3];
    backend.download(buffer.as_ref(), &mut back).unwrap();
    assert_eq!(back, [1, 2, 3]);
    assert_eq!(backend.upload(&[0; 9], buffer.as_mut()).unwrap_err().kind(), "InvalidArgument");
    assert_eq!(backend.download(buffer.as_ref(), &mut [0; 9]).unwrap_err().kind(), "InvalidArgument");
}
