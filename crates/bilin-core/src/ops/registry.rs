//! Every op by name: its schema, a call by attributes, and samples that tests and self-tests run.

use std::collections::BTreeMap;

use crate::schema::{self, OpSchema};
use crate::shape::dtype::DType;
use crate::shape::error::{Error, Result};
use crate::tape::Tensor;

/// Attributes of a call by name, as text: `axis=-1`, `axes=0,1`, `keepdim=true`.
#[derive(Debug, Clone, Default)]
pub struct Attrs {
    op: &'static str,
    values: BTreeMap<String, String>,
}

impl Attrs {
    /// Parses `name=value` pairs separated by `;`.
    pub fn parse(op: &'static str, text: &str) -> Result<Attrs> {
        let mut values = BTreeMap::new();
        for pair in text.split(';').map(str::trim).filter(|p| !p.is_empty()) {
            let (name, value) = pair.split_once('=').ok_or_else(|| Error::invalid(op, "attributes", pair, "want name=value"))?;
            values.insert(name.trim().to_owned(), value.trim().to_owned());
        }
        Ok(Attrs { op, values })
    }

    /// From names and texts.
    pub fn from_pairs<'a>(op: &'static str, pairs: impl IntoIterator<Item = (&'a str, String)>) -> Attrs {
        Attrs { op, values: pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect() }
    }

    fn wrong(&self, name: &'static str, want: &str) -> Error {
        let got = self.values.get(name).map_or("missing", String::as_str);
        Error::invalid(self.op, name, got, want)
    }

    /// The text of an attribute, where it is given.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// A required text.
    pub fn required(&self, name: &'static str) -> Result<&str> {
        self.text(name).ok_or_else(|| self.wrong(name, "it is required"))
    }

    /// A list of whole numbers; empty where it isn't given.
    pub fn ints(&self, name: &'static str) -> Result<Vec<isize>> {
        let text = self.text(name).unwrap_or("");
        let parts = text.split(',').map(str::trim).filter(|p| !p.is_empty());
        parts.map(|p| p.parse().map_err(|_| self.wrong(name, "want whole numbers separated by commas"))).collect()
    }

    /// The same for lengths.
    pub fn lens(&self, name: &'static str) -> Result<Vec<usize>> {
        self.ints(name)?.into_iter().map(|i| usize::try_from(i).map_err(|_| self.wrong(name, "want lengths"))).collect()
    }

    /// A whole number, or `default` where it isn't given.
    pub fn int(&self, name: &'static str, default: isize) -> Result<isize> {
        match self.text(name) {
            None => Ok(default),
            Some(text) => text.parse().map_err(|_| self.wrong(name, "want a whole number")),
        }
    }

    /// A number, or `default` where it isn't given.
    pub fn number(&self, name: &'static str, default: f64) -> Result<f64> {
        match self.text(name) {
            None => Ok(default),
            Some(text) => text.parse().map_err(|_| self.wrong(name, "want a number")),
        }
    }

    /// A truth value, false where it isn't given.
    pub fn flag(&self, name: &'static str) -> Result<bool> {
        match self.text(name) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(self.wrong(name, "want true or false")),
        }
    }

    /// A required dtype.
    pub fn dtype(&self, name: &'static str) -> Result<DType> {
        self.text(name).and_then(DType::parse).ok_or_else(|| self.wrong(name, "want a dtype such as float32"))
    }
}

/// What the operands of a sample may hold, so that the op is defined and smooth there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// Any numbers, integers and bool included.
    Any,
    /// Any floating or complex numbers.
    Inexact,
    /// Real numbers without ties, away from 0.
    Distinct,
    /// Positive real numbers.
    Positive,
    /// The last operand holds positions, below the length named by the attribute `below`; the others real numbers.
    Indexed,
    /// The first operand is bool, the others any numbers.
    Masked,
}

/// One call of an op: shapes of its operands and attributes.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Shapes of the operands.
    pub shapes: &'static [&'static [usize]],
    /// Attributes for [`Attrs::parse`].
    pub attrs: &'static str,
}

impl Sample {
    /// From its parts.
    pub const fn new(shapes: &'static [&'static [usize]], attrs: &'static str) -> Sample {
        Sample { shapes, attrs }
    }
}

/// An op as the registry knows it.
#[derive(Debug)]
pub struct OpEntry {
    /// Name, version, promises.
    pub schema: &'static OpSchema,
    /// Names of the attributes.
    pub params: &'static [&'static str],
    /// The call by attributes.
    pub call: fn(&[Tensor], &Attrs) -> Result<Tensor>,
    /// Calls that cover it.
    pub samples: &'static [Sample],
    /// What operands of the samples may hold.
    pub values: Values,
}

/// All built-in ops, in the order of their files.
pub fn entries() -> impl Iterator<Item = &'static OpEntry> {
    super::ENTRIES.iter().flat_map(|list| list.iter())
}

/// The schema of an op by name.
pub fn op_lookup(name: &str) -> Option<&'static OpSchema> {
    let built_in = entries().map(|e| e.schema).find(|s| s.name == name);
    built_in.or_else(|| schema::added().into_iter().find(|s| s.name == name))
}

/// All schemas, by name.
pub fn op_registry_all() -> Vec<&'static OpSchema> {
    let mut all: Vec<&'static OpSchema> = entries().map(|e| e.schema).chain(schema::added()).collect();
    all.sort_by_key(|s| s.name);
    all
}

/// Adds the schema of an op of another crate; a name that is taken is an error.
pub fn op_register(schema: &'static OpSchema) -> Result<()> {
    schema::add(schema, |name| entries().any(|e| e.schema.name == name))
}

/// Calls a built-in op by name, with operands and attributes.
pub fn op_call(name: &str, operands: &[Tensor], attrs: &str) -> Result<Tensor> {
    let Some(entry) = entries().find(|e| e.schema.name == name) else {
        return Err(Error::invalid("op_call", "name", name, "list the names with op_registry_all"));
    };
    let (fits, want) = match entry.schema.arity {
        schema::Arity::Exact(n) => (operands.len() == usize::from(n), format!("want {n}")),
        schema::Arity::AtLeast(n) => (operands.len() >= usize::from(n), format!("want at least {n}")),
    };
    if !fits {
        return Err(Error::invalid(entry.schema.name, "operands", operands.len(), want));
    }
    (entry.call)(operands, &Attrs::parse(entry.schema.name, attrs)?)
}
