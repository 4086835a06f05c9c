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

    /// Adds a file of text.
    pub(crate) fn add_text(&mut self, path: PathBuf, text: String) {
        self.0.push((path, text.into_bytes()));
    }

    /// Writes all, each whole and none before all are on the disk, making `folders` first. Returns the names.
    pub(crate) fn write(self, folders: &[PathBuf]) -> Result<Vec<String>, Failure> {
        for folder in folders {
            fs::create_dir_all(folder).map_err(|e| Error::Io {
                op: "save".into(),
                path: folder.display().to_string(),
                message: e.to_string(),
            })?;
        }
        atomic::write_all_whole(&self.0)?;
        Ok(self.0.iter().map(|(path, _)| path.display().to_string()).collect())
    }
}
