//! NumPy's `.npz`: a zip archive with one `.npy` file for each tensor.
//!
//! Entries are written stored, with the zip epoch as their time, so equal tensors give equal files. Stored and
//! deflated entries are read.

use std::io::{Cursor, Read, Write};

use bilin_core::{Error, Result};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipArchive, ZipWriter};

use super::npy;
use super::raw::{RawTensor, malformed, repeated_name};

/// The most bytes that one byte of deflate can stand for.
const MAX_DEFLATE_RATIO: u64 = 1032;

/// Reads every tensor of a `.npz` file, in the order of its directory. `label` names the file in errors.
///
/// Nothing is allocated on the word of the directory: an entry's header is read first, the size that follows from it
/// must be the declared one, and the buffer grows as bytes arrive. Archives whose entries overlap are refused.
/// Where two entries have one name, the later is read, as NumPy does.
///
/// # Errors
/// [`Error::Format`] for a broken archive, an entry that isn't `.npy`, encryption, and compression other than deflate.
pub fn read(label: &str, bytes: &[u8]) -> Result<Vec<(String, RawTensor)>> {
    let broken = |e: zip::result::ZipError| malformed(label, e.to_string(), "a zip archive of stored or deflated .npy entries");
    let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(broken)?;
    let mut tensors = Vec::new();
    let mut packed = 0_u64;
    for i in 0..archive.len() {
        let entry = archive.by_index(i).map_err(broken)?;
        packed = packed.saturating_add(entry.compressed_size());
        if packed > bytes.len() as u64 {
            return Err(malformed(label, format!("entries of more than {} bytes in all", bytes.len()), "entries within the file"));
        }
        let Some(name) = entry.name().strip_suffix(".npy").map(str::to_string) else {
            return Err(malformed(label, format!("entry '{}'", entry.name().escape_debug()), "entries whose names end in .npy"));
        };
        let entry_label = format!("{label}:{name}");
        let (declared, stored) = (entry.size(), entry.compressed_size());
        if declared > stored.saturating_mul(MAX_DEFLATE_RATIO) {
            return Err(malformed(&entry_label, format!("{declared} bytes declared for {stored} stored"), "a size that deflate can reach"));
        }
        let tensor = read_entry(&entry_label, entry, declared)?;
        tensors.push((name, tensor));
    }
    Ok(tensors)
}

/// Reads one entry of `declared` bytes: preamble, header, then exactly the elements.
fn read_entry(label: &str, mut entry: impl Read, declared: u64) -> Result<RawTensor> {
    let mut head = Vec::new();
    take(label, &mut entry, npy::PREAMBLE as u64, &mut head)?;
    let (_, end) = npy::header_range(label, &head)?;
    if end as u64 > declared {
        return Err(malformed(label, format!("a header that ends at byte {end} of {declared}"), "a header within the entry"));
    }
    take(label, &mut entry, end.saturating_sub(head.len()) as u64, &mut head)?;
    let header = npy::parse_header(label, &head)?;
    // A version 1.0 header shorter than two bytes can't parse, so the preamble never holds payload.
    let rest = declared.saturating_sub(end as u64);
    npy::check_payload(label, &header, usize::try_from(rest).unwrap_or(usize::MAX))?;
    let mut payload = Vec::new();
    take(label, &mut entry, rest.saturating_add(1), &mut payload)?;
    npy::decode(label, header, payload)
}

fn take(label: &str, from: &mut impl Read, most: u64, to: &mut Vec<u8>) -> Result<()> {
    from.take(most).read_to_end(to).map_err(|e| malformed(label, e.to_string(), "an entry whose bytes and checksum are whole"))?;
    Ok(())
}

/// A whole `.npz` file, entries stored in the order given.
///
/// # Errors
/// What [`npy::write`] refuses, and [`Error::InvalidArgument`] for a name given twice or one that zip can't hold.
pub fn write(tensors: &[(String, RawTensor)]) -> Result<Vec<u8>> {
    if let Some(name) = repeated_name(tensors) {
        return Err(Error::invalid("save", "name", format_args!("'{name}' twice"), "give each tensor a name of its own"));
    }
    let failed = |e: &dyn std::fmt::Display| Error::Io { op: "save".into(), path: ".npz".into(), message: e.to_string() };
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, tensor) in tensors {
        if name.len() > usize::from(u16::MAX) - 4 {
            return Err(Error::invalid("save", "name", format_args!("{} bytes long", name.len()), "zip holds names of up to 65531 bytes"));
        }
        let npy = npy::write(tensor)?;
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .last_modified_time(DateTime::default())
            .large_file(npy.len() as u64 >= u64::from(u32::MAX));
        zip.start_file(format!("{name}.npy"), options).map_err(|e| failed(&e))?;
        zip.write_all(&npy).map_err(|e| failed(&e))?;
    }
    Ok(zip.finish().map_err(|e| failed(&e))?.into_inner())
}
