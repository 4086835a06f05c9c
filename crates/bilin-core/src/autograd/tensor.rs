//! What tensors say of their gradients.

use std::sync::Arc;

use super::reverse::{BackwardOptions, backward};
use crate::shape::dtype::DType;
use crate::shape::error::{Error, Result};
use crate::tape::{Edge, GradSlot, Node, NodeInput, Tensor};

/// Takes a hook off again.
#[derive(Debug, Clone)]
pub struct HookHandle {
    input: NodeInput,
    id: u64,
}

impl HookHandle {
    /// The hook won't run any more.
    pub fn remove(&self) {
        if let Some(slot) = self.input.slot() {
            slot.remove_hook(self.id);
        }
    }
}

impl Tensor {
    /// Says whether this leaf requires a gradient, and returns it. Errors: `DtypeMismatch` for integers and bool,
    /// `InvalidArgument` for turning it off on an interior tensor.
    pub fn requires_grad_(self, on: bool) -> Result<Tensor> {
        if on && !self.dtype().is_differentiable() {
            return Err(Error::DtypeMismatch {
                op: "requires_grad_".into(),
                dtypes: vec![self.dtype()],
                remedy: "only floating and complex tensors have gradients; convert with astype",
            });
        }
        if self.edge().is_some() {
            return if on { Ok(self) } else { Err(Error::invalid("requires_grad_", "self", "an interior tensor", "use detach")) };
        }
        if on || self.leaf().is_some() {
            self.leaf_or_init().set_wanted(on);
        }
        Ok(self)
    }

    /// Whether a gradient flows to or through this tensor.
    pub fn requires_grad(&self) -> bool {
        self.edge().is_some() || self.leaf().is_some_and(|l| l.is_wanted())
    }

    /// Whether no recorded op made it.
    pub fn is_leaf(&self) -> bool {
        self.edge().is_none()
    }

    /// The gradient accumulated so far, of a leaf or of an interior tensor that retains it.
    pub fn grad(&self) -> Option<Tensor> {
        self.slot().and_then(GradSlot::grad)
    }

    /// Where its gradient is kept, if anything was recorded of it.
    fn slot(&self) -> Option<&GradSlot> {
        match self.edge() {
            None => self.leaf().map(AsRef::as_ref),
            Some(Edge { node, index }) => node.0.outputs.get(*index),
        }
    }

    /// Puts a gradient in place, or takes it away. Errors: `InvalidArgument` for another shape.
    pub fn set_grad(&self, grad: Option<Tensor>) -> Result<()> {
        if let Some(g) = &grad
            && g.shape() != self.shape()
        {
            return Err(Error::invalid(
                "set_grad",
                "grad",
                format!("of shape {}", crate::shape_text(g.shape())),
                format!("want {}", crate::shape_text(self.shape())),
            ));
        }
        match self.edge() {
            None => self.leaf_or_init().set_grad(grad),
            Some(_) => self.slot().and_then(|slot| slot.set_grad(grad)),
        };
        Ok(())
    }

    /// Forgets the gradient.
    pub fn zero_grad(&self) {
        if let Some(slot) = self.slot() {
            slot.set_grad(None);
        }
    }

    /// The dtype in which the gradient of this leaf is kept: its own, or f32 for a half, into which products write without
    /// rounding in between. Errors: `InvalidArgument` for an interior tensor or a dtype narrower than its own.
    pub fn set_grad_dtype(&self, dtype: DType) -> Result<()> {
        if self.edge().is_some() || (dtype != self.dtype() && !(self.dtype().is_half() && dtype == DType::F32)) {
            return Err(Error::invalid("set_grad_dtype", "dtype", dtype, "want a leaf, and its dtype, or float32 for a half"));
        }
        self.leaf_or_init().set_grad_dtype(dtype);
        Ok(())
    }

    /// The dtype in which the gradient of this tensor is wanted.
    pub fn grad_dtype(&self) -> DType {
        self.node_input().slot().map_or(self.dtype(), |slot| slot.grad_dtype())
    }

    /// Keeps the gradient of this interior tensor for [`Tensor::grad`], after the hooks, in memory of its own; passes add to it.
    /// Leaves keep theirs anyway.
    pub fn retain_grad(&self) -> Result<()> {
        match (self.edge(), self.requires_grad()) {
            (_, false) => {
                Err(Error::invalid("retain_grad", "self", "a tensor that requires no gradient", "call requires_grad_ on an input first"))
            }
            (Some(Edge { node, index }), _) => {
                if let Some(slot) = node.0.outputs.get(*index) {
                    slot.set_wanted(true);
                }
                Ok(())
            }
            (None, true) => Ok(()),
        }
    }

    /// Shows every gradient that flows through this tensor to `hook`, once a pass, after all of its consumers have added to
    /// it; a tensor that comes back takes its place. Hooks of leaves run before the gradient is added to `.grad`, as PyTorch's
    /// do; [`Tensor::register_post_accumulate_grad_hook`] runs after.
    pub fn register_hook(&self, hook: impl Fn(&Tensor) -> Result<Option<Tensor>> + Send + Sync + 'static) -> Result<HookHandle> {
        let input = self.node_input();
        let Some(slot) = input.slot() else {
            return Err(Error::invalid("register_hook", "self", "a tensor that requires no gradient", "call requires_grad_ first"));
        };
        let id = slot.add_hook(Arc::new(hook));
        Ok(HookHandle { input, id })
    }

    /// Calls `hook` with this leaf each time a backward has added to its `.grad`; not for `grad`, which touches none. The leaf
    /// is handed in, so the hook need not hold it. Errors: `InvalidArgument` for a tensor that is no leaf with a gradient.
    pub fn register_post_accumulate_grad_hook(&self, hook: impl Fn(&Tensor) -> Result<()> + Send + Sync + 'static) -> Result<HookHandle> {
        let input = self.node_input();
        let NodeInput::Leaf(slot) = &input else {
            let got = "a tensor that isn't a leaf with a gradient";
            return Err(Error::invalid("register_post_accumulate_grad_hook", "self", got, "use register_hook for interior tensors"));
        };
        let leaf = self.while_held();
        let id = slot.add_after_hook(Arc::new(move || leaf().map_or(Ok(()), |t| hook(&t))));
        Ok(HookHandle { input, id })
    }

    /// Adds the gradient of this real scalar to the `.grad` of the leaves it depends on.
    pub fn backward(&self) -> Result<()> {
        backward(self, BackwardOptions::default())
    }

    /// [`Tensor::backward`] with a cotangent, or for another pass, or recorded.
    pub fn backward_with(&self, options: BackwardOptions) -> Result<()> {
        backward(self, options)
    }

    /// The op that made this tensor, if it was recorded.
    pub fn grad_fn(&self) -> Option<Node> {
        self.edge().map(|e| e.node.clone())
    }
}
