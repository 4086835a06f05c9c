//! Numbers from a gzipped CSV file; every error is one line that names the file and the line.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use flate2::read::GzDecoder;

/// Unpacked files above this are refused.
const MOST_BYTES: u64 = 64 << 20;

/// The unpacked text of a file. Errors: no such file, damaged gzip, not UTF-8, over 64 MiB.
pub fn read_text(path: &Path) -> Result<String, String> {
    let named = |what: &dyn std::fmt::Display| format!("{}: {what}", path.display());
    let file = File::open(path).map_err(|e| named(&e))?;
    let mut text = String::new();
    GzDecoder::new(BufReader::new(file)).take(MOST_BYTES + 1).read_to_string(&mut text).map_err(|e| named(&format!("damaged: {e}")))?;
    if text.len() as u64 > MOST_BYTES { Err(named(&"more than 64 MiB unpacked")) } else { Ok(text) }
}

/// The rows after the first `skip` lines: `columns` finite numbers each. Errors: another count, a field that isn't such a
/// number, no rows.
pub fn rows(path: &Path, text: &str, skip: usize, columns: usize) -> Result<Vec<Vec<f64>>, String> {
    let mut out = Vec::new();
    for (i, line) in text.lines().enumerate().skip(skip) {
        let at = |what: String| format!("{}:{}: {what}", path.display(), i + 1);
        let fields: Vec<&str> = line.split(',').collect();
        if fields.len() != columns {
            return Err(at(format!("{} fields, want {columns}", fields.len())));
        }
        let row: Result<Vec<f64>, String> = fields
            .iter()
            .enumerate()
            .map(|(j, f)| {
                f.trim().parse().ok().filter(|x: &f64| x.is_finite()).ok_or_else(|| at(format!("field {}: {f:?} is no number", j + 1)))
            })
            .collect();
        out.push(row?);
    }
    if out.is_empty() { Err(format!("{}: no rows", path.display())) } else { Ok(out) }
}
