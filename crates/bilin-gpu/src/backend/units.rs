//! Text of the product of halves on matrix units, which multiply 16 × 16 blocks of f16 and add in f32. A workgroup computes
//! a tile of the result from tiles of the operands in shared memory; each 32 invocations, a crew, a part of it.
//!
//! The sum of an element depends on k alone: it begins at +0, and every instruction adds 16 steps of k, ascending, in an
//! order that is the device's own. So it isn't the chain of the other tiles, and it has no −0.

use std::fmt::Write as _;

use super::gemm::Sizes;

/// Rows, columns and steps of k of an instruction.
const SIDE: usize = 16;
/// Invocations that run an instruction together.
const CREW: usize = 32;
/// Halves between rows of a shared tile beyond its width, so that rows begin on different banks: half or twice as many, or
/// none, made the product up to twice as slow on an H200.
const PAD: usize = 8;

/// What such a text starts with.
pub(super) const HEAD: &str = "enable f16;\nenable wgpu_cooperative_matrix;\n";

/// Shape of a tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tile {
    /// Rows and columns of the result.
    pub sides: [usize; 2],
    /// Rows and columns of a crew's part.
    pub part: [usize; 2],
    /// Steps of k that stand in shared memory at a time.
    pub depth: usize,
}

impl Tile {
    /// Crews down and across.
    fn crews(self) -> [usize; 2] {
        [self.sides[0] / self.part[0], self.sides[1] / self.part[1]]
    }
}

/// One operand of the tile: four halves are an element of its memory and of its shared tile.
struct Side {
    name: &'static str,
    operand: &'static str,
    /// Which component of `k_at`, and which of `batch_at`.
    part: &'static str,
    place: &'static str,
    origin: &'static str,
    size: String,
    len: usize,
    loads: usize,
    /// Whether neighbours in memory, and then in the shared tile, are neighbours in k.
    along_k: bool,
}

impl Side {
    /// Elements from one line of the shared tile to the next.
    fn pitch(&self, depth: usize) -> usize {
        ((if self.along_k { depth } else { self.len }) + PAD) / 4
    }

    /// Elements of the shared tile.
    fn room(&self, depth: usize) -> usize {
        self.pitch(depth) * if self.along_k { self.len } else { depth }
    }
}

