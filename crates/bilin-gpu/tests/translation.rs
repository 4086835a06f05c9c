//! Every shader of the registry becomes MSL, HLSL and SPIR-V.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a check fails")]

use bilin_gpu::KernelRegistry;
use naga::back::{hlsl, msl, spv};
use naga::valid::{Capabilities, ValidationFlags, Validator};

#[test]
fn every_shader_translates_to_metal_direct3d_and_vulkan() {
    let registry = KernelRegistry::new();
    let names = registry.names();
    assert!(names.len() >= 7, "{names:?}");
    for name in names {
        let module = naga::front::wgsl::parse_str(&registry.source(&name).unwrap()).unwrap();
        let info =
            Validator::new(ValidationFlags::all(), Capabilities::empty()).validate(&module).unwrap_or_else(|e| panic!("{name}: {e}"));
        let entry = module.entry_points[0].name.clone();
        let pipeline = msl::PipelineOptions { entry_point: Some((naga::ShaderStage::Compute, entry.clone())), ..Default::default() };
        let options = msl::Options { fake_missing_bindings: true, ..Default::default() };
        let (text, facts) = msl::write_string(&module, &info, &options, &pipeline).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(facts.entry_point_names.iter().all(Result::is_ok) && text.contains("kernel"), "{name}: {text}");
        let mut text = String::new();
        let options = hlsl::Options { fake_missing_bindings: true, ..Default::default() };
        let pipeline = hlsl::PipelineOptions { entry_point: None };
        let facts = hlsl::Writer::new(&mut text, &options, &pipeline).write(&module, &info, None).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(facts.entry_point_names.iter().all(Result::is_ok) && text.contains("numthreads"), "{name}: {text}");
        let words = spv::write_vec(&module, &info, &spv::Options::default(), None).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(words[0], 0x0723_0203, "{name}");
    }
}
