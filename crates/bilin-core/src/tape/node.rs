//! Recorded ops: what they came from and what they saved.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use smallvec::SmallVec;

use super::op::{KeptOp, Meta, Metas};
use super::ruins::{Ruin, clear};
use super::slot::{GradSlot, lock, next_sequence};
use super::tensor::Tensor;
use crate::exec::launch::View;
use crate::schema::OpSchema;
use crate::shape::dtype::DType;
use crate::shape::error::{Error, Result};

static LIVE: AtomicUsize = AtomicUsize::new(0);

/// Number of recorded nodes alive in the process.
pub fn live_nodes() -> usize {
    LIVE.load(Relaxed)
}

/// Result `index` of a recorded op.
#[derive(Clone)]
pub struct Edge {
    /// The op.
    pub node: Node,
    /// Which of its results.
    pub index: usize,
}

/// Where an operand of a recorded op came from.
#[derive(Clone)]
pub enum NodeInput {
    /// No gradient goes there.
    Constant,
    /// A leaf that requires a gradient.
    Leaf(Arc<GradSlot>),
    /// Another recorded op.
    Interior(Edge),
}

impl NodeInput {
    /// The place where its gradient is watched.
    pub(crate) fn slot(&self) -> Option<&GradSlot> {
        match self {
            NodeInput::Constant => None,
            NodeInput::Leaf(slot) => Some(slot),
            NodeInput::Interior(edge) => edge.node.0.outputs.get(edge.index),
        }
    }
}

/// A value kept for backward, with the version it had.
pub(crate) struct SavedValue {
    value: Tensor,
    version: u64,
    /// Which operand it is; results follow the operands, other values the results.
    operand: u32,
    /// A result of the node itself is kept without its edge, else the node would own itself.
    is_output: bool,
}

impl SavedValue {
    pub(crate) fn new(value: Tensor, operand: usize, is_output: bool) -> SavedValue {
        let value = if is_output { value.detach() } else { value };
        SavedValue { version: value.version(), value, operand: operand as u32, is_output }
    }
}

/// What an op's gradient may read.
pub struct Saved<'a> {
    inputs: SmallVec<[Option<Tensor>; 2]>,
    outputs: SmallVec<[Option<Tensor>; 1]>,
    /// What a custom function chose to keep; nothing for other ops.
    pub(crate) chosen: Vec<Tensor>,
    /// The node whose gradient is asked for.
    pub(crate) node: &'a Node,
    /// The operands as the user wrote them, where they differ from those recorded.
    written: Option<&'a Metas>,
}

impl<'a> Saved<'a> {
    /// Operand `i`, which [`Op::saves`](super::op::Op::saves) asked for.
    pub fn input(&self, i: usize) -> Result<&Tensor> {
        self.inputs.get(i).and_then(Option::as_ref).ok_or_else(|| self.missing("input", i))
    }

    /// Result `i`, which [`Op::saves`](super::op::Op::saves) asked for.
    pub fn output(&self, i: usize) -> Result<&Tensor> {
        self.outputs.get(i).and_then(Option::as_ref).ok_or_else(|| self.missing("output", i))
    }

    /// Shapes and dtypes of the operands.
    pub fn input_metas(&self) -> &[Meta] {
        self.written.unwrap_or(&self.node.0.input_metas)
    }

    /// Shapes and dtypes of the results.
    pub fn output_metas(&self) -> SmallVec<[Meta; 1]> {
        self.node.0.outputs.iter().map(|o| Meta { shape: o.shape.clone(), dtype: o.dtype }).collect()
    }

    /// All operands, where every one was kept.
    pub(crate) fn all_inputs(&self) -> Option<SmallVec<[&Tensor; 2]>> {
        let kept: SmallVec<[&Tensor; 2]> = self.inputs.iter().filter_map(Option::as_ref).collect();
        (kept.len() == self.node.0.inputs.len()).then_some(kept)
    }

    /// Results that were computed again.
    pub(crate) fn set_outputs(&mut self, outputs: impl IntoIterator<Item = Tensor>) {
        self.outputs = outputs.into_iter().map(Some).collect();
    }

