//! The file formats: round trips, files that NumPy made, and files that nobody should trust.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};

use bilin::io::{RawTensor, atomic, load_raw, npy, npz, safetensors, save_raw};
use bilin_core::{DType, Error};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn data_bytes(name: &str) -> Vec<u8> {
    std::fs::read(data(name)).unwrap()
}

fn sample(dtype: DType, shape: &[usize]) -> RawTensor {
    let len = shape.iter().product::<usize>() * dtype.size_bytes();
    let bytes = (0..len).map(|i| if dtype == DType::Bool { (i % 2) as u8 } else { (i * 37 + 11) as u8 }).collect();
    RawTensor { dtype, shape: shape.to_vec(), bytes }
}

fn f32s(shape: &[usize], values: &[f32]) -> RawTensor {
    RawTensor { dtype: DType::F32, shape: shape.to_vec(), bytes: values.iter().flat_map(|x| x.to_le_bytes()).collect() }
}

fn npy_file(version: u8, header: &str, payload: &[u8]) -> Vec<u8> {
    let mut out = b"\x93NUMPY".to_vec();
    out.extend([version, 0]);
    match version {
        1 => out.extend((header.len() as u16).to_le_bytes()),
        _ => out.extend((header.len() as u32).to_le_bytes()),
    }
    out.extend(header.as_bytes());
    out.extend(payload);
    out
}

fn st_file(header: &str, payload: &[u8]) -> Vec<u8> {
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.extend(payload);
    out
}

#[track_caller]
fn format_error<T: std::fmt::Debug>(result: Result<T, Error>, part: &str) {
    match result {
        Err(e @ Error::Format { .. }) => assert!(e.to_string().contains(part), "'{e}' doesn't say '{part}'"),
        other => panic!("want Format with '{part}', got {other:?}"),
    }
}

#[test]
fn every_dtype_and_shape_goes_round() {
    for dtype in DType::ALL {
        for shape in [&[][..], &[0], &[1], &[5], &[2, 3], &[3, 0, 2], &[2, 1, 3, 2]] {
            let t = sample(dtype, shape);
            let named = [("a.b/ü\"\\".to_string(), t.clone()), (String::new(), t.clone())];
            if dtype == DType::Bf16 {
                let e = npy::write(&t).unwrap_err();
                assert_eq!(e.to_string(), "save: bfloat16 isn't supported by .npy; save as .safetensors");
                assert!(npz::write(&named).is_err());
            } else {
                assert_eq!(npy::read("t", &npy::write(&t).unwrap()).unwrap(), t);
                assert_eq!(npz::read("t", &npz::write(&named).unwrap()).unwrap(), named);
            }
            if dtype == DType::C128 {
                let e = safetensors::write(&named).unwrap_err();
                assert_eq!(e.to_string(), "save: complex128 isn't supported by .safetensors; save as .npy");
            } else {
                let file = safetensors::write(&named).unwrap();
                assert_eq!(u64::from_le_bytes(file[..8].try_into().unwrap()) % 8, 0);
                assert_eq!(safetensors::read("t", &file).unwrap(), named);
            }
        }
    }
}

#[test]
fn npy_bytes_are_numpys() {
    for name in ["f4_c", "c16", "bool_1d", "f2_scalar", "empty"] {
        let bytes = data_bytes(&format!("{name}.npy"));
        assert_eq!(npy::write(&npy::read(name, &bytes).unwrap()).unwrap(), bytes, "{name}");
    }
}

