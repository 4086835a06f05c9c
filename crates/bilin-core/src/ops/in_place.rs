//! Ops that change a tensor's memory and count its version.

use std::borrow::Cow;

use smallvec::SmallVec;

use crate::exec::call::MAP_INPUTS;
use crate::exec::launch::{View, map_into};
use crate::exec::map_expr::{MapExpr, Prim};
use crate::schema::modes;
use crate::schema::profiler::{Run, Watch};
use crate::shape::dtype::Kind;
use crate::shape::error::{Error, OpName, Result, ShapeFault};
use crate::tape::Tensor;

impl Tensor {
    /// Runs `prims` over this tensor's old values (`Old`) and `sources`, which broadcast to it.
    fn change(&self, op: &'static str, prims: impl Into<Cow<'static, [Prim]>>, sources: &[&Tensor]) -> Result<()> {
        let name = OpName::Borrowed(op);
        let all = || std::iter::once(self).chain(sources.iter().copied());
        if sources.iter().any(|s| s.device() != self.device()) {
            return Err(Error::DeviceMismatch { op: name, devices: all().map(|t| t.device().name().into()).collect() });
        }
        let level = modes::tangent_level();
        if all().any(|t| t.has_tangent(level)) {
            return Err(Error::invalid(name, "self", "part of a derivative in forward mode", "use an op that gives a new tensor"));
        }
        if modes::is_grad_enabled() && all().any(Tensor::requires_grad) {
            return Err(Error::invalid(name, "self", "part of a recorded graph", "change it inside no_grad, or change a detached clone"));
        }
        if let Some(s) = sources.iter().find(|s| s.layout().broadcast_to(self.shape()).is_none()) {
            let fault =
                ShapeFault::Count { want: "a source that broadcasts to the tensor's shape".into(), remedy: "reshape or index it first" };
            return Err(Error::ShapeMismatch { op: name, shapes: vec![self.shape().to_vec(), s.shape().to_vec()], fault });
        }
        let expr = MapExpr::new(&name, prims, self.dtype())?;
        if expr.inputs() > sources.len() || sources.len() > MAP_INPUTS {
            let want = format!("want the {} that the program reads, at most {MAP_INPUTS}", expr.inputs());
            return Err(Error::invalid(name, "sources", format!("{} tensors", sources.len()), want));
        }
        let mut views: SmallVec<[&View; MAP_INPUTS]> = SmallVec::new();
        for s in sources {
            views.push(s.single(op)?);
        }
        let target = self.single(op)?;
        if modes::is_profiling() {
            let watch = Watch::start(Some(self.device()))?;
            let done = map_into(&name, &expr, &views, target);
            let lap = watch.stop(Some(self.device()));
            done?;
            lap?.record(Run {
                op,
                device: self.device(),
                operands: all().map(|t| (t.shape(), t.dtype())),
                result_bytes: 0,
                dtype: Some(self.dtype()),
                flops: 0,
            });
        } else {
            map_into(&name, &expr, &views, target)?;
        }
        self.view().storage.bump_version();
        Ok(())
    }

    /// [`change`](Tensor::change) by one source of the same dtype.
    fn change_by(&self, op: &'static str, prims: &'static [Prim], source: &Tensor) -> Result<()> {
        if source.device() == self.device() && source.dtype() != self.dtype() {
            let (dtypes, remedy) = (vec![self.dtype(), source.dtype()], "convert one operand with astype");
            return Err(Error::DtypeMismatch { op: op.into(), dtypes, remedy });
        }
        self.change(op, prims, &[source])
    }

    /// Copies `source`, which broadcasts to this shape, into this tensor's memory.
    ///
    /// In-place ops count the version of the memory, refuse operands that are part of a recorded graph outside `no_grad`
    /// or a derivative in forward mode (`InvalidArgument`), and leave the tensor alone where they fail.
    pub fn copy_(&self, source: &Tensor) -> Result<()> {
        self.change_by("copy_", &[Prim::Input(0)], source)
    }
    /// self += source.
    pub fn add_(&self, source: &Tensor) -> Result<()> {
        self.change_by("add_", &[Prim::Old, Prim::Input(0), Prim::Add], source)
    }
    /// self −= source.
    pub fn sub_(&self, source: &Tensor) -> Result<()> {
        self.change_by("sub_", &[Prim::Old, Prim::Input(0), Prim::Sub], source)
    }
    /// self ·= source.
    pub fn mul_(&self, source: &Tensor) -> Result<()> {
        self.change_by("mul_", &[Prim::Old, Prim::Input(0), Prim::Mul], source)
    }
    /// Every element becomes `value`.
    pub fn fill_(&self, value: f64) -> Result<()> {
        let value = if matches!(self.dtype().kind(), Kind::Int | Kind::Bool) { Prim::ConstInt(value as i64) } else { Prim::Const(value) };
        self.change("fill_", vec![value], &[])
    }
    /// Every element becomes what `prims` gives, a postfix program over its old value (`Prim::Old`) and the elements of
    /// `sources`, at most four tensors that broadcast to this shape, in any dtypes. It is computed in this tensor's compute dtype
    /// (float32 for halves) and rounded once.
    ///
    /// Cost: one pass over the memory, whatever the program does. Errors: those of [`copy_`](Tensor::copy_), and
    /// `InvalidArgument` for a program that isn't well formed or reads sources that aren't there.
    /// ```
    /// use bilin_core::{Device, Prim, Tensor};
    /// let d = Device::reference();
    /// let (p, g) = (Tensor::from_slice(&[1.0f32, 2.0], [2], &d)?, Tensor::from_slice(&[4.0f32, 8.0], [2], &d)?);
    /// p.map_([Prim::Old, Prim::Input(0), Prim::Const(0.25), Prim::Mul, Prim::Sub].to_vec(), &[&g])?;
    /// assert_eq!(p.to_vec::<f32>()?, [0.0, 0.0]);
    /// # Ok::<(), bilin_core::Error>(())
    /// ```
    pub fn map_(&self, prims: impl Into<Cow<'static, [Prim]>>, sources: &[&Tensor]) -> Result<()> {
        self.change("map_", prims, sources)
    }
    /// Every element becomes 0.
    pub fn zero_(&self) -> Result<()> {
        self.fill_(0.0)
    }
}