    /// The operands as `metas` say, which those that were kept broadcast to.
    pub(crate) fn expand(&mut self, metas: &'a Metas, broadcast: impl Fn(&Tensor, &[usize]) -> Result<Tensor>) -> Result<()> {
        for (kept, meta) in self.inputs.iter_mut().zip(metas) {
            if let Some(t) = kept.as_mut().filter(|t| t.shape() != meta.shape.as_slice()) {
                *t = broadcast(t, &meta.shape)?;
            }
        }
        self.written = Some(metas);
        Ok(())
    }

    fn missing(&self, what: &'static str, i: usize) -> Error {
        Error::invalid(self.node.schema().name, what, format!("{i}, which wasn't saved"), "name it in Op::saves")
    }
}

/// An op as the user wrote it, where the one recorded reads the sources of its operands: for gradients of these operands.
pub(crate) struct Written {
    pub(crate) op: KeptOp,
    pub(crate) inputs: SmallVec<[NodeInput; 2]>,
    pub(crate) metas: Metas,
}

impl Written {
    pub(crate) fn new(op: KeptOp, inputs: &[&Tensor], metas: Metas) -> Written {
        Written { op, inputs: inputs.iter().map(|t| t.node_input()).collect(), metas }
    }
}

/// A recorded op. Clones are the same node.
#[derive(Clone)]
pub struct Node(pub(crate) Arc<NodeInner>);

pub(crate) struct NodeInner {
    pub(crate) op: KeptOp,
    pub(crate) sequence: u64,
    pub(crate) inputs: SmallVec<[NodeInput; 2]>,
    pub(crate) input_metas: Metas,
    pub(crate) outputs: SmallVec<[GradSlot; 1]>,
    /// Results that gradients read are computed again from the operands: kept ones would own the node through their
    /// tangents.
    pub(crate) recomputes: bool,
    pub(crate) written: Option<Box<Written>>,
    /// How many values were chosen beside operands and results.
    chosen: u32,
    /// `None` once a pass has let go of them.
    saved: Mutex<Option<SavedValues>>,
}

/// By operand, ascending; what was chosen beside operands and results comes last.
type SavedValues = SmallVec<[SavedValue; 2]>;

impl Node {
    /// Records `op`; `views` are its results, `keep` says which operands and results its gradients read.
    #[expect(clippy::too_many_arguments, reason = "the facts of one node")]
    pub(crate) fn record(
        op: KeptOp,
        inputs: &[&Tensor],
        metas: &Metas,
        views: &[View],
        grad_dtype: impl Fn(DType) -> DType,
        mut keep: super::op::Saves,
        recomputes: bool,
        written: Option<Written>,
    ) -> Node {
        if recomputes {
            keep = super::op::Saves { inputs: u64::MAX, outputs: 0 };
        }
        let mut saved: SavedValues = SmallVec::new();
        let mut origins: SmallVec<[NodeInput; 2]> = SmallVec::new();
        let mut facts: Metas = SmallVec::new();
        for (i, (t, meta)) in inputs.iter().zip(metas).enumerate() {
            facts.push(meta.clone());
            if i < 64 && keep.inputs >> i & 1 == 1 {
                saved.push(SavedValue::new((*t).clone(), i, false));
            }
            origins.push(t.node_input());
        }
        if keep.outputs != 0 {
            for (i, v) in views.iter().enumerate().filter(|(i, _)| keep.outputs >> i & 1 == 1) {
                saved.push(SavedValue::new(Tensor::from_view(v.clone()), inputs.len() + i, true));
            }
        }
        Node::build(op, origins, facts, views, grad_dtype, (saved, 0), recomputes, written)
    }

    /// Records `op` with operands that may be no tensors of the caller's, and `chosen` values beside the operands.
    pub(crate) fn record_chosen(
        op: KeptOp,
        inputs: SmallVec<[NodeInput; 2]>,
        input_metas: Metas,
        views: &[View],
        operands: &[Tensor],
        chosen: Vec<SavedValue>,
    ) -> Node {
        let mut saved: SavedValues = operands.iter().enumerate().map(|(i, t)| SavedValue::new(t.clone(), i, false)).collect();
        let count = chosen.len() as u32;
        saved.extend(chosen);
        Node::build(op, inputs, input_metas, views, |dtype| dtype, (saved, count), false, None)
    }

