//! A compiled kernel and what its source says about it.

use std::sync::Arc;

use bilin_core::{Error, OpName, Result};
use naga::{AddressSpace, ShaderStage, StorageAccess};

use super::device::{CONSTANT_WORDS, GpuDevice};

/// What a kernel does with a binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// `var<storage, read>`.
    Read,
    /// `var<storage, read_write>`.
    ReadWrite,
    /// `var<uniform>`.
    Uniform,
}

impl Access {
    /// Whether it may write.
    pub fn writes(self) -> bool {
        self == Access::ReadWrite
    }
}

/// Where a kernel comes from.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub text: Arc<str>,
    /// Of this crate, so that it may run unchecked.
    pub is_trusted: bool,
}

/// A kernel ready to be dispatched: a pipeline with what its source says about bindings and workgroup.
pub struct Kernel {
    name: String,
    pub(crate) device: GpuDevice,
    pub(crate) pipeline: wgpu::ComputePipeline,
    pub(crate) layout: wgpu::BindGroupLayout,
    pub(crate) bindings: Vec<(u32, Access)>,
    pub(crate) has_constants: bool,
    workgroup: [u32; 3],
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Kernel({}, {:?})", self.name, self.bindings)
    }
}

struct Facts {
    entry: String,
    bindings: Vec<(u32, Access)>,
    has_constants: bool,
    workgroup: [u32; 3],
}

/// What a source declares. Errors name the line.
fn read(name: &str, text: &str) -> Result<(naga::Module, Facts)> {
    let refused = |message: String| Error::ShaderCompilation { kernel: name.to_owned(), message };
    let module = naga::front::wgsl::parse_str(text).map_err(|e| {
        let line = e.location(text).map_or(0, |l| l.line_number);
        let at = text.lines().nth(line.saturating_sub(1) as usize).unwrap_or_default().trim();
        refused(format!("line {line}: {}: {at}", e.message()))
    })?;
    let entries: Vec<&naga::EntryPoint> = module.entry_points.iter().filter(|e| e.stage == ShaderStage::Compute).collect();
    let [entry] = entries[..] else {
        return Err(refused(format!("{} compute entry points, want one", entries.len())));
    };
    let (mut bindings, mut has_constants) = (Vec::new(), false);
    for (_, variable) in module.global_variables.iter() {
        let Some(at) = variable.binding else { continue };
        let access = match variable.space {
            AddressSpace::Storage { access } if access.contains(StorageAccess::STORE) => Access::ReadWrite,
            AddressSpace::Storage { .. } => Access::Read,
            AddressSpace::Uniform => Access::Uniform,
            _ => return Err(refused("a binding that isn't a buffer; kernels here bind buffers alone".to_owned())),
        };
        match (at.group, at.binding, access) {
            (0, binding, _) => bindings.push((binding, access)),
            (1, 0, Access::Uniform) => has_constants = true,
            (group, binding, _) => {
                let want = "buffers stand in group 0, the numbers of a dispatch are the uniform @group(1) @binding(0)";
                return Err(refused(format!("a binding at group {group}, binding {binding}: {want}")));
            }
        }
    }
    bindings.sort_by_key(|(binding, _)| *binding);
    let facts = Facts { entry: entry.name.clone(), bindings, has_constants, workgroup: entry.workgroup_size };
    Ok((module, facts))
}

impl Kernel {
    pub(crate) fn compile(name: &str, source: &Source, device: &GpuDevice) -> Result<Kernel> {
        let (parsed, facts) = read(name, &source.text)?;
        let refused = |message: String| Error::ShaderCompilation { kernel: name.to_owned(), message };
        let is_matrix = |t: &naga::Type| matches!(t.inner, naga::TypeInner::CooperativeMatrix { .. });
        if !source.is_trusted && parsed.types.iter().any(|(_, t)| is_matrix(t)) {
            return Err(refused("matrices of matrix units, whose use nothing checks; write the product with scalars".to_owned()));
        }
        let inner = &device.0;
        let made = device.scoped(&OpName::from(name.to_owned()), || {
            // The driver layer names lines of a user's source where it finds a fault; sources of this crate are parsed once.
            let text = match source.is_trusted {
                true => wgpu::ShaderSource::Naga(std::borrow::Cow::Owned(parsed)),
                false => wgpu::ShaderSource::Wgsl(source.text.as_ref().into()),
            };
            let descriptor = wgpu::ShaderModuleDescriptor { label: Some(name), source: text };
            let module = match source.is_trusted {
                true => super::trusted::module(&inner.raw, descriptor),
                false => inner.raw.create_shader_module(descriptor),
            };
            let entry = |(binding, access): &(u32, Access)| wgpu::BindGroupLayoutEntry {
                binding: *binding,
                visibility: wgpu::ShaderStages::COMPUTE,
                ty: wgpu::BindingType::Buffer {
                    ty: match access {
                        Access::Uniform => wgpu::BufferBindingType::Uniform,
                        Access::Read => wgpu::BufferBindingType::Storage { read_only: true },
                        Access::ReadWrite => wgpu::BufferBindingType::Storage { read_only: false },
                    },
                    has_dynamic_offset: false,
                    min_binding_size: None,
                },
                count: None,
            };
            let entries: Vec<wgpu::BindGroupLayoutEntry> = facts.bindings.iter().map(entry).collect();
            let layout = inner.raw.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: Some(name), entries: &entries });
            let groups = [Some(&layout), Some(&inner.constants_layout)];
            let pipeline_layout = inner.raw.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                label: Some(name),
                bind_group_layouts: &groups[..1 + usize::from(facts.has_constants)],
                immediate_size: 0,
            });
            let pipeline = inner.raw.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some(name),
                layout: Some(&pipeline_layout),
                module: &module,
                entry_point: Some(&facts.entry),
                compilation_options: wgpu::PipelineCompilationOptions {
                    zero_initialize_workgroup_memory: !source.is_trusted,
                    ..Default::default()
                },
                cache: None,
            });
            (layout, pipeline)
        });
        let (layout, pipeline) = made.map_err(|e| match e {
            Error::InvalidArgument { got, .. } => refused(got),
            other => other,
        })?;
        inner.counts.compiles.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(Kernel {
            name: name.to_owned(),
            device: device.clone(),
            pipeline,
            layout,
            bindings: facts.bindings,
            has_constants: facts.has_constants,
            workgroup: facts.workgroup,
        })
    }

    /// The name it was registered by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Invocations of a workgroup.
    pub fn workgroup_size(&self) -> [u32; 3] {
        self.workgroup
    }

    /// What it does with each binding of group 0, in the order of their numbers.
    pub fn accesses(&self) -> Vec<Access> {
        self.bindings.iter().map(|(_, access)| *access).collect()
    }

    /// Checks the numbers that travel with a dispatch.
    pub(crate) fn check_constants(&self, constants: &[u32]) -> Result<()> {
        let (has, got) = (self.has_constants, constants.len());
        if has == (got > 0) && got <= CONSTANT_WORDS {
            return Ok(());
        }
        let want = match has {
            true => format!("want 1 to {CONSTANT_WORDS} words for its uniform @group(1) @binding(0)"),
            false => "the kernel declares no uniform @group(1) @binding(0)".to_owned(),
        };
        Err(Error::invalid(self.name.clone(), "constants", format!("{got} words"), want))
    }
}
