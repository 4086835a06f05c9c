//! The data: standardised features, a target of ±1, and a part that is held back to choose the ridge strength.

use std::path::Path;

use bilin::prelude::*;

use super::csv;

/// Features of the table.
pub const FEATURES: usize = 30;

/// Rows of features and their targets, row-major.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// (N, 30).
    pub x: Vec<f64>,
    /// (N): 1 or −1, less the training mean once standardised.
    pub y: Vec<f64>,
}

/// Two thirds to fit, a third to choose with.
#[derive(Debug, Clone)]
pub struct Problem {
    /// What the weights are fitted to.
    pub training: Table,
    /// What the ridge strength is chosen by.
    pub validation: Table,
}

/// The table of a file. Errors: one line that names file and line.
pub fn load(path: &Path) -> std::result::Result<Table, String> {
    let text = csv::read_text(path)?;
    let mut table = Table::default();
    for (i, row) in csv::rows(path, &text, 1, FEATURES + 1)?.iter().enumerate() {
        table.x.extend(&row[..FEATURES]);
        table.y.push(match row[FEATURES] {
            0.0 => -1.0,
            1.0 => 1.0,
            other => return Err(format!("{}:{}: class {other}, want 0 or 1", path.display(), i + 2)),
        });
    }
    Ok(table)
}

impl Table {
    fn row(&self, i: usize) -> &[f64] {
        &self.x[i * FEATURES..(i + 1) * FEATURES]
    }

    fn rows(&self, positions: &[usize]) -> Table {
        Table { x: positions.iter().flat_map(|&i| self.row(i)).copied().collect(), y: positions.iter().map(|&i| self.y[i]).collect() }
    }

    /// The features and the targets as tensors.
    pub fn tensors(&self, device: &Device) -> Result<(Tensor, Tensor)> {
        Ok((Tensor::from_slice(&self.x, [self.y.len(), FEATURES], device)?, Tensor::from_slice(&self.y, [self.y.len()], device)?))
    }
}

/// Mean and standard deviation.
fn moments(x: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let n = x.clone().count() as f64;
    let mean = x.clone().sum::<f64>() / n;
    (mean, (x.map(|x| (x - mean).powi(2)).sum::<f64>() / n).sqrt())
}

impl Problem {
    /// Splits by a random permutation and standardises by the moments of the training part, so that the intercept is the
    /// mean and stays out of the penalty. Errors: too few rows, a feature or class that is constant.
    pub fn new(table: &Table, seed: u64) -> std::result::Result<Problem, String> {
        if table.y.len() < 3 * FEATURES {
            return Err(format!("{} rows are too few, want {}", table.y.len(), 3 * FEATURES));
        }
        let order = Rng::new(seed).permutation(table.y.len());
        let (validation, training) = order.split_at(table.y.len() / 3);
        let (mut training, mut validation) = (table.rows(training), table.rows(validation));
        for feature in 0..FEATURES {
            let (mean, deviation) = moments(training.x.iter().skip(feature).step_by(FEATURES).copied());
            if deviation == 0.0 {
                return Err(format!("feature {} is constant", feature + 1));
            }
            for part in [&mut training, &mut validation] {
                part.x.iter_mut().skip(feature).step_by(FEATURES).for_each(|x| *x = (*x - mean) / deviation);
            }
        }
        let (mean, deviation) = moments(training.y.iter().copied());
        if deviation == 0.0 {
            return Err("the class is constant".to_owned());
        }
        [&mut training, &mut validation].into_iter().flat_map(|part| &mut part.y).for_each(|y| *y -= mean);
        Ok(Problem { training, validation })
    }
}
