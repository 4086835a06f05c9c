//! `x[...]` and `x[...] = y`: NumPy's rules, differentiable.

use bilin::{DType, Index, Kind, Tensor};
use numpy::PyUntypedArray;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyEllipsis, PyList, PySlice, PyTuple};

use crate::convert::tensor as tensor_arg;
use crate::error::{OrRaise, new, wrong_type};
use crate::tensor::PyTensor;

/// Positions along one axis.
struct Positions {
    shape: Vec<usize>,
    at: Vec<i64>,
}

enum Item {
    Basic(Index),
    Array(Positions),
}

fn bound(obj: &Bound<'_, PyAny>, name: &str) -> PyResult<Option<isize>> {
    let value = obj.getattr(name)?;
    if value.is_none() {
        return Ok(None);
    }
    // Numbers past the range of positions mean the far end, as for lists.
    value.extract::<isize>().map(Some).or_else(|_| match value.extract::<i128>() {
        Ok(i) => Ok(Some(if i < 0 { isize::MIN / 2 } else { isize::MAX / 2 })),
        Err(_) => Err(wrong_type("index", name, &value, "whole numbers or None in a slice")),
    })
}

fn index_error(text: String) -> PyErr {
    new("PositionError", text)
}

fn positions(t: &Tensor) -> PyResult<Positions> {
    if t.numel() > 0 && t.dtype().kind() != Kind::Int {
        return Err(new("DtypeMismatch", format!("index: key has positions of {}; want integers or bool", t.dtype())));
    }
    Ok(Positions { shape: t.shape().to_vec(), at: t.detach().astype(DType::I64).or_raise()?.to_vec::<i64>().or_raise()? })
}

/// One position array an axis for the true elements of a mask.
fn true_positions(mask: &Tensor) -> PyResult<Vec<Positions>> {
    let hits: Vec<usize> = mask.to_vec::<bool>().or_raise()?.iter().enumerate().filter(|(_, b)| **b).map(|(i, _)| i).collect();
    let mut step = mask.numel();
    Ok(mask
        .shape()
        .iter()
        .map(|&len| {
            step /= len.max(1);
            Positions { shape: vec![hits.len()], at: hits.iter().map(|h| (h / step.max(1) % len.max(1)) as i64).collect() }
        })
        .collect())
}

fn parse(key: &Bound<'_, PyAny>, shape: &[usize]) -> PyResult<Vec<Item>> {
    let parts: Vec<Bound<'_, PyAny>> = match key.cast::<PyTuple>() {
        Ok(tuple) => tuple.iter().collect(),
        Err(_) => vec![key.clone()],
    };
    let mut items = Vec::new();
    let mut axis = 0;
    for part in &parts {
        if let Ok(slice) = part.cast::<PySlice>() {
            let step = bound(slice, "step")?.unwrap_or(1);
            items.push(Item::Basic(Index::Slice { start: bound(slice, "start")?, stop: bound(slice, "stop")?, step }));
            axis += 1;
        } else if part.is_none() {
            items.push(Item::Basic(Index::NewAxis));
        } else if part.is_instance_of::<PyEllipsis>() {
            items.push(Item::Basic(Index::Ellipsis));
            axis = shape.len().saturating_sub(parts.len());
        } else if !part.is_instance_of::<PyBool>()
            && !part.is_instance_of::<PyTensor>()
            && let Ok(i) = part.extract::<isize>()
        {
            items.push(Item::Basic(Index::At(i)));
            axis += 1;
        } else if part.is_instance_of::<PyTensor>() || part.is_instance_of::<PyUntypedArray>() || part.is_instance_of::<PyList>() {
            let t = if part.is_instance_of::<PyList>() && part.len()? == 0 {
                Tensor::from_slice::<i64>(&[], [0], &bilin::Device::reference()).or_raise()?
            } else {
                tensor_arg(part, "index", "key")?
            };
            if t.dtype() == DType::Bool {
                let own = shape.get(axis..axis + t.rank());
                if own != Some(t.shape()) {
                    return Err(index_error(format!(
                        "index: key has a mask of shape {} doesn't fit {} from axis {axis}; want equal lengths",
                        bilin::shape_text(t.shape()),
                        bilin::shape_text(shape)
                    )));
                }
                axis += t.rank();
                items.extend(true_positions(&t)?.into_iter().map(Item::Array));
            } else {
                items.push(Item::Array(positions(&t)?));
                axis += 1;
            }
        } else {
            return Err(wrong_type("index", "key", part, "whole numbers, slices, None, Ellipsis, or arrays of integers or bool"));
        }
    }
    Ok(items)
}

