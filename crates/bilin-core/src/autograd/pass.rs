//! One pass through a graph: nodes in descending order of their making, so each is reached after all that read its results.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::ops::{Add, astype, contiguous, each_lane, run_vjp_onto};
use crate::schema::{modes, profiler};
use crate::shape::dtype::DType;
use crate::shape::error::Result;
use crate::tape::{GradSlot, Node, NodeInput, Tensor, Written};

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

/// What came to a place: a sum of gradients in a fixed order, in place where nobody else holds it; halves are summed in f32.
#[derive(Default)]
struct Arrival {
    sum: Option<Tensor>,
    /// How many consumers in this graph send a gradient.
    consumers: u32,
    /// One of the places that the pass is for.
    is_goal: bool,
    captured: Option<Tensor>,
}

impl Arrival {
    fn add(&mut self, part: Tensor) -> Result<()> {
        self.sum = Some(match self.sum.take() {
            None => part,
            Some(sum) => {
                let part = astype(&part, sum.dtype())?;
                let is_plain = sum.is_plain() && part.is_plain() && !modes::is_grad_enabled();
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

enum Target {
    Node(Node),
    Leaf(Arc<GradSlot>),
    /// It had its turn.
    Done,
}

/// A node or leaf that gradients can reach.
struct Stop {
    sequence: u64,
    what: Target,
    /// By result of a node; one for a leaf.
    arrivals: SmallVec<[Arrival; 1]>,
    /// Where in [`Pass::targets`] those of its operands stand.
    targets: Range<usize>,
    /// They are those of the op as it was written.
    is_as_written: bool,
    /// A gradient has come.
    is_due: bool,
    /// A place of the goal can be reached from it.
    is_useful: bool,
}

/// An arrival, by stop and result.
#[derive(Clone, Copy)]
struct To {
    stop: u32,
    result: u32,
}

/// What a pass is for.
enum Goal<'a> {
    /// Into the leaves' `.grad`.
    Leaves,
    /// To these places alone.
    Inputs(&'a Set<Place>),
}

/// What a pass finds of a graph.
#[derive(Default)]
struct Lists {
    stops: Vec<Stop>,
    /// Stops by address, but for nodes that have one consumer and no other holder: these can't be met twice.
    index: Map<usize, u32>,
    /// Where the gradients of each node's operands go.
    targets: Vec<Option<To>>,
    /// Stops in the order of turns.
    order: Vec<u32>,
}

thread_local! {
    /// The memory of a pass that is done, for the next.
    static SPARE: Cell<Option<Lists>> = const { Cell::new(None) };
}

/// Items up to which the memory of lists is kept.
const MOST_KEPT: usize = 4096;

struct Pass<'a> {
    goal: Goal<'a>,
    release: bool,
    lists: Lists,
    /// Nodes older than this can't lead to the goal.
    oldest: u64,
    /// A pass within a gradient: the goal's own hooks are left to the pass outside.
    is_inner: bool,
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        let Lists { mut stops, mut index, mut targets, mut order } = std::mem::take(&mut self.lists);
        if stops.capacity().max(index.capacity()).max(targets.capacity()).max(order.capacity()) <= MOST_KEPT {
            stops.clear();
            index.clear();
            targets.clear();
            order.clear();
            let _ = SPARE.try_with(|spare| spare.set(Some(Lists { stops, index, targets, order })));
        }
    }
}

impl Pass<'_> {
    /// The arrival that an operand stands for, counted as sent to once more.
    fn target(&mut self, input: &NodeInput) -> Option<To> {
        let (address, is_lone, result) = match input {
            NodeInput::Constant => return None,
            NodeInput::Leaf(slot) => (Arc::as_ptr(slot).addr(), false, 0),
            NodeInput::Interior(edge) => (Arc::as_ptr(&edge.node.0).addr(), Arc::strong_count(&edge.node.0) == 1, edge.index),
        };
        let next = self.lists.stops.len() as u32;
        let stop = if is_lone { next } else { *self.lists.index.entry(address).or_insert(next) };
        if stop == next {
            let (sequence, what, count) = match input {
                NodeInput::Interior(edge) => (edge.node.0.sequence, Target::Node(edge.node.clone()), edge.node.0.outputs.len()),
                NodeInput::Leaf(slot) => (slot.sequence(), Target::Leaf(slot.clone()), 1),
                NodeInput::Constant => return None,
            };
            let mut arrivals = SmallVec::new();
            for _ in 0..count {
                arrivals.push(Arrival::default());
            }
            self.lists.stops.push(Stop { sequence, what, arrivals, targets: 0..0, is_as_written: false, is_due: false, is_useful: false });
        }
        let to = To { stop, result: result as u32 };
        self.arrival(to).consumers += 1;
        Some(to)
    }

    fn arrival(&mut self, to: To) -> &mut Arrival {
        &mut self.lists.stops[to.stop as usize].arrivals[to.result as usize]
    }

    /// The node of a stop that may lead to the goal, out of its place.
    fn take_node(&mut self, at: usize) -> Option<Node> {
        let stop = &mut self.lists.stops[at];
        if !matches!(stop.what, Target::Node(_)) || stop.sequence < self.oldest {
            return None;
        }
        match std::mem::replace(&mut stop.what, Target::Done) {
            Target::Node(node) => Some(node),
            _ => None,
        }
    }

    /// Finds every stop, and for `grad` the nodes worth visiting; gives the arrivals of `roots`. Of turns, those of what was made
    /// later come first.
    fn survey(&mut self, roots: &[(NodeInput, Tensor)]) -> SmallVec<[Option<To>; 1]> {
        let starts = roots.iter().map(|(input, _)| self.target(input)).collect();
        let mut at = 0;
        while at < self.lists.stops.len() {
            if let Some(node) = self.take_node(at) {
                let (first, written) = (self.lists.targets.len(), self.as_written(&node));
                for input in written.map_or_else(|| node.inputs(), |w| &w.inputs) {
                    let to = self.target(input);
                    self.lists.targets.push(to);
                }
                let (is_as_written, stop) = (written.is_some(), &mut self.lists.stops[at]);
                (stop.targets, stop.is_as_written) = (first..self.lists.targets.len(), is_as_written);
                stop.what = Target::Node(node);
            }
            at += 1;
        }
        let Lists { stops, order, .. } = &mut self.lists;
        order.extend(0..stops.len() as u32);
        order.sort_unstable_by_key(|&i| std::cmp::Reverse(stops[i as usize].sequence));
        if let Goal::Inputs(wanted) = self.goal {
            for place in wanted {
                let (Place::Leaf(address) | Place::Result(address, _)) = place;
                if let Some(&stop) = self.lists.index.get(address) {
                    let result = if let Place::Result(_, result) = place { *result as u32 } else { 0 };
                    self.arrival(To { stop, result }).is_goal = true;
                }
            }
            for at in (0..self.lists.order.len()).rev() {
                let i = self.lists.order[at] as usize;
                let targets = self.lists.stops[i].targets.clone();
                self.lists.stops[i].is_useful = self.lists.targets[targets].iter().any(|to| self.is_needed(*to));
            }
        }
        starts
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

    fn is_needed(&self, to: Option<To>) -> bool {
        let Some(to) = to else { return false };
        let stop = &self.lists.stops[to.stop as usize];
        matches!(self.goal, Goal::Leaves) || stop.is_useful || stop.arrivals[to.result as usize].is_goal
    }

    fn send(&mut self, to: Option<To>, grad: Tensor) -> Result<()> {
        let Some(to) = to else { return Ok(()) };
        self.lists.stops[to.stop as usize].is_due = true;
        self.arrival(to).add(grad)
    }

    /// Has a part of a gradient added, in place, to what stands for `input` already: the sum of parts that came before, or the
    /// gradient of a leaf for which this part is the whole. The order is that of parts by themselves.
    fn add_in_place(&mut self, to: Option<To>, input: &NodeInput, dtype: DType, add: Add<'_>) -> Result<bool> {
        let Some(to) = to.filter(|_| !modes::is_grad_enabled()) else { return Ok(false) };
        let is_free = |sum: &Tensor| sum.is_unshared() && sum.dtype() == dtype && sum.is_plain() && !sum.layout().may_self_overlap();
        let arrival = self.arrival(to);
        if let Some(sum) = &arrival.sum {
            return if is_free(sum) { add(sum) } else { Ok(false) };
        }
        let NodeInput::Leaf(slot) = input else { return Ok(false) };
        let is_whole = arrival.consumers == 1 && matches!(self.goal, Goal::Leaves);
        if !is_whole || !slot.is_wanted() || !slot.has_grad() || slot.has_hooks() {
            return Ok(false);
        }
        let _alone = slot.accumulating();
        let Some(old) = slot.set_grad(None) else { return Ok(false) };
        // What a failed product has left behind is no gradient.
        let added = is_free(&old) && add(&old)?;
        slot.set_grad(Some(old));
        self.lists.stops[to.stop as usize].is_due |= added;
        Ok(added)
    }

    /// The dtype in which a consumer's part is computed: f32 for a half with several consumers, so that the sum is
    /// rounded once.
    fn part_dtype(&mut self, to: Option<To>, input: &NodeInput) -> Option<DType> {
        let wanted = input.slot()?.grad_dtype();
        Some(if self.arrival(to?).consumers > 1 { wanted.accumulator() } else { wanted })
    }

    /// The finished gradient of a place, in its dtype, after the hooks.
    fn finish(&mut self, to: To, slot: &GradSlot) -> Result<Option<Tensor>> {
        let arrival = self.arrival(to);
        let Some(mut grad) = arrival.sum.take() else { return Ok(None) };
        let is_goal = arrival.is_goal;
        if grad.dtype() != slot.grad_dtype() {
            grad = astype(&grad, slot.grad_dtype())?;
        }
        if !(is_goal && self.is_inner) && slot.has_hooks() {
            // Hooks see one gradient, where this one stands for several.
            let hooks = &mut |g: &[Option<Tensor>]| g.iter().flatten().map(|g| slot.run_hooks(g.clone()).map(Some)).collect();
            let Some(hooked) = each_lane(&[Some(grad)], hooks)?.pop().flatten() else { return Ok(None) };
            grad = hooked;
        }
        if is_goal {
            self.arrival(to).captured = Some(grad.clone());
        }
        Ok(Some(grad))
    }

    fn run(&mut self, roots: Vec<(NodeInput, Tensor)>) -> Result<()> {
        let starts = self.survey(&roots);
        {
            let _node = modes::is_profiling().then(|| profiler::InNode::enter("accumulate_grad", 0));
            for (to, (_, grad)) in starts.into_iter().zip(roots) {
                self.send(to, grad)?;
            }
        }
        for turn in 0..self.lists.order.len() {
            let stop = self.lists.order[turn];
            let here = &mut self.lists.stops[stop as usize];
            let what = std::mem::replace(&mut here.what, Target::Done);
            match what {
                _ if !here.is_due => {}
                Target::Node(node) => self.visit(stop, &node)?,
                Target::Leaf(slot) => {
                    let _node = modes::is_profiling().then(|| profiler::InNode::enter("accumulate_grad", 0));
                    let grad = self.finish(To { stop, result: 0 }, &slot)?;
                    if matches!(self.goal, Goal::Leaves) && slot.is_wanted() {
                        // Without one, it was added in place.
                        if let Some(grad) = grad {
                            accumulate(&slot, grad)?;
                        }
                        slot.run_after_hooks()?;
                    }
                }
                Target::Done => {}
            }
        }
        Ok(())
    }

    fn visit(&mut self, stop: u32, node: &Node) -> Result<()> {
        let _node = modes::is_profiling().then(|| profiler::InNode::enter(node.schema().name, node.0.sequence));
        let mut g: SmallVec<[Option<Tensor>; 1]> = SmallVec::new();
        for (result, slot) in node.0.outputs.iter().enumerate() {
            let grad = self.finish(To { stop, result: result as u32 }, slot)?;
            if let Some(grad) = &grad
                && matches!(self.goal, Goal::Leaves)
                && slot.is_wanted()
            {
                accumulate(slot, grad.clone())?;
            }
            g.push(grad);
        }
        let here = &self.lists.stops[stop as usize];
        if matches!(self.goal, Goal::Inputs(_)) && !here.is_useful {
            return Ok(());
        }
        let first = here.targets.start;
        let written = if here.is_as_written { node.0.written.as_deref() } else { None };
        let inputs = written.map_or_else(|| node.inputs(), |w| &w.inputs);
        let mut need: SmallVec<[Option<DType>; 2]> = SmallVec::new();
        for (i, input) in inputs.iter().enumerate() {
            let to = self.lists.targets[first + i];
            need.push(if self.is_needed(to) { self.part_dtype(to, input) } else { None });
        }
        let grads = run_vjp_onto(node, written, &g, &need, &mut |i, dtype, add| {
            self.add_in_place(self.lists.targets[first + i], &inputs[i], dtype, add)
        })?;
        if self.release {
            node.release();
        }
        for (i, grad) in grads.into_iter().enumerate() {
            if let Some(grad) = grad {
                self.send(self.lists.targets[first + i], grad)?;
            }
        }
        Ok(())
    }
}

/// Adds to a gradient that is kept: in its memory where nobody else holds it and nothing records.
fn accumulate(slot: &GradSlot, grad: Tensor) -> Result<()> {
    let records = modes::is_grad_enabled();
    let _alone = slot.accumulating();
    let sum = match slot.grad() {
        Some(old) if records => old.add(&grad)?,
        Some(old) => {
            slot.set_grad(None);
            if old.is_unshared() && old.dtype() == grad.dtype() && old.is_plain() && grad.is_plain() {
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
        None if !records && !grad.is_unshared() && grad.is_plain() => grad.copy()?,
        None => grad,
    };
    slot.set_grad(Some(sum));
    Ok(())
}

/// Adds the gradients of `roots` to the leaves' own.
pub(super) fn accumulate_into_leaves(roots: Vec<(NodeInput, Tensor)>, release: bool) -> Result<()> {
    pass(Goal::Leaves, release).run(roots)
}

fn pass(goal: Goal<'_>, release: bool) -> Pass<'_> {
    let lists = SPARE.try_with(Cell::take).ok().flatten().unwrap_or_default();
    Pass { goal, release, lists, oldest: 0, is_inner: false }
}

/// Gradients at `inputs`, which may repeat; under the thread's modes.
pub(super) fn collect(roots: Vec<(NodeInput, Tensor)>, inputs: &[NodeInput], release: bool, is_inner: bool) -> Result<Vec<Option<Tensor>>> {
    let wanted: Set<Place> = inputs.iter().filter_map(place).collect();
    let mut pass = pass(Goal::Inputs(&wanted), release);
    pass.is_inner = is_inner;
    pass.oldest = inputs.iter().filter_map(|i| i.slot()).map(GradSlot::sequence).min().unwrap_or(0);
    pass.run(roots)?;
    let captured = |input: &NodeInput| {
        let (address, result) = match place(input)? {
            Place::Leaf(address) => (address, 0),
            Place::Result(address, result) => (address, result),
        };
        pass.lists.stops[*pass.lists.index.get(&address)? as usize].arrivals[result].captured.clone()
    };
    Ok(inputs.iter().map(captured).collect())
}
