//! The one error type. Variants carry facts; the text is built from them as `op: fact, remedy`.

use std::borrow::Cow;
use std::fmt;

use super::dtype::DType;

/// The name of an op as errors, schemas and profiles print it.
pub type OpName = Cow<'static, str>;

/// `Result` with the engine's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// What is wrong with the shapes given to an op.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShapeFault {
    /// An operand has a rank the op doesn't take.
    Rank {
        /// Position of the operand.
        operand: usize,
        /// The ranks it takes, in words.
        want: &'static str,
        /// What to do instead.
        remedy: &'static str,
    },
    /// Two axes that must agree have different lengths.
    Lengths {
        /// Axis of the first shape.
        lhs_axis: usize,
        /// Its length.
        lhs_len: usize,
        /// Axis of the second shape.
        rhs_axis: usize,
        /// Its length.
        rhs_len: usize,
        /// What to do.
        remedy: &'static str,
    },
    /// A subscript label has different lengths in two terms of an einsum.
    Label {
        /// The label as the user wrote it.
        label: char,
        /// (term, length) where it was seen first.
        first: (usize, usize),
        /// (term, length) where it differs.
        second: (usize, usize),
    },
    /// The numbers of axes differ from what the arguments say.
    Count {
        /// What was wanted, in words.
        want: String,
        /// What to do.
        remedy: &'static str,
    },
}

/// What an op or a reader refuses, with the facts.
#[non_exhaustive]
#[derive(Debug, Clone)]
pub enum Error {
    /// Ranks or lengths don't fit.
    ShapeMismatch {
        /// The op.
        op: OpName,
        /// The operands' shapes, in order.
        shapes: Vec<Vec<usize>>,
        /// Which rule they break.
        fault: ShapeFault,
    },
    /// Dtypes don't fit together, or the op isn't defined for them.
    DtypeMismatch {
        /// The op.
        op: OpName,
        /// The operands' dtypes after mixed-precision rules.
        dtypes: Vec<DType>,
        /// What the op takes and what to do.
        remedy: &'static str,
    },
    /// Operands live on different devices.
    DeviceMismatch {
        /// The op.
        op: OpName,
        /// The operands' devices.
        devices: Vec<String>,
    },
    /// A saved operand was changed in place before its gradient was taken.
    VersionMismatch {
        /// The op that saved it.
        op: OpName,
        /// Position of the operand; the outputs follow the operands.
        operand: usize,
        /// Its shape.
        shape: Vec<usize>,
        /// Version of the storage when it was saved.
        saved: u64,
        /// Version now.
        current: u64,
    },
    /// Backward went through this op before and its saved values are released.
    GraphFreed {
        /// The op.
        op: OpName,
    },
    /// A derivative was asked for that has no rule.
    NotDifferentiable {
        /// The op, or the custom function.
        op: OpName,
        /// What has no rule, in words.
        what: String,
        /// What to do.
        remedy: &'static str,
    },
    /// Under `detect_anomaly`: the first gradient with NaN.
    NanGradient {
        /// The op whose gradient it is.
        op: OpName,
        /// The operand whose gradient it is; `None` where it was in the gradient that arrived, from the caller or a hook.
        operand: Option<usize>,
        /// Shapes of the op's operands.
        shapes: Vec<Vec<usize>>,
    },
    /// The op can't keep the promise of equal bits that the caller asked for.
    NonDeterministic {
        /// The op.
        op: OpName,
        /// Why.
        note: &'static str,
    },
    /// An allocation failed or would pass the limit.
    OutOfMemory {
        /// The device.
        device: String,
        /// Bytes asked for.
        requested_bytes: u64,
        /// Bytes in use.
        current_bytes: u64,
        /// Most bytes ever in use.
        peak_bytes: u64,
        /// The soft limit, where one is set.
        limit_bytes: Option<u64>,
    },
    /// A size overflows 64-bit arithmetic.
    TooLarge {
        /// The op.
        op: OpName,
        /// The shape asked for.
        shape: Vec<usize>,
        /// The element type.
        dtype: DType,
    },
    /// The backend, or the op, doesn't have this.
    Unsupported {
        /// The op.
        op: OpName,
        /// The dtype in question.
        dtype: DType,
        /// The backend or file format.
        backend: String,
        /// What to do.
        remedy: &'static str,
    },
    /// An argument is outside its domain.
    InvalidArgument {
        /// The op or function.
        op: OpName,
        /// The argument.
        argument: &'static str,
        /// What was given.
        got: String,
        /// What is taken, or what to do.
        want: String,
    },
    /// No kernel of this name.
    KernelNotFound {
        /// The kernel.
        kernel: String,
        /// Where it was looked for.
        backend: String,
    },
    /// A shader didn't compile.
    ShaderCompilation {
        /// The kernel.
        kernel: String,
        /// The compiler's message.
        message: String,
    },
    /// The device went away.
    DeviceLost {
        /// The device.
        device: String,
        /// What the driver said.
        message: String,
    },
    /// A file couldn't be read or written.
    Io {
        /// The function.
        op: OpName,
        /// The path, as given.
        path: String,
        /// The system's message.
        message: String,
    },
    /// A file isn't what its name or header says.
    Format {
        /// The function.
        op: OpName,
        /// The path, or the kind of data.
        path: String,
        /// What was found.
        got: String,
        /// What was wanted.
        want: String,
    },
}