/// The basic items done; the axes that arrays pick, in order, and where the result's axes go.
struct Plan {
    basic: Vec<Index>,
    arrays: Vec<Positions>,
    /// Axes of the basic result.
    axes: Vec<usize>,
    adjacent: bool,
}

fn plan(items: Vec<Item>, rank: usize) -> PyResult<Plan> {
    let used = items.iter().filter(|i| !matches!(i, Item::Basic(Index::NewAxis | Index::Ellipsis))).count();
    let has_arrays = items.iter().any(|i| matches!(i, Item::Array(_)));
    if used > rank {
        return Err(index_error(format!("index: key has {used} items for {rank} axes; give one item an axis")));
    }
    let mut p = Plan { basic: Vec::new(), arrays: Vec::new(), axes: Vec::new(), adjacent: true };
    let (mut axis, mut last) = (0usize, None);
    for (place, item) in items.into_iter().enumerate() {
        let array = match item {
            Item::Array(a) => a,
            // Beside arrays a number is an array too, as NumPy has it.
            Item::Basic(Index::At(i)) if has_arrays => Positions { shape: vec![], at: vec![i as i64] },
            Item::Basic(index) => {
                axis += match index {
                    Index::Ellipsis => rank - used,
                    Index::At(_) => 0,
                    _ => 1,
                };
                p.basic.push(index);
                continue;
            }
        };
        p.adjacent &= last.is_none_or(|l| l + 1 == place);
        last = Some(place);
        p.basic.push(Index::ALL);
        p.axes.push(axis);
        p.arrays.push(array);
        axis += 1;
    }
    Ok(p)
}

/// Position arrays broadcast and folded into one position of the axes taken as one, each checked.
fn fold(arrays: &[Positions], lens: &[usize], axes: &[usize]) -> PyResult<(Vec<usize>, Vec<i64>)> {
    let shapes: Vec<Tensor> = arrays
        .iter()
        .map(|p| Tensor::from_slice(&p.at, p.shape.as_slice(), &bilin::Device::reference()))
        .collect::<bilin::Result<_>>()
        .or_raise()?;
    let rank = arrays.iter().map(|p| p.shape.len()).max().unwrap_or(0);
    let mut shape = vec![1usize; rank];
    for p in arrays {
        for (i, &len) in p.shape.iter().enumerate() {
            let at = rank - p.shape.len() + i;
            if shape[at] == 1 {
                shape[at] = len;
            } else if len != 1 && len != shape[at] {
                let all: Vec<String> = arrays.iter().map(|p| bilin::shape_text(&p.shape)).collect();
                return Err(index_error(format!("index: key has position arrays of shapes {} don't broadcast", all.join(" and "))));
            }
        }
    }
    let mut folded = vec![0i64; shape.iter().product()];
    for ((t, &len), &axis) in shapes.iter().zip(lens).zip(axes) {
        let all = t.broadcast_to(shape.as_slice()).or_raise()?.to_vec::<i64>().or_raise()?;
        for (f, &i) in folded.iter_mut().zip(&all) {
            let at = if i < 0 { i + len as i64 } else { i };
            if at < 0 || at >= len as i64 {
                return Err(index_error(format!("index: key has position {i}; axis {axis} has length {len}")));
            }
            *f = *f * len as i64 + at;
        }
    }
    Ok((shape, folded))
}

fn basic(t: &Tensor, items: &[Index]) -> PyResult<Tensor> {
    t.index(items).map_err(|e| match &e {
        bilin::Error::InvalidArgument { argument: "position", got, want, .. } => {
            index_error(format!("index: key has position {got}; {want}"))
        }
        bilin::Error::ShapeMismatch { .. } => index_error(e.to_string().replacen("index: ", "index: key on ", 1)),
        _ => crate::error::raise(e),
    })
}

