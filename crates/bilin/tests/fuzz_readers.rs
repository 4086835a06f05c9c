//! Seeded fuzzing of the readers on stable Rust: mutated valid files and random bytes.
//!
//! Each reader runs for `FUZZ_SECONDS` (2 where unset) from the seed `FUZZ_SEED` (1 where unset). A panic reports the
//! input in hex.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use bilin::io::{RawTensor, npy, npz, safetensors};
use bilin_core::DType;

struct XorShift(u64);
impl XorShift {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }
    fn below(&mut self, n: usize) -> usize {
        if n == 0 { 0 } else { self.next() as usize % n }
    }
}

fn env(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or(default)
}

const TOKENS: &[&str] = &[
    "-1",
    "0",
    "1",
    "18446744073709551615",
    "9223372036854775807",
    "4294967296",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ",",
    ":",
    "'",
    "\"",
    "\\",
    "True",
    "False",
    ">f8",
    "<i2",
    "|b1",
    "c16",
    "descr",
    "shape",
    "fortran_order",
    "dtype",
    "data_offsets",
    "__metadata__",
    "BF16",
    "C64",
    "PK\x01\x02",
    "PK\x05\x06",
    "PK\x03\x04",
    "\u{0}",
    "\n",
];

fn mutate(rng: &mut XorShift, file: &mut Vec<u8>) {
    for _ in 0..=rng.below(4) {
        let at = rng.below(file.len());
        match rng.below(8) {
            0 if !file.is_empty() => file[at] ^= 1 << rng.below(8),
            1 if !file.is_empty() => file[at] = rng.next() as u8,
            2 => file.truncate(at),
            3 => file.insert(at, rng.next() as u8),
            4 if !file.is_empty() => drop(file.remove(at)),
            5 => {
                let token = TOKENS[rng.below(TOKENS.len())].as_bytes();
                let end = (at + [0, token.len()][rng.below(2)]).min(file.len());
                file.splice(at..end, token.iter().copied());
            }
            6 => {
                let end = at + rng.below((file.len() - at).min(64) + 1);
                let part = file[at..end].to_vec();
                let to = rng.below(file.len() + 1);
                file.splice(to..to, part);
            }
            _ => {
                let width = [2, 4, 8][rng.below(3)];
                let value = [0, 1, 0xff, u64::MAX, 1 << 31, 1 << 63, rng.next()][rng.below(7)].to_le_bytes();
                for (byte, v) in file.iter_mut().skip(at).zip(&value[..width]) {
                    *byte = *v;
                }
            }
        }
    }
}

fn sample(dtype: DType, shape: &[usize]) -> RawTensor {
    let len = shape.iter().product::<usize>() * dtype.size_bytes();
    RawTensor { dtype, shape: shape.to_vec(), bytes: (0..len).map(|i| (i % 2) as u8).collect() }
}

type Reader = dyn Fn(&[u8]) -> bilin_core::Result<Vec<RawTensor>>;

/// Runs `read` on what `input` makes of the valid files until time is up.
fn fuzz(name: &str, seeds: &[Vec<u8>], read: &Reader, wrap: &dyn Fn(&mut XorShift, Vec<u8>) -> Vec<u8>) {
    let mut rng = XorShift(env("FUZZ_SEED", 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let end = Instant::now() + Duration::from_secs(env("FUZZ_SECONDS", 2));
    let (mut runs, mut whole) = (0_u64, 0_u64);
    while Instant::now() < end {
        let mut file = if rng.below(16) == 0 {
            let len = rng.below(300);
            (0..len).map(|_| rng.next() as u8).collect()
        } else {
            seeds[rng.below(seeds.len())].clone()
        };
        mutate(&mut rng, &mut file);
        let file = wrap(&mut rng, file);
        let hex = || file.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let result = catch_unwind(AssertUnwindSafe(|| read(&file)));
        let Ok(result) = result else { panic!("{name}: run {runs} panicked on {}", hex()) };
        for t in result.iter().flatten() {
            let want = t.shape.iter().map(|n| *n as u128).product::<u128>() * t.dtype.size_bytes() as u128;
            assert_eq!(t.bytes.len() as u128, want, "{name}: run {runs}, shape {:?}, on {}", t.shape, hex());
            assert!(t.dtype != DType::Bool || t.bytes.iter().all(|b| *b < 2), "{name}: run {runs} on {}", hex());
        }
        runs += 1;
        whole += u64::from(result.is_ok());
    }
    println!("{name}: {runs} inputs, {whole} of them read");
    assert!(whole > 0, "{name}: no input was read, so the mutations are too wild");
}

fn npy_seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = [(DType::F32, &[2, 3][..]), (DType::Bool, &[5]), (DType::C128, &[]), (DType::I16, &[0, 3])]
        .iter()
        .map(|(d, s)| npy::write(&sample(*d, s)).unwrap())
        .collect();
    for name in ["f8_big.npy", "i8_fortran.npy", "f4_v2.npy", "f4_v3.npy", "structured.npy"] {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
        seeds.push(std::fs::read(path).unwrap());
    }
    seeds
}

#[test]
fn npy_reader() {
    fuzz("npy", &npy_seeds(), &|b| npy::read("fuzz", b).map(|t| vec![t]), &|_, file| file);
}

fn named() -> Vec<(String, RawTensor)> {
    vec![("a".into(), sample(DType::F32, &[2, 3])), ("b".into(), sample(DType::Bool, &[4])), ("c".into(), sample(DType::I64, &[0]))]
}

fn tensors(named: Vec<(String, RawTensor)>) -> Vec<RawTensor> {
    named.into_iter().map(|(_, t)| t).collect()
}

#[test]
fn npz_reader() {
    let data = |name| std::fs::read(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)).unwrap();
    let seeds = [npz::write(&named()).unwrap(), data("stored.npz"), data("deflated.npz")];
    fuzz("npz", &seeds, &|b| npz::read("fuzz", b).map(tensors), &|_, file| file);
}

#[test]
fn npz_reader_of_whole_archives() {
    use std::io::Write;
    let pack = |rng: &mut XorShift, file: Vec<u8>| {
        let method = [zip::CompressionMethod::Stored, zip::CompressionMethod::Deflated][rng.below(2)];
        let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
        zip.start_file("a.npy", zip::write::SimpleFileOptions::default().compression_method(method)).unwrap();
        zip.write_all(&file).unwrap();
        zip.finish().unwrap().into_inner()
    };
    fuzz("npz entries", &npy_seeds(), &|b| npz::read("fuzz", b).map(tensors), &pack);
}

#[test]
fn safetensors_reader() {
    let mut bf16 = named();
    bf16.push(("d\"\\é".into(), sample(DType::Bf16, &[1, 2])));
    let metadata = br#"{"__metadata__":{"a":"b"},"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}   "#;
    let metadata = [&(metadata.len() as u64).to_le_bytes()[..], metadata, &[1, 2]].concat();
    let seeds = [safetensors::write(&named()).unwrap(), safetensors::write(&bf16).unwrap(), metadata];
    let fit = |rng: &mut XorShift, mut file: Vec<u8>| {
        // Half of the time, move the declared length with the header's last brace.
        if rng.below(2) == 0
            && let Some(end) = file.iter().rposition(|b| *b == b'}').filter(|end| *end >= 8)
        {
            file[..8].copy_from_slice(&(end as u64 - 7).to_le_bytes());
        }
        file
    };
    fuzz("safetensors", &seeds, &|b| safetensors::read("fuzz", b).map(tensors), &fit);
}
