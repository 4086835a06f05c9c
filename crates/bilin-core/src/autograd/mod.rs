//! Derivatives: the reverse pass, forward mode, transforms built of both, and checks of gradients.

mod check;
mod forward;
mod reverse;
mod tensor;
mod transforms;
mod variable;

pub use check::{GradcheckOptions, gradcheck, gradgradcheck};
pub use forward::{hvp, jvp, jvp_many};
pub use reverse::{BackwardOptions, GradOptions, backward, grad};
pub use tensor::HookHandle;
pub use transforms::{hessian, jacobian, value_and_grad, vjp};
pub use variable::{depends_on_others, variable, without_history};
