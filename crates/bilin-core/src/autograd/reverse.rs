//! The reverse pass: nodes in descending order of their making, so each is reached after all that read its results.

use std::collections::{BinaryHeap, HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::ops::{Add, astype, contiguous, run_vjp, run_vjp_onto};
use crate::schema::{modes, profiler};
use crate::shape::dtype::DType;
use crate::shape::error::{Error, OpName, Result};
use crate::tape::{GradSlot, Grads, Node, NodeInput, Tensor, Written};

/// How [`backward`] runs.
#[derive(Debug, Clone, Default)]
pub struct BackwardOptions {
    /// Cotangent of the output, of its shape; 1 for a real scalar where missing.
    pub gradient: Option<Tensor>,
    /// Keeps saved values for another pass; follows `create_graph` where missing.
    pub retain_graph: Option<bool>,
    /// Records the gradients' own computation.
    pub create_graph: bool,
}

/// How [`grad`] runs.
#[derive(Debug, Clone, Default)]
pub struct GradOptions {
    /// A cotangent for each output; 1 for a real scalar where missing.
    pub grad_outputs: Vec<Option<Tensor>>,
    /// Keeps saved values for another pass; follows `create_graph` where missing.
    pub retain_graph: Option<bool>,
    /// Records the gradients' own computation.
    pub create_graph: bool,
    /// Answers `None` for an input that no output depends on, instead of an error.
    pub allow_unused: bool,
}

/// Keys are addresses of live nodes: one multiplication spreads them.
#[derive(Default)]
struct AddressHasher(u64);
impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_usize(usize::from(*b)));
    }
    fn write_usize(&mut self, x: usize) {
        self.0 = (self.0.rotate_left(26) ^ x as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
    fn write_isize(&mut self, x: isize) {
        self.write_usize(x as usize);
    }
}
type Map<K, V> = HashMap<K, V, BuildHasherDefault<AddressHasher>>;
type Set<K> = HashSet<K, BuildHasherDefault<AddressHasher>>;

/// Where a gradient arrives: a result of a node, or a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Place {
    Result(usize, usize),
    Leaf(usize),
}

pub(super) fn place(input: &NodeInput) -> Option<Place> {
    match input {
        NodeInput::Constant => None,
        NodeInput::Leaf(slot) => Some(Place::Leaf(Arc::as_ptr(slot).addr())),
        NodeInput::Interior(edge) => Some(Place::Result(Arc::as_ptr(&edge.node.0).addr(), edge.index)),
    }
}

/// A sum of gradients that arrive in a fixed order, in place where nobody else holds it; halves are summed in f32.
struct Sum {
    so_far: Option<Tensor>,
}

impl Sum {
    fn add(&mut self, part: Tensor) -> Result<()> {
        self.so_far = Some(match self.so_far.take() {
            None => part,
            Some(sum) => {
                let part = astype(&part, sum.dtype())?;
                let is_plain = sum.tangents().is_empty() && part.tangents().is_empty() && !modes::is_grad_enabled();
                if is_plain && sum.is_unshared() && !sum.layout().may_self_overlap() {
                    sum.add_(&part)?;
                    sum
                } else {
                    sum.add(&part)?
                }
            }
        });
        Ok(())
    }
}

/// A node or leaf that waits for its turn; later made comes first.
struct Turn {
    sequence: u64,
    what: Target,
}
enum Target {
    Node(Node),
    Leaf(Arc<GradSlot>),
}
impl PartialEq for Turn {
    fn eq(&self, other: &Turn) -> bool {
        self.sequence == other.sequence
    }
}
impl Eq for Turn {}
impl PartialOrd for Turn {
    fn partial_cmp(&self, other: &Turn) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Turn {
    fn cmp(&self, other: &Turn) -> std::cmp::Ordering {
        self.sequence.cmp(&other.sequence)
    }
}

/// Gives a place its turn.
fn queue(input: &NodeInput, heap: &mut BinaryHeap<Turn>, queued: &mut Set<usize>) {
    let (address, turn) = match input {
        NodeInput::Interior(edge) => {
            let node = &edge.node;
            (Arc::as_ptr(&node.0).addr(), Turn { sequence: node.0.sequence, what: Target::Node(node.clone()) })
        }
        NodeInput::Leaf(slot) => (Arc::as_ptr(slot).addr(), Turn { sequence: slot.sequence(), what: Target::Leaf(slot.clone()) }),
        NodeInput::Constant => return,
    };
    if queued.insert(address) {
        heap.push(turn);
    }
}

/// What a pass is for.
enum Goal<'a> {
    /// Into the leaves' `.grad`.
    Leaves,
    /// To these places alone.
    Inputs(&'a Set<Place>),
}

struct Pass<'a> {
    goal: Goal<'a>,
    release: bool,
    sums: Map<Place, Sum>,
    /// How many consumers in this graph send a gradient to a place.
    consumers: Map<Place, u32>,
    /// Nodes from which a place of the goal can be reached; all of them for `Leaves`.
    useful: Set<usize>,
    captured: Map<Place, Tensor>,
    /// Nodes older than this can't lead to the goal.
    oldest: u64,
    /// A pass within a gradient: the goal's own hooks are left to the pass outside.
    is_inner: bool,
}

