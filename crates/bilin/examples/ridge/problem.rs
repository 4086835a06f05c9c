//! The data: a part to fit, a part that is held back to choose the ridge strength, targets without their mean.

use super::cancer::moments;
pub use super::cancer::{FEATURES, Table};

/// Two thirds to fit, a third to choose with.
#[derive(Debug, Clone)]
pub struct Problem {
    /// What the weights are fitted to.
    pub training: Table,
    /// What the ridge strength is chosen by.
    pub validation: Table,
}

impl Problem {
    /// The two parts of a table; the intercept is the mean of the targets, and stays out of the penalty. Errors: those of
    /// [`Table::split`].
    pub fn new(table: &Table, seed: u64) -> Result<Problem, String> {
        let [mut training, mut validation] = table.split(seed)?;
        let (mean, _) = moments(training.y.iter().copied());
        [&mut training, &mut validation].into_iter().flat_map(|part| &mut part.y).for_each(|y| *y -= mean);
        Ok(Problem { training, validation })
    }
}
