//! Arrays as text, in NumPy's layout.

use bilin::{DType, Result, Tensor, bf16, f16};

/// Arrays of more elements are shortened.
const THRESHOLD: usize = 1000;
/// What stays at either end of a shortened axis.
const EDGE: usize = 3;
const WIDTH: usize = 75;
/// Most digits after the point.
const DIGITS: usize = 8;

/// The array as NumPy prints it, rows and columns aligned; of more than 1000 elements only the ends of the axes.
pub(crate) fn array(t: &Tensor) -> Result<String> {
    let bytes = t.to_bytes()?;
    let mut shown = Vec::new();
    let shortens = t.numel() > THRESHOLD;
    if t.numel() > 0 {
        pick(t.shape(), 0, shortens, &mut shown);
    }
    let size = t.dtype().size_bytes();
    let element = |i: &usize| bytes.get(i * size..(i + 1) * size).unwrap_or_default();
    let cells = texts(t.dtype(), &shown.iter().map(element).collect::<Vec<_>>(), t.rank() == 0);
    if t.rank() == 0 {
        return Ok(cells.into_iter().next().unwrap_or_default());
    }
    if t.numel() == 0 {
        return Ok("[]".to_owned());
    }
    let mut out = String::new();
    block(t.shape(), 0, shortens, &mut cells.iter(), &mut out);
    Ok(out)
}

/// Which positions of an axis are shown; `None` stands for those left out.
fn positions(len: usize, shortens: bool) -> Vec<Option<usize>> {
    if shortens && len > 2 * EDGE {
        return (0..EDGE).map(Some).chain([None]).chain((len - EDGE..len).map(Some)).collect();
    }
    (0..len).map(Some).collect()
}

/// Linear positions of the elements that are shown, in row-major order.
fn pick(shape: &[usize], base: usize, shortens: bool, out: &mut Vec<usize>) {
    let Some((&len, rest)) = shape.split_first() else {
        out.push(base);
        return;
    };
    for i in positions(len, shortens).into_iter().flatten() {
        pick(rest, base * len + i, shortens, out);
    }
}

fn block(shape: &[usize], depth: usize, shortens: bool, cells: &mut std::slice::Iter<'_, String>, out: &mut String) {
    let Some((&len, rest)) = shape.split_first() else { return };
    out.push('[');
    if rest.is_empty() {
        row(len, depth, shortens, cells, out);
    } else {
        for (at, i) in positions(len, shortens).into_iter().enumerate() {
            if at > 0 {
                out.push_str(&"\n".repeat(rest.len()));
                out.push_str(&" ".repeat(depth + 1));
            }
            match i {
                Some(_) => block(rest, depth + 1, shortens, cells, out),
                None => out.push('…'),
            }
        }
    }
    out.push(']');
}

fn row(len: usize, depth: usize, shortens: bool, cells: &mut std::slice::Iter<'_, String>, out: &mut String) {
    let mut column = depth + 1;
    for (at, i) in positions(len, shortens).into_iter().enumerate() {
        let cell = if i.is_some() { cells.next().map_or("", String::as_str) } else { "…" };
        let width = cell.chars().count();
        if at > 0 && column + 1 + width > WIDTH {
            out.push('\n');
            out.push_str(&" ".repeat(depth + 1));
            column = depth + 1;
        } else if at > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(cell);
        column += width;
    }
}

/// A real number as its dtype rounds it.
#[derive(Clone, Copy)]
enum Real {
    F16(f16),
    Bf16(bf16),
    F32(f32),
    F64(f64),
}

impl Real {
    fn value(self) -> f64 {
        match self {
            Real::F16(x) => x.to_f64(),
            Real::Bf16(x) => x.to_f64(),
            Real::F32(x) => f64::from(x),
            Real::F64(x) => x,
        }
    }