impl Pass<'_> {
    /// Counts consumers, and for `grad` marks the nodes worth visiting: an iterative walk, children after all parents
    /// are pushed, results gathered in ascending order of making.
    fn survey(&mut self, roots: &[NodeInput]) {
        let mut seen: Set<usize> = Set::default();
        let mut order: Vec<Node> = Vec::new();
        let mut stack: Vec<Node> = Vec::new();
        let visit = |input: &NodeInput, seen: &mut Set<usize>, stack: &mut Vec<Node>| {
            if let NodeInput::Interior(edge) = input
                && seen.insert(Arc::as_ptr(&edge.node.0).addr())
            {
                stack.push(edge.node.clone());
            }
        };
        for root in roots {
            visit(root, &mut seen, &mut stack);
            if let Some(p) = place(root) {
                *self.consumers.entry(p).or_default() += 1;
            }
        }
        while let Some(node) = stack.pop() {
            if node.0.sequence < self.oldest {
                continue;
            }
            for input in self.inputs(&node) {
                visit(input, &mut seen, &mut stack);
                if let Some(p) = place(input) {
                    *self.consumers.entry(p).or_default() += 1;
                }
            }
            order.push(node);
        }
        if let Goal::Inputs(wanted) = self.goal {
            order.sort_unstable_by_key(|n| n.0.sequence);
            for node in &order {
                let leads = self.inputs(node).iter().any(|input| match (place(input), input) {
                    (Some(p), _) if wanted.contains(&p) => true,
                    (_, NodeInput::Interior(edge)) => self.useful.contains(&Arc::as_ptr(&edge.node.0).addr()),
                    _ => false,
                });
                if leads {
                    self.useful.insert(Arc::as_ptr(&node.0).addr());
                }
            }
        }
    }

    /// The op as it was written, where somebody looks at the gradient of an operand that the recorded op looks through.
    fn as_written<'n>(&self, node: &'n Node) -> Option<&'n Written> {
        let written = node.0.written.as_deref()?;
        let is_seen = |input: &NodeInput| {
            let is_goal = matches!((&self.goal, place(input)), (Goal::Inputs(wanted), Some(p)) if wanted.contains(&p));
            is_goal || matches!(input, NodeInput::Interior(_)) && input.slot().is_some_and(GradSlot::is_watched)
        };
        written.inputs.iter().any(is_seen).then_some(written)
    }

    /// Where the gradients of a node go in this pass.
    fn inputs<'n>(&self, node: &'n Node) -> &'n [NodeInput] {
        self.as_written(node).map_or_else(|| node.inputs(), |w| &w.inputs)
    }

    fn is_needed(&self, input: &NodeInput) -> bool {
        match (&self.goal, place(input), input) {
            (_, None, _) => false,
            (Goal::Leaves, ..) => true,
            (Goal::Inputs(wanted), Some(p), _) if wanted.contains(&p) => true,
            (Goal::Inputs(_), _, NodeInput::Interior(edge)) => self.useful.contains(&Arc::as_ptr(&edge.node.0).addr()),
            _ => false,
        }
    }

    fn send(&mut self, input: &NodeInput, grad: Tensor, heap: &mut BinaryHeap<Turn>, queued: &mut Set<usize>) -> Result<()> {
        let Some(p) = place(input) else { return Ok(()) };
        self.sums.entry(p).or_insert(Sum { so_far: None }).add(grad)?;
        queue(input, heap, queued);
        Ok(())
    }

    /// Has a part of a gradient added, in place, to what stands for `input` already: the sum of parts that came before, or the
    /// gradient of a leaf for which this part is the whole. The order is that of parts by themselves.
    fn add_in_place(&mut self, input: &NodeInput, dtype: DType, add: Add<'_>) -> Result<bool> {
        let Some(p) = place(input).filter(|_| !modes::is_grad_enabled()) else { return Ok(false) };
        let is_free =
            |sum: &Tensor| sum.is_unshared() && sum.dtype() == dtype && sum.tangents().is_empty() && !sum.layout().may_self_overlap();
        if let Some(sum) = self.sums.get(&p).and_then(|s| s.so_far.as_ref()) {
            return if is_free(sum) { add(sum) } else { Ok(false) };
        }
        let NodeInput::Leaf(slot) = input else { return Ok(false) };
        let is_whole = matches!(self.goal, Goal::Leaves) && self.consumers.get(&p) == Some(&1) && slot.is_wanted() && !slot.has_hooks();
        if !is_whole {
            return Ok(false);
        }
        let _alone = slot.accumulating();
        let Some(old) = slot.set_grad(None) else { return Ok(false) };
        // What a failed product has left behind is no gradient.
        let added = is_free(&old) && add(&old)?;
        slot.set_grad(Some(old));
        Ok(added)
    }

    /// The dtype in which a consumer's part is computed: f32 for a half with several consumers, so that the sum is
    /// rounded once.
    fn part_dtype(&self, input: &NodeInput) -> Option<DType> {
        let wanted = input.slot()?.grad_dtype();
        let many = place(input).is_some_and(|p| self.consumers.get(&p).copied().unwrap_or(0) > 1);
        Some(if many { wanted.accumulator() } else { wanted })
    }

    /// The finished gradient of a place, in its dtype, after the hooks.
    fn finish(&mut self, p: Place, slot: &GradSlot) -> Result<Option<Tensor>> {
        let Some(sum) = self.sums.remove(&p).and_then(|s| s.so_far) else { return Ok(None) };
        let mut grad = astype(&sum, slot.grad_dtype())?;
        drop(sum);
        let is_wanted = matches!(self.goal, Goal::Inputs(wanted) if wanted.contains(&p));
        if !(is_wanted && self.is_inner) {
            grad = slot.run_hooks(grad)?;
        }
        if is_wanted {
            self.captured.insert(p, grad.clone());
        }
        Ok(Some(grad))
    }

    fn run(&mut self, roots: Vec<(NodeInput, Tensor)>) -> Result<()> {
        let inputs: Vec<NodeInput> = roots.iter().map(|(i, _)| i.clone()).collect();
        self.survey(&inputs);
        let (mut heap, mut queued) = (BinaryHeap::new(), Set::default());
        for (input, grad) in roots {
            self.send(&input, grad, &mut heap, &mut queued)?;
        }
        while let Some(turn) = heap.pop() {
            match turn.what {
                Target::Leaf(slot) => {
                    let _node = modes::is_profiling().then(|| profiler::InNode::enter("accumulate_grad", 0));
                    let grad = self.finish(Place::Leaf(Arc::as_ptr(&slot).addr()), &slot)?;
                    if matches!(self.goal, Goal::Leaves) && slot.is_wanted() {
                        // Without one, it was added in place.
                        if let Some(grad) = grad {
                            accumulate(&slot, grad)?;
                        }
                        slot.run_after_hooks()?;
                    }
                }
                Target::Node(node) => self.visit(&node, &mut heap, &mut queued)?,
            }
        }
        Ok(())
    }

    fn visit(&mut self, node: &Node, heap: &mut BinaryHeap<Turn>, queued: &mut Set<usize>) -> Result<()> {
        let _node = modes::is_profiling().then(|| profiler::InNode::enter(node.schema().name, node.0.sequence));
        let id = Arc::as_ptr(&node.0).addr();
        let mut g: SmallVec<[Option<Tensor>; 1]> = SmallVec::new();
        for (i, slot) in node.0.outputs.iter().enumerate() {
            let grad = self.finish(Place::Result(id, i), slot)?;
            if let Some(grad) = &grad
                && matches!(self.goal, Goal::Leaves)
                && slot.is_wanted()
            {
                slot.set_grad(Some(grad.clone()));
            }
            g.push(grad);
        }
        if matches!(self.goal, Goal::Inputs(_)) && !self.useful.contains(&id) {
            return Ok(());
        }
        let written = self.as_written(node);
        let inputs = written.map_or_else(|| node.inputs(), |w| &w.inputs);
        let need: SmallVec<[Option<DType>; 2]> =
            inputs.iter().map(|input| if self.is_needed(input) { self.part_dtype(input) } else { None }).collect();
        let grads = run_vjp_onto(node, written, &g, &need, &mut |i, dtype, add| {
            let is_added = self.add_in_place(&inputs[i], dtype, add)?;
            if is_added {
                queue(&inputs[i], heap, queued);
            }
            Ok(is_added)
        })?;
        if self.release {
            node.release();
        }
        for (input, grad) in inputs.iter().zip(grads) {
            if let Some(grad) = grad {
                self.send(input, grad, heap, queued)?;
            }
        }
        Ok(())
    }
}

