//! Functions with gradients of their own.

use std::fmt;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use crate::exec::device::Device;
use crate::exec::launch::View;
use crate::ops::{each_lane, push_forward};
use crate::schema::{self, OpSchema, modes};
use crate::shape::dtype::DType;
use crate::shape::error::{Error, OpName, Result};
use crate::tape::{Edge, Grads, Inference, KeptOp, Meta, Node, Op, Saved, SavedValue, Tensor, Tensors, clear_held};

/// A function whose gradient the user writes. Fields hold the arguments that are no tensors.
///
/// Gradient: [`Function::backward`]; written in ops it is differentiable again, so second derivatives need no more code.
/// Forward mode: [`Function::jvp`], where it is written. Results may be operands, or views of them.
///
/// ```
/// use bilin_core::autograd::{BackwardContext, ForwardContext, Function};
/// use bilin_core::{Device, Result, Tensor};
///
/// struct Cube;
/// impl Function for Cube {
///     fn forward(&self, ctx: &mut ForwardContext, x: &[Tensor]) -> Result<Vec<Tensor>> {
///         ctx.save_for_backward(&[&x[0]]);
///         Ok(vec![x[0].mul(&x[0])?.mul(&x[0])?])
///     }
///     fn backward(&self, ctx: &BackwardContext, g: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
///         let x = &ctx.saved()[0];
///         Ok(vec![Some(g[0].mul(&x.mul(x)?.mul_scalar(3.0)?)?)])
///     }
/// }
///
/// let x = Tensor::scalar(2f64, &Device::reference())?.requires_grad_(true)?;
/// let y = Cube.apply(&[&x])?.remove(0);
/// assert_eq!(y.grad_fn().unwrap().name(), "CubeBackward");
/// y.backward()?;
/// assert_eq!(x.grad().unwrap().item::<f64>()?, 12.0);
/// # Ok::<(), bilin_core::Error>(())
/// ```
pub trait Function: Send + Sync + 'static {
    /// The name that graphs, profiles and errors print; the type's own unless another is given.
    fn name(&self) -> &str {
        let path = std::any::type_name::<Self>();
        let path = path.split('<').next().unwrap_or(path);
        path.rsplit("::").next().unwrap_or(path)
    }

    /// The results for `inputs`. Runs without recording; what `backward` reads is named to `ctx`.
    fn forward(&self, ctx: &mut ForwardContext, inputs: &[Tensor]) -> Result<Vec<Tensor>>;

    /// The gradient of each input, in order; `None` is zero. `g` holds the gradient of each result, zeros for one that
    /// nobody used. Recorded where the caller asked for `create_graph`; under the autocast scope of the forward call.
    fn backward(&self, ctx: &BackwardContext, g: &[Tensor]) -> Result<Vec<Option<Tensor>>>;

    /// The tangent of each result for the tangents of the inputs, zeros for inputs that don't move; `None` is zero. In ops,
    /// so that it is differentiable again. Without it the function has no forward mode, and says so.
    fn jvp(&self, inputs: &[Tensor], outputs: &[Tensor], tangents: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let _ = (inputs, outputs, tangents);
        Err(Error::NotDifferentiable {
            op: self.name().to_owned().into(),
            what: "has no rule for forward mode".into(),
            remedy: "write Function::jvp, or use reverse mode",
        })
    }

    /// Calls the function: `forward` now, `backward` when a gradient arrives.
    ///
    /// Errors: what `forward` returns; in backward `VersionMismatch` for a saved value changed in place since,
    /// `InvalidArgument` for a wrong number or shape of gradients, `DtypeMismatch` for a gradient of another kind of dtype.
    fn apply(self, inputs: &[&Tensor]) -> Result<Vec<Tensor>>
    where
        Self: Sized,
    {
        apply_function(Box::new(self), inputs)
    }
}

/// [`Function::apply`] for a function known only at run time, such as a class of another language.
pub fn apply_function(function: Box<dyn Function>, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
    let schema = schema::of_function(function.name());
    let call = Arc::new(Call { schema, function: Some(function), scope: modes::autocast_dtype() });
    Ok(run(&call, inputs)?.0.into_vec())
}

/// What [`Function::forward`] tells of its call.
pub struct ForwardContext {
    needs_input_grad: SmallVec<[bool; 4]>,
    saved: Vec<Tensor>,
    constants: Vec<Tensor>,
    non_differentiable: Vec<Tensor>,
}

impl ForwardContext {
    /// Whether a gradient of input `i` may be asked for; if not, nothing needs to be saved for it.
    pub fn needs_input_grad(&self, i: usize) -> bool {
        self.needs_input_grad.get(i).copied().unwrap_or(false)
    }

