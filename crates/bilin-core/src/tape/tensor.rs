//! The tensor: a view of shared memory and its place on the tape.

use std::fmt;
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

use super::node::{Edge, NodeInput};
use super::op::Meta;
use super::slot::GradSlot;
use crate::exec::device::Device;
use crate::exec::launch::View;
use crate::shape::dtype::DType;
use crate::shape::error::{Error, Result};
use crate::shape::layout::Layout;

/// Tangents by level, ascending.
pub type Tangents = SmallVec<[(u32, Tensor); 1]>;

/// A strided array on a device. Clones share memory, history and gradient.
///
/// ```
/// use bilin_core::{Device, Tensor};
/// let x = Tensor::from_slice(&[1f32, 2., 3., 4.], [2, 2], &Device::reference())?;
/// assert_eq!(x.matmul(&x)?.to_vec::<f32>()?, [7., 10., 15., 22.]);
/// # Ok::<(), bilin_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Tensor(Arc<Inner>);

struct Inner {
    view: View,
    edge: Option<Edge>,
    /// Set once by `requires_grad_`.
    leaf: OnceLock<Arc<GradSlot>>,
    beside: Option<Box<Beside>>,
}

/// What few tensors have.
#[derive(Default)]
struct Beside {
    tangents: Tangents,
    lanes: Option<Lanes>,
}

/// Several values of one tensor, along the leading axis of `stack`: what a batched derivative computes at once. Ops see the
/// shape of one; deeper levels are taken apart first.
#[derive(Clone)]
pub(crate) struct Lanes {
    pub(crate) level: u32,
    pub(crate) stack: Tensor,
}

impl Tensor {
    /// A tensor without history.
    pub fn from_view(view: View) -> Tensor {
        Tensor::made_by(view, None)
    }

    /// A tensor without tangents.
    #[inline]
    pub(crate) fn made_by(view: View, edge: Option<Edge>) -> Tensor {
        Tensor(Arc::new(Inner { view, edge, leaf: OnceLock::new(), beside: None }))
    }

    pub(crate) fn with_history(view: View, edge: Option<Edge>, tangents: Tangents) -> Tensor {
        let beside = (!tangents.is_empty()).then(|| Box::new(Beside { tangents, lanes: None }));
        Tensor(Arc::new(Inner { view, edge, leaf: OnceLock::new(), beside }))
    }

    /// One tensor for all values along the leading axis of `stack`, which isn't empty; history and tangents are the stack's.
    pub(crate) fn from_lanes(level: u32, stack: Tensor) -> Tensor {
        let layout = stack.layout().narrow(0, 0, 1, 1).squeeze(&[0]);
        let view = View { layout, ..stack.view().clone() };
        let beside = Some(Box::new(Beside { tangents: Tangents::new(), lanes: Some(Lanes { level, stack }) }));
        Tensor(Arc::new(Inner { view, edge: None, leaf: OnceLock::new(), beside }))
    }

    /// The values that this tensor stands for, where it stands for several.
    pub(crate) fn lanes(&self) -> Option<&Lanes> {
        self.0.beside.as_ref()?.lanes.as_ref()
    }

    /// Whether this is one value without tangents.
    pub(crate) fn is_plain(&self) -> bool {
        self.0.beside.is_none()
    }

    /// The view of a tensor that is one value. Errors: `InvalidArgument` for one of several, which only ops take.
    pub(crate) fn single(&self, op: &'static str) -> Result<&View> {
        match self.lanes() {
            None => Ok(self.view()),
            Some(lanes) => {
                let got = format!("the {} values of a batched derivative", lanes.stack.shape()[0]);
                Err(Error::invalid(op, "self", got, "compute with ops alone in the gradient of an op"))
            }
        }
    }

    /// The operand of the node that made this view, as a tensor over `layout` of the same memory; `None` for tensors with
    /// tangents, whose levels would be lost.
    pub(crate) fn source(&self, layout: Layout) -> Option<Tensor> {
        let view = View { layout, ..self.0.view.clone() };
        match (self.edge()?.node.inputs().first()?, self.tangents()) {
            (NodeInput::Interior(edge), []) => Some(Tensor::made_by(view, Some(edge.clone()))),
            (NodeInput::Leaf(slot), []) => {
                let out = Tensor::from_view(view);
                let _ = out.0.leaf.set(slot.clone());
                Some(out)
            }
            _ => None,
        }
    }

