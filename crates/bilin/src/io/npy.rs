//! NumPy's `.npy`: a magic, a version, a header that is a Python dict literal, and the elements.
//!
//! Versions 1.0, 2.0 and 3.0 are read; 1.0 is written, byte for byte as `numpy.save` does. The header is parsed by a
//! strict parser for the one form it may have; nothing is evaluated, so pickled objects are refused.

use bilin_core::{DType, Error, Result, shape_text};

use super::raw::{MAX_RANK, RawTensor, byte_len, excerpt, malformed, normalise_bools};

const MAGIC: &[u8] = b"\x93NUMPY";
/// Magic, version and the longer form of the header's length.
pub(crate) const PREAMBLE: usize = 12;
const DESCRS: &str = "a descr among ?, u1, i1, i2, i4, i8, f2, f4, f8, c8, c16 (bfloat16 is kept in .safetensors)";

/// What a header says, after every check that needs no payload.
#[derive(Debug)]
pub(crate) struct Header {
    dtype: DType,
    big_endian: bool,
    fortran: bool,
    shape: Vec<usize>,
    /// Bytes that the elements take.
    pub(crate) payload: usize,
}

/// Reads a whole `.npy` file. `path_label` names it in errors.
///
/// Fortran order and big-endian elements become row-major and little-endian; `=`, `|` and no mark at all are taken as
/// little-endian. `bool` bytes other than 0 become 1.
///
/// # Errors
/// [`Error::Format`] for anything but a complete `.npy` file of a dtype that a tensor can have; bytes after the
/// elements count as malformed.
pub fn read(path_label: &str, bytes: &[u8]) -> Result<RawTensor> {
    let (_, end) = header_range(path_label, bytes)?;
    let header = parse_header(path_label, bytes)?;
    let payload = bytes.get(end..).unwrap_or_default();
    check_payload(path_label, &header, payload.len())?;
    decode(path_label, header, payload.to_vec())
}

/// Where the header's text begins and ends, from the first [`PREAMBLE`] bytes.
pub(crate) fn header_range(label: &str, bytes: &[u8]) -> Result<(usize, usize)> {
    if !bytes.starts_with(MAGIC) {
        let head = bytes.get(..MAGIC.len()).unwrap_or(bytes);
        return Err(malformed(label, format!("the first bytes '{}'", excerpt(head)), "the magic '\\x93NUMPY'"));
    }
    let short = || malformed(label, format!("a file that ends after {} bytes", bytes.len()), "a version and a header length");
    let (start, len) = match bytes.get(6..) {
        Some([1, 0, a, b, ..]) => (10_usize, usize::from(u16::from_le_bytes([*a, *b]))),
        Some([2 | 3, 0, a, b, c, d, ..]) => {
            let len = u32::from_le_bytes([*a, *b, *c, *d]);
            (12, usize::try_from(len).map_err(|_| malformed(label, format!("a header of {len} bytes"), "less"))?)
        }
        Some([1..=3, 0, ..]) => return Err(short()),
        Some([major, minor, ..]) => {
            return Err(malformed(label, format!("version {major}.{minor}"), "version 1.0, 2.0 or 3.0"));
        }
        _ => return Err(short()),
    };
    let end = start.checked_add(len).ok_or_else(|| malformed(label, format!("a header of {len} bytes"), "less"))?;
    Ok((start, end))
}

/// Parses the header at the start of `bytes`, which need not hold the payload.
pub(crate) fn parse_header(label: &str, bytes: &[u8]) -> Result<Header> {
    let (start, end) = header_range(label, bytes)?;
    let text = bytes.get(start..end).ok_or_else(|| {
        let rest = bytes.len().saturating_sub(start);
        malformed(label, format!("a header length of {} bytes where {rest} are left", end - start), "a header within the file")
    })?;
    Literal { label, text, at: 0 }.header()
}

/// Refuses a payload whose length isn't what the header says.
pub(crate) fn check_payload(label: &str, header: &Header, found: usize) -> Result<()> {
    if found == header.payload {
        return Ok(());
    }
    let want = format!("{} bytes for shape {} of {}", header.payload, shape_text(&header.shape), header.dtype);
    Err(malformed(label, format!("{found} bytes of elements"), want))
}

