//! Text of the tiled product: a workgroup computes a tile of the result from tiles of the operands in shared memory, each
//! invocation a small block of it in registers. Every element of the result is one chain of multiply-adds, ascending in k
//! from −0, whatever the tile's shape, so all shapes give the same bits. Past the end of k stands −0 in lhs and 0 in rhs,
//! whose product changes no sum.

use std::fmt::Write as _;

use super::wgsl::Wide;

/// Steps of k that stand in shared memory at a time.
const DEPTH: usize = 16;
/// Words between rows of a shared tile beyond its width, so that stores fall on different banks.
const PAD: usize = 4;

/// Shape of a tile: it is square, and each invocation has `groups` × `groups` blocks of 4 × 4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tile {
    pub side: usize,
    groups: usize,
}

/// The shapes, largest first.
pub(super) const TILES: [Tile; 3] = [Tile { side: 128, groups: 2 }, Tile { side: 64, groups: 1 }, Tile { side: 32, groups: 1 }];

impl Tile {
    fn threads_wide(self) -> usize {
        self.side / (4 * self.groups)
    }
    fn threads(self) -> usize {
        self.threads_wide() * self.threads_wide()
    }
    fn loads(self) -> usize {
        self.side * DEPTH / self.threads()
    }
}

/// What a text depends on, beside the functions that read operands and turn steps into positions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Form {
    pub tile: Tile,
    pub wide: Wide,
    /// The sums are or of ands.
    pub is_bool: bool,
    /// Whether neighbours in memory are neighbours in k, for lhs and rhs: invocations then load along k.
    pub along_k: [bool; 2],
}

/// Texts that read the sizes of a call.
pub(super) struct Sizes {
    pub m: String,
    pub n: String,
    pub k: String,
    pub parts: String,
    /// Terms of a part.
    pub part_len: String,
    /// Elements from one part's results to the next.
    pub part_step: String,
    /// Tiles to compute, over parts and batch.
    pub tiles: String,
}

