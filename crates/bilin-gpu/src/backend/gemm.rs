//! Text of the tiled product: a workgroup computes a tile of the result from tiles of the operands in shared memory, each
//! invocation a small block of it in registers. Every element of the result is one chain of multiply-adds, ascending in k
//! from −0, whatever the tile's shape, so all shapes give the same bits. Past the end of k stands −0 in lhs and 0 in rhs,
//! whose product changes no sum.

use std::fmt::Write as _;

use super::wgsl::Wide;

/// Words between rows of a shared tile beyond its width, so that stores fall on different banks.
const PAD: usize = 4;

/// Shape of a tile. Each invocation has `blocks[0]` × `blocks[1]` blocks of 4 × 4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tile {
    /// Rows and columns.
    pub sides: [usize; 2],
    pub blocks: [usize; 2],
    /// Steps of k that stand in shared memory at a time.
    pub depth: usize,
    /// Steps of k whose text stands side by side.
    pub unroll: usize,
}

impl Tile {
    /// Invocations down and across.
    fn threads(self) -> [usize; 2] {
        [self.sides[0] / (4 * self.blocks[0]), self.sides[1] / (4 * self.blocks[1])]
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
    /// Whether lhs, rhs and the result can be read and written four neighbours at a time.
    pub is_fourfold: [bool; 3],
    /// Whether positions are multiples of the step of k: where k is one loop.
    pub is_linear: bool,
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

/// One operand of the tile.
struct Side {
    name: &'static str,
    load: &'static str,
    /// Which component of `k_at`, and which of `batch_at`.
    part: &'static str,
    place: &'static str,
    origin: &'static str,
    size: String,
    len: usize,
    row: usize,
    loads: usize,
    along_k: bool,
    /// Elements that a load reads.
    pack: usize,
    is_linear: bool,
    /// What stands past the end.
    zero: String,
}

/// The kernel's main function. It calls `load_lhs`, `load_rhs` (of a position; `load4_…` where four are read at a time),
/// `m_at` → (lhs, out), `n_at` → (rhs, out), `k_at` → (lhs, rhs) and `batch_at` → (lhs, rhs, out), the last with first
/// elements added, and stores to `out`.
///
/// Bounds: loads take place for m, n and k below their sizes, whose positions the plan has checked; past the end of m and n
/// the last is loaded again, and what comes of it is never stored. Four are loaded and stored at a time only where the sizes
/// are multiples of four.
pub(super) fn text(form: Form, sizes: &Sizes) -> String {
    let Form { tile, wide, is_bool, along_k, is_fourfold, is_linear } = form;
    let [tall, across] = tile.threads();
    let (threads, t, depth) = (tall * across, wide.text(), tile.depth);
    let Sizes { m, n, k, parts, part_len, part_step, tiles } = sizes;
    let side = |x: usize| Side {
        name: ["a", "b"][x],
        load: ["lhs", "rhs"][x],
        part: ["x", "y"][x],
        place: ["m_at", "n_at"][x],
        origin: ["m0", "n0"][x],
        size: [m, n][x].clone(),
        len: tile.sides[x],
        row: (tile.sides[x] + PAD) / 4,
        pack: if is_fourfold[x] { 4 } else { 1 },
        loads: tile.sides[x] * depth / (threads * if is_fourfold[x] { 4 } else { 1 }),
        along_k: along_k[x],
        is_linear,
        zero: if x == 0 { wide.neutral().to_owned() } else { format!("{t}()") },
    };
    let operands = [side(0), side(1)];
    let mut s = String::new();
    let w = &mut s;
    for x in &operands {
        let _ = writeln!(w, "var<workgroup> tile_{}: array<vec4<{t}>, {}>;", x.name, depth * x.row);
    }
    let _ = writeln!(
        w,
        "@compute @workgroup_size({threads})\nfn product(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {{"
    );
    for (x, name) in operands.iter().zip(["tiles_m", "tiles_n"]) {
        let _ = writeln!(w, "  let {name} = ({} + {}u) / {}u;", x.size, x.len - 1, x.len);
    }
    let _ = writeln!(w, "  for (var which = group.y * groups.x + group.x; which < {tiles}; which += groups.x * groups.y) {{");
    let _ = writeln!(w, "  var rest = which;\n  let n0 = (rest % tiles_n) * {}u; rest /= tiles_n;", tile.sides[1]);
    let _ = writeln!(w, "  let m0 = (rest % tiles_m) * {}u; rest /= tiles_m;", tile.sides[0]);
    let _ = writeln!(w, "  let part = rest % {parts};\n  let base = batch_at(rest / {parts});");
    let _ = writeln!(w, "  let first = part * {part_len};\n  let end = min(first + {part_len}, {k});");
    operands.iter().for_each(|x| places(w, x, threads, depth, t));
    // Thirty-two neighbours read four rows and eight columns of blocks, which are few words of shared memory.
    match across.is_multiple_of(8) && tall.is_multiple_of(4) {
        true => {
            let wide = across / 8;
            let _ = writeln!(w, "  let row = lane / {}u * 4u + lane % 32u / 8u;", 32 * wide);
            let _ = writeln!(w, "  let column = lane / 32u % {wide}u * 8u + lane % 8u;");
        }
        false => {
            let _ = writeln!(w, "  let row = lane / {across}u;\n  let column = lane % {across}u;");
        }
    }
    let (rows, vectors) = (4 * tile.blocks[0], tile.blocks[1]);
    let _ = writeln!(w, "  let start = {};", wide.start(k));
    for r in 0..rows {
        for v in 0..vectors {
            let _ = writeln!(w, "  var sum_{r}_{v} = vec4<{t}>(start);");
        }
    }
    w.push_str("  {\n");
    fetch(w, &operands, "first", depth, t);
    let _ = writeln!(w, "  }}\n  for (var k0 = first; k0 < end; k0 += {depth}u) {{");
    operands.iter().for_each(|x| store(w, x));
    let _ = writeln!(w, "    workgroupBarrier();\n    let ahead = k0 + {depth}u;\n    if ahead < end {{");
    fetch(w, &operands, "ahead", depth, t);
    w.push_str("    }\n");
    // Where all steps stand side by side there is no loop.
    let is_loop = tile.unroll < depth;
    if is_loop {
        let _ = writeln!(w, "    for (var kk = 0u; kk < {depth}u; kk += {}u) {{", tile.unroll);
    }
    for step in 0..tile.unroll {
        for (x, place) in operands.iter().zip(["row", "column"]) {
            let blocks = x.len / 4 / [tall, across][usize::from(place == "column")];
            for g in 0..blocks {
                let at = x.len / 4 / blocks * g;
                let from = if is_loop { format!("(kk + {step}u) * {}u + {at}u", x.row) } else { format!("{}u", step * x.row + at) };
                let _ = writeln!(w, "      let {0}{g}_{step} = tile_{0}[{from} + {place}];", x.name);
            }
        }
        for r in 0..rows {
            let a = format!("a{}_{step}.{}", r / 4, ["x", "y", "z", "w"][r % 4]);
            for v in 0..vectors {
                let term = match (wide, is_bool) {
                    (_, true) => format!("sum_{r}_{v} | (vec4<{t}>({a}) & b{v}_{step})"),
                    (Wide::F32, _) => format!("fma(vec4<{t}>({a}), b{v}_{step}, sum_{r}_{v})"),
                    _ => format!("sum_{r}_{v} + vec4<{t}>({a}) * b{v}_{step}"),
                };
                let _ = writeln!(w, "      sum_{r}_{v} = {term};");
            }
        }
    }
    w.push_str(if is_loop { "    }\n    workgroupBarrier();\n  }\n" } else { "    workgroupBarrier();\n  }\n" });
    let _ = writeln!(w, "  let to = base.z + part * {part_step};");
    results(w, tile, m, n, is_fourfold[2]);
    w.push_str("  }\n}\n");
    s
}

/// Where each load of an invocation stands in a tile and in memory.
fn places(w: &mut String, x: &Side, threads: usize, depth: usize, t: &str) {
    let (name, len, pack) = (x.name, x.len, x.pack);
    let kind = if pack == 4 { format!("vec4<{t}>") } else { t.to_owned() };
    for j in 0..x.loads {
        let at = format!("(lane + {}u)", j * threads);
        let across = if x.along_k { depth } else { len } / pack;
        let (inner, outer) = (format!("{at} % {across}u * {pack}u"), format!("{at} / {across}u"));
        // Invocations that fill whole lines load the same places of each.
        let inner = if threads.is_multiple_of(across) { format!("lane % {across}u * {pack}u") } else { inner };
        let (kk, free, last) = if x.along_k { (inner, outer, 1) } else { (outer, inner, pack) };
        let _ = writeln!(w, "  let k_{name}{j} = {kk};\n  let f_{name}{j} = {free};");
        let inside = format!("min({} + f_{name}{j}, {} - {last}u)", x.origin, x.size);
        let far = if x.is_linear { format!(" + k_at(k_{name}{j}).{}", x.part) } else { String::new() };
        let _ = writeln!(w, "  let at_{name}{j} = base.{} + {}({inside}).x{far};", x.part, x.place);
        let _ = writeln!(w, "  var next_{name}{j} = {kind}();");
    }
}

/// Loads the tiles that start at the step `from`. Only the last ones ask where k ends: a card keeps loads under way that
/// don't wait for an answer.
fn fetch(w: &mut String, operands: &[Side; 2], from: &str, depth: usize, t: &str) {
    let _ = writeln!(w, "    let far = k_at({from});");
    for is_last in [false, true] {
        let _ = match is_last {
            false => writeln!(w, "    if {from} + {depth}u <= end {{"),
            true => writeln!(w, "    }} else {{"),
        };
        for x in operands {
            let (name, part) = (x.name, x.part);
            let (kind, load) = if x.pack == 4 { (format!("vec4<{t}>"), "load4") } else { (t.to_owned(), "load") };
            for j in 0..x.loads {
                let far = if x.is_linear { format!("far.{part}") } else { format!("k_at({from} + k_{name}{j}).{part}") };
                let load = format!("next_{name}{j} = {load}_{}(at_{name}{j} + {far});", x.load);
                let _ = match is_last {
                    false => writeln!(w, "      {load}"),
                    true => {
                        writeln!(w, "      next_{name}{j} = {kind}({});\n      if {from} + k_{name}{j} < end {{ {load} }}", x.zero)
                    }
                };
            }
        }
    }
    w.push_str("    }\n");
}

/// Puts what was loaded into shared memory, where neighbours are neighbours in m or n.
fn store(w: &mut String, x: &Side) {
    let (name, row) = (x.name, x.row);
    for j in 0..x.loads {
        let line = |c: usize| format!("tile_{name}[(k_{name}{j} + {c}u) * {row}u + f_{name}{j} / 4u]");
        let _ = match (x.pack == 4, x.along_k) {
            (false, _) => writeln!(w, "    {}[f_{name}{j} % 4u] = next_{name}{j};", line(0)),
            (true, false) => writeln!(w, "    {} = next_{name}{j};", line(0)),
            (true, true) => ["x", "y", "z", "w"]
                .iter()
                .enumerate()
                .try_for_each(|(c, part)| writeln!(w, "    {}[f_{name}{j} % 4u] = next_{name}{j}.{part};", line(c))),
        };
    }
}

/// Stores the sums.
fn results(w: &mut String, tile: Tile, m: &str, n: &str, is_fourfold: bool) {
    let [tall, across] = tile.threads();
    for v in 0..tile.blocks[1] {
        let _ = writeln!(w, "  let n_{v} = n0 + {}u + column * 4u;", v * across * 4);
        let columns = if is_fourfold { 1 } else { 4 };
        for c in 0..columns {
            let _ = writeln!(w, "  let to_{v}_{c} = to + n_at(n_{v} + {c}u).y;");
        }
    }
    for r in 0..4 * tile.blocks[0] {
        let _ = writeln!(w, "  let m_{r} = m0 + {}u + row * 4u + {}u;", r / 4 * tall * 4, r % 4);
        let _ = writeln!(w, "  if m_{r} < {m} {{\n    let line = m_at(m_{r}).y;");
        for v in 0..tile.blocks[1] {
            if is_fourfold {
                let _ = writeln!(w, "    if n_{v} < {n} {{ out[(line + to_{v}_0) / 4u] = sum_{r}_{v}; }}");
                continue;
            }
            for (c, part) in ["x", "y", "z", "w"].iter().enumerate() {
                let _ = writeln!(w, "    if n_{v} + {c}u < {n} {{ out[line + to_{v}_{c}] = sum_{r}_{v}.{part}; }}");
            }
        }
        w.push_str("  }\n");
    }
}
