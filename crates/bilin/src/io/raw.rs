//! A tensor as the file formats see it, and the checks that all of them share.

use bilin_core::{DType, Error, Result, shape_text};

/// Most axes that a file may give a tensor; NumPy's own limit.
pub const MAX_RANK: usize = 64;

/// A dtype, a shape and the elements' bytes.
///
/// The bytes are row-major and little-endian without padding: a bool is one byte, 0 or 1; a complex number is its
/// real part, then its imaginary part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawTensor {
    /// The element type.
    pub dtype: DType,
    /// The lengths of the axes; empty for a scalar.
    pub shape: Vec<usize>,
    /// The elements: product of `shape` × [`DType::size_bytes`] bytes.
    pub bytes: Vec<u8>,
}

impl RawTensor {
    /// The bytes as a writer stores them, after a check of shape against length. `bool` bytes become 0 or 1.
    ///
    /// # Errors
    /// [`Error::TooLarge`] where the shape overflows, [`Error::InvalidArgument`] where it has more than [`MAX_RANK`]
    /// axes or `bytes` has another length than it says.
    pub fn checked_bytes(&self) -> Result<std::borrow::Cow<'_, [u8]>> {
        if self.shape.len() > MAX_RANK {
            return Err(Error::invalid("save", "rank", self.shape.len(), format!("files hold at most {MAX_RANK} axes")));
        }
        let want = byte_len(self.dtype, &self.shape).ok_or_else(|| Error::TooLarge {
            op: "save".into(),
            shape: self.shape.clone(),
            dtype: self.dtype,
        })?;
        if want != self.bytes.len() {
            return Err(Error::invalid(
                "save",
                "bytes",
                format_args!("{} bytes long", self.bytes.len()),
                format!("shape {} of {} has {want} bytes", shape_text(&self.shape), self.dtype),
            ));
        }
        if self.dtype == DType::Bool && self.bytes.iter().any(|b| *b > 1) {
            let mut bytes = self.bytes.clone();
            normalise_bools(&mut bytes);
            return Ok(bytes.into());
        }
        Ok(self.bytes.as_slice().into())
    }
}

/// Bytes of a shape, or `None` where the product overflows `isize`.
///
/// Axes of length 0 don't hide an overflow of the others: strides made from such a shape would overflow too.
pub(crate) fn byte_len(dtype: DType, shape: &[usize]) -> Option<usize> {
    let full = shape.iter().filter(|n| **n != 0).try_fold(dtype.size_bytes(), |product, n| product.checked_mul(*n))?;
    if full > isize::MAX as usize {
        return None;
    }
    Some(if shape.contains(&0) { 0 } else { full })
}

/// Sets every nonzero byte to 1.
pub(crate) fn normalise_bools(bytes: &mut [u8]) {
    for b in bytes {
        *b = u8::from(*b != 0);
    }
}

/// An [`Error::Format`] of `load`.
pub(crate) fn malformed(label: &str, got: impl Into<String>, want: impl Into<String>) -> Error {
    Error::Format { op: "load".into(), path: label.into(), got: got.into(), want: want.into() }
}

/// Bytes of a file as text for a message: printable ASCII, the rest escaped, cut after 40 bytes.
pub(crate) fn excerpt(bytes: &[u8]) -> String {
    let head = bytes.get(..40).unwrap_or(bytes);
    let dots = if head.len() < bytes.len() { "…" } else { "" };
    format!("{}{dots}", head.escape_ascii())
}

/// The first name that occurs twice.
pub(crate) fn repeated_name(tensors: &[(String, RawTensor)]) -> Option<&str> {
    let mut seen = std::collections::HashSet::new();
    tensors.iter().map(|(name, _)| name.as_str()).find(|name| !seen.insert(*name))
}
