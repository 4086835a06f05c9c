//! What transforms of functions need of their inputs, so that they nest.

use std::collections::HashSet;
use std::sync::Arc;

use crate::schema::modes;
use crate::shape::error::Result;
use crate::tape::{Node, NodeInput, Tensor};

/// The value of `x` as a place of its own, at which a gradient can be asked for. Where `x` is part of a recorded graph the new
/// tensor is a view of it, so that gradients flow on to what `x` came from; tangents of open levels stay.
///
/// Errors: `DtypeMismatch` for integers and bool.
pub fn variable(x: &Tensor) -> Result<Tensor> {
    if x.requires_grad() && modes::is_grad_enabled() { x.reshape(x.shape()) } else { x.fresh_leaf()?.requires_grad_(true) }
}

/// The value of `x` without history, with the tangents of open levels: what a transform shows of a result.
pub fn without_history(x: &Tensor) -> Result<Tensor> {
    x.fresh_leaf()
}

/// Whether a gradient of `outputs` flows to anything but `variables`: whether a derivative by these is to be recorded for others.
/// Cost: a walk of the graph.
pub fn depends_on_others(outputs: &[&Tensor], variables: &[&Tensor]) -> bool {
    let own: Vec<NodeInput> = variables.iter().map(|v| v.node_input()).collect();
    let is_own = |input: &NodeInput| {
        own.iter().any(|o| match (o, input) {
            (NodeInput::Leaf(a), NodeInput::Leaf(b)) => Arc::ptr_eq(a, b),
            (NodeInput::Interior(a), NodeInput::Interior(b)) => Arc::ptr_eq(&a.node.0, &b.node.0) && a.index == b.index,
            _ => false,
        })
    };
    // A variable that is a view of something tracked is wanted by whoever tracks that.
    if own.iter().any(|o| matches!(o, NodeInput::Interior(_))) {
        return true;
    }
    let mut seen = HashSet::new();
    let mut stack: Vec<Node> = Vec::new();
    let mut is_foreign = |input: &NodeInput, stack: &mut Vec<Node>| match input {
        NodeInput::Constant => false,
        input if is_own(input) => false,
        // A variable of a transform that is done wants nothing any more.
        NodeInput::Leaf(slot) => slot.is_wanted(),
        NodeInput::Interior(edge) => {
            if seen.insert(Arc::as_ptr(&edge.node.0).addr()) {
                stack.push(edge.node.clone());
            }
            false
        }
    };
    if outputs.iter().any(|o| is_foreign(&o.node_input(), &mut stack)) {
        return true;
    }
    while let Some(node) = stack.pop() {
        if node.inputs().iter().any(|input| is_foreign(input, &mut stack)) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::{depends_on_others, variable};
    use crate::{Device, Result, Tensor};

    #[test]
    fn others_are_leaves_outside_and_what_variables_come_from() -> Result<()> {
        let scalar = |x: f64| Tensor::scalar(x, &Device::reference());
        let (x, w) = (variable(&scalar(2.)?)?, scalar(3.)?.requires_grad_(true)?);
        let own = x.mul(&x)?.mul_scalar(2.)?;
        assert!(!depends_on_others(&[&own, &x], &[&x]));
        assert!(depends_on_others(&[&own.mul(&w)?], &[&x]));
        assert!(depends_on_others(&[&own, &w], &[&x]));
        let inner = variable(&x)?;
        assert!(inner.edge().is_some() && depends_on_others(&[&inner.mul(&inner)?], &[&inner]));
        Ok(())
    }
}