    /// The view of memory.
    pub fn view(&self) -> &View {
        &self.0.view
    }

    /// The op that made it and which of its results it is; `None` for leaves.
    pub fn edge(&self) -> Option<&Edge> {
        self.0.edge.as_ref()
    }

    /// Where its gradient goes, if it is a leaf that has required one.
    pub(crate) fn leaf(&self) -> Option<&Arc<GradSlot>> {
        self.0.leaf.get()
    }

    /// The same, made on first use.
    pub(crate) fn leaf_or_init(&self) -> &Arc<GradSlot> {
        self.0.leaf.get_or_init(|| Arc::new(GradSlot::leaf(self.shape(), self.dtype())))
    }

    /// What a recorded op keeps of where this operand came from.
    pub(crate) fn node_input(&self) -> NodeInput {
        match (&self.0.edge, self.leaf()) {
            (Some(edge), _) => NodeInput::Interior(edge.clone()),
            (None, Some(leaf)) if leaf.is_wanted() => NodeInput::Leaf(leaf.clone()),
            _ => NodeInput::Constant,
        }
    }

    /// The same memory without history.
    pub fn detach(&self) -> Tensor {
        match self.lanes() {
            None => Tensor::from_view(self.0.view.clone()),
            Some(Lanes { level, stack }) => Tensor::from_lanes(*level, stack.detach()),
        }
    }

    /// Gives this tensor back while somebody else holds it, without holding it.
    pub(crate) fn while_held(&self) -> impl Fn() -> Option<Tensor> + Send + Sync + 'static {
        let weak = Arc::downgrade(&self.0);
        move || weak.upgrade().map(Tensor)
    }

    /// Whether two handles are of one tensor.
    pub fn is_same(&self, other: &Tensor) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether this handle is the only one of its tensor.
    pub(crate) fn is_last_handle(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// Whether this handle is the only one of its tensor, and the tensor the only view of its memory.
    pub(crate) fn is_unshared(&self) -> bool {
        Arc::strong_count(&self.0) == 1 && Arc::strong_count(&self.0.view.storage) == 1
    }

    /// Tangents of the open levels of forward differentiation.
    pub(crate) fn tangents(&self) -> &[(u32, Tensor)] {
        self.0.beside.as_ref().map_or(&[], |b| b.tangents.as_slice())
    }

    /// Whether a tangent flows with it where those of `level` and below do.
    pub(crate) fn has_tangent(&self, level: u32) -> bool {
        self.tangents().iter().any(|(l, _)| *l <= level)
    }

    /// The tangent of one level.
    pub(crate) fn tangent(&self, level: u32) -> Option<&Tensor> {
        self.tangents().iter().find(|(l, _)| *l == level).map(|(_, t)| t)
    }

    /// The same value and history with other tangents.
    pub(crate) fn with_tangents(&self, tangents: Tangents) -> Tensor {
        let out = Tensor::with_history(self.0.view.clone(), self.0.edge.clone(), tangents);
        if let Some(leaf) = self.leaf() {
            let _ = out.0.leaf.set(leaf.clone());
        }
        out
    }

    /// Lengths of the axes.
    pub fn shape(&self) -> &[usize] {
        self.0.view.layout.shape()
    }
    /// Strides in elements.
    pub fn strides(&self) -> &[isize] {
        self.0.view.layout.strides()
    }
    /// Shape, strides and offset.
    pub fn layout(&self) -> &Layout {
        &self.0.view.layout
    }
    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.shape().len()
    }
    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.0.view.layout.numel()
    }
    /// Shape and dtype.
    #[inline]
    pub(crate) fn meta(&self) -> Meta {
        Meta { shape: self.layout().dims().clone(), dtype: self.dtype() }
    }
    /// Element type.
    pub fn dtype(&self) -> DType {
        self.0.view.dtype
    }
    /// Where it lives.
    pub fn device(&self) -> &Device {
        self.0.view.storage.device()
    }
    /// Whether its elements stand in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        self.0.view.layout.is_contiguous()
    }
    /// How often its memory was changed in place.
    pub fn version(&self) -> u64 {
        self.0.view.storage.version()
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({:?}, {}, {}", self.shape(), self.dtype(), self.device())?;
        if let Some(edge) = self.edge() {
            write!(f, ", {}", edge.node.name())?;
        }
        f.write_str(")")
    }
}