/// Adds to a leaf's gradient: in its memory where nobody else holds it and nothing records.
fn accumulate(slot: &GradSlot, grad: Tensor) -> Result<()> {
    let records = modes::is_grad_enabled();
    let _alone = slot.accumulating();
    let sum = match slot.grad() {
        Some(old) if records => old.add(&grad)?,
        Some(old) => {
            slot.set_grad(None);
            if old.is_unshared() && old.dtype() == grad.dtype() && old.tangents().is_empty() && grad.tangents().is_empty() {
                let added = old.add_(&grad);
                slot.set_grad(Some(old));
                return added;
            }
            let sum = old.add(&grad);
            if sum.is_err() {
                slot.set_grad(Some(old));
            }
            sum?
        }
        // Users change gradients in place: each has memory of its own, without repeated elements.
        None if grad.layout().may_self_overlap() => contiguous(&grad)?,
        None if !records && !grad.is_unshared() && grad.tangents().is_empty() => grad.copy()?,
        None => grad,
    };
    slot.set_grad(Some(sum));
    Ok(())
}

fn root(op: &'static str, output: &Tensor, gradient: Option<&Tensor>) -> Result<(NodeInput, Tensor)> {
    let input = output.node_input();
    if matches!(input, NodeInput::Constant) {
        return Err(Error::invalid(op, "output", "a tensor without history", "call requires_grad_ on an input before computing it"));
    }
    let g = match gradient {
        Some(g) => {
            if g.shape() != output.shape() {
                let got = format!("of shape {}", crate::shape_text(g.shape()));
                return Err(Error::invalid(op, "gradient", got, format!("want the output's shape {}", crate::shape_text(output.shape()))));
            }
            if g.device() != output.device() {
                return Err(Error::DeviceMismatch {
                    op: op.into(),
                    devices: vec![output.device().name().into(), g.device().name().into()],
                });
            }
            if g.dtype() != output.dtype() {
                return Err(Error::DtypeMismatch {
                    op: op.into(),
                    dtypes: vec![output.dtype(), g.dtype()],
                    remedy: "the gradient has the output's dtype; convert with astype",
                });
            }
            g.clone()
        }
        None => {
            if output.numel() != 1 || output.dtype().is_complex() {
                let got = format!("missing for an output of shape {} and {}", crate::shape_text(output.shape()), output.dtype());
                return Err(Error::invalid(op, "gradient", got, "give a cotangent, or reduce the output to a real scalar"));
            }
            output.ones_like()?
        }
    };
    Ok((input, g))
}

