//! Files to write: all are made in memory before the first one is written.

use std::fs;
use std::path::{Path, PathBuf};

use bilin::io::{RawTensor, atomic, encode_raw};
use bilin::{Error, Tensor};

use crate::Failure;

/// The name that a lone tensor has in a file that names its tensors.
const NAME: &str = "out";

/// Refuses a name whose format isn't known, before any work is done.
pub(crate) fn check_name(path: &Path) -> Result<(), Failure> {
    Ok(bilin::io::check_extension(path)?)
}

/// Finished files that wait to be written.
#[derive(Default)]
pub(crate) struct Files(Vec<(PathBuf, Vec<u8>)>);

impl Files {
    /// Makes the file of a tensor.
    pub(crate) fn add(&mut self, path: PathBuf, tensor: &Tensor) -> Result<(), Failure> {
        let raw = RawTensor { dtype: tensor.dtype(), shape: tensor.shape().to_vec(), bytes: tensor.to_bytes()? };
        let bytes = encode_raw(&path, &[(NAME.to_owned(), raw)])?;
        self.0.push((path, bytes));
        Ok(())
    }

    /// Writes all, each whole or not at all, making `folders` first. Returns the names.
    pub(crate) fn write(self, folders: &[&Path]) -> Result<Vec<String>, Failure> {
        for folder in folders {
            fs::create_dir_all(folder).map_err(|e| Error::Io {
                op: "save".into(),
                path: folder.display().to_string(),
                message: e.to_string(),
            })?;
        }
        let mut names = Vec::new();
        for (path, bytes) in self.0 {
            atomic::write_whole(&path, &bytes)?;
            names.push(path.display().to_string());
        }
        Ok(names)
    }
}