/// The tensor of a header and its payload.
pub(crate) fn decode(label: &str, header: Header, mut payload: Vec<u8>) -> Result<RawTensor> {
    check_payload(label, &header, payload.len())?;
    let Header { dtype, big_endian, fortran, shape, .. } = header;
    let scalar = dtype.real().size_bytes();
    if big_endian && scalar > 1 {
        for number in payload.chunks_exact_mut(scalar) {
            number.reverse();
        }
    }
    if dtype == DType::Bool {
        normalise_bools(&mut payload);
    }
    let bytes =
        if fortran && shape.iter().filter(|n| **n != 1).count() > 1 { to_row_major(&payload, &shape, dtype.size_bytes()) } else { payload };
    Ok(RawTensor { dtype, shape, bytes })
}

/// Copies column-major elements into row-major order. `bytes` has the length of `shape`.
fn to_row_major(bytes: &[u8], shape: &[usize], size: usize) -> Vec<u8> {
    let mut strides = Vec::with_capacity(shape.len());
    let mut stride = size;
    for n in shape {
        strides.push(stride);
        // Wraps only where an axis has length 0, and then no element is copied.
        stride = stride.wrapping_mul(*n);
    }
    let mut out = Vec::with_capacity(bytes.len());
    let mut index = vec![0_usize; shape.len()];
    let mut offset = 0_usize;
    while out.len() < bytes.len() {
        out.extend_from_slice(bytes.get(offset..offset + size).unwrap_or_default());
        for ((i, n), stride) in index.iter_mut().zip(shape).zip(&strides).rev() {
            *i += 1;
            offset += stride;
            if *i < *n {
                break;
            }
            offset -= *i * stride;
            *i = 0;
        }
    }
    out
}

/// The parser of a header: `{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }` and white space.
struct Literal<'a> {
    label: &'a str,
    text: &'a [u8],
    at: usize,
}

impl<'a> Literal<'a> {
    fn rest(&self) -> &'a [u8] {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn fault(&self, want: impl Into<String>) -> Error {
        let got = match self.rest() {
            [] => "the end of the header".to_string(),
            rest => format!("'{}' at byte {} of the header", excerpt(rest), self.at),
        };
        malformed(self.label, got, want)
    }

    fn skip_space(&mut self) {
        let spaces = self.rest().iter().take_while(|b| matches!(b, b' ' | b'\t' | b'\n' | b'\r' | 0x0c)).count();
        self.at += spaces;
    }

    /// Takes `token` after white space, where it stands there.
    fn take(&mut self, token: &[u8]) -> bool {
        self.skip_space();
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn need(&mut self, token: &'static str) -> Result<()> {
        if self.take(token.as_bytes()) { Ok(()) } else { Err(self.fault(format!("'{token}'"))) }
    }

    /// A string literal without escapes; `None` where none begins here.
    fn string(&mut self) -> Result<Option<&'a [u8]>> {
        self.skip_space();
        let (quote, body) = match self.rest() {
            [quote @ (b'\'' | b'"'), body @ ..] => (*quote, body),
            _ => return Ok(None),
        };
        match body.iter().position(|b| *b == quote || matches!(b, b'\\' | b'\n')) {
            Some(end) if body.get(end) == Some(&quote) => {
                self.at += end + 2;
                Ok(body.get(..end))
            }
            _ => Err(self.fault("a closed string without escapes")),
        }
    }

    fn header(mut self) -> Result<Header> {
        let (mut descr, mut fortran, mut shape) = (None, None, None);
        self.need("{")?;
        while !self.take(b"}") {
            let at = self.at;
            let key = self.string()?.ok_or_else(|| self.fault("a key in quotes, or '}'"))?;
            self.need(":")?;
            let again = match key {
                b"descr" => descr.replace(self.descr()?).is_some(),
                b"fortran_order" => fortran.replace(self.truth()?).is_some(),
                b"shape" => shape.replace(self.shape()?).is_some(),
                _ => {
                    self.at = at;
                    return Err(self.fault("the keys descr, fortran_order and shape"));
                }
            };
            if again {
                self.at = at;
                return Err(self.fault("each key once"));
            }
            if !self.take(b",") {
                self.need("}")?;
                break;
            }
        }
        self.skip_space();
        if !self.rest().is_empty() {
            return Err(self.fault("nothing but white space after the dict"));
        }
        let missing = |key| malformed(self.label, format!("a header without '{key}'"), "the keys descr, fortran_order and shape");
        let (dtype, big_endian) = descr.ok_or_else(|| missing("descr"))?;
        let fortran = fortran.ok_or_else(|| missing("fortran_order"))?;
        let shape = shape.ok_or_else(|| missing("shape"))?;
        let payload = byte_len(dtype, &shape)
            .ok_or_else(|| malformed(self.label, format!("shape {} of {dtype}", shape_text(&shape)), "a size that 64-bit offsets reach"))?;
        Ok(Header { dtype, big_endian, fortran, shape, payload })
    }

    fn truth(&mut self) -> Result<bool> {
        if self.take(b"True") {
            Ok(true)
        } else if self.take(b"False") {
            Ok(false)
        } else {
            Err(self.fault("True or False"))
        }
    }

    fn descr(&mut self) -> Result<(DType, bool)> {
        let Some(descr) = self.string()? else {
            return Err(self.fault(DESCRS));
        };
        let (big_endian, name) = match descr {
            [b'>', name @ ..] => (true, name),
            [b'<' | b'=' | b'|', name @ ..] => (false, name),
            name => (false, name),
        };
        let dtype = match name {
            b"?" | b"b1" => DType::Bool,
            b"u1" => DType::U8,
            b"i1" => DType::I8,
            b"i2" => DType::I16,
            b"i4" => DType::I32,
            b"i8" => DType::I64,
            b"f2" => DType::F16,
            b"f4" => DType::F32,
            b"f8" => DType::F64,
            b"c8" => DType::C64,
            b"c16" => DType::C128,
            _ => return Err(malformed(self.label, format!("descr '{}'", excerpt(descr)), DESCRS)),
        };
        Ok((dtype, big_endian))
    }

    fn shape(&mut self) -> Result<Vec<usize>> {
        const TUPLE: &str = "a tuple of lengths such as (2, 3), (2,) or ()";
        if !self.take(b"(") {
            return Err(self.fault(TUPLE));
        }
        let mut shape = Vec::new();
        while !self.take(b")") {
            let digits = self.rest().iter().take_while(|b| b.is_ascii_digit()).count();
            let text = self.rest().get(..digits).and_then(|d| std::str::from_utf8(d).ok()).unwrap_or_default();
            if digits == 0 {
                return Err(self.fault(TUPLE));
            }
            let len = text.parse::<usize>().map_err(|_| self.fault("lengths that fit 64 bits"))?;
            if shape.len() == MAX_RANK {
                return Err(self.fault(format!("at most {MAX_RANK} axes")));
            }
            shape.push(len);
            self.at += digits;
            // Python 2 wrote long integers with an L.
            if self.rest().first() == Some(&b'L') {
                self.at += 1;
            }
            if !self.take(b",") {
                // Python reads (3) as a number.
                if shape.len() == 1 {
                    return Err(self.fault("',' after the only length"));
                }
                self.need(")")?;
                break;
            }
        }
        Ok(shape)
    }
}

