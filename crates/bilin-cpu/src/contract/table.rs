//! The kernel table: names, best first, and the choice, a pure function of plan, dtypes and instruction set.

use std::sync::OnceLock;

use crate::arch::halves::Kind as Kinds;
use crate::arch::{Isa, chains, words};

/// How a kernel goes about a contraction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Variant {
    /// Elementwise product.
    Product,
    /// Chain after chain, on operands where they stand.
    Few,
    /// Chains across blocks and batch.
    Dot,
    /// Vector times matrix.
    Line,
    /// Vector times matrix, both of one half, widened.
    Halves,
    /// The same of bf16 by the instruction for pairs.
    Pairs,
    /// A few rows of bf16 times a matrix, in the order of a tile unit.
    Chains,
    /// Small products of halves, widened a chunk of a batch at a time.
    Batch,
    /// Tiles on operands where they stand.
    Direct,
    /// Tiles on packed panels: accepts everything.
    Panel,
    /// Blocks of a tile unit.
    Tiles,
    /// Tiles on panels of words of several elements.
    Words,
}

/// What sums are kept in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    F32,
    F64,
    C64,
    C128,
    I32,
    I64,
    Truth,
}

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kernel {
    pub name: &'static str,
    pub isa: Isa,
    pub kind: Kind,
    pub variant: Variant,
}

impl Kernel {
    /// Complex and truth values never stand in memory as vectors hold them; words want instructions of their own.
    fn can_run(&self) -> bool {
        if self.variant == Variant::Chains {
            return chains::are_here();
        }
        if self.variant == Variant::Halves {
            return Kinds::F16.is_here();
        }
        if matches!(self.variant, Variant::Words | Variant::Pairs) {
            return match self.kind {
                Kind::F32 => words::halves(self.isa).is_some(),
                Kind::I32 => words::bytes(self.isa).is_some(),
                _ => true,
            };
        }
        !matches!(self.variant, Variant::Direct | Variant::Few | Variant::Line)
            || !matches!(self.kind, Kind::C64 | Kind::C128 | Kind::Truth)
    }
}

macro_rules! table {
    (@isa $name:literal $isa:ident) => {[
        table!(@kind $name $isa "f32" F32), table!(@kind $name $isa "f64" F64), table!(@kind $name $isa "c64" C64),
        table!(@kind $name $isa "c128" C128), table!(@kind $name $isa "i32" I32), table!(@kind $name $isa "i64" I64),
        table!(@kind $name $isa "bool" Truth),
    ]};
    (@kind $isa_name:literal $isa:ident $kind_name:literal $kind:ident) => {[
        Kernel { name: concat!($isa_name, "-", $kind_name, "-product"), isa: Isa::$isa, kind: Kind::$kind, variant: Variant::Product },
        Kernel { name: concat!($isa_name, "-", $kind_name, "-few"), isa: Isa::$isa, kind: Kind::$kind, variant: Variant::Few },
        Kernel { name: concat!($isa_name, "-", $kind_name, "-dot"), isa: Isa::$isa, kind: Kind::$kind, variant: Variant::Dot },
        Kernel { name: concat!($isa_name, "-", $kind_name, "-line"), isa: Isa::$isa, kind: Kind::$kind, variant: Variant::Line },
        Kernel { name: concat!($isa_name, "-", $kind_name, "-direct"), isa: Isa::$isa, kind: Kind::$kind, variant: Variant::Direct },
        Kernel { name: concat!($isa_name, "-", $kind_name, "-panel"), isa: Isa::$isa, kind: Kind::$kind, variant: Variant::Panel },
    ]};
}

/// Kernels of the tile unit, of words and of halves, by what they read and sum in.
static JOINED: [Kernel; 14] = [
    Kernel { name: "amx-bf16-tiles", isa: Isa::Amx, kind: Kind::F32, variant: Variant::Tiles },
    Kernel { name: "amx-i32-tiles", isa: Isa::Amx, kind: Kind::I32, variant: Variant::Tiles },
    Kernel { name: "amx-i64-tiles", isa: Isa::Amx, kind: Kind::I64, variant: Variant::Tiles },
    Kernel { name: "avx512-bf16-chains", isa: Isa::Avx512, kind: Kind::F32, variant: Variant::Chains },
    Kernel { name: "avx512-bf16-words", isa: Isa::Avx512, kind: Kind::F32, variant: Variant::Words },
    Kernel { name: "avx512-bf16-pairs", isa: Isa::Avx512, kind: Kind::F32, variant: Variant::Pairs },
    Kernel { name: "avx512-f32-halves", isa: Isa::Avx512, kind: Kind::F32, variant: Variant::Halves },
    Kernel { name: "avx512-f32-batch", isa: Isa::Avx512, kind: Kind::F32, variant: Variant::Batch },
    Kernel { name: "avx2-f32-batch", isa: Isa::Avx2, kind: Kind::F32, variant: Variant::Batch },
    Kernel { name: "portable-f32-batch", isa: Isa::Portable, kind: Kind::F32, variant: Variant::Batch },
    Kernel { name: "avx512-i32-words", isa: Isa::Avx512, kind: Kind::I32, variant: Variant::Words },
    Kernel { name: "avx512-bool-words", isa: Isa::Avx512, kind: Kind::Truth, variant: Variant::Words },
    Kernel { name: "avx2-bool-words", isa: Isa::Avx2, kind: Kind::Truth, variant: Variant::Words },
    Kernel { name: "portable-bool-words", isa: Isa::Portable, kind: Kind::Truth, variant: Variant::Words },
];

static TABLE: [[[Kernel; 6]; 7]; 3] = [table!(@isa "avx512" Avx512), table!(@isa "avx2" Avx2), table!(@isa "portable" Portable)];

/// Kernels that may run here: those of instruction sets up to `most`, best first.
pub(crate) fn kernels(most: Isa) -> impl Iterator<Item = &'static Kernel> {
    JOINED.iter().chain(TABLE.iter().flatten().flatten()).filter(move |k| k.isa <= most && k.can_run())
}

/// Kernels of one accumulator, best first, by index of [`Kind`]; those of the tile unit and of words stand before them.
pub(crate) fn of_kind(isa: Isa, kind: Kind) -> &'static [Kernel; 6] {
    let row = match isa {
        Isa::Amx | Isa::Avx512 => 0,
        Isa::Avx2 => 1,
        Isa::Portable => 2,
    };
    &TABLE[row][kind as usize]
}

/// The kernel that `BILIN_KERNEL` names.
pub(crate) fn forced() -> Option<&'static Kernel> {
    static FORCED: OnceLock<Option<&'static Kernel>> = OnceLock::new();
    *FORCED.get_or_init(|| {
        let name = std::env::var("BILIN_KERNEL").ok()?;
        kernels(Isa::detected()).find(|k| k.name == name)
    })
}
