//! Handwritten digits: 8×8 pixels from 0 (paper) to 16 (ink), and the class.

use std::path::Path;

use bilin::prelude::*;

use super::csv;

/// Pixels of a digit.
pub const PIXELS: usize = 64;
/// Classes.
pub const CLASSES: usize = 10;

/// A digit as the file has it.
#[derive(Debug, Clone)]
pub struct Digit {
    /// Row by row, 0 to 16.
    pub pixels: Vec<u8>,
    /// 0 to 9.
    pub class: u8,
}

/// Digits as tensors: pixels scaled to [0, 1], and classes.
#[derive(Debug)]
pub struct Set {
    /// (N, 64), f32.
    pub x: Tensor,
    /// (N), i64.
    pub y: Tensor,
    /// The digits themselves.
    pub digits: Vec<Digit>,
}

/// The digits of a file. Errors: one line that names file and line.
pub fn load(path: &Path) -> std::result::Result<Vec<Digit>, String> {
    let text = csv::read_text(path)?;
    let whole = |x: f64, most: u8| (0.0..=f64::from(most)).contains(&x).then_some(x as u8).filter(|&n| f64::from(n) == x);
    let rows = csv::rows(path, &text, 0, PIXELS + 1)?;
    let digits = rows.iter().enumerate().map(|(i, row)| {
        let pixels: Option<Vec<u8>> = row[..PIXELS].iter().map(|&x| whole(x, 16)).collect();
        match (pixels, whole(row[PIXELS], 9)) {
            (Some(pixels), Some(class)) => Ok(Digit { pixels, class }),
            _ => Err(format!("{}:{}: want pixels from 0 to 16 and a class from 0 to 9, whole numbers", path.display(), i + 1)),
        }
    });
    digits.collect()
}

impl Set {
    /// The digits at `positions`, on a device.
    fn of(digits: &[Digit], positions: &[usize], device: &Device) -> Result<Set> {
        let digits: Vec<Digit> = positions.iter().map(|&i| digits[i].clone()).collect();
        let pixels: Vec<f32> = digits.iter().flat_map(|d| &d.pixels).map(|&p| f32::from(p) / 16.0).collect();
        let classes: Vec<i64> = digits.iter().map(|d| i64::from(d.class)).collect();
        Ok(Set {
            x: Tensor::from_vec(pixels, [digits.len(), PIXELS], device)?,
            y: Tensor::from_vec(classes, [digits.len()], device)?,
            digits,
        })
    }

    /// Four fifths to train with and a fifth that is held back, by a random permutation.
    pub fn split(digits: &[Digit], rng: &mut Rng, device: &Device) -> Result<(Set, Set)> {
        let order = rng.permutation(digits.len());
        let (held_back, training) = order.split_at(digits.len() / 5);
        Ok((Set::of(digits, training, device)?, Set::of(digits, held_back, device)?))
    }

    /// Number of digits.
    pub fn count(&self) -> usize {
        self.digits.len()
    }
}
