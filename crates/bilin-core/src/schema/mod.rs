//! What an op declares of itself, and the per-thread modes that ops run under.

pub mod modes;
pub mod profiler;

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use crate::shape::error::{Error, Result};

/// What autocast does with an op's operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum AmpPolicy {
    /// f16, bf16 and f32 operands are cast to the scope's dtype.
    Promote = 0,
    /// The scope is ignored.
    KeepInput = 1,
    /// f16 and bf16 operands are widened to f32.
    ForceFP32 = 2,
}

/// Number of operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Arity {
    /// Exactly this many.
    Exact(u8),
    /// This many or more.
    AtLeast(u8),
}

/// The declaration of an op: name, version and promises.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpSchema {
    /// Unique, lower case.
    pub name: &'static str,
    /// Raised when the meaning changes.
    pub version: u32,
    /// What autocast does.
    pub amp_policy: AmpPolicy,
    /// Equal bits for repeated runs, any number of threads, any alignment.
    pub deterministic: bool,
    /// Why not, or under what terms.
    pub determinism_note: &'static str,
    /// Number of operands.
    pub arity: Arity,
}

impl OpSchema {
    /// Version 1 of a deterministic op.
    pub const fn schema_v1(name: &'static str, amp_policy: AmpPolicy, arity: Arity) -> OpSchema {
        OpSchema { name, version: 1, amp_policy, deterministic: true, determinism_note: "", arity }
    }

    /// `MatmulBackward` for `matmul`: the name of its recorded node.
    pub fn node_name(&self) -> &'static str {
        node_name(self.name)
    }
}

/// One text an op, kept for the life of the process.
fn node_name(op: &'static str) -> &'static str {
    static NAMES: RwLock<BTreeMap<&'static str, &'static str>> = RwLock::new(BTreeMap::new());
    if let Some(name) = NAMES.read().unwrap_or_else(PoisonError::into_inner).get(op) {
        return name;
    }
    let mut out = String::with_capacity(op.len() + 8);
    for word in op.split('_').filter(|w| !w.is_empty()) {
        let mut chars = word.chars();
        out.extend(chars.next().map(|c| c.to_ascii_uppercase()));
        out.push_str(chars.as_str());
    }
    out.push_str("Backward");
    NAMES.write().unwrap_or_else(PoisonError::into_inner).entry(op).or_insert_with(|| Box::leak(out.into_boxed_str()))
}

/// FNV-1a-64 over name, NUL, version (4 bytes little-endian), policy byte, deterministic byte.
///
/// ```
/// use bilin_core::{op_lookup, schema_hash};
/// let schema = op_lookup("matmul").unwrap();
/// assert_eq!(schema_hash(schema), schema_hash(&schema.clone()));
/// ```
pub fn schema_hash(schema: &OpSchema) -> u64 {
    let tail = [schema.amp_policy as u8, u8::from(schema.deterministic)];
    let bytes = schema.name.bytes().chain([0]).chain(schema.version.to_le_bytes()).chain(tail);
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// The schema under which a custom function is recorded, one a name, kept for the life of the process.
pub(crate) fn of_function(name: &str) -> &'static OpSchema {
    static NAMES: RwLock<BTreeMap<&'static str, &'static OpSchema>> = RwLock::new(BTreeMap::new());
    if let Some(schema) = NAMES.read().unwrap_or_else(PoisonError::into_inner).get(name) {
        return schema;
    }
    let mut names = NAMES.write().unwrap_or_else(PoisonError::into_inner);
    let name: &'static str = Box::leak(name.into());
    names.entry(name).or_insert_with(|| Box::leak(Box::new(OpSchema::schema_v1(name, AmpPolicy::KeepInput, Arity::AtLeast(0)))))
}

static ADDED: RwLock<Vec<&'static OpSchema>> = RwLock::new(Vec::new());

/// Schemas of ops that other crates added.
pub fn added() -> Vec<&'static OpSchema> {
    ADDED.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Adds the schema of an op from outside; `taken` are the names of the built-in ones.
pub fn add(schema: &'static OpSchema, taken: impl Fn(&str) -> bool) -> Result<()> {
    let mut added = ADDED.write().unwrap_or_else(PoisonError::into_inner);
    if taken(schema.name) || added.iter().any(|s| s.name == schema.name) {
        return Err(Error::invalid("op_register", "name", schema.name, "it is taken; choose another"));
    }
    added.push(schema);
    Ok(())
}
