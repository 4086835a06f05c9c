//! `--help` and `help COMMAND`, from the table of commands.

use crate::commands::{Action, COMMANDS, CommandInfo, OptionInfo};
use crate::{Failure, Streams};

pub(crate) fn print(command: Option<&'static CommandInfo>, streams: &mut Streams<'_>) -> Result<(), Failure> {
    match command {
        Some(command) => one(command, streams),
        None => all(streams),
    }
}

fn all(streams: &mut Streams<'_>) -> Result<(), Failure> {
    streams.line(format_args!("bilin: products of matrices and tensors in files, and their derivatives\n"))?;
    streams.line(format_args!("usage: bilin COMMAND [OPTIONS] [FILES]\n"))?;
    for command in COMMANDS {
        streams.line(format_args!("  {:<30}{}", format!("{} {}", command.name, command.operands), command.about))?;
    }
    streams.line(format_args!("\n  {:<30}the options of a command", "help COMMAND"))?;
    streams.line(format_args!("  {:<30}the version", "--version, -V"))?;
    streams.line(format_args!("\nFILE.npz:NAME and FILE.safetensors:NAME pick one tensor of several."))?;
    streams.line(format_args!("Status: 0 success, 1 an error of the input, 2 wrong usage."))
}

fn left(option: &OptionInfo) -> String {
    let short = option.short.map_or_else(String::new, |c| format!("-{c}, "));
    let value = option.value.map_or_else(String::new, |v| format!(" {v}"));
    format!("{short}--{}{value}", option.long)
}

fn one(command: &CommandInfo, streams: &mut Streams<'_>) -> Result<(), Failure> {
    let operands = if command.operands.is_empty() { String::new() } else { format!(" {}", command.operands) };
    streams.line(format_args!("usage: bilin {}{operands} [OPTIONS]\n\n{}", command.name, command.about))?;
    if !command.detail.is_empty() {
        streams.line(format_args!("{}", command.detail))?;
    }
    streams.line(format_args!(""))?;
    for option in command.all_options() {
        streams.line(format_args!("  {:<24} {}", left(option), option.about))?;
    }
    if matches!(command.action, Action::Product | Action::Tensordot | Action::Einsum) {
        streams.line(format_args!("\nDTYPE: bool u8 i8 i16 i32 i64 f16 bf16 f32 f64 c64 c128, or NumPy's names."))?;
        streams.line(format_args!("Operands are .npy files, or FILE.npz:NAME, or FILE.safetensors:NAME."))?;
        streams.line(format_args!(".npy has no bfloat16: gradients of bfloat16 operands are float32, and G and v for them may be."))?;
    }
    Ok(())
}
