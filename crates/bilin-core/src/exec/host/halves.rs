//! Conversions of halves without branches, so that a loop over them becomes vectors. Equal to those of the crate `half`, bit for
//! bit.

use half::{bf16, f16};

#[inline(always)]
fn pick(which: bool, a: u32, b: u32) -> u32 {
    if which { a } else { b }
}

/// Exact; signalling NaN become quiet.
#[inline(always)]
pub(super) fn f16_to_f32(x: f16) -> f32 {
    let x = u32::from(x.to_bits());
    let (sign, rest) = ((x & 0x8000) << 16, (x & 0x7fff) << 13);
    // The exponent is 112 short: a product by 2¹¹² is exact for subnormal numbers too.
    let scaled = (f32::from_bits(rest) * f32::from_bits(0x7780_0000)).to_bits();
    let infinity = 0x7c00 << 13;
    let special = rest | 0x7f80_0000 | pick(rest > infinity, 0x0040_0000, 0);
    f32::from_bits(pick(rest >= infinity, special, scaled) | sign)
}

/// Rounded to nearest, ties to even.
#[inline(always)]
pub(super) fn f32_to_f16(x: f32) -> f16 {
    let x = x.to_bits();
    let (sign, size) = ((x >> 16) & 0x8000, x & 0x7fff_ffff);
    let normal = size.wrapping_add(0xfff + ((size >> 13) & 1)).wrapping_sub(112 << 23) >> 13;
    // Numbers around ½ stand 2⁻²⁴ apart, as subnormal halves do: the addition rounds.
    let subnormal = (f32::from_bits(size) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    let finite = pick(size < 113 << 23, subnormal, normal);
    let nan = 0x7e00 | ((size >> 13) & 0x3ff);
    let special = pick(size > 0x7f80_0000, nan, 0x7c00);
    f16::from_bits((pick(size >= 143 << 23, special, finite) | sign) as u16)
}

/// Rounded to nearest, ties to even.
#[inline(always)]
pub(super) fn f32_to_bf16(x: f32) -> bf16 {
    let x = x.to_bits();
    let rounded = x.wrapping_add(0x7fff + ((x >> 16) & 1)) >> 16;
    bf16::from_bits(pick(x & 0x7fff_ffff > 0x7f80_0000, (x >> 16) | 0x40, rounded) as u16)
}

/// Exact; signalling NaN become quiet.
#[inline(always)]
pub(super) fn bf16_to_f32(x: bf16) -> f32 {
    let x = u32::from(x.to_bits()) << 16;
    f32::from_bits(x | pick(x & 0x7fff_ffff > 0x7f80_0000, 0x0040_0000, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_are_those_of_the_crate() {
        for bits in 0..=u16::MAX {
            let (h, b) = (f16::from_bits(bits), bf16::from_bits(bits));
            assert_eq!(f16_to_f32(h).to_bits(), h.to_f32().to_bits(), "{bits:#x}");
            assert_eq!(bf16_to_f32(b).to_bits(), b.to_f32().to_bits(), "{bits:#x}");
            // Each half, the ties beside it and their neighbours, of both formats.
            for middle in [h.to_f32().to_bits(), u32::from(bits) << 16, (u32::from(bits) << 16) | 0x8000] {
                for near in [0, 1, 0xfff, 0x1000, 0x1001, 0x1fff, 0x7fff, 0x8000] {
                    for x in [middle.wrapping_add(near), middle.wrapping_sub(near)].map(f32::from_bits) {
                        assert_eq!(f32_to_f16(x).to_bits(), f16::from_f32(x).to_bits(), "{:#x}", x.to_bits());
                        assert_eq!(f32_to_bf16(x).to_bits(), bf16::from_f32(x).to_bits(), "{:#x}", x.to_bits());
                    }
                }
            }
        }
        // A walk over all of f32 by a step that meets every exponent and sign.
        for x in (0..=u32::MAX).step_by(4099).map(f32::from_bits) {
            assert_eq!(f32_to_f16(x).to_bits(), f16::from_f32(x).to_bits(), "{:#x}", x.to_bits());
            assert_eq!(f32_to_bf16(x).to_bits(), bf16::from_f32(x).to_bits(), "{:#x}", x.to_bits());
        }
    }
}
