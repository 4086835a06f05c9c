//! What stands for the tile unit where the processor's family has none that is known here.

/// 16 rows of 16 words.
pub(crate) type Block = [[u32; 16]; 16];

/// 32 rows of words.
#[expect(dead_code, reason = "kernels of other processors read it")]
pub(crate) struct Rows<'a> {
    pub bytes: &'a [u8],
    pub row: Option<usize>,
}

/// How bytes, or halves, are multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dot {
    /// bf16 into f32.
    Bf16,
    /// Bytes into i32.
    Bytes([bool; 2]),
}

/// There is none.
pub(crate) enum Session {}

impl Session {
    /// `None`.
    pub(crate) fn new() -> Option<Session> {
        None
    }
    /// Never called.
    pub(crate) fn square(&self, _dot: Dot, _a: &Rows<'_>, _b: &[Block], _c: &mut [Block; 4], _first: bool) {
        match *self {}
    }
    /// Never called.
    pub(crate) fn limbs(&self, _planes: usize, _a: &[Block], _b: &[Block], _sums: &mut [Block; 8]) {
        match *self {}
    }
}

/// Words of a block across its diagonal.
pub(crate) fn transpose(block: &mut Block) {
    for i in 0..16 {
        for j in 0..i {
            (block[i][j], block[j][i]) = (block[j][i], block[i][j]);
        }
    }
}
