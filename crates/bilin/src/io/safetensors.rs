//! `.safetensors`: the length of a JSON header in 8 bytes, the header, and the elements of every tensor.

use std::collections::HashSet;

use bilin_core::{DType, Error, Result, shape_text};
use serde_json::{Map, Value, json};

use super::raw::{MAX_RANK, RawTensor, byte_len, excerpt, malformed, normalise_bools, repeated_name};

/// Most bytes of a header, as in the format's reference implementation.
const MAX_HEADER: u64 = 100_000_000;
const METADATA: &str = "__metadata__";

/// The format's names of the dtypes it shares with the engine.
const NAMES: [(DType, &str); 11] = [
    (DType::Bool, "BOOL"),
    (DType::U8, "U8"),
    (DType::I8, "I8"),
    (DType::I16, "I16"),
    (DType::I32, "I32"),
    (DType::I64, "I64"),
    (DType::F16, "F16"),
    (DType::Bf16, "BF16"),
    (DType::F32, "F32"),
    (DType::F64, "F64"),
    (DType::C64, "C64"),
];

struct Entry {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    begin: usize,
    end: usize,
}

/// Reads every tensor of a `.safetensors` file, in the order of their offsets. `label` names the file in errors.
///
/// `__metadata__` must map strings to strings and is otherwise ignored. `bool` bytes other than 0 become 1.
///
/// # Errors
/// [`Error::Format`] for a header that isn't JSON or is longer than 100 MB, a name given twice, a dtype that a tensor
/// can't have, and offsets that leave the file, overlap, leave holes or don't fit the shape.
pub fn read(label: &str, bytes: &[u8]) -> Result<Vec<(String, RawTensor)>> {
    let Some((len, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(malformed(label, format!("a file of {} bytes", bytes.len()), "a header length of 8 bytes"));
    };
    let len = u64::from_le_bytes(*len);
    if len > MAX_HEADER {
        return Err(malformed(label, format!("a header of {len} bytes"), "at most 100000000 bytes"));
    }
    let left = rest.len();
    let Some((text, buffer)) = usize::try_from(len).ok().and_then(|len| rest.split_at_checked(len)) else {
        return Err(malformed(label, format!("a header length of {len} bytes where {left} are left"), "a header within the file"));
    };
    let mut entries = parse_header(label, text)?;
    entries.sort_by_key(|e| (e.begin, e.end));
    let mut covered = 0;
    for e in &entries {
        if e.begin != covered {
            let fault = if e.begin < covered { "overlaps the tensor before it" } else { "leaves a hole before it" };
            let got = format!("'{}' at offset {}, which {fault}", e.name, e.begin);
            return Err(malformed(label, got, format!("offset {covered}")));
        }
        covered = e.end;
    }
    if covered != buffer.len() {
        return Err(malformed(label, format!("{} bytes of elements", buffer.len()), format!("{covered} bytes, as the offsets say")));
    }
    let mut tensors = Vec::with_capacity(entries.len());
    for e in entries {
        let mut bytes = buffer.get(e.begin..e.end).unwrap_or_default().to_vec();
        if e.dtype == DType::Bool {
            normalise_bools(&mut bytes);
        }
        tensors.push((e.name, RawTensor { dtype: e.dtype, shape: e.shape, bytes }));
    }
    Ok(tensors)
}

fn parse_header(label: &str, text: &[u8]) -> Result<Vec<Entry>> {
    if text.first() != Some(&b'{') {
        return Err(malformed(label, format!("a header beginning '{}'", excerpt(text)), "'{'"));
    }
    let value: Value = serde_json::from_slice(text).map_err(|e| malformed(label, format!("a header with: {e}"), "a JSON object"))?;
    let Value::Object(mut fields) = value else {
        return Err(malformed(label, "a header of another type", "a JSON object"));
    };
    let mut entries = Vec::with_capacity(fields.len());
    for name in top_names(label, text)? {
        // A name that stands in the text but not in the map can't be: both decode the same string.
        let Some(field) = fields.remove(&name) else { continue };
        if name == METADATA {
            match field {
                Value::Object(pairs) if pairs.values().all(Value::is_string) => continue,
                _ => return Err(malformed(label, "__metadata__ with other values", "strings only in __metadata__")),
            }
        }
        entries.push(entry(label, name, &field)?);
    }
    Ok(entries)
}

/// The top object's names in the order of the text, which is valid JSON; a name given twice in any object is refused.
fn top_names(label: &str, text: &[u8]) -> Result<Vec<String>> {
    let mut names = Vec::new();
    let mut scopes: Vec<HashSet<String>> = Vec::new();
    let mut string: &[u8] = &[];
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        let start = at;
        at += 1;
        match byte {
            b'"' => {
                while let Some(b) = text.get(at) {
                    at += if *b == b'\\' { 2 } else { 1 };
                    if *b == b'"' {
                        break;
                    }
                }
                string = text.get(start..at).unwrap_or_default();
            }
            b'{' => scopes.push(HashSet::new()),
            b'}' => {
                scopes.pop();
            }
            b':' => {
                let name: String =
                    serde_json::from_slice(string).map_err(|e| malformed(label, format!("a name with: {e}"), "a JSON string"))?;
                let top = scopes.len() == 1;
                if scopes.last_mut().is_some_and(|scope| !scope.insert(name.clone())) {
                    return Err(malformed(label, format!("the name '{}' twice", name.escape_debug()), "each name once"));
                }
                if top {
                    names.push(name);
                }
            }
            _ => {}
        }
    }
    Ok(names)
}