#[test]
fn numpy_files_are_read() {
    let want = f32s(&[2, 3], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    for name in ["f4_c.npy", "f4_v2.npy", "f4_v3.npy"] {
        assert_eq!(load_raw(data(name)).unwrap(), [(None, want.clone())], "{name}");
    }
    let f8: Vec<u8> = (0..6).flat_map(|x| f64::from(x).to_le_bytes()).collect();
    assert_eq!(npy::read("t", &data_bytes("f8_big.npy")).unwrap().bytes, f8);
    let i8: Vec<u8> = (0..24_i64).flat_map(i64::to_le_bytes).collect();
    let fortran = npy::read("t", &data_bytes("i8_fortran.npy")).unwrap();
    assert_eq!((fortran.shape, fortran.bytes), (vec![2, 3, 4], i8));
    for name in ["stored.npz", "deflated.npz"] {
        let b: Vec<u8> = [1_i16, -2, 3].iter().flat_map(|x| x.to_le_bytes()).collect();
        let b = RawTensor { dtype: DType::I16, shape: vec![3], bytes: b };
        let both = [("w".to_string(), want.clone()), ("b".to_string(), b)];
        assert_eq!(npz::read(name, &data_bytes(name)).unwrap(), both, "{name}");
    }
}

#[test]
fn numpy_types_without_a_dtype_are_named() {
    format_error(npy::read("t", &data_bytes("u4.npy")), "descr '<u4'");
    format_error(npy::read("t", &data_bytes("object.npy")), "descr '|O'");
    format_error(npy::read("t", &data_bytes("structured.npy")), "[(\\'x\\', \\'<f4\\')");
    format_error(npy::read("t", &npy_file(1, "{'descr': '<U3', 'fortran_order': False, 'shape': (1,)}", &[0; 12])), "descr '<U3'");
}

#[test]
fn byte_orders_and_fortran_order_by_hand() {
    for (descr, dtype, part) in [
        ("i2", DType::I16, 2),
        ("i4", DType::I32, 4),
        ("i8", DType::I64, 8),
        ("f2", DType::F16, 2),
        ("f4", DType::F32, 4),
        ("f8", DType::F64, 8),
        ("c8", DType::C64, 4),
        ("c16", DType::C128, 8),
        ("u1", DType::U8, 1),
        ("i1", DType::I8, 1),
    ] {
        let t = sample(dtype, &[2, 2]);
        let s = dtype.size_bytes();
        let big: Vec<u8> = t.bytes.chunks(part).flat_map(|c| c.iter().rev().copied()).collect();
        let swapped = |b: &[u8]| [&b[..s], &b[2 * s..3 * s], &b[s..2 * s], &b[3 * s..]].concat();
        for (order, bytes) in [("<", &t.bytes), ("=", &t.bytes), ("|", &t.bytes), (">", &big)] {
            let c = format!("{{'descr': '{order}{descr}', 'fortran_order': False, 'shape': (2, 2)}}");
            let f = format!("{{\"shape\":(2L,2L,),'fortran_order':True ,\n\t'descr' : '{order}{descr}' , }}  \n");
            for version in 1..=3 {
                assert_eq!(npy::read("t", &npy_file(version, &c, bytes)).unwrap(), t);
                assert_eq!(npy::read("t", &npy_file(version, &f, &swapped(bytes))).unwrap(), t);
            }
        }
    }
}

#[test]
fn bools_become_0_or_1() {
    let want = vec![0, 1, 1];
    let file = npy_file(1, "{'descr': '?', 'fortran_order': False, 'shape': (3,)}", &[0, 2, 255]);
    assert_eq!(npy::read("t", &file).unwrap().bytes, want);
    let file = st_file(r#"{"a":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}}"#, &[0, 2, 255]);
    assert_eq!(safetensors::read("t", &file).unwrap()[0].1.bytes, want);
    let t = RawTensor { dtype: DType::Bool, shape: vec![3], bytes: vec![0, 2, 255] };
    assert_eq!(npy::read("t", &npy::write(&t).unwrap()).unwrap().bytes, want);
}

#[test]
fn truncated_anywhere_is_an_error() {
    let two = [("a".to_string(), sample(DType::F32, &[2, 3])), ("b".to_string(), sample(DType::U8, &[3]))];
    for file in [data_bytes("f4_c.npy"), data_bytes("f4_v2.npy"), data_bytes("empty.npy"), data_bytes("i8_fortran.npy")] {
        for n in 0..file.len() {
            assert!(matches!(npy::read("t", &file[..n]), Err(Error::Format { .. })), "npy at {n}");
        }
    }
    for file in [data_bytes("stored.npz"), data_bytes("deflated.npz"), npz::write(&two).unwrap()] {
        for n in 0..file.len() {
            assert!(matches!(npz::read("t", &file[..n]), Err(Error::Format { .. })), "npz at {n}");
        }
    }
    let file = safetensors::write(&two).unwrap();
    for n in 0..file.len() {
        assert!(matches!(safetensors::read("t", &file[..n]), Err(Error::Format { .. })), "safetensors at {n}");
    }
}

#[test]
fn hostile_npy_headers() {
    let shape = |s: &str| npy::read("t", &npy_file(1, &format!("{{'descr': '<f4', 'fortran_order': True, 'shape': {s}}}"), &[]));
    format_error(shape("(1099511627776,)"), "0 bytes of elements");
    format_error(shape("(4294967296, 4294967296)"), "64-bit offsets");
    format_error(shape("(9223372036854775807, 3, 0)"), "64-bit offsets");
    format_error(shape("(99999999999999999999,)"), "fit 64 bits");
    format_error(shape("(-1,)"), "-1");
    format_error(shape("(3)"), "','");
    format_error(shape("3"), "tuple");
    format_error(shape("(,)"), "tuple");
    format_error(shape("(1 2)"), "','");
    format_error(shape(&format!("({})", "0,".repeat(65))), "64 axes");
    assert!(shape("(1099511627776, 0)").is_ok());
    for (header, part) in [
        ("", "end of the header"),
        ("{}", "without 'descr'"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (0,)} x", "white space"),
        ("{'descr': '<f4', 'fortran_order': 0, 'shape': (0,)}", "True or False"),
        ("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (0,)}", "each key once"),
        ("{'descr': '<f4', 'other': 1}", "the keys"),
        ("{'descr': '<f4' 'shape': (0,)}", "'}'"),
        ("{'descr", "closed string"),
        ("{'descr': __import__('os')", "__import__"),
    ] {
        format_error(npy::read("t", &npy_file(1, header, &[])), part);
    }
    let mut long = data_bytes("f4_v2.npy");
    long[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    format_error(npy::read("t", &long), "header within the file");
    let mut extra = data_bytes("f4_c.npy");
    extra.push(0);
    format_error(npy::read("t", &extra), "25 bytes of elements");
    format_error(npy::read("t", b"\x93NUMPY\x04\x00\x00\x00\x00\x00\x00"), "version 4.0");
    format_error(npy::read("t", b"PK\x03\x04 not this"), "magic");
}

#[test]
fn hostile_safetensors_headers() {
    let a = |rest: &str| format!(r#"{{"a":{{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}{rest}}}"#);
    let read = |header: &str, n: usize| safetensors::read("t", &st_file(header, &vec![0; n]));
    assert!(read(&a(""), 2).is_ok());
    assert!(read(&a(r#","__metadata__":{"format":"pt","x:{":"\"}:"}"#), 2).is_ok());
    assert!(read("{}", 0).unwrap().is_empty());
    format_error(read(&a(""), 3), "3 bytes of elements");
    format_error(read(&a(r#","b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}"#), 3), "overlaps");
    format_error(read(&a(r#","b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}"#), 5), "hole");
    format_error(read(&a(r#","a":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}"#), 4), "'a' twice");
    format_error(read(&a(r#","\u0061":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}"#), 4), "'a' twice");
    format_error(read(&a(r#","__metadata__":{"x":1}"#), 2), "__metadata__");
    let one = |d: &str, s: &str, o: &str| read(&format!(r#"{{"a":{{"dtype":"{d}","shape":{s},"data_offsets":{o}}}}}"#), 4);
    format_error(one("U8", "[4294967296,4294967296]", "[0,4]"), "64-bit offsets");
    format_error(one("U8", "[-4]", "[0,4]"), "shape");
    format_error(one("U8", "[4.0]", "[0,4]"), "shape");
    format_error(one("U8", "[4]", "[4,0]"), "data_offsets");
    format_error(one("F32", "[4]", "[0,4]"), "data_offsets of 4 bytes");
    format_error(one("F8_E4M3", "[4]", "[0,4]"), "dtype 'F8_E4M3'");
    format_error(one("U8", "[18446744073709551615]", "[0,18446744073709551615]"), "64-bit offsets");
    format_error(read(r#"{"a":1}"#, 0), "'a'");
    format_error(read("[]", 0), "'{'");
    format_error(read(&"{\"a\":".repeat(100_000), 0), "JSON");
    format_error(safetensors::read("t", &u64::MAX.to_le_bytes()), "100000000");
    format_error(safetensors::read("t", &9_u64.to_le_bytes()), "header within the file");
}

fn zip_of(name: &str, method: zip::CompressionMethod, bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    zip.start_file(name, zip::write::SimpleFileOptions::default().compression_method(method)).unwrap();
    zip.write_all(bytes).unwrap();
    zip.finish().unwrap().into_inner()
}

#[test]
fn hostile_archives() {
    let (stored, deflated) = (zip::CompressionMethod::Stored, zip::CompressionMethod::Deflated);
    let npy = npy::write(&sample(DType::U8, &[4])).unwrap();
    assert!(npz::read("t", &zip_of("a.npy", deflated, &npy)).is_ok());
    format_error(npz::read("t", &zip_of("a.txt", stored, &npy)), "'a.txt'");
    format_error(npz::read("t", &zip_of("a.npy", stored, &[])), "t:a: found");
    let bomb = [&npy[..], &vec![0; 1 << 20]].concat();
    format_error(npz::read("t", &zip_of("a.npy", deflated, &bomb)), "bytes of elements");
    // A directory that declares another size than the entry has.
    let whole = zip_of("a.npy", deflated, &npy);
    let directory = whole.windows(4).position(|w| w == b"PK\x01\x02").unwrap();
    for declared in [0_u32, 131, 133, 1 << 16, u32::MAX - 1] {
        let mut lie = whole.clone();
        lie[directory + 24..directory + 28].copy_from_slice(&declared.to_le_bytes());
        assert!(npz::read("t", &lie).is_err(), "{declared}");
    }
    let mut flipped = zip_of("a.npy", stored, &npy);
    let at = flipped.windows(6).position(|w| w == b"\x93NUMPY").unwrap() + npy.len() - 1;
    flipped[at] ^= 1;
    format_error(npz::read("t", &flipped), "checksum");
}

#[test]
fn writers_refuse_what_readers_would() {
    let t = sample(DType::U8, &[2]);
    let twice = [("a".to_string(), t.clone()), ("a".to_string(), t.clone())];
    for result in [npz::write(&twice), safetensors::write(&twice)] {
        assert!(result.unwrap_err().to_string().contains("'a' twice"));
    }
    assert!(safetensors::write(&[("__metadata__".to_string(), t.clone())]).is_err());
    assert!(npy::write(&RawTensor { bytes: vec![0; 3], ..t.clone() }).is_err());
    let huge = RawTensor { shape: vec![usize::MAX, 2], ..t };
    assert!(matches!(npy::write(&huge), Err(Error::TooLarge { .. })));
}

#[test]
fn safetensors_are_aligned() {
    let mixed = [("a", DType::U8), ("b", DType::F64), ("c", DType::I16)].map(|(n, d)| (n.to_string(), sample(d, &[3])));
    let names: Vec<String> = safetensors::read("t", &safetensors::write(&mixed).unwrap()).unwrap().into_iter().map(|(n, _)| n).collect();
    assert_eq!(names, ["b", "c", "a"]);
}

struct Folder(PathBuf);
impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("bilin-io-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}
impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn paths_pick_format_and_name() {
    let folder = Folder::new("paths");
    let at = |name: &str| folder.0.join(name);
    let two = [("a".to_string(), sample(DType::F32, &[2])), ("b:c".to_string(), sample(DType::F32, &[3]))];
    for file in ["x.npz", "x.safetensors", "X.NPZ"] {
        save_raw(at(file), &two).unwrap();
        assert_eq!(load_raw(at(file)).unwrap().len(), 2);
        let picked = load_raw(at(&format!("{file}:b:c"))).unwrap();
        assert_eq!(picked, [(Some("b:c".to_string()), two[1].1.clone())]);
        let e = load_raw(at(&format!("{file}:z"))).unwrap_err();
        assert!(e.to_string().contains("has: a, b:c"), "{e}");
        assert_eq!(e.kind(), "InvalidArgument");
    }
    save_raw(at("x.npy"), &two[..1]).unwrap();
    assert_eq!(load_raw(at("x.npy")).unwrap(), [(None, two[0].1.clone())]);
    assert!(save_raw(at("x.npy"), &two).unwrap_err().to_string().contains("exactly one"));
    for e in [load_raw(at("x.pt")).unwrap_err(), save_raw(at("x.pt"), &two).unwrap_err()] {
        assert!(e.to_string().contains(".npy, .npz or .safetensors"), "{e}");
    }
    for name in ["none.npy", "none.npz:a"] {
        let e = load_raw(at(name)).unwrap_err();
        assert!(matches!(&e, Error::Io { op, .. } if op == "load"), "{e}");
    }
    let e = save_raw(at("no/folder.npz"), &two).unwrap_err();
    assert!(matches!(&e, Error::Io { op, .. } if op == "save"), "{e}");
}

#[test]
fn whole_or_not_at_all() {
    let folder = Folder::new("atomic");
    let file = folder.0.join("f");
    atomic::write_whole(&file, b"one").unwrap();
    atomic::write_whole(&file, b"two").unwrap();
    assert_eq!(std::fs::read(&file).unwrap(), b"two");
    let sub = folder.0.join("sub");
    std::fs::create_dir(&sub).unwrap();
    assert!(atomic::write_whole(&sub, b"x").is_err());
    assert!(atomic::write_all_whole(&[(&file, b"three"), (&sub, b"three")]).is_err());
    assert_eq!(std::fs::read(&file).unwrap(), b"two", "no file before all are written");
    #[cfg(unix)]
    {
        let link = folder.0.join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        atomic::write_whole(&link, b"three").unwrap();
        assert!(link.symlink_metadata().unwrap().is_symlink());
        assert_eq!(std::fs::read(&file).unwrap(), b"three");
    }
    let left = std::fs::read_dir(&folder.0).unwrap().filter(|e| e.as_ref().unwrap().file_name().to_string_lossy().ends_with(".tmp"));
    assert_eq!(left.count(), 0);
}