    /// Keeps inputs and results for `backward`, each with its version. Other tensors may be kept too, but have no
    /// derivative: a second derivative through one is `NotDifferentiable`, never silently zero. Replaces what was saved.
    pub fn save_for_backward(&mut self, tensors: &[&Tensor]) {
        self.saved = tensors.iter().map(|t| (*t).clone()).collect();
    }

    /// Keeps tensors that don't move with the inputs, such as a random mask: their derivative is zero. Replaces what was kept.
    pub fn save_constants(&mut self, tensors: &[&Tensor]) {
        self.constants = tensors.iter().map(|t| (*t).clone()).collect();
    }

    /// Says that no gradient flows through these results. Results of integers and bool never have one.
    pub fn mark_non_differentiable(&mut self, outputs: &[&Tensor]) {
        self.non_differentiable = outputs.iter().map(|t| (*t).clone()).collect();
    }
}

/// What [`Function::backward`] may read.
pub struct BackwardContext {
    saved: Vec<Tensor>,
    constants: Vec<Tensor>,
    needs_input_grad: SmallVec<[bool; 4]>,
    has_output_grad: SmallVec<[bool; 2]>,
}

impl BackwardContext {
    /// What was saved, in that order.
    pub fn saved(&self) -> &[Tensor] {
        &self.saved
    }

    /// The constants that were kept, in that order.
    pub fn constants(&self) -> &[Tensor] {
        &self.constants
    }

    /// Whether this pass wants the gradient of input `i`.
    pub fn needs_input_grad(&self, i: usize) -> bool {
        self.needs_input_grad.get(i).copied().unwrap_or(false)
    }

    /// Whether a gradient arrived at result `i`; if not, it is zeros that take no memory.
    pub fn has_output_grad(&self, i: usize) -> bool {
        self.has_output_grad.get(i).copied().unwrap_or(false)
    }
}

/// One call of a function, shared by its nodes.
struct Call {
    schema: &'static OpSchema,
    /// Taken when dropped.
    function: Option<Box<dyn Function>>,
    scope: Option<DType>,
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(function) = self.function.take() {
            clear_held(Box::new(function));
        }
    }
}

/// What a saved tensor is to the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Operand(usize),
    Result(usize),
    /// Computed on the way.
    Intermediate,
    Constant,
}

/// The recorded op.
struct Recorded {
    call: Arc<Call>,
    roles: Vec<Role>,
    devices: SmallVec<[Device; 1]>,
    /// The operands had tangents.
    has_tangents: bool,
    /// Results that gradients read are computed again from the operands: kept ones would own the node through their tangents.
    recomputes: bool,
}

impl fmt::Debug for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({:?})", self.call.schema.name, self.roles)
    }
}