    #[expect(clippy::too_many_arguments, reason = "the facts of one node")]
    #[inline]
    fn build(
        op: KeptOp,
        inputs: SmallVec<[NodeInput; 2]>,
        input_metas: Metas,
        views: &[View],
        grad_dtype: impl Fn(DType) -> DType,
        (saved, chosen): (SavedValues, u32),
        recomputes: bool,
        written: Option<Written>,
    ) -> Node {
        let sequence = next_sequence();
        LIVE.fetch_add(1, Relaxed);
        let mut outputs = SmallVec::new();
        for v in views {
            outputs.push(GradSlot::new(sequence, v.layout.shape(), v.dtype, grad_dtype(v.dtype)));
        }
        let (saved, written) = (Mutex::new(Some(saved)), written.map(Box::new));
        Node(Arc::new(NodeInner { op, sequence, inputs, input_metas, outputs, recomputes, written, chosen, saved }))
    }

    /// `MatmulBackward`, …
    pub fn name(&self) -> &'static str {
        self.schema().node_name()
    }

    /// The schema of the user's op.
    pub fn schema(&self) -> &'static OpSchema {
        self.0.op.schema()
    }

    /// Where its operands came from.
    pub fn inputs(&self) -> &[NodeInput] {
        &self.0.inputs
    }

    /// Whether two handles are one node.
    pub fn is_same(&self, other: &Node) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The saved values, each checked against its version.
    pub(crate) fn unpack(&self) -> Result<Saved<'_>> {
        let name = self.schema().name;
        let guard = lock(&self.0.saved);
        let Some(values) = &*guard else {
            return Err(Error::GraphFreed { op: name.into() });
        };
        let mut saved = Saved { inputs: SmallVec::new(), outputs: SmallVec::new(), chosen: Vec::new(), node: self, written: None };
        let count = self.0.inputs.len();
        let first_chosen = values.len() - self.0.chosen as usize;
        for (i, kept) in values.iter().enumerate() {
            let current = kept.value.version();
            let operand = kept.operand as usize;
            if current != kept.version {
                let shape = kept.value.shape().to_vec();
                return Err(Error::VersionMismatch { op: name.into(), operand, shape, saved: kept.version, current });
            }
            let value = if kept.is_output {
                let edge = Edge { node: self.clone(), index: operand - count };
                Tensor::made_by(kept.value.view().clone(), Some(edge))
            } else {
                kept.value.clone()
            };
            if i >= first_chosen {
                saved.chosen.push(value);
            } else if operand < count {
                put(&mut saved.inputs, operand, value);
            } else {
                put(&mut saved.outputs, operand - count, value);
            }
        }
        Ok(saved)
    }

    /// Lets go of the saved values. A node that saved nothing can be gone through again.
    pub(crate) fn release(&self) {
        let mut guard = lock(&self.0.saved);
        if guard.as_ref().is_some_and(|values| !values.is_empty()) {
            let old = guard.take();
            drop(guard);
            drop(old);
        }
    }
}

fn put<A: smallvec::Array<Item = Option<Tensor>>>(list: &mut SmallVec<A>, at: usize, value: Tensor) {
    while list.len() < at {
        list.push(None);
    }
    list.push(Some(value));
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
impl fmt::Debug for NodeInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeInput::Constant => f.write_str("Constant"),
            NodeInput::Leaf(slot) => write!(f, "Leaf({:?})", slot.shape),
            NodeInput::Interior(edge) => write!(f, "{:?}", edge.node),
        }
    }
}
impl fmt::Debug for Edge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}[{}]", self.node, self.index)
    }
}

impl Drop for NodeInner {
    /// Long chains drop without recursion: a node that is dropped while another is hands its parts to that one's loop.
    fn drop(&mut self) {
        LIVE.fetch_sub(1, Relaxed);
        let mut ruins = SmallVec::new();
        for input in std::mem::take(&mut self.inputs) {
            // A handle that isn't the last frees nothing.
            if let NodeInput::Interior(edge) = input
                && Arc::strong_count(&edge.node.0) == 1
            {
                ruins.push(Ruin::Node(edge.node));
            }
        }
        for kept in self.saved.get_mut().unwrap_or_else(PoisonError::into_inner).take().into_iter().flatten() {
            if kept.value.is_last_handle() {
                ruins.push(Ruin::Tensor(kept.value));
            }
        }
        ruins.extend(self.written.take().map(|written| Ruin::Held(written)));
        for slot in &mut self.outputs {
            ruins.extend(slot.take_kept().map(Ruin::Held));
        }
        clear(ruins);
    }
}
