// out[j] = Σ_p partial[p, j], in the order of p; where `adds` isn't 0, the old out[j] comes first.
//
// Bounds: the host checks that partial holds parts·m elements and out m.

struct Sizes { m: u32, parts: u32, adds: u32 }
@group(0) @binding(0) var<storage, read> partial: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@group(1) @binding(0) var<uniform> sizes: Sizes;

@compute @workgroup_size(256)
fn sum_of_parts(@builtin(global_invocation_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    for (var j = at.x; j < sizes.m; j += groups.x * 256u) {
        var sum = partial[j];
        if sizes.adds != 0u {
            sum = out[j] + sum;
        }
        for (var p = 1u; p < sizes.parts; p++) {
            sum += partial[p * sizes.m + j];
        }
        out[j] = sum;
    }
}