/// Runs the function: its results with their history and tangents, and what it saved.
fn run(call: &Arc<Call>, inputs: &[&Tensor]) -> Result<(Tensors, Vec<(Role, Tensor)>)> {
    let Some(function) = &call.function else { return Ok(Default::default()) };
    let records = modes::is_grad_enabled() && inputs.iter().any(|t| t.requires_grad());
    let level = modes::tangent_level();
    let has_tangents = level > 0 && inputs.iter().any(|t| t.has_tangent(level));
    let owned: Vec<Tensor> = inputs.iter().map(|t| (*t).clone()).collect();
    let mut ctx = ForwardContext {
        needs_input_grad: inputs.iter().map(|t| records && t.requires_grad()).collect(),
        saved: Vec::new(),
        constants: Vec::new(),
        non_differentiable: Vec::new(),
    };
    let results = {
        let _plain = modes::set_grad_enabled(false);
        // The function's own rule makes tangents, not the ops inside it, whose derivative may be another.
        let _still = modes::set_tangent_level(0);
        let _scope = modes::set_autocast(call.scope);
        function.forward(&mut ctx, &owned)?
    };
    let role = |t: &Tensor| {
        let operand = owned.iter().position(|x| x.is_same(t)).map(Role::Operand);
        operand.or_else(|| results.iter().position(|y| y.is_same(t)).map(Role::Result)).unwrap_or(Role::Intermediate)
    };
    let mut saved: Vec<(Role, Tensor)> = ctx.saved.iter().map(|t| (role(t), t.clone())).collect();
    saved.extend(ctx.constants.iter().map(|t| (Role::Constant, t.detach())));
    let views: SmallVec<[View; 1]> = results.iter().map(|t| t.view().clone()).collect();
    let recomputes = has_tangents && saved.iter().any(|(role, _)| matches!(role, Role::Result(_)));
    let recorded = KeptOp::Shared(Arc::new(Recorded {
        call: call.clone(),
        roles: saved.iter().map(|(role, _)| *role).collect(),
        devices: results.iter().map(|t| t.device().clone()).collect(),
        has_tangents,
        recomputes,
    }));
    let node = records.then(|| {
        let chosen =
            if recomputes { Vec::new() } else { saved.iter().enumerate().map(|(i, s)| kept(i, s, inputs.len(), results.len())).collect() };
        Node::record_chosen(
            recorded.clone(),
            inputs.iter().map(|t| t.node_input()).collect(),
            inputs.iter().map(|t| Meta::new(t.shape(), t.dtype())).collect(),
            &views,
            if recomputes { &owned } else { &[] },
            chosen,
        )
    });
    let moves: SmallVec<[bool; 2]> =
        results.iter().map(|y| y.dtype().is_differentiable() && !ctx.non_differentiable.iter().any(|t| t.is_same(y))).collect();
    let plain = views.into_iter().zip(&moves).enumerate().map(|(index, (view, moves))| {
        let edge = node.as_ref().filter(|_| *moves).map(|node| Edge { node: node.clone(), index });
        Tensor::made_by(view, edge)
    });
    let mut outputs: Tensors = plain.collect();
    if has_tangents {
        let moved = push_forward(&recorded, inputs, outputs.clone(), level)?;
        for ((output, moved), _) in outputs.iter_mut().zip(moved).zip(&moves).filter(|(_, moves)| **moves) {
            *output = moved;
        }
    }
    for (role, t) in &mut saved {
        if let Role::Result(i) = role {
            *t = outputs[*i].clone();
        }
    }
    Ok((outputs, saved))
}

fn kept(at: usize, (role, t): &(Role, Tensor), operands: usize, results: usize) -> SavedValue {
    match role {
        Role::Operand(i) => SavedValue::new(t.clone(), *i, false),
        Role::Result(i) => SavedValue::new(t.clone(), operands + i, true),
        Role::Intermediate | Role::Constant => SavedValue::new(t.detach(), operands + results + at, false),
    }
}

/// Zeros that take the memory of one.
fn zeros(meta: &Meta, device: &Device) -> Result<Tensor> {
    Tensor::zeros([], meta.dtype, device)?.broadcast_to(meta.shape.as_slice())
}

/// Refuses a gradient or tangent that doesn't fit what it belongs to.
fn check(op: &OpName, what: &'static str, i: usize, got: &Tensor, want: &Meta) -> Result<()> {
    if got.shape() != want.shape.as_slice() {
        let got = format!("{i} of shape {}", crate::shape_text(got.shape()));
        return Err(Error::invalid(op.clone(), what, got, format!("want shape {}", crate::shape_text(&want.shape))));
    }
    if got.dtype().kind() != want.dtype.kind() {
        return Err(Error::DtypeMismatch {
            op: op.clone(),
            dtypes: vec![want.dtype, got.dtype()],
            remedy: "a derivative has the kind of dtype of its value, real or complex; convert with astype",
        });
    }
    Ok(())
}

fn check_count(op: &OpName, what: &'static str, got: usize, want: usize) -> Result<()> {
    if got == want {
        return Ok(());
    }
    Err(Error::invalid(op.clone(), what, format!("{got} of them"), format!("want {want}, None for those that are zero")))
}

impl Recorded {
    fn name(&self) -> OpName {
        self.call.schema.name.into()
    }

    fn unmoved(&self, what: &str) -> Error {
        Error::NotDifferentiable {
            op: self.name(),
            what: format!("{what} of a saved value that is neither operand nor result"),
            remedy: "return it as a result too, compute it again in backward, or keep it with save_constants if it doesn't move",
        }
    }

    /// What was saved, with its history, constants last.
    fn unpack(&self, saved: &Saved) -> Result<Vec<Tensor>> {
        if self.recomputes {
            let inputs = saved.all_inputs().unwrap_or_default();
            return Ok(run(&self.call, &inputs)?.1.into_iter().map(|(_, t)| t).collect());
        }
        let mut out = Vec::new();
        for (role, t) in self.roles.iter().zip(&saved.chosen) {
            let moves = *role == Role::Intermediate && t.dtype().is_differentiable();
            if moves && self.has_tangents && modes::tangent_level() > 0 {
                return Err(self.unmoved("no tangent is known"));
            }
            let is_refused = moves && modes::is_grad_enabled();
            out.push(if is_refused { unmoved(self.unmoved("no derivative is known"), saved.node, t) } else { t.clone() });
        }
        Ok(out)
    }
}

