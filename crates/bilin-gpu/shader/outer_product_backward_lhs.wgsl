// dlhs[i] = Σ_j dy[i, j]·rhs[j]: one row a workgroup. Lane l adds the vectors l, l + 256, …; a vector's four sums are added
// pairwise, then the lanes are folded in halves. The order depends on m alone.
//
// Bounds: the host checks that dy holds n·m elements, rhs m, and dlhs first_row + n.

struct Sizes { n: u32, m: u32, first_row: u32 }
@group(0) @binding(0) var<storage, read> dy: array<VECTOR>;
@group(0) @binding(1) var<storage, read> rhs: array<VECTOR>;
@group(0) @binding(2) var<storage, read_write> dlhs: array<f32>;
@group(1) @binding(0) var<uniform> sizes: Sizes;

var<workgroup> sums: array<f32, 256>;

@compute @workgroup_size(256)
fn outer_product_backward_lhs(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let columns = sizes.m / WIDTH;
    let step = groups.x * groups.y;
    for (var row = group.y * groups.x + group.x; row < sizes.n; row += step) {
        var sum = VECTOR(bitcast<f32>(0x80000000u));
        let start = row * columns;
        for (var j = lane; j < columns; j += 256u) {
            sum = fma(dy[start + j], rhs[j], sum);
        }
        sums[lane] = FOLD;
        workgroupBarrier();
        for (var half = 128u; half > 0u; half >>= 1u) {
            if lane < half {
                sums[lane] += sums[lane + half];
            }
            workgroupBarrier();
        }
        if lane == 0u {
            dlhs[sizes.first_row + row] = sums[0];
        }
        // The next row's sums must not overwrite what lane 0 still reads.
        workgroupBarrier();
    }
}
