//! Tensors, the nodes that recorded ops leave behind, and the trait of ops.

mod node;
mod op;
mod reads;
mod ruins;
mod slot;
mod tensor;

pub use node::{Edge, Node, NodeInput, Saved, live_nodes};
pub(crate) use node::{SavedValue, Written};
pub(crate) use op::Metas;
pub use op::{Grads, Inference, KeptOp, Meta, Op, Rewritten, Saves, Tensors, Vmap};
pub(crate) use reads::{Read, note, reads_of};
pub(crate) use ruins::clear_held;
pub(crate) use slot::last_sequence;
pub use slot::{GradSlot, Hook};
pub(crate) use tensor::Lanes;
pub use tensor::{Tangents, Tensor};
