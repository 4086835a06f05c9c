//! The examples do what they say: accuracy, bits that repeat, pictures that are well-formed, derivatives as in closed form.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::duplicate_mod, dead_code, reason = "each example brings its own copy of what they share, and its main")]

#[path = "../examples/digits/main.rs"]
mod digits;
#[path = "../examples/equilibrium/main.rs"]
mod equilibrium;
#[path = "../examples/maml/main.rs"]
mod maml;
#[path = "../examples/newton/main.rs"]
mod newton;
#[path = "../examples/ridge/main.rs"]
mod ridge;
#[path = "../examples/transformer/main.rs"]
mod transformer;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use bilin::prelude::*;
use digits::progress::Progress;
use digits::train::{Epoch, Outcome, Settings};

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("examples-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn learn(epochs: usize) -> Outcome {
    let digits = digits::data::load(Path::new(digits::DATA)).unwrap();
    let mut silent = Vec::new();
    let settings = Settings { epochs, ..digits::DEFAULTS };
    digits::train::train(&digits, &settings, &Device::cpu(), &mut Progress::new(&mut silent, false, epochs)).unwrap()
}

fn bits(history: &[Epoch]) -> Vec<[u64; 3]> {
    history.iter().map(|e| [e.training_loss, e.held_back_loss, e.accuracy].map(f64::to_bits)).collect()
}

/// Tags balance, attributes are quoted and no text holds a bare `<` or `&`.
#[track_caller]
fn assert_well_formed(svg: &str) {
    let mut open = Vec::new();
    let mut elements = 0;
    for piece in svg.split('<').skip(1) {
        let (tag, text) = piece.split_once('>').unwrap_or_else(|| panic!("an open tag: {piece}"));
        assert!(text.split('&').skip(1).all(|t| ["amp;", "lt;", "gt;"].iter().any(|e| t.starts_with(e))), "a bare &: {text}");
        assert_eq!(tag.matches('"').count() % 2, 0, "an open quote: {tag}");
        assert_eq!(tag.matches('=').count() * 2, tag.matches('"').count(), "an unquoted attribute: {tag}");
        assert!(!tag.contains("NaN") && !tag.contains("inf"), "no number: {tag}");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "closes what isn't open");
        } else if !tag.ends_with('/') {
            open.push(tag.split(' ').next().unwrap());
        }
        elements += 1;
    }
    assert!(open.is_empty(), "never closed: {open:?}");
    assert!(svg.starts_with("<svg ") && elements > 3, "an empty picture");
}

#[test]
fn digits_are_read_and_drawn() {
    let outcome = learn(digits::DEFAULTS.epochs);
    assert!(outcome.accuracy() >= 0.965, "accuracy {}", outcome.accuracy());
    assert_eq!(outcome.history.len(), 30);
    assert_eq!(outcome.history[29].accuracy, outcome.accuracy());
    assert_eq!(outcome.held_back.len(), 359);
    let counts = outcome.confusion();
    assert_eq!(counts.iter().flatten().sum::<usize>(), 359);
    let misread = outcome.misread();
    assert_eq!((0..10).map(|c| counts[c][c]).sum::<usize>(), 359 - misread.len());
    assert_well_formed(&digits::plot::loss_curve(&outcome.history));
    let grid = digits::plot::misread_grid(&misread, 359);
    assert_well_formed(&grid);
    assert_eq!(grid.matches(" → ").count(), misread.len() + 2, "one label a digit, and the heading twice");
}

/// bf16 keeps 8 bits: each logit is within some 2⁻⁸ of its size, and so is a loss of order 1.
#[test]
fn digits_learn_as_well_under_autocast() {
    let digits = digits::data::load(Path::new(digits::DATA)).unwrap();
    let last = |autocast: Option<DType>| {
        let settings = Settings { epochs: 8, autocast, ..digits::DEFAULTS };
        let mut silent = Vec::new();
        let progress = &mut Progress::new(&mut silent, false, 8);
        *digits::train::train(&digits, &settings, &Device::cpu(), progress).unwrap().history.last().unwrap()
    };
    let (plain, mixed) = (last(None), last(Some(DType::Bf16)));
    assert!(plain != mixed, "the scope has no effect");
    assert!((plain.held_back_loss - mixed.held_back_loss).abs() <= 2f64.powi(-8) * 4.0, "{plain:?} {mixed:?}");
    assert!((plain.training_loss - mixed.training_loss).abs() <= 2f64.powi(-8) * 4.0, "{plain:?} {mixed:?}");
}

#[test]
fn two_runs_give_the_same_bits() {
    let epochs = digits::DEFAULTS.epochs;
    assert_eq!(bits(&learn(epochs).history), bits(&learn(epochs).history));
}

