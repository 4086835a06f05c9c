//! The command line: from arguments to a request.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use bilin::{Axes, DType, Precision};

use crate::Failure;
use crate::commands::{Action, COMMANDS, CommandInfo, Key, OptionInfo, find};
use crate::suggest::nearest;

/// What the command line asks for.
#[derive(Debug)]
pub enum Request {
    /// The help, of one command or of all.
    Help(Option<&'static CommandInfo>),
    /// The version.
    Version,
    /// A product of files.
    Product(ProductArgs),
    /// The registry.
    Ops {
        /// The ops to list; all where empty.
        names: Vec<&'static str>,
        /// As JSON.
        json: bool,
    },
    /// The devices.
    Devices {
        /// As JSON.
        json: bool,
    },
    /// What a file holds.
    Info {
        /// The file, with or without a tensor's name.
        file: PathBuf,
        /// As JSON.
        json: bool,
    },
    /// A picture of a trace.
    Trace {
        /// The trace.
        file: PathBuf,
        /// Where the picture goes; printed where missing.
        output: Option<PathBuf>,
    },
    /// Measurements.
    Bench(MachineArgs),
    /// The self-test.
    Check(MachineArgs),
}

/// What `bench` and `check` take.
#[derive(Debug)]
pub struct MachineArgs {
    /// The device's name.
    pub device: String,
    /// Threads to use, where given.
    pub threads: Option<NonZeroUsize>,
    /// As JSON.
    pub json: bool,
}

/// A product and what it needs beside the operands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Product {
    /// One of the products without further arguments, by the op's name.
    Plain(&'static str),
    /// Along these axes.
    Tensordot(Axes),
    /// By these subscripts.
    Einsum(String),
}

/// Where the cotangent of the result comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cotangent {
    /// Ones.
    Ones,
    /// A file.
    File(PathBuf),
}

/// What a product command takes.
#[derive(Debug)]
pub struct ProductArgs {
    /// Which product.
    pub product: Product,
    /// The operands' files.
    pub operands: Vec<PathBuf>,
    /// Where the result goes; printed where missing.
    pub output: Option<PathBuf>,
    /// The cotangent and the folder for gradients.
    pub grad: Option<(Cotangent, PathBuf)>,
    /// The folder of vectors and Hessian-vector products.
    pub hvp: Option<PathBuf>,
    /// The file of a trace.
    pub profile: Option<PathBuf>,
    /// The device's name.
    pub device: String,
    /// Converts what is read.
    pub dtype: Option<DType>,
    /// The result's dtype.
    pub out_dtype: Option<DType>,
    /// The dtype of an autocast scope.
    pub autocast: Option<DType>,
    /// The least precision.
    pub precision: Precision,
    /// Threads to use, where given.
    pub threads: Option<NonZeroUsize>,
    /// As JSON.
    pub json: bool,
}

/// The options as they are given, before it is known whether they fit together.
#[derive(Default)]
struct Given {
    output: Option<PathBuf>,
    axes: Option<Axes>,
    grad: Option<Cotangent>,
    grad_out: Option<PathBuf>,
    hvp: Option<PathBuf>,
    profile: Option<PathBuf>,
    device: Option<String>,
    dtype: Option<DType>,
    out_dtype: Option<DType>,
    autocast: Option<DType>,
    precision: Precision,
    threads: Option<NonZeroUsize>,
    json: bool,
}

fn usage<T>(text: String) -> Result<T, Failure> {
    Err(Failure::Usage(text))
}

fn or_nearest<'a>(text: String, word: &str, known: impl IntoIterator<Item = &'a str>, dashes: &str) -> Failure {
    Failure::Usage(match nearest(word, known) {
        Some(near) => format!("{text}; did you mean '{dashes}{near}'?"),
        None => text,
    })
}

fn command(name: &OsString) -> Result<&'static CommandInfo, Failure> {
    let name = name.to_string_lossy();
    let known = COMMANDS.iter().map(|c| c.name).chain(["help"]);
    find(&name).ok_or_else(|| or_nearest(format!("unknown command '{name}'"), &name, known, ""))
}