impl Op for Recorded {
    fn schema(&self) -> &'static OpSchema {
        self.call.schema
    }
    fn infer(&self, _inputs: &[Meta]) -> Result<Inference> {
        Err(Error::invalid(self.name(), "call", "an op", "call Function::apply"))
    }
    fn eval(&self, _inputs: &[&View], _outputs: &[Meta]) -> Result<SmallVec<[View; 1]>> {
        Err(Error::invalid(self.name(), "call", "an op", "call Function::apply"))
    }

    fn vjp(&self, saved: &Saved, need: &[Option<DType>], g: &[Option<Tensor>]) -> Result<Grads> {
        let Some(function) = &self.call.function else { return Ok(Grads::new()) };
        let _scope = modes::set_autocast(self.call.scope);
        let mut kept = self.unpack(saved)?;
        let constants = kept.split_off(self.roles.iter().position(|r| *r == Role::Constant).unwrap_or(kept.len()));
        let ctx = BackwardContext {
            saved: kept,
            constants,
            needs_input_grad: need.iter().map(Option::is_some).collect(),
            has_output_grad: (0..self.devices.len()).map(|i| g.get(i).is_some_and(Option::is_some)).collect(),
        };
        let mut all = Vec::new();
        for (i, (meta, device)) in saved.output_metas().iter().zip(&self.devices).enumerate() {
            all.push(Some(g.get(i).cloned().flatten().map_or_else(|| zeros(meta, device), Ok)?));
        }
        each_lane(&all, &mut |g| {
            let grads = function.backward(&ctx, &g.iter().flatten().cloned().collect::<Vec<_>>())?;
            check_count(&self.name(), "gradients", grads.len(), need.len())?;
            for (i, (grad, want)) in grads.iter().zip(saved.input_metas()).enumerate() {
                if let (Some(grad), Some(_)) = (grad, need[i]) {
                    check(&self.name(), "gradient", i, grad, want)?;
                }
            }
            Ok(grads.into())
        })
    }

    fn jvp(&self, inputs: &[Tensor], outputs: &[Tensor], tangents: &[Option<Tensor>]) -> Result<Grads> {
        let Some(function) = &self.call.function else { return Ok(Grads::new()) };
        let _scope = modes::set_autocast(self.call.scope);
        let mut all = Vec::new();
        for (x, t) in inputs.iter().zip(tangents) {
            all.push(Some(t.clone().map_or_else(|| zeros(&Meta::new(x.shape(), x.dtype()), x.device()), Ok)?));
        }
        each_lane(&all, &mut |t| {
            let made = function.jvp(inputs, outputs, &t.iter().flatten().cloned().collect::<Vec<_>>())?;
            check_count(&self.name(), "tangents", made.len(), outputs.len())?;
            for (i, (t, y)) in made.iter().zip(outputs).enumerate() {
                if let Some(t) = t {
                    check(&self.name(), "tangent", i, t, &Meta::new(y.shape(), y.dtype()))?;
                }
            }
            Ok(made.into())
        })
    }
}

/// Stands behind a saved value whose derivative nobody knows: a gradient that reaches it is an error.
struct Unmoved(Error);

impl fmt::Debug for Unmoved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Unmoved({})", self.0)
    }
}

fn unmoved(error: Error, node: &Node, t: &Tensor) -> Tensor {
    let (inputs, metas) = (node.0.inputs.clone(), node.0.input_metas.clone());
    let behind =
        Node::record_chosen(KeptOp::Shared(Arc::new(Unmoved(error))), inputs, metas, std::slice::from_ref(t.view()), &[], Vec::new());
    Tensor::made_by(t.view().clone(), Some(Edge { node: behind, index: 0 }))
}

impl Op for Unmoved {
    fn schema(&self) -> &'static OpSchema {
        schema::of_function("saved_value")
    }
    fn infer(&self, _inputs: &[Meta]) -> Result<Inference> {
        Err(self.0.clone())
    }
    fn eval(&self, _inputs: &[&View], _outputs: &[Meta]) -> Result<SmallVec<[View; 1]>> {
        Err(self.0.clone())
    }
    fn vjp(&self, _saved: &Saved, _need: &[Option<DType>], _g: &[Option<Tensor>]) -> Result<Grads> {
        Err(self.0.clone())
    }
    fn jvp(&self, _inputs: &[Tensor], _outputs: &[Tensor], _tangents: &[Option<Tensor>]) -> Result<Grads> {
        Ok(smallvec![])
    }
}