#[test]
fn pictures_of_odd_numbers_are_well_formed() {
    let epoch = |loss: f64| Epoch { training_loss: loss, held_back_loss: loss / 2.0, accuracy: 0.5 };
    for history in
        [vec![epoch(1.0)], vec![epoch(0.0); 2], vec![epoch(5e7), epoch(1e-8)], (1..=1000).map(|i| epoch(1.0 / f64::from(i))).collect()]
    {
        assert_well_formed(&digits::plot::loss_curve(&history));
    }
    assert_well_formed(&digits::plot::misread_grid(&[], 359));
}

#[test]
fn a_run_writes_pictures_and_tells_its_progress() {
    let folder = scratch("digits");
    for terminal in [false, true] {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut args = words("--epochs 1 --seed=3 --out");
        args.push(folder.display().to_string());
        digits::run(&args, &mut out, &mut err, terminal).unwrap();
        let (out, err) = (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap());
        assert!(out.contains("test accuracy") && out.contains("true\\read"), "{out}");
        assert!(err.contains("loss ") && err.contains("accuracy ") && err.ends_with('\n'), "{err}");
        assert_eq!(err.contains('\r'), terminal);
    }
    let mut names: Vec<String> = fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["loss.svg", "misread.svg"]);
    names.iter().for_each(|n| assert_well_formed(&fs::read_to_string(folder.join(n)).unwrap()));
    fs::remove_dir_all(&folder).unwrap();
}

#[track_caller]
fn digits_failure(args: &[String]) -> (u8, String) {
    let failure = digits::run(args, &mut Vec::new(), &mut Vec::new(), false).unwrap_err();
    let text = failure.to_string();
    assert!(!text.contains('\n') && !text.is_empty(), "not one line: {text:?}");
    (failure.status(), text)
}

#[test]
fn wrong_options_are_status_2() {
    for args in ["--epochs 0", "--epochs x", "--lr -1", "--lr nan", "--seed -1", "--device abacus", "--out", "--verbose", "digits"] {
        let (status, text) = digits_failure(&words(args));
        assert_eq!(status, 2, "{args}: {text}");
    }
    assert_eq!(ridge::run(&words("--seed one"), &mut Vec::new()).unwrap_err().status(), 2);
    let mut help = Vec::new();
    digits::run(&words("--help"), &mut help, &mut Vec::new(), false).unwrap();
    assert!(String::from_utf8(help).unwrap().contains("--epochs"));
}

