//! Tensors to and from files.

use std::path::Path;

use bilin_core::{Device, Error, Result, Tensor};

use super::{RawTensor, load_raw, save_raw};

/// Reads every tensor of a file, or the one that `FILE.npz:name` picks; a `.npy` file has one without a name.
///
/// ```
/// use bilin::prelude::*;
/// let path = std::env::temp_dir().join(format!("bilin-doc-{}.npy", std::process::id()));
/// let x = Tensor::from_slice(&[1f32, 2.], [2], &Device::cpu())?;
/// bilin::io::save(&path, &[("x", &x)])?;
/// assert_eq!(bilin::io::load_one(&path, &Device::cpu())?.to_vec::<f32>()?, [1., 2.]);
/// # let _ = std::fs::remove_file(path);
/// # Ok::<(), bilin::Error>(())
/// ```
///
/// # Errors
/// `Io`, `Format`, `InvalidArgument` for an extension or a name that isn't there, `Unsupported` for a dtype that the device
/// lacks.
pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<Vec<(Option<String>, Tensor)>> {
    load_raw(path)?.into_iter().map(|(name, raw)| Ok((name, Tensor::from_bytes(&raw.bytes, &raw.shape, raw.dtype, device)?))).collect()
}

/// Reads a file's only tensor, or the one that `FILE.npz:name` picks. Errors: as [`load`]; `InvalidArgument` for a file of
/// several, listing their names.
pub fn load_one(path: impl AsRef<Path>, device: &Device) -> Result<Tensor> {
    let path = path.as_ref();
    let mut all = load(path, device)?;
    match (all.pop(), all.is_empty()) {
        (Some((_, t)), true) => Ok(t),
        (None, _) => Err(Error::invalid("load", "path", format!("{}, which holds no tensor", path.display()), "give a file with one")),
        (last, _) => {
            let names: Vec<String> = all.into_iter().chain(last).filter_map(|(n, _)| n).collect();
            Err(Error::invalid(
                "load",
                "path",
                format!("{}, which holds {} tensors", path.display(), names.len()),
                format!("pick one as FILE:name of {}", names.join(", ")),
            ))
        }
    }
}

/// Writes tensors to a file by its extension, whole or not at all; `.npy` takes one and drops its name.
pub fn save(path: impl AsRef<Path>, tensors: &[(&str, &Tensor)]) -> Result<()> {
    let raw: Result<Vec<(String, RawTensor)>> = tensors
        .iter()
        .map(|(name, t)| Ok(((*name).to_owned(), RawTensor { dtype: t.dtype(), shape: t.shape().to_vec(), bytes: t.to_bytes()? })))
        .collect();
    save_raw(path, &raw?)
}
