//! Philox 4x32-10: random numbers by counter, so the same on every device and thread count.
//!
//! Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

/// A stream of random numbers: a key and a counter.
///
/// ```
/// use bilin_core::Rng;
/// assert_eq!(Rng::new(7).next_u32x4(), Rng::new(7).next_u32x4());
/// ```
#[derive(Debug, Clone)]
pub struct Rng {
    key: [u32; 2],
    counter: u128,
}

impl Rng {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Rng {
        Rng { key: [seed as u32, (seed >> 32) as u32], counter: 0 }
    }

    /// The next four words.
    pub fn next_u32x4(&mut self) -> [u32; 4] {
        let c = self.counter;
        self.counter = self.counter.wrapping_add(1);
        philox([c as u32, (c >> 32) as u32, (c >> 64) as u32, (c >> 96) as u32], self.key)
    }

    /// A number from 0 to `below` − 1, without bias; 0 for `below` 0.
    pub fn below(&mut self, below: u64) -> u64 {
        let limit = u64::MAX - u64::MAX.checked_rem(below).unwrap_or(0);
        loop {
            let [a, b, ..] = self.next_u32x4();
            let x = u64::from(a) << 32 | u64::from(b);
            if x < limit || below == 0 {
                return x.checked_rem(below).unwrap_or(0);
            }
        }
    }

    /// 0 … n − 1 in random order.
    pub fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut out: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            out.swap(i, self.below(i as u64 + 1) as usize);
        }
        out
    }

    /// Two uniform numbers in [0, 1) of 53 bits.
    pub(crate) fn uniforms(&mut self) -> [f64; 2] {
        let [a, b, c, d] = self.next_u32x4();
        let unit = |hi: u32, lo: u32| ((u64::from(hi) << 32 | u64::from(lo)) >> 11) as f64 * 2f64.powi(-53);
        [unit(a, b), unit(c, d)]
    }

    /// Two standard normal numbers, by Box and Muller.
    pub(crate) fn normals(&mut self) -> [f64; 2] {
        let [u, v] = self.uniforms();
        let radius = (-2.0 * (1.0 - u).ln()).sqrt();
        let (sin, cos) = (std::f64::consts::TAU * v).sin_cos();
        [radius * cos, radius * sin]
    }
}

fn philox(mut x: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let p0 = u64::from(x[0]) * 0xD251_1F53;
        let p1 = u64::from(x[2]) * 0xCD9E_8D57;
        x = [(p1 >> 32) as u32 ^ x[1] ^ key[0], p1 as u32, (p0 >> 32) as u32 ^ x[3] ^ key[1], p0 as u32];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    x
}

#[cfg(test)]
mod tests {
    use super::philox;

    /// Known answers published with the algorithm's library (Random123, kat_vectors).
    #[test]
    fn known_answers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
    }
}