fn entry(label: &str, name: String, field: &Value) -> Result<Entry> {
    let fault = |got: String, want: &str| malformed(label, format!("'{}' with {got}", name.escape_debug()), want);
    let fields = field.as_object().filter(|o| o.keys().all(|k| matches!(k.as_str(), "dtype" | "shape" | "data_offsets")));
    let fields: &Map<String, Value> = fields.ok_or_else(|| fault("other fields".into(), "an object of dtype, shape and data_offsets"))?;
    let dtype = fields.get("dtype").and_then(Value::as_str).ok_or_else(|| fault("no dtype".into(), "a dtype"))?;
    let Some((dtype, _)) = NAMES.into_iter().find(|(_, n)| *n == dtype) else {
        let names: Vec<&str> = NAMES.iter().map(|(_, n)| *n).collect();
        return Err(fault(format!("dtype '{}'", excerpt(dtype.as_bytes())), &format!("one of {}", names.join(", "))));
    };
    let numbers = |key: &str| -> Option<Vec<usize>> {
        let list = fields.get(key)?.as_array()?;
        if list.len() > MAX_RANK {
            return None;
        }
        list.iter().map(|n| n.as_u64().and_then(|n| usize::try_from(n).ok())).collect()
    };
    let shape = numbers("shape").ok_or_else(|| fault("no valid shape".into(), &format!("a list of at most {MAX_RANK} lengths")))?;
    let (begin, end) = match numbers("data_offsets").as_deref() {
        Some([begin, end]) if begin <= end => (*begin, *end),
        _ => return Err(fault("no valid data_offsets".into(), "a list of begin and end")),
    };
    let want = byte_len(dtype, &shape)
        .ok_or_else(|| fault(format!("shape {} of {dtype}", shape_text(&shape)), "a size that 64-bit offsets reach"))?;
    if end - begin != want {
        let want = format!("{want} bytes for shape {} of {dtype}", shape_text(&shape));
        return Err(fault(format!("data_offsets of {} bytes", end - begin), &want));
    }
    Ok(Entry { name, dtype, shape, begin, end })
}

/// A whole `.safetensors` file.
///
/// Tensors of wider elements come first, and in the order given among equal widths, so that each begins at a multiple
/// of its element's size: readers that map the file need that.
///
/// # Errors
/// [`Error::Unsupported`] for complex128, [`Error::InvalidArgument`] for a name given twice or `__metadata__`, and what
/// [`RawTensor::checked_bytes`] refuses.
pub fn write(tensors: &[(String, RawTensor)]) -> Result<Vec<u8>> {
    if let Some(name) = repeated_name(tensors) {
        return Err(Error::invalid("save", "name", format_args!("'{name}' twice"), "give each tensor a name of its own"));
    }
    let mut order: Vec<&(String, RawTensor)> = tensors.iter().collect();
    order.sort_by_key(|(_, t)| std::cmp::Reverse(t.dtype.size_bytes()));
    let mut header = String::from("{");
    let mut payload = Vec::new();
    for (name, t) in order {
        if name == METADATA {
            return Err(Error::invalid("save", "name", METADATA, "the format keeps this name for itself; use another"));
        }
        let Some((_, dtype)) = NAMES.into_iter().find(|(d, _)| *d == t.dtype) else {
            return Err(Error::Unsupported { op: "save".into(), dtype: t.dtype, backend: ".safetensors".into(), remedy: "save as .npy" });
        };
        let begin = payload.len();
        payload.extend_from_slice(&t.checked_bytes()?);
        let field = json!({ "dtype": dtype, "shape": t.shape, "data_offsets": [begin, payload.len()] });
        if header.len() > 1 {
            header.push(',');
        }
        header.push_str(&format!("{}:{field}", Value::from(name.as_str())));
    }
    header.push('}');
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    if header.len() as u64 > MAX_HEADER {
        return Err(Error::invalid(
            "save",
            "header",
            format_args!("{} bytes", header.len()),
            "the format holds 100000000; use fewer or shorter names",
        ));
    }
    let mut out = Vec::with_capacity(8 + header.len() + payload.len());
    out.extend_from_slice(&(header.len() as u64).to_le_bytes());
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(&payload);
    Ok(out)
}