/// The kernel's main function. It calls `load_lhs`, `load_rhs` (of a position), `m_at` → (lhs, out), `n_at` → (rhs, out),
/// `k_at` → (lhs, rhs) and `batch_at` → (lhs, rhs, out), the last with first elements added, and stores to `out`.
///
/// Bounds: loads and stores happen only for m, n and k below their sizes, whose positions the plan has checked.
pub(super) fn text(form: Form, sizes: &Sizes) -> String {
    let Form { tile, wide, is_bool, along_k } = form;
    let (side, threads, across, t) = (tile.side, tile.threads(), tile.threads_wide(), wide.text());
    let row = (side + PAD) / 4;
    let mut s = String::new();
    let w = &mut s;
    let _ = writeln!(w, "var<workgroup> tile_a: array<vec4<{t}>, {}>;", DEPTH * row);
    let _ = writeln!(w, "var<workgroup> tile_b: array<vec4<{t}>, {}>;", DEPTH * row);
    let _ = writeln!(
        w,
        "@compute @workgroup_size({threads})\nfn product(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {{"
    );
    let Sizes { m, n, k, parts, part_len, part_step, tiles } = sizes;
    let _ = writeln!(w, "  let tiles_n = ({n} + {}u) / {side}u;\n  let tiles_m = ({m} + {}u) / {side}u;", side - 1, side - 1);
    let _ = writeln!(w, "  for (var which = group.y * groups.x + group.x; which < {tiles}; which += groups.x * groups.y) {{");
    let _ = writeln!(w, "  var rest = which;\n  let n0 = (rest % tiles_n) * {side}u; rest /= tiles_n;");
    let _ = writeln!(w, "  let m0 = (rest % tiles_m) * {side}u; rest /= tiles_m;");
    let _ = writeln!(w, "  let part = rest % {parts};\n  let base = batch_at(rest / {parts});");
    let _ = writeln!(w, "  let first = part * {part_len};\n  let end = min(first + {part_len}, {k});");
    // Where each load of an invocation stands in a tile.
    for (x, name, size, origin) in [(0, "a", m, "m0"), (1, "b", n, "n0")] {
        for j in 0..tile.loads() {
            let (kk, free) = match along_k[x] {
                true => (format!("lane % {DEPTH}u"), format!("lane / {DEPTH}u + {}u", j * threads / DEPTH)),
                false => (format!("lane / {side}u + {}u", j * threads / side), format!("lane % {side}u")),
            };
            let role = if x == 0 { "m_at" } else { "n_at" };
            let axis = if x == 0 { "base.x" } else { "base.y" };
            let _ = writeln!(w, "  let k_{name}{j} = {kk};\n  let f_{name}{j} = {free};");
            if along_k[x] || j == 0 {
                let _ = writeln!(w, "  let has_{name}{j} = {origin} + f_{name}{j} < {size};");
                let _ = writeln!(w, "  let at_{name}{j} = {axis} + {role}({origin} + f_{name}{j}).x;");
            } else {
                let _ = writeln!(w, "  let has_{name}{j} = has_{name}0;\n  let at_{name}{j} = at_{name}0;");
            }
            let _ = writeln!(w, "  var next_{name}{j} = {t}();");
        }
    }
    let _ = writeln!(w, "  let row = lane / {across}u;\n  let column = lane % {across}u;");
    let (rows, vectors) = (4 * tile.groups, tile.groups);
    let _ = writeln!(w, "  let start = {};", wide.start(k));
    for r in 0..rows {
        for v in 0..vectors {
            let _ = writeln!(w, "  var sum_{r}_{v} = vec4<{t}>(start);");
        }
    }
    let zero = &format!("{t}()");
    let fetch = |w: &mut String, from: &str| {
        for (x, name, load, part) in [(0, "a", "load_lhs", "x"), (1, "b", "load_rhs", "y")] {
            for j in 0..tile.loads() {
                let same = along_k[x] && j > 0;
                let kk = if same { 0 } else { j };
                if !same {
                    let _ =
                        writeln!(w, "    let step_{name}{j} = {from} + k_{name}{j};\n    let far_{name}{j} = k_at(step_{name}{j}).{part};");
                }
                let _ = writeln!(w, "    next_{name}{j} = {};", if x == 0 { wide.neutral() } else { zero });
                let _ = writeln!(
                    w,
                    "    if has_{name}{j} && step_{name}{kk} < end {{ next_{name}{j} = {load}(at_{name}{j} + far_{name}{kk}); }}"
                );
            }
        }
    };
    w.push_str("  {\n");
    fetch(w, "first");
    w.push_str("  }\n");
    let _ = writeln!(w, "  for (var k0 = first; k0 < end; k0 += {DEPTH}u) {{");
    for name in ["a", "b"] {
        for j in 0..tile.loads() {
            let _ = writeln!(w, "    tile_{name}[k_{name}{j} * {row}u + f_{name}{j} / 4u][f_{name}{j} % 4u] = next_{name}{j};");
        }
    }
    let _ = writeln!(w, "    workgroupBarrier();\n    if k0 + {DEPTH}u < end {{\n    let ahead = k0 + {DEPTH}u;");
    fetch(w, "ahead");
    let _ = writeln!(w, "    }}\n    for (var kk = 0u; kk < {DEPTH}u; kk++) {{");
    let block = across;
    for g in 0..tile.groups {
        let _ = writeln!(w, "      let a{g} = tile_a[kk * {row}u + {}u + row];", g * block);
        let _ = writeln!(w, "      let b{g} = tile_b[kk * {row}u + {}u + column];", g * block);
    }
    for r in 0..rows {
        let a = format!("a{}.{}", r / 4, ["x", "y", "z", "w"][r % 4]);
        for v in 0..vectors {
            let term = match (wide, is_bool) {
                (_, true) => format!("sum_{r}_{v} | (vec4<{t}>({a}) & b{v})"),
                (Wide::F32, _) => format!("fma(vec4<{t}>({a}), b{v}, sum_{r}_{v})"),
                _ => format!("sum_{r}_{v} + vec4<{t}>({a}) * b{v}"),
            };
            let _ = writeln!(w, "      sum_{r}_{v} = {term};");
        }
    }
    w.push_str("    }\n    workgroupBarrier();\n  }\n");
    let _ = writeln!(w, "  let to = base.z + part * {part_step};");
    for v in 0..vectors {
        for c in 0..4 {
            let _ = writeln!(w, "  let n_{v}_{c} = n0 + {}u + column * 4u + {c}u;\n  let to_{v}_{c} = n_at(n_{v}_{c}).y;", v * block * 4);
        }
    }
    for r in 0..rows {
        let _ = writeln!(w, "  let m_{r} = m0 + {}u + row * 4u + {}u;", r / 4 * block * 4, r % 4);
        let _ = writeln!(w, "  if m_{r} < {m} {{\n    let line = to + m_at(m_{r}).y;");
        for v in 0..vectors {
            for (c, part) in ["x", "y", "z", "w"].iter().enumerate() {
                let _ = writeln!(w, "    if n_{v}_{c} < {n} {{ out[line + to_{v}_{c}] = sum_{r}_{v}.{part}; }}");
            }
        }
        w.push_str("  }\n");
    }
    w.push_str("  }\n}\n");
    s
}