#[test]
fn missing_and_damaged_data_are_status_1() {
    let folder = scratch("data");
    let pack = |name: &str, text: &str| {
        let path = folder.join(name);
        let mut file = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        file.write_all(text.as_bytes()).unwrap();
        fs::write(&path, file.finish().unwrap()).unwrap();
        path
    };
    let row = |last: &str| format!("{}{last}\n", "0,".repeat(64));
    let whole = fs::read(digits::DATA).unwrap();
    let cut = folder.join("cut.gz");
    fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    let cases = [
        (folder.join("none.gz"), ""),
        (cut, "damaged"),
        (pack("short.gz", &format!("{}1,2\n", row("3"))), ":2: 2 fields"),
        (pack("word.gz", &format!("{}{}", row("3"), row("x"))), ":2: field 65"),
        (pack("class.gz", &row("10")), ":1: want pixels"),
        (pack("empty.gz", ""), "no rows"),
        (pack("few.gz", &row("3")), "too few"),
    ];
    for (path, part) in cases {
        let (status, text) =
            digits_failure(&["--data".to_owned(), path.display().to_string(), "--out".to_owned(), folder.display().to_string()]);
        assert_eq!(status, 1, "{text}");
        assert!(text.contains(part), "'{text}' doesn't say '{part}'");
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn ridge_derivatives_are_the_closed_forms() {
    let table = ridge::cancer::load(Path::new(ridge::cancer::DATA)).unwrap();
    assert_eq!(table.y.len(), 569);
    let problem = ridge::problem::Problem::new(&table, ridge::SEED).unwrap();
    let device = Device::cpu();
    let found =
        ridge::search::search(&ridge::solve::Ridge::new(&problem, &device).unwrap(), &ridge::closed::ClosedForm::new(&problem), &device)
            .unwrap();
    assert!(found.converged && found.newton.len() > 1);
    assert!(found.newton.iter().all(|r| r.second.is_some()));
    let worst = ridge::verdict(&found, ridge::TOLERANCE).unwrap();
    assert!(worst > 0.0, "two ways of computing agree to the last bit: is it one way?");
    assert_eq!(ridge::verdict(&found, worst / 2.0).unwrap_err().status(), 1);
    let losses: Vec<f64> = found.rows().map(|r| r.loss.tape).collect();
    assert!(losses.windows(2).all(|w| w[1] <= w[0] + 1e-12), "the loss rises: {losses:?}");
}

#[test]
fn the_ridge_program_prints_its_tables() {
    let mut out = Vec::new();
    ridge::run(&[], &mut out).unwrap();
    let out = String::from_utf8(out).unwrap();
    assert!(out.contains("Newton") && out.contains("worst relative difference") && out.contains("least validation loss"), "{out}");
}

#[test]
fn newton_steps_by_hessian_products_end_where_an_explicit_hessian_does() {
    let table = newton::cancer::load(Path::new(newton::cancer::DATA)).unwrap();
    let [training, held_back] = table.split(newton::SEED).unwrap();
    let logistic = newton::logistic::Logistic::new(&training, newton::PENALTY, &Device::cpu()).unwrap();
    let fit = newton::solve::newton(&logistic).unwrap();
    assert!(fit.converged && fit.steps.windows(2).all(|w| w[1].loss <= w[0].loss + 1e-15));
    let found = newton::compare(&logistic, &newton::closed::Explicit::new(&training, newton::PENALTY), &fit).unwrap();
    let worst = newton::verdict(&found, newton::TOLERANCE).unwrap();
    assert!(found.gradient > 0.0 && found.product > 0.0, "two ways of computing agree to the last bit: is it one way?");
    assert_eq!(newton::verdict(&found, worst / 2.0).unwrap_err().status(), 1);
    assert!(newton::logistic::right(&fit.parameters, &held_back) * 100 >= held_back.y.len() * 95);
    let mut out = Vec::new();
    newton::run(&[], &mut out).unwrap();
    assert!(String::from_utf8(out).unwrap().contains("Hessian-vector products, no Hessian"));
    assert_eq!(newton::run(&words("--penalty 0"), &mut Vec::new()).unwrap_err().status(), 2);
}

fn transformer_learns(autocast: Option<DType>) -> transformer::train::Outcome {
    let shape = transformer::model::Shape { context: 32, ..transformer::DEFAULTS.shape };
    let settings = transformer::train::Settings { steps: 40, autocast, shape, ..transformer::DEFAULTS };
    let text = transformer::text::Text::load(Path::new(transformer::TEXT), shape.context).unwrap();
    transformer::train::train(&text, &settings, &Device::cpu(), |_, _| ()).unwrap()
}

/// The bound of the digits: each logit is within some 2⁻⁸ of its size, and so is a loss of order 1.
#[test]
fn the_transformer_learns_as_well_under_autocast() {
    let (plain, mixed) = (transformer_learns(None), transformer_learns(Some(DType::Bf16)));
    let ends = |losses: &[f64]| (losses[0], losses[losses.len() - 5..].iter().sum::<f64>() / 5.0);
    let ((first, last), (_, mixed_last)) = (ends(&plain.losses), ends(&mixed.losses));
    assert!(last < 0.75 * first && last < 0.7 * 76f64.ln(), "it learns little: from {first} to {last}");
    assert!(plain.losses != mixed.losses, "the scope has no effect");
    assert!((last - mixed_last).abs() <= 4.0 * 2f64.powi(-8), "{last} {mixed_last}");
    assert!((plain.held_back - mixed.held_back).abs() <= 4.0 * 2f64.powi(-8), "{} {}", plain.held_back, mixed.held_back);
    assert_eq!(plain.losses, transformer_learns(None).losses, "two runs differ");
    for name in ["LayerNormBackward", "GeluBackward", "EinsumBackward", "MatmulBackward"] {
        assert!(plain.profile.events().iter().any(|e| e.node == name), "{name} isn't in the profile");
    }
    assert!(plain.profile.events().iter().any(|e| e.name == "layer_norm" && e.dtype == Some(DType::F32)));
    assert!(mixed.profile.events().iter().any(|e| e.name == "gelu" && e.dtype == Some(DType::Bf16)));
    assert!(mixed.profile.events().iter().any(|e| e.name == "softmax" && e.dtype == Some(DType::F32)));
}

#[test]
fn the_transformer_does_not_look_ahead_and_heads_share_their_group() {
    use transformer::model::{Model, Shape};
    let shape = Shape { blocks: 2, width: 24, heads: 6, groups: 2, context: 9 };
    let device = Device::cpu();
    let model = Model::new(shape, 11, &mut Rng::new(1), &device).unwrap();
    let logits = |text: &[i64]| model.logits(&Tensor::from_slice(text, [1, text.len()], &device).unwrap()).unwrap();
    let (a, b) = (logits(&[1, 2, 3, 4, 5, 6, 7, 8, 9]), logits(&[1, 2, 3, 4, 5, 10, 0, 0, 0]));
    let head = |t: &Tensor, count: usize| t.narrow(1, 0, count).unwrap().to_vec::<f32>().unwrap();
    assert_eq!(head(&a, 5), head(&b, 5), "a character sees those after it");
    assert_eq!(head(&a, 3), head(&logits(&[1, 2, 3]), 3), "a shorter text is another text");
    assert_ne!(head(&a, 6), head(&b, 6));
    // With all heads in one group, keys and values are a sixth of those of one group a head.
    let numbers = |groups: usize| -> usize {
        let model = Model::new(Shape { groups, ..shape }, 11, &mut Rng::new(1), &device).unwrap();
        model.parameters().iter().map(Tensor::numel).sum()
    };
    assert_eq!(numbers(6) - numbers(1), 2 * 2 * 24 * (24 - 4));
}

#[test]
fn the_transformer_program_reads_a_text_and_writes_a_trace() {
    let folder = scratch("transformer");
    let (text, trace) = (folder.join("text.txt"), folder.join("trace.json"));
    fs::write(&text, "Grüße an alle! ".repeat(40)).unwrap();
    let with = |more: &str, text: &Path| -> Vec<String> {
        let paths = ["--text".to_owned(), text.display().to_string(), "--profile".to_owned(), trace.display().to_string()];
        words(more).into_iter().chain(paths).collect()
    };
    let small = "--steps 2 --context 8 --width 8 --heads 2 --groups 1 --write 20 --autocast bf16";
    let (mut out, mut err) = (Vec::new(), Vec::new());
    transformer::run(&with(small, &text), &mut out, &mut err, false).unwrap();
    let (out, err) = (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap());
    assert!(out.contains("nats a character") && out.contains("LayerNormBackward") && err.contains("step     2/2"), "{out}{err}");
    assert!(fs::read_to_string(&trace).unwrap().contains("\"name\":\"gelu\""));
    let fails = |args: &[String]| transformer::run(args, &mut Vec::new(), &mut Vec::new(), false).unwrap_err();
    for (args, status, part) in [
        (words("--heads 5"), 2, "want multiples"),
        (words("--autocast f64"), 2, "want bf16"),
        (words("--steps 0"), 2, "--steps"),
        (with("--context 64", &text), 1, "too few"),
        (with("", &folder.join("none.txt")), 1, "none.txt"),
    ] {
        let failure = fails(&args);
        assert!(failure.status() == status && failure.to_string().contains(part), "{failure}");
    }
    fs::write(&text, [0xff, 0xfe]).unwrap();
    assert!(fails(&with("", &text)).to_string().contains("UTF-8"));
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn gradients_of_a_fixed_point_are_those_of_the_closed_form() {
    // A device whose memory no other test counts.
    let device = Device::new("own", Box::new(bilin::exec::reference::ReferenceBackend));
    let layer = equilibrium::layer::Layer::new(16, equilibrium::SEED, &device).unwrap();
    let answers = equilibrium::layer::answers(&layer).unwrap();
    equilibrium::verdict(&answers, equilibrium::TOLERANCE, equilibrium::SECOND_TOLERANCE).unwrap();
    assert!(answers.implicit > 0.0 && answers.second > 0.0, "two ways of computing agree to the last bit: is it one way?");
    assert_eq!(equilibrium::verdict(&answers, answers.implicit / 2.0, 1.0).unwrap_err().status(), 1);
    // Cut short, the iteration has another gradient; at full depth it holds what the implicit one doesn't.
    let (first, last) = (&answers.unrolled[0], &answers.unrolled[answers.unrolled.len() - 1]);
    assert!(first.difference > 1e-4 && last.difference < equilibrium::TOLERANCE && last.bytes > 20 * answers.bytes);
    let mut out = Vec::new();
    equilibrium::run(&words("--states 8"), &mut out).unwrap();
    assert!(String::from_utf8(out).unwrap().contains("implicit"));
    assert_eq!(equilibrium::run(&words("--states 0"), &mut Vec::new()).unwrap_err().status(), 2);
}

#[test]
fn a_gradient_flows_through_a_gradient_step() {
    let device = Device::cpu();
    let checks = maml::check::checks(maml::DEFAULTS.seed, &device).unwrap();
    maml::verdict(&checks, maml::TOLERANCE, maml::QUOTIENT_TOLERANCE).unwrap();
    assert!(checks.linear > 0.0 && checks.first_order > 0.01, "{checks:?}");
    assert_eq!(maml::verdict(&checks, checks.linear / 2.0, 1.0).unwrap_err().status(), 1);
    let trained = maml::learn::learn(maml::learn::Settings { steps: 60, seed: 3 }, &device).unwrap();
    let last = trained.history.last().unwrap();
    assert!(last.after < last.before && last.after < trained.random[1], "{last:?}");
    let mut out = Vec::new();
    maml::run(&words("--steps 1"), &mut out).unwrap();
    assert!(String::from_utf8(out).unwrap().contains("from learned weights"));
}