/// Parses the arguments that follow the program's name.
///
/// # Errors
/// [`Failure::Usage`] naming the option or the command.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Request, Failure> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let mut parser = lexopt::Parser::from_args(arguments);
    let first = match parser.next().map_err(|e| Failure::Usage(e.to_string()))? {
        None => return usage("no command".into()),
        Some(lexopt::Arg::Long("help") | lexopt::Arg::Short('h')) => return Ok(Request::Help(None)),
        Some(lexopt::Arg::Long("version") | lexopt::Arg::Short('V')) => return Ok(Request::Version),
        Some(lexopt::Arg::Long(name)) => {
            return Err(or_nearest(format!("unknown option '--{name}' before a command"), name, ["help", "version"], "--"));
        }
        Some(lexopt::Arg::Short(name)) => return usage(format!("unknown option '-{name}' before a command")),
        Some(lexopt::Arg::Value(name)) => name,
    };
    if first == "help" {
        return help_about(&mut parser);
    }
    let command = command(&first)?;
    let (given, operands) = match collect(command, &mut parser)? {
        Some(all) => all,
        None => return Ok(Request::Help(Some(command))),
    };
    request(command, given, operands)
}

fn help_about(parser: &mut lexopt::Parser) -> Result<Request, Failure> {
    match parser.next().map_err(|e| Failure::Usage(e.to_string()))? {
        Some(lexopt::Arg::Value(name)) => Ok(Request::Help(Some(command(&name)?))),
        _ => Ok(Request::Help(None)),
    }
}

/// The options and operands of a command; `None` where help is asked for.
fn collect(command: &'static CommandInfo, parser: &mut lexopt::Parser) -> Result<Option<(Given, Vec<OsString>)>, Failure> {
    let name = command.name;
    let mut given = Given::default();
    let mut operands = Vec::new();
    loop {
        let known = || command.all_options();
        let unexpected = |e: lexopt::Error| match e {
            lexopt::Error::UnexpectedValue { option, .. } => Failure::Usage(format!("{name}: {option} takes no value")),
            e => Failure::Usage(format!("{name}: {e}")),
        };
        let option = match parser.next().map_err(unexpected)? {
            None => return Ok(Some((given, operands))),
            Some(lexopt::Arg::Value(value)) => {
                operands.push(value);
                continue;
            }
            Some(lexopt::Arg::Long(long)) => known()
                .find(|o| o.long == long)
                .ok_or_else(|| or_nearest(format!("{name}: unknown option '--{long}'"), long, known().map(|o| o.long), "--"))?,
            Some(lexopt::Arg::Short(short)) => {
                known().find(|o| o.short == Some(short)).ok_or_else(|| Failure::Usage(format!("{name}: unknown option '-{short}'")))?
            }
        };
        if option.key == Key::Help {
            return Ok(None);
        }
        let value = match option.value {
            None => OsString::new(),
            Some(what) => parser.value().map_err(|_| Failure::Usage(format!("{name}: --{} needs a value, {what}", option.long)))?,
        };
        set(&mut given, option, value).map_err(|why| Failure::Usage(format!("{name}: --{} {why}", option.long)))?;
    }
}

/// Sets what an option says. The error is what follows the option's name.
fn set(given: &mut Given, option: &OptionInfo, value: OsString) -> Result<(), String> {
    let text = || value.to_str().map(str::to_owned).ok_or_else(|| format!("is '{}', which isn't UTF-8", value.to_string_lossy()));
    let path = || if value.is_empty() { Err("is empty".to_owned()) } else { Ok(PathBuf::from(&value)) };
    match option.key {
        Key::Output => given.output = Some(path()?),
        Key::GradOut => given.grad_out = Some(path()?),
        Key::Hvp => given.hvp = Some(path()?),
        Key::Profile => given.profile = Some(path()?),
        Key::Grad => given.grad = Some(if value == "ones" { Cotangent::Ones } else { Cotangent::File(path()?) }),
        Key::Device => given.device = Some(text()?),
        Key::Axes => given.axes = Some(axes(&text()?)?),
        Key::Dtype => given.dtype = Some(dtype(&text()?)?),
        Key::OutDtype => given.out_dtype = Some(dtype(&text()?)?),
        Key::Autocast => match DType::parse(&text()?) {
            Some(scope @ (DType::Bf16 | DType::F16 | DType::F32)) => given.autocast = Some(scope),
            _ => return Err(format!("is '{}'; want bf16, f16 or f32", text()?)),
        },
        Key::Precision => {
            given.precision = match text()?.as_str() {
                "ieee" => Precision::Ieee,
                "tf32" => Precision::Tf32,
                "bf16x3" => Precision::Bf16x3,
                other => return Err(format!("is '{other}'; want ieee, tf32 or bf16x3")),
            }
        }
        Key::Threads => {
            let text = text()?;
            given.threads = Some(text.parse().map_err(|_| format!("is '{text}'; want a number from 1"))?);
        }
        Key::Json => given.json = true,
        Key::Help => {}
    }
    Ok(())
}