fn get(t: &Tensor, key: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let p = plan(parse(key, t.shape())?, t.rank())?;
    let t = basic(t, &p.basic)?;
    if p.arrays.is_empty() {
        return Ok(t);
    }
    let lens: Vec<usize> = p.axes.iter().map(|&a| t.shape()[a]).collect();
    let (picked, at) = fold(&p.arrays, &lens, &p.axes)?;
    let rest: Vec<usize> = (0..t.rank()).filter(|a| !p.axes.contains(a)).collect();
    let order: Vec<isize> = p.axes.iter().chain(&rest).map(|&a| a as isize).collect();
    let mut flat = vec![lens.iter().product::<usize>()];
    flat.extend(rest.iter().map(|&a| t.shape()[a]));
    let index = Tensor::from_slice(&at, [at.len()], t.device()).or_raise()?;
    let mut shape = picked.clone();
    shape.extend(&flat[1..]);
    let run = || -> bilin::Result<Tensor> {
        let out = t.permute(&order)?.reshape(flat)?.index_select(0, &index)?.reshape(shape)?;
        if !p.adjacent {
            return Ok(out);
        }
        // Axes picked side by side stay where they were.
        let first = p.axes.first().copied().unwrap_or(0);
        let n = picked.len();
        let back: Vec<isize> = (0..first).map(|i| n + i).chain(0..n).chain(n + first..n + rest.len()).map(|a| a as isize).collect();
        out.permute(&back)
    };
    run().or_raise()
}

fn set(t: &Tensor, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
    let p = plan(parse(key, t.shape())?, t.rank())?;
    let part = basic(t, &p.basic)?;
    if p.arrays.is_empty() {
        return crate::operators::assign(&part, value, "setitem", "value");
    }
    let lens: Vec<usize> = p.axes.iter().map(|&a| part.shape()[a]).collect();
    let (_, at) = fold(&p.arrays, &lens, &p.axes)?;
    // The value, broadcast to what the key picks, in the order of its elements.
    let target = bilin::no_grad(|| get(&t.detach(), key))?;
    let fresh = Tensor::zeros(target.shape(), t.dtype(), t.device()).or_raise()?;
    crate::operators::assign(&fresh, value, "setitem", "value")?;
    if bilin::is_grad_enabled() && t.requires_grad() {
        // The engine's own refusal, with its remedy.
        return part.zero_().or_raise();
    }
    let rows: Vec<usize> = (0..target.rank()).collect();
    let picked_rank = target.rank() - (part.rank() - p.axes.len());
    let first = if p.adjacent { p.axes.first().copied().unwrap_or(0) } else { 0 };
    let order: Vec<isize> = rows
        .iter()
        .filter(|r| (first..first + picked_rank).contains(*r))
        .chain(rows.iter().filter(|r| !(first..first + picked_rank).contains(*r)))
        .map(|&r| r as isize)
        .collect();
    let moved = fresh.permute(&order).or_raise()?;
    let mut shape = vec![at.len()];
    shape.extend(&moved.shape()[picked_rank..]);
    let values = moved.reshape(shape).or_raise()?;
    for (row, &place) in at.iter().enumerate() {
        let mut here = vec![Index::ALL; part.rank()];
        let mut place = place as usize;
        for (&axis, &len) in p.axes.iter().zip(&lens).rev() {
            here[axis] = Index::At((place % len) as isize);
            place /= len;
        }
        let source = values.index(&[Index::At(row as isize)]).or_raise()?;
        part.index(&here).and_then(|to| to.copy_(&source)).or_raise()?;
    }
    Ok(())
}

#[pymethods]
impl PyTensor {
    fn __getitem__(&self, key: &Bound<'_, PyAny>) -> PyResult<PyTensor> {
        get(&self.0, key).map(PyTensor)
    }
    fn __setitem__(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        set(&self.0, key, value)
    }
    fn __iter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let Some(&len) = slf.get().0.shape().first() else {
            return Err(pyo3::exceptions::PyTypeError::new_err("iter: a 0-d tensor has no elements to go through; use item()"));
        };
        let builtins = py.import("builtins")?;
        builtins.call_method1("map", (slf.getattr("__getitem__")?, builtins.call_method1("range", (len,))?))
    }
}