    /// The number whose digits are the fewest that give this one back in its dtype.
    fn shortest(self) -> f64 {
        let gives_back = |y: f64| match self {
            Real::F16(x) => f16::from_f32(bilin::round_to_odd(y)) == x,
            Real::Bf16(x) => bf16::from_f32(bilin::round_to_odd(y)) == x,
            Real::F32(x) => y as f32 == x,
            Real::F64(x) => y == x,
        };
        let x = self.value();
        let tries = (0..9).filter_map(|digits| format!("{x:.digits$e}").parse::<f64>().ok());
        if x.is_finite() { tries.into_iter().find(|y| gives_back(*y)).unwrap_or(x) } else { x }
    }
}

fn real(dtype: DType, bytes: &[u8]) -> Real {
    match (dtype, bytes) {
        (DType::F16, &[a, b]) => Real::F16(f16::from_ne_bytes([a, b])),
        (DType::Bf16, &[a, b]) => Real::Bf16(bf16::from_ne_bytes([a, b])),
        (DType::F32, &[a, b, c, d]) => Real::F32(f32::from_ne_bytes([a, b, c, d])),
        (_, bytes) => Real::F64(bytes.try_into().map_or(f64::NAN, f64::from_ne_bytes)),
    }
}

fn integer(dtype: DType, bytes: &[u8]) -> i64 {
    match (dtype, bytes) {
        (DType::I8, &[a]) => i64::from(a as i8),
        (_, &[a]) => i64::from(a),
        (_, &[a, b]) => i64::from(i16::from_ne_bytes([a, b])),
        (_, &[a, b, c, d]) => i64::from(i32::from_ne_bytes([a, b, c, d])),
        (_, bytes) => bytes.try_into().map_or(0, i64::from_ne_bytes),
    }
}

/// The elements' texts, of one width.
fn texts(dtype: DType, elements: &[&[u8]], is_scalar: bool) -> Vec<String> {
    let part = dtype.real().size_bytes();
    let reals = |at: usize| -> Vec<f64> {
        elements.iter().map(|e| real(dtype.real(), e.get(at..at + part).unwrap_or_default()).shortest()).collect()
    };
    match dtype {
        DType::Bool => {
            right(elements.iter().map(|e| if integer(dtype, e) != 0 { "True" } else { "False" }.to_owned()).collect(), is_scalar)
        }
        DType::C64 | DType::C128 => {
            let (re, im) = (floats(&reals(0), is_scalar), reals(part));
            let signs: Vec<char> = im.iter().map(|x| if x.is_sign_negative() { '-' } else { '+' }).collect();
            let im = floats(&im.iter().map(|x| x.abs()).collect::<Vec<_>>(), is_scalar);
            let one = |((re, sign), im): ((&String, &char), &String)| {
                // The j stands right behind the digits; what aligned them follows it.
                let digits = im.trim();
                format!("{re}{sign}{digits}j{}", " ".repeat(im.chars().count() - digits.chars().count()))
            };
            re.iter().zip(&signs).zip(&im).map(one).collect()
        }
        DType::F16 | DType::Bf16 | DType::F32 | DType::F64 => floats(&reals(0), is_scalar),
        _ => right(elements.iter().map(|e| integer(dtype, e).to_string()).collect(), is_scalar),
    }
}

fn right(texts: Vec<String>, is_scalar: bool) -> Vec<String> {
    let width = if is_scalar { 0 } else { texts.iter().map(|t| t.chars().count()).max().unwrap_or(0) };
    texts.into_iter().map(|t| format!("{t:>width$}")).collect()
}