/// Adds the gradient of `output` to the `.grad` of every leaf that it depends on and that requires one.
///
/// Errors: `InvalidArgument` for an output without history or a missing cotangent, `VersionMismatch`, `GraphFreed`.
pub fn backward(output: &Tensor, options: BackwardOptions) -> Result<()> {
    let gradient = options.gradient.clone();
    backward_all(&[output], &[gradient], options)
}

/// [`backward`] of several outputs in one pass: the gradient of Σ ⟨gradients, outputs⟩. `options.gradient` isn't read.
///
/// Errors: those of [`backward`], and `InvalidArgument` where there are cotangents, but not one an output.
pub fn backward_all(outputs: &[&Tensor], gradients: &[Option<Tensor>], options: BackwardOptions) -> Result<()> {
    check_count("backward", "gradients", outputs, gradients)?;
    let mut roots = Vec::new();
    for (i, output) in outputs.iter().enumerate() {
        roots.push(root("backward", output, gradients.get(i).and_then(Option::as_ref))?);
    }
    let _mode = modes::set_grad_enabled(options.create_graph);
    // The sums of gradients too don't depend on the scope that backward is called in.
    let _plain = modes::set_autocast(None);
    let mut pass = pass(Goal::Leaves, !options.retain_graph.unwrap_or(options.create_graph));
    pass.run(roots)
}

fn check_count(op: &'static str, argument: &'static str, outputs: &[&Tensor], gradients: &[Option<Tensor>]) -> Result<()> {
    if gradients.is_empty() || gradients.len() == outputs.len() {
        return Ok(());
    }
    Err(Error::invalid(op, argument, format!("{} of them", gradients.len()), format!("want {}, one an output", outputs.len())))
}