/// The kernel's main function. It reads `lhs` and `rhs`, calls `m_at` → (lhs, out), `n_at` → (rhs, out), `k_at` → (lhs, rhs)
/// and `batch_at` → (lhs, rhs, out), the last with first elements added, and stores fours to `out`: f32, or halves in two words.
///
/// Bounds: loads take place for m, n and k below their sizes, whose positions the plan has checked; past the end of m and n
/// the last four are loaded again, and what comes of them is never stored. Axes along which fours stand have sizes that are
/// multiples of four.
pub(super) fn text(tile: Tile, along_k: [bool; 2], is_half: bool, sizes: &Sizes) -> String {
    let [down, across] = tile.crews();
    let (threads, depth) = (down * across * CREW, tile.depth);
    let Sizes { m, n, k, parts, part_len, part_step, tiles } = sizes;
    let side = |x: usize| Side {
        name: ["a", "b"][x],
        operand: ["lhs", "rhs"][x],
        part: ["x", "y"][x],
        place: ["m_at", "n_at"][x],
        origin: ["m0", "n0"][x],
        size: [m, n][x].clone(),
        len: tile.sides[x],
        loads: tile.sides[x] * depth / (threads * 4),
        along_k: along_k[x],
    };
    let operands = [side(0), side(1)];
    let blocks = tile.part.map(|p| p / SIDE);
    let mut s = String::new();
    let w = &mut s;
    for x in &operands {
        let _ = writeln!(w, "var<workgroup> tile_{}: array<vec4<f16>, {}>;", x.name, x.room(depth));
    }
    let _ = writeln!(w, "var<workgroup> sums: array<vec4<f32>, {}>;", down * across * SIDE * SIDE / 4);
    let _ = writeln!(
        w,
        "@compute @workgroup_size({threads})\nfn product(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {{"
    );
    for (x, name) in operands.iter().zip(["tiles_m", "tiles_n"]) {
        let _ = writeln!(w, "  let {name} = ({} + {}u) / {}u;", x.size, x.len - 1, x.len);
    }
    let _ = writeln!(w, "  let crew = lane / {CREW}u;\n  let row = crew / {across}u * {}u;", tile.part[0]);
    let _ = writeln!(w, "  let column = crew % {across}u * {}u;", tile.part[1]);
    let _ = writeln!(w, "  for (var which = group.y * groups.x + group.x; which < {tiles}; which += groups.x * groups.y) {{");
    let _ = writeln!(w, "  var rest = which;\n  let n0 = (rest % tiles_n) * {}u; rest /= tiles_n;", tile.sides[1]);
    let _ = writeln!(w, "  let m0 = (rest % tiles_m) * {}u; rest /= tiles_m;", tile.sides[0]);
    let _ = writeln!(w, "  let part = rest % {parts};\n  let base = batch_at(rest / {parts});");
    let _ = writeln!(w, "  let first = part * {part_len};\n  let end = min(first + {part_len}, {k});");
    operands.iter().for_each(|x| places(w, x, threads, depth));
    for i in 0..blocks[0] {
        for j in 0..blocks[1] {
            let _ = writeln!(w, "  var sum_{i}_{j} = coop_mat16x16<f32, C>();");
        }
    }
    w.push_str("  {\n");
    fetch(w, &operands, "first", depth);
    let _ = writeln!(w, "  }}\n  for (var k0 = first; k0 < end; k0 += {depth}u) {{");
    operands.iter().for_each(|x| store(w, x, depth));
    let _ = writeln!(w, "    workgroupBarrier();\n    let ahead = k0 + {depth}u;\n    if ahead < end {{");
    fetch(w, &operands, "ahead", depth);
    w.push_str("    }\n");
    for kk in (0..depth).step_by(SIDE) {
        (0..blocks[1]).for_each(|j| block(w, &operands[1], j, kk, depth));
        for i in 0..blocks[0] {
            block(w, &operands[0], i, kk, depth);
            for j in 0..blocks[1] {
                let _ = writeln!(w, "    sum_{i}_{j} = coopMultiplyAdd(a{i}_{kk}, b{j}_{kk}, sum_{i}_{j});");
            }
        }
    }
    w.push_str("    workgroupBarrier();\n  }\n");
    // A crew's block goes through shared memory, from where each invocation takes two fours of a row.
    let value = match is_half {
        true => "vec2<u32>(f32_to_f16(v.x) | (f32_to_f16(v.y) << 16u), f32_to_f16(v.z) | (f32_to_f16(v.w) << 16u))",
        false => "v",
    };
    let _ = writeln!(w, "  let to = base.z + part * {part_step};\n  let here = crew * {}u;", SIDE * SIDE / 4);
    for i in 0..blocks[0] {
        for j in 0..blocks[1] {
            let _ = writeln!(
                w,
                "  {{
    let block = sum_{i}_{j};
    coopStoreT(block, &sums[here], 4u);
    workgroupBarrier();
    let mm = m0 + row + {}u + lane % {CREW}u / 2u;
    for (var h = 0u; h < 2u; h++) {{
      let four = lane % 2u * 2u + h;
      let nn = n0 + column + {}u + four * 4u;
      if mm < {m} && nn < {n} {{
        let v = sums[here + lane % {CREW}u / 2u * 4u + four];
        out[(to + m_at(mm).y + n_at(nn).y) / 4u] = {value};
      }}
    }}
    workgroupBarrier();
  }}",
                i * SIDE,
                j * SIDE
            );
        }
    }
    w.push_str("  }\n}\n");
    s
}

/// Where each load of an invocation stands in a tile and in memory.
fn places(w: &mut String, x: &Side, threads: usize, depth: usize) {
    let name = x.name;
    for j in 0..x.loads {
        let at = format!("(lane + {}u)", j * threads);
        let fours = if x.along_k { depth } else { x.len } / 4;
        let (inner, outer) = (format!("{at} % {fours}u * 4u"), format!("{at} / {fours}u"));
        let (kk, free, last) = if x.along_k { (inner, outer, 1) } else { (outer, inner, 4) };
        let _ = writeln!(w, "  let k_{name}{j} = {kk};\n  let f_{name}{j} = {free};");
        let inside = format!("min({} + f_{name}{j}, {} - {last}u)", x.origin, x.size);
        let _ = writeln!(w, "  let at_{name}{j} = base.{} + {}({inside}).x;", x.part, x.place);
        let _ = writeln!(w, "  var next_{name}{j} = vec4<f16>();");
    }
}

