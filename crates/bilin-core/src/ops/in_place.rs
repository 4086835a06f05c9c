//! Ops that change a tensor's memory and count its version.

use crate::exec::launch::map_into;
use crate::exec::map_expr::{MapExpr, Prim};
use crate::schema::modes;
use crate::schema::profiler::{Run, Watch};
use crate::shape::dtype::Kind;
use crate::shape::error::{Error, OpName, Result, ShapeFault};
use crate::tape::Tensor;

impl Tensor {
    /// Runs `prims` over this tensor's old values (`Old`) and `source`, which broadcasts to it.
    fn change(&self, op: &'static str, prims: Vec<Prim>, source: Option<&Tensor>) -> Result<()> {
        let name = OpName::Borrowed(op);
        if let Some(s) = source {
            if s.device() != self.device() {
                return Err(Error::DeviceMismatch { op: name, devices: vec![self.device().name().into(), s.device().name().into()] });
            }
            if s.dtype() != self.dtype() {
                return Err(Error::DtypeMismatch {
                    op: name,
                    dtypes: vec![self.dtype(), s.dtype()],
                    remedy: "convert one operand with astype",
                });
            }
        }
        let level = modes::tangent_level();
        if self.has_tangent(level) || source.is_some_and(|s| s.has_tangent(level)) {
            return Err(Error::invalid(name, "self", "part of a derivative in forward mode", "use an op that gives a new tensor"));
        }
        if modes::is_grad_enabled() && (self.requires_grad() || source.is_some_and(Tensor::requires_grad)) {
            return Err(Error::invalid(name, "self", "part of a recorded graph", "change it inside no_grad, or change a detached clone"));
        }
        if let Some(s) = source
            && s.layout().broadcast_to(self.shape()).is_none()
        {
            let fault =
                ShapeFault::Count { want: "a source that broadcasts to the tensor's shape".into(), remedy: "reshape or index it first" };
            return Err(Error::ShapeMismatch { op: name, shapes: vec![self.shape().to_vec(), s.shape().to_vec()], fault });
        }
        let expr = MapExpr::new(&name, prims, self.dtype())?;
        let sources: &[_] = match &source {
            Some(s) => &[s.single(op)?],
            None => &[],
        };
        let target = self.single(op)?;
        if modes::is_profiling() {
            let watch = Watch::start(Some(self.device()))?;
            let done = map_into(&name, &expr, sources, target);
            let lap = watch.stop(Some(self.device()));
            done?;
            lap?.record(Run {
                op,
                device: self.device(),
                operands: std::iter::once(self).chain(source).map(|t| (t.shape(), t.dtype())),
                result_bytes: 0,
                dtype: Some(self.dtype()),
                flops: 0,
            });
        } else {
            map_into(&name, &expr, sources, target)?;
        }
        self.view().storage.bump_version();
        Ok(())
    }

    /// Copies `source`, which broadcasts to this shape, into this tensor's memory.
    ///
    /// In-place ops count the version of the memory, refuse operands that are part of a recorded graph outside `no_grad`
    /// or a derivative in forward mode (`InvalidArgument`), and leave the tensor alone where they fail.
    pub fn copy_(&self, source: &Tensor) -> Result<()> {
        self.change("copy_", vec![Prim::Input(0)], Some(source))
    }
    /// self += source.
    pub fn add_(&self, source: &Tensor) -> Result<()> {
        self.change("add_", vec![Prim::Old, Prim::Input(0), Prim::Add], Some(source))
    }
    /// self −= source.
    pub fn sub_(&self, source: &Tensor) -> Result<()> {
        self.change("sub_", vec![Prim::Old, Prim::Input(0), Prim::Sub], Some(source))
    }
    /// self ·= source.
    pub fn mul_(&self, source: &Tensor) -> Result<()> {
        self.change("mul_", vec![Prim::Old, Prim::Input(0), Prim::Mul], Some(source))
    }
    /// Every element becomes `value`.
    pub fn fill_(&self, value: f64) -> Result<()> {
        let value = if matches!(self.dtype().kind(), Kind::Int | Kind::Bool) { Prim::ConstInt(value as i64) } else { Prim::Const(value) };
        self.change("fill_", vec![value], None)
    }
    /// Every element becomes 0.
    pub fn zero_(&self) -> Result<()> {
        self.fill_(0.0)
    }
}
