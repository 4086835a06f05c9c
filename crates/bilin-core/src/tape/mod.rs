//! Tensors, the nodes that recorded ops leave behind, and the trait of ops.

mod node;
mod op;
mod tensor;

pub use node::{Edge, GradSlot, Hook, Node, NodeInput, Saved, live_nodes};
pub(crate) use node::{SavedValue, Written, clear_held, last_sequence};
pub use op::{Grads, Inference, Meta, Op, Rewritten, Saves, Tensors, Vmap};
pub(crate) use tensor::Lanes;
pub use tensor::{Tangents, Tensor};