/// Loads the tiles that start at the step `from`; past the end of k stands 0. Only the last tile asks where that is: loads
/// that each ask made the product half as fast on an H200.
fn fetch(w: &mut String, operands: &[Side; 2], from: &str, depth: usize) {
    for is_last in [false, true] {
        let _ = match is_last {
            false => writeln!(w, "    if {from} + {depth}u <= end {{"),
            true => writeln!(w, "    }} else {{"),
        };
        for x in operands {
            let (name, operand, part) = (x.name, x.operand, x.part);
            for j in 0..x.loads {
                let load = format!("next_{name}{j} = {operand}[(at_{name}{j} + k_at({from} + k_{name}{j}).{part}) / 4u];");
                let _ = match is_last {
                    false => writeln!(w, "      {load}"),
                    true => writeln!(w, "      next_{name}{j} = vec4<f16>();\n      if {from} + k_{name}{j} < end {{ {load} }}"),
                };
            }
        }
    }
    w.push_str("    }\n");
}

/// Puts what was loaded into shared memory, as it stood.
fn store(w: &mut String, x: &Side, depth: usize) {
    let name = x.name;
    for j in 0..x.loads {
        let (line, inner) = if x.along_k { ("f", "k") } else { ("k", "f") };
        let _ = writeln!(w, "    tile_{name}[{line}_{name}{j} * {}u + {inner}_{name}{j} / 4u] = next_{name}{j};", x.pitch(depth));
    }
}

/// Reads block `i` of a crew's part at step `kk` of the tile.
fn block(w: &mut String, x: &Side, i: usize, kk: usize, depth: usize) {
    let (name, pitch, at) = (x.name, x.pitch(depth), i * SIDE);
    let (role, start) = if name == "a" { ("A", "row") } else { ("B", "column") };
    let place = match x.along_k {
        true => format!("({start} + {at}u) * {pitch}u + {}u", kk / 4),
        false => format!("{}u + ({start} + {at}u) / 4u", kk * pitch),
    };
    // Lines of the shared tile are rows of a block of lhs, and columns of one of rhs, where they run along k.
    let load = if x.along_k == (name == "a") { "coopLoadT" } else { "coopLoad" };
    let _ = writeln!(w, "    let {name}{i}_{kk} = {load}<coop_mat16x16<f16, {role}>>(&tile_{name}[{place}], {pitch}u);");
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a check fails")]
    use super::super::contract::{KERNELS, units_tile};
    use super::super::wgsl::{Words, with_scalar_functions};
    use super::{HEAD, text};
    use crate::backend::gemm::Sizes;
    use naga::back::spv;
    use naga::valid::{Capabilities, ValidationFlags, Validator};

    /// The drivers that tests run on have no matrix units, so here their text is validated and translated, no more.
    #[test]
    fn the_text_of_every_tile_is_valid_and_becomes_vulkan() {
        let mut words = Words::default();
        let mut next = || words.add(1);
        let sizes = Sizes { m: next(), n: next(), k: next(), parts: next(), part_len: next(), part_step: next(), tiles: next() };
        for tile in KERNELS.into_iter().filter_map(units_tile) {
            for (along_k, is_half) in [([true; 2], true), ([false; 2], false), ([true, false], true), ([false, true], false)] {
                let out = if is_half { "vec2<u32>" } else { "vec4<f32>" };
                let declared = format!(
                    "{HEAD}{}@group(0) @binding(0) var<storage, read> lhs: array<vec4<f16>>;
@group(0) @binding(1) var<storage, read> rhs: array<vec4<f16>>;
@group(0) @binding(2) var<storage, read_write> out: array<{out}>;
fn m_at(i: u32) -> vec2<u32> {{ return vec2<u32>(i); }}
fn n_at(i: u32) -> vec2<u32> {{ return vec2<u32>(i); }}
fn k_at(i: u32) -> vec2<u32> {{ return vec2<u32>(i); }}
fn batch_at(i: u32) -> vec3<u32> {{ return vec3<u32>(i); }}\n",
                    Words::DECLARED
                );
                let source = with_scalar_functions(declared + &text(tile, along_k, is_half, &sizes));
                let what = format!("{tile:?}, {along_k:?}, {is_half}");
                let module = naga::front::wgsl::parse_str(&source).unwrap_or_else(|e| panic!("{what}: {}", e.emit_to_string(&source)));
                let can = Capabilities::COOPERATIVE_MATRIX | Capabilities::SHADER_FLOAT16;
                let info = Validator::new(ValidationFlags::all(), can).validate(&module).unwrap_or_else(|e| panic!("{what}: {e:?}"));
                let options = spv::Options { lang_version: (1, 6), capabilities: None, ..Default::default() };
                let words = spv::write_vec(&module, &info, &options, None).unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_eq!(words[0], 0x0723_0203, "{what}");
                // A crew multiplies every block of its part once in every 16 steps of k.
                let products = source.matches("coopMultiplyAdd").count();
                assert_eq!(products, tile.part[0] * tile.part[1] * tile.depth / (16 * 16 * 16), "{what}");
            }
        }
    }
}
