//! The commands and their options: the parser reads this table, and the help is printed from it.

/// What an option sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// `-o`
    Output,
    /// `--axes`
    Axes,
    /// `--grad`
    Grad,
    /// `--grad-out`
    GradOut,
    /// `--hvp`
    Hvp,
    /// `--device`
    Device,
    /// `--dtype`
    Dtype,
    /// `--out-dtype`
    OutDtype,
    /// `--profile`
    Profile,
    /// `--autocast`
    Autocast,
    /// `--precision`
    Precision,
    /// `--threads`
    Threads,
    /// `--json`
    Json,
    /// `--help`
    Help,
}

/// An option of a command.
#[derive(Debug)]
pub struct OptionInfo {
    /// What it sets.
    pub key: Key,
    /// Without the dashes.
    pub long: &'static str,
    /// Its one-letter form.
    pub short: Option<char>,
    /// What its value stands for; `None` for a switch.
    pub value: Option<&'static str>,
    /// One line of help.
    pub about: &'static str,
}

/// What a command does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A product of two files.
    Product,
    /// A product of two files along chosen axes.
    Tensordot,
    /// A product of any number of files by subscripts.
    Einsum,
    /// The registry of ops.
    Ops,
    /// The devices.
    Devices,
    /// Measurements.
    Bench,
    /// The self-test.
    Check,
    /// What a file holds.
    Info,
    /// A picture of a trace.
    Trace,
}

/// A command.
#[derive(Debug)]
pub struct CommandInfo {
    /// As typed.
    pub name: &'static str,
    /// What it does.
    pub action: Action,
    /// Its operands, for the help.
    pub operands: &'static str,
    /// One line of help.
    pub about: &'static str,
    /// Shapes, or an example.
    pub detail: &'static str,
    /// Its options.
    pub options: &'static [&'static [OptionInfo]],
}

impl CommandInfo {
    /// All its options.
    pub fn all_options(&self) -> impl Iterator<Item = &'static OptionInfo> {
        self.options.iter().flat_map(|list| list.iter())
    }
}

const fn option(key: Key, long: &'static str, short: Option<char>, value: Option<&'static str>, about: &'static str) -> OptionInfo {
    OptionInfo { key, long, short, value, about }
}

static HELP: &[OptionInfo] = &[option(Key::Help, "help", Some('h'), None, "this help")];
static JSON: &[OptionInfo] = &[option(Key::Json, "json", None, None, "one JSON object on stdout")];
static DEVICE: &[OptionInfo] = &[option(Key::Device, "device", None, Some("NAME"), "where to compute: cpu (default) or reference")];
static THREADS: &[OptionInfo] =
    &[option(Key::Threads, "threads", None, Some("N"), "threads to use; default BILIN_NUM_THREADS, or all cores")];
static PICTURE: &[OptionInfo] =
    &[option(Key::Output, "out", Some('o'), Some("FILE.svg"), "write the picture to FILE.svg instead of printing it")];
static AXES: &[OptionInfo] =
    &[option(Key::Axes, "axes", None, Some("N|I,J:K,L"), "axes to sum: a count (default 2), or axes of A and of B, paired in order")];
static PRODUCT: &[OptionInfo] = &[
    option(Key::Output, "out", Some('o'), Some("FILE"), "write the result to FILE.npy, .npz or .safetensors instead of printing it"),
    option(Key::Grad, "grad", None, Some("ones|G.npy"), "cotangent G of the result; needs --grad-out"),
    option(Key::GradOut, "grad-out", None, Some("DIR"), "write DIR/grad0.npy, DIR/grad1.npy, …: gradients of <G, result> by each operand"),
    option(Key::Hvp, "hvp", None, Some("DIR"), "read DIR/v0.npy, …, write DIR/hvp0.npy, …: Hessian of ½‖result‖² times v"),
    option(Key::Dtype, "dtype", None, Some("DTYPE"), "convert every file to DTYPE when it is read"),
    option(Key::OutDtype, "out-dtype", None, Some("DTYPE"), "dtype of the result: f32 for halves, or a wider integer"),
    option(Key::Profile, "profile", None, Some("TRACE.json"), "write a Chrome trace of every kernel, print its table on stderr"),
    option(Key::Autocast, "autocast", None, Some("DTYPE"), "compute in bf16 or f16 where the op's policy allows"),
    option(Key::Precision, "precision", None, Some("MODE"), "least precision of f32 products: ieee (default), tf32 or bf16x3"),
];
static OF_PRODUCT: &[&[OptionInfo]] = &[PRODUCT, DEVICE, THREADS, JSON, HELP];
static OF_TENSORDOT: &[&[OptionInfo]] = &[AXES, PRODUCT, DEVICE, THREADS, JSON, HELP];

