//! Derivatives: the reverse pass, forward mode, transforms built of both, and checks of gradients.

mod check;
mod checkpoint;
mod forward;
mod function;
mod pass;
mod picture;
mod reverse;
mod tensor;
mod transforms;
mod variable;

pub use crate::schema::modes::{detect_anomaly, is_detecting_anomaly};
pub use check::{GradcheckOptions, gradcheck, gradgradcheck};
pub use checkpoint::{checkpoint, checkpoint_with_rng};
pub use forward::{jvp, jvp_many};
pub use function::{BackwardContext, ForwardContext, Function, apply_function};
pub use picture::Picture;
pub use reverse::{BackwardOptions, GradOptions, backward, backward_all, grad};
pub use tensor::HookHandle;
pub use transforms::{hessian, hvp, jacfwd, jacobian, jacrev, value_and_grad, vjp};
pub use variable::{depends_on_others, variable, without_history};
