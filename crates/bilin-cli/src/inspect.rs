//! `ops`, `devices` and `info`.

use std::path::Path;

use bilin::io::load_raw;
use bilin::prelude::*;
use bilin::{AmpPolicy, Arity, op_registry_all, schema_hash, shape_text};
use serde_json::{Value, json};

use crate::{Failure, Streams};

type Done = std::result::Result<(), Failure>;

fn policy(policy: AmpPolicy) -> &'static str {
    match policy {
        AmpPolicy::Promote => "Promote",
        AmpPolicy::KeepInput => "KeepInput",
        AmpPolicy::ForceFP32 => "ForceFP32",
    }
}

fn arity(arity: Arity) -> String {
    match arity {
        Arity::Exact(n) => n.to_string(),
        Arity::AtLeast(n) => format!("{n}+"),
    }
}

/// The registry, or the ops of these names, one a line.
pub(crate) fn ops(names: &[&str], json: bool, streams: &mut Streams<'_>) -> Done {
    let mut all = op_registry_all();
    all.retain(|s| names.is_empty() || names.contains(&s.name));
    if json {
        let one = |s: &&'static bilin::OpSchema| {
            json!({
                "name": s.name,
                "version": s.version,
                "arity": arity(s.arity),
                "amp_policy": policy(s.amp_policy),
                "deterministic": s.deterministic,
                "determinism_note": s.determinism_note,
                // As text: a JSON number of 64 bits isn't exact everywhere.
                "hash": format!("{:016x}", schema_hash(s)),
            })
        };
        let ops: Vec<Value> = all.iter().map(one).collect();
        return streams.line(format_args!("{}", json!({ "ops": ops })));
    }
    streams.line(format_args!("{:<18}{:>7}  {:<8}  {:<9}  {:<13}  hash", "name", "version", "operands", "amp", "deterministic"))?;
    for s in all {
        let promise = if s.deterministic { "yes" } else { "no" };
        streams.line(format_args!(
            "{:<18}{:>7}  {:<8}  {:<9}  {promise:<13}  {:016x}",
            s.name,
            s.version,
            arity(s.arity),
            policy(s.amp_policy),
            schema_hash(s)
        ))?;
    }
    Ok(())
}

/// What can compute here.
pub(crate) fn devices(json: bool, streams: &mut Streams<'_>) -> Done {
    let all = Device::available();
    if json {
        let one = |d: &bilin::DeviceInfo| {
            let dtypes: Vec<&str> = d.dtypes.iter().map(|d| d.name()).collect();
            let limits: serde_json::Map<String, Value> = d.limits.iter().map(|&(name, most)| (name.to_owned(), most.into())).collect();
            json!({ "name": d.name, "backend": d.backend, "dtypes": dtypes, "kernels": d.kernels, "adapter": d.adapter, "limits": limits, "absent": d.absent })
        };
        let devices: Vec<Value> = all.iter().map(one).collect();
        return streams.line(format_args!("{}", json!({ "devices": devices })));
    }
    for d in all {
        match &d.absent {
            Some(why) => streams.line(format_args!("{:<12}absent: {why}", d.name))?,
            None => {
                let dtypes: Vec<&str> = d.dtypes.iter().map(|d| d.name()).collect();
                streams.line(format_args!("{:<12}backend {}, kernels {}", d.name, d.backend, d.kernels.join(" ")))?;
                streams.line(format_args!("{:<12}dtypes {}", "", dtypes.join(" ")))?;
                if let Some(adapter) = &d.adapter {
                    let limits: Vec<String> = d.limits.iter().map(|(name, most)| format!("{name} {most}")).collect();
                    streams.line(format_args!("{:<12}adapter {adapter}, at most: {}", "", limits.join(", ")))?;
                }
            }
        }
    }
    Ok(())
}

/// What a file holds, one tensor a line.
pub(crate) fn info(file: &Path, json: bool, streams: &mut Streams<'_>) -> Done {
    let all = load_raw(file)?;
    if json {
        let one = |(name, t): &(Option<String>, bilin::io::RawTensor)| json!({ "name": name, "dtype": t.dtype.name(), "shape": t.shape, "bytes": t.bytes.len() });
        let tensors: Vec<Value> = all.iter().map(one).collect();
        return streams.line(format_args!("{}", json!({ "file": file.display().to_string(), "tensors": tensors })));
    }
    // A name may hold anything, also what a terminal would obey.
    let names: Vec<String> = all.iter().map(|(name, _)| name.as_deref().unwrap_or("").escape_debug().to_string()).collect();
    let width = names.iter().map(|n| n.chars().count()).max().unwrap_or(0);
    for (name, (_, t)) in names.iter().zip(&all) {
        let gap = if width > 0 { "  " } else { "" };
        streams.line(format_args!("{name:<width$}{gap}{:<10}  {}  {} bytes", t.dtype.name(), shape_text(&t.shape), t.bytes.len()))?;
    }
    Ok(())
}
