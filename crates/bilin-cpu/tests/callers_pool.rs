//! Whose threads work. One test, so that no other starts the engine's own pool.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::needless_range_loop, reason = "a panic is how a check fails")]

mod oracle;

use bilin_core::DType;
use bilin_core::exec::call::Conj;
use oracle::{Case, Class, Rng};

/// Threads of this process whose name begins so; a new one takes its name when it first runs, so `most` are waited for.
fn threads(prefix: &str, most: usize) -> usize {
    let count = || {
        let names = std::fs::read_dir("/proc/self/task").unwrap().map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")));
        names.filter(|name| name.as_ref().is_ok_and(|name| name.starts_with(prefix))).count()
    };
    let start = std::time::Instant::now();
    while count() < most && start.elapsed().as_secs() < 20 {
        std::thread::yield_now();
    }
    count()
}

#[test]
fn work_stays_in_the_callers_pool_and_outside_one_goes_to_the_engines() {
    let lens = [('i', 300), ('j', 300), ('k', 300)];
    let case = Case::new("ik,kj->ij", &lens, [DType::F32; 3], [Class::Row; 3], [Conj::No; 2], &mut Rng(1), false);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).thread_name(|i| format!("caller-{i}")).build().unwrap();
    let here = pool.install(|| case.run(None).unwrap());
    assert_eq!((threads("caller-", 2), threads("bilin-", 0)), (2, 0), "a caller's pool does the work alone");
    bilin_cpu::set_num_threads(3).unwrap();
    assert!(case.run(None).unwrap() == here, "the same bits");
    assert_eq!(threads("bilin-", 3), 3);
}