struct List<'a, T>(&'a [T]);
impl<T: fmt::Display> fmt::Display for List<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, x) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{x}")?;
        }
        Ok(())
    }
}

/// Shape as text: `(2, 3)`, `(2,)`, `()`.
pub fn shape_text(shape: &[usize]) -> String {
    match shape {
        [one] => format!("({one},)"),
        _ => format!("({})", List(shape)),
    }
}

fn shapes_text(shapes: &[Vec<usize>]) -> String {
    let texts: Vec<String> = shapes.iter().map(|s| shape_text(s)).collect();
    texts.join(" and ")
}

impl Error {
    /// The name users look for, such as `ShapeMismatch`.
    pub fn kind(&self) -> &'static str {
        match self {
            Error::ShapeMismatch { .. } => "ShapeMismatch",
            Error::DtypeMismatch { .. } => "DtypeMismatch",
            Error::DeviceMismatch { .. } => "DeviceMismatch",
            Error::VersionMismatch { .. } => "VersionMismatch",
            Error::GraphFreed { .. } => "GraphFreed",
            Error::NotDifferentiable { .. } => "NotDifferentiable",
            Error::NanGradient { .. } => "NanGradient",
            Error::NonDeterministic { .. } => "NonDeterministic",
            Error::OutOfMemory { .. } => "OutOfMemory",
            Error::TooLarge { .. } => "TooLarge",
            Error::Unsupported { .. } => "Unsupported",
            Error::InvalidArgument { .. } => "InvalidArgument",
            Error::KernelNotFound { .. } => "KernelNotFound",
            Error::ShaderCompilation { .. } => "ShaderCompilation",
            Error::DeviceLost { .. } => "DeviceLost",
            Error::Io { .. } => "Io",
            Error::Format { .. } => "Format",
        }
    }

    /// An [`Error::InvalidArgument`] from its facts.
    #[cold]
    pub fn invalid(op: impl Into<OpName>, argument: &'static str, got: impl fmt::Display, want: impl Into<String>) -> Self {
        Error::InvalidArgument { op: op.into(), argument, got: got.to_string(), want: want.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::ShapeMismatch { op, shapes, fault } => {
                let all = shapes_text(shapes);
                match fault {
                    ShapeFault::Rank { operand, want, remedy } => {
                        let rank = shapes.get(*operand).map_or(0, Vec::len);
                        write!(f, "{op}: operand {operand} has rank {rank}, want {want}, shapes {all}; {remedy}")
                    }
                    ShapeFault::Lengths { lhs_axis, lhs_len, rhs_axis, rhs_len, remedy } => write!(
                        f,
                        "{op}: shapes {all} don't fit: axis {lhs_axis} of operand 0 has length {lhs_len}, axis {rhs_axis} of operand 1 has length {rhs_len}; {remedy}"
                    ),
                    ShapeFault::Label { label, first, second } => write!(
                        f,
                        "{op}: shapes {all} don't fit: {label}={} in term {}, {} in term {}; lengths of one label must be equal, or 1",
                        first.1, first.0, second.1, second.0
                    ),
                    ShapeFault::Count { want, remedy } => write!(f, "{op}: shapes {all}: want {want}; {remedy}"),
                }
            }
            Error::DtypeMismatch { op, dtypes, remedy } => {
                write!(f, "{op}: dtypes ({}) don't fit; {remedy}", List(dtypes))
            }
            Error::DeviceMismatch { op, devices } => {
                write!(f, "{op}: operands are on ({}); move them to one device with to_device", List(devices))
            }
            Error::VersionMismatch { op, operand, shape, saved, current } => write!(
                f,
                "{op}: operand {operand} of shape {} was changed in place after it was saved for backward: version {saved} then, {current} now; change a clone, or call backward first",
                shape_text(shape)
            ),
            Error::GraphFreed { op } => write!(
                f,
                "{op}: its saved values were released by an earlier backward; pass retain_graph to that call to go through the graph again"
            ),
            Error::NotDifferentiable { op, what, remedy } => write!(f, "{op}: {what}; {remedy}"),
            Error::NanGradient { op, operand: Some(i), shapes } => write!(
                f,
                "{op}: its gradient by operand {i} is the first with NaN, shapes {}; look at the values that the op was given",
                shapes_text(shapes)
            ),
            Error::NanGradient { op, operand: None, shapes } => write!(
                f,
                "{op}: the gradient that arrived has NaN, shapes {}; look at the cotangent of the call and at hooks",
                shapes_text(shapes)
            ),
            Error::NonDeterministic { op, note } => {
                write!(f, "{op}: has no deterministic kernel here: {note}; turn use_deterministic_algorithms off or use another op")
            }
            Error::OutOfMemory { device, requested_bytes, current_bytes, peak_bytes, limit_bytes } => {
                write!(f, "{device}: out of memory: requested {requested_bytes} bytes, {current_bytes} in use, peak {peak_bytes}")?;
                match limit_bytes {
                    Some(limit) => write!(f, ", limit {limit}; free tensors or raise the limit"),
                    None => write!(f, "; free tensors or use smaller ones"),
                }
            }
            Error::TooLarge { op, shape, dtype } => {
                write!(f, "{op}: shape {} of {dtype} has more bytes than 64-bit offsets reach; use smaller axes", shape_text(shape))
            }
            Error::Unsupported { op, dtype, backend, remedy } => {
                write!(f, "{op}: {dtype} isn't supported by {backend}; {remedy}")
            }
            Error::InvalidArgument { op, argument, got, want } => write!(f, "{op}: {argument} is {got}; {want}"),
            Error::KernelNotFound { kernel, backend } => {
                write!(f, "{backend}: no kernel named {kernel}; list the names with the registry")
            }
            Error::ShaderCompilation { kernel, message } => write!(f, "{kernel}: the shader doesn't compile: {message}"),
            Error::DeviceLost { device, message } => {
                write!(f, "{device}: the device is lost: {message}; open it again")
            }
            Error::Io { op, path, message } => write!(f, "{op}: {path}: {message}"),
            Error::Format { op, path, got, want } => write!(f, "{op}: {path}: found {got}; want {want}"),
        }
    }
}

impl std::error::Error for Error {}
