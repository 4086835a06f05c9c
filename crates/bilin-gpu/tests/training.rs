//! The example `digits` learns on a GPU what it learns on a CPU.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is how a check fails")]
#![allow(clippy::duplicate_mod, dead_code, reason = "the example brings its own copies of what examples share, and its main")]

#[path = "../../bilin/examples/digits/main.rs"]
mod digits;

use std::path::Path;

use bilin::prelude::*;
use digits::progress::Progress;
use digits::train::{Settings, train};

#[test]
fn digits_learns_the_same_as_on_the_cpu() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../bilin/examples/data/digits.csv.gz");
    let all = digits::data::load(Path::new(file)).unwrap();
    let settings = Settings { epochs: 2, ..digits::DEFAULTS };
    let learn = |device: &Device| {
        let mut silent = Vec::new();
        train(&all[..500], &settings, device, &mut Progress::new(&mut silent, false, settings.epochs)).unwrap()
    };
    let (gpu, cpu) = (learn(&Device::wgpu(0).unwrap()), learn(&Device::cpu()));
    for (g, c) in gpu.history.iter().zip(&cpu.history) {
        let is_near = |a: f64, b: f64| (a - b).abs() <= 1e-3 * b.abs();
        assert!(
            is_near(g.training_loss, c.training_loss) && is_near(g.held_back_loss, c.held_back_loss),
            "{} and {}",
            g.training_loss,
            c.training_loss
        );
    }
    assert!(gpu.history[1].training_loss < gpu.history[0].training_loss);
    assert!(gpu.accuracy() > 0.5, "{}", gpu.accuracy());
}