/// Floating-point numbers with their points aligned, or in scientific form where their sizes differ much.
fn floats(numbers: &[f64], is_scalar: bool) -> Vec<String> {
    if is_scalar {
        return numbers.iter().map(|x| if x.is_finite() { format!("{x:?}") } else { special(*x) }).collect();
    }
    let sizes = || numbers.iter().map(|x| x.abs()).filter(|x| x.is_finite() && *x != 0.0);
    let (low, high) = (sizes().fold(f64::INFINITY, f64::min), sizes().fold(0.0, f64::max));
    if high > 0.0 && (high >= 1e8 || low < 1e-4 || high / low > 1e3) {
        return scientific(numbers);
    }
    let split = |x: &f64| -> (String, String) {
        if !x.is_finite() {
            return (special(*x), String::new());
        }
        let mut text = format!("{x}");
        if text.split_once('.').is_some_and(|(_, fraction)| fraction.len() > DIGITS) {
            text = format!("{x:.DIGITS$}");
        }
        let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
        (format!("{whole}."), fraction.trim_end_matches('0').to_owned())
    };
    let parts: Vec<(String, String)> = numbers.iter().map(split).collect();
    let fraction = parts.iter().map(|(_, f)| f.len()).max().unwrap_or(0);
    // nan and inf may stand below the fraction too.
    let whole = parts.iter().map(|(w, _)| if w.ends_with('.') { w.len() } else { w.len().saturating_sub(fraction) }).max().unwrap_or(0);
    let one = |(w, f): &(String, String)| {
        if w.ends_with('.') { format!("{w:>whole$}{f:<fraction$}") } else { format!("{w:>width$}", width = whole + fraction) }
    };
    parts.iter().map(one).collect()
}

fn special(x: f64) -> String {
    match x {
        x if x.is_nan() => "nan",
        x if x > 0.0 => "inf",
        _ => "-inf",
    }
    .to_owned()
}

fn scientific(numbers: &[f64]) -> Vec<String> {
    let digits = |x: &f64| format!("{x:e}").split_once('e').and_then(|(m, _)| m.split_once('.').map(|(_, f)| f.len())).unwrap_or(0);
    let most = numbers.iter().filter(|x| x.is_finite()).map(digits).max().unwrap_or(0).min(DIGITS);
    let one = |x: &f64| {
        let text = format!("{x:.most$e}");
        match text.split_once('e') {
            Some((mantissa, exponent)) if x.is_finite() => {
                let (sign, size) = exponent.strip_prefix('-').map_or(('+', exponent), |size| ('-', size));
                format!("{mantissa}e{sign}{size:0>2}")
            }
            _ => special(*x),
        }
    };
    right(numbers.iter().map(one).collect(), false)
}

#[cfg(test)]
mod tests {
    use super::array;
    use bilin::c64;
    use bilin::prelude::*;

    fn text<T: Element>(data: &[T], shape: &[usize]) -> String {
        array(&Tensor::from_slice(data, shape, &Device::reference()).unwrap()).unwrap()
    }

    /// Expected texts are what NumPy 2 prints, with … for its three points.
    #[test]
    fn arrays_look_as_in_numpy() {
        assert_eq!(text(&[1f32, 2.5, -3., 4.], &[2, 2]), "[[ 1.   2.5]\n [-3.   4. ]]");
        assert_eq!(text(&[0.1f32, 1. / 3.], &[2]), "[0.1        0.33333334]");
        assert_eq!(text(&[1i32, -20, 3, 4], &[2, 1, 2]), "[[[  1 -20]]\n\n [[  3   4]]]");
        assert_eq!(text(&[true, false], &[2]), "[ True False]");
        assert_eq!(text(&[1e-5f64, 1.25], &[2]), "[1.00e-05 1.25e+00]");
        assert_eq!(text(&[f64::NAN, -f64::INFINITY, 1.5], &[3]), "[ nan -inf  1.5]");
        assert_eq!(text(&[c64::new(1., 2.), c64::new(-0.5, -1.)], &[2]), "[ 1. +2.j -0.5-1.j]");
        assert_eq!(text(&[f16::from_f32(0.1)], &[1]), "[0.1]");
        assert_eq!(text(&[5f32], &[]), "5.0");
        assert_eq!(text::<f32>(&[], &[0, 3]), "[]");
    }

    #[test]
    fn long_arrays_are_shortened_and_long_rows_are_broken() {
        let many: Vec<i32> = (0..1001).collect();
        assert_eq!(text(&many, &[1001]), "[   0    1    2 …  998  999 1000]");
        let square: Vec<i32> = (0..1600).collect();
        assert_eq!(text(&square, &[40, 40]).lines().count(), 7);
        let row: Vec<i32> = (0..40).collect();
        assert_eq!(text(&row, &[40]).lines().map(str::len).max(), Some(75));
    }
}
