//! The table of tumours: 30 features, a class of ±1, parts that are standardised by the first of them.

use std::path::Path;

use bilin::prelude::*;

use super::csv;

/// Features of the table.
pub const FEATURES: usize = 30;

/// The table that comes with the examples.
pub const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/breast_cancer.csv.gz");

/// Rows of features and their classes, row-major.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// (N, 30).
    pub x: Vec<f64>,
    /// (N): 1 or −1.
    pub y: Vec<f64>,
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

/// Mean and standard deviation.
pub fn moments(x: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let n = x.clone().count() as f64;
    let mean = x.clone().sum::<f64>() / n;
    (mean, (x.map(|x| (x - mean).powi(2)).sum::<f64>() / n).sqrt())
}

impl Table {
    fn row(&self, i: usize) -> &[f64] {
        &self.x[i * FEATURES..(i + 1) * FEATURES]
    }

    fn rows(&self, positions: &[usize]) -> Table {
        Table { x: positions.iter().flat_map(|&i| self.row(i)).copied().collect(), y: positions.iter().map(|&i| self.y[i]).collect() }
    }

    /// The features and the classes as tensors.
    pub fn tensors(&self, device: &Device) -> Result<(Tensor, Tensor)> {
        Ok((Tensor::from_slice(&self.x, [self.y.len(), FEATURES], device)?, Tensor::from_slice(&self.y, [self.y.len()], device)?))
    }

    /// Two thirds to fit and a third to judge by, by a random permutation; features standardised by the moments of the first.
    /// Errors: too few rows, a feature or class that is constant.
    pub fn split(&self, seed: u64) -> std::result::Result<[Table; 2], String> {
        if self.y.len() < 3 * FEATURES {
            return Err(format!("{} rows are too few, want {}", self.y.len(), 3 * FEATURES));
        }
        let order = Rng::new(seed).permutation(self.y.len());
        let (judge, fit) = order.split_at(self.y.len() / 3);
        let (mut fit, mut judge) = (self.rows(fit), self.rows(judge));
        for feature in 0..FEATURES {
            let (mean, deviation) = moments(fit.x.iter().skip(feature).step_by(FEATURES).copied());
            if deviation == 0.0 {
                return Err(format!("feature {} is constant", feature + 1));
            }
            for part in [&mut fit, &mut judge] {
                part.x.iter_mut().skip(feature).step_by(FEATURES).for_each(|x| *x = (*x - mean) / deviation);
            }
        }
        if moments(fit.y.iter().copied()).1 == 0.0 {
            return Err("the class is constant".to_owned());
        }
        Ok([fit, judge])
    }
}
