// partial[p, j] = Σ_i dy[i, j]·lhs[i] over the rows of part p: a workgroup takes 64 vectors of columns and 4 rows at a time,
// lane row r the rows r, r + 4, … of its part, which are then added in the order of r. A second kernel adds the parts in
// their order. The order depends on n, m and the part's length alone.
//
// Bounds: the host checks that dy holds n·m elements, lhs first_row + n, and partial (first_part + parts)·m.

struct Sizes { n: u32, m: u32, first_row: u32, first_part: u32, parts: u32, rows: u32 }
@group(0) @binding(0) var<storage, read> dy: array<VECTOR>;
@group(0) @binding(1) var<storage, read> lhs: array<f32>;
@group(0) @binding(2) var<storage, read_write> partial: array<VECTOR>;
@group(1) @binding(0) var<uniform> sizes: Sizes;

var<workgroup> sums: array<VECTOR, 256>;

@compute @workgroup_size(64, 4)
fn outer_product_backward_rhs(@builtin(local_invocation_id) at: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let columns = sizes.m / WIDTH;
    let tiles = (columns + 63u) / 64u;
    for (var part = group.y; part < sizes.parts; part += groups.y) {
        let end = min((part + 1u) * sizes.rows, sizes.n);
        for (var tile = group.x; tile < tiles; tile += groups.x) {
            let column = tile * 64u + at.x;
            var sum = VECTOR(bitcast<f32>(0x80000000u));
            if column < columns {
                for (var i = part * sizes.rows + at.y; i < end; i += 4u) {
                    sum = fma(dy[i * columns + column], VECTOR(lhs[sizes.first_row + i]), sum);
                }
            }
            sums[at.y * 64u + at.x] = sum;
            workgroupBarrier();
            if at.y == 0u && column < columns {
                let total = ((sums[at.x] + sums[64u + at.x]) + sums[128u + at.x]) + sums[192u + at.x];
                partial[(sizes.first_part + part) * columns + column] = total;
            }
            workgroupBarrier();
        }
    }
}
