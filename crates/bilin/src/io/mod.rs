//! Tensors in files: `.npy`, `.npz` and `.safetensors`.
//!
//! The readers work on bytes in memory and distrust all of them: whatever the bytes are, they return a tensor that is
//! whole or an error, never panic, and allocate no more than the file can fill. The writers build the whole file in
//! memory, and [`save_raw`] puts it in place with [`atomic::write_whole`].
//!
//! | file | bool | u8 i8 i16 i32 i64 | f16 f32 f64 | bf16 | complex64 | complex128 |
//! |---|---|---|---|---|---|---|
//! | `.npy`, `.npz` | yes | yes | yes | no | yes | yes |
//! | `.safetensors` | yes | yes | yes | yes | yes | no |

pub mod atomic;
pub mod npy;
pub mod npz;
pub mod raw;
pub mod safetensors;
mod tensors;

use std::fs;
use std::path::Path;

use bilin_core::{Error, OpName, Result};

pub use raw::RawTensor;
pub use tensors::{load, load_one, save};

#[derive(Clone, Copy, PartialEq, Eq)]
enum FileKind {
    Npy,
    Npz,
    Safetensors,
}

impl FileKind {
    fn of(op: impl Into<OpName>, path: &Path) -> Result<FileKind> {
        let extension = path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase());
        match extension.as_deref() {
            Some("npy") => Ok(FileKind::Npy),
            Some("npz") => Ok(FileKind::Npz),
            Some("safetensors") => Ok(FileKind::Safetensors),
            _ => Err(Error::invalid(op, "path", path.display(), "the name must end in .npy, .npz or .safetensors")),
        }
    }
}

/// Reads the tensors of a file, by its extension. A `.npy` file gives one tensor without a name.
///
/// `FILE.npz:NAME` and `FILE.safetensors:NAME` give the one tensor of that name.
///
/// # Errors
/// [`Error::InvalidArgument`] for another extension or a name that isn't there, [`Error::Io`] where the file can't be
/// read, [`Error::Format`] where it is malformed.
pub fn load_raw(path: impl AsRef<Path>) -> Result<Vec<(Option<String>, RawTensor)>> {
    let (file, name) = split_name(path.as_ref());
    let kind = FileKind::of("load", file)?;
    let label = file.display().to_string();
    let bytes = fs::read(file).map_err(|e| Error::Io { op: "load".into(), path: label.clone(), message: e.to_string() })?;
    let mut tensors = match kind {
        FileKind::Npy => return Ok(vec![(None, npy::read(&label, &bytes)?)]),
        FileKind::Npz => npz::read(&label, &bytes)?,
        FileKind::Safetensors => safetensors::read(&label, &bytes)?,
    };
    if let Some(name) = name {
        let Some(i) = tensors.iter().position(|(n, _)| n == name) else {
            let names: Vec<&str> = tensors.iter().map(|(n, _)| n.as_str()).collect();
            return Err(Error::invalid("load", "name", format_args!("'{name}'"), format!("{label} has: {}", names.join(", "))));
        };
        let (name, tensor) = tensors.swap_remove(i);
        return Ok(vec![(Some(name), tensor)]);
    }
    Ok(tensors.into_iter().map(|(n, t)| (Some(n), t)).collect())
}

/// Splits `FILE.npz:NAME` at the first place where FILE is a file, else at the first of all.
///
/// A path that is a file itself is never split.
fn split_name(path: &Path) -> (&Path, Option<&str>) {
    let Some(text) = path.to_str().filter(|_| !path.is_file()) else {
        return (path, None);
    };
    let splits = || {
        text.match_indices(':').filter_map(|(i, _)| {
            let (file, name) = (Path::new(text.get(..i)?), text.get(i + 1..)?);
            matches!(FileKind::of("load", file), Ok(FileKind::Npz | FileKind::Safetensors)).then_some((file, Some(name)))
        })
    };
    splits().find(|(file, _)| file.is_file()).or_else(|| splits().next()).unwrap_or((path, None))
}

/// Whether a path's extension names a format. Errors: [`Error::InvalidArgument`] naming the three.
pub fn check_extension(path: impl AsRef<Path>) -> Result<()> {
    FileKind::of("save", path.as_ref()).map(|_| ())
}

/// The bytes of a file of tensors, in the format that its extension names. A `.npy` file takes exactly one tensor, and drops
/// its name.
///
/// # Errors
/// [`Error::InvalidArgument`] for another extension, names given twice or several tensors for `.npy`,
/// [`Error::Unsupported`] for a dtype that the format hasn't.
pub fn encode_raw(path: impl AsRef<Path>, tensors: &[(String, RawTensor)]) -> Result<Vec<u8>> {
    match FileKind::of("save", path.as_ref())? {
        FileKind::Npy => match tensors {
            [(_, tensor)] => npy::write(tensor),
            _ => {
                let want = ".npy holds exactly one; save several as .npz or .safetensors";
                Err(Error::invalid("save", "tensors", format_args!("{} tensors", tensors.len()), want))
            }
        },
        FileKind::Npz => npz::write(tensors),
        FileKind::Safetensors => safetensors::write(tensors),
    }
}

/// Writes tensors to a file, by its extension, whole or not at all.
///
/// # Errors
/// Those of [`encode_raw`], and [`Error::Io`] where the file can't be written.
pub fn save_raw(path: impl AsRef<Path>, tensors: &[(String, RawTensor)]) -> Result<()> {
    atomic::write_whole(path.as_ref(), &encode_raw(&path, tensors)?)
}