const fn product(name: &'static str, about: &'static str, detail: &'static str) -> CommandInfo {
    CommandInfo { name, action: Action::Product, operands: "A B", about, detail, options: OF_PRODUCT }
}

/// Every command, in the order of the help.
pub static COMMANDS: &[CommandInfo] = &[
    product("matmul", "matrix product over a batch", "(…,M,K)·(…,K,N) → (…,M,N); batch axes broadcast.  bilin matmul A.npy B.npy -o C.npy"),
    product("dot", "product of two vectors, or of two matrices", "(K)·(K) → () or (M,K)·(K,N) → (M,N)"),
    product("inner", "sum of products over the last axes", "(…,K)·(…,K) → the other axes of A, then those of B"),
    product("outer", "all products of two vectors", "(M)·(N) → (M,N)"),
    product("vecdot", "dot products of vectors over a batch, A conjugated", "(…,K)·(…,K) → (…)"),
    product("matvec", "matrices times vectors over a batch", "(…,M,K)·(…,K) → (…,M)"),
    product("vecmat", "vectors times matrices over a batch, A conjugated", "(…,K)·(…,K,N) → (…,N)"),
    CommandInfo {
        name: "tensordot",
        action: Action::Tensordot,
        operands: "A B",
        about: "sum of products over chosen axes",
        detail: "The free axes of A, then those of B.  bilin tensordot A.npy B.npy --axes 1,2:0,1",
        options: OF_TENSORDOT,
    },
    CommandInfo {
        name: "einsum",
        action: Action::Einsum,
        operands: "SUBSCRIPTS A [B …]",
        about: "sums of products by subscripts, 1 to n operands",
        detail: "bilin einsum 'ij,jk->ik' A.npy B.npy -o C.npy",
        options: OF_PRODUCT,
    },
    CommandInfo {
        name: "ops",
        action: Action::Ops,
        operands: "[NAME…]",
        about: "every op: version, operands, mixed-precision policy, determinism, hash",
        detail: "bilin ops matmul einsum",
        options: &[JSON, HELP],
    },
    CommandInfo {
        name: "devices",
        action: Action::Devices,
        operands: "",
        about: "what can compute here, and why others can't",
        detail: "",
        options: &[JSON, HELP],
    },
    CommandInfo {
        name: "bench",
        action: Action::Bench,
        operands: "",
        about: "GFLOP/s and GB/s of products, and the share of the copy bandwidth",
        detail: "Each figure is the median of the runs that fit into half a second, at least three; of a run longer than 2 s, that run.",
        options: &[DEVICE, THREADS, JSON, HELP],
    },
    CommandInfo {
        name: "check",
        action: Action::Check,
        operands: "[DEVICE]",
        about: "self-test of a device: every op against the reference, gradients included",
        detail: "Status 1 if anything differs.",
        options: &[THREADS, HELP],
    },
    CommandInfo {
        name: "info",
        action: Action::Info,
        operands: "FILE",
        about: "dtype, shape and names of what a file holds",
        detail: "",
        options: &[JSON, HELP],
    },
    CommandInfo {
        name: "trace",
        action: Action::Trace,
        operands: "TRACE.json",
        about: "a picture of the trace that --profile wrote",
        detail: "bilin trace trace.json -o trace.svg",
        options: &[PICTURE, HELP],
    },
];

/// The command of a name.
pub fn find(name: &str) -> Option<&'static CommandInfo> {
    COMMANDS.iter().find(|c| c.name == name)
}