fn pass(goal: Goal<'_>, release: bool) -> Pass<'_> {
    Pass {
        goal,
        release,
        sums: Map::default(),
        consumers: Map::default(),
        useful: Set::default(),
        captured: Map::default(),
        oldest: 0,
        is_inner: false,
    }
}

/// Gradients at `inputs`, which may repeat; under the thread's modes.
fn collect(roots: Vec<(NodeInput, Tensor)>, inputs: &[NodeInput], release: bool, is_inner: bool) -> Result<Vec<Option<Tensor>>> {
    let places: Vec<Option<Place>> = inputs.iter().map(place).collect();
    let wanted: Set<Place> = places.iter().flatten().copied().collect();
    let mut pass = pass(Goal::Inputs(&wanted), release);
    pass.is_inner = is_inner;
    pass.oldest = inputs.iter().filter_map(|i| i.slot()).map(GradSlot::sequence).min().unwrap_or(0);
    pass.run(roots)?;
    Ok(places.into_iter().map(|p| p.and_then(|p| pass.captured.get(&p).cloned())).collect())
}

/// The gradients at `inputs` as part of another gradient.
pub(super) fn gradients_at(roots: Vec<(NodeInput, Tensor)>, inputs: &[NodeInput], create_graph: bool) -> Result<Vec<Option<Tensor>>> {
    collect(roots, inputs, !create_graph, true)
}

/// The gradients of ⟨grad_outputs, outputs⟩ by `inputs`, leaves or interior tensors; `.grad` isn't touched, and an input asked
/// for twice is answered twice.
///
/// ```
/// use bilin_core::{Device, Tensor, autograd};
/// let x = Tensor::from_slice(&[3f64], [1], &Device::reference())?.requires_grad_(true)?;
/// let y = x.mul(&x)?.mul(&x)?.sum(.., false)?;
/// let options = autograd::GradOptions { create_graph: true, ..Default::default() };
/// let first = autograd::grad(&[&y], &[&x], options)?[0].clone().unwrap();
/// let second = autograd::grad(&[&first.sum(.., false)?], &[&x], Default::default())?[0].clone().unwrap();
/// assert_eq!((first.item::<f64>()?, second.item::<f64>()?), (27., 18.));
/// # Ok::<(), bilin_core::Error>(())
/// ```
pub fn grad(outputs: &[&Tensor], inputs: &[&Tensor], options: GradOptions) -> Result<Vec<Option<Tensor>>> {
    check_count("grad", "grad_outputs", outputs, &options.grad_outputs)?;
    let mut roots = Vec::new();
    for (i, output) in outputs.iter().enumerate() {
        roots.push(root("grad", output, options.grad_outputs.get(i).and_then(Option::as_ref))?);
    }
    let places: Vec<NodeInput> = inputs.iter().map(|t| t.node_input()).collect();
    let found = {
        let _mode = modes::set_grad_enabled(options.create_graph);
        let _plain = modes::set_autocast(None);
        collect(roots, &places, !options.retain_graph.unwrap_or(options.create_graph), false)?
    };
    let mut out = Vec::new();
    for (i, grad) in found.into_iter().enumerate() {
        if grad.is_none() && !options.allow_unused {
            return Err(Error::invalid(
                "grad",
                "inputs",
                format!("input {i}, on which no output depends"),
                "set allow_unused to get None for it",
            ));
        }
        out.push(grad);
    }
    Ok(out)
}

impl Node {
    fn apply_with(&self, g: &Tensor, records: bool) -> Result<Grads> {
        let op: OpName = self.schema().name.into();
        let Some(slot) = self.0.outputs.first() else { return Ok(Grads::new()) };
        if g.shape() != slot.shape.as_slice() {
            let got = format!("of shape {}", crate::shape_text(g.shape()));
            return Err(Error::invalid(op, "g", got, format!("want the result's shape {}", crate::shape_text(&slot.shape))));
        }
        let _mode = modes::set_grad_enabled(records);
        let _node = modes::is_profiling().then(|| profiler::InNode::enter(self.schema().name, self.0.sequence));
        let need: SmallVec<[Option<DType>; 2]> = self.inputs().iter().map(|i| i.slot().map(GradSlot::grad_dtype)).collect();
        let cotangents: SmallVec<[Option<Tensor>; 2]> = (0..self.0.outputs.len()).map(|i| (i == 0).then(|| g.clone())).collect();
        run_vjp(self, &cotangents, &need)
    }

    /// The gradients of the operands for the cotangent `g`; `None` where none is needed. Nothing is released.
    pub fn apply(&self, g: &Tensor) -> Result<Vec<Option<Tensor>>> {
        Ok(self.apply_with(g, false)?.into_vec())
    }

    /// The same, recorded: the gradients are differentiable again.
    pub fn apply_for_graph(&self, g: &Tensor) -> Result<Vec<Option<Tensor>>> {
        Ok(self.apply_with(g, true)?.into_vec())
    }
}
