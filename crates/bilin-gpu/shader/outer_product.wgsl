// y[i, j] = lhs[i]·rhs[j], n rows of m columns.
//
// Bounds: the host checks that lhs holds first_row + n elements, rhs m, and y n·m. Every invocation stores to row < n and
// column < m alone. WIDTH columns at a time are one vector; the host takes WIDTH 4 only where m is a multiple of 4.

struct Sizes { n: u32, m: u32, first_row: u32 }
@group(0) @binding(0) var<storage, read> lhs: array<f32>;
@group(0) @binding(1) var<storage, read> rhs: array<VECTOR>;
@group(0) @binding(2) var<storage, read_write> y: array<VECTOR>;
@group(1) @binding(0) var<uniform> sizes: Sizes;

const ROWS: u32 = 8u;

@compute @workgroup_size(256)
fn outer_product(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let columns = sizes.m / WIDTH;
    for (var column = group.x * 256u + lane; column < columns; column += groups.x * 256u) {
        let b = rhs[column];
        for (var row = group.y * ROWS; row < sizes.n; row += groups.y * ROWS) {
            let end = min(row + ROWS, sizes.n);
            for (var i = row; i < end; i++) {
                y[i * columns + column] = lhs[sizes.first_row + i] * b;
            }
        }
    }
}