fn dtype(text: &str) -> Result<DType, String> {
    DType::parse(text).ok_or_else(|| {
        let names: Vec<&str> = DType::ALL.iter().map(|d| d.name()).collect();
        format!("is '{text}'; want {} or the short form, such as f32", names.join(", "))
    })
}

/// The name of an op of the registry.
fn op_name(name: &str) -> Result<&'static str, Failure> {
    let known = || bilin::op_registry_all().into_iter().map(|s| s.name);
    known().find(|n| *n == name).ok_or_else(|| or_nearest(format!("ops: no op '{name}'"), name, known(), ""))
}

/// `2`, or `1,2:0,1`.
fn axes(text: &str) -> Result<Axes, String> {
    let wrong = || format!("is '{text}'; want a count such as 2, or axes of both operands such as 1,2:0,1");
    let list = |part: &str| {
        part.split(',')
            .filter(|p| !p.trim().is_empty())
            .map(|p| p.trim().parse::<isize>().map_err(|_| wrong()))
            .collect::<Result<Vec<isize>, String>>()
    };
    match text.split_once(':') {
        None => Ok(Axes::Count(text.trim().parse().map_err(|_| wrong())?)),
        Some((lhs, rhs)) => Ok(Axes::Pairs(list(lhs)?, list(rhs)?)),
    }
}

fn request(command: &'static CommandInfo, given: Given, operands: Vec<OsString>) -> Result<Request, Failure> {
    let name = command.name;
    let count = operands.len();
    let want = |least: usize, most: usize, what: &str| {
        if (least..=most).contains(&count) { Ok(()) } else { usage(format!("{name}: takes {what}, got {count}")) }
    };
    let device = given.device.clone().unwrap_or_else(|| "cpu".to_owned());
    match command.action {
        Action::Ops => {}
        Action::Devices | Action::Bench => want(0, 0, "no files")?,
        Action::Info | Action::Trace => want(1, 1, "one file")?,
        Action::Check => want(0, 1, "at most one device")?,
        Action::Product | Action::Tensordot => want(2, 2, "two files")?,
        Action::Einsum => want(2, usize::MAX, "subscripts and at least one file")?,
    }
    let mut operands = operands.into_iter();
    Ok(match command.action {
        Action::Ops => Request::Ops { names: operands.map(|o| op_name(&o.to_string_lossy())).collect::<Result<_, _>>()?, json: given.json },
        Action::Devices => Request::Devices { json: given.json },
        Action::Bench => Request::Bench(MachineArgs { device, threads: given.threads, json: given.json }),
        Action::Check => {
            let device = operands.next().map_or(device, |name| name.to_string_lossy().into_owned());
            Request::Check(MachineArgs { device, threads: given.threads, json: false })
        }
        Action::Trace => Request::Trace { file: operands.next().unwrap_or_default().into(), output: given.output },
        Action::Info => Request::Info { file: operands.next().unwrap_or_default().into(), json: given.json },
        Action::Product => Request::Product(product(name, Product::Plain(name), given, operands)?),
        Action::Tensordot => {
            let axes = given.axes.clone().unwrap_or(Axes::Count(2));
            Request::Product(product(name, Product::Tensordot(axes), given, operands)?)
        }
        Action::Einsum => {
            let subscripts = operands.next().unwrap_or_default();
            let Ok(subscripts) = subscripts.into_string() else { return usage(format!("{name}: the subscripts aren't UTF-8")) };
            Request::Product(product(name, Product::Einsum(subscripts), given, operands)?)
        }
    })
}

fn product(name: &str, product: Product, given: Given, operands: impl Iterator<Item = OsString>) -> Result<ProductArgs, Failure> {
    let grad = match (given.grad, given.grad_out) {
        (Some(g), Some(folder)) => Some((g, folder)),
        (None, None) => None,
        (Some(_), None) => return usage(format!("{name}: --grad needs --grad-out DIR")),
        (None, Some(_)) => return usage(format!("{name}: --grad-out needs --grad ones or --grad G.npy")),
    };
    Ok(ProductArgs {
        product,
        operands: operands.map(PathBuf::from).collect(),
        output: given.output,
        grad,
        hvp: given.hvp,
        profile: given.profile,
        device: given.device.unwrap_or_else(|| "cpu".to_owned()),
        dtype: given.dtype,
        out_dtype: given.out_dtype,
        autocast: given.autocast,
        precision: given.precision,
        threads: given.threads,
        json: given.json,
    })
}
