//! Files to write: all are made in memory before the first one is written.

use std::fs;
use std::path::{Path, PathBuf};

use bilin::io::{RawTensor, atomic, npy, npz, safetensors};
use bilin::{Error, Tensor};

use crate::Failure;

/// The name that a lone tensor has in a file that names its tensors.
const NAME: &str = "out";

#[derive(Clone, Copy)]
enum Format {
    Npy,
    Npz,
    Safetensors,
}

fn format(path: &Path) -> Result<Format, Failure> {
    let extension = path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase());
    match extension.as_deref() {
        Some("npy") => Ok(Format::Npy),
        Some("npz") => Ok(Format::Npz),
        Some("safetensors") => Ok(Format::Safetensors),
        _ => Err(Error::invalid("save", "path", path.display(), "the name must end in .npy, .npz or .safetensors").into()),
    }
}

/// Refuses a name whose format isn't known, before any work is done.
pub(crate) fn check_name(path: &Path) -> Result<(), Failure> {
    format(path).map(|_| ())
}

/// Finished files that wait to be written.
#[derive(Default)]
pub(crate) struct Files(Vec<(PathBuf, Vec<u8>)>);

impl Files {
    /// Makes the file of a tensor.
    pub(crate) fn add(&mut self, path: PathBuf, tensor: &Tensor) -> Result<(), Failure> {
        let raw = RawTensor { dtype: tensor.dtype(), shape: tensor.shape().to_vec(), bytes: tensor.to_bytes()? };
        let bytes = match format(&path)? {
            Format::Npy => npy::write(&raw)?,
            Format::Npz => npz::write(&[(NAME.to_owned(), raw)])?,
            Format::Safetensors => safetensors::write(&[(NAME.to_owned(), raw)])?,
        };
        self.0.push((path, bytes));
        Ok(())
    }

    /// Writes all, each whole or not at all, making `folders` first. Returns the names.
    pub(crate) fn write(self, folders: &[&Path]) -> Result<Vec<String>, Failure> {
        for folder in folders {
            fs::create_dir_all(folder).map_err(|e| Error::Io { op: "save".into(), path: folder.display().to_string(), message: e.to_string() })?;
        }
        let mut names = Vec::new();
        for (path, bytes) in self.0 {
            atomic::write_whole(&path, &bytes)?;
            names.push(path.display().to_string());
        }
        Ok(names)
    }
}
