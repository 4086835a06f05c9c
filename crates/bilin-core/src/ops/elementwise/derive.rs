//! Derivatives of elementwise programs, as programs.

use std::collections::hash_map::{Entry, HashMap};
use std::f64::consts::FRAC_2_SQRT_PI;
use std::sync::{PoisonError, RwLock};

use crate::exec::map_expr::Prim::{
    self, Add, Const, ConstComplex, ConstInt, Cos, Div, Eq, Erfc, Exp, Gt, Input, Log, Max, Min, Mul, Neg, Pow, Select, Sin, Sub,
};
use crate::shape::error::{Error, Result};

/// A program over the operands of an elementwise op.
pub(super) type Program = &'static [Prim];

/// Values that a program has on its stack at most.
pub(super) fn depth(program: &[Prim]) -> usize {
    let most = |(now, most): (usize, usize), prim: &Prim| {
        let now = (now + 1).saturating_sub(prim.arity());
        (now, most.max(now))
    };
    program.iter().fold((0, 0), most).1
}

/// ∂program/∂operand, or `None` where it is zero everywhere. Programs are few: each is derived once and kept. Errors: a step
/// whose rule isn't here.
pub(super) fn derivative(program: Program, operand: u8) -> Result<Option<Program>> {
    /// By address, length and operand.
    type Known = HashMap<(usize, usize, u8), Option<Program>>;
    static KNOWN: RwLock<Option<Known>> = RwLock::new(None);
    let key = (program.as_ptr().addr(), program.len(), operand);
    let known = |all: &Option<Known>| all.as_ref().and_then(|all| all.get(&key).copied());
    if let Some(found) = known(&KNOWN.read().unwrap_or_else(PoisonError::into_inner)) {
        return Ok(found);
    }
    let mut all = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
    Ok(match all.get_or_insert_default().entry(key) {
        Entry::Occupied(known) => *known.get(),
        Entry::Vacant(new) => *new.insert(derived(program, operand)?.map(|p| &*p.leak())),
    })
}

type Term = Option<Vec<Prim>>;

fn join(a: &[Prim], b: &[Prim], prim: Prim) -> Vec<Prim> {
    // The deeper half first keeps the stack low; a sum or a product has the same bits either way.
    let is_turned = matches!(prim, Add | Mul) && depth(b) > depth(a);
    let (a, b) = if is_turned { (b, a) } else { (a, b) };
    [a, b, &[prim]].concat()
}

fn after(a: &[Prim], prim: Prim) -> Vec<Prim> {
    [a, &[prim]].concat()
}

fn times(a: &[Prim], b: &[Prim]) -> Vec<Prim> {
    match (a, b) {
        ([Const(1.0)], other) | (other, [Const(1.0)]) => other.to_vec(),
        _ => join(a, b, Mul),
    }
}

fn plus(a: Term, b: Term) -> Term {
    match (a, b) {
        (Some(a), Some(b)) => Some(join(&a, &b, Add)),
        (one, None) | (None, one) => one,
    }
}

/// The first derivative where `x` is the greater, the second where it is the lesser, the mean of both where they tie.
fn shared([x, y]: [&[Prim]; 2], [first, second]: [Term; 2]) -> Term {
    let share = |x: &[Prim], y: &[Prim]| [x, y, &[Gt], x, y, &[Eq, Const(0.5), Mul, Add]].concat();
    plus(first.map(|d| times(&share(x, y), &d)), second.map(|d| times(&share(y, x), &d)))
}

/// The derivative by the rules of sum, product and chain.
fn derived(program: &[Prim], operand: u8) -> Result<Term> {
    let mut stack: Vec<(Vec<Prim>, Term)> = Vec::new();
    for &prim in program {
        let mut pop = || stack.pop().unwrap_or_default();
        let next = match prim {
            Input(i) => (vec![prim], (i == operand).then(|| vec![Const(1.0)])),
            Neg => {
                let (a, da) = pop();
                (after(&a, Neg), da.map(|da| after(&da, Neg)))
            }
            Exp | Log | Sin | Cos | Erfc => {
                let (a, da) = pop();
                let slope = || match prim {
                    Log => join(&[Const(1.0)], &a, Div),
                    Sin => after(&a, Cos),
                    Cos => [&*a, &[Sin, Neg]].concat(),
                    Erfc => [&*times(&a, &a), &[Neg, Exp, Const(-FRAC_2_SQRT_PI), Mul]].concat(),
                    _ => after(&a, Exp),
                };
                (after(&a, prim), da.map(|da| times(&slope(), &da)))
            }
            Add | Sub | Mul | Div | Pow | Max | Min => {
                let ((b, db), (a, da)) = (pop(), pop());
                let slope = match prim {
                    Add => plus(da, db),
                    Sub => plus(da, db.map(|db| after(&db, Neg))),
                    Max => shared([&a, &b], [da, db]),
                    Min => shared([&b, &a], [da, db]),
                    Mul => plus(da.map(|da| times(&b, &da)), db.map(|db| times(&a, &db))),
                    Div => {
                        let by_b = |x: &[Prim]| join(x, &b, Div);
                        plus(da.map(|da| by_b(&da)), db.map(|db| after(&times(&by_b(&by_b(&a)), &db), Neg)))
                    }
                    _ => {
                        // b·a^(b−1), but 0 where b is; a^b·ln a, but 0 where a is: there they would be 0·∞.
                        let guarded = |x: &[Prim], slope: &[Prim]| [x, &[Const(0.0), Eq, Const(0.0)], slope, &[Select]].concat();
                        let by_a = || guarded(&b, &times(&b, &join(&a, &join(&b, &[Const(-1.0)], Add), Pow)));
                        let by_b = || guarded(&a, &times(&join(&a, &b, Pow), &after(&a, Log)));
                        plus(da.map(|da| times(&by_a(), &da)), db.map(|db| times(&by_b(), &db)))
                    }
                };
                (join_as_written(&a, &b, prim), slope)
            }
            Select => {
                let ((b, db), (a, da), (c, _)) = (pop(), pop(), pop());
                let zero = || vec![Const(0.0)];
                let slope =
                    (da.is_some() || db.is_some()).then(|| [&*c, &da.unwrap_or_else(zero), &db.unwrap_or_else(zero), &[Select]].concat());
                ([&*c, &a, &b, &[Select]].concat(), slope)
            }
            // Steps: zero almost everywhere.
            Eq | Gt => {
                let ((b, _), (a, _)) = (pop(), pop());
                (join_as_written(&a, &b, prim), None)
            }
            Const(_) | ConstInt(_) | ConstComplex(..) => (vec![prim], None),
            other => {
                return Err(Error::invalid("derivative", "program", format!("{other:?}"), "this is a fault of the engine: give it a rule"));
            }
        };
        stack.push(next);
    }
    Ok(stack.pop().and_then(|(_, slope)| slope))
}

fn join_as_written(a: &[Prim], b: &[Prim], prim: Prim) -> Vec<Prim> {
    [a, b, &[prim]].concat()
}