/// A whole `.npy` file of version 1.0, row-major and little-endian.
///
/// # Errors
/// [`Error::Unsupported`] for bfloat16, which NumPy has no descr for, and what [`RawTensor::checked_bytes`] refuses.
pub fn write(t: &RawTensor) -> Result<Vec<u8>> {
    let bytes = t.checked_bytes()?;
    let descr = match t.dtype {
        DType::Bool => "|b1",
        DType::U8 => "|u1",
        DType::I8 => "|i1",
        DType::I16 => "<i2",
        DType::I32 => "<i4",
        DType::I64 => "<i8",
        DType::F16 => "<f2",
        DType::F32 => "<f4",
        DType::F64 => "<f8",
        DType::C64 => "<c8",
        DType::C128 => "<c16",
        DType::Bf16 => {
            return Err(Error::Unsupported { op: "save".into(), dtype: t.dtype, backend: ".npy".into(), remedy: "save as .safetensors" });
        }
    };
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {}, }}", shape_text(&t.shape));
    // NumPy leaves room for the first length to grow to 21 digits, and 1 to 64 bytes up to a multiple of 64.
    if let Some(first) = t.shape.first() {
        header.extend(std::iter::repeat_n(' ', 21_usize.saturating_sub(first.to_string().len())));
    }
    let pad = 64 - (MAGIC.len() + 4 + header.len() + 1) % 64;
    header.extend(std::iter::repeat_n(' ', pad));
    header.push('\n');
    let len = u16::try_from(header.len())
        .map_err(|_| Error::invalid("save", "header", format_args!("{} bytes", header.len()), "use fewer axes"))?;
    let mut out = Vec::with_capacity(MAGIC.len() + 4 + header.len() + bytes.len());
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&[1, 0]);
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(&bytes);
    Ok(out)
}
