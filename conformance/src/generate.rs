//! Tensors from the generators of `data/public_bugs.json`.

use std::collections::BTreeMap;

use bilin::{DType, Device, Index, Tensor};
use serde_json::Value;

use crate::samples::{Number, tensor_of};

/// Names that a case's shapes may use, such as K.
pub type Sizes = BTreeMap<String, usize>;

/// A length: a number, or a name of `sizes`.
fn length(v: &Value, sizes: &Sizes) -> usize {
    match v {
        Value::String(name) => *sizes.get(name).unwrap_or_else(|| panic!("no size named {name}")),
        _ => v.as_u64().unwrap_or_else(|| panic!("a length, not {v}")) as usize,
    }
}

/// A list of lengths.
pub fn shape(v: &Value, sizes: &Sizes) -> Vec<usize> {
    v.as_array().unwrap_or_else(|| panic!("a shape, not {v}")).iter().map(|l| length(l, sizes)).collect()
}

/// A list of whole numbers.
pub fn ints(v: &Value) -> Vec<isize> {
    v.as_array().unwrap_or_else(|| panic!("a list, not {v}")).iter().map(|i| i.as_i64().expect("a whole number") as isize).collect()
}

fn number(v: &Value) -> Number {
    match v {
        Value::String(s) if s == "nan" => Number { z: bilin::c128::new(f64::NAN, 0.0), n: 0 },
        _ => match v.as_i64() {
            Some(n) => Number::whole(n),
            None => Number::real(v.as_f64().unwrap_or_else(|| panic!("a number, not {v}"))),
        },
    }
}

fn nested(v: &Value, depth: usize, shape: &mut Vec<usize>, out: &mut Vec<Number>) {
    match v {
        Value::Array(items) => {
            if shape.len() == depth {
                shape.push(items.len());
            }
            assert_eq!(shape[depth], items.len(), "a ragged list");
            items.iter().for_each(|item| nested(item, depth + 1, shape, out));
        }
        _ => out.push(number(v)),
    }
}

/// The tensor of an input or an expected value.
pub fn tensor(v: &Value, dtype: DType, device: &Device, sizes: &Sizes) -> Tensor {
    let made = |numbers: Vec<Number>, shape: &[usize]| tensor_of(&numbers, shape, dtype, device);
    let constant = |shape: Vec<usize>, x: Number| made(vec![x; shape.iter().product()], &shape);
    let Value::Object(fields) = v else {
        let (mut shape, mut numbers) = (Vec::new(), Vec::new());
        nested(v, 0, &mut shape, &mut numbers);
        return made(numbers, &shape);
    };
    let field = |name: &str| fields.get(name);
    if let Some(s) = field("ones") {
        constant(shape(s, sizes), Number::whole(1))
    } else if let Some(s) = field("zeros") {
        constant(shape(s, sizes), Number::whole(0))
    } else if let Some(n) = field("eye") {
        let n = length(n, sizes);
        made((0..n * n).map(|i| Number::whole(i64::from(i / n == i % n))).collect(), &[n, n])
    } else if let Some(f) = field("full") {
        constant(shape(&f[0], sizes), number(&f[1]))
    } else if let Some(r) = field("arange") {
        let r = ints(r);
        let step = r.get(2).copied().unwrap_or(1);
        let count = ((r[1] - r[0]) as f64 / step as f64).ceil().max(0.0) as usize;
        let numbers = (0..count).map(|i| Number::whole((r[0] + i as isize * step) as i64)).collect();
        made(numbers, &field("reshape").map_or_else(|| vec![count], |s| shape(s, sizes)))
    } else if let Some(s) = field("sin") {
        let s = s.as_f64().expect("a number");
        let shape = shape(&fields["shape"], sizes);
        made((0..shape.iter().product()).map(|i: usize| Number::real((s * i as f64).sin())).collect(), &shape)
    } else if let Some(base) = field("view") {
        view(&tensor(base, dtype, device, sizes), &fields["ops"], sizes)
    } else if let Some(base) = field("with") {
        let base = tensor(base, dtype, device, sizes);
        for change in fields["set"].as_array().expect("a list") {
            let items: Vec<Index> = ints(&change[0]).into_iter().map(Index::At).collect();
            let value = made(vec![number(&change[1])], &[]);
            base.index(&items).and_then(|at| at.copy_(&value)).expect("set");
        }
        base
    } else {
        panic!("no generator for {v}")
    }
}

/// `x` after the view ops of a list.
pub fn view(x: &Tensor, ops: &Value, sizes: &Sizes) -> Tensor {
    ops.as_array().expect("a list of ops").iter().fold(x.clone(), |x, op| {
        let args = &op[1];
        let made = match op[0].as_str().expect("a name") {
            "transpose" => x.permute(&ints(args)),
            "reshape" => x.reshape(shape(args, sizes)),
            "broadcast_to" => x.broadcast_to(shape(args, sizes)),
            "flip" => x.flip(args.as_i64().expect("an axis") as isize),
            "slice" => {
                let end = |v: &Value| v.as_i64().map(|i| i as isize);
                let items: Vec<Index> = args
                    .as_array()
                    .expect("a list of runs")
                    .iter()
                    .map(|run| Index::Slice { start: end(&run[0]), stop: end(&run[1]), step: end(&run[2]).unwrap_or(1) })
                    .collect();
                x.index(&items)
            }
            other => panic!("no view op named {other}"),
        };
        made.expect("a view")
    })
}

/// Dtypes of the operands: one for all, or a list.
pub fn dtypes(v: &Value, count: usize) -> Vec<DType> {
    let one = |v: &Value| DType::parse(v.as_str().expect("a dtype")).expect("a dtype");
    match v {
        Value::Array(list) => list.iter().map(one).collect(),
        _ => vec![one(v); count],
    }
}
