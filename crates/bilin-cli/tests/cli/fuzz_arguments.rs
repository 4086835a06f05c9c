//! Seeded fuzzing of the argument parser: vectors of plausible tokens, for `FUZZ_SECONDS` (2 where unset) from the seed
//! `FUZZ_SEED` (1 where unset). A panic reports the arguments.

use std::ffi::OsString;
use std::panic::catch_unwind;
use std::time::{Duration, Instant};

use bilin::Rng;
use bilin_cli::args::{Request, parse};
use bilin_cli::commands::COMMANDS;

fn env(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or(default)
}

const TOKENS: &[&str] = &[
    "help",
    "A.npy",
    "B.npz:w",
    "C.safetensors:a:b",
    "ij,jk->ik",
    "->",
    "...",
    "ones",
    "f32",
    "bfloat16",
    "c128",
    "i8",
    "ieee",
    "tf32",
    "cpu",
    "cuda:1",
    "0",
    "1",
    "-1",
    "2",
    "1,2:0,1",
    ":",
    ",:,",
    "1:",
    "99999999999999999999",
    "18446744073709551615",
    "-",
    "--",
    "---",
    "",
    "=",
    "--=",
    "-=",
    "-o=",
    "--help",
    "-h",
    "--version",
    "-V",
    "-hV",
    "-ohV",
    "--axes=",
    "--axes=-1:-2",
    "--json=1",
    "--js",
    "--grad=ones",
    "é",
    "--é",
    "-é",
    "\u{0}",
    "\n",
    "🙂",
];

fn token(rng: &mut Rng) -> OsString {
    let pick = |rng: &mut Rng, n: usize| rng.below(n as u64) as usize;
    let mut text = match rng.below(8) {
        0 | 1 => COMMANDS[pick(rng, COMMANDS.len())].name.to_owned(),
        2..=4 => {
            let command = &COMMANDS[pick(rng, COMMANDS.len())];
            let options: Vec<_> = command.all_options().collect();
            let option = options[pick(rng, options.len())];
            match (rng.below(3), option.short) {
                (0, Some(short)) => format!("-{short}"),
                (1, _) => format!("--{}={}", option.long, TOKENS[pick(rng, TOKENS.len())]),
                _ => format!("--{}", option.long),
            }
        }
        _ => TOKENS[pick(rng, TOKENS.len())].to_owned(),
    };
    if rng.below(16) == 0 {
        text = text.repeat(1 + pick(rng, 50));
    }
    if rng.below(8) == 0 {
        let mut chars: Vec<char> = text.chars().collect();
        let at = pick(rng, chars.len() + 1);
        match chars.get(at) {
            Some(_) => drop(chars.remove(at)),
            None => chars.push('x'),
        }
        text = chars.into_iter().collect();
    }
    broken(text, rng)
}

/// Now and then an argument that isn't UTF-8.
#[cfg(unix)]
fn broken(text: String, rng: &mut Rng) -> OsString {
    use std::os::unix::ffi::OsStringExt;
    let mut bytes = text.into_bytes();
    if rng.below(24) == 0 {
        let at = rng.below(bytes.len() as u64 + 1) as usize;
        bytes.insert(at, 0xFF);
    }
    OsString::from_vec(bytes)
}
#[cfg(not(unix))]
fn broken(text: String, _rng: &mut Rng) -> OsString {
    text.into()
}

#[test]
fn the_parser_never_panics() {
    let end = Instant::now() + Duration::from_secs(env("FUZZ_SECONDS", 2));
    let mut rng = Rng::new(env("FUZZ_SEED", 1));
    let (mut parsed, mut refused) = (0u64, 0u64);
    while Instant::now() < end {
        let arguments: Vec<OsString> = (0..rng.below(9)).map(|_| token(&mut rng)).collect();
        let result = catch_unwind(|| parse(arguments.clone()));
        match result.unwrap_or_else(|_| panic!("panicked for {arguments:?}")) {
            Ok(Request::Product(args)) => {
                assert!(!args.operands.is_empty(), "{arguments:?}");
                parsed += 1;
            }
            Ok(_) => parsed += 1,
            Err(failure) => {
                assert_eq!(failure.status(), 2, "{arguments:?}");
                assert!(failure.to_string().lines().count() == 1, "{arguments:?}: {failure}");
                refused += 1;
            }
        }
    }
    assert!(parsed > 0 && refused > 0);
}
